//! Clients that watch: each has a connection on which events are sent as they happen (server-sent events),
//! for as long as it reads them.

use super::connected::{ConnectedClient, WATCH_PATIENCE};
use super::feed::{Feed, FeedEvent};
use hyper::body::{Body, Bytes, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;

/// The number of clients that may watch at the same time.
pub const WATCHERS_MAX: usize = 64;

/// Pieces that may be queued for a watcher.
const PIECES: usize = 16;

/// The number of events that are sent as one piece.
const EVENTS: usize = 256;

/// How often a watcher is sent a comment if there is no event, so that both ends know about the other.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The body of an answer to a watcher.
pub struct EventStream(mpsc::Receiver<Bytes>);

impl EventStream {
    /// Returns the body of the pieces that arrive.
    pub fn new(pieces: mpsc::Receiver<Bytes>) -> EventStream {
        EventStream(pieces)
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// Begins to send events to a client: those after `last`, if the client has that event, and otherwise the
/// whole state first.
pub fn watch(
    feed: Feed,
    last: Option<u64>,
    client: Arc<ConnectedClient>,
    permit: OwnedSemaphorePermit,
) -> EventStream {
    let (pieces, body) = mpsc::channel(PIECES);
    tokio::spawn(async move {
        let _permit = permit;
        let watcher = Watcher { feed, pieces, client };
        watcher.serve(last).await;
    });
    EventStream::new(body)
}

/// A client that watches.
struct Watcher {
    feed: Feed,
    pieces: mpsc::Sender<Bytes>,
    client: Arc<ConnectedClient>,
}

impl Watcher {
    /// Sends events until the client leaves or is too slow, or the daemon stops. `None` means that sending
    /// has ended.
    async fn serve(self, last: Option<u64>) -> Option<()> {
        let mut news = self.feed.news();
        let mut last = match last {
            // The client has missed events: it continues from here once it has read everything again.
            Some(last) if self.feed.after(last).is_none() => self.send(&[self.feed.reread()]).await?,
            Some(last) => last,
            None => self.send(&[self.feed.first()]).await?,
        };
        loop {
            if !*news.borrow_and_update() {
                return None;
            }
            let Some(events) = self.feed.after(last) else {
                let _ = self.send(&[self.feed.reread()]).await;
                return None;
            };
            for some in events.chunks(EVENTS) {
                last = self.send(some).await?;
            }
            if events.is_empty() {
                match timeout(KEEP_ALIVE, news.changed()).await {
                    Ok(changed) => changed.ok()?,
                    Err(_) => self.put(":\n\n".to_string()).await?,
                }
            }
        }
    }

    /// Sends events. Returns the number of the last.
    async fn send(&self, events: &[FeedEvent]) -> Option<u64> {
        self.put(events.iter().map(FeedEvent::text).collect()).await?;
        events.last().map(|one| one.id)
    }

    async fn put(&self, text: String) -> Option<()> {
        timeout(WATCH_PATIENCE, self.pieces.send(text.into())).await.ok()?.ok()?;
        self.client.note_watching();
        Some(())
    }
}
