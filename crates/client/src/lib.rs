//! A client of control over HTTP, for control planes: it reads and sets services, and watches them.
//!
//! Each request has a connection of its own, so that a client can be shared and outlives restarts of weir.
//! See docs/reference/control.md for what the requests mean, and `examples/follow.rs` for a use.
//!
//! ```no_run
//! # async fn set() -> Result<(), weir_client::ClientError> {
//! use weir_client::{Client, Options};
//! let weir = Client::unix("/run/weir/weir.sock");
//! let web = serde_json::json!({
//!     "name": "web", "port": "p0", "fail": "reject", "back_ends": [],
//!     "service": { "vip": "10.0.0.80", "protocol": "tcp", "port": 80 },
//! });
//! let changes = weir.put("web", &web, &Options::default()).await?;
//! assert!(changes.created == ["web"] || changes.unchanged == 1 || changes.updated == ["web"]);
//! # Ok(())
//! # }
//! ```

mod connection;
#[cfg(feature = "tls")]
mod tls;
mod watch;

#[cfg(feature = "tls")]
pub use tls::Tls;
pub use watch::{Watch, WatchEvent};
pub use weir_control::services::{BackEndState, Changes, Done, Moved, ServiceStatus};

use connection::{ANSWER_MAX, Endpoint, Received};
use hyper::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;
use weir_control::addresses::{NAMES, NameSet, NamedAddress, NamesSet};
use weir_control::answer::{ErrorAnswer, FleetNode};

/// Why a request has failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no connection, it has ended before the answer, or the answer is too large or not HTTP. The
    /// text is the rest of a sentence that begins with the name of the peer.
    #[error("weir {0}")]
    Unreachable(String),
    /// weir has refused the request, and nothing has changed.
    #[error("{why}")]
    Refused {
        /// The kind of reason.
        reason: RefusalReason,
        /// The reason, in a sentence.
        why: String,
    },
    /// The answer has a form that this version does not know.
    #[error("the answer cannot be read: {0}")]
    Answer(String),
}

/// Why weir has refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The request is wrong (400).
    Wrong,
    /// The token is missing or wrong (401).
    Token,
    /// There is no such object (404).
    Absent,
    /// The service, or its address, belongs to another owner (409).
    Conflict,
    /// The current state is not the expected one (412).
    Stale,
    /// The request is too large (413).
    TooLarge,
    /// Try again later (408, 429, 503).
    Busy,
    /// Another status.
    Other(u16),
}

impl RefusalReason {
    fn of(status: u16) -> RefusalReason {
        match status {
            400 => RefusalReason::Wrong,
            401 => RefusalReason::Token,
            404 => RefusalReason::Absent,
            409 => RefusalReason::Conflict,
            412 => RefusalReason::Stale,
            413 => RefusalReason::TooLarge,
            408 | 429 | 503 => RefusalReason::Busy,
            other => RefusalReason::Other(other),
        }
    }
}

/// Under which conditions a request is carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether to change nothing; the answer then says what would change.
    pub dry_run: bool,
    /// Carry out the request only if the service, or the set of services, has this `etag`.
    pub etag: Option<String>,
    /// Carry out the request only if there is no such service yet.
    pub absent: bool,
}

/// The set of all services on a node, with its status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Services {
    /// Each service: its specification, with its `status` ([`status_of`]).
    pub services: Vec<Value>,
    /// The status of the set.
    pub status: weir_control::services::SetStatus,
}

/// A change of a back end; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Patch {
    /// The new weight of the back end: its share of new flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Its state: `up`, `draining` or `maintenance`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
}

/// Returns the status that is part of a service.
#[must_use]
pub fn status_of(service: &Value) -> ServiceStatus {
    serde_json::from_value(service["status"].clone()).unwrap_or_default()
}

/// A client of one weir.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    token: Option<String>,
    answer_max: usize,
}

impl Client {
    /// A client of the weir whose control socket has this path.
    pub fn unix(path: impl Into<PathBuf>) -> Client {
        Client { endpoint: Endpoint::Unix(path.into()), token: None, answer_max: ANSWER_MAX }
    }

