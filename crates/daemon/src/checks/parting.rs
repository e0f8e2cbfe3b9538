//! How the connection of a check ends. By default, weir sends a FIN and then reads what the server still
//! sends: a socket that is closed earlier answers late data with a RST (RFC 1122 §4.2.2.13), which servers
//! log as an error. The outcome does not wait for this.

use super::Server;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use weir_app::check::Close;

/// How many connections may linger. Each has a descriptor, like a check. Beyond that, connections are closed
/// immediately.
static PLACES: Semaphore = Semaphore::const_new(256);

/// How long a connection lingers.
const LINGER: Duration = Duration::from_secs(1);

/// The maximum number of bytes that a lingering connection reads and discards.
pub const REST_MAX: usize = 1 << 20;

impl Server<'_> {
    /// Closes the connection of a check whose outcome is known.
    pub fn part<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: S) {
        self.part_after(async { Some(stream) });
    }

    /// Closes a connection that is returned when its protocol has finished.
    pub fn part_after<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        finished: impl Future<Output = Option<S>> + Send + 'static,
    ) {
        let Ok(place) = PLACES.try_acquire() else { return };
        if self.close == Close::Fin {
            tokio::spawn(async move {
                let _ = timeout(LINGER, async { read_out(finished.await).await }).await;
                drop(place);
            });
        }
    }
}

/// Sends a FIN and reads until the server sends one, too.
async fn read_out<S: AsyncRead + AsyncWrite + Unpin>(stream: Option<S>) {
    let Some(mut stream) = stream else { return };
    if poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await.is_err() {
        return;
    }
    let (mut read, mut bytes) = (0, vec![0; 4096]);
    while read < REST_MAX {
        let mut buffer = ReadBuf::new(&mut bytes);
        let ended = poll_fn(|context| Pin::new(&mut stream).poll_read(context, &mut buffer)).await;
        if ended.is_err() || buffer.filled().is_empty() {
            return;
        }
        read += buffer.filled().len();
    }
}
