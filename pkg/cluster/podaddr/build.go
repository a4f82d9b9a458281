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

// Build returns the desired state of a pod's annotation and claims, the new
// allocations by key, and the problems. It records new allocations in the
// allocators and changes nothing else.
func Build(in Inputs) (State, map[string]Allocation, []Problem) {
	b := builder{
		in: in, allocated: map[string]Allocation{}, problems: slices.Clone(in.Problems),
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
		if g, ok := b.allocation(a.Key); ok && g.Holder == a.Claim.Holder {
			c := *a.Claim
			c.IPs = g.Entry.IPs
			if _, fresh := b.allocated[a.Key]; fresh {
				c.Owner = in.Pod.Name
			}
			b.want.Claims[c.Holder.Name] = c.Status()
		}
	}
	for key, entry := range in.Previous {
		// A running pod's entry stays even if another holder has its addresses.
		if _, ok := b.allocation(key); !ok && in.Pod.Started {
			b.want.Entries[key] = entry
		}
	}
	for key, entry := range b.want.Entries {
		g, _ := b.allocation(key)
		b.want.Labelled = b.want.Labelled || g.HasClaim || entry.TunnelID != 0 // only Layer 2 networks have one
	}
	return b.want, b.allocated, b.problems
}

type builder struct {
	in        Inputs
	want      State
	allocated map[string]Allocation
	problems  []Problem
}

func (b *builder) allocation(key string) (Allocation, bool) {
	if g, ok := b.in.Held[key]; ok {
		return g, true
	}
	g, ok := b.allocated[key]
	return g, ok
}

// refusal is why an attachment gets no allocation, and the topic to wait for.
type refusal struct {
	text string
	wait topic
}

func (r *refusal) Error() string { return r.text }

func refuse(wait topic, format string, args ...any) error {
	return &refusal{fmt.Sprintf(format, args...), wait}
}

// attach allocates what one attachment needs, or adds a problem.
func (b *builder) attach(a Attachment) {
	if b.in.Pod.Deleting {
		return
	}
	if _, ok := b.in.Previous[a.Key]; b.in.Restoring && !ok {
		return
	}
	g, err := b.allocate(a)
	if err == nil {
		b.allocated[a.Key], b.want.Entries[a.Key] = g, g.Entry
		return
	}
	p := Problem{Key: a.Key, Text: fmt.Sprintf("network %s (%s): %v", a.Network.Name, a.Key, err), Wait: []topic{topicNAD(a.NAD)}}
	var r *refusal
	var t *TakenError
	switch {
	case errors.As(err, &r):
		p.Wait = append(p.Wait, r.wait)
	case errors.As(err, &t):
		p.Wait = append(p.Wait, topicRelease(a.Network.Name, t.Resource))
	case errors.Is(err, ipam.ErrExhausted):
		p.Wait = append(p.Wait, topicCapacity(a.Network.Name))
	}
	b.problems = append(b.problems, p)
}

