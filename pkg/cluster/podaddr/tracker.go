// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"cmp"
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

// tracker tracks the allocations and the waiting pods of all networks. Each
// reconcile writes its changes to the API, so a new leader can restore them. It
// is not safe for concurrent use.
type tracker struct {
	now        func() time.Time
	age        time.Duration              // minimum age of a released tunnel id
	mark       func(network string) int64 // high-water mark of tunnel ids of previous leaders
	allocators map[string]*Allocator      // by network name
	nads       map[string]string          // network names by NAD key
	nadCount   map[string]int             // number of NADs by network name
	pods       map[string]*podState       // by key
	claims     map[types.UID]*claimState  // including deleted ones with pods
	claimUIDs  map[string]types.UID       // of existing claims, by key
	scopes     *scopes                    // whose claims may hold addresses
	waiting    *waitQueues
	taken      map[topic]map[types.UID]*claimState // claims that wait for the release of an address
	// onNetworkRemoved is called for a network without NADs and allocations.
	onNetworkRemoved func(network string)
	// enqueueClaim is called with the key of a claim whose owner pod changed.
	enqueueClaim func(key string)
}

type podState struct {
	uid         types.UID
	allocations map[string]Allocation
	published   map[string]bool     // allocations that are in the annotation
	previous    network.PodNetworks // entries by a previous leader that are not restored yet
	unknown     map[string][]string // networks in which addresses of previous are reserved, because the NAD does not exist
	cached      bool                // the pod has been in the cache
}

type claimState struct {
	Claim
	deleted bool
	cached  bool     // the claim has been in the cache
	pods    []string // keys of the pods that use it, oldest first
}

func newTracker(age time.Duration, now func() time.Time) *tracker {
	return &tracker{
		now: now, age: age, mark: func(string) int64 { return 0 },
		allocators: map[string]*Allocator{}, nads: map[string]string{}, nadCount: map[string]int{}, pods: map[string]*podState{},
		claims: map[types.UID]*claimState{}, claimUIDs: map[string]types.UID{}, scopes: newScopes(), waiting: newWaitQueues(),
		taken:        map[topic]map[types.UID]*claimState{},
		enqueueClaim: func(string) {}, onNetworkRemoved: func(string) {},
	}
}

func (t *tracker) allocator(networkName string) *Allocator {
	a, now := t.allocators[networkName], t.now()
	if a == nil {
		a = NewAllocator(networkName, t.age)
		a.tunnels.Restore(t.mark(networkName), now)
		t.allocators[networkName] = a
	}
	a.now = now
	return a
}

// tunnelMarks returns the high-water marks of tunnel ids of the networks in in,
// by name.
func (t *tracker) tunnelMarks(in Inputs) map[string]int64 {
	out := map[string]int64{}
	for _, a := range in.Attachments {
		if alloc := t.allocators[a.Network.Name]; alloc != nil {
			out[a.Network.Name] = alloc.tunnels.Mark()
		}
	}
	return out
}

// removeUnused removes a network that has neither allocations nor NADs.
func (t *tracker) removeUnused(networkName string) {
	if a := t.allocators[networkName]; a != nil && a.Empty() && t.nadCount[networkName] == 0 {
		delete(t.allocators, networkName)
		t.onNetworkRemoved(networkName)
	}
}

// setNAD records the network of a NAD, "" for none.
func (t *tracker) setNAD(nadKey, networkName string) {
	old := t.nads[nadKey]
	if old == networkName {
		return
	}
	if old != "" {
		delete(t.nads, nadKey)
		if t.nadCount[old]--; t.nadCount[old] == 0 {
			delete(t.nadCount, old)
		}
		t.removeUnused(old)
	}
	if networkName != "" {
		t.nads[nadKey] = networkName
		t.nadCount[networkName]++
	}
}

// pod returns the state of a pod. It releases the allocations of a previous pod
// with the same name.
func (t *tracker) pod(key string, uid types.UID) *podState {
	st := t.pods[key]
	if st != nil && st.uid != uid {
		t.releasePod(key)
		st = nil
	}
	if st == nil {
		st = &podState{uid: uid}
	}
	return st
}

