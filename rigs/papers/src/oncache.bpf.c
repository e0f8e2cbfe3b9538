// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The cache that ONCache's authors describe ("ONCache: a cache-based low-overhead container overlay network",
 * NSDI 2025), reimplemented from descriptions, for comparisons with overlay.bpf.c. Four LRU maps, and two
 * bits of the inner type of service as marks: one says that the cache missed, the other, which a rule of
 * nftables sets, that the connection is established. Entries are never invalidated, and neither the VNI, the
 * remote node nor MTUs are checked: it is for measurements only.
 *
 *   oncache_send           ingress of a pod's interface
 *   oncache_learn_send     egress of the uplink
 *   oncache_receive        ingress of the uplink
 *   oncache_learn_receive  egress of a pod's interface (in the original, ingress of its other end)
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "map.h"

#define MISSED 0x04
#define ESTABLISHED 0x08
#define MARKS (MISSED | ESTABLISHED)
#define VXLAN_PORT 4789
#define VXLAN_BYTES 8
#define TUNNEL (sizeof(struct iphdr) + sizeof(struct udphdr) + VXLAN_BYTES + ETH_HLEN)
#define INNER (ETH_HLEN + TUNNEL) /* where the inner IP header is */

struct headers {
	struct ethhdr ethernet;
	struct iphdr ip;
	struct udphdr udp;
	__u8 vxlan[VXLAN_BYTES];
	struct ethhdr inner;
} __attribute__((packed, aligned(2)));

/* How a remote node is reached. */
struct egress {
	struct headers headers;
	__u32 uplink;
};

/* A local pod; its source MAC address is zero until it is learnt. */
struct ingress {
	__u32 interface;
	__u8 macs[2 * ETH_ALEN];
};

/* A flow as its pod sees it. */
struct tuple {
	__be32 local;
	__be32 remote;
	__be16 local_port;
	__be16 remote_port;
	__u32 protocol;
};

struct allowed {
	__u16 ingress;
	__u16 egress;
};

MAP(LRU_HASH, 4096, __be32, __be32, oncache_nodes); /* the node of a remote pod */
MAP(LRU_HASH, 1024, __be32, struct egress, oncache_egress);
MAP(LRU_HASH, 1024, __be32, struct ingress, oncache_ingress);
MAP(LRU_HASH, 4096, struct tuple, struct allowed, oncache_filter);

/* Reads the IP header at an offset and the flow's key, with the packet's source as the local end. Returns 0
 * if it is TCP or UDP. */
static __always_inline int read(struct __sk_buff *skb, __u32 at, struct iphdr *ip, struct tuple *tuple)
{
	__be16 ports[2];

	if (bpf_skb_load_bytes(skb, at, ip, sizeof(*ip)) || ip->version != 4 ||
	    (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP) ||
	    bpf_skb_load_bytes(skb, at + sizeof(*ip), ports, sizeof(ports)))
		return -1;
	tuple->local = ip->saddr;
	tuple->remote = ip->daddr;
	tuple->local_port = ports[0];
	tuple->remote_port = ports[1];
	tuple->protocol = ip->protocol;
	return 0;
}

static __always_inline void turn(struct tuple *tuple)
{
	__be32 address = tuple->local;
	__be16 port = tuple->local_port;

	tuple->local = tuple->remote;
	tuple->remote = address;
	tuple->local_port = tuple->remote_port;
	tuple->remote_port = port;
}

/* Writes the type of service of the IP header at an offset. */
static __always_inline void set_tos(struct __sk_buff *skb, __u32 at, const struct iphdr *ip, __u8 tos)
{
	bpf_l3_csum_replace(skb, at + offsetof(struct iphdr, check), bpf_htons(ip->tos), bpf_htons(tos), 2);
	bpf_skb_store_bytes(skb, at + offsetof(struct iphdr, tos), &tos, sizeof(tos), 0);
}

static __always_inline int miss(struct __sk_buff *skb, __u32 at, const struct iphdr *ip)
{
	set_tos(skb, at, ip, ip->tos | MISSED);
	return TC_ACT_UNSPEC;
}

static __always_inline int is_allowed(const struct tuple *tuple)
{
	struct allowed *allowed = bpf_map_lookup_elem(&oncache_filter, tuple);

	return allowed && allowed->ingress && allowed->egress;
}

/* Returns a local pod whose MAC addresses are known. */
static __always_inline struct ingress *local(__be32 address)
{
	struct ingress *ingress = bpf_map_lookup_elem(&oncache_ingress, &address);

	return ingress && ingress->macs[ETH_ALEN] ? ingress : 0;
}

static __always_inline int is_tunnel(struct __sk_buff *skb, struct headers *headers)
{
	return !bpf_skb_load_bytes(skb, 0, headers, sizeof(*headers)) &&
	       headers->ethernet.h_proto == bpf_htons(ETH_P_IP) && headers->ip.protocol == IPPROTO_UDP &&
	       headers->udp.dest == bpf_htons(VXLAN_PORT) && headers->inner.h_proto == bpf_htons(ETH_P_IP);
}

