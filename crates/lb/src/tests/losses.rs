//! What happens to flows when back ends seem to be lost: together with weir's own link, all at once, or a
//! single one. The tests cover every mode and way of choosing, and back ends by `ip` or `mac`, with and
//! without checks.

use super::flows::FlowRig;
use super::*;
use crate::health::{Fail, Guarded, Health, LbApp, SETTLE_NS, Times, Watch};
use serde_json::Value;
use std::collections::HashMap;
use weir_app::check::{Ask, Check};
use weir_app::neighbour::{Found, Hop, Mac};
use weir_app::{Action, App, Event, RequestId};
use weir_program::change::Change;
use weir_program::{NatPool, NatPoolId, NatPrefix};

const MS: u64 = 1_000_000;
const COUNT: u8 = 3;
/// All checks happen within the same few milliseconds.
const TIMES: Times = Times { interval_ns: 10 * MS, jitter: 0, rise: 2, fall: 3, slow_start_ns: 0 };

fn address_of(at: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 1, at + 1).into()
}

fn hop(at: u8) -> Hop {
    Hop { port: "p0".into(), address: address_of(at) }
}

fn mac(at: u8) -> Mac {
    [2, 0, 0, 0, 1, at]
}

/// Every mode, to the back end with this number.
pub(super) fn modes_at(at: u8) -> [Mode; 7] {
    let ip = address_of(at);
    let vxlan = Mode::Vxlan { ip, vni: 7, inner_mac: [2, 0, 0, 0, 7, 7] };
    let (nat, full) = (Mode::Nat { ip, port: None }, Mode::FullNat { ip, port: None });
    [Mode::L2, Mode::Ipip(ip), Mode::Gue(ip), Mode::Gre(ip), vxlan, nat, full]
}

/// A kind of service with flows.
#[derive(Clone, Copy, Debug)]
struct ServiceKind {
    mode: usize,
    new_flows: NewFlows,
    resolved: bool,
    checked: bool,
    fail: Fail,
}

fn kinds() -> Vec<ServiceKind> {
    let mut all = Vec::new();
    for mode in 0..modes_at(0).len() {
        for new_flows in [NewFlows::Hash, NewFlows::RoundRobin, NewFlows::LeastFlows] {
            for (resolved, checked) in [(false, false), (true, false), (false, true), (true, true)] {
                // Without checks, it makes no difference.
                let fails = [Fail::All, Fail::Drop, Fail::Last, Fail::Reject];
                for fail in fails.into_iter().take(if checked { 4 } else { 1 }) {
                    all.push(ServiceKind { mode, new_flows, resolved, checked, fail });
                }
            }
        }
    }
    all
}

/// A load balancer with one service in one of the modes, with `count` back ends.
pub(super) fn balanced(mode: usize, count: u8) -> Lb {
    let mut one = service("dns", By::FiveTuple);
    one.source = (Some((Ipv4Addr::new(10, 0, 1, 254), 0)), None);
    one.back_ends = back_ends(count);
    change(&mut one, |all| {
        for (back_end, at) in all.iter_mut().zip(0..) {
            back_end.mode = modes_at(at)[mode];
        }
    });
    let mut nat_pools = Vec::new();
    if let Mode::FullNat { .. } = one.back_ends[0].mode {
        one.nat_pool = Some(NatPoolId(0));
        let prefixes = vec![NatPrefix { first: Ipv4Addr::new(10, 0, 1, 200).into(), length: 32 }];
        let (first, last, origin) = (1024, 65_535, Origin::default());
        nat_pools.push(NatPool { name: "pool".into(), prefixes, first, last, origin });
    }
    Lb { services: vec![one], flows: 1024, nat_pools, ..Lb::default() }
}

fn balancer(kind: ServiceKind) -> Lb {
    let mut lb = balanced(kind.mode, COUNT);
    lb.services[0].new_flows = kind.new_flows;
    if kind.resolved {
        change(&mut lb.services[0], |all| {
            for (back_end, at) in all.iter_mut().zip(0..) {
                (back_end.mac, back_end.resolve) = ([0; 6], Some(address_of(at)));
            }
        });
    }
    let watch = |at| {
        let ask = Ask::Tcp;
        let check = Check {
            address: address_of(at),
            port: 80,
            ask,
            timeout_ns: 5 * MS,
            via: None,
            close: Default::default(),
        };
        kind.checked.then(|| Watch { check: Arc::new(check), times: TIMES, drains: false })
    };
    let back_ends = (0..COUNT).map(|at| (format!("b{at}"), 1, watch(at))).collect();
    let (is_announced, routed) = (true, None);
    let guarded = Arc::new(Guarded {
        name: "dns".into(),
        fail: kind.fail,
        passive: None,
        is_announced,
        routed,
        back_ends,
    });
    let ports = [0, 1].map(|at| PortConfig::new(format!("p{at}"), PortKind::Mem));
    let neighbours = Neighbours::of(&lb.services, std::slice::from_ref(&guarded), &ports);
    lb.health = Health { services: vec![guarded], neighbours, ..Health::default() };
    lb.health.find(&lb.services, &program_of(lb.clone(), true));
    lb
}