// allocate allocates addresses, MAC and tunnel id, all or none.
func (b *builder) allocate(a Attachment) (Allocation, error) {
	hosts, err := hostSubnets(a.Network)
	if err != nil {
		return Allocation{}, err
	}
	pod := Holder{Namespace: b.in.Pod.Namespace, Name: b.in.Pod.Name, UID: b.in.Pod.UID, Key: a.Key}
	g := Allocation{Network: a.Network.Name, Holder: pod}
	var claimErr error
	if a.Request.Claim != "" {
		if claimErr = b.claim(a, hosts); claimErr == nil {
			g.Holder, g.HasClaim = a.Claim.Holder, true
		}
	}
	if previous, ok := b.in.Previous[a.Key]; ok {
		g, err := b.restore(a, g, hosts, pod, previous)
		switch {
		case err == nil || b.in.Restoring:
			return g, err
		case b.in.Pod.Started:
			return g, fmt.Errorf("the running pod has addresses that it must not have: %w: recreate the pod", err)
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
		return Allocation{}, err
	}
	undo := func() {
		if fresh {
			a.Alloc.Release(g.Holder, ips)
		}
	}
	mac := a.Request.MAC
	if mac == "" {
		mac = generateMAC(ips, g.Holder, a.Key)
	}
	if err := reserveMAC(a, hosts, g.Holder, mac); err != nil {
		undo()
		return Allocation{}, err
	}
	if g.Entry, err = b.entry(a, pod, ips, mac, 0); err != nil {
		a.Alloc.ReleaseMAC(g.Holder, mac)
		undo()
		return Allocation{}, err
	}
	return g, nil
}

// restore restores the allocation that a previous leader made.
func (b *builder) restore(a Attachment, g Allocation, hosts []netip.Prefix, pod Holder, previous network.PodNetwork) (Allocation, error) {
	ips := make([]netip.Prefix, len(hosts))
	for _, ip := range previous.IPs {
		i := slices.Index(hosts, ip.Masked())
		if i < 0 || ips[i].IsValid() {
			return g, fmt.Errorf("%s does not have one address in each of the subnets %s", join(previous.IPs), join(hosts))
		}
		if err := checkAllocatable(a.Network, hosts[i], ip.Addr()); err != nil {
			return g, err
		}
		ips[i] = ip
	}
	if len(previous.IPs) != len(hosts) {
		return g, fmt.Errorf("%s does not have one address in each of the subnets %s", join(previous.IPs), join(hosts))
	}
	hw, err := net.ParseMAC(previous.MAC)
	if err != nil || len(hw) != 6 {
		return g, fmt.Errorf("mac_address %q is not an Ethernet address", previous.MAC)
	}
	claim := a.Claim
	if !g.HasClaim || len(claim.IPs) > 0 && !slices.Equal(sorted(claim.IPs), sorted(ips)) {
		if claim, g.Holder, g.HasClaim = a.Former, pod, false; claim != nil {
			g.Holder, g.HasClaim = claim.Holder, true
		}
	}
	if err := a.Alloc.Reserve(g.Holder, ips); err != nil {
		return g, err
	}
	undo := func() {
		if !g.HasClaim || len(claim.IPs) == 0 {
			a.Alloc.Release(g.Holder, ips)
		}
	}
	if err := reserveMAC(a, hosts, g.Holder, hw.String()); err != nil {
		undo()
		return g, err
	}
	if g.Entry, err = b.entry(a, pod, ips, hw.String(), previous.TunnelID); err != nil {
		a.Alloc.ReleaseMAC(g.Holder, hw.String())
		undo()
		return g, err
	}
	if b.in.Pod.Started { // a running pod's routes do not change
		previous.TunnelID = g.Entry.TunnelID
		g.Entry = previous
	}
	return g, nil
}

// entry returns the entry for the annotation. It allocates the tunnel id.
func (b *builder) entry(a Attachment, pod Holder, ips []netip.Prefix, mac string, tunnelID int) (network.PodNetwork, error) {
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
		if e.TunnelID, err = a.Alloc.AllocateTunnel(pod, tunnelID); err != nil {
			return e, err
		}
	}
	return e.WithLegacyFields(), nil
}

