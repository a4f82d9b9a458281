// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovsdb"
)

// failuresAnnotation returns the Node's failures annotation.
func (env *zoneEnv) failuresAnnotation() string {
	n, err := env.kube.CoreV1().Nodes().Get(context.Background(), "node1", metav1.GetOptions{})
	env.must(err)
	return n.Annotations[network.AnnotationZoneFailures]
}

// setFailuresAnnotation sets the annotation, as an earlier zone would.
func (env *zoneEnv) setFailuresAnnotation(value string) {
	ctx, api := context.Background(), env.kube.CoreV1().Nodes()
	n, err := api.Get(ctx, "node1", metav1.GetOptions{})
	env.must(err)
	n.Annotations[network.AnnotationZoneFailures] = value
	_, err = api.Update(ctx, n, metav1.UpdateOptions{})
	env.must(err)
}

func (env *zoneEnv) waitFailures(want string) {
	env.t.Helper()
	var got string
	defer func() {
		if env.t.Failed() {
			env.t.Logf("failures annotation %s", got)
		}
	}()
	env.waitUntil("failures annotation "+want, func() bool { got = env.failuresAnnotation(); return got == want })
}

// nodePatches returns the number of patches of Nodes.
func (env *zoneEnv) nodePatches() int {
	n := 0
	for _, a := range env.kube.Actions() {
		if a.Matches("patch", "nodes") {
			n++
		}
	}
	return n
}

// A network that fails for a while is reported on the Node, once, and removed when
// it works. Networks that fail for one reason are one group.
func TestZoneReportsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		for id := 2; id <= 9; id++ {
			ns := fmt.Sprintf("bad%d", id)
			env.namespace(ns, true)
			env.nad(ns, "net", ns+"_net", id, "10.10.0.0/16/24")
		}
		env.failRows("bad")
		env.run()
		env.waitUntil("ready", env.zone.Ready)
		time.Sleep(reportAfter - time.Second)
		synctest.Wait()
		if got := env.failuresAnnotation(); got != "" || env.nodePatches() != 0 {
			t.Errorf("reported %q immediately", got)
		}
		env.waitUntil("report", func() bool { return env.failuresAnnotation() != "" })
		if got := env.failuresAnnotation(); !strings.HasPrefix(got, `[{"ids":"2-9","why":"insert `) || strings.Contains(got, "bad") {
			t.Errorf("annotation %s", got)
		}
		env.settle() // the zone keeps retrying
		if n := env.nodePatches(); n != 1 {
			t.Errorf("patched %d times", n)
		}
		env.failRows("bad7")
		env.waitUntil("most are removed", func() bool { return strings.HasPrefix(env.failuresAnnotation(), `[{"ids":"7","why":"insert `) })
		env.failRows("")
		env.waitFailures("")
	})
}

// A network that fails for a moment is not reported.
func TestZoneReportsNoTransientFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.failRows(redNet)
		env.run()
		env.waitUntil("ready", env.zone.Ready)
		env.failRows("")
		env.waitForRow(redNet + "_ovn_cluster_router")
		env.settle()
		if n := env.nodePatches(); n != 0 {
			t.Errorf("patched %d times: %s", n, env.failuresAnnotation())
		}
	})
}

// A failed write of the annotation is retried.
func TestZoneRetriesReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.failRows(redNet)
		var left atomic.Int32
		left.Store(3)
		env.kube.PrependReactor("patch", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
			if left.Add(-1) >= 0 {
				return true, nil, errors.New("no answer")
			}
			return false, nil, nil
		})
		env.run()
		env.waitUntil("report", func() bool { return strings.HasPrefix(env.failuresAnnotation(), `[{"ids":"1"`) })
		// Values of other writers are overwritten.
		before := env.failuresAnnotation()
		env.setFailuresAnnotation("nonsense")
		env.waitFailures(before)
	})
}

// Each network that cannot be built is reported with its reason, including the
// cluster default network.
func TestZoneReportsReasons(t *testing.T) {
	for name, c := range map[string]struct {
		breakNetwork func(*zoneEnv)
		want         string
	}{
		"no subnet for the node": {func(env *zoneEnv) { env.nad("red", "net", redNet, 3, "10.10.0.0/24/24"); env.node(2, true) },
			`[{"ids":"3","why":"subnets [10.10.0.0/24/24] of the network hold no host subnet for node id 2: append a CIDR to subnets or remove nodes"}]`},
		"overlapping NAD": {func(env *zoneEnv) { env.nad("red", "net", redNet, 3, "10.96.0.0/16/24") },
			`of the network overlaps the cluster's service-cidrs`},
		"unreadable NAD": {func(env *zoneEnv) {
			env.nad("red", "net", redNet, 3, "10.10.0.0/16/24")
			env.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) {
				n.Annotations[network.AnnotationNetworkName] = redNet
				n.Spec.Config = "{"
			})
		}, `[{"ids":"3","why":"`},
		"one of several NADs": {func(env *zoneEnv) {
			for _, ns := range []string{"amber", "blue", "red"} {
				env.sharedNAD(ns)
			}
			env.editNAD("red", "net", withSubnets("10.99.0.0/16/24"))
		}, `[{"ids":"1","why":"NetworkAttachmentDefinition red/net is not used: its settings for the network differ from NetworkAttachmentDefinition amber/net: `},
		"default network": {func(env *zoneEnv) { env.failRows("ovn_cluster_router") }, `[{"ids":"0","why":"insert `},
		"hanging database": {func(env *zoneEnv) {
			env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
			env.nb.Fail = func(Op) error { return fmt.Errorf("transaction: %w", ovsdb.ErrUnresponsive) }
		}, `[{"ids":"0-1","why":"` + ovsdb.ErrUnresponsive.Error() + `"}]`},
		"NAD without an id": {func(env *zoneEnv) {
			env.nad("red", "net", redNet, 3, "10.10.0.0/16/24")
			env.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) { delete(n.Annotations, network.AnnotationNetworkID) })
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, true)
				if name == "no subnet for the node" {
					env.setNodeID(2)
				}
				c.breakNetwork(env)
				env.run()
				env.settle()
				got := env.failuresAnnotation()
				if !strings.Contains(got, c.want) || c.want == "" && got != "" {
					t.Errorf("annotation %s, want %s", got, c.want)
				}
				if _, err := network.ParseFailures(got); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// setNodeID changes this node's id.
