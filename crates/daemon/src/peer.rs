//! Asks other nodes over HTTP, HTTPS or their control sockets, for example for the state that nodes of a
//! fleet compare (`GET /v1/node`).
//!
//! A peer may be down, stuck, of another version, or not weir at all: the whole exchange has a deadline, the
//! answer a maximum size, and every failure is a sentence.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;
use weir_app::http::NODE;
pub use weir_client::Client;
use weir_client::{ClientError, RefusalReason};
use weir_control::answer::FleetNode;

/// How long the whole exchange may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum size of an answer's body, in bytes.
const BODY_MAX: usize = 64 << 20;

/// What is wrong with an answer that cannot be read.
const NOT_STATE: &str = "answers with something that is not a node's state";

/// The address of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerUrl {
    /// An address.
    Tcp {
        /// Whether it needs TLS.
        is_tls: bool,
        /// The host and the port, as in a `Host` header.
        authority: String,
        /// The host without the brackets of an IPv6 address, as in a certificate.
        host: String,
    },
    /// The path of a control socket of this host.
    Unix(PathBuf),
}

impl std::fmt::Display for PeerUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PeerUrl::Tcp { is_tls, authority, .. } => {
                write!(f, "{}://{authority}", if *is_tls { "https" } else { "http" })
            }
            PeerUrl::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl std::str::FromStr for PeerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<PeerUrl, String> {
        let wrong = || {
            let text = text.escape_debug();
            format!("`{text}` is not a URL such as https://10.0.0.5:9106 or unix:/run/weir/weir.sock")
        };
        if let Some(path) = text.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
            return Ok(PeerUrl::Unix(path.into()));
        }
        let (is_tls, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => return Err(wrong()),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
        port.parse::<u16>().map_err(|_| wrong())?;
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = |one: u8| one.is_ascii_alphanumeric() || b".-_".contains(&one);
        let is_right = match inner {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(is_host),
        };
        if !is_right {
            return Err(wrong());
        }
        let host = inner.unwrap_or(host).to_string();
        Ok(PeerUrl::Tcp { is_tls, authority: authority.to_string(), host })
    }
}

/// Asks a peer for what nodes of a fleet compare. `authorities` is a file with the certificates (PEM) that
/// sign those of peers.
///
/// # Errors
/// The error is the rest of a sentence that begins with the peer.
pub fn ask(peer: &PeerUrl, token: &str, authorities: Option<&Path>) -> Result<FleetNode, String> {
    ask_within(peer, token, authorities, PATIENCE)
}

fn ask_within(
    peer: &PeerUrl,
    token: &str,
    authorities: Option<&Path>,
    patience: Duration,
) -> Result<FleetNode, String> {
    let client = client(peer, token, authorities)?.with_answer_max(BODY_MAX);
    serde_json::from_value(get(&client, NODE, patience)?).map_err(|_| NOT_STATE.to_string())
}

/// Returns what a peer answers to GET for a path.
///
/// # Errors
/// The error is the rest of a sentence that begins with the peer.
pub fn get(client: &Client, path: &str, patience: Duration) -> Result<Value, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("could not be asked: {error}"))?;
    let answer = runtime.block_on(async { timeout(patience, client.get(path)).await });
    // A name server that does not answer must not delay the result.
    runtime.shutdown_background();
    match answer {
        Ok(answer) => answer.map_err(|why| sentence(&why, path)),
        Err(_) => Err("does not answer in time: it is stuck, or the network loses packets".to_string()),
    }
}

/// Returns a client of a peer.
///
/// # Errors
/// As for [`ask`].
pub fn client(peer: &PeerUrl, token: &str, authorities: Option<&Path>) -> Result<Client, String> {
    match peer {
        PeerUrl::Unix(path) => Ok(Client::unix(path)),
        PeerUrl::Tcp { is_tls: false, authority, .. } => Ok(Client::tcp(authority, token)),
        PeerUrl::Tcp { is_tls: true, authority, host } => over_tls((authority, host), token, authorities),
    }
}

/// The token must reach no other server, so certificates are verified, against the authorities in a file.
#[cfg(feature = "tls")]
fn over_tls(
    (authority, host): (&str, &str),
    token: &str,
    authorities: Option<&Path>,
) -> Result<Client, String> {
    let file =
        authorities.ok_or("needs --authorities FILE, with the certificate that signs those of nodes")?;
    let tls = weir_client::Tls::new(file, host);
    let tls = tls.map_err(|error| format!("cannot be verified: {}: {error}", file.display()))?;
    Ok(Client::tls(authority, token, tls))
}

