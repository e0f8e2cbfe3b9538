//! Computes one state of the page, and one point of its plots, from a snapshot.

use super::{AppAnswers, LiveNews, PageHub, lock};
use crate::observer::Snapshot;
use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use weir_app::kind::Kind;
use weir_app::page::{Column, Holds, Part, Table, items, word};
use weir_control::{Show, What};
use weir_page::{PageHistory, SampleKind};

/// The sections that every state has.
const SECTIONS: [&str; 15] = [
    "generation",
    "file",
    "uptime_s",
    "health",
    "log_lost",
    "draining_s",
    "ledger",
    "balances",
    "drops",
    "ports",
    "kernel",
    "workers",
    "pipes",
    "apps",
    "routes",
];

/// The table of back ends.
const BACK_ENDS: &str = "backends";

/// The kinds of apps that have a page.
const KINDS: &str = "kinds";

/// Rows of a table of an app.
const ROWS_MAX: usize = 2000;

/// How many rows of an app's table are plotted.
const PLOTTED_MAX: usize = 16;

/// The counts of a port that are plotted.
const PORT_COUNTS: [&str; 4] = ["received", "received_bytes", "transmitted", "transmitted_bytes"];

/// A request for a state.
pub struct BeatAsked {
    /// Where the state goes.
    pub(super) hub: PageHub,
    /// The answers of apps, if they were asked.
    pub(super) apps: Option<Vec<AppAnswers>>,
    /// Whether the rows of back ends are computed.
    pub(super) with_rows: bool,
    /// Whether the plots get a point.
    pub(super) is_point: bool,
}

impl BeatAsked {
    /// Computes the state. Returns the processor time that it took, in nanoseconds.
    pub fn take(&self, now: &Snapshot) -> Result<u64> {
        let began_ns = thread_ns();
        let kinds = self.hub.0.kinds;
        let pages: Vec<&Kind> = kinds.iter().filter(|kind| has_page(kind)).collect();
        let mut names: BTreeSet<&str> = SECTIONS.into_iter().collect();
        names.extend(self.with_rows.then_some(BACK_ENDS));
        if self.apps.is_some() {
            names.extend(pages.iter().flat_map(|kind| kind.pages).flat_map(|page| page.sections));
        }
        let what = What::Several(names.into_iter().map(str::to_string).collect());
        let Value::Object(mut shown) = now.show(&Show { what: Some(what), ..Show::default() })? else {
            anyhow::bail!("the state is an object")
        };
        let rows = shown.remove(BACK_ENDS);
        let runs = |kind: &&&Kind| items(&shown["apps"]).iter().any(|app| app["kind"] == kind.key);
        let running: Vec<&&Kind> = pages.iter().filter(runs).collect();
        let listed = running.iter().map(|kind| kind.key).collect::<Vec<_>>();
        let pages = self.apps.as_ref().map(|apps| {
            let apps: Vec<(&str, Value)> = apps.iter().map(|one| (one.name.as_str(), one.parsed())).collect();
            running.iter().flat_map(|kind| pages_of(kind, &shown, &apps)).collect::<Vec<Value>>()
        });
        let asked = items(&shown["apps"]).iter().filter_map(|app| {
            let kind = kinds.iter().find(|kind| app["kind"] == kind.key && has_page(kind))?;
            Some((word(&app["name"]).to_string(), kind))
        });
        let apps = asked.collect();
        // If the workers do not answer, the snapshot is an old one, as the page sees from its time.
        let at_ms = now.taken_ms;
        if self.is_point {
            point(&mut lock(&self.hub.0.history), at_ms, (&shown, pages.as_deref().unwrap_or_default()));
            self.hub.0.points.fetch_add(1, Ordering::Release);
        }
        let mut sections: Map<String, Value> = Map::new();
        for name in SECTIONS {
            sections.extend(shown.remove(name).map(|section| (name.to_string(), section)));
        }
        sections.insert(KINDS.to_string(), json!(listed));
        let mut state = lock(&self.hub.0.state);
        let change = match rows {
            Some(Value::Array(rows)) => state.update(at_ms, sections, rows),
            _ => state.update_sections(at_ms, sections),
        };
        // The pages stay until the apps are asked again.
        let pages = pages.and_then(|pages| state.update_pages(pages));
        let number = state.number();
        drop(state);
        self.hub.publish(LiveNews::new(number, change, pages, apps));
        Ok(thread_ns().saturating_sub(began_ns))
    }
}

