// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* XDP programs written by hand, with which the output of weir's eBPF compiler is compared. Each does one job,
 * with constants and tables laid out for it. Checks and counts are part of the job, so these programs find
 * the same headers, refuse the same packets, and count the same: packets and bytes of the entries that were
 * hit and of the verdict, and the bytes that leave, separately for each processor. Frames that they do not
 * expect go to the host's stack.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* The seed of the select hash, and its constants (weir_packet::hash). */
#define SEED 7ULL
#define K0 0x9e3779b97f4a7c15ULL
#define K1 0xbb67ae8584caa73bULL
#define K2 0x3c6ef372fe94f82bULL
#define IPV4_MARK 0xff00000000000004ULL

#define ROTATE(word, by) ((word) << (by) | (word) >> (64 - (by)))
#define FIRST_KEY ROTATE((SEED ^ K1) * K0, 32)
#define KEY(number) (FIRST_KEY + K0 * (number))

#define RECORDS 256
#define BUCKETS 65537 /* at most */
#define ROUTES 16384
#define LONGER 0x8000 /* in place of a route: the number of a table for the last byte */
#define RULES 7 /* masks of rules */
#define SUBTABLE 256

/* The first bytes of a frame as it is sent: MAC addresses, or the headers of a tunnel, whose IPv4 header has
 * length 0, type of service 0 and the checksum for these. */
struct record {
	__u64 words[8];
};

const volatile struct record records[RECORDS];
/* One more than are used: clang doubles the index in a way whose bounds the verifier finds too large. */
const volatile __u16 buckets[BUCKETS + 1];
const volatile __u32 bucket_count = 1;
const volatile __u8 next_hops[ROUTES];

struct count {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROUTES);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

struct service {
	__be32 address;
	__be16 port;
	__u16 protocol;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct service);
	__type(value, __u32); /* where it counts */
} services SEC(".maps");

struct routes {
	__u16 numbers[SUBTABLE];
};

/* The routes of addresses, by their first 16 bits and then the next 8. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* user space sets 65536 */
	__type(key, __u32);
	__type(value, struct routes);
} routes SEC(".maps");

/* Those that differ in the last byte. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* user space sets another number */
	__type(key, __u32);
	__type(value, struct routes);
} longer_routes SEC(".maps");

enum verdict { SENT, NO_TARGET, MISS, TTL_EXPIRED, FAILED, LEFT, VERDICTS };

/* Frames with a verdict: packets and bytes as they arrived, and the bytes that leave. */
struct decided {
	struct count arrived;
	__u64 sent;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VERDICTS);
	__type(key, __u32);
	__type(value, struct decided);
} verdicts SEC(".maps");

static __always_inline void count(__u32 at, __u64 bytes)
{
	struct count *one = bpf_map_lookup_elem(&counts, &at);

	if (one) {
		one->packets++;
		one->bytes += bytes;
	}
}

#define START(context) ((void *)(long)(context)->data)
#define END(context) ((void *)(long)(context)->data_end)
#define LENGTH(context) (END(context) - START(context))

/* Counts a frame that arrived with this many bytes, and returns its action. */
static __always_inline int decide(struct xdp_md *context, __u32 verdict, __u64 bytes)
{
	struct decided *one = bpf_map_lookup_elem(&verdicts, &verdict);

	if (one) {
		one->arrived.packets++;
		one->arrived.bytes += bytes;
		if (verdict == SENT)
			one->sent += LENGTH(context);
	}
	return verdict == SENT ? XDP_TX : verdict == LEFT ? XDP_PASS : XDP_DROP;
}

/* The headers of a frame. */
struct packet {
	struct ethhdr *ethernet;
	struct iphdr *ip;
	void *transport;
	__u64 length; /* of the frame */
	__u32 ip_length;
	__u32 ip_offset;
	__u8 protocol;
	__u8 has_ports;
};

/* Finds an IPv4 header, which must be valid (RFC 791) and have a valid source address. */
static __always_inline int find_ipv4(struct packet *packet, void *end)
{
	struct iphdr *ip = packet->ip;
	__u32 header, source;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return -1;
	header = ip->ihl * 4;
	packet->ip_length = bpf_ntohs(ip->tot_len);
	if (packet->ip_length < header || packet->ip_offset + packet->ip_length > packet->length)
		return -1;
	source = bpf_ntohl(ip->saddr);
	if (ip->frag_off & bpf_htons(0x3fff) || !source || source == 0xffffffff || source >> 28 == 0xe)
		return -1;
	packet->protocol = ip->protocol;
	packet->transport = (void *)ip + header;
	return 0;
}