#[cfg(not(feature = "tls"))]
fn over_tls(_: (&str, &str), _: &str, _: Option<&Path>) -> Result<Client, String> {
    Err("needs TLS, and this weir was built without it".to_string())
}

/// Returns the rest of a sentence that begins with the peer. It contains no text from the peer, because that
/// may contain control sequences of a terminal.
fn sentence(why: &ClientError, path: &str) -> String {
    match why {
        ClientError::Unreachable(why) => why.clone(),
        ClientError::Answer(_) => NOT_STATE.to_string(),
        ClientError::Refused { reason, .. } => match reason {
            RefusalReason::Token => {
                "refuses the token: use the same one on all nodes, or --token FILE".to_string()
            }
            RefusalReason::Absent => {
                format!("does not know {path}: it runs an older weir, or this is another service")
            }
            RefusalReason::Busy => "is too busy to answer, stops, or has received too many requests \
                                    without its token and answers none of them"
                .to_string(),
            RefusalReason::Wrong
            | RefusalReason::Conflict
            | RefusalReason::Stale
            | RefusalReason::TooLarge => {
                "refuses the request: it runs another weir, or this is another service".to_string()
            }
            RefusalReason::Other(status) => format!("answers with status {status}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn urls_are_read() {
        for (text, is_right) in [
            ("http://10.0.0.5:9106", true),
            ("https://node-1.example:9106/", true),
            ("https://[2001:db8::1]:9106", true),
            ("10.0.0.5:9106", false),
            ("http://10.0.0.5", false),
            ("http://:9106", false),
            ("http://a b:1", false),
            ("http://a\r\nX: y:1", false),
            ("http://[a]:1", false),
            ("unix:/run/weir/weir.sock", true),
            ("unix:weir.sock", false),
            ("ftp://a:1", false),
        ] {
            assert_eq!(text.parse::<PeerUrl>().is_ok(), is_right, "{text}");
        }
    }

    /// Answers one connection with these bytes, and keeps it open for as long as the client does.
    fn answering(bytes: Vec<u8>) -> PeerUrl {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&bytes);
            if bytes.ends_with(b"close") {
                return;
            }
            let _ = stream.read_to_end(&mut Vec::new());
        });
        url
    }

    #[test]
    fn a_peer_that_lies_or_stalls_gets_a_sentence() {
        let endless = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'a'; 1 << 20]].concat();
        let chunk = format!("{:x}\r\n", BODY_MAX + 1).into_bytes();
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let chunks = [head, chunk, vec![b' '; BODY_MAX + 1]].concat();
        let answer = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        for (bytes, says) in [
            (Vec::new(), "does not answer in time"),
            (b"no HTTP, close".to_vec(), "not HTTP"),
            (endless, "not HTTP"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec(), "more than 67108864"),
            (chunks, "more than 67108864"),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{close".to_vec(),
                "before its answer is complete",
            ),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{".to_vec(), "does not answer in time"),
            (b"HTTP/1.1 200 OK\r\n\r\nclose".to_vec(), "not a node's state"),
            (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n".to_vec(), "refuses the token"),
            (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n".to_vec(), "older weir"),
            (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".to_vec(), "too busy"),
            (b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n".to_vec(), "another weir"),
            (b"HTTP/1.1 418 No\r\nContent-Length: 0\r\n\r\n".to_vec(), "status 418"),
            (answer("[1, 2]").into_bytes(), "not a node's state"),
            (answer("{\"rings\": 7}").into_bytes(), "not a node's state"),
            (answer(&"[".repeat(100_000)).into_bytes(), "not a node's state"),
        ] {
            // A busy machine takes seconds for the longest of them.
            let patience = Duration::from_secs(if says.contains("in time") { 3 } else { 60 });
            let why = ask_within(&answering(bytes.clone()), "t", None, patience).unwrap_err();
            assert!(why.contains(says), "{why}, not {says}");
        }
        let good = answer("{\"version\": \"9\", \"more\": 1}").into_bytes();
        assert_eq!(ask(&answering(good), "t", None).unwrap().version, "9");
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let why = ask(&format!("http://{free}").parse().unwrap(), "t", None).unwrap_err();
        assert!(why.contains("cannot be reached"), "{why}");
    }
}
