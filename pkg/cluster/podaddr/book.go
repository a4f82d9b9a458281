// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
)

// book is who holds what and who waits for what, in all networks. It holds
// nothing that is not in the API a moment later. It is not safe for concurrent
// use.
type book struct {
	now        func() time.Time
	age        time.Duration              // of a tunnel id that is given again
	mark       func(network string) int64 // of tunnel ids, from former leaders
	allocators map[string]*Allocator      // by network name
	nads       map[string]string          // network names by NAD key
	described  map[string]int             // how many NADs name a network
	pods       map[string]*podState
	claims     map[types.UID]*claimState
	claimUIDs  map[string]types.UID // of the claims that there are, by key
	waits      *waits
	// forgotten is told of a network that nobody describes and nobody has
	// anything in.
	forgotten func(network string)
	// claimChanged is told the key of a claim that another pod uses now.
	claimChanged func(key string)
}

type podState struct {
	uid     types.UID
	grants  map[string]Grant
	settled map[string]bool     // grants that the annotation shows
	had     network.PodNetworks // from a former leader, not held yet
	seen    bool                // the cache has had it
}

type claimState struct {
	Claim
	gone bool
	seen bool     // the cache has had it
	pods []string // that use it, the last came last
}

func newBook(age time.Duration, now func() time.Time) *book {
	return &book{
		now: now, age: age, mark: func(string) int64 { return 0 },
		allocators: map[string]*Allocator{}, nads: map[string]string{}, described: map[string]int{}, pods: map[string]*podState{},
		claims: map[types.UID]*claimState{}, claimUIDs: map[string]types.UID{}, waits: newWaits(),
		claimChanged: func(string) {}, forgotten: func(string) {},
	}
}

func (b *book) allocator(networkName string) *Allocator {
	a, now := b.allocators[networkName], b.now()
	if a == nil {
		a = NewAllocator(networkName, b.age)
		a.tunnels.Restore(b.mark(networkName), now)
		b.allocators[networkName] = a
	}
	a.now = now
	return a
}

// given is how far the networks that a pod asks for have given tunnel ids.
func (b *book) given(in Inputs) map[string]int64 {
	out := map[string]int64{}
	for _, a := range in.Attachments {
		if alloc := b.allocators[a.Network.Name]; alloc != nil {
			out[a.Network.Name] = alloc.tunnels.Mark()
		}
	}
	return out
}

// sweep forgets a network in which nobody holds anything and which no NAD
// names.
func (b *book) sweep(networkName string) {
	if a := b.allocators[networkName]; a != nil && a.Empty() && b.described[networkName] == 0 {
		delete(b.allocators, networkName)
		b.forgotten(networkName)
	}
}

// describe notes which network a NAD names; "" for none.
func (b *book) describe(nadKey, networkName string) {
	was := b.nads[nadKey]
	if was == networkName {
		return
	}
	if was != "" {
		delete(b.nads, nadKey)
		if b.described[was]--; b.described[was] == 0 {
			delete(b.described, was)
		}
		b.sweep(was)
	}
	if networkName != "" {
		b.nads[nadKey] = networkName
		b.described[networkName]++
	}
}

// pod is the state of the pod of that name and uid. Another pod of that name
// is gone.
func (b *book) pod(key string, uid types.UID) *podState {
	st := b.pods[key]
	if st != nil && st.uid != uid {
		b.release(key)
		st = nil
	}
	if st == nil {
		st = &podState{uid: uid}
	}
	return st
}

