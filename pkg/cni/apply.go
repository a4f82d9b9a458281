// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
)

// Links reach pods' interfaces: Kernel, or FakeLinks in tests.
type Links interface {
	// Open opens a pod's network namespace by its path.
	Open(netns string) (PodLinks, error)
	// DeleteHost deletes a host end, and the pod's interface with it. A missing
	// host end is no error.
	DeleteHost(name string) error
	// HostNames lists the links of the host.
	HostNames() (map[string]bool, error)
}

// PodLinks are the interfaces in one network namespace.
type PodLinks interface {
	// Read returns the actual state of the named interfaces (name → host end).
	// It skips an interface whose host end does not exist.
	Read(ctx context.Context, names map[string]string) (State, error)
	// Do applies one operation.
	Do(ctx context.Context, op Op) error
	Close()
}

// Apply applies all operations in order. It continues after a failed operation;
// the error names each failed one.
func Apply(ctx context.Context, t PodLinks, ops []Op) error {
	var errs []error
	for _, op := range ops {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if err := t.Do(ctx, op); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op, err))
		}
	}
	return errors.Join(errs...)
}

// names maps the pod's interfaces that the request may configure to their host ends.
func (p Pod) names() map[string]string {
	out := map[string]string{}
	for _, n := range p.Request.IfNames() {
		out[n] = HostName(p.Request.Sandbox, n)
	}
	for _, i := range p.Interfaces {
		out[i.Name] = i.Host
	}
	return out
}
