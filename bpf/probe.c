/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The probe allowance: default-network addresses of pods that have a primary
 * network of their own answer kubelet and nobody else on the node.
 *
 * Attached to the root of the cgroup tree, so these programs also see every
 * pod of the node: they act in the host's network namespace only. What they
 * cannot see (raw sockets) is left to nftables, which knows kubelet's sockets
 * by the mark they are born with here.
 */
#include "bh_lead.h"
#include "bh_sockopt.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bh_addr);
	__type(value, __u32); /* network id */
} bh_locked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct bh_kubelet_key);
	__type(value, __u32);
} bh_kubelet SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bh_probe_key);
	__type(value, struct bh_probe);
} bh_probes SEC(".maps");

static __always_inline int is_kubelet(const struct bh_config *cfg)
{
	struct bh_kubelet_key key = { .who = BH_WHO_TGID };
	__u32 levels = cfg->kubelet_levels;

	key.id = bpf_get_current_pid_tgid() >> 32;
	if (bpf_map_lookup_elem(&bh_kubelet, &key))
		return 1;
	key.who = BH_WHO_CGROUP;
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
 * Kubelet's sockets are born with its mark. Those of pods in the host's network
 * are remembered with their pod: a packet that arrives tells only the socket,
 * not in which network namespace it lives.
 */
SEC("cgroup/sock_create")
int bh_prb_create(struct bpf_sock *ctx)
{
	struct bh_config *cfg = bh_cfg();
	struct bh_pod *pod = 0;
	struct bh_sock *s;
	__u64 podid = 0;
	int who;

	if (!cfg || !cfg->host_netns || bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	if (cfg->kubelet_mark && !ctx->mark && is_kubelet(cfg)) {
		ctx->mark = cfg->kubelet_mark;
		bh_count(BH_R_KUBELET_MARKED);
		return 1;
	}
	who = bh_who_task(0, cfg, bpf_get_current_cgroup_id(), &pod, &podid);
	if (who != BH_POD && who != BH_STRANGER)
		return 1;
	s = bpf_sk_storage_get(&bh_socks, ctx, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (s)
		s->pod = podid;
	return 1;
}

/*
 * probe_led leads a probe of a host-network pod to its network. Kubelet sends
 * it to the node's address or to loopback, where the pod's server is not. Where
 * somebody else holds the port, now or at any time since the row was made,
 * kubelet's connection is not touched: it may be meant for them.
 */
static __always_inline int probe_led(struct bpf_sock_addr *ctx, const struct bh_config *cfg,
				     struct bh_addr *addr)
{
	struct bh_probe_key key = { .port = bpf_ntohs(ctx->user_port), .proto = ctx->protocol };
	struct bh_probe *p;
	struct bpf_sock *holder;
	struct bh_addr to;
	struct bh_net *net;
	int ifindex;

	if (key.proto != IPPROTO_TCP)
		return 0;
	p = bpf_map_lookup_elem(&bh_probes, &key);
	if (!p || !bh_is_local(addr) || !is_kubelet(cfg))
		return 0;
	holder = bh_holder(ctx, addr, ctx->user_port, IPPROTO_TCP);
	if (holder) {
		bpf_sk_release(holder);
		p->held = 1;
	}
	if (p->held) {
		bh_count(BH_R_PROBE_PORT_HELD);
		bh_tell(BH_R_PROBE_PORT_HELD, bpf_get_current_cgroup_id(),
			bpf_get_current_pid_tgid() >> 32, p->netid, ctx->family, ctx->protocol, addr,
			key.port);
		return 0;
	}
	net = bpf_map_lookup_elem(&bh_nets, &p->netid);
	if (!net || !net->vrf_ifindex || !bh_target(net, addr, &to))
		return 0;
	ifindex = net->vrf_ifindex;
	if (bpf_setsockopt(ctx, BH_SOL_SOCKET, BH_SO_BINDTOIFINDEX, &ifindex, sizeof(ifindex)))
		return 0;
	*addr = to;
	bh_count(BH_R_PROBE_LED);
	return 1;
}

static __always_inline int probe(struct bpf_sock_addr *ctx, struct bh_addr *addr, int connect, int *led)
{
	struct bh_config *cfg = bh_cfg();
	struct bpf_sock *sk = ctx->sk;
	struct bh_pod *pod = 0;
	__u64 podid = 0;
	__u32 *netid;
	int who;

	if (!cfg || !cfg->probe_lock || bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	if (connect) {
		*led = probe_led(ctx, cfg, addr);
		if (*led)
			return 1;
	}
	netid = bpf_map_lookup_elem(&bh_locked, addr);
	if (netid) {
		if (is_kubelet(cfg)) {
			bh_count(BH_R_PROBE_ALLOWED);
			return 1;
		}
		return bh_refuse(BH_R_PROBE_REFUSED, *netid, ctx->family, ctx->protocol, addr,
				 bpf_ntohs(ctx->user_port));
	}
	/* A device that was chosen before; most sockets have none. */
	if (!cfg->guard || !sk || !sk->bound_dev_if)
		return 1;
	who = bh_who_task(0, cfg, bpf_get_current_cgroup_id(), &pod, &podid);
	if ((who != BH_POD && who != BH_STRANGER) || bh_may_use(pod, sk->bound_dev_if))
		return 1;
	return bh_refuse(BH_R_FOREIGN_DEVICE, pod ? pod->netid : 0, ctx->family, ctx->protocol, addr,
			 bpf_ntohs(ctx->user_port));
}

#define PROBE4(name, sec, connect)                                                                 \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		int led = 0, verdict;                                                              \
		bh_addr4(&a, ctx->user_ip4);                                                       \
		verdict = probe(ctx, &a, connect, &led);                                           \
		if (led)                                                                           \
			ctx->user_ip4 = a.a[3];                                                    \
		return verdict;                                                                    \
	}
#define PROBE6(name, sec, connect)                                                                 \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		int led = 0, verdict;                                                              \
		bh_addr6(&a, ctx->user_ip6);                                                       \
		verdict = probe(ctx, &a, connect, &led);                                           \
		if (led) {                                                                         \
			ctx->user_ip6[0] = a.a[0];                                                 \
			ctx->user_ip6[1] = a.a[1];                                                 \
			ctx->user_ip6[2] = a.a[2];                                                 \
			ctx->user_ip6[3] = a.a[3];                                                 \
		}                                                                                  \
		return verdict;                                                                    \
	}

PROBE4(bh_prb_conn4, "cgroup/connect4", 1)
PROBE6(bh_prb_conn6, "cgroup/connect6", 1)
PROBE4(bh_prb_send4, "cgroup/sendmsg4", 0)
PROBE6(bh_prb_send6, "cgroup/sendmsg6", 0)

/*
 * Options of pods outside the tenants, and those that choose a device for
 * multicast, or a way past the guard, of all pods in the host's network.
 */
SEC("cgroup/setsockopt")
int bh_prb_setopt(struct bpf_sockopt *ctx)
{
	struct bh_config *cfg = bh_cfg();
	__u32 reason = BH_R_SET_DEVICE, value;
	struct bh_pod *pod = 0;
	__u64 podid = 0;
	int picks, who;

	bh_keep_long(ctx);
	picks = bh_picks(ctx);
	if (picks == BH_PICKS_NOTHING || !cfg || !cfg->guard)
		return 1;
	value = bh_picked_device(ctx);
	if (picks == BH_PICKS_MARK) {
		/* Kubelet's mark and the networks' are what nftables and loopback go by. */
		if (value != cfg->kubelet_mark && (value < cfg->mark_first || value > cfg->mark_last))
			return 1;
		reason = BH_R_SET_MARK;
	} else if (picks == BH_PICKS_BYPASS) {
		reason = BH_R_BYPASS;
	} else if (!value) {
		return 1;
	}
	if (bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	who = bh_who_task(0, cfg, bpf_get_current_cgroup_id(), &pod, &podid);
	if (who != BH_POD && who != BH_STRANGER)
		return 1;
	if (picks == BH_PICKS_BYPASS && pod && (pod->flags & BH_POD_TRUSTED))
		return 1;
	if ((picks == BH_PICKS_DEVICE || picks == BH_PICKS_MULTICAST) && bh_may_use(pod, value))
		return 1;
	return bh_refuse(reason, pod ? pod->netid : 0, 0, 0, 0, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
