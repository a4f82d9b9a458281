// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	nadclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
	"bulkhead/test/api"
)

// TestZoneOnRealServers runs the zone against a real API server and real databases.
func TestZoneOnRealServers(t *testing.T) {
	h := newHost(t, debianTree(t), "db", "")
	if os.Getenv(api.BinEnv) == "" {
		t.Skip(api.BinEnv + " names no directory with kube-apiserver and etcd")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	env, err := api.Start(ctx, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Stop() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(env.Install(ctx, filepath.Join(api.Root(), "deploy/crds")))
	h.startCentral()
	k, nads := kubernetes.NewForConfigOrDie(env.Admin), nadclient.NewForConfigOrDie(env.Admin)

	n1 := testNode(1, "node1", network.SharedGateway)
	annotations, err := n1.AgentAnnotations()
	must(err)
	annotations[network.AnnotationNodeID] = "1"
	_, err = k.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Annotations: annotations}}, metav1.CreateOptions{})
	must(err)
	const networks = 20
	for i := 1; i <= networks; i++ {
		ns := fmt.Sprintf("t%d", i)
		_, err = k.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{network.LabelPrimaryUDN: ""}}}, metav1.CreateOptions{})
		must(err)
		conf, err := json.Marshal(network.NetConf{CNIVersion: network.CNIVersion, Name: ns + "_net", Type: network.CNIType, NetAttachDefName: ns + "/net", Topology: "layer3", Role: "primary", Subnets: "10.10.0.0/16/24"})
		must(err)
		_, err = nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(ns).Create(ctx, &nadv1.NetworkAttachmentDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "net", Namespace: ns, Annotations: map[string]string{network.AnnotationNetworkID: fmt.Sprint(i)}, OwnerReferences: ownedBy(ns + "_net")},
			Spec:       nadv1.NetworkAttachmentDefinitionSpec{Config: string(conf)},
		}, metav1.CreateOptions{})
		must(err)
	}
	cfg, err := config.Parse("")
	must(err)
	cfg.Kubernetes.NodeName, cfg.NBAddress, cfg.SBAddress = "node1", h.Sock("nb"), h.Sock("sb")
	start := func() (*Zone, func()) {
		z, err := NewZone(cfg, k, nads, nil, quietLog())
		must(err)
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- z.Run(ctx) }()
		return z, func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		}
	}
	started := time.Now()
	z, stop := start()
	eventually(t, "ready", func() error {
		if !z.Ready() {
			return fmt.Errorf("not ready")
		}
		return nil
	})
	t.Logf("%d networks built %v after start", networks, time.Since(started))

	pod := func(ns, name string, a map[string]string) *corev1.Pod {
		p, err := k.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns, Annotations: a},
			Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}, metav1.CreateOptions{})
		must(err)
		return p
	}
	networksOf := func(ns, name string) network.PodNetworks {
		p, err := k.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		must(err)
		out, err := network.ParsePodNetworks(p.Annotations[network.AnnotationPodNetworks])
		must(err)
		return out
	}
	var latency []time.Duration
	const pods = 30
	podName := func(i int) (namespace, name string) { return fmt.Sprintf("t%d", 1+i%networks), fmt.Sprintf("p%d", i) }
	for i := range pods { // without annotations, with another one, with a preset one
		ns, name := podName(i)
		a := []map[string]string{nil, {"other": "x"}, {network.AnnotationPodNetworks: "{}"}}[i%3]
		at := time.Now()
		pod(ns, name, a)
		for len(networksOf(ns, name)) != 2 {
			if time.Since(at) > time.Minute {
				t.Fatalf("pod %s/%s got no annotation", ns, name)
			}
			time.Sleep(2 * time.Millisecond)
		}
		latency = append(latency, time.Since(at))
		out := h.must("ovn-nbctl", "--no-leader-only", "--bare", "--columns=addresses", "find", "Logical_Switch_Port", "name="+network.PodLSP(ns+"/net", ns, name))
		if !strings.Contains(out, networksOf(ns, name)[ns+"/net"].IPs[0].Addr().String()) {
			eventually(t, "port of "+name, func() error {
				out, err := h.Run("ovn-nbctl", "--no-leader-only", "--bare", "--columns=addresses", "find", "Logical_Switch_Port", "name="+network.PodLSP(ns+"/net", ns, name))
				if err == nil && !strings.Contains(out, "10.10.0.") {
					err = fmt.Errorf("addresses %q", out)
				}
				return err
			})
		}
	}
	slices.Sort(latency)
	t.Logf("pod created to annotated: median %v, worst %v", latency[len(latency)/2], latency[len(latency)-1])
	if got := networksOf("t1", "p20")["t1/net"].IPs[0]; got != netip.MustParsePrefix("10.10.0.4/24") {
		t.Errorf("t1's second pod got %v", got)
	}

	// Restart with nothing changed: no transaction.
	rows := func() string { return h.must("ovsdb-client", "dump", h.Sock("nb"), "OVN_Northbound") }
	hasPorts := func(namespace, name string) func() error {
		return func() error {
			out, err := h.Run("ovn-nbctl", "--no-leader-only", "--bare", "--columns=name", "find", "Logical_Switch_Port", "addresses!=[]")
			have := strings.Fields(out)
			for _, key := range []string{network.DefaultName, namespace + "/net"} {
				if lsp := network.PodLSP(key, namespace, name); err == nil && !slices.Contains(have, lsp) {
					err = fmt.Errorf("no port %s", lsp)
				}
			}
			return err
		}
	}
	for i := range pods {
		ns, name := podName(i)
		eventually(t, "ports of "+name, hasPorts(ns, name))
	}
	before := rows()
	stop()
	z, stop = start()
	defer stop()
	eventually(t, "ready again", func() error {
		if !z.Ready() {
			return fmt.Errorf("not ready")
		}
		return nil
	})
	if rows() != before {
		t.Error("a restart changed rows")
	}
	// A new pod takes one transaction in each of its two networks. Anything that the
	// restart still had to do is done before.
	pod("t1", "extra", nil)
	eventually(t, "ports of extra", hasPorts("t1", "extra"))
	eventually(t, "its transactions are counted", func() error {
		if n := z.nb.(*NB).Transactions(); n < 2 {
			return fmt.Errorf("%d so far", n)
		}
		return nil
	})
	if n := z.nb.(*NB).Transactions(); n != 2 {
		t.Errorf("%d transactions after a restart with nothing changed and one new pod, want 2", n)
	}
	if w := h.warnings(); len(w) > 0 {
		t.Errorf("northd: %s", strings.Join(w, "\n"))
	}
}
