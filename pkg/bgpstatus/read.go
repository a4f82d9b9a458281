// SPDX-License-Identifier: Apache-2.0

package bgpstatus

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/vishvananda/netlink"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
	"bulkhead/pkg/ovsdb"
	"bulkhead/pkg/routeimport"
)

// Reader reads a node's status.
type Reader struct {
	Vtysh  []string // the command that runs vtysh, without its arguments
	NB     string   // address of OVN's northbound database
	Bridge string   // the external bridge
	// Tables are the routing tables of VRFs, by FRR's names. For others the kernel is asked.
	Tables map[string]int
}

// Read adds to a status with a node and networks what FRR, the kernel and OVN have, and compares.
func (r Reader) Read(ctx context.Context, s *Status) error {
	raw, err := r.vtysh(ctx, "show bgp vrf all summary json")
	if err != nil {
		return err
	}
	if s.Sessions, err = ParseSummary(raw); err != nil {
		return err
	}
	var vrfs []string
	for _, x := range s.Sessions {
		vrfs = append(vrfs, x.VRF)
	}
	for _, n := range s.Networks {
		vrfs = append(vrfs, n.VRFs...)
	}
	slices.Sort(vrfs)
	for _, name := range slices.Compact(vrfs) {
		v, err := r.vrf(ctx, name)
		if err != nil {
			return err
		}
		s.VRFs = append(s.VRFs, v)
	}
	if s.Mode != network.LocalGateway {
		if s.OVN, err = ReadImported(ctx, r.NB); err != nil {
			return err
		}
		if s.BridgeRoutes, err = routeimport.Read(r.Bridge); err != nil {
			return err
		}
	}
	s.Compare()
	return nil
}

func (r Reader) vrf(ctx context.Context, name string) (VRF, error) {
	v := VRF{Name: name}
	for _, family := range []string{familyIPv4, familyIPv6} {
		raw, err := r.vtysh(ctx, fmt.Sprintf("show bgp vrf %s %s unicast json", name, family))
		if err != nil {
			return v, err
		}
		own, learned, err := ParseRoutes(raw)
		if err != nil {
			return v, fmt.Errorf("VRF %s: %w", name, err)
		}
		v.Own, v.Learned = append(v.Own, own...), append(v.Learned, learned...)
	}
	table, ok := r.Tables[name]
	if !ok {
		link, err := netlink.LinkByName(name)
		device, ok := link.(*netlink.Vrf)
		switch {
		case errors.As(err, &netlink.LinkNotFoundError{}) || err == nil && !ok:
			return v, nil // the differences tell that FRR has no session there
		case err != nil:
			return v, fmt.Errorf("read VRF device %s: %w", name, err)
		}
		table = int(device.Table)
	}
	var err error
	if v.Kernel, err = routeimport.ReadTable(table); err != nil {
		return v, fmt.Errorf("VRF %s: %w", name, err)
	}
	return v, nil
}

func (r Reader) vtysh(ctx context.Context, command string) ([]byte, error) {
	args := append(slices.Clone(r.Vtysh), "-c", command)
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = &stderr
	raw, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("FRR's shell is not on this node: %w: set -vtysh to the command that runs it, such as \"crictl exec CONTAINER vtysh\" for FRR in a pod", err)
	}
	if err != nil {
		return nil, fmt.Errorf("run %q: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return raw, nil
}

// ReadImported returns the routes of the uplink router that the zone controller has imported.
func ReadImported(ctx context.Context, address string) ([]Route, error) {
	conn := ovsdb.New()
	conn.Address = address
	conn.Models = func() (model.ClientDBModel, error) {
		return model.NewClientDBModel("OVN_Northbound", map[string]model.Model{nbdb.LogicalRouterStaticRouteTable: &nbdb.LogicalRouterStaticRoute{}})
	}
	conn.Monitors = func() []client.MonitorOption {
		return []client.MonitorOption{client.WithTable(&nbdb.LogicalRouterStaticRoute{})}
	}
	db, err := conn.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the northbound database %s: %w", address, err)
	}
	defer db.Close()
	var rows []nbdb.LogicalRouterStaticRoute
	if err := db.WhereCache(func(r *nbdb.LogicalRouterStaticRoute) bool {
		return r.ExternalIDs[network.MarkController] == network.ControllerRouteImport
	}).List(ctx, &rows); err != nil {
		return nil, fmt.Errorf("read the imported routes: %w", err)
	}
	byPrefix := map[netip.Prefix][]netip.Addr{}
	for _, r := range rows {
		prefix, err1 := netip.ParsePrefix(r.IPPrefix)
		hop, err2 := netip.ParseAddr(r.Nexthop)
		if err1 == nil && err2 == nil {
			byPrefix[prefix] = append(byPrefix[prefix], hop)
		}
	}
	var out []Route
	for p, hops := range byPrefix {
		slices.SortFunc(hops, netip.Addr.Compare)
		out = append(out, Route{Prefix: p, NextHops: hops})
	}
	slices.SortFunc(out, func(a, b Route) int { return a.Prefix.Compare(b.Prefix) })
	return out, nil
}
