// SPDX-License-Identifier: Apache-2.0

// Package proc reads what processes cost from /proc, and ends them.
package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of CPU times in /proc: 1/100 s on every Linux that Go
// supports.
const tick = 10 * time.Millisecond

// CPU returns the CPU time of a process so far.
func CPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	return cpuOf(string(b))
}

// MachineCPU returns the CPU time of the whole machine so far, without idle and iowait.
func MachineCPU() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the machine's CPU time: %w", err)
	}
	return Busy(string(b))
}

// cpuOf parses the CPU time of a process from its /proc/PID/stat.
func cpuOf(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // the process name may contain any character
	if len(fields) < 13 {
		return 0, fmt.Errorf("parse /proc/PID/stat: %q", stat)
	}
	return ticks(fields[11:13])
}

// Busy parses the CPU time of a whole machine, without idle and iowait, from its /proc/stat.
func Busy(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("parse /proc/stat: %q", line)
	}
	return ticks(append(fields[1:4:4], fields[6:9]...))
}

func ticks(fields []string) (time.Duration, error) {
	var n int64
	for _, f := range fields {
		v, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("parse CPU time %q: %w", f, err)
		}
		n += v
	}
	return time.Duration(n) * tick, nil
}

// Terminate stops a child as kubelet would, by SIGTERM. Its error is the child's own, or
// that the child did not exit in kubelet's 30 s.
func Terminate(cmd *exec.Cmd) error {
	_ = cmd.Process.Signal(syscall.SIGTERM) // Wait reports a child that has exited
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	select {
	case err := <-exited:
		return err
	case <-time.After(30 * time.Second):
		_ = cmd.Process.Kill()
		<-exited
		return errors.New("it did not exit within 30 s of SIGTERM")
	}
}

// Memory returns the resident set of a process in bytes, now and at its peak.
func Memory(pid int) (now, peak int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read memory: %w", err)
	}
	found := 0
	for line := range strings.Lines(string(b)) {
		key, v, _ := strings.Cut(line, ":")
		out := map[string]*int64{"VmRSS": &now, "VmHWM": &peak}[key]
		if out == nil {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read memory %q: %w", v, err)
		}
		*out = kb << 10
		found++
	}
	if found != 2 {
		return 0, 0, fmt.Errorf("/proc/%d/status has no VmRSS and VmHWM", pid)
	}
	return now, peak, nil
}
