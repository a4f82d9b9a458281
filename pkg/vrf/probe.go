// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Probe returns an error if this kernel does not support VRF devices, which wraps ErrNoVRF. It creates one in a network
// namespace of its own: in the node's, others would see it come and go, and FRR's bfdd
// aborts if a VRF is gone before it has opened its sockets there.
func Probe() error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine, and its namespace, too
		result <- probe()
	}()
	return <-result
}

func probe() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("create a network namespace: %w", err)
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "probe"
	err = h.LinkAdd(&netlink.Vrf{LinkAttrs: attrs, Table: probeTable})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", ErrNoVRF, err)
	}
	if err != nil {
		return fmt.Errorf("create a VRF device: %w", err)
	}
	return nil
}

const probeTable = 1 // of the namespace, where nothing else is
