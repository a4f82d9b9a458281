/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The guard: only a network's own pods send packets into it, whatever socket
 * option, control message, scope id or frame chose the path. On the interfaces
 * that lead into networks ("doors") it checks outgoing packets by the cgroup of
 * the sending socket, and incoming packets by the cgroup of the receiving socket.
 *
 * Processes outside all pods, including the node's administrator, may enter.
 */
#include "bh_checksum.h"
#include "bh_pods.h"
#include "bh_ingress.h"
#include "bh_locked.h"
#include "bh_senders.h"
#include "bh_sockopt.h"

#define TCX_NEXT -1
#define TCX_DROP 2

static __always_inline int drop(struct __sk_buff *skb, __u32 reason, __u64 cgroup, __u32 netid,
				const struct bh_packet *p)
{
	bh_count(reason);
	bh_send_event(reason, cgroup, 0, netid, p ? p->family : 0, p ? p->proto : 0, p ? &p->daddr : 0,
		      0);
	return TCX_DROP;
}

/*
 * from_own_vrf reports whether a forwarded packet arrived through an interface in the network's
 * own VRF: from a pod of the network, or through the operator's interface.
 */
static __always_inline int from_own_vrf(__u32 ingress, __u32 netid)
{
	struct bh_door *from = bpf_map_lookup_elem(&bh_doors, &ingress);

	return netid && from && from->kind == BH_DOOR_VRF && from->netid == netid;
}

/* may_forward reports whether packets from interface ingress may be forwarded to the door. */
static __always_inline int may_forward(__u32 ingress, const struct bh_door *door)
{
	struct bh_door *from;

	if (!door)
		return 0;
	if (door->forward_from != BH_FORWARD_OWN)
		return door->forward_from == ingress;
	from = bpf_map_lookup_elem(&bh_doors, &ingress);
	return from && from->kind == BH_DOOR_OWN;
}

/*
 * Egress of management ports, VRF devices and the operator's interfaces in VRFs: packets
 * into a network.
 */
