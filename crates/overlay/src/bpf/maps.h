// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The maps, marks and counts that all programs of overlay.bpf.c share. */
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "tunnel.h"
#include "family.h"
#include "map.h"

#define WAYS 4

#define DONT_FRAGMENT 0x4000

struct settings {
	__u32 vni;
	__u32 port; /* in host order */
	__u32 tunnel; /* the index of the tunnel device: its MTU limits what it carries */
	__u32 source_first; /* as in udp_flow_src_port: the tunnel device's, in host order */
	__u32 source_span;
	__u32 mark_mask; /* our bits, which are contiguous: at least six, */
	__u32 mark_shift; /* starting at this one */
	__u32 sets; /* of the table, less 1; their number is a power of two */
	__u64 ttl_ns; /* how often the kernel sees a frame of each flow and direction */
	__u64 seed;
	__u32 checks; /* which outer checksums of UDP over IPv6 are 0 */
	__u32 head; /* `enum head` */
};

/* How the tunnel's header begins, in host order: with the flag of a VNI in VXLAN, and in Geneve with version
 * 0, no options and the type of an Ethernet frame. Other flags are extensions that only the device
 * understands. */
enum head { VXLAN = 0x08000000, GENEVE = 0x00006558 };

/* The length of a Geneve header's options, in the word before the VNI. */
#define GENEVE_OPTIONS 0x3f000000

/* The tunnel device sends zero checksums, and accepts them. */
enum checks { ZERO_SENT = 1, ZERO_TAKEN = 2 };

MAP(ARRAY, 1, __u32, struct settings, settings);
SHARED(struct settings);
SHARED(enum checks);
SHARED(enum head);

/* The values that user space writes continuously. The epoch is incremented before any stamp. */
enum pulse {
	UNTIL, /* the end of the lease, on CLOCK_MONOTONIC */
	EPOCH,
	LEARN_FROM, /* nothing is learnt before: a mark may be from an epoch with the same low bits */
	PULSES
};

MAP(ARRAY, PULSES, __u32, __u64, pulse);
SHARED(enum pulse);

/* The stamps on which entries depend. The first two apply to all entries, the others to nodes and pods. */
enum stamp { GLOBAL, POLICY, FIRST_STAMP };

MAP(ARRAY, FIRST_STAMP, __u32, __u64, stamps);
SHARED(enum stamp);

/* A pod: its stamp, and the MAC address that it last sent from. A bridge floods frames for unknown addresses
 * to all pods; such frames are learnt only at the pod that they are meant for. */
struct pod {
	__u32 stamp;
	__u8 mac[ETH_ALEN];
	__u8 reserved[2];
};

/* The stamps of remote nodes by address (as on the wire), and the pods by interface index. */
MAP(HASH, 1024, node_address, __u32, nodes);
SHARED(node_address);

MAP(HASH, 1024, __u32, struct pod, pods);
SHARED(struct pod);

/* A flow as its pod sees it, for both directions. Addresses and ports are as on the wire. */
struct key {
	pod_address local;
	pod_address remote;
	__u16 local_port;
	__u16 remote_port;
	__u32 vni;
	__u64 protocol; /* 0: no flow */
};

/* A frame's addresses and ports in its own direction, as on the wire. */
struct tuple {
	pod_address saddr;
	pod_address daddr;
	__u16 sport;
	__u16 dport;
	__u32 protocol;
};

/* NAT translations from the kernel's connection tracking: maps the tuple with which a frame leaves the node,
 * or is delivered to a pod, to the tuple with which it arrived. User space writes them on request. */
MAP(HASH, 1, struct tuple, struct tuple, translations);
SHARED(struct tuple);

/* Tuples with which frames left and about which user space is asked. */
RING(1 << 16, asked);

/* All headers before the inner packet. */
struct headers {
	struct ethhdr ethernet;
	node_header ip;
	struct udphdr udp;
	struct vni_header tunnel;
	struct ethhdr inner;
} __attribute__((packed, aligned(2)));

#define TUNNEL (sizeof(struct headers) - sizeof(struct ethhdr))

/* When one direction was learnt, and the stamps at that time. */
struct half {
	__u64 learnt_ns; /* 0: not known */
	__u64 global;
	__u64 policy;
	__u64 own;
	__u32 at; /* whose stamp `own` is: the remote node's or the pod's */
	__u32 flags;
	struct tuple to; /* with TRANSLATED: the frames' tuple after NAT */
};

