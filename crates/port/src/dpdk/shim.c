/*
 * The DPDK shim: some twenty functions on plain C types around what DPDK offers as static inline functions,
 * macros and large structs. It exists because Rust cannot call DPDK's data path (which is inline in headers),
 * and bindings generated for all of its headers would be far larger than what is used here.
 *
 * A burst costs one call: this side converts mbufs to weir's frames and back. A frame's handle is its mbuf.
 * Functions that can fail return a negative errno; shim.rs declares the same functions in the same order.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_prefetch.h>

/*
 * packet::Frame, which is repr(C). To verify the layout, shim.rs reads a frame filled by weir_frame_sample.
 */
struct weir_frame {
	uint8_t *data;
	uint64_t handle;
	uint16_t length;
	uint16_t headroom;
	uint16_t tailroom;
	uint16_t pad;
	uint32_t pool;
	uint32_t hash;
};

_Static_assert(offsetof(struct weir_frame, data) == 0, "packet::Frame");
_Static_assert(offsetof(struct weir_frame, handle) == 8, "packet::Frame");
_Static_assert(offsetof(struct weir_frame, length) == 16, "packet::Frame");
_Static_assert(offsetof(struct weir_frame, headroom) == 18, "packet::Frame");
_Static_assert(offsetof(struct weir_frame, tailroom) == 20, "packet::Frame");
_Static_assert(offsetof(struct weir_frame, pool) == 24, "packet::Frame");
_Static_assert(offsetof(struct weir_frame, hash) == 28, "packet::Frame");
_Static_assert(sizeof(struct weir_frame) == 32, "packet::Frame");
_Static_assert(RTE_PKTMBUF_HEADROOM == 128, "packet::HEADROOM");

/* Frames of a batch are selected by the bits of a u64. */
#define WEIR_BATCH 64
/* The largest number of frames drained from each queue of a closing port: net_ring's ring has 1024 slots. */
#define WEIR_DRAIN 4096

/* ---- the log: the last 16 KiB of DPDK's messages, so that an error can quote them ---- */

#define WEIR_LOG 16384
static char log_text[WEIR_LOG];
static size_t log_used;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t log_write(void *cookie, const char *text, size_t size)
{
	size_t keep = size < WEIR_LOG / 2 ? size : WEIR_LOG / 2;

	(void)cookie;
	pthread_mutex_lock(&log_lock);
	if (log_used + keep > WEIR_LOG) {
		memmove(log_text, log_text + log_used - WEIR_LOG / 2, WEIR_LOG / 2);
		log_used = WEIR_LOG / 2;
	}
	memcpy(log_text + log_used, text + size - keep, keep);
	log_used += keep;
	pthread_mutex_unlock(&log_lock);
	return (ssize_t)size;
}

/* Moves the log to `out`: returns the number of bytes written, and empties the log. */
size_t weir_log_take(char *out, size_t size)
{
	size_t taken;

	pthread_mutex_lock(&log_lock);
	taken = log_used < size ? log_used : size;
	memcpy(out, log_text + log_used - taken, taken);
	log_used = 0;
	pthread_mutex_unlock(&log_lock);
	return taken;
}

/* ---- the environment ---- */

/*
 * `argv` must live as long as the process. The calling thread keeps its affinity, which rte_eal_init would
 * narrow.
 */
int weir_eal_init(int argc, char **argv)
{
	static const cookie_io_functions_t log_functions = { .write = log_write };
	FILE *log = fopencookie(NULL, "w", log_functions);
	cpu_set_t before;
	int known, rc;

	if (log == NULL || rte_openlog_stream(log) != 0)
		return -ENOMEM;
	known = pthread_getaffinity_np(pthread_self(), sizeof(before), &before) == 0;
	rc = rte_eal_init(argc, argv);
	if (known)
		pthread_setaffinity_np(pthread_self(), sizeof(before), &before);
	if (rc < 0)
		return rte_errno > 0 ? -rte_errno : -EINVAL;
	return 0;
}

/* Returns the first CPU that this thread may run on. */
int weir_first_cpu(void)
{
	cpu_set_t set;

	if (pthread_getaffinity_np(pthread_self(), sizeof(set), &set) != 0)
		return 0;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set))
			return cpu;
	return 0;
}

/* Gives the calling thread a mempool cache. Returns 1 if it already had one, otherwise 0. */
int weir_thread_register(void)
{
	if (rte_lcore_id() != LCORE_ID_ANY)
		return 1;
	return rte_thread_register() == 0 ? 0 : -rte_errno;
}

void weir_thread_unregister(void)
{
	rte_thread_unregister();
}

/* ---- pools ---- */

