// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The programs are compiled for each IP version of pods and of nodes: POD_IP and NODE_IP are 4 or 6. A tunnel
 * device has one IP version of nodes. Pods may use both: frames arrive at the programs for IPv4, which pass
 * IPv6 frames on to those for IPv6, so that IPv4 pays nothing for longer addresses. */
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#if POD_IP == 4
typedef __u32 pod_address;
typedef struct iphdr pod_header;
#define POD_ETHERTYPE ETH_P_IP
#else
typedef struct in6_addr pod_address;
typedef struct ipv6hdr pod_header;
#define POD_ETHERTYPE ETH_P_IPV6
#endif

/* Older kernel headers do not define this flag: an IPv6 address is part of no other checksum. */
#define SUM_OF_IPV6 (1ULL << 7)

#if NODE_IP == 4
typedef __u32 node_address;
typedef struct iphdr node_header;
#define NODE_ETHERTYPE ETH_P_IP
#define ENCAP_L3 BPF_F_ADJ_ROOM_ENCAP_L3_IPV4
#else
typedef struct in6_addr node_address;
typedef struct ipv6hdr node_header;
#define NODE_ETHERTYPE ETH_P_IPV6
#define ENCAP_L3 BPF_F_ADJ_ROOM_ENCAP_L3_IPV6
#endif

#define AF_INET 2
#define AF_INET6 10

#if POD_IP == 6 || NODE_IP == 6
/* The traffic class. Headers are read byte by byte, because bit-fields have different names elsewhere. */
static __always_inline __u8 traffic_class(const void *header)
{
	const __u8 *bytes = header;

	return bytes[0] << 4 | bytes[1] >> 4;
}

/* Replaces its two ECN bits. */
static __always_inline void set_ecn(void *header, __u8 ecn)
{
	__u8 *bytes = header;

	bytes[1] = (bytes[1] & ~(ECN_MASK << 4)) | ecn << 4;
}
#endif
