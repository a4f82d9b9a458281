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
#include "bh_lead.h"
#include "bh_sockopt.h"

#ifndef IPPROTO_SCTP
#define IPPROTO_SCTP 132
#endif
#define BH_SOCK_STREAM 1

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bh_dest_key);
	__type(value, __u32);
} bh_dests SEC(".maps");

/* find_pod is the row of the process's pod. */
static __always_inline struct bh_pod *find_pod(const struct bh_config *cfg, __u64 *id)
{
	__u32 levels = cfg->pod_levels;

	for (int i = 1; i < BH_MAX_LEVEL; i++) {
		struct bh_pod *pod;

		if (!(levels >> i))
			break;
		if (!(levels >> i & 1))
			continue;
		*id = bpf_get_current_ancestor_cgroup_id(i);
		if (!*id)
			break;
		pod = bpf_map_lookup_elem(&bh_pods, id);
		if (pod)
			return pod;
	}
	bh_count(BH_R_POD_UNKNOWN);
	return 0;
}

SEC("cgroup/sock_create")
int bh_vrf_create(struct bpf_sock *ctx)
{
	struct bh_config *cfg = bh_cfg();
	struct bh_pod *pod;
	__u64 id;

	/* A process that left the host's network namespace is none of our business. */
	if (!cfg || !cfg->host_netns || bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	pod = find_pod(cfg, &id);
	if (!pod)
		return 1;
	ctx->mark = pod->mark;
	if (ctx->protocol == IPPROTO_SCTP) {
		/* It calls no hook later that could confine it. */
		if (!pod->vrf_ifindex)
			return bh_refuse(BH_R_VRF_MISSING, pod->netid, ctx->family, ctx->protocol, 0, 0);
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
 * lead tells whether a connect or datagram to loopback or to one of the node's
 * addresses goes to the network's server instead, and where: yes, unless
 * somebody holds the port outside all networks. It yields -1 to refuse: a
 * socket of another tenant's pod holds it.
 */
static __always_inline int lead(struct bpf_sock_addr *ctx, const struct bh_pod *pod,
				const struct bh_addr *addr, struct bh_addr *to)
{
	int proto = ctx->type == BH_SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP;
	struct bpf_sock *holder;
	struct bh_net *net;
	int verdict = 0;

	if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP)
		return 0;
	if (!bh_is_local(addr))
		return 0;
	holder = bh_holder(ctx, addr, ctx->user_port, proto);
	if (holder) {
		struct bh_sock *s = bpf_sk_storage_get(&bh_socks, holder, 0, 0);
		__u64 id = s ? s->pod : 0;
		struct bh_pod *other = id ? bpf_map_lookup_elem(&bh_pods, &id) : 0;

		if (other && other->netid && other->netid != pod->netid)
			verdict = -1;
		bpf_sk_release(holder);
		return verdict;
	}
	net = bpf_map_lookup_elem(&bh_nets, &pod->netid);
	return net && net->vrf_ifindex && bh_target(net, addr, to);
}

/*
 * use confines the socket when the address asks for it. One that has a device
 * already is left alone, as it could not be bound a second time: the guard
 * judges what it sends.
 */
static __always_inline int use(struct bpf_sock_addr *ctx, struct bh_addr *addr, int bind, int *led,
			       __u32 reason)
{
	struct bpf_sock *sk = ctx->sk;
	struct bh_config *cfg = bh_cfg();
	struct bh_addr to;
	struct bh_pod *pod;
	struct bh_sock *s;
	int ifindex, mark;
	__u64 id;

	if (!cfg || !cfg->host_netns || !sk)
		return 1;
	/* Most datagrams of an unconnected socket: confined by an earlier one. */
	if (sk->bound_dev_if && sk->mark && (bind || !bh_is_local(addr)))
		return 1;
	pod = find_pod(cfg, &id);
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
		s = bpf_sk_storage_get(&bh_socks, sk, 0, 0);
		if (s && s->pod && s->pod != id)
			return bh_refuse(BH_R_FOREIGN_SOCKET, pod->netid, ctx->family, ctx->protocol,
					 addr, bpf_ntohs(ctx->user_port));
		mark = pod->mark;
		if (!bpf_setsockopt(ctx, BH_SOL_SOCKET, BH_SO_MARK, &mark, sizeof(mark)))
			bh_count(BH_R_SOCK_REMARKED);
	}
	if (!bind && (!sk->bound_dev_if || sk->bound_dev_if == pod->vrf_ifindex)) {
		int verdict = lead(ctx, pod, addr, &to);

		if (verdict < 0)
			return bh_refuse(BH_R_GUARD_LOOPBACK, pod->netid, ctx->family, ctx->protocol,
					 addr, bpf_ntohs(ctx->user_port));
		if (verdict) {
			*led = 1;
			reason = BH_R_LED;
			bh_remember(sk, addr);
			*addr = to;
		}
	}
	if (sk->bound_dev_if) {
		if (*led)
			bh_count(reason);
		return 1;
	}
	if (bind && bh_is_wildcard(addr))
		reason = BH_R_BIND_WILDCARD;
	else if (!*led && !bh_is_on_link(addr) && !inside(pod, addr))
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
		int led = 0, verdict;                                                              \
		bh_addr4(&a, ctx->user_ip4);                                                       \
		verdict = use(ctx, &a, bind, &led, reason);                                        \
		if (led && verdict)                                                                \
			ctx->user_ip4 = a.a[3];                                                    \
		return verdict;                                                                    \
	}
#define USE6(name, sec, bind, reason)                                                              \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		int led = 0, verdict;                                                              \
		bh_addr6(&a, ctx->user_ip6);                                                       \
		verdict = use(ctx, &a, bind, &led, reason);                                        \
		if (led && verdict) {                                                              \
			ctx->user_ip6[0] = a.a[0];                                                 \
			ctx->user_ip6[1] = a.a[1];                                                 \
			ctx->user_ip6[2] = a.a[2];                                                 \
			ctx->user_ip6[3] = a.a[3];                                                 \
		}                                                                                  \
		return verdict;                                                                    \
	}

