//! The app as whoever drives it meets it, and its datagrams.

use super::{CLIENTS_MAX, Datagram, External, HEADER_BYTES, Kind, Problem, VERSION};
use crate::app::{Action, App, ClientId, Event, Heard, RequestId};
use crate::running::RunningApps;
use engine::program::{AppId, Origin, PortDeclaration, PortId, Program};
use packet::DropReason;
use serde_json::json;

const FRAME: &[u8] = &[0x11; 60];

fn program(ports: &[&str]) -> Program {
    let port = |name: &&str| PortDeclaration {
        name: name.to_string(),
        root: None,
        kernel_path: false,
        origin: Origin::default(),
    };
    Program { ports: ports.iter().map(port).collect(), apps: vec!["slow".into()], ..Program::default() }
}

fn app() -> External {
    let mut app = External::new("slow".into(), "/run/slow.sock".into(), Origin::default());
    app.bind(&program(&["p0", "p1"]));
    app
}

fn step(app: &mut External, event: Event<'_>) -> Vec<Action> {
    let mut actions = Vec::new();
    app.step(0, event, &mut actions);
    actions
}

fn heard(app: &mut External, client: u32, what: Heard<'_>) -> Vec<Action> {
    step(app, Event::Client { client: ClientId(client), what })
}

fn frame(app: &mut External) -> Vec<Action> {
    step(app, Event::Frame { app: "slow", input: PortId(1), bytes: FRAME })
}

/// Its counters: delivered, missed, unheard, bad.
fn counts(app: &External) -> [u64; 4] {
    let counts: Vec<u64> = app.counts().into_iter().map(|(_, count)| count).collect();
    counts.try_into().unwrap()
}

#[test]
fn every_client_gets_every_frame_and_without_one_it_is_unheard() {
    let mut app = app();
    assert_eq!(frame(&mut app), []);
    assert_eq!(heard(&mut app, 7, Heard::Came), []);
    assert_eq!(heard(&mut app, 9, Heard::Came), []);
    let bytes = [&[1, 1, 2, 0, 0, 0, 0, 60][..], b"p1", FRAME].concat();
    let tell = |client| Action::Tell { client: ClientId(client), bytes: bytes.clone() };
    assert_eq!(frame(&mut app), [tell(7), tell(9)]);
    heard(&mut app, 7, Heard::Missed);
    heard(&mut app, 7, Heard::Went);
    assert_eq!(frame(&mut app), [tell(9)]);
    assert_eq!(counts(&app), [2, 1, 1, 0]);
}

#[test]
fn what_clients_say_goes_out_or_through() {
    let mut app = app();
    let said = |app: &mut External, kind, port| {
        let bytes = Datagram { kind, port, frame: FRAME }.bytes();
        heard(app, 1, Heard::Said(&bytes))
    };
    let bytes = FRAME.to_vec();
    assert_eq!(said(&mut app, Kind::Out, "p1"), [Action::Inject { bytes: bytes.clone(), output: PortId(1) }]);
    assert_eq!(said(&mut app, Kind::Through, "p0"), [Action::InjectThrough { bytes, input: PortId(0) }]);
    assert_eq!(counts(&app), [0; 4]);
}

#[test]
fn a_bad_datagram_is_answered_and_counted() {
    let good = Datagram { kind: Kind::Out, port: "p1", frame: FRAME }.bytes();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let short = Datagram { kind: Kind::Out, port: "p1", frame: &FRAME[..13] }.bytes();
    let has = good.len();
    for (bytes, problem) in [
        (vec![], Problem::Short(0)),
        (good[..HEADER_BYTES - 1].to_vec(), Problem::Short(HEADER_BYTES - 1)),
        (with(0, 2), Problem::Version(2)),
        (with(1, 0), Problem::Kind(0)),
        (with(1, Kind::Punted as u8), Problem::Kind(1)),
        (with(1, Kind::Refused as u8), Problem::Kind(4)),
        (with(3, 1), Problem::Reserved(1)),
        (with(2, 255), Problem::Length { said: has as u64 + 253, has }),
        (with(4, 255), Problem::Length { said: has as u64 + (255 << 24), has }),
        (good[..has - 1].to_vec(), Problem::Length { said: has as u64, has: has - 1 }),
        (with(8, 255), Problem::Name),
        (with(9, b'7'), Problem::Port("p7".into())),
        (short, Problem::Frame(13)),
    ] {
        let mut app = app();
        let why = problem.to_string();
        let bytes_told = [&[VERSION, 4, 0, 0, 0, 0, 0, why.len() as u8][..], why.as_bytes()].concat();
        let tell = Action::Tell { client: ClientId(3), bytes: bytes_told };
        assert_eq!(heard(&mut app, 3, Heard::Said(&bytes)), [tell], "{why}");
        assert_eq!(counts(&app), [0, 0, 0, 1]);
    }
}

