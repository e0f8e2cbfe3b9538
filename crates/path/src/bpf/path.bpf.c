// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The paths of tunnels that the kernel sends: VXLAN, Geneve and GUE (header.h). `path_egress`, at the tc
 * egress of the uplink, chooses the outer UDP source port, by which routers choose among equal paths.
 * `path_reflect`, at its tc ingress, answers probes of configured peers and collects the answers to our own.
 * `path_egress6` and `path_reflect6` do the same over IPv6; all maps are shared except those keyed by
 * address. `path_watch` and `path_listen` are attached behind them if remote nodes are unmodified: they
 * observe TCP connections (watch.h).
 *
 * A flow keeps its path. A new flow, a flow after a pause, and a flow whose path is not usable take the
 * better path of two random buckets of the peer (power of two choices): the one with less delay, including
 * what was recently sent on it. User space (mod.rs) writes which port leads to a path, which paths are
 * usable, their delays, and the buckets.
 *
 * A frame to a peer loses its skb hash: Linux routers in network namespaces would otherwise use the hash of
 * the inner socket instead of the outer header.
 *
 * Promises: frames to addresses that are not peers pass untouched. Without a usable path a frame keeps the
 * port that the kernel chose. An answer is as long as its probe, and there is at most one. Invalid frames
 * with the probes' VNI are dropped and counted.
 */
#include "maps.h"
#include "egress.h"
#include "reflect.h"
#include "watch.h"

char _license[] SEC("license") = "Dual BSD/GPL";
