/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Abstract unix sockets of tenants' host-network pods (BPF LSM). Their names belong to the network
 * namespace, which all host-network pods share: a process of one tenant would reach the server of
 * another. A socket with a path is reached only by those who share the directory.
 */
#include "bh_btf.h"
#include "bh_pods.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

struct sockaddr_un {
	unsigned short sun_family;
	char sun_path[108];
} BTF;

struct unix_address {
	struct sockaddr_un name[0];
} BTF;

struct unix_sock {
	struct unix_address *addr;
} BTF;

/* Records the creating pod in the socket's storage, as bh_prb_create does for IP sockets. */
SEC("lsm/socket_post_create")
int BPF_PROG(bh_lsm_usock, struct socket *sock, int family, int type, int protocol, int kern, int ret)
{
	struct task_struct *task;
	struct bh_config *cfg;
	struct bh_pod *pod = 0;
	struct bh_sock *s;
	struct sock *sk;
	__u64 podid = 0;

	if (ret || kern || family != BH_AF_UNIX)
		return ret;
	sk = sock->sk;
	if (!sk)
		return 0;
	cfg = bh_cfg();
	task = bpf_get_current_task_btf();
	if (!cfg || !cfg->guard || task->nsproxy->net_ns->net_cookie != cfg->host_netns)
		return 0;
	if (bh_task_owner(0, cfg, bpf_get_current_cgroup_id(), &pod, &podid) != BH_OWNER_POD)
		return 0;
	s = bpf_sk_storage_get(&bh_socks, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (s)
		s->pod = podid;
	return 0;
}

static __always_inline int has_abstract_name(struct sock *sk)
{
	struct unix_address *addr = BPF_CORE_READ((struct unix_sock *)sk, addr);
	char first = 1;

	return addr && !bpf_core_read(&first, sizeof(first), &addr->name[0].sun_path[0]) && !first;
}

/*
 * check returns -EPERM if the server's socket is a tenant's, and the current process is of another
 * tenant's pod or of a pod that the agent does not know yet.
 */
static __always_inline int check(struct sock *server)
{
	struct bh_config *cfg = bh_cfg();
	struct bh_pod *pod = 0, *other;
	struct bh_sock *s;
	__u64 podid = 0, id;
	int owner;

	if (!server || !cfg || !cfg->guard || server->__sk_common.skc_net.net->net_cookie != cfg->host_netns)
		return 0;
	s = bpf_sk_storage_get(&bh_socks, server, 0, 0);
	if (!s)
		return 0;
	id = s->pod;
	other = bpf_map_lookup_elem(&bh_pods, &id);
	if (!other || !other->netid || !has_abstract_name(server))
		return 0;
	owner = bh_task_owner(0, cfg, bpf_get_current_cgroup_id(), &pod, &podid);
	if (owner != BH_OWNER_UNKNOWN_POD && (owner != BH_OWNER_POD || !pod->netid || pod->netid == other->netid))
		return 0;
	bh_refuse(BH_R_UNIX_FOREIGN, other->netid, 0, 0, 0, 0);
	return -BH_EPERM;
}

SEC("lsm/unix_stream_connect")
int BPF_PROG(bh_lsm_uconn, struct sock *sock, struct sock *other, struct sock *newsk, int ret)
{
	return ret ? ret : check(other);
}

SEC("lsm/unix_may_send")
int BPF_PROG(bh_lsm_usend, struct socket *sock, struct socket *other, int ret)
{
	return ret ? ret : check(other->sk);
}

char _license[] SEC("license") = "Dual BSD/GPL";
