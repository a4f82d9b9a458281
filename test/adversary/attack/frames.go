// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// packetSocket sends a frame on Device. How:
//
//	bypass   without the queueing discipline (PACKET_QDISC_BYPASS)
//	ring     from a ring (PACKET_TX_RING)
//	tagged   with a priority tag
//	vlan=N   with the tag of a VLAN, behind the priority tag if there is one
//	etype=N  the protocol in sockaddr_ll, when it differs from the frame's
//	unbound  by sendto alone, without a bind
//	mark=N   SO_MARK
//	checksum[=N]  with a UDP checksum that the kernel completes later, in its field or at byte N of the frame (PACKET_VNET_HDR)
func packetSocket(typ int) func(Attempt) error {
	return func(a Attempt) error {
		packet, err := a.packet()
		if err != nil {
			return err
		}
		ifindex, err := index(a.Device)
		if err != nil {
			return err
		}
		dst, err := net.ParseMAC(a.DstMAC)
		if err != nil {
			return fmt.Errorf("hardware address: %w", err)
		}
		src, err := net.ParseMAC(a.SrcMAC)
		if err != nil {
			return fmt.Errorf("source hardware address: %w", err)
		}
		etype := etherType(packet)
		if n, ok, err := a.number("etype"); err != nil {
			return fmt.Errorf("etype: %w", err)
		} else if ok {
			etype = uint16(n)
		}
		vlans, err := a.vlans()
		if err != nil {
			return err
		}
		frame := packet
		if typ == unix.SOCK_RAW {
			frame = ethernet(src, dst, vlans, packet)
		}
		fd, err := unix.Socket(unix.AF_PACKET, typ|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		defer unix.Close(fd)
		problems := a.set(fd, false)
		if _, ok := a.option("bypass"); ok {
			if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
				problems = append(problems, "bypass: "+err.Error())
			}
		}
		to := &unix.SockaddrLinklayer{Protocol: htons(etype), Ifindex: ifindex, Halen: 6}
		copy(to.Addr[:], dst)
		if _, ok := a.option("ring"); ok {
			return withProblems(problems, sendRing(fd, to, frame))
		}
		if _, ok := a.option("unbound"); !ok {
			if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: ifindex}); err != nil {
				problems = append(problems, "bind: "+err.Error())
			}
		}
		if _, ok := a.option("checksum"); ok {
			if frame, err = unfinishedChecksum(a, fd, frame, 4*len(vlans)); err != nil {
				return withProblems(problems, err)
			}
		}
		times := 2
		if _, ok := a.option("bypass"); ok {
			times = 10 // without a queue, a busy device drops frames
		}
		for range times {
			if err := unix.Sendto(fd, frame, unix.MSG_DONTWAIT, to); err != nil {
				return withProblems(problems, fmt.Errorf("sendto: %w", err))
			}
		}
		return withProblems(problems, nil)
	}
}

// vlans returns the VLANs of the tags in the frame.
func (a Attempt) vlans() (out []uint16, err error) {
	if _, tagged := a.option("tagged"); tagged {
		out = append(out, 0)
	}
	n, ok, err := a.number("vlan")
	if err != nil || n > 4095 {
		return nil, fmt.Errorf("VLAN %d: %w", n, cmp.Or(err, errors.New("want 4095 or less")))
	}
	if ok {
		out = append(out, uint16(n))
	}
	return out, nil
}

// unfinishedChecksum prepends a struct virtio_net_hdr to a frame with a UDP datagram behind tags of that many bytes.
func unfinishedChecksum(a Attempt, fd int, frame []byte, tags int) ([]byte, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		return nil, fmt.Errorf("checksum: %w", err)
	}
	const udpChecksum, link = 6, 14
	start, offset := link+tags+20, uint16(udpChecksum)
	if netip.MustParseAddr(a.To).Is6() {
		start = link + tags + 40
	}
	if value, _ := a.option("checksum"); value != "" {
		at, err := strconv.ParseUint(value, 10, 16)
		const first = 20 // the kernel takes no earlier start
		if err != nil || at < first {
			return nil, fmt.Errorf("checksum at byte %q: want %d or more: %w", value, first, err)
		}
		start, offset = first, uint16(at)-first
	}
	h := []byte{unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	binary.NativeEndian.PutUint16(h[6:], uint16(start))
	binary.NativeEndian.PutUint16(h[8:], offset)
	return append(h, frame...), nil
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// sendRing sends a frame through a memory-mapped ring.
func sendRing(fd int, to *unix.SockaddrLinklayer, frame []byte) error {
	const size = 4096
	req := unix.TpacketReq{Block_size: size, Block_nr: 1, Frame_size: size, Frame_nr: 1}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_TX_RING, &req); err != nil {
		return fmt.Errorf("ring: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the ring: %w", err)
	}
	defer unix.Munmap(mem)
	h := (*unix.TpacketHdr)(unsafe.Pointer(&mem[0]))
	data := (int(unsafe.Sizeof(*h)) + unix.TPACKET_ALIGNMENT - 1) &^ (unix.TPACKET_ALIGNMENT - 1)
	copy(mem[data:], frame)
	h.Len = uint32(len(frame))
	h.Status = unix.TP_STATUS_SEND_REQUEST
	if err := unix.Sendto(fd, nil, 0, to); err != nil {
		return fmt.Errorf("sendto: %w", err)
	}
	return nil
}

