//! Flow records of pods: makes the flows in the table export their counts, reads the counts, and passes them
//! to the collector as flow deltas, one for each direction.
//!
//! Promises: no count is lost silently. If the collector does not keep up, deltas wait here, and then
//! exported counts wait in the kernel; the kernel counts those that find no room there.

use super::table::Table;
use crate::bpf::{OverlayEnd, OverlayGone, OverlaySweep, OverlayTuple, TcOverlay};
use anyhow::Result;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_app::agent::OUTSIDE;
use weir_app::clock::Clock;
use weir_engine::delta::{BYTES_MAX, DeltaReason, FlowDelta, PACKETS_MAX};
use weir_engine::ring::DeltaSender;
use weir_packet::{FlowKey, Observed};

/// Sets of flows swept in one step: their exports fit the kernel's ring.
const SLICE: u32 = 1024;
/// How long a single iteration sweeps: a small part of the lease.
const TURN: Duration = Duration::from_millis(5);
/// How often to look for idle flows, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;
/// How long the shutdown may take.
const PATIENCE: Duration = Duration::from_secs(2);

const NS_PER_MS: u64 = 1_000_000;
/// Bytes of an Ethernet header.
const ETHERNET: u64 = 14;

/// Deltas on their way to the collector.
pub struct Giver {
    sender: DeltaSender,
    clock: Clock,
    idle_ns: u64,
    /// The table, which knows how often all flows export their counts.
    table: Arc<Table>,
    /// The period, and the number of the current one.
    present: (u64, u64),
    waiting: VecDeque<FlowDelta>,
    pass: Option<Pass>,
    look_ns: u64,
}

/// A pass over the table.
struct Pass {
    /// The next set.
    at: u32,
    what: OverlaySweep,
    /// After the pass, everything counted before this time has been exported, in milliseconds of the workers'
    /// clock.
    complete_ms: Option<u32>,
}

impl Giver {
    pub fn new(sender: DeltaSender, clock: Clock, idle_ns: u64, table: Arc<Table>) -> Giver {
        let (waiting, pass) = (VecDeque::new(), None);
        Giver { sender, clock, idle_ns, table, present: (0, 0), waiting, pass, look_ns: 0 }
    }

    /// Whether there is more work right now.
    pub fn is_busy(&self) -> bool {
        self.pass.is_some() || !self.waiting.is_empty()
    }

    /// Reads exported counts, and continues a pass over the table if one is due.
    pub fn turn(&mut self, now_ns: u64, programs: &mut TcOverlay) -> Result<()> {
        self.take(programs);
        if self.pass.is_none() {
            self.pass = self.due(now_ns);
        }
        let until = Instant::now() + TURN;
        while self.waiting.is_empty() && Instant::now() < until {
            let Some(mut pass) = self.pass.take() else { break };
            let next = programs.sweep(pass.at, SLICE, &pass.what)?;
            let is_stuck = next == pass.at && next < programs.sets();
            pass.at = next;
            self.take(programs);
            if pass.at < programs.sets() {
                self.pass = Some(pass);
            } else if let Some(complete_ms) = pass.complete_ms {
                self.give(FlowDelta::swept(complete_ms, OUTSIDE));
            }
            if is_stuck {
                break;
            }
        }
        Ok(())
    }

    /// Returns the pass that is due.
    fn due(&mut self, now_ns: u64) -> Option<Pass> {
        let now_ms = self.clock.now_ns() / NS_PER_MS;
        let period = self.table.period_ms();
        let number = now_ms.checked_div(period).unwrap_or_default();
        let before = std::mem::replace(&mut self.present, (period, number));
        let is_complete = period > 0 && before.0 == period && before.1 < number;
        if !is_complete && now_ns < self.look_ns {
            return None;
        }
        self.look_ns = now_ns + LOOK_NS;
        let given_ns = if is_complete { u64::MAX } else { 0 };
        let what = OverlaySweep { idle_ns: now_ns.saturating_sub(self.idle_ns), given_ns, ends: false };
        Some(Pass { at: 0, what, complete_ms: is_complete.then_some((number * period) as u32) })
    }

    /// Reads exported counts until there are no more, or no room for them.
    fn take(&mut self, programs: &mut TcOverlay) {
        self.pass_on();
        while self.waiting.is_empty() {
            let all = programs.left();
            if all.is_empty() {
                return;
            }
            let clock = self.clock;
            all.iter().flat_map(|gone| deltas(gone, clock)).for_each(|delta| self.give(delta));
        }
    }

