//! The HTTP server: metrics and health over TCP, the same plus commands over the control socket.
//!
//! The server has a thread of its own. Commands that change something go to the main thread; queries go to
//! observers, one for scrapes and one for commands, so that neither kind waits for the other. The main thread
//! and the observers only get complete requests, a bounded number of them, and answer without blocking on any
//! client. Scrapes that arrive while another is being answered are answered together by the next answer.
//!
//! A connection carries one request, or several in sequence if the client asks for that
//! (`Connection: keep-alive`). A request's head, its body and its answer have time limits, and if there are
//! too many connections, the slowest to complete its request is closed for a new one.
//!
//! Texts of changes are parsed as they arrive, on a separate thread, one text at a time: neither this thread
//! nor the main thread waits for it.

use super::connected::{ANSWERING, ConnectedClient, READING, WRITING};
use super::doorbell::Doorbell;
use super::feed::Feed;
use super::load::{self, Published, Read, TextRefusal};
use super::observer::{self, ScenePublisher};
use super::page::{BeatAsked, PageHub};
use super::rest::{Acceptor, Entrance, Gate};
use super::watching::{EventStream, WATCHERS_MAX};
use anyhow::{Context, Result};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::fd::AsFd;
use rustix::io::ioctl_fionbio;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::ready;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout, timeout_at};
use weir_app::http::{HttpControl, HttpControls};
use weir_app::names::NamesBoard;
use weir_control::answer::Ready;

/// The maximum size of a request's head in bytes.
const HEAD_MAX: usize = 16 * 1024;

/// The maximum size of a request's body in bytes: an entry with many values, or a packet in hex.
const BODY_MAX: usize = 1 << 20;

/// Pieces of a text of changes that may be queued for parsing.
const PIECES: usize = 16;

/// How long a client may take for each piece of such a text.
const PIECE_PATIENCE: Duration = Duration::from_secs(20);

/// How long such a text may take to arrive, and then how long the answer may take. The main thread has its
/// own limits for workers.
pub(super) const CHANGES_PATIENCE: Duration = Duration::from_secs(600);

/// How long a client may take for the head of its request, and how long for the body.
pub(super) const REQUEST_PATIENCE: Duration = Duration::from_secs(5);

/// How long the main thread may take to answer: longer than it waits for a worker and then for an app.
pub(super) const ANSWER_PATIENCE: Duration = Duration::from_secs(25);

/// How long a connection may stay open after its last request.
const LIFE: Duration = Duration::from_secs(40);

/// How long the daemon waits at its end for answers to be written.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// How long the server waits for a client if another process has made the listener blocking.
const ACCEPT_MAX: Duration = Duration::from_millis(4);

/// The maximum number of connections per listener.
const CONNECTIONS_MAX: usize = 1024;

/// The number of requests that may be queued for the main thread; the connections of further requests wait.
const REQUESTS: usize = 64;

/// OpenMetrics text, as in its specification.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// The answer to a question: text, or an error message.
pub type Answer = Result<String, String>;

