// SPDX-License-Identifier: Apache-2.0

// Package loader loads Bulkhead's eBPF programs, pins them with their maps and
// links, and takes all of it over when the agent restarts or is upgraded, with
// no moment without a program. It knows maps and cgroups, not Kubernetes.
package loader

//go:generate ../../bpf/generate.sh ../../pkg/loader
