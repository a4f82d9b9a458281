// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Row is a typed entry of a map. Rows are comparable; two rows with the same Key
// are the same entry.
type Row interface {
	Key() Key
	String() string
	encode() (key, value any, err error)
}

// Key identifies a row by its map and by its key in a readable and comparable form.
type Key struct {
	Map string
	ID  any
}

// PodRow says which network the host-network pod with this cgroup belongs to.
type PodRow struct {
	CgroupID   uint64
	NetworkID  uint32 // 0: the cluster default network
	Mark       uint32
	VRFIfindex uint32 // 0: the VRF does not exist yet; the pod's wildcard binds are refused
	Unbound    bool   // the pod opted out of VRF binding
	Trusted    bool   // packet sockets on any interface are allowed
	Ingress    bool   // reaches the cluster IPs of all networks
}

// PodRootRow is a directory of the cgroup tree that holds all pods and nothing else.
type PodRootRow struct{ CgroupID uint64 }

// DoorKind says what an interface of the host leads to.
type DoorKind uint32

const (
	DoorPort     DoorKind = iota + 1 // management port of a tenant's network
	DoorVRF                          // VRF device of a tenant's network
	DoorDefault                      // management port of the cluster default network
	DoorPod                          // host end of a pod's interface
	DoorLocked                       // host end of a pod's locked default-network interface
	DoorOwn                          // interface of the node itself: uplink, external bridge
	DoorLoopback                     // lo
	DoorLink                         // operator's interface in the VRF of a tenant's network
)

func (k DoorKind) String() string {
	names := [...]string{"", "management port", "VRF", "default network's management port", "pod's interface", "locked pod's interface", "node's own", "loopback", "operator's interface in a network's VRF"}
	if int(k) < len(names) && k > 0 {
		return names[k]
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// ForwardFromOwn is the ForwardFrom of an interface to which every interface of the node itself (DoorOwn) may forward.
const ForwardFromOwn = 0xffffffff

// DoorRow says what an interface of the host leads to.
type DoorRow struct {
	Ifindex   int
	Kind      DoorKind
	NetworkID uint32
	// ForwardFrom is the interface from which packets may be forwarded to this one; 0: none; or ForwardFromOwn.
	ForwardFrom int
	// PeerMAC and Peer6 are the addresses of a locked interface's only peer.
	PeerMAC [6]byte
	Peer6   netip.Addr
	// Open says that OpenRows of a locked interface's pod exist.
	Open bool
}

// NetRow holds the VRF and addresses to which connections are redirected in a network.
type NetRow struct {
	NetworkID    uint32
	VRFIfindex   uint32
	Mark         uint32
	Host4, Host6 netip.Addr // the node's addresses on the network; invalid: none
}

// LocalRow is an address of the node outside all networks.
type LocalRow struct{ Addr netip.Addr }

// ProbeRow says that kubelet's connections to a port of the node are probes of a
// network's host-network pods.
type ProbeRow struct {
	Port      uint16
	NetworkID uint32
}

// DestRow puts a prefix into a set of destinations: a network's, by its id, AllNetworks (services), Masquerade, or OwnAddress.
type DestRow struct {
	NetworkID uint32
	Prefix    netip.Prefix
}

// ClusterIPRow says which tenant's network has the service with a cluster IP.
type ClusterIPRow struct {
	Addr      netip.Addr
	NetworkID uint32
}

// LockedRow is a default-network address that only kubelet may reach.
type LockedRow struct {
	Addr      netip.Addr
	NetworkID uint32
}

// OpenRow is a port of a locked address that all of the cluster default network reach. A row
// with port 0 admits the protocol's packets that have no port: later fragments, and ICMP.
type OpenRow struct {
	Addr     netip.Addr
	Protocol string // tcp, udp, sctp or icmp
	Port     uint16
}

// KubeletRow identifies kubelet by cgroup, or by process id if other processes
// share its cgroup. Exactly one of the two is set.
type KubeletRow struct {
	CgroupID uint64
	TGID     uint32
}

func addrWords(b [16]byte) (w [4]uint32) {
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(b[i*4:])
	}
	return w
}

func wordsAddr(w [4]uint32) netip.Addr {
	var b [16]byte
	for i, x := range w {
		binary.NativeEndian.PutUint32(b[i*4:], x)
	}
	return netip.AddrFrom16(b).Unmap()
}

func be(v uint32) uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, v))
}

