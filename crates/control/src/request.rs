//! The requests that a daemon answers.

use crate::read;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A request: a JSON object with the name of the variant as `command`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Asks for sections of the daemon's state.
    Show(Show),
    /// Reads the configuration again, or waits until that has ended.
    Reload(Reload),
    /// Changes an entry of the running program.
    Entry(Entry),
    /// Asks for a page of a pipe's entries, as lines of changes.
    Entries(Entries),
    /// Changes the weight of a group's target.
    Weight(Weight),
    /// Sends a frame.
    Inject(Inject),
    /// Passes a request on to an app.
    App(App),
    /// Asks what would happen to a packet.
    Explain(Explain),
    /// Asks about the daemon's process.
    Process {},
    /// Withdraws the routes to services, so that routers send new packets to other nodes.
    Drain {},
    /// Announces services again.
    Undrain {},
    /// Hands over to a successor.
    HandOver(HandOver),
    /// Stops the daemon.
    Stop {},
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// The error names the request and the field.
    pub fn read(text: &[u8]) -> Result<Request, String> {
        // Bounded: by the server, which limits the length of a request.
        let value = serde_json::from_slice(text).map_err(|_| "a request is a JSON object".to_string())?;
        read("command", value)
    }

    /// Returns a request to an app.
    pub fn app(app: impl Into<String>, request: impl Into<Value>) -> Request {
        Request::App(App { app: app.into(), request: request.into() })
    }

    /// Returns a request for one section.
    pub fn show(what: impl Into<String>) -> Request {
        Request::Show(Show { what: Some(What::One(what.into())), ..Show::default() })
    }
}

/// What to show.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Show {
    /// The sections to show; by default, all of them.
    pub what: Option<What>,
    /// For entries: only those of this pipe.
    pub pipe: Option<String>,
    /// For entries and flows: where the page begins; the previous page has this as `next`.
    pub from: Option<String>,
    /// For flows: the maximum number.
    pub limit: Option<u64>,
}

/// Names of sections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "it is a word or a list of words")]
pub enum What {
    /// A section with its parameters.
    One(String),
    /// Several sections, from the same moment.
    Several(Vec<String>),
}

/// Which reload to wait for, and how long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reload {
    /// The number of a reload that has begun; without a number, another reload begins.
    pub reload: Option<u64>,
    /// The longest wait, in seconds.
    pub wait_s: Option<u64>,
}

/// A change of an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// `add`, `update` or `remove`.
    #[serde(rename = "do")]
    pub verb: String,
    /// The name of the pipe whose entry changes.
    pub pipe: String,
    /// The entry, as in the configuration.
    pub entry: String,
}

/// Which entries to list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entries {
    /// The name of the pipe whose entries are listed.
    pub pipe: String,
    /// Where the page begins; the previous page has this as `next`.
    #[serde(default)]
    pub from: u32,
    /// Whether to also list entries of the configuration.
    #[serde(default)]
    pub all: bool,
}

/// A target's new weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// The name of the group.
    pub group: String,
    /// The name of a target of this group.
    pub target: String,
    /// The new weight of the target; with 0, it gets no new flows.
    pub weight: u32,
}

/// A frame to send.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Inject {
    /// The frame in words.
    pub packet: Option<String>,
    /// The frame's bytes, as hexadecimal digits.
    pub hex: Option<String>,
    /// The port through which to send it; without one, it goes through the program.
    pub output: Option<String>,
    /// The port on which it appears to arrive; by default the first.
    pub input: Option<String>,
}

/// A request to an app.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct App {
    /// The name of the app.
    pub app: String,
    /// The request, which the kind of app defines.
    #[serde(default)]
    pub request: Value,
}

/// The packet to explain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Explain {
    /// The packet in words.
    pub packet: Option<String>,
    /// The frame's bytes, as hexadecimal digits.
    pub hex: Option<String>,
    /// The port on which it arrives; by default the first.
    pub port: Option<String>,
}

/// Where a successor waits. A later version may add fields, which are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandOver {
    /// The path of the successor's socket.
    pub socket: String,
    /// The format in which the successor can receive AF_XDP sockets.
    pub sockets: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(request: Value) -> Result<Request, String> {
        Request::read(request.to_string().as_bytes())
    }

    #[test]
    fn an_error_names_the_request_and_the_field() {
        for (request, words) in [
            (json!([1]), "a request is a JSON object"),
            (json!({}), "the request needs `command`"),
            (json!({ "command": "dance" }), "there is no command `dance`: show, reload, entry, entries"),
            (json!({ "command": "stop", "now": true }), "request `stop`: unknown field `now`"),
            (json!({ "command": "shwo" }), "there is no command `shwo`"),
            (
                json!({ "what": "ports", "pip": "a", "command": "show" }),
                "request `show`: unknown field `pip`",
            ),
            (json!({ "command": "app" }), "request `app`: missing field `app`"),
            (
                json!({ "command": "show", "what": 1 }),
                "request `show`, field `what`: it is a word or a list of words",
            ),
            (
                json!({ "weight": -1, "command": "weight", "group": "g", "target": "t" }),
                "request `weight`, field `weight`: invalid value: integer `-1`, expected u32",
            ),
            (
                json!({ "command": "inject", "hex": 5, "input": 6 }),
                "request `inject`, field `hex`: invalid type",
            ),
        ] {
            let why = read(request).unwrap_err();
            assert!(why.starts_with(words) || why.ends_with(words), "{why}");
        }
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        for request in [
            Request::show("ports"),
            Request::Show(Show { what: Some(What::Several(vec!["ledger".into()])), ..Show::default() }),
            Request::app("lb", json!({ "do": "list", "more": [1, null] })),
            Request::Process {},
            Request::Reload(Reload { reload: Some(2), wait_s: None }),
            Request::HandOver(HandOver { socket: "/a".into(), sockets: Some(1) }),
        ] {
            assert_eq!(read(json!(request)), Ok(request));
        }
        let added = json!({ "command": "hand_over", "socket": "/a", "added": [1] });
        assert!(read(added).is_ok(), "a successor may be newer");
    }
}
