/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * VRF binding of tenants' host-network pods: sockets are marked at creation and
 * bound to the VRF at first use.
 *
 * The programs are attached to the cgroup of each such pod. A socket of any
 * protocol is created with its network's mark, for which an ip rule selects the
 * tenant's routing table; the kernel consults the `local` table before that rule,
 * so loopback and the node's own addresses keep working. The socket is bound to
 * the VRF device later, at a wildcard bind or when the peer is inside the network.
 * Binding it at creation would lose loopback for good: an unprivileged process
 * may bind an unbound socket to a device but may not unbind it.
 */
#include "bh_dests.h"
#include "bh_redirect.h"
#include "bh_sockopt.h"

#ifndef IPPROTO_SCTP
#define IPPROTO_SCTP 132
#endif
#define BH_SOCK_STREAM 1

/* find_pod returns the row of the current process's pod. */
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

	/* Ignore processes that left the host's network namespace. */
	if (!cfg || !cfg->host_netns || bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	pod = find_pod(cfg, &id);
	if (!pod || (pod->flags & BH_POD_INGRESS))
		return 1;
	ctx->mark = pod->mark;
	if (ctx->protocol == IPPROTO_SCTP) {
		/* SCTP calls no later hook that could bind the socket. */
		if (!pod->vrf_ifindex)
			return bh_refuse(BH_R_VRF_MISSING, pod->netid, ctx->family, ctx->protocol, 0, 0);
		ctx->bound_dev_if = pod->vrf_ifindex;
		bh_count(BH_R_SOCK_BOUND_AT_CREATION);
		return 1;
	}
	bh_count(BH_R_SOCK_MARKED);
	return 1;
}

/*
 * is_inside reports whether an address lies inside the network's VRF: in one of its subnets, or
 * among the services of the cluster.
 */
static __always_inline int is_inside(const struct bh_pod *pod, const struct bh_addr *addr)
{
	return bh_dest(pod->netid, addr) || bh_dest(BH_DEST_ALL, addr);
}

/*
 * redirect decides whether a connect or datagram to loopback or to an address of the
 * node is redirected to the network's server at *to; 1 means yes. It returns 0 if the
 * protocol or address does not qualify, or if a socket outside all VRFs listens on
 * the port: one of this network or of the node. Another network's listener does not
 * count, so that no tenant can take a port from others; if there is one and the
 * network has no VRF device or address here, it returns -1: refuse.
 */
static __always_inline int redirect(struct bpf_sock_addr *ctx, const struct bh_config *cfg, const struct bh_pod *pod,
				const struct bh_addr *addr, struct bh_addr *to)
{
	int proto = ctx->type == BH_SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP;
	struct bpf_sock *listener;
	int foreign = 0;
	struct bh_net *net;

	if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP)
		return 0;
	if (!bh_is_local(addr))
		return 0;
	listener = bh_lookup_listener(ctx, addr, ctx->user_port, proto);
	if (listener) {
		__u32 netid = bh_listener_network(cfg, listener);

		bpf_sk_release(listener);
		if (!netid || netid == pod->netid)
			return 0;
		foreign = 1;
	}
	net = bpf_map_lookup_elem(&bh_nets, &pod->netid);
	if (net && net->vrf_ifindex && bh_node_addr(net, addr, to))
		return 1;
	return foreign ? -1 : 0;
}

/*
 * bind_ingress binds a socket of an ingress pod to the VRF of the network whose cluster IP it is about to
 * reach, and marks it. A later call with another address binds it again, or frees it. A socket that
 * the process has bound to a device itself is left alone.
 */
