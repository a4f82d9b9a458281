// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/loader"
	"bulkhead/pkg/netdump"
	"bulkhead/pkg/network"
)

// earlySocket is an IP socket of a pod that is older than the attachment of the pod's
// programs: it lacks the mark of the pod's network.
type earlySocket struct {
	inode    uint32
	protocol uint8
	port     uint16
	server   bool // a server on all addresses without a device, or at one of Bulkhead's own ports: bind would have prevented it
}

// attachedPod is a pod to which the programs are attached.
type attachedPod struct {
	path string // of its cgroup
	row  loader.PodRow
}

// listSockets calls each for every IP socket in the agent's network namespace.
func listSockets(each func(protocol uint8, s diagSocket)) error {
	var errs []error
	for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_RAW} {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			err := diagSockets(family, proto, allStates, func(s diagSocket) { each(proto, s) })
			if proto == unix.IPPROTO_RAW && errors.Is(err, unix.ENOENT) {
				continue // some kernels lack raw_diag
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("list sockets of family %d, protocol %d: %w", family, proto, err))
			}
		}
	}
	return errors.Join(errs...)
}

// earlySockets returns the IP sockets of pods that do not have their network's mark, by pod UID. sock_diag shows the cgroup in which
// a socket was created, so sockets that a pod received from another are not among them. list is listSockets: it takes long
// on a busy node, and is called once for all pods.
func earlySockets(pods map[string]attachedPod, list func(func(uint8, diagSocket)) error) (map[string][]earlySocket, error) {
	uids := map[uint64]string{} // by cgroup id
	var errs []error
	for uid, p := range pods {
		ids := map[uint64]bool{}
		if err := subtreeIDs(p.path, ids); err != nil {
			errs = append(errs, fmt.Errorf("read the cgroups of pod %s: %w", uid, err))
		}
		for id := range ids {
			uids[id] = uid
		}
	}
	early := map[string][]earlySocket{}
	err := list(func(proto uint8, s diagSocket) {
		if uid, ok := uids[s.cgroup]; ok && s.mark != pods[uid].row.Mark {
			early[uid] = append(early[uid], earlySocket{s.inode, proto, s.port, proto != unix.IPPROTO_RAW && s.isServer(proto)})
		}
	})
	return early, errors.Join(append(errs, err)...)
}

// confineEarlySockets does to pods' early servers on all addresses what bind does to
// younger ones: it marks them and binds them to the VRF. Other sockets get the mark at
// their next use; connections stay as they are. It returns the number of early sockets
// that remain, by pod UID.
//
// The agent duplicates the sockets from the pod's processes (pidfd_getfd, since Linux
// 5.6), which needs CAP_SYS_PTRACE and the host's process ids.
func confineEarlySockets(procRoot string, pods map[string]attachedPod, list func(func(uint8, diagSocket)) error) (map[string]int, error) {
	early, err := earlySockets(pods, list)
	errs := []error{err}
	tried := false
	for uid, p := range pods {
		servers := slices.DeleteFunc(slices.Clone(early[uid]), func(s earlySocket) bool { return !s.server })
		if len(servers) == 0 {
			continue
		}
		tried = true
		if err := confinePod(p, procRoot, servers); err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", uid, err))
		}
	}
	if tried {
		early, err = earlySockets(pods, list)
		errs = append(errs, err)
	}
	remaining := make(map[string]int, len(early))
	for uid, sockets := range early {
		remaining[uid] = len(sockets)
	}
	return remaining, errors.Join(errs...)
}

// confinePod confines those of a pod's sockets that are among servers.
func confinePod(p attachedPod, procRoot string, servers []earlySocket) error {
	if p.row.VRFIfindex == 0 {
		return errors.New("the network has no VRF device")
	}
	pids, err := subtreeProcesses(p.path)
	errs := []error{err}
	for _, pid := range pids {
		errs = append(errs, confineServers(pid, procRoot, servers, p.row))
	}
	return errors.Join(errs...)
}

// confineServers confines those of a process's sockets that are among servers.
func confineServers(pid int, procRoot string, servers []earlySocket, row loader.PodRow) error {
	dir := filepath.Join(procRoot, strconv.Itoa(pid), "fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return nil // the process has ended
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(process)
	var errs []error
	for _, f := range fds {
		target, err := os.Readlink(filepath.Join(dir, f.Name()))
		if err != nil || !strings.HasPrefix(target, "socket:") {
			continue
		}
		fd, err := strconv.Atoi(f.Name())
		if err == nil {
			err = confineSocket(process, fd, servers, row)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("confine socket %s of process %d: %w", f.Name(), pid, err))
		}
	}
	return errors.Join(errs...)
}

// confineSocket marks the socket fd of a process and binds it to the VRF, if it is among
// servers.
func confineSocket(process, fd int, servers []earlySocket, row loader.PodRow) error {
	own, err := unix.PidfdGetfd(process, fd, 0)
	if errors.Is(err, unix.EBADF) || errors.Is(err, unix.ESRCH) {
		return nil // closed meanwhile
	}
	if err != nil {
		return fmt.Errorf("duplicate: %w", err)
	}
	defer unix.Close(own)
	if !isAmong(own, servers) {
		return nil
	}
	if err := unix.SetsockoptInt(own, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, int(row.VRFIfindex)); err != nil {
		return fmt.Errorf("bind to interface %d: %w", row.VRFIfindex, err)
	}
	if err := unix.SetsockoptInt(own, unix.SOL_SOCKET, unix.SO_MARK, int(row.Mark)); err != nil {
		return fmt.Errorf("set mark %#x: %w", row.Mark, err)
	}
	if isOwnPort(unix.IPPROTO_TCP, boundPort(own)) {
		return releasePort(own)
	}
	return nil
}

