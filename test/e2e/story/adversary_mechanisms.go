// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/loader"
	"bulkhead/test/adversary"
	"bulkhead/test/adversary/attack"
)

// mechanism stops attacks by itself.
type mechanism string

const (
	guardMechanism mechanism = "guard" // eBPF programs on interfaces, and on the packets of sockets
	nftMechanism   mechanism = "nftables"
	hookMechanism  mechanism = "socket hooks"
	lsmMechanism   mechanism = "BPF LSM"
)

// removeMechanism are the commands that remove a mechanism. The agent is stopped meanwhile,
// because it would restore the mechanism.
var removeMechanism = map[mechanism]string{
	guardMechanism: `for l in $P/links/if_*/* $P/links/root/bh_grd_*; do bpftool link detach pinned $l || exit 1; done`,
	hookMechanism:  `for l in $P/links/pod_*/* $P/links/root/bh_prb_*; do bpftool link detach pinned $l || exit 1; done`,
	lsmMechanism:   `rm $P/links/root/bh_lsm_*`,
	nftMechanism:   `nft delete table inet bulkhead`,
}

// sample is a few attacks and the mechanisms any of which stops them.
type sample struct {
	what    string
	by      []actor
	ways    []attack.Attempt
	victims []string
	stops   []mechanism
	// and lists mechanisms that stop them only together.
	and []mechanism
	// unless is a mechanism that stops some of the attacks, depending on Open vSwitch's
	// flow cache. While it stands, attacks that arrive are not judged.
	unless mechanism
}

func (s sample) stopped(mechanisms []mechanism) bool {
	has := func(w mechanism) bool { return slices.Contains(mechanisms, w) }
	if slices.ContainsFunc(s.stops, has) {
		return true
	}
	return len(s.and) > 0 && !slices.ContainsFunc(s.and, func(w mechanism) bool { return !has(w) })
}

// eachMechanismAlone removes the mechanisms one after the other. An attack must not arrive while
// a mechanism that stops it is there, and must arrive without.
func (a *attackSetup) eachMechanismAlone(ctx context.Context) (string, error) {
	// Nothing is forwarded out of a VRF, whatever its routes: this one leads to the
	// external host.
	if err := a.routesOut(ctx, "replace"); err != nil {
		return "", err
	}
	figures, err := a.removeMechanisms(ctx)
	return figures, errors.Join(err, a.routesOut(context.WithoutCancel(ctx), "delete"))
}

// routesOut adds or deletes routes in amber's VRF to the external host.
func (a *attackSetup) routesOut(ctx context.Context, verb string) error {
	var script []string
	for _, to := range addrs(a.w.Lab.External()) {
		script = append(script, fmt.Sprintf("ip route %s %s dev br-ex vrf %s", verb, to, a.nodes[a.near.Name].master[a.amber.Name]))
	}
	return a.script(ctx, strings.Join(script, " && "))
}

func (a *attackSetup) removeMechanisms(ctx context.Context) (string, error) {
	// The agent may still be removing what an earlier check has deleted.
	if _, err := a.w.steady(ctx, false); err != nil {
		return "", err
	}
	before, err := a.w.state(ctx, a.near, false)
	if err != nil {
		return "", err
	}
	total := 0
	series := [][][]mechanism{ // the remaining mechanisms, step by step
		{{guardMechanism, hookMechanism}, {guardMechanism}, {}},
		{{nftMechanism}, {}},
		{{lsmMechanism}, {}},
	}
	if !a.w.Full {
		i := a.w.sample("mechanisms", len(series))
		series = series[i : i+1]
	}
	for _, steps := range series {
		err := a.withoutAgent(ctx, func() error {
			standing := []mechanism{guardMechanism, nftMechanism, hookMechanism, lsmMechanism}
			for _, left := range steps {
				for _, w := range standing {
					if slices.Contains(left, w) {
						continue
					}
					if err := a.script(ctx, "P=/sys/fs/bpf/bulkhead; "+removeMechanism[w]); err != nil {
						return err
					}
				}
				standing = left
				n, err := a.withMechanisms(ctx, left)
				total += n
				if err != nil {
					return err
				}
			}
			return nil
		})
		// An event for the agent.
		err = errors.Join(err, a.script(ctx, "mkdir -p /sys/fs/cgroup/kubepods/podnudge; rmdir /sys/fs/cgroup/kubepods/podnudge"))
		if err == nil {
			err = a.w.Lab.Wait(ctx, "the agent to have put the mechanisms back", func(ctx context.Context) (bool, string, error) {
				now, err := a.w.state(ctx, a.near, false)
				if err != nil {
					return false, "", err
				}
				d := difference(before, now)
				return len(d) == 0, strings.Join(d, "\n"), nil
			})
		}
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d attempts with mechanisms missing, each as expected; then the agent put them back", total), nil
}

func (a *attackSetup) script(ctx context.Context, script string) error {
	res, err := a.near.Run(ctx, script)
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("%s on %s: exit %d: %s", script, a.near.Name, res.ExitCode, res.Stderr)
	}
	return err
}

