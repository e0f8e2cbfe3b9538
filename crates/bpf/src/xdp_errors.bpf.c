// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Counts frames that an XDP program has sent and the kernel has then dropped: the driver's ring was full, a
 * veth's peer does not receive from XDP, or an interface is down. By then the XDP program has returned, so
 * the loss is visible only at tracepoints.
 *
 * A frame is counted by the interface at which it arrived, with the interface that was to send it, or if that
 * is not known, with its target's place in the map of interfaces. Programs of other processes may send frames
 * through the same interface.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "map.h"

#define INTERFACES_MAX 4096

/* The members of the kernel's types that are read. Their offsets are those of the running kernel. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
};
#pragma clang attribute pop

/* The namespace whose interfaces are counted: indices are unique only within one. */
const volatile __u32 network = 0;

struct key {
	__u32 from;
	__u32 to; /* an interface, or a place in the map of interfaces */
};

MAP(HASH, INTERFACES_MAX, struct key, __u64, unsent);
MAP(HASH, INTERFACES_MAX, struct key, __u64, unredirected);
SHARED(struct key);

static __always_inline void count(void *map, const struct net_device *from, __u32 to, __u64 frames)
{
	struct key key = { from->ifindex, to };
	__u64 *sum;

	if (from->nd_net.net->ns.inum != network)
		return;
	sum = bpf_map_lookup_elem(map, &key);
	if (sum)
		__sync_fetch_and_add(sum, frames);
	else if (bpf_map_update_elem(map, &key, &frames, BPF_NOEXIST)) {
		sum = bpf_map_lookup_elem(map, &key);
		if (sum)
			__sync_fetch_and_add(sum, frames);
	}
}

/* XDP_TX of drivers that send in bulk, such as veth. */
SEC("tp_btf/xdp_bulk_tx")
int BPF_PROG(sent_back, const struct net_device *device, int sent, int drops, int error)
{
	if (drops > 0)
		count(&unsent, device, device->ifindex, drops);
	return 0;
}

/* XDP_TX of the others. */
SEC("tp_btf/xdp_exception")
int BPF_PROG(refused, const struct net_device *device, const void *program, __u32 action)
{
	if (action == XDP_TX)
		count(&unsent, device, device->ifindex, 1);
	return 0;
}

/* A redirection that was accepted but could not be carried out. */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(redirected, const struct net_device *from, const struct net_device *to, int sent, int drops,
	     int error)
{
	if (drops > 0)
		count(&unsent, from, to->ifindex, drops);
	return 0;
}

/* A redirection that was refused. Sockets report theirs in another way. */
SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(refused_redirect, const struct net_device *from, const void *program, const void *target,
	     int error, __u32 map_type, __u32 map, __u32 index)
{
	if (map_type == BPF_MAP_TYPE_DEVMAP)
		count(&unredirected, from, index, 1);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
