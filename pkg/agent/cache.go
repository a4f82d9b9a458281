// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
)

// Cache is what the API server says, indexed so that an event costs the same
// however many networks there are. What it answers are copies or values.
type Cache struct {
	mu         sync.Mutex
	catalog    *network.NADIndex
	ids        map[string]int                     // network name → id, from its last usable NAD
	networks   map[int]map[string]network.Network // id → name → network: two only while one id changes hands
	namespaces map[string]Namespace               // those with a label that matters
	pods       map[string]Pod                     // of this node, by namespace/name
	byNS       map[string]map[string]struct{}     // namespace → pods' keys
	leaving    map[int]bool                       // networks that went and whose kernel state is still there
	nodeID     int
	annotated  map[string]string // this Node's annotations
}

// Pod is a pod of this node, as far as the agent needs it.
type Pod struct {
	UID, Namespace, Name string
	HostNetwork          bool
	OptOut               bool // asks for hostnet.OptOutAnnotation
	Networks             network.PodNetworks
	// Of a host-network pod: the TCP ports that kubelet probes, and those that
	// its containers declare.
	ProbePorts, Ports []uint16
}

// Namespace is what the labels of a namespace say.
type Namespace struct {
	Labelled bool // its pods have a primary network
	Trusted  bool // the administrator trusts its host-network pods
}

// Key is namespace/name.
func (p Pod) Key() string { return p.Namespace + "/" + p.Name }

// NewCache is empty.
func NewCache() *Cache {
	return &Cache{
		catalog: network.NewNADIndex(), ids: map[string]int{}, networks: map[int]map[string]network.Network{},
		namespaces: map[string]Namespace{}, pods: map[string]Pod{}, byNS: map[string]map[string]struct{}{}, leaving: map[int]bool{},
	}
}

// carried tells whether the node's kernel holds anything for n.
func carried(n network.Network) bool { return !n.IsDefault() && n.Carried() == nil }

// SetNAD records a NAD and returns the ids of networks to look at, and whether
// pods of its namespace may now belong to another network.
func (s *Cache) SetNAD(nad network.NAD) (ids []int, hosts bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.catalog.NAD(nad.Key()); ok && nad.Err != nil && nad.Network.Name == "" {
		nad.Network.Name = old.Network.Name // unreadable now: it still stands for what it named
	}
	return s.touch(s.catalog.Set(nad)), len(s.byNS[nad.Namespace]) > 0
}

// DeleteNAD forgets a NAD.
func (s *Cache) DeleteNAD(key string) (ids []int, hosts bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	nad, _ := s.catalog.NAD(key)
	return s.touch(s.catalog.Delete(key)), len(s.byNS[nad.Namespace]) > 0
}

