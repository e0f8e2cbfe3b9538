// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Learning from frames that the kernel forwarded. If something changes while a frame is in flight, the epoch
 * differs from the one in its mark, and nothing is learnt. If something changes later, the entry has old
 * stamps and is void: the stamps are read before the epoch here, and user space increments the epoch before
 * the stamps.
 */

/* Returns whether a frame's mark requests that this direction of an established flow be learnt; clears the
 * bits, which are ours. Writes the stamps, and whether NAT has changed the frame, to `half`. */
static __always_inline int is_wanted(struct __sk_buff *skb, const struct settings *settings, __u32 wants,
				     __u32 at, struct half *half)
{
	__u32 mark = skb->mark & settings->mark_mask, nat = mark_of(settings, NAT, 0), same;
	__u64 now = bpf_ktime_get_coarse_ns();

	skb->mark &= ~settings->mark_mask;
	half->learnt_ns = now;
	half->global = get_stamp(GLOBAL);
	half->policy = get_stamp(POLICY);
	half->own = get_stamp(at);
	half->at = at;
	half->flags = mark & nat ? USABLE | TRANSLATED : USABLE;
	same = mark_of(settings, wants | ESTABLISHED, get_pulse(EPOCH));
	if ((mark & ~nat) == same && get_pulse(LEARN_FROM) <= now)
		return 1;
	note(OUTDATED, 1);
	return 0;
}

/* Returns whether nothing can be learnt from a frame. This is checked first, so that frames of connections
 * that are not established cost no more than this. */
static __always_inline int teaches_nothing(struct __sk_buff *skb, const struct settings *settings,
					   __u32 wants)
{
	if (!(skb->mark & mark_of(settings, wants, 0)))
		return 1;
	if (skb->mark & mark_of(settings, ESTABLISHED, 0))
		return 0;
	skb->mark &= ~settings->mark_mask;
	note(NOT_ESTABLISHED, 1);
	return 1;
}

/* Finds the tuple with which a frame arrived that leaves with this one. If NAT has changed the tuple, user
 * space has recorded the translation, or is asked for it. */
static __always_inline int came_as(const struct half *half, const struct tuple *to, struct tuple *from)
{
	struct tuple *known;

	*from = *to;
	if (!(half->flags & TRANSLATED))
		return 1;
	known = bpf_map_lookup_elem(&translations, to);
	if (known) {
		*from = *known;
		return 1;
	}
	note(ASKED, 1);
	bpf_ringbuf_output(&asked, (void *)to, sizeof(*to), 0);
	return 0;
}

/* A frame that cannot be learnt from. */
static __always_inline int leave(struct __sk_buff *skb, const struct settings *settings)
{
	skb->mark &= ~settings->mark_mask;
	note(UNLEARNABLE, 1);
	return TC_ACT_UNSPEC;
}

/* Writes both entries of a translated flow: frames of this direction are found by the first entry, and frames
 * of the other direction by the second. */
static __always_inline void learn_both(const struct settings *settings, struct plan *plan, struct half *half,
				       const struct tuple *from, enum direction direction)
{
	struct key key;

	key_from(settings, from, direction, &key);
	learn(settings, &key, plan, direction);
	if (!(half->flags & TRANSLATED))
		return;
	half->flags &= ~USABLE;
	key_from(settings, &half->to, direction, &key);
	learn(settings, &key, plan, direction);
}

SEC("classifier")
int overlay_learn_send(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct plan *plan = get_scratch();
	struct packet packet = {};
	struct headers headers __attribute__((aligned(8)));
	node_address node;
	struct tuple from;
	enum count why;
	__u32 *at;

	if (!settings || !plan || teaches_nothing(skb, settings, WANTS_SEND))
		return TC_ACT_UNSPEC;
	why = read_headers(skb, settings, &headers);
	if (why == NOT_IP)
		HAND_OVER(skb, headers.inner.h_proto, TWIN_LEARN_SEND);
	if (why != FAST || read_packet(skb, sizeof(headers), &packet) != FAST ||
	    !(node = headers.ip.daddr, at = bpf_map_lookup_elem(&nodes, &node)))
		return leave(skb, settings);
	__builtin_memset(plan, 0, sizeof(*plan));
	if (!is_wanted(skb, settings, WANTS_SEND, *at, &plan->send))
		return TC_ACT_UNSPEC;
	tuple_of(&packet, &plan->send.to);
	plan->uplink = skb->ifindex;
	__builtin_memcpy(plan->headers, &headers, sizeof(headers));
	plan->look = look_of(&packet.ip);
	if (came_as(&plan->send, &plan->send.to, &from))
		learn_both(settings, plan, &plan->send, &from, SEND);
	return TC_ACT_UNSPEC;
}

