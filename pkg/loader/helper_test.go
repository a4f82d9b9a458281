// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/test/adversary/attack"
)

// The tests run helper processes in their own cgroups and namespaces. A helper is
// the test binary itself, which executes a script from an environment variable, with
// one operation per line, and writes one line of output for each. A test uses few
// helpers, because exec is slow in an emulated VM.

const helperEnv = "BULKHEAD_TEST_SCRIPT"

var helperBinary string

func TestMain(m *testing.M) {
	if script, ok := os.LookupEnv(helperEnv); ok {
		runtime.LockOSThread() // "unshare" changes the namespace of this thread only
		for _, op := range strings.Split(script, "\n") {
			fmt.Println(helperOp(op))
		}
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	// An unprivileged user must be able to execute the binary: go test's directory has
	// mode 0700, so copy it.
	dir, err := os.MkdirTemp("", "bh-helper-")
	if err == nil {
		defer os.RemoveAll(dir)
		helperBinary = filepath.Join(dir, "helper")
		err = errors.Join(os.Chmod(dir, 0o755), copyFile("/proc/self/exe", helperBinary))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "create the helper binary:", err)
		return 1
	}
	return m.Run()
}

func copyFile(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, raw, 0o755)
}

func result(err error) string {
	if err == nil {
		return "ok"
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	var netErr net.Error
	if errors.As(err, &netErr) && netErr.Timeout() {
		return "timeout"
	}
	return err.Error()
}

const timeout = 3 * time.Second

func helperOp(op string) string {
	f := strings.Fields(op)
	arg := func(i int) string {
		if i < len(f) {
			return f[i]
		}
		return ""
	}
	switch arg(0) {
	case "tcp": // connect and read the server's greeting
		return result(tcp(arg(1)))
	case "udp": // send one unconnected datagram from an unbound socket, and receive the reply
		return result(udp(arg(1), false))
	case "udpc": // the same with a connected socket
		return result(udp(arg(1), true))
	case "ping":
		return result(ping(arg(1)))
	case "state": // mark and device of a socket after it connected to an address
		return state(arg(1))
	case "create": // mark and device of a new socket of a kind
		return createSocket(arg(1))
	case "exec": // run another build of the adversary's program, which makes one attempt
		cmd := exec.Command(f[1], "send")
		cmd.Stdin = strings.NewReader(arg(2))
		out, err := cmd.Output()
		if err != nil {
			return result(err)
		}
		return strings.TrimSpace(string(out))
	case "socket": // create a socket of an address family, with a protocol
		family, err := strconv.Atoi(arg(1))
		if err != nil {
			return err.Error()
		}
		protocol := 1
		if arg(2) != "" {
			if protocol, err = strconv.Atoi(arg(2)); err != nil {
				return err.Error()
			}
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM, protocol)
		if err == nil {
			unix.Close(fd)
		}
		return result(err)
	case "bind": // bind a TCP socket, after its device, to an address
		return result(bindOnDevice(arg(1), arg(2)))
	case "take": // bind a TCP socket to addresses in turn, also to some that the node lacks, and listen
		return result(take(0, f[1:]...))
	case "mptake": // the same over MPTCP
		return result(take(unix.IPPROTO_MPTCP, f[1:]...))
	case "bypass": // PACKET_QDISC_BYPASS of a packet socket that its process may have
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1)
			unix.Close(fd)
		}
		return result(err)
	case "set": // set a socket option
		return result(set(arg(1)))
	case "bigopt": // set an option longer than a page, which the hook must not break
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.SetsockoptString(fd, unix.SOL_IP, 64 /* IPT_SO_SET_REPLACE */, strings.Repeat("x", 8192))
		}
		return result(err)
	case "listen": // serve over TCP until a line of input
		ln, err := net.Listen("tcp", arg(1))
		if err != nil {
			return result(err)
		}
		go serveGreeting(ln, "hello")
		fmt.Println("ok")
		bufio.NewReader(os.Stdin).ReadString('\n')
		return "stopped"
	case "unix-listen": // serve at a unix socket, streams and datagrams (name and "-datagrams"), until a line of input; then say how many came
		return serveUnix(arg(1))
	case "unix": // receive the greeting of a server at a unix socket
		return result(greeted("unix", arg(1)))
	case "unixgram": // send to the datagram socket of a server, connected or not
		return result(unixgram(arg(1)+"-datagrams", arg(2) == "connected"))
	case "takeover": // take an address's port from another server, over TCP and MPTCP by turns, until a line of input
		for i, addr := range strings.Split(arg(1), ",") {
			lc := net.ListenConfig{}
			lc.SetMultipathTCP(i%2 == 0)
			ln, err := lc.Listen(context.Background(), "tcp", addr)
			if err != nil {
				return result(err)
			}
			go serveGreeting(ln, "taken over")
		}
		fmt.Println("ok")
		bufio.NewReader(os.Stdin).ReadString('\n')
		return "stopped"
	case "echo": // serve over UDP with one socket, until a line of input
		pc, err := net.ListenPacket("udp", arg(1))
		if err != nil {
			return result(err)
		}
		go func() {
			b := make([]byte, 64)
			for {
				n, from, err := pc.ReadFrom(b)
				if err != nil {
					return
				}
				pc.WriteTo(b[:n], from)
			}
		}()
		fmt.Println("ok")
		bufio.NewReader(os.Stdin).ReadString('\n')
		return "stopped"
	case "peer": // getpeername of a connection
		c, err := net.DialTimeout(arg(1), arg(2), timeout)
		if err != nil {
			return result(err)
		}
		defer c.Close()
		raw, err := c.(syscall.Conn).SyscallConn()
		name := ""
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				sa, e := unix.Getpeername(int(fd))
				name = addrOf(sa)
				if e != nil {
					name = result(e)
				}
			})
		}
		if err != nil {
			return result(err)
		}
		return name
	case "replyfrom": // source address of the reply to an unconnected datagram
		fam, sa := sockaddr(arg(1))
		fd, err := unix.Socket(fam, unix.SOCK_DGRAM, 0)
		if err != nil {
			return result(err)
		}
		defer unix.Close(fd)
		tv := unix.NsecToTimeval(int64(timeout))
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
		if err := unix.Sendto(fd, []byte("x"), 0, sa); err != nil {
			return result(err)
		}
		from, err := receiveFrom(fd)
		if err != nil {
			return result(err)
		}
		return addrOf(from)
	case "packet": // create a packet socket of a protocol and bind it to a device
		return result(packet(arg(1), arg(2)))
	case "bench": // nanoseconds for "connect", "send", "self" or "option"
		return bench(arg(1), arg(2))
	case "attempt": // make an attempt, in JSON
		var a attack.Attempt
		if err := json.Unmarshal([]byte(strings.TrimPrefix(op, "attempt ")), &a); err != nil {
			return err.Error()
		}
		return result(a.Do())
	case "receive": // run a listener, in JSON: "ready", and after a line of input the received ids
		return receive(strings.TrimPrefix(op, "receive "))
	case "unshare": // enter a new network namespace
		return result(unix.Unshare(unix.CLONE_NEWNET))
	case "wait": // wait for a line of input
		fmt.Println("ready")
		bufio.NewReader(os.Stdin).ReadString('\n')
		return "go"
	}
	return "unknown operation " + op
}

