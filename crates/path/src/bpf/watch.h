// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* What the tunnels' own TCP connections reveal about paths to unmodified remote nodes: how long
 * acknowledgements take, and how many segments had to be sent again. `path_watch` sees the segments that
 * leave, after `path_egress` has placed them, and `path_listen` sees the acknowledgements that arrive.
 *
 * A round trip ends with an acknowledgement that the receiver sends at once: that of a SYN, or of a segment
 * that left while another one was still unacknowledged (RFC 9293, section 3.8.6.3). A single segment may have
 * to wait for a delayed acknowledgement. A segment that was sent again says nothing about time (Karn's rule).
 *
 * Promises: no frame is changed, delayed or dropped.
 */
#include <linux/tcp.h>

#define WINDOW_BITS 23 /* a window takes 2^23 ns = 8.4 ms */
#define TIMED_MAX_NS 1000000000ULL /* a segment without an acknowledgement for so long is timed no longer */

/* One direction of a connection, by the key of the segments that leave. */
struct connection {
	__u64 timed_ns; /* when the timed segment left; 0: none is timed */
	__u32 timed_end; /* an acknowledgement from here on includes it, */
	__u32 timed_path; /* and this is the path that it took */
	__u32 end; /* the sequence number after the last byte that was sent, */
	__u32 path; /* and the path of that byte */
	__u32 acknowledged;
	__u32 unused;
};

MAP(LRU_HASH, 1, struct flow_key, struct connection, connections);

/* What was seen on a path. */
struct seen {
	__u64 window; /* the latest window with a round trip, */
	__u64 least_ns; /* and the shortest one in it; */
	__u64 window_before; /* the same for the window before */
	__u64 least_before_ns;
	__u64 segments; /* sent, */
	__u64 again; /* of these, sent again, */
	__u64 acknowledgements; /* and acknowledgements of new data */
};

struct sight {
	struct seen paths[PATHS_MAX];
};

MAP(ARRAY, 1, __u32, struct sight, sights);
SHARED(struct sight);

struct segment {
	__u32 first; /* its first sequence number, */
	__u32 end; /* and the one after it: a SYN and a FIN count */
	__u32 acknowledged;
	__u8 is_syn;
	__u8 has_ack;
};

/* Reads the TCP segment of an inner packet; false if there is none. */
static __always_inline int read_segment(struct __sk_buff *skb, const struct tunnel *tunnel,
					struct segment *segment)
{
	__u32 at, end;
	__be16 ethertype = inner_ip(skb, tunnel, &at);
	struct tcphdr tcp;

	if (ethertype == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.frag_off & bpf_htons(FRAGMENT_BITS))
			return 0;
		end = at + bpf_ntohs(ip.tot_len);
		at += ip.ihl * 4;
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return 0;
		at += sizeof(ip);
		end = at + bpf_ntohs(ip.payload_len);
	}
	if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)) || end < at + tcp.doff * 4)
		return 0;
	segment->first = bpf_ntohl(tcp.seq);
	segment->end = segment->first + (end - at - tcp.doff * 4) + tcp.syn + tcp.fin;
	segment->acknowledged = bpf_ntohl(tcp.ack_seq);
	segment->is_syn = tcp.syn;
	segment->has_ack = tcp.ack;
	return 1;
}

static __always_inline struct seen *seen_of(__u32 peer, __u32 path)
{
	struct sight *sight = bpf_map_lookup_elem(&sights, &peer);

	return sight && path < PATHS_MAX ? &sight->paths[bounded(path)] : 0;
}

/* Whether a sequence number is after another. */
static __always_inline int is_after(__u32 one, __u32 other)
{
	return (__s32)(one - other) > 0;
}

