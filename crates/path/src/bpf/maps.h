// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* What the programs of path.bpf.c share: maps, headers, and the probe cookie. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "map.h"
#include "tunnel.h"
#include "header.h"

#define PATHS_MAX 16
#define UPLINKS_MAX 4
#define SLOTS 256 /* probes that may overtake each other without being taken for duplicates */

#define SCHEME_ECMP 0
#define SCHEME_DOCA_AR 1
#define SCHEME_ADAPTIVE 2
#define SCHEME_LETFLOW 3
#define SCHEME_SPRAY 4

#define PROBE_MAGIC 0x77707232 /* "wpr2" */
#define REQUEST 1
#define ANSWER 2
#define SILENCE_NS 30000000000ULL /* after this long, a peer may begin a session with any number */

#define MISSED_BYTES 2048 /* of a frame that begins a flow, for user space */

/* The time since `then`; 0 if another processor has meanwhile written a time later than `now`. */
static __always_inline __u64 since(__u64 now, __u64 then)
{
	return now > then ? now - then : 0;
}

struct settings {
	__u32 scheme;
	__u32 tunnel_type; /* TUNNEL_VXLAN and others */
	__u32 tunnel_port; /* in host order, as all ports in maps */
	__u32 probe_vni;
	__u32 source_first; /* ports of arbitrary paths: for answers while no path is known, and for some schemes */
	__u32 source_count; /* not 0 */
	__u32 answers_ns; /* between two answers to a peer, on average */
	__u32 answers_burst_ns;
	__u32 pinned_ms; /* DOCA-AR: a flow idle for longer counts as new */
	__u32 gap_us; /* after such a pause a flow may take another path, */
	__u32 noise_ns; /* if it gains more than that */
	__u32 reroute_bytes; /* a flow that has sent more leaves a congested path without a pause, */
	__u32 gain_ns; /* if it gains more than that plus a quarter, */
	__u32 hold_us; /* and not sooner than this after it was last considered */
	__u32 drain_ns; /* in which a path sends 1024 bytes */
	__u32 half_life_us; /* of what is counted as recently sent; not 0 */
	__u32 echo_port; /* to which probes come back unchanged; 0: peers answer them */
	__u32 uplinks[UPLINKS_MAX]; /* the interface of each, by number; all 0 if there is only one */
	__u32 peers; /* over each uplink: their indexes follow those over the uplink before */
	__u64 key[2];
};

MAP(ARRAY, 1, __u32, struct settings, settings);
SHARED(struct settings);

/* The paths to a peer over an uplink. */
struct peer {
	__u32 index; /* of its counters */
	__u32 window; /* the same over all uplinks: its probes may arrive over any */
	__u32 congested; /* a bit for each path */
	__u32 answer_ports; /* how many of the following are set */
	__u32 answer_port[PATHS_MAX]; /* indexed by turn, from which answers to it are sent */
	__u32 port[PATHS_MAX];
	__u32 cost[PATHS_MAX]; /* queueing delay, in ns, and what else user space adds */
	__u32 weight[PATHS_MAX]; /* its share of new flows; 0: no frame may take the path */
};

struct peer_key {
	__u32 address; /* as on the wire */
	__u32 uplink; /* its number */
};

struct peer_key6 {
	__u32 address[4];
	__u32 uplink;
};

/* Not preallocated, so that a value in use is not reused for another peer. */
MAP(HASH, 1024, struct peer_key, struct peer, peers, __uint(map_flags, BPF_F_NO_PREALLOC));

/* Peers over IPv6: in a separate map, so that IPv4 pays nothing for the longer key. */
MAP(HASH, 1024, struct peer_key6, struct peer, peers6, __uint(map_flags, BPF_F_NO_PREALLOC));
SHARED(struct peer_key);
SHARED(struct peer_key6);
SHARED(struct peer);

/* Our own underlay addresses: only probes and answers sent to them are reflected or collected here. */
MAP(HASH, 1024, __u32, __u32, locals);

MAP(HASH, 1024, struct in6_addr, __u32, locals6);

