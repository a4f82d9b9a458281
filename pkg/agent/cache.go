// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"bulkhead/pkg/network"
	"bulkhead/pkg/vrf"
)

// Cache holds the objects of the API server that the agent reads, indexed so
// that an event costs the same however many networks there are. It returns
// copies and values.
type Cache struct {
	mu          sync.Mutex
	nads        *network.NADIndex
	foreign     map[string]struct{}                // keys of other CNI plugins' NADs
	ids         map[string]int                     // network name → id, from its last usable NAD
	networks    map[int]map[string]network.Network // id → name → network; two while an id moves between networks
	localnets   map[string]network.Network         // Localnet networks, by name
	namespaces  map[string]Namespace
	pods        map[string]Pod                       // of this node, by namespace/name
	podsByNS    map[string]map[string]struct{}       // namespace → keys of pods
	loopback    map[loopbackPort]map[string]struct{} // host ports at loopback addresses → keys of pods
	podsByPorts map[string]struct{}                  // keys of pods that name host ports
	services    serviceIndex
	removing    map[int]bool // deleted networks whose kernel state remains
	nodeID      int
	annotations map[string]string // of this Node
}

// Namespace is what the agent reads from a namespace's labels.
type Namespace struct {
	Labelled bool // its pods have a primary network
	Trusted  bool // the administrator trusts its host-network pods
}

// NewCache is an empty cache.
func NewCache() *Cache {
	return &Cache{
		nads: network.NewNADIndex(), foreign: map[string]struct{}{}, ids: map[string]int{}, networks: map[int]map[string]network.Network{}, localnets: map[string]network.Network{},
		namespaces: map[string]Namespace{}, pods: map[string]Pod{}, podsByNS: map[string]map[string]struct{}{}, loopback: map[loopbackPort]map[string]struct{}{}, podsByPorts: map[string]struct{}{}, removing: map[int]bool{}, services: newServiceIndex(),
	}
}

// NADChange is what a changed NAD affects.
type NADChange struct {
	IDs        []int // ids of networks to reconcile
	Members    []int // ids of unchanged networks that may have gained or lost the NAD's namespace with its pods and services
	Pods       bool  // the primary network of pods in the NAD's namespace may have changed
	Default    bool  // services or host ports may have come to the cluster default network, or left it
	Advertised bool  // the VRFs into which a network is advertised have changed
	Localnets  bool  // Localnets has changed
}

// SetNAD stores a NAD.
func (c *Cache) SetNAD(nad network.NAD) NADChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.nads.NAD(nad.Key())
	if ok && nad.Err != nil && nad.Network.Name == "" {
		nad.Network = network.Network{Name: old.Network.Name, ID: old.Network.ID} // an unreadable NAD still counts for the network that it named
	}
	if ok && reflect.DeepEqual(old, nad) {
		return NADChange{}
	}
	return c.nadChange(nad.Namespace, c.nads.Set(nad))
}

// DeleteNAD deletes a NAD.
func (c *Cache) DeleteNAD(key string) NADChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	nad, _ := c.nads.NAD(key)
	return c.nadChange(nad.Namespace, c.nads.Delete(key))
}

func (c *Cache) nadChange(namespace string, networks []string) NADChange {
	change := NADChange{Pods: len(c.podsByNS[namespace]) > 0, Localnets: c.updateLocalnets(networks)}
	change.IDs, change.Advertised = c.updateNetworks(networks)
	own := change.Pods || c.services.has(namespace)
	change.Default = own && len(networks) > 0 || len(change.IDs) > 0 && slices.ContainsFunc(networks, c.isReached)
	if own {
		for _, name := range networks {
			if id, ok := c.ids[name]; ok && !slices.Contains(change.IDs, id) {
				change.Members = append(change.Members, id)
			}
		}
	}
	return change
}

// isReached reports whether a network's namespaces have pods on this node, or services that are reached from outside their network.
func (c *Cache) isReached(name string) bool {
	return slices.ContainsFunc(c.nads.AllNamespaces(name), func(namespace string) bool { return len(c.podsByNS[namespace]) > 0 || c.services.has(namespace) })
}

