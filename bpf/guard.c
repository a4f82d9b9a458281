/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The guard: what a local socket sends into a network comes from a socket of
 * that network's own pods, whatever option, control message, scope id or frame
 * chose the way. It judges packets on the interfaces ("doors") that lead into
 * networks, by the cgroup of the socket that sent them, and packets that arrive
 * by them, by the socket that is to hear them.
 *
 * Processes outside all pods, the node's administrator's among them, may enter.
 */
#include "bh_pods.h"
#include "bh_parse.h"

#include <bpf/bpf_core_read.h>

#define TCX_NEXT -1
#define TCX_DROP 2
#define BH_AF_PACKET 17

#define BTF __attribute__((preserve_access_index))

struct net {
	__u64 net_cookie;
} BTF;

typedef struct {
	struct net *net;
} BTF possible_net_t;

struct sock_common {
	possible_net_t skc_net;
} BTF;

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
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bh_dest_key);
	__type(value, __u32);
} bh_dests SEC(".maps");

static __always_inline int drop(struct __sk_buff *skb, __u32 reason, __u64 cgroup, __u32 netid,
				const struct bh_packet *p)
{
	bh_count(reason);
	bh_tell(reason, cgroup, 0, netid, p ? p->family : 0, p ? p->proto : 0, p ? &p->daddr : 0, 0);
	return TCX_DROP;
}

static __always_inline int is_network_mark(const struct bh_config *cfg, __u32 mark)
{
	return mark >= cfg->mark_first && mark <= cfg->mark_last;
}

/*
 * kernel_sends tells whether a packet without a socket of its own is one that
 * the kernel makes by itself: neighbour discovery, multicast membership, ICMP
 * answers and errors, and TCP and SCTP answers without payload.
 */
static __always_inline int kernel_sends(struct __sk_buff *skb, const struct bh_packet *p)
{
	__u8 b[14];

	if (skb->protocol == bpf_htons(BH_ETH_P_ARP))
		return 1;
	if (p->unclear || p->later_fragment)
		return 0;
	switch (p->proto) {
	case IPPROTO_ICMP:
		if (bpf_skb_load_bytes_relative(skb, p->l4, b, 1, BPF_HDR_START_NET))
			return 0;
		/* echo reply, unreachable, time exceeded, parameter problem, timestamp reply */
		return b[0] == 0 || b[0] == 3 || b[0] == 11 || b[0] == 12 || b[0] == 14;
	case IPPROTO_ICMPV6:
		if (bpf_skb_load_bytes_relative(skb, p->l4, b, 1, BPF_HDR_START_NET))
			return 0;
		/* errors, echo reply, MLD, solicitations and neighbour advertisement, MLDv2 */
		return b[0] <= 4 || (b[0] >= 129 && b[0] <= 133) || b[0] == 135 || b[0] == 136 ||
		       b[0] == 143;
	case IPPROTO_IGMP:
		return 1;
	case IPPROTO_TCP:
		if (bpf_skb_load_bytes_relative(skb, p->l4, b, 14, BPF_HDR_START_NET))
			return 0;
		/* RST, or ACK without SYN, FIN and payload */
		return (b[13] & 4) ||
		       ((b[13] & 0x13) == 0x10 && p->l4 + (b[12] >> 4) * 4 >= p->len);
	case IPPROTO_SCTP:
		if (bpf_skb_load_bytes_relative(skb, p->l4 + 12, b, 1, BPF_HDR_START_NET))
			return 0;
		return b[0] == 6 || b[0] == 14; /* ABORT, SHUTDOWN COMPLETE */
	}
	return 0;
}

/* from_kubelet: by the mark its sockets are born with, which no pod's can have, or by cgroup. */
static __always_inline int from_kubelet(struct __sk_buff *skb, const struct bh_config *cfg)
{
	struct bpf_sock *sk = skb->sk;
	struct bh_kubelet_key key = { .who = BH_WHO_CGROUP };
	__u32 levels = cfg->kubelet_levels;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (sk && cfg->kubelet_mark && sk->mark == cfg->kubelet_mark)
		return 1;
	for (int i = 1; i < BH_MAX_LEVEL && levels >> i; i++) {
		if (!(levels >> i & 1))
			continue;
		key.id = bpf_skb_ancestor_cgroup_id(skb, i);
		if (!key.id)
			break;
		if (bpf_map_lookup_elem(&bh_kubelet, &key))
			return 1;
	}
	return 0;
}

static __always_inline int from_packet_socket(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	return sk && sk->family == BH_AF_PACKET;
}

