// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Packets of pods: IPv6. */

static __always_inline __u8 protocol_of(const pod_header *ip)
{
	return ip->nexthdr;
}

/* Bytes of a packet with its header. */
static __always_inline __u32 length_of(const pod_header *ip)
{
	return sizeof(*ip) + bpf_ntohs(ip->payload_len);
}

static __always_inline __u8 ecn_of(const pod_header *ip)
{
	return traffic_class(ip) & ECN_MASK;
}

static __always_inline __u8 hops_of(const pod_header *ip)
{
	return ip->hop_limit;
}

/* fe80::/10 does not leave its link. */
static __always_inline int is_of_link(const pod_address *address)
{
	return (address->s6_addr16[0] & bpf_htons(0xffc0)) == bpf_htons(0xfe80);
}

/* Returns why a packet may not take the short way because of its next header. */
static __always_inline enum count other_header(__u8 next)
{
	switch (next) {
	case IPPROTO_FRAGMENT:
		return FRAGMENT;
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
	case IPPROTO_AH:
	case IPPROTO_MH:
		return OPTIONS;
	default:
		/* ICMPv6 too, and neighbour discovery with it. */
		return PROTOCOL;
	}
}

/* Returns why a packet may not take the short way because of its header, or FAST. It begins at an offset. */
static __always_inline enum count read_header(const struct __sk_buff *skb, __u32 at, const pod_header *ip)
{
	if (ip->version != 6)
		return MALFORMED;
	if (ip->daddr.s6_addr[0] == 0xff)
		return MULTICAST;
	if (is_of_link(&ip->saddr) || is_of_link(&ip->daddr))
		return LINK_LOCAL;
	if (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP)
		return other_header(ip->nexthdr);
	return length_of(ip) + at != skb->len ? MALFORMED : FAST;
}

/* What a VXLAN device may copy from a packet into its outer header besides ECN: DSCP. */
static __always_inline __u16 look_of(const pod_header *ip)
{
	return traffic_class(ip) & ~ECN_MASK;
}

/* What NAT makes of an IP header. */
static __always_inline void translate(pod_header *ip, const struct half *half)
{
	if (!(half->flags & TRANSLATED))
		return;
	ip->saddr = half->to.saddr;
	ip->daddr = half->to.daddr;
}

/* What NAT's addresses make of the checksum behind the header. Returns an error of the kernel. */
static __always_inline long translate_addresses(struct __sk_buff *skb, const pod_header *ip,
						const struct tuple *to, __u32 check, __u64 flags)
{
	/* Source and destination are neighbours in both. */
	__s64 change = bpf_csum_diff((__be32 *)&ip->saddr, 2 * sizeof(pod_address), (__be32 *)&to->saddr,
				     2 * sizeof(pod_address), 0);

	if (change < 0)
		return change;
	flags |= BPF_F_PSEUDO_HDR;
	/* The sum of all that a NIC may have given stays the same. Kernels that do not know the flag have it
	 * change. */
	if (!bpf_l4_csum_replace(skb, check, 0, change, flags | SUM_OF_IPV6))
		return 0;
	return bpf_l4_csum_replace(skb, check, 0, change, flags);
}

/* A router's work on a packet. */
static __always_inline void hop(pod_header *ip)
{
	ip->hop_limit--;
}

/* Marks a packet that can carry it as having met congestion. */
static __always_inline void mark_congestion(pod_header *ip)
{
	set_ecn(ip, ECN_CE);
}
