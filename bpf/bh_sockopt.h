/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which socket options choose a way out, and what they choose. */
#ifndef BH_SOCKOPT_H
#define BH_SOCKOPT_H

#include "bh_common.h"

#define BH_IP_MULTICAST_IF 32
#define BH_IP_UNICAST_IF 50
#define BH_IPV6_MULTICAST_IF 17
#define BH_IPV6_PKTINFO 50
#define BH_IPV6_UNICAST_IF 76
#define BH_SOL_PACKET 263
#define BH_PACKET_QDISC_BYPASS 20
#define BH_SOL_XDP 283

enum bh_picks {
	BH_PICKS_NOTHING,
	BH_PICKS_MARK, /* SO_MARK */
	BH_PICKS_DEVICE, /* a device for everything */
	BH_PICKS_MULTICAST, /* a device for multicast */
	BH_PICKS_BYPASS, /* a way out that meets no tc program */
};

/*
 * The kernel shows a program at most a page of the value and fails the call
 * when it is longer, unless 0 says "take the caller's own": without this,
 * iptables in a pod would get EFAULT.
 */
static __always_inline void bh_keep_long(struct bpf_sockopt *ctx)
{
	if (ctx->optlen > 4096)
		ctx->optlen = 0;
}

static __always_inline int bh_picks(const struct bpf_sockopt *ctx)
{
	int level = ctx->level, name = ctx->optname;

	if (level == BH_SOL_SOCKET) {
		if (name == BH_SO_MARK)
			return BH_PICKS_MARK;
		if (name == BH_SO_BINDTODEVICE || name == BH_SO_BINDTOIFINDEX)
			return BH_PICKS_DEVICE;
	} else if (level == IPPROTO_IP) {
		if (name == BH_IP_UNICAST_IF)
			return BH_PICKS_DEVICE;
		if (name == BH_IP_MULTICAST_IF)
			return BH_PICKS_MULTICAST;
	} else if (level == IPPROTO_IPV6) {
		if (name == BH_IPV6_PKTINFO) {
			struct in6_pktinfo {
				__u32 addr[4];
				__u32 ifindex;
			} *info = ctx->optval;

			/* One without an interface only chooses a source address. */
			if ((void *)(info + 1) <= ctx->optval_end)
				return info->ifindex ? BH_PICKS_DEVICE : BH_PICKS_NOTHING;
			/* Too short for the kernel; too long for us to see, and to be read by it again. */
			return ctx->optlen ? BH_PICKS_NOTHING : BH_PICKS_DEVICE;
		}
		if (name == BH_IPV6_UNICAST_IF)
			return BH_PICKS_DEVICE;
		if (name == BH_IPV6_MULTICAST_IF)
			return BH_PICKS_MULTICAST;
	} else if (level == BH_SOL_PACKET) {
		if (name == BH_PACKET_QDISC_BYPASS)
			return BH_PICKS_BYPASS;
	} else if (level == BH_SOL_XDP) {
		return BH_PICKS_BYPASS;
	}
	return BH_PICKS_NOTHING;
}

/*
 * bh_picked_device is the interface index that the option's value names, 0 for
 * none or one that only a name or an address says.
 */
static __always_inline __u32 bh_picked_device(const struct bpf_sockopt *ctx)
{
	__u32 *v = ctx->optval;
	int level = ctx->level, name = ctx->optname, at = 0;

	if (level == BH_SOL_SOCKET && name == BH_SO_BINDTODEVICE)
		return 0;
	if (level == IPPROTO_IPV6 && name == BH_IPV6_PKTINFO)
		at = 4;
	if (level == IPPROTO_IP && name == BH_IP_MULTICAST_IF) {
		/* ip_mreqn: two addresses, then the index; shorter ones have none. */
		if ((void *)(v + 3) > ctx->optval_end)
			return 0;
		return v[2];
	}
	if (at == 4) {
		if ((void *)(v + 5) > ctx->optval_end)
			return 0;
		return v[4];
	}
	if ((void *)(v + 1) > ctx->optval_end)
		return 0;
	if (name == BH_IP_UNICAST_IF && level == IPPROTO_IP)
		return bpf_ntohl(v[0]);
	if (name == BH_IPV6_UNICAST_IF && level == IPPROTO_IPV6)
		return bpf_ntohl(v[0]);
	return v[0];
}

#endif