// build runs Build and records the new allocations.
func (t *tracker) build(in Inputs) State {
	key := network.NADKey(in.Pod.Namespace, in.Pod.Name)
	st := t.pod(key, in.Pod.UID)
	t.releaseUnpublished(key, st, in)
	known := t.takeUnknown(key, st, in.Attachments)
	in.Held, in.Previous = st.allocations, st.previous
	for i := range in.Attachments {
		a := &in.Attachments[i]
		a.Alloc = t.allocator(a.Network.Name)
		a.Requested = func(addr netip.Addr) bool { return t.waiting.hasWaiters(topicRelease(a.Network.Name, addr.String())) }
		if previous, ok := st.previous[a.Key]; ok && a.Request.Claim != "" && len(previous.IPs) > 0 {
			former := t.formerClaim(in.Pod.Namespace, a.Request.Claim, a.Network.Name, previous.IPs).Claim
			a.Former = &former
		}
	}
	want, allocated, problems := Build(in)
	if len(allocated) > 0 && st.allocations == nil {
		st.allocations, st.published = map[string]Allocation{}, map[string]bool{}
	}
	for k, g := range allocated {
		st.allocations[k], st.published[k] = g, in.Restoring || sameEntry(g.Entry, st.previous[k])
		delete(st.previous, k)
		if g.HasClaim {
			c := t.claims[g.Holder.UID]
			c.IPs = g.Entry.IPs
			c.pods = append(c.pods, key)
			c.Owner = in.Pod.Name
		}
	}
	for _, u := range known {
		if st.allocations[u.holder.Key].Network != u.network {
			t.releaseAddresses(u.network, u.holder, u.ips)
		}
	}
	for _, a := range in.Attachments {
		if a.Former == nil {
			continue
		}
		if c := t.claims[a.Former.Holder.UID]; c != nil { // nil if an earlier attachment removed it
			t.removeClaim(c)
		}
	}
	for _, a := range in.Attachments {
		t.removeUnused(a.Network.Name)
	}
	if len(st.allocations) > 0 || len(st.previous) > 0 {
		t.pods[key] = st
	}
	var wait []topic
	for _, p := range problems {
		if _, held := st.allocations[p.Key]; held && p.Key != "" {
			continue // a pod with addresses keeps them, whatever happens to the NAD
		}
		want.Problems = append(want.Problems, p)
		wait = append(wait, p.Wait...)
	}
	if !in.Restoring {
		t.waiting.update(key, wait...)
	}
	return want
}

// restoreWithoutNAD restores a pod's allocation on a network whose NAD is
// unusable.
func (t *tracker) restoreWithoutNAD(key, k, networkName string) {
	st := t.pods[key]
	entry := st.previous[k]
	h, a := podHolder(key, st, k), t.allocator(networkName)
	defer t.removeUnused(networkName)
	if a.Reserve(h, entry.IPs) != nil {
		return
	}
	if a.ReserveMAC(h, entry.MAC) != nil {
		a.Release(h, entry.IPs)
		return
	}
	if id, err := a.AllocateTunnel(h, entry.TunnelID); entry.TunnelID != 0 && err == nil {
		entry.TunnelID = id
	}
	if st.allocations == nil {
		st.allocations, st.published = map[string]Allocation{}, map[string]bool{}
	}
	st.allocations[k], st.published[k] = Allocation{Network: networkName, Holder: h, Entry: entry}, true
	delete(st.previous, k)
}

// reserveUnknown reserves the addresses of a running pod's entry whose NAD does not exist, in every network that
// may be the entry's: a ClusterUserDefinedNetwork's with the NAD's name, and those whose NADs are written by hand. No
// pod of the network's other NADs may get the addresses.
func (t *tracker) reserveUnknown(key, k string) {
	st := t.pods[key]
	_, nad, _ := network.SplitNADKey(k)
	for name := range t.nadCount {
		if cudn, ok := network.CutCUDN(name); ok && cudn != nad || !ok && network.IsUDNName(name) {
			continue
		}
		if t.allocator(name).Reserve(podHolder(key, st, k), st.previous[k].IPs) == nil {
			if st.unknown == nil {
				st.unknown = map[string][]string{}
			}
			st.unknown[k] = append(st.unknown[k], name)
		}
	}
}

// reservation is that of reserveUnknown in one network.
type reservation struct {
	network string
	holder  Holder
	ips     []netip.Prefix
}

// takeUnknown removes and returns the reservations of entries whose NADs exist again. The caller allocates the
// addresses at once, and releases the others.
func (t *tracker) takeUnknown(key string, st *podState, attachments []Attachment) (out []reservation) {
	for _, a := range attachments {
		for _, name := range st.unknown[a.Key] {
			r := reservation{name, podHolder(key, st, a.Key), st.previous[a.Key].IPs}
			t.allocator(name).Release(r.holder, r.ips)
			out = append(out, r)
		}
		delete(st.unknown, a.Key)
	}
	return out
}

