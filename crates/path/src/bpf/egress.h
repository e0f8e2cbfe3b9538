// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Chooses the source port of a frame, in the same way as crate path (flow.rs, paths.rs). */

#define LOAD_MAX (1ULL << 32) /* so that a product with a half-life fits: 4 GB recently sent are a lot */
#define PORT_SPREAD 0x9e3779b1U /* odd, so that adjacent numbers end up far apart */

/* Reads the key of the inner flow; returns false if the inner frame is not IP. */
static __always_inline int read_flow(struct __sk_buff *skb, const struct tunnel *tunnel,
				     const struct peer *peer, struct flow_key *key)
{
	__u32 at, has_ports = 0;
	__be16 ethertype = inner_ip(skb, tunnel, &at);

	key->peer = peer->index;
	key->vni = tunnel->vni;
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

/* Writes the outer source port. A checksum of 0 stays 0, over IPv6, too, because the device is configured to
 * send none. A checksum that the device or the segmentation will compute is until then the sum of the
 * pseudo-header, without the ports. Any other checksum is complete, even if the inner one has yet to be
 * computed, and is updated.
 */
static __always_inline void set_port(struct __sk_buff *skb, const struct tunnel *tunnel, __u32 port)
{
	const struct udphdr *udp = &tunnel->udp;
	__be16 source = bpf_htons(port);
	__u32 sum;
	__u16 check;

	if (source == udp->source)
		return;
	bpf_skb_store_bytes(skb, tunnel->at + offsetof(struct udphdr, source), &source, sizeof(source), 0);
	if (!udp->check || skb->gso_size)
		return;
	sum = tunnel->addresses + bpf_htons(IPPROTO_UDP) + udp->len;
	if (udp->check == (__u16)halves(halves(sum)))
		return;
	sum = (__u16)~udp->check + (__u16)~udp->source + source;
	check = ~halves(halves(sum));
	if (!check)
		check = 0xffff;
	bpf_skb_store_bytes(skb, tunnel->at + offsetof(struct udphdr, check), &check, sizeof(check), 0);
}

/* Returns what remains of a load by now. It halves with each half-life, and decays linearly in between. */
static __always_inline __u64 halved(const struct settings *settings, const struct load *load, __u64 now)
{
	__u64 life = settings->half_life_us * 1000ULL, time = since(now, load->since_ns), left;

	if (!life || time / life > 63)
		return 0;
	left = load->bytes >> time / life;
	if (left > LOAD_MAX)
		left = LOAD_MAX;
	return left - left * (time % life) / (2 * life);
}

/* The number of a path, below PATHS_MAX: the compiler may know that it is, while the verifier does not. */
static __always_inline __u32 bounded(__u32 path)
{
	asm volatile("" : "+r"(path));
	return path & (PATHS_MAX - 1);
}

static __always_inline int is_usable(const struct peer *peer, __u32 path)
{
	return path < PATHS_MAX && peer->weight[bounded(path)];
}

/* How long a frame would wait on a path, in ns: the delay that probes have measured, plus the time to send
 * the recent local bytes, which no probe can have met yet.
 */
static __always_inline __u64 score(const struct settings *settings, const struct peer *peer,
				   const struct activity *activity, __u32 path, __u64 now)
{
	path &= PATHS_MAX - 1;
	return peer->cost[path] +
	       (halved(settings, &activity->loads[path], now) * settings->drain_ns >> 10);
}

/* Returns whether the score of one path is lower than that of another by more than noise. This function and
 * the others below that are not static are verified once, for any arguments; otherwise the verifier would
 * follow every possible outcome of a draw, and give up.
 */
__noinline int is_better(const struct settings *settings, const struct peer *peer,
				const struct activity *activity, __u64 paths, __u64 now)
{
	__u32 one = paths >> 32, other = paths;

	if (!settings || !peer || !activity)
		return 0;
	return score(settings, peer, activity, one, now) + settings->noise_ns <
	       score(settings, peer, activity, other, now);
}

#define IS_BETTER(one, other) is_better(settings, peer, activity, (__u64)(one) << 32 | (other), now)

/* The share of a path in a draw that leaves out two paths. */
static __always_inline __u32 share(const struct peer *peer, __u32 path, __u32 avoid, __u32 first)
{
	return path == avoid || path == first ? 0 : peer->weight[path];
}

static __always_inline __u32 shares(const struct peer *peer, __u32 avoid, __u32 first)
{
	__u32 total = 0;

	for (__u32 path = 0; path < PATHS_MAX; path++)
		total += share(peer, path, avoid, first);
	return total;
}

/* Returns the path to which a number below the sum of all shares belongs. */
static __always_inline __u32 path_at(const struct peer *peer, __u32 avoid, __u32 first, __u32 drawn)
{
	for (__u32 path = 0; path < PATHS_MAX; path++) {
		__u32 one = share(peer, path, avoid, first);

		if (drawn < one)
			return path;
		drawn -= one;
	}
	return PATHS_MAX;
}

/* Draws a path by weight, leaving out two; PATHS_MAX if no other is usable. */
__noinline __u32 draw(const struct peer *peer, __u32 avoid, __u32 first)
{
	__u32 total;

	if (!peer)
		return PATHS_MAX;
	total = shares(peer, avoid, first);
	if (!total)
		return PATHS_MAX;
	return path_at(peer, avoid, first, (__u64)random_word() * total >> 32);
}

/* Chooses the better of two paths drawn by weight, leaving out the path to avoid if there is another. */
__noinline __u32 choose(const struct settings *settings, const struct peer *peer,
			const struct activity *activity, __u32 avoid, __u64 now)
{
	__u32 one, other;

	if (!settings || !peer || !activity)
		return PATHS_MAX;
	one = draw(peer, avoid, PATHS_MAX);
	if (one >= PATHS_MAX)
		return avoid;
	other = draw(peer, avoid, one);
	return other < PATHS_MAX && IS_BETTER(other, one) ? other : one;
}

static __always_inline struct path_counters *counters_of(const struct peer *peer, __u32 path)
{
	__u32 key = peer->index;
	struct traffic *sums = bpf_map_lookup_elem(&traffic, &key);

	return sums ? &sums->paths[bounded(path)] : 0;
}

/* Counts a frame on a path. */
static __always_inline void pass_by(struct __sk_buff *skb, const struct settings *settings,
				    const struct peer *peer, struct activity *activity, __u32 path, __u64 now)
{
	__u32 length = skb->wire_len ?: skb->len;
	struct path_counters *sum = counters_of(peer, path);
	struct load *load = &activity->loads[bounded(path)];

	if (sum) {
		sum->packets += skb->gso_segs ?: 1;
		sum->bytes += length;
	}
	load->bytes = halved(settings, load, now) + length;
	load->since_ns = now;
	activity->last_ns = now;
}

/* The time until which a flow is not considered again: jittered, so that flows in the same situation do not
 * move in lockstep. */
static __always_inline __u64 hold(const struct settings *settings, __u64 now)
{
	__u64 time = settings->hold_us * 1000ULL;

	return now + time - time / 4 + (random_word() * (time / 2 + 1) >> 32);
}

/* Without a pause, flows move cautiously: only for a real gain, and only half of those that could. */
static __always_inline int should_reroute(const struct settings *settings, const struct peer *peer,
					  const struct activity *activity, __u32 path, __u32 next, __u64 now)
{
	__u64 old = score(settings, peer, activity, path, now);
	__u64 new = score(settings, peer, activity, next, now);
	__u64 least = old / 4 > settings->gain_ns ? old / 4 : settings->gain_ns;

	return old > new + least && random_word() & 1;
}

enum move { STAY, AFTER_GAP, AFTER_FAILURE, AFTER_REHASH, WITHOUT_GAP };
SHARED(enum move);

/* Decides whether a flow should move, and to which path. */
static __always_inline enum move consider(const struct settings *settings, const struct peer *peer,
					  const struct activity *activity, struct flow *flow, int rehashed,
					  __u64 now, __u32 *next)
{
	__u32 path = flow->path & (PATHS_MAX - 1);

	if (!is_usable(peer, path)) {
		*next = choose(settings, peer, activity, path, now);
		return AFTER_FAILURE;
	}
	/* A flow to which the kernel gave another port has had a timeout: none of its packets are in flight. */
	if (rehashed) {
		*next = choose(settings, peer, activity, path, now);
		return IS_BETTER(path, *next) ? STAY : AFTER_REHASH;
	}
	if (since(now, flow->last_ns) >= settings->gap_us * 1000ULL) {
		*next = choose(settings, peer, activity, PATHS_MAX, now);
		return AFTER_GAP;
	}
	if (!(peer->congested & 1U << path) || flow->bytes <= settings->reroute_bytes ||
	    now < flow->hold_until_ns)
		return STAY;
	flow->hold_until_ns = hold(settings, now);
	*next = choose(settings, peer, activity, path, now);
	return should_reroute(settings, peer, activity, path, *next, now) ? WITHOUT_GAP : STAY;
}

static __always_inline void count_move(const struct peer *peer, __u32 path, enum move move)
{
	struct path_counters *sum = counters_of(peer, path);

	if (!sum)
		return;
	if (move == AFTER_GAP)
		sum->after_gap += 1;
	else if (move == AFTER_FAILURE)
		sum->after_failure += 1;
	else if (move == AFTER_REHASH)
		sum->after_rehash += 1;
	else
		sum->without_gap += 1;
}

/* Returns the path of a known flow, or a new path if it should move. */
static __always_inline __u32 follow(const struct settings *settings, const struct peer *peer,
				    struct activity *activity, struct flow *flow, __u32 kernel_port,
				    __u64 now)
{
	__u32 path = flow->path & (PATHS_MAX - 1), next = path;
	int rehashed = flow->kernel_port != kernel_port;
	enum move move;

	if (rehashed) {
		flow->kernel_port = kernel_port;
		__sync_fetch_and_add(&activity->rehashed[path], 1);
	}
	move = consider(settings, peer, activity, flow, rehashed, now, &next);
	if (move == STAY || next == path || !is_usable(peer, next))
		return path;
	flow->path = next;
	flow->decision = move;
	flow->moves += 1;
	flow->hold_until_ns = hold(settings, now);
	count_move(peer, next, move);
	return next;
}

static __always_inline __u32 begin(const struct settings *settings, const struct peer *peer,
				   const struct activity *activity, const struct flow_key *key,
				   __u32 kernel_port, __u32 length, __u64 now)
{
	__u32 path = choose(settings, peer, activity, PATHS_MAX, now);
	struct flow flow = {
		.last_ns = now, .packets = 1, .bytes = length, .path = path, .kernel_port = kernel_port,
	};
	struct path_counters *sum = counters_of(peer, path);

	if (path >= PATHS_MAX)
		return path;
	if (sum)
		sum->new_flows += 1;
	bpf_map_update_elem(&flows, key, &flow, BPF_ANY);
	return path;
}

/* Chooses a path for a frame that belongs to no flow: the kernel's port distinguishes such frames well
 * enough. */
static __always_inline __u32 scatter(const struct peer *peer, __u32 kernel_port)
{
	__u32 total = shares(peer, PATHS_MAX, PATHS_MAX), word = kernel_port * PORT_SPREAD;

	return path_at(peer, PATHS_MAX, PATHS_MAX, (__u64)word * total >> 32);
}

static __always_inline void adapt(struct __sk_buff *skb, const struct tunnel *tunnel, const struct peer *peer,
				  const struct settings *settings)
{
	__u32 kernel_port = bpf_ntohs(tunnel->udp.source), path, length = skb->wire_len ?: skb->len;
	__u32 index = peer->index;
	struct activity *activity = bpf_map_lookup_elem(&activity_map, &index);
	__u64 now = clock_ns();
	struct flow_key key = {};
	struct flow *flow;

	if (!activity)
		return;
	if (!read_flow(skb, tunnel, peer, &key)) {
		path = scatter(peer, kernel_port);
		count(SCATTERED);
	} else if ((flow = bpf_map_lookup_elem(&flows, &key))) {
		path = follow(settings, peer, activity, flow, kernel_port, now);
		flow->last_ns = now;
		flow->packets += skb->gso_segs ?: 1;
		flow->bytes += length;
	} else {
		path = begin(settings, peer, activity, &key, kernel_port, length, now);
	}
	if (!is_usable(peer, path)) {
		count(UNSTEERED);
		return;
	}
	set_port(skb, tunnel, peer->port[bounded(path)]);
	pass_by(skb, settings, peer, activity, path, now);
	count(STEERED);
}

/* A port of an arbitrary path; crate path derives it from a random number in the same way. */
static __always_inline __u32 random_port(const struct settings *settings)
{
	return settings->source_first + (__u16)random_word() % (settings->source_count ?: 1);
}

/* Sends a frame from a port that belongs to no known path. All such frames are counted for the first path. */
static __always_inline void leave_by(struct __sk_buff *skb, const struct tunnel *tunnel,
				     const struct peer *peer, __u32 port)
{
	struct path_counters *sum = counters_of(peer, 0);

	set_port(skb, tunnel, port);
	if (sum) {
		sum->packets += skb->gso_segs ?: 1;
		sum->bytes += skb->wire_len ?: skb->len;
	}
	count(STEERED);
}

/* LetFlow (NSDI'17): a random port for each flowlet. */
static __always_inline void let_flow(struct __sk_buff *skb, const struct tunnel *tunnel,
				     const struct peer *peer, const struct settings *settings)
{
	__u64 now = clock_ns();
	struct flow_key key = {};
	struct flow *flow, new = {
		.last_ns = now, .packets = skb->gso_segs ?: 1, .bytes = skb->wire_len ?: skb->len,
		.kernel_port = bpf_ntohs(tunnel->udp.source),
	};

	if (!read_flow(skb, tunnel, peer, &key)) {
		count(UNSTEERED);
		return;
	}
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow || since(now, flow->last_ns) >= settings->gap_us * 1000ULL) {
		new.port = random_port(settings);
		if (flow) {
			flow->moves += new.port != flow->port;
			flow->port = new.port;
		}
	}
	if (flow) {
		new.port = flow->port;
		flow->last_ns = now;
		flow->packets += skb->gso_segs ?: 1;
		flow->bytes += skb->wire_len ?: skb->len;
	} else {
		bpf_map_update_elem(&flows, &key, &new, BPF_ANY);
	}
	leave_by(skb, tunnel, peer, new.port);
}