SEC("tcx/egress")
int bh_grd_port(struct __sk_buff *skb)
{
	struct bh_config *cfg = bh_cfg();
	__u32 ifindex = skb->ifindex, netid = 0, kind = 0;
	__u64 id, podid = 0;
	struct bh_pod *pod = 0;
	struct bh_door *door;
	struct bh_packet p;
	int owner;

	if (!cfg || !cfg->guard)
		return TCX_NEXT;
	door = bpf_map_lookup_elem(&bh_doors, &ifindex);
	if (door) {
		netid = door->netid;
		kind = door->kind;
	}
	id = bpf_skb_cgroup_id(skb);
	owner = bh_skb_owner(skb, cfg, id, &pod, &podid);
	if (kind != BH_DOOR_DEFAULT) {
		if (owner == BH_OWNER_HOST || (owner == BH_OWNER_POD && netid && pod->netid == netid))
			return TCX_NEXT;
		if (owner == BH_OWNER_POD && bh_is_trusted_in_vrf(pod, kind))
			return TCX_NEXT;
		if (bh_is_pod(owner)) {
			bh_ip(skb, 0, BH_NET, &p);
			if (owner == BH_OWNER_POD && bh_to_cluster_ip(pod, &p, netid) && !bh_from_packet_socket(skb))
				return TCX_NEXT;
			return drop(skb,
				    owner == BH_OWNER_POD ? BH_R_GUARD_FOREIGN : BH_R_GUARD_UNKNOWN,
				    id, netid, &p);
		}
	}
	bh_ip(skb, 0, BH_NET, &p);
	if (owner == BH_OWNER_NONE && skb->ingress_ifindex) {
		if (may_forward(skb->ingress_ifindex, door) &&
		    (kind != BH_DOOR_DEFAULT || (!p.unparsed && !bpf_map_lookup_elem(&bh_locked, &p.daddr))))
			return TCX_NEXT;
		if (kind != BH_DOOR_DEFAULT && from_own_vrf(skb->ingress_ifindex, netid))
			return TCX_NEXT;
		if (bh_forwarded_for_ingress(skb->ingress_ifindex, kind, netid, &p))
			return TCX_NEXT;
		return drop(skb, BH_R_GUARD_FORWARDED, id, netid, &p);
	}
	/* Any process can make the kernel announce its membership in a group of its choice. Networks do not use that. */
	if ((owner == BH_OWNER_NONE || owner == BH_OWNER_KERNEL) && kind != BH_DOOR_DEFAULT && bh_is_membership(skb, &p))
		return TCX_DROP;
	if (owner == BH_OWNER_NONE || owner == BH_OWNER_KERNEL)
		return bh_is_kernel_packet(skb, &p) ? TCX_NEXT :
						   drop(skb, BH_R_GUARD_NO_SOCKET, id, netid, &p);
	/* The cluster default network: open to all pods except tenants'. */
	if (owner == BH_OWNER_POD && pod->netid && !(pod->flags & BH_POD_UNBOUND))
		return drop(skb, BH_R_GUARD_FOREIGN, id, netid, &p);
	if (owner != BH_OWNER_HOST && bh_from_packet_socket(skb) && !(pod && (pod->flags & BH_POD_TRUSTED)))
		return drop(skb, BH_R_GUARD_INJECTED, id, netid, &p);
	if (cfg->probe_lock && (p.unparsed || (bpf_map_lookup_elem(&bh_locked, &p.daddr) &&
					       !bh_is_open(skb, &p, BH_NET, 0)))) {
		if (p.unparsed && owner == BH_OWNER_HOST)
			return TCX_NEXT; /* such as ARP frames sent by the node's administrator */
		if (owner != BH_OWNER_HOST || !bh_from_kubelet(skb, cfg))
			return drop(skb, BH_R_GUARD_LOCKED, id, netid, &p);
	}
	return TCX_NEXT;
}

/*
 * may_send_to_pod reports whether a pod may send on the host end of a pod's interface: a pod of the
 * same network. An unknown pod may not enter a tenant's network.
 */
static __always_inline int may_send_to_pod(int owner, const struct bh_pod *pod, const struct bh_door *door)
{
	if (owner != BH_OWNER_POD || !pod)
		return !door->netid;
	return pod->netid == door->netid || (!door->netid && (pod->flags & BH_POD_UNBOUND));
}

/*
 * Egress of the host ends of pods' interfaces: packets to a pod. Packets that Open
 * vSwitch forwards came in on other interfaces, whose programs checked them; they
 * carry the socket of their sender or, as the first packet of a flow, none. So a packet of an IP
 * socket may have come through a node port and is passed here: bh_grd_send checks what the IP stack
 * itself sends on these interfaces. This program checks the host namespace's other sockets.
 */
SEC("tcx/egress")
int bh_grd_pod(struct __sk_buff *skb)
{
	struct bh_config *cfg = bh_cfg();
	__u32 ifindex = skb->ifindex, netid = 0;
	struct bh_door *door;
	struct bh_pod *pod = 0;
	struct bpf_sock *sk;
	__u64 id, podid = 0;
	int owner, open = 0;

	if (!cfg || !cfg->guard)
		return TCX_NEXT;
	door = bpf_map_lookup_elem(&bh_doors, &ifindex);
	if (door && door->kind == BH_DOOR_LOCKED) {
		__u8 from[6];

		open = door->open && bh_is_open_frame(skb, 0);
		if (!open && (bh_load(skb, 6, from, 6, BH_DATA) ||
			      __builtin_memcmp(from, door->peer_mac, 6)))
			return drop(skb, BH_R_LOCKED_FRAME, 0, door->netid, 0);
	}
	sk = skb->sk;
	if (!sk || !bh_in_host_netns(cfg, sk))
		return TCX_NEXT;
	id = bpf_skb_cgroup_id(skb);
	owner = bh_skb_owner(skb, cfg, id, &pod, &podid);
	if (!bh_is_pod(owner))
		return TCX_NEXT;
	if (bh_from_packet_socket(skb))
		return drop(skb, BH_R_GUARD_INJECTED, id, 0, 0);
	if (!door)
		return TCX_NEXT;
	netid = door->netid;
	if (door->kind == BH_DOOR_LOCKED && !open)
		return drop(skb, BH_R_GUARD_LOCKED, id, netid, 0);
	if (bh_from_ip_socket(skb) || may_send_to_pod(owner, pod, door))
		return TCX_NEXT;
	return drop(skb, owner == BH_OWNER_POD ? BH_R_GUARD_FOREIGN : BH_R_GUARD_UNKNOWN, id, netid, 0);
}

