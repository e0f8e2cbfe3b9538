//! Threads that answer `show`, `explain` and Prometheus, so that neither frames nor links wait for an answer.
//!
//! An answer is computed from a [`Snapshot`]: the workers' reports, which are small, and a [`Scene`] with the
//! facts that only the main thread knows, such as the state of apps. The main thread publishes a scene on
//! demand, and blocks on nothing. If the main thread or a worker is busy, a scrape gets the last snapshot,
//! whose age is among the metrics.
//!
//! A snapshot is always newer than the question it answers, and there are at most [`RATE_MAX`] per second, so
//! a flood of questions delays only the clients that ask them.

use super::app_host::{Family, Gauges};
use super::arrival::Arrival;
use super::collector::Totals;
use super::doorbell::Doorbell;
use super::fleet::{Offered, Workers};
use super::http::{Answer, Asked, Question};
use super::shown::total;
use super::{live, metrics, page};
use crate::config::{Load, Plan};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use weir_app::agent::FlowTable;
use weir_app::clock::{Clock, since_1970_ns};
use weir_app::http::{HttpControl, Listing};
use weir_app::names::NamesBoard;
use weir_app::rings::RingCache;
use weir_app::{Sample, priority};
use weir_control::{Request, answer};
use weir_engine::worker::{Command, Histogram, Report};
use weir_program::buckets::GroupTables;
use weir_program::owner::Owners;

/// The maximum number of snapshots per second that a thread takes: with two threads, a worker spends less
/// than a hundredth of its time on reports.
const RATE_MAX: u32 = 200;

/// How long a scrape waits for the main thread and the workers before it gets the last snapshot.
const SCRAPE_PATIENCE: Duration = Duration::from_secs(1);

/// How long questions other than scrapes wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait before asking a worker again that had no room for a question.
const AGAIN: Duration = Duration::from_millis(1);

/// The maximum number of times that inconsistent reports are collected again.
const ACCOUNTS_TAKEN_MAX: usize = 8;

/// The maximum number of times that a question is answered again because the program has changed meanwhile.
const ANSWERED_MAX: usize = 8;

/// The maximum number of reasons listed why a node is not ready.
const REASONS_MAX: usize = 20;

/// The number of questions that may be queued for a thread; the connections of further questions wait.
const QUESTIONS: usize = 64;

/// The facts that the main thread knows at one moment.
pub struct Scene {
    pub generation: u64,
    pub file: PathBuf,
    /// Rereads the configuration.
    pub load: Load,
    pub clock: Clock,
    pub plan: Arc<Plan>,
    /// The groups with their current weights, and their buckets.
    pub tables: GroupTables,
    /// Which worker owns a packet.
    pub owners: Owners,
    /// Handles for asking the workers.
    pub fleet: Workers,
    /// The state of each port's link.
    pub links: Vec<Option<String>>,
    /// Why each port's interface cannot carry frames at the moment.
    pub obstacles: Vec<Option<String>>,
    /// Counters of the program at each port's interface, summed over all queues.
    pub programs: Vec<Vec<(&'static str, u64)>>,
    /// The facts about each port's interface that `explain` needs.
    pub arrivals: Vec<Option<Arrival>>,
    /// What `weir show apps` prints.
    pub apps: Value,
    /// The apps' counters.
    pub families: Vec<Family>,
    /// The apps' gauges.
    pub gauges: Vec<Gauges>,
    /// The apps' values with labels, each with its app's name.
    pub samples: Vec<(String, Sample)>,
    /// The totals that the collector had read before the workers were asked for their counts.
    pub read: Totals,
    /// The tables of flows outside of pipes.
    pub flow_tables: Vec<Arc<dyn FlowTable>>,
    /// How late apps were served.
    pub late: Histogram,
    /// The VIPs that are announced by routes, or should be.
    pub routes: Vec<answer::Route>,
    /// Since when the node is draining, if it is.
    pub draining_ns: Option<u64>,
    /// Why other nodes should get this node's traffic.
    pub unready: Vec<String>,
    /// Why the kernel does not handle frames of each port.
    pub copies: Vec<Option<String>>,
    /// The names of addresses.
    pub names: NamesBoard,
}

/// Where the main thread publishes scenes.
#[derive(Clone)]
pub struct ScenePublisher(Arc<Published>);

struct Published {
    doorbell: Doorbell,
    wanted: AtomicBool,
    scene: Mutex<Newest>,
    renewed: Condvar,
    rings: Arc<Mutex<RingCache>>,
}

#[derive(Default)]
struct Newest {
    /// How many scenes the main thread has begun; distinguishes those begun after a question.
    begun: u64,
    /// The number of the published scene.
    number: u64,
    scene: Option<Arc<Scene>>,
}

impl ScenePublisher {
    /// Creates a board; `doorbell` wakes the main thread.
    pub fn new(doorbell: Doorbell) -> ScenePublisher {
        let (scene, renewed, rings) = Default::default();
        ScenePublisher(Arc::new(Published {
            doorbell,
            wanted: AtomicBool::new(false),
            scene,
            renewed,
            rings,
        }))
    }

