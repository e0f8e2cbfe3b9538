//! HTTP/1.1 requests (RFC 9112).

use super::parting::REST_MAX;
use super::{ANSWER_MAX, Server, connect, tls};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use weir_app::check::{Outcome, Request};

/// Sends a request and judges the answer.
pub async fn ask(server: Server<'_>, request: &Request) -> Outcome {
    let stream = connect(server).await?;
    if request.tls {
        return over(tls::shake(stream, server, request.host.as_deref()).await?, server, request).await;
    }
    over(stream, server, request).await
}

async fn over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    server: Server<'_>,
    request: &Request,
) -> Outcome {
    let failed = |error: hyper::Error| format!("no HTTP answer: {error}");
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(failed)?;
    // Its task ends with this set.
    let mut driver = JoinSet::new();
    driver.spawn(connection.without_shutdown());
    let host = request.host.clone().unwrap_or_else(|| server.at.to_string());
    let asked = hyper::Request::get(request.path.as_str())
        .header(HOST, host)
        .header(USER_AGENT, "weir")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| format!("the request cannot be sent: {error}"))?;
    let response = sender.send_request(asked).await.map_err(failed)?;
    let (status, mut body) = (response.status().as_u16(), response.into_body());
    let [first, last] = request.status;
    let outcome = match &request.body {
        _ if !(first..=last).contains(&status) => Err(format!("status {status}")),
        Some(wanted) => contains(&mut body, wanted.as_bytes()).await,
        None => Ok(()),
    };
    server.part_after(async move {
        let mut rest = REST_MAX;
        while let Some(frame) = body.frame().await {
            rest = rest.checked_sub(frame.ok()?.into_data().map_or(0, |data| data.len()))?;
        }
        drop(sender);
        Some(driver.join_next().await?.ok()?.ok()?.io.into_inner())
    });
    outcome
}

/// Looks for bytes at the start of a body.
async fn contains(body: &mut Incoming, wanted: &[u8]) -> Outcome {
    let mut read = Vec::new();
    let is_there =
        |read: &[u8]| wanted.is_empty() || read.windows(wanted.len()).any(|window| window == wanted);
    while !is_there(&read) {
        let Some(frame) = body.frame().await else {
            return Err("the body does not contain what is expected".to_string());
        };
        let frame = frame.map_err(|error| format!("the body is truncated: {error}"))?;
        read.extend(frame.into_data().unwrap_or_default());
        if read.len() > ANSWER_MAX && !is_there(&read) {
            return Err(format!("the first {ANSWER_MAX} bytes of the body do not contain what is expected"));
        }
    }
    Ok(())
}
