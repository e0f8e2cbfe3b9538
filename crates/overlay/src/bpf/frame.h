// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Reads frames (whether they may take the fast path, and which flow they belong to), and changes them. */

#define TCP_CONTROL 0x07 /* FIN, SYN, RST */

/* The inner packet. */
struct packet {
	pod_header ip;
	__be16 sport;
	__be16 dport;
	__u16 header; /* length of its TCP or UDP header */
	__be16 check; /* of UDP */
};

/* The frame's headers as they are written in one go: all tunnel headers, and the inner packet's. */
struct written {
	struct headers headers;
	pod_header ip;
} __attribute__((packed, aligned(2)));

/* The beginning of a frame without a tunnel. */
struct bared {
	struct ethhdr ethernet;
	pod_header ip;
} __attribute__((packed, aligned(2)));

/* Copies bytes of a frame, usually from its linear part, without a call. The destination is aligned to 4. */
static __always_inline long load(struct __sk_buff *skb, __u32 at, void *to, __u32 bytes)
{
	const void *from = (void *)(long)skb->data + at;

	if (from + bytes > (void *)(long)skb->data_end)
		return bpf_skb_load_bytes(skb, at, to, bytes);
	/* The kernel accepts this only where the processor reads words at any address. */
	__builtin_memcpy(__builtin_assume_aligned(to, 4), __builtin_assume_aligned(from, 4), bytes);
	return 0;
}

/* The sum of the ten words of a header of IPv4, folded; 0xffff if its checksum is correct. */
static __always_inline __u32 header_sum(const void *header)
{
	const __u16 *words = header;
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

#if POD_IP == 4
#include "pods4.h"
#else
#include "pods6.h"
#endif
#if NODE_IP == 4
#include "nodes4.h"
#else
#include "nodes6.h"
#endif

/* Reads an inner packet that begins at an offset and ends with the frame. Returns why it may not take the
 * fast path, or FAST. */
static __always_inline enum count read_packet(struct __sk_buff *skb, __u32 at, struct packet *packet)
{
	enum count why;
	struct {
		pod_header ip;
		struct udphdr udp; /* ports, and what follows them in UDP: length and checksum */
	} begin;
	__u8 tcp[4] __attribute__((aligned(4))); /* from the data offset on */

	if (load(skb, at, &begin, sizeof(begin)))
		return MALFORMED;
	packet->ip = begin.ip;
	why = read_header(skb, at, &packet->ip);
	if (why != FAST)
		return why;
	packet->sport = begin.udp.source;
	packet->dport = begin.udp.dest;
	packet->check = begin.udp.check;
	packet->header = sizeof(begin.udp);
	if (protocol_of(&packet->ip) == IPPROTO_UDP)
		return FAST;
	if (load(skb, at + sizeof(packet->ip) + 12, tcp, sizeof(tcp)))
		return MALFORMED;
	packet->header = (tcp[0] >> 4) * 4;
	return tcp[1] & TCP_CONTROL ? CONTROL : FAST;
}

static __always_inline void tuple_of(const struct packet *packet, struct tuple *tuple)
{
	tuple->saddr = packet->ip.saddr;
	tuple->daddr = packet->ip.daddr;
	tuple->sport = packet->sport;
	tuple->dport = packet->dport;
	tuple->protocol = protocol_of(&packet->ip);
}

/* The key of a flow, from a frame's tuple and direction. */
static __always_inline void key_from(const struct settings *settings, const struct tuple *tuple,
				     enum direction direction, struct key *key)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->vni = settings->vni;
	key->protocol = tuple->protocol;
	key->local = direction == SEND ? tuple->saddr : tuple->daddr;
	key->remote = direction == SEND ? tuple->daddr : tuple->saddr;
	key->local_port = direction == SEND ? tuple->sport : tuple->dport;
	key->remote_port = direction == SEND ? tuple->dport : tuple->sport;
}

/* Builds the key of a flow from a packet. */
static __always_inline void key_of(const struct settings *settings, const struct packet *packet,
				   enum direction direction, struct key *key)
{
	struct tuple tuple = {};