/*
 * in_host tells whether a socket lives in the host's network namespace. What
 * pods send by interfaces of their own keeps its socket on its way across the
 * host. The helper that tells the namespace of a packet's socket is younger
 * than the kernels this runs on, and no pointer may be made into a socket: so
 * its beginning is copied.
 */
static __always_inline int in_host(const struct bh_config *cfg, void *sk)
{
	__u32 at = bpf_core_field_offset(struct sock_common, skc_net.net);
	__u8 head[128];
	struct net *net;
	__u64 cookie;

	if (at > sizeof(head) - sizeof(net) || bpf_probe_read_kernel(head, sizeof(head), sk))
		return 1;
	net = *(struct net **)(head + at);
	if (bpf_core_read(&cookie, sizeof(cookie), &net->net_cookie))
		return 1;
	return cookie == cfg->host_netns;
}

/* Management ports and VRFs, outwards: into the network. */
SEC("tcx/egress")
int bh_grd_port(struct __sk_buff *skb)
{
	struct bh_config *cfg = bh_cfg();
	__u32 ifindex = skb->ifindex, netid = 0, kind = 0;
	__u64 id, podid = 0;
	struct bh_pod *pod = 0;
	struct bh_door *door;
	struct bh_packet p;
	int who;

	if (!cfg || !cfg->guard)
		return TCX_NEXT;
	door = bpf_map_lookup_elem(&bh_doors, &ifindex);
	if (door) {
		netid = door->netid;
		kind = door->kind;
	}
	id = bpf_skb_cgroup_id(skb);
	who = bh_who_skb(skb, cfg, id, &pod, &podid);
	if (kind != BH_DOOR_DEFAULT) {
		if (who == BH_OUTSIDE || (who == BH_POD && netid && pod->netid == netid))
			return TCX_NEXT;
		if (who == BH_POD || who == BH_STRANGER) {
			bh_ip(skb, 0, BPF_HDR_START_NET, &p);
			return drop(skb, who == BH_POD ? BH_R_GUARD_FOREIGN : BH_R_GUARD_UNKNOWN, id,
				    netid, &p);
		}
	}
	bh_ip(skb, 0, BPF_HDR_START_NET, &p);
	if (who == BH_NOBODY && skb->ingress_ifindex) {
		if (door && door->forward_from && door->forward_from == skb->ingress_ifindex)
			return TCX_NEXT;
		return drop(skb, BH_R_GUARD_FORWARDED, id, netid, &p);
	}
	if (who == BH_NOBODY || who == BH_KERNEL)
		return kernel_sends(skb, &p) ? TCX_NEXT : drop(skb, BH_R_GUARD_NO_SOCKET, id, netid, &p);
	/* The cluster default network: of nobody's pods in particular, but not of tenants'. */
	if (who == BH_POD && pod->netid && !(pod->flags & BH_POD_UNBOUND))
		return drop(skb, BH_R_GUARD_FOREIGN, id, netid, &p);
	if (who != BH_OUTSIDE && from_packet_socket(skb) && !(pod && (pod->flags & BH_POD_TRUSTED)))
		return drop(skb, BH_R_GUARD_INJECTED, id, netid, &p);
	if (cfg->probe_lock && (p.unclear || bpf_map_lookup_elem(&bh_locked, &p.daddr))) {
		if (p.unclear && who == BH_OUTSIDE)
			return TCX_NEXT; /* ARP by hand and the like, of the node's administrator */
		if (who != BH_OUTSIDE || !from_kubelet(skb, cfg))
			return drop(skb, BH_R_GUARD_LOCKED, id, netid, &p);
	}
	return TCX_NEXT;
}

