//! The data of the web page: a state every second while a client watches, and every ten seconds a point for
//! the plots of the last hour. Both are computed once for all clients, by a dedicated observer, so that
//! neither commands nor scrapes wait for them.
//!
//! The longer the rows of back ends take, because there are very many, the longer the pause until they are
//! computed again. They use a hundredth of a core, or more if computing them once a minute takes more.

mod beat;
mod configuration;
pub(super) mod door;

pub use beat::BeatAsked;
pub use configuration::answer as configuration;

use super::connected::{ConnectedClient, WATCH_PATIENCE};
use super::http::{Parts, Question};
use super::watching::EventStream;
use hyper::body::Bytes;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};
use weir_app::kind::Kind;
use weir_app::page::{items, word};
use weir_control::Request;
use weir_page::{LiveState, PageHistory};

/// The time between two states.
const BEAT: Duration = Duration::from_secs(1);

/// The longest time until the rows of back ends are computed again.
const ROWS_MAX: Duration = Duration::from_secs(60);

/// The reciprocal of the share of a core that may be used.
const SHARE: u32 = 100;

/// The time between two points of the plots, in seconds.
const POINT_S: u32 = 10;

/// How long an app may take to answer.
const APP_PATIENCE: Duration = Duration::from_secs(2);

/// States that may be queued for a client.
const PIECES: usize = 4;

/// How often a client gets a comment while there is no new state.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The page's state, which all clients share. Clones are the same object.
#[derive(Clone)]
pub struct PageHub(Arc<HubShared>);

struct HubShared {
    /// The observer that computes states.
    observer: mpsc::Sender<super::http::Asked>,
    kinds: &'static [Kind],
    state: Mutex<LiveState>,
    history: Mutex<PageHistory>,
    /// The clients that watch, and those among them that watch apps.
    watchers: AtomicUsize,
    app_watchers: AtomicUsize,
    /// Wakes the task that requests states.
    wake: Notify,
    /// Wakes clients; false when the daemon stops.
    news: watch::Sender<bool>,
}

/// The answers of an app.
pub struct AppAnswers {
    name: String,
    /// An answer for each request of the pages of its kind, page by page.
    answers: Value,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PageHub {
    /// Creates the state; `observer` computes it, with apps of these kinds.
    pub fn new(observer: mpsc::Sender<super::http::Asked>, kinds: &'static [Kind]) -> PageHub {
        PageHub(Arc::new(HubShared {
            observer,
            kinds,
            state: Mutex::default(),
            history: Mutex::new(PageHistory::new(POINT_S)),
            watchers: AtomicUsize::new(0),
            app_watchers: AtomicUsize::new(0),
            wake: Notify::new(),
            news: watch::Sender::new(true),
        }))
    }

    /// Ends all watching, because the daemon stops.
    pub fn close(&self) {
        self.0.news.send_replace(false);
    }

    /// Asks for states and points forever.
    pub async fn run(self, parts: Parts) {
        let mut point = Instant::now();
        let (mut beat, mut rows) = (point, point);
        loop {
            let is_watched = self.0.watchers.load(Ordering::Relaxed) > 0;
            let next = if is_watched { point.min(beat) } else { point };
            let _ = timeout_at(next, self.0.wake.notified()).await;
            let now = Instant::now();
            let is_watched = self.0.watchers.load(Ordering::Relaxed) > 0;
            let is_point = now >= point;
            let is_due = is_point || (is_watched && now >= beat);
            if !is_due {
                continue;
            }
            beat = now + BEAT;
            if is_point {
                point = now + Duration::from_secs(POINT_S.into());
            }
            let wants_apps = is_point || self.0.app_watchers.load(Ordering::Relaxed) > 0;
            let apps = if wants_apps { Some(self.ask_apps(&parts).await) } else { None };
            let with_rows = now >= rows;
            let asked = BeatAsked { hub: self.clone(), apps, with_rows, is_point };
            let cost = parts.observe(&self.0.observer, Question::Beat(Arc::new(asked))).await;
            if with_rows {
                let cost = cost.ok().and_then(|ns| ns.trim().parse().ok());
                let pause = cost.map_or(BEAT, Duration::from_nanos) * SHARE;
                // The next turn is due in a second, not a moment later.
                rows = if pause <= BEAT { now } else { now + pause.min(ROWS_MAX) };
            }
        }
    }

    /// Asks the running apps for the contents of their pages.
    async fn ask_apps(&self, parts: &Parts) -> Vec<AppAnswers> {
        let apps = lock(&self.0.state).section("apps").clone();
        let mut all = Vec::new();
        for app in items(&apps) {
            let Some(kind) = self.0.kinds.iter().find(|kind| app["kind"] == kind.key) else { continue };
            let name = word(&app["name"]);
            let mut answers = Vec::new();
            for request in kind.pages.iter().flat_map(|page| page.requests) {
                let request = Question::Command(Request::app(name, json!({ "do": request })));
                let answer = parts.ask_main(request, APP_PATIENCE).await;
                // Bounded: by what an app of weir answers.
                answers
                    .push(answer.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default());
            }
            all.push(AppAnswers { name: name.to_string(), answers: Value::Array(answers) });
        }
        all
    }

    /// Begins to send states to a client.
    fn watch(
        &self,
        client: Arc<ConnectedClient>,
        permit: OwnedSemaphorePermit,
        with_apps: bool,
    ) -> EventStream {
        let (pieces, body) = mpsc::channel(PIECES);
        let watching = PageWatcher::begin(self.clone(), with_apps);
        tokio::spawn(async move {
            let _permit = permit;
            let _ = watching.serve(&pieces, &client).await;
        });
        EventStream::new(body)
    }

    /// Returns what a client that has seen a state needs next, and the number of that state.
    fn next(&self, seen: u64) -> Option<(u64, String)> {
        let state = lock(&self.0.state);
        match state.number() {
            number if number == seen => None,
            number if number == seen + 1 && seen > 0 => Some((number, state.change().to_string())),
            number => Some((number, state.whole())),
        }
    }
}

/// A client that watches.
struct PageWatcher {
    hub: PageHub,
    with_apps: bool,
}

impl PageWatcher {
    fn begin(hub: PageHub, with_apps: bool) -> PageWatcher {
        hub.0.watchers.fetch_add(1, Ordering::Relaxed);
        hub.0.app_watchers.fetch_add(usize::from(with_apps), Ordering::Relaxed);
        hub.0.wake.notify_one();
        PageWatcher { hub, with_apps }
    }

    /// Sends states until the client leaves or is too slow, or the daemon stops.
    async fn serve(&self, pieces: &mpsc::Sender<Bytes>, client: &ConnectedClient) -> Option<()> {
        let mut news = self.hub.0.news.subscribe();
        let mut seen = 0;
        while *news.borrow_and_update() {
            let text = match self.hub.next(seen) {
                Some((number, text)) => {
                    seen = number;
                    text
                }
                None => match timeout(KEEP_ALIVE, news.changed()).await {
                    Ok(changed) => {
                        changed.ok()?;
                        continue;
                    }
                    Err(_) => ":\n\n".to_string(),
                },
            };
            timeout(WATCH_PATIENCE, pieces.send(text.into())).await.ok()?.ok()?;
            client.note_watching();
        }
        None
    }
}

impl Drop for PageWatcher {
    fn drop(&mut self) {
        self.hub.0.watchers.fetch_sub(1, Ordering::Relaxed);
        self.hub.0.app_watchers.fetch_sub(usize::from(self.with_apps), Ordering::Relaxed);
    }
}