// podHolder is the holder of what a pod's attachment has without a claim.
func podHolder(key string, st *podState, k string) Holder {
	ns, name, _ := strings.Cut(key, "/")
	return Holder{Namespace: ns, Name: name, UID: st.uid, Key: k}
}

// releaseUnpublished releases allocations that are not in the annotation yet and
// whose claim no longer exists.
func (t *tracker) releaseUnpublished(key string, st *podState, in Inputs) {
	for k, g := range st.allocations {
		if !g.HasClaim || st.published[k] {
			continue
		}
		i := slices.IndexFunc(in.Attachments, func(a Attachment) bool { return a.Key == k })
		if i < 0 || in.Attachments[i].Claim == nil || in.Attachments[i].Claim.Holder != g.Holder {
			t.releaseAllocation(key, st, k, g)
			delete(st.allocations, k)
			delete(st.published, k)
		}
	}
}

// releasePod releases all allocations of a pod.
func (t *tracker) releasePod(key string) {
	if st := t.pods[key]; st != nil {
		delete(t.pods, key)
		for k, g := range st.allocations {
			t.releaseAllocation(key, st, k, g)
		}
		for k, names := range st.unknown {
			for _, name := range names {
				t.releaseAddresses(name, podHolder(key, st, k), st.previous[k].IPs)
			}
		}
	}
	t.waiting.update(key)
}

// releaseAllocation releases an allocation, except addresses that belong to a
// claim.
func (t *tracker) releaseAllocation(key string, st *podState, k string, g Allocation) {
	a := t.allocator(g.Network)
	a.ReleaseTunnel(podHolder(key, st, k))
	if a.ReleaseMAC(g.Holder, g.Entry.MAC) {
		t.waiting.notifyAll(topicRelease(g.Network, g.Entry.MAC))
	}
	if !g.HasClaim {
		t.releaseAddresses(g.Network, g.Holder, g.Entry.IPs)
	} else {
		c := t.claims[g.Holder.UID]
		if i := slices.Index(c.pods, key); i >= 0 {
			c.pods = slices.Delete(c.pods, i, i+1)
		}
		if c.Owner = ""; len(c.pods) > 0 {
			_, c.Owner, _ = strings.Cut(c.pods[len(c.pods)-1], "/")
		}
		t.removeClaim(c)
		t.enqueueClaim(c.key())
	}
	t.waiting.notifyNext(topicCapacity(g.Network)) // a tunnel id is free in any case
	t.removeUnused(g.Network)
}

// releaseAddresses releases a holder's addresses. Claims that have waited for one get it, before a pod can.
func (t *tracker) releaseAddresses(networkName string, h Holder, ips []netip.Prefix) {
	t.allocator(networkName).Release(h, ips)
	for _, ip := range ips {
		waiting := slices.SortedFunc(maps.Values(t.taken[topicRelease(networkName, ip.Addr().String())]), func(a, b *claimState) int { return cmp.Compare(a.key(), b.key()) })
		for _, c := range waiting {
			t.retryClaim(c)
		}
	}
	for _, ip := range ips {
		t.waiting.notifyAll(topicRelease(networkName, ip.Addr().String()))
		t.waiting.notifyNext(topicCapacity(networkName))
	}
	t.removeUnused(networkName)
}

// removeClaim removes a claim if it was deleted and no pod uses it.
func (t *tracker) removeClaim(c *claimState) {
	if c.deleted && len(c.pods) == 0 {
		delete(t.claims, c.Holder.UID)
		t.forgetWait(c)
		t.releaseAddresses(c.Network, c.Holder, c.IPs)
	}
}

// syncClaim updates and returns the state of a claim. A new claim gets the
// addresses in its status if it may have them; see reserveClaim.
func (t *tracker) syncClaim(obj *ipamclaimv1.IPAMClaim) *claimState {
	claim := claimOf(obj)
	t.claimDeleted(claim.key(), obj.UID)
	t.claimUIDs[claim.key()] = obj.UID
	c := t.claims[obj.UID]
	if c != nil && c.Network != claim.Network && len(c.pods) == 0 {
		t.forgetWait(c)
		t.releaseAddresses(c.Network, c.Holder, c.IPs) // spec.network changed
		c = nil
		claim.Reported = nil
	}
	switch {
	case c == nil:
		c = &claimState{Claim: claim}
		t.claims[obj.UID] = c
	case c.Refused == "":
		c.Deleting = claim.Deleting
		return c // only this process writes the status
	}
	c.Deleting, c.Reported = claim.Deleting, claim.Reported
	t.reserveClaim(c)
	return c
}

