// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A cache in front of a container overlay: established TCP and UDP flows between pods on different nodes skip
 * the node's bridge, routing, netfilter and VXLAN device. All four programs are at tc hooks in the node's
 * network namespace:
 *
 * overlay_send ingress of a pod's interface: what the pod sends
 *   overlay_learn_send     egress of the uplink: what the kernel made of a frame that was marked there
 *   overlay_receive        ingress of the uplink: what other nodes send
 *   overlay_learn_receive  egress of a pod's interface: what the kernel made of a frame marked there
 *
 * Flows are learnt only from frames that the kernel itself has forwarded: a frame of an unknown flow gets a
 * mark (skb->mark), an nftables rule adds another mark if the connection is established, and at the place
 * where a frame arrives with both marks, its headers are copied. Everything that a flow depends on has a
 * stamp. User space (mod.rs) bumps a stamp when something changes, and an entry with an old stamp is void. It
 * also has to extend a lease: without it, all frames take the kernel's path.
 *
 * Promises: a frame that is not handled here continues as without the programs. A frame is dropped, and
 * counted, only if the kernel refuses a further change after the frame has already been changed. For each
 * direction, frames seen = fast + slow (by reason) + dropped.
 */
#include "maps.h"
#include "frame.h"
#include "table.h"
#include "room.h"
#include "send.h"
#include "receive.h"
#include "learn.h"
#include "sweep.h"

char _license[] SEC("license") = "Dual BSD/GPL";
