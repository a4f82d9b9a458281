// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Fake implements Switch in memory. It contains flows with any cookie. Like in a
// switch, an added flow replaces a flow with the same key.
type Fake struct {
	mu    sync.Mutex
	flows State
	// Fail, if set, is called before each bundle and may return an error.
	Fail func([]Op) error
}

// Set replaces all flows, like another program or a restart.
func (f *Fake) Set(s State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flows = slices.Clone(s)
}

// All returns the flows with any cookie.
func (f *Fake) All() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.flows)
}

// Read implements Switch.
func (f *Fake) Read(context.Context, string) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out State
	for _, x := range f.flows {
		if x.Cookie&CookieMask == CookieMark {
			out = append(out, x)
		}
	}
	sortFlows(out)
	return out, nil
}

// Apply implements Switch.
func (f *Fake) Apply(_ context.Context, _ string, ops []Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Fail != nil {
		if err := f.Fail(ops); err != nil {
			return errors.Join(err, notApplied(ops))
		}
	}
	for _, op := range ops {
		f.flows = slices.DeleteFunc(f.flows, func(x Flow) bool {
			return x.key() == op.Flow.key() && (!op.Delete || x.Cookie == op.Flow.Cookie)
		})
		if !op.Delete {
			f.flows = append(f.flows, op.Flow)
		}
	}
	return nil
}