struct flow_key {
	__u32 peer; /* its index */
	__u32 vni;
	__u32 source[4];
	__u32 destination[4];
	__u32 ports;
	__u32 protocol;
};

struct flow {
	__u64 last_ns;
	__u64 hold_until_ns;
	__u64 packets;
	__u64 bytes;
	__u32 path;
	__u16 kernel_port; /* which the kernel chose */
	__u16 decision; /* how it came to its path: enum move; DOCA-AR: 1 if no probe was answered in time */
	__u32 port; /* DOCA-AR: the pinned one; LetFlow: that of the flowlet */
	__u32 moves;
};

MAP(LRU_HASH, 1, struct flow_key, struct flow, flows);
SHARED(struct flow_key);
SHARED(struct flow);

/* For a peer, by its index. */
struct path_counters {
	__u64 packets;
	__u64 bytes;
	__u64 new_flows;
	__u64 after_gap; /* flows that moved here from another path: after a pause, */
	__u64 after_failure; /* because their path was not usable, */
	__u64 after_rehash; /* because the kernel gave them another port, */
	__u64 without_gap; /* because their path was congested */
};

struct traffic {
	struct path_counters paths[PATHS_MAX];
};

MAP(PERCPU_ARRAY, 1, __u32, struct traffic, traffic);
SHARED(struct traffic);

/* The recent bytes on a path, which decay by half in each half-life. */
struct load {
	__u64 since_ns;
	__u64 bytes;
};

/* The activity of a peer, which user space reads every few milliseconds. */
struct activity {
	__u64 last_ns; /* of the last frame to the peer */
	struct load loads[PATHS_MAX];
	__u64 rehashed[PATHS_MAX]; /* flows on the path to which the kernel gave another port */
};

MAP(ARRAY, 1, __u32, struct activity, activity_map);
SHARED(struct activity);

/* For tests: the time and the state of the random numbers (SplitMix64), if `is_scripted` was set. */
const volatile __u32 is_scripted = 0;

struct script {
	__u64 now_ns;
	__u64 random;
};

MAP(ARRAY, 1, __u32, struct script, script_map);
SHARED(struct script);

/* The index of each counter; `PathCounters` has a field for each. */
enum count {
	STEERED, UNKNOWN_PEER, UNSTEERED, HELD, UNHELD, PROBES_SENT,
	ANSWERED, STRANGER, MALFORMED, BAD_COOKIE, REPEATED, LIMITED,
	COLLECTED, UNCOLLECTED, HEADER_MALFORMED, HEADER_UNKNOWN, SCATTERED, COUNTS
};

MAP(PERCPU_ARRAY, COUNTS, __u32, __u64, counters);
SHARED(enum count);

/* The probes that a peer has sent. Each slot has the session (high half) and the number of the last probe
 * that fell into it. */
struct window {
	__u64 due_ns; /* when the rate allows the next answer */
	__u64 last_ns;
	__u64 session;
	__u64 slots[SLOTS];
	__u32 arrived[UPLINKS_MAX * PATHS_MAX]; /* in the session, by the path's number at the peer */
};

MAP(ARRAY, 1, __u32, struct window, windows);
SHARED(struct window);

/* An answer to one of our probes. */
struct collected {
	__u32 kind; /* ANSWER */
	__u32 peer; /* its window */
	__u32 session;
	__u32 number;
	__u32 port; /* that the probe left from */
	__u16 ce; /* whether it was marked */
	__u16 hops; /* the TTL it arrived with */
	__u32 arrived; /* how many probes of its path have arrived, in this session */
	__u64 sent_ns; /* our clock */
	__u64 reflected_ns; /* the peer's clock */
	__u64 received_ns; /* our clock */
};

RING(1 << 18, answers);
SHARED(struct collected);

/* The first frame of a flow, held for user space. */
struct missed {
	struct flow_key key;
	__u32 kernel_port;
	__u32 length;
	__u8 bytes[MISSED_BYTES];
};

RING(1 << 20, missed);
SHARED(struct missed);

