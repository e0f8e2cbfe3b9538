//! The state that the page shows, and its changes: every client first gets the whole state, and then only the
//! rows and sections that differ from those of the previous second. Each change is serialised once for all
//! clients. The pages of apps are an event of their own, because not every client wants them.

use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The columns of a back end's row in addition to those of `weir show`.
const SINCE: &str = "since_ms";

/// The columns with the state of a back end: `since_ms` is when one of them last changed.
const STATES: [&str; 2] = ["state", "health"];

/// The columns that identify a row.
const NAMES: [&str; 2] = ["service", "name"];

/// The state of a node, as the page shows it.
#[derive(Debug, Default)]
pub struct LiveState {
    /// How many times the state has been updated.
    number: u64,
    at_ms: u64,
    sections: Map<String, Value>,
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
    /// The pages of apps, as an array.
    pages: Value,
}

impl LiveState {
    /// Returns how many times the state has been updated; 0 if it is not known yet.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Replaces the sections, and leaves the back ends as they are. Returns the change, as an event.
    pub fn update_sections(&mut self, at_ms: u64, sections: Map<String, Value>) -> String {
        let news = self.news(sections);
        (self.number, self.at_ms) = (self.number + 1, at_ms);
        event("change", &json!({ "at_ms": at_ms, "sections": news }))
    }

    /// Replaces the state. `rows` are those of back ends, as objects with the same fields. Returns the
    /// change, as an event.
    pub fn update(&mut self, at_ms: u64, sections: Map<String, Value>, rows: Vec<Value>) -> String {
        let rows: Vec<Map<String, Value>> = rows.into_iter().filter_map(object).collect();
        let mut columns: Vec<String> =
            rows.first().map(|row| row.keys().cloned().collect()).unwrap_or_default();
        columns.push(SINCE.to_string());
        let ordered = |row: Map<String, Value>| -> Vec<Value> { row.into_iter().map(|one| one.1).collect() };
        let mut rows: Vec<Vec<Value>> = rows.into_iter().map(ordered).collect();
        let places = |names: &[&str]| -> Vec<usize> {
            names.iter().filter_map(|name| columns.iter().position(|column| column == name)).collect()
        };
        let (names, states) = (places(&NAMES), places(&STATES));
        let same = |one: &[Value], other: &[Value], places: &[usize]| {
            places.iter().all(|at| one.get(*at) == other.get(*at))
        };
        let stays = self.number > 0
            && self.columns == columns
            && self.rows.len() == rows.len()
            && self.rows.iter().zip(&rows).all(|(old, new)| same(old, new, &names));
        let key = |row: &[Value]| names.iter().map(|at| row[*at].to_string()).collect::<Vec<_>>();
        let known: HashMap<Vec<String>, usize> = if stays || self.columns != columns {
            HashMap::new()
        } else {
            self.rows.iter().enumerate().map(|(at, row)| (key(row), at)).collect()
        };
        for (at, row) in rows.iter_mut().enumerate() {
            let old = if stays { self.rows.get(at) } else { known.get(&key(row)).map(|at| &self.rows[*at]) };
            let old = old.filter(|old| same(old, row, &states));
            let since = old.and_then(|old| old.last()).cloned().unwrap_or_else(|| json!(at_ms));
            row.push(since);
        }
        let changed = if stays { changes(&columns, &self.rows, &rows) } else { Value::Null };
        let news = self.news(sections);
        self.number += 1;
        (self.at_ms, self.columns, self.rows) = (at_ms, columns, rows);
        let mut data = json!({ "at_ms": at_ms, "sections": news });
        if stays {
            data["changed"] = changed;
        } else {
            data["back_ends"] = self.back_ends();
        }
        event("change", &data)
    }

    /// Replaces the pages of apps. Returns them as an event if they differ.
    pub fn update_pages(&mut self, pages: Vec<Value>) -> Option<String> {
        let pages = Value::Array(pages);
        let differ = self.pages != pages;
        self.pages = pages;
        differ.then(|| self.pages())
    }

    /// Returns the pages of apps, as an event.
    #[must_use]
    pub fn pages(&self) -> String {
        event("apps", &json!({ "pages": self.pages }))
    }

    /// Replaces the sections. Returns those that differ; null for one that is gone.
    fn news(&mut self, sections: Map<String, Value>) -> Map<String, Value> {
        let is_new = |(name, value): &(&String, &Value)| self.sections.get(*name) != Some(*value);
        let new = sections.iter().filter(is_new).map(|(name, value)| (name.clone(), value.clone()));
        let gone = self.sections.keys().filter(|name| !sections.contains_key(*name));
        let news = new.chain(gone.map(|name| (name.clone(), Value::Null))).collect();
        self.sections = sections;
        news
    }

