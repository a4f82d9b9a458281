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
)

// says is what the Node's annotation says of failing networks.
func (w *world) says() string {
	n, err := w.kube.CoreV1().Nodes().Get(context.Background(), "node1", metav1.GetOptions{})
	w.must(err)
	return n.Annotations[network.AnnotationZoneFailures]
}

// said sets the annotation, as an earlier zone would have.
func (w *world) said(value string) {
	ctx, api := context.Background(), w.kube.CoreV1().Nodes()
	n, err := api.Get(ctx, "node1", metav1.GetOptions{})
	w.must(err)
	n.Annotations[network.AnnotationZoneFailures] = value
	_, err = api.Update(ctx, n, metav1.UpdateOptions{})
	w.must(err)
}

func (w *world) waitSays(want string) {
	w.t.Helper()
	var got string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("said %s", got)
		}
	}()
	w.wait("said "+want, func() bool { got = w.says(); return got == want })
}

// writes is how often the annotation was written.
func (w *world) writes() int {
	n := 0
	for _, a := range w.kube.Actions() {
		if a.Matches("patch", "nodes") {
			n++
		}
	}
	return n
}

// A network that fails for a while is told on the Node, once, and taken back
// when it works; many that fail for one reason are one group.
func TestZoneTellsWhatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		for id := 2; id <= 9; id++ {
			ns := fmt.Sprintf("bad%d", id)
			w.namespace(ns, true)
			w.nad(ns, "net", ns+"_net", id, "10.10.0.0/16/24")
		}
		w.fail("bad")
		w.run()
		w.wait("ready", w.zone.Ready)
		time.Sleep(reportAfter - time.Second)
		synctest.Wait()
		if said := w.says(); said != "" || w.writes() != 0 {
			t.Errorf("told %q at once", said)
		}
		w.wait("told", func() bool { return w.says() != "" })
		if said := w.says(); !strings.HasPrefix(said, `[{"ids":"2-9","why":"insert `) || strings.Contains(said, "bad") {
			t.Errorf("said %s", said)
		}
		w.settled() // they are tried again all the time
		if n := w.writes(); n != 1 {
			t.Errorf("written %d times", n)
		}
		w.fail("bad7")
		w.wait("most are taken back", func() bool { return strings.HasPrefix(w.says(), `[{"ids":"7","why":"insert `) })
		w.fail("")
		w.waitSays("")
	})
}

// A network that fails for a moment is not told.
func TestZoneTellsNothingOfAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.fail(redNet)
		w.run()
		w.wait("ready", w.zone.Ready)
		w.fail("")
		w.waitFor(redNet + "_ovn_cluster_router")
		w.settled()
		if n := w.writes(); n != 0 {
			t.Errorf("written %d times: %s", n, w.says())
		}
	})
}

// A write that fails is tried again.
func TestZoneTellsUntilItIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.fail(redNet)
		var left atomic.Int32
		left.Store(3)
		w.kube.PrependReactor("patch", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
			if left.Add(-1) >= 0 {
				return true, nil, errors.New("no answer")
			}
			return false, nil, nil
		})
		w.run()
		w.wait("told", func() bool { return strings.HasPrefix(w.says(), `[{"ids":"1"`) })
		// What somebody else writes there is mended.
		before := w.says()
		w.said("nonsense")
		w.waitSays(before)
	})
}

// What cannot be built, and why, is said of each network by itself, of the
// cluster default network too.
func TestZoneTellsWhatItRefuses(t *testing.T) {
	for what, c := range map[string]struct {
		spoil func(*world)
		want  string
	}{
		"no subnet for the node": {func(w *world) { w.nad("red", "net", redNet, 3, "10.10.0.0/24/24"); w.node(2, true) },
			`[{"ids":"3","why":"subnets [10.10.0.0/24/24] of the network hold no host subnet for node id 2: append a CIDR to subnets or remove nodes"}]`},
		"NAD that overlaps": {func(w *world) { w.nad("red", "net", redNet, 3, "10.96.0.0/16/24") },
			`of the network overlaps the cluster's service-cidrs`},
		"unreadable NAD": {func(w *world) {
			w.nad("red", "net", redNet, 3, "10.10.0.0/16/24")
			w.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) {
				n.Annotations[network.AnnotationNetworkName] = redNet
				n.Spec.Config = "{"
			})
		}, `[{"ids":"3","why":"`},
		"one NAD of several": {func(w *world) {
			for _, ns := range []string{"amber", "blue", "red"} {
				w.sharedNAD(ns)
			}
			w.editNAD("red", "net", resubnetted("10.99.0.0/16/24"))
		}, `[{"ids":"1","why":"NetworkAttachmentDefinition red/net is not used: its settings for the network differ from NetworkAttachmentDefinition amber/net: `},
		"default network": {func(w *world) { w.fail("join") }, `[{"ids":"0","why":"insert `},
		"database that hangs": {func(w *world) {
			w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
			w.nb.Fail = func(Op) error { return fmt.Errorf("transaction: %w", errUnresponsive) }
		}, `[{"ids":"0-1","why":"` + errUnresponsive.Error() + `"}]`},
		"NAD without an id": {func(w *world) {
			w.nad("red", "net", redNet, 3, "10.10.0.0/16/24")
			w.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) { delete(n.Annotations, network.AnnotationNetworkID) })
		}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.node(1, true)
				if what == "no subnet for the node" {
					w.renumber(2)
				}
				c.spoil(w)
				w.run()
				w.settled()
				said := w.says()
				if !strings.Contains(said, c.want) || c.want == "" && said != "" {
					t.Errorf("said %s, want %s", said, c.want)
				}
				if _, err := network.ParseFailures(said); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// renumber gives this node another id.
