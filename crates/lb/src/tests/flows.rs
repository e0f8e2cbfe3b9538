//! What happens to flows when back ends change: the batch engine carries out the changes, like in the daemon.
//!
//! `WEIR_FLOWS=1000000 cargo test --release -p weir-lb random_changes` uses a million flows instead of 20
//! 000.

use super::*;
use proptest::prelude::*;
use weir_engine::batch::Engine;
use weir_engine::single::Processed;
use weir_packet::TableHash;
use weir_packet::random::Random;
use weir_program::Verdict;
use weir_program::buckets::GroupTables;
use weir_program::change::Change;

/// A program in a batch engine, and its clock.
pub(super) struct FlowRig {
    engine: Engine,
    /// The state that a daemon keeps across programs.
    tables: GroupTables,
    now_ns: u64,
}

impl FlowRig {
    pub fn new(program: &Program) -> FlowRig {
        let tables = GroupTables::new(program);
        let engine = Engine::with_tables(program, TableHash::new([1, 2]), &tables).expect("it compiles");
        FlowRig { engine, tables, now_ns: 0 }
    }

    /// Swaps the program, as a reload does.
    pub fn swap(&mut self, program: &Program) {
        self.tables = self.tables.succeed(program);
        let engine = Engine::with_tables(program, TableHash::new([1, 2]), &self.tables);
        let mut engine = engine.expect("it compiles");
        engine.inherit(&mut self.engine, self.now_ns);
        self.engine = engine;
    }

    pub fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            self.engine.apply(&change, self.now_ns).expect("it is possible");
        }
    }

    /// Returns the back end that a client's packet is sent to, `None` if it is dropped.
    pub fn send(&mut self, sport: u16) -> Option<u8> {
        self.send_from(Ipv4Addr::new(192, 0, 2, 1), sport)
    }

    fn send_from(&mut self, src: Ipv4Addr, sport: u16) -> Option<u8> {
        self.frame(&query(OURS, src, VIP, sport, 0))
    }

    /// Returns the back end that a frame is sent to, `None` if it is dropped.
    pub fn frame(&mut self, frame: &[u8]) -> Option<u8> {
        self.now_ns += 1_000;
        let Processed { verdict, bytes, .. } = self.engine.process_one(PortId(0), frame, self.now_ns);
        self.engine.take_deltas(|_| true);
        matches!(verdict, Verdict::Transmit(_)).then(|| {
            assert_eq!(bytes[..5], [2, 0, 0, 0, 1]);
            bytes[5]
        })
    }
}

/// What happens to back ends.
#[derive(Clone, Copy, Debug)]
enum Happens {
    /// A back end changes to this state.
    State(usize, State),
    /// A back end that is up gets this weight.
    Weight(usize, u32),
    /// A reload: the first back end is removed, or is added again.
    Reload(bool),
}

fn happens() -> impl Strategy<Value = Happens> {
    let states = [State::Up, State::Down, State::Draining, State::Maintenance];
    prop_oneof![
        4 => (0..BACK_ENDS, prop::sample::select(states.to_vec()))
            .prop_map(|(at, to)| Happens::State(at, to)),
        2 => (0..BACK_ENDS, 1..9_u32).prop_map(|(at, weight)| Happens::Weight(at, weight)),
        1 => any::<bool>().prop_map(Happens::Reload),
    ]
}

const BACK_ENDS: usize = 6;
const FLOWS: u16 = 60;

