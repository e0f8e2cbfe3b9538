//! The paths of control over HTTP: one table, from which requests are answered and the description is
//! generated.

use serde_json::{Map, Value, json};
use weir_config::schema::Schema;

/// What a request's body contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Nothing,
    /// A service, as in the file.
    Service,
    /// A back end, as in the file.
    BackEnd,
    /// Changes of a back end.
    Patch,
    /// A list of requests.
    Requests,
}

/// A method of a path.
pub struct Route {
    pub method: &'static str,
    /// Words, and names in braces.
    pub path: &'static str,
    pub says: &'static str,
    pub takes: Takes,
    /// The status on success.
    pub done: u16,
}

const fn route(
    method: &'static str,
    path: &'static str,
    (takes, done): (Takes, u16),
    says: &'static str,
) -> Route {
    Route { method, path, says, takes, done }
}

const SERVICES: &str = "/v1/services";
const SERVICE: &str = "/v1/services/{service}";
const BACK_ENDS: &str = "/v1/services/{service}/back_ends";
const BACK_END: &str = "/v1/services/{service}/back_ends/{back_end}";
const OF_POOL: &str = "/v1/pools/{pool}/back_ends";
const ONE_OF_POOL: &str = "/v1/pools/{pool}/back_ends/{back_end}";
const CHANGES: &str = "/v1/changes";

/// Every path and method that control over HTTP answers.
pub const ROUTES: &[Route] = &[
    route("GET", SERVICES, (Takes::Nothing, 200), "List services and back ends as they are now."),
    route("POST", SERVICES, (Takes::Service, 201), "Add a service."),
    route("GET", SERVICE, (Takes::Nothing, 200), "Show a service."),
    route("DELETE", SERVICE, (Takes::Nothing, 200), "Remove a service."),
    route("GET", BACK_ENDS, (Takes::Nothing, 200), "List the back ends of a service."),
    route(
        "POST",
        BACK_ENDS,
        (Takes::BackEnd, 201),
        "Add a back end to a service that has a list of its own.",
    ),
    route("GET", BACK_END, (Takes::Nothing, 200), "Show a back end."),
    route("PATCH", BACK_END, (Takes::Patch, 200), "Give a back end another weight or state."),
    route("DELETE", BACK_END, (Takes::Nothing, 200), "Remove a back end; drain it first, and no flow ends."),
    route("POST", OF_POOL, (Takes::BackEnd, 201), "Add a back end to a pool that services share."),
    route("DELETE", ONE_OF_POOL, (Takes::Nothing, 200), "Remove a back end of a pool."),
    route("POST", CHANGES, (Takes::Requests, 200), "Carry out a list of requests, all of them or none."),
    route("DELETE", CHANGES, (Takes::Nothing, 200), "Forget what was changed at run time: the file holds."),
];

/// Names in a request's path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Names<'a>(Vec<(&'static str, &'a str)>);

impl<'a> Names<'a> {
    pub fn of(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }
}

/// Finds the route of a request; `Err` with the methods that the path has, or none if there is no such path.
pub fn find<'a>(method: &str, path: &'a str) -> Result<(&'static Route, Names<'a>), Vec<&'static str>> {
    let all: Vec<(&Route, Names<'_>)> =
        ROUTES.iter().filter_map(|route| Some((route, matched(route.path, path)?))).collect();
    let methods = all.iter().map(|(route, _)| route.method).collect();
    all.into_iter().find(|(route, _)| route.method == method).ok_or(methods)
}

fn matched<'a>(pattern: &'static str, path: &'a str) -> Option<Names<'a>> {
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
    words.next().is_none().then_some(Names(names))
}

/// Returns the request to the app for a route, with the body if there is one.
///
/// # Errors
/// The error describes the problem with the body.
pub fn request(route: &Route, names: &Names<'_>, body: &Value) -> Result<Value, String> {
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
        (_, Takes::Requests) if body.is_array() => body.clone(),
        (_, Takes::Requests) => return Err("the body is a list of requests".to_string()),
        _ if !body.is_object() => return Err("the body is an object".to_string()),
        (_, Takes::Service) => json!({ "do": "add", "service": body }),
        (_, Takes::BackEnd) => order("add", "back_end", body.clone()),
        _ => return patch(names, body),
    })
}

/// The verbs of requests in lists.
const WORDS: [&str; 7] = ["add", "remove", "drain", "maintenance", "enable", "weight", "reset"];

/// The values of a back end's state, and the verbs of the requests that set them.
const STATES: [(&str, &str); 3] = [("up", "enable"), ("draining", "drain"), ("maintenance", "maintenance")];

