/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The kernel's types, as far as the programs read them. The loader relocates their fields (CO-RE). */
#ifndef BH_BTF_H
#define BH_BTF_H

#include "bh_common.h"

#define BH_AF_UNIX 1
#define BH_AF_NETLINK 16
#define BH_AF_PACKET 17
#define BH_AF_ALG 38
#define BH_AF_XDP 44

#define BH_EPERM 1

#define BTF __attribute__((preserve_access_index))

struct net {
	__u64 net_cookie;
} BTF;

typedef struct {
	struct net *net;
} BTF possible_net_t;

struct nsproxy {
	struct net *net_ns;
} BTF;

struct task_struct {
	struct nsproxy *nsproxy;
} BTF;

struct sock_common {
	unsigned short skc_family;
	int skc_bound_dev_if;
	possible_net_t skc_net;
} BTF;

struct sock {
	struct sock_common __sk_common;
	__u32 sk_mark;
} BTF;

struct sk_buff {
	__u8 ip_summed : 2;
	__u16 csum_start; /* from head */
	__u16 csum_offset; /* from csum_start */
	unsigned char *head, *data;
} BTF;

struct socket {
	short type;
	struct sock *sk;
} BTF;

#endif