// sockPacket sends a frame by SOCK_PACKET, the obsolete interface of Linux 2.0,
// whose address holds the device's name.
func sockPacket(a Attempt) error {
	packet, err := a.packet()
	if err != nil {
		return err
	}
	dst, err := net.ParseMAC(a.DstMAC)
	if err != nil {
		return err
	}
	src, err := net.ParseMAC(a.SrcMAC)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_PACKET|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	var sa [18]byte // struct sockaddr_pkt
	binary.NativeEndian.PutUint16(sa[0:], unix.AF_PACKET)
	copy(sa[2:15], a.Device)
	binary.BigEndian.PutUint16(sa[16:], unix.ETH_P_IP)
	frame := ethernet(src, dst, nil, packet)
	_, _, no := unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&frame[0])), uintptr(len(frame)), 0, uintptr(unsafe.Pointer(&sa[0])), uintptr(len(sa)))
	if no != 0 {
		return fmt.Errorf("sendto: %w", no)
	}
	return nil
}

// xdp sends a frame by an AF_XDP socket in copy mode, which needs no XDP program
// and bypasses queueing disciplines and their filters.
func xdp(a Attempt) error {
	packet, err := a.packet()
	if err != nil {
		return err
	}
	ifindex, err := index(a.Device)
	if err != nil {
		return err
	}
	dst, err := net.ParseMAC(a.DstMAC)
	if err != nil {
		return err
	}
	src, err := net.ParseMAC(a.SrcMAC)
	if err != nil {
		return err
	}
	frame := ethernet(src, dst, nil, packet)
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	const chunks, chunk = 16, 4096
	umem, err := unix.Mmap(-1, 0, chunks*chunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	defer unix.Munmap(umem)
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&umem[0]))), Len: chunks * chunk, Size: chunk}
	if err := setXDP(fd, unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg)); err != nil {
		return fmt.Errorf("register memory: %w", err)
	}
	n := uint32(chunks)
	for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_TX_RING} {
		if err := setXDP(fd, ring, unsafe.Pointer(&n), unsafe.Sizeof(n)); err != nil {
			return fmt.Errorf("ring: %w", err)
		}
	}
	var off unix.XDPMmapOffsets
	size := uint32(unsafe.Sizeof(off))
	if _, _, no := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_MMAP_OFFSETS, uintptr(unsafe.Pointer(&off)), uintptr(unsafe.Pointer(&size)), 0); no != 0 {
		return fmt.Errorf("offsets: %w", no)
	}
	tx, err := unix.Mmap(fd, unix.XDP_PGOFF_TX_RING, int(off.Tx.Desc)+chunks*int(unsafe.Sizeof(unix.XDPDesc{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map the ring: %w", err)
	}
	defer unix.Munmap(tx)
	sa := &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(ifindex)}
	if err := unix.Bind(fd, sa); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	for i := range uint32(2) {
		copy(umem[i*chunk:], frame)
		*(*unix.XDPDesc)(unsafe.Pointer(&tx[off.Tx.Desc+uint64(i)*uint64(unsafe.Sizeof(unix.XDPDesc{}))])) = unix.XDPDesc{Addr: uint64(i * chunk), Len: uint32(len(frame))}
		*(*uint32)(unsafe.Pointer(&tx[off.Tx.Producer])) = i + 1
		if err := unix.Sendto(fd, nil, unix.MSG_DONTWAIT, nil); err != nil && !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("sendto: %w", err)
		}
	}
	return nil
}

func setXDP(fd, opt int, value unsafe.Pointer, size uintptr) error {
	if _, _, no := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(opt), uintptr(value), size, 0); no != 0 {
		return no
	}
	return nil
}
