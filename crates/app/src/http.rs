//! Control of a kind of apps over HTTP: its paths, and the request to the app that each becomes. Requests are
//! answered and the description is generated from the same table.

use crate::kind::{Apps, Kind};
use serde_json::{Map, Value, json};
use weir_control::Described;
use weir_control::answer::{ErrorAnswer, FleetNode};

/// The path at which a node answers the other nodes of its fleet, whatever its apps are.
pub const NODE: &str = "/v1/node";

/// The control over HTTP that some kinds of apps offer.
#[derive(Clone, Copy)]
pub struct HttpControls(pub &'static [Kind]);

impl HttpControls {
    fn all(self) -> impl Iterator<Item = &'static HttpControl> {
        self.0.iter().filter_map(|kind| kind.http).chain([&crate::names::http::HTTP])
    }

    /// Finds the route of a request, and the control that it is part of.
    ///
    /// # Errors
    /// The error lists the methods that the path has; none if there is no such path.
    pub fn find<'a>(
        self,
        method: &str,
        path: &'a str,
    ) -> Result<(&'static HttpControl, &'static Route, RequestNames<'a>), Vec<&'static str>> {
        let mut methods = Vec::new();
        for control in self.all() {
            match control.find(method, path) {
                Ok((route, names)) => return Ok((control, route, names)),
                Err(others) => methods.extend(others),
            }
        }
        Err(methods)
    }

    /// Returns the path at which GET returns events as they happen, if there is one.
    #[must_use]
    pub fn watch(self) -> Option<&'static str> {
        self.all().find_map(|control| control.watch)
    }

    /// Returns the description of all paths, as OpenAPI 3.1.
    #[must_use]
    pub fn description(self) -> Value {
        description(&self.all().collect::<Vec<_>>())
    }
}

/// How a kind of apps is controlled over HTTP.
pub struct HttpControl {
    /// The app that gets the requests.
    pub app: &'static str,
    /// The description of the API of this kind, for the OpenAPI document.
    pub about: &'static str,
    /// Every path and method.
    pub routes: &'static [Route],
    /// Returns the request to the app for a route, with the body if there is one. The error describes the
    /// problem with the body.
    pub request: fn(&Route, &RequestNames<'_>, Value) -> Result<Value, String>,
    /// Adds conditions to a request.
    pub guard: fn(&Conditions, &RequestNames<'_>, Value) -> Value,
    /// The path at which GET returns events as they happen, as server-sent events.
    pub watch: Option<&'static str>,
    /// Returns the object that a path names, for GET; `None` if it does not exist.
    pub list: fn(&Apps, &Route, &RequestNames<'_>) -> Option<Listing>,
    /// Returns the status for a refusal.
    pub status: fn(&str) -> u16,
    /// The error if the named object does not exist, and the text about it in the description.
    pub absent: [&'static str; 2],
    /// Returns the schemas of bodies and answers.
    pub schemas: fn() -> Map<String, Value>,
}

/// The conditions under which a request is carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Whether nothing is changed, and the answer says what would change.
    pub dry_run: bool,
    /// The tags of which the current state must have one, or `*` for any tag; `None` if the tag does not
    /// matter.
    pub tags: Option<Vec<String>>,
    /// Whether there must not be such an object yet.
    pub absent: bool,
}

impl Conditions {
    /// Returns true if there are no conditions.
    #[must_use]
    pub fn are_none(&self) -> bool {
        *self == Conditions::default()
    }
}

/// The answer to GET: the object that the path names, and its tag.
pub struct Listing {
    /// The body of the answer, as JSON.
    pub body: Value,
    /// Identifies the configuration that the body shows, independently of the status of the configured
    /// objects.
    pub tag: Option<String>,
}

/// The largest body of most requests, in bytes.
pub const BODY_MAX: usize = 1 << 20;

/// A method of a path.
pub struct Route {
    /// The HTTP method in capitals, such as `GET`.
    pub method: &'static str,
    /// Words, and names in braces.
    pub path: &'static str,
    /// What the method does, in a sentence.
    pub says: &'static str,
    /// The schema of its body, if it has one.
    pub takes: Option<&'static str>,
    /// The largest size of the body, in bytes.
    pub most: usize,
    /// The schema of its answer.
    pub gives: &'static str,
    /// The status on success.
    pub done: u16,
}

/// Names in a request's path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RequestNames<'a>(Vec<(&'static str, &'a str)>);

impl<'a> RequestNames<'a> {
    /// Returns the name that a path has in place of `key`.
    #[must_use]
    pub fn of(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }
}

impl HttpControl {
    /// Finds the route of a request.
    ///
    /// # Errors
    /// The error lists the methods that the path has; none if there is no such path.
    pub fn find<'a>(
        &self,
        method: &str,
        path: &'a str,
    ) -> Result<(&'static Route, RequestNames<'a>), Vec<&'static str>> {
        let all: Vec<(&Route, RequestNames<'_>)> =
            self.routes.iter().filter_map(|route| Some((route, matched(route.path, path)?))).collect();
        let methods = all.iter().map(|(route, _)| route.method).collect();
        all.into_iter().find(|(route, _)| route.method == method).ok_or(methods)
    }

    fn operation(&self, route: &Route) -> Value {
        let json = |name: &str| {
            let schema = json!({ "$ref": format!("#/components/schemas/{name}") });
            json!({ "application/json": { "schema": schema } })
        };
        let mut responses = turned_away();
        let mut done = json!({ "description": "Done.", "content": json(route.gives) });
        let says = "Identifies the specification of the service, or of the set.";
        let tag = json!({ "ETag": { "description": says, "schema": { "type": "string" } } });
        if ["GET", "PUT"].contains(&route.method) {
            done["headers"] = tag.clone();
        }
        responses["200"] = json!({ "description": "With `dry_run`: what would change.",
            "content": json(route.gives) });
        responses[route.done.to_string()] = done;
        responses["400"] = error("Refused; nothing was changed.");
        if route.method == "GET" {
            let says = "The tag in `If-None-Match` is the current one.";
            responses["304"] = json!({ "description": says, "headers": tag });
        } else {
            responses["409"] = error("What the request names belongs to another owner.");
            responses["412"] = error("The current state is not that of `If-Match` or `If-None-Match`.");
        }
        if route.path.contains('{') {
            responses["404"] = error(self.absent[1]);
        }
        let id = format!("{} {}", route.method, route.path).to_ascii_lowercase();
        let id: String = id.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '_' }).collect();
        let mut operation = json!({ "summary": route.says, "operationId": id, "responses": responses });
        let parameters = parameters_of(route.method);
        if !parameters.is_empty() {
            operation["parameters"] = Value::Array(parameters);
        }
        let Some(schema) = route.takes else { return operation };
        let most = route.most >> 20;
        operation["responses"]["413"] = error(&format!("The body is longer than {most} MiB."));
        operation["requestBody"] = json!({ "required": true, "content": json(schema) });
        operation
    }
}

