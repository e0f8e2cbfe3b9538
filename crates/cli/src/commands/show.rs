//! `weir show`, `reload`, `weight`, `app`, `stop`: requests to the daemon over its socket, with
//! answers as tables or JSON.

use super::watch::{self, Rates};
use super::{apps, bad_input, listing, socket};
use crate::kinds::KINDS;
use crate::output;
use anyhow::Result;
use clap::builder::PossibleValuesParser;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use weir_control::{Request, What};
use weir_daemon::shown;

/// How to reach the daemon, and how to print its answer.
#[derive(clap::Args)]
pub struct Connection {
    /// Path of the daemon's control socket.
    #[arg(long)]
    pub(super) socket: Option<PathBuf>,
    /// Print the answer as a JSON object.
    #[arg(long)]
    json: bool,
}

impl Connection {
    /// Returns true if JSON was requested.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Returns the path of the daemon's socket.
    pub fn path(&self) -> PathBuf {
        socket(self.socket.clone(), None)
    }

    /// Sends a request and returns the answer.
    pub fn answer<A: DeserializeOwned>(&self, request: &Request) -> Result<A> {
        weir_control::ask(&self.path(), request)
    }

    /// Sends a request and prints the answer; `text` formats it for people.
    pub fn ask(&self, request: &Request, text: impl FnOnce(&Value) -> String) -> Result<ExitCode> {
        self.print(self.answer(request)?, text)
    }

    /// Prints an answer; `text` formats it for people.
    fn print(&self, answer: Value, text: impl FnOnce(&Value) -> String) -> Result<ExitCode> {
        if self.json {
            output::line(answer)?;
        } else {
            output::print(text(&answer))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Arguments of `weir show`.
#[derive(clap::Args)]
pub struct Show {
    /// What to show; by default everything.
    #[arg(value_parser = PossibleValuesParser::new(words()), default_value = "all")]
    what: String,
    /// For a kind of app: one of its views, the name of an app, or both.
    #[arg(num_args = 0..=2)]
    of: Vec<String>,
    /// For entries: only those of this pipe.
    #[arg(long)]
    pipe: Option<String>,
    /// For flows: at most this many.
    #[arg(long)]
    limit: Option<u64>,
    /// Repeat at this interval in seconds, with rates per second beside totals.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
        value_parser = watch::seconds)]
    watch: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
}

/// Returns what can be shown: the daemon's sections, and the kinds of apps with views.
fn words() -> impl Iterator<Item = &'static str> {
    shown(KINDS).chain(KINDS.iter().filter(|kind| !kind.views.is_empty()).map(|kind| kind.key))
}

/// Runs `weir show`.
pub fn show(arguments: &Show) -> Result<ExitCode> {
    let Show { what, of, connection, watch, .. } = arguments;
    if let Some(shown) = apps::show(what, connection, of, *watch) {
        return shown;
    }
    if let Some(word) = of.first() {
        output::complain(format_args!("weir: `show {what}` takes no further words, such as `{word}`\n"));
        return Ok(bad_input());
    }
    let request = weir_control::Show {
        what: Some(What::One(what.clone())),
        pipe: arguments.pipe.clone(),
        from: None,
        limit: arguments.limit,
    };
    if watch.is_none() && listing::LISTS.contains(&what.as_str()) {
        return listing::print(connection, what, request);
    }
    let mut rates = Rates::default();
    watch::repeat(*watch, connection.json, || {
        let answer = listing::whole(connection, what, &request)?;
        Ok(if connection.json { format!("{answer}\n") } else { sections(&rates.beside(answer)) })
    })
}

/// Formats everything in an answer.
fn sections(answer: &Value) -> String {
    let section = |(name, value): (&String, &Value)| match name.as_str() {
        "apps" => section(name, &flat(value)),
        "rings" => rings(value),
        _ => section(name, value),
    };
    // Histograms have their own table: `weir show workers`.
    let is_for_people =
        |(name, _): &(&String, &Value)| !matches!(name.as_str(), "breath_times" | "events_late");
    answer.as_object().into_iter().flatten().filter(is_for_people).map(section).collect()
}

/// Formats the checksums of rings, with the rings as a table.
fn rings(rings: &Value) -> String {
    let all = json!({ "version": rings["version"], "configured": rings["configured"],
        "effective": rings["effective"] });
    let columns = |ring: &Value| {
        json!({ "ring": ring["name"], "configured": ring["configured"], "effective": ring["effective"],
            "scheduler": ring["scheduler"], "size": ring["size"] })
    };
    let services = rings["services"].as_array().into_iter().flatten().map(columns).collect::<Vec<_>>();
    section("rings", &all) + &table(&services)
}

/// Returns the rows without nested lists and objects, which do not fit a table and which `show KEY` prints.
fn flat(rows: &Value) -> Value {
    let flat = |row: &Value| match row {
        Value::Object(fields) => {
            let simple = fields
                .iter()
                .filter(|(_, value)| !value.is_array() && !value.is_object() && !value.is_null());
            Value::Object(simple.map(|(name, value)| (name.clone(), value.clone())).collect())
        }
        other => other.clone(),
    };
    rows.as_array().map_or_else(|| rows.clone(), |rows| rows.iter().map(flat).collect())
}

