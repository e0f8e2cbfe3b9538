// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Traffic for benches. BPF_PROG_TEST_RUN runs this program on live frames, and it transmits each of them on
 * the interface given as its ingress, with another IPv4 source address each time. The kernel allocates no
 * packet for it, so one core sends several times as much as one core can forward with AF_XDP on a veth.
 *
 * The IPv4 checksum is not updated; nothing here checks it.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "map.h"

#define SOURCES 0xffff /* of 10.1.0.0/16 */

MAP(PERCPU_ARRAY, 1, __u32, __u32, sent);

SEC("xdp")
int xdp_generate(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	__u32 zero = 0;
	__u32 *number = bpf_map_lookup_elem(&sent, &zero);

	if (!number || (void *)(ip + 1) > (void *)(long)context->data_end)
		return XDP_DROP;
	ip->saddr = bpf_htonl(0x0a010000 | (*number)++ & SOURCES);
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