/* Finds the header behind IP, which must be valid if it has ports. */
static __always_inline int find_ports(struct packet *packet, void *end)
{
	__u32 bytes = packet->ip_length - (packet->transport - (void *)packet->ip);

	if (packet->protocol == IPPROTO_UDP) {
		struct udphdr *udp = packet->transport;

		if ((void *)(udp + 1) > end || bytes < sizeof(*udp) ||
		    bpf_ntohs(udp->len) < sizeof(*udp) || bpf_ntohs(udp->len) > bytes)
			return -1;
		packet->has_ports = 1;
	} else if (packet->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = packet->transport;

		if ((void *)(tcp + 1) > end || bytes < sizeof(*tcp) || tcp->doff < 5 ||
		    tcp->doff * 4u > bytes)
			return -1;
		packet->has_ports = 1;
	}
	return 0;
}

/* Finds the headers of a frame with at most two VLAN tags and IPv4, and the headers behind IPv4 if they are
 * needed. Frames in several buffers, invalid frames and frames of other protocols are left to the host,
 * because none of these programs handles them. */
static __always_inline int find(struct xdp_md *context, struct packet *packet, int with_ports)
{
	struct ethhdr *ethernet = START(context);
	void *end = END(context), *at = ethernet + 1;
	__be16 type;

	*packet = (struct packet){ .ethernet = ethernet, .length = LENGTH(context) };
	if (bpf_xdp_get_buff_len(context) != packet->length || at > end)
		return -1;
	type = ethernet->h_proto;
#pragma unroll
	for (int tag = 0; tag < 2; tag++) {
		if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
			break;
		if (at + 4 > end)
			return -1;
		type = *(__be16 *)(at + 2);
		at += 4;
	}
	if (type != bpf_htons(ETH_P_IP))
		return -1;
	packet->ip = at;
	packet->ip_offset = at - (void *)ethernet;
	if (find_ipv4(packet, end))
		return -1;
	return with_ports ? find_ports(packet, end) : 0;
}

static __always_inline __u64 product(__u64 word, __u64 key)
{
	return (__u64)((__u32)word + (__u32)key) * ((__u32)(word >> 32) + (__u32)(key >> 32));
}

/* The select hash of the flow of an IPv4 packet. */
static __always_inline __u64 select_hash(const struct packet *packet)
{
	const struct iphdr *ip = packet->ip;
	__u64 ports = packet->has_ports ? bpf_ntohl(*(__be32 *)packet->transport) : 0;
	__u64 hash = FIRST_KEY + product(IPV4_MARK, KEY(0)) + product(0, KEY(2));

	hash += product(bpf_ntohl(ip->saddr), KEY(1)) + product(bpf_ntohl(ip->daddr), KEY(3));
	hash += product(ports << 32 | (__u64)packet->protocol << 24, KEY(4));
	hash = (hash ^ ROTATE(hash, 25) ^ ROTATE(hash, 47)) * K1;
	hash = (hash ^ ROTATE(hash, 23) ^ ROTATE(hash, 51)) * K2;
	return hash ^ ROTATE(hash, 27) ^ ROTATE(hash, 49);
}

/* Returns the target of a hash. */
static __always_inline __u32 target_of(__u64 hash)
{
	return buckets[(hash >> 32) * bucket_count >> 32];
}

static __always_inline void set_stations(struct ethhdr *ethernet, const volatile struct record *record)
{
	*(__u64 *)ethernet = record->words[0];
	*(__u32 *)((void *)ethernet + 8) = record->words[1];
}

/* Copies the headers of a tunnel, then completes the IPv4 header for this many bytes behind it. */
static __always_inline void write_outer(void *frame, const volatile struct record *record, __u32 headers,
					__u8 tos, __u16 carried)
{
	struct iphdr *ip = frame + sizeof(struct ethhdr);
	__u32 sum;

	for (__u32 word = 0; word < headers / 8; word++)
		((__u64 *)frame)[word] = record->words[word];
	*(__u16 *)(frame + headers / 8 * 8) = record->words[headers / 8];
	ip->tos = tos;
	ip->tot_len = bpf_htons(sizeof(*ip) + carried);
	sum = (__u16)~ip->check + ip->tot_len + bpf_htons(tos);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~((sum & 0xffff) + (sum >> 16));
}

/* Where shared counters and services count, behind the records. */
#define SHARED RECORDS

/* Two entries for the last bit of the source address, each with a shared counter. */
SEC("xdp.frags")
int basic2(struct xdp_md *context)
{
	struct packet packet;
	__u32 at;

	if (find(context, &packet, 0))
		return decide(context, LEFT, packet.length);
	at = bpf_ntohl(packet.ip->saddr) & 1;
	count(at, packet.length);
	count(SHARED + at, packet.length);
	set_stations(packet.ethernet, &records[at]);
	return decide(context, SENT, packet.length);
}

