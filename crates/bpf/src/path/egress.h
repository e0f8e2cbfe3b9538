// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Which source port a frame gets: the choices are those of crate path (flow.rs, paths.rs). */

#define CHOICE_BUCKETS 16
#define BUCKET_STEP 13 /* odd: in 64 steps, every bucket */

/* Reads what tells the inner flow apart; false if the inner frame is not IP. */
static __always_inline int read_flow(struct __sk_buff *skb, const struct outer *outer, struct flow_key *key)
{
	__u32 at = sizeof(*outer), has_ports = 0;
	__be16 ethertype;

	key->peer = outer->ip.daddr;
	key->vni = vni_of(outer);
	if (bpf_skb_load_bytes(skb, at + offsetof(struct ethhdr, h_proto), &ethertype, sizeof(ethertype)))
		return 0;
	at += sizeof(struct ethhdr);
	if (ethertype == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return 0;
		key->source[0] = ip.saddr;
		key->destination[0] = ip.daddr;
		key->protocol = ip.protocol;
		has_ports = !(ip.frag_off & bpf_htons(FRAGMENT_BITS));
		at += ip.ihl * 4;
	} else if (ethertype == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return 0;
		__builtin_memcpy(key->source, &ip.saddr, sizeof(key->source));
		__builtin_memcpy(key->destination, &ip.daddr, sizeof(key->destination));
		key->protocol = ip.nexthdr;
		has_ports = 1;
		at += sizeof(ip);
	} else {
		return 0;
	}
	if (has_ports && (key->protocol == IPPROTO_TCP || key->protocol == IPPROTO_UDP))
		bpf_skb_load_bytes(skb, at, &key->ports, sizeof(key->ports));
	return 1;
}

/*
 * Writes the outer source port. A checksum of 0 stays. One that the device or the segmentation will compute
 * is the sum of the pseudo header until then, without the ports; every other is complete, even where the
 * inner one is still to be computed, and is updated.
 */
static __always_inline void set_port(struct __sk_buff *skb, const struct outer *outer, __u32 port)
{
	__be16 source = bpf_htons(port);
	__u32 sum;
	__u16 check;

	if (source == outer->udp.source)
		return;
	bpf_skb_store_bytes(skb, SPORT_AT, &source, sizeof(source), 0);
	if (!outer->udp.check || skb->gso_size)
		return;
	sum = (outer->ip.saddr & 0xffff) + (outer->ip.saddr >> 16) + (outer->ip.daddr & 0xffff) +
	      (outer->ip.daddr >> 16) + bpf_htons(IPPROTO_UDP) + outer->udp.len;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	if (outer->udp.check == (__u16)sum)
		return;
	sum = (__u16)~outer->udp.check + (__u16)~outer->udp.source + source;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	check = ~sum;
	if (!check)
		check = 0xffff;
	bpf_skb_store_bytes(skb, CHECK_AT, &check, sizeof(check), 0);
}

/* How often what was sent lately is to be halved by now. */
static __always_inline __u64 half_lives(const struct settings *settings, const struct recent *recent,
				       __u64 now)
{
	__u64 life = settings->half_life_us * 1000ULL;

	return now > recent->since_ns && life ? (now - recent->since_ns) / life : 0;
}

static __always_inline int is_usable(const struct peer *peer, __u32 path)
{
	return path < PATHS_MAX && peer->usable & 1U << path;
}

/*
 * How long a frame would wait on a path, in ns: the delay that probes have met, and the time that takes what
 * was sent lately, which no probe can have met yet.
 */
static __always_inline __u64 score(const struct settings *settings, const struct peer *peer, __u32 path,
				   __u64 now)
{
	__u32 key = peer->index * PATHS_MAX + path;
	struct recent *lately = bpf_map_lookup_elem(&recent, &key);
	__u64 halves, bytes = 0;

	if (lately) {
		halves = half_lives(settings, lately, now);
		bytes = halves > 63 ? 0 : lately->bytes >> halves;
	}
	return peer->cost[path & (PATHS_MAX - 1)] + (bytes * settings->drain_ns >> 10);
}

/* Returns whether the score of one path is lower than that of another by more than noise. */
static __always_inline int is_better(const struct settings *settings, const struct peer *peer, __u32 one,
				     __u32 other, __u64 now)
{
	return score(settings, peer, one, now) + settings->noise_ns < score(settings, peer, other, now);
}

/* Chooses the better of two paths of random buckets, without the path to avoid if there is another. */
static __always_inline __u32 choose(const struct settings *settings, const struct peer *peer, __u32 avoid,
				    __u64 now)
{
	__u32 random = bpf_get_prandom_u32(), one = PATHS_MAX, other = PATHS_MAX;

	for (int i = 0; i < CHOICE_BUCKETS; i++) {
		__u32 path = peer->buckets[(random + i * BUCKET_STEP) & (BUCKETS - 1)] & (PATHS_MAX - 1);

		if (!is_usable(peer, path) || path == avoid || path == one)
			continue;
		if (one < PATHS_MAX) {
			other = path;
			break;
		}
		one = path;
	}
	if (other < PATHS_MAX && is_better(settings, peer, other, one, now))
		return other;
	return one < PATHS_MAX ? one : avoid;
}

