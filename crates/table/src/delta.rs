//! The counts of a flow: the record that leaves the table, a cache line and a half.
//!
//! A delta names its flow, and the decision for it, by stable numbers: the pipe and the target in a
//! generation of the program, never a row, which may belong to another flow when the delta is read. The
//! counters of a row are narrow enough to fit, so a fast flow produces a delta about every minute
//! ([`PACKETS_MAX`], [`BYTES_MAX`]).

use weir_packet::{FlowKey, Observed};

/// The maximum number of packets in a delta, and in a row: at 148.8 million packets per second, half of this
/// number is reached in 14 s.
pub const PACKETS_MAX: u64 = u32::MAX as u64;

/// The maximum number of bytes in a delta, and in a row: at 100 Gb/s, half of this number is reached in 44 s.
pub const BYTES_MAX: u64 = (1 << 40) - 1;

/// The largest number of a target in a delta. Targets are numbered over all groups of a program, in order.
pub const TARGET_MAX: u32 = (1 << TARGET_BITS) - 2;

/// Used in place of a target's number if the decision for the flow is not a target.
pub const NO_DELTA_TARGET: u32 = (1 << TARGET_BITS) - 1;

/// The number of reasons why packets are in no flow. Their counts fit into the place of a flow's key.
pub const UNFLOWED: usize = 9;

const TARGET_BITS: u32 = 20;
const GENERATION_SHIFT: u32 = TARGET_BITS;
const REASON_SHIFT: u32 = TARGET_BITS + 8;

/// Why a delta was produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeltaReason {
    /// No frame arrived within the timeout.
    Aged,
    /// The flow made room for another one.
    Evicted,
    /// The flow's entry, target or pipe was removed.
    Removed,
    /// A counter was getting full; the flow continues.
    Overflow,
    /// The first packet of a flow, before it is counted: the delta has no counts.
    First,
    /// The worker has stopped.
    Stopped,
    /// A measurement period ended, or the flow reached the maximum number of unreported packets; the flow
    /// continues.
    Interval,
    /// The connection had ended, and a SYN has begun another connection with the same addresses and ports.
    Reopened,
    /// The delta is about no single flow: all flows of the pipe have reported everything that they counted
    /// before [`FlowDelta::first`]. It has no counts of flows, but counts of packets in no flow
    /// ([`FlowDelta::unflowed`]).
    Swept,
}

impl DeltaReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [DeltaReason; 9] = [
        DeltaReason::Aged,
        DeltaReason::Evicted,
        DeltaReason::Removed,
        DeltaReason::Overflow,
        DeltaReason::First,
        DeltaReason::Stopped,
        DeltaReason::Interval,
        DeltaReason::Reopened,
        DeltaReason::Swept,
    ];

    /// Returns the reason's name in tables and JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            DeltaReason::Aged => "aged",
            DeltaReason::Evicted => "evicted",
            DeltaReason::Removed => "removed",
            DeltaReason::Overflow => "overflow",
            DeltaReason::First => "first",
            DeltaReason::Stopped => "stopped",
            DeltaReason::Interval => "interval",
            DeltaReason::Reopened => "reopened",
            DeltaReason::Swept => "swept",
        }
    }
}

/// The pipe and the target of a flow, by their numbers in one generation of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Belonging {
    /// The generation, modulo 256.
    pub generation: u8,
    /// The number of the pipe, by its position in that generation of the program.
    pub pipe: u16,
    /// The target, or [`NO_DELTA_TARGET`].
    pub target: u32,
}

/// What a flow has counted since its last delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "frames were counted in it"]
#[repr(C)]
pub struct FlowDelta {
    /// Key of the flow. In a delta with [`DeltaReason::Swept`], the words are counts instead: see
    /// [`FlowDelta::unflowed`].
    pub key: FlowKey,
    /// When the flow was learnt or its last delta was produced, in milliseconds.
    pub first: u32,
    /// When the flow's last packet was counted, in milliseconds.
    pub last: u32,
    packets: u32,
    bytes_low: u32,
    /// Target (20 bits), generation (8), reason (4).
    named: u32,
    pipe: u16,
    /// The worker that counted the flow.
    pub source: u8,
    bytes_high: u8,
    /// Observations of the flow's packets, if the pipe is measured.
    pub observed: Observed,
}