/* Learns from a frame of another pod on this node: it is the sending direction for that pod, and the
 * receiving direction for this one. */
static __always_inline void learn_near(const struct settings *settings, struct plan *plan)
{
	__u8 *inner = (__u8 *)plan->headers + TUNNEL;
	struct tuple from;
	struct key key;

	if (!came_as(&plan->receive, &plan->receive.to, &from))
		return;
	plan->send = plan->receive;
	plan->send.flags |= LOCAL;
	plan->peer = plan->pod;
	__builtin_memcpy(inner, plan->macs, sizeof(plan->macs));
	inner[sizeof(plan->macs)] = POD_ETHERTYPE >> 8;
	inner[sizeof(plan->macs) + 1] = POD_ETHERTYPE & 0xff;
	key_from(settings, &from, SEND, &key);
	learn(settings, &key, plan, SEND);
	plan->receive.flags = LOCAL;
	key_from(settings, &plan->receive.to, RECEIVE, &key);
	learn(settings, &key, plan, RECEIVE);
}

SEC("classifier")
int overlay_learn_receive(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct plan *plan = get_scratch();
	__u32 interface = skb->ifindex, wants;
	struct packet packet = {};
	struct tuple from;
	struct pod *pod;

	if (!settings || !plan || teaches_nothing(skb, settings, WANTS_SEND | WANTS_RECEIVE))
		return TC_ACT_UNSPEC;
	HAND_OVER(skb, skb->protocol, TWIN_LEARN_RECEIVE);
	wants = skb->mark & mark_of(settings, WANTS_SEND, 0) ? WANTS_SEND : WANTS_RECEIVE;
	__builtin_memset(plan, 0, sizeof(*plan));
	if (skb->protocol != bpf_htons(POD_ETHERTYPE) || skb->vlan_present ||
	    bpf_skb_load_bytes(skb, 0, plan->macs, sizeof(plan->macs)) ||
	    read_packet(skb, sizeof(struct ethhdr), &packet) != FAST ||
	    !(pod = bpf_map_lookup_elem(&pods, &interface)) || !same_mac(pod->mac, plan->macs))
		return leave(skb, settings);
	if (!is_wanted(skb, settings, wants, pod->stamp, &plan->receive))
		return TC_ACT_UNSPEC;
	tuple_of(&packet, &plan->receive.to);
	plan->pod = interface;
	if (wants == WANTS_SEND)
		learn_near(settings, plan);
	else if (came_as(&plan->receive, &plan->receive.to, &from))
		learn_both(settings, plan, &plan->receive, &from, RECEIVE);
	return TC_ACT_UNSPEC;
}

/* Forgets the flow whose key user space passes after an empty Ethernet header (BPF_PROG_TEST_RUN), and
 * returns the lower half of the key's hash. */
SEC("classifier")
int overlay_forget(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct gone gone = {};
	struct key key;
	struct set *set;
	int found = 0;

	if (!settings || bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &key, sizeof(key)))
		return 0;
	set = set_of(settings, &key);
	if (!set)
		return 0;
	bpf_spin_lock(&set->lock);
	turn(set);
	for (int i = 0; i < WAYS; i++) {
		if (key.protocol && is_of(&set->ways[i], &key)) {
			found = set->ways[i].born_ns != 0;
			take(&set->ways[i], ENDED, &gone);
			retire(&set->ways[i]);
			break;
		}
	}
	turn(set);
	bpf_spin_unlock(&set->lock);
	note_gone(&gone);
	if (found)
		note(FORGOTTEN, 1);
	return hash_of(settings, &key);
}
