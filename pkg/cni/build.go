// SPDX-License-Identifier: Apache-2.0

// Package cni is the agent's CNI server: it configures pods' interfaces,
// addresses and routes from the pod-networks annotation, and connects them to
// Open vSwitch. Build returns a pod's desired state, Diff the operations from
// the actual to the desired state, and Links applies them over netlink.
package cni

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"bulkhead/pkg/network"
)

// Pod is what one ADD creates: interfaces, in order.
type Pod struct {
	Request    Request
	UID        string
	Interfaces []Interface
	Delegated  bool // see Inputs
}

// Interface is one of a pod's interfaces and the logical port behind it.
type Interface struct {
	Link
	NAD     string // key, or network.DefaultName
	Network string
	LSP     string
	Role    network.Role
	Default bool // carries the pod's default route
}

// Link is one interface inside the pod, with its host end.
type Link struct {
	Name      string
	Host      string // name of the host end
	MAC       string
	MTU       int
	Up        bool
	Addresses []netip.Prefix // sorted
	Routes    []Route        // sorted
	// Stale: the host end exists, but its peer is not this interface.
	Stale bool
}

// Route is a route inside the pod via a gateway on the link.
type Route struct {
	Dest netip.Prefix
	Via  netip.Addr
}

// State holds a pod's links by name.
type State map[string]Link

// Port is the Open vSwitch port of an interface's host end.
type Port struct {
	Name           string // of the host end
	LSP            string
	Namespace, Pod string
	UID            string
	MAC            string
	Sandbox        string
	IfName         string
	Attachment     string
	NAD            string
	Network        string
}

// Inputs is what Build needs besides the request.
type Inputs struct {
	UID        string // the pod's
	Annotation network.PodNetworks
	// Networks holds the network of every NAD key in Annotation;
	// network.DefaultName is the cluster default network.
	Networks map[string]network.Network
	// Primary is the NAD key of the namespace's primary network, if any.
	Primary string
	// Secondary are the interfaces that the pod requests.
	Secondary []Attachment
	// Plan has what remains reachable by the primary network if the pod has its default route on another.
	Plan network.Plan
	// Delegated: a meta plugin calls, and attaches those one by one. Multus refuses to
	// attach an interface that already exists.
	Delegated bool
}

// Attachment is an interface on a secondary network.
type Attachment struct{ Key, IfName string }

// Build returns the pod's desired state. It refuses a pod whose networks overlap.
func Build(r Request, in Inputs) (Pod, error) {
	if err := Overlap(in.Networks); err != nil {
		return Pod{}, fmt.Errorf("pod %s/%s: %w", r.Namespace, r.Pod, err)
	}
	p := Pod{Request: r, UID: in.UID, Delegated: in.Delegated}
	primary := cmp.Or(in.Primary, network.DefaultName)
	add := func(name, key string) error {
		entry, ok := in.Annotation[key]
		if !ok {
			return fmt.Errorf("pod %s/%s: annotation %s has no entry for %s", r.Namespace, r.Pod, network.AnnotationPodNetworks, key)
		}
		net, ok := in.Networks[key]
		if !ok {
			return fmt.Errorf("pod %s/%s: network of %s is unknown", r.Namespace, r.Pod, key)
		}
		if key == primary && r.NAD == "" && !in.Delegated { // a meta plugin replaces default routes itself
			for _, gw := range in.otherGateways() {
				entry = entry.WithoutDefault(net, in.Plan, gw.Is4())
			}
		}
		i, err := buildInterface(r, name, key, entry, net)
		if err != nil {
			return fmt.Errorf("pod %s/%s: entry %s of annotation %s: %w", r.Namespace, r.Pod, key, network.AnnotationPodNetworks, err)
		}
		i.Default = r.NAD == "" && key == primary
		if i.Default || r.NAD == "" && net.Role == network.RoleSecondary {
			for _, gw := range entry.Gateways {
				i.Routes = append(i.Routes, Route{Dest: netip.PrefixFrom(unspecified(gw), 0), Via: gw})
			}
		}
		slices.SortFunc(i.Routes, compareRoutes)
		i.Routes = slices.Compact(i.Routes)
		p.Interfaces = append(p.Interfaces, i)
		return nil
	}
	if r.NAD != "" {
		key, err := r.keyIn(in.Secondary)
		if err != nil {
			return Pod{}, err
		}
		return p, add(r.IfName, key)
	}
	if err := add(r.IfName, network.DefaultName); err != nil {
		return Pod{}, err
	}
	if in.Primary != "" {
		if r.IfName == network.PrimaryInterface {
			return Pod{}, fmt.Errorf("pod %s/%s: interface name %s is reserved for the primary network", r.Namespace, r.Pod, network.PrimaryInterface)
		}
		if err := add(network.PrimaryInterface, in.Primary); err != nil {
			return Pod{}, err
		}
	}
	for _, s := range in.Secondary {
		if s.IfName == r.IfName {
			return Pod{}, fmt.Errorf("pod %s/%s: interface name %s, which annotation %s requests, is reserved for the container runtime: choose another", r.Namespace, r.Pod, s.IfName, network.AnnotationNetworks)
		}
		if in.Delegated {
			continue
		}
		if err := add(s.IfName, s.Key); err != nil {
			return Pod{}, err
		}
	}
	return p, nil
}

// otherGateways are the gateways on secondary networks that the pod requests for its default routes.
func (in Inputs) otherGateways() (out []netip.Addr) {
	for _, s := range in.Secondary {
		if in.Networks[s.Key].Role == network.RoleSecondary {
			out = append(out, in.Annotation[s.Key].Gateways...)
		}
	}
	return out
}

