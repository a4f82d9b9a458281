// SPDX-License-Identifier: Apache-2.0

package story

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"bulkhead/test/adversary"
	"bulkhead/test/adversary/attack"
	"bulkhead/test/lab"
)

// actor makes attempts or listens: a container of a pod, or a process on a machine
// outside all pods, in kubelet's cgroup or not.
type actor struct {
	pod       *pod
	container string
	machine   *lab.Node
	namespace string // a network namespace of the machine; "": its own
	kubelet   bool
	bits32    bool // its program makes 32-bit system calls
}

func (p actor) String() string {
	if p.bits32 {
		p.bits32 = false
		return p.String() + ", 32 bits"
	}
	switch {
	case p.pod != nil && p.container != "":
		return p.pod.Name + "/" + p.container
	case p.pod != nil:
		return p.pod.Name
	case p.kubelet:
		return "kubelet on " + p.machine.Name
	case p.namespace != "":
		return p.namespace + " on " + p.machine.Name
	}
	return p.machine.Name
}

// program is an actor's running program, with its standard input and output.
type program interface {
	Write([]byte) (int, error)
	output() string
	end(ctx context.Context) (string, error)
}

type podProgram struct {
	*stream
}

func (t podProgram) Write(b []byte) (int, error)             { return t.stdin.Write(b) }
func (t podProgram) output() string                          { return t.out.String() }
func (t podProgram) end(ctx context.Context) (string, error) { return t.wait(ctx) }
func (t nodeProgram) output() string                         { return t.Stdout() }
func (t nodeProgram) end(context.Context) (s string, err error) {
	t.CloseStdin()
	r, err := t.Wait()
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("exit %d: %s", r.ExitCode, r.Stderr)
	}
	return r.Stdout, err
}

type nodeProgram struct{ *lab.Process }

func (w *World) startProgram(ctx context.Context, p actor, args ...string) (program, error) {
	name := "adversary"
	if p.bits32 {
		name = adversary32
	}
	if p.pod != nil {
		s, err := w.start(ctx, p.pod, p.container, append([]string{"/tools/" + name}, args...)...)
		return podProgram{s}, err
	}
	script := fmt.Sprintf("exec %s/%s %s", toolsDir, name, strings.Join(args, " "))
	if p.namespace != "" {
		script = fmt.Sprintf("exec ip netns exec %s %s/%s %s", p.namespace, toolsDir, name, strings.Join(args, " "))
	}
	if p.kubelet {
		script = "echo $$ > /sys/fs/cgroup/kubelet/cgroup.procs && " + script
	}
	proc, err := p.machine.Start(ctx, script)
	return nodeProgram{proc}, err
}

// trial is an attempt of an actor.
type trial struct {
	by      actor
	attempt attack.Attempt
}

// key is the same for an attack and its controls.
func (t trial) key() string {
	a := t.attempt
	a.ID = 0
	raw, _ := json.Marshal(a)
	return string(raw)
}

// round is one run of attempts, which get ids, while victims listen.
type round struct {
	w          *World
	next       int
	listeners  map[string]program // the listening programs, by actor
	sendErrors map[int]string     // the senders' errors, by id
	mu         sync.Mutex
}

func newRound(w *World) *round {
	return &round{w: w, listeners: map[string]program{}, sendErrors: map[int]string{}}
}

// listen starts a victim's listening program and waits until it is ready.
func (m *round) listen(ctx context.Context, p actor, listeners ...attack.Listener) error {
	c, err := m.w.startProgram(ctx, p, "listen")
	if err != nil {
		return err
	}
	raw, err := json.Marshal(listeners)
	if err != nil {
		return err
	}
	if _, err := c.Write(append(raw, '\n')); err != nil {
		return fmt.Errorf("%s: start to listen: %w", p, err)
	}
	m.mu.Lock()
	m.listeners[p.String()] = c
	m.mu.Unlock()
	return m.w.Lab.Wait(ctx, p.String()+" to listen", func(context.Context) (bool, string, error) {
		return strings.HasPrefix(c.output(), "ready\n"), c.output(), nil
	})
}

// end stops all listening programs and returns what each received.
func (m *round) end(ctx context.Context) (map[string][]adversary.Received, error) {
	out := map[string][]adversary.Received{}
	var mu sync.Mutex
	err := each(slices.Sorted(maps.Keys(m.listeners)), func(name string) error {
		text, err := m.listeners[name].end(ctx)
		if err != nil {
			return fmt.Errorf("%s listened: %w", name, err)
		}
		received, err := parseReceived(text)
		mu.Lock()
		defer mu.Unlock()
		out[name] = received
		return err
	})
	m.listeners = map[string]program{}
	return out, err
}

// receivedSoFar asks a listening program for the ids that it has received.
func (m *round) receivedSoFar(ctx context.Context, name string) (map[int]bool, error) {
	c := m.listeners[name]
	before := strings.Count(c.output(), "\n")
	if _, err := c.Write([]byte("?\n")); err != nil {
		return nil, fmt.Errorf("ask %s what it received: %w", name, err)
	}
	err := m.w.Lab.Wait(ctx, name+" to say what it received", func(context.Context) (bool, string, error) {
		return strings.Count(c.output(), "\n") > before, "", nil
	})
	if err != nil {
		return nil, err
	}
	received, err := parseReceived(c.output())
	return idsOf(received), err
}

func idsOf(received []adversary.Received) map[int]bool {
	ids := map[int]bool{}
	for _, h := range received {
		for _, id := range h.IDs {
			ids[id] = true
		}
	}
	return ids
}

