// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Learning from frames that the kernel forwarded. A change may come while a frame is on its way: then the
 * epoch differs from the one in its mark, and nothing is learnt. A change that comes later finds an entry
 * with the stamps of before: they are read before the epoch, and the epoch grows before they do.
 */

/* Returns whether a frame's mark says that this direction of an established flow is to be learnt; the bits
 * are ours, and go no further. `plan` gets the stamps. */
static __always_inline int is_wanted(struct __sk_buff *skb, const struct settings *settings, __u32 wants,
				     __u32 at, struct half *half)
{
	__u32 mark = skb->mark & settings->mark_mask;

	skb->mark &= ~settings->mark_mask;
	half->global = get_stamp(GLOBAL);
	half->policy = get_stamp(POLICY);
	half->own = get_stamp(at);
	half->at = at;
	if (mark == mark_of(settings, wants | ESTABLISHED, get_pulse(EPOCH)))
		return 1;
	note(OUTDATED, 1);
	return 0;
}

/* Returns whether a frame teaches nothing. It is asked first, so that frames of connections that are not
 * established cost no more than that. */
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

SEC("classifier")
int overlay_learn_send(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct packet packet = {};
	struct headers headers;
	struct plan plan = {};
	struct key key;
	struct set *set;
	__u32 node, *at;

	if (!settings || teaches_nothing(skb, settings, WANTS_SEND))
		return TC_ACT_UNSPEC;
	if (read_headers(skb, settings, &headers) != FAST ||
	    read_packet(skb, sizeof(headers), &packet) != FAST ||
	    !(node = headers.ip.daddr, at = bpf_map_lookup_elem(&nodes, &node))) {
		skb->mark &= ~settings->mark_mask;
		note(UNLEARNABLE, 1);
		return TC_ACT_UNSPEC;
	}
	if (!is_wanted(skb, settings, WANTS_SEND, *at, &plan.send))
		return TC_ACT_UNSPEC;
	plan.send.learnt_ns = bpf_ktime_get_coarse_ns();
	plan.uplink = skb->ifindex;
	__builtin_memcpy(plan.headers, &headers, sizeof(headers));
	plan.look = look_of(&packet.ip);
	key_of(settings, &packet, SEND, &key);
	set = set_of(settings, &key);
	if (set)
		learn(set, &key, &plan, SEND, plan.send.learnt_ns);
	return TC_ACT_UNSPEC;
}

SEC("classifier")
int overlay_learn_receive(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	__u32 interface = skb->ifindex;
	struct packet packet = {};
	struct plan plan = {};
	struct key key;
	struct set *set;
	struct pod *pod;

	if (!settings || teaches_nothing(skb, settings, WANTS_RECEIVE))
		return TC_ACT_UNSPEC;
	if (skb->protocol != bpf_htons(ETH_P_IP) || skb->vlan_present ||
	    bpf_skb_load_bytes(skb, 0, plan.macs, sizeof(plan.macs)) ||
	    read_packet(skb, sizeof(struct ethhdr), &packet) != FAST ||
	    !(pod = bpf_map_lookup_elem(&pods, &interface)) || !same_mac(pod->mac, plan.macs)) {
		skb->mark &= ~settings->mark_mask;
		note(UNLEARNABLE, 1);
		return TC_ACT_UNSPEC;
	}
	if (!is_wanted(skb, settings, WANTS_RECEIVE, pod->stamp, &plan.receive))
		return TC_ACT_UNSPEC;
	plan.receive.learnt_ns = bpf_ktime_get_coarse_ns();
	plan.pod = interface;
	key_of(settings, &packet, RECEIVE, &key);
	set = set_of(settings, &key);
	if (set)
		learn(set, &key, &plan, RECEIVE, plan.receive.learnt_ns);
	return TC_ACT_UNSPEC;
}

/* Forgets the flow whose key user space gives it behind an empty Ethernet header (BPF_PROG_TEST_RUN), and
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
			empty(&set->ways[i], &gone);
			found = 1;
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
