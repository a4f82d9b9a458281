// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
)

var trusted = map[string]string{hostnet.TrustLabel: hostnet.TrustValue}

// hostPodsCase returns a policyCase in a namespace with the labels.
func hostPodsCase(t *testing.T, labels map[string]string) policyCase {
	t.Helper()
	p := newPolicyCase(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "hostpods-", Labels: labels}}
	if err := p.admin.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	grantEverything(t, p.admin, ns.Name, "tenant")
	p.namespace = ns.Name
	return p
}

func (p policyCase) pod(spec corev1.PodSpec) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, GenerateName: "p-"}, Spec: spec}
}

func dropping(caps ...corev1.Capability) *corev1.SecurityContext {
	return &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: caps}}
}

func adding(caps ...corev1.Capability) *corev1.SecurityContext {
	return &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: caps}}
}

// In a namespace with a primary network, host-network pods are restricted, unless
// an administrator trusts the namespace or creates the pod.
func TestHostNetworkPodsPolicy(t *testing.T) {
	with := func(host bool, contexts ...*corev1.SecurityContext) corev1.PodSpec {
		spec := corev1.PodSpec{HostNetwork: host}
		for i, c := range contexts {
			spec.Containers = append(spec.Containers, corev1.Container{Name: string(rune('a' + i)), Image: "none", SecurityContext: c})
		}
		return spec
	}
	const (
		privileged = "may not be privileged"
		capability = "may not add the capabilities"
		netRaw     = "must drop NET_RAW"
		processes  = "may not see the node's processes"
		letters    = "The names of capabilities consist of the letters A to Z"
		hostPath   = "may not mount directories of the node"
	)
	hostPID := with(true, dropping("ALL"))
	hostPID.HostPID = true
	mounting := with(true, dropping("ALL"))
	mounting.Volumes = []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "cgroup", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/sys/fs/cgroup"}}}}
	empty := with(true, dropping("ALL"))
	empty.Volumes = mounting.Volumes[:1]
	yes := true
	rooted := dropping("ALL")
	rooted.Privileged = &yes
	initial := with(true, dropping("ALL"))
	initial.InitContainers = []corev1.Container{{Name: "i", Image: "none"}}
	sidecar := with(true, dropping("ALL"))
	always := corev1.ContainerRestartPolicyAlways
	sidecar.InitContainers = []corev1.Container{{Name: "i", Image: "none", RestartPolicy: &always, SecurityContext: adding("NET_ADMIN")}}
	tenant := map[string]string{network.LabelPrimaryUDN: ""}
	both := map[string]string{network.LabelPrimaryUDN: "", hostnet.TrustLabel: hostnet.TrustValue}
	for _, c := range []struct {
		name   string
		labels map[string]string
		spec   corev1.PodSpec
		want   string
	}{
		{"nothing dropped", tenant, with(true, nil), netRaw},
		{"another dropped", tenant, with(true, dropping("MKNOD")), netRaw},
		{"dropped in a spelling that a runtime ignores", tenant, with(true, dropping("CAP_NET_RAW")), netRaw},
		{"dropped in lower case", tenant, with(true, dropping("net_raw")), netRaw},
		{"dropped in one of two", tenant, with(true, dropping("NET_RAW"), nil), netRaw},
		{"not dropped in an init container", tenant, initial, netRaw},
		{"dropped", tenant, with(true, dropping("NET_RAW")), ""},
		{"all dropped, in two", tenant, with(true, dropping("ALL"), dropping("CHOWN", "NET_RAW")), ""},
		{"privileged", tenant, with(true, rooted), privileged},
		{"added back", tenant, with(true, adding("NET_RAW")), capability},
		{"added back with the prefix", tenant, with(true, adding("CAP_NET_RAW")), capability},
		{"added in lower case", tenant, with(true, adding("net_admin")), capability},
		{"added with letters that become S and I in upper case", tenant, with(true, adding("\u017fYS_ADMIN")), letters},
		{"added with one such letter", tenant, with(true, adding("CHOWN", "cap_net_adm\u0131n")), letters},
		{"added with a space", tenant, with(true, adding("SYS_ADMIN ")), letters},
		{"all added", tenant, with(true, adding("ALL")), capability},
		{"eBPF added", tenant, with(true, adding("BPF")), capability},
		{"added in a sidecar", tenant, sidecar, capability},
		{"any file of the node", tenant, with(true, adding("DAC_READ_SEARCH")), capability},
		{"another kernel", tenant, with(true, adding("SYS_BOOT")), capability},
		{"the node's processes", tenant, hostPID, processes},
		{"the node's processes, in a trusted namespace", both, hostPID, ""},
		{"a directory of the node", tenant, mounting, hostPath},
		{"a directory of the node, in a trusted namespace", both, mounting, ""},
		{"a directory of its own", tenant, empty, ""},
		{"a harmless one added", tenant, with(true, adding("NET_BIND_SERVICE")), ""},
		{"not in the host's network", tenant, with(false, nil), ""},
		{"in a trusted namespace", both, with(true, rooted), ""},
		{"in a namespace without a primary network", nil, with(true, rooted), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := hostPodsCase(t, c.labels)
			p.verdict(t, c.want, func(cl client.Client) error { return cl.Create(t.Context(), p.pod(c.spec), client.DryRunAll) },
				superUser, administrator)
		})
	}
	t.Run("an ephemeral container", func(t *testing.T) {
		t.Parallel()
		p := hostPodsCase(t, tenant)
		pod := p.pod(with(true, dropping("ALL")))
		p.create(t, pod)
		for name, c := range map[string]struct {
			context *corev1.SecurityContext
			want    string
		}{
			"with the defaults": {nil, netRaw},
			"privileged":        {rooted, privileged},
			"with NET_ADMIN":    {adding("NET_ADMIN"), capability},
			"with a long s":     {adding("\u017fYS_ADMIN"), letters},
			"without NET_RAW":   {dropping("NET_RAW"), ""},
		} {
			t.Run(name, func(t *testing.T) {
				p.verdict(t, c.want, func(cl client.Client) error {
					next := pod.DeepCopy()
					next.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
						Name: "debug", Image: "none", SecurityContext: c.context, ImagePullPolicy: corev1.PullAlways,
						TerminationMessagePolicy: corev1.TerminationMessageReadFile}}}
					return cl.SubResource("ephemeralcontainers").Update(t.Context(), next, client.DryRunAll)
				}, superUser, administrator)
			})
		}
	})
}

