//! A survey of the paths to a node: which routers the probes from many source ports pass through. A survey
//! decides what to send and when; sockets and ports belong to the caller.
//!
//! First, it determines for every port whether the node answers, and how many routers are in between. Then it
//! sends probes with increasing TTL. Routers limit how many they answer, so probes are paced, and missing
//! answers are requested again after increasing pauses. If many paths were found, there may be more, and
//! further ports are tried.
//!
//! Where routers are silent, some ports are probed repeatedly at the same time, so that their delays can be
//! compared.
//!
//! A node without weir answers nothing, and routers keep their rate limits ([`Survey::one_sided`]).

mod levels;

use self::levels::Levels;
use crate::covariation::ROUNDS;
use crate::discovery::{Observation, PORTS_TRIED, distinct, is_hidden, ports_needed};
use crate::icmp::Expired;
use crate::paths::PATHS_MAX;
use crate::tunnel::{PathTunnel, TunnelType};
use crate::wire::{Address, Outer, Packet, ProbeId, Secret, siphash, trace_checksum};
use std::collections::VecDeque;
use std::net::IpAddr;
use weir_packet::random::Random;

/// The TTL of a probe that must reach the node.
pub const TTL_WHOLE: u8 = 64;

/// Time between two probes of a survey, in nanoseconds: at most 1000 per second.
const PACE_NS: u64 = 1_000_000;

/// The largest delay of a call, in nanoseconds, that the survey makes up for. Any further delay is lost.
const LATE_NS: u64 = 4_000_000;

/// How long to wait for answers after each pass, in nanoseconds.
const PATIENCE_NS: [u64; 4] = [60_000_000, 100_000_000, 400_000_000, 1_600_000_000];

/// Time between two rounds of probes whose delays are compared, in nanoseconds: all rounds take a second.
const ROUND_NS: u64 = 16_000_000;

/// The number of messages with a wrong cookie after which messages that quote only part of a cookie are
/// ignored: guessing 28 bits then succeeds once in 4 million surveys.
const WRONG_MAX: u32 = 64;

/// The largest number of routers on a path within a fabric.
const ROUTERS_MAX: u8 = 12;

/// A probe that a survey wants to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The source port.
    pub port: u16,
    /// The TTL.
    pub ttl: u8,
    /// The identification: if a router's answer is wanted, it contains the TTL.
    pub id: u16,
    /// Identifies a router's answer; `None` if the probe must reach the node. Only hosts that have seen the
    /// probe know the cookie.
    pub cookie: Option<u64>,
}

impl Wish {
    /// A probe that must reach the node.
    #[must_use]
    pub fn whole(port: u16) -> Wish {
        Wish { port, ttl: TTL_WHOLE, id: 0, cookie: None }
    }

    /// Builds the probe. The number and the turn are used only if the probe must reach the node. The fields
    /// of `outer` that the wish does not determine are used unchanged.
    #[must_use]
    pub fn probe<A: Address>(&self, outer: Outer<A>, id: ProbeId, turn: u8, sent_ns: u64) -> Packet<A> {
        let outer = Outer { port: self.port, id: self.id, ttl: self.ttl, ..outer };
        match self.cookie {
            Some(cookie) => Packet::trace(outer, cookie),
            None => Packet::request(outer, id, turn, sent_ns),
        }
    }
}

/// The result of a survey.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surveyed {
    /// The observations from each port that reaches the node.
    pub seen: Vec<Observation>,
    /// The shortest time from a probe to its answer, in nanoseconds; `None` if there was no answer.
    pub round_trip_ns: Option<u64>,
    /// If routers are silent, the delays of the first ports of `seen`: `[port][round]`, in nanoseconds,
    /// including the clock offset.
    pub delays: Vec<Vec<Option<i64>>>,
    /// Messages of routers that did not quote a probe of this survey.
    pub wrong: u32,
}

impl Surveyed {
    /// A warning, if messages of routers seem to be forged.
    #[must_use]
    pub fn forgeries(&self) -> Option<String> {
        (self.wrong >= WRONG_MAX).then(|| {
            format!(
                "{} ICMP messages quote none of our probes: is somebody forging router answers? After \
                 {WRONG_MAX} of them, only messages that quote a whole cookie count",
                self.wrong
            )
        })
    }
}

/// A survey in progress.
#[derive(Debug)]
pub struct Survey {
    /// The key of the cookies, so that only a host that has seen a probe can forge a router's answer to it.
    secret: Secret,
    wrong: u32,
    ports: Vec<u16>,
    /// Ports to try if there are many paths.
    further: VecDeque<u16>,
    /// How many routers a probe of each port has passed.
    routers: Vec<Option<u8>>,
    hops: Vec<Vec<Option<IpAddr>>>,
    todo: VecDeque<(usize, u8)>,
    pass: usize,
    next_ns: u64,
    round_trip_ns: Option<u64>,
    compared: Option<Compared>,
    /// Of a survey of an unmodified node.
    levels: Option<Levels>,
    /// The tunnels whose packets the probes look like.
    tunnel: TunnelType,
}

