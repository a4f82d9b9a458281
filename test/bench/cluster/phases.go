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
	"bulkhead/test/bench/report"
)

// phase is one measured part of a run.
type phase struct {
	name     string
	networks int
	took     time.Duration
	cpu      usage
	// reconciles counts the reconciliations of networks.
	reconciles int
	writes     writes // without the users' creations and deletions of networks
	rest       writes // background writes
}

// perNetwork returns d per network.
func (p phase) perNetwork(d time.Duration) time.Duration {
	return time.Duration(float64(d) / float64(p.networks))
}

func (p phase) rate() float64 { return float64(p.networks) / p.took.Seconds() }

// cores returns how many cores d keeps busy during the whole phase.
func (p phase) cores(d time.Duration) float64 { return d.Seconds() / p.took.Seconds() }

// measured returns the CPU time of all measured processes.
func (p phase) measured() (sum time.Duration) {
	for name, d := range p.cpu {
		if name != others {
			sum += d
		}
	}
	return sum
}

// bottleneck describes whether the CPU limited the phase, which processes used
// it, and the rate on an otherwise idle machine.
func (p phase) bottleneck() string {
	all, cores := p.measured()+p.cpu[others], runtime.NumCPU()
	text := fmt.Sprintf("%.2f of %d cores busy", p.cores(all), cores)
	if p.cores(all) < 0.85*float64(cores) {
		return text + ": the CPU was not the limit"
	}
	share := func(d time.Duration) float64 { return 100 * report.Ratio(d.Seconds(), all.Seconds()) }
	return fmt.Sprintf("%s: API server and etcd %.0f %%, controller %.0f %%, the client that creates the networks %.0f %%, others %.0f %%; "+
		"without others %.0f networks/s at most", text, share(p.cpu[serverProc]+p.cpu[etcdProc]), share(p.cpu[controllerProc]),
		share(p.cpu[benchProc]), share(p.cpu[others]), report.Ratio(float64(cores*p.networks), p.measured().Seconds()))
}

// result is the result of one size.
type result struct {
	networks                        int
	create, restart, shared, remove phase
	readyAfter                      time.Duration // after the restart: leader, with synced caches
	peak, createPeak                int64
	plain                           []kindCost
	plainRate                       float64 // networks per second of a client that only writes
}

// The shared phase creates sharedNetworks networks, each in all
// sharedNamespaces.
const sharedNamespaces, sharedNetworks = 10, 100

// measure runs one phase. It reads the counters before and after the measured
// time.
func (c *cluster) measure(ctx context.Context, name string, networks int, f func(ctx context.Context) error) (phase, error) {
	p := phase{name: name, networks: networks}
	writesBefore, err := readWrites(ctx, c.rawClient)
	if err != nil {
		return p, err
	}
	queueBefore, err := c.queue(ctx)
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
	queueAfter, err := c.queue(ctx)
	if err != nil {
		return p, err
	}
	p.reconciles = queueAfter.reconciled - queueBefore.reconciled
	writesAfter, err := readWrites(ctx, c.rawClient)
	if err != nil {
		return p, err
	}
	p.writes, p.rest = writesAfter.since(writesBefore).split()
	delete(p.writes, "POST clusteruserdefinednetworks")   // a user's
	delete(p.writes, "DELETE clusteruserdefinednetworks") // a user's
	return p, nil
}

