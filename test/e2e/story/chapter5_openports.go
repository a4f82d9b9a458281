// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"bulkhead/pkg/network"
)

func openPortChecks() []Check {
	return []Check{
		{Chapter: 5, Title: "open ports of red's pods: the default network and nodes reach those alone, until they are closed", Phase: phaseReach, Needs: needs(fixturePlain, fixtureTenants), Run: openPorts, Group: groupOpenPorts},
	}
}

// openPorts opens TCP, SCTP and echo requests, but not UDP, of two of red's pods that run.
func openPorts(ctx context.Context, w *World) (_ string, err error) {
	victims, others := w.tenant("red"), w.tenant("blue")
	victims, neighbour := victims[:2], victims[2]
	want, never := map[string]string{}, []string{}
	var closed []string // unless the ports are open
	for _, p := range victims {
		for _, t := range append(targets(p.Default...), sctpTargets(p.Default...)...) {
			if strings.HasPrefix(t, "udp:") {
				never = append(never, t)
				continue
			}
			want[t], closed = p.Namespace+"/"+p.Name, append(closed, t)
		}
	}
	never = append(never, targets(neighbour.Default...)...)
	type client struct {
		name  string
		ask   func([]string) ([]probe, error) // what should answer
		check func([]string) ([]probe, error) // what should not
	}
	var clients []client
	for _, p := range w.tenant("") {
		clients = append(clients, client{p.Name, func(list []string) ([]probe, error) { return w.ask(ctx, p, "", list) },
			func(list []string) ([]probe, error) { return w.attempt(ctx, p, "", list...) }})
	}
	for _, n := range w.Lab.Nodes() {
		clients = append(clients, client{n.Name, w.fromNode(ctx, n),
			func(list []string) ([]probe, error) { return w.nodeAttempt(ctx, n, list...) }})
	}
	refused := func(list []string) error {
		return each(clients, func(s client) error {
			got, err := s.check(list)
			if err != nil {
				return err
			}
			return reachedAny(s.name, got)
		})
	}
	if err := refused(closed); err != nil {
		return "", fmt.Errorf("before: %w", err)
	}
	defer func() {
		err = errors.Join(err, w.annotate(context.WithoutCancel(ctx), network.AnnotationOpenDefaultPorts, nil, victims...))
	}()
	value := "- protocol: tcp\n  port: 8080\n- protocol: sctp\n  port: 8080\n- protocol: icmp\n"
	if err := w.annotate(ctx, network.AnnotationOpenDefaultPorts, &value, victims...); err != nil {
		return "", err
	}
	err = each(clients, func(s client) error {
		if _, err := reach(s.ask, want); err != nil {
			return fmt.Errorf("from %s: %w", s.name, err)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if err := refused(never); err != nil {
		return "", fmt.Errorf("what is not open: %w", err)
	}
	// Tenants reach nothing: their own locked addresses lead nowhere.
	err = each(append([]*pod{neighbour}, others...), func(p *pod) error {
		got, err := w.attempt(ctx, p, "", closed...)
		if err != nil {
			return err
		}
		return reachedAny(p.Name, got)
	})
	if err != nil {
		return "", err
	}
	if err := w.annotate(ctx, network.AnnotationOpenDefaultPorts, nil, victims...); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d clients, %d targets open, %d not", len(clients), len(want), len(never)), w.Lab.Wait(ctx, "the ports to be closed", func(context.Context) (bool, string, error) {
		err := refused(closed)
		return err == nil, fmt.Sprint(err), nil
	})
}
