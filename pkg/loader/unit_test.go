// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bulkhead/pkg/loader/internal/reasons"
)

func TestReasonsAreUpToDate(t *testing.T) {
	header, err := os.ReadFile("../../bpf/bh_reasons.h")
	if os.IsNotExist(err) {
		t.Skip("no source tree (the test binary runs elsewhere)")
	}
	if err != nil {
		t.Fatal(err)
	}
	want, err := reasons.Generate(header)
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("reasons_gen.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, have) {
		t.Error("reasons_gen.go is stale: run make bpf-generate")
	}
}

// Kernel object names have at most 15 characters; longer ones would be truncated in
// bpftool's output.
func TestObjectNames(t *testing.T) {
	specs, err := loadSpecs()
	if err != nil {
		t.Fatal(err)
	}
	for _, cs := range specs {
		var names []string
		for n := range cs.Maps {
			names = append(names, n)
		}
		for n := range cs.Programs {
			names = append(names, n)
			sets := 0
			for _, set := range []hookSet{vrfHooks, rootHooks, doorHooks(DoorPort), doorHooks(DoorPod), doorHooks(DoorOwn)} {
				if set(n) {
					sets++
				}
			}
			if sets != 1 {
				t.Errorf("program %s belongs to %d attachments, want 1", n, sets)
			}
		}
		for _, n := range names {
			if !strings.HasPrefix(n, "bh_") || len(n) > 15 {
				t.Errorf("%s: a name must start with bh_ and have at most 15 characters", n)
			}
		}
	}
	if reasonMax > 64 {
		t.Errorf("%d reasons do not fit bh_counters", reasonMax)
	}
}

const instructionsFile = "testdata/INSTRUCTIONS"

func TestInstructionCounts(t *testing.T) {
	specs, err := loadSpecs()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]int{}
	for _, cs := range specs {
		for n, p := range cs.Programs {
			have[n] = len(p.Instructions)
		}
	}
	var names []string
	for n := range have {
		names = append(names, n)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, n := range names {
		fmt.Fprintf(&b, "%s %d\n", n, have[n])
	}
	if os.Getenv("BPF_UPDATE_INSTRUCTIONS") != "" {
		if err := os.WriteFile(instructionsFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	raw, err := os.ReadFile(instructionsFile)
	if os.IsNotExist(err) {
		t.Skip("no source tree (the test binary runs elsewhere)")
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		n, c, _ := strings.Cut(strings.TrimSpace(line), " ")
		max, err := strconv.Atoi(c)
		if err != nil {
			t.Fatalf("%s: %q", instructionsFile, line)
		}
		if got, ok := have[n]; !ok {
			t.Errorf("program %s is recorded but does not exist: run make bpf-generate", n)
		} else if got > max {
			t.Errorf("program %s grew from %d to %d instructions: if that is justified, run make bpf-generate", n, max, got)
		}
		delete(have, n)
	}
	for n := range have {
		t.Errorf("program %s is not recorded: run make bpf-generate", n)
	}
}

func TestRowEncoding(t *testing.T) {
	k, _, err := DestRow{7, netip.MustParsePrefix("10.1.0.0/16")}.encode()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, k); err != nil {
		t.Fatal(err)
	}
	want := append(binary.NativeEndian.AppendUint32(nil, 64+96+16), 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 0, 0)
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("IPv4 destination: % x, want % x", b.Bytes(), want)
	}
	for _, bad := range []Row{PodRow{}, DestRow{}, DestRow{1, netip.MustParsePrefix("::ffff:1.2.3.4/120")}, ClusterIPRow{}, ClusterIPRow{netip.MustParseAddr("::ffff:1.2.3.4"), 1}, LockedRow{}, LockedRow{Addr: netip.MustParseAddr("fe80::1%eth0")}, KubeletRow{}, KubeletRow{1, 1}} {
		if _, _, err := bad.encode(); err == nil {
			t.Errorf("%#v is encoded without error", bad)
		}
	}
	for _, a := range []string{"1.2.3.4", "::1", "fd00::1"} {
		addr := netip.MustParseAddr(a)
		if got := wordsAddr(addrWords(addr.As16())); got != addr {
			t.Errorf("%s is decoded as %s", addr, got)
		}
	}
}

func FuzzDecodeEvent(f *testing.F) {
	f.Add(make([]byte, 48))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		ev, err := decodeEvent(b)
		if err == nil && ev.Reason.String() == "" {
			t.Error("an event's reason has no label")
		}
	})
}

func TestCgroupMount(t *testing.T) {
	for in, want := range map[string]string{
		"24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n":                                         "/sys/fs/cgroup",
		"24 1 0:22 / /sys/fs/cgroup rw - tmpfs t rw\n30 24 0:25 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 c rw\n": "/sys/fs/cgroup/unified",
		"24 1 0:22 / /sys/fs/cgroup rw - cgroup c rw\n":                                                                "",
		"": "",
	} {
		got, err := cgroupMount(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}
