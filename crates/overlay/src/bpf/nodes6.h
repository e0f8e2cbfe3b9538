// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The outer header of tunnels: IPv6. */

static __always_inline __u8 outer_class(const struct headers *headers)
{
	return traffic_class(&headers->ip);
}

/* Returns whether an outer header may belong to a tunnel. */
static __always_inline int is_carrier(const struct headers *headers)
{
	return headers->ip.version == 6 && headers->ip.nexthdr == IPPROTO_UDP;
}

/* Returns whether the headers of a received frame are valid. */
static __always_inline int is_whole(const struct __sk_buff *skb, const struct headers *headers)
{
	return headers->ip.payload_len == headers->udp.len &&
	       bpf_ntohs(headers->udp.len) + sizeof(struct ethhdr) + sizeof(node_header) == skb->len;
}

/* Returns whether the tunnel device would accept a frame with this checksum. */
static __always_inline int takes_check(const struct settings *settings, const struct headers *headers)
{
	return headers->udp.check || settings->checks & ZERO_TAKEN;
}

/* Returns whether a frame can get the checksum that the tunnel device would set: 0, or the one that follows
 * from a correct inner checksum. The kernel would not compute one for each segment. */
static __always_inline int gives_check(const struct settings *settings, const struct __sk_buff *skb,
				       const struct packet *packet)
{
	return settings->checks & ZERO_SENT ||
	       !(skb->gso_size || (protocol_of(&packet->ip) == IPPROTO_UDP && !packet->check));
}

/* Fills in what differs from packet to packet; this many bytes follow the outer header. */
static __always_inline void fill_outer(struct headers *headers, __u16 length, __u8 ecn)
{
	set_ecn(&headers->ip, ecn);
	headers->ip.payload_len = bpf_htons(length);
}

/* Writes the UDP checksum, once everything else is in place. The payload of the inner IP header is not read:
 * if its own checksum is correct, or will be once a device has computed it, its sum follows from addresses,
 * length and protocol. */
static __always_inline void seal(const struct settings *settings, struct written *out, const pod_header *ip)
{
	/* Starts at the next header and hop limit, so that the length is a multiple of four. */
	const __u32 skipped = sizeof(struct ethhdr) + offsetof(node_header, nexthdr);
	__be16 *rest = (__be16 *)((__u8 *)out + skipped);
	__u32 sum;

	if (settings->checks & ZERO_SENT)
		return;
	sum = bpf_htons(IPPROTO_UDP) + out->headers.udp.len + (__u16)~*rest;
	sum += (__u16)~bpf_htons(protocol_of(ip));
	sum += (__u16)~bpf_htons(length_of(ip) - sizeof(*ip));
	/* Source and destination are adjacent. */
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

/* A number of a few bits in which remote nodes differ. */
static __always_inline __u32 bits_of_node(const struct headers *headers)
{
	return headers->ip.daddr.s6_addr[15];
}

/* The key of the route look-up. */
static __always_inline void ask_for(struct bpf_fib_lookup *fib, const struct headers *headers)
{
	fib->family = AF_INET6;
	fib->flowinfo = bpf_htonl((__u32)(traffic_class(&headers->ip) & ~ECN_MASK) << 20);
	__builtin_memcpy(fib->ipv6_src, &headers->ip.saddr, sizeof(headers->ip.saddr));
	__builtin_memcpy(fib->ipv6_dst, &headers->ip.daddr, sizeof(headers->ip.daddr));
}