/* Each frame has `room` bytes after its headroom. */
void *weir_pool_create(const char *name, uint32_t frames, uint32_t cache, uint16_t room)
{
	return rte_pktmbuf_pool_create(name, frames, cache, 0, RTE_PKTMBUF_HEADROOM + room, SOCKET_ID_ANY);
}

uint32_t weir_pool_available(const void *pool)
{
	return rte_mempool_avail_count(pool);
}

void weir_pool_free(void *pool)
{
	rte_mempool_free(pool);
}

static inline void fill(struct weir_frame *frame, struct rte_mbuf *mbuf, uint32_t pool)
{
	const uint16_t tailroom = (uint16_t)(mbuf->buf_len - mbuf->data_off - mbuf->data_len);
	const uint64_t room = mbuf->data_len | (uint64_t)mbuf->data_off << 16 | (uint64_t)tailroom << 32;
	const uint64_t hash = mbuf->ol_flags & RTE_MBUF_F_RX_RSS_HASH ? mbuf->hash.rss : 0;
	const uint64_t home = pool | hash << 32;

	frame->data = rte_pktmbuf_mtod(mbuf, uint8_t *);
	frame->handle = (uintptr_t)mbuf;
	/*
	 * A single store covers length to pad, and another one pool and hash, because this runs sixteen million
	 * times a second.
	 */
	memcpy(&frame->length, &room, sizeof(room));
	memcpy(&frame->pool, &home, sizeof(home));
}

/* Takes an empty frame. Returns 1, or 0 if there is none. */
int weir_pool_take(void *pool, struct weir_frame *out, uint32_t id)
{
	struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);

	if (mbuf == NULL)
		return 0;
	fill(out, mbuf, id);
	return 1;
}

void weir_pool_give(uint64_t handle)
{
	rte_pktmbuf_free_seg((struct rte_mbuf *)(uintptr_t)handle);
}

/* Fills a frame with known content, so that shim.rs can check that both sides agree on the layout. */
void weir_frame_sample(struct weir_frame *out, uint8_t *data)
{
	*out = (struct weir_frame){ .data = data, .handle = 0x0102030405060708, .length = 0x1112,
				    .headroom = 0x2122, .tailroom = 0x3132, .pool = 0x41424344, .hash = 0x51525354 };
}

/* ---- devices ---- */

/* Plugs the device in, or finds it plugged in, and claims it. Returns -EBUSY if it is claimed already. */
int weir_device_add(const char *devargs, uint16_t *out)
{
	static struct rte_eth_dev_owner owner = { .name = "weir" };
	struct rte_dev_iterator iterator;
	uint16_t port;
	int rc;

	if (owner.id == RTE_ETH_DEV_NO_OWNER && (rc = rte_eth_dev_owner_new(&owner.id)) != 0)
		return rc;
	rc = rte_dev_probe(devargs);
	if (rc < 0 && rc != -EEXIST)
		return rc;
	RTE_ETH_FOREACH_MATCHING_DEV(port, devargs, &iterator) {
		rte_eth_iterator_cleanup(&iterator);
		*out = port;
		return rte_eth_dev_owner_set(port, &owner) == 0 ? 0 : -EBUSY;
	}
	return -ENODEV;
}

struct weir_info {
	char driver[32];
	uint16_t receive_queues;
	uint16_t transmit_queues;
};

int weir_port_info(uint16_t port, struct weir_info *out)
{
	struct rte_eth_dev_info info;
	int rc = rte_eth_dev_info_get(port, &info);

	if (rc != 0)
		return rc;
	snprintf(out->driver, sizeof(out->driver), "%s", info.driver_name);
	out->receive_queues = info.max_rx_queues;
	out->transmit_queues = info.max_tx_queues;
	return 0;
}

/* Configures `queues` queues in each direction on one pool and starts the port. An `mtu` of 0 means the
 * driver's default. */
