// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
)

// pod is one pod of the story and its addresses.
type pod struct {
	Namespace, Name, Node string
	Tenant                string // "red", "blue" or "" for the default network
	HostNetwork           bool
	Networks              string // secondary networks that it requests
	VM                    string // the virtual machine that it stands for, whose claim on the primary network has its name

	Default []netip.Addr            // on the cluster default network
	Primary []netip.Addr            // on the tenant's network, or on all secondary networks
	On      map[string][]netip.Addr // by the name of the network's NAD
}

const port = "8080"

// spec is the pod's manifest: netprobe serving on all addresses, with one
// probe of each kind by the real kubelet. Liveness allows five minutes, because an
// emulated node on a busy machine pauses: probesPass sees whether it passes. Twenty pods
// that were probed every two seconds would take half of an emulated processor.
func (p *pod) spec() string {
	labels, annotations := "", ""
	if p.VM != "" {
		labels = ", " + network.LabelVirtualMachine + ": " + p.VM
		annotations = fmt.Sprintf(`, %s: '{"name": "net", "ipam-claim-reference": "%s"}'`, network.AnnotationDefaultNetwork, p.VM)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: %[2]s
  namespace: %[1]s
  labels: {app: story, role: server, pod: %[2]s%[7]s}
  annotations: {k8s.v1.cni.cncf.io/networks: '%[6]s'%[8]s}
spec:
  nodeName: %[3]s
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  volumes: [{name: tools, hostPath: {path: %[5]s}}]
  containers:
  - name: netprobe
    image: docker.io/lab/busybox:1
    imagePullPolicy: Never
    command: [/tools/netprobe, serve, --name, %[1]s/%[2]s, --listen, ":%[4]s", --sctp, "[::]:%[4]s"]
    ports: [{name: web, containerPort: %[4]s}, {name: web-udp, containerPort: %[4]s, protocol: UDP}, {name: web-sctp, containerPort: %[4]s, protocol: SCTP}]
    volumeMounts: [{name: tools, mountPath: /tools, readOnly: true}]
    startupProbe: {exec: {command: [/bin/true]}, periodSeconds: 1, failureThreshold: 300, timeoutSeconds: 20}
    readinessProbe: {httpGet: {path: /, port: %[4]s}, periodSeconds: 10, timeoutSeconds: 5}
    livenessProbe: {tcpSocket: {port: %[4]s}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 30}
`, p.Namespace, p.Name, p.Node, port, toolsDir, p.Networks, labels, annotations)
}

const plainNamespace = `
apiVersion: v1
kind: Namespace
metadata: {name: plain}
`

// tenantNamespaces carry the label, which is accepted at creation only.
const tenantNamespaces = `
apiVersion: v1
kind: Namespace
metadata: {name: red-a, labels: {k8s.ovn.org/primary-user-defined-network: "", tenant: red}}
---
apiVersion: v1
kind: Namespace
metadata: {name: red-b, labels: {k8s.ovn.org/primary-user-defined-network: "", tenant: red}}
---
apiVersion: v1
kind: Namespace
metadata: {name: blue, labels: {k8s.ovn.org/primary-user-defined-network: ""}}
`

// subnets is the n-th address plan of the story, in the lab's IP families.
func (w *World) subnets(n int) string {
	var list []string
	for _, f := range w.Families {
		if f == "ipv4" {
			list = append(list, fmt.Sprintf(`{cidr: 10.%d.0.0/16, hostSubnet: 24}`, n))
		} else {
			list = append(list, fmt.Sprintf(`{cidr: "fd%d::/48", hostSubnet: 64}`, n))
		}
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// has reports whether the lab has an address's IP family.
func (w *World) has(a netip.Addr) bool {
	return slices.Contains(w.Families, map[bool]string{true: "ipv4", false: "ipv6"}[a.Is4()])
}

// cidrs returns those of the CIDRs that have one of the lab's IP families, as a list in YAML.
func (w *World) cidrs(all ...string) string {
	var list []string
	for _, c := range all {
		if w.has(netip.MustParsePrefix(c).Addr()) {
			list = append(list, `"`+c+`"`)
		}
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// tenantManifest is a namespace with a UserDefinedNetwork, net, of the n-th address plan.
func (w *World) tenantManifest(namespace string, n int) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s, labels: {k8s.ovn.org/primary-user-defined-network: ""}}
---
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: net, namespace: %[1]s}
spec:
  topology: Layer3
  layer3: {role: Primary, subnets: %[2]s}
`, namespace, w.subnets(n))
}

// networks are the two tenants' networks, with the same address plan.
func (w *World) networks() string {
	subnets := w.subnets(20)
	return fmt.Sprintf(`
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: red}
spec:
  namespaceSelector: {matchLabels: {tenant: red}}
  network:
    topology: Layer3
    layer3: {role: Primary, subnets: %[1]s}
---
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: net, namespace: blue}
spec:
  topology: Layer3
  layer3: {role: Primary, subnets: %[1]s}
`, subnets)
}

