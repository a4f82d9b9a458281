/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Locked addresses, their open ports, and how kubelet is recognised: used by the probe
 * allowance and the guard.
 */
#ifndef BH_LOCKED_H
#define BH_LOCKED_H

#include "bh_parse.h"

/* A port of a locked address that all of the cluster default network reach. */
struct bh_open_key {
	struct bh_addr addr;
	__u16 port; /* host order; 0: ICMP, and later fragments */
	__u8 proto;
	__u8 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bh_addr);
	__type(value, __u32); /* network id */
} bh_locked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bh_open_key);
	__type(value, __u32);
} bh_open SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct bh_kubelet_key);
	__type(value, __u32);
} bh_kubelet SEC(".maps");

/*
 * bh_is_open reports whether a packet goes to an open port of a locked address
 * (ICMP: an echo request) or, with reply, comes from one. Later fragments have no port.
 */
static __always_inline int bh_is_open(struct __sk_buff *skb, const struct bh_packet *p, int start, int reply)
{
	struct bh_open_key key = { .addr = reply ? p->saddr : p->daddr, .proto = p->proto };
	__u8 type;
	__be16 port;

	if (p->unparsed)
		return 0;
	if (p->later_fragment)
		return bpf_map_lookup_elem(&bh_open, &key) != 0;
	if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6) {
		if (bh_load(skb, p->l4, &type, 1, start))
			return 0;
		if (type != (p->proto == IPPROTO_ICMP ? (reply ? 0 : 8) : (reply ? 129 : 128)))
			return 0;
	} else {
		/* TCP, UDP and SCTP begin with the source port and the destination port. */
		if (bh_load(skb, p->l4 + (reply ? 0 : 2), &port, 2, start) || !port)
			return 0;
		key.port = bpf_ntohs(port);
	}
	return bpf_map_lookup_elem(&bh_open, &key) != 0;
}

/*
 * bh_is_open_frame is bh_is_open for a frame on an interface with open ports. ARP,
 * neighbour discovery and ICMP errors belong to it; OVN checks those.
 */
static __always_inline int bh_is_open_frame(struct __sk_buff *skb, int reply)
{
	struct bh_packet p;
	__u16 proto;
	__u32 off = bh_eth(skb, &proto);
	__u8 type;

	if (!off)
		return proto == BH_ETH_P_ARP;
	bh_ip(skb, off, BH_DATA, &p);
	if (bh_is_open(skb, &p, BH_DATA, reply))
		return 1;
	if (p.unparsed || p.later_fragment || bh_load(skb, p.l4, &type, 1, BH_DATA))
		return 0;
	if (p.proto == IPPROTO_ICMP)
		return type == 3 || type == 11 || type == 12;
	return p.proto == IPPROTO_ICMPV6 && ((type >= 1 && type <= 4) || type == 135 || type == 136);
}

#endif