/*
 * Ingress of the host ends of pods' interfaces: drops what no pod may send. OVN
 * passes neighbour discovery, router advertisements and multicast listener
 * reports before any ACL (ovn-northd's flows at priority 65532).
 */
SEC("tcx/ingress")
int bh_grd_from(struct __sk_buff *skb)
{
	struct bh_config *cfg = bh_cfg();
	__u32 ifindex = skb->ifindex, off;
	struct bh_door *door;
	struct bh_packet p;
	__u8 b[24], to[6];
	__u16 proto;
	int locked;

	if (!cfg || !cfg->guard)
		return TCX_NEXT;
	door = bpf_map_lookup_elem(&bh_doors, &ifindex);
	if (!door)
		return TCX_NEXT;
	off = bh_eth(skb, &proto);
	locked = door->kind == BH_DOOR_LOCKED;
	if (!proto)
		return drop(skb, BH_R_POD_FRAME, 0, door->netid, 0);
	if (!off) {
		__builtin_memset(&p, 0, sizeof(p));
		p.unparsed = 1;
		if (bh_is_misplaced_checksum(skb, &p))
			return drop(skb, BH_R_POD_FRAME, 0, door->netid, 0);
		/* OVN's ACLs cover ARP; a locked interface needs no other protocol. */
		return locked && proto != BH_ETH_P_ARP ? drop(skb, BH_R_LOCKED_FRAME, 0, door->netid, 0) :
							 TCX_NEXT;
	}
	bh_ip(skb, off, BH_DATA, &p);
	if (p.unparsed || bh_is_misplaced_checksum(skb, &p))
		return drop(skb, BH_R_POD_FRAME, 0, door->netid, &p);
	if (p.proto == IPPROTO_UDP && !p.later_fragment) {
		if (bh_load(skb, p.l4, b, 4, BH_DATA))
			return drop(skb, BH_R_POD_FRAME, 0, door->netid, &p);
		/*
		 * What DHCP clients take for a server's message, to port 68; DHCPv6: 546. Many do not look at the
		 * source port.
		 */
		if ((b[2] == 0 && b[3] == 68) || (b[2] == 2 && b[3] == 34))
			return drop(skb, BH_R_POD_FRAME, 0, door->netid, &p);
		if ((b[2] << 8 | b[3]) == cfg->tunnel_port && !bh_dest(door->netid, &p.daddr))
			return drop(skb, BH_R_GUARD_TUNNEL, 0, door->netid, &p);
	}
	if (p.proto == IPPROTO_ICMPV6 && !p.later_fragment) {
		if (bh_load(skb, p.l4, b, 1, BH_DATA) || b[0] == 134 ||
		    b[0] == 137)
			return drop(skb, BH_R_POD_FRAME, 0, door->netid, &p);
	}
	if (!locked)
		return TCX_NEXT;
	if (bh_load(skb, 0, to, 6, BH_DATA))
		return TCX_DROP;
	if (!__builtin_memcmp(to, door->peer_mac, 6))
		return TCX_NEXT;
	if (door->open && bh_is_open_frame(skb, 1) &&
	    (!(to[0] & 1) || (p.proto == IPPROTO_ICMPV6 && b[0] == 135)))
		return TCX_NEXT;
	/* Multicast and broadcast: only neighbour solicitations for the node's address. */
	if (p.proto == IPPROTO_ICMPV6 && b[0] == 135 && p.l4 &&
	    !bh_load(skb, p.l4, b, 24, BH_DATA) &&
	    !__builtin_memcmp(b + 8, door->peer6, 16))
		return TCX_NEXT;
	return drop(skb, BH_R_LOCKED_FRAME, 0, door->netid, &p);
}