// build runs Build and notes what it gave.
func (b *book) build(in Inputs) State {
	key := network.NADKey(in.Pod.Namespace, in.Pod.Name)
	st := b.pod(key, in.Pod.UID)
	b.abandon(key, st, in)
	in.Held, in.Had = st.grants, st.had
	for i := range in.Attachments {
		a := &in.Attachments[i]
		a.Alloc = b.allocator(a.Network.Name)
		a.Awaited = func(addr netip.Addr) bool { return b.waits.awaited(onRelease(a.Network.Name, addr.String())) }
		if had, ok := st.had[a.Key]; ok && a.Request.Claim != "" && len(had.IPs) > 0 {
			former := b.former(in.Pod.Namespace, a.Request.Claim, a.Network.Name, had.IPs).Claim
			a.Former = &former
		}
	}
	want, given, problems := Build(in)
	if len(given) > 0 && st.grants == nil {
		st.grants, st.settled = map[string]Grant{}, map[string]bool{}
	}
	for k, g := range given {
		st.grants[k], st.settled[k] = g, in.Restoring || sameEntry(g.Entry, st.had[k])
		delete(st.had, k)
		if g.HasClaim {
			c := b.claims[g.Holder.UID]
			c.IPs = g.Entry.IPs
			c.pods = append(c.pods, key)
			c.Owner = in.Pod.Name
		}
	}
	for _, a := range in.Attachments {
		if a.Former == nil {
			continue
		}
		if c := b.claims[a.Former.Holder.UID]; c != nil { // of two attachments the first may have been the last
			b.freeClaim(c)
		}
	}
	for _, a := range in.Attachments {
		b.sweep(a.Network.Name)
	}
	if len(st.grants) > 0 || len(st.had) > 0 {
		b.pods[key] = st
	}
	var wait []topic
	for _, p := range problems {
		if _, held := st.grants[p.Key]; held && p.Key != "" {
			continue // what became of the network's description does not concern who has an address
		}
		want.Problems = append(want.Problems, p)
		wait = append(wait, p.Wait...)
	}
	if !in.Restoring {
		b.waits.settle(key, wait...)
	}
	return want
}

// holdBlind gives a pod back what it had on a network whose NAD is broken.
func (b *book) holdBlind(key, k, networkName string) {
	st := b.pods[key]
	entry := st.had[k]
	ns, name, _ := strings.Cut(key, "/")
	h, a := Holder{Namespace: ns, Name: name, UID: st.uid, Key: k}, b.allocator(networkName)
	defer b.sweep(networkName)
	if a.Hold(h, entry.IPs) != nil {
		return
	}
	if a.TakeMAC(h, entry.MAC) != nil {
		a.Free(h, entry.IPs)
		return
	}
	if id, err := a.Tunnel(h, entry.TunnelID); entry.TunnelID != 0 && err == nil {
		entry.TunnelID = id
	}
	if st.grants == nil {
		st.grants, st.settled = map[string]Grant{}, map[string]bool{}
	}
	st.grants[k], st.settled[k] = Grant{Network: networkName, Holder: h, Entry: entry}, true
	delete(st.had, k)
}

// abandon takes back what the pod has not been told and whose claim is not
// there any more.
func (b *book) abandon(key string, st *podState, in Inputs) {
	for k, g := range st.grants {
		if !g.HasClaim || st.settled[k] {
			continue
		}
		i := slices.IndexFunc(in.Attachments, func(a Attachment) bool { return a.Key == k })
		if i < 0 || in.Attachments[i].Claim == nil || in.Attachments[i].Claim.Holder != g.Holder {
			b.free(key, st.uid, k, g)
			delete(st.grants, k)
			delete(st.settled, k)
		}
	}
}

// release forgets a pod.
func (b *book) release(key string) {
	if st := b.pods[key]; st != nil {
		delete(b.pods, key)
		for k, g := range st.grants {
			b.free(key, st.uid, k, g)
		}
	}
	b.waits.settle(key)
}

// free takes back what a pod holds on one network, but what its claim keeps.
func (b *book) free(key string, uid types.UID, k string, g Grant) {
	ns, name, _ := strings.Cut(key, "/")
	a := b.allocator(g.Network)
	a.FreeTunnel(Holder{Namespace: ns, Name: name, UID: uid, Key: k})
	if a.FreeMAC(g.Holder, g.Entry.MAC) {
		b.waits.wake(onRelease(g.Network, g.Entry.MAC))
	}
	if !g.HasClaim {
		b.freeAddresses(g.Network, g.Holder, g.Entry.IPs)
	} else {
		c := b.claims[g.Holder.UID]
		if i := slices.Index(c.pods, key); i >= 0 {
			c.pods = slices.Delete(c.pods, i, i+1)
		}
		if c.Owner = ""; len(c.pods) > 0 {
			_, c.Owner, _ = strings.Cut(c.pods[len(c.pods)-1], "/")
		}
		b.freeClaim(c)
		b.claimChanged(c.key())
	}
	b.waits.wakeNext(onRoom(g.Network)) // for the tunnel id, too
	b.sweep(g.Network)
}

