/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Maps and helpers shared by every program. The objects are compiled separately
 * and share state only through pinned maps, so all include these definitions.
 *
 * All addresses are 16 bytes, IPv4 in its IPv4-mapped form: both families share
 * one code path, and an IPv4-mapped destination on an AF_INET6 socket needs no
 * special case.
 */
#ifndef BH_COMMON_H
#define BH_COMMON_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* uapi <asm/socket.h> includes too much; these values are asm-generic. */
#define BH_AF_INET 2
#define BH_AF_INET6 10
#define BH_SOCK_RAW 3
#define BH_SOL_SOCKET 1
#define BH_SO_BINDTODEVICE 25
#define BH_SO_MARK 36
#define BH_SO_BINDTOIFINDEX 62

/* Bulkhead's part of a mark (pkg/network/packetmarks.go); the rest is other programs'. */
#define BH_MARK_MASK 0xffff0000
#define BH_MARK_SHIFT 16
#define BH_MARK_KIND 0xc0000000
#define BH_MARK_KIND_SERVICE 0x80000000

/* One more than the deepest level of the cgroup tree that the programs check. */
#define BH_MAX_LEVEL 16

enum bh_verdict { BH_PASS = 0, BH_REFUSE = 1 };

enum bh_reason {
#define BH_REASON(id, verdict, label, text) BH_R_##id,
#include "bh_reasons.h"
#undef BH_REASON
	BH_R_MAX,
};

/* The only row of bh_config. While it is zero, every program passes everything. */
struct bh_config {
	__u64 host_netns; /* cookie of the host's network namespace */
	__u32 pod_levels; /* bit n: pod cgroups exist at level n of the cgroup tree */
	__u32 kubelet_levels; /* bit n: kubelet's cgroup is at level n */
	__u32 kubelet_mark;
	__u32 probe_lock; /* 0: locked addresses are not enforced */
	__u32 podroot_levels; /* bit n: a directory that holds all pods is at level n */
	__u32 guard; /* 0: the guard is off and passes everything */
	__u32 tunnel_port; /* UDP port of the overlay, host order */
	__u32 mark_first; /* range of the networks' marks, with any bits of other programs */
	__u32 mark_last;
	__u16 own_first; /* range of the TCP ports of the agent and the controllers, host order */
	__u16 own_last;
	__u64 agent_cgroup; /* of the agent's container; 0: unknown */
};

struct bh_pod {
	__u32 netid;
	__u32 mark;
	__u32 vrf_ifindex; /* 0: no VRF yet; wildcard binds are refused */
	__u32 flags;
};

/*
 * BH_POD_UNBOUND: the pod opted out of VRF binding by annotation. BH_POD_TRUSTED:
 * an administrator allows the pod packet sockets on any device, and what a routing daemon
 * needs: the VRF devices of tenants' networks, and the operator's interfaces in them.
 * BH_POD_INGRESS: a pod of the cluster default network in a namespace that the administrator has
 * named; it reaches the cluster IPs of all networks.
 */
enum bh_pod_flags { BH_POD_UNBOUND = 1, BH_POD_TRUSTED = 2, BH_POD_INGRESS = 4 };

/* What an interface of the host leads to. */
enum bh_door_kind {
	BH_DOOR_PORT = 1, /* management port of a tenant's network */
	BH_DOOR_VRF = 2, /* VRF device of a tenant's network */
	BH_DOOR_DEFAULT = 3, /* management port of the cluster default network */
	BH_DOOR_POD = 4, /* host end of a pod's interface */
	BH_DOOR_LOCKED = 5, /* host end of a pod's locked default-network interface */
	BH_DOOR_OWN = 6, /* interface of the node itself: uplink, external bridge, ... */
	BH_DOOR_LOOPBACK = 7,
	BH_DOOR_LINK = 8, /* interface that the operator has added to a tenant's VRF */
};

#define BH_FORWARD_OWN 0xffffffff /* from every interface of the node itself (BH_DOOR_OWN) */

struct bh_door {
	__u32 kind;
	__u32 netid; /* 0: the cluster default network, or none */
	__u32 forward_from; /* ifindex from which packets may be forwarded to this one; 0: none; or BH_FORWARD_OWN */
	__u8 peer_mac[6]; /* LOCKED: MAC of the only allowed peer, the node's management port */
	__u8 open; /* LOCKED: the pod has ports in bh_open, which others reach */
	__u8 pad;
	__u32 peer6[4]; /* LOCKED: IPv6 address of that peer; zero: none */
};

/* A network with host-network pods on this node, or with probes redirected into it. */
struct bh_net {
	__u32 vrf_ifindex;
	__u32 mark;
	__u32 host4[4]; /* the node's address on the network, IPv4 in mapped form; zero: none */
	__u32 host6[4];
};

struct bh_probe_key {
	__u16 port; /* host order */
	__u8 proto;
	__u8 pad;
};

struct bh_probe {
	__u32 netid;
	__u32 held; /* set by the programs: a socket outside the network listens on the port */
};

/* Socket storage of a host-network pod's socket. */
struct bh_sock {
	__u64 pod; /* cgroup id of the pod that created the socket; 0: unknown pod */
	__u32 redirected; /* 1: the socket was redirected; addr is the address it asked for */
	__u32 addr[4];
	__u32 pad;
};