const _: () = assert!(size_of::<FlowDelta>() == 88);

impl FlowDelta {
    /// Creates a delta. Packets and bytes are at most [`PACKETS_MAX`] and [`BYTES_MAX`]; `first` and `last`
    /// are times in milliseconds.
    #[inline]
    pub fn new(
        key: FlowKey,
        (packets, bytes): (u64, u64),
        (first, last): (u32, u32),
        of: Belonging,
        reason: DeltaReason,
    ) -> FlowDelta {
        debug_assert!(packets <= PACKETS_MAX && bytes <= BYTES_MAX);
        let target = of.target.min(NO_DELTA_TARGET);
        FlowDelta {
            key,
            first,
            last,
            packets: packets as u32,
            bytes_low: bytes as u32,
            named: target | u32::from(of.generation) << GENERATION_SHIFT | (reason as u32) << REASON_SHIFT,
            pipe: of.pipe,
            source: 0,
            bytes_high: (bytes >> 32) as u8,
            observed: Observed::default(),
        }
    }

    /// Adds observations of the flow's packets.
    #[inline]
    pub fn observing(self, observed: Observed) -> FlowDelta {
        FlowDelta { observed, ..self }
    }

    /// Creates a delta that states that all flows of a pipe have reported what they counted before `start`.
    pub fn swept(start: u32, of: Belonging) -> FlowDelta {
        FlowDelta::new(FlowKey::default(), (0, 0), (start, start), of, DeltaReason::Swept)
    }

    /// Adds how many packets were in no flow since the previous delta with [`DeltaReason::Swept`], by reason.
    pub fn with_unflowed(mut self, counts: [u32; UNFLOWED]) -> FlowDelta {
        debug_assert!(self.reason() == DeltaReason::Swept);
        for (word, two) in self.key.0.iter_mut().zip(counts.chunks(2)) {
            *word = u64::from(two[0]) | u64::from(two.get(1).copied().unwrap_or(0)) << 32;
        }
        self
    }

    /// Returns how many packets were in no flow, by reason. The delta has [`DeltaReason::Swept`].
    #[must_use]
    pub fn unflowed(&self) -> [u32; UNFLOWED] {
        std::array::from_fn(|at| (self.key.0[at / 2] >> (32 * (at % 2))) as u32)
    }

    /// Returns the number of packets, at most [`PACKETS_MAX`].
    #[inline]
    #[must_use]
    pub fn packets(&self) -> u64 {
        u64::from(self.packets)
    }

    /// Returns the number of bytes of these packets, at most [`BYTES_MAX`].
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.bytes_high) << 32 | u64::from(self.bytes_low)
    }

    /// The pipe and the target to which the flow belonged.
    #[inline]
    #[must_use]
    pub fn of(&self) -> Belonging {
        let generation = (self.named >> GENERATION_SHIFT) as u8;
        Belonging { generation, pipe: self.pipe, target: self.named & NO_DELTA_TARGET }
    }

    /// Returns why the delta was produced.
    #[inline]
    #[must_use]
    pub fn reason(&self) -> DeltaReason {
        DeltaReason::ALL[(self.named >> REASON_SHIFT) as usize % DeltaReason::ALL.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_into_a_delta_is_read_from_it() {
        for reason in DeltaReason::ALL {
            for (generation, pipe, target) in
                [(0, 0, 0), (255, u16::MAX, NO_DELTA_TARGET), (7, 3, TARGET_MAX)]
            {
                let of = Belonging { generation, pipe, target };
                let delta = FlowDelta::new(FlowKey([1; 5]), (PACKETS_MAX, BYTES_MAX), (2, 3), of, reason);
                assert_eq!((delta.of(), delta.reason()), (of, reason));
                assert_eq!((delta.packets(), delta.bytes()), (PACKETS_MAX, BYTES_MAX));
            }
        }
        let of = Belonging { generation: 1, pipe: 2, target: 3 };
        let counts = [1, 2, 3, 4, 5, 6, 7, u32::MAX, u32::MAX - 1];
        let swept = FlowDelta::swept(7, of).with_unflowed(counts);
        assert_eq!((swept.unflowed(), swept.packets(), swept.of()), (counts, 0, of));
    }
}
