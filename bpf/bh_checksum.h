/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Unfinished checksums. A sender may leave the checksum to the device that transmits the packet (CHECKSUM_PARTIAL), and sets
 * where it begins and where it is written. With struct virtio_net_hdr, a packet socket or a virtual machine can name
 * any two bytes, which would then change a port or an address after all checks.
 */
#ifndef BH_CHECKSUM_H
#define BH_CHECKSUM_H

#include "bh_btf.h"
#include "bh_parse.h"
#include <bpf/bpf_core_read.h>

#define BH_CHECKSUM_PARTIAL 3

/*
 * bh_is_misplaced_checksum reports whether the packet's checksum would be written over a header that the programs,
 * Open vSwitch or nftables check, other than its own checksum field. Offsets in p are from the packet's data. Checksums
 * behind the transport header are of packets that a tunnel in the pod carries. The programs' context is the kernel's
 * struct sk_buff, which the verifier lets no program read: it is copied, as bh_in_host_netns does.
 */
static __always_inline int bh_is_misplaced_checksum(struct __sk_buff *skb, const struct bh_packet *p)
{
	struct sk_buff *kernel = (void *)skb;
	__u32 header = 0, field = 0, start, at;
	unsigned char *head, *data;
	__u16 from, offset;

	if (BPF_CORE_READ_BITFIELD_PROBED(kernel, ip_summed) != BH_CHECKSUM_PARTIAL)
		return 0;
	if (p->unparsed || p->later_fragment || bpf_core_read(&head, sizeof(head), &kernel->head) ||
	    bpf_core_read(&data, sizeof(data), &kernel->data) || bpf_core_read(&from, sizeof(from), &kernel->csum_start) ||
	    bpf_core_read(&offset, sizeof(offset), &kernel->csum_offset))
		return 1;
	start = from - (__u32)(data - head);
	at = start + offset;
	switch (p->proto) {
	case IPPROTO_TCP:
		header = 20;
		field = 16;
		break;
	case IPPROTO_UDP:
		header = 8;
		field = 6;
		break;
	case IPPROTO_SCTP:
		header = 12;
		field = 8;
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6: /* what follows the header is checked, too */
		header = 0xffff;
		field = 2;
		break;
	}
	if (field && start == p->l4 && offset == field)
		return 0;
	return (__s32)start < 0 || at < p->l4 + header;
}

#endif
