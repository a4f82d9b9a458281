// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Row is one entry of a map, typed. Rows are comparable; two with the same Key
// are the same entry.
type Row interface {
	Key() Key
	String() string
	encode() (key, value any, err error)
}

// Key identifies a row: the map, and the key in a readable and comparable form.
type Key struct {
	Map string
	ID  any
}

// PodRow says which network the pod with this cgroup belongs to.
type PodRow struct {
	CgroupID   uint64
	NetworkID  uint32
	Mark       uint32
	VRFIfindex uint32 // 0: the VRF does not exist yet; the pod's wildcard binds are refused
}

// DestRow says that a prefix lies inside a network's VRF.
type DestRow struct {
	NetworkID uint32
	Prefix    netip.Prefix
}

// LockedRow is a default-network address that only kubelet may reach.
type LockedRow struct {
	Addr      netip.Addr
	NetworkID uint32
}

// KubeletRow identifies kubelet by cgroup, or by process id where its cgroup is
// shared with others. Exactly one of the two is set.
type KubeletRow struct {
	CgroupID uint64
	TGID     uint32
}

func (r PodRow) Key() Key     { return Key{"bh_pods", r.CgroupID} }
func (r DestRow) Key() Key    { return Key{"bh_dests", r} }
func (r LockedRow) Key() Key  { return Key{"bh_locked", r.Addr} }
func (r KubeletRow) Key() Key { return Key{"bh_kubelet", r} }

func (r PodRow) String() string {
	return fmt.Sprintf("pod cgroup %d → network %d mark %#x vrf ifindex %d", r.CgroupID, r.NetworkID, r.Mark, r.VRFIfindex)
}
func (r DestRow) String() string {
	return fmt.Sprintf("destination %s inside network %d", r.Prefix, r.NetworkID)
}
func (r LockedRow) String() string {
	return fmt.Sprintf("locked address %s of network %d", r.Addr, r.NetworkID)
}
func (r KubeletRow) String() string {
	if r.TGID != 0 {
		return fmt.Sprintf("kubelet process %d", r.TGID)
	}
	return fmt.Sprintf("kubelet cgroup %d", r.CgroupID)
}

func words(b [16]byte) (w [4]uint32) {
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(b[i*4:])
	}
	return w
}

func unwords(w [4]uint32) netip.Addr {
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

func (r PodRow) encode() (any, any, error) {
	if r.CgroupID == 0 {
		return nil, nil, errors.New("no cgroup id")
	}
	return r.CgroupID, &vrfbindBhPod{Netid: r.NetworkID, Mark: r.Mark, VrfIfindex: r.VRFIfindex}, nil
}

func (r DestRow) encode() (any, any, error) {
	if !r.Prefix.IsValid() || r.Prefix.Addr().Is4In6() {
		return nil, nil, fmt.Errorf("not a prefix: %s", r.Prefix)
	}
	k := &vrfbindBhDestKey{Prefixlen: destFixed + uint32(r.Prefix.Bits()), Netid: be(r.NetworkID), Family: be(unix.AF_INET6), Addr: words(r.Prefix.Masked().Addr().As16())}
	if r.Prefix.Addr().Is4() {
		k.Family = be(unix.AF_INET)
		k.Prefixlen += 96
	}
	return k, uint32(1), nil
}

func (r LockedRow) encode() (any, any, error) {
	if !r.Addr.IsValid() || r.Addr.Zone() != "" {
		return nil, nil, fmt.Errorf("not an address: %s", r.Addr)
	}
	return &probeBhAddr{A: words(r.Addr.As16())}, r.NetworkID, nil
}

func (r KubeletRow) encode() (any, any, error) {
	switch {
	case r.TGID != 0 && r.CgroupID == 0:
		return &probeBhKubeletKey{Id: uint64(r.TGID), Who: 2}, uint32(1), nil
	case r.CgroupID != 0 && r.TGID == 0:
		return &probeBhKubeletKey{Id: r.CgroupID, Who: 1}, uint32(1), nil
	}
	return nil, nil, errors.New("a kubelet row has a cgroup or a process, not both")
}

// Put writes a row; the same row again changes nothing.
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

// Delete removes a row; a missing one is no error.
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
	var out []Row
	var cgid uint64
	var pod vrfbindBhPod
	pods := l.maps["bh_pods"].Iterate()
	for pods.Next(&cgid, &pod) {
		out = append(out, PodRow{cgid, pod.Netid, pod.Mark, pod.VrfIfindex})
	}
	var dk vrfbindBhDestKey
	var v uint32
	dests := l.maps["bh_dests"].Iterate()
	for dests.Next(&dk, &v) {
		bits := int(dk.Prefixlen) - destFixed
		addr := netip.AddrFrom16(unwords(dk.Addr).As16())
		if be(dk.Family) == unix.AF_INET {
			addr, bits = addr.Unmap(), bits-96
		}
		out = append(out, DestRow{be(dk.Netid), netip.PrefixFrom(addr, bits)})
	}
	var ak probeBhAddr
	locked := l.maps["bh_locked"].Iterate()
	for locked.Next(&ak, &v) {
		out = append(out, LockedRow{unwords(ak.A), v})
	}
	var kk probeBhKubeletKey
	kubelet := l.maps["bh_kubelet"].Iterate()
	for kubelet.Next(&kk, &v) {
		if kk.Who == 2 {
			out = append(out, KubeletRow{TGID: uint32(kk.Id)})
		} else {
			out = append(out, KubeletRow{CgroupID: kk.Id})
		}
	}
	if err := errors.Join(pods.Err(), dests.Err(), locked.Err(), kubelet.Err()); err != nil {
		return nil, fmt.Errorf("read the eBPF maps: %w", err)
	}
	return out, nil
}
