// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"bulkhead/test/native"
	"bulkhead/test/sampling"
)

// TestNativeFaults runs the zone as a process of its own on real OVN and a real API server,
// and changes the API while faults happen: kill -9 before or after every second transaction, a connection
// that is cut at every second message, databases that come back empty, daemons that are killed, rows that
// are edited or have the names of ours. After each, the databases must have exactly the rows of
// an uninterrupted run, and the rows of other clients as they were. All the time pods send
// datagrams to each other, and none may arrive that is allowed neither before nor after the change,
// counted at the receiver's interfaces. That those which never arrive would arrive if it were not
// for our rows is shown by editing these.
func TestNativeFaults(t *testing.T) {
	t.Parallel()
	w := newFaultWorld(t)
	w.build()
	seed := sampling.Seed(context.Background())
	changes := w.changes()
	if !sampling.Full() {
		t.Logf("a sample, chosen by the seed (%s=%s; %s=1 runs all)", sampling.SeedEnv, seed, sampling.FullEnv)
		changes = changes[sampling.Part("change", seed, len(changes)):][:1]
	}
	run := func(name string, f func()) {
		if t.Failed() {
			return // it would start from another state
		}
		t.Run(name, func(t *testing.T) {
			w.t, w.host.t, w.probes.t = t, t, t
			defer func() { w.t, w.host.t, w.probes.t = t, t, t }()
			f()
		})
		w.t, w.host.t, w.probes.t = t, t, t
	}
	run("edited rows", func() { w.testEditedRows(seed) })
	run("lost databases", w.testLostDatabases)
	run("killed daemons", w.testKilledDaemons)
	run("taken names", w.testTakenNames)
	for _, c := range changes {
		run(c.name, func() { w.testChange(c, seed) })
	}
}

// direction is a change there or back, as it is without a fault.
type direction struct {
	name             string
	apply            func()
	take, free       func()           // of a change there, or nil
	rows             string           // after it
	before, after    map[arrival]bool // what is allowed
	writes, messages int
}

// testChange makes a change and the change back, with a fault at each step or at some.
func (w *faultWorld) testChange(c change, seed string) {
	without, with := w.always, union(w.always, c.flows)
	if c.setup != nil {
		before := w.settled(c.name + " begins") // which starts a zone
		c.setup()
		w.probes.arrive(c.name+": what is allowed arrives", with)
		without = with
		defer func() { c.teardown(); w.reached(c.name+" ends", before) }()
	}
	base := w.settled(c.name)
	do := &direction{name: c.name + ", there", apply: c.do, take: c.take, free: c.free, before: without, after: with}
	undo := &direction{name: c.name + ", back", apply: c.undo, before: with, after: without, rows: base}
	w.uninterrupted(do, c.done)
	w.uninterrupted(undo, nil)

	var faults [2][]fault // there and back
	for i, d := range []*direction{do, undo} {
		for _, kinds := range [][2]faultKind{{killBefore, killAfter}, {cutAt, cutWithin}} {
			steps := d.writes
			if kinds[0] == cutAt {
				steps = d.messages
			}
			var of []fault
			// A fault after a step leaves nearly what one before the next step does: every second
			// step, of which the seed chooses the first, has one of the two, in turns.
			first, turn := sampling.Part(d.name+string(kinds[0])+"first", seed, 2), sampling.Part(d.name+"turn", seed, 2)
			for n := first; n < steps; n += 2 {
				of = append(of, fault{kinds[(turn+n/2)%2], n + 1})
			}
			if len(of) == 0 && steps > 0 {
				of = []fault{{kinds[turn], 1}}
			}
			if !sampling.Full() || !c.cuts && kinds[0] == cutAt {
				of = of[sampling.Part(d.name+string(kinds[0]), seed, len(of)):][:1]
			}
			faults[i] = append(faults[i], of...)
		}
	}
	happened := 0
	for n := range max(len(faults[0]), len(faults[1])) {
		for i, d := range []*direction{do, undo} {
			f := fault{kind: noFault}
			if n < len(faults[i]) {
				f = faults[i][n]
			}
			if w.faulty(d, f) {
				happened++
			}
			if w.t.Failed() {
				return
			}
		}
	}
	all := len(faults[0]) + len(faults[1])
	w.t.Logf("%d faults in %d tries; there %d transactions and %d messages, back %d and %d", happened, all, do.writes, do.messages, undo.writes, undo.messages)
	// How the zone groups its units into transactions varies.
	if happened < (all+1)/2 {
		w.t.Errorf("%d faults in %d tries, want at least half", happened, all)
	}
}