#[test]
fn one_client_too_many_is_sent_away() {
    let mut app = app();
    for client in 0..CLIENTS_MAX as u32 {
        assert_eq!(heard(&mut app, client, Heard::Came), []);
    }
    let actions = heard(&mut app, 99, Heard::Came);
    assert!(matches!(actions[..], [Action::Tell { client: ClientId(99), .. }, Action::Leave(ClientId(99))]));
    heard(&mut app, 99, Heard::Missed);
    heard(&mut app, 99, Heard::Went);
    assert_eq!((frame(&mut app).len(), counts(&app)), (CLIENTS_MAX, [CLIENTS_MAX as u64, 0, 0, 0]));
    heard(&mut app, 0, Heard::Went);
    assert_eq!(heard(&mut app, 100, Heard::Came), []);
}

#[test]
fn it_takes_no_requests() {
    let actions = step(&mut app(), Event::Request { id: RequestId(5), request: &json!("hello") });
    assert!(matches!(&actions[..], [Action::Answer { id: RequestId(5), answer: Err(_) }]));
}

fn running(before: RunningApps, name: &str, ports: &[&str]) -> RunningApps {
    let app = External::new(name.into(), "/run/slow.sock".into(), Origin::default());
    let program = Program { apps: vec!["nobody".into(), name.into()], ..program(ports) };
    RunningApps::new(vec![Box::new(app)], before, &program)
}

#[test]
fn a_successor_of_the_same_name_goes_on() {
    let mut apps = running(RunningApps::default(), "slow", &["p0", "p1"]);
    assert_eq!((apps.owner(AppId(0)), apps.owner(AppId(1)), apps.owner(AppId(2))), (None, Some(0), None));
    assert_eq!((apps.name(AppId(1)), apps.named("slow"), apps.named("fast")), ("slow", Some(0), None));
    let came = Event::Client { client: ClientId(1), what: Heard::Came };
    assert_eq!(apps.step(0, 0, came), []);
    let punt = |apps: &mut RunningApps| {
        let actions = apps.step(0, 0, Event::Frame { app: "slow", input: PortId(0), bytes: FRAME });
        let [Action::Tell { bytes, .. }] = &actions[..] else { panic!("{actions:?}") };
        String::from_utf8_lossy(&bytes[8..10]).into_owned()
    };
    assert_eq!(punt(&mut apps), "p0");
    // Ports change places: it is bound anew, and its client and its account are still there.
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
    let inject = || engine::worker::Inject { bytes: FRAME.to_vec(), output: None, input: PortId(0) };
    let mut answers = Vec::new();
    for _ in 0..crate::INJECTS_MAX + 3 {
        apps.inject(0, inject(), |_, answer| {
            answers.push(answer);
            true
        });
    }
    assert_eq!((answers.len(), apps.has_room(0), apps.account(0).refused), (crate::INJECTS_MAX, false, 3));
    // A reload does not forget them.
    let mut apps = running(apps, "slow", &["p0"]);
    assert!(!apps.has_room(0));
    for (number, answer) in answers.into_iter().enumerate() {
        answer
            .try_send(if number == 0 { Err(DropReason::TransmitFull) } else { Ok(()) })
            .expect("room for every answer");
    }
    assert_eq!(apps.collect(), crate::INJECTS_MAX);
    assert_eq!((apps.account(0).injected, apps.account(0).refused), (crate::INJECTS_MAX as u64 - 1, 4));
    apps.inject(0, inject(), |_, _| false);
    assert_eq!((apps.has_room(0), apps.account(0).refused), (true, 5));
}

/// An app that wants to be woken at a time of its own.
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