// touch follows networks by name to their ids. A network whose NADs are all
// malformed is not gone: what is in the kernel stays as it is until a NAD is
// usable again, or none names the network any more.
func (s *Cache) touch(names []string) []int {
	var ids []int
	for _, name := range names {
		old, had := s.ids[name]
		n, ok := s.catalog.Network(name)
		switch {
		case ok && carried(n):
			if had && old != n.ID {
				s.drop(old, name)
				ids = append(ids, old)
			}
			s.ids[name] = n.ID
			delete(s.leaving, n.ID)
			if s.networks[n.ID] == nil {
				s.networks[n.ID] = map[string]network.Network{}
			}
			s.networks[n.ID][name] = n
			ids = append(ids, n.ID)
		case had && (ok || !s.catalog.Names(name)):
			s.drop(old, name)
			ids = append(ids, old)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (s *Cache) drop(id int, name string) {
	delete(s.networks[id], name)
	delete(s.ids, name)
	if len(s.networks[id]) == 0 {
		delete(s.networks, id)
		s.leaving[id] = true
	}
}

// SetNamespace records what a namespace's labels say.
func (s *Cache) SetNamespace(name string, n Namespace) (hosts bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.namespaces[name] != n
	if n != (Namespace{}) {
		s.namespaces[name] = n
	} else {
		delete(s.namespaces, name)
	}
	return changed && len(s.byNS[name]) > 0
}

// SetPod records a pod of this node; hosts tells whether what the node's
// programs know may change.
func (s *Cache) SetPod(p Pod) (hosts bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, had := s.pods[p.Key()]
	s.pods[p.Key()] = p
	if s.byNS[p.Namespace] == nil {
		s.byNS[p.Namespace] = map[string]struct{}{}
	}
	s.byNS[p.Namespace][p.Key()] = struct{}{}
	return !had || old.UID != p.UID || old.HostNetwork != p.HostNetwork || old.OptOut != p.OptOut || !slices.Equal(lockedOf(old), lockedOf(p)) ||
		!slices.Equal(old.ProbePorts, p.ProbePorts) || !slices.Equal(old.Ports, p.Ports)
}

// DeletePod forgets a pod.
func (s *Cache) DeletePod(key string) (hosts bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pods[key]
	if !ok {
		return false
	}
	delete(s.pods, key)
	delete(s.byNS[p.Namespace], key)
	if len(s.byNS[p.Namespace]) == 0 {
		delete(s.byNS, p.Namespace)
	}
	return p.HostNetwork || len(lockedOf(p)) > 0
}

// lockedOf are the pod's addresses on the cluster default network, if another
// network is its primary one.
func lockedOf(p Pod) []netip.Prefix {
	if n, ok := p.Networks[network.DefaultName]; ok && n.Role == network.RoleInfrastructureLocked {
		return n.IPs
	}
	return nil
}

// SetNode records this Node's annotations; changed tells whether its id did.
func (s *Cache) SetNode(n network.Node, annotations map[string]string) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.annotated = annotations
	if n.ID == 0 || n.ID == s.nodeID { // an id that goes missing does not unmake the node
		return false
	}
	s.nodeID = n.ID
	return true
}

// NodeID is this node's id, 0 while it has none.
func (s *Cache) NodeID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodeID
}

// Settle tells that every NAD that there is has been set: what a network's NADs
// agree on is that network. It returns those that say another thing and are
// refused for it.
func (s *Cache) Settle() []network.NAD {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catalog.Settle()
}

// Annotations are this Node's, as the API server has them.
func (s *Cache) Annotations() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.annotated
}

// Annotated records what was just written, so that it is not written again
// before the API server tells of it.
func (s *Cache) Annotated(written map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	merged := maps.Clone(s.annotated)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, written)
	s.annotated = merged
}

// Network is the network with that id. Should two claim it while the id
// changes hands, the name that sorts first has it.
func (s *Cache) Network(id int) (network.Network, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.network(id)
}

func (s *Cache) network(id int) (n network.Network, ok bool) {
	best := ""
	for name, x := range s.networks[id] {
		if best == "" || name < best {
			best, n = name, x
		}
	}
	return n, best != ""
}

// Networks are those this node carries, by id.
func (s *Cache) Networks() []network.Network {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]network.Network, 0, len(s.networks))
	for _, id := range slices.Sorted(maps.Keys(s.networks)) {
		n, _ := s.network(id)
		out = append(out, n)
	}
	return out
}

// Named tells whether any NAD, usable or not, names the network.
func (s *Cache) Named(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catalog.Names(name)
}

// Leaving are ids of networks that went and are not undone yet.
func (s *Cache) Leaving() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.leaving))
}

// Gone says that nothing is left of a network that went.
func (s *Cache) Gone(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leaving, id)
}

// Primary is the NAD of the primary network of a namespace's pods; nil when it
// has none.
func (s *Cache) Primary(namespace string) (*network.NAD, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catalog.Primary(namespace, s.namespaces[namespace].Labelled)
}

