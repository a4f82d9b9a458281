/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The probe allowance: of the node's processes, only kubelet may reach the
 * default-network address of a pod that has a primary network ("locked address").
 *
 * These programs are attached to the root of the cgroup tree and so also run for
 * every pod; they act in the host's network namespace only. They cannot see raw
 * sockets: nftables and the guard check those, and recognise kubelet's sockets by
 * the mark set here.
 */
#include "bh_redirect.h"
#include "bh_locked.h"
#include "bh_sockopt.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bh_probe_key);
	__type(value, struct bh_probe);
} bh_probes SEC(".maps");

static __always_inline int is_kubelet(const struct bh_config *cfg)
{
	struct bh_kubelet_key key = { .kind = BH_KUBELET_TGID };
	__u32 levels = cfg->kubelet_levels;

	key.id = bpf_get_current_pid_tgid() >> 32;
	if (bpf_map_lookup_elem(&bh_kubelet, &key))
		return 1;
	key.kind = BH_KUBELET_CGROUP;
	for (int i = 1; i < BH_MAX_LEVEL; i++) {
		if (!(levels >> i))
			break;
		if (!(levels >> i & 1))
			continue;
		key.id = bpf_get_current_ancestor_cgroup_id(i);
		if (!key.id)
			break;
		if (bpf_map_lookup_elem(&bh_kubelet, &key))
			return 1;
	}
	return 0;
}

/*
 * Marks kubelet's sockets at creation, and records the creating pod of every
 * host-network pod's socket in its storage. Only sockets of the host's network
 * namespace get an entry.
 */