USE4(bh_vrf_bind4, "cgroup/bind4", 1, BH_R_BIND_INSIDE)
USE6(bh_vrf_bind6, "cgroup/bind6", 1, BH_R_BIND_INSIDE)
USE4(bh_vrf_conn4, "cgroup/connect4", 0, BH_R_CONNECT_INSIDE)
USE6(bh_vrf_conn6, "cgroup/connect6", 0, BH_R_CONNECT_INSIDE)
USE4(bh_vrf_send4, "cgroup/sendmsg4", 0, BH_R_SEND_INSIDE)
USE6(bh_vrf_send6, "cgroup/sendmsg6", 0, BH_R_SEND_INSIDE)

/* led_peer shows a led socket the address it asked for. */
static __always_inline int led_peer(struct bpf_sock_addr *ctx, struct bh_addr *from)
{
	struct bh_config *cfg = bh_cfg();
	struct bh_pod *pod;
	struct bh_addr is;
	struct bh_net *net;
	struct bh_sock *s;
	__u64 id;

	if (!cfg || !ctx->sk || !ctx->sk->bound_dev_if)
		return 0;
	s = bpf_sk_storage_get(&bh_socks, ctx->sk, 0, 0);
	if (!s || !s->led)
		return 0;
	pod = find_pod(cfg, &id);
	net = pod ? bpf_map_lookup_elem(&bh_nets, &pod->netid) : 0;
	if (!net || !bh_target(net, from, &is) || is.a[0] != from->a[0] || is.a[1] != from->a[1] ||
	    is.a[2] != from->a[2] || is.a[3] != from->a[3])
		return 0;
	from->a[0] = s->addr[0];
	from->a[1] = s->addr[1];
	from->a[2] = s->addr[2];
	from->a[3] = s->addr[3];
	return 1;
}

#define PEER4(name, sec)                                                                           \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		bh_addr4(&a, ctx->user_ip4);                                                       \
		if (led_peer(ctx, &a) && bh_is_mapped(&a))                                         \
			ctx->user_ip4 = a.a[3];                                                    \
		return 1;                                                                          \
	}
#define PEER6(name, sec)                                                                           \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		bh_addr6(&a, ctx->user_ip6);                                                       \
		if (led_peer(ctx, &a)) {                                                           \
			ctx->user_ip6[0] = a.a[0];                                                 \
			ctx->user_ip6[1] = a.a[1];                                                 \
			ctx->user_ip6[2] = a.a[2];                                                 \
			ctx->user_ip6[3] = a.a[3];                                                 \
		}                                                                                  \
		return 1;                                                                          \
	}

PEER4(bh_vrf_recv4, "cgroup/recvmsg4")
PEER6(bh_vrf_recv6, "cgroup/recvmsg6")
PEER4(bh_vrf_peer4, "cgroup/getpeername4")
PEER6(bh_vrf_peer6, "cgroup/getpeername6")

/*
 * Every option by which a process could pick another way out is refused, root
 * included: the mark, the device, and the unicast and packet-info interfaces,
 * which choose a device without any capability. The root's program
 * (bh_prb_setopt) judges the options that choose a device for multicast.
 */
SEC("cgroup/setsockopt")
int bh_vrf_setopt(struct bpf_sockopt *ctx)
{
	struct bh_config *cfg = bh_cfg();
	__u32 reason = BH_R_SET_DEVICE;
	struct bh_pod *pod;
	__u64 id;

	bh_keep_long(ctx);
	switch (bh_picks(ctx)) {
	case BH_PICKS_MARK:
		reason = BH_R_SET_MARK;
		break;
	case BH_PICKS_DEVICE:
		break;
	default:
		return 1;
	}
	if (!cfg || !cfg->host_netns || bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	pod = find_pod(cfg, &id);
	if (!pod)
		return 1;
	return bh_refuse(reason, pod->netid, 0, 0, 0, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