/* Passes the first frame of a flow to user space, unless the frame is to be segmented: user space could not
 * send it. */
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

/* DOCA-AR: the tunnel header identifies a connection, and its port is fixed. */
static __always_inline int pin(struct __sk_buff *skb, const struct outer *outer, const struct peer *peer,
			       const struct settings *settings)
{
	__u32 kernel_port = bpf_ntohs(outer->udp.source);
	__u64 now = bpf_ktime_get_ns();
	struct flow_key key = { .peer = peer->index, .protocol = IPPROTO_UDP };
	struct tunnel tunnel = tunnel_of(outer);
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
	leave_by(skb, &tunnel, peer, flow->port);
	return TC_ACT_UNSPEC;
}

/* Adds eight bytes to the checksum of a probe over IPv6, where a checksum is required. */
static __always_inline void add_to_check(struct __sk_buff *skb, const struct tunnel *tunnel, __be64 bytes)
{
	__u16 check;

	if (!tunnel->udp.check)
		return;
	check = ~halves(halves(bpf_csum_diff(0, 0, (__be32 *)&bytes, sizeof(bytes), (__u16)~tunnel->udp.check)));
	if (!check)
		check = 0xffff;
	bpf_skb_store_bytes(skb, tunnel->at + offsetof(struct udphdr, check), &check, sizeof(check), 0);
}