    fn newest(&self) -> MutexGuard<'_, Newest> {
        self.0.scene.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the scene that the main thread should publish now, if one is wanted.
    pub fn wanted(&self) -> Option<u64> {
        let wanted = self.0.wanted.swap(false, Ordering::AcqRel);
        wanted.then(|| {
            let mut newest = self.newest();
            newest.begun += 1;
            newest.begun
        })
    }

    /// Publishes a scene.
    pub fn publish(&self, number: u64, scene: Scene) {
        let mut newest = self.newest();
        (newest.number, newest.scene) = (number, Some(Arc::new(scene)));
        self.0.renewed.notify_all();
    }

    /// Returns a scene that was begun after this call, or the last one if none arrives before `until`; and
    /// whether it is new.
    fn look(&self, until: Instant) -> (Option<Arc<Scene>>, bool) {
        let mut newest = self.newest();
        let before = newest.begun;
        self.0.wanted.store(true, Ordering::Release);
        self.0.doorbell.ring();
        while newest.number <= before {
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            let waited = self.0.renewed.wait_timeout(newest, left);
            newest = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        (newest.scene.clone(), newest.number > before)
    }
}

/// A scene and the reports of all workers, which run the scene's program.
pub struct Snapshot {
    scene: Arc<Scene>,
    pub reports: Vec<Report>,
    pub taken: Instant,
    /// The same, in milliseconds since 1970.
    pub taken_ms: u64,
    /// Whether the main thread contributed, not only the workers.
    pub is_fresh: bool,
    /// The checksums of rings, shared with later snapshots.
    pub rings: Arc<Mutex<RingCache>>,
}

impl Deref for Snapshot {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.scene
    }
}

impl Scene {
    /// Asks all workers and returns the answers, in the order of workers. All are asked before the first
    /// answer is awaited.
    pub fn ask_all<T>(&self, command: impl Fn(SyncSender<T>) -> Command) -> Result<Vec<T>> {
        self.ask_until(Instant::now() + PATIENCE, command)
    }

    fn ask_until<T>(&self, until: Instant, command: impl Fn(SyncSender<T>) -> Command) -> Result<Vec<T>> {
        let ask = |worker| self.ask(worker, until, &command);
        let answers: Vec<Receiver<T>> = (0..self.fleet.len()).map(ask).collect::<Result<_>>()?;
        let wait = |(worker, answer): (usize, Receiver<T>)| {
            let left = until.saturating_duration_since(Instant::now());
            answer.recv_timeout(left).map_err(|_| anyhow!("worker {worker} does not answer"))
        };
        answers.into_iter().enumerate().map(wait).collect()
    }

    /// Asks one worker.
    pub fn ask_one<T>(&self, worker: usize, command: impl Fn(SyncSender<T>) -> Command) -> Result<T> {
        let answer = self.ask(worker, Instant::now() + PATIENCE, &command)?;
        answer.recv_timeout(PATIENCE).map_err(|_| anyhow!("worker {worker} does not answer"))
    }

