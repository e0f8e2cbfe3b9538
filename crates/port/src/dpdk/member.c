/* DPDK's membership library as a heavy-hitter sketch (rte_member.h): the functions that member.rs calls. The
 * library's own interface is a large struct of parameters for three kinds of sets; this is one of them.
 */
#define ALLOW_EXPERIMENTAL_API
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_member.h>

#define WEIR_MEMBER_ROWS 5

/* Creates a sketch that counts every packet, with `rows` rows of counters in this many bytes, and that
 * remembers `keys` keys of `key_length` bytes. Returns NULL if the library refuses.
 */
void *weir_member_new(uint32_t key_length, uint32_t keys, double bytes)
{
	struct rte_member_parameters parameters;
	static unsigned int number;
	char name[32];

	/* The library logs each packet whose key finds no free slot, which would cost more than counting. */
	rte_log_set_level_pattern("lib.member", RTE_LOG_CRIT);
	snprintf(name, sizeof(name), "weir%u", number++);
	memset(&parameters, 0, sizeof(parameters));
	parameters.name = name;
	parameters.type = RTE_MEMBER_TYPE_SKETCH;
	parameters.key_len = key_length;
	parameters.num_keys = keys;
	parameters.top_k = keys;
	parameters.sample_rate = 1;
	/* A row has 4 / error counters of 8 bytes. */
	parameters.error_rate = (float)(4.0 * 8 * WEIR_MEMBER_ROWS / bytes);
	parameters.prim_hash_seed = 1;
	parameters.sec_hash_seed = 2;
	parameters.socket_id = (int)rte_socket_id();
	return rte_member_create(&parameters);
}

void weir_member_add(void *sketch, const void *key)
{
	rte_member_add(sketch, key, 1);
}

/* Writes the remembered keys and their counts. The arrays must have room for `keys` entries. Returns their
 * number, which is negative if there are none.
 */
int weir_member_list(void *sketch, void **keys, uint64_t *counts)
{
	return rte_member_report_heavyhitter(sketch, keys, counts);
}

void weir_member_free(void *sketch)
{
	rte_member_free(sketch);
}
