// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Packets of pods: IPv4. */

static __always_inline __u8 protocol_of(const pod_header *ip)
{
	return ip->protocol;
}

/* Length of a packet including its header. */
static __always_inline __u16 length_of(const pod_header *ip)
{
	return bpf_ntohs(ip->tot_len);
}

static __always_inline __u8 ecn_of(const pod_header *ip)
{
	return ip->tos & ECN_MASK;
}

static __always_inline __u8 hops_of(const pod_header *ip)
{
	return ip->ttl;
}

/* Returns why the header of the packet at this offset keeps it off the fast path, or FAST. */
static __always_inline enum count read_header(const struct __sk_buff *skb, __u32 at, const pod_header *ip)
{
	if (ip->version != 4)
		return MALFORMED;
	if (ip->ihl != 5)
		return OPTIONS;
	if (ip->frag_off & bpf_htons(FRAGMENT_BITS))
		return FRAGMENT;
	/* 224.0.0.0/4 and everything above: multicast, reserved and broadcast. */
	if ((ip->daddr & bpf_htonl(0xe0000000)) == bpf_htonl(0xe0000000))
		return MULTICAST;
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return PROTOCOL;
	return length_of(ip) + at != skb->len ? MALFORMED : FAST;
}

/* What a tunnel device may copy from a packet into the outer header besides ECN: DSCP and DF. */
static __always_inline __u16 look_of(const pod_header *ip)
{
	return (ip->tos & ~ECN_MASK) | (ip->frag_off & bpf_htons(DONT_FRAGMENT) ? 1 << 8 : 0);
}

/* Changes an address in a header; its checksum stays correct, or incorrect (RFC 1624). */
static __always_inline void readdress(pod_header *ip, __be32 *field, __be32 address)
{
	__u32 sum = (__u16)~ip->check;

	sum += (__u16)~*field + (__u16)~(*field >> 16);
	sum += (__u16)address + (address >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	*field = address;
}

/* Applies NAT to an IP header. */
static __always_inline void translate(pod_header *ip, const struct half *half)
{
	if (!(half->flags & TRANSLATED))
		return;
	readdress(ip, &ip->saddr, half->to.saddr);
	readdress(ip, &ip->daddr, half->to.daddr);
}

/* Updates the checksum after the header for the addresses that NAT changed. Returns the kernel's error. */
static __always_inline long translate_addresses(struct __sk_buff *skb, const pod_header *ip,
						const struct tuple *to, __u32 check, __u64 flags)
{
	flags |= BPF_F_PSEUDO_HDR | 4;
	return bpf_l4_csum_replace(skb, check, ip->saddr, to->saddr, flags) ||
	       bpf_l4_csum_replace(skb, check, ip->daddr, to->daddr, flags);
}

/* Decrements the TTL, as a router does. A correct checksum stays correct, and an incorrect one incorrect (RFC
 * 1624). */
static __always_inline void hop(pod_header *ip)
{
	__u32 sum = ip->check + bpf_htons(0x0100);

	ip->ttl--;
	ip->check = sum + (sum >= 0xffff);
}

/* Marks an ECN-capable packet as having met congestion; the same holds for its checksum. */
static __always_inline void mark_congestion(pod_header *ip)
{
	__u32 sum = (__u16)~ip->check;

	/* The byte is the lower half of its word on the wire. */
	sum += bpf_htons((ip->tos | ECN_CE)) + (__u16)~bpf_htons(ip->tos);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->tos |= ECN_CE;
	ip->check = ~sum;
}
