// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Frames that other nodes send. */

/* Propagates congestion marks from the outer to the inner header: RFC 6040, section 4.2. Returns FAST, or
 * CONGESTION for combinations that are left to the kernel. */
static __always_inline enum count take_congestion(const struct headers *headers, pod_header *ip)
{
	__u8 outer = outer_class(headers) & ECN_MASK, inner = ecn_of(ip);

	if (outer == ECN_CE && inner == 0)
		return CONGESTION;
	if (outer == ECN_ECT1 && inner != ECN_ECT1 && inner != 0)
		return CONGESTION;
	if (outer == ECN_CE && inner != ECN_CE)
		mark_congestion(ip);
	return FAST;
}

/* Removes the tunnel's headers and delivers the frame to the pod. */
static __always_inline int decapsulate(struct __sk_buff *skb, const struct headers *headers,
				       const struct packet *packet, struct bared *bare, struct way *way,
				       const struct plan *plan, __u64 now)
{
	__u32 bytes = length_of(&packet->ip), packets = packets_of(skb);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	enum taken taken = take_off(skb, TUNNEL, bpf_htons(NODE_ETHERTYPE), bpf_htons(POD_ETHERTYPE), flags);

	if (taken == REFUSED)
		return slow(RECEIVE, NO_ROOM);
	if (taken == DAMAGED || bpf_skb_store_bytes(skb, 0, bare, sizeof(*bare), 0) ||
	    translate_ports(skb, packet, &plan->receive, sizeof(*bare))) {
		count(RECEIVE, DROPPED);
		return TC_ACT_SHOT;
	}
	/* The device may have verified only the outer checksum. */
	if (headers->udp.check)
		bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	credit(way, RECEIVE, packets, bytes, packet, now);
	skb->mark = 0;
	return bpf_redirect_peer(plan->pod, 0);
}

static __always_inline int receive_known(struct __sk_buff *skb, const struct settings *settings,
					 const struct headers *headers, const struct packet *packet,
					 struct way *way, const struct plan *plan, __u64 now)
{
	pod_header ip = packet->ip;
	struct bared bare;
	enum count why;

	why = judge(settings, &plan->receive, &way->plan.receive, RECEIVE, now);
	if (why != FAST)
		return learn_from(skb, settings, RECEIVE, why);
	if (!plan->send.learnt_ns)
		return learn_from(skb, settings, RECEIVE, HALF);
	/* Frames must come from the node to which the flow's own frames are sent, and be addressed to the device
	 * that sends those. */
	if (plan->send.flags & LOCAL || !SAME_NODE(headers->ip.saddr, headers_of(plan)->ip.daddr) ||
	    !SAME_NODE(headers->ip.daddr, headers_of(plan)->ip.saddr) ||
	    !same_mac(headers->inner.h_dest, headers_of(plan)->inner.h_source) ||
	    !same_mac(headers->inner.h_source, headers_of(plan)->inner.h_dest))
		return slow(RECEIVE, STRANGER);
	if (!fits(skb, &plan->receive, plan->pod, longest(skb, packet), now))
		return slow(RECEIVE, OVERSIZE);
	if (!same_mac(headers->inner.h_source, plan->macs + ETH_ALEN)) {
		if (hops_of(&packet->ip) <= 1)
			return slow(RECEIVE, LAST_HOP);
		hop(&ip);
	}
	why = take_congestion(headers, &ip);
	if (why != FAST)
		return slow(RECEIVE, why);
	translate(&ip, &plan->receive);
	__builtin_memcpy(&bare.ethernet, plan->macs, sizeof(plan->macs));
	bare.ethernet.h_proto = bpf_htons(POD_ETHERTYPE);
	bare.ip = ip;
	return decapsulate(skb, headers, packet, &bare, way, plan, now);
}

SEC("classifier")
int overlay_receive(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct headers headers __attribute__((aligned(8)));
	struct packet packet = {};
	struct plan *plan = get_scratch();
	struct key key;
	struct set *set;
	struct way *way;
	enum count why;
	__u64 now;

	if (!settings || !plan)
		return TC_ACT_UNSPEC;
	begin(RECEIVE, skb, settings);
	why = read_headers(skb, settings, &headers);
	if (why == NOT_IP)
		HAND_OVER(skb, headers.inner.h_proto, TWIN_RECEIVE);
	if (why != FAST)
		return slow(RECEIVE, why);
	if (skb->pkt_type != PACKET_HOST || !is_whole(skb, &headers))
		return slow(RECEIVE, MALFORMED);
	if (!takes_check(settings, &headers))
		return slow(RECEIVE, CHECKSUM);
	why = read_packet(skb, sizeof(headers), &packet);
	if (why != FAST)
		return slow(RECEIVE, why);
	/* Without a checksum of its own, the packet is protected only by the outer one. */
	if (protocol_of(&packet.ip) == IPPROTO_UDP && !packet.check && headers.udp.check)
		return slow(RECEIVE, CHECKSUM);
	key_of(settings, &packet, RECEIVE, &key);
	set = set_of(settings, &key);
	if (!set)
		return slow(RECEIVE, LEASE);
	way = find(set, &key, plan);
	if (!way)
		return learn_from(skb, settings, RECEIVE, UNKNOWN);
	now = bpf_ktime_get_coarse_ns();
	/* As in `overlay_send`. */
	if (get_pulse(UNTIL) < now)
		return slow(RECEIVE, LEASE);
	return receive_known(skb, settings, &headers, &packet, way, plan, now);
}