/// The configuration after a reload: states and weights come from the file, and the running app restores its
/// own.
fn configured(with_first: bool, states: &[State], weights: &[u32]) -> Program {
    let mut one = service("dns", By::FiveTuple);
    let mut all = back_ends(BACK_ENDS as u8).to_vec();
    for (at, back_end) in all.iter_mut().enumerate() {
        (back_end.state, back_end.weight) = (states[at], weights[at]);
    }
    one.back_ends = all.into_iter().skip(usize::from(!with_first)).collect();
    if one.back_ends.iter().all(|one| one.effective_weight() == 0) {
        one.back_ends =
            one.back_ends.iter().cloned().map(|one| BackEnd { state: State::Up, ..one }).collect();
    }
    program(vec![one], true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_change_of_back_ends_moves_no_flow_with_a_live_back_end(
        changes in prop::collection::vec(happens(), 1..25),
    ) {
        let (mut states, mut weights) = ([State::Up; BACK_ENDS], [1_u32; BACK_ENDS]);
        let mut with_first = true;
        // The running app knows the entries of all back ends, including those that are down.
        let full = configured(true, &states, &weights);
        let mut places = Place::find(&full, "dns");
        let mut rig = FlowRig::new(&full);
        let mut kept: Vec<Option<u8>> = (0..FLOWS).map(|flow| rig.send(flow)).collect();
        for change in changes {
            match change {
                Happens::State(at, to) if with_first => {
                    rig.apply(places[at].changes((states[at], to), weights[at]));
                    states[at] = to;
                }
                Happens::Weight(at, weight) if with_first && states[at] == State::Up => {
                    weights[at] = weight;
                    rig.apply(places[at].changes((State::Up, State::Up), weight));
                }
                Happens::Reload(with) if states.contains(&State::Up) => {
                    // Back ends that are down or in maintenance have no entry, before and after.
                    let is_left = states[1..].contains(&State::Up);
                    with_first = with || !is_left;
                    rig.swap(&configured(with_first, &states, &weights));
                    let all = configured(with_first, &[State::Up; BACK_ENDS], &weights);
                    places = Place::find(&all, "dns");
                }
                _ => continue,
            }
            for flow in 0..FLOWS {
                let (before, now) = (kept[usize::from(flow)], rig.send(flow));
                let lives = |at: u8| {
                    (with_first || at > 0) && states[usize::from(at)].keeps_flows()
                };
                if let Some(before) = before.filter(|at| lives(*at)) {
                    prop_assert_eq!(now, Some(before), "{:?}: flow {} moved", change, flow);
                } else if let Some(now) = now {
                    prop_assert!(lives(now) && states[usize::from(now)] == State::Up);
                } else {
                    let up = (0..BACK_ENDS).skip(usize::from(!with_first)).any(|at| states[at] == State::Up);
                    prop_assert!(!up, "{:?}: flow {} is lost", change, flow);
                }
                kept[usize::from(flow)] = now;
            }
        }
    }
}

#[test]
fn a_draining_back_end_keeps_its_flows_and_one_that_is_down_loses_them() {
    let program = program(vec![service("dns", By::FiveTuple)], true);
    let mut rig = FlowRig::new(&program);
    let places = Place::find(&program, "dns");
    let of =
        |rig: &mut FlowRig, flows: std::ops::Range<u16>| flows.map(|flow| rig.send(flow)).collect::<Vec<_>>();
    let before = of(&mut rig, 0..100);
    rig.apply(places[1].changes((State::Up, State::Draining), 1));
    assert_eq!(of(&mut rig, 0..100), before);
    assert!(!of(&mut rig, 100..200).contains(&Some(1)), "it gets no new ones");
    rig.apply(places[1].changes((State::Draining, State::Down), 1));
    let after = of(&mut rig, 0..100);
    assert!(!after.contains(&Some(1)) && !after.contains(&None));
    let moved = |(before, after): &(&Option<u8>, &Option<u8>)| before != after;
    assert_eq!(
        before.iter().zip(&after).filter(moved).count(),
        before.iter().filter(|one| **one == Some(1)).count(),
        "only its own have moved"
    );
    rig.apply(places[1].changes((State::Down, State::Up), 1));
    assert_eq!(of(&mut rig, 0..100), after);
    assert!(of(&mut rig, 200..300).contains(&Some(1)));
}

#[test]
fn a_full_table_moves_no_flow_and_new_ones_go_where_the_buckets_say() {
    let services = vec![service("dns", By::FiveTuple)];
    let small = program_of(Lb { services: services.clone(), flows: 16, ..Lb::default() }, true);
    let stateless = Service { stateless: true, ..services[0].clone() };
    let mut buckets = FlowRig::new(&program(vec![stateless], true));
    let mut rig = FlowRig::new(&small);
    let said: Vec<_> = (0..200).map(|flow| (rig.send(flow), buckets.send(flow))).collect();
    assert!(said.iter().all(|(sent, bucket)| sent == bucket && sent.is_some()));
    // Flows in the table stay, regardless of the buckets; the others follow the buckets.
    let places = Place::find(&small, "dns");
    rig.apply(places[0].changes((State::Up, State::Draining), 1));
    let is_first = |flow: &u16| said[usize::from(*flow)].0 == Some(0);
    let stayed = (0..200).filter(is_first).filter(|flow| rig.send(*flow) == Some(0));
    assert!((1..=16).contains(&stayed.count()));
}

#[test]
fn a_back_end_comes_out_of_maintenance_while_the_program_runs() {
    for stateless in [false, true] {
        let all = Service { stateless, ..service("dns", By::FiveTuple) };
        let mut fewer = all.clone();
        change(&mut fewer, |back_ends| back_ends[1].state = State::Maintenance);
        let mut rig = FlowRig::new(&program(vec![fewer], true));
        let places = Place::find(&program(vec![all], true), "dns");
        let sees = |rig: &mut FlowRig, flows: std::ops::Range<u16>| {
            flows.filter_map(|flow| rig.send(flow)).any(|to| to == 1)
        };
        assert!(!sees(&mut rig, 0..100));
        rig.apply(places[1].changes((State::Maintenance, State::Up), 1));
        assert!(sees(&mut rig, 100..200));
    }
}

/// Number of changes in the longest test.
const CHANGES: u32 = 10_000;
/// Flows that send a packet after each change.
const LOOKED_AT: u32 = 20;

/// Back ends that come, go and change weights.
struct Fleet {
    states: [State; BACK_ENDS],
    weights: [u32; BACK_ENDS],
    /// The number of the change in which each of them last lost its flows.
    lost: [u32; BACK_ENDS],
    flows: u32,
    random: Random,
}

impl Fleet {
    fn below(&mut self, limit: u32) -> u32 {
        self.random.drawn(limit)
    }

    fn program(&self, states: &[State]) -> Program {
        let mut one = service("dns", By::FiveTuple);
        let mut all = back_ends(BACK_ENDS as u8).to_vec();
        for (at, back_end) in all.iter_mut().enumerate() {
            (back_end.state, back_end.weight) = (states[at], self.weights[at]);
        }
        one.back_ends = all.into();
        program_of(Lb { services: vec![one], flows: self.flows * 2, ..Lb::default() }, true)
    }

    /// Changes something: mostly a weight, sometimes a state, and occasionally everything is reloaded.
    fn change(&mut self, number: u32, rig: &mut FlowRig, places: &[Place]) {
        let at = self.below(BACK_ENDS as u32) as usize;
        match self.below(100) {
            0 => rig.swap(&self.program(&self.states)),
            1..40 => {
                let to = [State::Up, State::Up, State::Draining, State::Down, State::Maintenance];
                let to = to[self.below(5) as usize];
                let others = (0..BACK_ENDS).any(|one| one != at && self.states[one] == State::Up);
                if to == State::Up || others {
                    rig.apply(places[at].changes((self.states[at], to), self.weights[at]));
                    self.states[at] = to;
                    if !to.keeps_flows() {
                        self.lost[at] = number;
                    }
                }
            }
            _ if self.states[at] == State::Up => {
                self.weights[at] = 1 + self.below(8);
                rig.apply(places[at].changes((State::Up, State::Up), self.weights[at]));
            }
            _ => {}
        }
    }
}

#[test]
fn ten_thousand_random_changes_move_no_flow_that_had_a_live_back_end() {
    let flows = std::env::var("WEIR_FLOWS").ok().map_or(20_000, |text| text.parse().expect("a number"));
    let (states, weights) = ([State::Up; BACK_ENDS], [1; BACK_ENDS]);
    let mut fleet = Fleet { states, weights, lost: [0; BACK_ENDS], flows, random: Random::new(7) };
    let full = fleet.program(&states);
    let (mut rig, places) = (FlowRig::new(&full), Place::find(&full, "dns"));
    let client =
        |flow: u32| (Ipv4Addr::from_bits(0x0a01_0000 + flow / 50_000), (flow % 50_000) as u16 + 1024);
    let send = |rig: &mut FlowRig, flow| {
        let (src, sport) = client(flow);
        rig.send_from(src, sport).expect("some back end is up")
    };
    // Where each flow is, and since which observed change.
    let mut homes: Vec<(u8, u32)> = (0..flows).map(|flow| (send(&mut rig, flow), 0)).collect();
    let mut moved = 0;
    for number in 1..=CHANGES + 1 {
        let last = number > CHANGES;
        if !last {
            fleet.change(number, &mut rig, &places);
        }
        for at in 0..if last { flows } else { LOOKED_AT } {
            let flow = if last { at } else { fleet.below(flows) };
            let (home, seen) = homes[flow as usize];
            let now = send(&mut rig, flow);
            if fleet.lost[usize::from(home)] <= seen {
                assert_eq!(now, home, "flow {flow} moved, change {number}");
            } else {
                assert_eq!(fleet.states[usize::from(now)], State::Up, "change {number}");
                moved += 1;
            }
            homes[flow as usize] = (now, number);
        }
    }
    assert!(moved > 1000, "{moved} flows lost their back end");
}
