/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Socket families, packet sockets and socket options of host-network pods (BPF LSM). Packet sockets
 * receive and send frames below every other check. Tenants' pods and unknown pods may not create
 * them, nor sockets of other families than those that the programs confine. Other pods may bind
 * packet sockets to the node's own interfaces, and receive
 * nothing before the bind: no packet socket receives from all interfaces or from
 * an interface that leads into a network. Pods that an administrator trusts are
 * not limited. The bind hook also checks a socket's device, and the scope id of a bind to a link-local
 * address, which chooses a device and which no other hook sees.
 */
#include "bh_btf.h"
#include "bh_pods.h"
#include "bh_sockopt.h"
#include <bpf/bpf_tracing.h>

#define BH_SOCK_PACKET 10
#define BH_AF_PPPOX 24
#define BH_AF_VSOCK 40
#define BH_IPPROTO_SMC 256

struct sockaddr {
	unsigned short sa_family;
} BTF;

static __always_inline int refuse(__u32 reason, const struct bh_pod *pod, __u8 family)
{
	bh_refuse(reason, pod ? pod->netid : 0, family, 0, 0, 0);
	return -BH_EPERM;
}

/* A tenant's pod that did not opt out of VRF binding, or an unknown pod. */
static __always_inline int is_confined(const struct bh_pod *pod)
{
	return !pod || (pod->netid && !(pod->flags & BH_POD_UNBOUND));
}

/*
 * is_common reports whether pods may have sockets of a family. Others bypass the programs: PPPoX sends through L2TP's
 * tunnel socket, SMC, RDS and RxRPC through sockets of the kernel, and vsock, TIPC and QRTR reach processes of the node.
 */
static __always_inline int is_common(int family, int protocol)
{
	if (family == BH_AF_INET || family == BH_AF_INET6)
		return protocol != BH_IPPROTO_SMC;
	return family == BH_AF_UNIX || family == BH_AF_NETLINK || family == BH_AF_ALG;
}

SEC("lsm/socket_create")
int BPF_PROG(bh_lsm_create, int family, int type, int protocol, int kern, int ret)
{
	struct task_struct *task;
	struct bh_config *cfg;
	struct bh_pod *pod = 0;
	__u64 podid = 0;
	int owner;

	if (ret || kern || is_common(family, protocol))
		return ret;
	cfg = bh_cfg();
	task = bpf_get_current_task_btf();
	if (!cfg || !cfg->guard)
		return 0;
	owner = bh_task_owner(0, cfg, bpf_get_current_cgroup_id(), &pod, &podid);
	if (!bh_is_pod(owner) ||
	    (pod && (pod->flags & BH_POD_TRUSTED)))
		return 0;
	/* On most kernels vsock has no network namespaces: check it even if a host-network pod's process has left the host's. */
	if (task->nsproxy->net_ns->net_cookie != cfg->host_netns && (!pod || family != BH_AF_VSOCK))
		return 0;
	if (is_confined(pod))
		return refuse(BH_R_PACKET_SOCKET, pod, family);
	/* With a protocol, a packet socket receives from all interfaces until it is bound to one. */
	if (family == BH_AF_PACKET ? protocol || type == BH_SOCK_PACKET : family == BH_AF_XDP || family == BH_AF_PPPOX)
		return refuse(BH_R_PACKET_SOCKET, pod, family);
	return 0;
}

/*
 * Refuses options whatever their value: the kernel does not run the programs of cgroup/setsockopt, which
 * check values, for 32-bit system calls. Pods outside tenants may set marks and devices: bh_grd_send checks
 * their sockets' marks, and the programs of the doors their packets.
 *
 * A raw socket that queues errors gets those of all sockets of its protocol, of every VRF, each with the beginning
 * of the packet that caused it. No program sees what is queued.
 */