// uninterrupted makes a change without a fault and notes its rows, if it is not known which
// they are, and its steps. done is a text that the rows have after it.
func (w *faultWorld) uninterrupted(d *direction, done []string) {
	w.t.Helper()
	seen := w.probes.snapshot()
	if d.take != nil {
		d.take()
	}
	w.injector.arm(fault{})
	w.disconnect()
	d.apply()
	if d.rows != "" {
		w.reached(d.name, d.rows)
	} else {
		w.haveRows(d.name+" is done", done)
	}
	d.writes, d.messages = w.injector.count()
	if d.free != nil {
		d.free()
		w.zone.kill() // the next one does not wait before it tries again
		w.running()
	}
	w.probes.arrive(d.name+": what is allowed arrives", d.after)
	w.probes.only(d.name, seen, d.before, d.after)
	if d.rows == "" {
		d.rows = w.settled(d.name)
	} else {
		w.settled(d.name)
	}
}

// haveRows waits until the databases have rows with each of parts.
func (w *faultWorld) haveRows(what string, parts []string) {
	w.t.Helper()
	eventually(w.t, what, func() error {
		rows, err := w.rows()
		for _, part := range parts {
			if err == nil && !strings.Contains(rows, part) {
				err = fmt.Errorf("no row with %s", part)
			}
		}
		return err
	})
}

// faulty makes a change with a fault and reports whether the fault has happened.
func (w *faultWorld) faulty(d *direction, f fault) bool {
	w.t.Helper()
	what := fmt.Sprintf("%s, %s", d.name, f)
	seen := w.probes.snapshot()
	if d.take != nil {
		d.take()
	}
	w.injector.arm(f)
	if f.kind == cutAt || f.kind == cutWithin {
		w.disconnect()
	}
	d.apply()
	if f.kind == killBefore || f.kind == killAfter {
		eventually(w.t, what, func() error {
			if rows, err := w.rows(); err != nil || w.injector.happened() || rows == d.rows {
				return err
			}
			return fmt.Errorf("neither a fault nor the rows of an uninterrupted run")
		})
		if w.injector.happened() {
			// What the zone leaves behind is tried in the datapath.
			w.sync()
			w.probes.rounds(3)
		}
		w.running()
	}
	if d.free != nil {
		d.free()
	}
	w.reached(what, d.rows)
	w.probes.arrive(what+": what is allowed arrives", d.after)
	w.probes.only(what, seen, d.before, d.after)
	w.sync()
	seen = w.probes.snapshot()
	w.probes.rounds(3)
	w.probes.only(what+", at the end", seen, d.after)
	happened := w.injector.happened()
	if rows := w.settled(what); rows != d.rows {
		w.t.Errorf("%s: later the rows differ by:\n%s", what, difference(d.rows, rows))
	}
	return happened
}

// testEditedRows edits rows so that nothing separates the pods any more: all that is sent
// arrives. The zone restores its rows, both at its start and while it runs.
func (w *faultWorld) testEditedRows(seed string) {
	changes := slices.DeleteFunc(w.changes(), func(c change) bool { return len(c.broken) == 0 })
	if !sampling.Full() {
		changes = changes[sampling.Part("edited", seed, len(changes)):][:1]
	}
	for _, c := range changes {
		base := w.settled(c.name)
		c.do()
		w.haveRows(c.name+" is done", c.done)
		allowed := union(w.always, c.flows)
		w.probes.arrive(c.name+": what is allowed arrives", allowed)
		rows := w.settled(c.name)
		for _, running := range []bool{false, true} {
			what := fmt.Sprintf("%s, edited while the zone runs: %t", c.name, running)
			if !running {
				w.zone.kill()
				w.breakIsolation()
				w.probes.arrive(what+": what is denied arrives", union(w.broken, c.broken))
				w.injector.arm(fault{})
				w.start()
			} else {
				w.breakIsolation()
			}
			w.reached(what, rows)
			w.sync()
			seen := w.probes.snapshot()
			w.probes.rounds(3)
			w.probes.only(what, seen, allowed)
			w.probes.arrive(what+": what is allowed arrives", allowed)
		}
		c.undo()
		w.reached(c.name+", back", base)
	}
}