/*
 * Egress of the node's own interfaces and of loopback. Other hooks check IP
 * sockets; only this one sees frames of packet sockets, and what PPPoX sockets send in L2TP.
 *
 * Where the BPF LSM does not refuse tenants' packet sockets, their frames are dropped here: ARP of the
 * node's gateway, for one. Other pods' frames stay outside VLANs, which may be those of Localnet networks.
 */
SEC("tcx/egress")
int bh_grd_own(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct bh_config *cfg;
	struct bh_packet p;
	struct bh_pod *pod = 0;
	__u64 id, podid = 0;
	__u16 proto;
	__u32 off, mark;
	int owner;

	if (!sk)
		return TCX_NEXT;
	sk = bpf_sk_fullsock(sk);
	cfg = bh_cfg();
	if (!sk || !cfg || !cfg->guard)
		return TCX_NEXT;
	if (sk->family == BH_AF_INET || sk->family == BH_AF_INET6) {
		/*
		 * A control message can set a packet's mark, and bh_grd_send has checked
		 * its socket's: on loopback the packet gets its socket's network.
		 */
		mark = sk->mark;
		if (skb->ifindex == 1 && skb->mark != mark &&
		    (bh_is_network_mark(cfg, mark) || bh_is_network_mark(cfg, skb->mark)))
			skb->mark = (skb->mark & ~BH_MARK_MASK) | (mark & BH_MARK_MASK);
		return TCX_NEXT;
	}
	if (!bh_in_host_netns(cfg, sk))
		return TCX_NEXT;
	id = bpf_skb_cgroup_id(skb);
	owner = bh_skb_owner(skb, cfg, id, &pod, &podid);
	if (!bh_is_pod(owner))
		return TCX_NEXT;
	if (skb->ifindex == 1)
		return drop(skb, BH_R_GUARD_INJECTED, id, 0, 0);
	if (!pod || !(pod->flags & BH_POD_TRUSTED)) {
		if ((pod && pod->netid && !(pod->flags & BH_POD_UNBOUND)) || bh_names_vlan(skb))
			return drop(skb, BH_R_GUARD_INJECTED, id, pod ? pod->netid : 0, 0);
	}
	off = bh_eth(skb, &proto);
	if (off && bh_to_tunnel(skb, off, cfg->tunnel_port, &p))
		return drop(skb, BH_R_GUARD_TUNNEL, id, 0, &p);
	if (!off) {
		__builtin_memset(&p, 0, sizeof(p));
		p.unparsed = 1;
	}
	if (bh_is_misplaced_checksum(skb, &p))
		return drop(skb, BH_R_GUARD_INJECTED, id, 0, 0);
	/* Networks' gateway routers would take such a frame for an answer to one of their pods. */
	if (off && (bh_dest(BH_DEST_MASQUERADE, &p.daddr) || bh_dest(BH_DEST_MASQUERADE, &p.saddr)))
		return drop(skb, BH_R_GUARD_INJECTED, id, 0, &p);
	/* More than two VLAN tags, or a truncated one: the content cannot be checked. */
	if (!proto || proto == BH_ETH_P_8021Q || proto == BH_ETH_P_8021AD)
		return drop(skb, BH_R_GUARD_TUNNEL, id, 0, 0);
	return TCX_NEXT;
}

