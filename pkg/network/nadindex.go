// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// NAD is one parsed NetworkAttachmentDefinition: the network that it defines,
// or why it cannot be used.
type NAD struct {
	Namespace, Name string
	Network         Network
	Err             error // the NAD is malformed, has no network id yet, or differs from its network's other NADs
	Deleting        bool  // it waits for the pods that use it, and new ones do not get it
}

// Key is the NAD's key in pod annotations.
func (n NAD) Key() string { return NADKey(n.Namespace, n.Name) }

// Admits reports whether pods of a namespace may have an interface on the NAD's network: a primary network,
// and that of a UserDefinedNetwork or ClusterUserDefinedNetwork, is for the NAD's own namespace.
// Annotations of pods do not decide.
func (n NAD) Admits(namespace string) bool {
	return n.Namespace == namespace || !n.Network.IsPrimary() && !IsUDNName(n.Network.Name)
}

// NADIndex is an index of NADs by key, namespace and network. The cost of one
// change does not depend on the number of networks. It is not safe for
// concurrent use.
type NADIndex struct {
	byKey       map[string]NAD                 // as passed to Set
	byNamespace map[string]map[string]struct{} // namespace → NAD keys
	byNetwork   map[string]*definitions        // by network name
	synced      bool
}

// NewNADIndex returns an empty index.
func NewNADIndex() *NADIndex {
	return &NADIndex{byKey: map[string]NAD{}, byNamespace: map[string]map[string]struct{}{}, byNetwork: map[string]*definitions{}}
}

// MarkSynced marks the initial list of NADs as complete. From then on the
// definition of a network that most of its NADs have stays in effect until all
// of them agree on another one. MarkSynced returns the NADs that are refused
// because they differ, sorted by key.
func (c *NADIndex) MarkSynced() []NAD {
	c.synced = true
	var out []NAD
	for _, key := range slices.Sorted(maps.Keys(c.byKey)) {
		if nad, _ := c.NAD(key); nad.Err != nil && c.byKey[key].Err == nil {
			out = append(out, nad)
		}
	}
	return out
}

// Set adds or replaces a NAD and returns the names of the affected networks:
// that of the NAD and that of its previous state.
func (c *NADIndex) Set(nad NAD) []string {
	key, name := nad.Key(), nad.Network.Name
	old, had := c.byKey[key]
	var affected []string
	if had && old.Network.Name != name {
		affected, had = c.Delete(key), false
	}
	c.byKey[key] = nad
	add(c.byNamespace, nad.Namespace, key)
	if name == "" {
		return affected
	}
	d := c.byNetwork[name]
	if d == nil {
		d = newDefinitions()
		c.byNetwork[name] = d
	}
	d.set(nad, old, had)
	d.agree(c.synced)
	return append(affected, name)
}

// Delete removes a NAD and returns the name of its network.
func (c *NADIndex) Delete(key string) []string {
	nad, ok := c.byKey[key]
	if !ok {
		return nil
	}
	delete(c.byKey, key)
	remove(c.byNamespace, nad.Namespace, key)
	name := nad.Network.Name
	if name == "" {
		return nil
	}
	d := c.byNetwork[name]
	d.remove(nad)
	if len(d.nads) == 0 {
		delete(c.byNetwork, name)
	} else {
		d.agree(c.synced)
	}
	return []string{name}
}

// NAD returns the NAD with the given key. Its Err is also set if its definition
// differs from the one in effect for its network.
func (c *NADIndex) NAD(key string) (NAD, bool) {
	nad, ok := c.byKey[key]
	if d := c.byNetwork[nad.Network.Name]; d != nil {
		nad = d.check(nad)
	}
	return nad, ok
}

// Network returns the network with the given name, with the definition in
// effect. ok is false if no usable NAD has that definition.
func (c *NADIndex) Network(name string) (n Network, ok bool) {
	d := c.byNetwork[name]
	if d == nil || d.agreed == nil || d.agreed.usable == 0 {
		return Network{}, false
	}
	return d.agreed.net, true
}

// Fingerprint returns a text that changes with the definition in effect for a
// network. It is "" if there is none.
func (c *NADIndex) Fingerprint(name string) string {
	if d := c.byNetwork[name]; d != nil && d.agreed != nil {
		return d.agreed.text
	}
	return ""
}