// bench measures an operation of a UDP socket, in nanoseconds, as the best of many
// rounds: connect to an address, send to it, send to itself and receive, or set a
// common option.
func bench(what, addr string) string {
	const times, rounds = 100, 300
	fam, sa := sockaddr(addr)
	fd, err := unix.Socket(fam, unix.SOCK_DGRAM, 0)
	if err != nil {
		return result(err)
	}
	defer unix.Close(fd)
	connect := func() error { return unix.Connect(fd, sa) }
	do := connect
	buf := make([]byte, 64)
	switch what {
	case "self":
		err = unix.Bind(fd, sa)
		do = func() error {
			if _, err := unix.Write(fd, buf); err != nil {
				return err
			}
			_, err := unix.Read(fd, buf)
			return err
		}
	case "send":
		do = func() error { // nothing listens there
			if _, err := unix.Write(fd, buf); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				return err
			}
			return nil
		}
	case "option":
		do = func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1) }
	}
	if err == nil {
		err = connect()
	}
	best := time.Hour
	for range rounds {
		start := time.Now()
		for range times {
			if err == nil {
				err = do()
			}
		}
		best = min(best, time.Since(start)/times)
	}
	if err != nil {
		return result(err)
	}
	return strconv.Itoa(int(best))
}

func addrOf(sa unix.Sockaddr) string {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String()
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)).String()
	}
	return fmt.Sprintf("%T", sa)
}