/// Returns the processor time of this thread.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Whether a kind has pages besides the table of back ends, which the page shows in its own way.
fn has_page(kind: &Kind) -> bool {
    kind.pages.iter().any(|page| !page.sections.iter().any(|section| kind.tables.contains(section)))
}

/// Returns the pages of a kind of apps, with their current contents.
fn pages_of(kind: &Kind, shown: &Map<String, Value>, apps: &[(&str, Value)]) -> Vec<Value> {
    let own: Vec<Value> =
        items(&shown["apps"]).iter().filter(|app| app["kind"] == kind.key).cloned().collect();
    let mut first = 0;
    let mut pages = Vec::new();
    for page in kind.pages {
        let mut answer = Map::new();
        for name in page.sections {
            answer.extend(shown.get(*name).map(|section| ((*name).to_string(), section.clone())));
        }
        let range = first..first + page.requests.len();
        first = range.end;
        let answers = own.iter().filter_map(|app| {
            let (_, answers) = apps.iter().find(|(name, _)| app["name"] == *name)?;
            items(answers).get(range.clone()).map(|some| Value::Array(some.to_vec()))
        });
        answer.insert("answers".to_string(), answers.collect());
        answer.insert("apps".to_string(), Value::Array(own.clone()));
        let parts: Vec<Value> = (page.parts)(&Value::Object(answer)).iter().map(part_json).collect();
        pages.push(json!({ "kind": kind.key, "title": page.title, "parts": parts }));
    }
    pages
}

fn part_json(part: &Part) -> Value {
    match part {
        Part::Facts(facts) => json!({ "facts": facts }),
        Part::Bars(title, bars) => json!({ "bars": { "title": title, "bars": bars } }),
        Part::Map(map) => {
            json!({ "map": { "title": map.title, "owners": map.owners, "slots": map.slots } })
        }
        Part::Table(Table { title, columns, rows }) => {
            let column = |one: &Column| match one.plot {
                Some(plot) => json!({ "name": one.name, "holds": holds(one.holds), "plot": plot }),
                None => json!({ "name": one.name, "holds": holds(one.holds) }),
            };
            let row = |row: &Value| columns.iter().map(|column| column.of(row).clone()).collect::<Vec<_>>();
            let rows: Vec<Vec<Value>> = rows.iter().take(ROWS_MAX).map(row).collect();
            let columns: Vec<Value> = columns.iter().map(column).collect();
            json!({ "table": { "title": title, "columns": columns, "rows": rows } })
        }
    }
}

fn holds(holds: Holds) -> &'static str {
    match holds {
        Holds::Name => "name",
        Holds::Text => "text",
        Holds::Number => "number",
        Holds::Total => "total",
        Holds::Rate => "rate",
        Holds::BitRate => "bit_rate",
        Holds::Share => "share",
        Holds::Sentence => "sentence",
    }
}