// reserveClaim assigns the addresses in a claim's status to the claim, if its
// namespace has the network and no other holder has them.
func (t *tracker) reserveClaim(c *claimState) {
	t.forgetWait(c)
	c.Refused, c.TakenAddress = "", ""
	ips, malformed := parseIPs(c.Reported)
	switch {
	case malformed != "":
		c.Refused = "status.ips has " + malformed + ", which is not an address with a prefix length: recreate the claim"
	case len(ips) == 0:
	case !t.scopes.admits(c.Claim):
		c.Refused = fmt.Sprintf("namespace %s has no NetworkAttachmentDefinition of network %s: extend the network to the namespace, or recreate the claim with another spec.network", c.Holder.Namespace, c.Network)
	case len(ips) > 2 || len(ips) == 2 && ips[0].Addr().Is4() == ips[1].Addr().Is4():
		// Not kept: a tenant may have written a list of any length.
		c.Refused = "status.ips has more than one address of an IP family: recreate the claim"
	default:
		if err := t.allocator(c.Network).Reserve(c.Holder, ips); err != nil {
			c.Refused = err.Error() + ": delete its holder, or recreate this claim"
			if taken := (*TakenError)(nil); errors.As(err, &taken) {
				c.TakenAddress = taken.Resource
				key := topicRelease(c.Network, c.TakenAddress)
				if t.taken[key] == nil {
					t.taken[key] = map[types.UID]*claimState{}
				}
				t.taken[key][c.Holder.UID] = c
			}
			return
		}
		c.IPs = ips
	}
}

// setScope records whom a NAD admits. Claims that have waited for that get their
// addresses at once, before a pod can get them.
func (t *tracker) setScope(nadKey string, s scope) {
	for _, uid := range t.scopes.set(nadKey, s) {
		t.retryClaim(t.claims[uid])
	}
}

// retryClaim reserves the addresses of a claim that waited, and enqueues it and the pods that name it.
func (t *tracker) retryClaim(c *claimState) {
	t.reserveClaim(c)
	t.enqueueClaim(c.key())
	t.waiting.notifyAll(topicClaim(c.key()))
}

// forgetWait ends a claim's wait for its network or for an address.
func (t *tracker) forgetWait(c *claimState) {
	t.scopes.forget(c.Claim)
	if c.TakenAddress == "" {
		return
	}
	key := topicRelease(c.Network, c.TakenAddress)
	if delete(t.taken[key], c.Holder.UID); len(t.taken[key]) == 0 {
		delete(t.taken, key)
	}
}

// formerClaim returns the state for a claim that was deleted or recreated before
// this process became the leader, while pods had its addresses.
func (t *tracker) formerClaim(namespace, name, networkName string, ips []netip.Prefix) *claimState {
	uid := types.UID(fmt.Sprintf("former %s/%s %s %s", namespace, name, networkName, join(sorted(ips))))
	c := t.claims[uid]
	if c == nil {
		c = &claimState{deleted: true, Claim: Claim{Holder: Holder{Claim: true, Namespace: namespace, Name: name, UID: uid}, Network: networkName}}
		t.claims[uid] = c
	}
	return c
}

// claimDeleted marks the claim with the given key as deleted, unless it has the
// uid except.
func (t *tracker) claimDeleted(key string, except types.UID) {
	uid, ok := t.claimUIDs[key]
	if !ok || uid == except {
		return
	}
	delete(t.claimUIDs, key)
	if c := t.claims[uid]; c != nil {
		c.deleted = true
		t.removeClaim(c)
	}
}

// Usage is the number of addresses in use on a network, per IP family.
type Usage struct {
	Network string
	Family  string // "ipv4" or "ipv6"
	Used    int
	Size    float64 // of the subnets; the size of an IPv6 subnet overflows an integer
}

func (t *tracker) usage() []Usage {
	var out []Usage
	for _, name := range slices.Sorted(maps.Keys(t.allocators)) {
		a := t.allocators[name]
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