SEC("classifier")
int oncache_send(struct __sk_buff *skb)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
		      BPF_F_ADJ_ROOM_ENCAP_L2(sizeof(struct ethhdr)) | BPF_F_ADJ_ROOM_ENCAP_L2_ETH;
	struct egress *egress;
	struct headers headers;
	struct tuple tuple = {};
	struct iphdr ip;
	__u32 hash, sum, *node;
	__u16 length;

	if (skb->protocol != bpf_htons(ETH_P_IP) || read(skb, ETH_HLEN, &ip, &tuple))
		return TC_ACT_UNSPEC;
	hash = bpf_get_hash_recalc(skb);
	if (!is_allowed(&tuple))
		return miss(skb, ETH_HLEN, &ip);
	node = bpf_map_lookup_elem(&oncache_nodes, &ip.daddr);
	if (!node)
		return miss(skb, ETH_HLEN, &ip);
	egress = bpf_map_lookup_elem(&oncache_egress, node);
	if (!egress)
		return miss(skb, ETH_HLEN, &ip);
	/* Without the return direction, connection tracking would see only one direction. */
	if (!local(ip.saddr))
		return TC_ACT_UNSPEC;
	headers = egress->headers;
	length = bpf_ntohs(ip.tot_len) + TUNNEL;
	sum = (__u16)~headers.ip.check + (__u16)~headers.ip.tot_len + bpf_htons(length);
	headers.ip.tot_len = bpf_htons(length);
	sum = (sum & 0xffff) + (sum >> 16);
	headers.ip.check = ~((sum & 0xffff) + (sum >> 16));
	headers.udp.len = bpf_htons(length - sizeof(struct iphdr));
	hash ^= hash << 16;
	headers.udp.source = bpf_htons(((__u64)hash * (65535 - 49152) >> 32) + 49152);
	if (bpf_skb_adjust_room(skb, TUNNEL, BPF_ADJ_ROOM_MAC, flags) ||
	    bpf_skb_store_bytes(skb, 0, &headers, sizeof(headers), 0))
		return TC_ACT_SHOT;
	return bpf_redirect(egress->uplink, 0);
}

SEC("classifier")
int oncache_learn_send(struct __sk_buff *skb)
{
	struct allowed allowed = { .egress = 1 }, *known;
	struct egress egress;
	struct tuple tuple = {};
	struct iphdr ip;
	__be32 node;

	if (!is_tunnel(skb, &egress.headers) || read(skb, INNER, &ip, &tuple) || (ip.tos & MARKS) != MARKS)
		return TC_ACT_UNSPEC;
	egress.uplink = skb->ifindex;
	node = egress.headers.ip.daddr;
	bpf_map_update_elem(&oncache_egress, &node, &egress, BPF_NOEXIST);
	bpf_map_update_elem(&oncache_nodes, &ip.daddr, &node, BPF_NOEXIST);
	known = bpf_map_lookup_elem(&oncache_filter, &tuple);
	if (known)
		known->egress = 1;
	else
		bpf_map_update_elem(&oncache_filter, &tuple, &allowed, BPF_NOEXIST);
	set_tos(skb, INNER, &ip, ip.tos & ~MARKS);
	return TC_ACT_UNSPEC;
}

SEC("classifier")
int oncache_receive(struct __sk_buff *skb)
{
	struct ingress *ingress;
	struct headers headers;
	struct tuple tuple = {};
	struct iphdr ip;
	__u32 interface;

	if (skb->protocol != bpf_htons(ETH_P_IP) || !is_tunnel(skb, &headers) ||
	    skb->pkt_type != PACKET_HOST || read(skb, INNER, &ip, &tuple))
		return TC_ACT_UNSPEC;
	turn(&tuple);
	if (!is_allowed(&tuple))
		return miss(skb, INNER, &ip);
	ingress = local(ip.daddr);
	if (!ingress)
		return miss(skb, INNER, &ip);
	if (!bpf_map_lookup_elem(&oncache_nodes, &ip.saddr))
		return TC_ACT_UNSPEC;
	interface = ingress->interface;
	if (bpf_skb_adjust_room(skb, -(int)TUNNEL, BPF_ADJ_ROOM_MAC, 0) ||
	    bpf_skb_store_bytes(skb, 0, ingress->macs, sizeof(ingress->macs), 0))
		return TC_ACT_SHOT;
	return bpf_redirect_peer(interface, 0);
}

SEC("classifier")
int oncache_learn_receive(struct __sk_buff *skb)
{
	struct allowed allowed = { .ingress = 1 }, *known;
	struct ingress *ingress;
	struct tuple tuple = {};
	struct iphdr ip;

	if (skb->protocol != bpf_htons(ETH_P_IP) || read(skb, ETH_HLEN, &ip, &tuple) ||
	    (ip.tos & MARKS) != MARKS)
		return TC_ACT_UNSPEC;
	ingress = bpf_map_lookup_elem(&oncache_ingress, &ip.daddr);
	if (!ingress)
		return TC_ACT_UNSPEC;
	bpf_skb_load_bytes(skb, 0, ingress->macs, sizeof(ingress->macs));
	turn(&tuple);
	known = bpf_map_lookup_elem(&oncache_filter, &tuple);
	if (known)
		known->ingress = 1;
	else
		bpf_map_update_elem(&oncache_filter, &tuple, &allowed, BPF_NOEXIST);
	set_tos(skb, ETH_HLEN, &ip, ip.tos & ~MARKS);
	return TC_ACT_UNSPEC;
}

/* Measures what the kernel's program statistics count for a program that does nothing: their own overhead. */
SEC("classifier")
int oncache_nothing(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
