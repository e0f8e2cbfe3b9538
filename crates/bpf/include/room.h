// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Removes the headers of a tunnel. */

/* Linux 6.3 and later: the inner packet has the other IP version. Older kernel headers do not define these
 * flags. */
#define DECAP_L3_IPV4 (1ULL << 7)
#define DECAP_L3_IPV6 (1ULL << 8)

#define EINVAL 22

/* An IPv6 header is longer than an IPv4 header by this number of bytes. */
#define LONGER (sizeof(struct ipv6hdr) - sizeof(struct iphdr))

enum taken {
	TAKEN,
	REFUSED, /* the frame is unchanged */
	DAMAGED, /* the frame must be dropped */
};

/* Removes `length` bytes after the Ethernet header of a frame with EtherType `from`; an IP packet with
 * EtherType `to` follows them. The caller writes the Ethernet header.
 *
 * Before Linux 6.3, the kernel refuses the flag for the other IP version. A second helper changes the version
 * there: it inserts or removes LONGER bytes after the Ethernet header. */
static __always_inline enum taken take_off(struct __sk_buff *skb, __u32 length, __be16 from, __be16 to,
					   __u64 flags)
{
	const int shorter = -(int)length;
	long error;

	if (from == to)
		return bpf_skb_adjust_room(skb, shorter, BPF_ADJ_ROOM_MAC, flags) ? REFUSED : TAKEN;
	error = bpf_skb_adjust_room(skb, shorter, BPF_ADJ_ROOM_MAC,
				    flags | (to == bpf_htons(ETH_P_IP) ? DECAP_L3_IPV4 : DECAP_L3_IPV6));
	if (error != -EINVAL)
		return error ? REFUSED : TAKEN;
	if (to == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_adjust_room(skb, shorter + (int)LONGER, BPF_ADJ_ROOM_MAC, flags))
			return REFUSED;
		return bpf_skb_change_proto(skb, to, 0) ? DAMAGED : TAKEN;
	}
	if (bpf_skb_change_proto(skb, to, 0))
		return REFUSED;
	if (!bpf_skb_adjust_room(skb, shorter - (int)LONGER, BPF_ADJ_ROOM_MAC, flags))
		return TAKEN;
	return bpf_skb_change_proto(skb, from, 0) ? DAMAGED : REFUSED;
}
