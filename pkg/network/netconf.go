// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// NetConf is the CNI configuration in a NetworkAttachmentDefinition of type
// ovn-k8s-cni-overlay. Field names and formats are those of OVN-Kubernetes' NADs;
// lists are comma-separated strings.
type NetConf struct {
	CNIVersion       string `json:"cniVersion"`
	Name             string `json:"name"`
	Type             string `json:"type"`
	NetAttachDefName string `json:"netAttachDefName,omitempty"`
	Topology         string `json:"topology,omitempty"`
	Role             string `json:"role,omitempty"`

	MTU                   int    `json:"mtu,omitempty"`
	Subnets               string `json:"subnets,omitempty"`
	JoinSubnet            string `json:"joinSubnet,omitempty"`
	TransitSubnet         string `json:"transitSubnet,omitempty"`
	ExcludeSubnets        string `json:"excludeSubnets,omitempty"`
	ReservedSubnets       string `json:"reservedSubnets,omitempty"`
	InfrastructureSubnets string `json:"infrastructureSubnets,omitempty"`
	DefaultGatewayIPs     string `json:"defaultGatewayIPs,omitempty"`
	PhysicalNetworkName   string `json:"physicalNetworkName,omitempty"`
	VLANID                int    `json:"vlanID,omitempty"`
	AllowPersistentIPs    bool   `json:"allowPersistentIPs,omitempty"`
	Transport             string `json:"transport,omitempty"`
	OutboundSNAT          string `json:"outboundSNAT,omitempty"`
}

// ErrForeign is returned for a NAD of another CNI type. Callers ignore such NADs.
var ErrForeign = errors.New("not of type " + CNIType)

// ParseNetConf parses NAD JSON: a plugin's configuration, or a list with one. Unknown keys are errors, because a mistyped key
// would otherwise be ignored silently. Keys of the CNI specification and of OVN-Kubernetes that
// Bulkhead does not use are accepted. Errors name the key and the remedy.
func ParseNetConf(config string) (NetConf, error) {
	// The type must be unescaped in the text: an admission policy, which cannot
	// parse JSON, searches for it.
	plugin, err := ownPlugin(config)
	if err != nil {
		return NetConf{}, err
	}
	if plugin == nil || !strings.Contains(config, CNIType) {
		return NetConf{}, ErrForeign
	}
	var c struct {
		NetConf
		IPAM          json.RawMessage `json:"ipam"`
		DNS           json.RawMessage `json:"dns"`
		Capabilities  json.RawMessage `json:"capabilities"`
		RuntimeConfig json.RawMessage `json:"runtimeConfig"`
		PrevResult    json.RawMessage `json:"prevResult"`
		Args          json.RawMessage `json:"args"`
		CNIVersions   json.RawMessage `json:"cniVersions"`
		DisableCheck  json.RawMessage `json:"disableCheck"`
		DisableGC     json.RawMessage `json:"disableGC"`
		DeviceID      json.RawMessage `json:"deviceID"`
		LogFile       json.RawMessage `json:"logFile"`
		LogLevel      json.RawMessage `json:"logLevel"`
		LogMaxSize    json.RawMessage `json:"logfile-maxsize"`
		LogMaxBackups json.RawMessage `json:"logfile-maxbackups"`
		LogMaxAge     json.RawMessage `json:"logfile-maxage"`
		JoinSubnets   string          `json:"joinSubnets"` // the spelling of OVN-Kubernetes' proposals
	}
	dec := json.NewDecoder(bytes.NewReader(plugin))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return NetConf{}, fmt.Errorf("config: %w", err)
	}
	if c.JoinSubnets != "" {
		if c.JoinSubnet != "" {
			return NetConf{}, errors.New("config has both joinSubnet and joinSubnets: keep joinSubnet")
		}
		c.JoinSubnet = c.JoinSubnets
	}
	switch c.Transport {
	case "noOverlay": // the spelling of OVN-Kubernetes' proposals
		c.Transport = TransportNoOverlay
	case "geneve": // OVN-Kubernetes' name of the default
		c.Transport = ""
	}
	if c.Name == "" {
		return NetConf{}, errors.New("config has no name: give the network a name")
	}
	return c.NetConf, nil
}

