// SPDX-License-Identifier: Apache-2.0

// Command compat sets a socket's mark and sends a datagram: compat MARK ADDRESS:PORT TEXT. Built for a 32-bit
// architecture, it makes 32-bit system calls, for which the kernel runs no program of cgroup/setsockopt.
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

func main() {
	mark, err := strconv.ParseUint(os.Args[1], 0, 32)
	if err == nil {
		err = send(int(int32(uint32(mark))), os.Args[2], os.Args[3])
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("sent")
}

func send(mark int, to, text string) error {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_MARK, mark)
		}); e != nil {
			return e
		}
		if err != nil {
			return fmt.Errorf("set the mark: %w", err)
		}
		return nil
	}}
	c, err := d.Dial("udp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte(text))
	return err
}
