//! Control of services and back ends over HTTP: one table of paths, and the request that each becomes.

use crate::names::NAME;
use crate::requests::{self, CONFLICT, DRY_RUN, EXPECT, PUT, STALE, STATUS};
use crate::specs::{ServiceOwner, Spec};
use crate::yaml::SERVICE as SERVICE_KEYS;
use crate::{BackEnd, Lb};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use weir_app::Described;
use weir_app::http::{BODY_MAX, Conditions, HttpControl, Listing, RequestNames, Route};
use weir_app::kind::Apps;
use weir_config::schema::Schema;
use weir_control::services::{BackEndState, BackEnds, Changes, Done, ServiceStatus, SetStatus};

/// Control of the load balancer.
pub const HTTP: HttpControl = HttpControl {
    app: NAME,
    about: "Services and back ends of weir's load balancer.",
    routes: ROUTES,
    request,
    guard,
    watch: Some(WATCH),
    list,
    absent: ["there is no such service or back end", "There is no such service, pool or back end."],
    status,
    schemas,
};

/// Returns the status for a refusal.
fn status(why: &str) -> u16 {
    let absent = ["there is no pool", "there is no service"].iter().any(|start| why.starts_with(start));
    if why.starts_with(CONFLICT) {
        409
    } else if why.starts_with(STALE) {
        412
    } else if absent || why.contains(" has no back end `") && !why.starts_with("request ") {
        404
    } else {
        // Everything else that the app refuses is wrong in the request.
        400
    }
}

/// What a request's body contains: schemas of the description.
const A_SERVICE: &str = "Service";
const A_BACK_END: &str = "BackEnd";
const A_PATCH: &str = "Patch";
const A_LIST: &str = "Requests";
const A_SET: &str = "ServiceSet";

/// The largest body that sets all services, in bytes: about 100 000 services.
const SET_MAX: usize = 64 << 20;

const fn route(
    method: &'static str,
    path: &'static str,
    (takes, done): (Option<&'static str>, u16),
    says: &'static str,
) -> Route {
    Route { method, path, says, takes, most: BODY_MAX, gives: "Done", done }
}

const fn get(path: &'static str, gives: &'static str, says: &'static str) -> Route {
    Route { method: "GET", path, says, takes: None, most: 0, gives, done: 200 }
}

const fn put(path: &'static str, (takes, most): (&'static str, usize), says: &'static str) -> Route {
    Route { method: "PUT", path, says, takes: Some(takes), most, gives: "Changes", done: 200 }
}

const SERVICES: &str = "/v1/services";
const SERVICE: &str = "/v1/services/{service}";
const BACK_ENDS: &str = "/v1/services/{service}/back_ends";
const BACK_END: &str = "/v1/services/{service}/back_ends/{back_end}";
const OF_POOL: &str = "/v1/pools/{pool}/back_ends";
const ONE_OF_POOL: &str = "/v1/pools/{pool}/back_ends/{back_end}";
const CHANGES: &str = "/v1/changes";
const WATCH: &str = "/v1/watch";

/// Every path and method that control over HTTP answers.
const ROUTES: &[Route] = &[
    get(SERVICES, A_SET, "List the services as they are configured, with their status."),
    put(
        SERVICES,
        (A_SET, SET_MAX),
        "Set all services of the API: those in the body are added or replaced, others removed. Services of \
         the file and of other sources stay.",
    ),
    route("POST", SERVICES, (Some(A_SERVICE), 201), "Add a service."),
    get(SERVICE, A_SERVICE, "Show a service as it is configured, with its status."),
    put(SERVICE, (A_SERVICE, BODY_MAX), "Add or replace a service of the API."),
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
fn request(route: &Route, names: &RequestNames<'_>, mut body: Value) -> Result<Value, String> {
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
        (_, Some(A_LIST)) if body.is_array() => body,
        (_, Some(A_LIST)) => return Err("the body is a list of requests".to_string()),
        _ if !body.is_object() => return Err("the body is an object".to_string()),
        ("PUT", Some(A_SET)) => return set(body),
        (method, Some(A_SERVICE)) => {
            let fields = body.as_object_mut().ok_or("the body is an object")?;
            fields.shift_remove(STATUS);
            if let Some(wanted) = names.of("service") {
                let name = fields.entry("name").or_insert_with(|| json!(wanted));
                if name != wanted {
                    return Err(format!("/name is {name}, but the path says `{wanted}`"));
                }
            }
            of("service", if method == "PUT" { PUT } else { "add" }, body)
        }
        (_, Some(A_BACK_END)) => order("add", "back_end", body),
        _ => return patch(names, &body),
    })
}

/// Adds conditions to a request.
fn guard(conditions: &Conditions, names: &RequestNames<'_>, request: Value) -> Value {
    if conditions.are_none() {
        return request;
    }
    let expect = |key: &str, value: Value| {
        let mut one = of(key, EXPECT, value);
        if let Some(name) = names.of("service") {
            one["service"] = json!(name);
        }
        one
    };
    let tags = conditions.tags.as_ref().map(|tags| expect("etags", json!(tags)));
    let absent = conditions.absent.then(|| expect("absent", json!(true)));
    let dry_run = conditions.dry_run.then(|| json!({ "do": DRY_RUN }));
    let conditions = tags.into_iter().chain(absent).chain(dry_run);
    match request {
        Value::Array(all) => conditions.chain(all).collect(),
        one => conditions.chain([one]).collect(),
    }
}

