/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who sent a packet: kubelet, the kernel itself, and sockets of which kind, mark and network namespace.
 */
#ifndef BH_SENDERS_H
#define BH_SENDERS_H

#include "bh_btf.h"
#include "bh_locked.h"

#include <bpf/bpf_core_read.h>

/* bh_socket_of returns the packet's socket, 0 if it has none. */
static __always_inline struct bpf_sock *bh_socket_of(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	return sk ? bpf_sk_fullsock(sk) : 0;
}

/*
 * bh_is_kernel_packet reports whether a packet without a process's socket is of a
 * kind that the kernel itself sends: ARP, neighbour discovery, multicast
 * membership, ICMP replies and errors, and TCP and SCTP replies without payload.
 */
static __always_inline int bh_is_kernel_packet(struct __sk_buff *skb, const struct bh_packet *p)
{
	__u8 b[14];

	if (skb->protocol == bpf_htons(BH_ETH_P_ARP))
		return 1;
	if (p->unparsed || p->later_fragment)
		return 0;
	switch (p->proto) {
	case IPPROTO_ICMP:
		if (bh_load(skb, p->l4, b, 1, BH_NET))
			return 0;
		/* echo reply, unreachable, time exceeded, parameter problem, timestamp reply */
		return b[0] == 0 || b[0] == 3 || b[0] == 11 || b[0] == 12 || b[0] == 14;
	case IPPROTO_ICMPV6:
		if (bh_load(skb, p->l4, b, 1, BH_NET))
			return 0;
		/* errors, echo reply, MLD, solicitations and neighbour advertisement, MLDv2 */
		return b[0] <= 4 || (b[0] >= 129 && b[0] <= 133) || b[0] == 135 || b[0] == 136 ||
		       b[0] == 143;
	case IPPROTO_IGMP:
		return 1;
	case IPPROTO_TCP:
		if (bh_load(skb, p->l4, b, 14, BH_NET))
			return 0;
		/* RST, or ACK without SYN, FIN and payload */
		return (b[13] & 4) ||
		       ((b[13] & 0x13) == 0x10 && p->l4 + (b[12] >> 4) * 4 >= p->len);
	case IPPROTO_SCTP:
		if (bh_load(skb, p->l4 + 12, b, 1, BH_NET))
			return 0;
		return b[0] == 6 || b[0] == 14; /* ABORT, SHUTDOWN COMPLETE */
	}
	return 0;
}

/* bh_is_membership reports whether a packet is a report of multicast membership: IGMP, or MLD. */
static __always_inline int bh_is_membership(struct __sk_buff *skb, const struct bh_packet *p)
{
	__u8 type;

	if (p->unparsed || p->later_fragment)
		return 0;
	if (p->proto == IPPROTO_IGMP)
		return 1;
	if (p->proto != IPPROTO_ICMPV6 || bh_load(skb, p->l4, &type, 1, BH_NET))
		return 0;
	return type == 131 || type == 132 || type == 143;
}

/*
 * bh_from_kubelet reports whether kubelet sent the packet: by its sockets' mark, which
 * no pod's socket can have, or by cgroup.
 */
static __always_inline int bh_from_kubelet(struct __sk_buff *skb, const struct bh_config *cfg)
{
	struct bpf_sock *sk = bh_socket_of(skb);
	struct bh_kubelet_key key = { .kind = BH_KUBELET_CGROUP };
	__u32 levels = cfg->kubelet_levels;

	if (sk && cfg->kubelet_mark && sk->mark == cfg->kubelet_mark)
		return 1;
	for (int i = 1; i < BH_MAX_LEVEL && levels >> i; i++) {
		if (!(levels >> i & 1))
			continue;
		key.id = bpf_skb_ancestor_cgroup_id(skb, i);
		if (!key.id)
			break;
		if (bpf_map_lookup_elem(&bh_kubelet, &key))
			return 1;
	}
	return 0;
}

static __always_inline int bh_from_packet_socket(struct __sk_buff *skb)
{
	struct bpf_sock *sk = bh_socket_of(skb);

	return sk && sk->family == BH_AF_PACKET;
}

/*
 * bh_in_host_netns reports whether a socket is in the host's network namespace. The
 * check is needed because packets that a pod sends on its own interface keep
 * their socket on the path across the host. Linux 6.1 has no helper for the
 * namespace of a packet's socket, and the verifier allows no pointer into the
 * socket, so the program copies the socket's first bytes. If the namespace cannot
 * be read, the socket counts as the host's, so that the guard checks it.
 */
static __always_inline int bh_in_host_netns(const struct bh_config *cfg, void *sk)
{
	__u32 at = bpf_core_field_offset(struct sock_common, skc_net.net);
	__u8 head[128];
	struct net *net;
	__u64 cookie;

	if (at > sizeof(head) - sizeof(net) || bpf_probe_read_kernel(head, sizeof(head), sk))
		return 1;
	net = *(struct net **)(head + at);
	if (bpf_core_read(&cookie, sizeof(cookie), &net->net_cookie))
		return 1;
	return cookie == cfg->host_netns;
}

/*
 * bh_from_ip_socket reports whether the IP stack sent the packet. Request and timewait sockets
 * are of TCP connections.
 */
static __always_inline int bh_from_ip_socket(struct __sk_buff *skb)
{
	struct bpf_sock *sk = bh_socket_of(skb);

	return !sk || sk->family == BH_AF_INET || sk->family == BH_AF_INET6;
}

static __always_inline int bh_is_network_mark(const struct bh_config *cfg, __u32 mark)
{
	return mark >= cfg->mark_first && mark <= cfg->mark_last;
}

/*
 * bh_from_raw_socket reports whether the packet's socket is a raw IP socket. A process that sends by one chooses
 * the transport header, and with it the connection to which the packet belongs. Request and timewait sockets are of TCP.
 */
static __always_inline int bh_from_raw_socket(struct __sk_buff *skb)
{
	struct bpf_sock *sk = bh_socket_of(skb);

	return sk && sk->type == BH_SOCK_RAW;
}

/* bh_special_mark returns the mark of the packet's socket if it is one of networks, services or kubelet; otherwise 0. */
static __always_inline __u32 bh_special_mark(struct __sk_buff *skb, const struct bh_config *cfg)
{
	struct bpf_sock *sk = bh_socket_of(skb);
	__u32 mark;

	mark = sk ? sk->mark & BH_MARK_MASK : 0;
	if (bh_is_network_mark(cfg, mark) || (mark & BH_MARK_KIND) == BH_MARK_KIND_SERVICE ||
	    mark == (cfg->kubelet_mark & BH_MARK_MASK))
		return mark;
	return 0;
}

/*
 * bh_may_have_mark reports whether a pod's socket may have the mark: that of its own network or, for an
 * ingress pod, that of a service, which bh_vrf_conn or bh_vrf_send has set.
 */
static __always_inline int bh_may_have_mark(const struct bh_pod *pod, __u32 mark)
{
	if (!pod)
		return 0;
	if ((mark & BH_MARK_KIND) == BH_MARK_KIND_SERVICE)
		return pod->flags & BH_POD_INGRESS;
	return pod->netid && mark >> BH_MARK_SHIFT == pod->netid;
}

#endif
