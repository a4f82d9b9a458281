/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who is whose: the maps that say which cgroup is which pod, and the look-ups
 * in them. Each look-up asks for the ancestors at the few levels of the tree at
 * which pods live, so its cost does not depend on how many pods there are.
 */
#ifndef BH_PODS_H
#define BH_PODS_H

#include "bh_common.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64); /* cgroup id of a host-network pod */
	__type(value, struct bh_pod);
} bh_pods SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u64); /* cgroup id of a directory that holds all pods (kubepods) */
	__type(value, __u32);
} bh_podroots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* interface index in the host's network namespace */
	__type(value, struct bh_door);
} bh_doors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE); /* accepted sockets are their listener's */
	__type(key, int);
	__type(value, struct bh_sock);
} bh_socks SEC(".maps");

/* Whose a socket, packet or process is. */
enum bh_whose {
	BH_NOBODY, /* a packet without a socket */
	BH_KERNEL, /* the root cgroup: the kernel's own sockets */
	BH_OUTSIDE, /* a process of the node outside all pods */
	BH_POD, /* a host-network pod that is known */
	BH_STRANGER, /* a pod that has no row: of another network namespace, or not known yet */
};

/*
 * BH_WHO walks the levels of one mask. ANCESTOR(level) is the helper that fits
 * the program type.
 */
#define BH_DEFINE_WHO(name, type, ANCESTOR)                                                        \
	static __always_inline int name(type arg, const struct bh_config *cfg, __u64 own,          \
					struct bh_pod **pod, __u64 *podid)                         \
	{                                                                                          \
		__u32 roots = cfg->podroot_levels, levels = cfg->pod_levels;                       \
		int inside = 0;                                                                    \
                                                                                                   \
		if (!own)                                                                          \
			return BH_NOBODY;                                                          \
		if (own == 1)                                                                      \
			return BH_KERNEL;                                                          \
		for (int i = 1; i < BH_MAX_LEVEL && roots >> i; i++) {                             \
			__u64 id;                                                                  \
			if (!(roots >> i & 1))                                                     \
				continue;                                                          \
			id = ANCESTOR(arg, i);                                                     \
			if (!id)                                                                   \
				break;                                                             \
			if (bpf_map_lookup_elem(&bh_podroots, &id)) {                              \
				inside = 1;                                                        \
				break;                                                             \
			}                                                                          \
		}                                                                                  \
		if (!inside)                                                                       \
			return BH_OUTSIDE;                                                         \
		for (int i = 1; i < BH_MAX_LEVEL && levels >> i; i++) {                            \
			__u64 id;                                                                  \
			if (!(levels >> i & 1))                                                    \
				continue;                                                          \
			id = ANCESTOR(arg, i);                                                     \
			if (!id)                                                                   \
				break;                                                             \
			*pod = bpf_map_lookup_elem(&bh_pods, &id);                                 \
			if (*pod) {                                                                \
				*podid = id;                                                       \
				return BH_POD;                                                     \
			}                                                                          \
		}                                                                                  \
		return BH_STRANGER;                                                                \
	}

#define BH_TASK_ANCESTOR(arg, i) bpf_get_current_ancestor_cgroup_id(i)
#define BH_SKB_ANCESTOR(arg, i) bpf_skb_ancestor_cgroup_id(arg, i)

BH_DEFINE_WHO(bh_who_task, void *, BH_TASK_ANCESTOR)
BH_DEFINE_WHO(bh_who_skb, struct __sk_buff *, BH_SKB_ANCESTOR)

/*
 * bh_may_use tells whether a pod may choose a device: the node's own, or one of
 * its network. A pod that is not known has the default network's at most.
 */
static __always_inline int bh_may_use(const struct bh_pod *pod, __u32 ifindex)
{
	struct bh_door *door = bpf_map_lookup_elem(&bh_doors, &ifindex);

	if (!door || door->kind == BH_DOOR_OWN || door->kind == BH_DOOR_LOOPBACK)
		return 1;
	if (door->kind == BH_DOOR_DEFAULT)
		return !pod || !pod->netid || (pod->flags & BH_POD_UNBOUND);
	if (!pod || door->kind == BH_DOOR_POD || door->kind == BH_DOOR_LOCKED)
		return 0;
	return pod->netid && pod->netid == door->netid;
}

#endif
