// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* What all programs of overlay.bpf.c share: maps, marks and counts. */
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "family.h"

#define WAYS 4

#define DONT_FRAGMENT 0x4000
#define FRAGMENT_BITS 0x3fff /* more fragments, or an offset */
#define VXLAN_VNI_PRESENT 0x08

struct settings {
	__u32 vni;
	__u32 vxlan_port; /* in host order */
	__u32 tunnel; /* the index of the VXLAN device: its MTU limits what it carries */
	__u32 source_first; /* as udp_flow_src_port: of the VXLAN device, in host order */
	__u32 source_span;
	__u32 mark_mask; /* our bits, which are neighbours: at least six, */
	__u32 mark_shift; /* from this one on */
	__u32 sets; /* of the table, less 1; their number is a power of two */
	__u64 ttl_ns; /* the kernel sees a frame of each flow and direction that often */
	__u64 seed;
	__u64 checks; /* which outer checksums of UDP over IPv6 are 0 */
};

/* The VXLAN device sends it so, and takes it so. */
#define ZERO_SENT 1
#define ZERO_TAKEN 2

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

/* What user space writes all the time. The epoch grows before any stamp does. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, __u64);
} pulse SEC(".maps");

#define UNTIL 0 /* the end of the lease, on CLOCK_MONOTONIC */
#define EPOCH 1
#define LEARN_FROM 2 /* before, nothing is learnt: a mark may be of an epoch with the same lower bits */

/* What entries depend on. The first two are those of all entries, the others are of nodes and pods. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} stamps SEC(".maps");

#define GLOBAL 0
#define POLICY 1

/* A pod: its stamp, and the MAC address that it sent from last. A bridge floods frames for addresses that it
 * does not know to all pods, and then they are learnt from where their own pod is, and nowhere else. */
struct pod {
	__u32 stamp;
	__u8 mac[ETH_ALEN];
	__u8 reserved[2];
};

/* The stamps of remote nodes by address, as on the wire, and pods by the index of the interface. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, node_address);
	__type(value, __u32);
} nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct pod);
} pods SEC(".maps");

/* A flow as its pod sees it, for both directions. Addresses and ports as on the wire. */
struct key {
	pod_address local;
	pod_address remote;
	__u16 local_port;
	__u16 remote_port;
	__u32 vni;
	__u64 protocol; /* 0: no flow */
};

/* A frame's addresses and ports in its direction, as on the wire. */
struct tuple {
	pod_address saddr;
	pod_address daddr;
	__u16 sport;
	__u16 dport;
	__u32 protocol;
};

/* What the kernel's connection tracking makes of NAT: by the tuple with which a frame leaves the node or is
 * given to a pod, the one with which it came. User space writes it, on being asked. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct tuple);
	__type(value, struct tuple);
} translations SEC(".maps");

/* Tuples that user space is asked for, with which frames left. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} asked SEC(".maps");

struct vxlan {
	__u8 flags;
	__u8 reserved[3];
	__be32 vni; /* and 8 reserved bits */
} __attribute__((packed));

/* All headers in front of the inner packet. */
struct headers {
	struct ethhdr ethernet;
	node_header ip;
	struct udphdr udp;
	struct vxlan vxlan;
	struct ethhdr inner;
} __attribute__((packed, aligned(2)));

#define TUNNEL (sizeof(struct headers) - sizeof(struct ethhdr))

/* When one direction was learnt, and the stamps then. */
struct half {
	__u64 learnt_ns; /* 0: is not known */
	__u64 global;
	__u64 policy;
	__u64 own;
	__u32 at; /* which stamp `own` is of: the remote node's or the pod's */
	__u32 flags;
	struct tuple to; /* with TRANSLATED: what NAT makes of the frames */
};

/* The entry's key is the one of the frames before NAT; otherwise it is there for the other direction. */
#define USABLE 1
/* NAT changes addresses or ports. */
#define TRANSLATED 2
/* The other pod is on this node. */
#define LOCAL 4

/* What is done with the frames of a flow. */
struct plan {
	struct half send;
	struct half receive;
	__u32 uplink;
	__u32 pod; /* the interface */
	/* In front of what it sends: `struct headers`, whose bit-fields the kernel refuses beside a lock; in
	 * words, because that is how they are copied. With LOCAL, the inner Ethernet header alone. */
	__u64 headers[(sizeof(struct headers) + 7) / sizeof(__u64)];
	__u16 look; /* of the packet that `headers` were learnt from */
	__u8 macs[2 * ETH_ALEN]; /* of what it receives: destination and source */
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
	/* When it was learnt or last gave its counts. 0: it is gone, but frames that had found it before may
	 * still be counted; the key stays for them. */
	__u64 born_ns;
	__u64 used_ns;
	__u64 packets[2];
	__u64 bytes[2];
};

/* Why a flow gives what it has counted. */
enum end { MADE_ROOM, ENDED, IDLE, ALIVE, STOPPED };

