// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The table of flows: sets of four ways, each set with a lock for writers and a version for readers. A new
 * flow takes the least recently used way, and the counts there are added to those of ended flows: the
 * kernel's own LRU maps would lose them. Packets and bytes are added without the lock, to the way that was
 * found; if that way has meanwhile been given to another flow, they count for that flow, and none are lost.
 */

#define K0 0x9e3779b97f4a7c15ULL
#define K1 0xbb67ae8584caa73bULL
#define K2 0x3c6ef372fe94f82bULL
#define KEY_WORDS (sizeof(struct key) / sizeof(__u64))
#define ROTATE(word, bits) (((word) << (bits)) | ((word) >> (64 - (bits))))

static __always_inline __u64 product(__u64 word, __u64 key)
{
	return (__u64)(__u32)((__u32)word + (__u32)key) * (__u32)((word >> 32) + (key >> 32));
}

/* `select_hash` of crate packet. */
static __always_inline __u64 hash_of(const struct settings *settings, const struct key *key)
{
	const __u64 *words = (const __u64 *)key;
	__u64 step = ROTATE((settings->seed ^ K1) * K0, 32), sum = step;

#pragma unroll
	for (int i = 0; i < KEY_WORDS; i++) {
		sum += product(words[i], step);
		step += K0;
	}
	sum = (sum ^ ROTATE(sum, 25) ^ ROTATE(sum, 47)) * K1;
	sum = (sum ^ ROTATE(sum, 23) ^ ROTATE(sum, 51)) * K2;
	return sum ^ ROTATE(sum, 27) ^ ROTATE(sum, 49);
}

static __always_inline struct set *set_of(const struct settings *settings, const struct key *key)
{
	__u32 at = hash_of(settings, key) & settings->sets;

	return bpf_map_lookup_elem(&table, &at);
}

static __always_inline int is_of(const struct way *way, const struct key *key)
{
	const __u64 *one = (const __u64 *)&way->key, *other = (const __u64 *)key;

#pragma unroll
	for (int i = 0; i < KEY_WORDS; i++) {
		if (one[i] != other[i])
			return 0;
	}
	return 1;
}

/* Copies the plan of a flow, if it exists. */
static __always_inline struct way *copy(struct set *set, const struct key *key, struct plan *plan)
{
	for (int i = 0; i < WAYS; i++) {
		if (is_of(&set->ways[i], key) && set->ways[i].born_ns) {
			*plan = set->ways[i].plan;
			return &set->ways[i];
		}
	}
	return 0;
}

/* Marks that the ways of a set are about to change, or have changed; the caller holds its lock. An exchange
 * has a fence before and after; an addition whose result is unused would have none. */
static __always_inline void turn(struct set *set)
{
	__sync_lock_test_and_set(&set->version, set->version + 1);
}

/* Finds a flow and copies its plan. The lock, which costs as much as everything else, is only taken if there
 * was a concurrent change. Keys and plans change only between two increments of the version, except in
 * `judge`, which invalidates one half with a single word. */
static __always_inline struct way *find(struct set *set, const struct key *key, struct plan *plan)
{
	__u32 version = READ_IN_ORDER(set->version);
	struct way *found = copy(set, key, plan);

	if (!(version & 1) && READ_IN_ORDER(set->version) == version)
		return found;
	bpf_spin_lock(&set->lock);
	found = copy(set, key, plan);
	bpf_spin_unlock(&set->lock);
	return found;
}

/* Takes the counts of a way; holds the set's lock. */
static __always_inline void take(struct way *way, enum end why, struct gone *gone)
{
	gone->key = way->key;
	gone->born_ns = way->born_ns;
	gone->used_ns = way->used_ns;
	gone->packets[SEND] = __sync_lock_test_and_set(&way->packets[SEND], 0);
	gone->packets[RECEIVE] = __sync_lock_test_and_set(&way->packets[RECEIVE], 0);
	gone->bytes[SEND] = __sync_lock_test_and_set(&way->bytes[SEND], 0);
	gone->bytes[RECEIVE] = __sync_lock_test_and_set(&way->bytes[RECEIVE], 0);
	gone->to = way->plan.receive.to;
	gone->is_translated = way->plan.receive.flags & TRANSLATED;
	gone->why = why;
}

/* Ends the flow of a way, which keeps its key; holds the set's lock. */
static __always_inline void retire(struct way *way)
{
	way->born_ns = 0;
	way->used_ns = 0;
	way->plan.send.learnt_ns = 0;
	way->plan.receive.learnt_ns = 0;
	way->plan.send.at = 0;
	way->plan.pod = 0;
	way->plan.torn_ns = 0;
}

/* Reports to user space, which polls and does not need to be woken. */
static __always_inline void note_gone(const struct gone *gone)
{
	__u64 packets = gone->packets[SEND] + gone->packets[RECEIVE];

	if (!packets)
		return;
	note(GONE_SENT_PACKETS, gone->packets[SEND]);
	note(GONE_RECEIVED_PACKETS, gone->packets[RECEIVE]);
	note(GONE_SENT_BYTES, gone->bytes[SEND]);
	note(GONE_RECEIVED_BYTES, gone->bytes[RECEIVE]);
	if (!bpf_ringbuf_output(&left, (void *)gone, sizeof(*gone), BPF_RB_NO_WAKEUP))
		return;
	note(LOST_RECORDS, 1);
	note(LOST_PACKETS, packets);
}

