// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/ipam"
	"bulkhead/pkg/network"
)

// Build says what a pod's annotation and its claims should say, what the pod
// is given that it did not hold, by key, and why anything is missing. What it
// gives it records in the allocators; otherwise it changes nothing.
func Build(in Inputs) (State, map[string]Grant, []Problem) {
	b := builder{
		in: in, given: map[string]Grant{}, problems: slices.Clone(in.Problems),
		want: State{Pod: in.Pod, Entries: network.PodNetworks{}, Claims: map[string]Status{}},
	}
	for key, g := range in.Held {
		b.want.Entries[key] = g.Entry
	}
	for _, a := range in.Attachments {
		if _, held := in.Held[a.Key]; !held {
			b.attach(a)
		}
		if a.Claim == nil {
			continue
		}
		if g, ok := b.grant(a.Key); ok && g.Holder == a.Claim.Holder {
			c := *a.Claim
			c.IPs = g.Entry.IPs
			if _, fresh := b.given[a.Key]; fresh {
				c.Owner = in.Pod.Name
			}
			b.want.Claims[c.Holder.Name] = c.Status()
		}
	}
	for key, entry := range in.Had {
		// What a pod runs with stays in sight, even if it cannot be held.
		if _, ok := b.grant(key); !ok && in.Pod.Started {
			b.want.Entries[key] = entry
		}
	}
	return b.want, b.given, b.problems
}

type builder struct {
	in       Inputs
	want     State
	given    map[string]Grant
	problems []Problem
}

func (b *builder) grant(key string) (Grant, bool) {
	if g, ok := b.in.Held[key]; ok {
		return g, true
	}
	g, ok := b.given[key]
	return g, ok
}

// refusal is why an attachment gets nothing, and what may change that.
type refusal struct {
	text string
	wait topic
}

func (r *refusal) Error() string { return r.text }

func refuse(wait topic, format string, args ...any) error {
	return &refusal{fmt.Sprintf(format, args...), wait}
}

// attach gives the pod what it needs for one attachment, or reports why not.
func (b *builder) attach(a Attachment) {
	if b.in.Pod.Leaving {
		return
	}
	if _, had := b.in.Had[a.Key]; b.in.Restoring && !had {
		return
	}
	g, err := b.give(a)
	if err == nil {
		b.given[a.Key], b.want.Entries[a.Key] = g, g.Entry
		return
	}
	p := Problem{Key: a.Key, Text: fmt.Sprintf("network %s (%s): %v", a.Network.Name, a.Key, err), Wait: []topic{onNAD(a.NAD)}}
	var r *refusal
	var t *Taken
	switch {
	case errors.As(err, &r):
		p.Wait = append(p.Wait, r.wait)
	case errors.As(err, &t):
		p.Wait = append(p.Wait, onRelease(a.Network.Name, t.What))
	case errors.Is(err, ipam.ErrExhausted):
		p.Wait = append(p.Wait, onRoom(a.Network.Name))
	}
	b.problems = append(b.problems, p)
}

// give finds addresses, MAC and tunnel id, and takes all of them or none.
func (b *builder) give(a Attachment) (Grant, error) {
	hosts, err := subnets(a.Network)
	if err != nil {
		return Grant{}, err
	}
	pod := Holder{Namespace: b.in.Pod.Namespace, Name: b.in.Pod.Name, UID: b.in.Pod.UID, Key: a.Key}
	g := Grant{Network: a.Network.Name, Holder: pod}
	var claimErr error
	if a.Request.Claim != "" {
		if claimErr = b.claim(a, hosts); claimErr == nil {
			g.Holder, g.HasClaim = a.Claim.Holder, true
		}
	}
	if had, ok := b.in.Had[a.Key]; ok {
		g, err := b.resume(a, g, hosts, pod, had)
		switch {
		case err == nil || b.in.Restoring:
			return g, err
		case b.in.Pod.Started:
			return g, fmt.Errorf("the pod runs with addresses that it cannot have: %w: recreate the pod", err)
		}
	}
	if claimErr != nil {
		return g, claimErr
	}
	if err := checkGateways(a, hosts); err != nil {
		return g, err
	}
	ips, fresh, err := b.addresses(a, g.Holder, hosts)
	if err != nil {
		return Grant{}, err
	}
	undo := func() {
		if fresh {
			a.Alloc.Free(g.Holder, ips)
		}
	}
	mac := a.Request.MAC
	if mac == "" {
		mac = autoMAC(ips, g.Holder, a.Key)
	}
	if err := takeMAC(a, hosts, g.Holder, mac); err != nil {
		undo()
		return Grant{}, err
	}
	if g.Entry, err = b.entry(a, pod, ips, mac, 0); err != nil {
		a.Alloc.FreeMAC(g.Holder, mac)
		undo()
		return Grant{}, err
	}
	return g, nil
}

