// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Decapsulates frames for this host at the tc ingress of an interface, and passes the inner packet to the
 * host's stack: IPv4 and IPv6 in either (RFC 2003, 2473, 4213), GUE of variants 0 and 1
 * (draft-ietf-intarea-gue-09), GRE (RFC 2784, 2890) and VXLAN (RFC 7348). It is for back ends of a load
 * balancer, whose kernel then needs no tunnel device.
 *
 * If configured to, it gives packets in GUE their second chance: packets that belong to no connection here go
 * to the host named in the header (github.com/github/glb-director/docs/development/gue-header.md).
 *
 * Promises: one tunnel header is removed, from frames that come from configured senders and go to configured
 * addresses. Everything else, and whatever is not understood (fragments, options, extension headers, unknown
 * flags), is left to the kernel unchanged. A frame is dropped only where RFC 6040 requires it: if the inner
 * packet does not support ECN and the outer one has met congestion. There are no loops, and no state except
 * counts.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "map.h"
#include "room.h"
#include "tunnel.h"

/* The outcome for a tunnelled frame; `DECAP_COUNTS` in decap.rs has these names. Those before LEFT are also
 * the bits of the tunnels that are decapsulated. */
enum count {
	IPIP,
	GUE,
	GRE,
	VXLAN,
	LEFT_STRANGER,
	LEFT_FRAGMENT,
	LEFT_OPTIONS,
	LEFT_UNKNOWN,
	LEFT_MALFORMED,
	LEFT_NO_ROOM,
	DROPPED_CONGESTION,
	DROPPED_FAILURE,
	PASSED_ON,
	COUNTS,
	NOT_TUNNEL, /* not counted */
};

/* The settings of the program: settings[0]. */
struct settings {
	__u32 tunnels; /* a bit for each */
	__u32 vni;
	__u32 gue_port;
	__u32 vxlan_port;
	__u32 second_chance; /* whether packets of no connection here are passed on */
};

MAP(ARRAY, 1, __u32, struct settings, settings_map);
SHARED(struct settings);

/* An address; IPv4 as ::ffff:a.b.c.d. */
struct address {
	__u8 bytes[16];
};

struct prefix {
	__u32 length;
	struct address address;
};

MAP(LPM_TRIE, 1024, struct prefix, __u32, senders, __uint(map_flags, BPF_F_NO_PREALLOC));

MAP(HASH, 1024, struct address, __u32, locals);

MAP(PERCPU_ARRAY, COUNTS, __u32, __u64, counts);
SHARED(enum count);

static __always_inline void count(__u32 what)
{
	add(&counts, what, 1);
}

/* The relevant parts of the outer header. */
struct outer {
	struct address source;
	struct address destination;
	__u32 behind; /* where the outer IP header ends */
	__u8 protocol;
	__u8 ecn;
};

/* The inner packet. */
struct inner {
	__u32 at;
	__u8 version; /* 4 or 6 */
	__u32 chances; /* where GUE's private data starts, or 0 */
};

static __always_inline void mapped(struct address *address, __u32 v4)
{
	__builtin_memset(address, 0, sizeof(*address));
	address->bytes[10] = address->bytes[11] = 0xff;
	__builtin_memcpy(address->bytes + 12, &v4, sizeof(v4));
}

static __always_inline enum count read_v4(struct __sk_buff *skb, struct outer *outer)
{
	struct iphdr ip;
	const __u16 *words = (const __u16 *)&ip;
	__u32 sum = 0;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.version != 4)
		return NOT_TUNNEL;
	mapped(&outer->source, ip.saddr);
	mapped(&outer->destination, ip.daddr);
	outer->behind = ETH_HLEN + sizeof(ip);
	outer->protocol = ip.protocol;
	outer->ecn = ip.tos & ECN_MASK;
	if (ip.frag_off & bpf_htons(FRAGMENT_BITS))
		return LEFT_FRAGMENT;
	if (ip.ihl != 5)
		return LEFT_OPTIONS;
#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff ? IPIP : LEFT_MALFORMED;
}

