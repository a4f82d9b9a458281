// SPDX-License-Identifier: Apache-2.0

// Package idlease stores the high-water marks of the id allocators in a Lease. No
// object holds a released id any more, but neither this leader nor the next may
// allocate it again at once.
//
// A leader claims the lease before it reads the marks. A former leader that still
// runs, for example after its clock stopped, cannot raise them any more: two
// processes never allocate from one range.
package idlease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
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

const portsPrefix = AllPorts + "/"

// Ports is the kind of a network's port ids.
func Ports(networkName string) string { return portsPrefix + networkName }

// HighWater stores the marks of ipam.IDs; a stored mark is never lower than the
// allocator's. It is safe for concurrent use.
type HighWater interface {
	// Get returns the mark of a kind, 0 if no id was allocated yet. It reads the
	// API until a read succeeds, and not after that.
	Get(ctx context.Context, kind string) (int64, error)
	// Raise makes the stored mark at least to. Callers call it before they publish
	// the id. It writes to+ahead, so that most calls write nothing. The error is
	// ErrClaimed once another process has the marks.
	Raise(ctx context.Context, kind string, to, ahead int64) error
	// Drop removes the mark of a kind; the next Raise writes that.
	Drop(kind string)
	// DropPorts drops the marks of all networks of which exists does not report that they exist: a leader may end
	// before it writes a Drop.
	DropPorts(exists func(networkName string) bool)
}

// ErrClaimed is wrapped by the error of Raise once another process has claimed the
// lease: this one is no longer the leader, and must publish no id.
var ErrClaimed = errors.New("another process has claimed it, so this one is no longer the leader")

// Lease is a HighWater in a Lease object, which only the leader writes.
type Lease struct {
	live      client.Reader // reads from the API server, not from the cache
	client    client.Client
	namespace string
	identity  string // the lease's holder while this process is the leader
	log       *slog.Logger
	claimed   chan struct{} // closed, by lost, once another process is the holder
	lost      sync.Once

	mu      sync.Mutex
	holder  string
	version string // the lease's resource version, "" if there is no lease
	marks   map[string]int64
	stale   bool // another process wrote the lease, or this one did and lost the response
}

// attempts is how often a write that finds the lease changed is tried.
const attempts = 3

// anyKind is the key of the mark of all kinds that have none of their own.
const anyKind = "*"

// New returns the marks in the lease of that namespace.
func New(live client.Reader, c client.Client, namespace string, log *slog.Logger) *Lease {
	return &Lease{live: live, client: c, namespace: namespace, identity: string(uuid.NewUUID()), log: log, claimed: make(chan struct{})}
}

// Claimed is closed once another process has claimed the lease. The process must
// end: Raise returns only errors.
func (m *Lease) Claimed() <-chan struct{} { return m.claimed }

// Get implements HighWater. The first call claims the lease.
func (m *Lease) Get(ctx context.Context, kind string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.marks == nil {
		if err := m.claim(ctx); err != nil {
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
	if m.marks == nil {
		if err := m.claim(ctx); err != nil {
			return err
		}
	}
	for range attempts {
		if m.stale {
			if err := m.load(ctx); err != nil {
				return err
			}
		}
		switch m.holder {
		case m.identity:
		case "": // an administrator deleted or edited the lease
			m.holder = m.identity
		default:
			m.lost.Do(func() { close(m.claimed) })
			return fmt.Errorf("write lease %s/%s: %w", m.namespace, Name, ErrClaimed)
		}
		if m.get(kind) >= to {
			return nil
		}
		marks := maps.Clone(m.marks)
		marks[kind] = to + ahead
		err := m.write(ctx, marks)
		if err == nil {
			return nil
		}
		// This process may be the one that wrote: the answer can be lost. So read the lease again.
		m.stale = true
		if !isConflict(err) {
			return fmt.Errorf("write lease %s/%s: %w", m.namespace, Name, err)
		}
	}
	return fmt.Errorf("write lease %s/%s: conflict in every attempt", m.namespace, Name)
}

// claim makes this process the lease's holder and reads the marks. Whoever was the
// holder loses it, as only the leader calls this.
func (m *Lease) claim(ctx context.Context) error {
	var err error
	for range attempts {
		if err = m.load(ctx); err != nil {
			break
		}
		m.holder = m.identity
		if err = m.write(ctx, m.marks); err == nil || !isConflict(err) {
			break // not a write of the former leader in between
		}
	}
	if err != nil {
		m.marks = nil
		return fmt.Errorf("claim lease %s/%s: %w", m.namespace, Name, err)
	}
	return nil
}

// isConflict tells whether someone else changed, created or deleted the lease.
func isConflict(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// Drop implements HighWater.
func (m *Lease) Drop(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.marks, kind)
}

// DropPorts implements HighWater.
func (m *Lease) DropPorts(exists func(networkName string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dropPorts(m.marks, exists)
}

func dropPorts(marks map[string]int64, exists func(networkName string) bool) {
	maps.DeleteFunc(marks, func(kind string, _ int64) bool {
		name, ports := strings.CutPrefix(kind, portsPrefix)
		return ports && !exists(name)
	})
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
	m.holder = ""
	if h := obj.Spec.HolderIdentity; h != nil {
		m.holder = *h
	}
	return nil
}

func (m *Lease) write(ctx context.Context, marks map[string]int64) error {
	raw, err := json.Marshal(marks)
	if err != nil {
		return err
	}
	obj := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.namespace, Name: Name, ResourceVersion: m.version, Annotations: map[string]string{annotation: string(raw)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &m.identity},
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
