// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Selects the part of an interface's traffic that goes to weir: the XDP program in front of its AF_XDP
 * sockets.
 *
 * A frame is summarised in WORDS words (its kind, port, VNI, addresses). A rule has a mask and a value for
 * each of these words. A frame goes to weir if a rule matches, and to the kernel otherwise. User space
 * (take.rs) works out what a `take` rule means (prefixes, ranges of ports, fragments that follow their
 * service, broadcast); this program only compares.
 *
 * Masks are compared in order, and the first one that matches determines whether the frame is taken or left
 * to the kernel.
 *
 * Thousands of rules have few masks: services differ in their addresses and ports, but not in the bits of
 * these that are compared. So the program iterates over the masks, and looks up the frame's bits under each
 * mask in one hash map of values. A mask with a single value needs no look-up.
 *
 * The summary of an ICMP error contains the protocol and the source port of the packet inside it: the error
 * is about a service if that packet came from the service.
 *
 * Promises: nothing is dropped here, except while another process takes over (`without_socket`); every frame
 * is counted once. Fields missing from a malformed header are
 * zero. Cost: about 40 instructions to parse; for each mask that does not match, some 10 instructions if it
 * has one value, and otherwise a look-up of 48 bytes, however many values there are.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "map.h"

#define MASKS_MAX 128
#define VALUES_MAX (2 << 17) /* of both copies: xdp_take.rs */
#define VLAN_TAGS_MAX 2
#define EXTENSION_HEADERS_MAX 8 /* the same number as packet::parse follows */
#define ND_SOLICITATION 135
#define OFFSET_MAX 0x7ff /* size of a chunk: headers beyond that are not needed */

/* KIND is ethertype << 16 | protocol << 8 | traits. The addresses are as on the wire, IPv4 in the first word.
 * For a QUESTION, SOURCE is the requested address: a solicitation's own source is irrelevant, and ARP has no
 * other field.
 */
enum word { KIND, DPORT, VNI, DESTINATION, SOURCE = DESTINATION + 4, WORDS = SOURCE + 4 };

SHARED(enum word);

/*
 * Traits of a frame: not for this port's MAC; broadcast or multicast; an IP fragment (including the first);
 * an ARP request or a neighbour solicitation.
 */
enum trait { FOREIGN = 1, GROUP = 2, FRAGMENT = 4, QUESTION = 8 };

SHARED(enum trait);

#define PORT_PRESENT (1U << 31)
#define ICMP_PRESENT (1U << 30) /* instead of a port: type and code */
#define VNI_PRESENT (1U << 31)
#define ERROR_PRESENT (1U << 30) /* instead of a VNI: protocol << 16 | source port of the packet inside */

struct summary {
	__u32 words[WORDS];
};

struct mask {
	__u32 bits[WORDS];
	__u32 value[WORDS]; /* if there is only one */
	__u32 is_single;
	__u32 place; /* of its values in the map, different in the two copies */
	__u32 leaves; /* matching frames go to the kernel */
};

struct settings {
	__u8 own_mac[2][8]; /* the last two bytes are padding */
	__u32 count;
	struct mask masks[MASKS_MAX];
};

/* Two copies, of which `active` selects one: rules change between frames, never within one. */
MAP(ARRAY, 2, __u32, struct settings, settings);
SHARED(struct settings);

MAP(ARRAY, 1, __u32, __u32, active);

struct key {
	__u32 place;
	__u32 value[WORDS];
};

/* The values of all masks that have more than one, for both copies of the settings; not preallocated. */
MAP(HASH, VALUES_MAX, struct key, __u32, values, __uint(map_flags, BPF_F_NO_PREALLOC));
SHARED(struct key);

/* Indexed by receive queue; user space sets max_entries of this map and the next to the number of queues. */
MAP(XSKMAP, 1, __u32, __u32, sockets);

struct counters {
	__u64 taken;
	__u64 passed;
	__u64 not_ours;
	__u64 redirect_failed;
	__u64 held_back;
};

MAP(PERCPU_ARRAY, 1, __u32, struct counters, counters);
SHARED(struct counters);

/* The verdict for a frame that is taken while its queue has no socket: XDP_PASS, or XDP_DROP while another
 * process takes the interface over.
 */
MAP(ARRAY, 1, __u32, __u32, without_socket);

/* The program that gets the frames that are taken, if there is one: it decides the frames that it can, and
 * sends the others to the socket itself.
 */
MAP(PROG_ARRAY, 1, __u32, __u32, programs);

