//! Serves `/metrics` and `/readyz`.

use crate::shared::Hub;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// How long a connection may last, and how many there may be.
const LASTS: Duration = Duration::from_secs(10);
const CONNECTIONS: usize = 64;

/// The format of metrics. Prometheus 3 refuses metrics of an unknown format.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) async fn serve(shared: Arc<Hub>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(why) => {
                // For example, too many files are open.
                tracing::warn!("no connection can be accepted: {why}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| {
                let answer = answer(&shared, &request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
            // Errors of a client affect only that client.
            let _ = timeout(LASTS, connection).await;
            drop(place);
        });
    }
}

fn answer(shared: &Hub, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => (StatusCode::OK, shared.metrics_text()),
        // Whether it answers at all.
        (&Method::GET, "/healthz" | "/livez") => (StatusCode::OK, "ok\n".into()),
        (&Method::GET, "/readyz") => {
            let why = shared.unready();
            if why.is_empty() {
                (StatusCode::OK, "ok\n".into())
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, why)
            }
        }
        (&Method::GET, _) => (StatusCode::NOT_FOUND, "there are /metrics, /readyz and /healthz\n".into()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET\n".into()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = if request.uri().path() == "/metrics" { METRICS } else { "text/plain; charset=utf-8" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