// ownPlugin returns the configuration of Bulkhead's plugin, nil if it is another's. A list (CNI specification, section 1)
// has the network's name for its plugins, of which Bulkhead's must be the only one: others would not run.
func ownPlugin(config string) ([]byte, error) {
	var conf struct {
		Type       string          `json:"type"`
		Name       json.RawMessage `json:"name"`
		CNIVersion json.RawMessage `json:"cniVersion"`
		Plugins    json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(config), &conf); err != nil {
		return nil, fmt.Errorf("config is not valid JSON: %w", err)
	}
	if conf.Type == CNIType {
		return []byte(config), nil
	}
	var plugins []map[string]json.RawMessage
	if conf.Type != "" || json.Unmarshal(conf.Plugins, &plugins) != nil {
		return nil, nil
	}
	i := slices.IndexFunc(plugins, func(p map[string]json.RawMessage) bool {
		var name string
		return json.Unmarshal(p["type"], &name) == nil && name == CNIType
	})
	switch {
	case i < 0:
		return nil, nil
	case len(plugins) > 1:
		return nil, fmt.Errorf("config: plugins has %d entries, and beside type %s there can be no others: remove them", len(plugins), CNIType)
	}
	plugin := plugins[0]
	plugin["name"], plugin["cniVersion"] = conf.Name, conf.CNIVersion
	maps.DeleteFunc(plugin, func(_ string, value json.RawMessage) bool { return value == nil })
	return json.Marshal(plugin)
}

// Render returns c as compact JSON with keys in a fixed order.
func (c NetConf) Render() string {
	b, err := json.Marshal(c)
	if err != nil { // strings, numbers and booleans always marshal
		return ""
	}
	return string(b)
}

// Network returns the network that c defines, with the given id and the plan's
// defaults. Errors name the key.
func (c NetConf) Network(id int, plan Plan) (Network, error) {
	n := Network{
		ID: id, Name: c.Name, Topology: Topology(c.Topology), Role: Role(c.Role), MTU: c.MTU,
		PhysicalNetworkName: c.PhysicalNetworkName, VLAN: c.VLANID, PersistentIPs: c.AllowPersistentIPs,
		Transport: c.Transport, OutboundSNAT: c.OutboundSNAT,
	}
	if id < 1 || id > MaxID {
		return n, fmt.Errorf("network id %d is outside 1..%d", id, MaxID)
	}
	if c.Name == DefaultName {
		return n, fmt.Errorf("name %q belongs to the cluster default network: choose another", DefaultName)
	}
	if err := checkName(c.Name); err != nil {
		return n, err
	}
	if !slices.Contains([]Topology{Layer3, Layer2, Localnet}, n.Topology) {
		return n, fmt.Errorf("topology %q is unknown: use layer3, layer2 or localnet", c.Topology)
	}
	switch n.Role {
	case "":
		n.Role = RoleSecondary
	case RolePrimary, RoleSecondary:
	default:
		return n, fmt.Errorf("role %q is unknown: use primary or secondary", c.Role)
	}
	if n.Role == RolePrimary && n.Topology == Localnet {
		return n, errors.New("role primary is not possible with topology localnet: use layer3 or layer2")
	}
	var err error
	if n.Subnets, err = ParseSubnets(c.Subnets, n.Topology); err != nil {
		return n, fmt.Errorf("subnets: %w", err)
	}
	if n.Topology == Layer3 && len(n.Subnets) == 0 {
		return n, errors.New("subnets is empty: topology layer3 needs at least one CIDR")
	}
	if n.Role == RolePrimary && len(n.Subnets) == 0 {
		return n, errors.New("subnets is empty: a primary network needs at least one CIDR")
	}
	for _, list := range []struct {
		key string
		raw string
		out *[]netip.Prefix
	}{
		{"joinSubnet", c.JoinSubnet, &n.JoinSubnets}, {"transitSubnet", c.TransitSubnet, &n.Transit},
		{"excludeSubnets", c.ExcludeSubnets, &n.ExcludeSubnets}, {"reservedSubnets", c.ReservedSubnets, &n.ReservedSubnets},
		{"infrastructureSubnets", c.InfrastructureSubnets, &n.InfrastructureSubnets},
	} {
		if *list.out, err = ParseCIDRs(list.raw); err != nil {
			return n, fmt.Errorf("%s: %w", list.key, err)
		}
	}
	for _, raw := range splitList(c.DefaultGatewayIPs) {
		a, err := netip.ParseAddr(raw)
		if err != nil || a.Is4In6() || a.Zone() != "" {
			return n, fmt.Errorf("defaultGatewayIPs: %q is not an IP address such as 10.20.0.1 or fd20::1", raw)
		}
		n.DefaultGatewayIPs = append(n.DefaultGatewayIPs, a)
	}
	if err := n.check(); err != nil {
		return n, err
	}
	if n.Topology == Localnet && n.PhysicalNetworkName == "" {
		n.PhysicalNetworkName = n.Name
	}
	if n.MTU == 0 {
		n.MTU = plan.ClusterMTU
		if n.Topology == Localnet || n.Transport == TransportNoOverlay {
			n.MTU = plan.UnderlayMTU
		}
	}
	v4, v6 := n.Families()
	if n.Role == RolePrimary {
		n.JoinSubnets = withDefaults(n.JoinSubnets, plan.UDNJoin, v4, v6)
	}
	n.Transit = withDefaults(n.Transit, plan.Transit, v4, v6)
	for _, list := range []struct {
		key      string
		prefixes []netip.Prefix
		min      *big.Int
	}{{"joinSubnet", n.JoinSubnets, maxNodes}, {"transitSubnet", n.Transit, maxTransit}} {
		for _, p := range list.prefixes {
			if size(p).Cmp(list.min) < 0 {
				return n, fmt.Errorf("%s %s is too small for %d nodes: use a prefix of length %d or shorter", list.key, p, MaxNodeID, longestPrefix(p, list.min))
			}
		}
	}
	return n, nil
}

