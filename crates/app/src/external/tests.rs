//! The external app through its public interface, and its datagrams.

use super::{CLIENTS_MAX, Datagram, DatagramKind, External, HEADER_BYTES, Problem, VERSION};
use crate::app::{Action, App, ClientEvent, ClientId, Event, RequestId};
use serde_json::json;
use weir_program::builder::ProgramBuilder;
use weir_program::{Origin, PortId, Program};

const FRAME: &[u8] = &[0x11; 60];

fn program(ports: &[&str]) -> Program {
    let mut program = ProgramBuilder::new();
    ports.iter().for_each(|port| _ = program.port(*port));
    program.app("slow");
    program.build()
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

fn heard(app: &mut External, client: u32, what: ClientEvent<'_>) -> Vec<Action> {
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
    assert_eq!(heard(&mut app, 7, ClientEvent::Connected), []);
    assert_eq!(heard(&mut app, 9, ClientEvent::Connected), []);
    let bytes = [&[1, 1, 2, 0, 0, 0, 0, 60][..], b"p1", FRAME].concat();
    let tell = |client| Action::SendToClient { client: ClientId(client), bytes: bytes.clone() };
    assert_eq!(frame(&mut app), [tell(7), tell(9)]);
    heard(&mut app, 7, ClientEvent::Lost);
    heard(&mut app, 7, ClientEvent::Disconnected);
    assert_eq!(frame(&mut app), [tell(9)]);
    assert_eq!(counts(&app), [2, 1, 1, 0]);
}

#[test]
fn what_clients_say_goes_out_or_through() {
    let mut app = app();
    let said = |app: &mut External, kind, port| {
        let bytes = Datagram { kind, port, frame: FRAME }.bytes();
        heard(app, 1, ClientEvent::Datagram(&bytes))
    };
    let bytes = FRAME.to_vec();
    assert_eq!(
        said(&mut app, DatagramKind::Out, "p1"),
        [Action::Inject { bytes: bytes.clone(), output: PortId(1) }]
    );
    assert_eq!(
        said(&mut app, DatagramKind::Through, "p0"),
        [Action::InjectThrough { bytes, input: PortId(0) }]
    );
    assert_eq!(counts(&app), [0; 4]);
}

#[test]
fn a_bad_datagram_is_answered_and_counted() {
    let good = Datagram { kind: DatagramKind::Out, port: "p1", frame: FRAME }.bytes();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let short = Datagram { kind: DatagramKind::Out, port: "p1", frame: &FRAME[..13] }.bytes();
    let has = good.len();
    for (bytes, problem) in [
        (vec![], Problem::Short(0)),
        (good[..HEADER_BYTES - 1].to_vec(), Problem::Short(HEADER_BYTES - 1)),
        (with(0, 2), Problem::Version(2)),
        (with(1, 0), Problem::Kind(0)),
        (with(1, DatagramKind::Punted as u8), Problem::Kind(1)),
        (with(1, DatagramKind::Refused as u8), Problem::Kind(4)),
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
        let tell = Action::SendToClient { client: ClientId(3), bytes: bytes_told };
        assert_eq!(heard(&mut app, 3, ClientEvent::Datagram(&bytes)), [tell], "{why}");
        assert_eq!(counts(&app), [0, 0, 0, 1]);
    }
}

#[test]
fn one_client_too_many_is_sent_away() {
    let mut app = app();
    for client in 0..CLIENTS_MAX as u32 {
        assert_eq!(heard(&mut app, client, ClientEvent::Connected), []);
    }
    let actions = heard(&mut app, 99, ClientEvent::Connected);
    assert!(matches!(
        actions[..],
        [Action::SendToClient { client: ClientId(99), .. }, Action::Leave(ClientId(99))]
    ));
    heard(&mut app, 99, ClientEvent::Lost);
    heard(&mut app, 99, ClientEvent::Disconnected);
    assert_eq!((frame(&mut app).len(), counts(&app)), (CLIENTS_MAX, [CLIENTS_MAX as u64, 0, 0, 0]));
    heard(&mut app, 0, ClientEvent::Disconnected);
    assert_eq!(heard(&mut app, 100, ClientEvent::Connected), []);
}

#[test]
fn it_takes_no_requests() {
    let actions = step(&mut app(), Event::Request { id: RequestId(5), request: &json!("hello") });
    assert!(matches!(&actions[..], [Action::Answer { id: RequestId(5), answer: Err(_) }]));
}
