//! A survey of the ways to a node: which routers the probes from many source ports pass. It decides what to
//! send and when; sockets and ports are the caller's.
//!
//! First it is found out from every port whether the node answers, and how many routers are between. Then
//! probes of growing TTL are sent. Routers limit how many they answer, so probes are paced, and missing
//! answers are asked for again after growing pauses. Where many paths were met, there may be more, and
//! further ports are tried.
//!
//! Where routers are silent, some ports are probed at the same time again and again, so that their delays can
//! be compared.

use crate::covariation::ROUNDS;
use crate::discovery::{Observation, PORTS_TRIED, distinct, is_hidden, ports_needed};
use crate::paths::PATHS_MAX;
use crate::random::Random;
use std::collections::VecDeque;
use std::net::IpAddr;

/// The TTL of a probe that is to arrive.
pub const TTL_WHOLE: u8 = 64;

/// Time between two probes of a survey, in nanoseconds: at most 1000 a second.
const PACE_NS: u64 = 1_000_000;

/// A turn that is later does not make up for all of it, in nanoseconds.
const LATE_NS: u64 = 4_000_000;

/// How long answers are waited for after each pass, in nanoseconds.
const PATIENCE_NS: [u64; 4] = [60_000_000, 100_000_000, 400_000_000, 1_600_000_000];

/// Time between two rounds of probes whose delays are compared, in nanoseconds: all rounds take a second.
const ROUND_NS: u64 = 16_000_000;

/// More routers than that are no fabric.
const ROUTERS_MAX: u8 = 12;

/// A probe that a survey wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The source port.
    pub port: u16,
    /// The TTL.
    pub ttl: u8,
    /// The identification by which a router's answer is recognised. Only those who have seen the probe know
    /// it.
    pub id: u16,
}

/// What a survey has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surveyed {
    /// What was seen from each port that reaches the node.
    pub seen: Vec<Observation>,
    /// The shortest time from a probe to its answer, in nanoseconds; `None` if there was no answer.
    pub round_trip_ns: Option<u64>,
    /// If routers are silent, the delays of the first ports of `seen`: `[port][round]`, in nanoseconds, off
    /// by what clocks differ.
    pub delays: Vec<Vec<Option<i64>>>,
}

/// A survey that goes on.
#[derive(Debug)]
pub struct Survey {
    /// It is secret, so that a router's answer cannot be forged without having seen a probe.
    secret: u64,
    ports: Vec<u16>,
    /// Ports that are tried if there are many paths.
    further: VecDeque<u16>,
    /// How many routers a probe of each port has passed.
    routers: Vec<Option<u8>>,
    hops: Vec<Vec<Option<IpAddr>>>,
    todo: VecDeque<(usize, u8)>,
    pass: usize,
    next_ns: u64,
    round_trip_ns: Option<u64>,
    compared: Option<Compared>,
}

/// Ports whose delays are compared.
#[derive(Debug)]
struct Compared {
    /// Their places among all ports.
    ports: Vec<usize>,
    begin_ns: u64,
    delays: Vec<Vec<Option<i64>>>,
}

impl Survey {
    /// Begins a survey. `known` are ports to be tried besides random ones in `sources`; `run` tells surveys
    /// apart.
    pub fn new(now_ns: u64, run: u8, known: &[u16], sources: [u16; 2], random: &mut Random) -> Survey {
        let [first, last] = sources;
        let mut ports = known.to_vec();
        let width = u64::from(last - first) + 1;
        while ports.len() < ports_needed(PATHS_MAX - 1) && (ports.len() as u64) < width {
            let port = first + random.below(width) as u16;
            if !ports.contains(&port) {
                ports.push(port);
            }
        }
        let count = ports.len().min(PORTS_TRIED.max(known.len()));
        let further = ports.drain(count..).collect();
        Survey {
            // Each run has other identifications, whatever the generator returns.
            secret: random.below(u64::MAX).wrapping_add(u64::from(run)),
            todo: (0..count).map(|at| (at, TTL_WHOLE)).collect(),
            routers: vec![None; count],
            hops: vec![Vec::new(); count],
            ports,
            further,
            pass: 0,
            next_ns: now_ns,
            round_trip_ns: None,
            compared: None,
        }
    }