static __always_inline enum count read_v6(struct __sk_buff *skb, struct outer *outer)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.version != 6)
		return NOT_TUNNEL;
	__builtin_memcpy(&outer->source, &ip.saddr, sizeof(outer->source));
	__builtin_memcpy(&outer->destination, &ip.daddr, sizeof(outer->destination));
	outer->behind = ETH_HLEN + sizeof(ip);
	/* The protocol number of an extension header matches none of those below. */
	outer->protocol = ip.nexthdr;
	outer->ecn = ip.flow_lbl[0] >> 4 & ECN_MASK;
	return IPIP;
}

static __always_inline enum count of_ether_type(__be16 type, struct inner *inner, enum count as)
{
	if (type == bpf_htons(ETH_P_IP))
		inner->version = 4;
	else if (type == bpf_htons(ETH_P_IPV6))
		inner->version = 6;
	else
		return LEFT_UNKNOWN;
	return as;
}

/* An inner Ethernet header, which is removed, too. */
static __always_inline enum count of_ethernet(struct __sk_buff *skb, struct inner *inner, enum count as)
{
	__be16 type;

	if (bpf_skb_load_bytes(skb, inner->at + 12, &type, sizeof(type)))
		return LEFT_MALFORMED;
	inner->at += ETH_HLEN;
	return of_ether_type(type, inner, as);
}

static __always_inline enum count of_protocol(__u8 protocol, struct inner *inner, enum count as)
{
	if (protocol == IPPROTO_IPIP)
		inner->version = 4;
	else if (protocol == IPPROTO_IPV6)
		inner->version = 6;
	else
		return LEFT_UNKNOWN;
	return as;
}

#define GUE_CONTROL 0x20
#define GUE_LENGTH 0x1f

static __always_inline enum count read_gue(struct __sk_buff *skb, struct inner *inner)
{
	__u8 head[4];

	/* In variant 1, the first byte is that of the inner packet. */
	if (bpf_skb_load_bytes(skb, inner->at, head, sizeof(head)))
		return LEFT_MALFORMED;
	if (head[0] >> 4 == 4 || head[0] >> 4 == 6) {
		inner->version = head[0] >> 4;
		return GUE;
	}
	/* Only variant 0 headers without flags are accepted. Their optional fields are private data, which is
	 * skipped. */
	if (head[0] >> 6 || head[0] & GUE_CONTROL || head[2] || head[3])
		return LEFT_UNKNOWN;
	if (head[0] & GUE_LENGTH)
		inner->chances = inner->at + sizeof(head);
	inner->at += sizeof(head) + (head[0] & GUE_LENGTH) * 4;
	return of_protocol(head[1], inner, GUE);
}


static __always_inline enum count read_vxlan(struct __sk_buff *skb, const struct settings *settings,
					     struct inner *inner)
{
	__u32 words[2];

	if (bpf_skb_load_bytes(skb, inner->at, words, sizeof(words)))
		return LEFT_MALFORMED;
	if (*(__u8 *)words != VXLAN_VNI_PRESENT || bpf_ntohl(words[1]) >> 8 != settings->vni)
		return LEFT_UNKNOWN;
	inner->at += sizeof(words);
	return of_ethernet(skb, inner, VXLAN);
}

#define GRE_KEY 0x2000
#define GRE_SEQUENCE 0x1000
#define GRE_ETHERNET 0x6558

static __always_inline enum count read_gre(struct __sk_buff *skb, struct inner *inner)
{
	__be16 head[2];
	__u16 flags;

	if (bpf_skb_load_bytes(skb, inner->at, head, sizeof(head)))
		return LEFT_MALFORMED;
	flags = bpf_ntohs(head[0]);
	if (flags & ~(GRE_KEY | GRE_SEQUENCE))
		return LEFT_UNKNOWN;
	inner->at += sizeof(head) + (flags & GRE_KEY ? 4 : 0) + (flags & GRE_SEQUENCE ? 4 : 0);
	if (head[1] == bpf_htons(GRE_ETHERNET))
		return of_ethernet(skb, inner, GRE);
	return of_ether_type(head[1], inner, GRE);
}

