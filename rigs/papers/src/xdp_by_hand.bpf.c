// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* What weir's compiler of eBPF is measured against: XDP programs written by hand, each for one job, for IPv4
 * without options only, with constants and tables laid out for it. Each counts packets and bytes of the entry
 * that it has hit, because that is part of the job. Frames that it does not expect go to the host's stack.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
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
 * neither its length nor its type of service, and the checksum for that. */
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

/* Returns the IPv4 header of a frame with `more` bytes behind it, unless it is unusual. */
static __always_inline struct iphdr *ipv4(struct xdp_md *context, __u32 more)
{
	struct ethhdr *ethernet = START(context);
	struct iphdr *ip = (void *)(ethernet + 1);

	if ((void *)(ip + 1) + more > END(context) || ethernet->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	if (*(__u8 *)ip != 0x45 || ip->frag_off & bpf_htons(0x3fff))
		return 0;
	if (bpf_ntohs(ip->tot_len) < sizeof(*ip) + more ||
	    bpf_ntohs(ip->tot_len) + sizeof(*ethernet) > LENGTH(context))
		return 0;
	return ip;
}

static __always_inline __u64 product(__u64 word, __u64 key)
{
	return (__u64)((__u32)word + (__u32)key) * ((__u32)(word >> 32) + (__u32)(key >> 32));
}

/* The select hash of a TCP or UDP flow. */
static __always_inline __u64 select_hash(const struct iphdr *ip)
{
	__u64 ports = bpf_ntohl(*(__be32 *)(ip + 1));
	__u64 hash = FIRST_KEY + product(IPV4_MARK, KEY(0)) + product(0, KEY(2));

	hash += product(bpf_ntohl(ip->saddr), KEY(1)) + product(bpf_ntohl(ip->daddr), KEY(3));
	hash += product(ports << 32 | (__u64)ip->protocol << 24, KEY(4));
	hash = (hash ^ ROTATE(hash, 25) ^ ROTATE(hash, 47)) * K1;
	hash = (hash ^ ROTATE(hash, 23) ^ ROTATE(hash, 51)) * K2;
	return hash ^ ROTATE(hash, 27) ^ ROTATE(hash, 49);
}

/* Returns the target of a hash. */
static __always_inline __u32 target_of(__u64 hash)
{
	return buckets[(hash >> 32) * bucket_count >> 32];
}

/* Sets both MAC addresses of the frame with this IPv4 header. */
static __always_inline void set_stations(struct iphdr *ip, const volatile struct record *record)
{
	void *frame = (void *)ip - sizeof(struct ethhdr);

	*(__u64 *)frame = record->words[0];
	*(__u32 *)(frame + 8) = record->words[1];
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

/* Two entries for the last bit of the source address. */
SEC("xdp")
int basic2(struct xdp_md *context)
{
	struct iphdr *ip = ipv4(context, 0);
	__u32 at;

	if (!ip)
		return XDP_PASS;
	at = bpf_ntohl(ip->saddr) & 1;
	count(at, LENGTH(context));
	set_stations(ip, &records[at]);
	return XDP_TX;
}

static __always_inline int has_ports(const struct iphdr *ip)
{
	return ip->protocol == IPPROTO_UDP || ip->protocol == IPPROTO_TCP;
}

/* 256 buckets, each with its own MAC address. */
SEC("xdp")
int hash256(struct xdp_md *context)
{
	struct iphdr *ip = ipv4(context, sizeof(struct udphdr));
	__u32 target;

	if (!ip || !has_ports(ip))
		return XDP_PASS;
	target = target_of(select_hash(ip));
	if (target >= RECORDS)
		return XDP_DROP;
	count(target, LENGTH(context));
	set_stations(ip, &records[target]);
	return XDP_TX;
}

/* Replaces the Ethernet header by those of an IP-in-IP tunnel, without what pads the frame. */
static __always_inline int send_to(struct xdp_md *context, const struct iphdr *ip, __u64 length, __u64 target)
{
	const __u32 headers = sizeof(struct ethhdr) + sizeof(struct iphdr);
	__u16 carried = bpf_ntohs(ip->tot_len);
	__u8 tos = ip->tos;

	if (carried + sizeof(struct ethhdr) < length &&
	    bpf_xdp_adjust_tail(context, carried + sizeof(struct ethhdr) - length))
		return XDP_DROP;
	if (bpf_xdp_adjust_head(context, -(int)sizeof(struct iphdr)) || START(context) + headers > END(context))
		return XDP_DROP;
	write_outer(START(context), &records[target], headers, tos, carried);
	return XDP_TX;
}

/* Returns where the service of a packet counts, or 0 if it is for none. */
static __always_inline __u32 *service_of(const struct iphdr *ip)
{
	struct service service = {};

	service.address = ip->daddr;
	service.port = ((struct udphdr *)(ip + 1))->dest;
	service.protocol = ip->protocol;
	return bpf_map_lookup_elem(&services, &service);
}

/* A load balancer: services by address, protocol and port; Maglev; IP-in-IP. */
SEC("xdp")
int ipip(struct xdp_md *context)
{
	struct iphdr *ip = ipv4(context, sizeof(struct udphdr));
	__u64 length = LENGTH(context);
	__u32 target, *service;

	if (!ip || !has_ports(ip))
		return XDP_PASS;
	service = service_of(ip);
	if (!service)
		return XDP_PASS;
	target = target_of(select_hash(ip));
	if (target >= RECORDS)
		return XDP_DROP;
	count(*service, length);
	count(target, length);
	return send_to(context, ip, length, target);
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
static __always_inline struct flow *flow_of(const struct iphdr *ip, __u64 length)
{
	struct flow_key key = { ip->saddr, ip->daddr, *(__be32 *)(ip + 1), ip->protocol };
	struct flow *flow = bpf_map_lookup_elem(&flows, &key);

	if (!flow)
		return 0;
	flow->last = bpf_ktime_get_coarse_ns();
	flow->packets++;
	flow->bytes += length;
	return flow;
}

/* The load balancer with a table of flows. New flows go to user space. */
SEC("xdp")
int lb_flows(struct xdp_md *context)
{
	struct iphdr *ip = ipv4(context, sizeof(struct udphdr));
	__u64 length = LENGTH(context);
	struct flow *flow;
	__u32 *service;
	__u64 target;

	if (!ip || !has_ports(ip))
		return XDP_PASS;
	service = service_of(ip);
	if (!service)
		return XDP_PASS;
	flow = flow_of(ip, length);
	if (!flow)
		return XDP_PASS;
	target = flow->target;
	if (target >= RECORDS)
		return XDP_DROP;
	count(*service, length);
	count(target, length);
	return send_to(context, ip, length, target);
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
SEC("xdp")
int nat(struct xdp_md *context)
{
	struct iphdr *ip = ipv4(context, sizeof(struct udphdr));
	struct udphdr *udp = (void *)(ip + 1);
	__u64 length = LENGTH(context), target, to;
	struct flow *flow;

	if (!ip || ip->protocol != IPPROTO_UDP)
		return XDP_PASS;
	flow = flow_of(ip, length);
	if (!flow)
		return XDP_PASS;
	target = flow->target;
	if (target >= RECORDS)
		return XDP_DROP;
	count(target, length);
	to = records[target].words[0];
	ip->check = changed(ip->check, ip->saddr, (__u32)to);
	if (udp->check) {
		udp->check = changed(udp->check, ip->saddr, (__u32)to);
		udp->check = changed(udp->check, udp->source, (__u16)(to >> 32));
		if (!udp->check)
			udp->check = 0xffff;
	}
	ip->saddr = (__u32)to;
	udp->source = (__u16)(to >> 32);
	return XDP_TX;
}

/* Ten thousand routes: TTL, then both MAC addresses. */
SEC("xdp")
int lpm10k(struct xdp_md *context)
{
	struct iphdr *ip = ipv4(context, 0);
	__u32 address, at, route, check;
	struct routes *found;

	if (!ip)
		return XDP_PASS;
	address = bpf_ntohl(ip->daddr);
	at = address >> 16;
	found = bpf_map_lookup_elem(&routes, &at);
	if (!found)
		return XDP_DROP;
	route = found->numbers[address >> 8 & 0xff];
	if (route & LONGER) {
		at = route & ~LONGER;
		found = bpf_map_lookup_elem(&longer_routes, &at);
		if (!found)
			return XDP_DROP;
		route = found->numbers[address & 0xff];
	}
	if (route >= ROUTES || ip->ttl <= 1)
		return XDP_DROP;
	count(route, LENGTH(context));
	check = ip->check + bpf_htons(0x0100);
	ip->check = check + (check >= 0xffff);
	ip->ttl--;
	set_stations(ip, &records[next_hops[route]]);
	return XDP_TX;
}

/* Two tunnels for the last bit of the source address, with the hash in the source port. */
SEC("xdp")
int vxlan(struct xdp_md *context)
{
	const __u32 headers = sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr) + 8;
	struct iphdr *ip = ipv4(context, sizeof(struct udphdr));
	__u32 carried = LENGTH(context), at;
	struct udphdr *udp;
	__u64 hash;
	__u8 tos;

	if (!ip || !has_ports(ip))
		return XDP_PASS;
	hash = select_hash(ip);
	tos = ip->tos & 3;
	at = bpf_ntohl(ip->saddr) & 1;
	count(at, carried);
	if (carried > 0xffff - headers || bpf_xdp_adjust_head(context, -(int)headers) ||
	    START(context) + headers > END(context))
		return XDP_DROP;
	carried += sizeof(*udp) + 8;
	write_outer(START(context), &records[at], headers, tos, carried);
	udp = START(context) + sizeof(struct ethhdr) + sizeof(struct iphdr);
	udp->source = bpf_htons(49152 + (hash >> 50));
	udp->len = bpf_htons(carried);
	return XDP_TX;
}

struct rule {
	__be32 source;
	__be32 destination;
	__be16 port;
	__u16 mask;
};

/* Rules by what they match under their mask. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 128);
	__type(key, struct rule);
	__type(value, __u32);
} rules SEC(".maps");

const volatile struct rule masks[RULES];

/* A hundred rules under seven masks and one for everything else: the rule is looked up under each mask, and
 * the one with the lowest number counts the packet. */
SEC("xdp")
int acl100(struct xdp_md *context)
{
	struct iphdr *ip = ipv4(context, sizeof(struct udphdr));
	__u32 best = 99, *rule;
	__be16 port;

	if (!ip || !has_ports(ip))
		return XDP_PASS;
	port = ((struct udphdr *)(ip + 1))->dest;
#pragma unroll
	for (__u32 at = 0; at < RULES; at++) {
		struct rule key = { ip->saddr & masks[at].source, ip->daddr & masks[at].destination,
				    port & masks[at].port, at };

		rule = bpf_map_lookup_elem(&rules, &key);
		if (rule && *rule < best)
			best = *rule;
	}
	count(best, LENGTH(context));
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