    /// Returns the next probe to be sent, if it is time.
    pub fn wish(&mut self, now_ns: u64) -> Option<Wish> {
        if now_ns < self.next_ns {
            return None;
        }
        let (at, ttl) = self.todo.pop_front()?;
        if let Some(compared) = &self.compared {
            let sent = ROUNDS * compared.ports.len() - self.todo.len();
            // All ports of a round at once.
            let rounds = (sent / compared.ports.len()) as u64;
            self.next_ns = compared.begin_ns + rounds * ROUND_NS;
            return Some(Wish { port: self.ports[at], ttl, id: 0 });
        }
        // What a late turn has missed is made up for, a little.
        self.next_ns = if self.todo.is_empty() {
            now_ns + self.patience_ns()
        } else {
            (self.next_ns + PACE_NS).max(now_ns.saturating_sub(LATE_NS))
        };
        let port = self.ports[at];
        Some(Wish { port, ttl, id: self.id(port, ttl) })
    }

    /// Where the TTL is within the first [`ROUTERS_MAX`], its low bits are the TTL; the others are a cookie.
    /// Routers need not quote more than 8 bytes behind the IP header, so the cookie of the probe itself may
    /// be missing.
    fn id(&self, port: u16, ttl: u8) -> u16 {
        let place = u64::from(port) << 8 | u64::from(ttl);
        let cookie = Random::new(self.secret ^ place).below(1 << 12) as u16;
        cookie << 4 | u16::from(ttl & 15)
    }

    fn patience_ns(&self) -> u64 {
        PATIENCE_NS[self.pass.min(PATIENCE_NS.len() - 1)]
    }

    /// The node has answered a probe, which was sent at `sent_ns` and arrived with this TTL; `delay_ns` was
    /// its delay, off by what clocks differ.
    pub fn arrived(&mut self, port: u16, ttl: u8, sent_ns: u64, (round_trip_ns, delay_ns): (u64, i64)) {
        let Some(at) = self.ports.iter().position(|one| *one == port) else { return };
        if let Some(compared) = &mut self.compared {
            let round = sent_ns.checked_sub(compared.begin_ns).map(|time| (time / ROUND_NS) as usize);
            let of_port = compared.ports.iter().position(|one| *one == at);
            let slot = of_port.zip(round).and_then(|(port, round)| compared.delays[port].get_mut(round));
            slot.into_iter().for_each(|slot| *slot = Some(delay_ns));
            return;
        }
        self.routers[at] = Some(TTL_WHOLE.saturating_sub(ttl).min(ROUTERS_MAX));
        self.round_trip_ns = Some(self.round_trip_ns.map_or(round_trip_ns, |least| least.min(round_trip_ns)));
    }

    /// A router has answered a probe. Answers to probes that were not sent are ignored.
    pub fn expired(&mut self, port: u16, id: u16, router: IpAddr) {
        let ttl = (id & 15) as u8;
        let is_ours = (1..=ROUTERS_MAX).contains(&ttl) && id == self.id(port, ttl);
        let Some(at) = self.ports.iter().position(|one| *one == port).filter(|_| is_ours) else {
            return;
        };
        if let Some(hop) = self.hops[at].get_mut(usize::from(ttl).wrapping_sub(1)) {
            *hop = Some(router);
        }
    }

    /// Goes on when a pass has ended. Returns what was found at the end.
    pub fn turn(&mut self, now_ns: u64) -> Option<Surveyed> {
        if !self.todo.is_empty() || now_ns < self.next_ns {
            return None;
        }
        if self.pass == 0 && self.routers.iter().all(Option::is_none) {
            return Some(Surveyed { seen: Vec::new(), round_trip_ns: None, delays: Vec::new() });
        }
        if self.compared.is_some() {
            return Some(self.result());
        }
        self.pass += 1;
        if self.pass < PATIENCE_NS.len() {
            self.ask_for_the_missing();
        }
        if self.todo.is_empty() && !self.extend() && !self.compare(now_ns) {
            return Some(self.result());
        }
        None
    }

