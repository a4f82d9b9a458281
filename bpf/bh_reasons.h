/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every verdict and its reason: the one list that C, the Go enum
 * (pkg/loader/reasons_gen.go), the counters and the metrics' labels are made
 * from. Append only: the number of a reason is its index in a pinned map.
 *
 * BH_REASON(identifier, verdict, label, what it means to an operator)
 */
BH_REASON(SOCK_MARKED, PASS, "sock-marked", "socket of a tenant's host-network pod born with the network's mark")
BH_REASON(SOCK_BOUND_AT_BIRTH, PASS, "sock-bound-at-birth", "SCTP socket, which calls no hook later, born bound to the VRF")
BH_REASON(SOCK_REMARKED, PASS, "sock-remarked", "socket older than the attachment marked at its first use")
BH_REASON(BIND_WILDCARD, PASS, "bind-wildcard", "bind to the wildcard address confined to the VRF")
BH_REASON(BIND_INSIDE, PASS, "bind-inside", "bind to an address of the network confined to the VRF")
BH_REASON(CONNECT_INSIDE, PASS, "connect-inside", "connect to an address of the network bound to the VRF")
BH_REASON(SEND_INSIDE, PASS, "send-inside", "datagram to an address of the network bound its socket to the VRF")
BH_REASON(POD_UNKNOWN, PASS, "pod-unknown", "program attached but no row says which pod this is: passed as it came")
BH_REASON(KUBELET_MARKED, PASS, "kubelet-marked", "socket of kubelet born with kubelet's mark")
BH_REASON(PROBE_ALLOWED, PASS, "probe-allowed", "kubelet reached a locked default-network address")
BH_REASON(VRF_MISSING, REFUSE, "vrf-missing", "the VRF device could not be bound to; nothing is let out unconfined")
BH_REASON(SET_MARK, REFUSE, "set-mark", "attempt to change a socket's mark from a tenant's host-network pod")
BH_REASON(SET_DEVICE, REFUSE, "set-device", "attempt to change a socket's device from a tenant's host-network pod")
BH_REASON(PROBE_REFUSED, REFUSE, "probe-refused", "a process other than kubelet tried a locked default-network address")
