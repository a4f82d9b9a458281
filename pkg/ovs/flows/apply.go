// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Switch is the boundary: OFCtl, or Fake in tests.
type Switch interface {
	// Read gives the bridge's flows that carry our cookie.
	Read(ctx context.Context, bridge string) (State, error)
	// Apply does all operations, or none.
	Apply(ctx context.Context, bridge string, ops []Op) error
}

// Sync makes the bridge's flows what want says, and gives what it did.
func Sync(ctx context.Context, s Switch, bridge string, want State) ([]Op, error) {
	have, err := s.Read(ctx, bridge)
	if err != nil {
		return nil, err
	}
	ops := Diff(want, have)
	if len(ops) == 0 {
		return nil, nil
	}
	return ops, s.Apply(ctx, bridge, ops)
}

// OFCtl runs ovs-ofctl, the only program that the agent starts: once to read,
// and once with all changes in a bundle.
type OFCtl struct {
	// Command starts ovs-ofctl; nil: the one in PATH.
	Command func(ctx context.Context, args ...string) *exec.Cmd

	timeout time.Duration // of one run; 0: runTimeout
}

// runTimeout bounds one run: ovs-ofctl itself waits for ever for a switch that
// hangs.
const runTimeout = 10 * time.Second

var errHangs = errors.New("it does not end: is ovs-vswitchd stopped?")

// Read implements Switch.
func (o OFCtl) Read(ctx context.Context, bridge string) (State, error) {
	out, err := o.run(ctx, "", "--no-stats", "--no-names", "dump-flows", bridge, fmt.Sprintf("cookie=%#x/%#x", CookieMark, CookieMask))
	if err != nil {
		return nil, fmt.Errorf("read flows of %s: %w", bridge, err)
	}
	s, err := Parse(out)
	if err != nil {
		return nil, fmt.Errorf("read flows of %s: %w", bridge, err)
	}
	return s, nil
}

// Apply implements Switch.
func (o OFCtl) Apply(ctx context.Context, bridge string, ops []Op) error {
	var b strings.Builder
	for _, op := range ops {
		b.WriteString(op.command())
		b.WriteByte('\n')
	}
	if _, err := o.run(ctx, b.String(), "--bundle", "add-flows", bridge, "-"); err != nil {
		return errors.Join(fmt.Errorf("change flows of %s: %w", bridge, err), named(ops))
	}
	return nil
}

func named(ops []Op) error {
	lines := make([]string, len(ops))
	for i, op := range ops {
		lines[i] = op.String()
	}
	return fmt.Errorf("none of these was done: %s", strings.Join(lines, "; "))
}

func (o OFCtl) run(ctx context.Context, stdin string, args ...string) (string, error) {
	command := o.Command
	if command == nil {
		command = func(ctx context.Context, args ...string) *exec.Cmd {
			return exec.CommandContext(ctx, "ovs-ofctl", args...)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(o.timeout, runTimeout), errHangs)
	defer cancel()
	cmd := command(ctx, args...)
	cmd.WaitDelay = time.Second // something else may hold its output open
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("ovs-ofctl: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// strict is the flow without actions, as delete_strict wants it. The cookie
// keeps flows of others with the same match safe.
func (f Flow) strict() string {
	s := fmt.Sprintf("cookie=%#x/-1,table=%d,priority=%d", f.Cookie, f.Table, f.Priority)
	if f.Match != "" {
		s += "," + f.Match
	}
	return s
}

// Parse reads what ovs-ofctl --no-stats dump-flows prints.
func Parse(dump string) (State, error) {
	var out State
	for line := range strings.Lines(dump) {
		line = strings.TrimSpace(line)
		head, actions, ok := strings.Cut(line, "actions=")
		if !ok {
			if line == "" || strings.HasPrefix(line, "NXST_FLOW") || strings.HasPrefix(line, "OFPST_FLOW") {
				continue
			}
			return nil, fmt.Errorf("line %q is no flow", line)
		}
		// What is not said: table 0, OpenFlow's default priority.
		f := Flow{Priority: 32768, Actions: strings.TrimSpace(actions)}
		var match []string
		for _, field := range strings.FieldsFunc(head, func(r rune) bool { return r == ',' || r == ' ' }) {
			k, v, _ := strings.Cut(field, "=")
			var err error
			switch k {
			case "cookie":
				f.Cookie, err = strconv.ParseUint(v, 0, 64)
			case "table":
				f.Table, err = strconv.Atoi(v)
			case "priority":
				f.Priority, err = strconv.Atoi(v)
			case "reset_counts", "send_flow_rem", "check_overlap", "idle_timeout", "hard_timeout":
			default:
				match = append(match, field)
			}
			if err != nil {
				return nil, fmt.Errorf("line %q: %w", line, err)
			}
		}
		f.Match = strings.Join(match, ",")
		out = append(out, f)
	}
	sortFlows(out)
	return out, nil
}