/*
 * Host ends of pods' interfaces, towards the pod. What Open vSwitch forwards
 * comes from other interfaces and has passed their programs; it has the socket
 * of a pod's own network namespace, or, as the first packet of a flow, has lost
 * it on the way. So only what a socket of the host's namespace sent is judged.
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
	int who;

	if (!cfg || !cfg->guard)
		return TCX_NEXT;
	door = bpf_map_lookup_elem(&bh_doors, &ifindex);
	if (door && door->kind == BH_DOOR_LOCKED) {
		__u8 from[6];

		if (bpf_skb_load_bytes_relative(skb, 6, from, 6, BPF_HDR_START_MAC) ||
		    __builtin_memcmp(from, door->peer_mac, 6))
			return drop(skb, BH_R_LOCKED_FRAME, 0, door->netid, 0);
	}
	sk = skb->sk;
	if (!sk || !in_host(cfg, sk))
		return TCX_NEXT;
	id = bpf_skb_cgroup_id(skb);
	who = bh_who_skb(skb, cfg, id, &pod, &podid);
	if (who != BH_POD && who != BH_STRANGER)
		return TCX_NEXT;
	if (from_packet_socket(skb))
		return drop(skb, BH_R_GUARD_INJECTED, id, 0, 0);
	if (!door)
		return TCX_NEXT;
	netid = door->netid;
	if (door->kind == BH_DOOR_LOCKED)
		return drop(skb, BH_R_GUARD_LOCKED, id, netid, 0);
	if (who == BH_STRANGER)
		return netid ? drop(skb, BH_R_GUARD_UNKNOWN, id, netid, 0) : TCX_NEXT;
	if (pod->netid != netid && !(netid == 0 && (pod->flags & BH_POD_UNBOUND)))
		return drop(skb, BH_R_GUARD_FOREIGN, id, netid, 0);
	return TCX_NEXT;
}

/* inside tells whether an address is of the network's own subnets. */
static __always_inline int inside(__u32 netid, const struct bh_addr *addr)
{
	struct bh_dest_key key = {
		.prefixlen = BH_DEST_FIXED + 128,
		.netid = bpf_htonl(netid),
		.family = bpf_htonl(bh_is_mapped(addr) ? BH_AF_INET : BH_AF_INET6),
		.addr = { addr->a[0], addr->a[1], addr->a[2], addr->a[3] },
	};

	return bpf_map_lookup_elem(&bh_dests, &key) != 0;
}

/*
 * Host ends of pods' interfaces, from the pod: what no pod may say. OVN lets
 * neighbour discovery, router advertisements and multicast listener reports
 * past every access list (northd's own rules at priority 65532).
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
	if (!off)
		/* ARP is held to its access lists; other protocols have no business here. */
		return locked && proto != BH_ETH_P_ARP ? drop(skb, BH_R_LOCKED_FRAME, 0, door->netid, 0) :
							 TCX_NEXT;
	bh_ip(skb, off, BPF_HDR_START_MAC, &p);
	if (p.unclear)
		return drop(skb, BH_R_POD_FRAME, 0, door->netid, &p);
	if (p.proto == IPPROTO_UDP && !p.later_fragment) {
		if (bpf_skb_load_bytes_relative(skb, p.l4, b, 4, BPF_HDR_START_MAC))
			return drop(skb, BH_R_POD_FRAME, 0, door->netid, &p);
		/* A DHCP server's answer: from 67 to 68, of DHCPv6 from 547 to 546. */
		if ((b[0] == 0 && b[1] == 67 && b[2] == 0 && b[3] == 68) ||
		    (b[0] == 2 && b[1] == 35 && b[2] == 2 && b[3] == 34))
			return drop(skb, BH_R_POD_FRAME, 0, door->netid, &p);
		if ((b[2] << 8 | b[3]) == cfg->tunnel_port && !inside(door->netid, &p.daddr))
			return drop(skb, BH_R_GUARD_TUNNEL, 0, door->netid, &p);
	}
	if (p.proto == IPPROTO_ICMPV6 && !p.later_fragment) {
		if (bpf_skb_load_bytes_relative(skb, p.l4, b, 1, BPF_HDR_START_MAC) || b[0] == 134 ||
		    b[0] == 137)
			return drop(skb, BH_R_POD_FRAME, 0, door->netid, &p);
	}
	if (!locked)
		return TCX_NEXT;
	if (bpf_skb_load_bytes_relative(skb, 0, to, 6, BPF_HDR_START_MAC))
		return TCX_DROP;
	if (!__builtin_memcmp(to, door->peer_mac, 6))
		return TCX_NEXT;
	/* To all: only the question where the node is. */
	if (p.proto == IPPROTO_ICMPV6 && b[0] == 135 && p.l4 &&
	    !bpf_skb_load_bytes_relative(skb, p.l4, b, 24, BPF_HDR_START_MAC) &&
	    !__builtin_memcmp(b + 8, door->peer6, 16))
		return TCX_NEXT;
	return drop(skb, BH_R_LOCKED_FRAME, 0, door->netid, &p);
}

