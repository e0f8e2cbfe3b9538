//! The state of neighbours, as a plain function of the kernel's messages and of time: which neighbours to ask
//! for, and what to report to apps.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use weir_app::neighbour::{Found, Hop, Mac};
use weir_netlink::{Destination, Link, nud};

/// The maximum number of neighbours to ask the kernel about per iteration; iterations are at least 50 ms
/// apart.
pub const AT_ONCE: usize = 64;
/// The time after which a failed neighbour is requested again. The kernel itself asks three times, a second
/// apart.
const AGAIN_NS: u64 = 3_000_000_000;
/// The time after which a stale neighbour is probed again; the kernel waits 5 s before it probes.
const REFRESH_NS: u64 = 10_000_000_000;

/// Where a port is: its interface's index, and its name, for people and for an interface that is recreated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortInterface {
    pub index: u32,
    pub name: String,
}

/// The places of ports by their names.
pub type Places = BTreeMap<String, PortInterface>;

/// The state of a neighbour in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourState {
    /// The neighbour has answered recently, or need not answer.
    Sure(Mac),
    /// The neighbour was reachable; it is not known whether it still is.
    Stale(Mac),
    /// Resolution is in progress.
    Asked,
    /// The neighbour has not answered.
    Failed,
}

impl NeighbourState {
    /// Parses a neighbour state (`NUD_*`).
    pub fn of(state: u16, mac: Option<Mac>) -> NeighbourState {
        const USABLE: u16 =
            nud::REACHABLE | nud::STALE | nud::DELAY | nud::PROBE | nud::NOARP | nud::PERMANENT;
        match mac {
            Some(mac) if state & nud::STALE != 0 => NeighbourState::Stale(mac),
            Some(mac) if state & USABLE != 0 && mac != [0; 6] => NeighbourState::Sure(mac),
            _ if state & nud::INCOMPLETE != 0 || state == 0 => NeighbourState::Asked,
            _ => NeighbourState::Failed,
        }
    }
}

/// A neighbour that an app wants to know.
struct WantedNeighbour {
    app: Arc<str>,
    hop: Hop,
    /// Whether its way has not been looked up yet.
    is_new: bool,
    /// The interface and the next hop through which the neighbour is reached, or why there is none.
    way: Result<(u32, IpAddr), String>,
    reported: Option<Found>,
    /// When the kernel was last asked to resolve it.
    asked_ns: Option<u64>,
    /// Why the kernel could not be asked to resolve it.
    refused: Option<String>,
}

/// Links, routes and neighbours as reported by the kernel, and the neighbours that apps want.
#[derive(Default)]
pub struct World {
    links: HashMap<u32, Link>,
    places: Places,
    /// The wanted neighbours, by interface and address.
    neighbours: HashMap<(u32, IpAddr), NeighbourState>,
    wanted: HashSet<(u32, IpAddr)>,
    targets: Vec<WantedNeighbour>,
    /// Where the next iteration starts asking.
    next: usize,
}

impl World {
    /// Replaces the places of ports.
    pub fn place(&mut self, places: Places) {
        self.places = places;
    }

    /// Replaces the neighbours that an app wants, as far as their ports have a place.
    pub fn want(&mut self, app: &Arc<str>, hops: Vec<Hop>) {
        self.targets.retain(|target| target.app != *app);
        self.want_others(app, &hops, &[]);
    }

    /// Adds neighbours that an app wants, as far as their ports have a place, and removes others. One that it
    /// wanted already is reported again.
    pub fn want_others(&mut self, app: &Arc<str>, more: &[Hop], less: &[Hop]) {
        if !less.is_empty() {
            let less: HashSet<&Hop> = less.iter().collect();
            self.targets.retain(|target| target.app != *app || !less.contains(&target.hop));
        }
        let mut new: HashSet<&Hop> = more.iter().filter(|hop| self.places.contains_key(&*hop.port)).collect();
        for known in self.targets.iter_mut().filter(|target| target.app == *app) {
            if new.remove(&known.hop) {
                known.reported = None;
            }
        }
        let target = |hop: &Hop| WantedNeighbour {
            app: app.clone(),
            hop: hop.clone(),
            is_new: true,
            way: Err(String::new()),
            reported: None,
            asked_ns: None,
            refused: None,
        };
        self.targets.extend(more.iter().filter(|hop| new.remove(hop)).map(target));
    }

