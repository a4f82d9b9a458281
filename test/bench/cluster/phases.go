// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"bulkhead/pkg/network"
)

// phase is one measured part of a run.
type phase struct {
	name     string
	networks int
	took     time.Duration
	cpu      usage
	looks    int    // of the controller at a network
	writes   writes // without those of the users who make and delete networks
	rest     writes // leases, events and the like
}

// perNetwork is a network's share of d.
func (p phase) perNetwork(d time.Duration) time.Duration {
	return time.Duration(float64(d) / float64(p.networks))
}

func (p phase) rate() float64 { return float64(p.networks) / p.took.Seconds() }

// cores is how many cores d keeps busy for the whole phase.
func (p phase) cores(d time.Duration) float64 { return d.Seconds() / p.took.Seconds() }

// ours is the processor time of all processes that are measured.
func (p phase) ours() (sum time.Duration) {
	for name, d := range p.cpu {
		if name != others {
			sum += d
		}
	}
	return sum
}

// limited says who was short of what, and how fast it would be if nothing else
// ran on the machine.
func (p phase) limited() string {
	all, cores := p.ours()+p.cpu[others], runtime.NumCPU()
	text := fmt.Sprintf("%.2f of %d cores busy", p.cores(all), cores)
	if p.cores(all) < 0.85*float64(cores) {
		return text + ": processors were not the limit"
	}
	share := func(d time.Duration) float64 { return 100 * ratio(d.Seconds(), all.Seconds()) }
	return fmt.Sprintf("%s: API server and etcd %.0f %%, controller %.0f %%, the client that makes the networks %.0f %%, others %.0f %%; "+
		"without others %.0f networks/s at most", text, share(p.cpu[serverProc]+p.cpu[etcdProc]), share(p.cpu[controllerProc]),
		share(p.cpu[benchProc]), share(p.cpu[others]), ratio(float64(cores*p.networks), p.ours().Seconds()))
}

// result is what one size showed.
type result struct {
	networks                        int
	create, restart, shared, remove phase
	readyAfter                      time.Duration // of the restart: leader, with filled caches
	peak, createPeak                int64
	plain                           []kindCost
	plainRate                       float64 // networks a second of a client that only writes
}

// Shared networks: so many namespaces, and so many networks in all of them.
const sharedNamespaces, sharedNetworks = 10, 100

// measure runs one phase. The counters are read outside of its time.
func (c *cluster) measure(ctx context.Context, name string, networks int, f func(ctx context.Context) error) (phase, error) {
	p := phase{name: name, networks: networks}
	writesBefore, err := readWrites(ctx, c.caller)
	if err != nil {
		return p, err
	}
	looksBefore, err := c.queue(ctx)
	if err != nil {
		return p, err
	}
	before, err := readUsage(c.pids())
	if err != nil {
		return p, err
	}
	start := time.Now()
	if err := f(ctx); err != nil {
		return p, fmt.Errorf("%s: %w", name, err)
	}
	p.took = time.Since(start)
	after, err := readUsage(c.pids())
	if err != nil {
		return p, err
	}
	p.cpu = after.since(before)
	looksAfter, err := c.queue(ctx)
	if err != nil {
		return p, err
	}
	p.looks = looksAfter.done - looksBefore.done
	writesAfter, err := readWrites(ctx, c.caller)
	if err != nil {
		return p, err
	}
	p.writes, p.rest = writesAfter.since(writesBefore).split()
	delete(p.writes, "POST clusteruserdefinednetworks")   // the users'
	delete(p.writes, "DELETE clusteruserdefinednetworks") // the users'
	return p, nil
}

// runSize measures everything for n networks on a fresh API server.
func runSize(ctx context.Context, o options, n int) (_ *result, err error) {
	o.say("%d networks: start an API server, %d nodes and %d namespaces", n, o.nodes, n+sharedNamespaces)
	c, err := startCluster(ctx, o.controller)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.abandon())
		} else {
			err = c.stop()
		}
	}()
	r := &result{networks: n}
	if err := c.prepare(ctx, o.nodes, n); err != nil {
		return nil, err
	}

	o.say("%d networks: make them", n)
	if r.create, err = c.measure(ctx, "create", n, func(ctx context.Context) error {
		return c.makeNetworks(ctx, n, own, ownNetwork)
	}); err != nil {
		return nil, err
	}
	if err := c.checkIDs(ctx, n); err != nil {
		return nil, err
	}
	if r.createPeak, err = c.peakMemory(); err != nil {
		return nil, err
	}

	o.say("%d networks: restart the controller", n)
	if err := c.stopController(); err != nil {
		return nil, err
	}
	if r.restart, err = c.measure(ctx, "restart", n, func(ctx context.Context) error {
		start := time.Now()
		if err := c.startController(ctx); err != nil {
			return err
		}
		r.readyAfter = time.Since(start)
		return c.settled(ctx, n)
	}); err != nil {
		return nil, err
	}

	o.say("%d networks: %d more, each in %d namespaces", n, sharedNetworks, sharedNamespaces)
	if r.shared, err = c.measure(ctx, "shared", sharedNetworks, func(ctx context.Context) error {
		return c.makeNetworks(ctx, sharedNetworks, shared, sharedNetwork)
	}); err != nil {
		return nil, err
	}

	o.say("%d networks: delete all", n)
	if r.remove, err = c.measure(ctx, "delete", n+sharedNetworks, func(ctx context.Context) error { return c.removeNetworks(ctx, n) }); err != nil {
		return nil, err
	}
	if left, err := c.list(ctx, allNADsPath+"?limit=1"); err != nil {
		return nil, err
	} else if len(left.Items) > 0 {
		return nil, errors.New("NetworkAttachmentDefinitions are left after all networks are gone")
	}
	if r.peak, err = c.peakMemory(); err != nil {
		return nil, err
	}
	if err := c.stopController(); err != nil {
		return nil, err
	}

	o.say("%d networks: the same writes by a client that does nothing else", n)
	r.plain, r.plainRate, err = c.plainWrites(ctx, min(n, 1000))
	return r, err
}