// Only administrators may write the label that lifts the restrictions, through any
// subresource: permission to write namespaces does not suffice.
func TestTrustedNamespacePolicy(t *testing.T) {
	p := newPolicyCase(t)
	grantNamespaces(t, p.admin)
	const refusal = "ask an administrator of the cluster"
	for _, c := range []struct {
		name          string
		before, after map[string]string
		want          string
	}{
		{"added", nil, trusted, refusal},
		{"another value", nil, map[string]string{hostnet.TrustLabel: "x"}, refusal},
		{"removed", trusted, nil, refusal},
		{"stays", trusted, trusted, ""},
		{"another label", nil, map[string]string{"team": "red"}, ""},
	} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "trust-", Labels: c.before}}
		if err := p.admin.Create(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
		for way, write := range map[string]func(client.Client, *corev1.Namespace) error{
			"update": func(cl client.Client, o *corev1.Namespace) error { return cl.Update(t.Context(), o, client.DryRunAll) },
			"status": func(cl client.Client, o *corev1.Namespace) error {
				return cl.Status().Update(t.Context(), o, client.DryRunAll)
			},
			"finalize": func(cl client.Client, o *corev1.Namespace) error {
				return cl.SubResource("finalize").Update(t.Context(), o, client.DryRunAll)
			},
		} {
			t.Run(c.name+" by "+way, func(t *testing.T) {
				p.verdict(t, c.want, func(cl client.Client) error {
					next := &corev1.Namespace{}
					if err := p.admin.Get(t.Context(), client.ObjectKeyFromObject(ns), next); err != nil {
						return err
					}
					next.Labels = map[string]string{corev1.LabelMetadataName: ns.Name}
					for k, v := range c.after {
						next.Labels[k] = v
					}
					return write(cl, next)
				}, superUser, administrator)
			})
		}
	}
	t.Run("created with the label", func(t *testing.T) {
		p.verdict(t, refusal, func(cl client.Client) error {
			return cl.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "trust-", Labels: trusted}}, client.DryRunAll)
		}, superUser, administrator)
	})
}