/*
 * The node's own interfaces, outwards, and loopback. Sockets are judged
 * elsewhere; frames of packet sockets pass only here.
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
	int who;

	if (!sk)
		return TCX_NEXT;
	sk = bpf_sk_fullsock(sk);
	cfg = bh_cfg();
	if (!sk || !cfg || !cfg->guard)
		return TCX_NEXT;
	if (sk->family != BH_AF_PACKET) {
		/* A packet's mark can be chosen, its socket's cannot: over loopback it is the socket's. */
		mark = sk->mark;
		if (skb->ifindex == 1 && skb->mark != mark &&
		    (is_network_mark(cfg, mark) || is_network_mark(cfg, skb->mark)))
			skb->mark = mark;
		return TCX_NEXT;
	}
	if (!in_host(cfg, sk))
		return TCX_NEXT;
	id = bpf_skb_cgroup_id(skb);
	who = bh_who_skb(skb, cfg, id, &pod, &podid);
	if (who != BH_POD && who != BH_STRANGER)
		return TCX_NEXT;
	if (skb->ifindex == 1)
		return drop(skb, BH_R_GUARD_INJECTED, id, 0, 0);
	off = bh_eth(skb, &proto);
	if (off && bh_to_tunnel(skb, off, BPF_HDR_START_MAC, cfg->tunnel_port, &p))
		return drop(skb, BH_R_GUARD_TUNNEL, id, 0, &p);
	/* Tags behind tags: nobody can say what is in it. */
	if (proto == BH_ETH_P_8021Q || proto == BH_ETH_P_8021AD)
		return drop(skb, BH_R_GUARD_TUNNEL, id, 0, 0);
	return TCX_NEXT;
}

/*
 * What a pod's socket in the host's network sends to the overlay's port: keys
 * follow from ids, so a datagram made by hand would be delivered to a pod. The
 * overlay's own packets do not come here, as they are sent by another socket
 * than the one they carry.
 */
SEC("cgroup_skb/egress")
int bh_grd_send(struct __sk_buff *skb)
{
	struct bh_config *cfg = bh_cfg();
	struct bpf_sock *sk;
	struct bh_packet p;
	struct bh_pod *pod = 0;
	__u64 id, podid = 0;
	int who;

	if (!cfg || !cfg->guard || !cfg->tunnel_port)
		return 1;
	if (!bh_to_tunnel(skb, 0, BPF_HDR_START_NET, cfg->tunnel_port, &p))
		return 1;
	id = bpf_skb_cgroup_id(skb);
	who = bh_who_skb(skb, cfg, id, &pod, &podid);
	if (who != BH_POD && who != BH_STRANGER)
		return 1;
	sk = skb->sk;
	if (!sk || !in_host(cfg, sk))
		return 1;
	if (pod && !p.unclear && pod->netid && inside(pod->netid, &p.daddr))
		return 1;
	drop(skb, BH_R_GUARD_TUNNEL, id, pod ? pod->netid : 0, &p);
	return 0;
}

/*
 * What a pod's socket in the host's network hears: raw sockets hear every VRF
 * (net.ipv4.raw_l3mdev_accept), and others that were bound to its device.
 */
SEC("cgroup_skb/ingress")
int bh_grd_recv(struct __sk_buff *skb)
{
	struct bh_config *cfg = bh_cfg();
	__u32 ifindex = skb->ifindex, netid, reason = BH_R_GUARD_HEARD;
	struct bh_door *door;
	struct bh_pod *pod = 0;
	struct bpf_sock *sk;
	__u64 id, podid = 0;
	int who, dflt = 0;

	if (!cfg || !cfg->guard)
		return 1;
	if (ifindex == 1) {
		if (!is_network_mark(cfg, skb->mark))
			return 1;
		netid = skb->mark - cfg->mark_first + 1;
		reason = BH_R_GUARD_LOOPBACK;
	} else {
		door = bpf_map_lookup_elem(&bh_doors, &ifindex);
		if (!door || door->kind > BH_DOOR_DEFAULT)
			return 1;
		netid = door->netid;
		dflt = door->kind == BH_DOOR_DEFAULT;
	}
	id = bpf_skb_cgroup_id(skb);
	who = bh_who_skb(skb, cfg, id, &pod, &podid);
	if (who == BH_STRANGER && !dflt && reason == BH_R_GUARD_HEARD) {
		sk = skb->sk;
		if (!sk || !in_host(cfg, sk))
			return 1;
	} else if (who != BH_POD) {
		return 1;
	} else if (pod->netid == netid || (pod->flags & BH_POD_UNBOUND && dflt)) {
		return 1;
	} else if (reason == BH_R_GUARD_LOOPBACK && !pod->netid) {
		return 1;
	}
	drop(skb, reason, id, netid, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