func bindOnDevice(device, addr string) error {
	family, to := sockaddr(addr)
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, device); err != nil {
		return err
	}
	return unix.Bind(fd, to)
}

// take binds a TCP socket to addresses, of which all but the last have port 0, and listens.
func take(protocol int, addrs ...string) error {
	family, _ := sockaddr(addrs[0])
	fd, err := unix.Socket(family, unix.SOCK_STREAM, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for level, options := range map[int][]int{unix.SOL_SOCKET: {unix.SO_REUSEADDR}, unix.SOL_IP: {unix.IP_FREEBIND, unix.IP_BIND_ADDRESS_NO_PORT}} {
		for _, option := range options {
			if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
				return err
			}
		}
	}
	for _, a := range addrs {
		if _, to := sockaddr(a); err == nil {
			err = unix.Bind(fd, to)
		}
	}
	if err != nil {
		return err
	}
	return unix.Listen(fd, 1)
}

func packet(protocol, device string) error {
	n, err := strconv.Atoi(protocol)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, n)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if device == "" {
		return nil
	}
	index := 0
	if device != "all" {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		index = i.Index
	}
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: index})
}

func receive(spec string) string {
	var l attack.Listener
	if err := json.Unmarshal([]byte(spec), &l); err != nil {
		return err.Error()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	ids := map[int]bool{}
	done := make(chan error, 1)
	go func() {
		done <- l.Listen(ctx, func() { fmt.Println("ready") }, func(id int) { mu.Lock(); ids[id] = true; mu.Unlock() })
	}()
	go func() { bufio.NewReader(os.Stdin).ReadString('\n'); cancel() }()
	if err := <-done; err != nil {
		return result(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return fmt.Sprint(slices.Sorted(maps.Keys(ids)))
}

func serveGreeting(ln net.Listener, greeting string) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		fmt.Fprintln(c, greeting)
		c.Close()
	}
}

// serveUnix serves streams and datagrams at unix sockets until a line of input.
func serveUnix(name string) string {
	ln, err := net.Listen("unix", name)
	if err != nil {
		return result(err)
	}
	pc, err := net.ListenPacket("unixgram", name+"-datagrams")
	if err != nil {
		return result(err)
	}
	defer pc.Close()
	var streams atomic.Int32
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			streams.Add(1) // before the client has its greeting
			fmt.Fprintln(c, "hello")
			c.Close()
		}
	}()
	datagrams := make(chan int)
	go func() {
		b := make([]byte, 16)
		for i := 0; ; i++ {
			if n, _, err := pc.ReadFrom(b); err != nil || string(b[:n]) == "end" {
				datagrams <- i
				return
			}
		}
	}()
	fmt.Println("ok")
	bufio.NewReader(os.Stdin).ReadString('\n')
	if _, err := pc.WriteTo([]byte("end"), pc.LocalAddr()); err != nil {
		return result(err)
	}
	return fmt.Sprintf("%d streams, %d datagrams", streams.Load(), <-datagrams)
}

// unixgram sends a datagram to a unix socket.
func unixgram(name string, connected bool) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrUnix{Name: name}
	if !connected {
		return unix.Sendto(fd, []byte("x"), 0, to)
	}
	if err := unix.Connect(fd, to); err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte("x"))
	return err
}

func tcp(addr string) error { return greeted("tcp", addr) }

// greeted connects to a server and receives its greeting.
func greeted(protocol, addr string) error {
	c, err := net.DialTimeout(protocol, addr, timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	s, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && s != "hello\n" {
		return fmt.Errorf("unexpected greeting %q", s)
	}
	return err
}

func sockaddr(addr string) (int, unix.Sockaddr) {
	ap := netip.MustParseAddrPort(addr)
	if ap.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	to := &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()}
	if zone := ap.Addr().Zone(); zone != "" {
		if i, err := net.InterfaceByName(zone); err == nil {
			to.ZoneId = uint32(i.Index)
		}
	}
	return unix.AF_INET6, to
}

// receiveFrom receives a datagram. The Go runtime's signals interrupt a receive with
// a timeout, which the kernel does not restart.
func receiveFrom(fd int) (unix.Sockaddr, error) {
	for {
		_, from, err := unix.Recvfrom(fd, make([]byte, 64), 0)
		if err != unix.EINTR {
			return from, err
		}
	}
}

