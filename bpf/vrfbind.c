/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * VRF binding of a tenant's host-network pods: marked at birth, bound at use.
 *
 * Attached to the cgroup of each such pod. A socket of any protocol is born
 * with its network's mark, which an ip rule turns into the tenant's table; the
 * `local` table is asked before that rule, so loopback and the node's own
 * addresses go on working. The device is set later, when the process shows
 * what it wants: a wildcard bind or a peer inside the network. Setting it at
 * birth would lose loopback for good, because an unprivileged process may bind
 * an unbound socket but never release it.
 */
#include "bh_common.h"

#ifndef IPPROTO_SCTP
#define IPPROTO_SCTP 132
#endif
#define BH_IPV6_PKTINFO 50
#define BH_IP_UNICAST_IF 50
#define BH_IPV6_UNICAST_IF 76

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64); /* cgroup id of the pod */
	__type(value, struct bh_pod);
} bh_pods SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bh_dest_key);
	__type(value, __u32);
} bh_dests SEC(".maps");

/*
 * find_pod asks for the task's ancestor at the levels where pods live: one or
 * two of them on any node (with and without a QoS directory), so the cost is
 * constant. Storage bound to the attached cgroup would be cheaper still, but
 * the kernel does not follow a link update with it.
 */
static __always_inline struct bh_pod *find_pod(const struct bh_config *cfg)
{
	__u32 levels = cfg->pod_levels;

	for (int i = 1; i < BH_MAX_LEVEL; i++) {
		__u64 id;
		struct bh_pod *pod;

		if (!(levels >> i))
			break;
		if (!(levels >> i & 1))
			continue;
		id = bpf_get_current_ancestor_cgroup_id(i);
		if (!id)
			break;
		pod = bpf_map_lookup_elem(&bh_pods, &id);
		if (pod)
			return pod;
	}
	bh_count(BH_R_POD_UNKNOWN);
	return 0;
}

/* A process that left the host's network namespace is none of our business. */
#define POD_OR_PASS(pod, ctx)                                                                      \
	do {                                                                                       \
		struct bh_config *cfg_ = bh_cfg();                                                 \
		if (!cfg_ || !cfg_->host_netns || bpf_get_netns_cookie(ctx) != cfg_->host_netns)   \
			return 1;                                                                  \
		(pod) = find_pod(cfg_);                                                            \
		if (!(pod))                                                                        \
			return 1;                                                                  \
	} while (0)

SEC("cgroup/sock_create")
int bh_vrf_create(struct bpf_sock *ctx)
{
	struct bh_pod *pod;

	POD_OR_PASS(pod, ctx);
	ctx->mark = pod->mark;
	if (ctx->protocol == IPPROTO_SCTP && pod->vrf_ifindex) {
		ctx->bound_dev_if = pod->vrf_ifindex;
		bh_count(BH_R_SOCK_BOUND_AT_BIRTH);
		return 1;
	}
	bh_count(BH_R_SOCK_MARKED);
	return 1;
}

static __always_inline int inside(const struct bh_pod *pod, const struct bh_addr *addr)
{
	struct bh_dest_key key = {
		.prefixlen = BH_DEST_FIXED + 128,
		.netid = bpf_htonl(pod->netid),
		.family = bpf_htonl(bh_is_mapped(addr) ? BH_AF_INET : BH_AF_INET6),
		.addr = { addr->a[0], addr->a[1], addr->a[2], addr->a[3] },
	};

	return bpf_map_lookup_elem(&bh_dests, &key) != 0;
}

/*
 * use confines the socket when the address asks for it. One that has a device
 * already is left alone: it could not be bound a second time, and the only way
 * to a device leads through this function.
 */