    /// Whether the way to some neighbour has not been looked up yet.
    pub fn has_new(&self) -> bool {
        self.targets.iter().any(|target| target.is_new)
    }

    /// Replaces links, and looks up all routes again.
    pub fn find_ways(&mut self, links: Vec<Link>, route: &dyn Fn(IpAddr, Option<u32>) -> Destination) {
        self.targets.iter_mut().for_each(|target| target.is_new = true);
        self.find_new_ways(links, route);
    }

    /// Replaces links, and looks up the routes that have not been looked up yet.
    pub fn find_new_ways(&mut self, links: Vec<Link>, route: &dyn Fn(IpAddr, Option<u32>) -> Destination) {
        self.links = links.into_iter().map(|link| (link.index, link)).collect();
        let mut known: BTreeMap<(PortInterface, IpAddr), Result<(u32, IpAddr), String>> = BTreeMap::new();
        for at in 0..self.targets.len() {
            let hop = &self.targets[at].hop;
            if !self.targets[at].is_new {
                continue;
            }
            let Some(place) = self.places.get(&*hop.port) else { continue };
            let key = (place.clone(), hop.address);
            let way = known.entry(key).or_insert_with(|| self.way(place, hop.address, route)).clone();
            (self.targets[at].way, self.targets[at].is_new) = (way, false);
        }
        self.wanted = self.targets.iter().filter_map(|target| target.way.as_ref().ok()).copied().collect();
    }

    /// Returns the interface and the next hop to an address behind a port's interface.
    fn way(
        &self,
        place: &PortInterface,
        address: IpAddr,
        route: &dyn Fn(IpAddr, Option<u32>) -> Destination,
    ) -> Result<(u32, IpAddr), String> {
        let named = || self.links.values().find(|link| link.is_called(&place.name));
        let Some(port) = self.links.get(&place.index).or_else(named) else {
            return Err(format!("there is no interface {}", place.name));
        };
        match route(address, None) {
            Destination::Local => return Err(format!("{address} is an address of this host")),
            Destination::Hop(index, hop) if self.is_at(index, port) => return Ok((index, hop)),
            _ => {}
        }
        // The host would use another route, or none, but weir transmits through this port.
        match route(address, Some(port.index)) {
            Destination::Hop(index, hop) if self.is_at(index, port) => Ok((index, hop)),
            _ => Err(format!("the host has no route to {address} at {}", port.name)),
        }
    }

    /// Whether frames that the host transmits through an interface leave through the port's interface:
    /// whether the former is the same, a VLAN of the latter, or the bridge of which the latter is a port.
    fn is_at(&self, index: u32, port: &Link) -> bool {
        let below = self.links.get(&index).map_or(0, |link| link.below);
        index == port.index || below == port.index || index == port.master
    }

    /// Replaces all neighbours.
    pub fn replace(&mut self, all: Vec<(u32, IpAddr, NeighbourState)>) {
        let all = all.into_iter().map(|(index, address, state)| ((index, address), state));
        self.neighbours = all.filter(|(at, _)| self.wanted.contains(at)).collect();
    }

    /// Sets the state of a neighbour, or removes it.
    pub fn set(&mut self, index: u32, address: IpAddr, state: Option<NeighbourState>) {
        let at = (index, address);
        match state.filter(|_| self.wanted.contains(&at)) {
            Some(state) => _ = self.neighbours.insert(at, state),
            None => _ = self.neighbours.remove(&at),
        }
    }