// breakIsolation edits rows: no port is locked, and the ports of blue's pod and of green's, if it
// exists, are on red's switch.
func (w *faultWorld) breakIsolation() {
	w.t.Helper()
	find := func(table, condition string) []string {
		return strings.Fields(w.must("ovn-nbctl", "--no-leader-only", "--bare", "--columns=_uuid", "find", table, condition, `external_ids:"`+markOwner+`"=`+ownerValue))
	}
	red := find("Logical_Switch", "name=red_net_node1")
	if len(red) != 1 {
		w.t.Fatalf("red's switches are %v, want one", red)
	}
	command := []string{"--no-leader-only", "clear", "Port_Group", LockedPortGroup, "ports"}
	for port, from := range map[string]string{"blue.net_blue_a": "blue_net_node1", "green.net_green_x": "green_net_node1"} {
		for _, id := range find("Logical_Switch_Port", "name="+port) {
			command = append(command, "--", "remove", "Logical_Switch", from, "ports", id, "--", "add", "Logical_Switch", red[0], "ports", id)
		}
	}
	w.must("ovn-nbctl", command...)
}

// testLostDatabases kills a database's server, and starts it with the rows that it had
// and with none.
func (w *faultWorld) testLostDatabases() {
	base := w.settled("before")
	seen := w.probes.snapshot()
	w.injector.arm(fault{})
	native.Kill(w.central.NB)
	w.central.NB = w.serveDatabase("nb")
	w.reached("the northbound database restarts", base)
	w.probes.arrive("the northbound database restarts: what is allowed arrives", w.always)
	if writes, _ := w.injector.count(); writes != 0 {
		w.t.Errorf("%d transactions after a restart of the database that lost nothing", writes)
	}
	for _, db := range []string{"nb", "sb"} {
		what := "the " + db + " database is empty"
		if db == "nb" {
			native.Kill(w.central.NB)
			w.central.NB = w.database("nb")
			w.must("ovn-nbctl", "--no-leader-only", "init")
			w.addForeignRows()
		} else {
			native.Kill(w.central.SB)
			w.central.SB = w.database("sb")
			w.must("ovn-sbctl", "--no-leader-only", "init")
		}
		w.reached(what, base)
		w.probes.arrive(what+": what is allowed arrives", w.always)
		w.probes.only(what, seen, w.always)
	}
	if rows := w.settled("after"); rows != base {
		w.t.Errorf("later the rows differ by:\n%s", difference(base, rows))
	}
}

// testKilledDaemons makes changes while northd and ovn-controller are dead.
func (w *faultWorld) testKilledDaemons() {
	c := w.changes()[0]
	base := w.settled("before")
	seen := w.probes.snapshot()
	with := union(w.always, c.flows)
	native.Kill(w.central.Northd)
	native.Kill(w.ovs.Controller)
	c.do()
	w.haveRows("the rows are there without northd", c.done)
	w.probes.rounds(3)
	w.central.Northd = must(w.StartNorthd())(w.t)
	w.ovs.Controller = must(w.StartController())(w.t)
	w.probes.arrive("northd and ovn-controller are back: what is allowed arrives", with)
	native.Kill(w.ovs.Controller)
	c.undo()
	w.reached("ovn-controller is dead", base)
	w.ovs.Controller = must(w.StartController())(w.t)
	w.sync()
	w.probes.arrive("ovn-controller is back: what is allowed arrives", w.always)
	w.probes.only("northd and ovn-controller killed", seen, with)
}

