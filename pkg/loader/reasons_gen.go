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
	// ReasonLed: connection or datagram of a network's own pod to loopback or the node's address led to the node's address in the network.
	ReasonLed
	// ReasonProbeLed: kubelet's probe of a tenant's host-network pod led into its network.
	ReasonProbeLed
	// ReasonProbePortHeld: probe not led into a network, because somebody outside it listens on the same port.
	ReasonProbePortHeld
	// ReasonForeignSocket: a tenant's host-network pod used a socket that was born in another pod.
	ReasonForeignSocket
	// ReasonForeignDevice: a pod's socket was bound to a device of a network that is not its own.
	ReasonForeignDevice
	// ReasonBypass: attempt to set a socket option of a pod that sends past the guard.
	ReasonBypass
	// ReasonPacketSocket: a pod in the host's network tried a packet socket that would hear or reach networks.
	ReasonPacketSocket
	// ReasonGuardForeign: packet into a network from a socket of a pod that is not the network's.
	ReasonGuardForeign
	// ReasonGuardUnknown: packet into a network from a socket of a pod that is not known yet.
	ReasonGuardUnknown
	// ReasonGuardLocked: packet to a locked default-network address, not from kubelet's socket.
	ReasonGuardLocked
	// ReasonGuardForwarded: packet into a network forwarded from an interface that may not.
	ReasonGuardForwarded
	// ReasonGuardNoSocket: packet into a network that has no socket and is none that the kernel itself sends.
	ReasonGuardNoSocket
	// ReasonGuardInjected: frame that a pod's packet socket put on an interface of pods, of networks or on loopback.
	ReasonGuardInjected
	// ReasonGuardTunnel: datagram of a pod to the overlay's port.
	ReasonGuardTunnel
	// ReasonGuardHeard: packet of a network kept from a socket of a pod that is not the network's.
	ReasonGuardHeard
	// ReasonGuardLoopback: packet between two tenants' host-network pods by loopback.
	ReasonGuardLoopback
	// ReasonPodFrame: router advertisement, redirect or DHCP answer sent by a pod.
	ReasonPodFrame
	// ReasonLockedFrame: frame of a locked default-network interface, neither to nor from the node's management port.
	ReasonLockedFrame
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
	ReasonLed:              {"led", "connection or datagram of a network's own pod to loopback or the node's address led to the node's address in the network", Pass},
	ReasonProbeLed:         {"probe-led", "kubelet's probe of a tenant's host-network pod led into its network", Pass},
	ReasonProbePortHeld:    {"probe-port-held", "probe not led into a network, because somebody outside it listens on the same port", Pass},
	ReasonForeignSocket:    {"foreign-socket", "a tenant's host-network pod used a socket that was born in another pod", Refuse},
	ReasonForeignDevice:    {"foreign-device", "a pod's socket was bound to a device of a network that is not its own", Refuse},
	ReasonBypass:           {"bypass", "attempt to set a socket option of a pod that sends past the guard", Refuse},
	ReasonPacketSocket:     {"packet-socket", "a pod in the host's network tried a packet socket that would hear or reach networks", Refuse},
	ReasonGuardForeign:     {"guard-foreign", "packet into a network from a socket of a pod that is not the network's", Refuse},
	ReasonGuardUnknown:     {"guard-unknown", "packet into a network from a socket of a pod that is not known yet", Refuse},
	ReasonGuardLocked:      {"guard-locked", "packet to a locked default-network address, not from kubelet's socket", Refuse},
	ReasonGuardForwarded:   {"guard-forwarded", "packet into a network forwarded from an interface that may not", Refuse},
	ReasonGuardNoSocket:    {"guard-no-socket", "packet into a network that has no socket and is none that the kernel itself sends", Refuse},
	ReasonGuardInjected:    {"guard-injected", "frame that a pod's packet socket put on an interface of pods, of networks or on loopback", Refuse},
	ReasonGuardTunnel:      {"guard-tunnel", "datagram of a pod to the overlay's port", Refuse},
	ReasonGuardHeard:       {"guard-heard", "packet of a network kept from a socket of a pod that is not the network's", Refuse},
	ReasonGuardLoopback:    {"guard-loopback", "packet between two tenants' host-network pods by loopback", Refuse},
	ReasonPodFrame:         {"pod-frame", "router advertisement, redirect or DHCP answer sent by a pod", Refuse},
	ReasonLockedFrame:      {"locked-frame", "frame of a locked default-network interface, neither to nor from the node's management port", Refuse},
}
