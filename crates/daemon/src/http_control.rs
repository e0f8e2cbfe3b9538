//! The door of control over HTTP: requests with the token are answered as the paths define (`rest/`).

use super::http::{CHANGES_PATIENCE, Client, Door, Question, REQUEST_PATIENCE, refused};
use super::rest::{Gate, Verdict};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, AUTHORIZATION, ETAG, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Request, Response, StatusCode};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use weir_app::http::{BODY_MAX, HttpControl, RequestNames, Route};

/// How long a client may take for a body that may be larger than most.
const SET_PATIENCE: Duration = Duration::from_secs(30);

type Answered = Response<Full<Bytes>>;

impl Door {
    /// Answers a request for control.
    pub(super) async fn control(&self, gate: &Gate, request: Request<Incoming>, client: &Client) -> Answered {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_string();
        if path == "/openapi.json" && head.method == "GET" {
            return super::http::json(StatusCode::OK, format!("{}\n", gate.apps.description()));
        }
        let token = head.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        match gate.look(token, Instant::now()) {
            Verdict::Good => {}
            Verdict::Wrong => {
                let mut answer = refused(StatusCode::UNAUTHORIZED, "the token is missing or wrong");
                answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                return answer;
            }
            Verdict::TooMany => {
                let mut answer =
                    refused(StatusCode::TOO_MANY_REQUESTS, "too many requests have a wrong token");
                answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                return answer;
            }
        }
        let (route, names) = match gate.apps.find(head.method.as_str(), &path) {
            Ok(found) => found,
            Err(methods) if methods.is_empty() => {
                return refused(StatusCode::NOT_FOUND, "unknown path: see /openapi.json");
            }
            Err(methods) => {
                let mut answer = refused(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "this path does not support this \
                    method",
                );
                let methods = HeaderValue::from_str(&methods.join(", "));
                answer.headers_mut().extend(methods.ok().map(|methods| (ALLOW, methods)));
                return answer;
            }
        };
        let body = match read(route, body).await {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        client.note_asked(CHANGES_PATIENCE);
        match self.carry_out(gate.apps, (route, &names), &path, body).await {
            Ok(answer) => answer,
            Err((status, why)) => refused(status, &why),
        }
    }

    async fn carry_out(
        &self,
        apps: &'static HttpControl,
        (route, names): (&Route, &RequestNames<'_>),
        path: &str,
        body: Value,
    ) -> Result<Answered, Refused> {
        if route.method == "GET" {
            let listed = self.parts.list(apps, path.to_string()).await.map_err(|why| refusal(apps, why))?;
            let (tag, body) = listed.split_once('\n').unwrap_or(("", &listed));
            let mut answer = super::http::json(StatusCode::OK, body.to_string());
            let tag = HeaderValue::from_str(&format!("\"{tag}\"")).ok().filter(|_| !tag.is_empty());
            answer.headers_mut().extend(tag.map(|tag| (ETAG, tag)));
            return Ok(answer);
        }
        let request = (apps.request)(route, names, body).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
        let question = match route.method {
            "PUT" => Question::Reconcile(Arc::new(Value::Array(vec![request]))),
            _ => Question::Command(weir_control::Request::app(apps.app, request)),
        };
        let answer = self.parts.ask_main(question, CHANGES_PATIENCE).await;
        let text = answer.map_err(|why| refusal(apps, why))?;
        Ok(super::http::json(StatusCode::from_u16(route.done).unwrap_or_default(), text))
    }
}

/// The status of a refusal, and its reason.
type Refused = (StatusCode, String);

fn refusal(apps: &HttpControl, why: String) -> Refused {
    let status = match why {
        _ if why == apps.absent[0] => StatusCode::NOT_FOUND,
        _ if why.starts_with("the daemon ") || why.ends_with("try again") => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::from_u16((apps.status)(&why)).unwrap_or(StatusCode::BAD_REQUEST),
    };
    (status, why)
}

/// Bodies up to this size are parsed at once, others on another thread, in bytes.
const SMALL: usize = 1 << 16;

/// Reads the body that a route takes.
async fn read(route: &Route, body: Incoming) -> Result<Value, Answered> {
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
    let parsed = match size {
        0..=SMALL => parse(),
        _ => tokio::task::spawn_blocking(parse)
            .await
            .map_err(|_| refused(StatusCode::SERVICE_UNAVAILABLE, "the body cannot be read: try again"))?,
    };
    parsed.map_err(|why| refused(StatusCode::BAD_REQUEST, &format!("the body is not JSON: {why}")))
}