/* Stamps one of our own probes that has no stamp yet. */
static __always_inline void stamp(struct __sk_buff *skb, const struct tunnel *tunnel)
{
	__u32 at = tunnel->at + BODY_OFFSET;
	__be64 now = bpf_cpu_to_be64(bpf_ktime_get_ns());
	__u8 kind = 0;

	bpf_set_hash_invalid(skb);
	if (bpf_skb_load_bytes(skb, at + offsetof(struct probe, kind), &kind, sizeof(kind)))
		return;
	if (kind != REQUEST)
		return;
	bpf_skb_store_bytes(skb, at + offsetof(struct probe, sent_ns), &now, sizeof(now), 0);
	add_to_check(skb, tunnel, now);
	count(PROBES_SENT);
}

/* Sets the port of a frame to a peer, for all schemes except DOCA-AR. */
static __always_inline int steer(struct __sk_buff *skb, const struct tunnel *tunnel, const struct peer *peer,
				 const struct settings *settings)
{
	if (settings->scheme == SCHEME_ADAPTIVE)
		adapt(skb, tunnel, peer, settings);
	else if (settings->scheme == SCHEME_LETFLOW)
		let_flow(skb, tunnel, peer, settings);
	else if (settings->scheme == SCHEME_SPRAY)
		leave_by(skb, tunnel, peer, random_port(settings));
	else
		count(UNSTEERED);
	return TC_ACT_UNSPEC;
}