struct outer {
	struct ethhdr ethernet;
	struct iphdr ip;
	struct udphdr udp;
	struct tunnel_header header;
} __attribute__((packed, aligned(2)));

struct outer6 {
	struct ethhdr ethernet;
	struct ipv6hdr ip;
	struct udphdr udp;
	struct tunnel_header header;
} __attribute__((packed, aligned(2)));

/* The parts of the outer headers that the code shared by both IP versions needs. */
struct tunnel {
	__u32 at; /* of the UDP header, in the frame */
	__u32 addresses; /* the sum of their halves, for the pseudo header */
	struct udphdr udp;
	__u32 vni;
	__u16 inner; /* the offset of the inner packet, in the frame */
	__be16 ethertype; /* of the inner packet; see struct inside */
};

/* The contents of a probe after its tunnel header, see wire.rs. Everything is in network order. */
struct probe {
	__be32 magic;
	__u8 kind;
	__u8 ce;
	__u8 hops; /* the TTL that the probe arrived with */
	__u8 turn; /* successive probes of a path have successive turns */
	__be32 session;
	__be32 number;
	__be16 port;
	__u8 path; /* at the sender, which numbers the paths of all its uplinks; or none: a higher number */
	__u8 reserved;
	__be32 arrived; /* in an answer: probes of the path that have arrived in the session */
	__be64 sent_ns;
	__be64 reflected_ns;
	__be64 cookie;
} __attribute__((packed, aligned(2)));

#define PROBE_LENGTH (sizeof(struct outer) - sizeof(struct ethhdr) + sizeof(struct probe))
#define PROBE_UDP_LENGTH (sizeof(struct udphdr) + sizeof(struct tunnel_header) + sizeof(struct probe))
#define BODY_OFFSET (sizeof(struct udphdr) + sizeof(struct tunnel_header)) /* of a probe, from UDP onwards */

static __always_inline void count(enum count what)
{
	add(&counters, what, 1);
}

static __always_inline int is_local(__u32 address)
{
	return bpf_map_lookup_elem(&locals, &address) != 0;
}

/* The number of the uplink that a frame passes through. */
static __always_inline __u32 uplink_of(struct __sk_buff *skb, const struct settings *settings)
{
	for (__u32 number = 1; number < UPLINKS_MAX; number++)
		if (settings->uplinks[number] == skb->ifindex)
			return number;
	return 0;
}

static __always_inline struct peer *find_peer(struct __sk_buff *skb, const struct settings *settings,
					      __u32 address)
{
	struct peer_key key = { .address = address, .uplink = uplink_of(skb, settings) };

	return bpf_map_lookup_elem(&peers, &key);
}

static __always_inline struct peer *find_peer6(struct __sk_buff *skb, const struct settings *settings,
					       const void *address)
{
	struct peer_key6 key;

	__builtin_memcpy(key.address, address, sizeof(key.address));
	key.uplink = uplink_of(skb, settings);
	return bpf_map_lookup_elem(&peers6, &key);
}

/* The addresses in place: copies of them would not fit on the stack. */
static __always_inline const void *source6(const struct outer6 *outer)
{
	return (const void *)outer + offsetof(struct outer6, ip) + offsetof(struct ipv6hdr, saddr);
}

static __always_inline const void *destination6(const struct outer6 *outer)
{
	return (const void *)outer + offsetof(struct outer6, ip) + offsetof(struct ipv6hdr, daddr);
}

static __always_inline int is_local6(const void *address)
{
	return bpf_map_lookup_elem(&locals6, address) != 0;
}

/* The time; in a test, the scripted one. */
static __always_inline __u64 clock_ns(void)
{
	__u32 zero = 0;
	struct script *script = is_scripted ? bpf_map_lookup_elem(&script_map, &zero) : 0;

	return script ? script->now_ns : bpf_ktime_get_ns();
}