/// Formats a list of objects as a table, an object as lines, and anything else as one line.
pub fn section(name: &str, value: &Value) -> String {
    match value {
        Value::Array(rows) if rows.iter().all(Value::is_object) => format!("{name}\n{}", table(rows)),
        Value::Object(fields) => {
            let line = |(key, value): (&String, &Value)| format!("  {key:<22} {}\n", plain(value));
            format!("{name}\n{}", fields.iter().map(line).collect::<String>())
        }
        other => format!("{name:<24} {}\n", plain(other)),
    }
}

fn table(rows: &[Value]) -> String {
    let mut table = PagedTable::default();
    if rows.is_empty() { "  none\n".to_string() } else { table.page(rows) }
}

/// A table whose rows may arrive a page at a time. The table has the columns of the first page; they become
/// wider when a later row needs this.
#[derive(Default)]
pub struct PagedTable {
    columns: Vec<String>,
    widths: Vec<usize>,
}

impl PagedTable {
    /// Formats some rows, and writes the names of the columns above the first ones.
    pub fn page(&mut self, rows: &[Value]) -> String {
        let is_first = self.columns.is_empty();
        if is_first {
            // Apps of different kinds have different columns.
            for key in rows.iter().filter_map(Value::as_object).flat_map(|row| row.keys()) {
                if !self.columns.contains(key) {
                    self.columns.push(key.clone());
                }
            }
            self.widths = self.columns.iter().map(String::len).collect();
        }
        let cells: Vec<Vec<String>> =
            rows.iter().map(|row| self.columns.iter().map(|column| plain(&row[column])).collect()).collect();
        for row in &cells {
            let widths = self.widths.iter_mut().zip(row);
            widths.for_each(|(width, cell)| *width = cell.chars().count().max(*width));
        }
        let line = |row: &Vec<String>| {
            let padded: Vec<String> =
                row.iter().zip(&self.widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
            format!("  {}\n", padded.join("  ").trim_end())
        };
        let head = is_first.then_some(&self.columns);
        head.into_iter().chain(&cells).map(line).collect()
    }
}

pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(" "),
        Value::Object(fields) => {
            // Counters at 0 are omitted; a weight of 0 is not.
            let some = fields.iter().filter(|(key, value)| **value != json!(0) || *key == "weight");
            some.map(|(key, value)| format!("{key}={}", plain(value))).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}

/// Arguments of `weir reload`, `weir upgrade` and `weir stop`.
#[derive(clap::Args)]
pub struct Plain {
    #[command(flatten)]
    pub(super) connection: Connection,
}

/// Runs `weir reload`: waits until the daemon has finished, and reports its progress.
pub fn reload(arguments: &Plain) -> Result<ExitCode> {
    let connection = &arguments.connection;
    let mut said = String::new();
    let answer = weir_control::reload(&connection.path(), |progress| {
        // For an interactive user; a script gets only the answer.
        if progress.stage != said && std::io::stderr().is_terminal() {
            output::complain(format_args!("after {} s: {}\n", progress.seconds, progress.stage));
            said.clone_from(&progress.stage);
        }
    })?;
    connection.print(answer, |answer| plain(&answer["summary"]) + "\n")
}

/// Runs `weir stop`.
pub fn stop(arguments: &Plain) -> Result<ExitCode> {
    arguments.connection.ask(&Request::Stop {}, |_| "stopping\n".to_string())
}

/// Arguments of `weir app`.
#[derive(clap::Args)]
pub struct App {
    /// The name of the app.
    name: String,
    /// The request: JSON, or words.
    #[arg(required = true)]
    request: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

/// Runs `weir app`.
pub fn app(arguments: &App) -> Result<ExitCode> {
    let words = arguments.request.join(" ");
    let request: Value = serde_json::from_str(&words).unwrap_or(Value::String(words));
    arguments.connection.ask(&Request::app(&arguments.name, request), |answer| match answer.as_object() {
        Some(answer) => answer.iter().map(|(name, value)| section(name, value)).collect(),
        None => plain(answer) + "\n",
    })
}

/// Arguments of `weir weight`.
#[derive(clap::Args)]
pub struct Weight {
    /// The name of the group.
    group: String,
    /// The name of the target.
    target: String,
    /// The new weight, 0 to 65535; 0 takes away all buckets.
    weight: u32,
    #[command(flatten)]
    connection: Connection,
}

/// Runs `weir weight`.
pub fn weight(arguments: &Weight) -> Result<ExitCode> {
    let (group, target) = (arguments.group.clone(), arguments.target.clone());
    let request = Request::Weight(weir_control::Weight { group, target, weight: arguments.weight });
    arguments.connection.ask(&request, |_| "done\n".to_string())
}