/* Reads the tunnel header. If it cannot be read, counts the reason and returns false. */
static __always_inline int has_inner(struct __sk_buff *skb, const struct settings *settings,
				     const struct tunnel_header *header, struct tunnel *tunnel)
{
	enum reading reading = find_inner(skb, settings, header, tunnel);

	if (reading == READ)
		return 1;
	count(reading == UNKNOWN_HEADER ? HEADER_UNKNOWN : HEADER_MALFORMED);
	return 0;
}

/* Reads a frame to a peer that is to be steered, and returns the peer. Otherwise returns 0, and the verdict.
 * Its locals are off the stack when it returns: kernels such as 6.1 round each function's share of the 512
 * bytes up to a multiple of 32, and the steering code is near that limit.
 */
static __always_inline struct peer *peer_of(struct __sk_buff *skb, const struct settings *settings,
					    struct tunnel *tunnel, int *verdict)
{
	struct outer outer;
	struct peer *peer;

	if (!read_outer(skb, settings, &outer))
		return 0;
	*tunnel = tunnel_of(&outer);
	if (is_probe(settings, &outer.header)) {
		if (is_local(outer.ip.saddr))
			stamp(skb, tunnel);
		return 0;
	}
	if (!has_inner(skb, settings, &outer.header, tunnel))
		return 0;
	peer = find_peer(skb, settings, outer.ip.daddr);
	if (!peer) {
		count(UNKNOWN_PEER);
		return 0;
	}
	bpf_set_hash_invalid(skb);
	if (settings->scheme != SCHEME_DOCA_AR)
		return peer;
	*verdict = pin(skb, &outer, peer, settings);
	return 0;
}