/*
 * The reading position in the frame. An offset rather than a pointer, because it stays valid across a helper
 * call.
 */
struct cursor {
	struct xdp_md *context;
	__u32 offset;
};

/* Returns the next `length` bytes, or NULL if the frame is shorter. */
static __always_inline void *next(struct cursor *cursor, __u32 length)
{
	void *header = (void *)(long)cursor->context->data + cursor->offset;

	if (header + length > (void *)(long)cursor->context->data_end)
		return 0;
	cursor->offset += length;
	return header;
}

static __always_inline int is_equal(const __u8 *mac, const __u8 *other)
{
	for (int i = 0; i < ETH_ALEN; i++)
		if (mac[i] != other[i])
			return 0;
	return 1;
}

static __always_inline __u32 read_mac(struct cursor *cursor, const struct settings *settings,
				      __u16 *ethertype)
{
	struct ethhdr *ethernet = next(cursor, sizeof(*ethernet));

	if (!ethernet)
		return FOREIGN;
	*ethertype = ethernet->h_proto;
	if (ethernet->h_dest[0] & 1)
		return GROUP;
	if (is_equal(ethernet->h_dest, settings->own_mac[0]) || is_equal(ethernet->h_dest, settings->own_mac[1]))
		return 0;
	return FOREIGN;
}

static __always_inline void skip_vlan_tags(struct cursor *cursor, __u16 *ethertype)
{
	for (int i = 0; i < VLAN_TAGS_MAX; i++) {
		__be16 *tag;

		if (*ethertype != bpf_htons(ETH_P_8021Q) && *ethertype != bpf_htons(ETH_P_8021AD))
			return;
		tag = next(cursor, 4);
		if (!tag)
			return;
		*ethertype = tag[1];
	}
}

/*
 * Returns the transport protocol, or -1 if there is none. The cursor is then at the transport header, unless
 * the frame is a FRAGMENT.
 */
static __always_inline int read_ipv4(struct cursor *cursor, __u32 *words)
{
	struct iphdr *ip = next(cursor, sizeof(*ip));

	if (!ip || ip->version != 4 || ip->ihl < 5)
		return -1;
	words[DESTINATION] = ip->daddr;
	words[SOURCE] = ip->saddr;
	if (ip->frag_off & bpf_htons(0x3fff)) /* RFC 791: more fragments, or an offset */
		words[KIND] |= FRAGMENT;
	if (!next(cursor, (ip->ihl * 4 - sizeof(*ip)) & 0x3f)) /* at most 40; the mask proves that to the verifier */
		words[KIND] |= FRAGMENT; /* truncated: like a fragment, it has no ports */
	return ip->protocol;
}

static __always_inline int is_extension(__u32 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_FRAGMENT ||
	       protocol == IPPROTO_AH || protocol == IPPROTO_DSTOPTS;
}

/* Skips IPv6 extension headers from `offset` on. Returns offset << 9 | is fragment << 8 | protocol of what
 * follows, or -1. It copies the headers, and is not static, so that the verifier checks it once for an
 * unknown offset; following pointers through eight headers of unknown lengths would take the verifier ten
 * times as long as everything else.
 */
__attribute__((noinline)) int skip_extension_headers(struct xdp_md *context, __u32 offset, __u32 protocol)
{
	__u8 header[4];

	for (int i = 0; i < EXTENSION_HEADERS_MAX; i++) {
		if (!is_extension(protocol))
			break;
		if (bpf_xdp_load_bytes(context, offset, header, sizeof(header)))
			return -1;
		if (protocol == IPPROTO_FRAGMENT) /* RFC 8200 4.5 */
			offset += 8;
		else if (protocol == IPPROTO_AH) /* RFC 4302 2.2: in units of 4 bytes, minus 2 */
			offset += (header[1] + 2) * 4;
		else
			offset += (header[1] + 1) * 8;
		/* RFC 6946: with offset 0 and no more fragments it is a whole datagram; ignores the reserved bits. */
		if (protocol == IPPROTO_FRAGMENT && (header[2] || header[3] & 0xf9))
			return offset << 9 | 1 << 8 | header[0];
		protocol = header[0];
	}
	if (is_extension(protocol) || offset > OFFSET_MAX)
		return -1;
	return offset << 9 | protocol;
}

