// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Link failures for tests and labs: at the link's tc egress, VXLAN frames over IPv4 are lost at a given rate,
 * or because their source port is in a class (a router with a broken table entry loses only some flows), or
 * are marked CE when a virtual queue is long. Everything else passes untouched.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "map.h"

#define SPREAD 0x9e3779b1U /* odd, so that adjacent ports are in different classes */
#define NS_PER_S 1000000000ULL

struct impairment {
	__u32 port; /* the destination port of impaired frames, in host order */
	__u32 lost; /* of 2^32 frames */
	__u32 classes; /* of source ports; 0: none is lost for its class */
	__u32 class_lost;
	__u32 rate; /* of the virtual queue, bytes/s; 0: no queue */
	__u32 threshold; /* bytes in it from which frames are marked */
};

MAP(ARRAY, 1, __u32, struct impairment, impairment_map);
SHARED(struct impairment);

struct virtual_queue {
	__u64 bytes;
	__u64 since_ns;
};

/* One queue for all processors suffices, because tests do not need it to be exact when two of them send at
 * once. */
MAP(ARRAY, 1, __u32, struct virtual_queue, queue_map);

/* The index of each counter; `Impaired` has a field for each. */
enum count { SEEN, LOST, LOST_BY_CLASS, MARKED, COUNTS };

MAP(PERCPU_ARRAY, COUNTS, __u32, __u64, counts);
SHARED(enum count);

static __always_inline void count(enum count what)
{
	add(&counts, what, 1);
}

/* Puts a frame into the virtual queue; returns whether the queue is long. It holds at most twice the
 * threshold. */
static __always_inline int is_long(const struct impairment *impairment, __u32 length)
{
	__u32 zero = 0;
	struct virtual_queue *queue = bpf_map_lookup_elem(&queue_map, &zero);
	__u64 now = bpf_ktime_get_ns(), time, drained;

	if (!queue || !impairment->rate)
		return 0;
	time = now > queue->since_ns ? now - queue->since_ns : 0;
	drained = time < 4 * NS_PER_S ? time * impairment->rate / NS_PER_S : queue->bytes;
	queue->bytes = (queue->bytes > drained ? queue->bytes - drained : 0) + length;
	if (queue->bytes > 2ULL * impairment->threshold + length)
		queue->bytes = 2ULL * impairment->threshold + length;
	queue->since_ns = now;
	return queue->bytes > impairment->threshold;
}

SEC("classifier")
int impair(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct impairment *impairment = bpf_map_lookup_elem(&impairment_map, &zero);
	struct iphdr ip;
	struct udphdr udp;

	if (!impairment || skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip, sizeof(ip)) || ip.ihl != 5 ||
	    ip.protocol != IPPROTO_UDP ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + sizeof(ip), &udp, sizeof(udp)) ||
	    udp.dest != bpf_htons(impairment->port))
		return TC_ACT_UNSPEC;
	count(SEEN);
	if (impairment->classes &&
	    (bpf_ntohs(udp.source) * SPREAD >> 16) % impairment->classes == impairment->class_lost) {
		count(LOST_BY_CLASS);
		return TC_ACT_SHOT;
	}
	if (bpf_get_prandom_u32() < impairment->lost) {
		count(LOST);
		return TC_ACT_SHOT;
	}
	if (is_long(impairment, skb->wire_len ?: skb->len) && bpf_skb_ecn_set_ce(skb))
		count(MARKED);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