// resume takes over what the pod was given by a former leader.
func (b *builder) resume(a Attachment, g Grant, hosts []netip.Prefix, pod Holder, had network.PodNetwork) (Grant, error) {
	ips := make([]netip.Prefix, len(hosts))
	for _, ip := range had.IPs {
		i := slices.Index(hosts, ip.Masked())
		if i < 0 || ips[i].IsValid() {
			return g, fmt.Errorf("%s is not one address of each of the subnets %s", join(had.IPs), join(hosts))
		}
		if err := mayHave(a.Network, hosts[i], ip.Addr()); err != nil {
			return g, err
		}
		ips[i] = ip
	}
	if len(had.IPs) != len(hosts) {
		return g, fmt.Errorf("%s is not one address of each of the subnets %s", join(had.IPs), join(hosts))
	}
	hw, err := net.ParseMAC(had.MAC)
	if err != nil || len(hw) != 6 {
		return g, fmt.Errorf("mac_address %q is not an Ethernet address", had.MAC)
	}
	claim := a.Claim
	if !g.HasClaim || len(claim.IPs) > 0 && !slices.Equal(sorted(claim.IPs), sorted(ips)) {
		if claim, g.Holder, g.HasClaim = a.Former, pod, false; claim != nil {
			g.Holder, g.HasClaim = claim.Holder, true
		}
	}
	if err := a.Alloc.Hold(g.Holder, ips); err != nil {
		return g, err
	}
	undo := func() {
		if !g.HasClaim || len(claim.IPs) == 0 {
			a.Alloc.Free(g.Holder, ips)
		}
	}
	if err := takeMAC(a, hosts, g.Holder, hw.String()); err != nil {
		undo()
		return g, err
	}
	if g.Entry, err = b.entry(a, pod, ips, hw.String(), had.TunnelID); err != nil {
		a.Alloc.FreeMAC(g.Holder, hw.String())
		undo()
		return g, err
	}
	if b.in.Pod.Started { // its routes are what they were
		had.TunnelID = g.Entry.TunnelID
		g.Entry = had
	}
	return g, nil
}

// entry is what the annotation says; the tunnel id is the last that is taken.
func (b *builder) entry(a Attachment, pod Holder, ips []netip.Prefix, mac string, had int) (network.PodNetwork, error) {
	e := network.NewPodNetwork(a.Network, b.in.Plan, ips, true)
	e.MAC = mac
	if !a.Network.IsPrimary() {
		e.Gateways = a.Request.Gateways
	} else {
		for _, other := range b.in.Attachments {
			for _, gw := range other.Request.Gateways {
				e = e.WithoutDefault(a.Network, b.in.Plan, gw.Is4())
			}
		}
	}
	if a.Network.Topology == network.Layer2 {
		var err error
		if e.TunnelID, err = a.Alloc.Tunnel(pod, had); err != nil {
			return e, err
		}
	}
	return e.WithLegacyFields(), nil
}

