//! The data of the web page: a state every second while a client watches, and every ten seconds a point for
//! the plots of the last hour. Both are computed once for all clients, by a dedicated observer, so that
//! neither commands nor scrapes wait for them.
//!
//! With very many back ends, their rows take long to compute. The longer they take, the longer the pause
//! until they are computed again, so that all states together use less than a hundredth of a core. If that is
//! not possible, rows are computed once a minute.
//!
//! With many rows, texts are long. Clients share each text, and the HTTP thread only passes it on.

mod beat;
mod configuration;
pub(super) mod door;

pub use beat::BeatAsked;
pub use configuration::ComparedFile;

use super::connected::{ConnectedClient, WATCH_PATIENCE};
use super::host::host_name;
use super::http::{Parts, Question};
use super::watching::EventStream;
use hyper::body::Bytes;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OnceCell, OwnedSemaphorePermit, mpsc, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};
use weir_app::kind::Kind;
use weir_control::{Request, Show, What};
use weir_page::{LiveState, PageHistory, plain_page};

/// The time between two states.
const BEAT: Duration = Duration::from_secs(1);

/// The maximum number of beats until the rows of back ends are computed again.
const ROWS_MAX: f64 = 60.0;

/// The processor time that states may use in a beat: a bit less than a hundredth of a core, because sending
/// them takes time as well.
const BUDGET: Duration = Duration::from_millis(8);

/// The time between two points of the plots, in seconds.
const POINT_S: u32 = 10;

/// How long the apps may take to answer.
const APP_PATIENCE: Duration = Duration::from_secs(2);

/// States that may be queued for a client.
const PIECES: usize = 4;

/// How often a client gets a comment while there is no new state.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The maximum number of texts with plots that are kept for other clients, one for each prefix. A client asks
/// for about five.
const PLOTS_MAX: usize = 8;

/// How long the table for browsers without JavaScript is kept for other clients.
const PLAIN_AGE: Duration = Duration::from_secs(1);

/// The sections of that table.
const PLAIN: [&str; 3] = ["backends", "drops", "ports"];

/// The page's state, which all clients share. Clones are the same object.
#[derive(Clone)]
pub struct PageHub(Arc<HubShared>);

struct HubShared {
    /// The observer that computes states.
    observer: mpsc::Sender<super::http::Asked>,
    kinds: &'static [Kind],
    /// The HTTP thread takes neither of these two locks, because texts are written while they are held.
    state: Mutex<LiveState>,
    history: Mutex<PageHistory>,
    /// How many points the plots have had so far.
    points: AtomicUsize,
    /// The clients that watch, and those among them that watch apps.
    watchers: AtomicUsize,
    app_watchers: AtomicUsize,
    /// Wakes the task that requests states.
    wake: Notify,
    /// The last state; wakes clients. `None` when the daemon stops.
    news: watch::Sender<Option<Arc<LiveNews>>>,
    /// Plots up to the latest point, by prefix.
    plots: tokio::sync::Mutex<PlotTexts>,
    /// The table for browsers without JavaScript, and when it was asked for.
    plain: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
}