func (env *zoneEnv) setNodeID(id int) {
	ctx, api := context.Background(), env.kube.CoreV1().Nodes()
	n, err := api.Get(ctx, "node1", metav1.GetOptions{})
	env.must(err)
	n.Annotations[network.AnnotationNodeID] = fmt.Sprint(id)
	_, err = api.Update(ctx, n, metav1.UpdateOptions{})
	env.must(err)
}

// A refused NAD is no longer reported after it is corrected, deleted, or another
// NAD is changed to agree with it.
func TestZoneStopsReportingRefusedNADs(t *testing.T) {
	for name, fix := range map[string]func(*zoneEnv){
		"corrected":   func(env *zoneEnv) { env.editNAD("red", "net", withSubnets(sharedSubnets)) },
		"agreed with": func(env *zoneEnv) { env.editNAD("blue", "net", withSubnets("10.99.0.0/16/24")) },
		"deleted":     func(env *zoneEnv) { env.deleteNAD("red", "net") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, true)
				env.namespace("blue", true)
				env.sharedNAD("blue")
				env.sharedNAD("red")
				env.run()
				env.waitUntil("ready", env.zone.Ready)
				env.editNAD("red", "net", withSubnets("10.99.0.0/16/24"))
				env.waitUntil("report", func() bool {
					return strings.HasPrefix(env.failuresAnnotation(), `[{"ids":"1","why":"NetworkAttachmentDefinition red/net `)
				})
				fix(env)
				env.waitFailures("")
			})
		})
	}
}

// A deleted network is reported while its rows exist.
func TestZoneReportsDeletedNetworks(t *testing.T) {
	const pods = `[{"ids":"3","why":"deleted, but not yet removed: pods still use it"}]`
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, true)
				env.nad("red", "net", redNet, 3, "10.10.0.0/16/24")
				env.pod("red", "a", nil)
				env.run()
				env.waitUntil("annotation", func() bool { return len(env.networks("red", "a")) == 2 })
				env.setRunning("red", "a")
				env.settle()
				if restart {
					env.stop()
				}
				env.deleteNAD("red", "net")
				if restart {
					env.run()
				}
				env.waitFailures(pods)
				if restart {
					env.run()
					env.settle()
					if n := env.nodePatches(); n != 1 {
						t.Errorf("patched %d times", n)
					}
				}
				env.failRows(redNet)
				env.deletePod("red", "a")
				env.waitUntil("deletion fails", func() bool {
					return strings.HasPrefix(env.failuresAnnotation(), `[{"ids":"3","why":"deleted, but not yet removed: delete `)
				})
				env.failRows("")
				env.waitFailures("")
				if env.has(redNet + "_ovn_cluster_router") {
					t.Error("the network still exists")
				}
			})
		})
	}
}

// The annotation of an earlier zone stays until all networks have been tried. Then
// networks that still fail stay reported and the others are removed.
func TestZoneRestartCorrectsReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.namespace("blue", true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.nad("blue", "net", "blue_net", 2, "10.10.0.0/16/24")
		env.addLeftoverNetwork(3, "old_net")
		env.failRows("_net_")
		env.run()
		env.waitUntil("report", func() bool {
			return strings.Contains(env.failuresAnnotation(), `"ids":"1-2"`) && strings.Contains(env.failuresAnnotation(), `"ids":"3"`)
		})
		before, writes := env.failuresAnnotation(), env.nodePatches()
		env.stop()
		env.nb.down.Store(true)
		env.run()
		env.settle()
		if got := env.failuresAnnotation(); got != before {
			t.Errorf("without a database: annotation %s, was %s", got, before)
		}
		env.failRows("blue_net")
		env.nb.down.Store(false)
		env.zone.onConnect()
		env.waitUntil("corrected", func() bool { return env.failuresAnnotation() != before })
		if got := env.failuresAnnotation(); !strings.HasPrefix(got, `[{"ids":"2",`) || strings.Contains(got, `"ids":"3"`) {
			t.Errorf("annotation %s", got)
		}
		env.settle()
		if n := env.nodePatches() - writes; n != 1 {
			t.Errorf("patched %d times after the restart", n)
		}
	})
}