int weir_port_start(uint16_t port, uint16_t queues, uint16_t descriptors, uint16_t mtu, void *pool)
{
	struct rte_eth_conf conf = { 0 };
	struct rte_eth_dev_info info;
	uint16_t receive = descriptors, transmit = descriptors;
	uint64_t hashed, delivered;
	int socket = rte_eth_dev_socket_id(port);
	int rc = rte_eth_dev_info_get(port, &info);

	if (rc != 0)
		return rc;
	hashed = info.flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_TCP);
	delivered = info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_RSS_HASH;
	/* A single queue needs no RSS, but a program may pick buckets by the hash, which ethdev only computes with
	 * RSS.
	 */
	if (hashed != 0 && (queues > 1 || delivered != 0)) {
		conf.rx_adv_conf.rss_conf.rss_hf = hashed;
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rxmode.offloads = delivered;
	}
	if (mtu != 0)
		conf.rxmode.mtu = mtu < info.max_mtu ? mtu : info.max_mtu;
	if ((rc = rte_eth_dev_configure(port, queues, queues, &conf)) != 0)
		return rc;
	if ((rc = rte_eth_dev_adjust_nb_rx_tx_desc(port, &receive, &transmit)) != 0)
		return rc;
	for (uint16_t queue = 0; queue < queues; queue++) {
		if ((rc = rte_eth_rx_queue_setup(port, queue, receive, socket, NULL, pool)) != 0)
			return rc;
		if ((rc = rte_eth_tx_queue_setup(port, queue, transmit, socket, NULL)) != 0)
			return rc;
	}
	if ((rc = rte_eth_dev_start(port)) != 0)
		return rc;
	rte_eth_promiscuous_enable(port); /* Drivers without this are always promiscuous. */
	return 0;
}

/* Configures a started port to hash addresses and ports with `key` and to assign the buckets to its queues in
 * turn. Returns the number of buckets; 0 if the driver does not support this.
 */
int weir_port_spread(uint16_t port, uint16_t queues, uint8_t *key, uint8_t length)
{
	const uint64_t wanted = RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_TCP;
	struct rte_eth_rss_reta_entry64 table[RTE_ETH_RSS_RETA_SIZE_512 / RTE_ETH_RETA_GROUP_SIZE] = { 0 };
	struct rte_eth_rss_conf conf = { .rss_key = key, .rss_key_len = length };
	struct rte_eth_dev_info info;

	if (rte_eth_dev_info_get(port, &info) != 0)
		return 0;
	conf.rss_hf = info.flow_type_rss_offloads & wanted;
	if (conf.rss_hf == 0 || info.reta_size == 0 || info.reta_size > RTE_ETH_RSS_RETA_SIZE_512 ||
	    (info.hash_key_size != 0 && info.hash_key_size != length))
		return 0;
	for (uint16_t bucket = 0; bucket < info.reta_size; bucket++) {
		table[bucket / RTE_ETH_RETA_GROUP_SIZE].mask |= UINT64_C(1) << bucket % RTE_ETH_RETA_GROUP_SIZE;
		table[bucket / RTE_ETH_RETA_GROUP_SIZE].reta[bucket % RTE_ETH_RETA_GROUP_SIZE] = bucket % queues;
	}
	if (rte_eth_dev_rss_hash_update(port, &conf) != 0 ||
	    rte_eth_dev_rss_reta_update(port, table, info.reta_size) != 0)
		return 0;
	return info.reta_size;
}

/*
 * Stops the port, unless it never started (no queues), and unplugs its device. net_ring frees its ring
 * together with the frames in it, so they are removed first.
 */
void weir_port_close(uint16_t port, uint16_t queues)
{
	struct rte_eth_dev_info info;
	struct rte_mbuf *mbufs[WEIR_BATCH];
	int known = rte_eth_dev_info_get(port, &info) == 0;

	for (uint16_t queue = 0; queue < queues; queue++) {
		for (uint32_t drained = 0, got = 1; got > 0 && drained < WEIR_DRAIN; drained += got) {
			got = rte_eth_rx_burst(port, queue, mbufs, WEIR_BATCH);
			rte_pktmbuf_free_bulk(mbufs, got);
		}
	}
	if (queues > 0)
		rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	if (known)
		rte_dev_remove(info.device);
}

struct weir_link {
	uint32_t speed;
	uint32_t up;
};

/*
 * Reads the driver's view of the link, with its speed in Mbit/s or 0. Drivers without link state return
 * -ENOTSUP.
 */
int weir_port_link(uint16_t port, struct weir_link *out)
{
	struct rte_eth_link link;
	int rc = rte_eth_link_get_nowait(port, &link);

	if (rc != 0)
		return rc;
	out->speed = link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : link.link_speed;
	out->up = link.link_status == RTE_ETH_LINK_UP;
	return 0;
}

/* ---- bursts ---- */

struct weir_burst {
	uint64_t bytes;
	uint16_t frames;
	uint16_t refused;
};

/* Receives at most `n` frames. An mbuf with several segments or other owners cannot become a frame: it is
 * freed and counted as refused.
 */
void weir_rx_burst(uint16_t port, uint16_t queue, struct weir_frame *out, uint16_t n, uint32_t pool,
		   struct weir_burst *sum)
{
	struct rte_mbuf *mbufs[WEIR_BATCH];
	uint16_t got = rte_eth_rx_burst(port, queue, mbufs, RTE_MIN(n, WEIR_BATCH));
	uint64_t bytes = 0;
	uint16_t frames = 0;