/* The same over IPv6, for which there is no DOCA-AR. */
static __always_inline struct peer *peer_of6(struct __sk_buff *skb, const struct settings *settings,
					     struct tunnel *tunnel)
{
	struct outer6 outer;
	struct peer *peer;

	if (!read_outer6(skb, settings, &outer))
		return 0;
	*tunnel = tunnel_of6(&outer);
	if (is_probe(settings, &outer.header)) {
		if (is_local6(source6(&outer)))
			stamp(skb, tunnel);
		return 0;
	}
	if (!has_inner(skb, settings, &outer.header, tunnel))
		return 0;
	peer = find_peer6(skb, settings, destination6(&outer));
	if (!peer) {
		count(UNKNOWN_PEER);
		return 0;
	}
	bpf_set_hash_invalid(skb);
	return peer;
}

SEC("classifier")
int path_egress(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	int verdict = TC_ACT_UNSPEC;
	struct tunnel tunnel;
	struct peer *peer;

	if (!settings)
		return verdict;
	peer = peer_of(skb, settings, &tunnel, &verdict);
	return peer ? steer(skb, &tunnel, peer, settings) : verdict;
}

/* A separate program, so that IPv4 does not pay for it: it is attached only if there is a peer over IPv6. */
SEC("classifier")
int path_egress6(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct tunnel tunnel;
	struct peer *peer;

	if (!settings)
		return TC_ACT_UNSPEC;
	peer = peer_of6(skb, settings, &tunnel);
	return peer ? steer(skb, &tunnel, peer, settings) : TC_ACT_UNSPEC;
}
