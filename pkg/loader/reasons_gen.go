// SPDX-License-Identifier: Apache-2.0

// Code generated from bpf/bh_reasons.h by internal/reasons/gen; DO NOT EDIT.

package loader

// Reason says why a program passed or refused something. It is the counter's index.
type Reason uint32

const (
	// ReasonSockMarked: socket of a tenant's host-network pod created with the network's mark.
	ReasonSockMarked Reason = iota
	// ReasonSockBoundAtCreation: SCTP socket bound to the VRF at creation, because SCTP calls no later hook.
	ReasonSockBoundAtCreation
	// ReasonSockRemarked: socket older than the pod's attachment, marked at its first use.
	ReasonSockRemarked
	// ReasonBindWildcard: bind to the wildcard address: socket bound to the VRF.
	ReasonBindWildcard
	// ReasonBindInside: bind to an address of the network: socket bound to the VRF.
	ReasonBindInside
	// ReasonConnectInside: connect to an address of the network: socket bound to the VRF.
	ReasonConnectInside
	// ReasonSendInside: datagram to an address of the network: socket bound to the VRF.
	ReasonSendInside
	// ReasonPodUnknown: socket of a pod that has the programs but no row in bh_pods: left unchanged.
	ReasonPodUnknown
	// ReasonKubeletMarked: socket of kubelet created with kubelet's mark.
	ReasonKubeletMarked
	// ReasonProbeAllowed: kubelet reached a locked default-network address.
	ReasonProbeAllowed
	// ReasonVRFMissing: socket could not be bound to the VRF device: refused, so that nothing is sent outside the VRF.
	ReasonVRFMissing
	// ReasonSetMark: host-network pod tried to set a socket's mark.
	ReasonSetMark
	// ReasonSetDevice: host-network pod tried to bind a socket to a device that it may not choose.
	ReasonSetDevice
	// ReasonProbeRefused: process other than kubelet tried to reach a locked default-network address.
	ReasonProbeRefused
	// ReasonRedirected: connection or datagram of a network's own pod to loopback or the node's address, redirected to the node's address in the network.
	ReasonRedirected
	// ReasonProbeRedirected: kubelet's probe of a tenant's host-network pod, redirected into the pod's network.
	ReasonProbeRedirected
	// ReasonProbePortHeld: probe not redirected into a network, because a process outside the network listens on the same port.
	ReasonProbePortHeld
	// ReasonForeignSocket: tenant's host-network pod used a socket that another pod created.
	ReasonForeignSocket
	// ReasonForeignDevice: host-network pod tried to use a socket with a device of another network.
	ReasonForeignDevice
	// ReasonBypass: host-network pod tried to set a socket option that bypasses the guard.
	ReasonBypass
	// ReasonPacketSocket: host-network pod tried to create or bind a packet socket that could receive from or send to networks, or to create a socket of a family that bypasses the programs.
	ReasonPacketSocket
	// ReasonGuardForeign: packet into a network from a pod that does not belong to the network.
	ReasonGuardForeign
	// ReasonGuardUnknown: packet into a network from an unknown pod.
	ReasonGuardUnknown
	// ReasonGuardLocked: packet to a locked default-network address that kubelet did not send.
	ReasonGuardLocked
	// ReasonGuardForwarded: packet forwarded into a network from an interface that may not forward into it.
	ReasonGuardForwarded
	// ReasonGuardNoSocket: packet into a network that has no sending socket and is of no kind that the kernel itself sends.
	ReasonGuardNoSocket
	// ReasonGuardInjected: frame that a pod's packet socket sent on an interface of pods or networks or on loopback, or on one of the node's if the pod is a tenant's, or with the tag of a VLAN or a masquerade address.
	ReasonGuardInjected
	// ReasonGuardTunnel: datagram of a pod to the overlay's UDP port.
	ReasonGuardTunnel
	// ReasonGuardReceiver: packet of a network that a pod outside the network would have received.
	ReasonGuardReceiver
	// ReasonGuardLoopback: packet over loopback between host-network pods of two tenants.
	ReasonGuardLoopback
	// ReasonPodFrame: router advertisement, redirect, DHCP server message, unparsable packet, or packet with a checksum to be written over its header, sent by a pod.
	ReasonPodFrame
	// ReasonLockedFrame: frame of a locked default-network interface that is neither to nor from the node's management port.
	ReasonLockedFrame
	// ReasonIngressAllowed: socket of an ingress namespace's host-network pod bound to the VRF of the network whose service it uses.
	ReasonIngressAllowed
	// ReasonIngressBound: socket of an ingress namespace's host-network pod already used for another network's service.
	ReasonIngressBound
	// ReasonUnixForeign: host-network pod tried to reach an abstract unix socket of another tenant.
	ReasonUnixForeign
	// ReasonBindOwn: tenant's host-network pod tried to take a port of the agent or a controller outside its network's VRF.
	ReasonBindOwn
	reasonMax
)

