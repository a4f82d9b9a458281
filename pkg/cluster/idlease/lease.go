// SPDX-License-Identifier: Apache-2.0

// Package idlease stores the high-water marks of the id allocators in a Lease. No
// object holds a released id any more, but neither this leader nor the next may
// allocate it again at once.
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

// Name is the name of the lease with the marks, in the namespace of the leader
// election lease. Each leader reads the marks of the former one.
const Name = "bulkhead-ids"

// annotation holds the marks as a JSON object, by kind.
const annotation = "k8s.ovn.org/id-marks"

// Kinds of ids.
const (
	Networks = "networks"
	Nodes    = "nodes"
)

// AllPorts is the kind of the port ids of all networks without a mark of their own:
// most networks allocate few ports while one process is the leader.
const AllPorts = "ports"

// Ports is the kind of a network's port ids.
func Ports(networkName string) string { return "ports/" + networkName }

// HighWater stores the marks of ipam.IDs; a stored mark is never lower than the
// allocator's. It is safe for concurrent use.
type HighWater interface {
	// Get returns the mark of a kind, 0 if no id was allocated yet. It reads the
	// API until a read succeeds, and not after that.
	Get(ctx context.Context, kind string) (int64, error)
	// Raise makes the stored mark at least to. Callers call it before they publish
	// the id. It writes to+ahead, so that most calls write nothing.
	Raise(ctx context.Context, kind string, to, ahead int64) error
	// Drop removes the mark of a kind; the next Raise writes that.
	Drop(kind string)
}

// Lease is a HighWater in a Lease object, which only the leader writes.
type Lease struct {
	live      client.Reader // reads from the API server, not from the cache
	client    client.Client
	namespace string
	log       *slog.Logger

	mu      sync.Mutex
	version string // the lease's resource version, "" if there is no lease
	marks   map[string]int64
	stale   bool // another process wrote the lease
}

// anyKind is the key of the mark of all kinds that have none of their own.
const anyKind = "*"

// New returns the marks in the lease of that namespace.
func New(live client.Reader, c client.Client, namespace string, log *slog.Logger) *Lease {
	return &Lease{live: live, client: c, namespace: namespace, log: log}
}

// Get implements HighWater.
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
	return m.marks[anyKind]
}

// Raise implements HighWater.
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
		m.stale = true
	}
	return fmt.Errorf("write lease %s/%s: conflict in every attempt, as another process writes it", m.namespace, Name)
}

// Drop implements HighWater.
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
			// Any id may have been allocated: every free id must reach the minimum age.
			m.log.Warn("cannot parse the record of assigned ids: every free id waits for id-age, unless no other is free", "lease", m.namespace+"/"+Name, "error", err)
			marks = map[string]int64{anyKind: math.MaxInt32}
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
