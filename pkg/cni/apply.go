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
	// DeleteHost removes a host end, and the pod's interface with it. That it
	// is not there is no error.
	DeleteHost(name string) error
	// HostNames are the links of the host.
	HostNames() (map[string]bool, error)
}

// PodLinks are the interfaces in one network namespace.
type PodLinks interface {
	// Read gives those of the named interfaces (name → host end) that are
	// ours: whose other end is that very host end.
	Read(ctx context.Context, names map[string]string) (State, error)
	// Do makes one change.
	Do(ctx context.Context, op Op) error
	Close()
}

// Apply makes all changes in order. One that fails does not stop those behind
// it; the error names each.
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

// names are the interfaces of the request with their host ends.
func (r Request) names() map[string]string {
	out := map[string]string{}
	for _, n := range r.IfNames() {
		out[n] = HostName(r.Sandbox, n)
	}
	return out
}
