//! The app's answers from the collector's published results.

use super::board::Measure;
use super::{Export, MeasurePublisher, Sum, text};
use crate::{FlowRecord, Query, Report, Seed, Settings, Summary};
use serde_json::{Value, json};
use std::sync::Arc;
use weir_app::{Action, App, Event, RequestId};
use weir_packet::{FlowKey, Observed};

/// The report of an interval of a second with two flows.
fn report() -> Report {
    let mut summary =
        Summary::new(&Settings { memory: 8 << 20, keys: 256, ..Settings::default() }, Seed::new([1, 2]));
    for (sport, packets) in [(7, 30), (8, 12)] {
        let key = FlowKey::new([192, 0, 2, 1].into(), [10, 0, 0, 2].into(), 17, (sport, 53), None);
        summary.add(&FlowRecord {
            key,
            packets,
            bytes: 100 * packets,
            first_ns: 5,
            last_ns: 6,
            observed: Observed::default(),
        });
    }
    summary.close(0, 1_000_000_000)
}

fn app(board: &MeasurePublisher) -> Measure {
    Measure { name: "edge".into(), interval_ms: 1_000, board: board.clone() }
}

fn snapshot(board: &MeasurePublisher) {
    let report = report();
    let mut snapshot = board.look();
    snapshot.history.push_back(Sum::of(&report));
    (snapshot.records, snapshot.intervals, snapshot.late) = ([2, 42, 4200], 1, 5);
    snapshot.shed = vec![Query::SPREADERS];
    snapshot.ipfix = Some(Export { sent: 1, lost: 1, works: false });
    snapshot.interval = Some(Arc::new(report));
}

fn asked(app: &mut Measure, request: &str) -> Result<Value, String> {
    let mut actions = Vec::new();
    app.step(0, Event::Request { id: RequestId(1), request: &json!(request) }, &mut actions);
    match actions.pop() {
        Some(Action::Answer { answer, .. }) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn before_the_first_interval_it_says_that_there_is_none() {
    let answer = asked(&mut app(&MeasurePublisher::default()), "interval").unwrap();
    assert_eq!((&answer["last"], &answer["packets"]), (&Value::Null, &json!(0)));
    assert!(text::interval(&answer).contains("no interval has finished yet"));
}

#[test]
fn an_interval_is_told_with_what_must_be_known_of_it() {
    let board = MeasurePublisher::default();
    snapshot(&board);
    let answer = asked(&mut app(&board), "interval").unwrap();
    assert_eq!((&answer["last"]["packets"], &answer["late_packets"]), (&json!(42), &json!(5)));
    let text = text::interval(&answer);
    for part in ["measurement edge", "192.0.2.1", "spreaders", "the collector is unreachable", "late_packets"]
    {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let history = asked(&mut app(&board), "history").unwrap();
    assert_eq!(history["history"][0]["packets"], 42);
    assert!(text::history(&history).lines().count() > 4);
    assert!(asked(&mut app(&board), "nonsense").is_err());
}

#[test]
fn the_number_of_its_metrics_does_not_depend_on_the_traffic() {
    let board = MeasurePublisher::default();
    snapshot(&board);
    let app = app(&board);
    assert_eq!((app.gauges().len(), app.counts().len()), (7, 11));
    assert_eq!(app.gauges()[0], ("interval_packets", 42.0));
}

#[test]
fn after_a_reload_the_last_interval_is_still_there() {
    let (old, new) = (MeasurePublisher::default(), MeasurePublisher::default());
    snapshot(&old);
    let mut heir = app(&new);
    heir.inherit(Box::new(app(&old)));
    assert_eq!(asked(&mut heir, "interval").unwrap()["last"]["packets"], 42);
    // The results that the collector has published for the new app stay.
    new.look().intervals = 9;
    heir.inherit(Box::new(app(&MeasurePublisher::default())));
    assert_eq!(asked(&mut heir, "interval").unwrap()["intervals"], 9);
}