    /// Returns the whole state, as an event.
    #[must_use]
    pub fn whole(&self) -> String {
        let data = json!({ "at_ms": self.at_ms, "sections": self.sections, "back_ends": self.back_ends() });
        event("state", &data)
    }

    fn back_ends(&self) -> Value {
        json!({ "columns": self.columns, "rows": self.rows })
    }
}

fn object(row: Value) -> Option<Map<String, Value>> {
    match row {
        Value::Object(row) => Some(row),
        _ => None,
    }
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// Returns the rows that have changed: the number of each, and its fields that differ.
fn changes(columns: &[String], old: &[Vec<Value>], new: &[Vec<Value>]) -> Value {
    let differing = |(at, (old, new)): (usize, (&Vec<Value>, &Vec<Value>))| {
        let pairs = columns.iter().zip(old.iter().zip(new));
        let fields: Map<String, Value> = pairs
            .filter(|(_, (old, new))| old != new)
            .map(|(column, (_, new))| (column.clone(), new.clone()))
            .collect();
        (!fields.is_empty()).then(|| json!([at, fields]))
    };
    old.iter().zip(new).enumerate().filter_map(differing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, health: &str, packets: u64) -> Value {
        json!({ "service": "web", "name": name, "state": "up", "health": health, "packets": packets })
    }

    fn data(event: &str) -> Value {
        serde_json::from_str(event.lines().nth(1).unwrap().strip_prefix("data: ").unwrap()).unwrap()
    }

    fn sections(generation: u64) -> Map<String, Value> {
        let Value::Object(sections) = json!({ "generation": generation, "file": "a.yaml" }) else { panic!() };
        sections
    }

    #[test]
    fn only_what_has_changed_is_sent() {
        let mut state = LiveState::default();
        state.update(1_000, sections(1), vec![row("a", "up", 1), row("b", "up", 1)]);
        assert_eq!(data(&state.whole())["back_ends"]["rows"][1][5], 1_000);
        let change = state.update(2_000, sections(1), vec![row("a", "up", 1), row("b", "up", 4)]);
        let expected = json!({ "at_ms": 2_000, "sections": {}, "changed": [[1, { "packets": 4 }]] });
        assert_eq!(data(&change), expected);
        let change = state.update(3_000, sections(2), vec![row("a", "down", 1), row("b", "up", 4)]);
        let expected = json!({ "at_ms": 3_000, "sections": { "generation": 2 },
            "changed": [[0, { "health": "down", "since_ms": 3_000 }]] });
        assert_eq!(data(&change), expected);
        let change = state.update_sections(4_000, sections(3));
        let expected = json!({ "at_ms": 4_000, "sections": { "generation": 3 } });
        assert_eq!((data(&change), state.number()), (expected, 4));
        assert_eq!(data(&state.whole())["back_ends"]["rows"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn other_back_ends_are_sent_as_a_whole_and_keep_since_when_they_are_in_their_state() {
        let mut state = LiveState::default();
        state.update(1_000, sections(1), vec![row("a", "up", 1), row("b", "up", 1)]);
        let change = data(&state.update(2_000, Map::new(), vec![row("c", "up", 0), row("b", "up", 2)]));
        assert_eq!(change["sections"], json!({ "generation": null, "file": null }));
        let rows = change["back_ends"]["rows"].as_array().unwrap();
        assert_eq!((&rows[0][5], &rows[1][5]), (&json!(2_000), &json!(1_000)));
        assert!(change.get("changed").is_none());
        let change = state.update(3_000, Map::new(), Vec::new());
        assert_eq!(data(&change)["back_ends"]["rows"], json!([]));
    }

    #[test]
    fn pages_of_apps_are_an_event_of_their_own_if_they_differ() {
        let mut state = LiveState::default();
        let page = json!({ "kind": "path", "parts": [] });
        let event = state.update_pages(vec![page.clone()]).unwrap();
        assert!(event.starts_with("event: apps\n"), "{event}");
        assert_eq!(data(&event), json!({ "pages": [page] }));
        assert_eq!((state.update_pages(vec![page]), state.pages()), (None, event));
        assert!(!state.whole().contains("pages") && state.update_pages(Vec::new()).is_some());
    }

    #[test]
    fn markup_and_line_breaks_in_names_cannot_end_an_event() {
        let mut state = LiveState::default();
        state.update(1, Map::new(), vec![row("a\n\nevent: state\ndata: {}", "up", 1)]);
        assert_eq!(state.whole().lines().count(), 3);
    }
}
