// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/loader"
)

// earlySockets counts the IP sockets of a pod in the agent's network namespace that
// do not have its network's mark, because they are older than the attachment. They
// are marked and bound at their next bind, connect or unconnected send; listening
// and connected sockets do neither, so the Manager reports the count. sock_diag
// shows a socket's cgroup and mark, so this needs neither /proc/<pid>/fd nor
// CAP_SYS_PTRACE.
func earlySockets(cgroupPath string, mark uint32) (int, error) {
	ids := map[uint64]bool{}
	if err := subtreeIDs(cgroupPath, ids); err != nil {
		return 0, err
	}
	n := 0
	var errs []error
	for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_RAW} {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			err := diagSockets(family, proto, func(cgroup uint64, m uint32) {
				if ids[cgroup] && m != mark {
					n++
				}
			})
			if proto == unix.IPPROTO_RAW && errors.Is(err, unix.ENOENT) {
				continue // some kernels lack raw_diag
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("list sockets of family %d, protocol %d: %w", family, proto, err))
			}
		}
	}
	return n, errors.Join(errs...)
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
	attrMark   = 15 // INET_DIAG_MARK, needs CAP_NET_ADMIN
	attrCgroup = 21 // INET_DIAG_CGROUP_ID, since Linux 5.9
	allStates  = 0xffffffff
)

// diagSockets calls each with the cgroup and mark of every socket of a family and
// protocol.
func diagSockets(family, proto uint8, each func(cgroup uint64, mark uint32)) error {
	req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	req.AddData(&diagRequest{family: family, protocol: proto, states: allStates})
	msgs, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
	if err != nil {
		return err
	}
	for _, m := range msgs {
		if len(m) < diagMsgLen {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[diagMsgLen:])
		if err != nil {
			return err
		}
		var cgroup uint64
		var mark uint32
		for _, a := range attrs {
			switch {
			case a.Attr.Type == attrMark && len(a.Value) >= 4:
				mark = binary.NativeEndian.Uint32(a.Value)
			case a.Attr.Type == attrCgroup && len(a.Value) >= 8:
				cgroup = binary.NativeEndian.Uint64(a.Value)
			}
		}
		each(cgroup, mark)
	}
	return nil
}
