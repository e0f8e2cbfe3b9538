// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The program that is attached through clsact where the kernel has no tcx (before Linux 6.6). A clsact filter
 * stays in place after the process that attached it has ended. This one only jumps to the program in its
 * array. The kernel empties such an array when the last process that holds it open ends, and the filter then
 * passes every frame.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "map.h"

MAP(PROG_ARRAY, 1, __u32, __u32, hook_target);

SEC("classifier")
int weir_hook(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &hook_target, 0);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
