// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"bulkhead/pkg/batch"
	"bulkhead/pkg/network"
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

// failureReport is what fails on this node, for the Node's annotation, which the
// cluster controller reads.
type failureReport struct {
	node    string
	kube    kubernetes.Interface
	log     *slog.Logger
	failing prometheus.Gauge
	enqueue func() // enqueues a write of the annotation

	mu          sync.Mutex
	errors      map[string]string    // by failing network
	failures    map[string]failure   // by network: failures to report
	refusedNADs map[string]time.Time // by NAD key: when the NAD was refused
	annotation  string               // this Node's annotation
}

func newFailureReport(node string, kube kubernetes.Interface, log *slog.Logger, failing prometheus.Gauge, enqueue func()) *failureReport {
	return &failureReport{node: node, kube: kube, log: log, failing: failing, enqueue: enqueue,
		errors: map[string]string{}, failures: map[string]failure{}, refusedNADs: map[string]time.Time{}}
}

// setError records the error of a network and reports whether its text changed.
func (r *failureReport) setError(name string, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, text := r.errors[name], err.Error()
	r.errors[name] = text
	r.failing.Set(float64(len(r.errors)))
	return was != text
}

func (r *failureReport) clearError(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.errors, name)
	r.failing.Set(float64(len(r.errors)))
}

// failingNetworks returns the names of the networks with an error, sorted.
func (r *failureReport) failingNetworks() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.errors))
}

// record records that a network fails. since stays the same while the reason
// changes.
func (r *failureReport) record(name string, id int, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, ok := r.failures[name]
	f := failure{id: id, reason: reason, since: time.Now()}
	if ok {
		f.id, f.since = cmp.Or(id, was.id), was.since
	}
	if f != was {
		r.failures[name] = f
		r.enqueue()
	}
}

func (r *failureReport) clear(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.failures[name]; ok {
		delete(r.failures, name)
		r.enqueue()
	}
}

// recorded reports whether a network fails.
func (r *failureReport) recorded(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.failures[name]
	return ok
}

// recordNAD records whether a NAD is refused.
func (r *failureReport) recordNAD(key string, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, was := r.refusedNADs[key]
	switch {
	case refused && !was:
		r.refusedNADs[key] = time.Now()
	case !refused:
		delete(r.refusedNADs, key)
	}
	if refused || was {
		r.enqueue()
	}
}

// nadsChanged is called when refused NADs may have come to agree with the others of
// their network.
func (r *failureReport) nadsChanged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.refusedNADs) > 0 {
		r.enqueue()
	}
}

// recordAnnotation records this Node's annotation.
func (r *failureReport) recordAnnotation(value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if value != r.annotation {
		r.annotation = value
		r.enqueue()
	}
}

// networkFailures returns the networks that have failed for at least reportAfter,
// and the time until the next one has, 0 for none. A failing network that the
// annotation already reports stays reported: the zone may have restarted. idOf
// returns the id of a network that the zone knows, or else 0.
func (r *failureReport) networkFailures(now time.Time, nads *network.NADIndex, idOf func(name string) int) (out network.Failures, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reported, err := network.ParseFailures(r.annotation)
	if err != nil {
		r.log.Warn("this node's annotation is malformed and will be overwritten", "annotation", network.AnnotationZoneFailures, "error", err)
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
	for name, f := range r.failures {
		add(name, f.id, f.since, f.reason)
	}
	for name, refused := range r.refusedByNetwork(nads) {
		since := r.refusedNADs[refused[0].Key()]
		for _, nad := range refused[1:] {
			if s := r.refusedNADs[nad.Key()]; s.Before(since) {
				since = s
			}
		}
		id, reason := cmp.Or(idOf(name), refused[0].Network.ID), r.reason(name, refused[0].Err)
		if n, ok := nads.Network(name); ok {
			// Other NADs describe the network: name the unused one.
			id, reason = n.ID, "NetworkAttachmentDefinition "+refused[0].Key()+andMore(len(refused)-1)+" is not used: "+reason
		}
		add("", id, since, reason)
	}
	return out, next
}

// refusedByNetwork returns the refused NADs that name a network. It forgets NADs
// with which the others of their network have come to agree.
func (r *failureReport) refusedByNetwork(nads *network.NADIndex) map[string][]network.NAD {
	out := map[string][]network.NAD{}
	for _, key := range slices.Sorted(maps.Keys(r.refusedNADs)) {
		nad, ok := nads.NAD(key)
		if !ok || nad.Err == nil {
			delete(r.refusedNADs, key)
			continue
		}
		out[nad.Network.Name] = append(out[nad.Network.Name], nad)
	}
	delete(out, "")
	return out
}

// write writes the Node's annotation if it differs.
func (r *failureReport) write(ctx context.Context, failures network.Failures) error {
	r.mu.Lock()
	old := r.annotation
	r.mu.Unlock()
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
	if _, err := r.kube.CoreV1().Nodes().Patch(ctx, r.node, types.MergePatchType, patch, metav1.PatchOptions{}); apierrors.IsNotFound(err) {
		return nil // a recreated Node lacks the annotation; its event enqueues another write
	} else if err != nil {
		return fmt.Errorf("write annotation %s of node %s: %w", network.AnnotationZoneFailures, r.node, err)
	}
	r.log.Info("updated this node's failures annotation", "networks", len(failures))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.annotation == old {
		r.annotation = value
	}
	return nil
}

var uuidPattern = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// reason returns the text of a network's error without the network's name
// and what changes with each retry: networks that fail for one reason are
// reported as one group.
func (r *failureReport) reason(name string, err error) string {
	if errors.Is(err, ovsdb.ErrUnresponsive) {
		return ovsdb.ErrUnresponsive.Error()
	}
	text, more := firstError(err)
	text = strings.TrimPrefix(text, "node "+r.node+": ")
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
		if id, err := strconv.Atoi(externalIDs(r.Model)[markNetworkID]); err == nil {
			return id
		}
	}
	return 0
}