/// Builds a request without copying its content.
fn of(key: &str, verb: &str, value: Value) -> Value {
    Value::Object([("do".to_string(), json!(verb)), (key.to_string(), value)].into_iter().collect())
}

/// Returns the request that sets all services.
fn set(mut body: Value) -> Result<Value, String> {
    let fields = body.as_object_mut().ok_or("the body is an object")?;
    if let Some(unknown) = fields.keys().find(|key| !["services", STATUS].contains(&key.as_str())) {
        return Err(format!("there is no field /{unknown}: the body has `services`"));
    }
    let services = fields.shift_remove("services").ok_or("/services is missing: the list of services")?;
    Ok(of("services", PUT, services))
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

/// Returns the object that a path names; `None` if it does not exist.
fn list(apps: &Apps, route: &Route, names: &RequestNames<'_>) -> Option<Listing> {
    let lb = apps.of::<Lb>()?;
    let Some(name) = names.of("service") else {
        let places = lb.services.iter().map(|one| one.name.as_str()).zip(0..).collect();
        let services = lb.specs.iter().map(|spec| shown(lb, spec, &places)).collect();
        let status = json!(SetStatus { etag: lb.specs.tag.to_string() });
        let body = [("services".to_string(), services), (STATUS.to_string(), status)].into_iter().collect();
        return Some(Listing { body: Value::Object(body), tag: Some(lb.specs.tag.to_string()) });
    };
    let spec = lb.specs.named(name)?;
    let at = lb.services.iter().position(|one| one.name == name)?;
    let state = |body| Listing { body, tag: None };
    let back_ends = || states(lb, at);
    match names.of("back_end") {
        Some(name) => back_ends().into_iter().find(|one| one.name == name).map(|one| state(json!(one))),
        None if route.path == BACK_ENDS => Some(state(json!(BackEnds { back_ends: back_ends() }))),
        None => {
            let body = shown(lb, spec, &HashMap::from([(name, at)]));
            Some(Listing { body, tag: Some(spec.tag.to_string()) })
        }
    }
}

/// Returns a service's specification with its status.
fn shown(lb: &Lb, spec: &Spec, places: &HashMap<&str, usize>) -> Value {
    let back_ends = places.get(spec.name.as_str()).map(|at| states(lb, *at)).unwrap_or_default();
    let (owner, place) = match &spec.owner {
        ServiceOwner::File(place) => ("file".to_string(), Some(place.clone())),
        ServiceOwner::Source(source) => (source.to_string(), None),
    };
    let mut value = spec.typed(SERVICE_KEYS);
    value[STATUS] = json!(ServiceStatus { owner, place, etag: spec.tag.to_string(), back_ends });
    value
}

/// Returns the current state of the back ends of a service.
fn states(lb: &Lb, at: usize) -> Vec<BackEndState> {
    let service = &lb.services[at];
    let one = |back_end: &BackEnd| {
        let report = lb.health.board.of(&service.name, &back_end.name);
        BackEndState {
            name: back_end.name.clone(),
            weight: report.weight.unwrap_or(back_end.weight),
            health: report.health.to_string(),
            reason: report.reason,
        }
    };
    service.back_ends.iter().map(one).collect()
}

/// The schemas of bodies and answers.
fn schemas() -> Map<String, Value> {
    let mut schema = Schema::default();
    let mut service = schema.map(SERVICE_KEYS);
    let lists = |value: &Value| value["items"]["properties"]["mac"].is_object();
    let back_ends = service["properties"]["back_ends"]["anyOf"].as_array();
    let back_end =
        back_ends.and_then(|all| all.iter().find(|one| lists(one))).map(|one| one["items"].clone());
    service["properties"][STATUS] = ServiceStatus::schema();
    let set = json!({ "type": "object", "required": ["services"], "additionalProperties": false,
        "properties": { "services": { "type": "array", "items": service }, STATUS: SetStatus::schema() } });
    let all = json!({
        A_SET: set, "Changes": Changes::schema(), A_SERVICE: service, A_BACK_END: back_end,
        A_LIST: requests::schema(),
        A_PATCH: { "type": "object", "additionalProperties": false, "minProperties": 1, "properties": {
            "weight": requests::schema_of("weight"), "state": { "enum": STATES.map(|(word, _)| word) } } },
        "BackEnds": BackEnds::schema(), "BackEndState": BackEndState::schema(), "Done": Done::schema(),
    });
    all.as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_app::http::description;

    #[test]
    fn paths_are_found_and_become_requests() {
        let ask = |method: &str, path: &str, body: Value| {
            let (route, names) = HTTP.find(method, path).unwrap();
            request(route, &names, body)
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
        assert_eq!(HTTP.find("PATCH", "/v1/services").err(), Some(vec!["GET", "PUT", "POST"]));
        for path in
            ["/", "", "/v1", "/v1/services/", "/v1/services//back_ends", "/v1/services/a/b", "/v2/services"]
        {
            assert_eq!(HTTP.find("GET", path).err(), Some(Vec::new()), "{path}");
        }
    }

    #[test]
    fn the_description_has_every_path() {
        let description = description(&[&HTTP]);
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
