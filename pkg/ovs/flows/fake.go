// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Fake is a Switch in memory. It holds flows of any cookie, and like a switch
// lets an added flow replace one with the same match.
type Fake struct {
	mu    sync.Mutex
	flows State
	// Fail, when set, is asked before each bundle.
	Fail func([]Op) error
}

// Set puts flows in place by hand, as another program or a restart would.
func (f *Fake) Set(s State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flows = slices.Clone(s)
}

// All are the flows of every cookie.
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
			return errors.Join(err, named(ops))
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