/* leads_into reports whether an interface leads into that network alone. */
static __always_inline int leads_into(const struct bh_door *door, __u32 netid)
{
	return door && netid && door->netid == netid &&
	       (door->kind == BH_DOOR_PORT || door->kind == BH_DOOR_VRF);
}

/* is_into_network reports whether an interface leads into a network: the programs there judge who sends. */
static __always_inline int is_into_network(const struct bh_door *door)
{
	return door && (door->kind == BH_DOOR_PORT || door->kind == BH_DOOR_VRF || door->kind == BH_DOOR_DEFAULT);
}

/*
 * Packets of host-network pods' sockets, with the interface on which the IP stack sends them.
 * Drops those on the host end of a pod's interface that are not of the pod's network.
 *
 * Drops what raw sockets send to masquerade addresses: networks' gateway routers would treat it as an
 * answer to one of their pods, and pods' servers answer through other sockets. What counts is the address in the header after
 * conntrack has translated it: so no raw socket reaches a node port or host port of this node. Other sockets' datagrams
 * must have an address of the node as source: with the address of an outside host to which a pod has sent, conntrack
 * would translate a datagram for the node as an answer to the pod. Nftables drops such packets of all protocols.
 *
 * Drops datagrams to the overlay's port, except on the interfaces into the pod's own network:
 * tunnel keys are derived from ids, so a forged datagram would be delivered to a pod. The
 * destination does not decide, because a network's subnets may overlap the nodes' addresses.
 * The overlay's own packets do not pass this hook: the kernel's tunnel socket
 * sends them, not the socket that they carry.
 *
 * Drops packets of sockets that have the mark of another network, of a service or of kubelet: see bh_lsm_setopt.
 */
SEC("cgroup_skb/egress")
int bh_grd_send(struct __sk_buff *skb)
{
	struct bh_config *cfg = bh_cfg();
	__u32 ifindex = skb->ifindex;
	int owner, to_pod, to_tunnel, forged, raw;
	struct bh_door *door;
	struct bh_pod *pod = 0;
	struct bpf_sock *sk;
	__u64 id, podid = 0;
	struct bh_packet p;
	__u32 mark;

	if (!cfg || !cfg->guard)
		return 1;
	door = bpf_map_lookup_elem(&bh_doors, &ifindex);
	to_pod = door && (door->kind == BH_DOOR_POD || door->kind == BH_DOOR_LOCKED);
	to_tunnel = bh_to_tunnel(skb, 0, cfg->tunnel_port, &p) && cfg->tunnel_port;
	raw = bh_from_raw_socket(skb);
	forged = (raw || p.proto != IPPROTO_TCP) && bh_dest(BH_DEST_MASQUERADE, &p.daddr) &&
		 (raw || (!is_into_network(door) && !bh_dest(BH_DEST_OWN, &p.saddr)));
	mark = bh_special_mark(skb, cfg);
	if (!to_pod && !to_tunnel && !forged && !mark)
		return 1;
	id = bpf_skb_cgroup_id(skb);
	owner = bh_skb_owner(skb, cfg, id, &pod, &podid);
	if (!bh_is_pod(owner))
		return 1;
	sk = skb->sk;
	if (!sk || !bh_in_host_netns(cfg, sk))
		return 1;
	if (mark && !bh_may_have_mark(pod, mark)) {
		drop(skb, BH_R_SET_MARK, id, pod ? pod->netid : 0, &p);
		return 0;
	}
	if (door && to_pod && !may_send_to_pod(owner, pod, door)) {
		drop(skb, owner == BH_OWNER_POD ? BH_R_GUARD_FOREIGN : BH_R_GUARD_UNKNOWN, id, door->netid, 0);
		return 0;
	}
	if (forged) {
		drop(skb, owner == BH_OWNER_POD ? BH_R_GUARD_FOREIGN : BH_R_GUARD_UNKNOWN, id, 0, &p);
		return 0;
	}
	if (!to_tunnel || (pod && leads_into(door, pod->netid)))
		return 1;
	drop(skb, BH_R_GUARD_TUNNEL, id, pod ? pod->netid : 0, &p);
	return 0;
}

