/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Socket options that choose how packets leave the node. */
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
#define BH_IP_RECVERR 11
#define BH_IP_RECVERR_RFC4884 26
#define BH_IPV6_RECVERR 25
#define BH_IPV6_RECVERR_RFC4884 31

enum bh_sockopt_kind {
	BH_SOCKOPT_OTHER,
	BH_SOCKOPT_MARK, /* SO_MARK */
	BH_SOCKOPT_DEVICE, /* chooses a device for all packets */
	BH_SOCKOPT_MULTICAST, /* chooses a device for multicast */
	BH_SOCKOPT_BYPASS, /* lets packets bypass tc programs */
	BH_SOCKOPT_ERRORS, /* queues ICMP errors, with the packets that they quote */
};

#define BH_PAGE 4096

/*
 * The kernel copies at most a page of the option value for the program, and
 * fails the call with EFAULT if the value is longer, unless the program sets
 * optlen to 0, which means "use the caller's buffer". Without this, iptables in
 * a pod would fail.
 *
 * Returns whether the value is longer than a page, also if the program of another cgroup has set
 * optlen to 0 before. The kernel then reads the value again, and another thread may have changed
 * it since: so no decision may depend on such a value.
 */
static __always_inline int bh_pass_long_optval(struct bpf_sockopt *ctx)
{
	int page = (__u8 *)ctx->optval + BH_PAGE <= (__u8 *)ctx->optval_end;

	if (ctx->optlen > BH_PAGE)
		ctx->optlen = 0;
	return page && !ctx->optlen;
}

/* bh_option_kind is the kind of an option whose value does not matter. */
static __always_inline int bh_option_kind(int level, int name)
{
	if (level == BH_SOL_SOCKET) {
		if (name == BH_SO_MARK)
			return BH_SOCKOPT_MARK;
		if (name == BH_SO_BINDTODEVICE || name == BH_SO_BINDTOIFINDEX)
			return BH_SOCKOPT_DEVICE;
	} else if (level == IPPROTO_IP) {
		if (name == BH_IP_UNICAST_IF)
			return BH_SOCKOPT_DEVICE;
		if (name == BH_IP_MULTICAST_IF)
			return BH_SOCKOPT_MULTICAST;
		if (name == BH_IP_RECVERR || name == BH_IP_RECVERR_RFC4884)
			return BH_SOCKOPT_ERRORS;
	} else if (level == IPPROTO_IPV6) {
		if (name == BH_IPV6_UNICAST_IF)
			return BH_SOCKOPT_DEVICE;
		if (name == BH_IPV6_MULTICAST_IF)
			return BH_SOCKOPT_MULTICAST;
		if (name == BH_IPV6_RECVERR || name == BH_IPV6_RECVERR_RFC4884)
			return BH_SOCKOPT_ERRORS;
	} else if (level == BH_SOL_PACKET) {
		if (name == BH_PACKET_QDISC_BYPASS)
			return BH_SOCKOPT_BYPASS;
	} else if (level == BH_SOL_XDP) {
		return BH_SOCKOPT_BYPASS;
	}
	return BH_SOCKOPT_OTHER;
}

static __always_inline int bh_sockopt_kind(const struct bpf_sockopt *ctx, int is_long)
{
	struct in6_pktinfo {
		__u32 addr[4];
		__u32 ifindex;
	} *info = ctx->optval;

	if (ctx->level != IPPROTO_IPV6 || ctx->optname != BH_IPV6_PKTINFO)
		return bh_option_kind(ctx->level, ctx->optname);
	/* Without an interface it only chooses a source address; the kernel rejects a shorter value. */
	if (is_long || ((void *)(info + 1) <= ctx->optval_end && info->ifindex))
		return BH_SOCKOPT_DEVICE;
	return BH_SOCKOPT_OTHER;
}

/*
 * bh_sockopt_device returns the interface index in the option's value; 0 if there
 * is none, or if the value is an interface name or address.
 */
static __always_inline __u32 bh_sockopt_device(const struct bpf_sockopt *ctx)
{
	__u32 *v = ctx->optval;
	int level = ctx->level, name = ctx->optname, at = 0;

	if (level == BH_SOL_SOCKET && name == BH_SO_BINDTODEVICE)
		return 0;
	if (level == IPPROTO_IPV6 && name == BH_IPV6_PKTINFO)
		at = 4;
	if (level == IPPROTO_IP && name == BH_IP_MULTICAST_IF) {
		/* struct ip_mreqn: two addresses, then the index; the shorter structs have no index. */
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