/// Returns the description of all paths of these, as OpenAPI 3.1.
#[must_use]
pub fn description(all: &[&HttpControl]) -> Value {
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for control in all {
        for route in control.routes {
            let path =
                paths.entry(route.path).or_insert_with(|| json!({ "parameters": parameters(route.path) }));
            path[route.method.to_ascii_lowercase()] = control.operation(route);
        }
        paths.extend(control.watch.map(|path| (path.to_string(), watch())));
        schemas.extend((control.schemas)());
    }
    paths.insert(
        "/openapi.json".to_string(),
        json!({ "get": {
        "summary": "This description; needs no token.", "security": [], "operationId": "description",
        "responses": { "200": { "description": "The description." } },
    } }),
    );
    let one = json!({ "description": "What nodes of a fleet compare.", "content": { "application/json":
        { "schema": { "$ref": "#/components/schemas/FleetNode" } } } });
    paths.insert(
        NODE.to_string(),
        json!({ "get": { "summary": "Show what other nodes of a fleet compare.", "operationId": "node",
        "responses": with(turned_away(), "200", one) } }),
    );
    schemas.insert("FleetNode".to_string(), FleetNode::schema());
    schemas.insert("Error".to_string(), ErrorAnswer::schema());
    let about: Vec<&str> = all.iter().map(|control| control.about).collect();
    json!({
        "openapi": "3.1.0",
        "info": { "title": "weir", "version": env!("CARGO_PKG_VERSION"), "description": about.join(" ") },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas,
        },
    })
}

/// Returns the response of a refusal.
fn error(says: &str) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Error" });
    json!({ "description": says, "content": { "application/json": { "schema": schema } } })
}

/// Returns the responses that any path but the description may have.
fn turned_away() -> Value {
    json!({
        "401": error("The token is missing or wrong."),
        "429": error("Too many requests have a wrong token."),
        "503": error("weir is too busy, or is stopping."),
    })
}

/// Adds a response.
fn with(mut responses: Value, status: &str, one: Value) -> Value {
    responses[status] = one;
    responses
}

fn matched<'a>(pattern: &'static str, path: &'a str) -> Option<RequestNames<'a>> {
    let (mut names, mut words) = (Vec::new(), path.split('/'));
    for part in pattern.split('/') {
        let word = words.next()?;
        match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(name) if !word.is_empty() => names.push((name, word)),
            Some(_) => return None,
            None if part == word => {}
            None => return None,
        }
    }
    words.next().is_none().then_some(RequestNames(names))
}

/// The description of the path at which clients watch.
fn watch() -> Value {
    let stream = json!({ "text/event-stream": { "schema": { "type": "string" } } });
    let says = "Events, until the client is too slow or leaves. With too many watchers, the status is 503.";
    let events = json!({ "description": says, "content": stream });
    let id = json!({ "name": "Last-Event-ID", "in": "header", "schema": { "type": "string" },
        "description": "The last event that the client has; those after it follow." });
    json!({ "get": {
        "summary": "Watch: an event for each change, as server-sent events.",
        "operationId": "watch", "parameters": [id],
        "responses": with(turned_away(), "200", events),
    } })
}

/// The parameters of a method, besides the names in the path.
fn parameters_of(method: &str) -> Vec<Value> {
    let one = |(name, place, says): (&str, &str, &str)| {
        let kind = if place == "query" { json!({ "type": "boolean" }) } else { json!({ "type": "string" }) };
        json!({ "name": name, "in": place, "description": says, "schema": kind })
    };
    let matches = ("If-Match", "header", "Only if the `ETag` is one of these.");
    let none_matches = ("If-None-Match", "header", "`*`: only if there is none yet.");
    let dry_run = ("dry_run", "query", "Change nothing; the answer says what would change.");
    match method {
        "GET" => {
            vec![one(("If-None-Match", "header", "With this `ETag`, the answer is 304 without a body."))]
        }
        "PATCH" => vec![one(matches), one(none_matches)],
        _ => vec![one(matches), one(none_matches), one(dry_run)],
    }
}

fn parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let one = |name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    names.map(one).collect()
}