enum flags {
	/* The entry's key is that of the frames before NAT; otherwise the entry exists for the other direction. */
	USABLE = 1,
	/* NAT changes addresses or ports. */
	TRANSLATED = 2,
	/* The other pod is on this node. */
	LOCAL = 4
};

SHARED(enum flags);

/* How the frames of a flow are handled. */
struct plan {
	struct half send;
	struct half receive;
	__u32 uplink;
	__u32 pod; /* the interface */
	/* Prepended to the frames that it sends: `struct headers`, whose bit-fields the kernel rejects next to a
	 * lock; stored as words, because that is how they are copied. With LOCAL, only the inner Ethernet header. */
	__u64 headers[(sizeof(struct headers) + 7) / sizeof(__u64)];
	__u16 look; /* of the packet from which `headers` were learnt */
	__u8 macs[2 * ETH_ALEN]; /* of the frames it receives: destination and source */
	__u8 reserved[2];
	__u32 peer; /* with LOCAL, the interface of the other pod */
	__u32 reserved_too;
	__u64 torn_ns; /* when copies of a frame went to several nodes */
};

static __always_inline const struct headers *headers_of(const struct plan *plan)
{
	return (const struct headers *)plan->headers;
}

enum direction { SEND, RECEIVE };

struct way {
	struct key key;
	struct plan plan;
	/* When it was learnt or last reported its counts. 0: it is gone, but frames that had found it earlier may
	 * still be counted; the key is kept for them. */
	__u64 born_ns;
	__u64 used_ns;
	__u64 packets[2];
	__u64 bytes[2];
};

/* Why a flow reports its counts. */
enum end { MADE_ROOM, ENDED, IDLE, ALIVE, STOPPED };

SHARED(enum end);

/* The counts of a flow since it was learnt or last reported them, for user space. */
struct gone {
	struct key key;
	__u64 born_ns;
	__u64 used_ns;
	__u64 packets[2];
	__u64 bytes[2];
	struct tuple to; /* the tuple it received with, as its pod saw it */
	__u32 is_translated; /* if 0, `to` is meaningless */
	__u32 why; /* `enum end` */
};

#define LEFT_BYTES (1 << 22)

RING(LEFT_BYTES, left);
SHARED(struct gone);

/* A plan is too large for the stack. Programs at tc hooks do not preempt each other. */
MAP(PERCPU_ARRAY, 1, __u32, struct plan, scratch);

struct set {
	struct bpf_spin_lock lock;
	__u32 version; /* incremented before ways change, and again afterwards */
	struct way ways[WAYS];
};

MAP(ARRAY, 1, __u32, struct set, table);
SHARED(struct set);

/* The outcome for a frame. `OVERLAY_COUNTS` has these names. */
enum count {
	SEEN, FAST, DROPPED,
	/* Slow because of the frame itself. */
	NOT_IP, OPTIONS, FRAGMENT, MULTICAST, LINK_LOCAL, PROTOCOL, CONTROL, MALFORMED, LAST_HOP, OVERSIZE,
	NOT_TUNNEL, OTHER_VNI, CONGESTION, CHECKSUM,
	/* Slow because of the state of the flow's entry. */
	LEASE, UNKNOWN, HALF, CHANGED, EXPIRED, STALE_GLOBAL, STALE_POLICY, STALE_OWN, STRANGER, NO_ROUTE,
	NO_ROOM,
	COUNTS
};

MAP(PERCPU_ARRAY, 2 * COUNTS, __u32, __u64, frames);
SHARED(enum count);

/* Events of entries. Each is in a field of `OverlayEntries`. */
enum event {
	LEARNT_SEND, LEARNT_RECEIVE, NOT_ESTABLISHED, OUTDATED, UNLEARNABLE, EVICTED, FORGOTTEN,
	VOID_GLOBAL, VOID_POLICY, VOID_NODE, VOID_POD, ASKED, FLOODED,
	GONE_SENT_PACKETS, GONE_RECEIVED_PACKETS, GONE_SENT_BYTES, GONE_RECEIVED_BYTES,
	IDLED, LOST_RECORDS, LOST_PACKETS,
	EVENTS
};

MAP(PERCPU_ARRAY, EVENTS, __u32, __u64, entries);
SHARED(enum event);