/// The app, the engine that carries out its changes, and a surrounding network.
struct LossyNetwork {
    app: LbApp,
    engine: FlowRig,
    kind: ServiceKind,
    now_ns: u64,
    /// Back ends that are cut off in both directions.
    silent: Vec<u8>,
    /// The neighbours that the kernel has been asked to confirm.
    confirmed: Vec<Hop>,
}

impl LossyNetwork {
    fn new(kind: ServiceKind) -> LossyNetwork {
        let lb = balancer(kind);
        let mut program = program_of(lb.clone(), true);
        lb.settle(&(0..COUNT).map(|at| (hop(at), mac(at))).collect::<HashMap<_, _>>(), &mut program);
        let mut app = LbApp::new(lb.health.clone());
        app.bind(&program);
        let engine = FlowRig::new(&program);
        let mut world =
            LossyNetwork { app, engine, kind, now_ns: 0, silent: Vec::new(), confirmed: Vec::new() };
        world.step(Event::Start);
        world.link(true);
        world.run(100);
        world
    }

    fn step(&mut self, event: Event<'_>) {
        let mut actions = Vec::new();
        self.app.step(self.now_ns, event, &mut actions);
        for action in actions {
            match action {
                Action::Change(change) => self.engine.apply(vec![change]),
                Action::Check { id, check } => {
                    let is_silent = self.silent.iter().any(|at| address_of(*at) == check.address);
                    let outcome = if is_silent { Err("no answer".to_string()) } else { Ok(()) };
                    self.step(Event::Checked { id, outcome: &outcome });
                }
                Action::Confirm(hop) => self.confirmed.push(hop),
                Action::Say(..) | Action::Resolve(_) | Action::Answer { .. } | Action::Publish { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Advances time.
    fn run(&mut self, ms: u64) {
        let until_ns = self.now_ns + ms * MS;
        while let Some(wake_ns) = self.app.wake_ns().filter(|wake_ns| *wake_ns <= until_ns) {
            self.now_ns = self.now_ns.max(wake_ns);
            self.step(Event::Tick);
        }
        self.now_ns = until_ns;
    }

    fn link(&mut self, up: bool) {
        assert_eq!(self.app.watches(), [PortId(0)]);
        self.step(Event::Link { port: PortId(0), up, speed_bps: None });
    }

    /// Reports that the host has found a neighbour, or that the neighbour does not answer.
    fn met(&mut self, at: u8, answers: bool) {
        if self.kind.resolved {
            let found: Found = if answers { Ok(mac(at)) } else { Err("it does not answer".to_string()) };
            self.step(Event::Neighbour { hop: &hop(at), found: &found });
        }
    }

    /// Back ends fall silent, one millisecond after the other.
    fn lose(&mut self, lost: &[u8]) {
        for at in lost {
            self.silent.push(*at);
            self.met(*at, false);
            self.run(1);
        }
    }

    fn regain(&mut self, at: u8) {
        self.silent.retain(|one| *one != at);
        self.met(at, true);
    }

    fn request(&mut self, words: &str) {
        self.step(Event::Request { id: RequestId(1), request: &Value::from(words) });
    }

    /// Where open connections go.
    fn flows(&mut self) -> Vec<Option<u8>> {
        (1000..1012).map(|sport| self.engine.send(sport)).collect()
    }
}

/// How the back ends are lost, and found again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    /// Together with the link: the kernel reports neighbours before weir polls the link.
    Link,
    /// All at once, because of a failure farther away.
    All,
}

#[test]
fn without_link_or_with_all_lost_at_once_no_flow_ends() {
    for kind in kinds() {
        for loss in [Loss::Link, Loss::All] {
            let mut world = LossyNetwork::new(kind);
            let before = world.flows();
            assert!(before.iter().all(Option::is_some), "{kind:?}");
            world.lose(&[0, 1, 2]);
            if loss == Loss::Link {
                world.run(15);
                world.link(false);
            }
            for second in 0..8 {
                world.run(1000);
                assert_eq!(world.flows(), before, "{second} s of {loss:?}: {kind:?}");
            }
            if loss == Loss::Link {
                world.link(true);
                world.run(3000);
                assert_eq!(world.flows(), before, "the switch forwards nothing yet: {kind:?}");
            }
            // They return one after the other, and the first could take all flows.
            for at in [2, 0, 1] {
                world.regain(at);
                world.run(1500);
                assert_eq!(world.flows(), before, "b{at} is back after {loss:?}: {kind:?}");
            }
            world.run(SETTLE_NS / MS + 100);
            assert_eq!(world.flows(), before, "{loss:?}: {kind:?}");
        }
    }
}

#[test]
fn one_that_is_lost_alone_or_stays_lost_gives_its_flows_away() {
    let can_lose = |kind: &ServiceKind| kind.resolved || kind.checked;
    for kind in kinds().into_iter().filter(can_lose) {
        let mut world = LossyNetwork::new(kind);
        let before = world.flows();
        world.lose(&[1]);
        world.run(100);
        let after = world.flows();
        for (before, after) in before.iter().zip(&after) {
            assert!(after.is_some_and(|to| to != 1), "{kind:?}");
            assert!(*before == Some(1) || before == after, "{kind:?}");
        }
        // Back end 1 does not return with the link.
        let mut world = LossyNetwork::new(kind);
        let before = world.flows();
        assert!(before.contains(&Some(1)), "{kind:?}");
        world.lose(&[0, 1, 2]);
        world.link(false);
        world.run(1000);
        world.link(true);
        world.regain(0);
        world.regain(2);
        world.run(SETTLE_NS / MS - 100);
        assert_eq!(world.flows(), before, "{kind:?}");
        world.run(200);
        assert!(!world.flows().contains(&Some(1)), "{kind:?}");
    }
}

#[test]
fn what_an_operator_wants_holds_without_a_link() {
    for kind in kinds() {
        let mut world = LossyNetwork::new(kind);
        let before = world.flows();
        world.request("drain dns b0");
        world.lose(&[0, 1, 2]);
        world.run(10);
        world.link(false);
        world.run(1000);
        assert_eq!(world.flows(), before, "a drained back end keeps its flows: {kind:?}");
        world.request("maintenance dns b0");
        assert!(!world.flows().contains(&Some(0)), "one in maintenance does not: {kind:?}");
    }
}

#[test]
fn a_reload_and_another_process_know_the_last_mac_addresses() {
    let kind = ServiceKind {
        mode: 0,
        new_flows: NewFlows::RoundRobin,
        resolved: true,
        checked: true,
        fail: Fail::Drop,
    };
    let mut world = LossyNetwork::new(kind);
    world.lose(&[0, 1, 2]);
    world.link(false);
    world.run(1000);
    let saved = world.app.state().expect("neighbours").to_string();
    assert_eq!(saved.matches("neighbour").count(), 3, "{saved}");
    let lb = balancer(kind);
    let mut program = program_of(lb.clone(), true);
    lb.settle(&(0..COUNT).map(|at| (hop(at), mac(at))).collect::<HashMap<_, _>>(), &mut program);
    let mut heir = LbApp::new(lb.health);
    heir.inherit(Box::new(world.app));
    heir.bind(&program);
    let mut actions = Vec::new();
    heir.step(world.now_ns, Event::Start, &mut actions);
    for at in 0..COUNT {
        let found: Found = Err("gone".to_string());
        heir.step(world.now_ns, Event::Neighbour { hop: &hop(at), found: &found }, &mut actions);
        heir.step(world.now_ns + 100 * MS, Event::Tick, &mut actions);
    }
    let removed = actions.iter().any(|one| matches!(one, Action::Change(Change::Remove { .. })));
    assert!(!removed, "{actions:?}");
}

/// The back end's address may have moved to another MAC address. Once the back end is down, the kernel's own
/// timers suffice.
#[test]
fn a_failed_check_has_the_neighbour_confirmed_until_the_back_end_is_down() {
    for resolved in [true, false] {
        let (mode, new_flows) = (0, NewFlows::Hash);
        let mut world =
            LossyNetwork::new(ServiceKind { mode, new_flows, resolved, checked: true, fail: Fail::All });
        assert_eq!(world.confirmed, []);
        world.silent.push(1);
        world.run(1000);
        let wanted = if resolved { TIMES.fall as usize } else { 0 };
        assert_eq!(world.confirmed, vec![hop(1); wanted]);
    }
}
