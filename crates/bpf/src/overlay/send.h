// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* What pods send. */

#define AF_INET 2

/* As udp_flow_src_port() of the kernel, so that a flow keeps its port when it changes ways. A socket that
 * gives its frames a hash may change it; for other frames the kernel computes one, always the same, and
 * `learnt` is what came of it. */
static __always_inline __be16 source_port(struct __sk_buff *skb, const struct settings *settings,
					  __be16 learnt)
{
	__u32 hash = skb->hash;

	if (!hash)
		return learnt;
	hash ^= hash << 16;
	return bpf_htons(((__u64)hash * settings->source_span >> 32) + settings->source_first);
}

/* The kernel's answers to what `route` asks, until the next tick of its coarse clock. */
struct next_hop {
	__u64 asked_ns;
	__u32 uplink;
	__u32 mtu;
	__be32 from;
	__be32 to;
	__be16 port;
	__u8 tos;
	__u8 reserved;
	__u8 macs[2 * ETH_ALEN]; /* destination and source */
};

#define NEXT_HOPS 256

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NEXT_HOPS);
	__type(key, __u32);
	__type(value, struct next_hop);
} next_hops SEC(".maps");

/* Asks for the way to the remote node, as for a packet of so many bytes. */
static __always_inline enum count ask(struct __sk_buff *skb, const struct plan *plan, __u32 length,
				      const struct headers *headers, struct next_hop *hop)
{
	struct bpf_fib_lookup fib = {
		.family = AF_INET,
		.l4_protocol = IPPROTO_UDP,
		.sport = headers->udp.source,
		.dport = headers->udp.dest,
		.tot_len = length,
		.ipv4_src = headers->ip.saddr,
		.ipv4_dst = headers->ip.daddr,
		.ifindex = plan->uplink,
	};
	long answer;

	fib.tos = headers->ip.tos & ~ECN_MASK;
	answer = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (answer == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return OVERSIZE;
	if (answer || fib.ifindex != plan->uplink)
		return NO_ROUTE;
	hop->mtu = fib.mtu_result;
	__builtin_memcpy(hop->macs, fib.dmac, ETH_ALEN);
	__builtin_memcpy(hop->macs + ETH_ALEN, fib.smac, ETH_ALEN);
	return FAST;
}

/* Finds the way to the remote node. It may have another next hop than when the flow was learnt; another
 * interface is another way. The kernel is asked once for each tick of its clock, of 1 to 10 ms. */
static __always_inline enum count route(struct __sk_buff *skb, const struct plan *plan, __u32 length,
					struct headers *headers, __u64 now)
{
	__u32 at = (headers->udp.source ^ headers->udp.source >> 8 ^ headers->ip.daddr >> 24) % NEXT_HOPS;
	struct next_hop *hop = bpf_map_lookup_elem(&next_hops, &at);
	__u8 tos = headers->ip.tos & ~ECN_MASK;
	enum count why;

	if (!hop)
		return NO_ROUTE;
	if (hop->asked_ns != now || hop->to != headers->ip.daddr || hop->from != headers->ip.saddr ||
	    hop->port != headers->udp.source || hop->tos != tos || hop->uplink != plan->uplink ||
	    hop->mtu < length) {
		hop->asked_ns = 0;
		why = ask(skb, plan, length, headers, hop);
		if (why != FAST)
			return why;
		hop->asked_ns = now;
		hop->uplink = plan->uplink;
		hop->from = headers->ip.saddr;
		hop->to = headers->ip.daddr;
		hop->port = headers->udp.source;
		hop->tos = tos;
	}
	__builtin_memcpy(&headers->ethernet, hop->macs, sizeof(hop->macs));
	return FAST;
}

/* The frame's headers as they are written at once: all of the tunnel, and the inner packet's. */
struct written {
	struct headers headers;
	struct iphdr ip;
} __attribute__((packed, aligned(2)));

/* Fills in what differs from packet to packet. */
static __always_inline void fill(struct __sk_buff *skb, const struct settings *settings,
				 const struct packet *packet, struct written *out)
{
	struct headers *headers = &out->headers;
	__u16 length = bpf_ntohs(packet->ip.tot_len) + TUNNEL;
	__u8 ecn = packet->ip.tos & ECN_MASK;

	/* RFC 6040, section 4.1, compatibility mode, as the kernel: CE does not go into the tunnel twice. */
	headers->ip.tos = (headers->ip.tos & ~ECN_MASK) | (ecn == ECN_CE ? 2 : ecn);
	headers->ip.tot_len = bpf_htons(length);
	headers->ip.id = bpf_get_prandom_u32();
	headers->udp.source = source_port(skb, settings, headers->udp.source);
	headers->udp.len = bpf_htons(length - sizeof(struct iphdr));
	headers->udp.check = 0;
}

/* Encapsulates a frame and sends it. */
static __always_inline int encapsulate(struct __sk_buff *skb, struct written *out, struct way *way,
				       const struct plan *plan, __u64 now)
{
	__u32 bytes = bpf_ntohs(out->ip.tot_len);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET |
		      BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
		      BPF_F_ADJ_ROOM_ENCAP_L2(sizeof(struct ethhdr)) | BPF_F_ADJ_ROOM_ENCAP_L2_ETH;

	if (bpf_skb_adjust_room(skb, TUNNEL, BPF_ADJ_ROOM_MAC, flags))
		return slow(SEND, NO_ROOM);
	if (bpf_skb_store_bytes(skb, 0, out, sizeof(*out), 0)) {
		count(SEND, DROPPED);
		return TC_ACT_SHOT;
	}
	credit(skb, way, SEND, bytes, now);
	return bpf_redirect(plan->uplink, 0);
}

static __always_inline int send_known(struct __sk_buff *skb, const struct settings *settings,
				      const struct packet *packet, struct way *way, const struct plan *plan,
				      __u64 now)
{
	__u32 length = longest(skb, packet) + TUNNEL;
	struct written out __attribute__((aligned(8)));
	struct iphdr ip = packet->ip;
	__u8 source[ETH_ALEN] __attribute__((aligned(2)));
	enum count why;

	why = judge(settings, &plan->send, &way->plan.send, SEND, now);
	if (why != FAST)
		return learn_from(skb, settings, SEND, why);
	/* One direction alone would keep connection tracking from seeing both. */
	if (!plan->receive.learnt_ns)
		return learn_from(skb, settings, SEND, HALF);
	if (plan->pod != skb->ifindex)
		return slow(SEND, STRANGER);
	if (plan->look != look_of(&packet->ip))
		return learn_from(skb, settings, SEND, CHANGED);
	if (bpf_ntohs(packet->ip.tot_len) + TUNNEL > 0xffff ||
	    !fits(skb, settings->tunnel, longest(skb, packet)))
		return slow(SEND, OVERSIZE);
	__builtin_memcpy(&out, plan->headers, sizeof(plan->headers));
	fill(skb, settings, packet, &out);
	why = route(skb, plan, length, &out.headers, now);
	if (why != FAST)
		return slow(SEND, why);
	seal(&out.headers.ip);
	/* With the source's own MAC address it was bridged, otherwise routed. */
	if (bpf_skb_load_bytes(skb, ETH_ALEN, source, sizeof(source)))
		return slow(SEND, MALFORMED);
	if (!same_mac(source, out.headers.inner.h_source)) {
		if (packet->ip.ttl <= 1)
			return slow(SEND, LAST_HOP);
		hop(&ip);
	}
	out.ip = ip;
	return encapsulate(skb, &out, way, plan, now);
}

SEC("classifier")
int overlay_send(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct packet packet = {};
	struct plan plan;
	struct key key;
	struct set *set;
	struct way *way;
	enum count why;
	__u64 now;

	if (!settings)
		return TC_ACT_UNSPEC;
	count(SEND, SEEN);
	/* Nobody else may say that a connection is established. */
	skb->mark &= ~settings->mark_mask;
	if (skb->protocol != bpf_htons(ETH_P_IP) || skb->vlan_present || skb->pkt_type == PACKET_MULTICAST ||
	    skb->pkt_type == PACKET_BROADCAST)
		return slow(SEND, NOT_IP);
	why = read_packet(skb, sizeof(struct ethhdr), &packet);
	if (why != FAST)
		return slow(SEND, why);
	key_of(settings, &packet, SEND, &key);
	set = set_of(settings, &key);
	if (!set)
		return slow(SEND, LEASE);
	way = find(set, &key, &plan);
	if (!way)
		return learn_from(skb, settings, SEND, UNKNOWN);
	now = bpf_ktime_get_coarse_ns();
	/* Learning needs no lease: what changes meanwhile makes void what was learnt, before there is another. */
	if (get_pulse(UNTIL) < now)
		return slow(SEND, LEASE);
	return send_known(skb, settings, &packet, way, &plan, now);
}
