//! A tracked flow: where its next packet goes.

use crate::paths::{Paths, State};
use crate::scheme::{Scheme, port_of};
use weir_packet::random::Random;

/// A flow is moved without a gap only if that gains this fraction of its path's score.
const GAIN_PART: u64 = 4;

/// One of our flows is also moved without a gap after a round trip with this percentage of marked packets, if
/// the other path has fewer marks: marks are reported sooner than probes are answered. FlowBender (CoNEXT'14)
/// uses 5; in the simulator 20 moves fewer flows, and large ones finish sooner.
const MARKED_PERCENT: u64 = 20;

/// PLB: a round with more marked packets is congested (`tcp_plb_cong_thresh` 128 of 256), in percent.
const PLB_MARKED_PERCENT: u64 = 50;

/// PLB: consecutive congested rounds after which the port changes (`tcp_plb_rehash_rounds`).
const PLB_ROUNDS: u32 = 12;

/// PLB: consecutive congested rounds after which the port changes while nothing is in flight
/// (`tcp_plb_idle_rehash_rounds`).
const PLB_IDLE_ROUNDS: u32 = 3;

/// PLB: how long rounds are ignored after a timeout, plus up to the same time again, ns
/// (`tcp_plb_suspend_rto_sec`).
const PLB_SUSPENDED_NS: u64 = 60_000_000_000;

/// CLOVE's weight loss per mark, in percent. Two losses of a path are at least half a round trip apart,
/// approximated by the congested delay.
const CLOVE_LOSS_PERCENT: u32 = 33;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// A source port; the fabric's hash decides where it leads.
    Port(u16),
    /// A path, by number: one of its ports.
    Path(usize),
}

/// A transport's report about a flow after a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// The number of packets that were acknowledged in the round trip.
    pub packets: u32,
    /// How many of the acknowledged packets were marked.
    pub marked: u32,
    /// Whether nothing is in flight at the moment.
    pub idle: bool,
}

/// A flow, its scheme, and the route that it currently takes.
#[derive(Clone, Debug)]
pub struct Flow {
    scheme: Scheme,
    route: Option<Route>,
    hash: u64,
    bytes: u64,
    last_ns: u64,
    hold_until: u64,
    is_marked: bool,
    has_timed_out: bool,
    cell_left: u64,
    rounds: u32,
    suspended_until: u64,
    moves: u32,
}

impl Flow {
    /// A new flow; `hash` is that of its 5-tuple.
    #[must_use]
    pub fn new(scheme: Scheme, hash: u64) -> Flow {
        Flow {
            scheme,
            route: None,
            hash,
            bytes: 0,
            last_ns: 0,
            hold_until: 0,
            is_marked: false,
            has_timed_out: false,
            cell_left: 0,
            rounds: 0,
            suspended_until: 0,
            moves: 0,
        }
    }

    /// The route of its last packet.
    #[must_use]
    pub fn route(&self) -> Option<Route> {
        self.route
    }

    /// How often the flow has changed its route.
    #[must_use]
    pub fn moves(&self) -> u32 {
        self.moves
    }

    /// The port to which the flow's hash maps: ECMP's port, and the first one that DOCA-AR probes.
    #[must_use]
    pub fn own_port(&self) -> u16 {
        port_of(self.hash)
    }

    /// Pins it to a port permanently: DOCA-AR's first echo.
    pub fn pin(&mut self, port: u16) {
        self.route = Some(Route::Port(port));
    }

    /// Places the flow's next packet, which has `bytes` bytes and leaves now.
    #[inline]
    pub fn place(&mut self, now: u64, bytes: u64, paths: &mut Paths, random: &mut Random) -> Route {
        let gap = now.saturating_sub(self.last_ns) >= paths.settings().flowlet_ns;
        let route = match (self.scheme, self.route) {
            (Scheme::Spray, _) => Route::Port(port_of(random.bits())),
            (Scheme::Ecmp | Scheme::DocaAr | Scheme::PlbLike, None) => Route::Port(self.own_port()),
            (Scheme::LetFlow, None) => Route::Port(port_of(random.bits())),
            (Scheme::LetFlow, Some(_)) if gap => Route::Port(port_of(random.bits())),
            (Scheme::Clove, None) => Route::Path(paths.draw_by_weight(random)),
            (Scheme::Clove, Some(_)) if gap => Route::Path(paths.draw_by_weight(random)),
            (Scheme::Adaptive | Scheme::OneSided, None | Some(Route::Port(_))) => {
                self.begin_cell(now, paths, random)
            }
            (Scheme::Adaptive | Scheme::OneSided, Some(Route::Path(path))) => {
                self.adapt(now, path, gap, paths, random)
            }
            (_, Some(route)) => route,
        };
        if self.route.is_some_and(|before| before != route) {
            self.moves = self.moves.saturating_add(1);
        }
        self.route = Some(route);
        self.last_ns = now;
        self.bytes = self.bytes.saturating_add(bytes);
        self.cell_left = self.cell_left.saturating_sub(bytes);
        if let Route::Path(path) = route {
            paths.sent(now, path, bytes);
        }
        route
    }