// samples are attacks of every kind, by all actors. local: in local gateway mode.
func (a *attackSetup) samples(local bool) []sample {
	tenant, nobody := actor{pod: a.pods["amber-host"], container: "root"}, actor{pod: a.pods["amber-host"], container: "nobody"}
	outside := actor{pod: a.pods["grey-host"], container: "root"}
	v := a.victim("green-1", false)
	into := adversary.IntoNetwork(a.green, v)
	choose := func(ok func(attack.Attempt) bool) []attack.Attempt {
		return slices.DeleteFunc(slices.Clone(into), func(x attack.Attempt) bool { return !ok(x) })
	}
	has := func(x attack.Attempt, how string) bool { return slices.Contains(x.How, how) }
	frames := func(dev, how string) []attack.Attempt {
		return choose(func(x attack.Attempt) bool {
			return x.Socket == "packet" && x.Device == dev && (how == "" && len(x.How) == 0 || how != "" && has(x, how))
		})
	}
	locked := adversary.Locked(a.plain, a.victim("green-1", true), loader.KubeletMark)
	kubeletMark := fmt.Sprintf("cmsg-mark=%#x", loader.KubeletMark)
	byMark := slices.DeleteFunc(locked, func(x attack.Attempt) bool { return x.Socket != "raw-icmp" || !has(x, kubeletMark) })
	tunnel := func(socket string) []attack.Attempt {
		return slices.DeleteFunc(a.tunnelWays(), func(x attack.Attempt) bool { return x.Socket != socket || len(x.How) > 0 })
	}
	loopback := adversary.ByLoopback(a.green, v, addrs(a.w.Lab.External()))
	grey, amber := a.victim("grey-1", false), a.victim("amber-1", false)
	green3 := a.victim("green-3", false)
	host := func(m string) actor { return actor{pod: a.pods[m]} }
	out := adversary.ThroughNode("ovn-udn1", amber.MAC, amber.Addrs, a.amber, addrs(a.w.Lab.External()), attack.Port)
	plainOut := adversary.ThroughNode("eth0", grey.MAC, grey.Addrs, a.plain.Port, addrs(a.w.Lab.External()), attack.Port)
	// In local gateway mode the node's port is how pods of the default network reach the
	// outside, whatever mechanisms stand.
	nodeOut := []mechanism{nftMechanism}
	if local {
		nodeOut = nil
	}
	return []sample{
		{what: "control messages and scope ids, without a capability", by: []actor{nobody}, victims: []string{"green-1"}, stops: []mechanism{guardMechanism, nftMechanism},
			ways: choose(func(x attack.Attempt) bool {
				return x.Socket == "udp" && slices.Equal(x.How, []string{"cmsg-pktinfo"}) || (x.Socket == "tcp" || x.Socket == "udp") && strings.Contains(x.To, "%ovn") && len(x.How) == 0
			})},
		{what: "devices chosen by pods outside the tenants", by: []actor{outside}, victims: []string{"green-1"}, stops: []mechanism{guardMechanism, nftMechanism},
			ways: choose(func(x attack.Attempt) bool {
				return (x.Socket == "udp" || x.Socket == "tcp") && slices.Equal(x.How, []string{"bindtodevice"})
			})},
		{what: "raw sockets", by: []actor{tenant, outside}, victims: []string{"green-1"}, stops: []mechanism{guardMechanism, nftMechanism},
			ways: choose(func(x attack.Attempt) bool {
				return x.Socket == "raw-icmp" && (has(x, "cmsg-pktinfo") || len(x.How) == 1 && strings.HasPrefix(x.How[0], "cmsg-mark")) || x.Socket == "hdrincl" && has(x, "cmsg-pktinfo")
			})},
		{what: "frames on the network's port and the pod's interface", by: []actor{tenant}, victims: []string{"green-1"}, stops: []mechanism{guardMechanism, lsmMechanism}, ways: slices.Concat(frames(a.green.Port.Name, ""), frames(v.Link.Name, ""))},
		{what: "frames past the queueing discipline", by: []actor{tenant}, victims: []string{"green-1"}, stops: []mechanism{lsmMechanism}, and: []mechanism{guardMechanism, hookMechanism}, unless: guardMechanism, ways: frames(a.green.Port.Name, "bypass")},
		{what: "frames on loopback with the network's mark", by: []actor{tenant}, victims: []string{"green-1"}, stops: []mechanism{guardMechanism, nftMechanism, lsmMechanism}, ways: loopback},
		{what: "abstract unix sockets", by: []actor{tenant, nobody}, victims: []string{a.greenHost().String()}, stops: []mechanism{lsmMechanism}, ways: adversary.Abstract(abstractName)},
		// Pods outside the tenants may open packet sockets, and sendto names a device
		// even on one that is not bound to any.
		{what: "frames on loopback with the network's mark, from outside the tenants", by: []actor{outside}, victims: []string{"green-1"}, stops: []mechanism{guardMechanism, nftMechanism}, ways: loopback},
		{what: "kubelet's mark on packets to a locked address", by: []actor{tenant, outside}, victims: []string{"green-1"}, stops: []mechanism{guardMechanism, nftMechanism}, ways: byMark},
		{what: "the overlay's datagrams by socket", by: []actor{nobody, outside}, victims: []string{"green-2"}, stops: []mechanism{guardMechanism}, ways: tunnel("geneve")},
		{what: "the overlay's datagrams by frame", by: []actor{outside}, victims: []string{"green-2"}, stops: []mechanism{guardMechanism}, ways: tunnel("packet")},
		{what: "frames in a Localnet network's VLAN", by: []actor{outside}, victims: []string{tagged}, stops: []mechanism{guardMechanism}, ways: a.vlanWays()},
		{what: "advertisements and DHCP answers of a pod", by: []actor{host("green-3")}, victims: []string{"green-1"}, stops: []mechanism{guardMechanism}, ways: adversary.FromPod("ovn-udn1", green3.MAC, green3.Addrs, v, false)},
		{what: "neighbour discovery for a locked interface", by: []actor{host("grey-1")}, victims: []string{"green-1"}, stops: []mechanism{guardMechanism},
			ways: discovery(adversary.FromPod("eth0", grey.MAC, grey.Addrs, a.victim("green-1", true), true))},
		{what: "a pod's packets out by the node's port", by: []actor{host("amber-1")}, victims: []string{"external"}, stops: []mechanism{nftMechanism}, ways: out},
		{what: "a pod's packets out by the node's default port", by: []actor{host("grey-1")}, victims: []string{"external"}, stops: nodeOut, ways: plainOut},
	}
}