const destFixed = 64 // BH_DEST_FIXED

// AllNetworks as NetworkID of a DestRow stands for every network.
const AllNetworks = ^uint32(0) // BH_DEST_ALL

// Masquerade as NetworkID of a DestRow stands for the addresses that mean something inside
// this node only.
const Masquerade = ^uint32(1) // BH_DEST_MASQUERADE

// OwnAddress as NetworkID of a DestRow stands for the node's addresses, on all of its interfaces.
const OwnAddress = ^uint32(4) // BH_DEST_OWN

// NoNetwork as NetworkID of a PodRow says that the pod's network is gone: no network is the pod's.
const NoNetwork = ^uint32(3)

// clusterIPs is the network id in the keys of ClusterIPRows.
const clusterIPs = ^uint32(2) // BH_DEST_CLUSTER_IP

func (r PodRow) encode() (any, any, error) {
	if r.CgroupID == 0 {
		return nil, nil, errors.New("no cgroup id")
	}
	return r.CgroupID, &vrfbindBhPod{Netid: r.NetworkID, Mark: r.Mark, VrfIfindex: r.VRFIfindex, Flags: flag(r.Unbound)*podUnbound | flag(r.Trusted)*podTrusted | flag(r.Ingress)*podIngress}, nil
}

const (
	podUnbound = 1 // BH_POD_UNBOUND
	podTrusted = 2 // BH_POD_TRUSTED
	podIngress = 4 // BH_POD_INGRESS
)

func (r PodRootRow) encode() (any, any, error) {
	if r.CgroupID == 0 {
		return nil, nil, errors.New("no cgroup id")
	}
	return r.CgroupID, uint32(1), nil
}

func (r DoorRow) encode() (any, any, error) {
	if r.Ifindex <= 0 || r.Kind < DoorPort || r.Kind > DoorLink {
		return nil, nil, fmt.Errorf("not an interface index with a known kind")
	}
	v := &guardBhDoor{Kind: uint32(r.Kind), Netid: r.NetworkID, ForwardFrom: uint32(r.ForwardFrom), PeerMac: r.PeerMAC}
	v.Open = uint8(flag(r.Open))
	if r.Peer6.IsValid() {
		v.Peer6 = addrWords(r.Peer6.As16())
	}
	return uint32(r.Ifindex), v, nil
}

func (r NetRow) encode() (any, any, error) {
	if r.NetworkID == 0 {
		return nil, nil, errors.New("no network id")
	}
	v := &vrfbindBhNet{VrfIfindex: r.VRFIfindex, Mark: r.Mark}
	if r.Host4.IsValid() {
		v.Host4 = addrWords(r.Host4.As16())
	}
	if r.Host6.IsValid() {
		v.Host6 = addrWords(r.Host6.As16())
	}
	return r.NetworkID, v, nil
}

func (r LocalRow) encode() (any, any, error) {
	if !r.Addr.IsValid() || r.Addr.Zone() != "" {
		return nil, nil, fmt.Errorf("not an address: %s", r.Addr)
	}
	return &probeBhAddr{A: addrWords(r.Addr.As16())}, uint32(1), nil
}

func (r ProbeRow) encode() (any, any, error) {
	if r.Port == 0 || r.NetworkID == 0 {
		return nil, nil, errors.New("a probe row has a port and a network")
	}
	return &probeBhProbeKey{Port: r.Port, Proto: unix.IPPROTO_TCP}, &probeBhProbe{Netid: r.NetworkID}, nil
}

func (r DestRow) encode() (any, any, error) {
	if !r.Prefix.IsValid() || r.Prefix.Addr().Is4In6() {
		return nil, nil, fmt.Errorf("not a prefix: %s", r.Prefix)
	}
	return r.key(), uint32(1), nil
}