// grantNamespaces lets the user "tenant" write namespaces during the test, as tools
// that create namespaces for teams may.
func grantNamespaces(t *testing.T, admin client.Client) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "policy-"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""},
		Resources: []string{"namespaces", "namespaces/status", "namespaces/finalize"}, Verbs: []string{"*"}}}}
	if err := admin.Create(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := admin.Delete(context.Background(), role); err != nil {
			t.Error(err)
		}
	})
	grantClusterRole(t, admin, role.Name, "tenant")
}

// The annotation that opts a pod out of the socket binding is accepted in trusted
// namespaces only: in a new pod, in an existing pod, and in the binding to a node,
// whose annotations the API server copies to the pod.
func TestHostBindingAnnotationPolicy(t *testing.T) {
	const refusal = "remove it, or ask an administrator for the label"
	off := map[string]string{hostnet.OptOutAnnotation: "off"}
	for name, c := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"a tenant's namespace": {nil, refusal},
		"a trusted namespace":  {trusted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := hostPodsCase(t, c.labels)
			var allowed []string // no one: the agent ignores the annotation there
			if c.want == "" {
				allowed = []string{superUser, administrator}
			}
			pod := func(annotations map[string]string) *corev1.Pod {
				o := p.pod(corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}})
				o.Annotations = annotations
				return o
			}
			bare := pod(nil)
			p.create(t, bare)
			binding := func() *corev1.Binding {
				return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: bare.Name, Annotations: off},
					Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
			}
			patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+hostnet.OptOutAnnotation+`":"off"}}}`))
			for way, write := range map[string]func(client.Client) error{
				"create": func(cl client.Client) error { return cl.Create(t.Context(), pod(off), client.DryRunAll) },
				"update": func(cl client.Client) error { return cl.Patch(t.Context(), bare.DeepCopy(), patch, client.DryRunAll) },
				"status": func(cl client.Client) error {
					return cl.Status().Patch(t.Context(), bare.DeepCopy(), patch, client.DryRunAll)
				},
				"pods/binding": func(cl client.Client) error {
					return cl.SubResource("binding").Create(t.Context(), bare.DeepCopy(), binding(), client.DryRunAll)
				},
				"bindings": func(cl client.Client) error { return cl.Create(t.Context(), binding(), client.DryRunAll) },
			} {
				t.Run(way, func(t *testing.T) { p.verdict(t, c.want, write, allowed...) })
			}
			p.verdict(t, "", func(cl client.Client) error { return cl.Create(t.Context(), pod(nil), client.DryRunAll) })
		})
	}
}