// hostNetworkPod is a host-network pod with two containers: one of root with the default
// capabilities of containers, and one of a user without capabilities. server is one more, or "".
func hostNetworkPod(namespace, name, node, tenant, server string) (*pod, string) {
	p := &pod{Namespace: namespace, Name: name, Node: node, Tenant: tenant, HostNetwork: true}
	container := func(name, extra string) string {
		return fmt.Sprintf(`
  - name: %s
    image: docker.io/lab/busybox:1
    imagePullPolicy: Never
    volumeMounts: [{name: tools, mountPath: /tools, readOnly: true}]
%s`, name, extra)
	}
	return p, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  nodeName: %s
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  volumes: [{name: tools, hostPath: {path: %s}}]
  containers:`, name, namespace, node, toolsDir) +
		container("root", `    command: [/bin/sleep, "100000"]
`) + container("nobody", `    command: [/bin/sleep, "100000"]
    securityContext:
      runAsUser: 65534
      runAsNonRoot: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
`) + server
}

// serverContainer is a container of hostNetworkPod with a server on all addresses, which answers with its name.
func serverContainer(name string, port uint16) string {
	return fmt.Sprintf(`
  - name: server
    image: docker.io/lab/busybox:1
    imagePullPolicy: Never
    volumeMounts: [{name: tools, mountPath: /tools, readOnly: true}]
    command: [/tools/netprobe, serve, --name, %s, --listen, ":%d"]
`, name, port)
}

// create applies pods, all at once, and waits until every one is Ready.
func (w *World) create(ctx context.Context, pods ...*pod) error {
	w.addPods(pods...)
	var manifests []string
	for _, p := range pods {
		manifests = append(manifests, p.spec())
	}
	if err := w.Lab.Apply(ctx, strings.Join(manifests, "---\n")); err != nil {
		return err
	}
	for _, p := range pods {
		if err := w.ready(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// ready waits for the pod to be Ready and reads its addresses.
func (w *World) ready(ctx context.Context, p *pod) error {
	what := fmt.Sprintf("pod %s/%s to be Ready", p.Namespace, p.Name)
	var last *corev1.Pod
	err := w.Lab.Wait(ctx, what, func(ctx context.Context) (bool, string, error) {
		obj, err := w.Lab.Client().CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		last = obj
		for _, c := range obj.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return true, "", nil
			}
		}
		return false, string(obj.Status.Phase) + w.podEvents(ctx, p), nil
	})
	if err != nil {
		return err
	}
	return p.learn(last)
}

func (w *World) podEvents(ctx context.Context, p *pod) string {
	events, err := w.Lab.Client().CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + p.Name + ",type=Warning"})
	if err != nil || len(events.Items) == 0 {
		return ""
	}
	sort.Slice(events.Items, func(i, j int) bool {
		return events.Items[i].LastTimestamp.Before(&events.Items[j].LastTimestamp)
	})
	e := events.Items[len(events.Items)-1]
	return ", last warning: " + e.Reason + ": " + e.Message
}

// learn reads the pod's addresses from its annotation.
func (p *pod) learn(obj *corev1.Pod) error {
	if p.HostNetwork {
		return nil
	}
	nets, err := network.ParsePodNetworks(obj.Annotations[network.AnnotationPodNetworks])
	if err != nil {
		return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	p.Default, p.Primary, p.On = nil, nil, map[string][]netip.Addr{}
	for key, n := range nets {
		for _, ip := range n.IPs {
			if key == network.DefaultName {
				p.Default = append(p.Default, ip.Addr())
			} else {
				p.Primary = append(p.Primary, ip.Addr())
				p.On[path.Base(key)] = append(p.On[path.Base(key)], ip.Addr())
			}
		}
	}
	// A pod of a tenant that has secondary networks alone is reached on these.
	if nets[network.DefaultName].Role == network.RolePrimary && (p.Tenant == "" || len(p.Primary) == 0) {
		p.Primary = p.Default
	}
	if len(p.Default) == 0 || len(p.Primary) == 0 {
		return fmt.Errorf("pod %s/%s: annotation %q lacks addresses", p.Namespace, p.Name, obj.Annotations[network.AnnotationPodNetworks])
	}
	return nil
}

// targets are TCP, UDP and ICMP to each address.
func targets(addrs ...netip.Addr) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, "tcp:"+netip.AddrPortFrom(a, 8080).String(), "udp:"+netip.AddrPortFrom(a, 8080).String(), "icmp:"+a.String())
	}
	return out
}

// podGrace is the grace period of deletions. It is not 0: pods that are deleted by force
// are gone from the API before kubelet has stopped them.
func podGrace() metav1.DeleteOptions {
	grace := int64(1)
	return metav1.DeleteOptions{GracePeriodSeconds: &grace}
}

// deletePod deletes a pod and waits until it is gone.
func (w *World) deletePod(ctx context.Context, p *pod) error {
	if err := w.Lab.Client().CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, podGrace()); err != nil {
		return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return w.podsGone(ctx, p.Namespace, "metadata.name="+p.Name)
}

// stopPods starts to delete a namespace's pods.
func (w *World) stopPods(ctx context.Context, namespace string) error {
	if err := w.Lab.Client().CoreV1().Pods(namespace).DeleteCollection(ctx, podGrace(), metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete the pods of %s: %w", namespace, err)
	}
	return nil
}

// deletePods deletes a namespace's pods and waits until they are gone.
func (w *World) deletePods(ctx context.Context, namespace string) error {
	if err := w.stopPods(ctx, namespace); err != nil {
		return err
	}
	return w.podsGone(ctx, namespace, "")
}

// podsGone waits until a namespace has no pods that match a field selector.
func (w *World) podsGone(ctx context.Context, namespace, fields string) error {
	return w.Lab.Wait(ctx, fmt.Sprintf("the pods of %s to be gone %s", namespace, fields), func(ctx context.Context) (bool, string, error) {
		left, err := w.Lab.Client().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: fields})
		if err != nil {
			return false, "", err
		}
		return len(left.Items) == 0, fmt.Sprintf("%d left", len(left.Items)), nil
	})
}

// annotate sets an annotation of pods; nil removes it.
func (w *World) annotate(ctx context.Context, key string, value *string, pods ...*pod) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err != nil {
		return err
	}
	for _, p := range pods {
		if _, err := w.Lab.Client().CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("annotate pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return nil
}
