// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
)

// Fake implements Target in memory. It rejects the operations that the database
// rejects.
type Fake struct {
	mu      sync.Mutex
	chassis map[string]string
	bridges map[string]Bridge
	ports   map[string]Port
	// Fail, if set, is called before each operation and may return an error.
	Fail func(Op) error
}

// NewFake returns a database with the given bridges and no rows of ours.
func NewFake(bridges ...string) *Fake {
	f := &Fake{chassis: map[string]string{}, bridges: map[string]Bridge{}, ports: map[string]Port{}}
	for _, b := range bridges {
		f.bridges[b] = Bridge{Name: b}
	}
	return f
}

// Put adds a port, like an operator or an earlier run.
func (f *Fake) Put(p Port) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ports[p.Name] = p
}

// Ports returns all ports, ours and others.
func (f *Fake) Ports() map[string]Port {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.ports)
}

// Read implements Target.
func (f *Fake) Read(_ context.Context, owner Owner) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if owner == OwnerChassis {
		s := State{Chassis: maps.Clone(f.chassis)}
		if b, ok := f.bridges[IntegrationBridge(f.chassis)]; ok {
			s.Bridge = &b
		}
		return s, nil
	}
	s := State{Ports: map[string]Port{}}
	for name, p := range f.ports {
		if p.ExternalIDs[KeyOwner] == OwnerValue && p.ExternalIDs[KeyRole] == string(owner) {
			s.Ports[name] = p
		}
	}
	return s, nil
}

// Apply implements Target.
func (f *Fake) Apply(_ context.Context, ops []Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, op := range ops {
		err := error(nil)
		if f.Fail != nil {
			err = f.Fail(op)
		}
		if err == nil {
			err = f.do(op)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op, err))
		}
	}
	return errors.Join(errs...)
}

func (f *Fake) do(op Op) error {
	switch o := op.(type) {
	case SetChassis:
		f.chassis[o.Key] = o.New
	case AddBridge:
		if _, ok := f.bridges[o.Bridge.Name]; ok {
			return errors.New("constraint violation: bridge exists")
		}
		f.bridges[o.Bridge.Name] = o.Bridge
	case AddPort:
		if _, ok := f.ports[o.Port.Name]; ok {
			return errors.New("constraint violation: port exists")
		}
		if _, ok := f.bridges[o.Port.Bridge]; !ok {
			return fmt.Errorf("bridge %s: object not found", o.Port.Bridge)
		}
		f.ports[o.Port.Name] = o.Port
	case SetPort:
		if _, ok := f.ports[o.Want.Name]; !ok {
			return errors.New("object not found")
		}
		f.ports[o.Want.Name] = o.Want
	case DeletePort:
		if p, ok := f.ports[o.Port.Name]; ok && p.ExternalIDs[KeyOwner] != OwnerValue {
			return errors.New("port is not ours")
		}
		delete(f.ports, o.Port.Name)
	default:
		return fmt.Errorf("unknown operation %T", op)
	}
	return nil
}