// HasNADs reports whether a network has NADs, usable or not.
func (c *NADIndex) HasNADs(network string) bool { return c.byNetwork[network] != nil }

// Names returns the names of all networks that NADs name, usable or not, in no order.
func (c *NADIndex) Names() iter.Seq[string] { return maps.Keys(c.byNetwork) }

// Namespaces returns the namespaces with a usable NAD of the network, sorted.
func (c *NADIndex) Namespaces(name string) []string {
	var out []string
	for _, nad := range c.Usable(name) {
		out = append(out, nad.Namespace)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// AllNamespaces returns the namespaces with a NAD of the network, usable or not, sorted.
func (c *NADIndex) AllNamespaces(name string) []string {
	var out []string
	for _, key := range c.Keys(name) {
		out = append(out, c.byKey[key].Namespace)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Keys returns the keys of all NADs of the network, usable or not, sorted.
func (c *NADIndex) Keys(name string) []string {
	if d := c.byNetwork[name]; d != nil {
		return slices.Sorted(maps.Keys(d.nads))
	}
	return nil
}

// InNamespace returns a namespace's NADs, usable or not, sorted by key.
func (c *NADIndex) InNamespace(namespace string) []NAD {
	var out []NAD
	for _, key := range slices.Sorted(maps.Keys(c.byNamespace[namespace])) {
		nad, _ := c.NAD(key)
		out = append(out, nad)
	}
	return out
}

// Usable returns the usable NADs of the network, sorted by key.
func (c *NADIndex) Usable(name string) []NAD {
	d := c.byNetwork[name]
	if d == nil {
		return nil
	}
	var out []NAD
	for _, key := range slices.Sorted(maps.Keys(d.nads)) {
		if nad, _ := c.NAD(key); nad.Err == nil {
			out = append(out, nad)
		}
	}
	return out
}

// Networks returns the names of all networks that Network returns, sorted.
func (c *NADIndex) Networks() []string {
	var out []string
	for name := range c.byNetwork {
		if _, ok := c.Network(name); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// ErrNoPrimary is returned for a namespace that requires a primary network and
// has none yet.
var ErrNoPrimary = errors.New("no primary network yet")

// Primary returns the NAD of the namespace's primary network. labelled tells whether the namespace has
// LabelPrimaryUDN. These are the four cases of the User Defined Networks proposal: a namespace without the
// label has no primary network (nil, nil), whatever its NADs; in one with the label, no primary network is
// ErrNoPrimary, and several are an error until all but one are deleted.
func (c *NADIndex) Primary(namespace string, labelled bool) (*NAD, error) {
	if !labelled {
		return nil, nil
	}
	var found []NAD
	var unusable []string
	for key := range c.byNamespace[namespace] {
		nad, _ := c.NAD(key)
		switch {
		case nad.Err != nil:
			unusable = append(unusable, fmt.Sprintf("%s: %v", key, nad.Err))
		case nad.Network.Role == RolePrimary:
			found = append(found, nad)
		}
	}
	slices.SortFunc(found, func(a, b NAD) int { return strings.Compare(a.Key(), b.Key()) })
	slices.Sort(unusable)
	switch {
	case len(found) == 1:
		return &found[0], nil
	case len(found) > 1:
		keys := make([]string, len(found))
		for i, n := range found {
			keys[i] = n.Key()
		}
		return nil, fmt.Errorf("namespace %s has %d primary networks (%s): delete all but one", namespace, len(found), strings.Join(keys, ", "))
	case len(unusable) > 0:
		return nil, fmt.Errorf("namespace %s: %w (%s)", namespace, ErrNoPrimary, strings.Join(unusable, "; "))
	default:
		return nil, fmt.Errorf("namespace %s has the label %s: %w: create a UserDefinedNetwork or ClusterUserDefinedNetwork with role Primary", namespace, LabelPrimaryUDN, ErrNoPrimary)
	}
}

func add(m map[string]map[string]struct{}, a, b string) {
	if m[a] == nil {
		m[a] = map[string]struct{}{}
	}
	m[a][b] = struct{}{}
}

func remove(m map[string]map[string]struct{}, a, b string) {
	delete(m[a], b)
	if len(m[a]) == 0 {
		delete(m, a)
	}
}
