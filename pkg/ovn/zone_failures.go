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
	"bulkhead/pkg/ovsdb"
)

const (
	// reportAfter is how long a network must fail before the zone reports it: most
	// retries succeed within a moment.
	reportAfter = 10 * time.Second
	// writeTimeout limits one write of the annotation.
	writeTimeout = 10 * time.Second

	deletedPrefix = "deleted, but not yet removed: "
)

// failure is the failure of a network on this node.
type failure struct {
	id     int // 0: unknown, or the cluster default network
	reason string
	since  time.Time
}

// recordFailure records that a network fails, for this Node's annotation, which
// the cluster role reads. since stays the same while the reason changes.
func (z *Zone) recordFailure(name string, id int, reason string) {
	was, ok := z.failures[name]
	f := failure{id: id, reason: reason, since: time.Now()}
	if ok {
		f.id, f.since = cmp.Or(id, was.id), was.since
	}
	if f != was {
		z.failures[name] = f
		z.queue.Add(keyFailures)
	}
}

func (z *Zone) clearFailure(name string) {
	if _, ok := z.failures[name]; ok {
		delete(z.failures, name)
		z.queue.Add(keyFailures)
	}
}

// recordNAD records whether a NAD is refused.
func (z *Zone) recordNAD(key string, refused bool) {
	_, was := z.refusedNADs[key]
	switch {
	case refused && !was:
		z.refusedNADs[key] = time.Now()
	case !refused:
		delete(z.refusedNADs, key)
	}
	if refused || was {
		z.queue.Add(keyFailures)
	}
}

// recordAnnotation records this Node's failures annotation.
func (z *Zone) recordAnnotation(n *corev1.Node) {
	if said := n.Annotations[network.AnnotationZoneFailures]; said != z.failuresAnnotation {
		z.failuresAnnotation = said
		z.queue.Add(keyFailures)
	}
}

// allTried reports whether every network known at the start has been tried. For
// the cluster default network a failure suffices, though it stays pending until
// it is built: the failure that keeps the node from being ready must be reported.
func (z *Zone) allTried() bool {
	if !z.restored || len(z.pending) > 1 {
		return false
	}
	for name := range z.pending {
		if _, failed := z.failures[name]; !failed {
			return false
		}
	}
	return true
}

// networkFailures returns the networks that have failed for at least reportAfter,
// and the time until the next one has, 0 for none. A failing network that the
// annotation already reports stays reported: the zone may have restarted.
func (z *Zone) networkFailures(now time.Time) (out network.Failures, next time.Duration) {
	reported, err := network.ParseFailures(z.failuresAnnotation)
	if err != nil {
		z.log.Warn("this node's annotation is malformed and will be overwritten", "annotation", network.AnnotationZoneFailures, "error", err)
	}
	out = network.Failures{}
	add := func(name string, id int, since time.Time, reason string) {
		// One invalid id makes the whole annotation invalid.
		if id < network.DefaultID || id > network.MaxID || id == network.DefaultID && name != network.DefaultName {
			return
		}
		if wait := reportAfter - now.Sub(since); reported[id] == "" && wait > 0 {
			if next == 0 || wait < next {
				next = wait
			}
			return
		}
		if out[id] != "" {
			reason = out[id] + "; " + reason
		}
		out[id] = reason
	}
	for name, f := range z.failures {
		add(name, f.id, f.since, f.reason)
	}
	byNetwork := map[string][]network.NAD{}
	for _, key := range slices.Sorted(maps.Keys(z.refusedNADs)) {
		nad, ok := z.nadIndex.NAD(key)
		if !ok || nad.Err == nil {
			delete(z.refusedNADs, key) // the other NADs of its network have come to agree
			continue
		}
		byNetwork[nad.Network.Name] = append(byNetwork[nad.Network.Name], nad)
	}
	delete(byNetwork, "") // these NADs name no network
	for name, nads := range byNetwork {
		since := z.refusedNADs[nads[0].Key()]
		for _, nad := range nads[1:] {
			if s := z.refusedNADs[nad.Key()]; s.Before(since) {
				since = s
			}
		}
		id, reason := nads[0].Network.ID, z.failureReason(name, nads[0].Err)
		if st, ok := z.nets[name]; ok {
			id = cmp.Or(st.net.ID, id)
		}
		if n, ok := z.nadIndex.Network(name); ok {
			// Other NADs describe the network: name the unused one.
			id, reason = n.ID, "NetworkAttachmentDefinition "+nads[0].Key()+andMore(len(nads)-1)+" is not used: "+reason
		}
		add("", id, since, reason)
	}
	return out, next
}

