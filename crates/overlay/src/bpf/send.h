// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Frames that pods send. */

/* Like the kernel's udp_flow_src_port(), so that a flow keeps its port when it moves between the fast path
 * and the kernel's path. A socket that sets the hash of its frames may change the hash. For other frames the
 * kernel always computes the same hash, and `learnt` is the resulting port. */
static __always_inline __be16 source_port(struct __sk_buff *skb, const struct settings *settings,
					  __be16 learnt)
{
	__u32 hash = skb->hash;

	if (!hash)
		return learnt;
	hash ^= hash << 16;
	return bpf_htons(((__u64)hash * settings->source_span >> 32) + settings->source_first);
}

/* The kernel's answers to the look-ups of `route`, valid until the next tick of its coarse clock. */
struct next_hop {
	__u64 asked_ns;
	__u32 uplink;
	__u32 mtu;
	node_address from;
	node_address to;
	__be16 port;
	__u8 class;
	__u8 reserved;
	__u8 macs[2 * ETH_ALEN]; /* destination and source */
};

#define NEXT_HOPS 256

MAP(PERCPU_ARRAY, NEXT_HOPS, __u32, struct next_hop, next_hops);

/* Looks up the route to the remote node, for a packet of this many bytes. */
static __always_inline enum count ask(struct __sk_buff *skb, const struct plan *plan, __u32 length,
				      const struct headers *headers, struct next_hop *hop)
{
	struct bpf_fib_lookup fib = {
		.l4_protocol = IPPROTO_UDP,
		.sport = headers->udp.source,
		.dport = headers->udp.dest,
		.tot_len = length,
		.ifindex = plan->uplink,
	};
	long answer;

	ask_for(&fib, headers);
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

/* Finds the route to the remote node. The next hop may differ from when the flow was learnt, but a different
 * interface is a reason not to take the fast path. The route is looked up once per tick of the kernel's clock
 * (1 to 10 ms), so an answer is used no longer than a change takes to invalidate entries. An entry that was
 * learnt after a change must not be used with an answer from before it: until the end of the tick in which
 * the entry was learnt, the route is looked up for each frame. */
static __always_inline enum count route(struct __sk_buff *skb, const struct plan *plan, __u32 length,
					struct headers *headers, __u64 now)
{
	__u32 at = (headers->udp.source ^ headers->udp.source >> 8 ^ bits_of_node(headers)) % NEXT_HOPS;
	struct next_hop *hop = bpf_map_lookup_elem(&next_hops, &at);
	__u8 class = outer_class(headers) & ~ECN_MASK;
	enum count why;

	if (!hop)
		return NO_ROUTE;
	if (hop->asked_ns != now || now <= plan->send.learnt_ns || !SAME_NODE(hop->to, headers->ip.daddr) ||
	    !SAME_NODE(hop->from, headers->ip.saddr) || hop->port != headers->udp.source ||
	    hop->class != class || hop->uplink != plan->uplink || hop->mtu < length) {
		hop->asked_ns = 0;
		why = ask(skb, plan, length, headers, hop);
		if (why != FAST)
			return why;
		hop->asked_ns = now;
		hop->uplink = plan->uplink;
		hop->from = headers->ip.saddr;
		hop->to = headers->ip.daddr;
		hop->port = headers->udp.source;
		hop->class = class;
	}
	__builtin_memcpy(&headers->ethernet, hop->macs, sizeof(hop->macs));
	return FAST;
}

/* Fills in what differs from packet to packet. */
static __always_inline void fill(struct __sk_buff *skb, const struct settings *settings,
				 const struct packet *packet, struct written *out)
{
	struct headers *headers = &out->headers;
	__u16 length = length_of(&packet->ip) + TUNNEL - sizeof(node_header);
	__u8 ecn = ecn_of(&packet->ip);

	/* RFC 6040, section 4.1, compatibility mode, like the kernel: CE is not copied to the outer header. */
	fill_outer(headers, length, ecn == ECN_CE ? 2 : ecn);
	headers->udp.source = source_port(skb, settings, headers->udp.source);
	headers->udp.len = bpf_htons(length);
	headers->udp.check = 0;
}

/* Encapsulates a frame and sends it. */
static __always_inline int encapsulate(struct __sk_buff *skb, const struct packet *packet,
				       struct written *out, struct way *way, const struct plan *plan,
				       __u64 now)
{
	__u32 bytes = length_of(&packet->ip), packets = packets_of(skb);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET | ENCAP_L3 |
		      BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
		      BPF_F_ADJ_ROOM_ENCAP_L2(sizeof(struct ethhdr)) | BPF_F_ADJ_ROOM_ENCAP_L2_ETH;

	if (bpf_skb_adjust_room(skb, TUNNEL, BPF_ADJ_ROOM_MAC, flags))
		return slow(SEND, NO_ROOM);
	if (bpf_skb_store_bytes(skb, 0, out, sizeof(*out), 0) ||
	    translate_ports(skb, packet, &plan->send, sizeof(*out))) {
		count(SEND, DROPPED);
		return TC_ACT_SHOT;
	}
	credit(way, SEND, packets, bytes, packet, now);
	return bpf_redirect(plan->uplink, 0);
}

/* Sends a frame through the tunnel; `ip` is its header after the node's routing. */
static __always_inline int send_far(struct __sk_buff *skb, const struct settings *settings,
				    const struct packet *packet, const pod_header *ip, struct way *way,
				    const struct plan *plan, __u64 now)
{
	__u32 length = longest(skb, packet);
	struct written out __attribute__((aligned(8)));
	enum count why;

	if (plan->look != look_of(&packet->ip))
		return learn_from(skb, settings, SEND, CHANGED);
	if (!fits(skb, &plan->send, settings->tunnel, length, now) || length_of(&packet->ip) + TUNNEL > 0xffff)
		return slow(SEND, OVERSIZE);
	if (!gives_check(settings, skb, packet))
		return slow(SEND, CHECKSUM);
	__builtin_memcpy(&out, plan->headers, sizeof(plan->headers));
	fill(skb, settings, packet, &out);
	why = route(skb, plan, length + TUNNEL, &out.headers, now);
	if (why != FAST)
		return slow(SEND, why);
	out.ip = *ip;
	seal(settings, &out, ip);
	return encapsulate(skb, packet, &out, way, plan, now);
}

/* Delivers a frame to another pod on this node. */
static __always_inline int send_near(struct __sk_buff *skb, const struct packet *packet,
				     const pod_header *ip, struct way *way, const struct plan *plan,
				     __u64 now)
{
	struct bared bare = { .ethernet = headers_of(plan)->inner, .ip = *ip };

	if (plan->peer == skb->ifindex)
		return slow(SEND, STRANGER);
	if (!fits(skb, &plan->send, plan->peer, longest(skb, packet), now))
		return slow(SEND, OVERSIZE);
	if (bpf_skb_store_bytes(skb, 0, &bare, sizeof(bare), 0))
		return slow(SEND, NO_ROOM);
	if (translate_ports(skb, packet, &plan->send, sizeof(bare))) {
		count(SEND, DROPPED);
		return TC_ACT_SHOT;
	}
	credit(way, SEND, packets_of(skb), length_of(ip), packet, now);
	skb->mark = 0;
	/* The frame was addressed to the gateway or the other pod, not to this interface; older kernels do not reset
	 * the packet type, and the pod would not accept it. */
	bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(plan->peer, 0);
}

static __always_inline int send_known(struct __sk_buff *skb, const struct settings *settings,
				      const struct packet *packet, struct way *way, const struct plan *plan,
				      __u64 now)
{
	pod_header ip = packet->ip;
	__u8 macs[2 * ETH_ALEN] __attribute__((aligned(4)));
	enum count why;

	why = judge(settings, &plan->send, &way->plan.send, SEND, now);
	if (why != FAST)
		return learn_from(skb, settings, SEND, why);
	/* Using only one direction would prevent connection tracking from seeing both. */
	if (!plan->receive.learnt_ns)
		return learn_from(skb, settings, SEND, HALF);
	if (plan->pod != skb->ifindex)
		return slow(SEND, STRANGER);
	/* The destination is where its answers come from; a different gateway of the pod is a different route. */
	if (load(skb, 0, macs, sizeof(macs)))
		return slow(SEND, MALFORMED);
	if (!same_mac(macs, plan->macs + ETH_ALEN) || !same_mac(macs + ETH_ALEN, plan->macs))
		return learn_from(skb, settings, SEND, CHANGED);
	/* A frame with the source's own MAC address was bridged, otherwise it was routed. */
	if (!same_mac(macs + ETH_ALEN, headers_of(plan)->inner.h_source)) {
		if (hops_of(&packet->ip) <= 1)
			return slow(SEND, LAST_HOP);
		hop(&ip);
	}
	translate(&ip, &plan->send);
	if (plan->send.flags & LOCAL)
		return send_near(skb, packet, &ip, way, plan, now);
	return send_far(skb, settings, packet, &ip, way, plan, now);
}

SEC("classifier")
int overlay_send(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct packet packet = {};
	struct plan *plan = get_scratch();
	struct key key;
	struct set *set;
	struct way *way;
	enum count why;
	__u64 now;

	if (!settings || !plan)
		return TC_ACT_UNSPEC;
	begin(SEND, skb, settings);
	if (skb->protocol != bpf_htons(POD_ETHERTYPE) || skb->vlan_present) {
		HAND_OVER(skb, skb->protocol, TWIN_SEND);
		return slow(SEND, NOT_IP);
	}
	if (skb->pkt_type == PACKET_MULTICAST || skb->pkt_type == PACKET_BROADCAST)
		return slow(SEND, MULTICAST);
	why = read_packet(skb, sizeof(struct ethhdr), &packet);
	if (why != FAST)
		return slow(SEND, why);
	key_of(settings, &packet, SEND, &key);
	set = set_of(settings, &key);
	if (!set)
		return slow(SEND, LEASE);
	way = find(set, &key, plan);
	if (!way)
		return learn_from(skb, settings, SEND, UNKNOWN);
	now = bpf_ktime_get_coarse_ns();
	/* Stamps are read after the lease. Learning needs no lease: the lease is extended only after the stamps of
	 * everything that has changed meanwhile were bumped, so whatever was learnt without it is void before it can
	 * be used. */
	if (get_pulse(UNTIL) < now)
		return slow(SEND, LEASE);
	return send_known(skb, settings, &packet, way, plan, now);
}