	for (uint16_t i = 0; i < got; i++) {
		struct rte_mbuf *mbuf = mbufs[i];

		if (unlikely(mbuf->nb_segs != 1 || rte_mbuf_refcnt_read(mbuf) != 1)) {
			rte_pktmbuf_free(mbuf);
			continue;
		}
		rte_prefetch0(rte_pktmbuf_mtod(mbuf, void *));
		fill(&out[frames++], mbuf, pool);
		bytes += mbuf->data_len;
	}
	*sum = (struct weir_burst){ .bytes = bytes, .frames = frames, .refused = (uint16_t)(got - frames) };
}

/*
 * Sends the frames selected by `list`; returns the bits of those that the driver accepted, which are the
 * first ones. If a frame belongs to another pool, nothing is sent and `frames` of the result is UINT16_MAX.
 */
uint64_t weir_tx_burst(uint16_t port, uint16_t queue, const struct weir_frame *frames, uint64_t list,
		       uint32_t pool, struct weir_burst *sum)
{
	struct rte_mbuf *mbufs[WEIR_BATCH];
	uint64_t bytes = 0, left = 0;
	uint16_t count = 0, sent;

	for (uint64_t rest = list; rest != 0; rest &= rest - 1) {
		const struct weir_frame *frame = &frames[__builtin_ctzll(rest)];
		struct rte_mbuf *mbuf = (struct rte_mbuf *)(uintptr_t)frame->handle;

		if (unlikely(frame->pool != pool)) {
			*sum = (struct weir_burst){ .frames = UINT16_MAX };
			return 0;
		}
		mbuf->data_off = frame->headroom;
		mbuf->data_len = frame->length;
		mbuf->pkt_len = frame->length;
		/* The receiving driver's findings no longer apply, and no offload is requested. */
		mbuf->ol_flags &= RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL;
		bytes += frame->length;
		mbufs[count++] = mbuf;
	}
	sent = rte_eth_tx_burst(port, queue, mbufs, count);
	for (uint16_t i = count; unlikely(i > sent); i--) {
		uint64_t last = 1ULL << (63 - __builtin_clzll(list & ~left));

		left |= last;
		bytes -= mbufs[i - 1]->data_len;
	}
	*sum = (struct weir_burst){ .bytes = bytes, .frames = sent };
	return list & ~left;
}

static uint16_t add_hash(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n, uint16_t most,
			 void *unused)
{
	(void)port, (void)queue, (void)most, (void)unused;
	for (uint16_t i = 0; i < n; i++) {
		mbufs[i]->hash.rss = i & 1 ? 0x80000000 + i : 7;
		if (i & 1)
			mbufs[i]->ol_flags |= RTE_MBUF_F_RX_RSS_HASH;
	}
	return n;
}

/*
 * For tests, because no virtual device computes hashes: from now on every second frame of a burst has the
 * hash 0x80000000 plus its position, and the others have a number that is not marked as a hash.
 */
int weir_hash_for_tests(uint16_t port, uint16_t queue)
{
	return rte_eth_add_rx_callback(port, queue, add_hash, NULL) != NULL ? 0 : -rte_errno;
}

/* ---- counters ---- */

struct weir_counters {
	uint64_t missed;
	uint64_t no_mbuf;
	uint64_t receive_errors;
	uint64_t transmit_errors;
};

int weir_port_counters(uint16_t port, struct weir_counters *out)
{
	struct rte_eth_stats stats;
	int rc = rte_eth_stats_get(port, &stats);

	if (rc == 0)
		*out = (struct weir_counters){ stats.imissed, stats.rx_nombuf, stats.ierrors, stats.oerrors };
	return rc;
}

/* Returns the number of xstats, and the names of the first `n`. */
int weir_xstat_names(uint16_t port, char (*names)[RTE_ETH_XSTATS_NAME_SIZE], uint64_t *ids, uint32_t n)
{
	struct rte_eth_xstat_name found[n > 0 ? n : 1];
	int total = rte_eth_xstats_get_names(port, NULL, 0);

	if (total <= 0)
		return total;
	n = RTE_MIN(n, (uint32_t)total);
	for (uint32_t i = 0; i < n; i++)
		ids[i] = i;
	if (rte_eth_xstats_get_names_by_id(port, found, n, ids) != (int)n)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		memcpy(names[i], found[i].name, sizeof(names[i]));
	return (int)n;
}

int weir_xstats(uint16_t port, const uint64_t *ids, uint64_t *values, uint32_t n)
{
	return rte_eth_xstats_get_by_id(port, ids, values, n);
}