func own(i int) string    { return fmt.Sprintf("own-%d", i) }
func shared(i int) string { return fmt.Sprintf("shared-%d", i) }

// prepare makes what is there before the clock starts: nodes with their ids,
// namespaces, and a controller that is the leader.
func (c *cluster) prepare(ctx context.Context, nodes, namespaces int) error {
	if err := each(ctx, namespaces, func(ctx context.Context, i int) error {
		return c.do(ctx, http.MethodPost, namespacesPath, jsonType, namespaceBody(own(i), ownLabel))
	}); err != nil {
		return err
	}
	if err := each(ctx, sharedNamespaces, func(ctx context.Context, i int) error {
		return c.do(ctx, http.MethodPost, namespacesPath, jsonType, namespaceBody(shared(i), sharedLabel))
	}); err != nil {
		return err
	}
	version, err := c.version(ctx, nodesPath)
	if err != nil {
		return err
	}
	if err := each(ctx, nodes, func(ctx context.Context, i int) error {
		return c.do(ctx, http.MethodPost, nodesPath, jsonType, nodeBody(fmt.Sprintf("node-%d", i)))
	}); err != nil {
		return err
	}
	if err := c.startController(ctx); err != nil {
		return err
	}
	withID := map[string]bool{}
	if nodes == 0 {
		return nil
	}
	return c.watch(ctx, nodesPath, version, network.AnnotationNodeID, func(o *object) bool {
		if o.Metadata.Annotations[network.AnnotationNodeID] != "" {
			withID[o.Metadata.Name] = true
		}
		return len(withID) == nodes
	})
}

// makeNetworks makes n networks and waits until all have three conditions that
// are True. One watch tells.
func (c *cluster) makeNetworks(ctx context.Context, n int, name func(int) string, body func(string) []byte) error {
	return c.watched(ctx, n, `"conditions":[`, func(o *object) bool { return o.allTrue(3) }, func(ctx context.Context) error {
		return each(ctx, n, func(ctx context.Context, i int) error {
			return c.do(ctx, http.MethodPost, cudnsPath, jsonType, body(name(i)))
		})
	})
}

// removeNetworks deletes everything that the phases before made.
func (c *cluster) removeNetworks(ctx context.Context, n int) error {
	return c.watched(ctx, n+sharedNetworks, `{"type":"DELETED"`, func(*object) bool { return true }, func(ctx context.Context) error {
		return each(ctx, n+sharedNetworks, func(ctx context.Context, i int) error {
			name := own(i)
			if i >= n {
				name = shared(i - n)
			}
			return c.do(ctx, http.MethodDelete, cudnsPath+"/"+name, "", nil)
		})
	})
}

// watched runs do, and ends when n networks have had an event with that text
// in it that is as it should be.
func (c *cluster) watched(ctx context.Context, n int, with string, good func(o *object) bool, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	version, err := c.version(ctx, cudnsPath)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := c.watch(ctx, cudnsPath, version, with, func(o *object) bool {
			if good(o) {
				seen[o.Metadata.Name] = true
			}
			return len(seen) == n
		})
		if err != nil {
			return fmt.Errorf("after %d of %d networks: %w", len(seen), n, err)
		}
		return nil
	})
	g.Go(func() error { return do(ctx) })
	return g.Wait()
}

// checkIDs: n NADs with n ids.
func (c *cluster) checkIDs(ctx context.Context, n int) error {
	l, err := c.list(ctx, allNADsPath)
	if err != nil {
		return err
	}
	by := map[string]string{}
	for _, o := range l.Items {
		id := o.Metadata.Annotations[network.AnnotationNetworkID]
		if other, taken := by[id]; taken || id == "" {
			return fmt.Errorf("networks %s and %s have the id %q", o.Metadata.Name, other, id)
		}
		by[id] = o.Metadata.Name
	}
	if len(by) != n {
		return fmt.Errorf("%d networks have an id, want %d", len(by), n)
	}
	return nil
}