	tuple_of(packet, &tuple);
	key_from(settings, &tuple, direction, key);
}

/* The length of the longest IP packet into which a frame is cut, because GSO segments are cut only later. */
static __always_inline __u32 longest(const struct __sk_buff *skb, const struct packet *packet)
{
	if (skb->gso_size)
		return sizeof(packet->ip) + packet->header + skb->gso_size;
	return length_of(&packet->ip);
}

/* The MTU of an interface at a tick of the kernel's coarse clock. */
struct carrier {
	__u64 asked_ns;
	__u32 interface;
	__u32 mtu;
};

#define CARRIERS 256

MAP(PERCPU_ARRAY, CARRIERS, __u32, struct carrier, carriers);

/* Returns whether an interface can carry IP packets of this length, in the direction of this half of a flow.
 * The kernel is asked once per tick, as in `route`. */
static __always_inline int fits(struct __sk_buff *skb, const struct half *half, __u32 interface,
				__u32 length, __u64 now)
{
	__u32 at = interface % CARRIERS, mtu = length;
	struct carrier *carrier = bpf_map_lookup_elem(&carriers, &at);

	if (!carrier)
		return 0;
	if (carrier->asked_ns == now && now > half->learnt_ns && carrier->interface == interface &&
	    length <= carrier->mtu)
		return 1;
	/* A non-error result refers to a GSO frame as a whole; the MTU that the helper writes does not. */
	if (bpf_check_mtu(skb, interface, &mtu, 0, 0) < 0)
		return 0;
	carrier->asked_ns = now;
	carrier->interface = interface;
	carrier->mtu = mtu;
	return length <= mtu;
}

/* Reads the headers of a tunnel. Returns NOT_TUNNEL, OPTIONS or OTHER_VNI if the frame is not of our tunnel,
 * or has options of Geneve, which may differ from frame to frame; otherwise FAST or NOT_IP. */
static __always_inline enum count read_headers(struct __sk_buff *skb, const struct settings *settings,
					       struct headers *headers)
{
	if (skb->protocol != bpf_htons(NODE_ETHERTYPE) || skb->vlan_present ||
	    load(skb, 0, headers, sizeof(*headers)))
		return NOT_TUNNEL;
	if (headers->ethernet.h_proto != bpf_htons(NODE_ETHERTYPE) || !is_carrier(headers) ||
	    headers->udp.dest != bpf_htons(settings->port))
		return NOT_TUNNEL;
	if (headers->tunnel.vni != bpf_htonl(settings->vni << 8))
		return OTHER_VNI;
	if (headers->tunnel.head != bpf_htonl(settings->head)) {
		if (settings->head == GENEVE && headers->tunnel.head & bpf_htonl(GENEVE_OPTIONS))
			return OPTIONS;
		return OTHER_VNI;
	}
	if (headers->inner.h_proto != bpf_htons(POD_ETHERTYPE))
		return NOT_IP;
	return FAST;
}

/* Applies NAT to the ports and the checksum of the transport header at this offset. Returns the kernel's
 * error. */
static __always_inline long translate_ports(struct __sk_buff *skb, const struct packet *packet,
					    const struct half *half, __u32 at)
{
	const struct tuple *to = &half->to;
	__u64 flags = 0;
	__u32 check = at + offsetof(struct tcphdr, check);
	__u16 ports[2] = { to->sport, to->dport };

	if (!(half->flags & TRANSLATED))
		return 0;
	if (protocol_of(&packet->ip) == IPPROTO_UDP) {
		check = at + offsetof(struct udphdr, check);
		flags = BPF_F_MARK_MANGLED_0;
	}
	if (protocol_of(&packet->ip) != IPPROTO_UDP || packet->check) {
		if (translate_addresses(skb, &packet->ip, to, check, flags) ||
		    bpf_l4_csum_replace(skb, check, packet->sport, to->sport, flags | 2) ||
		    bpf_l4_csum_replace(skb, check, packet->dport, to->dport, flags | 2))
			return -1;
	}
	return bpf_skb_store_bytes(skb, at, ports, sizeof(ports), 0);
}