// writeFailures updates this Node's failures annotation.
func (z *Zone) writeFailures(ctx context.Context) error {
	z.mu.Lock()
	if !z.allTried() {
		z.mu.Unlock()
		return nil // until then the previous zone's annotation is the best information
	}
	failures, next := z.networkFailures(time.Now())
	old := z.failuresAnnotation
	z.mu.Unlock()
	if next > 0 {
		z.queue.AddAfter(keyFailures, next)
	}
	value, err := failures.Render()
	if err != nil {
		return fmt.Errorf("render annotation %s: %w", network.AnnotationZoneFailures, err)
	}
	if value == old {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{network.AnnotationZoneFailures: value}}})
	if err != nil {
		return fmt.Errorf("render annotation %s: %w", network.AnnotationZoneFailures, err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if _, err := z.kube.CoreV1().Nodes().Patch(ctx, z.cfg.Kubernetes.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}); apierrors.IsNotFound(err) {
		return nil // a recreated Node lacks the annotation; its event enqueues this key
	} else if err != nil {
		return fmt.Errorf("write annotation %s of node %s: %w", network.AnnotationZoneFailures, z.cfg.Kubernetes.NodeName, err)
	}
	z.log.Info("updated this node's failures annotation", "networks", len(failures))
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.failuresAnnotation == old {
		z.failuresAnnotation = value
	}
	return nil
}

var uuidPattern = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// failureReason returns the text of a network's error without the network's name
// and what changes with each retry: networks that fail for one reason are
// reported as one group.
func (z *Zone) failureReason(name string, err error) string {
	if errors.Is(err, ovsdb.ErrUnresponsive) {
		return ovsdb.ErrUnresponsive.Error()
	}
	text, more := firstError(err)
	text = strings.TrimPrefix(text, "node "+z.cfg.Kubernetes.NodeName+": ")
	text = strings.NewReplacer("network "+name+": ", "", "network "+name+" ", "the network ").Replace(text)
	text = uuidPattern.ReplaceAllLiteralString(text, "…")
	if more {
		text += "; see the log of this node's zone for further errors"
	}
	return text
}

// firstError returns the first of the errors that err joins: later ones mostly
// follow from it. Of an operation it names the verb and table, not the row.
func firstError(err error) (text string, more bool) {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		all := e.Unwrap()
		text, more = firstError(all[0])
		return text, more || len(all) > 1
	case *batch.Error[step]:
		verb, _, _ := strings.Cut(e.Op.String(), " ")
		return verb + " " + e.Op[0].Row.Table + ": " + e.Err.Error(), e.More > 0
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

// networkIDOfRows returns the id of the network that has the rows, 0 if the rows
// do not tell. Of a network deleted before the start only the rows tell its id.
func networkIDOfRows(rows State) int {
	for _, r := range rows {
		if sw, ok := r.Model.(*nbdb.LogicalSwitch); ok {
			if key, err := strconv.Atoi(sw.OtherConfig["requested-tnl-key"]); err == nil {
				return max(0, key-network.Network{}.TunnelKey())
			}
		}
	}
	return 0
}

// annotatedID returns the network id that the cluster role wrote on the NAD, 0 if
// there is none.
func annotatedID(o *nadv1.NetworkAttachmentDefinition) int {
	id, err := strconv.Atoi(o.Annotations[network.AnnotationNetworkID])
	if err != nil {
		return 0
	}
	return id
}