/// A question for the main thread or an observer.
pub enum Question {
    /// All metrics.
    Metrics,
    /// Whether the main thread and all workers are alive.
    Health,
    /// Whether this node should get traffic.
    Ready,
    /// A command.
    Command(weir_control::Request),
    /// Changes.
    Changes(Read),
    /// What GET shows for a path of control over HTTP.
    Listed(&'static HttpControl, String),
    /// The next state of the web page.
    Beat(Arc<BeatAsked>),
    /// The configuration as loaded, and its file.
    Configuration,
    /// The services that a source wants: requests to the app that has them.
    Reconcile(Arc<Value>),
}

/// A question, and the channel for its answer. The latter is closed when the client is gone.
pub struct Asked {
    pub question: Question,
    pub answer: oneshot::Sender<Answer>,
}

/// Where clients come from.
pub struct Listeners {
    pub socket: UnixListener,
    pub metrics: Option<TcpListener>,
    pub rest: Option<Entrance>,
}

/// The parts that the server needs besides the questions that it asks.
pub struct ServerParts {
    pub vocabulary: Published,
    /// The events for clients that watch.
    pub feed: Feed,
    /// The names of addresses.
    pub names: NamesBoard,
    /// What clients of the control socket may control, with the same paths as clients with a token.
    pub apps: HttpControls,
}

/// An answer: text, or events as they happen.
pub(super) type Reply = Response<Either<Full<Bytes>, EventStream>>;

/// Which requests a door accepts.
#[derive(Clone)]
enum Offers {
    /// Every request that the server understands, including changes and control of apps.
    All(HttpControls),
    /// Metrics and health.
    Metrics,
    /// Control of services, with a token.
    Control(Arc<Gate>),
}

/// The running server; when dropped, it waits briefly for answers to be written.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Starts the server. Returns where the main thread finds questions; the doorbell rings when there are
    /// new ones, and when a client no longer waits for an answer.
    pub fn start(
        listeners: Listeners,
        doorbell: Doorbell,
        board: ScenePublisher,
        ServerParts { vocabulary, feed, names, apps }: ServerParts,
    ) -> Result<(Server, mpsc::Receiver<Asked>)> {
        let (to_main, asked) = mpsc::channel(REQUESTS);
        let (stop, stopped) = oneshot::channel();
        // Without control over HTTP, there is no page.
        let page = listeners.rest.as_ref().map(|_| observer::start(board.clone(), "weir-page"));
        let page = page.transpose()?.map(|observer| PageHub::new(observer, apps.0));
        let to_observer = observer::start(board.clone(), "weir-show")?;
        let to_scraper = observer::start(board, "weir-scrape")?;
        let parts = Parts { to_main, doorbell, to_observer, to_scraper, vocabulary, feed, names };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("weir-http".into()).spawn(move || {
            let served = runtime.block_on(serve((listeners, apps), (parts, page), stopped));
            if let Err(error) = served {
                tracing::error!("this weir no longer accepts requests: {error:#}");
            }
        })?;
        Ok((Server { stop: Some(stop), thread: Some(thread) }, asked))
    }
}

impl Server {
    /// Accepts no more connections. The server ends once its clients are answered, or a moment later.
    pub fn stop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
    }

    /// Returns true if the server's thread has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(std::thread::JoinHandle::is_finished)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ = self.thread.take().map(|thread| thread.join());
    }
}