/* Notes a segment that leaves on a path. */
static __always_inline void note(const struct flow_key *key, const struct segment *segment, __u32 segments,
				 __u32 path, __u64 now)
{
	struct connection *connection = bpf_map_lookup_elem(&connections, key);
	struct connection new = {
		.end = segment->end, .acknowledged = segment->first, .path = path,
		.timed_ns = segment->is_syn ? now : 0, .timed_end = segment->end, .timed_path = path,
	};
	struct seen *seen;
	int is_again;

	/* The ports of an earlier connection may be used again. */
	if (connection && segment->is_syn && segment->end != connection->end)
		connection = 0;
	/* What is sent again was lost where it was sent first. */
	is_again = connection && !is_after(segment->end, connection->end);
	seen = seen_of(key->peer, is_again ? connection->path : path);
	if (seen) {
		__sync_fetch_and_add(&seen->segments, segments);
		if (is_again)
			__sync_fetch_and_add(&seen->again, segments);
	}
	if (!connection) {
		bpf_map_update_elem(&connections, key, &new, BPF_ANY);
		return;
	}
	if (is_again) {
		connection->timed_ns = 0;
	} else if ((!connection->timed_ns || since(now, connection->timed_ns) > TIMED_MAX_NS) &&
		   (segments > 1 || is_after(segment->first, connection->acknowledged))) {
		connection->timed_path = path;
		connection->timed_end = segment->end;
		connection->timed_ns = now;
	}
	connection->path = path;
	if (!is_again)
		connection->end = segment->end;
}

/* Notes an acknowledgement that has arrived; false if it belongs to no connection over this uplink. */
static __always_inline int hear(const struct flow_key *key, __u32 acknowledged, __u64 now)
{
	struct connection *connection = bpf_map_lookup_elem(&connections, key);
	__u64 window = now >> WINDOW_BITS, took;
	struct seen *seen;

	if (!connection)
		return 0;
	if (is_after(acknowledged, connection->acknowledged)) {
		connection->acknowledged = acknowledged;
		seen = seen_of(key->peer, connection->path);
		if (seen)
			__sync_fetch_and_add(&seen->acknowledgements, 1);
	}
	if (!connection->timed_ns || is_after(connection->timed_end, acknowledged))
		return 1;
	took = since(now, connection->timed_ns);
	connection->timed_ns = 0;
	seen = seen_of(key->peer, connection->timed_path);
	if (!seen)
		return 1;
	if (seen->window != window) {
		seen->window_before = seen->window;
		seen->least_before_ns = seen->least_ns;
		seen->least_ns = took;
		seen->window = window;
	} else if (took < seen->least_ns) {
		seen->least_ns = took;
	}
	return 1;
}

SEC("classifier")
int path_watch(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct segment segment = {};
	struct flow_key key = {};
	struct tunnel tunnel;
	struct outer outer;
	struct peer *peer;
	struct flow *flow;

	if (!settings || !read_outer(skb, settings, &outer) || is_probe(settings, &outer.header))
		return TC_ACT_UNSPEC;
	peer = find_peer(skb, settings, outer.ip.daddr);
	tunnel = tunnel_of(&outer);
	if (!peer || find_inner(skb, settings, &outer.header, &tunnel) != READ ||
	    !read_flow(skb, &tunnel, peer, &key) || key.protocol != IPPROTO_TCP)
		return TC_ACT_UNSPEC;
	flow = bpf_map_lookup_elem(&flows, &key);
	if (flow && read_segment(skb, &tunnel, &segment) && segment.end != segment.first)
		note(&key, &segment, skb->gso_segs ?: 1, flow->path, clock_ns());
	return TC_ACT_UNSPEC;
}

SEC("classifier")
int path_listen(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct flow_key key = {}, sent = {};
	struct segment segment = {};
	struct tunnel tunnel;
	struct outer outer;
	struct peer *peer;

	if (!settings || !read_outer(skb, settings, &outer) || is_probe(settings, &outer.header))
		return TC_ACT_UNSPEC;
	peer = find_peer(skb, settings, outer.ip.saddr);
	tunnel = tunnel_of(&outer);
	if (!peer || find_inner(skb, settings, &outer.header, &tunnel) != READ ||
	    !is_local(outer.ip.daddr) || !read_flow(skb, &tunnel, peer, &key) ||
	    key.protocol != IPPROTO_TCP || !read_segment(skb, &tunnel, &segment) || !segment.has_ack)
		return TC_ACT_UNSPEC;
	sent.vni = key.vni;
	sent.protocol = key.protocol;
	sent.ports = key.ports >> 16 | key.ports << 16;
	for (int word = 0; word < 4; word++) {
		sent.source[word] = key.destination[word];
		sent.destination[word] = key.source[word];
	}
	/* An acknowledgement may arrive over another uplink than the one by which its segment left. */
	for (__u32 number = 0; number < UPLINKS_MAX; number++) {
		sent.peer = peer->window + number * settings->peers;
		if ((number && !settings->uplinks[number]) || hear(&sent, segment.acknowledged, clock_ns()))
			break;
	}
	return TC_ACT_UNSPEC;
}
