// SPDX-License-Identifier: Apache-2.0

// Package idlease remembers in the API how far numbers have been given out. What
// was given back is in no object any more, and must not be given to another at
// once, not by the next leader either.
package idlease

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Name is the name of the lease that has the marks, in the namespace of the
// leader's lease: it is what one leader leaves to the next.
const Name = "bulkhead-ids"

// annotation is the lease's one annotation: a JSON object of marks by kind.
const annotation = "k8s.ovn.org/id-marks"

// Kinds of numbers.
const (
	Networks = "networks"
	Nodes    = "nodes"
)

// AllPorts is the kind of the port ids of all networks that have no mark of their
// own: most networks give out few in a leader's time.
const AllPorts = "ports"

// Ports is the kind of a network's port ids.
func Ports(networkName string) string { return "ports/" + networkName }

// HighWater are ipam.IDs' marks, never less than what was given out. It is safe for
// concurrent use.
type HighWater interface {
	// Get is the mark of a kind, 0 where nothing was given out yet. It reads
	// the API at most until it succeeds.
	Get(ctx context.Context, kind string) (int64, error)
	// Raise comes before anybody learns of the number that to stands for. The
	// mark is written some way ahead, so that most calls write nothing.
	Raise(ctx context.Context, kind string, to, ahead int64) error
	// Drop forgets a kind that nobody asks for any more, with the next Raise.
	Drop(kind string)
}

// Lease are marks in a lease. Nobody but the leader writes it.
type Lease struct {
	live      client.Reader // the API server itself
	client    client.Client
	namespace string
	log       *slog.Logger

	mu      sync.Mutex
	version string // of the lease, "" where it is not there
	marks   map[string]int64
	stale   bool // another wrote it
}

// others is the kind whose mark those have that are not named.
const others = "*"

// New makes marks in that namespace.
func New(live client.Reader, c client.Client, namespace string, log *slog.Logger) *Lease {
	return &Lease{live: live, client: c, namespace: namespace, log: log}
}

// Get implements Marks.
func (m *Lease) Get(ctx context.Context, kind string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.marks == nil {
		if err := m.load(ctx); err != nil {
			return 0, err
		}
	}
	return m.get(kind), nil
}

func (m *Lease) get(kind string) int64 {
	if to, ok := m.marks[kind]; ok {
		return to
	}
	return m.marks[others]
}

// Raise implements Marks.
func (m *Lease) Raise(ctx context.Context, kind string, to, ahead int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range 3 {
		if m.marks == nil || m.stale {
			if err := m.load(ctx); err != nil {
				return err
			}
		}
		if m.get(kind) >= to {
			return nil
		}
		err := m.write(ctx, kind, to+ahead)
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("write lease %s/%s: %w", m.namespace, Name, err)
		}
		m.stale = true // another wrote it
	}
	return fmt.Errorf("write lease %s/%s: others keep on changing it", m.namespace, Name)
}

// Drop implements Marks.
func (m *Lease) Drop(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.marks, kind)
}

// load reads the lease.
func (m *Lease) load(ctx context.Context) error {
	obj := &coordinationv1.Lease{}
	err := m.live.Get(ctx, client.ObjectKey{Namespace: m.namespace, Name: Name}, obj)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read lease %s/%s: %w", m.namespace, Name, err)
	}
	marks := map[string]int64{}
	if raw, ok := obj.Annotations[annotation]; ok {
		if err := json.Unmarshal([]byte(raw), &marks); err != nil {
			// Nobody knows what was given out: every free number rests for its age.
			m.log.Warn("marks of ids are unreadable; ids that are free are not given before they are old enough", "lease", m.namespace+"/"+Name, "err", err)
			marks = map[string]int64{others: math.MaxInt32}
		}
	}
	m.marks, m.version, m.stale = marks, obj.ResourceVersion, false
	return nil
}

func (m *Lease) write(ctx context.Context, kind string, to int64) error {
	marks := maps.Clone(m.marks)
	marks[kind] = to
	raw, err := json.Marshal(marks)
	if err != nil {
		return err
	}
	obj := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.namespace, Name: Name, ResourceVersion: m.version, Annotations: map[string]string{annotation: string(raw)},
		},
	}
	if m.version == "" {
		err = m.client.Create(ctx, obj)
	} else {
		err = m.client.Update(ctx, obj)
	}
	if err != nil {
		return err
	}
	m.marks, m.version = marks, obj.ResourceVersion
	return nil
}
