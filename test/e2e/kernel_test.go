// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"testing"

	"bulkhead/test/lab"
)

// kernelTests are the packages whose root tests need what a node's kernel has
// and a test machine's may not: VRF devices above all.
var kernelTests = []struct{ pkg, run, except string }{
	{"bulkhead/pkg/vrf", "^TestKernel", "^TestKernelWithoutDevice$"}, // that one is for kernels that lack VRF
	// The guard's need nothing that a test machine lacks, and take minutes in
	// emulation; the adversary's table tries the same here with real pods.
	{"bulkhead/pkg/loader", "^TestRoot", "^TestRootGuard"},
	{"bulkhead/pkg/hostnet", "^TestRoot", "^$"},
}

var notPassed = regexp.MustCompile(`(?m)^\s*--- (FAIL|SKIP): .*$`)

// testKernel runs these tests on a node. There a skip is a failure.
func testKernel(ctx context.Context, t *testing.T, node *lab.Node) {
	dir := t.TempDir()
	for _, k := range kernelTests {
		t.Run(path.Base(k.pkg), func(t *testing.T) {
			binary := filepath.Join(dir, path.Base(k.pkg)+".test")
			cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, k.pkg)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("build the tests of %s: %v\n%s", k.pkg, err, out)
			}
			data, err := os.ReadFile(binary)
			if err != nil {
				t.Fatal(err)
			}
			remote := "/run/kernel-tests/" + path.Base(binary)
			if err := node.Put(ctx, remote, data, 0o755); err != nil {
				t.Fatal(err)
			}
			res, err := node.Run(ctx, fmt.Sprintf("modprobe -a vrf veth tcp_diag udp_diag sctp 2>/dev/null; cd /run/kernel-tests && %[1]s -test.v -test.run '%[2]s' -test.skip '%[3]s'; code=$?; rm -f %[1]s; exit $code", remote, k.run, k.except))
			if err != nil {
				t.Fatal(err)
			}
			if bad := notPassed.FindAllString(res.Stdout, -1); res.ExitCode != 0 || len(bad) > 0 {
				t.Errorf("exit %d, %q\n%s%s", res.ExitCode, bad, res.Stdout, res.Stderr)
			}
		})
	}
}