/// A state, as clients get it.
#[derive(Default)]
pub struct LiveNews {
    number: u64,
    /// The event for clients that have the previous state.
    change: Bytes,
    /// The pages of apps, if they differ from those in the previous state.
    pages: Option<Bytes>,
    /// The events for all other clients, written when the first of them needs them.
    whole: OnceCell<WholeState>,
    /// The apps that have pages.
    apps: Vec<(String, &'static Kind)>,
}

/// A whole state, as events. It may be newer than the state in which it is kept.
struct WholeState {
    number: u64,
    state: Bytes,
    pages: Bytes,
}

/// Plots as JSON, each with the prefix of its series' names.
#[derive(Default)]
struct PlotTexts {
    /// The point that they end with.
    point: usize,
    texts: Vec<(String, Bytes)>,
}

/// The answers of an app.
pub struct AppAnswers {
    name: String,
    /// An answer for each request of the pages of its kind, page by page; `None` if there is none.
    texts: Vec<Option<String>>,
}

impl AppAnswers {
    /// Returns the answers; null where there is none.
    fn parsed(&self) -> Value {
        // Bounded: by what an app of weir answers.
        let parsed = |text: &Option<String>| text.as_ref().and_then(|text| serde_json::from_str(text).ok());
        self.texts.iter().map(|text| parsed(text).unwrap_or(Value::Null)).collect()
    }
}

impl LiveNews {
    fn new(
        number: u64,
        change: String,
        pages: Option<String>,
        apps: Vec<(String, &'static Kind)>,
    ) -> LiveNews {
        let (change, pages) = (change.into(), pages.map(Bytes::from));
        LiveNews { number, change, pages, whole: OnceCell::new(), apps }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of beats until rows are computed again, given the processor times of the last states
/// with and without rows.
fn beats(with_rows: Duration, without: Duration) -> f64 {
    let more = with_rows.saturating_sub(without).as_secs_f64();
    let spare = BUDGET.saturating_sub(without).as_secs_f64();
    if more <= spare { 1.0 } else { (more / spare).ceil().min(ROWS_MAX) }
}

impl PageHub {
    /// Creates the state; `observer` computes it, with apps of these kinds.
    pub fn new(observer: mpsc::Sender<super::http::Asked>, kinds: &'static [Kind]) -> PageHub {
        PageHub(Arc::new(HubShared {
            observer,
            kinds,
            state: Mutex::default(),
            history: Mutex::new(PageHistory::new(POINT_S)),
            points: AtomicUsize::new(0),
            watchers: AtomicUsize::new(0),
            app_watchers: AtomicUsize::new(0),
            wake: Notify::new(),
            news: watch::Sender::new(Some(Arc::default())),
            plots: tokio::sync::Mutex::default(),
            plain: tokio::sync::Mutex::default(),
        }))
    }

    /// Ends all watching, because the daemon stops.
    pub fn close(&self) {
        self.0.news.send_replace(None);
    }

    /// Sends a state to all clients that watch, unless the daemon stops.
    fn publish(&self, state: LiveNews) {
        self.0.news.send_if_modified(|news| {
            let runs = news.is_some();
            *news = runs.then(|| Arc::new(state));
            runs
        });
    }

    /// Asks for states and points forever.
    pub async fn run(self, parts: Parts) {
        let mut point = Instant::now();
        let (mut beat, mut rows) = (point, point);
        let mut without_rows = Duration::ZERO;
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
                self.forget();
            }
            let wants_apps = is_point || self.0.app_watchers.load(Ordering::Relaxed) > 0;
            let apps = if wants_apps { Some(self.ask_apps(&parts).await) } else { None };
            let with_rows = now >= rows;
            let asked = BeatAsked { hub: self.clone(), apps, with_rows, is_point };
            let cost = parts.observe(&self.0.observer, Question::Beat(Arc::new(asked))).await;
            let cost = cost.ok().and_then(|ns| ns.trim().parse().ok()).map_or(BEAT, Duration::from_nanos);
            if with_rows {
                // The next beat is due in a second, not a moment later.
                rows = now + BEAT.mul_f64(beats(cost, without_rows) - 1.0);
            } else {
                without_rows = (3 * without_rows + cost) / 4;
            }
        }
    }

    /// Asks the running apps for the contents of their pages, all at the same time.
    async fn ask_apps(&self, parts: &Parts) -> Vec<AppAnswers> {
        let Some(news) = self.0.news.borrow().clone() else { return Vec::new() };
        let mut all = Vec::new();
        let mut asked = JoinSet::new();
        for (at, (name, kind)) in news.apps.iter().enumerate() {
            let requests = kind.pages.iter().flat_map(|page| page.requests);
            let requests: Vec<Request> =
                requests.map(|request| Request::app(name, json!({ "do": request }))).collect();
            all.push(AppAnswers { name: name.clone(), texts: vec![None; requests.len()] });
            for (number, request) in requests.into_iter().enumerate() {
                let parts = parts.clone();
                asked.spawn(async move {
                    (at, number, parts.ask_main(Question::Command(request), APP_PATIENCE).await)
                });
            }
        }
        while let Some(answered) = asked.join_next().await {
            if let Ok((at, number, answer)) = answered {
                all[at].texts[number] = answer.ok();
            }
        }
        all
    }

    /// Frees texts that are out of date.
    fn forget(&self) {
        if let Ok(mut plots) = self.0.plots.try_lock() {
            plots.texts = Vec::new();
        }
        if let Ok(mut plain) = self.0.plain.try_lock() {
            plain.take_if(|(at, _)| at.elapsed() >= PLAIN_AGE);
        }
    }

    /// Returns the plots whose names begin with a prefix, as JSON.
    async fn plots(&self, prefix: &str) -> Result<Bytes, String> {
        let mut known = self.0.plots.lock().await;
        let point = self.0.points.load(Ordering::Acquire);
        if known.point != point || known.texts.len() >= PLOTS_MAX {
            *known = PlotTexts { point, texts: Vec::new() };
        }
        if let Some((_, text)) = known.texts.iter().find(|(one, _)| one == prefix) {
            return Ok(text.clone());
        }
        let (hub, own) = (self.clone(), prefix.to_string());
        let write = move || Bytes::from(format!("{}\n", lock(&hub.0.history).json(&own)));
        let text = spawn_blocking(write).await.map_err(|_| STOPPING)?;
        known.texts.push((prefix.to_string(), text.clone()));
        Ok(text)
    }

    /// Returns the table for browsers without JavaScript.
    async fn plain(&self, parts: &Parts) -> Result<Bytes, String> {
        let mut known = self.0.plain.lock().await;
        if let Some((_, page)) = known.as_ref().filter(|(at, _)| at.elapsed() < PLAIN_AGE) {
            return Ok(page.clone());
        }
        let what = What::Several(PLAIN.map(str::to_string).to_vec());
        let shown = parts.ask(Request::Show(Show { what: Some(what), ..Show::default() })).await?;
        // Bounded: by what weir answers.
        let write = move || serde_json::from_str(&shown).map(|shown| plain_page(&host_name(), &shown));
        let page = spawn_blocking(write).await.map_err(|_| STOPPING)?;
        let page = Bytes::from(page.map_err(|why| why.to_string())?);
        *known = Some((Instant::now(), page.clone()));
        Ok(page)
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

    /// Writes the whole state.
    fn whole(&self) -> WholeState {
        let state = lock(&self.0.state);
        WholeState { number: state.number(), state: state.whole().into(), pages: state.pages().into() }
    }
}

/// Why nothing can be written.
const STOPPING: &str = "the daemon is stopping";

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
        loop {
            let now = news.borrow_and_update().clone()?;
            if now.number > seen {
                let (number, state, pages) = self.next(&now, seen).await?;
                seen = number;
                // Pages come first, because the page is drawn when the state arrives.
                if let Some(pages) = pages.filter(|_| self.with_apps) {
                    send(pieces, pages).await?;
                }
                send(pieces, state).await?;
            } else {
                match timeout(KEEP_ALIVE, news.changed()).await {
                    Ok(changed) => {
                        changed.ok()?;
                        continue;
                    }
                    Err(_) => send(pieces, Bytes::from_static(b":\n\n")).await?,
                }
            }
            client.note_watching();
        }
    }

