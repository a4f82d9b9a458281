// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"bulkhead/pkg/network"
)

// Result returns the output of ADD in the given CNI version. The runtime takes
// the pod's addresses from the interface that it named in CNI_IFNAME, which is
// on the cluster default network.
func (p Pod) Result(version string) ([]byte, error) {
	res := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	for _, i := range p.Interfaces {
		res.Interfaces = append(res.Interfaces, &types100.Interface{Name: i.Host, Mtu: i.MTU})
		at := len(res.Interfaces)
		res.Interfaces = append(res.Interfaces, &types100.Interface{Name: i.Name, Mac: i.MAC, Mtu: i.MTU, Sandbox: p.Request.NetNS})
		for _, a := range i.Addresses {
			ip := &types100.IPConfig{Interface: &at, Address: *ipNet(a)}
			for _, r := range i.Routes {
				if r.Dest.Bits() == 0 && r.Dest.Addr().Is4() == a.Addr().Is4() {
					ip.Gateway = r.Via.AsSlice()
				}
			}
			res.IPs = append(res.IPs, ip)
		}
		for _, r := range i.Routes {
			res.Routes = append(res.Routes, &cnitypes.Route{Dst: *ipNet(r.Dest), GW: r.Via.AsSlice()})
		}
	}
	out, err := res.GetAsVersion(version)
	if err != nil {
		return nil, fmt.Errorf("render the result in CNI version %s: %w", version, err)
	}
	b, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("render the result: %w", err)
	}
	return b, nil
}

// statusName returns an interface's network as the multi-network working group names
// it: that of a requested interface by its NAD.
func statusName(r Request, i Interface) string {
	if i.NAD == network.DefaultName || i.Role == network.RolePrimary {
		return r.Network
	}
	return network.NADOf(i.NAD)
}

// NetworkStatus returns the value of the network-status annotation.
func (p Pod) NetworkStatus() (string, error) {
	type status struct {
		Name      string   `json:"name"`
		Interface string   `json:"interface"`
		IPs       []string `json:"ips"`
		MAC       string   `json:"mac"`
		Default   bool     `json:"default,omitempty"`
		DNS       struct{} `json:"dns"`
	}
	var out []status
	for _, i := range p.Interfaces {
		s := status{Name: statusName(p.Request, i), Interface: i.Name, MAC: i.MAC, Default: i.Default, IPs: []string{}}
		for _, a := range i.Addresses {
			s.IPs = append(s.IPs, a.Addr().String())
		}
		out = append(out, s)
	}
	b, err := json.MarshalIndent(out, "", "    ")
	if err != nil {
		return "", fmt.Errorf("render the network status: %w", err)
	}
	return string(b), nil
}