// NAD is the NAD with that key.
func (s *Cache) NAD(key string) (network.NAD, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catalog.NAD(key)
}

// primary is the id of the primary network of a namespace's pods. 0: none, or it
// cannot be told.
func (s *Cache) primary(namespace string) int {
	nad, err := s.catalog.Primary(namespace, s.namespaces[namespace].Labelled)
	if err != nil || nad == nil {
		return 0
	}
	return nad.Network.ID
}

// HostPods are the host-network pods of this node, in order of their names.
func (s *Cache) HostPods() []hostnet.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []hostnet.Pod
	for ns, keys := range s.byNS {
		labels := s.namespaces[ns]
		id := s.primary(ns)
		if labels.Labelled && id == 0 {
			id = hostnet.NetworkUnknown
		}
		for key := range keys {
			if p := s.pods[key]; p.HostNetwork {
				out = append(out, hostnet.Pod{UID: p.UID, Namespace: p.Namespace, Name: p.Name, NetworkID: id,
					Unbound: p.OptOut && labels.Trusted, Trusted: labels.Trusted, ProbePorts: p.ProbePorts, Ports: p.Ports})
			}
		}
	}
	slices.SortFunc(out, func(a, b hostnet.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// IsLocked tells whether the default-network interface of a pod of this node is
// locked. Of one that is not known its namespace's label decides.
func (s *Cache) IsLocked(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.pods[key]; ok {
		n, told := p.Networks[network.DefaultName]
		if told {
			return n.Role == network.RoleInfrastructureLocked
		}
	}
	ns, _, _ := strings.Cut(key, "/")
	return s.namespaces[ns].Labelled
}

// NetworkID is the id of the network with that name; 0: it has none here.
func (s *Cache) NetworkID(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[name]
}

// Pod is a pod of this node, by namespace/name.
func (s *Cache) Pod(key string) (Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pods[key]
	return p, ok
}

// PodByUID is a pod of this node.
func (s *Cache) PodByUID(uid string) (Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		if uid != "" && p.UID == uid {
			return p, true
		}
	}
	return Pod{}, false
}

// Locked are the default-network addresses that only kubelet may reach. The
// pod's own annotation decides: it outlives the NAD, and so does the lock.
func (s *Cache) Locked() []hostnet.LockedAddr {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []hostnet.LockedAddr
	for _, p := range s.pods {
		for _, ip := range lockedOf(p) {
			out = append(out, hostnet.LockedAddr{Addr: ip.Addr().Unmap(), NetworkID: s.networkOf(p)})
		}
	}
	slices.SortFunc(out, func(a, b hostnet.LockedAddr) int { return a.Addr.Compare(b.Addr) })
	return out
}

// networkOf is the id of the pod's primary network.
func (s *Cache) networkOf(p Pod) int {
	for key, n := range p.Networks {
		if n.Role == network.RolePrimary && key != network.DefaultName {
			if nad, ok := s.catalog.NAD(key); ok && nad.Err == nil {
				return nad.Network.ID
			}
		}
	}
	return s.primary(p.Namespace)
}

// PodsByNetwork are the keys of this node's pods, by the id of their primary
// network: those with an interface on it, and those in the host's network.
func (s *Cache) PodsByNetwork() (pods, hostPods map[int][]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pods, hostPods = map[int][]string{}, map[int][]string{}
	for _, key := range slices.Sorted(maps.Keys(s.pods)) {
		p := s.pods[key]
		id := s.networkOf(p)
		switch {
		case id == network.DefaultID && (p.HostNetwork || len(p.Networks) == 0):
			// Of no network of ours, or not told yet which.
		case p.HostNetwork:
			hostPods[id] = append(hostPods[id], key)
		default:
			pods[id] = append(pods[id], key)
		}
	}
	return pods, hostPods
}

// Namespaces are those with a NAD of the network.
func (s *Cache) Namespaces(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catalog.Namespaces(name)
}