static __always_inline struct path_counters *counters_of(const struct peer *peer, __u32 path)
{
	__u32 key = peer->index * PATHS_MAX + path;

	return bpf_map_lookup_elem(&path_counters, &key);
}

/* Counts a frame on a path. */
static __always_inline void pass_by(struct __sk_buff *skb, const struct settings *settings,
				    const struct peer *peer, __u32 path, __u64 now)
{
	__u32 key = peer->index * PATHS_MAX + path, length = skb->wire_len ?: skb->len;
	struct path_counters *sum = counters_of(peer, path);
	struct recent *lately = bpf_map_lookup_elem(&recent, &key);

	if (sum) {
		sum->packets += skb->gso_segs ?: 1;
		sum->bytes += length;
	}
	if (lately) {
		__u64 halves = half_lives(settings, lately, now);

		lately->bytes = (halves > 63 ? 0 : lately->bytes >> halves) + length;
		if (halves)
			lately->since_ns += halves * settings->half_life_us * 1000ULL;
	}
}

/* Until when a flow is not considered again: jittered, so that flows with the same fate do not act as one. */
static __always_inline __u64 hold(const struct settings *settings, __u64 now)
{
	__u64 time = settings->hold_us * 1000ULL;

	return now + time - time / 4 + (bpf_get_prandom_u32() * (time / 2) >> 32);
}

/* Without a pause a flow moves cautiously: for a real gain, and of those that could, half. */
static __always_inline int should_reroute(const struct settings *settings, const struct peer *peer,
					  __u32 path, __u32 next, __u64 now)
{
	__u64 old = score(settings, peer, path, now), new = score(settings, peer, next, now);
	__u64 least = old / 4 > settings->gain_ns ? old / 4 : settings->gain_ns;

	return old > new + least && bpf_get_prandom_u32() & 1;
}

enum move { STAY, AFTER_GAP, AFTER_FAILURE, AFTER_REHASH, WITHOUT_GAP };

/* Decides whether a flow should move, and to which path. */
static __always_inline enum move consider(const struct settings *settings, const struct peer *peer,
					  struct flow *flow, __u32 path, int rehashed, __u64 now, __u32 *next)
{
	if (!is_usable(peer, path)) {
		*next = choose(settings, peer, path, now);
		return AFTER_FAILURE;
	}
	/* A flow that the kernel gave another port has met a timeout: nothing of it is on its way. */
	if (rehashed) {
		*next = choose(settings, peer, path, now);
		return is_better(settings, peer, path, *next, now) ? STAY : AFTER_REHASH;
	}
	if (since(now, flow->last_ns) >= settings->gap_us * 1000ULL) {
		*next = choose(settings, peer, PATHS_MAX, now);
		return AFTER_GAP;
	}
	if (!(peer->congested & 1U << path) || flow->bytes <= settings->reroute_bytes ||
	    now < flow->hold_until_ns)
		return STAY;
	flow->hold_until_ns = hold(settings, now);
	*next = choose(settings, peer, path, now);
	return should_reroute(settings, peer, path, *next, now) ? WITHOUT_GAP : STAY;
}

/* Returns the path of a flow that is known, another one if it should move. */
static __always_inline __u32 follow(const struct settings *settings, const struct peer *peer,
				    struct flow *flow, __u32 kernel_port, __u64 now)
{
	__u32 path = flow->path & (PATHS_MAX - 1), next = path;
	int rehashed = flow->kernel_port != kernel_port;
	struct path_counters *sum;
	enum move move;

	if (rehashed) {
		flow->kernel_port = kernel_port;
		sum = counters_of(peer, path);
		if (sum)
			sum->rehashed += 1;
	}
	move = consider(settings, peer, flow, path, rehashed, now, &next);
	if (move == STAY || next == path || !is_usable(peer, next))
		return path;
	flow->path = next;
	flow->moves += 1;
	flow->hold_until_ns = hold(settings, now);
	sum = counters_of(peer, next);
	if (!sum)
		return next;
	if (move == AFTER_GAP)
		sum->after_gap += 1;
	else if (move == AFTER_FAILURE)
		sum->after_failure += 1;
	else if (move == AFTER_REHASH)
		sum->after_rehash += 1;
	else
		sum->without_gap += 1;
	return next;
}

static __always_inline __u32 begin(const struct settings *settings, const struct peer *peer,
				   const struct flow_key *key, __u32 kernel_port, __u32 length, __u64 now)
{
	__u32 path = choose(settings, peer, PATHS_MAX, now);
	struct flow flow = {
		.last_ns = now, .born_ns = now, .packets = 1, .bytes = length,
		.path = path, .kernel_port = kernel_port,
	};
	struct path_counters *sum = counters_of(peer, path);

	if (sum)
		sum->new_flows += 1;
	bpf_map_update_elem(&flows, key, &flow, BPF_ANY);
	return path;
}

