//! The door of control over HTTP: requests with the token are answered as the paths define (`rest/`).

use super::http::{ANSWER_PATIENCE, Client, Door, Question, REQUEST_PATIENCE, refused};
use super::rest::{Gate, Verdict};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, AUTHORIZATION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Request, Response, StatusCode};
use serde_json::Value;
use std::time::Instant;
use tokio::time::timeout;
use weir_app::http::{HttpControl, RequestNames, Route};

/// The maximum size of a request's body in bytes.
const BODY_MAX: usize = 1 << 20;

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
        client.note_asked();
        match self.carry_out(gate.apps, (route, &names), &body).await {
            Ok((status, value)) => super::http::json(status, format!("{value}\n")),
            Err((status, why)) => refused(status, &why),
        }
    }

    async fn carry_out(
        &self,
        apps: &HttpControl,
        (route, names): (&Route, &RequestNames<'_>),
        body: &Value,
    ) -> Result<(StatusCode, Value), (StatusCode, String)> {
        let bad = |why: String| (StatusCode::BAD_REQUEST, why);
        let request = (apps.request)(route, names, body).map_err(bad)?;
        let (known, list) = apps.known;
        let listed = match names.of(known) {
            Some(_) => Some(self.ask_app(apps, &list()).await?),
            None => None,
        };
        if listed.as_ref().is_some_and(|listed| (apps.pick)(names, route, listed).is_none()) {
            return Err((StatusCode::NOT_FOUND, apps.absent[0].to_string()));
        }
        if route.method == "GET" {
            let listed = match listed {
                Some(listed) => listed,
                None => self.ask_app(apps, &request).await?,
            };
            return Ok((StatusCode::OK, (apps.pick)(names, route, &listed).unwrap_or_default()));
        }
        let answer = self.ask_app(apps, &request).await?;
        Ok((StatusCode::from_u16(route.done).unwrap_or_default(), answer))
    }

    async fn ask_app(&self, apps: &HttpControl, request: &Value) -> Result<Value, (StatusCode, String)> {
        let command = weir_control::Request::app(apps.app, request.clone());
        let answer = self.parts.ask_main(Question::Command(command), ANSWER_PATIENCE).await;
        match answer {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, "the answer cannot be read".to_string())),
            Err(why) if (apps.is_absent)(&why) => Err((StatusCode::NOT_FOUND, why)),
            Err(why) if why.starts_with("the daemon ") || why.ends_with("try again") => {
                Err((StatusCode::SERVICE_UNAVAILABLE, why))
            }
            Err(why) => Err((StatusCode::BAD_REQUEST, why)),
        }
    }
}

/// Reads the body that a route takes.
async fn read(route: &Route, body: Incoming) -> Result<Value, Answered> {
    if route.takes.is_none() {
        return Ok(Value::Null);
    }
    let too_large = || refused(StatusCode::PAYLOAD_TOO_LARGE, "a body may have at most 1 MiB");
    if body.size_hint().lower() > BODY_MAX as u64 {
        return Err(too_large());
    }
    let body = match timeout(REQUEST_PATIENCE, Limited::new(body, BODY_MAX).collect()).await {
        Err(_) => return Err(refused(StatusCode::REQUEST_TIMEOUT, "the body took too long")),
        Ok(Err(why)) if why.is::<http_body_util::LengthLimitError>() => return Err(too_large()),
        Ok(Err(_)) => return Err(refused(StatusCode::BAD_REQUEST, "the body is truncated")),
        Ok(Ok(body)) => body.to_bytes(),
    };
    serde_json::from_slice(&body)
        .map_err(|why| refused(StatusCode::BAD_REQUEST, &format!("the body is not JSON: {why}")))
}
