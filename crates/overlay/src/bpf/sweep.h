// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* How user space sweeps the table, set by set, while frames pass: idle flows expire, and others report their
 * counts. A count is exchanged for 0 under the set's lock, while frames add to it without the lock, so that
 * each is reported once. Counts that a frame adds to a flow that has expired meanwhile are reported by the
 * next sweep.
 */

struct sweep {
	__u64 idle_ns; /* flows not used since then expire */
	__u64 given_ns; /* flows learnt, or last reported, before then report their counts */
	__u32 at; /* the next set */
	__u32 why; /* `enum end` of the flows that expire */
};

MAP(ARRAY, 1, __u32, struct sweep, sweeps);
SHARED(struct sweep);

/* The reports of the ways of a set, which are too large for the stack. Only one thread sweeps. */
MAP(ARRAY, WAYS, __u32, struct gone, swept);

/* Space kept free in the ring for flows that end by themselves meanwhile. */
#define ROOM (LEFT_BYTES / 4)

/* Takes the due counts of a way; the caller holds the set's lock. Returns whether the flow has expired. */
static __always_inline int sweep_way(struct way *way, const struct sweep *sweep, struct gone *gone, __u64 now)
{
	int goes = way->born_ns && way->used_ns < sweep->idle_ns;

	gone->packets[SEND] = 0;
	gone->packets[RECEIVE] = 0;
	/* Late counts of a flow that is gone are due at once. */
	if (!goes && way->born_ns && way->born_ns >= sweep->given_ns)
		return 0;
	if (goes || way->packets[SEND] | way->packets[RECEIVE]) {
		take(way, goes ? sweep->why : way->born_ns ? ALIVE : ENDED, gone);
		if (way->born_ns)
			way->born_ns = now;
	}
	if (goes)
		retire(way);
	return goes;
}

static __always_inline struct gone *swept_of(__u32 way)
{
	return bpf_map_lookup_elem(&swept, &way);
}

/* Sweeps the next set (BPF_PROG_TEST_RUN, which repeats it), unless there is no room for its reports. */
SEC("classifier")
int overlay_sweep(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	struct gone *one = swept_of(0), *two = swept_of(1), *three = swept_of(2), *four = swept_of(3);
	struct sweep *sweep;
	__u32 zero = 0, gone = 0;
	struct set *set;

	sweep = bpf_map_lookup_elem(&sweeps, &zero);
	if (!sweep || !one || !two || !three || !four ||
	    bpf_ringbuf_query(&left, BPF_RB_AVAIL_DATA) > LEFT_BYTES - ROOM)
		return 0;
	set = bpf_map_lookup_elem(&table, &sweep->at);
	if (!set)
		return 0;
	sweep->at += 1;
	bpf_spin_lock(&set->lock);
	turn(set);
	gone += sweep_way(&set->ways[0], sweep, one, now);
	gone += sweep_way(&set->ways[1], sweep, two, now);
	gone += sweep_way(&set->ways[2], sweep, three, now);
	gone += sweep_way(&set->ways[3], sweep, four, now);
	turn(set);
	bpf_spin_unlock(&set->lock);
	note_gone(one);
	note_gone(two);
	note_gone(three);
	note_gone(four);
	if (gone)
		note(IDLED, gone);
	return 0;
}
