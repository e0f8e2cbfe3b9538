// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The outer header of tunnels: IPv6. */

static __always_inline __u8 outer_class(const struct headers *headers)
{
	return traffic_class(&headers->ip);
}

/* Returns whether an outer header may be a tunnel's. */
static __always_inline int is_carrier(const struct headers *headers)
{
	return headers->ip.version == 6 && headers->ip.nexthdr == IPPROTO_UDP;
}

/* Returns whether the headers of a frame that has come are right. */
static __always_inline int is_whole(const struct __sk_buff *skb, const struct headers *headers)
{
	return headers->ip.payload_len == headers->udp.len &&
	       bpf_ntohs(headers->udp.len) + sizeof(struct ethhdr) + sizeof(node_header) == skb->len;
}

/* Returns whether the VXLAN device would take a frame with this checksum. */
static __always_inline int takes_check(const struct settings *settings, const struct headers *headers)
{
	return headers->udp.check || settings->checks & ZERO_TAKEN;
}

/* Returns whether a frame can get the checksum that the VXLAN device gives: 0, or the one that follows if the
 * inner one is right. The kernel would not give each segment its own. */
static __always_inline int gives_check(const struct settings *settings, const struct __sk_buff *skb,
				       const struct packet *packet)
{
	return settings->checks & ZERO_SENT ||
	       !(skb->gso_size || (protocol_of(&packet->ip) == IPPROTO_UDP && !packet->check));
}

/* Fills in what differs from packet to packet, of which so many bytes are behind the outer header. */
static __always_inline void fill_outer(struct headers *headers, __u16 length, __u8 ecn)
{
	set_ecn(&headers->ip, ecn);
	headers->ip.payload_len = bpf_htons(length);
}

/* Writes the checksum of UDP, when all else is there. What is behind the inner IP header is not read: if its
 * own checksum is right, or will be when a device has computed it, its sum follows from addresses, length and
 * protocol. */
static __always_inline void seal(const struct settings *settings, struct written *out, const pod_header *ip)
{
	/* From the next header and hop limit on, so that bytes are a multiple of four. */
	const __u32 skipped = sizeof(struct ethhdr) + offsetof(node_header, nexthdr);
	__be16 *rest = (__be16 *)((__u8 *)out + skipped);
	__u32 sum;

	if (settings->checks & ZERO_SENT)
		return;
	sum = bpf_htons(IPPROTO_UDP) + out->headers.udp.len + (__u16)~*rest;
	sum += (__u16)~bpf_htons(protocol_of(ip));
	sum += (__u16)~bpf_htons(length_of(ip) - sizeof(*ip));
	/* Source and destination are neighbours. */
	sum = bpf_csum_diff((__be32 *)&ip->saddr, 2 * sizeof(pod_address), (__be32 *)rest,
			    sizeof(*out) - skipped, sum);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	out->headers.udp.check = sum == 0xffff ? 0xffff : ~sum;
}

static __always_inline int same_address(const void *one, const void *other)
{
	const __u16 *a = one, *b = other;
	__u16 differ = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		differ |= a[i] ^ b[i];
	return !differ;
}

/* Compares addresses. */
#define SAME_NODE(one, other) same_address(&(one), &(other))

/* A number of few bits that remote nodes differ by. */
static __always_inline __u32 bits_of_node(const struct headers *headers)
{
	return headers->ip.daddr.s6_addr[15];
}

/* What the kernel is asked for the way by. */
static __always_inline void ask_for(struct bpf_fib_lookup *fib, const struct headers *headers)
{
	fib->family = AF_INET6;
	fib->flowinfo = bpf_htonl((__u32)(traffic_class(&headers->ip) & ~ECN_MASK) << 20);
	__builtin_memcpy(fib->ipv6_src, &headers->ip.saddr, sizeof(headers->ip.saddr));
	__builtin_memcpy(fib->ipv6_dst, &headers->ip.daddr, sizeof(headers->ip.daddr));
}
