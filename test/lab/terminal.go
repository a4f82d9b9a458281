// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"bulkhead/test/lab/internal/remote"

	"golang.org/x/term"
)

// Shell runs a shell on the node in this process's terminal and returns its exit code.
func (n *Node) Shell(ctx context.Context) (int, error) {
	fd := int(os.Stdin.Fd())
	if !term.IsTerminal(fd) {
		return n.Exec(ctx, []string{"/bin/bash"}, os.Stdin, os.Stdout, os.Stderr)
	}
	cols, rows, err := term.GetSize(fd)
	if err != nil {
		return -1, fmt.Errorf("read the terminal's size: %w", err)
	}
	req := remote.Request{Argv: []string{"/bin/bash", "-l"}, Env: []string{"PS1=" + n.Name + ":\\w# ", "TERM=" + os.Getenv("TERM")}, Dir: "/root", PTY: true, Rows: uint16(rows), Cols: uint16(cols)}
	before, err := term.MakeRaw(fd)
	if err != nil {
		return -1, fmt.Errorf("set the terminal to raw mode: %w", err)
	}
	defer term.Restore(fd, before)
	p, err := n.start(ctx, req, os.Stdout, os.Stderr)
	if err != nil {
		return -1, err
	}
	go io.Copy(p, os.Stdin)
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	go func() {
		for range resized {
			if cols, rows, err := term.GetSize(fd); err == nil {
				p.Resize(uint16(rows), uint16(cols))
			}
		}
	}()
	return p.Wait()
}
