// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// AnnotationOpenDefaultPorts on a pod with a primary network of its own lists the ports of its
// locked address that the cluster default network reaches, in YAML:
//
//   - protocol: tcp
//     port: 80
//   - protocol: icmp
const AnnotationOpenDefaultPorts = "k8s.ovn.org/open-default-ports"

const (
	// maxOpenPorts is the number of ports that a pod can open: each costs rows on its node.
	maxOpenPorts = 100
	// maxOpenPortsLen is enough for as many. Tenants write the annotation, of up to 256 KiB.
	maxOpenPortsLen = 8 << 10
)

// OpenPort is a port of a locked address that the cluster default network reaches.
type OpenPort struct {
	Protocol string // tcp, udp, sctp or icmp: echo requests
	Port     uint16 // 0 for icmp
}

func (p OpenPort) String() string {
	if p.Protocol == "icmp" {
		return p.Protocol
	}
	return fmt.Sprintf("%s/%d", p.Protocol, p.Port)
}

// ParseOpenPorts reads the value of AnnotationOpenDefaultPorts, "" for none. The ports are
// sorted. If one of them is invalid, none is returned.
func ParseOpenPorts(value string) ([]OpenPort, error) {
	var list []struct {
		Protocol string `json:"protocol"`
		Port     int    `json:"port"`
	}
	if len(value) > maxOpenPortsLen {
		return nil, fmt.Errorf("annotation %s has %d bytes: at most %d are read", AnnotationOpenDefaultPorts, len(value), maxOpenPortsLen)
	}
	// The parser writes out what aliases refer to: a small value could take gigabytes.
	if strings.ContainsAny(value, "&*") {
		return nil, fmt.Errorf("annotation %s has anchors or aliases of YAML (& or *): write each entry out", AnnotationOpenDefaultPorts)
	}
	if err := yaml.UnmarshalStrict([]byte(value), &list); err != nil {
		return nil, fmt.Errorf(`annotation %s is no list such as "- protocol: tcp\n  port: 80": %w`, AnnotationOpenDefaultPorts, err)
	}
	if len(list) > maxOpenPorts {
		return nil, fmt.Errorf("annotation %s has %d ports: at most %d are possible", AnnotationOpenDefaultPorts, len(list), maxOpenPorts)
	}
	var out []OpenPort
	for i, p := range list {
		p.Protocol = strings.ToLower(p.Protocol)
		switch {
		case !slices.Contains([]string{"tcp", "udp", "sctp", "icmp"}, p.Protocol):
			return nil, fmt.Errorf("annotation %s, entry %d: protocol %q is none of tcp, udp, sctp, icmp", AnnotationOpenDefaultPorts, i+1, p.Protocol)
		case p.Protocol == "icmp" && p.Port != 0:
			return nil, fmt.Errorf("annotation %s, entry %d: icmp has no ports: remove port %d", AnnotationOpenDefaultPorts, i+1, p.Port)
		case p.Protocol != "icmp" && (p.Port < 1 || p.Port > 65535):
			return nil, fmt.Errorf("annotation %s, entry %d: port %d is not between 1 and 65535", AnnotationOpenDefaultPorts, i+1, p.Port)
		case p.Protocol == "udp" && p.Port == TunnelPort:
			return nil, fmt.Errorf("annotation %s, entry %d: port %d of UDP is the overlay's: choose another port", AnnotationOpenDefaultPorts, i+1, p.Port)
		}
		out = append(out, OpenPort{p.Protocol, uint16(p.Port)})
	}
	slices.SortFunc(out, func(a, b OpenPort) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(out), nil
}
