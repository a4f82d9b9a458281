// SPDX-License-Identifier: Apache-2.0

// Code generated from bpf/bh_reasons.h by internal/reasons/gen; DO NOT EDIT.

package loader

// Reason says why a program passed or refused; it is the index of its counter.
type Reason uint32

const (
	// ReasonSockMarked: socket of a tenant's host-network pod born with the network's mark.
	ReasonSockMarked Reason = iota
	// ReasonSockBoundAtBirth: SCTP socket, which calls no hook later, born bound to the VRF.
	ReasonSockBoundAtBirth
	// ReasonSockRemarked: socket older than the attachment marked at its first use.
	ReasonSockRemarked
	// ReasonBindWildcard: bind to the wildcard address confined to the VRF.
	ReasonBindWildcard
	// ReasonBindInside: bind to an address of the network confined to the VRF.
	ReasonBindInside
	// ReasonConnectInside: connect to an address of the network bound to the VRF.
	ReasonConnectInside
	// ReasonSendInside: datagram to an address of the network bound its socket to the VRF.
	ReasonSendInside
	// ReasonPodUnknown: program attached but no row says which pod this is: passed as it came.
	ReasonPodUnknown
	// ReasonKubeletMarked: socket of kubelet born with kubelet's mark.
	ReasonKubeletMarked
	// ReasonProbeAllowed: kubelet reached a locked default-network address.
	ReasonProbeAllowed
	// ReasonVRFMissing: the VRF device could not be bound to; nothing is let out unconfined.
	ReasonVRFMissing
	// ReasonSetMark: attempt to change a socket's mark from a tenant's host-network pod.
	ReasonSetMark
	// ReasonSetDevice: attempt to change a socket's device from a tenant's host-network pod.
	ReasonSetDevice
	// ReasonProbeRefused: a process other than kubelet tried a locked default-network address.
	ReasonProbeRefused
	reasonMax
)

var reasonInfo = [reasonMax]struct {
	label, text string
	verdict     Verdict
}{
	ReasonSockMarked:       {"sock-marked", "socket of a tenant's host-network pod born with the network's mark", Pass},
	ReasonSockBoundAtBirth: {"sock-bound-at-birth", "SCTP socket, which calls no hook later, born bound to the VRF", Pass},
	ReasonSockRemarked:     {"sock-remarked", "socket older than the attachment marked at its first use", Pass},
	ReasonBindWildcard:     {"bind-wildcard", "bind to the wildcard address confined to the VRF", Pass},
	ReasonBindInside:       {"bind-inside", "bind to an address of the network confined to the VRF", Pass},
	ReasonConnectInside:    {"connect-inside", "connect to an address of the network bound to the VRF", Pass},
	ReasonSendInside:       {"send-inside", "datagram to an address of the network bound its socket to the VRF", Pass},
	ReasonPodUnknown:       {"pod-unknown", "program attached but no row says which pod this is: passed as it came", Pass},
	ReasonKubeletMarked:    {"kubelet-marked", "socket of kubelet born with kubelet's mark", Pass},
	ReasonProbeAllowed:     {"probe-allowed", "kubelet reached a locked default-network address", Pass},
	ReasonVRFMissing:       {"vrf-missing", "the VRF device could not be bound to; nothing is let out unconfined", Refuse},
	ReasonSetMark:          {"set-mark", "attempt to change a socket's mark from a tenant's host-network pod", Refuse},
	ReasonSetDevice:        {"set-device", "attempt to change a socket's device from a tenant's host-network pod", Refuse},
	ReasonProbeRefused:     {"probe-refused", "a process other than kubelet tried a locked default-network address", Refuse},
}