// claim checks that the pod may use the claim that it names.
func (b *builder) claim(a Attachment, hosts []netip.Prefix) error {
	name, c := a.Request.Claim, a.Claim
	wait := onClaim(network.NADKey(b.in.Pod.Namespace, name))
	switch {
	case !a.Network.PersistentIPs:
		return refuse(wait, "the network keeps no addresses, but annotation %s names IPAMClaim %s: set ipam.lifecycle Persistent in the network, or remove ipam-claim-reference", a.Source, name)
	case c == nil || c.Leaving:
		return refuse(wait, "IPAMClaim %s, which annotation %s names, does not exist in namespace %s: create it with spec.network %s", name, a.Source, b.in.Pod.Namespace, a.Network.Name)
	case c.Network != a.Network.Name:
		return refuse(wait, "IPAMClaim %s is for network %s: name one whose spec.network is %s", name, c.Network, a.Network.Name)
	case c.Refused != "" && c.Wanted != "":
		return refuse(onRelease(a.Network.Name, c.Wanted), "%s: %s", c.Holder, c.Refused)
	case c.Refused != "":
		return refuse(wait, "%s: %s", c.Holder, c.Refused)
	}
	for key, g := range b.given {
		if g.Holder == c.Holder {
			return refuse(wait, "IPAMClaim %s is used by the pod's attachment %s: name another one", name, key)
		}
	}
	for key, g := range b.in.Held {
		if g.Holder == c.Holder {
			return refuse(wait, "IPAMClaim %s is used by the pod's attachment %s: name another one", name, key)
		}
	}
	if len(c.IPs) == 0 {
		return nil
	}
	for _, host := range hosts {
		if !slices.ContainsFunc(c.IPs, func(ip netip.Prefix) bool { return host.Contains(ip.Addr()) }) {
			return refuse(wait, "IPAMClaim %s holds %s, which is no address of the subnet %s: delete the claim and create it anew", name, join(c.IPs), host)
		}
	}
	for _, ip := range c.IPs {
		i := slices.IndexFunc(hosts, func(h netip.Prefix) bool { return h.Contains(ip.Addr()) })
		if i < 0 {
			return refuse(wait, "IPAMClaim %s holds %s, which is outside the network's subnets %s: delete the claim and create it anew", name, ip.Addr(), join(hosts))
		}
		if err := mayHave(a.Network, hosts[i], ip.Addr()); err != nil {
			return refuse(wait, "IPAMClaim %s: %v: delete the claim and create it anew", name, err)
		}
	}
	for _, ip := range a.Request.IPs {
		if !slices.ContainsFunc(c.IPs, func(has netip.Prefix) bool { return has.Addr() == ip.Addr() }) {
			return refuse(wait, "annotation %s asks for %s, but IPAMClaim %s holds %s: ask for that, or name another claim", a.Source, ip.Addr(), name, join(c.IPs))
		}
	}
	return nil
}

// addresses finds one address of each family. fresh tells that h did not hold
// them before.
func (b *builder) addresses(a Attachment, h Holder, hosts []netip.Prefix) (ips []netip.Prefix, fresh bool, err error) {
	wanted, err := requested(a, hosts)
	if err != nil {
		return nil, false, err
	}
	if a.Claim != nil && h == a.Claim.Holder && len(a.Claim.IPs) > 0 {
		for _, host := range hosts {
			i := slices.IndexFunc(a.Claim.IPs, func(ip netip.Prefix) bool { return host.Contains(ip.Addr()) })
			ips = append(ips, netip.PrefixFrom(a.Claim.IPs[i].Addr(), host.Bits()))
		}
		return ips, false, a.Alloc.Hold(h, ips)
	}
	for _, ip := range wanted { // all of them before any other is handed out
		if ip.IsValid() {
			if err := a.Alloc.Hold(h, []netip.Prefix{ip}); err != nil {
				a.Alloc.Free(h, ips)
				return nil, false, inTheWay(a, err)
			}
			ips = append(ips, ip)
		}
	}
	out := make([]netip.Prefix, len(hosts))
	for i, host := range hosts {
		if out[i] = wanted[i]; out[i].IsValid() {
			continue
		}
		excluded := slices.Concat(a.Network.Unallocatable(host), a.Network.ExcludeSubnets, a.Network.ReservedSubnets)
		ownMAC := a.Request.MAC == "" && i == macIndex(hosts)
		if out[i], err = a.Alloc.Allocate(h, host, excluded, ownMAC, a.Awaited); err != nil {
			a.Alloc.Free(h, ips)
			return nil, false, fmt.Errorf("%w: delete pods or IPAMClaims of the network, or use one with larger subnets", err)
		}
		ips = append(ips, out[i])
	}
	return out, true, nil
}

