// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// largestCases are the largest specs that the schema accepts, with the longest
// strings, and updates that all rules must evaluate.
func largestCases() []schemaCase {
	v6 := func(format string, n int) string { return blocks("fd10:aaaa:bbbb:cccc:"+format, n) }
	l2Full := l2("role: Primary, mtu: 1280, subnets: [10.100.0.0/16, 'fd10:aaaa:bbbb:cccc:0000:0000:0000:0000/64'], " +
		"joinSubnets: [100.70.0.0/16, 'fd70:0000:0000:0000:0000:0000:0000:0000/64'], " +
		"reservedSubnets: " + v6("ffff:0000:%04x:0000/112", 25) + ", " +
		"infrastructureSubnets: [10.100.0.0/24, " + v6("eeee:0000:%04x:0000/112", 3)[1:] + ", " +
		"defaultGatewayIPs: [10.100.0.9, 'fd10:aaaa:bbbb:cccc:eeee:0000:0001:0009'], ipam: {mode: Enabled, lifecycle: Persistent}")
	local := func(format string) string {
		return localnet("role: Secondary, mtu: 1280, physicalNetworkName: " + strings.Repeat("a", 253) +
			", subnets: [192.168.0.0/16, 'fd10:aaaa:bbbb:cccc:0000:0000:0000:0000/64'], excludeSubnets: " + v6(format, 25) +
			", vlan: {mode: Access, access: {id: 4094}}, ipam: {mode: Enabled, lifecycle: Persistent}")
	}
	return append(forBothKinds([]schemaCase{
		{name: "400 IPv4 subnets", spec: l3("role: Primary, " + manySubnets(399, 399)), update: l3("role: Primary, " + manySubnets(400, 400))},
		{name: "400 IPv6 subnets", spec: l3("role: Primary, mtu: 1280, " + manySubnets(399, 0)), update: l3("role: Primary, mtu: 1280, " + manySubnets(400, 0))},
		{name: "200 subnets of each family", spec: l3("role: Primary, mtu: 1280, " + manySubnets(399, 200)), update: l3("role: Primary, mtu: 1280, " + manySubnets(400, 200))},
		{name: "layer2", spec: l2Full, update: l2Full},
	}), withKind(kindNetwork, []schemaCase{
		{name: "localnet", spec: local("ffff:0000:%04x:0000/112"), update: local("eeee:0000:%04x:0000/112")},
	})...)
}

// The API server limits the cost of an object's CEL rules, in total and per rule.
// The largest objects must stay below the limits when they are created, updated and,
// as status writes are validated too, when their status is written.
func TestLargestObjects(t *testing.T) {
	needAPI(t)
	cl, err := client.New(env.Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for i, c := range largestCases() {
		t.Run(c.kind+" "+c.name, func(t *testing.T) {
			o, err := c.object(fmt.Sprintf("large-%d", i), c.spec)
			if err != nil {
				t.Fatal(err)
			}
			step := func(name string, f func() error) {
				start := time.Now()
				if err := f(); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				t.Logf("%s: %s", name, time.Since(start).Round(time.Millisecond))
			}
			step("create", func() error { return cl.Create(ctx, o) })
			defer func() { _ = cl.Delete(ctx, o) }()
			next, err := c.object(o.GetName(), c.update)
			if err != nil {
				t.Fatal(err)
			}
			next.SetResourceVersion(o.GetResourceVersion())
			step("update", func() error { return cl.Update(ctx, next) })
			status := `{"status":{"conditions":[{"type":"NetworkCreated","status":"True","reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
			step("status", func() error {
				return cl.Status().Patch(ctx, next, client.RawPatch(types.MergePatchType, []byte(status)))
			})
		})
	}
}
