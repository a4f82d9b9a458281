// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"strings"
	"testing"

	"bulkhead/test/lab/internal/host"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestOptions(t *testing.T) {
	for name, c := range map[string]struct {
		in   Options
		want string // part of the error
	}{
		"defaults":     {Options{}, ""},
		"four, dual":   {Options{Nodes: 4, Families: "dual", KVM: "off"}, ""},
		"too many":     {Options{Nodes: 5}, "1 to 4 nodes, not 5"},
		"negative":     {Options{Nodes: -1}, "1 to 4 nodes, not -1"},
		"IPv6 only":    {Options{Families: "ipv6"}, ""},
		"no family":    {Options{Families: "ipx"}, `ipv4, ipv6 or dual, not "ipx"`},
		"unknown mode": {Options{Gateway: "both"}, `shared or local, not "both"`},
		"unknown KVM":  {Options{KVM: "maybe"}, `auto, on or off, not "maybe"`},
	} {
		o, err := c.in.complete()
		if c.want == "" {
			if err != nil || o.Nodes == 0 || o.Families == "" || o.KVM == "" || o.Gateway == "" || o.Repo == "" {
				t.Errorf("%s: %+v, %v", name, o, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

func TestParseManifest(t *testing.T) {
	objects, err := parseManifest(`
# a comment alone
---
apiVersion: v1
kind: Namespace
metadata: {name: a}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}
`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range objects {
		names = append(names, o.GetName())
	}
	if got := strings.Join(names, " "); got != "a b c" {
		t.Errorf("objects %q", got)
	}
	for _, bad := range []string{"kind: X", "{"} {
		if _, err := parseManifest(bad); err == nil || !strings.Contains(err.Error(), "document 1") {
			t.Errorf("%q: error %v", bad, err)
		}
	}
}

func TestAdapt(t *testing.T) {
	objects, err := parseManifest(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  template:
    spec:
      hostNetwork: true
      initContainers:
      - {name: init, image: example.com:5000/org/bulkhead:v1}
      containers:
      - name: agent
        image: bulkhead
      - {name: frr, image: frr:10}
`)
	if err != nil {
		t.Fatal(err)
	}
	if err := adapt(objects[0], host.IPv4, Options{}); err != nil {
		t.Fatal(err)
	}
	read := func(list string, n int) map[string]any {
		l, _, _ := unstructured.NestedSlice(objects[0].Object, "spec", "template", "spec", list)
		return l[n].(map[string]any)
	}
	for want, c := range map[string]map[string]any{
		"example.com:5000/org/bulkhead:v1": read("initContainers", 0), "bulkhead": read("containers", 0), "frr:10": read("containers", 1),
	} {
		if c["image"] != want {
			t.Errorf("image %v was changed, want %s", c["image"], want)
		}
	}
}

func TestAdaptConfig(t *testing.T) {
	const config = `{apiVersion: v1, kind: ConfigMap, metadata: {name: bulkhead-config}, data: {c: "[default]\ncluster-subnets = 10.1.0.0/16/24\nservice-cidrs = 10.2.0.0/16\n"}}`
	api := map[host.Families]string{host.IPv4: "https://172.30.0.1:6443", host.IPv6: "https://[fd00:172:30::1]:6443", host.Dual: "https://172.30.0.1:6443"}
	for families, want := range map[host.Families]string{
		host.IPv4: "[default]\ncluster-subnets = 10.244.0.0/16/24\nservice-cidrs = 10.96.0.0/16\n",
		host.IPv6: "[default]\ncluster-subnets = fd10:244::/48/64\nservice-cidrs = fd10:96::/112\n",
		host.Dual: "[default]\ncluster-subnets = 10.244.0.0/16/24,fd10:244::/48/64\nservice-cidrs = 10.96.0.0/16,fd10:96::/112\n",
	} {
		want += "udn-allowed-default-services = " + AllowedServices + "\ningress-namespaces = " + IngressNamespace + "\n\n[kubernetes]\napiserver = " + api[families] + "\n\n[bgp-managed]\ntopology = full-mesh\n\n[ovs]\ngateway-mode = local\n"
		objects, err := parseManifest(config)
		if err != nil {
			t.Fatal(err)
		}
		if err := adapt(objects[0], families, Options{Gateway: "local"}); err != nil {
			t.Fatal(err)
		}
		if got, _, _ := unstructured.NestedString(objects[0].Object, "data", "c"); got != want {
			t.Errorf("%s: %q, want %q", families, got, want)
		}
		want = strings.Replace(want, "\n\n[kubernetes]", "\ntransport = no-overlay\n\n[kubernetes]", 1) + "\n[no-overlay]\noutbound-snat = enabled\nrouting = managed\n"
		objects, err = parseManifest(config)
		if err != nil {
			t.Fatal(err)
		}
		if err := adapt(objects[0], families, Options{Gateway: "local", Transport: "no-overlay"}); err != nil {
			t.Fatal(err)
		}
		if got, _, _ := unstructured.NestedString(objects[0].Object, "data", "c"); got != want {
			t.Errorf("%s without an overlay: %q, want %q", families, got, want)
		}
	}
}

// Manifests that the lab cannot adapt or find are errors, not left out.
func TestIncompleteManifests(t *testing.T) {
	objects, err := parseManifest("{apiVersion: v1, kind: ConfigMap, metadata: {name: bulkhead-config}, data: {c: \"[default]\\ncluster-subnets = 10.1.0.0/16/24\\n\"}}")
	if err != nil {
		t.Fatal(err)
	}
	if err := adapt(objects[0], host.Dual, Options{}); err == nil || !strings.Contains(err.Error(), "service-cidrs") {
		t.Errorf("adapt a configuration without service-cidrs: %v", err)
	}
	if err := applyDir(t.TempDir(), func(string) error { return nil }); err == nil {
		t.Error("apply an empty directory: no error")
	}
}