/*
 * drop_overheard drops a packet of the overlay before a socket of a host-network pod receives it: the overlay carries the
 * packets of all networks. A raw socket receives a copy, and a UDP socket all of it if it has taken the port before
 * Open vSwitch. It reports whether it has dropped it.
 */
static __always_inline int drop_overheard(struct __sk_buff *skb, const struct bh_config *cfg)
{
	struct bh_pod *pod = 0;
	__u64 id, podid = 0;
	struct bh_packet p;
	struct bpf_sock *sk;
	int owner;

	sk = skb->sk;
	if (!cfg->tunnel_port || !sk || (sk->src_port != cfg->tunnel_port && !bh_from_raw_socket(skb)) ||
	    !bh_to_tunnel(skb, 0, cfg->tunnel_port, &p))
		return 0;
	id = bpf_skb_cgroup_id(skb);
	owner = bh_skb_owner(skb, cfg, id, &pod, &podid);
	if (!bh_is_pod(owner) || (pod && (pod->flags & BH_POD_TRUSTED)))
		return 0;
	sk = skb->sk;
	if (!sk || !bh_in_host_netns(cfg, sk))
		return 0;
	drop(skb, BH_R_GUARD_RECEIVER, id, 0, &p);
	return 1;
}

/*
 * Drops packets of a network before a foreign host-network pod's socket receives
 * them: raw sockets receive from every VRF (net.ipv4.raw_l3mdev_accept), other
 * sockets from the device that they are bound to.
 */
SEC("cgroup_skb/ingress")
int bh_grd_recv(struct __sk_buff *skb)
{
	struct bh_config *cfg = bh_cfg();
	__u32 ifindex = skb->ifindex, netid, reason = BH_R_GUARD_RECEIVER;
	struct bh_door *door = 0;
	struct bh_pod *pod = 0;
	struct bh_packet p;
	struct bpf_sock *sk;
	__u64 id, podid = 0;
	int owner, dflt = 0;

	if (!cfg || !cfg->guard)
		return 1;
	if (ifindex == 1) {
		if (!bh_is_network_mark(cfg, skb->mark))
			return 1;
		netid = skb->mark >> BH_MARK_SHIFT;
		reason = BH_R_GUARD_LOOPBACK;
	} else {
		door = bpf_map_lookup_elem(&bh_doors, &ifindex);
		if (!door || (door->kind > BH_DOOR_DEFAULT && door->kind != BH_DOOR_LINK))
			return !drop_overheard(skb, cfg);
		netid = door->netid;
		dflt = door->kind == BH_DOOR_DEFAULT;
	}
	id = bpf_skb_cgroup_id(skb);
	owner = bh_skb_owner(skb, cfg, id, &pod, &podid);
	if (owner == BH_OWNER_UNKNOWN_POD && !dflt && reason == BH_R_GUARD_RECEIVER) {
		sk = skb->sk;
		if (!sk || !bh_in_host_netns(cfg, sk))
			return 1;
	} else if (owner != BH_OWNER_POD) {
		return 1;
	} else if (pod->netid == netid || (pod->flags & BH_POD_UNBOUND && dflt)) {
		return 1;
	} else if (door && bh_is_trusted_in_vrf(pod, door->kind)) {
		return 1;
	} else if (door && (pod->flags & BH_POD_INGRESS)) {
		bh_ip(skb, 0, BH_NET, &p);
		if (!p.unparsed && netid && bh_dest(BH_DEST_CLUSTER_IP, &p.saddr) == netid)
			return 1;
	} else if (reason == BH_R_GUARD_LOOPBACK && !pod->netid) {
		return 1;
	}
	sk = skb->sk;
	if (sk && !bh_in_host_netns(cfg, sk)) /* a namespace in the pod: its interfaces have other indexes */
		return 1;
	drop(skb, reason, id, netid, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
