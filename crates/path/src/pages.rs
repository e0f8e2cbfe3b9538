//! The page of paths in `weir top`.

use serde_json::{Value, json};
use weir_app::page::{Column, Holds, Page, Part, Table, column, items, word};
use weir_app::task::obstacle_and_last_event;

/// The pages of path apps.
pub(super) const PAGES: &[Page] = &[Page { title: "path", sections: &[], requests: &["show"], parts }];

const PATHS: &[Column] = &[
    column("path", "name", Holds::Name),
    column("state", "state", Holds::Text),
    column("bit/s", "bytes", Holds::BitRate).plotted("Load, bit/s"),
    column("of the node's", "bytes", Holds::Share),
    column("queue us", "queue_us", Holds::Number).plotted("Queueing delay, microseconds"),
    column("rtt us", "rtt_us", Holds::Number).plotted("Round-trip time, microseconds"),
    column("loss %", "loss", Holds::Number).plotted("Loss of probes, percent"),
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

/// Returns the row of a path. What no probe has measured is null, because zero would look perfect.
fn row(path: &Value) -> Value {
    let [queue_us, rtt_us] = ["queue_us", "rtt_us"].map(|name| path[name].as_f64().unwrap_or_default());
    let is_timed = rtt_us > 0.0 || queue_us > 0.0;
    let loss = path["loss"].as_f64().filter(|_| path["probes"] != 0);
    let hops: Vec<&str> = items(&path["hops"]).iter().map(|hop| hop.as_str().unwrap_or("*")).collect();
    json!({
        "name": path["number"].to_string(), "state": path["state"], "bytes": path["bytes"],
        "queue_us": is_timed.then(|| queue_us.round()), "rtt_us": (rtt_us > 0.0).then(|| rtt_us.round()),
        "loss": loss.map(|loss| (loss * 1000.0).round() / 10.0),
        "port": path["port"], "packets": path["packets"], "hops": hops.join(" "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_probe_has_measured_is_not_zero() {
        let measured = |path: Value| {
            let row = row(&path);
            ["queue_us", "rtt_us", "loss"].map(|name| row[name].clone())
        };
        let new = json!({ "number": 0, "queue_us": 0.0, "rtt_us": 0.0, "loss": 0.0, "probes": 0 });
        assert_eq!(measured(new), [Value::Null, Value::Null, Value::Null]);
        let lost = json!({ "number": 0, "queue_us": 0.0, "rtt_us": 0.0, "loss": 1.0, "probes": 3 });
        assert_eq!(measured(lost), [Value::Null, Value::Null, json!(100.0)]);
        let good = json!({ "number": 0, "queue_us": 0.0, "rtt_us": 81.4, "loss": 0.0, "probes": 200 });
        assert_eq!(measured(good), [json!(0.0), json!(81.0), json!(0.0)]);
    }
}
