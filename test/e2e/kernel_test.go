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
	"slices"
	"strings"
	"testing"

	"bulkhead/test/lab"
	"bulkhead/test/sampling"
)

// kernelTests are the root tests that need features of a node's kernel which the
// test machine's kernel may lack: above all VRF devices and BPF LSM. The others run
// on the test machine, among the packages' tests, in a tenth of the time;
// BULKHEAD_FULL=1 runs them on a node too. A sample is every second test of a package, of all packages or of one. The
// packages that take longest come first.
var kernelTests = []kernelPackage{
	{"bulkhead/pkg/firewall", "^TestKernel", "^$",
		[]string{"TestKernel", "TestKernelForward", "TestKernelForgedAnswers", "TestKernelInvalidToRouters", "TestKernelMarkInMessage", "TestKernelAnswersOfOthers", "TestKernelFragments", "TestKernelNewConnections", "TestKernelLocalGateway", "TestKernelAdvertised", "TestKernelOwnVRF", "TestKernelIngress"}},
	{"bulkhead/pkg/loader", "^TestRoot", "^TestRootGuardCompat$", // that one builds a program, and nodes have no Go
		[]string{"TestRootVRFBinding", "TestRootVRFRedirection", "TestRootLSM", "TestRootVRFIngress", "TestRootBrokenLinks/nothing"}},
	{"bulkhead/pkg/vrf", "^TestKernel", "^TestKernelWithoutVRF$", // that one is for kernels that lack VRF
		[]string{"TestKernelVRF", "TestKernelVRFOfSameName", "TestKernelTakenTable"}},
	{"bulkhead/pkg/hostnet", "^TestRoot|^TestServers$", "^$", []string{"TestRootEarlySockets", "TestServers"}},
}

type kernelPackage struct {
	pkg        string
	full, skip string   // -test.run when everything runs, and -test.skip
	tests      []string // each has to pass; of one with a subtest's name only that subtest runs
}

// oneKernelPackage is the package of kernelTests that the seed chooses.
func oneKernelPackage(seed string) []kernelPackage {
	return kernelTests[sampling.Part("kernel package", seed, len(kernelTests)):][:1]
}

var notPassed = regexp.MustCompile(`(?m)^\s*--- (FAIL|SKIP): .*$`)

// testKernel runs packages of kernelTests on the nodes, one at a time on each, or the sample of
// their tests that the seed chooses. A skip is a failure.
func testKernel(ctx context.Context, t *testing.T, nodes []*lab.Node, packages []kernelPackage, full bool, seed string) {
	dir := t.TempDir()
	idle := make(chan *lab.Node, len(nodes))
	for _, n := range nodes {
		idle <- n
	}
	for _, k := range packages {
		t.Run(path.Base(k.pkg), func(t *testing.T) {
			t.Parallel()
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
			node := <-idle
			defer func() { idle <- node }()
			remote := "/run/kernel-tests/" + path.Base(binary)
			if err := node.Put(ctx, remote, data, 0o755); err != nil {
				t.Fatal(err)
			}
			tests, run := k.tests, k.full
			if !full {
				i := sampling.Part(k.pkg, seed, 2)
				tests = slices.DeleteFunc(slices.Clone(tests), func(string) bool { i++; return i%2 == 0 })
				run = "^" + strings.ReplaceAll(strings.Join(tests, "$|^"), "/", "$/^") + "$"
				fmt.Printf("### %s: %s, chosen by SEED=%s\n", k.pkg, run, seed)
			}
			res, err := node.Run(ctx, fmt.Sprintf("modprobe -a vrf veth tcp_diag udp_diag sctp 2>/dev/null; cd /run/kernel-tests && %[1]s -test.v -test.run '%[2]s' -test.skip '%[3]s'; code=$?; rm -f %[1]s; exit $code", remote, run, k.skip))
			if err != nil {
				t.Fatal(err)
			}
			for _, test := range tests {
				test, _, _ = strings.Cut(test, "/")
				if !strings.Contains(res.Stdout, "--- PASS: "+test+" (") {
					t.Errorf("%s of %s did not pass", test, k.pkg)
				}
			}
			if bad := notPassed.FindAllString(res.Stdout, -1); res.ExitCode != 0 || len(bad) > 0 {
				t.Errorf("exit %d, %q\n%s%s", res.ExitCode, bad, res.Stdout, res.Stderr)
			}
		})
	}
}
