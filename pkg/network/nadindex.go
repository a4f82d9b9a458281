// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// NAD is one NetworkAttachmentDefinition as the node side sees it: the network
// it names, and why it cannot be used, if so.
type NAD struct {
	Namespace, Name string
	Network         Network
	Err             error // set: the NAD is malformed, has no id yet, or differs from others of its network
}

// Key is the NAD's key in pod annotations.
func (n NAD) Key() string { return NADKey(n.Namespace, n.Name) }

// NADIndex knows every network by what NADs say, indexed so that one event
// costs the same however many networks there are. It is not safe for
// concurrent use.
type NADIndex struct {
	byKey       map[string]NAD                 // as set
	byNamespace map[string]map[string]struct{} // namespace → NAD keys
	byNetwork   map[string]*descriptions       // by network name
	settled     bool
}

// NewNADIndex makes an empty catalog.
func NewNADIndex() *NADIndex {
	return &NADIndex{byKey: map[string]NAD{}, byNamespace: map[string]map[string]struct{}{}, byNetwork: map[string]*descriptions{}}
}

// Settle tells that all NADs that there are have been set: what most of a
// network's say is agreed, and stays so until all of them say another thing.
// It returns the NADs that are refused because they differ, in order.
func (c *NADIndex) Settle() []NAD {
	c.settled = true
	var out []NAD
	for _, key := range slices.Sorted(maps.Keys(c.byKey)) {
		if nad, _ := c.NAD(key); nad.Err != nil && c.byKey[key].Err == nil {
			out = append(out, nad)
		}
	}
	return out
}

// Set records a NAD and returns the names of the networks it touched: its
// own, and the one it named before.
func (c *NADIndex) Set(nad NAD) []string {
	key, name := nad.Key(), nad.Network.Name
	was, had := c.byKey[key]
	var touched []string
	if had && was.Network.Name != name {
		touched, had = c.Delete(key), false
	}
	c.byKey[key] = nad
	add(c.byNamespace, nad.Namespace, key)
	if name == "" {
		return touched
	}
	d := c.byNetwork[name]
	if d == nil {
		d = newDescriptions()
		c.byNetwork[name] = d
	}
	d.set(nad, was, had)
	d.agree(c.settled)
	return append(touched, name)
}

// Delete forgets a NAD and returns the name of the network it named.
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
		d.agree(c.settled)
	}
	return []string{name}
}

// NAD is the NAD with that key. Err is set also where it describes its network
// in another way than the network's others.
func (c *NADIndex) NAD(key string) (NAD, bool) {
	nad, ok := c.byKey[key]
	if d := c.byNetwork[nad.Network.Name]; d != nil {
		nad = d.judged(nad)
	}
	return nad, ok
}

// Network is the network with that name, as its NADs agree. ok is false when
// no usable NAD says so.
func (c *NADIndex) Network(name string) (n Network, ok bool) {
	d := c.byNetwork[name]
	if d == nil || d.agreed == nil || d.agreed.usable == 0 {
		return Network{}, false
	}
	return d.agreed.net, true
}

// Agreed is what the network's NADs agree on, in words that change with it; ""
// when there is nothing.
func (c *NADIndex) Agreed(name string) string {
	if d := c.byNetwork[name]; d != nil && d.agreed != nil {
		return d.agreed.text
	}
	return ""
}

// Names tells whether any NAD, usable or not, names the network.
func (c *NADIndex) Names(network string) bool { return c.byNetwork[network] != nil }

// Namespaces are those with a usable NAD of the network, in order.
func (c *NADIndex) Namespaces(name string) []string {
	d := c.byNetwork[name]
	if d == nil {
		return nil
	}
	var out []string
	for key := range d.nads {
		if nad, _ := c.NAD(key); nad.Err == nil {
			out = append(out, nad.Namespace)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Networks are the names of all networks with a usable NAD, in order.
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

// ErrNoPrimary says that a namespace that must have a primary network has none yet.
var ErrNoPrimary = errors.New("no primary network yet")

// Primary is the NAD of the namespace's primary network. labelled says whether
// the namespace carries LabelPrimaryUDN. The proposal's four cases: without
// the label there is none (nil, nil) whatever the NADs say; with it, none is
// ErrNoPrimary, and several are an error until all but one are gone.
func (c *NADIndex) Primary(namespace string, labelled bool) (*NAD, error) {
	if !labelled {
		return nil, nil
	}
	var found []NAD
	var broken []string
	for key := range c.byNamespace[namespace] {
		nad, _ := c.NAD(key)
		switch {
		case nad.Err != nil:
			broken = append(broken, fmt.Sprintf("%s: %v", key, nad.Err))
		case nad.Network.Role == RolePrimary:
			found = append(found, nad)
		}
	}
	slices.SortFunc(found, func(a, b NAD) int { return strings.Compare(a.Key(), b.Key()) })
	slices.Sort(broken)
	switch {
	case len(found) == 1:
		return &found[0], nil
	case len(found) > 1:
		keys := make([]string, len(found))
		for i, n := range found {
			keys[i] = n.Key()
		}
		return nil, fmt.Errorf("namespace %s has %d primary networks (%s): delete all but one", namespace, len(found), strings.Join(keys, ", "))
	case len(broken) > 0:
		return nil, fmt.Errorf("namespace %s: %w (%s)", namespace, ErrNoPrimary, strings.Join(broken, "; "))
	default:
		return nil, fmt.Errorf("namespace %s carries the label %s: %w: create a UserDefinedNetwork or ClusterUserDefinedNetwork with role Primary", namespace, LabelPrimaryUDN, ErrNoPrimary)
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