// runSize measures all phases for n networks with a new API server.
func runSize(ctx context.Context, o options, n int) (_ *result, err error) {
	o.progress("%d networks: start an API server, %d nodes and %d namespaces", n, o.nodes, n+sharedNamespaces)
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

	o.progress("%d networks: create them", n)
	if r.create, err = c.measure(ctx, "create", n, func(ctx context.Context) error {
		return c.createNetworks(ctx, n, ownName, ownNetwork)
	}); err != nil {
		return nil, err
	}
	if err := c.checkIDs(ctx, n); err != nil {
		return nil, err
	}
	if r.createPeak, err = c.peakMemory(); err != nil {
		return nil, err
	}

	o.progress("%d networks: restart the controller", n)
	if err := c.stopController(); err != nil {
		return nil, err
	}
	if r.restart, err = c.measure(ctx, "restart", n, func(ctx context.Context) error {
		start := time.Now()
		if err := c.startController(ctx); err != nil {
			return err
		}
		r.readyAfter = time.Since(start)
		return c.waitReconciled(ctx, n)
	}); err != nil {
		return nil, err
	}

	o.progress("%d networks: %d more, each in %d namespaces", n, sharedNetworks, sharedNamespaces)
	if r.shared, err = c.measure(ctx, "shared", sharedNetworks, func(ctx context.Context) error {
		return c.createNetworks(ctx, sharedNetworks, sharedName, sharedNetwork)
	}); err != nil {
		return nil, err
	}

	o.progress("%d networks: delete all", n)
	if r.remove, err = c.measure(ctx, "delete", n+sharedNetworks, func(ctx context.Context) error { return c.deleteNetworks(ctx, n) }); err != nil {
		return nil, err
	}
	if left, err := c.list(ctx, allNADsPath+"?limit=1"); err != nil {
		return nil, err
	} else if len(left.Items) > 0 {
		return nil, errors.New("NetworkAttachmentDefinitions remain after all networks are deleted")
	}
	if r.peak, err = c.peakMemory(); err != nil {
		return nil, err
	}
	if err := c.stopController(); err != nil {
		return nil, err
	}

	o.progress("%d networks: the same writes by a client that only writes", n)
	r.plain, r.plainRate, err = c.plainWrites(ctx, min(n, 1000))
	return r, err
}

func ownName(i int) string    { return fmt.Sprintf("own-%d", i) }
func sharedName(i int) string { return fmt.Sprintf("shared-%d", i) }

// prepare creates the namespaces and nodes, starts the controller, and waits
// until it is the leader and all nodes have ids.
func (c *cluster) prepare(ctx context.Context, nodes, namespaces int) error {
	if err := each(ctx, namespaces, func(ctx context.Context, i int) error {
		return c.do(ctx, http.MethodPost, namespacesPath, jsonType, namespaceBody(ownName(i), ownLabel))
	}); err != nil {
		return err
	}
	if err := each(ctx, sharedNamespaces, func(ctx context.Context, i int) error {
		return c.do(ctx, http.MethodPost, namespacesPath, jsonType, namespaceBody(sharedName(i), sharedLabel))
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

// createNetworks creates n networks and waits, by one watch, until all have three
// conditions of status True.
func (c *cluster) createNetworks(ctx context.Context, n int, name func(int) string, body func(string) []byte) error {
	return c.watched(ctx, n, `"conditions":[`, func(o *object) bool { return o.allTrue(3) }, func(ctx context.Context) error {
		return each(ctx, n, func(ctx context.Context, i int) error {
			return c.do(ctx, http.MethodPost, cudnsPath, jsonType, body(name(i)))
		})
	})
}

// deleteNetworks deletes all networks that earlier phases created.
func (c *cluster) deleteNetworks(ctx context.Context, n int) error {
	return c.watched(ctx, n+sharedNetworks, `{"type":"DELETED"`, func(*object) bool { return true }, func(ctx context.Context) error {
		return each(ctx, n+sharedNetworks, func(ctx context.Context, i int) error {
			name := ownName(i)
			if i >= n {
				name = sharedName(i - n)
			}
			return c.do(ctx, http.MethodDelete, cudnsPath+"/"+name, "", nil)
		})
	})
}

// watched runs do and waits until n networks had an event that contains substring
// and for which good returns true.
func (c *cluster) watched(ctx context.Context, n int, substring string, good func(o *object) bool, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	version, err := c.version(ctx, cudnsPath)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := c.watch(ctx, cudnsPath, version, substring, func(o *object) bool {
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

// checkIDs checks that there are n NADs with n different ids.
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