var reasonInfo = [reasonMax]struct {
	label, text string
	verdict     Verdict
}{
	ReasonSockMarked:          {"sock-marked", "socket of a tenant's host-network pod created with the network's mark", Pass},
	ReasonSockBoundAtCreation: {"sock-bound-at-creation", "SCTP socket bound to the VRF at creation, because SCTP calls no later hook", Pass},
	ReasonSockRemarked:        {"sock-remarked", "socket older than the pod's attachment, marked at its first use", Pass},
	ReasonBindWildcard:        {"bind-wildcard", "bind to the wildcard address: socket bound to the VRF", Pass},
	ReasonBindInside:          {"bind-inside", "bind to an address of the network: socket bound to the VRF", Pass},
	ReasonConnectInside:       {"connect-inside", "connect to an address of the network: socket bound to the VRF", Pass},
	ReasonSendInside:          {"send-inside", "datagram to an address of the network: socket bound to the VRF", Pass},
	ReasonPodUnknown:          {"pod-unknown", "socket of a pod that has the programs but no row in bh_pods: left unchanged", Pass},
	ReasonKubeletMarked:       {"kubelet-marked", "socket of kubelet created with kubelet's mark", Pass},
	ReasonProbeAllowed:        {"probe-allowed", "kubelet reached a locked default-network address", Pass},
	ReasonVRFMissing:          {"vrf-missing", "socket could not be bound to the VRF device: refused, so that nothing is sent outside the VRF", Refuse},
	ReasonSetMark:             {"set-mark", "host-network pod tried to set a socket's mark", Refuse},
	ReasonSetDevice:           {"set-device", "host-network pod tried to bind a socket to a device that it may not choose", Refuse},
	ReasonProbeRefused:        {"probe-refused", "process other than kubelet tried to reach a locked default-network address", Refuse},
	ReasonRedirected:          {"redirected", "connection or datagram of a network's own pod to loopback or the node's address, redirected to the node's address in the network", Pass},
	ReasonProbeRedirected:     {"probe-redirected", "kubelet's probe of a tenant's host-network pod, redirected into the pod's network", Pass},
	ReasonProbePortHeld:       {"probe-port-held", "probe not redirected into a network, because a process outside the network listens on the same port", Pass},
	ReasonForeignSocket:       {"foreign-socket", "tenant's host-network pod used a socket that another pod created", Refuse},
	ReasonForeignDevice:       {"foreign-device", "host-network pod tried to use a socket with a device of another network", Refuse},
	ReasonBypass:              {"bypass", "host-network pod tried to set a socket option that bypasses the guard", Refuse},
	ReasonPacketSocket:        {"packet-socket", "host-network pod tried to create or bind a packet socket that could receive from or send to networks, or to create a socket of a family that bypasses the programs", Refuse},
	ReasonGuardForeign:        {"guard-foreign", "packet into a network from a pod that does not belong to the network", Refuse},
	ReasonGuardUnknown:        {"guard-unknown", "packet into a network from an unknown pod", Refuse},
	ReasonGuardLocked:         {"guard-locked", "packet to a locked default-network address that kubelet did not send", Refuse},
	ReasonGuardForwarded:      {"guard-forwarded", "packet forwarded into a network from an interface that may not forward into it", Refuse},
	ReasonGuardNoSocket:       {"guard-no-socket", "packet into a network that has no sending socket and is of no kind that the kernel itself sends", Refuse},
	ReasonGuardInjected:       {"guard-injected", "frame that a pod's packet socket sent on an interface of pods or networks or on loopback, or on one of the node's if the pod is a tenant's, or with the tag of a VLAN or a masquerade address", Refuse},
	ReasonGuardTunnel:         {"guard-tunnel", "datagram of a pod to the overlay's UDP port", Refuse},
	ReasonGuardReceiver:       {"guard-receiver", "packet of a network that a pod outside the network would have received", Refuse},
	ReasonGuardLoopback:       {"guard-loopback", "packet over loopback between host-network pods of two tenants", Refuse},
	ReasonPodFrame:            {"pod-frame", "router advertisement, redirect, DHCP server message, unparsable packet, or packet with a checksum to be written over its header, sent by a pod", Refuse},
	ReasonLockedFrame:         {"locked-frame", "frame of a locked default-network interface that is neither to nor from the node's management port", Refuse},
	ReasonIngressAllowed:      {"ingress-allowed", "socket of an ingress namespace's host-network pod bound to the VRF of the network whose service it uses", Pass},
	ReasonIngressBound:        {"ingress-bound", "socket of an ingress namespace's host-network pod already used for another network's service", Refuse},
	ReasonUnixForeign:         {"unix-foreign", "host-network pod tried to reach an abstract unix socket of another tenant", Refuse},
	ReasonBindOwn:             {"bind-own", "tenant's host-network pod tried to take a port of the agent or a controller outside its network's VRF", Refuse},
}