func (r DestRow) key() *vrfbindBhDestKey {
	k := &vrfbindBhDestKey{Prefixlen: destFixed + uint32(r.Prefix.Bits()), Netid: be(r.NetworkID), Family: be(unix.AF_INET6), Addr: addrWords(r.Prefix.Masked().Addr().As16())}
	if r.Prefix.Addr().Is4() {
		k.Family = be(unix.AF_INET)
		k.Prefixlen += 96
	}
	return k
}

func (r ClusterIPRow) encode() (any, any, error) {
	if !r.Addr.IsValid() || r.Addr.Is4In6() || r.Addr.Zone() != "" || r.NetworkID == 0 {
		return nil, nil, fmt.Errorf("not a network's address: %s of network %d", r.Addr, r.NetworkID)
	}
	return DestRow{clusterIPs, netip.PrefixFrom(r.Addr, r.Addr.BitLen())}.key(), r.NetworkID, nil
}

func (r LockedRow) encode() (any, any, error) {
	if !r.Addr.IsValid() || r.Addr.Zone() != "" {
		return nil, nil, fmt.Errorf("not an address: %s", r.Addr)
	}
	return &probeBhAddr{A: addrWords(r.Addr.As16())}, r.NetworkID, nil
}

// openProtocols are the IP protocols of an OpenRow's protocol: of an IPv4 and of an IPv6 address.
var openProtocols = map[string][2]uint8{
	"tcp": {unix.IPPROTO_TCP, unix.IPPROTO_TCP}, "udp": {unix.IPPROTO_UDP, unix.IPPROTO_UDP}, "sctp": {unix.IPPROTO_SCTP, unix.IPPROTO_SCTP},
	"icmp": {unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6},
}

func (r OpenRow) encode() (any, any, error) {
	protocol, ok := openProtocols[r.Protocol]
	if !ok || !r.Addr.IsValid() || r.Addr.Zone() != "" {
		return nil, nil, fmt.Errorf("no protocol of an address: %q of %s", r.Protocol, r.Addr)
	}
	k := &guardBhOpenKey{Port: r.Port, Proto: protocol[0]}
	if k.Addr.A = addrWords(r.Addr.As16()); r.Addr.Is6() {
		k.Proto = protocol[1]
	}
	return k, uint32(1), nil
}

const (
	kubeletCgroup = 1 // BH_KUBELET_CGROUP
	kubeletTGID   = 2 // BH_KUBELET_TGID
)

func (r KubeletRow) encode() (any, any, error) {
	switch {
	case r.TGID != 0 && r.CgroupID == 0:
		return &probeBhKubeletKey{Id: uint64(r.TGID), Kind: kubeletTGID}, uint32(1), nil
	case r.CgroupID != 0 && r.TGID == 0:
		return &probeBhKubeletKey{Id: r.CgroupID, Kind: kubeletCgroup}, uint32(1), nil
	}
	return nil, nil, errors.New("a kubelet row has a cgroup or a process, not both")
}

// Put writes a row. It is a no-op if the map holds the same row.
func (l *Loader) Put(r Row) error {
	k, v, err := r.encode()
	if err == nil {
		err = l.maps[r.Key().Map].Put(k, v)
	}
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("put %s: map %s is full: %w", r, r.Key().Map, err)
	}
	if err != nil {
		return fmt.Errorf("put %s: %w", r, err)
	}
	return nil
}

// Delete removes a row. A missing row is no error.
func (l *Loader) Delete(r Row) error {
	k, _, err := r.encode()
	if err == nil {
		err = l.maps[r.Key().Map].Delete(k)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete %s: %w", r, err)
	}
	return nil
}

// Rows reads every row of every map.
func (l *Loader) Rows() ([]Row, error) {
	out, err := l.podRows()
	addresses, err2 := l.addressRows()
	doors, err3 := l.doorRows()
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, fmt.Errorf("read the eBPF maps: %w", err)
	}
	return slices.Concat(out, addresses, doors), nil
}

