// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Packets of pods: IPv6. */

static __always_inline __u8 protocol_of(const pod_header *ip)
{
	return ip->nexthdr;
}

/* Length of a packet including its header. */
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

/* Returns why the packet's next header keeps it off the fast path. */
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
		/* This includes ICMPv6, and with it neighbour discovery. */
		return PROTOCOL;
	}
}

/* Returns why the header of the packet at this offset keeps it off the fast path, or FAST. */
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

/* What a tunnel device may copy from a packet into the outer header besides ECN: DSCP. */
static __always_inline __u16 look_of(const pod_header *ip)
{
	return traffic_class(ip) & ~ECN_MASK;
}

/* Applies NAT to an IP header. */
static __always_inline void translate(pod_header *ip, const struct half *half)
{
	if (!(half->flags & TRANSLATED))
		return;
	ip->saddr = half->to.saddr;
	ip->daddr = half->to.daddr;
}

/* Updates the checksum after the header for the addresses that NAT changed. Returns the kernel's error. */
static __always_inline long translate_addresses(struct __sk_buff *skb, const pod_header *ip,
						const struct tuple *to, __u32 check, __u64 flags)
{
	/* Source and destination are adjacent in both. */
	__s64 change = bpf_csum_diff((__be32 *)&ip->saddr, 2 * sizeof(pod_address), (__be32 *)&to->saddr,
				     2 * sizeof(pod_address), 0);

	if (change < 0)
		return change;
	flags |= BPF_F_PSEUDO_HDR;
	/* A checksum of the whole packet that the NIC supplied stays the same. Kernels that do not know the flag
	 * update it. */
	if (!bpf_l4_csum_replace(skb, check, 0, change, flags | SUM_OF_IPV6))
		return 0;
	return bpf_l4_csum_replace(skb, check, 0, change, flags);
}

/* Decrements the hop limit, as a router does. */
static __always_inline void hop(pod_header *ip)
{
	ip->hop_limit--;
}

/* Marks an ECN-capable packet as having met congestion. */
static __always_inline void mark_congestion(pod_header *ip)
{
	set_ecn(ip, ECN_CE);
}
