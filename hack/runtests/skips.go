// SPDX-License-Identifier: Apache-2.0

package main

// allowedSkips are the tests that may be skipped, by package and name, each with
// the reason. Any other skip is a failure: `make test` installs what tests need.
var allowedSkips = map[string]string{
	"bulkhead/pkg/firewall TestKernel":                  noCgroup,
	"bulkhead/pkg/firewall TestKernelInvalidToRouters":  noCgroup,
	"bulkhead/pkg/firewall TestKernelMarkInMessage":     noCgroup,
	"bulkhead/pkg/firewall TestKernelAnswersOfOthers":   noCgroup,
	"bulkhead/pkg/firewall TestKernelFragments":         noCgroup,
	"bulkhead/pkg/firewall TestKernelNewConnections":    noCgroup,
	"bulkhead/pkg/firewall TestKernelForward":           onNode,
	"bulkhead/pkg/firewall TestKernelLocalGateway":      onNode,
	"bulkhead/pkg/firewall TestKernelAdvertised":        onNode,
	"bulkhead/pkg/firewall TestKernelOwnVRF":            onNode,
	"bulkhead/pkg/firewall TestKernelForgedAnswers":     onNode,
	"bulkhead/pkg/firewall TestKernelIngress":           onNode,
	"bulkhead/pkg/vrf TestKernelVRF":                    onNode,
	"bulkhead/pkg/vrf TestKernelVRFOfSameName":          onNode,
	"bulkhead/pkg/vrf TestKernelTakenTable":             onNode,
	"bulkhead/pkg/vrf TestKernelWithoutVRF":             "tests kernels without VRF devices; this one has them",
	"bulkhead/pkg/loader TestRootVRFBinding":            onNode,
	"bulkhead/pkg/loader TestRootVRFRedirection":        onNode,
	"bulkhead/pkg/loader TestRootVRFIngress":            onNode,
	"bulkhead/pkg/loader TestRootLSM":                   onNode,
	"bulkhead/pkg/loader TestRootGuardCompat":           "the test machine's kernel may run no 32-bit programs: 32-bit system calls are then not tested",
	"bulkhead/pkg/loader TestRootGuardForwarded/tunnel": "the test machine's kernel may lack vxlan; test-full runs it on a node",
	"bulkhead/test/e2e/cmd/killat TestRootKill":         "the test machine's kernel may lack tracepoints of system calls; the story uses the program",
}

const (
	noCgroup = "nft needs cgroup v2 at /sys/fs/cgroup, which the test machine may have elsewhere; the lab stage runs it on a node, or a sample of such tests"
	onNode   = "the test machine's kernel may lack VRF devices or BPF LSM; the lab stage runs it on a node, or a sample of such tests, where a skip is a failure"
)
