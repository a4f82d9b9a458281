// SPDX-License-Identifier: Apache-2.0

// Package attack holds the ways in which a process can send a packet: every kind of
// socket, socket option, control message, address form and frame that can choose
// a path. An attempt carries a token by which a listener identifies it; the
// sender's result proves nothing.
package attack

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Attempt is one attempt to send a packet to a victim.
type Attempt struct {
	ID     int    `json:"id"`     // 1 to MaxID; TCP attempts encode it in the source port
	Socket string `json:"socket"` // a key of kinds
	To     string `json:"to"`     // address; a link-local one has a zone; an abstract unix socket's begins with @
	Port   uint16 `json:"port,omitempty"`
	// Device is the interface that options and frames choose.
	Device string `json:"device,omitempty"`
	// How lists options in the order in which they are set, as "name" or
	// "name=value".
	How []string `json:"how,omitempty"`
	// The following fields are for hand-made packets and frames.
	Src     string `json:"src,omitempty"`     // IP address
	SrcPort uint16 `json:"srcPort,omitempty"` // of UDP; default SourcePort, of a DHCP answer the server's
	SrcMAC  string `json:"srcMAC,omitempty"`
	DstMAC  string `json:"dstMAC,omitempty"`
	// Frame is the content of a hand-made frame, see packet; default "udp".
	Frame string `json:"frame,omitempty"`
	// Quoted is the datagram that an ICMP error quotes.
	Quoted *Quoted `json:"quoted,omitempty"`
	// Patience is the connect timeout in milliseconds; default 1500.
	Patience int `json:"patience,omitempty"`
	// Geneve encapsulates the attempt for the overlay.
	Geneve *Geneve `json:"geneve,omitempty"`
}

// Geneve is the header and the inner addresses of a Geneve packet.
type Geneve struct {
	VNI            uint32 `json:"vni"`
	In, Out        uint16 // OVN's logical ports
	InnerSrc       string `json:"innerSrc"`
	InnerDst       string `json:"innerDst"`
	SrcMAC, DstMAC string
}

// Quoted is a datagram that somebody else has sent.
type Quoted struct {
	From netip.AddrPort `json:"from"`
	To   netip.AddrPort `json:"to"`
}

// MaxID is the largest id of an attempt.
const MaxID = 27000

// firstPort starts the range of source ports. The range lies in Linux's default
// ephemeral port range: a port outside of it needs a bind.
const firstPort = 33000

// SourcePort is the source port of a TCP attempt.
func (a Attempt) SourcePort() uint16 { return uint16(firstPort + a.ID) }

// udpSource is the source port of a hand-made datagram.
func (a Attempt) udpSource() uint16 { return cmp.Or(a.SrcPort, a.SourcePort()) }

// Token is the payload of every packet of the attempt.
func (a Attempt) Token() []byte { return fmt.Appendf(nil, "BHADV%08d", a.ID) }

// FindTokens returns the ids of the tokens in a packet.
func FindTokens(packet []byte) []int {
	var out []int
	s := string(packet)
	for {
		_, rest, ok := strings.Cut(s, "BHADV")
		if !ok {
			return out
		}
		if len(rest) >= 8 {
			if id, err := strconv.Atoi(rest[:8]); err == nil {
				out = append(out, id)
			}
		}
		s = rest
	}
}

// Port is the destination port of attempts that listeners identify by the source
// port: nothing else sends to it.
const Port = 7999

// FindPort returns the id of a TCP or SCTP attempt to Port, from the ports of an
// IP packet.
func FindPort(ip []byte) (int, bool) {
	connects := func(proto byte) bool { return proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_SCTP }
	var l4 []byte
	switch {
	case len(ip) >= 20 && ip[0]>>4 == 4 && connects(ip[9]) && len(ip) > int(ip[0]&15)*4:
		l4 = ip[int(ip[0]&15)*4:]
	case len(ip) >= 40 && ip[0]>>4 == 6 && connects(ip[6]):
		l4 = ip[40:]
	}
	if len(l4) < 4 || binary.BigEndian.Uint16(l4[2:]) != Port {
		return 0, false
	}
	id := int(binary.BigEndian.Uint16(l4)) - firstPort
	return id, id >= 1 && id <= MaxID
}

