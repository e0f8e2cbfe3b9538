// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The outer header of tunnels: IPv4. */

static __always_inline __u8 outer_class(const struct headers *headers)
{
	return headers->ip.tos;
}

/* Returns whether an outer header may belong to a tunnel. */
static __always_inline int is_carrier(const struct headers *headers)
{
	return headers->ip.version == 4 && headers->ip.ihl == 5 && headers->ip.protocol == IPPROTO_UDP &&
	       !(headers->ip.frag_off & bpf_htons(FRAGMENT_BITS));
}

/* Returns whether the headers of a received frame are valid. */
static __always_inline int is_whole(const struct __sk_buff *skb, const struct headers *headers)
{
	return header_sum(&headers->ip) == 0xffff &&
	       bpf_ntohs(headers->ip.tot_len) + sizeof(struct ethhdr) == skb->len &&
	       bpf_ntohs(headers->udp.len) + sizeof(struct ethhdr) + sizeof(node_header) == skb->len;
}

/* Returns whether the tunnel device would accept a frame with this checksum. */
static __always_inline int takes_check(const struct settings *settings, const struct headers *headers)
{
	return 1;
}

/* Returns whether a frame can get the checksum that the tunnel device would set: 0 is always allowed. */
static __always_inline int gives_check(const struct settings *settings, const struct __sk_buff *skb,
				       const struct packet *packet)
{
	return 1;
}

/* Fills in what differs from packet to packet; this many bytes follow the outer header. */
static __always_inline void fill_outer(struct headers *headers, __u16 length, __u8 ecn)
{
	headers->ip.tos = (headers->ip.tos & ~ECN_MASK) | ecn;
	headers->ip.tot_len = bpf_htons(length + sizeof(node_header));
	headers->ip.id = bpf_get_prandom_u32();
}

/* Writes the header's checksum, once everything else is in place; UDP has none. */
static __always_inline void seal(const struct settings *settings, struct written *out, const pod_header *ip)
{
	out->headers.ip.check = 0;
	out->headers.ip.check = ~header_sum(&out->headers.ip);
}

/* Compares addresses. */
#define SAME_NODE(one, other) ((one) == (other))

/* A number of a few bits in which remote nodes differ. */
static __always_inline __u32 bits_of_node(const struct headers *headers)
{
	return headers->ip.daddr >> 24;
}

/* The key of the route look-up. */
static __always_inline void ask_for(struct bpf_fib_lookup *fib, const struct headers *headers)
{
	fib->family = AF_INET;
	fib->tos = headers->ip.tos & ~ECN_MASK;
	fib->ipv4_src = headers->ip.saddr;
	fib->ipv4_dst = headers->ip.daddr;
}