    /// Decides where the next packet of one of our flows goes. From a path that is not usable, the flow moves
    /// at once. After a timeout it moves unless its own path is better, because nothing is in flight. After a
    /// cell or a gap it takes the better of any two paths, regardless of the path it was on. Without a gap it
    /// moves cautiously. If a flow only moved after a gap when another path was known to be better, it could
    /// stay on a path whose queue has not been probed since. In the simulator, with asymmetric paths, that
    /// triples the 99th percentile.
    fn adapt(&mut self, now: u64, path: usize, gap: bool, paths: &Paths, random: &mut Random) -> Route {
        let has_timed_out = std::mem::take(&mut self.has_timed_out);
        let next = if !paths.is_usable(path) {
            paths.choose(now, Some(path), random)
        } else if has_timed_out {
            let next = paths.choose(now, Some(path), random);
            if paths.is_better(now, path, next) { path } else { next }
        } else if self.cell_left == 0 {
            return self.begin_cell(now, paths, random);
        } else if gap {
            paths.choose(now, None, random)
        } else {
            self.move_cautiously(now, path, paths, random)
        };
        if next != path {
            self.hold_until = now.saturating_add(random.jittered(paths.settings().hold_ns));
        }
        Route::Path(next)
    }

    /// The path of the next cell.
    fn begin_cell(&mut self, now: u64, paths: &Paths, random: &mut Random) -> Route {
        self.cell_left = paths.settings().cell_bytes.unwrap_or(u64::MAX);
        Route::Path(paths.choose(now, None, random))
    }

    /// Moves a large flow, without a gap, from a congested path to one that is much better, or, if its own
    /// packets were marked, to one that is not worse and has fewer marks. Only half of the eligible flows
    /// move (Hermes), so that a hundred flows that see the same queue do not all leave at once.
    fn move_cautiously(&mut self, now: u64, path: usize, paths: &Paths, random: &mut Random) -> usize {
        let settings = paths.settings();
        let is_congested = paths.all()[path].state() == State::Congested;
        let may = self.is_marked || is_congested;
        if !may || now < self.hold_until || self.bytes <= settings.reroute_bytes {
            return path;
        }
        self.hold_until = now.saturating_add(random.jittered(settings.hold_ns));
        let next = paths.choose(now, Some(path), random);
        let (old, new) = (paths.score(now, path), paths.score(now, next));
        let least = settings.gain_ns.max(old / GAIN_PART);
        let [old_path, new_path] = [path, next].map(|path| &paths.all()[path]);
        let is_clearer = new <= old && new_path.marked() < old_path.marked();
        let gains = old.saturating_sub(new) > least || self.is_marked && is_clearer;
        self.is_marked = false;
        if gains && random.word() & 1 == 1 { next } else { path }
    }

    /// A round trip has ended. PLB counts it, and our scheme looks at its marks. Without such reports, our
    /// scheme relies on what is known about the paths.
    pub fn round(&mut self, now: u64, round: Round, random: &mut Random) {
        if self.scheme == Scheme::Adaptive && round.packets > 0 {
            self.is_marked = u64::from(round.marked) * 100 >= u64::from(round.packets) * MARKED_PERCENT;
        }
        if self.scheme != Scheme::PlbLike || now < self.suspended_until || round.packets == 0 {
            return;
        }
        let marked = u64::from(round.marked) * 100 >= u64::from(round.packets) * PLB_MARKED_PERCENT;
        self.rounds = if marked { self.rounds + 1 } else { 0 };
        if self.rounds >= PLB_ROUNDS || round.idle && self.rounds >= PLB_IDLE_ROUNDS {
            self.rounds = 0;
            self.move_to(Route::Port(port_of(random.bits())));
        }
    }

    /// The flow ran into a retransmission timeout. PLB takes another port, as does any flow on Linux with
    /// `net.ipv4.tcp_plb_enabled` or `txrehash`; our scheme reports it to the path, and the next packet is
    /// placed from scratch.
    pub fn timed_out(&mut self, now: u64, paths: &mut Paths, random: &mut Random) {
        match (self.scheme, self.route) {
            (Scheme::PlbLike, Some(_)) => {
                self.rounds = 0;
                self.suspended_until = now + PLB_SUSPENDED_NS + random.below(PLB_SUSPENDED_NS);
                self.move_to(Route::Port(port_of(random.bits())));
            }
            (Scheme::Adaptive | Scheme::OneSided, Some(Route::Path(path))) => {
                paths.rehashed(now, path);
                self.has_timed_out = true;
            }
            _ => (),
        }
    }

    fn move_to(&mut self, route: Route) {
        self.moves = self.moves.saturating_add(u32::from(self.route != Some(route)));
        self.route = Some(route);
    }
}

impl Paths {
    /// CLOVE: a path drawn by weight alone.
    #[must_use]
    pub fn draw_by_weight(&self, random: &mut Random) -> usize {
        let total: u64 = self.all().iter().map(|path| u64::from(path.raw_weight())).sum();
        let mut drawn = random.below(total);
        for (at, path) in self.all().iter().enumerate() {
            let weight = u64::from(path.raw_weight());
            if drawn < weight {
                return at;
            }
            drawn -= weight;
        }
        0
    }

    /// CLOVE: the node echoes a mark on a path, which loses a third of its weight to the others. The caller
    /// ensures that this happens at most once per half round trip.
    pub fn clove_marked(&mut self, path: usize) {
        let others = self.all().len().saturating_sub(1) as u32;
        let Some(weight) = self.all().get(path).map(|path| path.raw_weight()).filter(|_| others > 0) else {
            return;
        };
        let share = weight * CLOVE_LOSS_PERCENT / 100 / others;
        for at in 0..self.all().len() {
            self.change_raw_weight(
                at,
                if at == path { -i64::from(share * others) } else { i64::from(share) },
            );
        }
    }
}