// requested are the addresses that the pod asks for, by subnet; an invalid one
// where it asks for none.
func requested(a Attachment, hosts []netip.Prefix) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, len(hosts))
	if len(a.Request.IPs) > 0 && len(hosts) == 0 {
		return nil, fmt.Errorf("annotation %s asks for %s, but the network has no subnets: remove ips", a.Source, join(a.Request.IPs))
	}
	for _, ip := range a.Request.IPs {
		i := slices.IndexFunc(hosts, func(h netip.Prefix) bool { return h.Contains(ip.Addr()) })
		switch {
		case i < 0:
			return nil, fmt.Errorf("annotation %s asks for %s, which is outside the network's subnets %s: ask for an address of those", a.Source, ip.Addr(), join(hosts))
		case ip.Bits() != ip.Addr().BitLen() && ip.Bits() != hosts[i].Bits():
			return nil, fmt.Errorf("annotation %s asks for %s, but the network's subnet is %s: write %s/%d", a.Source, ip, hosts[i], ip.Addr(), hosts[i].Bits())
		case out[i].IsValid():
			return nil, fmt.Errorf("annotation %s asks for %s and %s, both of %s: ask for one", a.Source, out[i].Addr(), ip.Addr(), hosts[i])
		}
		if err := mayHave(a.Network, hosts[i], ip.Addr()); err != nil {
			return nil, fmt.Errorf("annotation %s: %w: ask for another address", a.Source, err)
		}
		if p, ok := within(a.Network.ExcludeSubnets, ip.Addr()); ok {
			return nil, fmt.Errorf("annotation %s asks for %s, which excludeSubnets %s keeps from pods: ask for another address", a.Source, ip.Addr(), p)
		}
		out[i] = netip.PrefixFrom(ip.Addr(), hosts[i].Bits())
	}
	return out, nil
}

// inTheWay adds the remedy to what another holds.
func inTheWay(a Attachment, err error) error {
	return fmt.Errorf("%w: ask for another in annotation %s, or delete its holder", err, a.Source)
}

// mayHave says why no pod can have addr, an address of host.
func mayHave(n network.Network, host netip.Prefix, addr netip.Addr) error {
	if !network.Usable(host, addr) {
		return fmt.Errorf("%s is the network or broadcast address of %s", addr, host)
	}
	if p, ok := within(n.Unallocatable(host), addr); ok {
		return fmt.Errorf("%s belongs to the network itself (%s: gateway, nodes or infrastructureSubnets)", addr, p)
	}
	return nil
}

func within(ps []netip.Prefix, addr netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(ps, func(p netip.Prefix) bool { return p.Contains(addr) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return ps[i], true
}

func checkGateways(a Attachment, hosts []netip.Prefix) error {
	var seen [2]bool
	for _, gw := range a.Request.Gateways {
		if len(hosts) > 0 && !a.Network.Contains(gw) {
			return fmt.Errorf("annotation %s: default-route %s is outside the network's subnets %s: name a gateway in them", a.Source, gw, join(hosts))
		}
		family := 0
		if gw.Is4() {
			family = 1
		}
		if seen[family] {
			return fmt.Errorf("annotation %s: default-route names two gateways of one family: keep one", a.Source)
		}
		seen[family] = true
	}
	return nil
}

// takeMAC gives the pod a MAC that neither another nor the network has.
func takeMAC(a Attachment, hosts []netip.Prefix, h Holder, mac string) error {
	for _, host := range hosts {
		if !a.Network.IsPrimary() {
			break
		}
		for _, own := range []netip.Prefix{a.Network.GatewayIn(host), a.Network.ManagementIn(host)} {
			if own.Addr().IsValid() && network.MAC(own.Addr()) == mac {
				return fmt.Errorf("mac %s is that of %s, an address of the network itself: ask for another in annotation %s", mac, own.Addr(), a.Source)
			}
		}
	}
	if err := a.Alloc.TakeMAC(h, mac); err != nil {
		return inTheWay(a, err)
	}
	return nil
}

// autoMAC is the MAC of a pod that asks for none.
func autoMAC(ips []netip.Prefix, h Holder, key string) string {
	if len(ips) > 0 {
		return network.MACOf(ips)
	}
	b := sha256.Sum256([]byte(string(h.UID) + " " + key))
	return fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// macIndex is the subnet whose address decides about the MAC, as in
// network.MACOf.
func macIndex(hosts []netip.Prefix) int {
	return max(0, slices.IndexFunc(hosts, func(p netip.Prefix) bool { return p.Addr().Is4() }))
}

// subnets are those that pods have an address of: none where the network
// manages no addresses.
func subnets(n network.Network) ([]netip.Prefix, error) {
	if len(n.Subnets) == 0 {
		return nil, nil
	}
	return n.HostSubnets(1) // every node's are the same
}

func sorted(ps []netip.Prefix) []netip.Prefix {
	return slices.SortedFunc(slices.Values(ps), netip.Prefix.Compare)
}

func join(ps []netip.Prefix) string {
	s := make([]string, len(ps))
	for i, p := range ps {
		if s[i] = p.String(); p.IsSingleIP() {
			s[i] = p.Addr().String()
		}
	}
	return strings.Join(s, ", ")
}
