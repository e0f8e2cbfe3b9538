//! The paths of the page: its files, which need no token, and its data.

use crate::connected::ConnectedClient;
use crate::host::host_name;
use crate::http::{ANSWER_PATIENCE, Door, Question, Reply, json as json_reply, refused};
use crate::http_control::too_many;
use crate::rest::{Gate, Rights, Verdict};
use crate::watching::WATCHERS_MAX;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{Either, Full};
use hyper::body::Bytes;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH, ORIGIN, REFERRER_POLICY, VARY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::request::Parts as Head;
use hyper::{Response, StatusCode};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;
use weir_control::{Explain, Request, Show, What};
use weir_page::describe::{CONFIGURATION, EXPLAIN, HISTORY, LIVE, PAGE, PageFacts, SHOW, STATIC};
use weir_page::{PageAsset, QueryParameters, advice, asset, content_security_policy, query};

/// Why there is no page.
const ABSENT: &str = "there is no web page: the configuration has no `control`";

/// How long a browser may remember that another node's page may query this node, in seconds.
const REMEMBERS: &str = "600";

type PageAnswer = Result<Reply, (StatusCode, String)>;

impl Door {
    /// Answers requests that need no `Bearer` token: those for the page's files and for the table without
    /// JavaScript, and CORS preflight requests of other nodes' pages.
    pub(crate) async fn page_file(
        &self,
        gate: &Gate,
        head: &Head,
        client: &ConnectedClient,
    ) -> Option<Reply> {
        let path = head.uri.path();
        if head.method == "OPTIONS" {
            return gate.admits_page(head.headers.get(ORIGIN)).then(may_ask);
        }
        if head.method != "GET" && head.method != "HEAD" {
            return None;
        }
        if path == STATIC {
            return Some(confined(self.plain(gate, head, client).await, gate));
        }
        let asset = asset(path)?;
        let tag = asset.tag();
        let known = head.headers.get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
        let is_known = known.is_some_and(|tags| tags.split(',').any(|one| one.trim() == tag));
        let (status, content) =
            if is_known { (StatusCode::NOT_MODIFIED, &b""[..]) } else { (StatusCode::OK, asset.content) };
        let mut reply = Response::new(Either::Left(Full::new(Bytes::from_static(content))));
        *reply.status_mut() = status;
        let headers = reply.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.kind));
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        // Another version of weir has another page, so the browser revalidates each time.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.extend(HeaderValue::from_str(&tag).ok().map(|tag| (ETAG, tag)));
        Some(confined(reply, gate))
    }

    /// Answers with the table without JavaScript. A browser sends the token as a password.
    async fn plain(&self, gate: &Gate, head: &Head, client: &ConnectedClient) -> Reply {
        match gate.look(password(&head.headers).as_deref(), Instant::now()) {
            Verdict::Good(_) => {}
            Verdict::TooMany => return too_many(),
            Verdict::Wrong => {
                let why = "enter the token as the password, with any name";
                let mut answer = refused(StatusCode::UNAUTHORIZED, why);
                let basic = HeaderValue::from_static("Basic realm=\"weir\", charset=\"UTF-8\"");
                answer.headers_mut().insert(WWW_AUTHENTICATE, basic);
                return answer;
            }
        }
        client.note_asked(ANSWER_PATIENCE);
        let Some(hub) = &self.page else { return refused(StatusCode::NOT_FOUND, ABSENT) };
        match hub.plain(&self.parts).await {
            Ok(page) => {
                let mut reply = json_reply(StatusCode::OK, page);
                let html = HeaderValue::from_static("text/html; charset=utf-8");
                reply.headers_mut().insert(CONTENT_TYPE, html);
                reply.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                reply
            }
            Err(why) => refused(StatusCode::SERVICE_UNAVAILABLE, &why),
        }
    }

    /// Answers a GET of the page's data; `None` for other paths.
    pub(crate) async fn page_data(
        &self,
        head: &Head,
        (rights, nodes): (Rights, &[String]),
        client: &Arc<ConnectedClient>,
    ) -> Option<Reply> {
        let parameters = match query(head.uri.query().unwrap_or_default()) {
            Ok(parameters) => parameters,
            Err(why) => return Some(refused(StatusCode::BAD_REQUEST, &why)),
        };
        client.note_asked(ANSWER_PATIENCE);
        let answer = match head.uri.path() {
            PAGE => parameters.only(&[]).map_err(bad).map(|()| page_facts(rights, nodes)),
            SHOW => self.page_show(&parameters).await,
            EXPLAIN => self.page_explain(&parameters).await,
            LIVE => self.page_live(&parameters, client),
            HISTORY => self.page_history(&parameters).await,
            CONFIGURATION => self.page_configuration(&parameters).await,
            _ => return None,
        };
        Some(answer.unwrap_or_else(|(status, why)| refused(status, &why)))
    }

    async fn page_show(&self, parameters: &QueryParameters) -> PageAnswer {
        parameters.only(&["what", "pipe", "from", "limit"]).map_err(bad)?;
        let what = parameters.get("what").filter(|what| !what.is_empty());
        let what = what.map(|what| match what.contains(',') {
            true => What::Several(what.split(',').map(str::to_string).collect()),
            false => What::One(what.to_string()),
        });
        let limit = parameters.get("limit").map(str::parse).transpose();
        let limit = limit.map_err(|_| bad("`limit` must be a number".to_string()))?;
        let [pipe, from] = ["pipe", "from"].map(|name| parameters.get(name).map(str::to_string));
        self.page_ask(Request::Show(Show { what, pipe, from, limit })).await
    }

    async fn page_explain(&self, parameters: &QueryParameters) -> PageAnswer {
        parameters.only(&["packet", "hex", "port"]).map_err(bad)?;
        let [packet, hex, port] =
            ["packet", "hex", "port"].map(|name| parameters.get(name).map(str::to_string));
        self.page_ask(Request::Explain(Explain { packet, hex, port })).await
    }

    async fn page_ask(&self, request: Request) -> PageAnswer {
        self.parts.ask(request).await.map(|text| json_reply(StatusCode::OK, text)).map_err(why_not)
    }

    fn page_live(&self, parameters: &QueryParameters, client: &Arc<ConnectedClient>) -> PageAnswer {
        parameters.only(&["apps"]).map_err(bad)?;
        let with_apps = match parameters.get("apps") {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(bad("`apps` must be `true` or `false`".to_string())),
        };
        let hub = self.page.as_ref().ok_or_else(absent)?;
        let permit = self.watchers.clone().try_acquire_owned().map_err(|_| {
            let why = format!("{WATCHERS_MAX} clients watch already: try again");
            (StatusCode::SERVICE_UNAVAILABLE, why)
        })?;
        let mut reply = Response::new(Either::Right(hub.watch(client.clone(), permit, with_apps)));
        let headers = reply.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        Ok(reply)
    }

    async fn page_history(&self, parameters: &QueryParameters) -> PageAnswer {
        parameters.only(&["series"]).map_err(bad)?;
        let hub = self.page.as_ref().ok_or_else(absent)?;
        let text = hub.plots(parameters.get("series").unwrap_or_default()).await.map_err(why_not)?;
        Ok(json_reply(StatusCode::OK, text))
    }

    async fn page_configuration(&self, parameters: &QueryParameters) -> PageAnswer {
        parameters.only(&[]).map_err(bad)?;
        let hub = self.page.as_ref().ok_or_else(absent)?;
        let answer = self.parts.observe(&hub.0.observer, Question::Configuration).await;
        answer.map(|text| json_reply(StatusCode::OK, text)).map_err(why_not)
    }
}