    /// Returns the interface and next hop of a neighbour that some app follows.
    pub fn way_of(&self, hop: &Hop) -> Option<(u32, IpAddr)> {
        self.targets.iter().find(|target| target.hop == *hop)?.way.as_ref().ok().copied()
    }

    /// Returns what to report to apps.
    pub fn news(&mut self) -> Vec<(Arc<str>, Hop, Found)> {
        let mut news = Vec::new();
        for target in &mut self.targets {
            let name = || self.places.get(&*target.hop.port).map_or("", |place| &place.name);
            let Some(found) = found(target, &self.neighbours, name) else { continue };
            if target.reported.as_ref() != Some(&found) {
                target.reported = Some(found.clone());
                news.push((target.app.clone(), target.hop.clone(), found));
            }
        }
        news
    }

    /// Returns the neighbours that the kernel must resolve now, at most [`AT_ONCE`], and whether more wait.
    pub fn ask(&mut self, now_ns: u64) -> (Vec<(u32, IpAddr)>, bool) {
        let mut asked: Vec<(u32, IpAddr)> = Vec::new();
        let count = self.targets.len();
        for step in 0..count {
            let at = (self.next + step) % count;
            let target = &mut self.targets[at];
            let Ok(way) = target.way else { continue };
            let pause_ns = match self.neighbours.get(&way) {
                Some(NeighbourState::Sure(_) | NeighbourState::Asked) => continue,
                Some(NeighbourState::Stale(_)) => REFRESH_NS,
                Some(NeighbourState::Failed) | None => AGAIN_NS,
            };
            if target.asked_ns.is_some_and(|asked_ns| now_ns < asked_ns + pause_ns) {
                continue;
            }
            if asked.len() == AT_ONCE {
                self.next = at;
                return (asked, true);
            }
            target.asked_ns = Some(now_ns);
            if !asked.contains(&way) {
                asked.push(way);
            }
        }
        (asked, false)
    }

    /// Records whether the kernel could be asked to resolve a neighbour.
    pub fn answered(&mut self, way: (u32, IpAddr), why: Option<&str>) {
        for target in self.targets.iter_mut().filter(|target| target.way == Ok(way)) {
            target.refused = why.map(str::to_string);
        }
    }
}