static __always_inline void adapt(struct __sk_buff *skb, const struct outer *outer, const struct peer *peer,
				  const struct settings *settings)
{
	__u32 kernel_port = bpf_ntohs(outer->udp.source), path, length = skb->wire_len ?: skb->len;
	__u64 now = bpf_ktime_get_ns();
	struct flow_key key = {};
	struct flow *flow;

	if (!read_flow(skb, outer, &key)) {
		/* ARP and the like: the kernel's port tells them apart well enough. */
		path = peer->buckets[kernel_port & (BUCKETS - 1)] & (PATHS_MAX - 1);
	} else if ((flow = bpf_map_lookup_elem(&flows, &key))) {
		path = follow(settings, peer, flow, kernel_port, now);
		flow->last_ns = now;
		flow->packets += skb->gso_segs ?: 1;
		flow->bytes += length;
	} else {
		path = begin(settings, peer, &key, kernel_port, length, now);
	}
	if (!is_usable(peer, path)) {
		count(UNSTEERED);
		return;
	}
	set_port(skb, outer, peer->port[path & (PATHS_MAX - 1)]);
	pass_by(skb, settings, peer, path, now);
	count(STEERED);
}

/* Gives user space the first frame of a flow. One that is to be segmented it could not send. */
static __always_inline int detain(struct __sk_buff *skb, const struct flow_key *key, __u32 kernel_port)
{
	struct missed *record;
	__u32 length = skb->len;

	if (skb->gso_size || length < sizeof(struct outer) || length > MISSED_BYTES)
		goto pass;
	record = bpf_ringbuf_reserve(&missed, sizeof(*record), 0);
	if (!record)
		goto pass;
	record->key = *key;
	record->kernel_port = kernel_port;
	record->length = length;
	if (bpf_skb_load_bytes(skb, 0, record->bytes, length)) {
		bpf_ringbuf_discard(record, 0);
		goto pass;
	}
	bpf_ringbuf_submit(record, 0);
	count(HELD);
	return TC_ACT_SHOT;
pass:
	count(UNHELD);
	return TC_ACT_UNSPEC;
}

/* DOCA-AR: a connection is what the tunnel header shows, and its port stays. */
static __always_inline int pin(struct __sk_buff *skb, const struct outer *outer, const struct peer *peer,
			       const struct settings *settings)
{
	__u32 kernel_port = bpf_ntohs(outer->udp.source);
	__u64 now = bpf_ktime_get_ns();
	struct flow_key key = { .peer = outer->ip.daddr, .protocol = IPPROTO_UDP };
	struct flow *flow;

	key.source[0] = outer->ip.saddr;
	key.destination[0] = outer->ip.daddr;
	__builtin_memcpy(&key.ports, &outer->udp, sizeof(key.ports));
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow || since(now, flow->last_ns) > settings->pinned_ms * 1000000ULL)
		return detain(skb, &key, kernel_port);
	flow->last_ns = now;
	flow->packets += skb->gso_segs ?: 1;
	flow->bytes += skb->wire_len ?: skb->len;
	set_port(skb, outer, flow->port);
	pass_by(skb, settings, peer, 0, now);
	count(STEERED);
	return TC_ACT_UNSPEC;
}

/* Stamps a probe of ours. */
static __always_inline void stamp(struct __sk_buff *skb)
{
	__u32 at = sizeof(struct outer);
	__be64 now = bpf_cpu_to_be64(bpf_ktime_get_ns());
	__u8 kind = 0;

	bpf_set_hash_invalid(skb);
	if (bpf_skb_load_bytes(skb, at + offsetof(struct probe, kind), &kind, sizeof(kind)))
		return;
	if (kind != REQUEST)
		return;
	bpf_skb_store_bytes(skb, at + offsetof(struct probe, sent_ns), &now, sizeof(now), 0);
	count(PROBES_SENT);
}

SEC("classifier")
int path_egress(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct outer outer;
	struct peer *peer;

	if (!settings || !read_outer(skb, settings, &outer))
		return TC_ACT_UNSPEC;
	if (vni_of(&outer) == settings->probe_vni) {
		stamp(skb);
		return TC_ACT_UNSPEC;
	}
	peer = bpf_map_lookup_elem(&peers, &outer.ip.daddr);
	if (!peer) {
		count(UNKNOWN_PEER);
		return TC_ACT_UNSPEC;
	}
	bpf_set_hash_invalid(skb);
	if (settings->scheme == SCHEME_DOCA_AR)
		return pin(skb, &outer, peer, settings);
	if (settings->scheme == SCHEME_ADAPTIVE && peer->paths && peer->usable)
		adapt(skb, &outer, peer, settings);
	else
		count(UNSTEERED);
	return TC_ACT_UNSPEC;
}