/// Ports whose delays are compared.
#[derive(Debug)]
struct Compared {
    /// Their indices among all ports.
    ports: Vec<usize>,
    begin_ns: u64,
    delays: Vec<Vec<Option<i64>>>,
}

impl Survey {
    /// Begins a survey. `known` are ports to try besides random ones in `sources`; `run` distinguishes
    /// surveys.
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
            // Each run has different cookies, even if the generator repeats itself.
            secret: Secret([random.bits(), random.bits().wrapping_add(u64::from(run))]),
            wrong: 0,
            todo: (0..count).map(|at| (at, TTL_WHOLE)).collect(),
            routers: vec![None; count],
            hops: vec![Vec::new(); count],
            ports,
            further,
            pass: 0,
            next_ns: now_ns,
            round_trip_ns: None,
            compared: None,
            levels: None,
            tunnel: TunnelType::Vxlan,
        }
    }

    /// Returns the next probe to send, if one is due.
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
            return Some(Wish::whole(self.ports[at]));
        }
        // A late call makes up for some of the missed time.
        self.next_ns = if self.todo.is_empty() {
            now_ns + self.patience_ns()
        } else {
            (self.next_ns + PACE_NS).max(now_ns.saturating_sub(LATE_NS))
        };
        let port = self.ports[at];
        if ttl == TTL_WHOLE {
            return Some(Wish::whole(port));
        }
        let cookie = self.cookie(port, ttl);
        Some(Wish { port, ttl, id: id(cookie, ttl), cookie: Some(cookie) })
    }

    fn cookie(&self, port: u16, ttl: u8) -> u64 {
        siphash(self.secret, &[u64::from(port) << 8 | u64::from(ttl)])
    }

    fn patience_ns(&self) -> u64 {
        if self.levels.is_some() {
            return levels::PATIENCE_NS;
        }
        PATIENCE_NS[self.pass.min(PATIENCE_NS.len() - 1)]
    }

    /// Handles the node's answer to a probe, which was sent at `sent_ns` and arrived with this TTL;
    /// `delay_ns` was its delay, including the clock offset.
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

    /// Makes its probes look like packets of tunnels of this type, instead of VXLAN.
    #[must_use]
    pub fn through(self, tunnel: TunnelType) -> Survey {
        Survey { tunnel, ..self }
    }

    /// Handles a router's answer to a probe. Answers to probes that were not sent are ignored.
    pub fn expired(&mut self, expired: &Expired) {
        let ttl = (expired.id & 15) as u8;
        let at = self.ports.iter().position(|one| *one == expired.port);
        let Some(at) = at.filter(|_| (1..=ROUTERS_MAX).contains(&ttl) && self.quotes(expired, ttl)) else {
            self.wrong = self.wrong.saturating_add(1);
            return;
        };
        if let Some(hop) = self.hops[at].get_mut(usize::from(ttl) - 1) {
            *hop = Some(expired.router);
        }
    }

    /// Whether a router quotes the probe from this port with this TTL.
    fn quotes(&self, expired: &Expired, ttl: u8) -> bool {
        let cookie = self.cookie(expired.port, ttl);
        match (expired.cookie, expired.from, expired.to) {
            _ if expired.id != id(cookie, ttl) => false,
            (Some(quoted), ..) => quoted == cookie,
            (None, IpAddr::V4(source), IpAddr::V4(destination)) if self.wrong < WRONG_MAX => {
                let tunnel = PathTunnel { of: self.tunnel, port: expired.dport };
                let outer = Outer::between(source, destination, expired.port, tunnel);
                expired.check == trace_checksum(outer, cookie)
            }
            (None, ..) => false,
        }
    }

    /// Continues when a pass has ended. Returns the result at the end.
    pub fn turn(&mut self, now_ns: u64) -> Option<Surveyed> {
        if !self.todo.is_empty() || now_ns < self.next_ns {
            return None;
        }
        if let Some(levels) = self.levels.take() {
            return self.next_level(now_ns, levels);
        }
        if self.pass == 0 && self.routers.iter().all(Option::is_none) {
            return Some(Surveyed { wrong: self.wrong, ..Surveyed::default() });
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

    /// Starts to compare the delays of some ports if routers are silent.
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

    /// Repeats the probes whose answers are missing, sorted by TTL so that no router gets all probes at once.
    /// If a port got no answer, either the node is unreachable from it, or this host was too busy to receive
    /// the answer in time.
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

    /// Tries further ports if the number of paths found suggests that there are more.
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
        Surveyed { seen, round_trip_ns: self.round_trip_ns, delays, wrong: self.wrong }
    }
}

/// The identification of a probe that must expire: its low bits are the TTL, the others come from the cookie.
fn id(cookie: u64, ttl: u8) -> u16 {
    ((cookie >> 52) as u16) << 4 | u16::from(ttl & 15)
}

#[cfg(test)]
mod tests;
