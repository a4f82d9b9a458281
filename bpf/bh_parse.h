/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packet parsing. IPv6 extension headers are walked; a packet with more than
 * BH_MAX_EXT of them is reported as unparsed, and callers must then fail closed.
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

/* What offsets are relative to. */
enum {
	BH_DATA, /* the packet's data: the link header in tcx programs, the IP header in cgroup_skb ones */
	BH_NET, /* the IP header, which must be in the packet's linear part: true of the kernel's own packets */
};

/*
 * bh_load copies bytes of the packet; it returns non-zero if the packet lacks them. A sender that
 * uses PACKET_TX_RING or MSG_MORE chooses how few bytes are in the linear part, and
 * bpf_skb_load_bytes_relative reads only those.
 */
static __always_inline long bh_load(struct __sk_buff *skb, __u32 off, void *to, __u32 len, int start)
{
	return start == BH_DATA ? bpf_skb_load_bytes(skb, off, to, len) :
				  bpf_skb_load_bytes_relative(skb, off, to, len, BPF_HDR_START_NET);
}

struct bh_packet {
	struct bh_addr saddr, daddr;
	__u32 l4; /* offset of the transport header, from the same start as off in bh_ip */
	__u32 len; /* length of the packet, from its IP header */
	__u8 proto;
	__u8 family;
	__u8 later_fragment; /* not the first fragment: has no transport header */
	__u8 unparsed; /* not an IP packet, truncated, or too many extension headers */
};

/* bh_ip parses the IP header at offset off from start. */
static __always_inline void bh_ip(struct __sk_buff *skb, __u32 off, int start, struct bh_packet *p)
{
	__u8 h[40];
	__u32 at = off + 40;
	__u8 next;

	__builtin_memset(p, 0, sizeof(*p));
	p->unparsed = 1;
	if (bh_load(skb, off, h, 20, start))
		return;
	if (h[0] >> 4 == 4) {
		__u32 ihl = (h[0] & 15) * 4;

		if (ihl < 20)
			return;
		p->family = BH_AF_INET;
		bh_addr4(&p->saddr, *(__u32 *)(h + 12));
		bh_addr4(&p->daddr, *(__u32 *)(h + 16));
		p->len = (__u32)h[2] << 8 | h[3];
		p->proto = h[9];
		p->later_fragment = ((h[6] & 0x1f) | h[7]) != 0;
		p->l4 = off + ihl;
		p->unparsed = 0;
		return;
	}
	if (h[0] >> 4 != 6 || bh_load(skb, off, h, 40, start))
		return;
	p->family = BH_AF_INET6;
	__builtin_memcpy(&p->saddr, h + 8, 16);
	__builtin_memcpy(&p->daddr, h + 24, 16);
	p->len = 40 + ((__u32)h[4] << 8 | h[5]);
	next = h[6];
	for (int i = 0; i < BH_MAX_EXT; i++) {
		__u8 ext[4];

		/* hop-by-hop, routing, fragment, authentication, destination, mobility */
		if (next != 0 && next != 43 && next != 44 && next != 51 && next != 60 && next != 135) {
			p->proto = next;
			p->l4 = at;
			p->unparsed = 0;
			return;
		}
		if (bh_load(skb, at, ext, 4, start))
			return;
		if (next == 44) {
			if (ext[2] | (ext[3] & 0xf8)) {
				p->proto = ext[0];
				p->later_fragment = 1;
				p->unparsed = 0;
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

/*
 * bh_eth finds the network header after up to two VLAN tags; 0: neither IPv4 nor
 * IPv6. The protocol is 0 if the link header is truncated.
 */
static __always_inline __u32 bh_eth(struct __sk_buff *skb, __u16 *proto)
{
	__u32 off = BH_ETH_HLEN;
	__be16 t;

	*proto = 0;
	if (bh_load(skb, 12, &t, 2, BH_DATA))
		return 0;
	for (int i = 0; i < 2; i++) {
		if (t != bpf_htons(BH_ETH_P_8021Q) && t != bpf_htons(BH_ETH_P_8021AD))
			break;
		if (bh_load(skb, off + 2, &t, 2, BH_DATA))
			return 0;
		off += 4;
	}
	*proto = bpf_ntohs(t);
	return *proto == BH_ETH_P_IP || *proto == BH_ETH_P_IPV6 ? off : 0;
}

/*
 * bh_names_vlan reports whether the sender of a frame has written the tag of a VLAN. A tag of VLAN 0 has only a
 * priority. The tag of what a VLAN device of the node sends is not in the frame yet.
 */
static __always_inline int bh_names_vlan(struct __sk_buff *skb)
{
	__u32 off = 12;
	__u16 proto;
	__u8 tag[4];

	for (int i = 0; i < 2; i++) {
		if (bh_load(skb, off, tag, 4, BH_DATA))
			return 0;
		proto = tag[0] << 8 | tag[1];
		if (proto != BH_ETH_P_8021Q && proto != BH_ETH_P_8021AD)
			return 0;
		if ((tag[2] & 0x0f) | tag[3])
			return 1;
		off += 4;
	}
	return 0;
}

/*
 * bh_to_tunnel reports whether the packet is, or may be, a datagram to the
 * overlay's port. Later fragments do not count: only the first carries the port.
 */
static __always_inline int bh_to_tunnel(struct __sk_buff *skb, __u32 off, __u32 port,
					struct bh_packet *p)
{
	__be16 dport;

	bh_ip(skb, off, BH_DATA, p);
	if (p->unparsed)
		return 1;
	if (p->proto != IPPROTO_UDP || p->later_fragment)
		return 0;
	if (bh_load(skb, p->l4 + 2, &dport, 2, BH_DATA))
		return 1;
	return dport == bpf_htons(port);
}

#endif