func (w *world) renumber(id int) {
	ctx, api := context.Background(), w.kube.CoreV1().Nodes()
	n, err := api.Get(ctx, "node1", metav1.GetOptions{})
	w.must(err)
	n.Annotations[network.AnnotationNodeID] = fmt.Sprint(id)
	_, err = api.Update(ctx, n, metav1.UpdateOptions{})
	w.must(err)
}

// A NAD that is mended, agreed with or deleted is no longer told.
func TestZoneTakesRefusedNADsBack(t *testing.T) {
	for what, mend := range map[string]func(*world){
		"mended":      func(w *world) { w.editNAD("red", "net", resubnetted(sharedSubnets)) },
		"agreed with": func(w *world) { w.editNAD("blue", "net", resubnetted("10.99.0.0/16/24")) },
		"deleted":     func(w *world) { w.deleteNAD("red", "net") },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.node(1, true)
				w.namespace("blue", true)
				w.sharedNAD("blue")
				w.sharedNAD("red")
				w.run()
				w.wait("ready", w.zone.Ready)
				w.editNAD("red", "net", resubnetted("10.99.0.0/16/24"))
				w.wait("told", func() bool {
					return strings.HasPrefix(w.says(), `[{"ids":"1","why":"NetworkAttachmentDefinition red/net `)
				})
				mend(w)
				w.waitSays("")
			})
		})
	}
}

// A network that nobody describes any more is told while its rows are there.
func TestZoneTellsWhatIsStillThere(t *testing.T) {
	const pods = `[{"ids":"3","why":"deleted, but not yet removed: pods still use it"}]`
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.node(1, true)
				w.nad("red", "net", redNet, 3, "10.10.0.0/16/24")
				w.pod("red", "a", nil)
				w.run()
				w.wait("annotation", func() bool { return len(w.networks("red", "a")) == 2 })
				w.running("red", "a")
				w.settled()
				if restart {
					w.stop()
				}
				w.deleteNAD("red", "net")
				if restart {
					w.run()
				}
				w.waitSays(pods)
				if restart {
					w.run()
					w.settled()
					if n := w.writes(); n != 1 {
						t.Errorf("written %d times", n)
					}
				}
				w.fail(redNet)
				w.deletePod("red", "a")
				w.wait("deletion fails", func() bool {
					return strings.HasPrefix(w.says(), `[{"ids":"3","why":"deleted, but not yet removed: delete `)
				})
				w.fail("")
				w.waitSays("")
				if w.has(redNet + "_ovn_cluster_router") {
					t.Error("the network is there")
				}
			})
		})
	}
}

// What an earlier zone said stands until everything has been tried: then what
// still fails stays told, and the rest is taken back.
func TestZoneRestartCorrectsWhatWasTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.namespace("blue", true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.nad("blue", "net", "blue_net", 2, "10.10.0.0/16/24")
		w.oldNetwork(3, "old_net")
		w.fail("_net_")
		w.run()
		w.wait("told", func() bool {
			return strings.Contains(w.says(), `"ids":"1-2"`) && strings.Contains(w.says(), `"ids":"3"`)
		})
		before, writes := w.says(), w.writes()
		w.stop()
		w.nb.down.Store(true)
		w.run()
		w.settled()
		if said := w.says(); said != before {
			t.Errorf("without a database: said %s, was %s", said, before)
		}
		w.fail("blue_net")
		w.nb.down.Store(false)
		w.zone.onConnect()
		w.wait("corrected", func() bool { return w.says() != before })
		if said := w.says(); !strings.HasPrefix(said, `[{"ids":"2",`) || strings.Contains(said, `"ids":"3"`) {
			t.Errorf("said %s", said)
		}
		w.settled()
		if n := w.writes() - writes; n != 1 {
			t.Errorf("written %d times after the restart", n)
		}
	})
}