/* 32 random bits; in a test, the upper ones of the next number of SplitMix64, like crate path. */
static __always_inline __u32 random_word(void)
{
	__u32 zero = 0;
	struct script *script = is_scripted ? bpf_map_lookup_elem(&script_map, &zero) : 0;
	__u64 word;

	if (!script)
		return bpf_get_prandom_u32();
	script->random += 0x9e3779b97f4a7c15ULL;
	word = script->random;
	word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ULL;
	word = (word ^ word >> 27) * 0x94d049bb133111ebULL;
	return (word ^ word >> 31) >> 32;
}

static __always_inline struct settings *get_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

/* Reads the first `length` bytes of a frame: the outer headers. A tunnel header that is cut short is read as
 * zeros. */
static __always_inline int load_outer(struct __sk_buff *skb, void *outer, __u32 length)
{
	return !bpf_skb_load_bytes(skb, 0, outer, length) ||
	       !bpf_skb_load_bytes(skb, 0, outer, length - sizeof(struct tunnel_header));
}

/* Reads the outer headers; false unless they are UDP to this port, in IPv4 without options, and the packet is
 * no fragment. */
static __always_inline int read_outer_to(struct __sk_buff *skb, __u32 port, struct outer *outer)
{
	if (skb->protocol != bpf_htons(ETH_P_IP) || !load_outer(skb, outer, sizeof(*outer)))
		return 0;
	return outer->ethernet.h_proto == bpf_htons(ETH_P_IP) && outer->ip.version == 4 &&
	       outer->ip.ihl == 5 && outer->ip.protocol == IPPROTO_UDP &&
	       !(outer->ip.frag_off & bpf_htons(FRAGMENT_BITS)) &&
	       outer->udp.dest == bpf_htons(port);
}

static __always_inline int read_outer(struct __sk_buff *skb, const struct settings *settings,
				      struct outer *outer)
{
	return read_outer_to(skb, settings->tunnel_port, outer);
}

/* Reads the outer headers; false unless they are UDP to the tunnel port, in IPv6 without extension headers.
 */
static __always_inline int read_outer6(struct __sk_buff *skb, const struct settings *settings,
				       struct outer6 *outer)
{
	if (skb->protocol != bpf_htons(ETH_P_IPV6) || !load_outer(skb, outer, sizeof(*outer)))
		return 0;
	return outer->ethernet.h_proto == bpf_htons(ETH_P_IPV6) && outer->ip.version == 6 &&
	       outer->ip.nexthdr == IPPROTO_UDP && outer->udp.dest == bpf_htons(settings->tunnel_port);
}

static __always_inline __u32 halves(__u32 word)
{
	return (word & 0xffff) + (word >> 16);
}

static __always_inline struct tunnel tunnel_of(const struct outer *outer)
{
	return (struct tunnel){
		.at = offsetof(struct outer, udp),
		.addresses = halves(outer->ip.saddr) + halves(outer->ip.daddr),
		.udp = outer->udp,
	};
}

static __always_inline struct tunnel tunnel_of6(const struct outer6 *outer)
{
	struct tunnel tunnel = {
		.at = offsetof(struct outer6, udp),
		.udp = outer->udp,
	};

	for (int word = 0; word < 4; word++)
		tunnel.addresses += halves(outer->ip.saddr.in6_u.u6_addr32[word]) +
				    halves(outer->ip.daddr.in6_u.u6_addr32[word]);
	return tunnel;
}

/* Whether a tunnel header is that of a probe. */
static __always_inline int is_probe(const struct settings *settings, const struct tunnel_header *header)
{
	return is_probe_header(settings->tunnel_type, header, settings->probe_vni);
}

/* Reads the tunnel header into `tunnel`, whose other fields are already set. The UDP length is ignored if the
 * frame is yet to be segmented, because it may not fit into its field. */
static __always_inline enum reading find_inner(struct __sk_buff *skb, const struct settings *settings,
					       const struct tunnel_header *header, struct tunnel *tunnel)
{
	__u32 behind = tunnel->at + sizeof(struct udphdr), available = skb->len - behind;
	__u32 length = bpf_ntohs(tunnel->udp.len), claimed;
	struct inside inside = {};
	enum reading reading;

	claimed = length > sizeof(struct udphdr) ? length - sizeof(struct udphdr) : 0;
	if (!skb->gso_size && claimed < available)
		available = claimed;
	reading = read_header(settings->tunnel_type, header, available, &inside);
	tunnel->vni = inside.vni;
	tunnel->inner = behind + inside.length;
	tunnel->ethertype = inside.ethertype;
	return reading;
}