    /// Returns what a client that has seen a state needs next: the number of the new state, the event for it,
    /// and that for the pages of apps.
    async fn next(&self, now: &Arc<LiveNews>, seen: u64) -> Option<(u64, Bytes, Option<Bytes>)> {
        if seen > 0 && now.number == seen + 1 {
            return Some((now.number, now.change.clone(), now.pages.clone()));
        }
        let hub = self.hub.clone();
        let whole = now.whole.get_or_try_init(|| spawn_blocking(move || hub.whole())).await.ok()?;
        Some((whole.number, whole.state.clone(), Some(whole.pages.clone())))
    }
}

async fn send(pieces: &mpsc::Sender<Bytes>, piece: Bytes) -> Option<()> {
    timeout(WATCH_PATIENCE, pieces.send(piece)).await.ok()?.ok()
}

impl Drop for PageWatcher {
    fn drop(&mut self) {
        self.hub.0.watchers.fetch_sub(1, Ordering::Relaxed);
        self.hub.0.app_watchers.fetch_sub(usize::from(self.with_apps), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_wait_until_all_states_are_within_the_budget() {
        let ms = Duration::from_millis;
        assert_eq!(beats(ms(5), ms(1)), 1.0);
        assert_eq!(beats(ms(8), ms(0)), 1.0);
        // 50 ms once and 1 ms six times are 8 ms a second.
        assert_eq!(beats(ms(50), ms(1)), 7.0);
        assert_eq!(beats(ms(900), ms(1)), ROWS_MAX);
        assert_eq!(beats(ms(900), ms(9)), ROWS_MAX, "others alone exceed it");
    }
}
