/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ownership: the maps from cgroups to pods, and lookups in them. A lookup reads
 * the ancestor cgroups only at the few levels at which pods exist, so its cost
 * does not depend on the number of pods.
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
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE); /* accepted sockets inherit it */
	__type(key, int);
	__type(value, struct bh_sock);
} bh_socks SEC(".maps");

/* The owner of a socket, packet or process. */
enum bh_owner {
	BH_OWNER_NONE, /* packet without a socket */
	BH_OWNER_KERNEL, /* root cgroup: the kernel's own sockets */
	BH_OWNER_HOST, /* process of the node outside all pods */
	BH_OWNER_POD, /* host-network pod with a row in bh_pods */
	BH_OWNER_UNKNOWN_POD, /* pod without a row: in its own network namespace, or not yet known */
};

static __always_inline int bh_is_pod(int owner)
{
	return owner == BH_OWNER_POD || owner == BH_OWNER_UNKNOWN_POD;
}

/*
 * BH_DEFINE_OWNER defines a function that finds the owner of the cgroup own.
 * ANCESTOR(arg, level) is the ancestor cgroup helper of the program type.
 */
#define BH_DEFINE_OWNER(name, type, ANCESTOR)                                                      \
	static __always_inline int name(type arg, const struct bh_config *cfg, __u64 own,          \
					struct bh_pod **pod, __u64 *podid)                         \
	{                                                                                          \
		__u32 roots = cfg->podroot_levels, levels = cfg->pod_levels;                       \
		int inside = 0;                                                                    \
                                                                                                   \
		if (!own)                                                                          \
			return BH_OWNER_NONE;                                                      \
		if (own == 1)                                                                      \
			return BH_OWNER_KERNEL;                                                    \
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
			return BH_OWNER_HOST;                                                      \
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
				return BH_OWNER_POD;                                               \
			}                                                                          \
		}                                                                                  \
		return BH_OWNER_UNKNOWN_POD;                                                       \
	}

#define BH_TASK_ANCESTOR(arg, i) bpf_get_current_ancestor_cgroup_id(i)
#define BH_SKB_ANCESTOR(arg, i) bpf_skb_ancestor_cgroup_id(arg, i)

BH_DEFINE_OWNER(bh_task_owner, void *, BH_TASK_ANCESTOR)
BH_DEFINE_OWNER(bh_skb_owner, struct __sk_buff *, BH_SKB_ANCESTOR)

/*
 * bh_is_trusted_in_vrf reports whether a pod may use a tenant's VRF device, or the operator's
 * interfaces in it, as FRR does for its sessions. It does not lead to pods: those are behind
 * the management port.
 */
static __always_inline int bh_is_trusted_in_vrf(const struct bh_pod *pod, __u32 kind)
{
	return (pod->flags & BH_POD_TRUSTED) && (kind == BH_DOOR_VRF || kind == BH_DOOR_LINK);
}

/*
 * bh_is_ingress_socket reports whether bh_vrf_conn or bh_vrf_send has bound an ingress pod's socket to the
 * VRF device of a network. Only they set such a mark on a pod's socket.
 */
static __always_inline int bh_is_ingress_socket(const struct bh_pod *pod, __u32 mark, __u32 ifindex)
{
	struct bh_door *door;

	if (!pod || !(pod->flags & BH_POD_INGRESS) || (mark & BH_MARK_KIND) != BH_MARK_KIND_SERVICE)
		return 0;
	door = bpf_map_lookup_elem(&bh_doors, &ifindex);
	return door && door->kind == BH_DOOR_VRF && door->netid == (mark & ~BH_MARK_KIND) >> BH_MARK_SHIFT;
}

/*
 * bh_may_use_device reports whether a pod may choose a device: one of the node
 * itself, or of the pod's network. An unknown pod (pod is NULL) may not choose a
 * device of a tenant's network.
 */
static __always_inline int bh_may_use_device(const struct bh_pod *pod, __u32 ifindex)
{
	struct bh_door *door = bpf_map_lookup_elem(&bh_doors, &ifindex);

	if (!door || door->kind == BH_DOOR_OWN || door->kind == BH_DOOR_LOOPBACK)
		return 1;
	if (door->kind == BH_DOOR_DEFAULT)
		return !pod || !pod->netid || (pod->flags & BH_POD_UNBOUND);
	if (!pod || door->kind == BH_DOOR_POD || door->kind == BH_DOOR_LOCKED)
		return 0;
	if (bh_is_trusted_in_vrf(pod, door->kind))
		return 1;
	return pod->netid && pod->netid == door->netid;
}

#endif