struct bh_dest_key {
	__u32 prefixlen; /* BH_DEST_FIXED + 96 + n for IPv4, + n for IPv6 */
	__be32 netid;
	__be32 family;
	__u32 addr[4];
};
#define BH_DEST_FIXED 64
#define BH_DEST_ALL 0xffffffff /* netid of what lies inside the VRF of every network: services */
#define BH_DEST_MASQUERADE 0xfffffffe /* netid of masquerade addresses, which each node uses for itself */
#define BH_DEST_CLUSTER_IP 0xfffffffd /* netid of cluster IPs; the value is the network of the service */
#define BH_DEST_OWN 0xfffffffb /* netid of the node's addresses on all of its interfaces */

struct bh_addr {
	__u32 a[4];
};

enum bh_kubelet_kind { BH_KUBELET_CGROUP = 1, BH_KUBELET_TGID = 2 };

struct bh_kubelet_key {
	__u64 id; /* cgroup id, or process id in the initial pid namespace */
	__u32 kind;
	__u32 pad;
};

struct bh_event {
	__u64 ktime;
	__u64 cgroup;
	__u32 netid;
	__u32 tgid;
	__u32 addr[4];
	__u16 port; /* host order */
	__u8 family;
	__u8 proto;
	__u32 reason;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bh_config);
} bh_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 64); /* leaves room for new reasons in the same layout */
	__type(key, __u32);
	__type(value, __u64);
} bh_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
	__type(value, struct bh_event);
} bh_events SEC(".maps");

/* bh_told: time of the last event per cgroup and reason; limits events to one per second. */
struct bh_told_key {
	__u64 cgroup;
	__u32 reason;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct bh_told_key);
	__type(value, __u64);
} bh_told SEC(".maps");

static __always_inline struct bh_config *bh_cfg(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&bh_config, &zero);
}

static __always_inline void bh_count(__u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(&bh_counters, &reason);

	if (n)
		(*n)++; /* per CPU; preemption may lose an increment, which is accepted */
}

/* bh_send_event sends an event to user space if the ring buffer has room. */
static __always_inline void bh_send_event(__u32 reason, __u64 cgroup, __u32 tgid, __u32 netid,
					  __u8 family, __u8 proto, const struct bh_addr *addr,
					  __u16 port)
{
	struct bh_told_key key = { .cgroup = cgroup, .reason = reason };
	__u64 now = bpf_ktime_get_ns(), *last = bpf_map_lookup_elem(&bh_told, &key);
	struct bh_event *e;

	if (last && now - *last < 1000000000ULL)
		return;
	e = bpf_ringbuf_reserve(&bh_events, sizeof(*e), 0);
	if (!e)
		return;
	bpf_map_update_elem(&bh_told, &key, &now, BPF_ANY);
	e->ktime = now;
	e->cgroup = cgroup;
	e->netid = netid;
	e->tgid = tgid;
	e->family = family;
	e->proto = proto;
	e->port = port;
	e->reason = reason;
	if (addr)
		*(struct bh_addr *)e->addr = *addr;
	else
		__builtin_memset(e->addr, 0, sizeof(e->addr));
	bpf_ringbuf_submit(e, 0);
}

/* bh_refuse counts a refusal of the calling process, sends an event and returns the verdict. */
static __always_inline int bh_refuse(__u32 reason, __u32 netid, __u8 family, __u8 proto,
				     const struct bh_addr *addr, __u16 port)
{
	bh_count(reason);
	bh_send_event(reason, bpf_get_current_cgroup_id(), bpf_get_current_pid_tgid() >> 32, netid,
		      family, proto, addr, port);
	return 0;
}

static __always_inline void bh_addr4(struct bh_addr *k, __u32 ip4)
{
	k->a[0] = 0;
	k->a[1] = 0;
	k->a[2] = bpf_htonl(0xffff);
	k->a[3] = ip4;
}

/* A macro, because the verifier requires constant offsets for context loads. */
#define bh_addr6(k, ip6)                                                                           \
	do {                                                                                       \
		(k)->a[0] = (ip6)[0];                                                              \
		(k)->a[1] = (ip6)[1];                                                              \
		(k)->a[2] = (ip6)[2];                                                              \
		(k)->a[3] = (ip6)[3];                                                              \
	} while (0)

static __always_inline int bh_is_mapped(const struct bh_addr *k)
{
	return k->a[0] == 0 && k->a[1] == 0 && k->a[2] == bpf_htonl(0xffff);
}

static __always_inline int bh_is_wildcard(const struct bh_addr *k)
{
	return (k->a[0] | k->a[1] | k->a[3]) == 0 && (k->a[2] == 0 || k->a[2] == bpf_htonl(0xffff));
}

static __always_inline int bh_is_zero(const __u32 *a)
{
	return (a[0] | a[1] | a[2] | a[3]) == 0;
}

static __always_inline int bh_is_loopback(const struct bh_addr *k)
{
	if (bh_is_mapped(k))
		return (k->a[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
	return (k->a[0] | k->a[1] | k->a[2]) == 0 && k->a[3] == bpf_htonl(1);
}

/* Addresses that are meaningful only with a device: IPv6 link-local, multicast, broadcast. */
static __always_inline int bh_is_on_link(const struct bh_addr *k)
{
	if (bh_is_mapped(k))
		return k->a[3] == 0xffffffff ||
		       (k->a[3] & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000);
	return (k->a[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
	       (k->a[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

#endif