static __always_inline int use(struct bpf_sock_addr *ctx, const struct bh_addr *addr, int bind,
			       __u32 reason)
{
	struct bpf_sock *sk = ctx->sk;
	struct bh_config *cfg = bh_cfg();
	struct bh_pod *pod;
	int ifindex, mark;

	if (!cfg || !cfg->host_netns || !sk)
		return 1;
	/* Most datagrams of an unconnected socket: confined by an earlier one. */
	if (sk->bound_dev_if && sk->mark)
		return 1;
	pod = find_pod(cfg);
	if (!pod)
		return 1;
	if (sk->mark != pod->mark) {
		/*
		 * Older than the attachment, handed in from outside, or of
		 * another namespace. One that has the mark got it at birth, in
		 * the host's, so only this path need ask.
		 */
		if (bpf_get_netns_cookie(ctx) != cfg->host_netns)
			return 1;
		mark = pod->mark;
		if (!bpf_setsockopt(ctx, BH_SOL_SOCKET, BH_SO_MARK, &mark, sizeof(mark)))
			bh_count(BH_R_SOCK_REMARKED);
	}
	if (sk->bound_dev_if)
		return 1;
	if (bind && bh_is_wildcard(addr))
		reason = BH_R_BIND_WILDCARD;
	else if (!inside(pod, addr))
		return 1;
	ifindex = pod->vrf_ifindex;
	if (!ifindex ||
	    bpf_setsockopt(ctx, BH_SOL_SOCKET, BH_SO_BINDTOIFINDEX, &ifindex, sizeof(ifindex)))
		return bh_refuse(BH_R_VRF_MISSING, pod->netid, ctx->family, ctx->protocol, addr,
				 bpf_ntohs(ctx->user_port));
	bh_count(reason);
	return 1;
}

#define USE4(name, sec, bind, reason)                                                              \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		bh_addr4(&a, ctx->user_ip4);                                                       \
		return use(ctx, &a, bind, reason);                                                 \
	}
#define USE6(name, sec, bind, reason)                                                              \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		bh_addr6(&a, ctx->user_ip6);                                                       \
		return use(ctx, &a, bind, reason);                                                 \
	}

USE4(bh_vrf_bind4, "cgroup/bind4", 1, BH_R_BIND_INSIDE)
USE6(bh_vrf_bind6, "cgroup/bind6", 1, BH_R_BIND_INSIDE)
USE4(bh_vrf_conn4, "cgroup/connect4", 0, BH_R_CONNECT_INSIDE)
USE6(bh_vrf_conn6, "cgroup/connect6", 0, BH_R_CONNECT_INSIDE)
USE4(bh_vrf_send4, "cgroup/sendmsg4", 0, BH_R_SEND_INSIDE)
USE6(bh_vrf_send6, "cgroup/sendmsg6", 0, BH_R_SEND_INSIDE)

/*
 * Every option by which a process could pick another way out is refused, root
 * included: the mark, the device, and the unicast and packet-info interfaces,
 * which choose a device without any capability.
 */
SEC("cgroup/setsockopt")
int bh_vrf_setopt(struct bpf_sockopt *ctx)
{
	__u32 reason = BH_R_SET_DEVICE;
	int level = ctx->level, name = ctx->optname;
	int len = ctx->optlen;
	struct bh_pod *pod;

	/*
	 * The kernel shows at most a page of the value and fails the call when
	 * it is longer, unless 0 says "take the caller's own": without this,
	 * iptables in a pod would get EFAULT.
	 */
	if (len > 4096)
		ctx->optlen = 0;

	if (level == BH_SOL_SOCKET && name == BH_SO_MARK) {
		reason = BH_R_SET_MARK;
	} else if (level == BH_SOL_SOCKET) {
		if (name != BH_SO_BINDTODEVICE && name != BH_SO_BINDTOIFINDEX)
			return 1;
	} else if (level == IPPROTO_IP) {
		if (name != BH_IP_UNICAST_IF)
			return 1;
	} else if (level == IPPROTO_IPV6 && name == BH_IPV6_PKTINFO) {
		struct in6_pktinfo {
			__u32 addr[4];
			__u32 ifindex;
		} *info = ctx->optval;

		/* An oversized one is read again by the kernel, so what we see proves nothing. */
		if (len <= 4096 &&
		    ((void *)(info + 1) > ctx->optval_end || !info->ifindex))
			return 1;
	} else if (level != IPPROTO_IPV6 || name != BH_IPV6_UNICAST_IF) {
		return 1;
	}

	POD_OR_PASS(pod, ctx);
	return bh_refuse(reason, pod->netid, 0, 0, 0, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