// keyIn returns the key of the interface that a meta plugin attaches: a NAD may be
// requested several times. It refuses the pod's own interface, whose address is the pod's in the API and
// which kubelet probes, and NADs that the pod does not request: a meta plugin attaches them in place of the
// cluster default network, if the pod's annotation v1.multus-cni.io/default-network names them.
func (r Request) keyIn(secondary []Attachment) (string, error) {
	if r.IfName == runtimeInterface {
		return "", fmt.Errorf("pod %s/%s: interface %s is of the cluster default network, and not of NetworkAttachmentDefinition %s: remove the annotation %s, or name the default network in it", r.Namespace, r.Pod, r.IfName, r.NAD, network.AnnotationDefaultNetwork)
	}
	requested := false
	for _, s := range secondary {
		if network.NADOf(s.Key) != r.NAD {
			continue
		}
		requested = true
		if s.IfName == r.IfName {
			return s.Key, nil
		}
	}
	if !requested {
		return "", fmt.Errorf("pod %s/%s does not request NetworkAttachmentDefinition %s in annotation %s", r.Namespace, r.Pod, r.NAD, network.AnnotationNetworks)
	}
	return r.NAD, nil // the meta plugin counts interfaces of other plugins too
}

// runtimeInterface is the name of a pod's first interface, which the container runtime passes.
const runtimeInterface = "eth0"

func buildInterface(r Request, name, key string, entry network.PodNetwork, net network.Network) (Interface, error) {
	i := Interface{NAD: key, Network: net.Name, LSP: network.PodLSP(key, r.Namespace, r.Pod), Role: entry.Role,
		Link: Link{Name: name, Host: HostName(r.Sandbox, name), MAC: entry.MAC, MTU: net.MTU, Up: true}}
	mac, err := parseMAC(entry.MAC)
	if err != nil {
		return i, err
	}
	i.MAC = mac
	for _, ip := range entry.IPs {
		if !ip.Addr().IsValid() || ip.Addr().IsMulticast() || ip.Addr().IsUnspecified() || ip.Addr().IsLoopback() {
			return i, fmt.Errorf("%s is not a valid pod address", ip)
		}
		i.Addresses = append(i.Addresses, ip)
	}
	slices.SortFunc(i.Addresses, netip.Prefix.Compare)
	i.Addresses = slices.Compact(i.Addresses)
	for _, route := range entry.Routes {
		if route.Dest.Bits() == 0 {
			return i, fmt.Errorf("route %s: default routes come from gateway_ips", route.Dest)
		}
		if route.Dest.Addr().Is4() != route.NextHop.Is4() {
			return i, fmt.Errorf("route %s via %s mixes IP families", route.Dest, route.NextHop)
		}
		i.Routes = append(i.Routes, Route{Dest: route.Dest.Masked(), Via: route.NextHop})
	}
	return i, nil
}

func parseMAC(s string) (string, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return "", fmt.Errorf("mac_address %q is not an Ethernet address", s)
	}
	if hw[0]&1 != 0 {
		return "", fmt.Errorf("mac_address %s is a multicast address", s)
	}
	return hw.String(), nil
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func compareRoutes(a, b Route) int {
	if c := a.Dest.Compare(b.Dest); c != 0 {
		return c
	}
	return a.Via.Compare(b.Via)
}

// HostName returns the name of the host end of a pod's interface. It depends
// only on the sandbox and the interface, so that DEL needs no other input.
func HostName(sandbox, ifName string) string {
	h := sha256.Sum256([]byte(sandbox + "/" + ifName))
	return fmt.Sprintf("veth%x", h[:])[:15]
}

// Links returns p's links by name.
func (p Pod) Links() State {
	s := make(State, len(p.Interfaces))
	for _, i := range p.Interfaces {
		s[i.Name] = i.Link
	}
	return s
}

// Ports returns p's Open vSwitch ports.
func (p Pod) Ports() []Port {
	out := make([]Port, len(p.Interfaces))
	for n, i := range p.Interfaces {
		out[n] = Port{Name: i.Host, LSP: i.LSP, Namespace: p.Request.Namespace, Pod: p.Request.Pod, UID: p.UID, MAC: i.MAC,
			Sandbox: p.Request.Sandbox, IfName: i.Name, Attachment: p.Request.Attachment(), NAD: i.NAD, Network: i.Network}
	}
	return out
}

// ErrOverlap: networks of the pod overlap.
var ErrOverlap = errors.New("networks of one pod must not overlap")

// Overlap returns an error that names the first two of a pod's networks, given
// by NAD key, whose subnets or join subnets overlap in either IP family: the
// pod could not tell their addresses apart.
func Overlap(nets map[string]network.Network) error {
	var all []network.Network
	for _, n := range nets {
		if !slices.ContainsFunc(all, func(o network.Network) bool { return o.Name == n.Name }) {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b network.Network) int { return a.ID - b.ID })
	for i, a := range all {
		for _, b := range all[i+1:] {
			for _, x := range ranges(a) {
				for _, y := range ranges(b) {
					if x.prefix.Overlaps(y.prefix) {
						return fmt.Errorf("%w: %s %s of network %s overlaps %s %s of network %s: choose another range for one of them",
							ErrOverlap, x.kind, x.prefix, a.Name, y.kind, y.prefix, b.Name)
					}
				}
			}
		}
	}
	return nil
}

type addressRange struct {
	kind   string
	prefix netip.Prefix
}

func ranges(n network.Network) []addressRange {
	var out []addressRange
	for _, p := range n.CIDRs() {
		out = append(out, addressRange{"subnet", p})
	}
	for _, p := range n.JoinSubnets {
		out = append(out, addressRange{"join subnet", p})
	}
	return out
}
