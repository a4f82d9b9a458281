/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Redirection: a connect or datagram to loopback or to an address of the node is
 * redirected to the node's address in a network, and its socket is bound to the
 * VRF. A server of the network that listens on all addresses is reachable only
 * there.
 */
#ifndef BH_REDIRECT_H
#define BH_REDIRECT_H

#include "bh_pods.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* network id */
	__type(value, struct bh_net);
} bh_nets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bh_addr); /* address of the node outside all networks */
	__type(value, __u32);
} bh_locals SEC(".maps");

static __always_inline int bh_is_local(const struct bh_addr *addr)
{
	return bh_is_loopback(addr) || bpf_map_lookup_elem(&bh_locals, addr) != 0;
}

/*
 * bh_lookup_listener finds a socket outside all VRFs that listens on the address. The caller must
 * release the reference.
 */
static __always_inline struct bpf_sock *bh_lookup_listener(struct bpf_sock_addr *ctx,
							   const struct bh_addr *addr, __be16 port,
							   int proto)
{
	struct bpf_sock_tuple t = {};

	if (bh_is_mapped(addr)) {
		t.ipv4.daddr = addr->a[3];
		t.ipv4.dport = port;
		if (proto == IPPROTO_UDP)
			return bpf_sk_lookup_udp(ctx, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
		return bpf_sk_lookup_tcp(ctx, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	t.ipv6.daddr[0] = addr->a[0];
	t.ipv6.daddr[1] = addr->a[1];
	t.ipv6.daddr[2] = addr->a[2];
	t.ipv6.daddr[3] = addr->a[3];
	t.ipv6.dport = port;
	if (proto == IPPROTO_UDP)
		return bpf_sk_lookup_udp(ctx, &t, sizeof(t.ipv6), BPF_F_CURRENT_NETNS, 0);
	return bpf_sk_lookup_tcp(ctx, &t, sizeof(t.ipv6), BPF_F_CURRENT_NETNS, 0);
}

/*
 * bh_listener_network returns the network of a listening socket: that of the pod that created the
 * socket or, if no pod is recorded, that of the mark that bh_vrf_bind sets. No pod is recorded for the
 * subflows of a listening MPTCP socket. 0: a process of the node, a pod of no network, or an unknown pod.
 */
static __always_inline __u32 bh_listener_network(const struct bh_config *cfg, struct bpf_sock *listener)
{
	struct bh_sock *s = bpf_sk_storage_get(&bh_socks, listener, 0, 0);
	__u64 id = s ? s->pod : 0;
	struct bh_pod *pod = id ? bpf_map_lookup_elem(&bh_pods, &id) : 0;
	__u32 mark = listener->mark;

	if (pod)
		return pod->netid;
	return mark >= cfg->mark_first && mark <= cfg->mark_last ? mark >> BH_MARK_SHIFT : 0;
}

/* bh_node_addr finds the node's address in the network, preferably of the family of addr. */
static __always_inline int bh_node_addr(const struct bh_net *net, const struct bh_addr *addr,
					struct bh_addr *to)
{
	const __u32 *a = net->host4;

	if (!bh_is_mapped(addr) && !bh_is_zero(net->host6))
		a = net->host6;
	if (bh_is_zero(a))
		return 0;
	to->a[0] = a[0];
	to->a[1] = a[1];
	to->a[2] = a[2];
	to->a[3] = a[3];
	return 1;
}

/* bh_store_peer stores the address that was asked for, to be shown by getpeername and recvmsg. */
static __always_inline void bh_store_peer(struct bpf_sock *sk, const struct bh_addr *addr)
{
	struct bh_sock *s = bpf_sk_storage_get(&bh_socks, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!s)
		return;
	s->addr[0] = addr->a[0];
	s->addr[1] = addr->a[1];
	s->addr[2] = addr->a[2];
	s->addr[3] = addr->a[3];
	s->redirected = 1;
}

#endif
