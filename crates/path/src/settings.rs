//! Settings that depend on the rate of the fabric: how long a queue must be to count as congestion, and how
//! long a gap must be to separate flowlets.

use crate::delay::STALE_NS;

/// The length of a queue, in bytes, that is congestion: DCTCP marks from 65 packets of 1500 bytes at 10
/// Gbit/s (SIGCOMM'10, section 3.5).
const CONGESTED_BYTES: u64 = 65 * 1500;

/// The number of bytes that a path sends during a gap that separates flowlets: the amount by which two paths
/// may differ. CLOVE and CONGA use 40 to 500 us at 10 Gbit/s (CoNEXT'17, SIGCOMM'14); this is 40 us there,
/// and 2 ms at 200 Mbit/s. In the simulator 20 to 60 us do better than 160, with 1 % of the packets
/// retransmitted.
const FLOWLET_BYTES: u64 = 50_000;

/// The minimum length of that gap, ns: the distance between bursts of hosts.
const FLOWLET_NS_MIN: u64 = 20_000;

/// A flow that has sent less stays where it is, because it is likely to end soon (Hermes: 64 to 600 KB).
const REROUTE_BYTES: u64 = 64_000;

/// How often a path of an active node is probed: three misses take 30 ms, which with the phase and the last
/// answer's time is below 50 ms (BFD in software takes 900 ms).
pub const PROBE_NS: u64 = 10_000_000;

/// Settings of a remote node. Those computed by [`Settings::of_rate`] suit a fabric whose links have that
/// rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The rate of one path, bits/s, above 0: the divisor of local bytes.
    pub rate: u64,
    /// Queueing delay from which a path counts as congested, ns.
    pub congested_ns: u64,
    /// A gap in a flow after which its next packet may take another path, ns.
    pub flowlet_ns: u64,
    /// The number of bytes after which a flow may take another path without a gap: 0 for every packet, 64 KB
    /// for Presto's cells (SIGCOMM'15). This reorders packets, so use it only if the hosts' TCP and all
    /// middleboxes tolerate that. `None`, the default: never.
    pub cell_bytes: Option<u64>,
    /// A flow that has sent fewer bytes is not moved without a gap.
    pub reroute_bytes: u64,
    /// The minimum gain for which a flow is moved without a gap, ns of queueing delay.
    pub gain_ns: u64,
    /// How long a flow stays after it was moved, ns; jittered.
    pub hold_ns: u64,
    /// The half-life of local bytes, ns.
    pub load_half_life_ns: u64,
    /// Time between two probes of a path in use, ns.
    pub probe_ns: u64,
    /// An unanswered probe counts as lost after this time, ns.
    pub lost_after_ns: u64,
    /// After this time without a probe's answer, half of a path's queueing delay is forgotten, ns.
    pub stale_ns: u64,
    /// Whether the remote node is unmodified: routers answer probes, TCP connections are observed, and no
    /// flow leaves a path that works before a gap.
    pub is_one_sided: bool,
}

/// The time between two probes of a path that a router answers, ns: Linux's routers send a host one message
/// per second (`net.ipv4.icmp_ratelimit`).
pub const ONE_SIDED_PROBE_NS: u64 = 1_000_000_000;

/// How long to wait for a router's answer, ns: a router's own processor, which may be busy, sends it.
const ONE_SIDED_LOST_AFTER_NS: u64 = 200_000_000;

/// With `one_sided`, the least queueing delay that counts as congestion, ns: routers and processes add less
/// to a round trip.
const ONE_SIDED_CONGESTED_NS: u64 = 1_000_000;

impl Settings {
    /// Settings for paths of `rate` bits/s; 0 counts as 1.
    #[must_use]
    pub fn of_rate(rate: u64) -> Settings {
        let rate = rate.max(1);
        let drain = |bytes: u64| (u128::from(bytes) * 8_000_000_000 / u128::from(rate)) as u64;
        let congested_ns = drain(CONGESTED_BYTES);
        Settings {
            rate,
            congested_ns,
            flowlet_ns: drain(FLOWLET_BYTES).max(FLOWLET_NS_MIN),
            cell_bytes: None,
            reroute_bytes: REROUTE_BYTES,
            gain_ns: congested_ns,
            hold_ns: 4 * congested_ns,
            load_half_life_ns: 4 * congested_ns,
            probe_ns: PROBE_NS,
            lost_after_ns: PROBE_NS,
            stale_ns: STALE_NS,
            is_one_sided: false,
        }
    }

    /// Settings for an unmodified remote node, whose paths are probed every `probe_ns`.
    #[must_use]
    pub fn one_sided(self, probe_ns: u64) -> Settings {
        Settings {
            probe_ns,
            congested_ns: self.congested_ns.max(ONE_SIDED_CONGESTED_NS),
            lost_after_ns: ONE_SIDED_LOST_AFTER_NS,
            stale_ns: 3 * probe_ns,
            is_one_sided: true,
            ..self
        }
    }

    /// Adapts the settings to a given round-trip time, ns.
    #[must_use]
    pub fn allowing(self, round_trip_ns: u64) -> Settings {
        Settings { lost_after_ns: self.lost_after_ns.max(2 * round_trip_ns), ..self }
    }

    /// The time that a path takes to send `bytes` bytes, ns.
    #[inline]
    #[must_use]
    pub fn drain_ns(&self, bytes: u64) -> u64 {
        // Uses 128 bits only where 64 would overflow: this is on the simulator's hot path.
        match bytes.checked_mul(8_000_000_000) {
            Some(product) => product / self.rate,
            None => {
                u64::try_from(u128::from(bytes) * 8_000_000_000 / u128::from(self.rate)).unwrap_or(u64::MAX)
            }
        }
    }
}
