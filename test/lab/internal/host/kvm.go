// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"bulkhead/hack/cache"
)

// probeMarker is the last message of a kernel without a root file system: the kernel
// has then passed everything in which a broken KVM hangs.
const probeMarker = "Unable to mount root fs"

const probeLimit = 12 * time.Second

// ProbeKVM reports whether KVM boots the lab's kernel: inside a virtual machine,
// /dev/kvm may exist and not work. It caches the result until the next boot.
func ProbeKVM(ctx context.Context, kernel string) (bool, error) {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return false, nil
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return false, fmt.Errorf("read the boot id: %w", err)
	}
	version, err := exec.CommandContext(ctx, "qemu-system-x86_64", "--version").Output()
	if err != nil {
		return false, fmt.Errorf("read QEMU's version: %w", err)
	}
	result, err := cache.Text("kvm", cache.Key(string(boot), string(version), kernel), func() (string, error) {
		return probe(ctx, kernel)
	})
	return strings.TrimSpace(result) == "yes", err
}

func probe(ctx context.Context, kernel string) (string, error) {
	dir, err := os.MkdirTemp("", "lab-kvm-")
	if err != nil {
		return "", fmt.Errorf("create a directory for the KVM probe: %w", err)
	}
	defer os.RemoveAll(dir)
	limited, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	args := append([]string{"-M", "q35"}, accelerator(true)...)
	console := filepath.Join(dir, "console")
	cmd := exec.CommandContext(limited, "qemu-system-x86_64", append(args, "-m", "512", "-nographic", "-nodefaults", "-no-reboot",
		"-serial", "file:"+console, "-kernel", kernel, "-append", "console=ttyS0 panic=-1 mitigations=off")...)
	err = cmd.Run()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", fmt.Errorf("run the KVM probe: %w", err)
	}
	if output, _ := os.ReadFile(console); strings.Contains(string(output), probeMarker) {
		return "yes", nil
	}
	return "no", nil
}
