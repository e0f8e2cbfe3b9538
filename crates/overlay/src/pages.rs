//! The page of overlays in `weir top`.

use super::text::{numbers, percent};
use serde_json::{Value, json};
use weir_app::page::{Column, Holds, Page, Part, Table, column, items, word};
use weir_app::task::obstacle_and_last_event;

/// The pages of overlay apps.
pub(super) const PAGES: &[Page] = &[Page { title: "overlay", sections: &[], requests: &["show"], parts }];

const FRAMES: &[Column] = &[
    column("frames", "name", Holds::Name),
    column("sent/s", "sent", Holds::Rate).plotted("Frames sent per second"),
    column("received/s", "received", Holds::Rate).plotted("Frames received per second"),
    column("sent", "sent", Holds::Total),
    column("received", "received", Holds::Total),
];

const CHANGES: &[Column] = &[
    column("change", "name", Holds::Name),
    column("/s", "count", Holds::Rate),
    column("all", "count", Holds::Total),
];

fn parts(answer: &Value) -> Vec<Part> {
    items(&answer["answers"]).iter().flat_map(|answers| one(&answers[0])).collect()
}

/// Returns the parts of one app.
fn one(app: &Value) -> Vec<Part> {
    let name = word(&app["name"]);
    let hits = ["sent", "received"].map(|direction| percent(&app["hit_ratio"][direction]));
    let mut facts = vec![
        ("overlay", format!("{name}: {} by {}", word(&app["tunnel"]), word(&app["uplink"]))),
        ("hit ratio", format!("{} sent, {} received", hits[0], hits[1])),
    ];
    facts.extend(obstacle_and_last_event(app));
    let received = &app["frames"]["received"];
    let row = |(name, sent): (&str, u64)| json!({ "name": name, "sent": sent, "received": received[name] });
    let frames =
        numbers(&app["frames"]["sent"]).map(row).filter(|row| row["sent"] != 0 || row["received"] != 0);
    let changes = numbers(&app["entries"]).chain(numbers(&app["causes"])).filter(|(_, count)| *count > 0);
    let change = |(name, count): (&str, u64)| json!({ "name": name, "count": count });
    vec![
        Part::Facts(facts),
        Part::Table(Table { title: format!("frames of {name}"), columns: FRAMES, rows: frames.collect() }),
        Part::Table(Table {
            title: format!("changes of {name}"),
            columns: CHANGES,
            rows: changes.map(change).collect(),
        }),
    ]
}
