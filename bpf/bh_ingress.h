/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What pods of ingress namespaces may send into a network, and what may come back.
 */
#ifndef BH_INGRESS_H
#define BH_INGRESS_H

#include "bh_dests.h"
#include "bh_locked.h"
#include "bh_pods.h"

/* bh_to_cluster_ip reports whether an ingress pod's packet is for a cluster IP of the network. */
static __always_inline int bh_to_cluster_ip(const struct bh_pod *pod, const struct bh_packet *p, __u32 netid)
{
	return (pod->flags & BH_POD_INGRESS) && !p->unparsed && netid &&
	       bh_dest(BH_DEST_CLUSTER_IP, &p->daddr) == netid;
}

/*
 * bh_forwarded_for_ingress reports whether a packet was forwarded from the cluster default network
 * to a cluster IP of the network, or back. nftables checks which pods these are.
 */
static __always_inline int bh_forwarded_for_ingress(__u32 ingress, __u32 kind, __u32 netid,
						    const struct bh_packet *p)
{
	struct bh_door *from = bpf_map_lookup_elem(&bh_doors, &ingress);

	if (!from || p->unparsed)
		return 0;
	if (kind == BH_DOOR_PORT && from->kind == BH_DOOR_DEFAULT)
		return netid && bh_dest(BH_DEST_CLUSTER_IP, &p->daddr) == netid;
	return kind == BH_DOOR_DEFAULT && (from->kind == BH_DOOR_PORT || from->kind == BH_DOOR_VRF) && from->netid &&
	       bh_dest(BH_DEST_CLUSTER_IP, &p->saddr) == from->netid && !bpf_map_lookup_elem(&bh_locked, &p->daddr);
}

#endif
