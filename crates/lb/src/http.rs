//! Control of services and back ends over HTTP: one table of paths, and the request that each becomes.

use crate::names::NAME;
use crate::requests;
use crate::yaml::SERVICE as SERVICE_KEYS;
use serde_json::{Map, Value, json};
use weir_app::http::{HttpControl, RequestNames, Route};
use weir_app::shown::read;
use weir_app::{Described, answers};
use weir_config::schema::Schema;

/// Control of the load balancer.
pub const HTTP: HttpControl = HttpControl {
    app: NAME,
    about: "Services and back ends of weir's load balancer.",
    routes: ROUTES,
    request,
    known: ("service", || json!({ "do": "list" })),
    pick,
    absent: ["there is no such service or back end", "There is no such service, pool or back end."],
    is_absent: |why| why.starts_with("there is no pool"),
    schemas,
};

answers! {
    /// All services.
    Services {
        services: Vec<ServiceState>,
    }

    /// A service.
    ServiceState {
        name: String,
        back_ends: Vec<BackEndState>,
    }

    /// The back ends of a service.
    BackEnds {
        back_ends: Vec<BackEndState>,
    }

    /// A back end.
    BackEndState {
        name: String,
        /// Its weight if nothing is wrong; 0 gets no new flows.
        weight: u32,
        /// Its status, in one word.
        health: String,
        /// The reason for its status; empty if there is nothing to say.
        reason: String,
    }

    /// What was done.
    Done {
        /// The number of requests that were carried out.
        done: usize,
        /// Names a service that gets no new flows, because no back end has a weight.
        #[serde(skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
    }
}

/// What a request's body contains: schemas of the description.
const A_SERVICE: &str = "Service";
const A_BACK_END: &str = "BackEnd";
const A_PATCH: &str = "Patch";
const A_LIST: &str = "Requests";

