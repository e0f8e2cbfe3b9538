// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Headers of tunnels, and fields of IP that matter to them. */

#define FRAGMENT_BITS 0x3fff /* more fragments, or an offset */
#define ECN_MASK 3
#define ECN_ECT0 2
#define ECN_ECT1 1
#define ECN_CE 3
#define VXLAN_VNI_PRESENT 0x08

/* The header of VXLAN, and that of Geneve without options. */
struct vni_header {
	__be32 head; /* everything before the VNI */
	__be32 vni; /* and 8 reserved bits */
} __attribute__((packed));
