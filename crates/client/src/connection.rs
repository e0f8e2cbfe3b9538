//! A connection for one request.

use crate::ClientError;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long to wait for a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for an answer, which may need a reload: as long as the daemon does.
const ANSWER_PATIENCE: Duration = Duration::from_secs(600);

/// The largest answer in bytes.
const ANSWER_MAX: usize = 256 << 20;

/// Where weir listens.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// Its control socket.
    Unix(PathBuf),
    /// An address.
    Tcp(String),
    /// An address, with TLS.
    #[cfg(feature = "tls")]
    Tls(String, crate::Tls),
}

/// An answer whose body has not been read.
pub struct Received {
    response: Response<Incoming>,
    /// What carries the connection.
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
    /// Returns the status.
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// Returns the whole body.
    pub async fn body(self) -> Result<Bytes, ClientError> {
        let Received { response, task: _task } = self;
        let body = timeout(ANSWER_PATIENCE, Limited::new(response.into_body(), ANSWER_MAX).collect()).await;
        let body = body.map_err(|_| unreachable("the answer takes too long"))?;
        Ok(body.map_err(|why| ClientError::Unreachable(why.to_string()))?.to_bytes())
    }

    /// Returns the next piece of the body, or `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        let _is_carried_by = &self.task;
        while let Some(frame) = self.response.body_mut().frame().await {
            let frame = frame.map_err(|why| ClientError::Unreachable(why.to_string()))?;
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

impl Endpoint {
    /// Sends a request, and waits for the head of the answer.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: String,
        headers: Vec<(&'static str, String)>,
    ) -> Result<Received, ClientError> {
        let mut request = Request::builder().method(method).uri(path).header("host", "weir");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|why| ClientError::Answer(format!("no such request: {why}")))?;
        let connected = timeout(CONNECT_PATIENCE, self.connect()).await;
        let (mut sender, task) = connected.map_err(|_| unreachable("it cannot be reached in time"))??;
        let response = timeout(ANSWER_PATIENCE, sender.send_request(request)).await;
        let response = response.map_err(|_| unreachable("the answer takes too long"))?;
        let response = response.map_err(|why| ClientError::Unreachable(why.to_string()))?;
        Ok(Received { response, task })
    }

    async fn connect(&self) -> Result<(RequestSender, Task), ClientError> {
        match self {
            Endpoint::Unix(path) => {
                let why = |why| ClientError::Unreachable(format!("{}: {why}", path.display()));
                begin(UnixStream::connect(path).await.map_err(why)?).await
            }
            Endpoint::Tcp(address) => {
                let why = |why| ClientError::Unreachable(format!("{address}: {why}"));
                begin(TcpStream::connect(address).await.map_err(why)?).await
            }
            #[cfg(feature = "tls")]
            Endpoint::Tls(address, tls) => {
                let why = |why| ClientError::Unreachable(format!("{address}: {why}"));
                let stream = TcpStream::connect(address).await.map_err(why)?;
                begin(tls.connect(stream).await.map_err(why)?).await
            }
        }
    }
}

type RequestSender = http1::SendRequest<Full<Bytes>>;

async fn begin<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
) -> Result<(RequestSender, Task), ClientError> {
    let begun = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = begun.map_err(|why| ClientError::Unreachable(why.to_string()))?;
    // Its errors are those of the request.
    Ok((sender, Task(tokio::spawn(async move { drop(connection.await) }))))
}