/* Finds the inner packet. Returns which tunnel it came in, or why it is left to the kernel. */
static __always_inline enum count find(struct __sk_buff *skb, const struct settings *settings,
				       const struct outer *outer, struct inner *inner)
{
	struct udphdr udp;

	inner->at = outer->behind;
	switch (outer->protocol) {
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
		return of_protocol(outer->protocol, inner, IPIP);
	case IPPROTO_GRE:
		return read_gre(skb, inner);
	case IPPROTO_UDP:
		break;
	default:
		return NOT_TUNNEL;
	}
	if (bpf_skb_load_bytes(skb, inner->at, &udp, sizeof(udp)))
		return NOT_TUNNEL;
	inner->at += sizeof(udp);
	if (settings->tunnels & 1 << GUE && udp.dest == bpf_htons(settings->gue_port))
		return read_gue(skb, inner);
	if (settings->tunnels & 1 << VXLAN && udp.dest == bpf_htons(settings->vxlan_port))
		return read_vxlan(skb, settings, inner);
	return NOT_TUNNEL;
}

/* The inner ECN field by RFC 6040, section 4.2; -1 if the packet must be dropped. */
static __always_inline int congestion(__u8 outer, __u8 inner)
{
	if (outer == ECN_CE)
		return inner ? ECN_CE : -1;
	if (outer == ECN_ECT1 && inner && inner != ECN_CE)
		return ECN_ECT1;
	return inner;
}

/* Writes the ECN field of the packet after the Ethernet header. */
static __always_inline long mark(struct __sk_buff *skb, __u8 version, __u8 ecn)
{
	__be16 word, new;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &word, sizeof(word)))
		return -1;
	if (version == 6) {
		new = (word & ~bpf_htons(ECN_MASK << 4)) | bpf_htons(ecn << 4);
		return bpf_skb_store_bytes(skb, ETH_HLEN, &new, sizeof(new), BPF_F_RECOMPUTE_CSUM);
	}
	new = (word & ~bpf_htons(ECN_MASK)) | bpf_htons(ecn);
	/* This keeps the sum of the header, and therefore that of the frame, unchanged. */
	if (bpf_l3_csum_replace(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, check), word, new, sizeof(new)))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN, &new, sizeof(new), 0);
}

/* Removes everything between the Ethernet header and the inner packet. */
static __always_inline int strip(struct __sk_buff *skb, const struct outer *outer, const struct inner *inner,
				 enum count as)
{
	/* GSO segments keep their length: their payload does not change. */
	const __u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	__be16 type = inner->version == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	enum taken taken;
	__u8 head[2], was;
	int ecn;

	if (bpf_skb_load_bytes(skb, inner->at, head, sizeof(head)) || head[0] >> 4 != inner->version ||
	    skb->len - inner->at < (inner->version == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)))
		return LEFT_MALFORMED;
	was = inner->version == 4 ? head[1] & ECN_MASK : head[1] >> 4 & ECN_MASK;
	ecn = congestion(outer->ecn, was);
	if (ecn < 0)
		return DROPPED_CONGESTION;
	taken = take_off(skb, inner->at - ETH_HLEN, skb->protocol, type, flags);
	if (taken == REFUSED)
		return LEFT_NO_ROOM;
	if (taken == DAMAGED)
		return DROPPED_FAILURE;
	if (bpf_skb_store_bytes(skb, 12, &type, sizeof(type), 0))
		return DROPPED_FAILURE;
	if (ecn != was && mark(skb, inner->version, ecn))
		return DROPPED_FAILURE;
	return as;
}

#define TCP_LISTEN 10
#define ICMP_ERRORS_V4 (1 << 3 | 1 << 11 | 1 << 12) /* unreachable, time exceeded, parameter problem */
#define ICMP_ERRORS_V6_MAX 4
#define ICMP_HEADER 8

/* The packet that determines whether there is a connection: from a client or, inside an ICMP error, to
 * one. */
struct segment {
	__u32 at; /* where its TCP header is */
	struct bpf_sock_tuple tuple; /* as of a client's packet */
	struct iphdr ip; /* of a client's packet over IPv4 */
	struct ipv6hdr ip6;
	__u8 is_error;
};

/* Finds the segment after the IP header at `at`; if `turn` is set, this is the packet quoted in an ICMP
 * error. Returns the protocol after that header, or 0. */
static __always_inline __u8 read_segment(struct __sk_buff *skb, __u32 at, __u8 version, int turn,
					 struct segment *segment)
{
	__be16 ports[2];
	__u8 protocol;

