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

// Tunnel ids are OVN's port keys, the same in every zone. The first nine are
// for ports that are not pods'.
const firstTunnel, lastTunnel = 10, 32767

// Allocator knows who holds which address, MAC and tunnel id of a network. It
// is not safe for concurrent use.
type Allocator struct {
	network string
	pools   map[netip.Prefix]*ipam.Addresses
	held    map[netip.Addr]Holder
	macs    map[string]*macUse
	tunnels *ipam.IDs
	now     time.Time // of what is done with it
}

// macUse is who has a MAC: one pod, or the pods of one claim, of which there
// are two while a virtual machine migrates.
type macUse struct {
	holder Holder
	pods   int
}

// NewAllocator makes the allocator of the network of that name.
// age is how old a tunnel id must be that is given again.
func NewAllocator(networkName string, age time.Duration) *Allocator {
	return &Allocator{network: networkName, pools: map[netip.Prefix]*ipam.Addresses{}, held: map[netip.Addr]Holder{},
		macs: map[string]*macUse{}, tunnels: ipam.NewIDs(firstTunnel, lastTunnel, ipam.NextFit, age)}
}

// Taken says that another holds an address or a MAC.
type Taken struct {
	What   string
	Holder Holder
}

func (t *Taken) Error() string { return fmt.Sprintf("%s is held by %s", t.What, t.Holder) }

// pool hands out the addresses of subnet. Its subnets may have changed since
// others got theirs.
func (a *Allocator) pool(subnet netip.Prefix) *ipam.Addresses {
	p := a.pools[subnet]
	if p == nil {
		p = ipam.NewAddresses(subnet)
		for addr, h := range a.held {
			if subnet.Contains(addr) {
				_ = p.Reserve(h.id(), addr) // what no pod may have is not handed out either
			}
		}
		a.pools[subnet] = p
	}
	return p
}

// Hold gives h those addresses, all or none. What it holds already it keeps.
func (a *Allocator) Hold(h Holder, ips []netip.Prefix) error {
	for _, ip := range ips {
		if other, ok := a.held[ip.Addr()]; ok && other != h {
			return &Taken{ip.Addr().String(), other}
		}
		if !network.Usable(ip.Masked(), ip.Addr()) {
			return fmt.Errorf("%s is the address of the subnet %s itself", ip.Addr(), ip.Masked())
		}
	}
	for _, ip := range ips {
		a.pool(ip.Masked())
		a.note(h, ip.Addr())
	}
	return nil
}

func (a *Allocator) note(h Holder, addr netip.Addr) {
	a.held[addr] = h
	for subnet, p := range a.pools {
		if subnet.Contains(addr) {
			p.Exclude()
			_ = p.Reserve(h.id(), addr) // as in pool
		}
	}
}

// Allocate gives h a free address of subnet outside excluded. With ownMAC the
// MAC that goes with it is free too. An address that somebody waits for by name
// is the last to be handed out.
func (a *Allocator) Allocate(h Holder, subnet netip.Prefix, excluded []netip.Prefix, ownMAC bool, awaited func(netip.Addr) bool) (netip.Prefix, error) {
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
			if ownMAC && taken || spare && awaited != nil && awaited(ip.Addr()) {
				p.Release(h.id(), ip.Addr())
				excluded = append(excluded, netip.PrefixFrom(ip.Addr(), ip.Addr().BitLen()))
				continue
			}
			a.note(h, ip.Addr())
			return ip, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("no address of %s is free: %w", subnet, ipam.ErrExhausted)
}

// Free takes addresses back, if h holds them.
func (a *Allocator) Free(h Holder, ips []netip.Prefix) {
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

// TakeMAC gives a pod of h a MAC.
func (a *Allocator) TakeMAC(h Holder, mac string) error {
	use := a.macs[mac]
	if use != nil && use.holder != h {
		return &Taken{mac, use.holder}
	}
	if use == nil {
		use = &macUse{holder: h}
		a.macs[mac] = use
	}
	use.pods++
	return nil
}

// FreeMAC is the end of one TakeMAC; true means that nobody has the MAC now.
func (a *Allocator) FreeMAC(h Holder, mac string) bool {
	use := a.macs[mac]
	if use == nil || use.holder != h {
		return false
	}
	use.pods--
	if use.pods == 0 {
		delete(a.macs, mac)
	}
	return use.pods == 0
}

// Tunnel gives a pod's attachment the tunnel id had, if it is free, or another.
func (a *Allocator) Tunnel(pod Holder, had int) (int, error) {
	if had != 0 && a.tunnels.Reserve(pod.id(), had) == nil {
		return had, nil
	}
	id, err := a.tunnels.Allocate(pod.id(), a.now, nil)
	if err != nil {
		return 0, fmt.Errorf("the network has as many pods as OVN has port keys: %w", err)
	}
	return id, nil
}

// FreeTunnel takes a tunnel id back.
func (a *Allocator) FreeTunnel(pod Holder) { a.tunnels.Release(pod.id(), a.now) }

// Empty tells whether nobody holds anything.
func (a *Allocator) Empty() bool { return len(a.held) == 0 && len(a.macs) == 0 && a.tunnels.Len() == 0 }
