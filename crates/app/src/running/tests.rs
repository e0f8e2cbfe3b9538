//! Running apps through their public interface.

use super::{INJECTS_MAX, RunningApps, buckets};
use crate::app::{Action, App, ClientEvent, ClientId, Event};
use crate::external::External;
use weir_engine::worker::{BucketReport, Inject};
use weir_packet::DropReason;
use weir_program::builder::ProgramBuilder;
use weir_program::{AppId, Origin, PortId, Program};

const FRAME: &[u8] = &[0x11; 60];

fn program(ports: &[&str], name: &str) -> Program {
    let mut program = ProgramBuilder::new();
    ports.iter().for_each(|port| _ = program.port(*port));
    ["nobody", name].into_iter().for_each(|app| _ = program.app(app));
    program.build()
}

fn running(before: RunningApps, name: &str, ports: &[&str]) -> RunningApps {
    let app = External::new(name.into(), "/run/slow.sock".into(), Origin::default());
    RunningApps::new(vec![Box::new(app)], before, &program(ports, name))
}

#[test]
fn a_successor_of_the_same_name_goes_on() {
    let mut apps = running(RunningApps::default(), "slow", &["p0", "p1"]);
    assert_eq!((apps.owner(AppId(0)), apps.owner(AppId(1)), apps.owner(AppId(2))), (None, Some(0), None));
    assert_eq!((apps.name(AppId(1)), apps.named("slow"), apps.named("fast")), ("slow", Some(0), None));
    let came = Event::Client { client: ClientId(1), what: ClientEvent::Connected };
    assert_eq!(apps.step(0, 0, came), []);
    let punt = |apps: &mut RunningApps| {
        let actions = apps.step(0, 0, Event::Frame { app: "slow", input: PortId(0), bytes: FRAME });
        let [Action::SendToClient { bytes, .. }] = &actions[..] else { panic!("{actions:?}") };
        String::from_utf8_lossy(&bytes[8..10]).into_owned()
    };
    assert_eq!(punt(&mut apps), "p0");
    // The ports swap numbers: the app is bound again, and keeps its client and its counts.
    let mut apps = running(apps, "slow", &["p1", "p0"]);
    assert_eq!((punt(&mut apps), apps.account(0).punted), ("p1".to_string(), 2));
    let mut apps = running(apps, "other", &["p0"]);
    assert_eq!((apps.account(0).punted, apps.app(0).counts()[0].1), (0, 0));
    let frame = Event::Frame { app: "other", input: PortId(0), bytes: FRAME };
    assert_eq!(apps.step(0, 0, frame), [], "it has no client");
}

#[test]
fn frames_on_their_way_are_bounded_and_each_is_accounted_for() {
    let mut apps = running(RunningApps::default(), "slow", &["p0"]);
    let inject = || Inject { bytes: FRAME.to_vec(), output: None, input: PortId(0) };
    let mut answers = Vec::new();
    for _ in 0..INJECTS_MAX + 3 {
        apps.inject(0, inject(), |_, answer| {
            answers.push(answer);
            true
        });
    }
    assert_eq!((answers.len(), apps.has_room(0), apps.account(0).refused), (INJECTS_MAX, false, 3));
    // A reload keeps them.
    let mut apps = running(apps, "slow", &["p0"]);
    assert!(!apps.has_room(0));
    for (number, answer) in answers.into_iter().enumerate() {
        answer
            .try_send(if number == 0 { Err(DropReason::TransmitFull) } else { Ok(()) })
            .expect("room for every answer");
    }
    assert_eq!(apps.collect(), INJECTS_MAX);
    assert_eq!((apps.account(0).injected, apps.account(0).refused), (INJECTS_MAX as u64 - 1, 4));
    apps.inject(0, inject(), |_, _| false);
    assert_eq!((apps.has_room(0), apps.account(0).refused), (true, 5));
}

/// An app that asks to be woken at a given time.
struct Sleeper(Option<u64>);

impl App for Sleeper {
    fn name(&self) -> &str {
        "sleeper"
    }

    fn kind(&self) -> &'static str {
        "sleeper"
    }

    fn bind(&mut self, _program: &Program) {}

    fn step(&mut self, _now_ns: u64, _event: Event<'_>, _actions: &mut Vec<Action>) {}

    fn wake_ns(&self) -> Option<u64> {
        self.0
    }
}

#[test]
fn one_that_always_wants_to_be_woken_is_woken_once_a_millisecond() {
    let both: Vec<Box<dyn App>> = vec![Box::new(Sleeper(None)), Box::new(Sleeper(Some(5)))];
    let mut apps = RunningApps::new(both, RunningApps::default(), &Program::default());
    assert_eq!((apps.wake_ns(), apps.due(4), apps.due(5)), (Some(5), None, Some(1)));
    assert_eq!(apps.step(1, 7, Event::Tick), []);
    assert_eq!((apps.wake_ns(), apps.due(1_000_006), apps.due(1_000_007)), (Some(1_000_007), None, Some(1)));
}

#[test]
fn buckets_are_summed_over_workers() {
    let group = |counts: &[u64], moved| BucketReport {
        slots: vec![moved as u16; 2],
        packets: counts.to_vec(),
        bytes: counts.iter().map(|count| count * 100).collect(),
        moved,
        moved_busy: 1,
        pending: 2,
    };
    let sum = buckets([group(&[1, 2], 7), group(&[10, 20], 9)]);
    assert_eq!((sum.slots, sum.packets, sum.bytes), (vec![7, 7], vec![11, 22], vec![1100, 2200]));
    assert_eq!((sum.moved, sum.moved_busy, sum.pending), (16, 2, 4));
    assert_eq!(buckets([]), BucketReport::default());
}