SEC("cgroup/sock_create")
int bh_prb_create(struct bpf_sock *ctx)
{
	struct bh_config *cfg = bh_cfg();
	struct bh_pod *pod = 0;
	struct bh_sock *s;
	__u64 podid = 0;
	int owner;

	if (!cfg || !cfg->host_netns || bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	if (cfg->kubelet_mark && !ctx->mark && is_kubelet(cfg)) {
		ctx->mark = cfg->kubelet_mark;
		bh_count(BH_R_KUBELET_MARKED);
		return 1;
	}
	owner = bh_task_owner(0, cfg, bpf_get_current_cgroup_id(), &pod, &podid);
	if (!bh_is_pod(owner))
		return 1;
	s = bpf_sk_storage_get(&bh_socks, ctx, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (s)
		s->pod = podid;
	return 1;
}

/*
 * redirect_probe redirects kubelet's probe of a host-network pod into the pod's network.
 * Kubelet connects to the node's address or to loopback, where the pod's server
 * does not listen. If a process of the node or of this network listens on the port
 * outside the network, or did since the row was written, the connection is left alone:
 * kubelet may mean that socket. It never means one of another network's pod.
 */
static __always_inline int redirect_probe(struct bpf_sock_addr *ctx, const struct bh_config *cfg,
				     struct bh_addr *addr)
{
	struct bh_probe_key key = { .port = bpf_ntohs(ctx->user_port), .proto = ctx->protocol };
	struct bh_probe *p;
	struct bpf_sock *listener;
	struct bh_addr to;
	struct bh_net *net;
	int ifindex;

	if (key.proto != IPPROTO_TCP)
		return 0;
	p = bpf_map_lookup_elem(&bh_probes, &key);
	if (!p || !bh_is_local(addr) || !is_kubelet(cfg))
		return 0;
	listener = bh_lookup_listener(ctx, addr, ctx->user_port, IPPROTO_TCP);
	if (listener) {
		__u32 netid = bh_listener_network(cfg, listener);

		bpf_sk_release(listener);
		if (!netid || netid == p->netid)
			p->held = 1;
	}
	if (p->held) {
		bh_count(BH_R_PROBE_PORT_HELD);
		bh_send_event(BH_R_PROBE_PORT_HELD, bpf_get_current_cgroup_id(),
			      bpf_get_current_pid_tgid() >> 32, p->netid, ctx->family,
			      ctx->protocol, addr, key.port);
		return 0;
	}
	net = bpf_map_lookup_elem(&bh_nets, &p->netid);
	if (!net || !net->vrf_ifindex || !bh_node_addr(net, addr, &to))
		return 0;
	ifindex = net->vrf_ifindex;
	if (bpf_setsockopt(ctx, BH_SOL_SOCKET, BH_SO_BINDTOIFINDEX, &ifindex, sizeof(ifindex)))
		return 0;
	*addr = to;
	bh_count(BH_R_PROBE_REDIRECTED);
	return 1;
}

/* port_is_open reports whether a port of a locked address is open. */
static __always_inline int port_is_open(const struct bpf_sock_addr *ctx, const struct bh_addr *addr)
{
	struct bh_open_key key = { .addr = *addr, .port = bpf_ntohs(ctx->user_port), .proto = ctx->protocol };

	if (key.proto == IPPROTO_ICMP || key.proto == IPPROTO_ICMPV6)
		key.port = 0;
	return bpf_map_lookup_elem(&bh_open, &key) != 0;
}

static __always_inline int check_dest(struct bpf_sock_addr *ctx, struct bh_addr *addr, int connect,
				      int *redirected)
{
	struct bh_config *cfg = bh_cfg();
	struct bpf_sock *sk = ctx->sk;
	struct bh_pod *pod = 0;
	__u64 podid = 0;
	__u32 *netid;
	int owner;

	if (!cfg || !cfg->probe_lock || bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	if (connect) {
		*redirected = redirect_probe(ctx, cfg, addr);
		if (*redirected)
			return 1;
	}
	netid = bpf_map_lookup_elem(&bh_locked, addr);
	if (netid) {
		if (is_kubelet(cfg)) {
			bh_count(BH_R_PROBE_ALLOWED);
			return 1;
		}
		if (!port_is_open(ctx, addr))
			return bh_refuse(BH_R_PROBE_REFUSED, *netid, ctx->family, ctx->protocol, addr,
					 bpf_ntohs(ctx->user_port));
	}
	/* The socket may be bound to a device already; most are not. */
	if (!cfg->guard || !sk || !sk->bound_dev_if)
		return 1;
	owner = bh_task_owner(0, cfg, bpf_get_current_cgroup_id(), &pod, &podid);
	if (!bh_is_pod(owner) ||
	    bh_may_use_device(pod, sk->bound_dev_if) || bh_is_ingress_socket(pod, sk->mark, sk->bound_dev_if))
		return 1;
	return bh_refuse(BH_R_FOREIGN_DEVICE, pod ? pod->netid : 0, ctx->family, ctx->protocol, addr,
			 bpf_ntohs(ctx->user_port));
}

#define CHECK_DEST4(name, sec, connect)                                                            \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		int redirected = 0, verdict;                                                       \
		bh_addr4(&a, ctx->user_ip4);                                                       \
		verdict = check_dest(ctx, &a, connect, &redirected);                               \
		if (redirected)                                                                    \
			ctx->user_ip4 = a.a[3];                                                    \
		return verdict;                                                                    \
	}
#define CHECK_DEST6(name, sec, connect)                                                            \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		int redirected = 0, verdict;                                                       \
		bh_addr6(&a, ctx->user_ip6);                                                       \
		verdict = check_dest(ctx, &a, connect, &redirected);                               \
		if (redirected) {                                                                  \
			ctx->user_ip6[0] = a.a[0];                                                 \
			ctx->user_ip6[1] = a.a[1];                                                 \
			ctx->user_ip6[2] = a.a[2];                                                 \
			ctx->user_ip6[3] = a.a[3];                                                 \
		}                                                                                  \
		return verdict;                                                                    \
	}

CHECK_DEST4(bh_prb_conn4, "cgroup/connect4", 1)
CHECK_DEST6(bh_prb_conn6, "cgroup/connect6", 1)
CHECK_DEST4(bh_prb_send4, "cgroup/sendmsg4", 0)
CHECK_DEST6(bh_prb_send6, "cgroup/sendmsg6", 0)

/*
 * Checks socket options of host-network pods outside tenants, and for all
 * host-network pods the options that choose a device for multicast or bypass the
 * guard, and those by which a raw socket reads others' errors (bh_lsm_setopt). bh_vrf_setopt checks the other options of tenants' pods.
 */
SEC("cgroup/setsockopt")
int bh_prb_setopt(struct bpf_sockopt *ctx)
{
	struct bh_config *cfg = bh_cfg();
	__u32 reason = BH_R_SET_DEVICE, value;
	struct bh_pod *pod = 0;
	__u64 podid = 0;
	int kind, owner, is_long;
	struct bpf_sock *sk;

	is_long = bh_pass_long_optval(ctx);
	kind = bh_sockopt_kind(ctx, is_long);
	if (kind == BH_SOCKOPT_OTHER || !cfg || !cfg->guard)
		return 1;
	sk = ctx->sk;
	if (kind == BH_SOCKOPT_ERRORS && (!sk || sk->type != BH_SOCK_RAW))
		return 1;
	value = bh_sockopt_device(ctx);
	if (kind == BH_SOCKOPT_MARK) {
		/* Nftables and the loopback check rely on kubelet's, the networks' and the services' marks. */
		if (!is_long && ((value ^ cfg->kubelet_mark) & BH_MARK_MASK) && (value < cfg->mark_first || value > cfg->mark_last) &&
		    (value & BH_MARK_KIND) != BH_MARK_KIND_SERVICE)
			return 1;
		reason = BH_R_SET_MARK;
	} else if (kind == BH_SOCKOPT_BYPASS || kind == BH_SOCKOPT_ERRORS) {
		reason = BH_R_BYPASS;
	} else if (!value && !is_long) {
		return 1;
	}
	if (bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	/* The agent confines the sockets that a pod created before it was attached. */
	if (cfg->agent_cgroup && bpf_get_current_cgroup_id() == cfg->agent_cgroup)
		return 1;
	owner = bh_task_owner(0, cfg, bpf_get_current_cgroup_id(), &pod, &podid);
	if (!bh_is_pod(owner))
		return 1;
	if (reason == BH_R_BYPASS && pod && (pod->flags & BH_POD_TRUSTED))
		return 1;
	if ((kind == BH_SOCKOPT_DEVICE || kind == BH_SOCKOPT_MULTICAST) && !is_long && bh_may_use_device(pod, value))
		return 1;
	return bh_refuse(reason, pod ? pod->netid : 0, 0, 0, 0, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