/* 256 buckets, each with its own MAC address. */
SEC("xdp.frags")
int hash256(struct xdp_md *context)
{
	struct packet packet;
	__u32 target;

	if (find(context, &packet, 1))
		return decide(context, LEFT, packet.length);
	target = target_of(select_hash(&packet));
	if (target >= RECORDS)
		return decide(context, NO_TARGET, packet.length);
	count(target, packet.length);
	set_stations(packet.ethernet, &records[target]);
	return decide(context, SENT, packet.length);
}

/* Replaces everything in front of the IPv4 header by the headers of an IP-in-IP tunnel. Removes padding. */
static __always_inline int tunnel(struct xdp_md *context, struct packet *packet, __u64 target)
{
	const __u32 headers = sizeof(struct ethhdr) + sizeof(struct iphdr);
	__u32 unpadded = packet->ip_offset + packet->ip_length;
	__u8 tos = packet->ip->tos;

	if (packet->ip_length > 0xffff - headers)
		return decide(context, FAILED, packet->length);
	if (unpadded < packet->length && bpf_xdp_adjust_tail(context, unpadded - packet->length))
		return decide(context, FAILED, packet->length);
	if (bpf_xdp_adjust_head(context, (int)packet->ip_offset - (int)headers) ||
	    START(context) + headers > END(context))
		return decide(context, FAILED, packet->length);
	write_outer(START(context), &records[target], headers, tos, packet->ip_length);
	return decide(context, SENT, packet->length);
}

/* Returns where the service of a packet counts, or 0 if it is for none. */
static __always_inline __u32 *service_of(const struct packet *packet)
{
	struct service service = {};

	if (!packet->has_ports)
		return 0;
	service.address = packet->ip->daddr;
	service.port = ((struct udphdr *)packet->transport)->dest;
	service.protocol = packet->protocol;
	return bpf_map_lookup_elem(&services, &service);
}

/* A load balancer: services by address, protocol and port; Maglev; IP-in-IP. */
SEC("xdp.frags")
int ipip(struct xdp_md *context)
{
	struct packet packet;
	__u32 target, *service;

	if (find(context, &packet, 1))
		return decide(context, LEFT, packet.length);
	service = service_of(&packet);
	if (!service)
		return decide(context, MISS, packet.length);
	target = target_of(select_hash(&packet));
	if (target >= RECORDS)
		return decide(context, NO_TARGET, packet.length);
	count(*service, packet.length);
	count(target, packet.length);
	return tunnel(context, &packet, target);
}

struct flow_key {
	__be32 source;
	__be32 destination;
	__be32 ports;
	__u32 protocol;
};