// claim checks that the pod can use the claim that it names.
func (b *builder) claim(a Attachment, hosts []netip.Prefix) error {
	name, c := a.Request.Claim, a.Claim
	wait := topicClaim(network.NADKey(b.in.Pod.Namespace, name))
	source, remove := a.Source, "ipam-claim-reference"
	if a.Request.ClaimSource != "" {
		source, remove = a.Request.ClaimSource, "the annotation"
	}
	// The claim of a running pod may wait for somebody's finalizer: the pod keeps it.
	previous, restored := b.in.Previous[a.Key]
	running := restored && c != nil && slices.Equal(sorted(previous.IPs), sorted(c.IPs))
	switch {
	case !a.Network.PersistentIPs:
		return refuse(wait, "the network has no persistent addresses, but annotation %s names IPAMClaim %s: set ipam.lifecycle Persistent in the network, or remove %s", source, name, remove)
	case c == nil || c.Deleting && !running:
		return refuse(wait, "IPAMClaim %s, which annotation %s names, does not exist in namespace %s: create it with spec.network %s", name, source, b.in.Pod.Namespace, a.Network.Name)
	case c.Network != a.Network.Name:
		return refuse(wait, "IPAMClaim %s is for network %s: name a claim whose spec.network is %s", name, c.Network, a.Network.Name)
	case c.Refused != "" && c.TakenAddress != "":
		return refuse(topicRelease(a.Network.Name, c.TakenAddress), "%s: %s", c.Holder, c.Refused)
	case c.Refused != "":
		return refuse(wait, "%s: %s", c.Holder, c.Refused)
	}
	for key, g := range b.allocated {
		if g.Holder == c.Holder {
			return refuse(wait, "IPAMClaim %s is used by the pod's attachment %s: name another claim", name, key)
		}
	}
	for key, g := range b.in.Held {
		if g.Holder == c.Holder {
			return refuse(wait, "IPAMClaim %s is used by the pod's attachment %s: name another claim", name, key)
		}
	}
	if len(c.IPs) == 0 {
		return nil
	}
	for _, host := range hosts {
		if !slices.ContainsFunc(c.IPs, func(ip netip.Prefix) bool { return host.Contains(ip.Addr()) }) {
			return refuse(wait, "IPAMClaim %s holds %s, but no address in the subnet %s: recreate the claim", name, join(c.IPs), host)
		}
	}
	for _, ip := range c.IPs {
		i := slices.IndexFunc(hosts, func(h netip.Prefix) bool { return h.Contains(ip.Addr()) })
		if i < 0 {
			return refuse(wait, "IPAMClaim %s holds %s, which is outside the network's subnets %s: recreate the claim", name, ip.Addr(), join(hosts))
		}
		if err := checkAllocatable(a.Network, hosts[i], ip.Addr()); err != nil {
			return refuse(wait, "IPAMClaim %s: %v: recreate the claim", name, err)
		}
	}
	for _, ip := range a.Request.IPs {
		if !slices.ContainsFunc(c.IPs, func(has netip.Prefix) bool { return has.Addr() == ip.Addr() }) {
			return refuse(wait, "annotation %s requests %s, but IPAMClaim %s holds %s: request that, or name another claim", a.Source, ip.Addr(), name, join(c.IPs))
		}
	}
	return nil
}

// addresses returns one address per subnet. fresh tells that they are newly
// allocated to h.
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
		return ips, false, a.Alloc.Reserve(h, ips)
	}
	for _, ip := range wanted { // reserve all requested addresses before allocating any other
		if ip.IsValid() {
			if err := a.Alloc.Reserve(h, []netip.Prefix{ip}); err != nil {
				a.Alloc.Release(h, ips)
				return nil, false, withRemedy(a, err)
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
		if out[i], err = a.Alloc.Allocate(h, host, excluded, ownMAC, a.Requested); err != nil {
			a.Alloc.Release(h, ips)
			return nil, false, fmt.Errorf("%w: delete pods or IPAMClaims of the network, or use a network with larger subnets", err)
		}
		ips = append(ips, out[i])
	}
	return out, true, nil
}

// requested returns the addresses that the pod requests, per subnet. Subnets
// without a request have an invalid address.
func requested(a Attachment, hosts []netip.Prefix) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, len(hosts))
	if len(a.Request.IPs) > 0 && len(hosts) == 0 {
		return nil, fmt.Errorf("annotation %s requests %s, but the network has no subnets: remove ips", a.Source, join(a.Request.IPs))
	}
	for _, ip := range a.Request.IPs {
		i := slices.IndexFunc(hosts, func(h netip.Prefix) bool { return h.Contains(ip.Addr()) })
		switch {
		case i < 0:
			return nil, fmt.Errorf("annotation %s requests %s, which is outside the network's subnets %s: request an address inside", a.Source, ip.Addr(), join(hosts))
		case ip.Bits() != ip.Addr().BitLen() && ip.Bits() != hosts[i].Bits():
			return nil, fmt.Errorf("annotation %s requests %s, but the network's subnet is %s: write %s/%d", a.Source, ip, hosts[i], ip.Addr(), hosts[i].Bits())
		case out[i].IsValid():
			return nil, fmt.Errorf("annotation %s requests %s and %s, both of %s: request one", a.Source, out[i].Addr(), ip.Addr(), hosts[i])
		}
		if err := checkAllocatable(a.Network, hosts[i], ip.Addr()); err != nil {
			return nil, fmt.Errorf("annotation %s: %w: request another address", a.Source, err)
		}
		if p, ok := containing(a.Network.ExcludeSubnets, ip.Addr()); ok {
			return nil, fmt.Errorf("annotation %s requests %s, which excludeSubnets %s excludes: request another address", a.Source, ip.Addr(), p)
		}
		out[i] = netip.PrefixFrom(ip.Addr(), hosts[i].Bits())
	}
	return out, nil
}

