// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The paths of VXLAN frames that the kernel sends. `path_egress`, at the tc egress of the uplink, chooses the
 * outer UDP source port, by which routers choose among equal paths. `path_reflect`, at its tc ingress,
 * answers probes of configured peers and collects the answers to our own. `path_egress6` and `path_reflect6`
 * do the same over IPv6; maps are shared, but for those by address.
 *
 * A flow keeps its path. A new one, one after a pause, and one whose path is not usable take the better path
 * of two random buckets of the peer (power of two choices): that with less delay, what was sent there lately
 * included. User space (path/mod.rs) writes which port leads to a path, which paths are usable, their delays,
 * and the buckets.
 *
 * A frame to a peer loses its skb hash: Linux routers in network namespaces would otherwise go by the hash
 * of the inner socket instead of the outer header.
 *
 * Promises: frames to addresses that are no peers pass untouched. Without a usable path a frame keeps the
 * port that the kernel chose. An answer is as long as its probe, and there is at most one. Frames with the
 * probes' VNI that are not valid go nowhere and are counted.
 */
#include "path/maps.h"
#include "path/egress.h"
#include "path/reflect.h"

char _license[] SEC("license") = "Dual BSD/GPL";