static __always_inline void count(enum direction direction, enum count what)
{
	add(&frames, direction * COUNTS + what, 1);
}

static __always_inline void note(enum event what, __u64 more)
{
	add(&entries, what, more);
}

static __always_inline struct settings *get_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

static __always_inline struct plan *get_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

/* Reads a word. Reads before it are not delayed past it, and later ones do not move before it. x86 does not
 * reorder reads. Elsewhere, this is an atomic operation, which is a full fence, but takes the cache line away
 * from other processors. */
#ifdef __TARGET_ARCH_x86
#define READ_IN_ORDER(word) \
	({ \
		__typeof__(word) read_in_order; \
		barrier(); \
		read_in_order = *(volatile __typeof__(word) *)&(word); \
		barrier(); \
		read_in_order; \
	})
#else
#define READ_IN_ORDER(word) __sync_fetch_and_add(&(word), 0)
#endif

static __always_inline __u64 get_pulse(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&pulse, &which);

	return value ? READ_IN_ORDER(*value) : 0;
}

static __always_inline __u64 get_stamp(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&stamps, &which);

	return value ? *(volatile __u64 *)value : 0;
}

/* The bits of a mark: which direction should be learnt, whether the connection is established, whether its
 * addresses are translated, and the low bits of the epoch in which the frame was marked. */
enum mark { WANTS_SEND = 1, WANTS_RECEIVE = 2, ESTABLISHED = 4, NAT = 8, EPOCH_SHIFT = 4 };

SHARED(enum mark);

static __always_inline __u32 mark_of(const struct settings *settings, __u32 bits, __u64 epoch)
{
	return ((__u32)(epoch << EPOCH_SHIFT) | bits) << (settings->mark_shift & 31) & settings->mark_mask;
}

/* The programs for pods with IPv6, if this object is the one for IPv4. */
enum twin { TWIN_SEND, TWIN_RECEIVE, TWIN_LEARN_SEND, TWIN_LEARN_RECEIVE, TWINS };

SHARED(enum twin);

#if POD_IP == 4
MAP(PROG_ARRAY, TWINS, __u32, __u32, twins);

/* Passes on a frame that contains an IPv6 packet, in which case this does not return. The frame has been
 * counted as seen. */
#define HAND_OVER(skb, type, twin) \
	do { \
		if ((type) == bpf_htons(ETH_P_IPV6)) \
			bpf_tail_call(skb, &twins, twin); \
	} while (0)
#else
#define HAND_OVER(skb, type, twin) do { } while (0)
#endif

/* A frame has arrived; one that was passed on has already been counted and marked. */
static __always_inline void begin(enum direction direction, struct __sk_buff *skb,
				  const struct settings *settings)
{
#if POD_IP == 4
	count(direction, SEEN);
	/* Nothing else may claim that a connection is established. */
	skb->mark &= ~settings->mark_mask;
#endif
}

/* Leaves a frame to the kernel's path. */
static __always_inline int slow(enum direction direction, enum count why)
{
	count(direction, why);
	return TC_ACT_UNSPEC;
}

/* Compares MAC addresses, which are at even addresses. */
static __always_inline int same_mac(const __u8 *one, const __u8 *other)
{
	const __u16 *a = (const __u16 *)one, *b = (const __u16 *)other;

	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]));
}

/* Remembers the MAC address that a pod sends from. */
static __always_inline void know_pod(struct __sk_buff *skb)
{
	__u32 interface = skb->ifindex;
	struct pod *pod = bpf_map_lookup_elem(&pods, &interface);
	__u8 mac[ETH_ALEN] __attribute__((aligned(2)));

	if (pod && !bpf_skb_load_bytes(skb, ETH_ALEN, mac, sizeof(mac)) && !same_mac(pod->mac, mac))
		__builtin_memcpy(pod->mac, mac, sizeof(mac));
}

/* Leaves a frame whose flow can be learnt to the kernel's path, and marks it. */
static __always_inline int learn_from(struct __sk_buff *skb, const struct settings *settings,
				      enum direction direction, enum count why)
{
	if (direction == SEND)
		know_pod(skb);
	skb->mark |= mark_of(settings, direction == SEND ? WANTS_SEND : WANTS_RECEIVE, get_pulse(EPOCH));
	return slow(direction, why);
}
