//! What the programs have counted, in the order of `overlay/maps.h`.

/// What became of frames, by name: three sums, then why frames took the kernel's way.
pub const OVERLAY_COUNTS: [&str; 28] = [
    "seen",
    "fast",
    "dropped",
    "not_ip",
    "options",
    "fragment",
    "multicast",
    "link_local",
    "protocol",
    "control",
    "malformed",
    "last_hop",
    "oversize",
    "not_tunnel",
    "other_vni",
    "congestion",
    "checksum",
    "lease",
    "unknown",
    "half",
    "changed",
    "expired",
    "stale_global",
    "stale_policy",
    "stale_own",
    "stranger",
    "no_route",
    "no_room",
];

/// What became of the frames of a direction, since the programs were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverlayFrames(pub(super) [u64; OVERLAY_COUNTS.len()]);

impl OverlayFrames {
    /// Returns a count by its name in [`OVERLAY_COUNTS`]; 0 if there is none.
    #[must_use]
    pub fn of(&self, name: &str) -> u64 {
        OVERLAY_COUNTS.iter().position(|one| *one == name).map_or(0, |at| self.0[at])
    }

    /// Returns why frames took the kernel's way, and how many each time.
    pub fn slow(&self) -> impl Iterator<Item = (&'static str, u64)> {
        OVERLAY_COUNTS.into_iter().zip(self.0).skip(3)
    }

    /// Returns true if every frame seen is counted as what became of it. While frames pass, one may be
    /// between both.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.0[0] == self.0[1..].iter().sum::<u64>()
    }
}

/// What became of entries; in the order of `enum event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverlayEntries {
    /// Directions learnt from what was sent, and from what was received.
    pub learnt: [u64; 2],
    /// Frames that were not learnt from: the connection is not established,
    pub not_established: u64,
    /// something changed while they were on their way,
    pub outdated: u64,
    /// or they left in another form, for a node that is not known, or were flooded to other pods as well.
    pub unlearnable: u64,
    /// Flows that made room for others.
    pub evicted: u64,
    /// Flows forgotten because their connection ended.
    pub forgotten: u64,
    /// Directions that became void, because of all, policy, the remote node, the pod.
    pub void: [u64; 4],
    /// Frames that NAT had changed, for which user space was asked.
    pub asked: u64,
    /// Frames of which copies went to several nodes.
    pub flooded: u64,
    /// Packets sent and received that flows have given: all of those that are gone, and some of others.
    pub gone_packets: [u64; 2],
    /// Their bytes.
    pub gone_bytes: [u64; 2],
    /// Flows that went because they were not used.
    pub idled: u64,
    /// Records of what flows have given for which there was no room, and their packets.
    pub lost: [u64; 2],
}

/// Counts of `enum event`.
pub(super) const EVENTS: usize = 20;

impl OverlayEntries {
    pub(super) fn new(values: [u64; EVENTS]) -> OverlayEntries {
        let [sent, received, not_established, outdated, unlearnable, evicted, forgotten, rest @ ..] = values;
        let [global, policy, node, pod, asked, flooded, rest @ ..] = rest;
        let [sent_packets, received_packets, sent_bytes, received_bytes, idled, lost @ ..] = rest;
        OverlayEntries {
            learnt: [sent, received],
            not_established,
            outdated,
            unlearnable,
            evicted,
            forgotten,
            void: [global, policy, node, pod],
            asked,
            flooded,
            gone_packets: [sent_packets, received_packets],
            gone_bytes: [sent_bytes, received_bytes],
            idled,
            lost,
        }
    }
}