/* Finds the inner IP packet: sets its offset, and returns its EtherType. If the inner packet is not IP,
 * returns another EtherType. */
static __always_inline __be16 inner_ip(struct __sk_buff *skb, const struct tunnel *tunnel, __u32 *at)
{
	__be16 ethertype = tunnel->ethertype;

	*at = tunnel->inner;
	if (ethertype != bpf_htons(ETH_P_TEB))
		return ethertype;
	if (bpf_skb_load_bytes(skb, *at + offsetof(struct ethhdr, h_proto), &ethertype, sizeof(ethertype)))
		return 0;
	*at += sizeof(struct ethhdr);
	return ethertype;
}

#define ROTATE(word, bits) (((word) << (bits)) | ((word) >> (64 - (bits))))

struct sip {
	__u64 v0, v1, v2, v3;
};

static __always_inline void sip_round(struct sip *s)
{
	s->v0 += s->v1;
	s->v1 = ROTATE(s->v1, 13) ^ s->v0;
	s->v0 = ROTATE(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = ROTATE(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = ROTATE(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = ROTATE(s->v1, 17) ^ s->v2;
	s->v2 = ROTATE(s->v2, 32);
}

static __always_inline void sip_word(struct sip *s, __u64 word)
{
	s->v3 ^= word;
	sip_round(s);
	sip_round(s);
	s->v0 ^= word;
}

/* SipHash-2-4, as wire.rs computes it: of both addresses, as words of 64 bits, and of five more words.
 * `addresses` has 8 words of 32 bits.
 */
static __noinline __u64 cookie(const struct settings *settings, const struct probe *probe,
			       const __be32 *addresses, __u32 words)
{
	struct sip s = {};
	__u64 fields;

	if (!settings || !probe || !addresses)
		return 0;
	s.v0 = settings->key[0] ^ 0x736f6d6570736575ULL;
	s.v1 = settings->key[1] ^ 0x646f72616e646f6dULL;
	s.v2 = settings->key[0] ^ 0x6c7967656e657261ULL;
	s.v3 = settings->key[1] ^ 0x7465646279746573ULL;
	fields = (__u64)probe->kind << 56 | (__u64)probe->ce << 48 | (__u64)probe->hops << 40 |
		 (__u64)probe->turn << 32 | bpf_ntohs(probe->port);
	for (__u32 word = 0; word < 4 && word < words; word++)
		sip_word(&s, (__u64)bpf_ntohl(addresses[2 * word]) << 32 | bpf_ntohl(addresses[2 * word + 1]));
	sip_word(&s, fields);
	sip_word(&s, (__u64)bpf_ntohl(probe->session) << 32 | bpf_ntohl(probe->number));
	sip_word(&s, (__u64)bpf_ntohl(probe->arrived) << 32 | probe->path);
	/* A probe is stamped after its cookie has been written. */
	sip_word(&s, probe->kind == ANSWER ? bpf_be64_to_cpu(probe->sent_ns) : 0);
	sip_word(&s, bpf_be64_to_cpu(probe->reflected_ns));
	sip_word(&s, (40ULL + 8 * words) << 56);
	s.v2 ^= 0xff;
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

static __always_inline __u64 cookie4(const struct settings *settings, const struct probe *probe,
				     const struct outer *outer)
{
	__be32 addresses[8] = { outer->ip.saddr, outer->ip.daddr };

	return cookie(settings, probe, addresses, 1);
}

static __always_inline __u64 cookie6(const struct settings *settings, const struct probe *probe,
				     const struct outer6 *outer)
{
	struct in6_addr pair[2] = { outer->ip.saddr, outer->ip.daddr };
	__be32 addresses[8];

	__builtin_memcpy(addresses, pair, sizeof(pair));
	return cookie(settings, probe, addresses, 4);
}