/* Returns the way of a flow, an empty one, or the least recently used one; holds the set's lock. */
static __always_inline struct way *way_for(struct set *set, const struct key *key)
{
	struct way *best = &set->ways[0];

	for (int i = 0; i < WAYS; i++) {
		struct way *way = &set->ways[i];

		if (is_of(way, key))
			return way;
		if (!way->key.protocol ? best->key.protocol != 0 :
					 best->key.protocol && way->used_ns < best->used_ns)
			best = way;
	}
	return best;
}

/* Frames of a flow that go to different nodes within this time are copies of one frame, and the flow is then
 * not learnt for as long. It is long because a busy machine may take long from one copy to the next. */
#define FLOOD_NS 5000000000ULL

/* Returns whether this is a copy of a frame that has gone to another node as well, in which case nothing may
 * be learnt: only one node has the pod. */
static __always_inline int is_copy(const struct half *before, const struct half *now)
{
	return before->learnt_ns && !((before->flags | now->flags) & LOCAL) &&
	       before->global == now->global && before->policy == now->policy && before->at != now->at &&
	       now->learnt_ns - before->learnt_ns < FLOOD_NS;
}

/* Writes what happens to a pod's frames, holding the set's lock. Returns the event to count. */
static __always_inline enum event learn_sent(struct plan *old, const struct plan *new)
{
	if (old->torn_ns && new->send.learnt_ns - old->torn_ns < FLOOD_NS)
		return FLOODED;
	if (is_copy(&old->send, &new->send)) {
		old->torn_ns = new->send.learnt_ns;
		old->send.learnt_ns = 0;
		return FLOODED;
	}
	/* If the node or pod differs from the previous one, the other direction must be learnt again, too. */
	if (old->send.at && old->send.at != new->send.at)
		old->receive.learnt_ns = 0;
	old->send = new->send;
	__builtin_memcpy(old->headers, new->headers, sizeof(old->headers));
	old->uplink = new->uplink;
	old->peer = new->peer;
	old->look = new->look;
	return LEARNT_SEND;
}

/* Writes how a pod receives frames. */
static __always_inline enum event learn_received(struct plan *old, const struct plan *new)
{
	/* If a different pod has the same address, nothing is known about the frames that it sends. */
	if (old->pod && (old->pod != new->pod || !same_mac(old->macs, new->macs) ||
			 !same_mac(old->macs + ETH_ALEN, new->macs + ETH_ALEN)))
		old->send.learnt_ns = 0;
	old->receive = new->receive;
	old->pod = new->pod;
	__builtin_memcpy(old->macs, new->macs, sizeof(old->macs));
	return LEARNT_RECEIVE;
}

/* Writes the learnt half of a flow's plan. */
static __always_inline void learn(const struct settings *settings, const struct key *key,
				  const struct plan *plan, enum direction direction)
{
	__u64 now = direction == SEND ? plan->send.learnt_ns : plan->receive.learnt_ns;
	struct set *set = set_of(settings, key);
	struct gone gone = {};
	int evicted = 0;
	enum event event;
	struct way *way;

	if (!set)
		return;
	bpf_spin_lock(&set->lock);
	turn(set);
	way = way_for(set, key);
	if (!is_of(way, key)) {
		evicted = way->born_ns != 0;
		take(way, MADE_ROOM, &gone);
		retire(way);
		way->key = *key;
	}
	if (!way->born_ns) {
		way->born_ns = now;
		way->used_ns = now;
	}
	event = direction == SEND ? learn_sent(&way->plan, plan) : learn_received(&way->plan, plan);
	turn(set);
	bpf_spin_unlock(&set->lock);
	note_gone(&gone);
	if (evicted)
		note(EVICTED, 1);
	note(event, 1);
}

/* Returns why one direction of a flow cannot be used, or FAST. An invalidation is counted once. */
static __always_inline enum count judge(const struct settings *settings, const struct half *half,
					struct half *stored, enum direction direction, __u64 now)
{
	enum event event;
	enum count why;

	if (!half->learnt_ns || !(half->flags & USABLE))
		return HALF;
	if (half->global != get_stamp(GLOBAL)) {
		why = STALE_GLOBAL;
		event = VOID_GLOBAL;
	} else if (half->policy != get_stamp(POLICY)) {
		why = STALE_POLICY;
		event = VOID_POLICY;
	} else if (half->own != get_stamp(half->at)) {
		why = STALE_OWN;
		event = direction == SEND ? VOID_NODE : VOID_POD;
	} else {
		/* The clock is coarse: it may lie before the time of learning. */
		return now > half->learnt_ns && now - half->learnt_ns > settings->ttl_ns ? EXPIRED : FAST;
	}
	if (__sync_val_compare_and_swap(&stored->learnt_ns, half->learnt_ns, 0) == half->learnt_ns)
		note(event, 1);
	return why;
}

/* The packets that a frame consists of; the kernel forgets the number when headroom is added. */
static __always_inline __u32 packets_of(const struct __sk_buff *skb)
{
	return skb->gso_segs ?: 1;
}

/* Counts a frame that took the fast path: its packets, and their bytes as on the pod's wire, where each
 * packet has its own copy of the headers; `length` is that of the inner packet. */
static __always_inline void credit(struct way *way, enum direction direction, __u32 packets, __u32 length,
				   const struct packet *packet, __u64 now)
{
	__u32 headers = sizeof(struct ethhdr) + sizeof(pod_header) + packet->header;
	__u64 bytes = length + sizeof(struct ethhdr) + (__u64)(packets - 1) * headers;

	way->used_ns = now;
	__sync_fetch_and_add(&way->packets[direction], packets);
	__sync_fetch_and_add(&way->bytes[direction], bytes);
	count(direction, FAST);
}
