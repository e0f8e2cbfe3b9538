//! The page of measurements in `weir top`: the composition of the last interval. Its numbers are those of the
//! interval rather than of the time between two answers, so none is shown as a rate.

use super::text::{estimated, names, number, word};
use crate::queries::tops;
use serde_json::{Value, json};
use weir_app::page::{Column, Holds, Page, Part, Table, column, items};

/// The pages of measurements.
pub(super) const PAGES: &[Page] = &[Page { title: "measure", sections: &[], requests: &["interval"], parts }];

const TOP: &[Column] = &[
    column("key", "key", Holds::Name),
    column("packets", "packets", Holds::Number),
    column("of all", "of_all", Holds::Text),
    column("bytes", "bytes", Holds::Number),
    column("packets overcounted, at most", "bound", Holds::Number),
];

/// How many of the table's top lists are shown, from the first one on: ports reveal little if there are few
/// addresses.
const LISTS: usize = 3;

fn parts(answer: &Value) -> Vec<Part> {
    items(&answer["answers"]).iter().flat_map(|answers| one(&answers[0])).collect()
}

/// Returns the parts of one measurement.
fn one(measurement: &Value) -> Vec<Part> {
    let mut parts = vec![Part::Facts(facts(measurement))];
    let last = &measurement["last"];
    for (_, list, top) in tops().take(LISTS) {
        let all = number(&last["packets"]).max(1.0);
        let row = |row: &Value| {
            let of_all = format!("{:.1} %", 100.0 * number(&row["packets"]) / all);
            let key = format!("{}{}", word(&row["key"]), names(row));
            json!({
                "key": key, "packets": row["packets"], "of_all": of_all, "bytes": row["bytes"],
                "bound": row["bound"],
            })
        };
        let rows: Vec<Value> = items(&last[list.field]["rows"]).iter().map(row).collect();
        if !rows.is_empty() {
            let title = format!("top {}s of {}", top.one, word(&measurement["name"]));
            parts.push(Part::Table(Table { title, columns: TOP, rows }));
        }
    }
    parts
}

fn facts(measurement: &Value) -> Vec<(&'static str, String)> {
    let last = &measurement["last"];
    let intervals = number(&measurement["intervals"]);
    let seconds = number(&measurement["interval_ms"]) / 1e3;
    let name = word(&measurement["name"]);
    let mut facts = vec![("measurement", format!("{name}, {intervals} intervals of {seconds:.1} s"))];
    if last.is_null() {
        facts.push(("last interval", "none has finished yet".to_string()));
        return facts;
    }
    let [packets, bytes] = ["packets", "bytes"].map(|name| number(&last[name]));
    facts.push(("last interval", format!("{packets} packets, {bytes} bytes")));
    for name in ["flows", "sources", "destinations"] {
        facts.push((name, estimated(&last[name])));
    }
    let shed: Vec<&str> = items(&measurement["shed"]).iter().filter_map(Value::as_str).collect();
    if !shed.is_empty() {
        facts.push(("given up", shed.join(", ")));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_that_answers_nothing_is_shown_as_empty() {
        assert_eq!(parts(&json!({})), []);
        let parts = parts(&json!({ "answers": [[{ "name": "edge", "last": null }]] }));
        let [Part::Facts(facts)] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!(facts[1], ("last interval", "none has finished yet".to_string()));
    }

    #[test]
    fn a_row_says_its_share_of_the_interval() {
        let row = json!({ "key": "192.0.2.1", "packets": 30, "bytes": 3000, "bound": 2 });
        let flows = json!({ "estimate": 2.0, "low": 2.0, "high": 3.0 });
        let last = json!({ "packets": 40, "bytes": 4000, "flows": flows, "top_sources": { "rows": [row] } });
        let answer = json!({ "name": "edge", "intervals": 3, "interval_ms": 1000, "last": last,
            "shed": ["spreaders"] });
        let parts = one(&answer);
        let [Part::Facts(facts), Part::Table(top)] = &parts[..] else { panic!("{parts:?}") };
        assert!(facts.contains(&("flows", "2 (2 to 3)".to_string())), "{facts:?}");
        assert!(facts.contains(&("given up", "spreaders".to_string())), "{facts:?}");
        assert_eq!(top.title, "top sources of edge");
        let cells: Vec<&Value> = TOP.iter().map(|column| column.of(&top.rows[0])).collect();
        assert_eq!(cells, [&json!("192.0.2.1"), &json!(30), &json!("75.0 %"), &json!(3000), &json!(2)]);
    }
}