    /// Has delays of some ports compared if routers are silent.
    fn compare(&mut self, now_ns: u64) -> bool {
        if !is_hidden(&distinct(&self.result().seen)) {
            return false;
        }
        let reached = (0..self.ports.len()).filter(|at| self.routers[*at].is_some());
        let ports: Vec<usize> = reached.take(PATHS_MAX).collect();
        for _ in 0..ROUNDS {
            self.todo.extend(ports.iter().map(|at| (*at, TTL_WHOLE)));
        }
        let delays = vec![vec![None; ROUNDS]; ports.len()];
        self.compared = Some(Compared { ports, begin_ns: now_ns, delays });
        self.next_ns = now_ns;
        !self.todo.is_empty()
    }

    /// By TTL, so that a router is not asked by all at once. From a port without an answer the node may be
    /// out of reach, or this host was too busy to take it in time.
    fn ask_for_the_missing(&mut self) {
        let most = self.routers.iter().flatten().copied().max().unwrap_or_default();
        for (at, routers) in self.routers.iter().enumerate() {
            let routers = routers.unwrap_or(most);
            self.hops[at].resize(usize::from(routers), None);
            if self.routers[at].is_none() {
                self.todo.push_back((at, TTL_WHOLE));
            }
            let silent = |ttl: &u8| self.hops[at][usize::from(*ttl) - 1].is_none();
            self.todo.extend((1..=routers).filter(silent).map(|ttl| (at, ttl)));
        }
    }

    /// Has further ports tried if so many paths were met that there may be more.
    fn extend(&mut self) -> bool {
        let needed = ports_needed(distinct(&self.result().seen).len());
        let more = needed.saturating_sub(self.ports.len()).min(self.further.len());
        for port in self.further.drain(..more) {
            self.todo.push_back((self.ports.len(), TTL_WHOLE));
            self.ports.push(port);
            self.routers.push(None);
            self.hops.push(Vec::new());
        }
        self.pass = 0;
        more > 0
    }