// releasePort ends a TCP server, so that the agent or a controller can take its port: bind compares
// ports with those that sockets had before they were bound to a device.
func releasePort(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("set SO_REUSEADDR: %w", err)
	}
	if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil && !errors.Is(err, unix.ENOTCONN) {
		return fmt.Errorf("end the server: %w", err)
	}
	return nil
}

// boundPort returns the port of a TCP socket; 0: it is not a TCP socket, or it is unbound.
func boundPort(fd int) uint16 {
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		return 0
	}
	name, _ := unix.Getsockname(fd)
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		return uint16(name.Port)
	case *unix.SockaddrInet6:
		return uint16(name.Port)
	default:
		return 0
	}
}

// isAmong reports whether a socket is among servers. A socket of MPTCP is known by its
// port, because sock_diag shows the TCP socket below it, which has no descriptor; it
// passes what is set on it to that socket.
func isAmong(fd int, servers []earlySocket) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	if slices.ContainsFunc(servers, func(s earlySocket) bool { return uint64(s.inode) == st.Ino }) {
		return true
	}
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_MPTCP {
		return false
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || listens == 0 {
		return false
	}
	var port int
	name, _ := unix.Getsockname(fd)
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		port = name.Port
		if name.Addr != [4]byte{} {
			return false
		}
	case *unix.SockaddrInet6:
		port = name.Port
		if name.Addr != [16]byte{} {
			return false
		}
	}
	return slices.ContainsFunc(servers, func(s earlySocket) bool {
		return s.protocol == unix.IPPROTO_TCP && int(s.port) == port
	})
}

// subtreeProcesses returns the processes in a cgroup and in all cgroups below it.
func subtreeProcesses(dir string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	below, err := readDirs(dir)
	if err != nil {
		return pids, err
	}
	for _, d := range below {
		more, err := subtreeProcesses(filepath.Join(dir, d))
		pids = append(pids, more...)
		if err != nil {
			return pids, err
		}
	}
	return pids, nil
}

// subtreeIDs adds the ids of a cgroup and of all cgroups below it to ids.
func subtreeIDs(dir string, ids map[uint64]bool) error {
	id, err := loader.CgroupID(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	ids[id] = true
	below, err := readDirs(dir)
	if err != nil {
		return err
	}
	for _, d := range below {
		if err := subtreeIDs(filepath.Join(dir, d), ids); err != nil {
			return err
		}
	}
	return nil
}

// diagRequest is struct inet_diag_req_v2; the empty socket id matches all sockets.
type diagRequest struct {
	family, protocol, ext, pad uint8
	states                     uint32
	id                         [48]byte
}

func (r *diagRequest) Len() int { return int(unsafe.Sizeof(*r)) }

func (r *diagRequest) Serialize() []byte {
	b := append(make([]byte, 0, r.Len()), r.family, r.protocol, r.ext, r.pad)
	b = binary.NativeEndian.AppendUint32(b, r.states)
	return append(b, r.id[:]...)
}

const (
	diagMsgLen = 72 // struct inet_diag_msg
	attrV6Only = 11 // INET_DIAG_SKV6ONLY
	attrMark   = 15 // INET_DIAG_MARK, needs CAP_NET_ADMIN
	attrCgroup = 21 // INET_DIAG_CGROUP_ID, since Linux 5.9
	allStates  = 0xffffffff
)

// diagSocket is a socket as sock_diag reports it.
type diagSocket struct {
	state  uint8
	port   uint16
	source [16]byte // IPv4: the first four bytes
	device uint32
	inode  uint32
	cgroup uint64
	mark   uint32
	v6Only bool
}

// States of sockets (include/net/tcp_states.h). Unconnected UDP sockets are closed.
const (
	stateClosed        = 7
	stateListen        = 10
	stateBoundInactive = 13 // bound TCP sockets that do not listen yet, since Linux 6.8
)

// isServer reports whether the socket waits for peers, on all addresses and bound to no device, or at a port of
// the agent and the controllers, which a socket with a device takes from them too.
func (s diagSocket) isServer(protocol uint8) bool {
	waits := s.state == stateListen || s.state == stateClosed || s.state == stateBoundInactive
	return waits && s.port != 0 && (s.device == 0 && s.source == [16]byte{} || isOwnPort(protocol, s.port))
}

func isOwnPort(protocol uint8, port uint16) bool {
	return protocol == unix.IPPROTO_TCP && port >= network.OwnPortFirst && port <= network.OwnPortLast
}

// diagSockets calls each for every socket of a family and protocol in one of the states, which are bits.
func diagSockets(family, proto uint8, states uint32, each func(diagSocket)) error {
	req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	req.AddData(&diagRequest{family: family, protocol: proto, states: states})
	msgs, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
	if err != nil {
		return err
	}
	for _, m := range msgs {
		if len(m) < diagMsgLen {
			continue
		}
		// The ports and addresses are in network byte order, all else in the host's.
		s := diagSocket{state: m[1], port: binary.BigEndian.Uint16(m[4:]), source: [16]byte(m[8:24]),
			device: binary.NativeEndian.Uint32(m[40:]), inode: binary.NativeEndian.Uint32(m[68:])}
		attrs, err := netdump.Attributes(m[diagMsgLen:])
		if err != nil {
			return err
		}
		for _, a := range attrs {
			switch {
			case a.Attr.Type == attrMark && len(a.Value) >= 4:
				s.mark = binary.NativeEndian.Uint32(a.Value)
			case a.Attr.Type == attrCgroup && len(a.Value) >= 8:
				s.cgroup = binary.NativeEndian.Uint64(a.Value)
			case a.Attr.Type == attrV6Only && len(a.Value) >= 1:
				s.v6Only = a.Value[0] != 0
			}
		}
		each(s)
	}
	return nil
}