// testTakenNames gives rows of another client the names of ours. What needs the name is
// not built, nothing opens for lack of it, and when the name is free the rest is built. The other
// client's rows stay.
func (w *faultWorld) testTakenNames() {
	base := w.settled("before")
	c := w.changes()[0]
	with := union(w.always, c.flows)
	seen := w.probes.snapshot()
	lines := func(rows, text string) (out []string) {
		for line := range strings.SplitSeq(rows, "\n") {
			if strings.Contains(line, text) {
				out = append(out, line)
			}
		}
		return out
	}
	const port = "red.net_red_x"
	w.must("ovn-nbctl", "--no-leader-only", "lsp-add", "theirs", port)
	taken := lines(must(w.rows())(w.t), port)
	w.injector.arm(fault{})
	c.do()
	eventually(w.t, "the pod's other port is built, and its name is tried", func() error {
		rows, err := w.rows()
		if writes, _ := w.injector.count(); err == nil && (!strings.Contains(rows, `"red_x"`) || writes < 3) {
			err = fmt.Errorf("no port red_x, or %d transactions, want at least 3", writes)
		}
		return err
	})
	if got := lines(must(w.rows())(w.t), port); !slices.ContainsFunc(got, func(l string) bool { return l == taken[0] }) {
		w.t.Errorf("the other client's port was\n%s\nis\n%s", taken[0], strings.Join(got, "\n"))
	}
	w.must("ovn-nbctl", "--no-leader-only", "lsp-del", port)
	w.probes.arrive("the name of a port is free again: what is allowed arrives", with)
	c.undo()
	w.reached("the pod is deleted", base)
	w.probes.only("a port's name is taken", seen, with)
	seen = w.probes.snapshot()

	// The group of locked ports cannot be built in an empty database: no locked port
	// exists, and nothing of the cluster default network opens.
	native.Kill(w.central.NB)
	w.zone.kill() // so that it does not create the group before the other client
	w.central.NB = w.database("nb")
	w.must("ovn-nbctl", "--no-leader-only", "init")
	w.addForeignRows()
	w.must("ovn-nbctl", "--no-leader-only", "pg-add", LockedPortGroup)
	group := lines(must(w.rows())(w.t), LockedPortGroup)
	// Open vSwitch revalidates its cached flows one by one. If the rows without locked ports
	// followed at once on those with them, the flow that sends red/b's datagrams to the ACLs could be
	// gone later than the one with which the ACLs dropped them, and some would pass. The guard at the
	// pod's interface stops them, which is not there in this test.
	w.sync()
	w.start()
	eventually(w.t, "the rest is built", func() error {
		rows, err := w.rows()
		if err == nil && (!strings.Contains(rows, `"red.net_red_b"`) || !strings.Contains(rows, `"plain_a"`)) {
			err = fmt.Errorf("no port red.net_red_b or plain_a")
		}
		return err
	})
	w.sync()
	w.probes.rounds(3)
	rows := must(w.rows())(w.t)
	if got := lines(rows, LockedPortGroup); len(got) != 1 || got[0] != group[0] {
		w.t.Errorf("the other client's port group was\n%s\nis\n%s", group[0], strings.Join(got, "\n"))
	}
	for _, locked := range []string{`"red_a"`, `"red_b"`, `"blue_a"`} {
		if len(lines(rows, locked)) > 0 {
			w.t.Errorf("port %s exists without the group of locked ports", locked)
		}
	}
	w.probes.only("the name of the port group is taken", seen, with)
	seen = w.probes.snapshot()
	w.must("ovn-nbctl", "--no-leader-only", "pg-del", LockedPortGroup)
	w.reached("the name of the port group is free again", base)
	w.probes.arrive("the name of the port group is free again: what is allowed arrives", w.always)
	w.probes.only("the name of the port group is free", seen, with)
}

func union(all ...map[arrival]bool) map[arrival]bool {
	out := map[arrival]bool{}
	for _, m := range all {
		maps.Copy(out, m)
	}
	return out
}
