// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// struct bpf_fib_lookup of linux/bpf.h: its size and the offsets that are used.
const (
	fibSize    = 64
	fibFamily  = 0
	fibIndex   = 8
	fibSource  = 16
	fibTarget  = 32
	fibMark    = 52
	fibOutput  = 1 << 1 // BPF_FIB_LOOKUP_OUTPUT
	fibNoNeigh = 1 << 2 // BPF_FIB_LOOKUP_SKIP_NEIGH
	fibByMark  = 1 << 5 // BPF_FIB_LOOKUP_MARK, Linux 6.10
	fibSuccess = 0      // BPF_FIB_LKUP_RET_SUCCESS
)

// lookupRounds is how many lookups are measured together, and lookupRuns how often. The runs of
// all kinds of packets take turns, and the least is the figure: others use the machine, too.
const lookupRounds, lookupRuns = 5000, 100

// lookups returns the time of an uncached route lookup, by IP family, for a packet without a
// mark and for one with the mark of the network with that id.
func (k *kernelNode) lookups(id int) (unmarked, tenant [2]time.Duration, err error) {
	bridge, err := netlink.LinkByName(kernelBridge)
	if err != nil {
		return unmarked, tenant, err
	}
	var programs [4]*ebpf.Program
	for f, a := range k.node.Addresses {
		to := netip.MustParseAddr([]string{"198.51.100.9", "2001:db8:9::9"}[f])
		for i, mark := range []uint32{0, network.PacketMark(id)} {
			p, err := lookupProgram(bridge.Attrs().Index, a.Addr(), to, mark)
			if err != nil {
				return unmarked, tenant, fmt.Errorf("load a program that looks up %s: %w", to, err)
			}
			defer p.Close()
			programs[2*f+i] = p
		}
	}
	took := [4]time.Duration{time.Hour, time.Hour, time.Hour, time.Hour}
	for range lookupRuns {
		for i, p := range programs {
			result, t, err := p.Benchmark(make([]byte, 64), lookupRounds, nil)
			if err != nil {
				return unmarked, tenant, fmt.Errorf("run a program: %w", err)
			}
			if result != fibSuccess {
				return unmarked, tenant, fmt.Errorf("the kernel finds no route: bpf_fib_lookup returns %d", int32(result))
			}
			took[i] = min(took[i], t)
		}
	}
	return [2]time.Duration{took[0], took[2]}, [2]time.Duration{took[1], took[3]}, nil
}

// lookupProgram returns a program that calls the helper bpf_fib_lookup, which asks the rules and
// tables as the kernel's own path does and caches nothing.
func lookupProgram(link int, from, to netip.Addr, mark uint32) (*ebpf.Program, error) {
	var params [fibSize]byte
	params[fibFamily] = unix.AF_INET
	if to.Is6() {
		params[fibFamily] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(params[fibIndex:], uint32(link))
	copy(params[fibSource:], from.AsSlice())
	copy(params[fibTarget:], to.AsSlice())
	binary.NativeEndian.PutUint32(params[fibMark:], mark)
	program := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	for i := 0; i < fibSize; i += 4 {
		program = append(program, asm.StoreImm(asm.R10, int16(i-fibSize), int64(int32(binary.NativeEndian.Uint32(params[i:]))), asm.Word))
	}
	program = append(program,
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -fibSize), asm.Mov.Imm(asm.R3, fibSize),
		asm.Mov.Imm(asm.R4, fibOutput|fibNoNeigh|fibByMark), asm.FnFibLookup.Call(), asm.Return())
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: program, License: "GPL"})
}