func (l *Loader) podRows() ([]Row, error) {
	var out []Row
	var cgid uint64
	var pod vrfbindBhPod
	pods := l.maps["bh_pods"].Iterate()
	for pods.Next(&cgid, &pod) {
		out = append(out, PodRow{cgid, pod.Netid, pod.Mark, pod.VrfIfindex, pod.Flags&podUnbound != 0, pod.Flags&podTrusted != 0, pod.Flags&podIngress != 0})
	}
	var v uint32
	roots := l.maps["bh_podroots"].Iterate()
	for roots.Next(&cgid, &v) {
		out = append(out, PodRootRow{cgid})
	}
	var kk probeBhKubeletKey
	kubelet := l.maps["bh_kubelet"].Iterate()
	for kubelet.Next(&kk, &v) {
		if kk.Kind == kubeletTGID {
			out = append(out, KubeletRow{TGID: uint32(kk.Id)})
		} else {
			out = append(out, KubeletRow{CgroupID: kk.Id})
		}
	}
	return out, errors.Join(pods.Err(), roots.Err(), kubelet.Err())
}

func (l *Loader) addressRows() ([]Row, error) {
	var out []Row
	var v uint32
	var dk vrfbindBhDestKey
	dests := l.maps["bh_dests"].Iterate()
	for dests.Next(&dk, &v) {
		bits := int(dk.Prefixlen) - destFixed
		addr := netip.AddrFrom16(wordsAddr(dk.Addr).As16())
		if be(dk.Family) == unix.AF_INET {
			addr, bits = addr.Unmap(), bits-96
		}
		if be(dk.Netid) == clusterIPs {
			out = append(out, ClusterIPRow{addr, v})
		} else {
			out = append(out, DestRow{be(dk.Netid), netip.PrefixFrom(addr, bits)})
		}
	}
	var ak probeBhAddr
	locked := l.maps["bh_locked"].Iterate()
	for locked.Next(&ak, &v) {
		out = append(out, LockedRow{wordsAddr(ak.A), v})
	}
	var ok guardBhOpenKey
	open := l.maps["bh_open"].Iterate()
	for open.Next(&ok, &v) {
		r := OpenRow{Addr: wordsAddr(ok.Addr.A), Port: ok.Port}
		for name, p := range openProtocols {
			if ok.Proto == p[0] && r.Addr.Is4() || ok.Proto == p[1] && r.Addr.Is6() {
				r.Protocol = name
			}
		}
		out = append(out, r)
	}
	locals := l.maps["bh_locals"].Iterate()
	for locals.Next(&ak, &v) {
		out = append(out, LocalRow{wordsAddr(ak.A)})
	}
	return out, errors.Join(dests.Err(), locked.Err(), open.Err(), locals.Err())
}

func (l *Loader) doorRows() ([]Row, error) {
	var out []Row
	var id uint32
	var door guardBhDoor
	doors := l.maps["bh_doors"].Iterate()
	for doors.Next(&id, &door) {
		out = append(out, DoorRow{int(id), DoorKind(door.Kind), door.Netid, int(door.ForwardFrom), door.PeerMac, optionalAddr(door.Peer6), door.Open != 0})
	}
	var net vrfbindBhNet
	nets := l.maps["bh_nets"].Iterate()
	for nets.Next(&id, &net) {
		out = append(out, NetRow{id, net.VrfIfindex, net.Mark, optionalAddr(net.Host4), optionalAddr(net.Host6)})
	}
	var pk probeBhProbeKey
	var p probeBhProbe
	probes := l.maps["bh_probes"].Iterate()
	for probes.Next(&pk, &p) {
		out = append(out, ProbeRow{pk.Port, p.Netid})
	}
	return out, errors.Join(doors.Err(), nets.Err(), probes.Err())
}

// optionalAddr returns the zero Addr if all words are zero.
func optionalAddr(w [4]uint32) netip.Addr {
	if w == [4]uint32{} {
		return netip.Addr{}
	}
	return wordsAddr(w)
}

// HeldProbes returns the ports of ProbeRows on which the programs saw a socket
// outside the network listen. Probes on them are not redirected.
func (l *Loader) HeldProbes() ([]uint16, error) {
	var out []uint16
	var k probeBhProbeKey
	var p probeBhProbe
	probes := l.maps["bh_probes"].Iterate()
	for probes.Next(&k, &p) {
		if p.Held != 0 {
			out = append(out, k.Port)
		}
	}
	if err := probes.Err(); err != nil {
		return nil, fmt.Errorf("read map bh_probes: %w", err)
	}
	return out, nil
}