SEC("lsm/socket_setsockopt")
int BPF_PROG(bh_lsm_setopt, struct socket *sock, int level, int name, int ret)
{
	int kind = bh_option_kind(level, name), owner;
	struct bh_config *cfg;
	struct bh_pod *pod = 0;
	__u64 podid = 0;
	struct sock *sk;

	if (ret || (kind != BH_SOCKOPT_BYPASS && kind != BH_SOCKOPT_MARK && kind != BH_SOCKOPT_DEVICE &&
		    (kind != BH_SOCKOPT_ERRORS || sock->type != BH_SOCK_RAW)))
		return ret;
	sk = sock->sk;
	cfg = bh_cfg();
	if (!sk || !cfg || !cfg->guard || sk->__sk_common.skc_net.net->net_cookie != cfg->host_netns)
		return 0;
	owner = bh_task_owner(0, cfg, bpf_get_current_cgroup_id(), &pod, &podid);
	if (!bh_is_pod(owner))
		return 0;
	if (cfg->agent_cgroup && bpf_get_current_cgroup_id() == cfg->agent_cgroup)
		return 0;
	if (kind == BH_SOCKOPT_BYPASS || kind == BH_SOCKOPT_ERRORS)
		return pod && (pod->flags & BH_POD_TRUSTED) ? 0 : refuse(BH_R_BYPASS, pod, 0);
	if (!pod || !pod->netid || (pod->flags & (BH_POD_UNBOUND | BH_POD_INGRESS)))
		return 0;
	return refuse(kind == BH_SOCKOPT_MARK ? BH_R_SET_MARK : BH_R_SET_DEVICE, pod, 0);
}

SEC("lsm/socket_bind")
int BPF_PROG(bh_lsm_bind, struct socket *sock, struct sockaddr *address, int addrlen, int ret)
{
	struct bh_config *cfg;
	struct bh_pod *pod = 0;
	struct bh_door *door;
	__u32 ifindex = 0, device;
	__u64 podid = 0;
	struct sock *sk;
	__u16 family;
	int owner;

	if (ret)
		return ret;
	sk = sock->sk;
	if (!sk)
		return 0;
	family = sk->__sk_common.skc_family;
	device = sk->__sk_common.skc_bound_dev_if;
	if (family != BH_AF_PACKET && family != BH_AF_INET6 && (family != BH_AF_INET || !device))
		return 0;
	cfg = bh_cfg();
	if (!cfg || !cfg->guard || sk->__sk_common.skc_net.net->net_cookie != cfg->host_netns)
		return 0;
	owner = bh_task_owner(0, cfg, bpf_get_current_cgroup_id(), &pod, &podid);
	if (!bh_is_pod(owner))
		return 0;
	if (family != BH_AF_PACKET) {
		/* A port of a network's VRF is for processes of the network, even if nothing listens on it. */
		if (device && !bh_may_use_device(pod, device) && !bh_is_ingress_socket(pod, sk->sk_mark, device))
			return refuse(BH_R_FOREIGN_DEVICE, pod, family);
		/* struct sockaddr_in6: the scope id is the last field. */
		if (family != BH_AF_INET6 || addrlen < 28 || bpf_probe_read_kernel(&ifindex, sizeof(ifindex), (void *)address + 24) || !ifindex ||
		    bh_may_use_device(pod, ifindex))
			return 0;
		return refuse(BH_R_FOREIGN_DEVICE, pod, family);
	}
	if (pod && (pod->flags & BH_POD_TRUSTED))
		return 0;
	/* struct sockaddr_ll: family and protocol, two bytes each, then the interface. */
	if (is_confined(pod) || addrlen < 8 ||
	    bpf_probe_read_kernel(&ifindex, sizeof(ifindex), (void *)address + 4))
		return refuse(BH_R_PACKET_SOCKET, pod, family);
	door = bpf_map_lookup_elem(&bh_doors, &ifindex);
	return door && door->kind == BH_DOOR_OWN ? 0 : refuse(BH_R_PACKET_SOCKET, pod, family);
}

char _license[] SEC("license") = "Dual BSD/GPL";