// updateLocalnets updates the Localnet networks among those whose NADs changed, and returns
// whether any differs. One whose NADs are all malformed stays, as in updateNetworks.
func (c *Cache) updateLocalnets(names []string) (changed bool) {
	for _, name := range names {
		old, had := c.localnets[name]
		n, ok := c.nads.Network(name)
		switch {
		case ok && n.Topology == network.Localnet:
			changed = changed || !had || !reflect.DeepEqual(old, n)
			c.localnets[name] = n
		case had && (ok || !c.nads.HasNADs(name)):
			changed = true
			delete(c.localnets, name)
		}
	}
	return changed
}

// Localnets returns the Localnet networks. It omits those on the physical network own, which is
// Bulkhead's name for the external bridge: only an administrator may connect networks to it, under
// another name.
func (c *Cache) Localnets(own string) []network.Network {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []network.Network
	for _, n := range c.localnets {
		if n.PhysicalNetworkName != own {
			out = append(out, n)
		}
	}
	return out
}

// updateNetworks updates networks whose NADs changed, and returns the ids of those that differ, and whether
// one is advertised into other VRFs than before. A network whose NADs are all malformed is
// not deleted: its kernel state stays until a NAD is usable again, or no NAD names the
// network.
func (c *Cache) updateNetworks(names []string) (ids []int, advertised bool) {
	for _, name := range names {
		old, had := c.ids[name]
		n, ok := c.nads.Network(name)
		switch {
		case ok && n.IsPrimary():
			if had && old != n.ID {
				c.deleteNetwork(old, name)
				ids = append(ids, old)
			}
			c.ids[name] = n.ID
			delete(c.removing, n.ID)
			if c.networks[n.ID] == nil {
				c.networks[n.ID] = map[string]network.Network{}
			}
			before, known := c.networks[n.ID][name]
			advertised = advertised || before.AdvertisedVRFs != n.AdvertisedVRFs
			c.networks[n.ID][name] = n
			if !known || !reflect.DeepEqual(before, n) {
				ids = append(ids, n.ID)
			}
		case had && (ok || !c.nads.HasNADs(name)):
			c.deleteNetwork(old, name)
			ids = append(ids, old)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), advertised
}

func (c *Cache) deleteNetwork(id int, name string) {
	delete(c.networks[id], name)
	delete(c.ids, name)
	if len(c.networks[id]) == 0 {
		delete(c.networks, id)
		c.removing[id] = true
	}
}

// NamespaceChange is what a changed namespace affects.
type NamespaceChange struct {
	Labels   bool // what the agent reads has changed
	Pods     bool // it changed for pods of this node
	Services bool // it changed for services that are reached from outside their network
}

// SetNamespace stores a namespace.
func (c *Cache) SetNamespace(name string, n Namespace) NamespaceChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, seen := c.namespaces[name]
	c.namespaces[name] = n
	return NamespaceChange{Labels: was != n, Pods: (!seen || was != n) && len(c.podsByNS[name]) > 0, Services: was != n && len(c.services.byNamespace[name]) > 0}
}

// DeleteNamespace forgets a namespace.
func (c *Cache) DeleteNamespace(name string) NamespaceChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, seen := c.namespaces[name]
	delete(c.namespaces, name)
	return NamespaceChange{Labels: was != Namespace{}, Pods: seen && len(c.podsByNS[name]) > 0, Services: was != Namespace{} && len(c.services.byNamespace[name]) > 0}
}

// SetNode stores this Node's id and annotations, and returns whether the id
// changed.
func (c *Cache) SetNode(n network.Node, annotations map[string]string) (idChanged bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.annotations = annotations
	if n.ID == 0 || n.ID == c.nodeID { // if the annotation disappears, the node keeps its id
		return false
	}
	c.nodeID = n.ID
	return true
}

// NodeID is this node's id, 0 while it has none.
func (c *Cache) NodeID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodeID
}

// MarkSynced says that the cache holds every NAD. From then on a network keeps
// the definition that most of its NADs have until all agree on another one. It
// returns the NADs that are refused because they differ from that definition.
func (c *Cache) MarkSynced() []network.NAD {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nads.MarkSynced()
}

// Annotations are this Node's annotations.
func (c *Cache) Annotations() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.annotations
}