async fn serve(
    (listeners, apps): (Listeners, HttpControls),
    (parts, page): (Parts, Option<PageHub>),
    stopped: oneshot::Receiver<()>,
) -> Result<()> {
    let feed = parts.feed.clone();
    if let Some(page) = page.clone() {
        tokio::spawn(page.run(parts.clone()));
    }
    let (scrapes, waiting) = mpsc::channel(CONNECTIONS_MAX);
    tokio::spawn(answer_scrapes(parts.clone(), waiting));
    let door = |offers| Arc::new(Door::new((parts.clone(), page.clone()), scrapes.clone(), offers));
    let mut doors = vec![door(Offers::All(apps))];
    make_nonblocking(&listeners.socket).context("the control socket")?;
    let socket = tokio::net::UnixListener::from_std(listeners.socket).context("the control socket")?;
    let mut accepting = vec![tokio::spawn(accept(Listener::Unix(socket), doors[0].clone()))];
    if let Some(metrics) = listeners.metrics {
        make_nonblocking(&metrics).context("metrics")?;
        let metrics = tokio::net::TcpListener::from_std(metrics).context("metrics")?;
        doors.push(door(Offers::Metrics));
        accepting.push(tokio::spawn(accept(Listener::Tcp(metrics), doors[1].clone())));
    }
    if let Some(Entrance { listener, gate, tls }) = listeners.rest {
        make_nonblocking(&listener).context("control")?;
        let listener = tokio::net::TcpListener::from_std(listener).context("control")?;
        let door = door(Offers::Control(gate));
        doors.push(door.clone());
        let listener = match tls {
            Some(acceptor) => Listener::Tls(listener, acceptor),
            None => Listener::Tcp(listener),
        };
        accepting.push(tokio::spawn(accept(listener, door)));
    }
    let _ = stopped.await;
    accepting.iter().for_each(tokio::task::JoinHandle::abort);
    feed.close();
    page.inspect(PageHub::close);
    // A client that has connected is answered, even if its request has not arrived yet.
    let written = async {
        while doors.iter().any(|door| !door.connections().is_empty()) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = timeout(END_PATIENCE, written).await;
    Ok(())
}

/// Makes sure that a listener never blocks for long. Other processes share an inherited socket, and any of
/// them can clear its nonblocking flag, which would stop this server's only thread. The time limit still
/// applies then.
fn make_nonblocking(listener: impl AsFd) -> rustix::io::Result<()> {
    ioctl_fionbio(&listener, true)?;
    set_socket_timeout(&listener, Timeout::Recv, Some(ACCEPT_MAX))
}

/// Answers scrapes: all queued ones at once.
async fn answer_scrapes(parts: Parts, mut waiting: mpsc::Receiver<oneshot::Sender<Answer>>) {
    let mut scrapes = Vec::new();
    while waiting.recv_many(&mut scrapes, CONNECTIONS_MAX).await > 0 {
        let answer = parts.observe(&parts.to_scraper, Question::Metrics).await;
        scrapes.drain(..).for_each(|scrape| drop(scrape.send(answer.clone())));
    }
}

/// The channels to the parts of the daemon that answer.
#[derive(Clone)]
pub(super) struct Parts {
    to_main: mpsc::Sender<Asked>,
    doorbell: Doorbell,
    to_observer: mpsc::Sender<Asked>,
    to_scraper: mpsc::Sender<Asked>,
    vocabulary: Published,
    /// The events for clients that watch.
    pub(super) feed: Feed,
    /// The names of addresses.
    pub(super) names: NamesBoard,
}

/// Rings when dropped, so that the main thread notices an abandoned request.
struct RequestGuard<'a>(&'a Doorbell);

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.0.ring();
    }
}

impl Parts {
    /// Sends a request to the part that can answer it.
    pub(super) async fn ask(&self, request: weir_control::Request) -> Answer {
        use weir_control::Request;
        if matches!(request, Request::Show(_) | Request::Explain(_) | Request::Entries(_)) {
            return self.observe(&self.to_observer, Question::Command(request)).await;
        }
        self.ask_main(Question::Command(request), ANSWER_PATIENCE).await
    }

    pub(super) async fn ask_main(&self, question: Question, patience: Duration) -> Answer {
        let _rings_at_last = RequestGuard(&self.doorbell);
        let (answer, wait) = oneshot::channel();
        let asked = async {
            self.to_main.send(Asked { question, answer }).await.ok()?;
            self.doorbell.ring();
            wait.await.ok()
        };
        in_time(asked, patience).await
    }

    /// Asks what GET shows for a path.
    pub(super) async fn list(&self, apps: &'static HttpControl, path: String) -> Answer {
        self.observe(&self.to_observer, Question::Listed(apps, path)).await
    }

    pub(super) async fn observe(&self, observer: &mpsc::Sender<Asked>, question: Question) -> Answer {
        let (answer, wait) = oneshot::channel();
        let asked = async {
            observer.send(Asked { question, answer }).await.ok()?;
            wait.await.ok()
        };
        in_time(asked, ANSWER_PATIENCE).await
    }
}

async fn in_time(answer: impl Future<Output = Option<Answer>>, patience: Duration) -> Answer {
    match timeout(patience, answer).await {
        Ok(Some(answer)) => answer,
        Ok(None) => Err("the daemon is stopping".into()),
        Err(_) => Err("the daemon is too busy to answer".into()),
    }
}

enum Listener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
    Tls(tokio::net::TcpListener, Acceptor),
}

