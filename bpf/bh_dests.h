/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Destinations: which addresses lie inside a network, or mean something to all of them.
 */
#ifndef BH_DESTS_H
#define BH_DESTS_H

#include "bh_common.h"

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bh_dest_key);
	__type(value, __u32); /* BH_DEST_CLUSTER_IP: the network's id; else 1 */
} bh_dests SEC(".maps");

/* bh_dest returns the value of an address's row, and 0 if there is none. */
static __always_inline __u32 bh_dest(__u32 netid, const struct bh_addr *addr)
{
	struct bh_dest_key key = {
		.prefixlen = BH_DEST_FIXED + 128,
		.netid = bpf_htonl(netid),
		.family = bpf_htonl(bh_is_mapped(addr) ? BH_AF_INET : BH_AF_INET6),
		.addr = { addr->a[0], addr->a[1], addr->a[2], addr->a[3] },
	};
	__u32 *value = bpf_map_lookup_elem(&bh_dests, &key);

	return value ? *value : 0;
}

#endif
