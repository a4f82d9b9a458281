// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestCPUTime(t *testing.T) {
	d, err := cpuOf("7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20")
	if err != nil || d != 2*time.Second {
		t.Errorf("a process used %s, %v; want 2s", d, err)
	}
	d, err = Busy("cpu  100 0 50 9999 888 10 20 20 0 0\ncpu0 1")
	if err != nil || d != 2*time.Second {
		t.Errorf("the machine used %s, %v; want 2s", d, err)
	}
	for _, bad := range []string{"", "7 (a) S 1", "cpu 1 2"} {
		if _, err := cpuOf(bad); err == nil {
			t.Errorf("process %q is accepted", bad)
		}
		if _, err := Busy(bad); err == nil {
			t.Errorf("machine %q is accepted", bad)
		}
	}
}

func TestMemory(t *testing.T) {
	now, peak, err := Memory(os.Getpid())
	if err != nil || now < 1<<20 || peak < now/2 {
		t.Errorf("this process has %d bytes, %d at its peak, %v", now, peak, err)
	}
	if _, _, err := Memory(-1); err == nil {
		t.Error("a process that does not exist has memory")
	}
}

func TestTerminate(t *testing.T) {
	for script, fails := range map[string]bool{"trap 'exit 0' TERM; echo; while :; do sleep 0.01; done": false, "trap 'exit 3' TERM; echo; while :; do sleep 0.01; done": true} {
		cmd := exec.Command("sh", "-c", script)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // the trap is set
			t.Fatal(err)
		}
		if err := Terminate(cmd); (err != nil) != fails || cmd.ProcessState == nil {
			t.Errorf("%s: %v, ended %v", script, err, cmd.ProcessState)
		}
	}
}
