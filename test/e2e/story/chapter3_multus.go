// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/lab"
)

func multusChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "Multus: pods have interfaces of Bulkhead and of another CNI plugin, and no network that is not theirs", Phase: phaseDeletion, Needs: needs(fixtureMultus), Run: multusAttaches, Timeout: 10 * time.Minute, Group: groupMultus},
	}
}

const (
	multusConfiguration = "/etc/cni/net.d/00-multus.conf"
	multusKubeconfig    = "/etc/cni/multus.kubeconfig"
	// multusBridge is the link that the bridge plugin makes on the node and leaves there.
	multusBridge = "yard0"
)

// multusNode is the only node whose container runtime calls Multus.
func (w *World) multusNode() *lab.Node { return w.Lab.Nodes()[0] }

// setUpMultus installs Multus on a node, and creates a tenant with a secondary network of
// Bulkhead, yard of another plugin, and networks that pretend to be others.
func setUpMultus(ctx context.Context, w *World) error {
	node := w.multusNode()
	for _, program := range []string{"multus", "bridge", "static"} {
		data, err := os.ReadFile(filepath.Join(w.Lab.Multus(), program))
		if err != nil {
			return err
		}
		if err := node.Put(ctx, "/opt/cni/bin/"+program, data, 0o755); err != nil {
			return err
		}
	}
	kubeconfig, err := w.Lab.Kubeconfig()
	if err != nil {
		return err
	}
	if err := node.Put(ctx, multusKubeconfig, kubeconfig, 0o600); err != nil {
		return err
	}
	conf, err := json.Marshal(map[string]string{
		"cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus",
		"kubeconfig": multusKubeconfig, "clusterNetwork": "/etc/cni/net.d/10-bulkhead.conflist",
	})
	if err != nil {
		return err
	}
	if err := node.Put(ctx, multusConfiguration, conf, 0o644); err != nil {
		return err
	}
	if err := w.Lab.Apply(ctx, w.tenantManifest("sand", 35)+`---
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: flat, namespace: sand}
spec:
  topology: Layer2
  layer2: {role: Secondary, subnets: `+w.cidrs("10.87.0.0/16", "fd87::/64")+`}
---
`+nad("yard", `{"cniVersion": "1.0.0", "name": "yard", "plugins": [{"type": "bridge", "bridge": "`+multusBridge+`", "ipam": {"type": "static", "addresses": [{"address": "192.0.2.5/24"}]}}]}`)+"---\n"+
		nad("nameless", `{"cniVersion": "1.0.0", "name": "bulkhead", "type": "ovn-k8s-cni-overlay"}`)+"---\n"+
		nad("second", `{"cniVersion": "1.0.0", "name": "bulkhead", "type": "ovn-k8s-cni-overlay", "netAttachDefName": "sand/net"}`)+"---\n"+
		nad("stolen", `{"cniVersion": "1.0.0", "name": "flat", "type": "ovn-k8s-cni-overlay", "netAttachDefName": "storage/flat"}`)); err != nil {
		return err
	}
	for _, name := range []string{"net", "flat"} {
		if err := w.conditions(ctx, udns, "sand", name, "True"); err != nil {
			return err
		}
	}
	nodes := w.Lab.Nodes()
	return w.create(ctx,
		&pod{Namespace: "sand", Name: "sand-1", Node: node.Name, Tenant: "sand", Networks: "flat, yard@yard0, flat@disk"},
		&pod{Namespace: "sand", Name: "sand-2", Node: nodes[len(nodes)-1].Name, Tenant: "sand", Networks: "flat"})
}

func nad(name, config string) string {
	return fmt.Sprintf(`
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: %s, namespace: sand}
spec: {config: '%s'}
`, name, config)
}

// undoMultus deletes the pods, has Multus delete their interfaces, and removes it.
func undoMultus(ctx context.Context, w *World) error {
	if err := w.deletePods(ctx, "sand"); err != nil {
		return err
	}
	res, err := w.multusNode().Run(ctx, fmt.Sprintf("rm -f %s %s /opt/cni/bin/multus /opt/cni/bin/bridge /opt/cni/bin/static; ! ip link show %s >/dev/null 2>&1 || ip link delete %[3]s", multusConfiguration, multusKubeconfig, multusBridge))
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("remove Multus: %s", res.Stderr)
	}
	return err
}

func multusAttaches(ctx context.Context, w *World) (string, error) {
	pods, err := w.podsNamed("sand-1", "sand-2")
	if err != nil {
		return "", err
	}
	attached, peer := pods[0], pods[1]
	// Multus writes the status of all interfaces.
	flat := attached.On["flat"]
	want := fmt.Sprintf("bulkhead eth0 %v false, bulkhead ovn-udn1 %v true, sand/flat net1 %v false, sand/yard yard0 [192.0.2.5] false, sand/flat disk %v false",
		attached.Default, attached.On["net"], flat, attached.On["1"])
	if err := w.hasStatus(ctx, attached, want); err != nil {
		return "", err
	}
	pretenders := []string{"nameless", "second", "stolen"}
	if err := each(pretenders, func(name string) error {
		return w.Lab.Apply(ctx, (&pod{Namespace: "sand", Name: name, Node: attached.Node, Networks: name}).spec())
	}); err != nil {
		return "", err
	}
	answers := 0
	for _, pair := range [][2]*pod{{attached, peer}, {peer, attached}} {
		from, to := pair[0], pair[1]
		asked := map[string]string{}
		for _, t := range targets(append(append([]netip.Addr{}, to.On["net"]...), to.On["flat"]...)...) {
			asked[t] = to.Namespace + "/" + to.Name
		}
		answers += len(asked)
		if _, err := w.reach(ctx, from, "", asked); err != nil {
			return "", fmt.Errorf("%s to %s: %w", from.Name, to.Name, err)
		}
	}
	refused := each(pretenders, func(name string) error {
		err := w.Lab.Wait(ctx, "an event that refuses the pod "+name, func(ctx context.Context) (bool, string, error) {
			events, err := w.Lab.Client().CoreV1().Events("sand").List(ctx, metav1.ListOptions{FieldSelector: "reason=ErrorAllocatingPod,involvedObject.name=" + name})
			return err == nil && len(events.Items) > 0, "none", err
		})
		if err != nil {
			return err
		}
		obj, err := w.Lab.Client().CoreV1().Pods("sand").Get(ctx, name, metav1.GetOptions{})
		if err == nil && (obj.Status.Phase != corev1.PodPending || len(obj.Status.PodIPs) > 0) {
			err = fmt.Errorf("pod %s is %s with the addresses %v", name, obj.Status.Phase, obj.Status.PodIPs)
		}
		return err
	})
	// Multus also deletes the interfaces, and is there for this check alone.
	return fmt.Sprintf("5 interfaces, %d answers, %d pods refused", answers, len(pretenders)), errors.Join(refused, undoMultus(ctx, w))
}