    /// A client of the weir whose `control` listens on this address (`HOST:PORT`).
    pub fn tcp(address: impl Into<String>, token: impl Into<String>) -> Client {
        Client::over(Endpoint::Tcp(address.into()), token.into())
    }

    /// A client of the weir whose `control` listens on this address, with TLS.
    #[cfg(feature = "tls")]
    pub fn tls(address: impl Into<String>, token: impl Into<String>, tls: Tls) -> Client {
        Client::over(Endpoint::Tls(address.into(), tls), token.into())
    }

    fn over(endpoint: Endpoint, token: String) -> Client {
        Client { endpoint, token: Some(token), answer_max: ANSWER_MAX }
    }

    /// Accepts answers of at most `bytes` bytes, where the default is 256 MiB.
    #[must_use]
    pub fn with_answer_max(self, bytes: usize) -> Client {
        Client { answer_max: bytes, ..self }
    }

    /// Returns what nodes of a fleet compare.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn node(&self) -> Result<FleetNode, ClientError> {
        self.get(NODE).await
    }

    /// Returns weir's answer to GET for a path of control over HTTP.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, ClientError> {
        self.ask(Method::GET, path, None, &Options::default()).await
    }

    /// Returns all services.
    ///
    /// # Errors
    /// weir does not answer, or refuses the request.
    pub async fn services(&self) -> Result<Services, ClientError> {
        self.ask(Method::GET, SERVICES, None, &Options::default()).await
    }

    /// Returns all services, or `None` if the set still has this `etag`.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn services_unless(&self, etag: &str) -> Result<Option<Services>, ClientError> {
        self.unless(SERVICES, etag).await
    }

    /// Returns the `etag` of the set of all services, if weir sends one, without reading the services.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn services_etag(&self) -> Result<Option<String>, ClientError> {
        let received = self.send((Method::GET, SERVICES), None, Vec::new()).await?;
        if received.status() != 200 {
            return self.read(received).await.map(|_: Services| None);
        }
        Ok(received.etag())
    }

    /// Returns the answer to a GET of a path, or `None` if the resource still has this `etag`.
    async fn unless<A: DeserializeOwned>(&self, path: &str, etag: &str) -> Result<Option<A>, ClientError> {
        let known = ("if-none-match", format!("\"{etag}\""));
        let received = self.send((Method::GET, path), None, vec![known]).await?;
        if received.status() == 304 {
            return Ok(None);
        }
        self.read(received).await.map(Some)
    }

    /// Returns a service: its specification, with its `status`.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn service(&self, name: &str) -> Result<Value, ClientError> {
        self.ask(Method::GET, &one(name), None, &Options::default()).await
    }

    /// Adds or replaces a service.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn put(&self, name: &str, service: &Value, options: &Options) -> Result<Changes, ClientError> {
        self.put_text(name, service.to_string(), options).await
    }

    /// Adds or replaces a service that is already serialised as JSON.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn put_text(
        &self,
        name: &str,
        service: String,
        options: &Options,
    ) -> Result<Changes, ClientError> {
        self.ask(Method::PUT, &one(name), Some(service), options).await
    }

    /// Sets all services of the API; services that are not in `services` are removed.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn put_all(&self, services: &[Value], options: &Options) -> Result<Changes, ClientError> {
        let body =
            serde_json::to_string(&All { services }).map_err(|why| ClientError::Answer(why.to_string()))?;
        self.ask(Method::PUT, SERVICES, Some(body), options).await
    }

    /// Sets all services of the API, each already serialised as JSON.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn put_all_texts<'a>(
        &self,
        services: impl IntoIterator<Item = &'a str>,
        options: &Options,
    ) -> Result<Changes, ClientError> {
        let mut body = String::from("{\"services\":[");
        for (at, service) in services.into_iter().enumerate() {
            body.push_str(if at == 0 { "" } else { "," });
            body.push_str(service);
        }
        body.push_str("]}");
        self.ask(Method::PUT, SERVICES, Some(body), options).await
    }

    /// Removes a service.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn delete(&self, name: &str, options: &Options) -> Result<Done, ClientError> {
        self.ask(Method::DELETE, &one(name), None, options).await
    }

    /// Changes the weight or the state of a back end, without changing the specification.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn patch(
        &self,
        service: &str,
        back_end: &str,
        patch: &Patch,
        options: &Options,
    ) -> Result<Done, ClientError> {
        let body = serde_json::to_string(patch).map_err(|why| ClientError::Answer(why.to_string()))?;
        let path = format!("{}/back_ends/{}", one(service), escaped(back_end));
        self.ask(Method::PATCH, &path, Some(body), options).await
    }

    /// Returns the names of addresses that clients have set, or `None` if they still have this `etag`.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn names_unless(&self, etag: &str) -> Result<Option<NameSet>, ClientError> {
        self.unless(NAMES, etag).await
    }

    /// Replaces all names of addresses that clients have set.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn put_names(&self, names: &[NamedAddress]) -> Result<NamesSet, ClientError> {
        let body =
            serde_json::to_string(&AllNames { names }).map_err(|why| ClientError::Answer(why.to_string()))?;
        self.ask(Method::PUT, NAMES, Some(body), &Options::default()).await
    }

    /// Watches the services. The events begin after the one with the number `last`, or with the `etag` of the
    /// set.
    ///
    /// # Errors
    /// As for [`Client::services`].
    pub async fn watch(&self, last: Option<u64>) -> Result<Watch, ClientError> {
        let last = last.map(|last| ("last-event-id", last.to_string()));
        let received = self.send((Method::GET, WATCH), None, last.into_iter().collect()).await?;
        if received.status() != 200 {
            return Err(self.refusal(received).await);
        }
        Ok(Watch::new(received))
    }

    async fn ask<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        options: &Options,
    ) -> Result<A, ClientError> {
        let mut headers = Vec::new();
        headers.extend(options.etag.as_ref().map(|etag| ("if-match", format!("\"{etag}\""))));
        headers.extend(options.absent.then(|| ("if-none-match", "*".to_string())));
        let path = if options.dry_run { format!("{path}?dry_run=true") } else { path.to_string() };
        let received = self.send((method, &path), body, headers).await?;
        self.read(received).await
    }

    async fn send(
        &self,
        (method, path): (Method, &str),
        body: Option<String>,
        mut headers: Vec<(&'static str, String)>,
    ) -> Result<Received, ClientError> {
        headers.extend(self.token.as_ref().map(|token| ("authorization", format!("Bearer {token}"))));
        self.endpoint.send(method, path, body.unwrap_or_default(), headers).await
    }

    /// Reads an answer.
    async fn read<A: DeserializeOwned>(&self, received: Received) -> Result<A, ClientError> {
        if !(200..300).contains(&received.status()) {
            return Err(self.refusal(received).await);
        }
        let body = received.body(self.answer_max).await?;
        // Bounded: by the connection, which limits the size of an answer.
        serde_json::from_slice(&body).map_err(|why| ClientError::Answer(why.to_string()))
    }

    async fn refusal(&self, received: Received) -> ClientError {
        let status = received.status();
        let body = match received.body(self.answer_max).await {
            Ok(body) => body,
            Err(why) => return why,
        };
        let answer: ErrorAnswer = serde_json::from_slice(&body).unwrap_or_default();
        let why = if answer.error.is_empty() { format!("the status is {status}") } else { answer.error };
        ClientError::Refused { reason: RefusalReason::of(status), why }
    }
}

const SERVICES: &str = "/v1/services";
const WATCH: &str = "/v1/watch";
const NODE: &str = "/v1/node";

/// Returns the path of a service.
fn one(name: &str) -> String {
    format!("{SERVICES}/{}", escaped(name))
}

/// Returns a name as one segment of a path. weir's names need no escapes; any other name must not lead to
/// another resource, such as a back end of the service.
fn escaped(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let escape =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(escape).collect()
}

/// The body that sets all names of addresses.
#[derive(Serialize)]
struct AllNames<'a> {
    names: &'a [NamedAddress],
}

/// The body that sets all services.
#[derive(Serialize)]
struct All<'a> {
    services: &'a [Value],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment_of_a_path() {
        assert_eq!(one("web-1.a_b"), "/v1/services/web-1.a_b");
        assert_eq!(one("web/back_ends/b1?x"), "/v1/services/web%2Fback_ends%2Fb1%3Fx");
    }
}
