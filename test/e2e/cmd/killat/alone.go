// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// alone runs do while the processors that it does not run on execute only loops of this
// process, and interrupts.
func alone(do func() error) error {
	// A collection would wait for the loops, which wait for do.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return fmt.Errorf("list the processors: %w", err)
	}
	var cpus []int
	for i := 0; len(cpus) < may.Count(); i++ {
		if may.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(len(cpus) + 1))

	var done atomic.Bool
	var ended sync.WaitGroup
	defer ended.Wait()
	defer done.Store(true)
	looping := make(chan error, len(cpus))
	for _, cpu := range cpus[1:] {
		ended.Go(func() {
			// The thread is locked and never unlocked: it ends with the goroutine.
			runtime.LockOSThread()
			err := errors.Join(blockSignals(), own(cpu))
			looping <- err
			if err != nil {
				return
			}
			for !done.Load() {
			}
		})
	}
	for range cpus[1:] {
		if err := <-looping; err != nil {
			return err
		}
	}
	result := make(chan error, 1)
	ended.Go(func() {
		runtime.LockOSThread()
		if err := own(cpus[0]); err != nil {
			result <- err
			return
		}
		result <- do()
	})
	return <-result
}

// blockSignals has the thread handle no signal: Go would preempt the loop by one, and to return
// from a signal is a system call.
func blockSignals() error {
	var all unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, nil); err != nil {
		return fmt.Errorf("block a thread's signals: %w", err)
	}
	return nil
}

// own has the thread run on a processor, before all threads of ordinary priority.
func own(cpu int) error {
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("stay on processor %d: %w", cpu, err)
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0); err != nil {
		return fmt.Errorf("run before the others on processor %d: %w", cpu, err)
	}
	return nil
}