// discovery keeps the frames that OVN's built-in flows pass before any ACL.
func discovery(list []attack.Attempt) []attack.Attempt {
	kinds := []string{"router-advertisement", "redirect", "neighbour-solicitation", "neighbour-advertisement", "router-solicitation", "listener-report"}
	return slices.DeleteFunc(list, func(x attack.Attempt) bool { return !slices.Contains(kinds, x.Frame) || x.Frame == "redirect" })
}

// withMechanisms makes all samples' attempts while only the given mechanisms stand.
func (a *attackSetup) withMechanisms(ctx context.Context, standing []mechanism) (int, error) {
	local, err := a.w.localGateway(ctx)
	if err != nil {
		return 0, err
	}
	m := newRound(a.w)
	for _, v := range []string{"green-1", "green-2", tagged} {
		if err := m.listen(ctx, actor{pod: a.pods[v]}, attack.Listener{Kind: "sniff"}); err != nil {
			return 0, err
		}
	}
	if err := m.listen(ctx, a.greenHost(), abstractListeners()...); err != nil {
		return 0, err
	}
	external := actor{machine: a.w.Lab.External()}
	if err := m.listen(ctx, external, attack.Listener{Kind: "sniff"}); err != nil {
		return 0, err
	}
	spies := []actor{{pod: a.pods["grey-host"], container: "root"}, {pod: a.pods["amber-host"], container: "root"}}
	cases := []struct {
		what    string
		stopped mechanism // by which the listener receives nothing of green
		attack.Listener
	}{
		{"a raw socket", guardMechanism, attack.Listener{Kind: "raw-icmp"}}, {"a raw IPv6 socket", guardMechanism, attack.Listener{Kind: "raw-icmp", IPv6: true}},
		{"a packet socket", lsmMechanism, attack.Listener{Kind: "sniff-device", Device: a.green.Port.Name}},
	}
	var listeners []attack.Listener
	for i := 0; i < len(cases); {
		family := netip.IPv4Unspecified()
		if cases[i].IPv6 {
			family = netip.IPv6Unspecified()
		}
		if cases[i].Device == "" && !a.w.has(family) { // green sends nothing to it
			cases = slices.Delete(cases, i, i+1)
			continue
		}
		listeners = append(listeners, cases[i].Listener)
		i++
	}
	for _, p := range spies {
		if err := m.listen(ctx, p, listeners...); err != nil {
			return 0, err
		}
	}
	samples := a.samples(local)
	made := make([][]trial, len(samples))
	var all []*trial
	for i, s := range samples {
		if len(s.ways) == 0 {
			return 0, fmt.Errorf("%s: the sample is empty", s.what)
		}
		made[i] = trials(s.by, s.ways)
		all = append(all, pointers(made[i])...)
	}
	// Green talks to its node, for the programs that listen there.
	sent := trials([]actor{{pod: a.pods["green-1"]}}, pings(a.green.Nodes))
	// These arrive whatever mechanisms stand. They come last, so that receiving them shows
	// that all earlier packets have arrived or never will.
	end := trials([]actor{a.admin()}, pings(slices.Concat(a.victim("green-1", false).Addrs, a.victim("green-2", false).Addrs)))
	for i := range end {
		end[i].attempt.Device, end[i].attempt.How = a.green.Port.Name, []string{"bindtodevice"}
	}
	if err := m.try(ctx, append(all, pointers(sent)...)); err != nil {
		return 0, err
	}
	if err := m.try(ctx, pointers(end)); err != nil {
		return 0, err
	}
	err = a.w.Lab.Wait(ctx, "the administrator's own pings to be received", func(ctx context.Context) (bool, string, error) {
		ids := map[int]bool{}
		for _, v := range []string{"green-1", "green-2"} {
			received, err := m.receivedSoFar(ctx, v)
			if err != nil {
				return false, "", err
			}
			maps.Copy(ids, received)
		}
		for _, t := range end {
			if !ids[t.attempt.ID] {
				return false, "not that of " + t.attempt.To, m.try(ctx, []*trial{&t})
			}
		}
		return true, "", nil
	})
	if err != nil {
		return 0, err
	}
	received, err := m.end(ctx)
	if err != nil {
		return 0, err
	}
	var errs []error
	for i, s := range samples {
		victims := map[int]bool{}
		for _, v := range s.victims {
			for id := range idsOf(received[v]) {
				victims[id] = true
			}
		}
		for _, t := range made[i] {
			if !s.stopped(standing) && slices.Contains(standing, s.unless) {
				continue
			}
			if got, want := victims[t.attempt.ID], !s.stopped(standing); got != want {
				errs = append(errs, fmt.Errorf("with only %v in place: %s by %s: received %t, want %t: %s (the sender's error: %q)", standing, s.what, t.by, got, want, t.key(), m.sendErrors[t.attempt.ID]))
			}
		}
	}
	for _, p := range spies {
		if len(received[p.String()]) != len(cases) {
			errs = append(errs, fmt.Errorf("%s reports %d listeners of %d", p, len(received[p.String()]), len(cases)))
			continue
		}
		for i, h := range received[p.String()] {
			// Packets of its own network it may receive; only green's count.
			green := slices.ContainsFunc(sent, func(t trial) bool { return slices.Contains(h.IDs, t.attempt.ID) })
			if got, want := green, !slices.Contains(standing, cases[i].stopped); got != want {
				errs = append(errs, fmt.Errorf("with only %v in place: %s receives green's packets through %s: %t, want %t (%s)", standing, p, cases[i].what, got, want, h.Refused))
			}
		}
	}
	return len(all) + len(cases)*len(spies), errors.Join(errs...)
}

func pings(to []netip.Addr) []attack.Attempt {
	var out []attack.Attempt
	for _, x := range to {
		out = append(out, attack.Attempt{Socket: "raw-icmp", To: x.String()})
	}
	return out
}
