// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// NAD is one NetworkAttachmentDefinition as the node side sees it: the network
// it names, and why it cannot be used, if so.
type NAD struct {
	Namespace, Name string
	Network         Network
	Err             error // set: the NAD is malformed or has no id yet
}

// Key is the NAD's key in pod annotations.
func (n NAD) Key() string { return NADKey(n.Namespace, n.Name) }

// Catalog knows every network by what NADs say, indexed so that one event
// costs the same however many networks there are. It is not safe for
// concurrent use.
type Catalog struct {
	byKey       map[string]NAD
	byNamespace map[string]map[string]struct{} // namespace → NAD keys
	byNetwork   map[string]map[string]struct{} // network name → NAD keys
}

// NewCatalog makes an empty catalog.
func NewCatalog() *Catalog {
	return &Catalog{byKey: map[string]NAD{}, byNamespace: map[string]map[string]struct{}{}, byNetwork: map[string]map[string]struct{}{}}
}

// Set records a NAD and returns the names of the networks it touched: its
// own, and the one it named before.
func (c *Catalog) Set(nad NAD) []string {
	key := nad.Key()
	touched := c.Delete(key)
	c.byKey[key] = nad
	add(c.byNamespace, nad.Namespace, key)
	if nad.Network.Name != "" {
		add(c.byNetwork, nad.Network.Name, key)
		if !slices.Contains(touched, nad.Network.Name) {
			touched = append(touched, nad.Network.Name)
		}
	}
	return touched
}

// Delete forgets a NAD and returns the name of the network it named.
func (c *Catalog) Delete(key string) []string {
	nad, ok := c.byKey[key]
	if !ok {
		return nil
	}
	delete(c.byKey, key)
	remove(c.byNamespace, nad.Namespace, key)
	if nad.Network.Name == "" {
		return nil
	}
	remove(c.byNetwork, nad.Network.Name, key)
	return []string{nad.Network.Name}
}

// NAD is the NAD with that key.
func (c *Catalog) NAD(key string) (NAD, bool) { n, ok := c.byKey[key]; return n, ok }

// Network is the network with that name: the lowest-keyed of its usable NADs
// speaks for it. ok is false when no usable NAD names it.
func (c *Catalog) Network(name string) (n Network, ok bool) {
	best := ""
	for key := range c.byNetwork[name] {
		if nad := c.byKey[key]; nad.Err == nil && (best == "" || key < best) {
			best, n = key, nad.Network
		}
	}
	return n, best != ""
}

// Names tells whether any NAD, usable or not, names the network.
func (c *Catalog) Names(network string) bool { return len(c.byNetwork[network]) > 0 }

// Namespaces are those with a usable NAD of the network, in order.
func (c *Catalog) Namespaces(name string) []string {
	var out []string
	for key := range c.byNetwork[name] {
		if nad := c.byKey[key]; nad.Err == nil && !slices.Contains(out, nad.Namespace) {
			out = append(out, nad.Namespace)
		}
	}
	slices.Sort(out)
	return out
}

// Networks are the names of all networks with a usable NAD, in order.
func (c *Catalog) Networks() []string {
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
func (c *Catalog) Primary(namespace string, labelled bool) (*NAD, error) {
	if !labelled {
		return nil, nil
	}
	var found []NAD
	var broken []string
	for key := range c.byNamespace[namespace] {
		nad := c.byKey[key]
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