fn bad(why: String) -> (StatusCode, String) {
    (StatusCode::BAD_REQUEST, why)
}

/// Returns the status for a question that could not be answered.
fn why_not(why: String) -> (StatusCode, String) {
    let status = match why.starts_with("the daemon ") {
        true => StatusCode::SERVICE_UNAVAILABLE,
        false => StatusCode::BAD_REQUEST,
    };
    (status, why)
}

fn absent() -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, ABSENT.to_string())
}

fn page_facts(rights: Rights, nodes: &[String]) -> Reply {
    let rights = match rights {
        Rights::View => vec!["view"],
        Rights::Control => vec!["view", "control"],
    };
    let facts = PageFacts {
        name: host_name(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        page: asset("/").map(PageAsset::tag).unwrap_or_default(),
        rights: rights.into_iter().map(str::to_string).collect(),
        nodes: nodes.to_vec(),
        reasons: advice::reasons(),
    };
    json_reply(StatusCode::OK, format!("{}\n", json!(facts)))
}

/// Returns the password of a `Basic` header, in the form of a `Bearer` header.
fn password(headers: &HeaderMap) -> Option<Vec<u8>> {
    let header = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, rest) = header.split_at_checked("Basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let pair = BASE64_STANDARD.decode(rest.trim_ascii()).ok()?;
    let colon = pair.iter().position(|one| *one == b':')?;
    Some([b"Bearer ", &pair[colon + 1..]].concat())
}

/// Adds the security headers of a page: it loads nothing from other sites, runs only scripts from its own
/// files, and cannot be embedded in another page.
fn confined(mut reply: Reply, gate: &Gate) -> Reply {
    let headers = reply.headers_mut();
    let policy = HeaderValue::from_str(&content_security_policy(&gate.nodes));
    headers.extend(policy.ok().map(|policy| (CONTENT_SECURITY_POLICY, policy)));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let same = HeaderValue::from_static("same-origin");
    headers.insert(HeaderName::from_static("cross-origin-opener-policy"), same.clone());
    headers.insert(HeaderName::from_static("cross-origin-resource-policy"), same);
    reply
}

/// Answers a CORS preflight request, in which a browser asks whether a page of another node may send a token.
fn may_ask() -> Reply {
    let mut reply = json_reply(StatusCode::NO_CONTENT, String::new());
    let headers = reply.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("authorization"));
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(REMEMBERS));
    reply
}

/// Lets a page of another node read an answer, if the configuration lists that node.
pub(crate) fn share(mut reply: Reply, origin: Option<HeaderValue>) -> Reply {
    if let Some(origin) = origin {
        reply.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        reply.headers_mut().insert(VARY, HeaderValue::from_static("origin"));
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_a_browser_is_the_token() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            password(&headers)
        };
        let encoded = BASE64_STANDARD.encode("anyone:a:b");
        assert_eq!(of(&format!("Basic {encoded}")), Some(b"Bearer a:b".to_vec()));
        assert_eq!(of(&format!("basic {encoded}")), Some(b"Bearer a:b".to_vec()));
        for wrong in ["Basic", "Basic !", "Bearer x", &format!("Basic {}", BASE64_STANDARD.encode("none"))] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_the_daemon_cannot_answer_now_is_temporary() {
        assert_eq!(why_not("the daemon is stopping".into()).0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(why_not("there is no port `x`".into()).0, StatusCode::BAD_REQUEST);
    }
}