// A probe or lifecycle hook may connect kubelet to its own pod only.
func TestProbeHostsPolicy(t *testing.T) {
	http := func(host string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: host, Port: intstr.FromInt32(80)}}
	}
	tcp := func(host string) corev1.ProbeHandler {
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Host: host, Port: intstr.FromInt32(80)}}
	}
	hook := func(h corev1.ProbeHandler) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{HTTPGet: h.HTTPGet, TCPSocket: h.TCPSocket}
	}
	const refusal = "The host of a probe or lifecycle hook"
	always := corev1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		container corev1.Container
		initial   bool
		host      bool // in the host's network
		labels    map[string]string
		want      string
	}{
		"liveness over HTTP":    {container: corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: http("10.244.0.3")}}, want: refusal},
		"readiness over TCP":    {container: corev1.Container{ReadinessProbe: &corev1.Probe{ProbeHandler: tcp("fd30::3")}}, want: refusal},
		"startup":               {container: corev1.Container{StartupProbe: &corev1.Probe{ProbeHandler: http("victim.green.svc")}}, want: refusal},
		"postStart hook":        {container: corev1.Container{Lifecycle: &corev1.Lifecycle{PostStart: hook(http("10.244.0.3"))}}, want: refusal},
		"preStop hook":          {container: corev1.Container{Lifecycle: &corev1.Lifecycle{PreStop: hook(tcp("10.244.0.3"))}}, want: refusal},
		"in a sidecar":          {initial: true, container: corev1.Container{RestartPolicy: &always, LivenessProbe: &corev1.Probe{ProbeHandler: http("10.244.0.3")}}, want: refusal},
		"name like an address":  {container: corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: http("127.0.0.1.example.org")}}, want: refusal},
		"a mapped address":      {container: corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: http("::ffff:10.244.0.3")}}, want: refusal},
		"no host":               {container: corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: http("")}, ReadinessProbe: &corev1.Probe{ProbeHandler: tcp("")}}},
		"loopback of the node":  {container: corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: http("127.0.0.1")}}, want: refusal},
		"localhost of the node": {container: corev1.Container{Lifecycle: &corev1.Lifecycle{PostStart: hook(http("localhost"))}}, want: refusal},
		"loopback": {host: true, container: corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: http("127.0.0.1")},
			ReadinessProbe: &corev1.Probe{ProbeHandler: tcp("::1")}, StartupProbe: &corev1.Probe{ProbeHandler: http("localhost")}}},
		"a command": {container: corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}}},
		"gRPC":      {container: corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 80}}}}},
		"a trusted namespace": {labels: trusted, container: corev1.Container{
			LivenessProbe: &corev1.Probe{ProbeHandler: http("10.0.0.9")}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := hostPodsCase(t, c.labels)
			c.container.Name, c.container.Image = "c", "none"
			spec := corev1.PodSpec{HostNetwork: c.host, Containers: []corev1.Container{c.container}}
			if c.initial {
				spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}, InitContainers: spec.Containers}
			}
			p.verdict(t, c.want, func(cl client.Client) error { return cl.Create(t.Context(), p.pod(spec), client.DryRunAll) },
				superUser, administrator)
			mirror := func(cl client.Client) error {
				o := p.pod(spec)
				o.Annotations, o.Spec.NodeName = map[string]string{corev1.MirrorPodAnnotationKey: "x"}, "n1"
				return cl.Create(t.Context(), o, client.DryRunAll)
			}
			// The annotation without a node's identity exempts no one: it is refused itself. Of two reasons
			// the API server gives one.
			p.verdict(t, "omit", mirror)
		})
	}
	t.Run("a node's mirror pod", func(t *testing.T) {
		p := hostPodsCase(t, nil)
		grantEverything(t, p.admin, p.namespace, "system:node:n1")
		c := impersonate("system:node:n1")
		c.Impersonate.Groups = []string{"system:nodes", "system:authenticated"}
		node := nadClient(t, c)
		spec := corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none", LivenessProbe: &corev1.Probe{ProbeHandler: http("10.0.0.9")}}}}
		create := func(annotations map[string]string) error {
			o := p.pod(spec)
			o.Annotations = annotations
			return node.Create(t.Context(), o, client.DryRunAll)
		}
		waitVerdict(t, refusal, func() error { return create(nil) })
		waitVerdict(t, "", func() error { return create(map[string]string{corev1.MirrorPodAnnotationKey: "x"}) })
	})
}

// Agents take the annotation of a mirror pod for the UID in its cgroup's name: only kubelet writes it.
func TestMirrorPodPolicy(t *testing.T) {
	p := hostPodsCase(t, nil)
	create := func(cl client.Client) error {
		o := p.pod(corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none"}}})
		o.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "f0e1d2c3"}
		return cl.Create(t.Context(), o, client.DryRunAll)
	}
	p.verdict(t, "only kubelet creates: omit it", create)
	pod := p.pod(corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}})
	p.create(t, pod)
	p.verdict(t, "may not add mirror pod annotation", func(cl client.Client) error {
		next := pod.DeepCopy()
		next.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "f0e1d2c3"}
		return cl.Update(t.Context(), next, client.DryRunAll)
	})
	// A pod that is bound to a node gets the Binding's annotations.
	binding := func() *corev1.Binding {
		return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: pod.Name, Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "f0e1d2c3"}},
			Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
	}
	p.verdict(t, "only kubelet creates: omit it", func(cl client.Client) error {
		return cl.SubResource("binding").Create(t.Context(), pod.DeepCopy(), binding(), client.DryRunAll)
	})
	p.verdict(t, "only kubelet creates: omit it", func(cl client.Client) error { return cl.Create(t.Context(), binding(), client.DryRunAll) })
	grantEverything(t, p.admin, p.namespace, "system:node:n1")
	c := impersonate("system:node:n1")
	c.Impersonate.Groups = []string{"system:nodes", "system:authenticated"}
	node := nadClient(t, c)
	waitVerdict(t, "", func() error { return create(node) })
}