fn patch(names: &Names<'_>, body: &Value) -> Result<Value, String> {
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
            (other, _) => return Err(format!("there is no field `{other}`, but weight, state")),
        });
    }
    if orders.is_empty() {
        return Err("the body has `weight`, `state` or both".to_string());
    }
    Ok(Value::Array(orders))
}

/// Selects what a path names from the list of all services; `None` if it does not exist.
pub fn pick(names: &Names<'_>, route: &Route, listed: &Value) -> Option<Value> {
    let named = |list: &Value, name: &str| {
        list.as_array().and_then(|list| list.iter().find(|one| one["name"] == name)).cloned()
    };
    let Some(service) = names.of("service") else { return Some(listed.clone()) };
    let service = named(&listed["services"], service)?;
    match names.of("back_end") {
        Some(back_end) => named(&service["back_ends"], back_end),
        None if route.path == BACK_ENDS => Some(json!({ "back_ends": service["back_ends"] })),
        None => Some(service),
    }
}

/// The description of all paths, as OpenAPI 3.1.
pub fn description() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({ "parameters": parameters(route.path) }));
        path[route.method.to_ascii_lowercase()] = operation(route);
    }
    paths.insert(
        "/openapi.json".to_string(),
        json!({ "get": {
        "summary": "This description; it needs no token.", "security": [], "operationId": "description",
        "responses": { "200": { "description": "The description." } },
    } }),
    );
    let mut schema = Schema::default();
    let service = schema.map(weir_lb::KIND.keys);
    let lists = |value: &Value| value["items"]["properties"]["mac"].is_object();
    let back_ends = service["properties"]["back_ends"]["anyOf"].as_array();
    let back_end =
        back_ends.and_then(|all| all.iter().find(|one| lists(one))).map(|one| one["items"].clone());
    json!({
        "openapi": "3.1.0",
        "info": { "title": "weir", "version": env!("CARGO_PKG_VERSION"),
            "description": "Services and back ends of weir's load balancer." },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": {
                "Service": service, "BackEnd": back_end,
                "Patch": { "type": "object", "additionalProperties": false, "minProperties": 1,
                    "properties": {
                        "weight": {
                            "type": "integer", "minimum": 0, "maximum": weir_config::sets::WEIGHT_MAX,
                        },
                        "state": { "enum": STATES.map(|(word, _)| word) } } },
                "Requests": { "type": "array", "items": { "type": "object", "required": ["do"],
                    "properties": { "do": { "enum": WORDS } } } },
                "Error": { "type": "object", "required": ["error"], "properties": {
                    "error": { "type": "string", "description": "A sentence that names the field." } } },
            },
        },
    })
}

fn parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let one = |name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    names.map(one).collect()
}

fn operation(route: &Route) -> Value {
    let error = |says: &str| {
        let schema = json!({ "schema": { "$ref": "#/components/schemas/Error" } });
        json!({ "description": says, "content": { "application/json": schema } })
    };
    let mut responses = json!({
        route.done.to_string(): { "description": "Done.", "content": { "application/json": {} } },
        "400": error("It is refused, and nothing was changed."),
        "401": error("The token is missing or wrong."),
        "429": error("Too many requests have a wrong token."),
        "503": error("weir is too busy, or stops."),
    });
    if route.path.contains('{') {
        responses["404"] = error("There is no such service, pool or back end.");
    }
    let id = format!("{} {}", route.method, route.path).to_ascii_lowercase();
    let id: String = id.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '_' }).collect();
    let mut operation = json!({ "summary": route.says, "operationId": id, "responses": responses });
    let schema = match route.takes {
        Takes::Nothing => return operation,
        Takes::Service => "Service",
        Takes::BackEnd => "BackEnd",
        Takes::Patch => "Patch",
        Takes::Requests => "Requests",
    };
    operation["responses"]["413"] = error("The body is longer than a mebibyte.");
    let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
    operation["requestBody"] =
        json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_and_become_requests() {
        let ask = |method: &str, path: &str, body: Value| {
            let (route, names) = find(method, path).unwrap();
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
        assert_eq!(find("PUT", "/v1/services").err(), Some(vec!["GET", "POST"]));
        for path in
            ["/", "", "/v1", "/v1/services/", "/v1/services//back_ends", "/v1/services/a/b", "/v2/services"]
        {
            assert_eq!(find("GET", path).err(), Some(Vec::new()), "{path}");
        }
    }

    #[test]
    fn the_description_has_every_path() {
        let description = description();
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
