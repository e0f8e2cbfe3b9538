//! What `weir measure --from` reads over HTTP: which intervals are complete, and their sketches.

use super::board::{KeptInterval, MeasurePublisher};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};
use weir_app::Described;
use weir_app::http::{HttpControl, Listing, RequestNames, Route};
use weir_control::measure::{IntervalSketches, IntervalState, MEASUREMENTS, MeasurementState, Measurements};

const MEASUREMENT: &str = "/v1/measurements/{measurement}";
const INTERVAL: &str = "/v1/measurements/{measurement}/intervals/{start_ns}";

/// A measurement that can be read.
pub(super) struct ReadMeasurement {
    pub(super) name: String,
    pub(super) interval_ms: u64,
    /// Whether it has a seed.
    pub(super) seeded: bool,
    pub(super) board: MeasurePublisher,
}

/// Access to measurements, without the function that lists them.
pub(super) const HTTP: HttpControl = HttpControl {
    app: "",
    about: "Measurements of traffic, to be merged with those of other nodes.",
    routes: ROUTES,
    request: |_, _, _| Err("measurements are only read".to_string()),
    guard: |_, _, request| request,
    watch: None,
    list: |_, _, _| None,
    status: |_| 400,
    absent: [
        "there is no such measurement or interval",
        "There is no such measurement, or the interval is not complete, or no longer kept.",
    ],
    schemas,
};

const fn get(path: &'static str, gives: &'static str, says: &'static str) -> Route {
    Route { method: "GET", path, says, takes: None, most: 0, gives, done: 200 }
}

const ROUTES: &[Route] = &[
    get(MEASUREMENTS, "Measurements", "List the measurements, and their latest complete intervals."),
    get(MEASUREMENT, "MeasurementState", "Show a measurement."),
    get(INTERVAL, "IntervalSketches", "Get the sketches of a complete interval, by its start."),
];

/// Returns the object that a path names; `None` if it does not exist.
pub(super) fn list(all: &[ReadMeasurement], route: &Route, names: &RequestNames<'_>) -> Option<Listing> {
    let body = match names.of("measurement") {
        None => json!(Measurements { measurements: all.iter().map(state).collect() }),
        Some(name) => {
            let one = all.iter().find(|one| one.name == name)?;
            if route.path == INTERVAL { json!(sketches(one, names)?) } else { json!(state(one)) }
        }
    };
    Some(Listing { body, tag: None })
}

fn state(one: &ReadMeasurement) -> MeasurementState {
    let board = one.board.look();
    MeasurementState {
        name: one.name.clone(),
        interval_ms: one.interval_ms,
        seeded: one.seeded,
        now_ns: weir_app::clock::since_1970_ns(),
        intervals: board.kept.iter().map(|kept| kept.state.clone()).collect(),
    }
}

fn sketches(one: &ReadMeasurement, names: &RequestNames<'_>) -> Option<IntervalSketches> {
    let start_ns = names.of("start_ns")?.parse().ok()?;
    let kept = one.board.look().kept.iter().find(|kept| kept.state.start_ns == start_ns).cloned();
    let KeptInterval { file, names, .. } = kept?;
    Some(IntervalSketches {
        version: env!("CARGO_PKG_VERSION").to_string(),
        name: one.name.clone(),
        start_ns,
        sketches: BASE64_STANDARD.encode(file),
        names: names.to_vec(),
    })
}

fn schemas() -> Map<String, Value> {
    let all = json!({
        "Measurements": Measurements::schema(), "MeasurementState": MeasurementState::schema(),
        "IntervalState": IntervalState::schema(), "IntervalSketches": IntervalSketches::schema(),
    });
    all.as_object().cloned().unwrap_or_default()
}