// withRemedy adds the remedy to a TakenError.
func withRemedy(a Attachment, err error) error {
	return fmt.Errorf("%w: request another in annotation %s, or delete its holder", err, a.Source)
}

// checkAllocatable returns an error if no pod can have addr, an address of host.
func checkAllocatable(n network.Network, host netip.Prefix, addr netip.Addr) error {
	if !network.Usable(host, addr) {
		return fmt.Errorf("%s is the network or broadcast address of %s", addr, host)
	}
	if p, ok := containing(n.Unallocatable(host), addr); ok {
		return fmt.Errorf("%s belongs to the network itself (%s: gateway, nodes or infrastructureSubnets)", addr, p)
	}
	return nil
}

// containing returns the first prefix that contains addr.
func containing(ps []netip.Prefix, addr netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(ps, func(p netip.Prefix) bool { return p.Contains(addr) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return ps[i], true
}

func checkGateways(a Attachment, hosts []netip.Prefix) error {
	for _, gw := range a.Request.Gateways {
		if len(hosts) == 0 {
			return fmt.Errorf("annotation %s: default-route %s: the network has no subnets, and the pod no address with which it reaches a gateway: remove default-route, and set the route in the pod", a.Source, gw)
		}
		if !a.Network.Contains(gw) {
			return fmt.Errorf("annotation %s: default-route %s is outside the network's subnets %s: name a gateway inside", a.Source, gw, join(hosts))
		}
	}
	if first, second, ok := network.DuplicateFamily(a.Request.Gateways); ok {
		return fmt.Errorf("annotation %s: default-route names two gateways of one IP family, %s and %s: keep one of them", a.Source, first, second)
	}
	return nil
}

// reserveMAC assigns a MAC to the pod, unless another holder or the network
// itself has it.
func reserveMAC(a Attachment, hosts []netip.Prefix, h Holder, mac string) error {
	for _, host := range hosts {
		if !a.Network.IsPrimary() {
			break
		}
		for _, own := range []netip.Prefix{a.Network.GatewayIn(host), a.Network.ManagementIn(host)} {
			if own.Addr().IsValid() && network.MAC(own.Addr()) == mac {
				return fmt.Errorf("mac %s is that of %s, an address of the network itself: request another in annotation %s", mac, own.Addr(), a.Source)
			}
		}
	}
	if err := a.Alloc.ReserveMAC(h, mac); err != nil {
		return withRemedy(a, err)
	}
	return nil
}

// generateMAC returns the MAC of a pod that requests none.
func generateMAC(ips []netip.Prefix, h Holder, key string) string {
	if len(ips) > 0 {
		return network.MACOf(ips)
	}
	b := sha256.Sum256([]byte(string(h.UID) + " " + key))
	return fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// macIndex returns the index of the subnet whose address network.MACOf derives
// the MAC from.
func macIndex(hosts []netip.Prefix) int {
	return max(0, slices.IndexFunc(hosts, func(p netip.Prefix) bool { return p.Addr().Is4() }))
}

// hostSubnets returns the subnets that pods have an address in, none if the
// network has no address management.
func hostSubnets(n network.Network) ([]netip.Prefix, error) {
	if len(n.Subnets) == 0 {
		return nil, nil
	}
	return n.HostSubnets(1) // the same for every node
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
