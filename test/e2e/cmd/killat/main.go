// SPDX-License-Identifier: Apache-2.0

// Command killat kills a process when it has made a number of system calls that change the
// world: the fault points of a program that has none of its own. It counts sendto and sendmsg
// (netlink), bpf, and write (databases, sysctls, cgroups), and sends SIGKILL from
// within the kernel, so that the process does nothing after that call.
//
// To attach to system calls, the kernel patches code that each system call executes. An
// emulator may go on executing what it has translated from the old code on another
// processor, and the kernel then panics (Oops: int3). So no other processor executes anything
// but a loop meanwhile.
//
//	killat -pid PID -after N
//
// It prints "armed", and when its standard input ends, the number of calls until then.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

func main() {
	pid := flag.Int("pid", 0, "the process")
	after := flag.Int("after", 0, "the number of calls; 0 only counts them")
	flag.Parse()
	if err := run(*pid, *after, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "killat:", err)
		os.Exit(1)
	}
}

func run(pid, after int, in io.Reader, out io.Writer) error {
	if pid <= 0 || after < 0 {
		return errors.New("usage: killat -pid PID -after N")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return err
	}
	calls, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("create the counter: %w", err)
	}
	defer calls.Close()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.TracePoint, License: "GPL", Instructions: program(calls, pid, after)})
	if err != nil {
		return fmt.Errorf("load the program: %w", err)
	}
	defer prog.Close()
	if err := mountTracing(); err != nil {
		return err
	}
	var links []link.Link
	detach := func() error {
		for _, l := range links {
			if err := l.Close(); err != nil {
				return fmt.Errorf("detach: %w", err)
			}
		}
		return nil
	}
	if err := alone(func() error {
		for _, call := range []string{"sendto", "sendmsg", "bpf", "write"} {
			l, err := link.Tracepoint("syscalls", "sys_enter_"+call, prog, nil)
			if err != nil {
				return errors.Join(fmt.Errorf("attach to %s: %w", call, err), detach())
			}
			links = append(links, l)
		}
		return nil
	}); err != nil {
		return err
	}
	fmt.Fprintln(out, "armed")
	_, err = io.Copy(io.Discard, in)
	if err := alone(detach); err != nil {
		return err
	}
	if err != nil {
		return fmt.Errorf("wait for the end of the standard input: %w", err)
	}
	var n uint32
	if err := calls.Lookup(uint32(0), &n); err != nil {
		return fmt.Errorf("read the counter: %w", err)
	}
	fmt.Fprintln(out, n)
	return nil
}

// program counts the calls of all threads of a process, and kills it at one of them.
func program(calls *ebpf.Map, pid, after int) asm.Instructions {
	count := asm.Instructions{
		asm.FnGetCurrentPidTgid.Call(),
		asm.RSh.Imm(asm.R0, 32),
		asm.JNE.Imm(asm.R0, int32(pid), "out"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, calls.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.Word),
	}
	if after > 0 {
		count = append(count,
			asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
			asm.JLT.Imm(asm.R1, int32(after), "out"),
			asm.Mov.Imm(asm.R1, int32(unix.SIGKILL)),
			asm.FnSendSignal.Call(),
		)
	}
	return append(count, asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), asm.Return())
}

// mountTracing mounts the file system that names tracepoints, if it is not.
func mountTracing() error {
	const at = "/sys/kernel/tracing"
	if _, err := os.Stat(at + "/events"); err == nil {
		return nil
	}
	if err := unix.Mount("tracefs", at, "tracefs", 0, ""); err != nil {
		return fmt.Errorf("mount tracefs: %w", err)
	}
	return nil
}
