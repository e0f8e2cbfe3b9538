// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Probes and answers that arrive. */

/* Returns whether a probe is not a duplicate. */
static __always_inline int is_new(struct window *window, __u32 session, __u32 number, __u64 now)
{
	__u64 *slot = &window->slots[number & (SLOTS - 1)], held = *slot;

	if (session != window->session) {
		if (session < window->session && since(now, window->last_ns) < SILENCE_NS)
			return 0;
		window->session = session;
		__builtin_memset(window->arrived, 0, sizeof(window->arrived));
	}
	if (held >> 32 == session && (__u32)held >= number)
		return 0;
	return __sync_val_compare_and_swap(slot, held, (__u64)session << 32 | number) == held;
}

/* Counts a probe of a path; returns how many have arrived in the session. */
static __always_inline __u32 arrived(struct window *window, __u32 path)
{
	if (path >= UPLINKS_MAX * PATHS_MAX)
		return 0;
	return __sync_fetch_and_add(&window->arrived[path & (UPLINKS_MAX * PATHS_MAX - 1)], 1) + 1;
}

/* Returns whether a peer may be answered now. */
static __always_inline int is_due(const struct settings *settings, struct window *window, __u64 now)
{
	__u64 due = window->due_ns > now ? window->due_ns : now;

	if (due - now > settings->answers_burst_ns)
		return 0;
	window->due_ns = due + settings->answers_ns;
	return 1;
}

static __always_inline __u16 header_checksum(const struct outer *outer)
{
	struct iphdr ip;
	__s64 sum;

	__builtin_memcpy(&ip, &outer->ip, sizeof(ip));
	ip.check = 0;
	sum = bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof(ip), 0);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Returns the port from which to answer a peer: successive turns of one path return on different paths. */
static __always_inline __u32 answer_port(const struct settings *settings, const struct peer *peer,
					 const struct probe *probe)
{
	__u32 turn = probe->turn + bpf_ntohs(probe->port), ports = peer->answer_ports;

	if (ports && ports <= PATHS_MAX) {
		__u32 index = turn % ports;

		/* The compiler knows that it is in range, but the verifier does not. */
		asm volatile("" : "+r"(index));
		return peer->answer_port[index & (PATHS_MAX - 1)];
	}
	if (!settings->source_count)
		return bpf_ntohs(probe->port);
	return settings->source_first + turn * 0x9e3779b1U % settings->source_count;
}

/* Returns whether a probe with a valid cookie should be answered. Counts the probe. */
static __always_inline int admit(const struct settings *settings, const struct peer *peer,
				 struct probe *probe, __u64 now)
{
	__u32 index = peer->window, came;
	struct window *window = bpf_map_lookup_elem(&windows, &index);

	if (!window)
		return 0;
	if (!is_new(window, bpf_ntohl(probe->session), bpf_ntohl(probe->number), now)) {
		count(REPEATED);
		return 0;
	}
	came = arrived(window, probe->path);
	/* The rate is checked last, so that forged probes cannot use up a peer's allowance. */
	if (!is_due(settings, window, now)) {
		count(LIMITED);
		return 0;
	}
	window->last_ns = now;
	probe->kind = ANSWER;
	probe->arrived = bpf_htonl(came);
	probe->reflected_ns = bpf_cpu_to_be64(now);
	return 1;
}

/* Removes the padding of a probe that begins at this offset; returns whether that worked. */
static __always_inline int cut(struct __sk_buff *skb, __u32 at)
{
	return skb->len == at + sizeof(struct probe) || !bpf_skb_change_tail(skb, at + sizeof(struct probe), 0);
}

static __always_inline int answer(struct __sk_buff *skb, const struct settings *settings, struct outer *outer,
				  struct probe *probe, const struct peer *peer)
{
	struct outer back = *outer;

	if (!admit(settings, peer, probe, bpf_ktime_get_ns()) || !cut(skb, sizeof(back)))
		return TC_ACT_SHOT;
	__builtin_memcpy(back.ethernet.h_source, outer->ethernet.h_dest, ETH_ALEN);
	__builtin_memcpy(back.ethernet.h_dest, outer->ethernet.h_source, ETH_ALEN);
	back.ip.saddr = outer->ip.daddr;
	back.ip.daddr = outer->ip.saddr;
	back.ip.tot_len = bpf_htons(PROBE_LENGTH);
	back.udp.len = bpf_htons(PROBE_UDP_LENGTH);
	back.ip.ttl = 64;
	back.ip.tos = (outer->ip.tos & ~ECN_MASK) | ECN_ECT0;
	back.ip.check = header_checksum(&back);
	back.udp.source = bpf_htons(answer_port(settings, peer, probe));
	back.udp.check = 0;
	probe->ce = (outer->ip.tos & ECN_MASK) == ECN_CE;
	probe->hops = outer->ip.ttl;
	probe->cookie = bpf_cpu_to_be64(cookie4(settings, probe, &back));
	if (bpf_skb_store_bytes(skb, 0, &back, sizeof(back), 0) ||
	    bpf_skb_store_bytes(skb, sizeof(back), probe, sizeof(*probe), 0))
		return TC_ACT_SHOT;
	bpf_set_hash_invalid(skb);
	count(ANSWERED);
	return bpf_redirect(skb->ifindex, 0);
}