    fn result(&self) -> Surveyed {
        let all = self.ports.iter().zip(&self.hops).zip(&self.routers);
        let reached = all.filter(|(_, routers)| routers.is_some());
        let seen = reached.map(|((&port, hops), _)| Observation { port, hops: hops.clone() }).collect();
        let delays = self.compared.as_ref().map(|compared| compared.delays.clone()).unwrap_or_default();
        Surveyed { seen, round_trip_ns: self.round_trip_ns, delays }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first of four paths has a queue that comes and goes.
    fn delay(port: u16, now: u64) -> i64 {
        if port.is_multiple_of(4) { Random::new(now / 1_000_000).below(1_000_000) as i64 } else { 0 }
    }

    /// Runs a survey on a fabric of two tiers with so many spines between; `answers` tells which routers do.
    fn surveyed(spines: u16, answers: impl Fn(u8, u16) -> bool) -> (Surveyed, u64) {
        let mut random = Random::new(7);
        let mut survey = Survey::new(0, 3, &[50_000], [49_152, 65_535], &mut random);
        let mut now = 0;
        loop {
            while let Some(Wish { port, ttl, id }) = survey.wish(now) {
                let spine = Random::new(port.into()).below(spines.into());
                match ttl {
                    1 if answers(1, port) => survey.expired(port, id, IpAddr::from([10, 0, 0, 1])),
                    2 if answers(2, port) => survey.expired(port, id, IpAddr::from([10, 9, spine as u8, 2])),
                    TTL_WHOLE => survey.arrived(port, 62, now, (1000 + u64::from(port), delay(port, now))),
                    _ => {}
                }
            }
            if let Some(found) = survey.turn(now) {
                return (found, now);
            }
            now += 1_000_000;
            assert!(now < 10_000_000_000, "it ends");
        }
    }

    #[test]
    fn the_paths_of_a_fabric_are_found() {
        for spines in 1..=16 {
            let (found, took_ns) = surveyed(spines, |_, _| true);
            let paths = distinct(&found.seen);
            assert_eq!(paths.len(), usize::from(spines), "{spines} spines");
            assert!(took_ns < 1_500_000_000, "{took_ns}");
            assert!(found.round_trip_ns.is_some_and(|time| time >= 1000 + 49_152));
        }
    }

    /// An attacker that knows ports, TTLs and the number of the run, but has seen no probe, must guess one of
    /// 4096 cookies.
    #[test]
    fn forged_answers_of_routers_hide_no_path() {
        for spines in [2, 4, 8] {
            let mut survey = Survey::new(0, 3, &[50_000], [49_152, 65_535], &mut Random::new(7));
            let (mut now, mut guesses) = (0, Random::new(11));
            let found = loop {
                while let Some(Wish { port, ttl, id }) = survey.wish(now) {
                    let spine = Random::new(port.into()).below(spines) as u8;
                    match ttl {
                        1 => survey.expired(port, id, IpAddr::from([10, 0, 0, 1])),
                        2 => survey.expired(port, id, IpAddr::from([10, 9, spine, 2])),
                        TTL_WHOLE => survey.arrived(port, 62, now, (1000, 500)),
                        _ => {}
                    }
                    let liar = IpAddr::from([10, 66, 6, 6]);
                    for ttl in 1..=2_u16 {
                        survey.expired(port, ttl << 8 | 3, liar);
                        survey.expired(port, (guesses.below(1 << 12) as u16) << 4 | ttl, liar);
                    }
                }
                if let Some(found) = survey.turn(now) {
                    break found;
                }
                now += 1_000_000;
            };
            assert_eq!(distinct(&found.seen).len() as u64, spines);
        }
    }

    #[test]
    fn a_port_whose_answer_is_lost_is_tried_again() {
        let mut survey = Survey::new(0, 1, &[], [49_152, 65_535], &mut Random::new(1));
        let (mut now, mut lost) = (0, 0);
        let found = loop {
            while let Some(Wish { port, ttl, .. }) = survey.wish(now) {
                lost += 1;
                if ttl == TTL_WHOLE && lost % 4 == 0 {
                    survey.arrived(port, 62, now, (1000, 500));
                }
            }
            if let Some(found) = survey.turn(now) {
                break found;
            }
            now += 1_000_000;
        };
        assert!(found.seen.len() > PORTS_TRIED / 2, "{}", found.seen.len());
    }

    #[test]
    fn routers_that_answer_seldom_are_asked_again_and_silent_ones_are_not_for_ever() {
        let asked = std::cell::Cell::new(0);
        let seldom = |_, _| {
            asked.set(asked.get() + 1);
            asked.get() % 3 == 0
        };
        let (found, _) = surveyed(4, seldom);
        assert_eq!(distinct(&found.seen).len(), 4);
        let (found, _) = surveyed(4, |_, _| false);
        assert!(found.seen.iter().all(|one| one.hops == [None, None]) && found.seen.len() == 32);
    }

    #[test]
    fn where_routers_are_silent_delays_tell_ports_of_one_path() {
        for answers in [|_, _| false, |ttl, _| ttl == 1] {
            let (found, took_ns) = surveyed(4, answers);
            assert!(took_ns < 6_000_000_000, "{took_ns}");
            let groups = crate::covariation::groups(&found.delays, 1000);
            let busy = |group: &Vec<usize>| found.seen[group[0]].port.is_multiple_of(4);
            let on_busy = found.seen[..PATHS_MAX].iter().filter(|one| one.port.is_multiple_of(4)).count();
            assert!(
                groups.iter().all(|group| group.len() == if busy(group) { on_busy } else { 1 }),
                "{groups:?}"
            );
        }
        assert!(surveyed(4, |_, _| true).0.delays.is_empty(), "hops are enough");
    }

    #[test]
    fn a_node_that_does_not_answer_is_left_soon() {
        let mut survey = Survey::new(0, 1, &[], [49_152, 65_535], &mut Random::new(1));
        let mut now = 0;
        let mut sent = 0;
        let found = loop {
            sent += std::iter::from_fn(|| survey.wish(now)).count();
            if let Some(found) = survey.turn(now) {
                break found;
            }
            now += 2_000_000;
        };
        assert_eq!((found.seen.len(), found.round_trip_ns, sent), (0, None, PORTS_TRIED));
    }
}