// ParseSubnets parses a comma-separated list of subnets: "cidr" or, on Layer 3,
// "cidr/hostLen". The default host length is DefaultHostLen.
func ParseSubnets(list string, t Topology) ([]Subnet, error) {
	var out []Subnet
	for _, raw := range splitList(list) {
		s, err := ParseSubnet(raw, t)
		if err != nil {
			return nil, err
		}
		for _, other := range out {
			if other.CIDR.Overlaps(s.CIDR) {
				return nil, fmt.Errorf("%s overlaps %s: remove one of them", s.CIDR, other.CIDR)
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// ParseSubnet parses one subnet in the format of ParseSubnets.
func ParseSubnet(raw string, t Topology) (Subnet, error) {
	cidr, host := raw, ""
	if parts := strings.Split(raw, "/"); len(parts) == 3 {
		cidr, host = parts[0]+"/"+parts[1], parts[2]
	}
	p, err := parsePrefix(cidr)
	if err != nil {
		return Subnet{}, err
	}
	s := Subnet{CIDR: p}
	if host != "" {
		if s.HostLen, err = strconv.Atoi(host); err != nil || s.HostLen == 0 {
			return Subnet{}, fmt.Errorf("%q: host subnet length %q is not a number above 0", raw, host)
		}
	} else if t == Layer3 {
		s.HostLen = DefaultHostLen(p)
	}
	return s, s.Validate(t)
}

// ParseCIDRs parses a comma-separated list of CIDRs without host bits.
func ParseCIDRs(list string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, raw := range splitList(list) {
		p, err := parsePrefix(raw)
		if err != nil {
			return nil, err
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("%s has host bits set: write %s", p, p.Masked())
		}
		out = append(out, p)
	}
	return out, nil
}

func parsePrefix(raw string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(raw)
	if err != nil {
		return p, fmt.Errorf("%q is not a CIDR such as 10.20.0.0/16 or fd20::/48", raw)
	}
	if p.Addr().Is4In6() {
		return p, fmt.Errorf("%q is an IPv4-mapped IPv6 CIDR: write it as IPv4", raw)
	}
	return p, nil
}

func splitList(list string) []string {
	var out []string
	for _, s := range strings.Split(list, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// JoinCIDRs renders CIDRs as a comma-separated list, as in NAD JSON.
func JoinCIDRs(ps []netip.Prefix) string {
	s := make([]string, len(ps))
	for i, p := range ps {
		s[i] = p.String()
	}
	return strings.Join(s, ",")
}

// JoinSubnetList renders subnets with their host lengths, comma-separated.
func JoinSubnetList(ss []Subnet) string {
	s := make([]string, len(ss))
	for i, x := range ss {
		s[i] = x.String()
	}
	return strings.Join(s, ",")
}
