// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

// InNamespace runs f in a network namespace. Sockets that f opens stay in it. The
// thread goes on: daemons that it has started would be killed with it.
func InNamespace(ns string, f func() error) (err error) {
	runtime.LockOSThread()
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() {
		if back := unix.Setns(own, unix.CLONE_NEWNET); back != nil {
			err = errors.Join(err, back) // the thread stays locked
			return
		}
		_ = unix.Close(own)
		runtime.UnlockOSThread()
	}()
	if err := EnterNamespace(ns); err != nil {
		return err
	}
	return f()
}

// EnterNamespace puts the thread, to which the caller has locked its goroutine, into a
// network namespace.
func EnterNamespace(ns string) error {
	fd, err := unix.Open("/run/netns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWNET)
}