func parseReceived(text string) ([]adversary.Received, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	var received []adversary.Received
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &received); err != nil {
		return nil, fmt.Errorf("what was received: %w in %.200q", err, text)
	}
	return received, nil
}

// try assigns ids and makes the attempts: one actor's in sequence, those of
// different actors side by side.
func (m *round) try(ctx context.Context, trials []*trial) error {
	by := map[string][]int{}
	for i := range trials {
		m.next++
		trials[i].attempt.ID = m.next
		by[trials[i].by.String()] = append(by[trials[i].by.String()], i)
	}
	return each(slices.Sorted(maps.Keys(by)), func(name string) error {
		p := trials[by[name][0]].by
		c, err := m.w.startProgram(ctx, p, "send")
		if err != nil {
			return err
		}
		var lines []byte
		for _, i := range by[name] {
			raw, err := json.Marshal(trials[i].attempt)
			if err != nil {
				return err
			}
			lines = append(append(lines, raw...), '\n')
		}
		if _, err := c.Write(lines); err != nil {
			return fmt.Errorf("%s: send attempts: %w", name, err)
		}
		text, err := c.end(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		scan := bufio.NewScanner(strings.NewReader(text))
		n := 0
		for scan.Scan() {
			var t adversary.SendResult
			if err := json.Unmarshal(scan.Bytes(), &t); err != nil {
				return fmt.Errorf("%s: %w in %q", name, err, scan.Text())
			}
			m.mu.Lock()
			m.sendErrors[t.ID] = t.Error
			m.mu.Unlock()
			n++
		}
		if n != len(by[name]) {
			return fmt.Errorf("%s made %d of %d attempts", name, n, len(by[name]))
		}
		return nil
	})
}

// part is one part of the table: attacks on some victims, and their controls.
type part struct {
	what              string
	attacks, controls []trial
	victims           []string // the actors whose receptions count
	// elsewhere are attacks that no control repeats: another port is shown to be reached the same way.
	elsewhere []trial
}

// verify makes all attacks of the parts, including elsewhere, and then their controls. It returns an error for each attack
// that a victim received, for each way that no control takes, and for each way of whose controls none was received.
// Attacks in elsewhere need no control. It makes the attacks of all parts at once, because starting a program in a pod
// takes longer than a hundred attempts.
func (m *round) verify(ctx context.Context, parts ...part) error {
	var attacks, controls []*trial
	for i := range parts {
		p := &parts[i]
		if len(p.attacks)+len(p.elsewhere) == 0 || len(p.controls) == 0 {
			return fmt.Errorf("%s: an empty table proves nothing", p.what)
		}
		for j := range p.attacks {
			attacks = append(attacks, &p.attacks[j])
		}
		for j := range p.elsewhere {
			attacks = append(attacks, &p.elsewhere[j])
		}
		for j := range p.controls {
			controls = append(controls, &p.controls[j])
		}
	}
	if err := m.try(ctx, attacks); err != nil {
		return err
	}
	received, err := m.tryControls(ctx, parts, controls)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range parts {
		notReceived := p.notReceived(received, m.sendErrors)
		for _, t := range slices.Concat(p.attacks, p.elsewhere) {
			if p.received(received, t) {
				errs = append(errs, fmt.Errorf("%s: %s reached a victim: %s (the sender's error: %q)", p.what, t.by, t.key(), m.sendErrors[t.attempt.ID]))
			}
		}
		controlled := map[string]bool{}
		for _, t := range p.controls {
			controlled[t.key()] = true
		}
		for _, t := range p.attacks {
			if !controlled[t.key()] {
				errs = append(errs, fmt.Errorf("%s: no control uses the attempt %s", p.what, t.key()))
			}
		}
		for _, key := range slices.Sorted(maps.Keys(notReceived)) {
			errs = append(errs, fmt.Errorf("%s: no control was received through the attempt %s: %s", p.what, key, notReceived[key]))
		}
	}
	return errors.Join(errs...)
}

// received reports whether one of the part's victims received the trial.
func (p part) received(by map[string]map[int]bool, t trial) bool {
	return slices.ContainsFunc(p.victims, func(v string) bool { return by[v][t.attempt.ID] })
}

// notReceived are the ways none of whose controls was received, with the senders' errors.
func (p part) notReceived(by map[string]map[int]bool, sendErrors map[int]string) map[string]string {
	out := map[string]string{}
	reached := map[string]bool{}
	for _, t := range p.controls {
		if p.received(by, t) {
			reached[t.key()] = true
		}
	}
	for _, t := range p.controls {
		if !reached[t.key()] {
			out[t.key()] += fmt.Sprintf("%s: %q; ", t.by, sendErrors[t.attempt.ID])
		}
	}
	return out
}

// tryControls makes the controls, and repeats those of ways that were not received, up
// to three times: on a busy machine a connection times out before it is answered.
func (m *round) tryControls(ctx context.Context, parts []part, controls []*trial) (map[string]map[int]bool, error) {
	received := map[string]map[int]bool{}
	for range 4 {
		if err := m.try(ctx, controls); err != nil {
			return nil, err
		}
		for name := range m.listeners {
			ids, err := m.receivedSoFar(ctx, name)
			if err != nil {
				return nil, err
			}
			received[name] = ids
		}
		controls = nil
		for i := range parts {
			notReceived := parts[i].notReceived(received, m.sendErrors)
			for j := range parts[i].controls {
				if _, is := notReceived[parts[i].controls[j].key()]; is {
					controls = append(controls, &parts[i].controls[j])
				}
			}
		}
		if len(controls) == 0 {
			break
		}
	}
	return received, nil
}