// Validate returns an error for an attempt that no sender can make as described:
// nothing would be sent, or an option of How would have no effect.
func (a Attempt) Validate() error {
	if a.ID < 1 || a.ID > MaxID {
		return fmt.Errorf("id %d is not in 1 to %d", a.ID, MaxID)
	}
	if _, ok := kinds[a.Socket]; !ok {
		return fmt.Errorf("unknown kind of socket %q", a.Socket)
	}
	if strings.HasPrefix(a.Socket, "unix") {
		if !strings.HasPrefix(a.To, "@") {
			return fmt.Errorf("%q is no name of an abstract unix socket", a.To)
		}
	} else if _, err := a.dest(); err != nil {
		return err
	}
	if a.SrcMAC != "" || a.Frame != "" {
		if _, err := a.packet(); err != nil {
			return err
		}
	} else if a.Src != "" {
		if _, err := netip.ParseAddr(a.Src); err != nil {
			return fmt.Errorf("source address: %w", err)
		}
	}
	if _, err := a.vlans(); err != nil {
		return err
	}
	if first, ok := a.option("connectx"); ok {
		if at, err := netip.ParseAddr(first); err != nil || family(at) != family(netip.MustParseAddr(a.To)) {
			return fmt.Errorf("first address %q: want one of the family of %s", first, a.To)
		}
	}
	for _, h := range a.How {
		if name, _, _ := strings.Cut(h, "="); !options[name] {
			return fmt.Errorf("unknown option %q", h)
		}
	}
	return nil
}

// options are the names that How may contain.
var options = map[string]bool{
	"bindtodevice": true, "bindtoifindex": true, "unicastif": true, "stickypktinfo": true, "multicastif": true, "multicastifaddr": true,
	"join": true, "mark": true, "lsrr": true, "broadcast": true, "gso": true, "transparent": true, "bindscope": true, "cmsg-pktinfo": true, "cmsg-mark": true,
	"connect": true, "mapped": true, "fastopen": true, "connectx": true, "fragments": true,
	"bypass": true, "ring": true, "tagged": true, "vlan": true, "etype": true, "unbound": true, "target": true, "checksum": true,
}

// Do makes the attempt. The error is what the kernel reported to the sender.
func (a Attempt) Do() error {
	f, ok := kinds[a.Socket]
	if !ok {
		return fmt.Errorf("unknown kind of socket %q", a.Socket)
	}
	return f(a)
}

var kinds map[string]func(Attempt) error

func init() {
	kinds = map[string]func(Attempt) error{
		"udp": datagram(unix.SOCK_DGRAM, unix.IPPROTO_UDP), "udplite": datagram(unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE),
		"ping": datagram(unix.SOCK_DGRAM, -1), "raw-icmp": datagram(unix.SOCK_RAW, -1),
		"raw-other": datagram(unix.SOCK_RAW, 253), "hdrincl": headerIncluded,
		"tcp": stream(unix.SOCK_STREAM, unix.IPPROTO_TCP), "mptcp": stream(unix.SOCK_STREAM, unix.IPPROTO_MPTCP),
		"sctp": stream(unix.SOCK_STREAM, unix.IPPROTO_SCTP), "sctp-seq": stream(unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP),
		"l2tp":   datagram(unix.SOCK_DGRAM, unix.IPPROTO_L2TP),
		"geneve": datagram(unix.SOCK_DGRAM, unix.IPPROTO_UDP),
		"packet": packetSocket(unix.SOCK_RAW), "packet-dgram": packetSocket(unix.SOCK_DGRAM), "sock-packet": sockPacket, "xdp": xdp,
		"unix-stream": unixSocket(unix.SOCK_STREAM), "unix-dgram": unixSocket(unix.SOCK_DGRAM),
	}
}

// option returns the value of an option in How and whether How has it.
func (a Attempt) option(name string) (value string, ok bool) {
	for _, h := range a.How {
		k, v, _ := strings.Cut(h, "=")
		if k == name {
			return v, true
		}
	}
	return "", false
}

func (a Attempt) number(name string) (uint32, bool, error) {
	v, ok := a.option(name)
	if !ok {
		return 0, false, nil
	}
	n, err := strconv.ParseUint(v, 0, 32)
	return uint32(n), true, err
}

// index returns an interface's index by one ioctl: listing all interfaces for
// every attempt would dominate the run time.
func index(device string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(device)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req)
	}
	if err != nil {
		return 0, fmt.Errorf("device %s: %w", device, err)
	}
	return int(req.Uint32()), nil
}

func (a Attempt) dest() (netip.Addr, error) {
	to, err := netip.ParseAddr(a.To)
	if err != nil {
		return to, fmt.Errorf("address: %w", err)
	}
	if _, ok := a.option("mapped"); ok {
		to = netip.AddrFrom16(to.As16())
	}
	return to, nil
}

func sockaddr(to netip.Addr, port uint16) (unix.Sockaddr, error) {
	if to.Is4() {
		return &unix.SockaddrInet4{Port: int(port), Addr: to.As4()}, nil
	}
	sa := &unix.SockaddrInet6{Port: int(port), Addr: to.As16()}
	if z := to.Zone(); z != "" {
		i, err := index(z)
		if err != nil {
			return nil, err
		}
		sa.ZoneId = uint32(i)
	}
	return sa, nil
}

func family(to netip.Addr) int {
	if to.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

var errShort = errors.New("the kernel accepted only part of the packet")