/* What a flow has counted since it was learnt or last gave its counts, for user space. */
struct gone {
	struct key key;
	__u64 born_ns;
	__u64 used_ns;
	__u64 packets[2];
	__u64 bytes[2];
	struct tuple to; /* what it received, as its pod saw it */
	__u32 is_translated; /* or `to` says nothing */
	__u32 why; /* `enum end` */
};

#define LEFT_BYTES (1 << 22)

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, LEFT_BYTES);
} left SEC(".maps");

/* A plan is too large for the stack. Programs at tc hooks do not interrupt each other. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plan);
} scratch SEC(".maps");

struct set {
	struct bpf_spin_lock lock;
	__u32 version; /* grows when ways begin to change, and again when that is done */
	struct way ways[WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct set);
} table SEC(".maps");

/* What became of a frame; in the order of `OVERLAY_COUNTS`. */
enum count {
	SEEN, FAST, DROPPED,
	/* Slow because of what they are. */
	NOT_IP, OPTIONS, FRAGMENT, MULTICAST, LINK_LOCAL, PROTOCOL, CONTROL, MALFORMED, LAST_HOP, OVERSIZE,
	NOT_TUNNEL, OTHER_VNI, CONGESTION, CHECKSUM,
	/* Slow because of what is known. */
	LEASE, UNKNOWN, HALF, CHANGED, EXPIRED, STALE_GLOBAL, STALE_POLICY, STALE_OWN, STRANGER, NO_ROUTE,
	NO_ROOM,
	COUNTS
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} frames SEC(".maps");

/* What became of entries; in the order of `OverlayEntries`. */
enum event {
	LEARNT_SEND, LEARNT_RECEIVE, NOT_ESTABLISHED, OUTDATED, UNLEARNABLE, EVICTED, FORGOTTEN,
	VOID_GLOBAL, VOID_POLICY, VOID_NODE, VOID_POD, ASKED, FLOODED,
	GONE_SENT_PACKETS, GONE_RECEIVED_PACKETS, GONE_SENT_BYTES, GONE_RECEIVED_BYTES,
	IDLED, LOST_RECORDS, LOST_PACKETS,
	EVENTS
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EVENTS);
	__type(key, __u32);
	__type(value, __u64);
} entries SEC(".maps");

static __always_inline void count(enum direction direction, enum count what)
{
	__u32 key = direction * COUNTS + what;
	__u64 *value = bpf_map_lookup_elem(&frames, &key);

	if (value)
		*value += 1;
}

static __always_inline void note(enum event what, __u64 more)
{
	__u32 key = what;
	__u64 *value = bpf_map_lookup_elem(&entries, &key);

	if (value)
		*value += more;
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

static __always_inline __u64 get_pulse(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&pulse, &which);

	/* A fence in front and behind: what was read before is from before this. */
	return value ? __sync_fetch_and_add(value, 0) : 0;
}

static __always_inline __u64 get_stamp(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&stamps, &which);

	return value ? *(volatile __u64 *)value : 0;
}

/* The bits of a mark: which direction wants to be learnt, whether the connection is established, whether its
 * addresses are translated, and the lower bits of the epoch in which it was marked. */
#define WANTS_SEND 1
#define WANTS_RECEIVE 2
#define ESTABLISHED 4
#define NAT 8
#define EPOCH_SHIFT 4

static __always_inline __u32 mark_of(const struct settings *settings, __u32 bits, __u64 epoch)
{
	return ((__u32)(epoch << EPOCH_SHIFT) | bits) << (settings->mark_shift & 31) & settings->mark_mask;
}

/* The programs for pods with IPv6, where this object is the one for IPv4. */
enum twin { TWIN_SEND, TWIN_RECEIVE, TWIN_LEARN_SEND, TWIN_LEARN_RECEIVE, TWINS };

#if POD_IP == 4
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TWINS);
	__type(key, __u32);
	__type(value, __u32);
} twins SEC(".maps");

/* Hands a frame over, if it has a packet of IPv6: then this does not return. It has been counted as seen. */
#define HAND_OVER(skb, type, twin) \
	do { \
		if ((type) == bpf_htons(ETH_P_IPV6)) \
			bpf_tail_call(skb, &twins, twin); \
	} while (0)
#else
#define HAND_OVER(skb, type, twin) do { } while (0)
#endif

/* A frame has come; one that was handed over had been counted and marked before. */
static __always_inline void begin(enum direction direction, struct __sk_buff *skb,
				  const struct settings *settings)
{
#if POD_IP == 4
	count(direction, SEEN);
	/* Nobody else may say that a connection is established. */
	skb->mark &= ~settings->mark_mask;
#endif
}

/* Sends a frame the kernel's way. */
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

/* The same for one whose flow can be learnt. */
static __always_inline int learn_from(struct __sk_buff *skb, const struct settings *settings,
				      enum direction direction, enum count why)
{
	if (direction == SEND)
		know_pod(skb);
	skb->mark |= mark_of(settings, direction == SEND ? WANTS_SEND : WANTS_RECEIVE, get_pulse(EPOCH));
	return slow(direction, why);
}
