//! Watching: server-sent events (WHATWG HTML, section 9.2), as far as weir sends them.

use crate::ClientError;
use crate::connection::Received;
use serde_json::Value;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::timeout;

/// The largest event in bytes.
const EVENT_MAX: usize = 1 << 20;

/// The longest time during which nothing may arrive. weir sends a comment every 15 s if there is no event, so
/// a silent connection is that of a node that has died without closing it.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// An event that the node has sent, as a server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchEvent {
    /// The event's number: events after it can be requested with [`Client::watch`](crate::Client::watch).
    pub id: u64,
    /// Its kind: `set`, `service`, `back_end` or `reread`.
    pub event: String,
    /// What has happened, an object.
    pub data: Value,
}

/// Events as they happen.
pub struct Watch {
    received: Received,
    text: Vec<u8>,
    events: VecDeque<WatchEvent>,
    silence_max: Duration,
}

impl Watch {
    pub(crate) fn new(received: Received) -> Watch {
        Watch { received, text: Vec::new(), events: VecDeque::new(), silence_max: SILENCE_MAX }
    }

    /// Returns the next event; `None` if weir has ended the connection, after which the client watches again
    /// from the last event that it has. After `reread`, it reads all services first.
    ///
    /// # Errors
    /// The connection has broken, nothing has arrived for a minute, or the data is not a sequence of events.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, ClientError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let piece = timeout(self.silence_max, self.received.piece()).await;
            let silent = || ClientError::Unreachable("sends nothing on the connection any more".to_string());
            let Some(piece) = piece.map_err(|_| silent())?? else { return Ok(None) };
            self.text.extend_from_slice(&piece);
            self.events.extend(taken(&mut self.text)?);
            if self.text.len() > EVENT_MAX {
                return Err(ClientError::Answer(format!("an event has more than {EVENT_MAX} bytes")));
            }
        }
    }
}

/// Takes the complete events from the beginning of a text.
fn taken(text: &mut Vec<u8>) -> Result<Vec<WatchEvent>, ClientError> {
    let Some(end) = text.windows(2).rposition(|two| two == b"\n\n") else { return Ok(Vec::new()) };
    let whole: Vec<u8> = text.drain(..end + 2).collect();
    let whole = String::from_utf8(whole).map_err(|_| ClientError::Answer("it is not UTF-8".to_string()))?;
    let blocks = whole.split("\n\n").filter(|block| block.lines().any(|line| !line.starts_with(':')));
    blocks.map(event).collect()
}

fn event(block: &str) -> Result<WatchEvent, ClientError> {
    let mut one = WatchEvent { id: 0, event: "message".to_string(), data: Value::Null };
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => one.id = value.parse().unwrap_or_default(),
            "event" => one.event = value.to_string(),
            // Bounded: by the size of an event.
            "data" => {
                let data = serde_json::from_str(value);
                one.data = data.map_err(|why| ClientError::Answer(format!("{value}: {why}")))?;
            }
            // Comments, and fields of later versions.
            _other => {}
        }
    }
    Ok(one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_connection_on_which_nothing_arrives_is_given_up() {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n:\n\n\r\n");
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(async {
            let mut watch = crate::Client::tcp(address, "token").watch(None).await.unwrap();
            watch.silence_max = Duration::from_millis(200);
            watch.next().await
        });
        assert!(matches!(ended, Err(ClientError::Unreachable(_))), "{ended:?}");
    }

    #[test]
    fn events_are_read_in_any_pieces() {
        let first = ":\n\nid: 7\nevent: service\ndata: {\"service\":\"a\"}\n\n";
        let text = format!("{first}:\n\nid: 8\nevent: reread\ndata: {{}}\n\nid: 9");
        for size in 1..text.len() {
            let (mut events, mut buffer) = (Vec::new(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                buffer.extend_from_slice(piece);
                events.extend(taken(&mut buffer).unwrap());
            }
            let ids: Vec<(u64, &str)> = events.iter().map(|one| (one.id, one.event.as_str())).collect();
            assert_eq!(ids, [(7, "service"), (8, "reread")], "{size}");
            assert_eq!(events[0].data, json!({ "service": "a" }));
            assert_eq!(buffer, b"id: 9");
        }
        assert!(taken(&mut b"data: {\n\n".to_vec()).is_err());
    }
}