/* The checksum of a probe over IPv6, with 0 in its place in the UDP header: all of its parts have even
 * lengths. */
static __always_inline __u16 probe_checksum(const struct outer6 *outer, const struct probe *probe)
{
	struct {
		struct in6_addr addresses[2];
		struct udphdr udp;
		struct tunnel_header header;
	} head = { { outer->ip.saddr, outer->ip.daddr }, outer->udp, outer->header };
	__s64 sum = bpf_csum_diff(0, 0, (__be32 *)&head, sizeof(head),
				  bpf_htons(IPPROTO_UDP) + bpf_htons(PROBE_UDP_LENGTH));
	__u16 check;

	sum = bpf_csum_diff(0, 0, (__be32 *)probe, sizeof(*probe), sum);
	check = ~halves(halves(sum));
	return check ? check : 0xffff;
}

static __always_inline int answer6(struct __sk_buff *skb, const struct settings *settings,
				   const struct outer6 *outer, struct probe *probe, const struct peer *peer)
{
	struct outer6 back = *outer;
	__u8 ecn = outer->ip.flow_lbl[0] >> 4 & ECN_MASK;

	if (!admit(settings, peer, probe, bpf_ktime_get_ns()) || !cut(skb, sizeof(back)))
		return TC_ACT_SHOT;
	__builtin_memcpy(back.ethernet.h_source, outer->ethernet.h_dest, ETH_ALEN);
	__builtin_memcpy(back.ethernet.h_dest, outer->ethernet.h_source, ETH_ALEN);
	back.ip.saddr = outer->ip.daddr;
	back.ip.daddr = outer->ip.saddr;
	back.ip.payload_len = bpf_htons(PROBE_UDP_LENGTH);
	back.udp.len = bpf_htons(PROBE_UDP_LENGTH);
	back.ip.hop_limit = 64;
	back.ip.flow_lbl[0] = (outer->ip.flow_lbl[0] & ~(ECN_MASK << 4)) | ECN_ECT0 << 4;
	back.udp.source = bpf_htons(answer_port(settings, peer, probe));
	back.udp.check = 0;
	probe->ce = ecn == ECN_CE;
	probe->hops = outer->ip.hop_limit;
	probe->cookie = bpf_cpu_to_be64(cookie6(settings, probe, &back));
	back.udp.check = probe_checksum(&back, probe);
	if (bpf_skb_store_bytes(skb, 0, &back, sizeof(back), 0) ||
	    bpf_skb_store_bytes(skb, sizeof(back), probe, sizeof(*probe), 0))
		return TC_ACT_SHOT;
	bpf_set_hash_invalid(skb);
	count(ANSWERED);
	return bpf_redirect(skb->ifindex, 0);
}

static __always_inline int collect(const struct peer *peer, const struct probe *probe)
{
	struct collected *record = bpf_ringbuf_reserve(&answers, sizeof(*record), 0);

	if (!record) {
		count(UNCOLLECTED);
		return TC_ACT_SHOT;
	}
	record->kind = ANSWER;
	record->peer = peer->window;
	record->session = bpf_ntohl(probe->session);
	record->number = bpf_ntohl(probe->number);
	record->port = bpf_ntohs(probe->port);
	record->ce = probe->ce;
	record->hops = probe->hops;
	record->arrived = bpf_ntohl(probe->arrived);
	record->sent_ns = bpf_be64_to_cpu(probe->sent_ns);
	record->reflected_ns = bpf_be64_to_cpu(probe->reflected_ns);
	record->received_ns = bpf_ktime_get_ns();
	bpf_ringbuf_submit(record, 0);
	count(COLLECTED);
	return TC_ACT_SHOT;
}

/* Reads a probe after its outer headers, in a UDP packet of this length. If its length or layout is wrong,
 * counts it and returns false. Only a request may be padded.
 */
static __always_inline int read_probe(struct __sk_buff *skb, __u32 at, __u32 length, struct probe *probe)
{
	if (!bpf_skb_load_bytes(skb, at, probe, sizeof(*probe)) && skb->len == at - BODY_OFFSET + length &&
	    probe->magic == bpf_htonl(PROBE_MAGIC) &&
	    ((probe->kind == REQUEST && length >= PROBE_UDP_LENGTH) ||
	     (probe->kind == ANSWER && length == PROBE_UDP_LENGTH)))
		return 1;
	count(MALFORMED);
	return 0;
}