// SetWrittenAnnotations stores annotations that the agent has written, so that
// the agent does not write them again before their watch event arrives.
func (c *Cache) SetWrittenAnnotations(written map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	merged := maps.Clone(c.annotations)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, written)
	c.annotations = merged
}

// Network is the network with that id. While an id moves between two networks,
// it is the first by name.
func (c *Cache) Network(id int) (network.Network, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.networkByID(id)
}

func (c *Cache) networkByID(id int) (n network.Network, ok bool) {
	first := ""
	for name, x := range c.networks[id] {
		if first == "" || name < first {
			first, n = name, x
		}
	}
	return n, first != ""
}

// Networks are the networks that the agent configures the kernel for, by id.
func (c *Cache) Networks() []network.Network {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]network.Network, 0, len(c.networks))
	for _, id := range slices.Sorted(maps.Keys(c.networks)) {
		n, _ := c.networkByID(id)
		out = append(out, n)
	}
	return out
}

// networkWithAlias returns the network that a VRF device's alias names, if a NAD names that, too.
func (c *Cache) networkWithAlias(alias string) (name string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name, ok = strings.CutPrefix(alias, vrf.AliasPrefix); ok && c.nads.HasNADs(name) {
		return name, true
	}
	for name := range c.nads.Names() { // the alias of a long name is shortened
		if vrf.AliasOf(name) == alias {
			return name, true
		}
	}
	return "", false
}

// Removing are the ids of deleted networks whose kernel state remains.
func (c *Cache) Removing() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.removing))
}

// MarkRemoved says that the kernel state of a deleted network is removed.
func (c *Cache) MarkRemoved(id int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.removing, id)
}

// Primary is the NAD of the primary network of a namespace's pods; nil if they
// have none. The agent may see a new namespace's pods before it sees the namespace: until then
// it is not known whether they have one.
func (c *Cache) Primary(namespace string) (*network.NAD, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ns, seen := c.namespaces[namespace]
	if !seen {
		return nil, fmt.Errorf("the agent has not seen namespace %s yet", namespace)
	}
	return c.nads.Primary(namespace, ns.Labelled)
}

// SetForeign stores whether a NAD of another CNI plugin has the key.
func (c *Cache) SetForeign(key string, exists bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(c.foreign, key); exists {
		c.foreign[key] = struct{}{}
	}
}

// Foreign implements cni.Networks.
func (c *Cache) Foreign(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.foreign[key]
	return ok
}

// NAD is the NAD with that key.
func (c *Cache) NAD(key string) (network.NAD, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nads.NAD(key)
}

// primaryID is the id of the primary network of a namespace's pods; 0 if there
// is none or it is unknown. A namespace whose NAD is unusable keeps the network's services and host ports: the NAD may
// differ from the network's other NADs only because the cluster controller has not yet updated all of them. Such a NAD must have
// the network's id, which only the cluster controller writes: anybody may write the name.
func (c *Cache) primaryID(namespace string) int {
	nad, err := c.nads.Primary(namespace, c.namespaces[namespace].Labelled)
	switch {
	case err != nil:
		return c.unusablePrimaryID(namespace)
	case nad == nil:
		return 0
	}
	return nad.Network.ID
}

// unusablePrimaryID is the id of the only primary network that a namespace's NADs are of, usable or not; 0 for none.
func (c *Cache) unusablePrimaryID(namespace string) int {
	only := 0
	for _, nad := range c.nads.InNamespace(namespace) {
		id := nad.Network.ID
		if n := c.networks[id][nad.Network.Name]; !n.IsPrimary() {
			continue
		}
		if only != 0 && only != id {
			return 0
		}
		only = id
	}
	return only
}

// PrimaryID is the id of the primary network of a namespace's pods; 0 if there is none or it is unknown.
func (c *Cache) PrimaryID(namespace string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.primaryID(namespace)
}

// NetworkID is the id of the network with that name; 0 if the agent does not
// configure the kernel for it.
func (c *Cache) NetworkID(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids[name]
}

// Namespaces are the namespaces with a NAD of the network.
func (c *Cache) Namespaces(name string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nads.Namespaces(name)
}
