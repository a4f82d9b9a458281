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
#include "bh_common.h"

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

SEC("cgroup/sock_create")
int bh_prb_create(struct bpf_sock *ctx)
{
	struct bh_config *cfg = bh_cfg();

	if (!cfg || !cfg->host_netns || bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	if (!cfg->kubelet_mark || ctx->mark || !is_kubelet(cfg))
		return 1;
	ctx->mark = cfg->kubelet_mark;
	bh_count(BH_R_KUBELET_MARKED);
	return 1;
}

static __always_inline int probe(struct bpf_sock_addr *ctx, const struct bh_addr *addr)
{
	struct bh_config *cfg = bh_cfg();
	__u32 *netid;

	if (!cfg || !cfg->probe_lock || bpf_get_netns_cookie(ctx) != cfg->host_netns)
		return 1;
	netid = bpf_map_lookup_elem(&bh_locked, addr);
	if (!netid)
		return 1;
	if (is_kubelet(cfg)) {
		bh_count(BH_R_PROBE_ALLOWED);
		return 1;
	}
	return bh_refuse(BH_R_PROBE_REFUSED, *netid, ctx->family, ctx->protocol, addr,
			 bpf_ntohs(ctx->user_port));
}

#define PROBE4(name, sec)                                                                          \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		bh_addr4(&a, ctx->user_ip4);                                                       \
		return probe(ctx, &a);                                                             \
	}
#define PROBE6(name, sec)                                                                          \
	SEC(sec) int name(struct bpf_sock_addr *ctx)                                               \
	{                                                                                          \
		struct bh_addr a;                                                                  \
		bh_addr6(&a, ctx->user_ip6);                                                       \
		return probe(ctx, &a);                                                             \
	}

PROBE4(bh_prb_conn4, "cgroup/connect4")
PROBE6(bh_prb_conn6, "cgroup/connect6")
PROBE4(bh_prb_send4, "cgroup/sendmsg4")
PROBE6(bh_prb_send6, "cgroup/sendmsg6")

char _license[] SEC("license") = "Dual BSD/GPL";
