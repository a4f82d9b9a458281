// SPDX-License-Identifier: Apache-2.0

// Package loader loads and attaches Bulkhead's eBPF programs and pins them with
// their maps and links. A restarted or upgraded agent takes the pins over without
// a gap in enforcement. The package knows maps and cgroups, not Kubernetes.
package loader

//go:generate ../../bpf/generate.sh ../../pkg/loader
