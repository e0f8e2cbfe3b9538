// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The programs are compiled for each IP version of pods and of nodes: POD_IP and NODE_IP are 4 or 6. A VXLAN
 * device has one of nodes. Of pods there may be both: frames come to the programs of IPv4, which hand those
 * of IPv6 over, so that IPv4 pays nothing for longer addresses. */
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

/* The headers of older kernels have no name for this flag: an address of IPv6 is in no other checksum. */
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

#define ECN_MASK 3
#define ECN_CE 3
#define ECN_ECT1 1

#if POD_IP == 6 || NODE_IP == 6
/* The traffic class; headers are read by bytes, because bit-fields have other names elsewhere. */
static __always_inline __u8 traffic_class(const void *header)
{
	const __u8 *bytes = header;

	return bytes[0] << 4 | bytes[1] >> 4;
}

/* Replaces its two bits of ECN. */
static __always_inline void set_ecn(void *header, __u8 ecn)
{
	__u8 *bytes = header;

	bytes[1] = (bytes[1] & ~(ECN_MASK << 4)) | ecn << 4;
}
#endif
