// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/test/adversary/attack"
)

// A pod chooses the port to which its datagram goes after all checks, where a link without checksum offload takes it off
// the node; the guard drops that datagram. The victim is a host behind the link.
func TestRootGuardChecksum(t *testing.T) {
	w := newGuardSandbox(t, false)
	victim := newNetNS(t)
	must(t, w.ns.do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		add := func(l netlink.Link) error {
			if err := h.LinkAdd(l); err != nil {
				return err
			}
			return h.LinkSetUp(l)
		}
		attrs := func(name string) netlink.LinkAttrs { a := netlink.NewLinkAttrs(); a.Name = name; return a }
		snoop := false
		bridge := &netlink.Bridge{LinkAttrs: attrs("br"), MulticastSnooping: &snoop}
		if err := add(bridge); err != nil {
			return err
		}
		uplink := &netlink.Veth{LinkAttrs: attrs("uplink"), PeerName: "eth0", PeerNamespace: netlink.NsFd(int(victim.f.Fd()))}
		if err := add(uplink); err != nil {
			return err
		}
		pod, err := h.LinkByName("pod")
		if err != nil {
			return err
		}
		for _, l := range []netlink.Link{uplink, pod} {
			if err := h.LinkSetMaster(l, bridge); err != nil {
				return err
			}
		}
		return withoutChecksumOffload("uplink")
	}))
	var fd int
	must(t, victim.do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		l, err := h.LinkByName("eth0")
		if err == nil {
			err = h.LinkSetUp(l)
		}
		if err == nil {
			fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(unix.ETH_P_ALL<<8))
		}
		return err
	}))
	defer unix.Close(fd)
	// ports sends a datagram until the victim gets one from the sender's port of another datagram that follows it, and returns the
	// destination ports of the first.
	ports := func(how ...string) (got []uint16) {
		t.Helper()
		frame := attack.Attempt{Socket: "packet", Device: "eth0", Frame: "udp", Src: "10.1.0.4", To: "192.0.2.9", SrcMAC: w.mac["pod"], DstMAC: w.own["mp0"], Port: attack.Port}
		w.attemptID++
		first, last := frame, frame
		first.ID, first.How = w.attemptID, how
		w.attemptID++
		last.ID = w.attemptID
		for deadline := time.Now().Add(time.Minute); ; {
			if time.Now().After(deadline) {
				t.Fatal("the victim gets nothing")
			}
			for _, a := range []attack.Attempt{first, last} {
				if err := w.peers["pod"].do(a.Do); err != nil {
					t.Fatal(err)
				}
			}
			for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
				b := make([]byte, 2048)
				n, err := unix.Read(fd, b)
				if err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				switch b = b[:n]; {
				case bytes.Contains(b, first.Token()):
					got = append(got, binary.BigEndian.Uint16(b[36:]))
				case bytes.Contains(b, last.Token()):
					return got
				}
			}
		}
	}
	ports() // until the links forward, which they begin to between two frames
	if got := ports("checksum"); len(got) == 0 || got[0] != attack.Port {
		t.Fatalf("a datagram with its checksum in its place arrives at the ports %v, want %d", got, attack.Port)
	}
	if got := ports("checksum=36"); len(got) == 0 || got[0] == attack.Port {
		t.Errorf("without the guard the attack does not work: the datagram arrives at the ports %v", got)
	}
	w.attachGuard()
	if got := ports("checksum=36"); len(got) > 0 {
		t.Errorf("the datagram arrives at the ports %v", got)
	}
	if got := ports("checksum"); len(got) == 0 || got[0] != attack.Port {
		t.Errorf("a datagram with its checksum in its place arrives at the ports %v, want %d", got, attack.Port)
	}
}

// withoutChecksumOffload makes the kernel complete checksums before it sends by an interface, as where the hardware does not
// (ETHTOOL_STXCSUM).
func withoutChecksumOffload(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{command: unix.ETHTOOL_STXCSUM}
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:], name)
	request.data = unsafe.Pointer(&value)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}
