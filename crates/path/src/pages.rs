//! The page of paths in `weir top`.

use serde_json::{Value, json};
use weir_app::page::{Column, Holds, Page, Part, Table, column, items, word};
use weir_app::task::obstacle_and_last_event;

/// The pages of path apps.
pub(super) const PAGES: &[Page] = &[Page { title: "path", sections: &[], requests: &["show"], parts }];

const PATHS: &[Column] = &[
    column("path", "name", Holds::Name),
    column("state", "state", Holds::Text),
    column("bit/s", "bytes", Holds::BitRate),
    column("of the node's", "bytes", Holds::Share),
    column("queue us", "queue_us", Holds::Number),
    column("rtt us", "rtt_us", Holds::Number),
    column("loss %", "loss", Holds::Number),
    column("port", "port", Holds::Number),
    column("packets/s", "packets", Holds::Rate),
    column("hops", "hops", Holds::Text),
];

fn parts(answer: &Value) -> Vec<Part> {
    items(&answer["answers"]).iter().flat_map(|answers| one(&answers[0])).collect()
}

/// Returns the parts of one app.
fn one(app: &Value) -> Vec<Part> {
    let mut facts = vec![("paths", format!("{}: {}", word(&app["name"]), word(&app["scheme"])))];
    facts.extend(obstacle_and_last_event(app));
    let mut parts = vec![Part::Facts(facts)];
    for node in items(&app["nodes"]) {
        let rows: Vec<Value> = items(&node["paths"]).iter().map(row).collect();
        if !rows.is_empty() {
            let over = node["uplink"].as_str().map(|uplink| format!(" over {uplink}")).unwrap_or_default();
            let title = format!("paths of {} to {}{over}", word(&app["name"]), word(&node["address"]));
            parts.push(Part::Table(Table { title, columns: PATHS, rows }));
        }
    }
    parts
}

fn row(path: &Value) -> Value {
    let hops: Vec<&str> = items(&path["hops"]).iter().map(|hop| hop.as_str().unwrap_or("*")).collect();
    json!({
        "name": path["number"].to_string(), "state": path["state"], "bytes": path["bytes"],
        "queue_us": path["queue_us"].as_f64().unwrap_or_default().round(),
        "rtt_us": path["rtt_us"].as_f64().unwrap_or_default().round(),
        "loss": (path["loss"].as_f64().unwrap_or_default() * 1000.0).round() / 10.0,
        "port": path["port"], "packets": path["packets"], "hops": hops.join(" "),
    })
}
