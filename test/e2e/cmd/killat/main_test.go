// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// A process that writes a line for each that it reads ends after as many as it may, or is
// counted.
func TestRootKill(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if err := mountTracing(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/sys/kernel/tracing/events/syscalls/sys_enter_write"); errors.Is(err, os.ErrNotExist) {
		t.Skip("this kernel has no tracepoints of system calls")
	}
	for _, after := range []int{0, 3} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			cmd := exec.Command("sh", "-c", `while read line; do echo "$line"; done`)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			cmd.Stdout = &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			end, begin := io.Pipe()
			printed, print := io.Pipe()
			ended := make(chan error, 1)
			go func() { ended <- run(cmd.Process.Pid, after, end, print) }()
			lines := bufio.NewScanner(printed)
			if !lines.Scan() || lines.Text() != "armed" {
				t.Fatalf("killat printed %q: %v", lines.Text(), <-ended)
			}
			if _, err := io.WriteString(in, strings.Repeat("line\n", 5)); err != nil {
				t.Fatal(err)
			}
			_ = in.Close()
			err = cmd.Wait()
			_ = begin.Close()
			if !lines.Scan() {
				t.Fatalf("killat printed no number: %v", <-ended)
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			want, killed := 5, false
			if after > 0 {
				want, killed = after, true
			}
			var exit *exec.ExitError
			if got := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL; got != killed {
				t.Errorf("killed: %t, want %t: %v", got, killed, err)
			}
			if n := strings.Count(out.String(), "line\n"); n != want || lines.Text() != fmt.Sprint(want) {
				t.Errorf("%d lines written, %s calls counted, want %d", n, lines.Text(), want)
			}
		})
	}
}
