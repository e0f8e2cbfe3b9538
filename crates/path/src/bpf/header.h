// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Reads tunnel headers over UDP: VXLAN (RFC 7348), Geneve (RFC 8926), and GUE of variants 0 and 1
 * (draft-ietf-intarea-gue-09). `TunnelKind::read` in crate packet does the same for user space, and a test
 * compares both (tests/path/tunnels.rs).
 *
 * Plain FOU of Linux, which has no header, is read if it carries IP: it looks like variant 1 of GUE.
 */

#define TUNNEL_VXLAN 0
#define TUNNEL_GENEVE 1
#define TUNNEL_GUE 2

/* The first bytes after the UDP header. For every type of tunnel, they are the whole tunnel header of a
 * probe. */
struct tunnel_header {
	__u8 bytes[4];
	__be32 vni; /* and 8 reserved bits */
} __attribute__((packed));

enum reading { READ, MALFORMED_HEADER, UNKNOWN_HEADER };

/* What a tunnel header says about the inner packet. */
struct inside {
	__u32 vni; /* 0 if the tunnel has none */
	__u16 length; /* of the header, including options */
	__be16 ethertype; /* ETH_P_TEB: an Ethernet frame; 0: nothing that is read */
};

static __always_inline __u32 vni_of(__be32 vni)
{
	return bpf_ntohl(vni) >> 8;
}

/* Bits of Geneve and GUE: the length of options or optional fields, in words of 4 bytes, and whether this is
 * a control message. */
#define GENEVE_WORDS 0x3f
#define GENEVE_CONTROL 0x80
#define GUE_WORDS 0x1f
#define GUE_CONTROL 0x20
#define GUE_FIXED 4 /* bytes before the optional fields */

static __always_inline enum reading read_geneve(const struct tunnel_header *header, struct inside *inside)
{
	const __u8 *bytes = header->bytes;

	if (bytes[0] >> 6)
		return UNKNOWN_HEADER;
	inside->vni = vni_of(header->vni);
	inside->length = sizeof(*header) + (bytes[0] & GENEVE_WORDS) * 4;
	if (!(bytes[1] & GENEVE_CONTROL))
		inside->ethertype = bpf_htons(bytes[2] << 8 | bytes[3]);
	return READ;
}

static __always_inline enum reading read_gue(const struct tunnel_header *header, struct inside *inside)
{
	const __u8 *bytes = header->bytes;

	/* In variant 1, the inner packet has no header in front of it, so the first byte is its own. */
	if (bytes[0] >> 4 == 4 || bytes[0] >> 4 == 6) {
		inside->ethertype = bytes[0] >> 4 == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
		return READ;
	}
	if (bytes[0] >> 6)
		return UNKNOWN_HEADER;
	inside->length = GUE_FIXED + (bytes[0] & GUE_WORDS) * 4;
	if (bytes[0] & GUE_CONTROL)
		return READ;
	if (bytes[1] == IPPROTO_IPIP)
		inside->ethertype = bpf_htons(ETH_P_IP);
	else if (bytes[1] == IPPROTO_IPV6)
		inside->ethertype = bpf_htons(ETH_P_IPV6);
	return READ;
}

/* Reads a tunnel header. `available` bytes follow the UDP header. If there are fewer than in `header`, the
 * packet is malformed: no inner packet fits into them, either. */
static __always_inline enum reading read_header(__u32 type, const struct tunnel_header *header,
						__u32 available, struct inside *inside)
{
	enum reading reading = READ;

	if (available < sizeof(*header))
		return MALFORMED_HEADER;
	*inside = (struct inside){};
	if (type == TUNNEL_GENEVE) {
		reading = read_geneve(header, inside);
	} else if (type == TUNNEL_GUE) {
		reading = read_gue(header, inside);
	} else if (header->bytes[0] & VXLAN_VNI_PRESENT) {
		inside->vni = vni_of(header->vni);
		inside->length = sizeof(*header);
		inside->ethertype = bpf_htons(ETH_P_TEB);
	} else {
		return MALFORMED_HEADER;
	}
	return reading == READ && inside->length > available ? MALFORMED_HEADER : reading;
}

/* Probes of GUE are control messages of a type for private use, with a VNI as their private data. */
#define GUE_PROBE_TYPE 255

/* Whether a header is that of a probe. One with options is not. */
static __always_inline int is_probe_header(__u32 type, const struct tunnel_header *header, __u32 probe_vni)
{
	const __u8 *bytes = header->bytes;

	if (vni_of(header->vni) != probe_vni)
		return 0;
	if (type == TUNNEL_GENEVE)
		return !bytes[0];
	if (type == TUNNEL_GUE)
		return bytes[0] == (GUE_CONTROL | 1) && bytes[1] == GUE_PROBE_TYPE;
	return bytes[0] & VXLAN_VNI_PRESENT;
}