	if (version == 4) {
		if (bpf_skb_load_bytes(skb, at, &segment->ip, sizeof(segment->ip)) || segment->ip.ihl != 5 ||
		    segment->ip.frag_off & bpf_htons(FRAGMENT_BITS))
			return 0;
		protocol = segment->ip.protocol;
		segment->at = at + sizeof(segment->ip);
		segment->tuple.ipv4.saddr = turn ? segment->ip.daddr : segment->ip.saddr;
		segment->tuple.ipv4.daddr = turn ? segment->ip.saddr : segment->ip.daddr;
	} else {
		if (bpf_skb_load_bytes(skb, at, &segment->ip6, sizeof(segment->ip6)))
			return 0;
		protocol = segment->ip6.nexthdr;
		segment->at = at + sizeof(segment->ip6);
		__builtin_memcpy(segment->tuple.ipv6.saddr, turn ? &segment->ip6.daddr : &segment->ip6.saddr, 16);
		__builtin_memcpy(segment->tuple.ipv6.daddr, turn ? &segment->ip6.saddr : &segment->ip6.daddr, 16);
	}
	if (protocol != IPPROTO_TCP)
		return protocol;
	if (bpf_skb_load_bytes(skb, segment->at, ports, sizeof(ports)))
		return 0;
	if (version == 4) {
		segment->tuple.ipv4.sport = ports[turn];
		segment->tuple.ipv4.dport = ports[!turn];
	} else {
		segment->tuple.ipv6.sport = ports[turn];
		segment->tuple.ipv6.dport = ports[!turn];
	}
	return protocol;
}

