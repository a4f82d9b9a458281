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

// probeMarker is what a kernel says last when it has no root: by then it has
// come through everything in which a broken KVM hangs.
const probeMarker = "Unable to mount root fs"

const probeLimit = 12 * time.Second

// ProbeKVM tells whether KVM boots the lab's kernel; /dev/kvm alone means
// little inside a virtual machine. The answer is remembered until the next boot.
func ProbeKVM(ctx context.Context, kernel string) (bool, error) {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return false, nil
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return false, fmt.Errorf("read this boot's identity: %w", err)
	}
	version, err := exec.CommandContext(ctx, "qemu-system-x86_64", "--version").Output()
	if err != nil {
		return false, fmt.Errorf("ask for QEMU's version: %w", err)
	}
	dir, err := cache.Text("kvm", cache.Key(string(boot), string(version), kernel), func() (string, error) {
		return probe(ctx, kernel)
	})
	return strings.TrimSpace(dir) == "yes", err
}

func probe(ctx context.Context, kernel string) (string, error) {
	dir, err := os.MkdirTemp("", "lab-kvm-")
	if err != nil {
		return "", fmt.Errorf("make a place for the KVM probe: %w", err)
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
	if said, _ := os.ReadFile(console); strings.Contains(string(said), probeMarker) {
		return "yes", nil
	}
	return "no", nil
}