/// Returns the state of a neighbour; `None` if it is unchanged.
fn found<'a>(
    target: &WantedNeighbour,
    neighbours: &HashMap<(u32, IpAddr), NeighbourState>,
    interface: impl Fn() -> &'a str,
) -> Option<Found> {
    let way = match &target.way {
        Ok(way) => way,
        Err(why) => return Some(Err(why.clone())),
    };
    let by = || {
        if way.1 == target.hop.address {
            String::new()
        } else {
            format!(", the router to {}", target.hop.address)
        }
    };
    match neighbours.get(way) {
        Some(NeighbourState::Sure(mac) | NeighbourState::Stale(mac)) => Some(Ok(*mac)),
        Some(NeighbourState::Failed) => {
            Some(Err(format!("{}{} does not answer at {}", way.1, by(), interface())))
        }
        // Resolution is in progress; a known neighbour stays valid until it fails.
        Some(NeighbourState::Asked) | None => {
            target.refused.as_ref().map(|why| Err(format!("the host does not resolve {}: {why}", way.1)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];
    const S: u64 = 1_000_000_000;

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn link(index: u32, name: &str, below: u32) -> Link {
        Link { index, name: name.to_string(), below, ..Link::default() }
    }

    fn hops(all: &[IpAddr]) -> Vec<Hop> {
        all.iter().map(|address| Hop { port: "p0".into(), address: *address }).collect()
    }

    fn place(index: u32, name: &str) -> Places {
        [("p0".to_string(), PortInterface { index, name: name.to_string() })].into()
    }

    fn world(all: &[IpAddr], route: &dyn Fn(IpAddr, Option<u32>) -> Destination) -> World {
        let mut world = World::default();
        world.place(place(2, "eth0"));
        world.want(&"lb".into(), hops(all));
        world.find_ways(vec![link(2, "eth0", 0), link(3, "eth1", 0), link(4, "eth0.7", 2)], route);
        world
    }

    fn on_link(address: IpAddr, _: Option<u32>) -> Destination {
        Destination::Hop(2, address)
    }

    fn reported(world: &mut World) -> Vec<Found> {
        world.news().into_iter().map(|(_, _, found)| found).collect()
    }

    #[test]
    fn what_is_found_moves_and_is_lost_is_told_once() {
        let mut world = world(&[ip(1)], &on_link);
        assert_eq!(reported(&mut world), [], "nothing is known yet");
        assert_eq!(world.ask(0), (vec![(2, ip(1))], false));
        world.set(2, ip(1), Some(NeighbourState::Asked));
        assert_eq!(reported(&mut world), []);
        for state in [NeighbourState::Sure(MAC), NeighbourState::Stale(MAC), NeighbourState::Sure(MAC)] {
            world.set(2, ip(1), Some(state));
            let expected: Vec<Found> =
                if state == NeighbourState::Stale(MAC) { vec![] } else { vec![Ok(MAC)] };
            let got = reported(&mut world);
            assert!(got.is_empty() || got == expected, "{state:?}: {got:?}");
        }
        world.set(2, ip(1), Some(NeighbourState::Sure(OTHER)));
        assert_eq!(reported(&mut world), [Ok(OTHER)]);
        world.set(2, ip(1), None);
        assert_eq!(reported(&mut world), [], "neighbours that the kernel forgot are resolved first");
        world.set(2, ip(1), Some(NeighbourState::Failed));
        assert_eq!(reported(&mut world), [Err("10.0.0.1 does not answer at eth0".to_string())]);
        assert_eq!(reported(&mut world), []);
    }

    #[test]
    fn a_port_is_where_its_interface_is_whatever_that_is_called() {
        let mut world = world(&[ip(1)], &on_link);
        world.set(2, ip(1), Some(NeighbourState::Sure(MAC)));
        assert_eq!(reported(&mut world), [Ok(MAC)]);
        world.find_ways(vec![link(2, "up1", 0)], &on_link);
        assert_eq!(reported(&mut world), [], "it was renamed");
        world.find_ways(vec![link(7, "eth0", 0)], &|address, _| Destination::Hop(7, address));
        world.set(7, ip(1), Some(NeighbourState::Sure(OTHER)));
        assert_eq!(reported(&mut world), [Ok(OTHER)], "it was created again");
        world.place(place(9, "up1"));
        world.find_ways(vec![link(7, "eth0", 0)], &on_link);
        assert_eq!(reported(&mut world), [Err("there is no interface up1".to_string())]);
    }

    #[test]
    fn others_are_followed_without_asking_again_for_those_that_stay() {
        let mut world = world(&[ip(1), ip(2)], &on_link);
        let states = |last: &[u8]| last.iter().map(|one| (2, ip(*one), NeighbourState::Sure(MAC))).collect();
        world.replace(states(&[1, 2, 3]));
        assert_eq!(reported(&mut world), [Ok(MAC), Ok(MAC)]);
        world.want_others(&"lb".into(), &hops(&[ip(3)]), &hops(&[ip(1)]));
        assert!(world.has_new());
        let only_new = |address: IpAddr, through: Option<u32>| {
            assert_eq!(address, ip(3), "only the new way is looked up");
            on_link(address, through)
        };
        world.find_new_ways(vec![link(2, "eth0", 0)], &only_new);
        assert!(!world.has_new());
        world.replace(states(&[1, 2, 3]));
        let news: Vec<IpAddr> = world.news().into_iter().map(|(_, hop, _)| hop.address).collect();
        assert_eq!(news, [ip(3)]);
        world.set(2, ip(1), Some(NeighbourState::Failed));
        world.set(2, ip(2), Some(NeighbourState::Sure(OTHER)));
        assert_eq!(reported(&mut world), [Ok(OTHER)], "the first is not followed any more");
        world.want_others(&"lb".into(), &hops(&[ip(3), ip(3)]), &[]);
        assert!(!world.has_new());
        assert_eq!(reported(&mut world), [Ok(MAC)], "what is wanted again is reported again, and once");
    }

    #[test]
    fn those_that_do_not_answer_are_asked_again_and_again_but_not_at_once() {
        let mut world = world(&[ip(1)], &on_link);
        world.set(2, ip(1), Some(NeighbourState::Failed));
        assert_eq!(world.ask(0).0.len(), 1);
        assert_eq!(world.ask(AGAIN_NS - 1).0, []);
        assert_eq!(world.ask(AGAIN_NS).0.len(), 1);
        world.set(2, ip(1), Some(NeighbourState::Sure(MAC)));
        assert_eq!(world.ask(60 * S).0, [], "the kernel is sure");
        world.set(2, ip(1), Some(NeighbourState::Stale(MAC)));
        assert_eq!(world.ask(61 * S).0, [(2, ip(1))]);
        assert_eq!(world.ask(62 * S).0, []);
    }

    #[test]
    fn thousands_are_asked_for_some_at_a_time() {
        let all: Vec<IpAddr> = (0..4096_u32).map(|at| Ipv4Addr::from(0x0a00_0000 + at).into()).collect();
        let mut world = world(&all, &on_link);
        let (mut turns, mut asked) = (1, HashSet::new());
        loop {
            let (some, more) = world.ask(0);
            assert!(some.len() <= AT_ONCE);
            some.into_iter().for_each(|one| assert!(asked.insert(one), "twice"));
            if !more {
                break;
            }
            turns += 1;
        }
        assert_eq!((turns, asked.len()), (4096 / AT_ONCE, 4096));
    }

    #[test]
    fn the_host_s_routes_say_who_the_neighbour_is() {
        let routes = |address: IpAddr, through: Option<u32>| match (address, through) {
            (address, _) if address == ip(1) => Destination::Hop(2, ip(254)),
            (address, None) if address == ip(2) => Destination::Hop(3, ip(2)),
            (address, Some(2)) if address == ip(2) => Destination::Hop(2, ip(2)),
            (address, _) if address == ip(3) => Destination::Hop(4, ip(3)),
            (address, _) if address == ip(4) => Destination::Local,
            _ => Destination::Unreachable,
        };
        let mut world = world(&[ip(1), ip(2), ip(3), ip(4), ip(5)], &routes);
        let (asked, _) = world.ask(0);
        assert_eq!(asked, [(2, ip(254)), (2, ip(2)), (4, ip(3))], "a router, this port, a VLAN of it");
        let none = ["10.0.0.4 is an address of this host", "the host has no route to 10.0.0.5 at eth0"];
        assert_eq!(reported(&mut world), none.map(|why| Err(why.to_string())));
        world.set(2, ip(254), Some(NeighbourState::Failed));
        let why = "10.0.0.254, the router to 10.0.0.1 does not answer at eth0";
        assert_eq!(reported(&mut world), [Err(why.to_string())]);
        world.set(2, ip(77), Some(NeighbourState::Sure(MAC)));
        assert_eq!(world.neighbours.len(), 1, "no other neighbours are wanted");
    }

    #[test]
    fn states_of_the_kernel() {
        assert_eq!(NeighbourState::of(2, Some(MAC)), NeighbourState::Sure(MAC));
        assert_eq!(NeighbourState::of(0x80, Some(MAC)), NeighbourState::Sure(MAC));
        assert_eq!(NeighbourState::of(4, Some(MAC)), NeighbourState::Stale(MAC));
        assert_eq!(NeighbourState::of(1, None), NeighbourState::Asked);
        assert_eq!(NeighbourState::of(0x20, Some(MAC)), NeighbourState::Failed);
        assert_eq!(
            NeighbourState::of(0x40, Some([0; 6])),
            NeighbourState::Failed,
            "a loopback interface has no neighbours"
        );
    }
}
