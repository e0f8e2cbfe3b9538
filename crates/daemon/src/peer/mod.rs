//! Asks another node of the fleet for what nodes compare (`GET /v1/node`), over HTTP or HTTPS.
//!
//! A peer may be down, stuck, of another version, or not weir at all: the whole exchange has a deadline, the
//! answer a maximum size, and every failure is a sentence.

#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};
use weir_app::http::NODE;
use weir_control::answer::FleetNode;

/// How long a connection may take, and then how long the whole exchange.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum size of an answer's head and body, in bytes.
const HEAD_MAX: usize = 16 << 10;
const BODY_MAX: usize = 64 << 20;

/// The address of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerUrl {
    is_tls: bool,
    /// The host and the port, as in a `Host` header.
    authority: String,
    host: String,
    port: u16,
}

impl std::fmt::Display for PeerUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", if self.is_tls { "https" } else { "http" }, self.authority)
    }
}

impl std::str::FromStr for PeerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<PeerUrl, String> {
        let wrong = || format!("`{}` is not a URL such as https://10.0.0.5:9106", text.escape_debug());
        let (is_tls, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => return Err(wrong()),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
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
        Ok(PeerUrl { is_tls, authority: authority.to_string(), host, port })
    }
}

/// A connection with a deadline for everything.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        left.map(Some).ok_or_else(|| ErrorKind::TimedOut.into())
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Asks a peer. `authorities` is a file with the certificates (PEM) that sign those of peers.
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
    let until = Instant::now() + patience;
    let addresses = (peer.host.as_str(), peer.port).to_socket_addrs();
    let addresses = addresses.map_err(|error| format!("has a name that is not resolved: {error}"))?;
    let mut last = "has a name without an address".to_string();
    let mut connected = None;
    for address in addresses.take(4) {
        match TcpStream::connect_timeout(&address, CONNECT_PATIENCE.min(patience)) {
            Ok(stream) => {
                connected = Some(stream);
                break;
            }
            Err(error) => last = format!("cannot be reached at {address}: {error}"),
        }
    }
    let stream = Timed { stream: connected.ok_or(last)?, until };
    let request = format!(
        "GET {NODE} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nAccept: application/json\r\n\
         Connection: close\r\n\r\n",
        peer.authority
    );
    let (status, body) = if peer.is_tls {
        exchange(tls::wrap(stream, &peer.host, authorities)?, &request)?
    } else {
        exchange(stream, &request)?
    };
    match status {
        200 => {}
        401 => return Err("refuses the token: use the same one on all nodes, or --token FILE".to_string()),
        404 => {
            return Err(format!("does not know {NODE}: it runs an older weir, or this is another service"));
        }
        429 => return Err("gets too many requests without its token, and answers none of them".to_string()),
        503 => return Err("is too busy to answer, or stops".to_string()),
        other => return Err(format!("answers with status {other}")),
    }
    serde_json::from_slice(&body).map_err(|_| "answers with something that is not a node's state".to_string())
}

/// Sends a request and returns the status and the body of the answer.
fn exchange(mut stream: impl Read + Write, request: &str) -> Result<(u16, Vec<u8>), String> {
    let why = |error: io::Error| match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            "does not answer in time: it is stuck, or the network loses packets".to_string()
        }
        ErrorKind::UnexpectedEof => "closes the connection before its answer is complete".to_string(),
        _ => format!("does not answer: {error}"),
    };
    stream.write_all(request.as_bytes()).and_then(|()| stream.flush()).map_err(why)?;
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if bytes.len() > HEAD_MAX {
            return Err("answers with something that is not HTTP".to_string());
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).map_err(why)? {
            0 if bytes.is_empty() => return Err("closes the connection without an answer".to_string()),
            0 => return Err("answers with something that is not HTTP".to_string()),
            read => bytes.extend_from_slice(&piece[..read]),
        }
    };
    let mut body = bytes.split_off(head);
    let head = String::from_utf8(bytes).map_err(|_| "answers with something that is not HTTP")?;
    let status =
        head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|one| one.parse().ok());
    let status = status.ok_or("answers with something that is not HTTP")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let length = length.ok_or("answers without saying how long its answer is: it is not weir")?;
    if length > BODY_MAX {
        return Err(format!("announces an answer of {length} bytes, more than {BODY_MAX}, the limit"));
    }
    let missing = length.saturating_sub(body.len()) as u64;
    // Bounded: by the length.
    let read = stream.take(missing).read_to_end(&mut body).map_err(why)? as u64;
    if read < missing {
        return Err("closes the connection before its answer is complete".to_string());
    }
    body.truncate(length);
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let answer = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        for (bytes, says) in [
            (Vec::new(), "does not answer in time"),
            (b"close".to_vec(), "not HTTP"),
            (endless, "not HTTP"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec(), "more than 67108864"),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{close".to_vec(),
                "before its answer is complete",
            ),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{".to_vec(), "does not answer in time"),
            (b"HTTP/1.1 200 OK\r\n\r\nclose".to_vec(), "how long"),
            (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n".to_vec(), "refuses the token"),
            (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n".to_vec(), "older weir"),
            (b"HTTP/1.1 418 No\r\nContent-Length: 0\r\n\r\n".to_vec(), "status 418"),
            (answer("[1, 2]").into_bytes(), "not a node's state"),
            (answer("{\"rings\": 7}").into_bytes(), "not a node's state"),
            (answer(&"[".repeat(100_000)).into_bytes(), "not a node's state"),
        ] {
            let why = ask_within(&answering(bytes.clone()), "t", None, Duration::from_secs(1)).unwrap_err();
            assert!(why.contains(says), "{why}, not {says}");
        }
        let good = answer("{\"version\": \"9\", \"more\": 1}").into_bytes();
        assert_eq!(ask(&answering(good), "t", None).unwrap().version, "9");
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let why = ask(&format!("http://{free}").parse().unwrap(), "t", None).unwrap_err();
        assert!(why.contains("cannot be reached"), "{why}");
    }
}