    fn pass_on(&mut self) {
        while let Some(delta) = self.waiting.front() {
            if !self.sender.send(*delta) {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// Passes a delta on, behind those already waiting.
    fn give(&mut self, delta: FlowDelta) {
        if !self.waiting.is_empty() || !self.sender.send(delta) {
            self.waiting.push_back(delta);
        }
    }

    /// Makes all flows export their counts before the programs are removed. Returns how many packets could
    /// not be passed on.
    pub fn finish(&mut self, programs: &mut TcOverlay) -> u64 {
        programs.detach();
        let what = OverlaySweep { idle_ns: u64::MAX, given_ns: u64::MAX, ends: true };
        let until = Instant::now() + PATIENCE;
        // Twice, for frames that were in flight the first time.
        for _ in 0..2 {
            let mut at = 0;
            while at < programs.sets() && Instant::now() < until {
                at = programs.sweep(at, SLICE, &what).unwrap_or(u32::MAX);
                self.take(programs);
                self.wait(until);
            }
        }
        self.pass = None;
        self.waiting.drain(..).map(|delta| delta.packets()).sum()
    }

    /// Waits until all deltas are delivered, up to a deadline.
    fn wait(&mut self, until: Instant) {
        while !self.waiting.is_empty() && !self.sender.is_abandoned() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            self.pass_on();
        }
    }
}

/// Returns what both directions of a flow have counted, as seen by the pod.
fn deltas(gone: &OverlayGone, clock: Clock) -> impl Iterator<Item = FlowDelta> + use<> {
    let reason = match gone.why {
        OverlayEnd::MadeRoom => DeltaReason::Evicted,
        OverlayEnd::Ended => DeltaReason::Removed,
        OverlayEnd::Idle => DeltaReason::Aged,
        OverlayEnd::Alive => DeltaReason::Interval,
        OverlayEnd::Stopped => DeltaReason::Stopped,
    };
    let ms = |ns: u64| (clock.at(ns) / NS_PER_MS) as u32;
    let last = ms(gone.used_ns.max(gone.born_ns));
    let first = if gone.born_ns == 0 { last } else { ms(gone.born_ns).min(last) };
    let (packets, bytes) = (gone.packets, gone.bytes);
    [gone.key.sent(), gone.received].into_iter().enumerate().flat_map(move |(at, tuple)| {
        let key = key(&tuple);
        parts(packets[at], bytes[at]).map(move |counts| {
            // Frames between pods are neither tagged nor padded.
            let octets = counts.1.saturating_sub(ETHERNET * counts.0);
            let delta = FlowDelta::new(key, counts, (first, last), OUTSIDE, reason);
            delta.observing(Observed { octets, ..Observed::default() })
        })
    })
}

/// Returns the key of frames with a tuple, as one of weir's ports would compute it.
pub fn key(tuple: &OverlayTuple) -> FlowKey {
    let [source, destination] = tuple.addresses;
    let [from, to] = tuple.ports;
    FlowKey::new(source, destination, tuple.protocol, (from, to), None)
}

/// Splits counts into parts that fit a delta; none if there are no packets.
fn parts(packets: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let count = packets.div_ceil(PACKETS_MAX).max(bytes.div_ceil(BYTES_MAX)) * u64::from(packets > 0);
    let share = move |all: u64, at: u64| (u128::from(all) * u128::from(at) / u128::from(count)) as u64;
    let part = move |all: u64, at: u64| share(all, at + 1) - share(all, at);
    (0..count).map(move |at| (part(packets, at), part(bytes, at)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::OverlayKey;

    #[test]
    fn counts_that_do_not_fit_a_delta_are_given_in_parts() {
        for (packets, bytes) in [
            (0, 0),
            (1, 60),
            (PACKETS_MAX, BYTES_MAX),
            (PACKETS_MAX + 1, BYTES_MAX + 1),
            (3 * PACKETS_MAX + 2, 1 << 50),
        ] {
            let all: Vec<_> = parts(packets, bytes).collect();
            assert!(all.iter().all(|(packets, bytes)| *packets <= PACKETS_MAX && *bytes <= BYTES_MAX));
            let sums = all.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            assert_eq!(sums, (packets, bytes));
        }
    }

    #[test]
    fn each_direction_has_a_delta_with_its_own_addresses() {
        let key_of = OverlayKey {
            addresses: [[10, 244, 1, 5].into(), [10, 244, 2, 7].into()],
            ports: [40_000, 80],
            vni: 42,
            protocol: 6,
        };
        // The answers seem to come from a service.
        let received = OverlayTuple {
            addresses: [[10, 96, 0, 1].into(), [10, 244, 1, 5].into()],
            ports: [443, 40_000],
            protocol: 6,
        };
        let gone = OverlayGone {
            key: key_of,
            born_ns: 5_000_000,
            used_ns: 9_000_000,
            packets: [3, 2],
            bytes: [300, 200],
            received,
            why: OverlayEnd::Idle,
        };
        let clock = Clock::since(1_000_000, 0);
        let all: Vec<FlowDelta> = deltas(&gone, clock).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].key, all[0].packets(), all[0].bytes()), (key(&key_of.sent()), 3, 300));
        assert_eq!((all[1].key, all[1].packets(), all[1].bytes()), (key(&received), 2, 200));
        assert!(all.iter().all(|one| (one.first, one.last, one.reason()) == (4, 8, DeltaReason::Aged)));
        let late = OverlayGone { born_ns: 0, packets: [1, 0], why: OverlayEnd::Ended, ..gone };
        let all: Vec<FlowDelta> = deltas(&late, clock).collect();
        assert_eq!((all.len(), all[0].first, all[0].reason()), (1, 8, DeltaReason::Removed));
    }
}