func (b *book) freeAddresses(networkName string, h Holder, ips []netip.Prefix) {
	b.allocator(networkName).Free(h, ips)
	for _, ip := range ips {
		b.waits.wake(onRelease(networkName, ip.Addr().String()))
		b.waits.wakeNext(onRoom(networkName))
	}
	b.sweep(networkName)
}

// freeClaim forgets a claim that was deleted and that no pod uses.
func (b *book) freeClaim(c *claimState) {
	if c.gone && len(c.pods) == 0 {
		delete(b.claims, c.Holder.UID)
		b.freeAddresses(c.Network, c.Holder, c.IPs)
	}
}

// claim is the state of a claim. One that comes with addresses holds them if
// nobody else does.
func (b *book) claim(obj *ipamclaimv1.IPAMClaim) *claimState {
	fresh, wants, bad := claimOf(obj)
	b.claimGone(fresh.key(), obj.UID)
	b.claimUIDs[fresh.key()] = obj.UID
	c := b.claims[obj.UID]
	if c != nil && c.Network != fresh.Network && len(c.pods) == 0 {
		b.freeAddresses(c.Network, c.Holder, c.IPs) // it is of another network now
		c = nil
		fresh.Said, wants, bad = nil, nil, ""
	}
	switch {
	case c == nil:
		c = &claimState{Claim: fresh}
		b.claims[obj.UID] = c
	case c.Refused == "":
		c.Leaving = fresh.Leaving
		return c // the status is ours to write
	}
	c.Leaving, c.Said, c.Refused, c.Wanted = fresh.Leaving, fresh.Said, "", ""
	if bad != "" {
		c.Refused = "status.ips has " + bad + ", which is no address with its prefix length: delete the claim and create it anew"
	}
	if len(wants) == 0 {
		return c
	}
	if err := b.allocator(c.Network).Hold(c.Holder, wants); err != nil {
		c.Refused = err.Error() + ": delete its holder, or this claim and create it anew"
		if t := (*Taken)(nil); errors.As(err, &t) {
			c.Wanted = t.What
		}
		return c
	}
	c.IPs = wants
	return c
}

// former stands for a claim that was deleted before this process was the
// leader, or replaced by another of its name, while pods had its addresses.
func (b *book) former(namespace, name, networkName string, ips []netip.Prefix) *claimState {
	uid := types.UID(fmt.Sprintf("former %s/%s %s %s", namespace, name, networkName, join(sorted(ips))))
	c := b.claims[uid]
	if c == nil {
		c = &claimState{gone: true, Claim: Claim{Holder: Holder{Claim: true, Namespace: namespace, Name: name, UID: uid}, Network: networkName}}
		b.claims[uid] = c
	}
	return c
}

// claimGone notes that claims of that name with another uid are gone.
func (b *book) claimGone(key string, but types.UID) {
	uid, ok := b.claimUIDs[key]
	if !ok || uid == but {
		return
	}
	delete(b.claimUIDs, key)
	if c := b.claims[uid]; c != nil {
		c.gone = true
		b.freeClaim(c)
	}
}

// Usage is how much of a network's addresses of a family is held.
type Usage struct {
	Network string
	Family  string // "ipv4" or "ipv6"
	Used    int
	Size    float64 // the subnet's: an IPv6 subnet has more than an integer holds
}

func (b *book) usage() []Usage {
	var out []Usage
	for _, name := range slices.Sorted(maps.Keys(b.allocators)) {
		a := b.allocators[name]
		for family, is4 := range map[string]bool{"ipv4": true, "ipv6": false} {
			u := Usage{Network: name, Family: family}
			for subnet, p := range a.pools {
				if subnet.Addr().Is4() == is4 {
					u.Used += p.Len()
					u.Size += math.Exp2(float64(subnet.Addr().BitLen() - subnet.Bits()))
				}
			}
			if u.Size > 0 {
				out = append(out, u)
			}
		}
	}
	return out
}
