// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Declares maps, and counts in them. */

/* A map with `entries` at most. More settings, such as `__uint(map_flags, BPF_F_NO_PREALLOC)`, may follow. */
#define MAP(kind, entries, key_type, value_type, name, ...) \
	struct { \
		__uint(type, BPF_MAP_TYPE_##kind); \
		__uint(max_entries, entries); \
		__type(key, key_type); \
		__type(value, value_type); \
		__VA_OPT__(__VA_ARGS__;) \
	} name SEC(".maps")

/* A list of records for user space. */
#define RING(bytes, name) \
	struct { \
		__uint(type, BPF_MAP_TYPE_RINGBUF); \
		__uint(max_entries, bytes); \
	} name SEC(".maps")

/* Adds to a counter in an array of them. */
static __always_inline void add(void *counters, __u32 which, __u64 more)
{
	__u64 *value = bpf_map_lookup_elem(counters, &which);

	if (value)
		*value += more;
}

/* Makes a type, and the types of its members, known to user space (layouts.rs). */
#ifdef SHARES
#define SHARED(type) SHARED_AS(type, __COUNTER__)
#define SHARED_AS(type, number) SHARED_NAMED(type, number)
#define SHARED_NAMED(type, number) type *shared_with_user_space_##number
#else
#define SHARED(type) _Static_assert(sizeof(type), "")
#endif
