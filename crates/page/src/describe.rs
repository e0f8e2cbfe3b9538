//! The paths that the page reads, and their description as OpenAPI.

use serde_json::{Map, Value, json};
use weir_control::{Described, answer, answers};

/// What the page needs first.
pub const PAGE: &str = "/v1/page";
/// Sections of `weir show`.
pub const SHOW: &str = "/v1/show";
/// The walk of a packet.
pub const EXPLAIN: &str = "/v1/explain";
/// The state, as events.
pub const LIVE: &str = "/v1/live";
/// The plots of the last hour.
pub const HISTORY: &str = "/v1/history";
/// The configuration as loaded.
pub const CONFIGURATION: &str = "/v1/configuration";
/// The table for browsers without JavaScript.
pub const STATIC: &str = "/static";

/// All paths that need a token.
pub const PATHS: [&str; 6] = [PAGE, SHOW, EXPLAIN, LIVE, HISTORY, CONFIGURATION];

answers! {
    /// What the page needs first.
    PageFacts {
        /// The name of the host.
        name: String,
        /// The version of weir.
        version: String,
        /// Which page it serves: a browser that shows another one should load it again.
        page: String,
        /// What the token may do: `view`, and `control` if it may also change services.
        rights: Vec<String>,
        /// The addresses of the nodes that the fleet view shows.
        nodes: Vec<String>,
        /// For each drop reason, its `cause` and what to do (`advice`).
        reasons: answer::Counts,
    }

    /// The configuration.
    ConfigurationFacts {
        /// The path of the file.
        file: String,
        /// The generation of the program.
        generation: u64,
        /// The running configuration; secrets are hidden.
        loaded: String,
        /// The text of the file now, if it can be read; secrets are hidden.
        file_text: Option<String>,
        /// Whether the file is unchanged since it was loaded.
        same: bool,
        /// Whether changes made at run time apply on top of the file.
        edited: bool,
        /// Why the file cannot be read.
        file_error: Option<String>,
        /// Why a reload would be refused.
        refused: Option<String>,
        /// The flows of each group that a reload would move, as `weir plan` computes it.
        plan: Vec<MovedFlows>,
    }

    /// The effect of another configuration on the flows of a group.
    MovedFlows {
        /// The name of the group.
        name: String,
        /// The share of its flows that move.
        moved: f64,
        /// The minimum share that has to move.
        least: f64,
        /// The changes that move flows.
        why: Vec<String>,
        /// Whether flows that are kept start over.
        flows_end: bool,
    }

    /// The plots of the last hour.
    HistoryFacts {
        /// The time between two points, in seconds.
        interval_s: u32,
        /// When the last point ended, in milliseconds since 1970.
        end_ms: u64,
        /// The series.
        series: Vec<HistoryLine>,
        /// How many series were left out of the last point, because there are too many.
        omitted: usize,
    }

    /// A series.
    HistoryLine {
        /// Its name: words with `/` between them.
        name: String,
        /// Its points, oldest first; null where there is none.
        values: Vec<Option<f64>>,
    }
}

/// A path: what it does, its parameters with their descriptions, and its answer.
type PathRow = (&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str);

const ROWS: [PathRow; 6] = [
    (PAGE, "Show the facts that the web page needs first.", &[], "PageFacts"),
    (
        SHOW,
        "Show sections of the daemon's state, as `weir show --json` does.",
        &[
            ("what", "The sections, separated by commas; by default all of them."),
            ("pipe", "For `entries`: only those of this pipe."),
            ("from", "For `entries` and `flows`: the `next` of the previous page."),
            ("limit", "For `flows`: the maximum number."),
        ],
        "Sections",
    ),
    (
        EXPLAIN,
        "Explain what would happen to a packet, as `weir explain --live --json` does. Nothing is sent.",
        &[
            ("packet", "The packet in words."),
            ("hex", "The frame's bytes, as hexadecimal digits."),
            ("port", "The port on which it arrives; by default the first."),
        ],
        "Walk",
    ),
    (
        LIVE,
        "Watch the state as server-sent events: first all of it (`state`), then changes (`change`).",
        &[("apps", "`true`: also send the pages of apps (`apps`), before the state that they belong to.")],
        "",
    ),
    (
        HISTORY,
        "Show the plots of the last hour.",
        &[("series", "Only series whose names begin with this prefix.")],
        "HistoryFacts",
    ),
    (
        CONFIGURATION,
        "Show the configuration as loaded, how the file differs, and what a reload would do.",
        &[],
        "ConfigurationFacts",
    ),
];

/// Adds the paths of the page to a description of others, as OpenAPI 3.1.
pub fn describe(description: &mut Value) {
    let responses = description["paths"]["/v1/node"]["get"]["responses"].clone();
    for (path, says, parameters, gives) in ROWS {
        let parameters: Vec<Value> = parameters
            .iter()
            .map(|(name, says)| {
                json!({ "name": name, "in": "query", "description": says, "schema": { "type": "string" } })
            })
            .collect();
        let mut responses = responses.clone();
        let kind = if path == LIVE { "text/event-stream" } else { "application/json" };
        let schema = match path {
            LIVE => json!({ "type": "string" }),
            _ => json!({ "$ref": format!("#/components/schemas/{gives}") }),
        };
        responses["200"] = json!({ "description": "Done.", "content": { kind: { "schema": schema } } });
        let error = json!({ "$ref": "#/components/schemas/Error" });
        responses["400"] = json!({ "description": "The parameters are wrong.",
            "content": { "application/json": { "schema": error } } });
        let id: String = path.chars().map(|one| if one == '/' { '_' } else { one }).collect();
        description["paths"][path] = json!({ "get": {
            "summary": says, "operationId": format!("get{id}"), "parameters": parameters,
            "responses": responses,
        } });
    }
    for (name, schema) in schemas() {
        description["components"]["schemas"][name] = schema;
    }
}

fn schemas() -> Map<String, Value> {
    let object = |says: &str| json!({ "type": "object", "description": says, "additionalProperties": true });
    [
        ("PageFacts", PageFacts::schema()),
        ("ConfigurationFacts", ConfigurationFacts::schema()),
        ("HistoryFacts", HistoryFacts::schema()),
        ("Sections", object("The sections of `weir show --json` that were selected, by name.")),
        ("Walk", object("What `weir explain --live --json` prints.")),
    ]
    .into_iter()
    .map(|(name, schema)| (name.to_string(), schema))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_described() {
        let mut description = json!({ "paths": { "/v1/node": { "get": { "responses": { "401": {} } } } },
            "components": { "schemas": {} } });
        describe(&mut description);
        for path in PATHS {
            let get = &description["paths"][path]["get"];
            assert!(get["summary"].is_string() && get["responses"]["401"].is_object(), "{path}");
            let schema = &get["responses"]["200"]["content"]["application/json"]["schema"]["$ref"];
            let name = schema.as_str().and_then(|one| one.rsplit('/').next());
            assert!(name.is_none_or(|name| description["components"]["schemas"][name].is_object()), "{path}");
        }
    }
}