    /// Returns true if the worker runs this program, with the same number of workers.
    fn is_told_by(&self, report: &Report) -> bool {
        (report.generation, report.workers) == (self.generation, self.fleet.len())
    }

    /// Returns true if a worker has ended because it was removed.
    fn is_past(&self) -> bool {
        (0..self.fleet.len()).any(|worker| self.fleet.has_ended(worker))
    }

    /// Returns true if all workers run this program. If so, their earlier answers were about this program.
    fn still_runs(&self) -> Result<bool> {
        if self.is_past() {
            return Ok(false);
        }
        let reports = self.ask_all(Command::Report)?;
        Ok(reports.iter().all(|report| self.is_told_by(report)))
    }

    /// Waits until no worker is still taking over the counts of a previous program.
    pub fn settle(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.ask_until(until, Command::Report)?.iter().any(|report| report.is_settling) {
            if Instant::now() >= until {
                bail!("the workers are switching to a new program");
            }
            std::thread::sleep(AGAIN);
        }
        Ok(())
    }

    /// Asks one worker, repeatedly while it has no room for a question.
    fn ask<T>(
        &self,
        worker: usize,
        until: Instant,
        command: &impl Fn(SyncSender<T>) -> Command,
    ) -> Result<Receiver<T>> {
        loop {
            let (answer, receive) = sync_channel(1);
            match self.fleet.try_offer(worker, command(answer)) {
                Offered::Taken => return Ok(receive),
                Offered::Ended => bail!("worker {worker} has ended"),
                Offered::Full => {}
            }
            if Instant::now() >= until {
                bail!("worker {worker} is overloaded, or has ended");
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Collects the reports of all workers. Reports are taken one after the other, so a frame that passes
    /// between workers meanwhile may be in both reports or in neither; in this case, the reports are
    /// collected again.
    fn reports(&self, until: Instant) -> Result<Vec<Report>> {
        let mut reports = self.ask_until(until, Command::Report)?;
        for _ in 0..ACCOUNTS_TAKEN_MAX {
            if total(&reports).balances() {
                break;
            }
            reports = self.ask_until(until, Command::Report)?;
        }
        Ok(reports)
    }
}

/// A thread that answers.
struct Observer {
    board: ScenePublisher,
    last: Option<Arc<Snapshot>>,
    /// The last answer about the configuration.
    compared: page::ComparedFile,
}

/// Starts a thread that answers questions. It ends when all senders are gone.
pub fn start(board: ScenePublisher, name: &str) -> Result<mpsc::Sender<Asked>> {
    let (ask, mut asked) = mpsc::channel::<Asked>(QUESTIONS);
    let mut observer = Observer { board, last: None, compared: page::ComparedFile::default() };
    let work = move || {
        priority::ordinary();
        while let Some(Asked { question, answer }) = asked.blocking_recv() {
            if !answer.is_closed() {
                // The client may be gone.
                let _ = answer.send(observer.answer(&question));
            }
        }
    };
    std::thread::Builder::new().name(name.into()).spawn(work).context("no thread for answers")?;
    Ok(ask)
}

impl Observer {
    fn answer(&mut self, question: &Question) -> Answer {
        let answer = match question {
            Question::Metrics => self.scrape().and_then(|snapshot| metrics::text(&snapshot)),
            Question::Health => self.health(),
            Question::Ready => self.ready().map(|ready| json!(ready).to_string()),
            Question::Command(request) => self.command(request).map(|answer| format!("{answer}\n")),
            Question::Listed(apps, path) => self.list(apps, path),
            Question::Beat(asked) => {
                self.scrape().and_then(|now| asked.take(&now)).map(|cost_ns| cost_ns.to_string())
            }
            Question::Configuration => self.snapshot(PATIENCE).map(|now| self.compared.answer(&now)),
            Question::Changes(_) | Question::Reconcile(_) => {
                Err(anyhow!("the main thread is making changes"))
            }
        };
        answer.map_err(|error| format!("{error:#}"))
    }

    /// Answers a command. Repeats this if the workers have switched programs meanwhile, because some of the
    /// answers are then about the new program.
    fn command(&mut self, request: &Request) -> Result<Value> {
        for _ in 0..ANSWERED_MAX {
            let now = self.snapshot(PATIENCE)?;
            let answer = match request {
                Request::Explain(explain) => live::explain(&now, explain),
                Request::Entries(entries) => now.list_entries(entries),
                Request::Show(show) => now.show(show),
                _ => bail!("the main thread answers this"),
            };
            if now.still_runs()? {
                return answer;
            }
        }
        bail!("programs are being replaced one after another: try again")
    }

    /// Returns what GET shows for a path: its tag in a line, followed by the body.
    fn list(&self, apps: &HttpControl, path: &str) -> Result<String> {
        let (scene, _) = self.board.look(Instant::now() + PATIENCE);
        let scene = scene.context("the daemon has not started yet")?;
        let (route, names) = apps.find("GET", path).map_err(|_| anyhow!("there is no such path"))?;
        let listing = (apps.list)(&scene.plan.apps, route, &names);
        let Listing { body, tag } = listing.with_context(|| apps.absent[0].to_string())?;
        Ok(format!("{}\n{body}\n", tag.unwrap_or_default()))
    }

    /// Returns a snapshot: the last one if a new one cannot be taken now.
    fn scrape(&mut self) -> Result<Arc<Snapshot>> {
        let snapshot = self.snapshot(SCRAPE_PATIENCE);
        snapshot.or_else(|error| self.last.clone().ok_or(error))
    }

    fn health(&mut self) -> Result<String> {
        if !self.snapshot(PATIENCE)?.is_fresh {
            bail!("the main thread does not answer");
        }
        Ok("ok\n".into())
    }

    fn ready(&mut self) -> Result<answer::Ready> {
        let now = self.snapshot(PATIENCE)?;
        let draining = now.draining_ns.is_some();
        let mut reasons = Vec::new();
        if !now.is_fresh {
            reasons.push("the main thread does not answer".to_string());
        }
        if draining {
            reasons.push("the node is draining".to_string());
        }
        reasons.extend(now.unready.iter().cloned());
        let withheld = now.routes.iter().filter(|route| !route.announced && !draining);
        reasons.extend(withheld.map(|route| {
            format!(
                "{} is not announced: {}",
                route.vip,
                route.why.as_deref().unwrap_or("it is not known why")
            )
        }));
        let ready = reasons.is_empty();
        if let Some(more) = reasons.len().checked_sub(REASONS_MAX).filter(|more| *more > 0) {
            reasons.truncate(REASONS_MAX);
            reasons.push(format!("and {more} more reasons"));
        }
        Ok(answer::Ready { ready, draining, reasons })
    }

    /// Returns a new snapshot.
    fn snapshot(&mut self, patience: Duration) -> Result<Arc<Snapshot>> {
        if let Some(last) = &self.last {
            let next = last.taken + Duration::from_secs(1) / RATE_MAX;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let until = Instant::now() + patience;
        loop {
            // The workers get the remaining time if the main thread is too busy.
            let (scene, is_fresh) =
                self.board.look(Instant::now() + until.saturating_duration_since(Instant::now()) / 2);
            let scene = scene.context("the daemon has not started yet")?;
            let (taken, taken_ms) = (Instant::now(), since_1970_ns() / 1_000_000);
            let reports = match scene.reports(until) {
                // A worker was removed, and the main thread has not published that yet.
                Err(_) if scene.is_past() && Instant::now() < until => {
                    std::thread::sleep(AGAIN);
                    continue;
                }
                reports => reports?,
            };
            if reports.iter().all(|report| scene.is_told_by(report)) {
                let rings = Arc::clone(&self.board.0.rings);
                let snapshot = Arc::new(Snapshot { scene, reports, taken, taken_ms, is_fresh, rings });
                self.last = Some(snapshot.clone());
                return Ok(snapshot);
            }
            if Instant::now() >= until {
                bail!("the workers are switching to a new program");
            }
        }
    }
}