func udp(addr string, connect bool) error {
	fam, sa := sockaddr(addr)
	fd, err := unix.Socket(fam, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(int64(timeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return err
	}
	if connect {
		if err := unix.Connect(fd, sa); err != nil {
			return err
		}
		_, err = unix.Write(fd, []byte("x"))
	} else {
		err = unix.Sendto(fd, []byte("x"), 0, sa)
	}
	if err != nil {
		return err
	}
	_, err = receiveFrom(fd)
	return err
}

// ping uses a ping socket, which needs no capability and whose destination no hook sees.
func ping(addr string) error {
	fam, sa := sockaddr(net.JoinHostPort(addr, "0"))
	proto, req := unix.IPPROTO_ICMP, byte(8)
	if fam == unix.AF_INET6 {
		proto, req = unix.IPPROTO_ICMPV6, 128
	}
	fd, err := unix.Socket(fam, unix.SOCK_DGRAM, proto)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(int64(timeout))
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	msg := []byte{req, 0, 0, 0, 0, 0, 0, 1}
	if err := unix.Sendto(fd, msg, 0, sa); err != nil {
		return err
	}
	_, err = receiveFrom(fd)
	return err
}

func state(addr string) string {
	fam, sa := sockaddr(addr)
	fd, err := unix.Socket(fam, unix.SOCK_DGRAM, 0)
	if err != nil {
		return result(err)
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, sa)
	mark, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK)
	dev, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX)
	return fmt.Sprintf("%s mark=%#x dev=%d", result(err), uint32(mark), dev)
}

func createSocket(kind string) string {
	k := map[string][3]int{
		"tcp4": {unix.AF_INET, unix.SOCK_STREAM, 0}, "tcp6": {unix.AF_INET6, unix.SOCK_STREAM, 0},
		"udp4": {unix.AF_INET, unix.SOCK_DGRAM, 0}, "udp6": {unix.AF_INET6, unix.SOCK_DGRAM, 0},
		"sctp4": {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, "sctp6": {unix.AF_INET6, unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP},
		"raw4": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, "raw6": {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6},
	}[kind]
	fd, err := unix.Socket(k[0], k[1], k[2])
	if err != nil {
		return result(err)
	}
	defer unix.Close(fd)
	mark, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK)
	dev, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX)
	return fmt.Sprintf("mark=%#x dev=%d", uint32(mark), dev)
}

// longOption returns an option's value that is longer than a page, which the kernel reads again
// after the program.
func longOption(first uint32) string {
	return string(append(binary.NativeEndian.AppendUint32(nil, first), make([]byte, 5000)...))
}

func set(what string) error {
	fam := unix.AF_INET
	if strings.HasSuffix(what, "6") {
		fam = unix.AF_INET6
	}
	typ, protocol := unix.SOCK_DGRAM, 0
	if strings.HasPrefix(what, "raw-") {
		typ, protocol = unix.SOCK_RAW, unix.IPPROTO_UDP
	}
	fd, err := unix.Socket(fam, typ, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	switch what {
	case "errors", "raw-errors":
		return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVERR, 1)
	case "errors6", "raw-errors6":
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVERR, 1)
	case "raw-extended-errors":
		return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVERR_RFC4884, 1)
	case "raw-extended-errors6":
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVERR_RFC4884, 1)
	case "mark":
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 5)
	case "device":
		return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "lo")
	case "ifindex", "ifindex6":
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, 1)
	case "unicast":
		return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_UNICAST_IF, 1<<24)
	case "unicast6":
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_UNICAST_IF, 1<<24)
	case "pktinfo6":
		b := binary.NativeEndian.AppendUint32(make([]byte, 16), 1)
		return unix.SetsockoptString(fd, unix.SOL_IPV6, unix.IPV6_PKTINFO, string(b))
	case "long-mark":
		return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_MARK, longOption(5))
	case "long-unicast":
		return unix.SetsockoptString(fd, unix.SOL_IP, unix.IP_UNICAST_IF, longOption(0))
	case "long-multicast":
		return unix.SetsockoptString(fd, unix.SOL_IP, unix.IP_MULTICAST_IF, longOption(0))
	case "long-pktinfo6":
		return unix.SetsockoptString(fd, unix.SOL_IPV6, unix.IPV6_PKTINFO, longOption(0))
	case "harmless":
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8192)
	}
	return fmt.Errorf("unknown option %s", what)
}
