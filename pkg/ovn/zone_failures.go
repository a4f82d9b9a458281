// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/batch"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

const (
	// lasting is how long a network must fail before the cluster is told: most of
	// what fails is done a moment later.
	lasting = 10 * time.Second
	// tellTimeout is how long one write of what fails may take.
	tellTimeout = 10 * time.Second

	deletedButThere = "deleted, and still there: "
)

// failure is what is wrong with a network on this node.
type failure struct {
	id    int // 0: unknown, but for the cluster default network
	why   string
	since time.Time
}

// noteFailure notes that a network is not as it should be, for whom the cluster
// role tells. It fails since it was last right, whatever the reason.
func (z *Zone) noteFailure(name string, id int, why string) {
	was, ok := z.failures[name]
	f := failure{id: id, why: why, since: time.Now()}
	if ok {
		f.id, f.since = cmp.Or(id, was.id), was.since
	}
	if f != was {
		z.failures[name] = f
		z.netQueue.Add(keyFailures)
	}
}

func (z *Zone) forgetFailure(name string) {
	if _, ok := z.failures[name]; ok {
		delete(z.failures, name)
		z.netQueue.Add(keyFailures)
	}
}

// noteNAD notes whether a NAD is refused.
func (z *Zone) noteNAD(key string, refused bool) {
	_, was := z.refused[key]
	switch {
	case refused && !was:
		z.refused[key] = time.Now()
	case !refused:
		delete(z.refused, key)
	}
	if refused || was {
		z.netQueue.Add(keyFailures)
	}
}

// noteSaid notes what this Node's annotation says, whoever wrote it.
func (z *Zone) noteSaid(n *corev1.Node) {
	if said := n.Annotations[network.AnnotationZoneFailures]; said != z.said {
		z.said = said
		z.netQueue.Add(keyFailures)
	}
}

// everyTried tells whether all there was at the start has been tried. The
// cluster default network counts as tried only when it is built: without it the
// node is not ready, which must not keep anybody from being told so.
func (z *Zone) everyTried() bool {
	if !z.begun || len(z.pending) > 1 {
		return false
	}
	for name := range z.pending {
		if _, failed := z.failures[name]; !failed {
			return false
		}
	}
	return true
}

// networkFailures are the networks that are not as they should be and have not
// been for a while, and when the next of them will have been; 0 for never. One
// that is told already stays told while it fails: its zone may have started anew.
func (z *Zone) networkFailures(now time.Time) (out network.Failures, next time.Duration) {
	told, err := network.ParseFailures(z.said)
	if err != nil {
		z.log.Warn("what this node says of its networks is unreadable, and is written anew", "annotation", network.AnnotationZoneFailures, "error", err)
	}
	out = network.Failures{}
	add := func(name string, id int, since time.Time, why string) {
		// One id that cannot be makes the whole annotation unreadable.
		if id < network.DefaultID || id > network.MaxID || id == network.DefaultID && name != network.DefaultName {
			return
		}
		if wait := lasting - now.Sub(since); told[id] == "" && wait > 0 {
			if next == 0 || wait < next {
				next = wait
			}
			return
		}
		if out[id] != "" {
			why = out[id] + "; " + why
		}
		out[id] = why
	}
	for name, f := range z.failures {
		add(name, f.id, f.since, f.why)
	}
	byNetwork := map[string][]network.NAD{}
	for _, key := range slices.Sorted(maps.Keys(z.refused)) {
		nad, ok := z.catalog.NAD(key)
		if !ok || nad.Err == nil {
			delete(z.refused, key) // others of its network have come to say the same
			continue
		}
		byNetwork[nad.Network.Name] = append(byNetwork[nad.Network.Name], nad)
	}
	delete(byNetwork, "") // these name none
	for name, nads := range byNetwork {
		since := z.refused[nads[0].Key()]
		for _, nad := range nads[1:] {
			if s := z.refused[nad.Key()]; s.Before(since) {
				since = s
			}
		}
		id, why := nads[0].Network.ID, z.because(name, nads[0].Err)
		if st, ok := z.nets[name]; ok {
			id = cmp.Or(st.net.ID, id)
		}
		if n, ok := z.catalog.Network(name); ok {
			// The network is there by others: it matters which one is not used.
			id, why = n.ID, "NetworkAttachmentDefinition "+nads[0].Key()+andMore(len(nads)-1)+" is not used: "+why
		}
		add("", id, since, why)
	}
	return out, next
}

// tellFailures writes what fails on this Node, where that says something else.
func (z *Zone) tellFailures(ctx context.Context) error {
	z.mu.Lock()
	if !z.everyTried() {
		z.mu.Unlock()
		return nil // what an earlier zone said is the best that is known
	}
	failures, next := z.networkFailures(time.Now())
	said := z.said
	z.mu.Unlock()
	if next > 0 {
		z.netQueue.AddAfter(keyFailures, next)
	}
	value, err := failures.Render()
	if err != nil {
		return fmt.Errorf("render annotation %s: %w", network.AnnotationZoneFailures, err)
	}
	if value == said {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{network.AnnotationZoneFailures: value}}})
	if err != nil {
		return fmt.Errorf("render annotation %s: %w", network.AnnotationZoneFailures, err)
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	if _, err := z.kube.CoreV1().Nodes().Patch(ctx, z.cfg.Kubernetes.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}); apierrors.IsNotFound(err) {
		return nil // a Node that comes back comes without the annotation, and is written then
	} else if err != nil {
		return fmt.Errorf("tell which networks fail: %w", err)
	}
	z.log.Info("told which networks fail", "networks", len(failures))
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.said == said {
		z.said = value
	}
	return nil
}

var aUUID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// because is why a network fails, without what is its own or changes with each
// try: the reader knows the network, and many that fail for one reason are told
// as one.
func (z *Zone) because(name string, err error) string {
	if errors.Is(err, errHangs) {
		return errHangs.Error()
	}
	text, more := cause(err)
	text = strings.TrimPrefix(text, "node "+z.cfg.Kubernetes.NodeName+": ")
	text = strings.NewReplacer("network "+name+": ", "", "network "+name+" ", "the network ").Replace(text)
	text = aUUID.ReplaceAllLiteralString(text, "…")
	if more {
		text += "; more has failed, which the log of this node's zone names"
	}
	return text
}

// cause is the first of the errors that err joins: what failed after it mostly
// needs what failed before. Of an operation it says the kind, not the row.
func cause(err error) (text string, more bool) {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		all := e.Unwrap()
		text, more = cause(all[0])
		return text, more || len(all) > 1
	case *batch.Error[Op]:
		verb, _, _ := strings.Cut(e.Op.String(), " ")
		return verb + " " + e.Op.Row.Table + ": " + e.Err.Error(), e.More > 0
	default:
		return err.Error(), false
	}
}

func andMore(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// idOfRows is the id of the network whose rows these are, 0 where they do not
// tell: of one that nobody describes since before we started, only they do.
func idOfRows(rows State) int {
	for _, r := range rows {
		if sw, ok := r.Model.(*nbdb.LogicalSwitch); ok {
			if key, err := strconv.Atoi(sw.OtherConfig["requested-tnl-key"]); err == nil {
				return max(0, key-network.Network{}.TunnelKey())
			}
		}
	}
	return 0
}

// idOfUnusable is the id that the cluster role gave to what an unusable NAD is
// of, 0 where it does not tell.
func idOfUnusable(o *nadv1.NetworkAttachmentDefinition) int {
	id, err := strconv.Atoi(o.Annotations[network.AnnotationNetworkID])
	if err != nil {
		return 0
	}
	return id
}