/// Adds a point to the plots.
fn point(history: &mut PageHistory, at_ms: u64, (shown, pages): (&Map<String, Value>, &[Value])) {
    history.begin(at_ms);
    let mut count = |name: &str, value: &Value| {
        if let Some(value) = value.as_f64() {
            history.sample(name, SampleKind::Count, value);
        }
    };
    for name in ["received", "transmitted", "to_kernel"] {
        count(&format!("node/{name}"), &shown["ledger"][name]);
    }
    for drops in items(&shown["drops"]) {
        count(&format!("drops/{}", word(&drops["reason"])), &drops["frames"]);
    }
    for port in items(&shown["ports"]) {
        for name in PORT_COUNTS {
            count(&format!("port/{}/{name}", word(&port["name"])), &port[name]);
        }
    }
    for worker in items(&shown["workers"]) {
        count(&format!("worker/{}/received", worker["worker"]), &worker["received"]);
    }
    for port in items(&shown["kernel"]).iter().filter(|port| port["runs"] == true || port["decided"] != 0) {
        count(&format!("kernel/{}/decided", word(&port["port"])), &port["decided"]);
    }
    for page in pages {
        for part in items(&page["parts"]) {
            plot_table(history, word(&page["kind"]), &part["table"]);
        }
    }
    history.end();
}

/// Adds the plotted columns of an app's table, by the names of its rows.
fn plot_table(history: &mut PageHistory, kind: &str, table: &Value) {
    let columns = items(&table["columns"]);
    for row in items(&table["rows"]).iter().take(PLOTTED_MAX) {
        let cells = || columns.iter().zip(items(row));
        let names: Vec<&str> =
            cells().filter(|(column, _)| column["holds"] == "name").map(|(_, cell)| word(cell)).collect();
        for (column, cell) in cells().filter(|(column, _)| column["plot"].is_string()) {
            let kind_of_sample = match word(&column["holds"]) {
                "rate" | "bit_rate" => SampleKind::Count,
                "number" | "total" | "share" => SampleKind::Gauge,
                // Words are not plotted.
                _ => continue,
            };
            let Some(value) = cell.as_f64() else { continue };
            let [title, column] = [word(&table["title"]), word(&column["name"])];
            let name = format!("app/{kind}/{title}/{}/{column}", names.join(" "));
            history.sample(&name, kind_of_sample, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_app::page::{column, table};

    const COLUMNS: &[Column] = &[
        column("path", "name", Holds::Name),
        column("bit/s", "bytes", Holds::BitRate).plotted("Load"),
        column("rtt us", "rtt_us", Holds::Number).plotted("Round-trip time"),
        column("port", "port", Holds::Number),
        column("state", "state", Holds::Text),
    ];

    #[test]
    fn tables_of_apps_are_shown_and_plotted() {
        let rows = json!([{ "name": "1", "bytes": 500, "rtt_us": 80, "port": 7, "state": "used" }]);
        let part = part_json(&table("paths of a", &rows, COLUMNS));
        assert_eq!(part["table"]["rows"], json!([["1", 500, 80, 7, "used"]]));
        let plotted = json!({ "name": "bit/s", "holds": "bit_rate", "plot": "Load" });
        assert_eq!(part["table"]["columns"][1], plotted);
        assert_eq!(part["table"]["columns"][3], json!({ "name": "port", "holds": "number" }));
        let mut history = PageHistory::new(10);
        let page = json!({ "kind": "path", "parts": [part] });
        let Value::Object(shown) = json!({ "ledger": { "received": 5 }, "drops": [], "ports": [],
            "workers": [{ "worker": 0, "received": 7 }],
            "kernel": [{ "port": "p0", "runs": true, "decided": 0 },
                { "port": "p1", "runs": false, "decided": 0 }],
        }) else {
            panic!()
        };
        for at in [1_000, 11_000] {
            point(&mut history, at, (&shown, std::slice::from_ref(&page)));
        }
        let app = history.json("app/path/");
        let names: Vec<&str> = items(&app["series"]).iter().map(|one| word(&one["name"])).collect();
        assert_eq!(names, ["app/path/paths of a/1/bit/s", "app/path/paths of a/1/rtt us"]);
        assert_eq!(app["series"][1]["values"], json!([80.0, 80.0]));
        let names = |prefix: &str| history.json(prefix)["series"].as_array().unwrap().len();
        assert_eq!((names("worker/0/received"), names("kernel/p0/decided"), names("kernel/")), (1, 1, 1));
        assert_eq!(history.json("node/received")["series"][0]["values"], json!([null, 0.0]));
    }
}