const fn route(
    method: &'static str,
    path: &'static str,
    (takes, done): (Option<&'static str>, u16),
    says: &'static str,
) -> Route {
    Route { method, path, says, takes, gives: "Done", done }
}

const fn get(path: &'static str, gives: &'static str, says: &'static str) -> Route {
    Route { method: "GET", path, says, takes: None, gives, done: 200 }
}

const SERVICES: &str = "/v1/services";
const SERVICE: &str = "/v1/services/{service}";
const BACK_ENDS: &str = "/v1/services/{service}/back_ends";
const BACK_END: &str = "/v1/services/{service}/back_ends/{back_end}";
const OF_POOL: &str = "/v1/pools/{pool}/back_ends";
const ONE_OF_POOL: &str = "/v1/pools/{pool}/back_ends/{back_end}";
const CHANGES: &str = "/v1/changes";

/// Every path and method that control over HTTP answers.
const ROUTES: &[Route] = &[
    get(SERVICES, "Services", "List the current services and back ends."),
    route("POST", SERVICES, (Some(A_SERVICE), 201), "Add a service."),
    get(SERVICE, "ServiceState", "Show a service."),
    route("DELETE", SERVICE, (None, 200), "Remove a service."),
    get(BACK_ENDS, "BackEnds", "List the back ends of a service."),
    route(
        "POST",
        BACK_ENDS,
        (Some(A_BACK_END), 201),
        "Add a back end to a service that has a list of its own.",
    ),
    get(BACK_END, "BackEndState", "Show a back end."),
    route("PATCH", BACK_END, (Some(A_PATCH), 200), "Change the weight or state of a back end."),
    route("DELETE", BACK_END, (None, 200), "Remove a back end; drain it first so that no flow is cut."),
    route("POST", OF_POOL, (Some(A_BACK_END), 201), "Add a back end to a pool that services share."),
    route("DELETE", ONE_OF_POOL, (None, 200), "Remove a back end from a pool."),
    route("POST", CHANGES, (Some(A_LIST), 200), "Carry out a list of requests atomically."),
    route("DELETE", CHANGES, (None, 200), "Discard all changes made at run time and return to the file."),
];

/// Returns the request to the app for a route, with the body if there is one.
///
/// # Errors
/// The error describes the problem with the body.
fn request(route: &Route, names: &RequestNames<'_>, body: &Value) -> Result<Value, String> {
    let owner = ["service", "pool"].into_iter().find_map(|key| Some((key, names.of(key)?)));
    let mut one = Map::new();
    if let Some((key, name)) = owner {
        one.insert(key.to_string(), json!(name));
    }
    let mut order = |word: &str, key: &str, value: Value| {
        one.insert("do".to_string(), json!(word));
        one.insert(key.to_string(), value);
        Value::Object(one.clone())
    };
    Ok(match (route.method, route.takes) {
        ("GET", _) => json!({ "do": "list" }),
        ("DELETE", _) if route.path == CHANGES => json!({ "do": "reset" }),
        ("DELETE", _) => match (names.of("back_end"), owner) {
            (None, Some((key, name))) => json!({ "do": "remove", key: name }),
            (back_end, _) => order("remove", "back_end", json!(back_end)),
        },
        (_, Some(A_LIST)) if body.is_array() => body.clone(),
        (_, Some(A_LIST)) => return Err("the body is a list of requests".to_string()),
        _ if !body.is_object() => return Err("the body is an object".to_string()),
        (_, Some(A_SERVICE)) => json!({ "do": "add", "service": body }),
        (_, Some(A_BACK_END)) => order("add", "back_end", body.clone()),
        _ => return patch(names, body),
    })
}

/// The values of a back end's state, and the verbs of the requests that set them.
const STATES: [(&str, &str); 3] = [("up", "enable"), ("draining", "drain"), ("maintenance", "maintenance")];

fn patch(names: &RequestNames<'_>, body: &Value) -> Result<Value, String> {
    let (service, back_end) = (names.of("service"), names.of("back_end"));
    let mut orders = Vec::new();
    for (key, value) in body.as_object().into_iter().flatten() {
        orders.push(match (key.as_str(), value) {
            ("weight", weight) => {
                json!({ "do": "weight", "service": service, "back_end": back_end, "weight": weight })
            }
            ("state", state) => {
                let word = STATES.iter().find(|(word, _)| state == word).map(|(_, word)| *word);
                let word = word.ok_or("`state` is up, draining or maintenance")?;
                json!({ "do": word, "service": service, "back_end": back_end })
            }
            (other, _) => return Err(format!("there is no field `{other}`: use `weight` or `state`")),
        });
    }
    if orders.is_empty() {
        return Err("the body has `weight`, `state` or both".to_string());
    }
    Ok(Value::Array(orders))
}

/// Selects the object that a path names from the list of all services; `None` if it does not exist.
fn pick(names: &RequestNames<'_>, route: &Route, listed: &Value) -> Option<Value> {
    let Some(service) = names.of("service") else { return Some(listed.clone()) };
    let Services { services } = read(listed);
    let service = services.into_iter().find(|one| one.name == service)?;
    match names.of("back_end") {
        Some(name) => service.back_ends.into_iter().find(|one| one.name == name).map(|one| json!(one)),
        None if route.path == BACK_ENDS => Some(json!(BackEnds { back_ends: service.back_ends })),
        None => Some(json!(service)),
    }
}

/// The schemas of bodies and answers.
fn schemas() -> Map<String, Value> {
    let mut schema = Schema::default();
    let service = schema.map(SERVICE_KEYS);
    let lists = |value: &Value| value["items"]["properties"]["mac"].is_object();
    let back_ends = service["properties"]["back_ends"]["anyOf"].as_array();
    let back_end =
        back_ends.and_then(|all| all.iter().find(|one| lists(one))).map(|one| one["items"].clone());
    let all = json!({
        A_SERVICE: service, A_BACK_END: back_end, A_LIST: requests::schema(),
        A_PATCH: { "type": "object", "additionalProperties": false, "minProperties": 1, "properties": {
            "weight": requests::schema_of("weight"), "state": { "enum": STATES.map(|(word, _)| word) } } },
        "Services": Services::schema(), "ServiceState": ServiceState::schema(),
        "BackEnds": BackEnds::schema(), "BackEndState": BackEndState::schema(), "Done": Done::schema(),
    });
    all.as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_and_become_requests() {
        let ask = |method: &str, path: &str, body: Value| {
            let (route, names) = HTTP.find(method, path).unwrap();
            request(route, &names, &body)
        };
        let back_end = json!({ "name": "b1" });
        assert_eq!(
            ask("POST", "/v1/services/web/back_ends", back_end.clone()).unwrap(),
            json!({ "do": "add", "service": "web", "back_end": back_end })
        );
        assert_eq!(
            ask("DELETE", "/v1/pools/p/back_ends/b1", Value::Null).unwrap(),
            json!({ "do": "remove", "pool": "p", "back_end": "b1" })
        );
        assert_eq!(
            ask("DELETE", "/v1/services/web", Value::Null).unwrap(),
            json!({ "do": "remove", "service": "web" })
        );
        assert_eq!(ask("DELETE", "/v1/changes", Value::Null).unwrap(), json!({ "do": "reset" }));
        let patch =
            ask("PATCH", "/v1/services/web/back_ends/b1", json!({ "weight": 3, "state": "draining" }));
        assert_eq!(patch.unwrap().as_array().map(Vec::len), Some(2));
        for (body, part) in [
            (json!({}), "the body has"),
            (json!({ "wieght": 1 }), "no field `wieght`"),
            (json!({ "state": "down" }), "`state` is"),
            (json!([]), "an object"),
        ] {
            let why = ask("PATCH", "/v1/services/web/back_ends/b1", body).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
        assert_eq!(HTTP.find("PUT", "/v1/services").err(), Some(vec!["GET", "POST"]));
        for path in
            ["/", "", "/v1", "/v1/services/", "/v1/services//back_ends", "/v1/services/a/b", "/v2/services"]
        {
            assert_eq!(HTTP.find("GET", path).err(), Some(Vec::new()), "{path}");
        }
    }

    #[test]
    fn the_description_has_every_path() {
        let description = HTTP.description();
        for route in ROUTES {
            let one = &description["paths"][route.path][route.method.to_ascii_lowercase()];
            assert!(one["responses"][route.done.to_string()].is_object(), "{} {}", route.method, route.path);
        }
        let schemas = &description["components"]["schemas"];
        assert!(schemas["BackEnd"]["properties"]["mac"].is_object());
        assert!(schemas["Service"]["properties"]["service"].is_object());
        assert!(!description.to_string().contains("$defs"), "a reference leads nowhere");
    }
}