static __always_inline int bind_ingress(struct bpf_sock_addr *ctx, struct bpf_sock *sk, const struct bh_config *cfg,
				 const struct bh_addr *addr)
{
	int bound = (sk->mark & BH_MARK_KIND) == BH_MARK_KIND_SERVICE, ifindex = 0, mark = 0;
	__u32 netid = bh_dest(BH_DEST_CLUSTER_IP, addr);

	if ((!netid && !bound) || (sk->bound_dev_if && !bound) || bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	if (netid) {
		struct bh_net *net = bpf_map_lookup_elem(&bh_nets, &netid);

		ifindex = net ? net->vrf_ifindex : 0;
		mark = BH_MARK_KIND_SERVICE | netid << BH_MARK_SHIFT;
		if (!ifindex)
			return bh_refuse(BH_R_VRF_MISSING, netid, ctx->family, ctx->protocol, addr,
					 bpf_ntohs(ctx->user_port));
	}
	if (sk->bound_dev_if == ifindex && sk->mark == mark)
		return 1;
	/* Moving a bound socket requires NET_RAW of the process. Without it the call fails. */
	if (bpf_setsockopt(ctx, BH_SOL_SOCKET, BH_SO_BINDTOIFINDEX, &ifindex, sizeof(ifindex)) ||
	    bpf_setsockopt(ctx, BH_SOL_SOCKET, BH_SO_MARK, &mark, sizeof(mark)))
		return bh_refuse(BH_R_INGRESS_BOUND, netid, ctx->family, ctx->protocol, addr,
				 bpf_ntohs(ctx->user_port));
	if (netid)
		bh_count(BH_R_INGRESS_ALLOWED);
	return 1;
}

/* is_own_port reports whether a socket's port is one of the agent and the controllers. */
static __always_inline int is_own_port(const struct bpf_sock_addr *ctx, const struct bh_config *cfg)
{
	__u16 port = bpf_ntohs(ctx->user_port);

	return ctx->type == BH_SOCK_STREAM && port && port >= cfg->own_first && port <= cfg->own_last;
}

/*
 * stays_in_vrf reports whether a socket is in the network's VRF after a bind, so that its port is apart from the node's. With a
 * link-local address the kernel takes the device that the process names, whatever device the socket has: the
 * program does not see that name. A device that the process named in an earlier bind without a port remains.
 */
static __always_inline int stays_in_vrf(const struct bpf_sock *sk, const struct bh_pod *pod, const struct bh_addr *addr)
{
	if (bh_is_on_link(addr))
		return 0;
	if (sk->bound_dev_if)
		return sk->bound_dev_if == pod->vrf_ifindex;
	return bh_is_wildcard(addr) || is_inside(pod, addr);
}

/*
 * confine marks the socket and binds it to the VRF if the address requires it. A
 * socket that is bound to a device is left alone, because it cannot be bound a
 * second time; the guard checks the packets that it sends.
 */
static __always_inline int confine(struct bpf_sock_addr *ctx, struct bh_addr *addr, int bind, int *redirected,
				   __u32 reason)
{
	struct bpf_sock *sk = ctx->sk;
	struct bh_config *cfg = bh_cfg();
	struct bh_addr to;
	struct bh_pod *pod;
	struct bh_sock *s;
	int ifindex, mark, own;
	__u64 id;

	if (!cfg || !cfg->host_netns || !sk)
		return 1;
	own = bind && is_own_port(ctx, cfg);
	/* Fast path: an earlier call confined the socket, as for most unconnected datagrams. */
	if (!own && sk->bound_dev_if && sk->mark && (sk->mark & BH_MARK_KIND) != BH_MARK_KIND_SERVICE &&
	    (bind || !bh_is_local(addr)))
		return 1;
	pod = find_pod(cfg, &id);
	if (!pod)
		return 1;
	if (pod->flags & BH_POD_INGRESS)
		return bind ? 1 : bind_ingress(ctx, sk, cfg, addr);
	/*
	 * Outside the VRF the port would be taken when the agent or a controller starts again, which listen on all
	 * addresses: at any address, also at one that the node does not have (IP_FREEBIND).
	 */
	if (own && !stays_in_vrf(sk, pod, addr) && bpf_get_netns_cookie(ctx) == cfg->host_netns)
		return bh_refuse(BH_R_BIND_OWN, pod->netid, ctx->family, ctx->protocol, addr,
				 bpf_ntohs(ctx->user_port));
	if (sk->mark != pod->mark) {
		/*
		 * The socket is older than the attachment, was passed in by
		 * another process, or is of another network namespace. A socket
		 * with the mark was created in the host's namespace, so only
		 * this path checks the namespace.
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
		int verdict = redirect(ctx, cfg, pod, addr, &to);

		if (verdict < 0)
			return bh_refuse(BH_R_GUARD_LOOPBACK, pod->netid, ctx->family, ctx->protocol,
					 addr, bpf_ntohs(ctx->user_port));
		if (verdict) {
			*redirected = 1;
			reason = BH_R_REDIRECTED;
			bh_store_peer(sk, addr);
			*addr = to;
		}
	}
	if (sk->bound_dev_if) {
		if (*redirected)
			bh_count(reason);
		return 1;
	}
	if (bind && bh_is_wildcard(addr))
		reason = BH_R_BIND_WILDCARD;
	else if (!*redirected && !bh_is_on_link(addr) && !is_inside(pod, addr))
		return 1;
	ifindex = pod->vrf_ifindex;
	if (!ifindex ||
	    bpf_setsockopt(ctx, BH_SOL_SOCKET, BH_SO_BINDTOIFINDEX, &ifindex, sizeof(ifindex)))
		return bh_refuse(BH_R_VRF_MISSING, pod->netid, ctx->family, ctx->protocol, addr,
				 bpf_ntohs(ctx->user_port));
	bh_count(reason);
	return 1;
}

#define CONFINE4(name, sec, bind, reason)                                                          \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		int redirected = 0, verdict;                                                       \
		bh_addr4(&a, ctx->user_ip4);                                                       \
		verdict = confine(ctx, &a, bind, &redirected, reason);                             \
		if (redirected && verdict)                                                         \
			ctx->user_ip4 = a.a[3];                                                    \
		return verdict;                                                                    \
	}
#define CONFINE6(name, sec, bind, reason)                                                          \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		int redirected = 0, verdict;                                                       \
		bh_addr6(&a, ctx->user_ip6);                                                       \
		verdict = confine(ctx, &a, bind, &redirected, reason);                             \
		if (redirected && verdict) {                                                       \
			ctx->user_ip6[0] = a.a[0];                                                 \
			ctx->user_ip6[1] = a.a[1];                                                 \
			ctx->user_ip6[2] = a.a[2];                                                 \
			ctx->user_ip6[3] = a.a[3];                                                 \
		}                                                                                  \
		return verdict;                                                                    \
	}

CONFINE4(bh_vrf_bind4, "cgroup/bind4", 1, BH_R_BIND_INSIDE)
CONFINE6(bh_vrf_bind6, "cgroup/bind6", 1, BH_R_BIND_INSIDE)
CONFINE4(bh_vrf_conn4, "cgroup/connect4", 0, BH_R_CONNECT_INSIDE)
CONFINE6(bh_vrf_conn6, "cgroup/connect6", 0, BH_R_CONNECT_INSIDE)
CONFINE4(bh_vrf_send4, "cgroup/sendmsg4", 0, BH_R_SEND_INSIDE)
CONFINE6(bh_vrf_send6, "cgroup/sendmsg6", 0, BH_R_SEND_INSIDE)

/* restore_peer replaces a redirected socket's peer by the address that the process asked for. */
static __always_inline int restore_peer(struct bpf_sock_addr *ctx, struct bh_addr *from)
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
	if (!s || !s->redirected)
		return 0;
	pod = find_pod(cfg, &id);
	net = pod ? bpf_map_lookup_elem(&bh_nets, &pod->netid) : 0;
	if (!net || !bh_node_addr(net, from, &is) || is.a[0] != from->a[0] || is.a[1] != from->a[1] ||
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
		if (restore_peer(ctx, &a) && bh_is_mapped(&a))                                     \
			ctx->user_ip4 = a.a[3];                                                    \
		return 1;                                                                          \
	}
#define PEER6(name, sec)                                                                           \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		bh_addr6(&a, ctx->user_ip6);                                                       \
		if (restore_peer(ctx, &a)) {                                                       \
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
 * Refuses the options by which a process, root included, could choose another
 * path: the mark, the device, and the unicast and packet-info interfaces, which
 * choose a device without any capability. bh_prb_setopt at the root cgroup checks
 * the options that choose a device for multicast or bypass the guard.
 */
SEC("cgroup/setsockopt")
int bh_vrf_setopt(struct bpf_sockopt *ctx)
{
	struct bh_config *cfg = bh_cfg();
	__u32 reason = BH_R_SET_DEVICE;
	struct bh_pod *pod;
	int is_long;
	__u64 id;

	is_long = bh_pass_long_optval(ctx);
	switch (bh_sockopt_kind(ctx, is_long)) {
	case BH_SOCKOPT_MARK:
		reason = BH_R_SET_MARK;
		break;
	case BH_SOCKOPT_DEVICE:
		break;
	default:
		return 1;
	}
	if (!cfg || !cfg->host_netns || bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	/* The program runs for sockets of the pod, whichever process sets the option. */
	if (cfg->agent_cgroup && bpf_get_current_cgroup_id() == cfg->agent_cgroup)
		return 1;
	pod = find_pod(cfg, &id);
	if (!pod || (pod->flags & BH_POD_INGRESS))
		return 1;
	return bh_refuse(reason, pod->netid, 0, 0, 0, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
