// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"net/netip"
	"slices"
	"strings"
)

// setType is the type of a set, or of a map if it has a value, in nft's words.
type setType struct {
	key, value string
	interval   bool // has subnets
}

// setTypes are the types of all sets and maps of the table.
var setTypes = func() map[string]setType {
	types := map[string]setType{
		SetOwn: {key: "ifname . mark"}, SetIngressOwn: {key: "ifname . mark"}, SetOwnVRF: {key: "ifname"}, SetVRFs: {key: "ifname"},
	}
	const port = "addr . inet_proto . inet_service"
	for _, s := range []struct {
		four, six string  // names
		of        setType // addr is the type of the IP family's addresses
	}{
		{SetLocked4, SetLocked6, setType{key: "addr"}},
		{SetOpen4, SetOpen6, setType{key: port}},
		{SetOpenICMP4, SetOpenICMP6, setType{key: "addr"}},
		{SetServices4, SetServices6, setType{key: port}},
		{SetSources4, SetSources6, setType{key: "ifname . addr"}},
		{SetProcesses4, SetProcesses6, setType{key: "mark . addr"}},
		{MapNodePorts4, MapNodePorts6, setType{key: "inet_proto . inet_service", value: "addr"}},
		{MapLocalPorts4, MapLocalPorts6, setType{key: port, value: "addr . inet_service"}},
		{MapHostPorts4, MapHostPorts6, setType{key: port, value: "addr"}},
		{SetDirect4, SetDirect6, setType{key: "ifname . ether_addr . addr", interval: true}},
		{SetRouted4, SetRouted6, setType{key: "ifname . addr", interval: true}},
		{SetPods4, SetPods6, setType{key: "addr", interval: true}},
		{SetAdvertised4, SetAdvertised6, setType{key: "addr", interval: true}},
		{SetIngressPods4, SetIngressPods6, setType{key: "addr"}},
		{SetIngressTo4, SetIngressTo6, setType{key: "ifname . addr"}},
		{MapIngressMarks4, MapIngressMarks6, setType{key: "addr", value: "mark"}},
		{MapIngressSources4, MapIngressSources6, setType{key: "ifname", value: "addr"}},
	} {
		types[s.four], types[s.six] = s.of.withAddress("ipv4_addr"), s.of.withAddress("ipv6_addr")
	}
	return types
}()

// withAddress returns the type with another type of address in place of addr.
func (t setType) withAddress(address string) setType {
	replace := func(fields string) string {
		parts := splitFields(fields)
		for i, p := range parts {
			if p == "addr" {
				parts[i] = address
			}
		}
		return strings.Join(parts, fieldSeparator)
	}
	return setType{replace(t.key), replace(t.value), t.interval}
}

// fieldSeparator is between the fields of a key or of a value, valueSeparator between both.
const fieldSeparator, valueSeparator = " . ", " : "

func splitFields(text string) []string { return strings.Split(text, fieldSeparator) }

func isMap(name string) bool { return setTypes[name].value != "" }

// deletedFirst reports whether elements must go before others are added: a key of a map with another
// value is another element, and intervals must not overlap.
func deletedFirst(name string) bool { return isMap(name) || setTypes[name].interval }

// ofAddress returns the name of the set of an address's IP family.
func ofAddress(a netip.Addr, four, six string) string {
	if a.Is6() {
		return six
	}
	return four
}

// canonical joins the fields of a key or value as nft has printed them, in the format of Build. nft prints marks in
// decimal or hexadecimal, and protocols by number where there is no /etc/protocols, as in the agent's image.
func canonical(types string, fields []string) string {
	kinds, out := splitFields(types), slices.Clone(fields)
	for i, text := range out {
		text = strings.Trim(text, `"`)
		if a, err := netip.ParseAddr(text); err == nil {
			text = a.String()
		}
		if i < len(kinds) {
			switch kinds[i] {
			case "mark":
				text = markText(text)
			case "inet_proto":
				if name, ok := protocols[text]; ok {
					text = name
				}
			}
		}
		out[i] = text
	}
	return strings.Join(out, fieldSeparator)
}
