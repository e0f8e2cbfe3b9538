// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Runs in front of an XDP program that is measured. BPF_PROG_TEST_RUN with repetitions runs a program on its
 * own result, so a program that rewrites frames would soon run on something else. This program moves the
 * start and the end of the frame back, writes the first bytes of the next frame of a list into it, and jumps
 * to the measured program, which must not write what follows these bytes. It always calls the same helpers,
 * so that its cost does not depend on what the measured program did. The cost is measured with xdp_stub
 * behind it.
 *
 * An array of programs holds only programs that all support frames in several buffers or all do not, so there
 * are two of everything.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define WORDS 8 /* at the start of each frame, which are restored */
#define FAILED 255 /* no action of an XDP program */

struct frame {
	__u64 words[WORDS];
};

/* Where a test run is. User space writes it before each run. */
struct position {
	__u64 start; /* the address of a frame's first byte; 0 before the first frame */
	__u64 now; /* an address, written to be read as a number */
	__u32 next; /* the number of the next frame */
	__u32 frames; /* the number of all frames */
	__u32 length; /* bytes of each frame, at least those of WORDS */
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct position);
} position SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* user space sets another number */
	__type(key, __u32);
	__type(value, struct frame);
} frames SEC(".maps");

#define PROGRAMS(name)                                                                                 \
	struct {                                                                                       \
		__uint(type, BPF_MAP_TYPE_PROG_ARRAY);                                                 \
		__uint(max_entries, 1);                                                                \
		__type(key, __u32);                                                                    \
		__type(value, __u32);                                                                  \
	} name SEC(".maps")

PROGRAMS(measured);
PROGRAMS(measured_frags);

/* Returns the distance to the frame's original first byte. The verifier tracks the address of a packet as a
 * pointer, which cannot be compared with a number; what is read from a map is a number. */
static __always_inline int distance(struct xdp_md *context, struct position *at)
{
	volatile __u64 *now = &at->now;

	*now = context->data;
	if (!at->start)
		at->start = *now;
	return at->start - *now;
}

/* Returns by how much the end has to move, once the start is in its place. */
static __always_inline int growth(struct xdp_md *context, struct position *at)
{
	volatile __u64 *now = &at->now;

	*now = context->data_end;
	return at->start + at->length - *now;
}

static __always_inline int restore(struct xdp_md *context, void *programs)
{
	__u32 zero = 0, number;
	struct position *at = bpf_map_lookup_elem(&position, &zero);
	struct frame *frame;
	__u64 *words;
	void *end;

	if (!at)
		return FAILED;
	if (bpf_xdp_adjust_head(context, distance(context, at)))
		return FAILED;
	if (bpf_xdp_adjust_tail(context, growth(context, at)))
		return FAILED;
	number = at->next;
	frame = bpf_map_lookup_elem(&frames, &number);
	words = (void *)(long)context->data;
	end = (void *)(long)context->data_end;
	if (!frame || (void *)(words + WORDS) > end)
		return FAILED;
	for (int at_word = 0; at_word < WORDS; at_word++)
		words[at_word] = frame->words[at_word];
	at->next = number + 1 == at->frames ? 0 : number + 1;
	bpf_tail_call(context, programs, 0);
	return FAILED;
}

SEC("xdp")
int xdp_restore(struct xdp_md *context)
{
	return restore(context, &measured);
}

SEC("xdp.frags")
int xdp_restore_frags(struct xdp_md *context)
{
	return restore(context, &measured_frags);
}

SEC("xdp")
int xdp_stub(struct xdp_md *context)
{
	return XDP_TX;
}

SEC("xdp.frags")
int xdp_stub_frags(struct xdp_md *context)
{
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
