//! Names over HTTP: the routes. The daemon answers them itself, because names belong to no app.

use crate::http::{HttpControl, Route};
use serde_json::{Map, Value, json};
use weir_control::Described;
use weir_control::addresses::{NAMES, NameSet, NamedAddress, NamesSet};

/// In place of the name of an app.
pub const OWN: &str = "names";

/// The routes of names.
pub const HTTP: HttpControl = HttpControl {
    app: OWN,
    about: "Names of addresses.",
    routes: ROUTES,
    request: |_, _, body| Ok(body),
    guard: |_, _, request| request,
    watch: None,
    list: |_, _, _| None,
    status: |_| 400,
    absent: ["there are no such names", "There are no such names."],
    schemas,
};

const ROUTES: &[Route] = &[
    Route {
        method: "GET",
        path: NAMES,
        says: "List the names of addresses that clients have set.",
        takes: None,
        most: 0,
        gives: "NameSet",
        done: 200,
    },
    Route {
        method: "PUT",
        path: NAMES,
        says: "Replace all names of addresses that clients have set. Names from the file stay.",
        takes: Some("NameSet"),
        most: super::BYTES_MAX,
        gives: "NamesSet",
        done: 200,
    },
];

fn schemas() -> Map<String, Value> {
    let all = json!({ "NameSet": NameSet::schema(), "NamedAddress": NamedAddress::schema(),
        "NamesSet": NamesSet::schema() });
    all.as_object().cloned().unwrap_or_default()
}
