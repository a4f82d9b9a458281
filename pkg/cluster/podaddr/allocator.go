// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"bulkhead/pkg/ipam"
	"bulkhead/pkg/network"
)

// Tunnel ids are OVN port keys, which must be the same in every zone. The first
// nine and the last are reserved for ports other than pods'.
const firstTunnel, lastTunnel = 10, network.MaxPortKey - 1

// Allocator allocates the addresses, MACs and tunnel ids of a network. It is not
// safe for concurrent use.
type Allocator struct {
	network string
	pools   map[netip.Prefix]*ipam.Addresses
	held    map[netip.Addr]Holder
	macs    map[string]*macUse
	macOf   map[Holder]string // of each holder of a MAC
	tunnels *ipam.IDs
	now     time.Time // time of the current operation
}

// macUse is the holder of a MAC: one pod, or the pods of one claim. There are
// two of them during a live migration.
type macUse struct {
	holder Holder
	pods   int
}

// NewAllocator returns the allocator of a network. age is the minimum age of a
// released tunnel id before it is allocated again.
func NewAllocator(networkName string, age time.Duration) *Allocator {
	return &Allocator{network: networkName, pools: map[netip.Prefix]*ipam.Addresses{}, held: map[netip.Addr]Holder{},
		macs: map[string]*macUse{}, macOf: map[Holder]string{}, tunnels: ipam.NewIDs(firstTunnel, lastTunnel, ipam.NextFit, age)}
}

// TakenError is returned if another holder has an address or a MAC.
type TakenError struct {
	Resource string
	Holder   Holder
}

func (t *TakenError) Error() string { return fmt.Sprintf("%s is held by %s", t.Resource, t.Holder) }

// pool returns the pool of a subnet. It contains all held addresses, because the
// network's subnets may have changed since those were allocated.
func (a *Allocator) pool(subnet netip.Prefix) *ipam.Addresses {
	p := a.pools[subnet]
	if p == nil {
		p = ipam.NewAddresses(subnet)
		for addr, h := range a.held {
			if subnet.Contains(addr) {
				_ = p.Reserve(h.id(), addr) // an unallocatable address needs no reservation
			}
		}
		a.pools[subnet] = p
	}
	return p
}

// Reserve assigns the given addresses to h, all or none. h may hold some of them
// already.
func (a *Allocator) Reserve(h Holder, ips []netip.Prefix) error {
	for _, ip := range ips {
		if other, ok := a.held[ip.Addr()]; ok && other != h {
			return &TakenError{ip.Addr().String(), other}
		}
		if !network.Usable(ip.Masked(), ip.Addr()) {
			return fmt.Errorf("%s is the network or broadcast address of %s", ip.Addr(), ip.Masked())
		}
	}
	for _, ip := range ips {
		a.pool(ip.Masked())
		a.record(h, ip.Addr())
	}
	return nil
}

func (a *Allocator) record(h Holder, addr netip.Addr) {
	a.held[addr] = h
	for subnet, p := range a.pools {
		if subnet.Contains(addr) {
			p.Exclude()
			_ = p.Reserve(h.id(), addr) // an unallocatable address needs no reservation
		}
	}
}

// Allocate assigns a free address of subnet outside excluded to h. With ownMAC
// the MAC derived from the address is free, too. Addresses that a pod waits for
// (requested) are allocated last.
func (a *Allocator) Allocate(h Holder, subnet netip.Prefix, excluded []netip.Prefix, ownMAC bool, requested func(netip.Addr) bool) (netip.Prefix, error) {
	p := a.pool(subnet)
	for _, spare := range []bool{true, false} {
		excluded := slices.Clip(excluded)
		for {
			p.Exclude(excluded...)
			ip, err := p.Allocate(h.id())
			if err != nil {
				break
			}
			_, taken := a.macs[network.MAC(ip.Addr())]
			if ownMAC && taken || spare && requested != nil && requested(ip.Addr()) {
				p.Release(h.id(), ip.Addr())
				excluded = append(excluded, netip.PrefixFrom(ip.Addr(), ip.Addr().BitLen()))
				continue
			}
			a.record(h, ip.Addr())
			return ip, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("no address of %s is free: %w", subnet, ipam.ErrExhausted)
}

// Release releases those of the addresses that h holds.
func (a *Allocator) Release(h Holder, ips []netip.Prefix) {
	for _, ip := range ips {
		if a.held[ip.Addr()] != h {
			continue
		}
		delete(a.held, ip.Addr())
		for subnet, p := range a.pools {
			if subnet.Contains(ip.Addr()) {
				p.Release(h.id(), ip.Addr())
			}
		}
	}
}

// ReserveMAC assigns a MAC to a pod of h. The pods of one claim have one address, and therefore one MAC: zones find
// them by it when they hand the address over.
func (a *Allocator) ReserveMAC(h Holder, mac string) error {
	if other, ok := a.macOf[h]; ok && other != mac {
		return fmt.Errorf("pods with one address have one MAC address, and not %s: %w", mac, &TakenError{other, h})
	}
	use := a.macs[mac]
	if use != nil && use.holder != h {
		return &TakenError{mac, use.holder}
	}
	if use == nil {
		use = &macUse{holder: h}
		a.macs[mac], a.macOf[h] = use, mac
	}
	use.pods++
	return nil
}

// ReleaseMAC reverts one ReserveMAC. It reports whether the MAC is free now.
func (a *Allocator) ReleaseMAC(h Holder, mac string) bool {
	use := a.macs[mac]
	if use == nil || use.holder != h {
		return false
	}
	use.pods--
	if use.pods == 0 {
		delete(a.macs, mac)
		delete(a.macOf, h)
	}
	return use.pods == 0
}

// AllocateTunnel assigns a tunnel id to a pod's attachment: the preferred one if
// it is free, otherwise another.
func (a *Allocator) AllocateTunnel(pod Holder, preferred int) (int, error) {
	if preferred != 0 && a.tunnels.Reserve(pod.id(), preferred) == nil {
		return preferred, nil
	}
	id, err := a.tunnels.Allocate(pod.id(), a.now, nil)
	if err != nil {
		return 0, fmt.Errorf("the network has as many pods as OVN has port keys: delete pods, or use another network: %w", err)
	}
	return id, nil
}

// ReleaseTunnel releases the tunnel id of a pod's attachment.
func (a *Allocator) ReleaseTunnel(pod Holder) { a.tunnels.Release(pod.id(), a.now) }

// Empty reports whether nothing is allocated.
func (a *Allocator) Empty() bool { return len(a.held) == 0 && len(a.macs) == 0 && a.tunnels.Len() == 0 }
