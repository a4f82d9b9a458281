// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const uid = "0a1b2c3d-1111-2222-3333-444455556666"

func TestPodUID(t *testing.T) {
	underscored := strings.ReplaceAll(uid, "-", "_")
	for _, c := range []struct {
		parent, name, want string
	}{
		{"kubepods", "pod" + uid, uid},
		{"burstable", "pod" + uid, uid},
		{"besteffort", "pod0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"}, // static pod
		{"kubepods.slice", "kubepods-pod" + underscored + ".slice", uid},
		{"kubepods-burstable.slice", "kubepods-burstable-pod" + underscored + ".slice", uid},
		{"kubelet-kubepods-besteffort.slice", "kubelet-kubepods-besteffort-pod" + underscored + ".slice", uid}, // kind
		{"kubepods", "burstable", ""},
		{"kubepods.slice", "kubepods-burstable.slice", ""},
		{"kubepods.slice", "pod" + uid, ""},
		{"kubepods-burstable.slice", "kubepods-pod" + underscored + ".slice", ""},
		{"kubepods.slice", "kubepods-pod" + uid + ".slice", ""},
		{"kubepods", "pod", ""},
	} {
		got, ok := podUID(c.parent, c.name)
		if ok != (c.want != "") || ok && got != c.want {
			t.Errorf("podUID(%q, %q) = %q, %t", c.parent, c.name, got, ok)
		}
	}
}

func inode(path string) (uint64, error) {
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return st.Sys().(*syscall.Stat_t).Ino, nil
}

func TestLayoutOfBothDrivers(t *testing.T) {
	for name, pod := range map[string]string{
		"cgroupfs":            "kubepods/burstable/pod" + uid,
		"cgroupfs guaranteed": "kubepods/pod" + uid,
		"cgroupfs prefix":     "my/root/kubepods/besteffort/pod" + uid,
		"systemd":             "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice",
		"systemd prefix":      "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice",
	} {
		root := t.TempDir()
		// A tree of the same shape inside a container must be ignored.
		fake := filepath.Join(root, pod, "ctr", "kubepods", "podfake")
		if err := os.MkdirAll(fake, 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := readLayout(root, inode)
		if err != nil {
			t.Fatal(err)
		}
		id, _ := inode(filepath.Join(root, pod))
		if len(l.Pods) != 1 || l.Pods[uid] != (Cgroup{filepath.Join(root, pod), id}) {
			t.Errorf("%s: %+v", name, l.Pods)
		}
	}
	if l, err := readLayout(t.TempDir(), inode); err != nil || len(l.Pods)+len(l.Parents) != 0 {
		t.Errorf("no kubepods yet: %+v, %v", l, err)
	}
}