static __always_inline int read_ipv6(struct cursor *cursor, __u32 *words)
{
	struct ipv6hdr *ip = next(cursor, sizeof(*ip));
	int found;

	if (!ip || ip->version != 6)
		return -1;
	__builtin_memcpy(&words[DESTINATION], &ip->daddr, 16);
	__builtin_memcpy(&words[SOURCE], &ip->saddr, 16);
	if (!is_extension(ip->nexthdr))
		return ip->nexthdr;
	found = skip_extension_headers(cursor->context, cursor->offset, ip->nexthdr);
	if (found < 0)
		return -1;
	cursor->offset = found >> 9 & OFFSET_MAX;
	if (found & 1 << 8)
		words[KIND] |= FRAGMENT;
	return found & 0xff;
}

/* RFC 826, for IPv4 over Ethernet: the address that a request asks for. */
static __always_inline void read_arp(struct cursor *cursor, __u32 *words)
{
	__be32 *arp = next(cursor, 28);

	if (!arp || arp[0] != bpf_htonl(0x00010800) || arp[1] != bpf_htonl(0x06040001))
		return;
	words[SOURCE] = arp[6];
	words[KIND] |= QUESTION;
}

/* RFC 4861 4.3: the target of a neighbour solicitation. The cursor is after its type and code. */
static __always_inline void read_solicitation(struct cursor *cursor, __u32 *words)
{
	__u8 *rest = next(cursor, 22);

	if (!rest)
		return;
	__builtin_memcpy(&words[SOURCE], rest + 6, 16);
	words[KIND] |= QUESTION;
}

/* RFC 792, RFC 4443: type and code. Leaves the cursor where ICMP begins, for error_word. */
static __always_inline void read_icmp(struct cursor *cursor, __u8 protocol, __u32 *words)
{
	__u32 begin = cursor->offset;
	__be16 *icmp = next(cursor, sizeof(*icmp));

	if (!icmp)
		return;
	words[DPORT] = ICMP_PRESENT | bpf_ntohs(*icmp);
	if (protocol == IPPROTO_ICMPV6 && words[KIND] >> 16 == ETH_P_IPV6 &&
	    (words[DPORT] >> 8 & 0xff) == ND_SOLICITATION)
		read_solicitation(cursor, words);
	cursor->offset = begin;
}

static __always_inline void read_ports(struct cursor *cursor, __u8 protocol, __u32 *words)
{
	__be16 *ports;
	__u32 *vxlan;

	if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6)
		return read_icmp(cursor, protocol, words);
	if (protocol != IPPROTO_UDP && protocol != IPPROTO_TCP)
		return;
	ports = next(cursor, sizeof(struct udphdr));
	if (!ports)
		return;
	words[DPORT] = PORT_PRESENT | bpf_ntohs(ports[1]);
	if (protocol != IPPROTO_UDP)
		return;
	vxlan = next(cursor, 8);
	if (vxlan && *(__u8 *)vxlan & 0x08) /* RFC 7348 5: the I flag says that the VNI is valid */
		words[VNI] = VNI_PRESENT | bpf_ntohl(vxlan[1]) >> 8;
}

static __always_inline void read_frame(struct cursor *cursor, const struct settings *settings, __u32 *words)
{
	__u16 ethertype = 0;
	int protocol = -1;

	words[KIND] = read_mac(cursor, settings, &ethertype);
	skip_vlan_tags(cursor, &ethertype);
	words[KIND] |= (__u32)bpf_ntohs(ethertype) << 16;
	if (ethertype == bpf_htons(ETH_P_IP))
		protocol = read_ipv4(cursor, words);
	else if (ethertype == bpf_htons(ETH_P_IPV6))
		protocol = read_ipv6(cursor, words);
	else if (ethertype == bpf_htons(ETH_P_ARP))
		read_arp(cursor, words);
	if (protocol < 0)
		return;
	words[KIND] |= (protocol & 0xff) << 8;
	if (!(words[KIND] & FRAGMENT))
		read_ports(cursor, protocol, words);
}

static __always_inline int is_icmp(const __u32 *words)
{
	__u32 kind = words[KIND] & ~(__u32)(FOREIGN | GROUP);

	return kind == (ETH_P_IP << 16 | IPPROTO_ICMP << 8) || kind == (ETH_P_IPV6 << 16 | IPPROTO_ICMPV6 << 8);
}

static __always_inline int is_error(int is_ipv4, __u8 type)
{
	if (!is_ipv4)
		return type >= 1 && type <= 4; /* RFC 4443 3 */
	return (type >= 3 && type <= 5) || type == 11 || type == 12; /* RFC 792 */
}

