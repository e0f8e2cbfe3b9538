//! The door of control over HTTP: requests with the token, or over the control socket, are answered as the
//! paths define (`rest/`).

use super::connected::ConnectedClient;
use super::http::{ANSWER_PATIENCE, CHANGES_PATIENCE, Door, Question, REQUEST_PATIENCE, Reply, refused};
use super::page::door::share;
use super::rest::{Gate, Rights, Verdict};
use super::watching::{self, WATCHERS_MAX};
use http_body_util::{BodyExt, Either, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_MATCH, IF_NONE_MATCH, ORIGIN,
    RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use weir_app::http::{self, BODY_MAX, HttpControl, HttpControls, NODE, RequestNames, Route};
use weir_app::names;

/// How long a client may take for a body that may be larger than usual.
const SET_PATIENCE: Duration = Duration::from_secs(30);

impl Door {
    /// Answers a request for control, or for the web page.
    pub(super) async fn control(
        &self,
        (offered, gate): (HttpControls, Option<&Gate>),
        request: Request<Incoming>,
        client: &Arc<ConnectedClient>,
    ) -> Reply {
        let origin = request.headers().get(ORIGIN).cloned();
        let origin = origin.filter(|origin| gate.is_some_and(|gate| gate.admits_page(Some(origin))));
        let (head, body) = request.into_parts();
        if head.uri.path() == "/openapi.json" && head.method == "GET" {
            let mut description = offered.description();
            weir_page::describe::describe(&mut description);
            return super::http::json(StatusCode::OK, format!("{description}\n"));
        }
        if let Some(gate) = gate
            && let Some(answer) = self.page_file(gate, &head, client).await
        {
            return share(answer, origin);
        }
        let rights = match gate.map_or(Ok(Rights::Control), |gate| admitted(gate, &head)) {
            Ok(rights) => rights,
            Err(answer) => return share(*answer, origin),
        };
        let nodes = gate.map(|gate| gate.nodes.as_slice()).unwrap_or_default();
        if weir_page::describe::PATHS.contains(&head.uri.path()) {
            let answer = match head.method.as_str() {
                "GET" => self.page_data(&head, (rights, nodes), client).await,
                _ => Some(not_allowed(&["GET"])),
            };
            let unknown = || refused(StatusCode::NOT_FOUND, "unknown path: see /openapi.json");
            return share(answer.unwrap_or_else(unknown), origin);
        }
        share(self.control_services(offered, (head, body), client).await, origin)
    }

    /// Answers a permitted request about services, measurements or the node.
    async fn control_services(
        &self,
        offered: HttpControls,
        (head, body): (Parts, Incoming),
        client: &Arc<ConnectedClient>,
    ) -> Reply {
        let path = head.uri.path().to_string();
        if path == NODE && head.method == "GET" {
            return self.node(client).await;
        }
        if offered.watch() == Some(path.as_str()) && head.method == "GET" {
            return self.watch(&head, client);
        }
        if path == NODE || offered.watch() == Some(path.as_str()) {
            return not_allowed(&["GET"]);
        }
        let conditions = match conditions(&head) {
            Ok(conditions) => conditions,
            Err(why) => return refused(StatusCode::BAD_REQUEST, &why),
        };
        let (apps, route, names) = match offered.find(head.method.as_str(), &path) {
            Ok(found) => found,
            Err(methods) if methods.is_empty() => {
                return refused(StatusCode::NOT_FOUND, "unknown path: see /openapi.json");
            }
            Err(methods) => return not_allowed(&methods),
        };
        // A set of services may be large: each door has room for one.
        let mut room = None;
        if route.most > BODY_MAX {
            let Ok(Ok(own)) = timeout(SET_PATIENCE, self.sets.acquire()).await else {
                let why = "another set of services or names is being carried out: try again";
                return refused(StatusCode::SERVICE_UNAVAILABLE, why);
            };
            client.note_asked(SET_PATIENCE + ANSWER_PATIENCE);
            room = Some(own);
        }
        let body = match read(route, body).await {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        client.note_asked(CHANGES_PATIENCE);
        let done = self.carry_out(apps, (route, &names), (&path, conditions), body).await;
        drop(room);
        done.unwrap_or_else(|(status, why)| refused(status, &why))
    }

    /// Answers a peer, which compares itself with this node.
    async fn node(&self, client: &ConnectedClient) -> Reply {
        client.note_asked(ANSWER_PATIENCE);
        match self.parts.ask(weir_control::Request::show("node")).await {
            // Bounded: by what weir answers.
            Ok(text) => match serde_json::from_str::<Value>(&text) {
                Ok(answer) if answer["node"].is_object() => {
                    super::http::json(StatusCode::OK, format!("{}\n", answer["node"]))
                }
                Ok(_) | Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the answer cannot be read"),
            },
            Err(why) => refused(StatusCode::SERVICE_UNAVAILABLE, &why),
        }
    }

    async fn carry_out(
        &self,
        apps: &'static HttpControl,
        (route, names): (&Route, &RequestNames<'_>),
        (path, conditions): (&str, Conditions),
        body: Value,
    ) -> Result<Reply, Refused> {
        if apps.app == names::http::OWN {
            return self.names(route, conditions, body).await;
        }
        if route.method == "GET" {
            let listed = self.parts.list(apps, path.to_string()).await.map_err(|why| refusal(apps, why))?;
            let (tag, body) = listed.split_once('\n').unwrap_or(("", &listed));
            let has = |known: &Vec<String>| !tag.is_empty() && known.iter().any(|one| one == tag);
            let answer = if conditions.known.as_ref().is_some_and(has) {
                super::http::json(StatusCode::NOT_MODIFIED, String::new())
            } else {
                super::http::json(StatusCode::OK, body.to_string())
            };
            return Ok(tagged(answer, tag));
        }
        let bad = |why| (StatusCode::BAD_REQUEST, why);
        let absent = conditions.absent()?;
        let Conditions { dry_run, tags, .. } = conditions;
        if dry_run && route.method == "PATCH" {
            return Err(bad("`dry_run` is for PUT, POST and DELETE".to_string()));
        }
        let request = (apps.request)(route, names, body).map_err(bad)?;
        let request = (apps.guard)(&http::Conditions { dry_run, tags, absent }, names, request);
        let question = match route.method {
            "PUT" => Question::Reconcile(Arc::new(match request {
                list @ Value::Array(_) => list,
                one => Value::Array(vec![one]),
            })),
            "POST" | "PATCH" | "DELETE" => Question::Command(weir_control::Request::app(apps.app, request)),
            other => return Err((StatusCode::NOT_IMPLEMENTED, format!("{other} cannot be carried out"))),
        };
        let answer = self.parts.ask_main(question, CHANGES_PATIENCE).await;
        let text = answer.map_err(|why| refusal(apps, why))?;
        let status =
            if dry_run { StatusCode::OK } else { StatusCode::from_u16(route.done).unwrap_or_default() };
        let tag = if route.method == "PUT" { tag_of(&text) } else { String::new() };
        Ok(tagged(super::http::json(status, text), &tag))
    }

    /// Answers a request for names of addresses.
    async fn names(&self, route: &Route, conditions: Conditions, body: Value) -> Result<Reply, Refused> {
        let is_get = route.method == "GET";
        let absent = if is_get { false } else { conditions.absent()? };
        let Conditions { dry_run, tags, known } = conditions;
        let board = self.parts.names.clone();
        // Many names take a while.
        let answer = tokio::task::spawn_blocking(move || {
            let conditions = http::Conditions { dry_run, tags, absent };
            super::names::answer(&board, is_get, (&conditions, known.as_deref()), &body)
        });
        let failed = |_| (StatusCode::SERVICE_UNAVAILABLE, "the names cannot be read: try again".to_string());
        let (answer, tag) = answer.await.map_err(failed)??;
        Ok(tagged(answer, &tag))
    }

    /// Begins to inform a client of changes.
    fn watch(&self, head: &Parts, client: &Arc<ConnectedClient>) -> Reply {
        let last =
            head.headers.get("last-event-id").map(|id| id.to_str().ok().and_then(|id| id.parse().ok()));
        // An id that is not one of weir's has no events after it.
        let last = last.map(|last| last.unwrap_or(0));
        let Ok(permit) = self.watchers.clone().try_acquire_owned() else {
            let why = format!("{WATCHERS_MAX} clients watch already: try again");
            return refused(StatusCode::SERVICE_UNAVAILABLE, &why);
        };
        let events = watching::watch(self.parts.feed.clone(), last, client.clone(), permit);
        let mut answer = Response::new(Either::Right(events));
        let of = HeaderValue::from_static;
        answer.headers_mut().insert(CONTENT_TYPE, of("text/event-stream"));
        answer.headers_mut().insert(CACHE_CONTROL, of("no-cache"));
        answer
    }
}

/// Returns the answer to a request with another method than these.
fn not_allowed(methods: &[&str]) -> Reply {
    let mut answer = refused(StatusCode::METHOD_NOT_ALLOWED, "this path does not support this method");
    let methods = HeaderValue::from_str(&methods.join(", "));
    answer.headers_mut().extend(methods.ok().map(|methods| (ALLOW, methods)));
    answer
}

/// Returns what the token of a request permits, or the refusal if the request has no token that permits it.
fn admitted(gate: &Gate, head: &Parts) -> Result<Rights, Box<Reply>> {
    let token = head.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    match gate.look(token, Instant::now()) {
        Verdict::Good(Rights::View) if head.method != "GET" => {
            let why = "this token is read-only: use the token of `control: token`";
            Err(Box::new(refused(StatusCode::FORBIDDEN, why)))
        }
        Verdict::Good(rights) => Ok(rights),
        Verdict::Wrong => {
            let mut answer = refused(StatusCode::UNAUTHORIZED, "the token is missing or wrong");
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            Err(Box::new(answer))
        }
        Verdict::TooMany => Err(Box::new(too_many())),
    }
}

/// Asks a client without a valid token to wait.
pub(super) fn too_many() -> Reply {
    let mut answer = refused(StatusCode::TOO_MANY_REQUESTS, "too many requests have a wrong token");
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// The conditions in a request's head.
struct Conditions {
    dry_run: bool,
    /// The tags of `If-Match`.
    tags: Option<Vec<String>>,
    /// The tags of `If-None-Match`.
    known: Option<Vec<String>>,
}

impl Conditions {
    /// Returns whether a request that changes something is carried out only if the resource does not exist
    /// yet.
    fn absent(&self) -> Result<bool, Refused> {
        match self.known.as_deref() {
            None => Ok(false),
            Some([any]) if any == "*" => Ok(true),
            Some(_) => {
                let why = "`If-None-Match` must be `*` in a request that changes something";
                Err((StatusCode::BAD_REQUEST, why.to_string()))
            }
        }
    }
}

/// Reads the conditions; the error is a sentence.
fn conditions(head: &Parts) -> Result<Conditions, String> {
    let mut dry_run = false;
    for parameter in head.uri.query().unwrap_or_default().split('&').filter(|one| !one.is_empty()) {
        dry_run = match parameter {
            "dry_run=true" | "dry_run" => true,
            "dry_run=false" => false,
            _ => return Err(format!("there is no parameter `{parameter}`: use `dry_run=true`")),
        };
    }
    let tags = |name| -> Result<Option<Vec<String>>, String> {
        let Some(value) = head.headers.get(&name) else { return Ok(None) };
        let all = value.to_str().unwrap_or_default().split(',').map(str::trim);
        // A weak tag equals none: the specification is compared, not what it means.
        let quoted = |one: &str| {
            let tag = one.strip_prefix('"').and_then(|one| one.strip_suffix('"'));
            // In quotes, `*` is a tag like any other (RFC 9110, section 8.8.3), and no service has it.
            let tag = tag.map(|tag| if tag == "*" { one } else { tag });
            tag.or((one == "*" || one.starts_with("W/")).then_some(one)).map(str::to_string)
        };
        let tags = all.map(quoted).collect::<Option<Vec<String>>>();
        tags.map(Some).ok_or_else(|| format!("`{name}` is `*`, or tags in double quotes"))
    };
    Ok(Conditions { dry_run, tags: tags(IF_MATCH)?, known: tags(IF_NONE_MATCH)? })
}

/// Adds a tag to an answer.
fn tagged(mut answer: Reply, tag: &str) -> Reply {
    let tag = HeaderValue::from_str(&format!("\"{tag}\"")).ok().filter(|_| !tag.is_empty());
    answer.headers_mut().extend(tag.map(|tag| (ETAG, tag)));
    answer
}

/// Returns the tag in the answer to a change.
fn tag_of(text: &str) -> String {
    // Bounded: by what weir answers.
    let answer: Value = serde_json::from_str(text).unwrap_or_default();
    answer["etag"].as_str().unwrap_or_default().to_string()
}

/// The status of a refusal, and its reason.
type Refused = (StatusCode, String);

/// Returns the status of a refusal: the app knows it, unless the daemon has refused the request itself.
fn refusal(apps: &HttpControl, why: String) -> Refused {
    let status = if why == apps.absent[0] {
        StatusCode::NOT_FOUND
    } else if why.starts_with("the daemon ") || why.ends_with("try again") {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::from_u16((apps.status)(&why)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    };
    (status, why)
}

/// Bodies up to this size are parsed at once, others on another thread, in bytes.
const SMALL: usize = 1 << 16;

/// Reads the body that a route takes.
async fn read(route: &Route, body: Incoming) -> Result<Value, Reply> {
    if route.takes.is_none() {
        return Ok(Value::Null);
    }
    let too_large = || {
        let why = format!("a body may have at most {} MiB", route.most >> 20);
        refused(StatusCode::PAYLOAD_TOO_LARGE, &why)
    };
    if body.size_hint().lower() > route.most as u64 {
        return Err(too_large());
    }
    let patience = if route.most > BODY_MAX { SET_PATIENCE } else { REQUEST_PATIENCE };
    let body = match timeout(patience, Limited::new(body, route.most).collect()).await {
        Err(_) => return Err(refused(StatusCode::REQUEST_TIMEOUT, "the body took too long")),
        Ok(Err(why)) if why.is::<http_body_util::LengthLimitError>() => return Err(too_large()),
        Ok(Err(_)) => return Err(refused(StatusCode::BAD_REQUEST, "the body is truncated")),
        Ok(Ok(body)) => body.to_bytes(),
    };
    let size = body.len();
    // Bounded: by the limit of its size.
    let parse = move || serde_json::from_slice::<Value>(&body);
    let parsed = if size <= SMALL {
        parse()
    } else {
        let parsed = tokio::task::spawn_blocking(parse).await;
        parsed.map_err(|_| refused(StatusCode::SERVICE_UNAVAILABLE, "the body cannot be read: try again"))?
    };
    parsed.map_err(|why| refused(StatusCode::BAD_REQUEST, &format!("the body is not JSON: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bare_asterisk_means_any_tag() {
        let tags = |value: &str| {
            let request = hyper::Request::builder().header(IF_MATCH, value).body(()).unwrap();
            conditions(&request.into_parts().0).map(|conditions| conditions.tags.unwrap())
        };
        assert_eq!(tags("*").unwrap(), ["*"]);
        assert_eq!(tags("\"a\", \"*\"").unwrap(), ["a", "\"*\""]);
        assert!(tags("a").is_err());
    }
}