/* Collects one of our own probes that a rule of an OpenFlow switch has sent back: it has our address as its
 * source, and still is a request. The clock of the peer is not known, so its return counts as the answer, and
 * only probes that are back count as arrived. The mark and the TTL cover both the way there and the way back.
 */
static __always_inline int echo(struct __sk_buff *skb, const struct settings *settings)
{
	__u64 now = bpf_ktime_get_ns();
	struct window *window;
	struct outer outer;
	struct probe probe;
	struct peer *peer;
	__u32 index;

	if (!read_outer_to(skb, settings->echo_port, &outer) || !is_probe(settings, &outer.header) ||
	    !is_local(outer.ip.saddr))
		return TC_ACT_UNSPEC;
	peer = find_peer(skb, settings, outer.ip.daddr);
	if (!peer)
		return TC_ACT_UNSPEC;
	if (!read_probe(skb, sizeof(outer), bpf_ntohs(outer.udp.len), &probe))
		return TC_ACT_SHOT;
	if (probe.kind != REQUEST || bpf_be64_to_cpu(probe.cookie) != cookie4(settings, &probe, &outer)) {
		count(BAD_COOKIE);
		return TC_ACT_SHOT;
	}
	index = peer->window;
	window = bpf_map_lookup_elem(&windows, &index);
	if (!window)
		return TC_ACT_SHOT;
	if (!is_new(window, bpf_ntohl(probe.session), bpf_ntohl(probe.number), now)) {
		count(REPEATED);
		return TC_ACT_SHOT;
	}
	window->last_ns = now;
	probe.arrived = bpf_htonl(arrived(window, probe.path));
	probe.reflected_ns = bpf_cpu_to_be64(now);
	probe.ce = (outer.ip.tos & ECN_MASK) == ECN_CE;
	probe.hops = outer.ip.ttl;
	return collect(peer, &probe);
}

SEC("classifier")
int path_reflect(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct outer outer;
	struct probe probe;
	struct peer *peer;

	if (!settings)
		return TC_ACT_UNSPEC;
	if (!read_outer(skb, settings, &outer))
		return settings->echo_port ? echo(skb, settings) : TC_ACT_UNSPEC;
	if (!is_probe(settings, &outer.header))
		return TC_ACT_UNSPEC;
	/* A host may forward other hosts' probes. */
	if (!is_local(outer.ip.daddr))
		return TC_ACT_UNSPEC;
	peer = find_peer(skb, settings, outer.ip.saddr);
	if (!peer) {
		count(STRANGER);
		return TC_ACT_SHOT;
	}
	if (bpf_ntohs(outer.ip.tot_len) != sizeof(outer.ip) + bpf_ntohs(outer.udp.len)) {
		count(MALFORMED);
		return TC_ACT_SHOT;
	}
	if (!read_probe(skb, sizeof(outer), bpf_ntohs(outer.udp.len), &probe))
		return TC_ACT_SHOT;
	if (bpf_be64_to_cpu(probe.cookie) != cookie4(settings, &probe, &outer)) {
		count(BAD_COOKIE);
		return TC_ACT_SHOT;
	}
	if (probe.kind == REQUEST)
		return answer(skb, settings, &outer, &probe, peer);
	return collect(peer, &probe);
}

/* The same over IPv6. */
SEC("classifier")
int path_reflect6(struct __sk_buff *skb)
{
	struct settings *settings = get_settings();
	struct outer6 outer;
	struct probe probe;
	struct peer *peer;

	if (!settings || !read_outer6(skb, settings, &outer) || !is_probe(settings, &outer.header))
		return TC_ACT_UNSPEC;
	if (!is_local6(destination6(&outer)))
		return TC_ACT_UNSPEC;
	peer = find_peer6(skb, settings, source6(&outer));
	if (!peer) {
		count(STRANGER);
		return TC_ACT_SHOT;
	}
	if (outer.udp.len != outer.ip.payload_len) {
		count(MALFORMED);
		return TC_ACT_SHOT;
	}
	if (!read_probe(skb, sizeof(outer), bpf_ntohs(outer.udp.len), &probe))
		return TC_ACT_SHOT;
	if (bpf_be64_to_cpu(probe.cookie) != cookie6(settings, &probe, &outer)) {
		count(BAD_COOKIE);
		return TC_ACT_SHOT;
	}
	if (probe.kind == REQUEST)
		return answer6(skb, settings, &outer, &probe, peer);
	return collect(peer, &probe);
}