/// Accepts connections forever.
async fn accept(listener: Listener, door: Arc<Door>) {
    loop {
        let accepted = match &listener {
            Listener::Tcp(listener) => {
                listener.accept().await.map(|(stream, _)| door.begin(ready(Some(stream))))
            }
            Listener::Unix(listener) => {
                listener.accept().await.map(|(stream, _)| door.begin(ready(Some(stream))))
            }
            Listener::Tls(listener, acceptor) => listener.accept().await.map(|(stream, _)| {
                let opening = timeout(REQUEST_PATIENCE, acceptor.clone().accept(stream));
                door.begin(async move { opening.await.ok().flatten() });
            }),
        };
        if accepted.is_err() {
            // No descriptors are left: close a slow client to free one.
            door.shed();
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A connection, as its door sees it.
struct Connection {
    task: AbortHandle,
    client: Arc<ConnectedClient>,
}

/// Which requests a listener's clients may make, and their connections, oldest first.
pub(super) struct Door {
    pub(super) parts: Parts,
    /// The state of the web page, if there is one.
    pub(super) page: Option<PageHub>,
    scrapes: mpsc::Sender<oneshot::Sender<Answer>>,
    offers: Offers,
    /// Texts of changes are read one at a time.
    reading: tokio::sync::Semaphore,
    /// Room for a set of services, from when it is read until it is answered.
    pub(super) sets: tokio::sync::Semaphore,
    /// Clients that may begin to watch.
    pub(super) watchers: Arc<tokio::sync::Semaphore>,
    connections: Mutex<BTreeMap<u64, Connection>>,
}

impl Door {
    fn new(
        (parts, page): (Parts, Option<PageHub>),
        scrapes: mpsc::Sender<oneshot::Sender<Answer>>,
        offers: Offers,
    ) -> Door {
        let [reading, sets] = [1, 1].map(tokio::sync::Semaphore::new);
        let watchers = Arc::new(tokio::sync::Semaphore::new(WATCHERS_MAX));
        Door { parts, page, scrapes, offers, reading, sets, watchers, connections: Mutex::default() }
    }

    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connection that has taken longest to send its request or to read its answer.
    fn shed(&self) {
        let mut all = self.connections();
        let slow = |one: &Connection| !one.client.is(ANSWERING);
        let slowest = all.iter().find(|(_, one)| slow(one)).or(all.iter().next()).map(|(id, _)| *id);
        if let Some(connection) = slowest.and_then(|id| all.remove(&id)) {
            connection.task.abort();
        }
    }

    /// Serves a connection once it is established.
    fn begin<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self: &Arc<Door>,
        opening: impl Future<Output = Option<S>> + Send + 'static,
    ) {
        if self.connections().len() >= CONNECTIONS_MAX {
            self.shed();
        }
        let client = Arc::new(ConnectedClient::new(LIFE));
        let (door, its) = (self.clone(), client.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (door, client) = (door.clone(), its.clone());
            async move {
                let stays = wants_to_stay(&request);
                let mut answer = door.answer(request, &client).await;
                if !stays {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                client.set(WRITING, LIFE);
                Ok::<_, Infallible>(answer)
            }
        });
        let id = self.connections().last_key_value().map_or(0, |(id, _)| id + 1);
        let (door, its) = (self.clone(), client.clone());
        // The task starts when this one waits, so it cannot end before it is in the map.
        let task = tokio::spawn(async move {
            if let Some(stream) = opening.await {
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(REQUEST_PATIENCE)
                    .max_buf_size(HEAD_MAX)
                    .serve_connection(TokioIo::new(stream), service);
                let mut connection = std::pin::pin!(connection);
                // Errors of a client affect only that client.
                while timeout_at(its.until().into(), &mut connection).await.is_err() {
                    if its.until() <= Instant::now() {
                        break;
                    }
                }
            }
            door.connections().remove(&id);
        });
        self.connections().insert(id, Connection { task: task.abort_handle(), client });
    }

    async fn answer(&self, request: Request<Incoming>, client: &Arc<ConnectedClient>) -> Reply {
        client.set(READING, LIFE);
        if let Offers::Control(gate) = &self.offers {
            return self.control((gate.apps, Some(gate)), request, client).await;
        }
        let is_control = |path: &str| path.starts_with("/v1/") || path == "/openapi.json";
        if let Offers::All(apps) = self.offers
            && is_control(request.uri().path())
        {
            return self.control((apps, None), request, client).await;
        }
        let commands = matches!(self.offers, Offers::All(_));
        let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
        match request.uri().path() {
            "/metrics" | "/healthz" | "/readyz" if !is_get => not_allowed("GET, HEAD"),
            "/metrics" => answered(self.scrape(client).await, METRICS),
            "/healthz" => answered(self.health(client).await, TEXT),
            "/readyz" => self.ready(client).await,
            "/command" if !commands => said(StatusCode::NOT_FOUND, ABSENT),
            "/command" if *request.method() != Method::POST => not_allowed("POST"),
            "/command" => self.command(request.into_body(), client).await,
            "/changes" if !commands => said(StatusCode::NOT_FOUND, ABSENT),
            "/changes" if *request.method() != Method::POST => not_allowed("POST"),
            "/changes" => self.changes(request.into_body(), client).await,
            _ => said(StatusCode::NOT_FOUND, ABSENT),
        }
    }

    async fn health(&self, client: &ConnectedClient) -> Answer {
        client.set(ANSWERING, LIFE);
        self.parts.observe(&self.parts.to_observer, Question::Health).await
    }

    /// Answers with the reasons as JSON, and with a status for tools that read nothing else.
    async fn ready(&self, client: &ConnectedClient) -> Reply {
        client.set(ANSWERING, LIFE);
        let answer = self.parts.observe(&self.parts.to_observer, Question::Ready).await;
        let read = answer.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
        let ready = read.unwrap_or_else(|why| Ready { reasons: vec![why], ..Ready::default() });
        let status = if ready.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        response(status, JSON, format!("{}\n", json!(ready)))
    }

    /// Returns the metrics.
    async fn scrape(&self, client: &ConnectedClient) -> Answer {
        client.set(ANSWERING, LIFE);
        let (answer, wait) = oneshot::channel();
        let _ = self.scrapes.send(answer).await;
        wait.await.unwrap_or_else(|_| Err("the daemon is stopping".into()))
    }

    async fn command(&self, body: Incoming, client: &ConnectedClient) -> Reply {
        let too_large = || {
            let why = "a request may have at most 1 MiB: send many changes of entries to /changes";
            refused(StatusCode::PAYLOAD_TOO_LARGE, why)
        };
        if body.size_hint().lower() > BODY_MAX as u64 {
            return too_large();
        }
        let body = match timeout(REQUEST_PATIENCE, Limited::new(body, BODY_MAX).collect()).await {
            Err(_) => return refused(StatusCode::REQUEST_TIMEOUT, "the request took too long"),
            Ok(Err(why)) if why.is::<LengthLimitError>() => return too_large(),
            Ok(Err(_)) => return refused(StatusCode::BAD_REQUEST, "the request is truncated"),
            Ok(Ok(body)) => body.to_bytes(),
        };
        let request = match weir_control::Request::read(&body) {
            Ok(request) => request,
            Err(why) => return refused(StatusCode::BAD_REQUEST, &why),
        };
        tracing::debug!("asked: {request:?}");
        client.set(ANSWERING, LIFE);
        match self.parts.ask(request).await {
            Ok(answer) => response(StatusCode::OK, JSON, answer),
            Err(why) => refused(StatusCode::BAD_REQUEST, &why),
        }
    }
}

impl Door {
    /// Makes the changes in a text, all of them or none.
    async fn changes(&self, body: Incoming, client: &ConnectedClient) -> Reply {
        // The whole length, if the client has given it, so that it need not send what is refused.
        if let Err(why) = load::admits(body.size_hint().lower()) {
            return refuse_text(why);
        }
        client.set(READING, CHANGES_PATIENCE);
        let Ok(_turn) = self.reading.acquire().await else {
            return refused(StatusCode::SERVICE_UNAVAILABLE, "the daemon is stopping");
        };
        let read = match self.read(body).await {
            Ok(read) => read,
            Err(why) => return refuse_text(why),
        };
        client.set(ANSWERING, CHANGES_PATIENCE);
        let answer = self.parts.ask_main(Question::Changes(read.clone()), CHANGES_PATIENCE).await;
        // A million entries take a while to free.
        drop(tokio::task::spawn_blocking(move || drop(read)));
        match answer {
            Ok(answer) => response(StatusCode::OK, JSON, answer),
            Err(why) => refused(StatusCode::BAD_REQUEST, &why),
        }
    }

    /// Parses a text of changes as it arrives.
    async fn read(&self, mut body: Incoming) -> Result<Read, TextRefusal> {
        let wrong = |why: &str| TextRefusal::Wrong(why.to_string());
        let Some(vocabulary) = self.parts.vocabulary.get() else {
            return Err(wrong("the daemon has not started yet"));
        };
        let (pieces, mut come) = mpsc::channel::<Bytes>(PIECES);
        let (whole, is_whole) = oneshot::channel::<()>();
        let reading = tokio::task::spawn_blocking(move || {
            let mut reader = vocabulary.reader();
            while let Some(piece) = come.blocking_recv() {
                reader.piece(&piece)?;
            }
            match is_whole.blocking_recv() {
                Ok(()) => reader.end(),
                Err(_) => Err(wrong("the text is truncated or too slow")),
            }
        });
        loop {
            match timeout(PIECE_PATIENCE, body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    let Ok(piece) = frame.into_data() else { continue };
                    if pieces.send(piece).await.is_err() {
                        break;
                    }
                }
                Ok(None) => {
                    let _ = whole.send(());
                    break;
                }
                Ok(Some(Err(_))) | Err(_) => {
                    drop(whole);
                    break;
                }
            }
        }
        drop(pieces);
        reading.await.unwrap_or_else(|_| Err(wrong("the text cannot be read")))
    }
}

fn refuse_text(why: TextRefusal) -> Reply {
    match why {
        TextRefusal::TooLarge(why) => refused(StatusCode::PAYLOAD_TOO_LARGE, &why),
        TextRefusal::Wrong(why) => refused(StatusCode::BAD_REQUEST, &why),
    }
}

/// Whether a client wants to send further requests on its connection.
fn wants_to_stay(request: &Request<Incoming>) -> bool {
    let words = request.headers().get_all(CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    words.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("keep-alive"))
}

/// The answer for any other path.
const ABSENT: &str = "weir: GET /metrics for metrics, /healthz for liveness, /readyz for readiness; send \
    commands to the control socket\n";

fn answered(answer: Answer, kind: &'static str) -> Reply {
    match answer {
        Ok(text) => response(StatusCode::OK, kind, text),
        Err(why) => said(StatusCode::SERVICE_UNAVAILABLE, &format!("weir: {why}\n")),
    }
}

fn said(status: StatusCode, text: &str) -> Reply {
    response(status, TEXT, text.to_string())
}

/// An answer in JSON.
pub(super) fn json(status: StatusCode, text: impl Into<Bytes>) -> Reply {
    response(status, JSON, text)
}

pub(super) fn refused(status: StatusCode, why: &str) -> Reply {
    response(
        status,
        JSON,
        format!("{}\n", json!(weir_control::answer::ErrorAnswer { error: why.to_string() })),
    )
}

fn not_allowed(methods: &'static str) -> Reply {
    let mut response = said(StatusCode::METHOD_NOT_ALLOWED, "weir: method not allowed\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}

fn response(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Reply {
    let mut response = Response::new(Either::Left(Full::new(text.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