/* What is known about a flow; user space expires flows and adds up their counts. */
struct flow {
	__u64 last; /* when it had a packet */
	__u64 packets;
	__u64 bytes;
	__u64 target;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* user space sets another number */
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

/* Returns the flow of a packet if it is known, and counts the packet. */
static __always_inline struct flow *flow_of(const struct packet *packet)
{
	const struct iphdr *ip = packet->ip;
	struct flow_key key = { ip->saddr, ip->daddr, *(__be32 *)packet->transport, packet->protocol };
	struct flow *flow = bpf_map_lookup_elem(&flows, &key);

	if (!flow)
		return 0;
	flow->last = bpf_ktime_get_coarse_ns();
	flow->packets++;
	flow->bytes += packet->length;
	return flow;
}

/* The load balancer with a table of flows. New flows go to user space. */
SEC("xdp.frags")
int lb_flows(struct xdp_md *context)
{
	struct packet packet;
	struct flow *flow;
	__u32 *service;
	__u64 target;

	if (find(context, &packet, 1))
		return decide(context, LEFT, packet.length);
	service = service_of(&packet);
	if (!service)
		return decide(context, MISS, packet.length);
	flow = flow_of(&packet);
	if (!flow)
		return decide(context, LEFT, packet.length);
	target = flow->target;
	if (target >= RECORDS)
		return decide(context, NO_TARGET, packet.length);
	count(*service, packet.length);
	count(target, packet.length);
	return tunnel(context, &packet, target);
}

/* The complement of a sum, after a word that it covers has changed. */
static __always_inline __sum16 changed(__sum16 check, __be32 from, __be32 to)
{
	__u32 sum = (__u16)~check;

	sum += (__u16)~from + (__u16)~(from >> 16) + (__u16)to + (to >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~((sum & 0xffff) + (sum >> 16));
}

/* Source address and port of UDP flows are replaced: the first 4 and the next 2 bytes of a record. */
SEC("xdp.frags")
int nat(struct xdp_md *context)
{
	struct packet packet;
	struct iphdr *ip;
	struct udphdr *udp;
	__u64 target, to;
	struct flow *flow;

	if (find(context, &packet, 1) || packet.protocol != IPPROTO_UDP)
		return decide(context, LEFT, packet.length);
	flow = flow_of(&packet);
	if (!flow)
		return decide(context, LEFT, packet.length);
	target = flow->target;
	if (target >= RECORDS)
		return decide(context, NO_TARGET, packet.length);
	count(target, packet.length);
	to = records[target].words[0];
	ip = packet.ip;
	udp = packet.transport;
	ip->check = changed(ip->check, ip->saddr, (__u32)to);
	if (udp->check) {
		udp->check = changed(udp->check, ip->saddr, (__u32)to);
		udp->check = changed(udp->check, udp->source, (__u16)(to >> 32));
		if (!udp->check)
			udp->check = 0xffff;
	}
	ip->saddr = (__u32)to;
	udp->source = (__u16)(to >> 32);
	return decide(context, SENT, packet.length);
}

/* Returns the number of an address's route; without a route, a number that no route has. */
static __always_inline __u32 route_to(__u32 address)
{
	__u32 at = address >> 16, route;
	struct routes *found = bpf_map_lookup_elem(&routes, &at);

	if (!found)
		return ROUTES;
	route = found->numbers[address >> 8 & 0xff];
	if (!(route & LONGER))
		return route;
	at = route & ~LONGER;
	found = bpf_map_lookup_elem(&longer_routes, &at);
	return found ? found->numbers[address & 0xff] : ROUTES;
}

/* Ten thousand routes: TTL, then both MAC addresses. */
SEC("xdp.frags")
int lpm10k(struct xdp_md *context)
{
	struct packet packet;
	__u32 route, check;

	if (find(context, &packet, 0))
		return decide(context, LEFT, packet.length);
	route = route_to(bpf_ntohl(packet.ip->daddr));
	if (route >= ROUTES)
		return decide(context, MISS, packet.length);
	count(route, packet.length);
	if (packet.ip->ttl <= 1)
		return decide(context, TTL_EXPIRED, packet.length);
	check = packet.ip->check + bpf_htons(0x0100);
	packet.ip->check = check + (check >= 0xffff);
	packet.ip->ttl--;
	set_stations(packet.ethernet, &records[next_hops[route]]);
	return decide(context, SENT, packet.length);
}

/* Two tunnels for the last bit of the source address, with the hash in the source port. */
SEC("xdp.frags")
int vxlan(struct xdp_md *context)
{
	const __u32 headers = sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr) + 8;
	struct packet packet;
	struct udphdr *udp;
	__u32 carried, at;
	__u64 hash;
	__u8 tos;

	if (find(context, &packet, 1))
		return decide(context, LEFT, packet.length);
	hash = select_hash(&packet);
	tos = packet.ip->tos & 3;
	at = bpf_ntohl(packet.ip->saddr) & 1;
	count(at, packet.length);
	carried = packet.length;
	if (carried > 0xffff - headers || bpf_xdp_adjust_head(context, -(int)headers) ||
	    START(context) + headers > END(context))
		return decide(context, FAILED, packet.length);
	carried += sizeof(*udp) + 8;
	write_outer(START(context), &records[at], headers, tos, carried);
	udp = START(context) + sizeof(struct ethhdr) + sizeof(struct iphdr);
	udp->source = bpf_htons(49152 + (hash >> 50));
	udp->len = bpf_htons(carried);
	return decide(context, SENT, packet.length);
}

struct rule {
	__be32 source;
	__be32 destination;
	__be16 port;
	__u16 mask;
};

/* Rules, keyed by the values that they match under their mask. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 128);
	__type(key, struct rule);
	__type(value, __u32);
} rules SEC(".maps");

const volatile struct rule masks[RULES];

/* A hundred rules under seven masks and one for everything else: the rule is looked up under each mask, and
 * the one with the lowest number counts the packet. */
SEC("xdp.frags")
int acl100(struct xdp_md *context)
{
	struct packet packet;
	__u32 best = 99, *rule;
	__be16 port = 0;

	if (find(context, &packet, 1))
		return decide(context, LEFT, packet.length);
	if (packet.has_ports)
		port = ((struct udphdr *)packet.transport)->dest;
#pragma unroll
	for (__u32 at = 0; at < RULES; at++) {
		struct rule key = { packet.ip->saddr & masks[at].source,
				    packet.ip->daddr & masks[at].destination, port & masks[at].port, at };

		rule = bpf_map_lookup_elem(&rules, &key);
		if (rule && *rule < best)
			best = *rule;
	}
	count(best, packet.length);
	return decide(context, SENT, packet.length);
}

char _license[] SEC("license") = "Dual BSD/GPL";
