// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
)

// losing is a client that is lost during its first read: libovsdb's reads of a lost client
// wait until their context ends.
type losing struct {
	client.Client
	reads atomic.Int32
}

func (l *losing) Cache() *cache.TableCache {
	if l.reads.Load() > 0 {
		return nil
	}
	return &cache.TableCache{}
}

func (l *losing) List(ctx context.Context, _ any) error {
	l.reads.Add(1)
	<-ctx.Done()
	return nil
}

// A read does not wait for a connection that is lost, neither before it nor during it.
func TestReadOfLostClient(t *testing.T) {
	s := &testServer{t: t, socket: filepath.Join(t.TempDir(), "db.sock")}
	s.start()
	c, _ := s.connection()
	insert(t, c, "one")
	eventually(t, "the row is cached", func() bool { return names(t, c) == "one" })
	lost := c.Client()
	s.stop()
	eventually(t, "the loss is noticed", func() bool { return lost.Cache() == nil })
	var rows []thing
	if err := List(t.Context(), lost, &rows); !errors.Is(err, ErrNotConnected) {
		t.Errorf("rows of a lost client: %v, error %v", rows, err)
	}
	if err := Get(t.Context(), lost, &thing{UUID: "00000000-0000-0000-0000-00000000000a"}); !errors.Is(err, ErrNotConnected) {
		t.Errorf("a row of a lost client: error %v", err)
	}
	if err := List(t.Context(), &losing{}, &rows); !errors.Is(err, ErrNotConnected) {
		t.Errorf("rows of a client that is lost meanwhile: error %v", err)
	}
	if err := List(canceled(), &losing{}, &rows); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled read: error %v", err)
	}
}
