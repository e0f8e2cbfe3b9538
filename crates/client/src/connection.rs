//! A connection for one request.

use crate::ClientError;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long to wait for a connection, and for each address of a name: the first address may be in a network
/// that loses all packets.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
const ADDRESS_PATIENCE: Duration = Duration::from_secs(3);

/// How long to wait for an answer, which may need a reload: as long as the daemon does.
const ANSWER_PATIENCE: Duration = Duration::from_secs(600);

/// The largest answer in bytes, by default.
pub const ANSWER_MAX: usize = 256 << 20;

/// Where a weir daemon listens for requests.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// The path of its control socket.
    Unix(PathBuf),
    /// An address and port, `HOST:PORT`, over which requests are sent in the clear.
    Tcp(String),
    /// An address and port, `HOST:PORT`, with TLS.
    #[cfg(feature = "tls")]
    Tls(String, crate::Tls),
}

/// An answer whose body has not been read.
pub struct Received {
    response: Response<Incoming>,
    /// The task that carries the connection.
    task: Task,
}

/// A task that ends with its owner.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Received {
    /// Returns the HTTP status, such as 200.
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// Returns the tag in the header `ETag`, without its quotes.
    pub fn etag(&self) -> Option<String> {
        let tag = self.response.headers().get("etag")?.to_str().ok()?;
        Some(tag.strip_prefix('"')?.strip_suffix('"')?.to_string())
    }

    /// Returns the whole body, which has at most `max` bytes.
    pub async fn body(self, max: usize) -> Result<Bytes, ClientError> {
        let Received { response, task: _task } = self;
        let body = response.into_body();
        let too_large = || ClientError::Unreachable(format!("sends an answer of more than {max} bytes"));
        // An answer that says so is refused before it has arrived.
        if body.size_hint().lower() > max as u64 {
            return Err(too_large());
        }
        let read = timeout(ANSWER_PATIENCE, Limited::new(body, max).collect()).await;
        let read = read.map_err(|_| unreachable("does not answer in time"))?;
        let read = read.map_err(|why| match why.downcast::<hyper::Error>() {
            Ok(why) => broken(&why),
            // The only other error is that of the limit.
            Err(_) => too_large(),
        })?;
        Ok(read.to_bytes())
    }

    /// Returns the next piece of the body, or `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        let _is_carried_by = &self.task;
        while let Some(frame) = self.response.body_mut().frame().await {
            let frame = frame.map_err(|why| broken(&why))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

fn unreachable(why: &str) -> ClientError {
    ClientError::Unreachable(why.to_string())
}

/// Returns an error that says why a connection has failed.
fn broken(why: &hyper::Error) -> ClientError {
    let cause = why.source();
    let io = cause.and_then(|cause| cause.downcast_ref::<io::Error>());
    if why.is_incomplete_message() || io.is_some_and(|io| io.kind() == ErrorKind::UnexpectedEof) {
        return unreachable("closes the connection before its answer is complete");
    }
    if why.is_parse() {
        return unreachable("answers with something that is not HTTP");
    }
    let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
    ClientError::Unreachable(format!("does not answer: {why}{cause}"))
}

/// Connects to the first address of `HOST:PORT` that accepts a connection.
async fn connect_to(address: &str) -> Result<TcpStream, ClientError> {
    let unresolved = |why| ClientError::Unreachable(format!("has a name that is not resolved: {why}"));
    let mut last = "has a name without an address".to_string();
    for one in lookup_host(address).await.map_err(unresolved)? {
        last = match timeout(ADDRESS_PATIENCE, TcpStream::connect(one)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(why)) => format!("cannot be reached at {one}: {why}"),
            Err(_) => format!("cannot be reached at {one} in time"),
        };
    }
    Err(ClientError::Unreachable(last))
}

impl Endpoint {
    /// Sends a request, and waits for the head of the answer.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: String,
        headers: Vec<(&'static str, String)>,
    ) -> Result<Received, ClientError> {
        let mut request = Request::builder().method(method).uri(path).header("host", self.host());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|why| ClientError::Answer(format!("no such request: {why}")))?;
        let connected = timeout(CONNECT_PATIENCE, self.connect()).await;
        let (mut sender, task) = connected.map_err(|_| unreachable("cannot be reached in time"))??;
        let response = timeout(ANSWER_PATIENCE, sender.send_request(request)).await;
        let response = response.map_err(|_| unreachable("does not answer in time"))?;
        let response = response.map_err(|why| broken(&why))?;
        Ok(Received { response, task })
    }

    /// Returns the value of the header `Host`.
    fn host(&self) -> &str {
        match self {
            Endpoint::Unix(_) => "weir",
            Endpoint::Tcp(address) => address,
            #[cfg(feature = "tls")]
            Endpoint::Tls(address, _) => address,
        }
    }

    async fn connect(&self) -> Result<(RequestSender, Task), ClientError> {
        match self {
            Endpoint::Unix(path) => {
                let why =
                    |why| ClientError::Unreachable(format!("cannot be reached at {}: {why}", path.display()));
                begin(UnixStream::connect(path).await.map_err(why)?).await
            }
            Endpoint::Tcp(address) => begin(connect_to(address).await?).await,
            #[cfg(feature = "tls")]
            Endpoint::Tls(address, tls) => {
                let why = |why| ClientError::Unreachable(format!("does not complete a TLS handshake: {why}"));
                begin(tls.connect(connect_to(address).await?).await.map_err(why)?).await
            }
        }
    }
}

type RequestSender = http1::SendRequest<Full<Bytes>>;

async fn begin<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
) -> Result<(RequestSender, Task), ClientError> {
    let begun = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = begun.map_err(|why| broken(&why))?;
    // Its errors are those of the request.
    Ok((sender, Task(tokio::spawn(async move { drop(connection.await) }))))
}
