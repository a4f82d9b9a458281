/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reading packets. Headers are copied out (bpf_skb_load_bytes), so that packets
 * in fragments of memory need no extra care, and IPv6 extension headers are
 * walked: what hides behind more of them than BH_MAX_EXT is not understood, and
 * callers then take the safe side.
 */
#ifndef BH_PARSE_H
#define BH_PARSE_H

#include "bh_common.h"

#define BH_ETH_P_IP 0x0800
#define BH_ETH_P_ARP 0x0806
#define BH_ETH_P_IPV6 0x86dd
#define BH_ETH_P_8021Q 0x8100
#define BH_ETH_P_8021AD 0x88a8
#define BH_ETH_HLEN 14
#define BH_MAX_EXT 6

#ifndef IPPROTO_ICMPV6
#define IPPROTO_ICMPV6 58
#endif
#ifndef IPPROTO_SCTP
#define IPPROTO_SCTP 132
#endif

struct bh_packet {
	struct bh_addr daddr;
	__u32 l4; /* offset of the transport header from the network header */
	__u32 len; /* of the whole packet, by its own header */
	__u8 proto;
	__u8 family;
	__u8 later_fragment; /* there is no transport header in it */
	__u8 unclear; /* not an IP packet, cut short, or too many headers */
};

/*
 * bh_ip parses the packet at offset off from where: BPF_HDR_START_NET, or
 * BPF_HDR_START_MAC with the length of the link header.
 */
static __always_inline void bh_ip(struct __sk_buff *skb, __u32 off, __u32 where, struct bh_packet *p)
{
	__u8 h[40];
	__u32 at = off + 40;
	__u8 next;

	__builtin_memset(p, 0, sizeof(*p));
	p->unclear = 1;
	if (bpf_skb_load_bytes_relative(skb, off, h, 20, where))
		return;
	if (h[0] >> 4 == 4) {
		__u32 ihl = (h[0] & 15) * 4;

		if (ihl < 20)
			return;
		p->family = BH_AF_INET;
		bh_addr4(&p->daddr, *(__u32 *)(h + 16));
		p->len = (__u32)h[2] << 8 | h[3];
		p->proto = h[9];
		p->later_fragment = ((h[6] & 0x1f) | h[7]) != 0;
		p->l4 = off + ihl;
		p->unclear = 0;
		return;
	}
	if (h[0] >> 4 != 6 || bpf_skb_load_bytes_relative(skb, off, h, 40, where))
		return;
	p->family = BH_AF_INET6;
	__builtin_memcpy(&p->daddr, h + 24, 16);
	p->len = 40 + ((__u32)h[4] << 8 | h[5]);
	next = h[6];
	for (int i = 0; i < BH_MAX_EXT; i++) {
		__u8 ext[4];

		/* hop-by-hop, routing, fragment, authentication, destination, mobility */
		if (next != 0 && next != 43 && next != 44 && next != 51 && next != 60 && next != 135) {
			p->proto = next;
			p->l4 = at;
			p->unclear = 0;
			return;
		}
		if (bpf_skb_load_bytes_relative(skb, at, ext, 4, where))
			return;
		if (next == 44) {
			if (ext[2] | (ext[3] & 0xf8)) {
				p->proto = ext[0];
				p->later_fragment = 1;
				p->unclear = 0;
				return;
			}
			at += 8;
		} else if (next == 51) {
			at += (ext[1] + 2) * 4;
		} else {
			at += (ext[1] + 1) * 8;
		}
		next = ext[0];
	}
}

/* bh_eth finds the network header behind up to two VLAN tags; 0: neither IPv4 nor IPv6. */
static __always_inline __u32 bh_eth(struct __sk_buff *skb, __u16 *proto)
{
	__u32 off = BH_ETH_HLEN;
	__be16 t;

	*proto = 0;
	if (bpf_skb_load_bytes_relative(skb, 12, &t, 2, BPF_HDR_START_MAC))
		return 0;
	for (int i = 0; i < 2; i++) {
		if (t != bpf_htons(BH_ETH_P_8021Q) && t != bpf_htons(BH_ETH_P_8021AD))
			break;
		if (bpf_skb_load_bytes_relative(skb, off + 2, &t, 2, BPF_HDR_START_MAC))
			return 0;
		off += 4;
	}
	*proto = bpf_ntohs(t);
	return *proto == BH_ETH_P_IP || *proto == BH_ETH_P_IPV6 ? off : 0;
}

/*
 * bh_to_tunnel tells whether the packet is a datagram to the overlay's port, or
 * could be: a later fragment alone is none, as the first one carries the port.
 */
static __always_inline int bh_to_tunnel(struct __sk_buff *skb, __u32 off, __u32 where, __u32 port,
					struct bh_packet *p)
{
	__be16 dport;

	bh_ip(skb, off, where, p);
	if (p->unclear)
		return 1;
	if (p->proto != IPPROTO_UDP || p->later_fragment)
		return 0;
	if (bpf_skb_load_bytes_relative(skb, p->l4 + 2, &dport, 2, where))
		return 1;
	return dport == bpf_htons(port);
}

#endif