/* Returns ERROR_PRESENT | protocol << 16 | source port of the packet that an ICMP error is about, if the
 * error was sent to the sender of that packet; otherwise 0. A fragment inside has no ports, and extension
 * headers inside are not followed, as in packet::icmp_error. `offset` is that of the ICMP header. It copies
 * the headers, and is not static, so that the verifier checks it once for an unknown offset.
 */
__attribute__((noinline)) int error_word(struct xdp_md *context, __u32 offset, const struct summary *summary)
{
	struct ipv6hdr ipv6;
	struct iphdr ipv4;
	__u8 type, protocol;
	__be16 port;
	int is_ipv4;

	if (!summary || bpf_xdp_load_bytes(context, offset, &type, sizeof(type)))
		return 0;
	is_ipv4 = summary->words[KIND] >> 16 == ETH_P_IP;
	if (!is_error(is_ipv4, type))
		return 0;
	offset += 8;
	if (is_ipv4) {
		if (bpf_xdp_load_bytes(context, offset, &ipv4, sizeof(ipv4)))
			return 0;
		if (ipv4.version != 4 || ipv4.ihl < 5 || ipv4.frag_off & bpf_htons(0x3fff))
			return 0;
		if (ipv4.saddr != summary->words[DESTINATION])
			return 0;
		protocol = ipv4.protocol;
		offset += ipv4.ihl * 4;
	} else {
		if (bpf_xdp_load_bytes(context, offset, &ipv6, sizeof(ipv6)) || ipv6.version != 6)
			return 0;
		for (int i = 0; i < 4; i++)
			if (ipv6.saddr.in6_u.u6_addr32[i] != summary->words[DESTINATION + i])
				return 0;
		protocol = ipv6.nexthdr;
		offset += sizeof(ipv6);
	}
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return 0;
	if (bpf_xdp_load_bytes(context, offset, &port, sizeof(port)))
		return 0;
	return ERROR_PRESENT | protocol << 16 | bpf_ntohs(port);
}

/* Not static, so that the verifier checks it once rather than for every mask. */
__attribute__((noinline)) int matches(const struct mask *mask, const struct summary *summary)
{
	struct key key = {};
	__u32 difference = 0;

	if (!mask || !summary)
		return 0;
#pragma unroll
	for (int i = 0; i < WORDS; i++) {
		key.value[i] = summary->words[i] & mask->bits[i];
		difference |= key.value[i] ^ mask->value[i];
	}
	if (mask->is_single)
		return !difference;
	key.place = mask->place;
	return !!bpf_map_lookup_elem(&values, &key);
}

/* Not static, so that the verifier checks it once rather than for every path through the headers. */
__attribute__((noinline)) int is_taken(const struct settings *settings, const struct summary *summary)
{
	if (!settings || !summary)
		return 0;
	for (__u32 i = 0; i < MASKS_MAX; i++) {
		if (i >= settings->count)
			return 0;
		if (matches(&settings->masks[i], summary))
			return !settings->masks[i].leaves;
	}
	return 0;
}

/* Frames may be in several buffers (since Linux 5.18): the headers are in the first, the rest is not read. */
SEC("xdp.frags")
int xdp_take(struct xdp_md *context)
{
	struct cursor cursor = { .context = context };
	struct summary summary = {};
	__u32 queue = context->rx_queue_index;
	__u32 zero = 0;
	__u32 *half = bpf_map_lookup_elem(&active, &zero);
	struct settings *chosen = half ? bpf_map_lookup_elem(&settings, half) : 0;
	struct counters *count = bpf_map_lookup_elem(&counters, &queue);
	__u32 *otherwise = bpf_map_lookup_elem(&without_socket, &zero);
	int verdict;

	if (!chosen || !count || !otherwise)
		return XDP_PASS;
	read_frame(&cursor, chosen, summary.words);
	if (is_icmp(summary.words))
		summary.words[VNI] = error_word(context, cursor.offset, &summary);
	if (!is_taken(chosen, &summary)) {
		if (summary.words[KIND] & FOREIGN)
			count->not_ours++;
		else
			count->passed++;
		return XDP_PASS;
	}
	bpf_tail_call(context, &programs, 0);
	verdict = bpf_redirect_map(&sockets, queue, *otherwise == XDP_DROP ? XDP_DROP : XDP_PASS);
	if (verdict == XDP_REDIRECT)
		count->taken++;
	else if (verdict == XDP_DROP)
		count->held_back++;
	else
		count->redirect_failed++; /* no socket on this queue */
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
