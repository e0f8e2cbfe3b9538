//! Decides which probes of a peer are answered (each once, at a limited rate), and counts the probes that
//! have arrived on each path.

use crate::fabric::UPLINKS_MAX;
use crate::paths::PATHS_MAX;
use crate::wire::Packet;

/// The number of numbers by which a probe may be late without being taken for a repetition.
const SLOTS: usize = 256;

/// The time of silence, in nanoseconds, after which a peer may begin a session with any number.
const SILENCE_NS: u64 = 30_000_000_000;

/// The burst of answers.
const BURST: u64 = 200;

/// The requests of a peer.
#[derive(Clone, Debug)]
pub struct Window {
    due_ns: u64,
    last_ns: u64,
    session: u32,
    /// The last session and number received in each slot.
    slots: Vec<(u32, u32)>,
    /// Probes received on each of its paths in the session.
    arrived: [u32; UPLINKS_MAX * PATHS_MAX],
}

/// Why a probe is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The probe has been received before.
    Repeated,
    /// There were too many probes.
    Limited,
}

impl Window {
    /// Creates a window without requests.
    pub fn new() -> Window {
        Window { due_ns: 0, last_ns: 0, session: 0, slots: Vec::new(), arrived: [0; UPLINKS_MAX * PATHS_MAX] }
    }

    /// Processes a probe whose cookie has been verified, because forged ones must not use up the peer's
    /// limit. Returns how many probes have arrived on its path, 0 if it has no path.
    ///
    /// # Errors
    /// Returns the reason why the probe is not answered.
    pub fn ask(&mut self, now_ns: u64, probe: &Packet, rate: u32) -> Result<u32, Unanswered> {
        let (session, number) = (probe.session, probe.number);
        if session < self.session && now_ns.saturating_sub(self.last_ns) < SILENCE_NS {
            return Err(Unanswered::Repeated);
        }
        if self.session != session {
            (self.session, self.arrived) = (session, [0; UPLINKS_MAX * PATHS_MAX]);
        }
        self.slots.resize(SLOTS, (0, 0));
        let slot = &mut self.slots[number as usize % SLOTS];
        if slot.0 == session && slot.1 >= number {
            return Err(Unanswered::Repeated);
        }
        *slot = (session, number);
        let arrived = self.arrived.get_mut(usize::from(probe.path)).map_or(0, |arrived| {
            *arrived = arrived.wrapping_add(1);
            *arrived
        });
        let every_ns = 1_000_000_000 / u64::from(rate.max(1));
        let due_ns = self.due_ns.max(now_ns);
        if due_ns - now_ns > BURST * every_ns {
            return Err(Unanswered::Limited);
        }
        (self.due_ns, self.last_ns) = (due_ns + every_ns, now_ns);
        Ok(arrived)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::PathTunnel;
    use crate::wire::{Outer, ProbeId};
    use std::net::Ipv4Addr;

    /// Receives a probe of path 3 at this time, at a limit of 1000 per second.
    fn ask(window: &mut Window, now_ns: u64, (session, number): (u32, u32)) -> Result<u32, Unanswered> {
        let outer = Outer {
            macs: [[0; 6]; 2],
            source: Ipv4Addr::LOCALHOST,
            destination: Ipv4Addr::LOCALHOST,
            port: 50_000,
            tunnel: PathTunnel::VXLAN,
            dscp: 0,
            marked: false,
            id: 0,
            ttl: 64,
        };
        let id = ProbeId { session, number };
        window.ask(now_ns, &Packet { path: 3, ..Packet::request(outer, id, 0, 0) }, 1000)
    }

    #[test]
    fn each_is_answered_once_and_few_in_a_second() {
        let mut window = Window::new();
        assert_eq!(ask(&mut window, 0, (5, 2)), Ok(1));
        assert_eq!(ask(&mut window, 0, (5, 2)), Err(Unanswered::Repeated));
        assert_eq!(ask(&mut window, 0, (5, 1)), Ok(2), "it was overtaken");
        assert_eq!(ask(&mut window, 0, (4, 9)), Err(Unanswered::Repeated), "from an earlier session");
        assert_eq!(ask(&mut window, 0, (6, 2)), Ok(1), "the peer has restarted");
        let answered = (10..10_000).filter(|at| ask(&mut window, 1, (6, *at)).is_ok()).count() as u64;
        assert!((BURST - 4..=BURST + 1).contains(&answered), "{answered}");
        assert_eq!(ask(&mut window, 1_000_000_000, (6, 10_000)), Ok(9_992), "all that came are counted");
        assert_eq!(ask(&mut window, 2 * SILENCE_NS, (1, 1)), Ok(1), "after silence, any session may begin");
    }
}
