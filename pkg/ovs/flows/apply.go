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

// Switch accesses the switch: OFCtl, or Fake in tests.
type Switch interface {
	// Read returns the bridge's flows with our cookie.
	Read(ctx context.Context, bridge string) (State, error)
	// Apply applies all operations or none.
	Apply(ctx context.Context, bridge string, ops []Op) error
}

// Sync applies the difference between the bridge's actual and desired flows, and
// returns the operations.
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

// OFCtl implements Switch with ovs-ofctl. Read and Apply run it once each; Apply
// puts all changes in a bundle.
type OFCtl struct {
	// Command returns the command for ovs-ofctl; nil: ovs-ofctl in PATH.
	Command func(ctx context.Context, args ...string) *exec.Cmd

	timeout time.Duration // of one run; 0: runTimeout and opTime for each operation, or readTimeout
}

// These bound one run: ovs-ofctl waits forever for an unresponsive switch. On a very busy node a change takes more than ten
// seconds; to end and repeat it would make the node busier. How many flows a read returns is not known before.
const (
	runTimeout  = 30 * time.Second
	opTime      = 2 * time.Millisecond
	readTimeout = 30 * time.Second
)

// ErrUnresponsive: the switch does not answer in time.
var ErrUnresponsive = errors.New("timeout: is ovs-vswitchd stopped?")

// Read implements Switch.
func (o OFCtl) Read(ctx context.Context, bridge string) (State, error) {
	out, err := o.run(ctx, readTimeout, "", "--no-stats", "--no-names", "dump-flows", bridge, fmt.Sprintf("cookie=%#x/%#x", CookieMark, CookieMask))
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
		b.WriteString(op.bundleLine())
		b.WriteByte('\n')
	}
	if _, err := o.run(ctx, runTimeout+time.Duration(len(ops))*opTime, b.String(), "--bundle", "add-flows", bridge, "-"); err != nil {
		return errors.Join(fmt.Errorf("change flows of %s: %w", bridge, err), notApplied(ops))
	}
	return nil
}

func notApplied(ops []Op) error {
	const named = 10
	var lines []string
	for _, op := range ops[:min(named, len(ops))] {
		lines = append(lines, op.String())
	}
	if more := len(ops) - named; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("none of these operations was applied: %s", strings.Join(lines, "; "))
}

func (o OFCtl) run(ctx context.Context, limit time.Duration, stdin string, args ...string) (string, error) {
	command := o.Command
	if command == nil {
		command = func(ctx context.Context, args ...string) *exec.Cmd {
			return exec.CommandContext(ctx, "ovs-ofctl", args...)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(o.timeout, limit), ErrUnresponsive)
	defer cancel()
	cmd := command(ctx, args...)
	cmd.WaitDelay = time.Second // a child may keep its output open
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

// deleteLine returns the flow in the format of delete_strict, without actions.
// With the cookie it does not match flows of others.
func (f Flow) deleteLine() string {
	s := fmt.Sprintf("cookie=%#x/-1,table=%d,priority=%d", f.Cookie, f.Table, f.Priority)
	if f.Match != "" {
		s += "," + f.Match
	}
	return s
}

// Parse parses the output of ovs-ofctl --no-stats dump-flows.
func Parse(dump string) (State, error) {
	var out State
	for line := range strings.Lines(dump) {
		line = strings.TrimSpace(line)
		head, actions, ok := strings.Cut(line, "actions=")
		if !ok {
			if line == "" || strings.HasPrefix(line, "NXST_FLOW") || strings.HasPrefix(line, "OFPST_FLOW") {
				continue
			}
			return nil, fmt.Errorf("line %q is not a flow", line)
		}
		// Defaults: table 0 and OpenFlow's default priority.
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