/* Returns whether a packet belongs to a connection that this host does not know. Only TCP packets can. */
static __always_inline int is_strange(struct __sk_buff *skb, const struct inner *inner)
{
	struct segment segment = {};
	struct tcphdr tcp;
	struct bpf_sock *socket;
	int strange;
	__u8 protocol, type;

	protocol = read_segment(skb, inner->at, inner->version, 0, &segment);
	if (protocol == (inner->version == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6)) {
		if (bpf_skb_load_bytes(skb, segment.at, &type, sizeof(type)))
			return 0;
		if (inner->version == 4 ? type > 12 || !(ICMP_ERRORS_V4 >> type & 1) :
					  !type || type > ICMP_ERRORS_V6_MAX)
			return 0;
		protocol = read_segment(skb, segment.at + ICMP_HEADER, inner->version, 1, &segment);
		segment.is_error = 1;
	}
	if (protocol != IPPROTO_TCP)
		return 0;
	if (!segment.is_error) {
		if (bpf_skb_load_bytes(skb, segment.at, &tcp, sizeof(tcp)))
			return 0;
		if (tcp.syn && !tcp.ack)
			return 0;
	}
	if (inner->version == 4)
		socket = bpf_skc_lookup_tcp(skb, &segment.tuple, sizeof(segment.tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	else
		socket = bpf_skc_lookup_tcp(skb, &segment.tuple, sizeof(segment.tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return 1;
	strange = socket->state == TCP_LISTEN;
	/* A connection whose SYN was answered with a SYN cookie has no socket yet. */
	if (strange && !segment.is_error)
		strange = (inner->version == 4 ?
				   bpf_tcp_check_syncookie(socket, &segment.ip, sizeof(segment.ip), &tcp, sizeof(tcp)) :
				   bpf_tcp_check_syncookie(socket, &segment.ip6, sizeof(segment.ip6), &tcp,
							   sizeof(tcp))) != 0;
	bpf_sk_release(socket);
	return strange;
}

/* The GLB director's private data: 16 bits of type, index of the next hop, number of hops. */
struct chances {
	__be16 type;
	__u8 next;
	__u8 hops;
};

/* Sends a packet to its next hop, if it has one and its connection is unknown here: from the address that it
 * was sent to, on the interface on which it arrived. Returns GUE if it stays. */
static __always_inline enum count pass_on(struct __sk_buff *skb, const struct outer *outer,
					  const struct inner *inner, int *verdict)
{
	const __u32 source = ETH_HLEN + __builtin_offsetof(struct iphdr, saddr);
	const __u32 check = ETH_HLEN + __builtin_offsetof(struct iphdr, check);
	const __u32 sum = outer->behind + __builtin_offsetof(struct udphdr, check);
	const __u64 pseudo = BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0;
	struct chances was, now;
	struct prefix whom = { .length = 128 };
	__be32 from, to, hop;

	if (!inner->chances || skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, inner->chances, &was, sizeof(was)) || was.type || was.next >= was.hops ||
	    inner->chances + sizeof(was) + was.hops * sizeof(hop) > inner->at ||
	    bpf_skb_load_bytes(skb, inner->chances + sizeof(was) + was.next * sizeof(hop), &hop, sizeof(hop)) ||
	    !hop || bpf_skb_load_bytes(skb, source, &from, sizeof(from)) ||
	    bpf_skb_load_bytes(skb, source + sizeof(from), &to, sizeof(to)) || hop == to)
		return GUE;
	/* Packets are passed on only to hosts that may also send some: the other back ends. This host is not among
	 * them. */
	mapped(&whom.address, hop);
	if (bpf_map_lookup_elem(&locals, &whom.address) || !bpf_map_lookup_elem(&senders, &whom) ||
	    !is_strange(skb, inner))
		return GUE;
	now = was;
	now.next++;
	/* The UDP checksum may be absent, and then stays absent. */
	if (bpf_l4_csum_replace(skb, sum, from, to, pseudo | sizeof(to)) ||
	    bpf_l4_csum_replace(skb, sum, to, hop, pseudo | sizeof(hop)) ||
	    bpf_l4_csum_replace(skb, sum, *(__be16 *)&was.next, *(__be16 *)&now.next,
				BPF_F_MARK_MANGLED_0 | sizeof(__be16)) ||
	    bpf_l3_csum_replace(skb, check, from, to, sizeof(to)) ||
	    bpf_l3_csum_replace(skb, check, to, hop, sizeof(hop)) ||
	    bpf_skb_store_bytes(skb, source, &to, sizeof(to), 0) ||
	    bpf_skb_store_bytes(skb, source + sizeof(to), &hop, sizeof(hop), 0) ||
	    bpf_skb_store_bytes(skb, inner->chances, &now, sizeof(now), 0))
		return DROPPED_FAILURE;
	*verdict = bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
	return *verdict == TC_ACT_REDIRECT ? PASSED_ON : DROPPED_FAILURE;
}

SEC("classifier")
int decap(struct __sk_buff *skb)
{
	__u32 zero = 0;
	const struct settings *settings = bpf_map_lookup_elem(&settings_map, &zero);
	struct outer outer = {};
	struct inner inner = {};
	struct prefix source;
	enum count read, what;
	int verdict = TC_ACT_UNSPEC;
	__be16 type;

	if (!settings || skb->pkt_type != PACKET_HOST || bpf_skb_load_bytes(skb, 12, &type, sizeof(type)) ||
	    type != skb->protocol)
		return TC_ACT_UNSPEC;
	if (type == bpf_htons(ETH_P_IP))
		read = read_v4(skb, &outer);
	else if (type == bpf_htons(ETH_P_IPV6))
		read = read_v6(skb, &outer);
	else
		return TC_ACT_UNSPEC;
	if (read == NOT_TUNNEL || !bpf_map_lookup_elem(&locals, &outer.destination))
		return TC_ACT_UNSPEC;
	what = find(skb, settings, &outer, &inner);
	/* The contents of UDP behind a fragment's header or a longer header are unknown, so such frames are not
	 * counted. */
	if (what == NOT_TUNNEL || (read != IPIP && outer.protocol == IPPROTO_UDP))
		return TC_ACT_UNSPEC;
	source.length = 128;
	source.address = outer.source;
	if (!bpf_map_lookup_elem(&senders, &source))
		what = LEFT_STRANGER;
	else if (read != IPIP)
		what = read;
	else if (what <= VXLAN && !(settings->tunnels & 1 << what))
		return TC_ACT_UNSPEC;
	else if (what <= VXLAN) {
		if (what == GUE && settings->second_chance)
			what = pass_on(skb, &outer, &inner, &verdict);
		if (what <= VXLAN)
			what = strip(skb, &outer, &inner, what);
	}
	count(what);
	return what == DROPPED_CONGESTION || what == DROPPED_FAILURE ? TC_ACT_SHOT : verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
