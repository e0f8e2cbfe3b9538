//! Apps whose work is done by a thread of their agent: the configured [`Task`], the [`Board`] where its
//! thread publishes, the app that answers from the board, and the threads.

use crate::page::{items, word};
use crate::{Action, App, Event, MetricHelp, RequestId, Sample, SampleValue};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use weir_program::Program;

/// The number of events that are kept.
pub const EVENTS: usize = 64;

/// How often the board is polled while a request waits for flows, in nanoseconds.
const POLL_NS: u64 = 5_000_000;

/// How long a request waits for flows, in nanoseconds.
const PATIENCE_NS: u64 = 5_000_000_000;

/// The configured work of a thread, and how its app shows what the thread publishes.
pub trait Task: Clone + Debug + PartialEq + Send + Sync + 'static {
    /// The kind of its app: its key under `apps`.
    const KIND: &'static str;

    /// What its counters mean ([`App::helps`]).
    const HELPS: &'static [MetricHelp];

    /// The state that the thread publishes.
    type Report: Clone + Debug + Default + Send;

    /// A query about flows.
    type Query: Clone + Debug + Send;

    /// The flows that the thread reads for a request.
    type Flows: Clone + Debug + Send;

    /// Returns the app's name.
    fn name(&self) -> &str;

    /// Answers the request `show`.
    fn show(&self, board: &Board<Self>) -> Value;

    /// Reads a request. `None` means the request `show`; all others query flows.
    ///
    /// # Errors
    /// The error says which requests the app answers.
    fn query(request: &Value) -> Result<Option<Self::Query>, String>;

    /// Answers a request about flows. `obstacle` is the one on the board.
    ///
    /// # Errors
    /// The flows could not be read.
    fn answer(
        &self,
        query: &Self::Query,
        flows: Self::Flows,
        obstacle: Option<&str>,
    ) -> Result<Value, String>;

    /// Returns the app's counters ([`App::counts`]).
    fn counts(report: &Self::Report) -> Vec<(&'static str, u64)>;

    /// Returns the app's values with labels ([`App::samples`]).
    fn samples(report: &Self::Report) -> Vec<Sample>;

    /// Returns what `weir show apps` prints besides counters and the obstacle, as an object.
    fn summary(report: &Self::Report) -> Value;
}

/// What a thread publishes, and the app's queries to it.
#[derive(Clone, Debug)]
pub struct Board<T: Task> {
    /// The state of the task.
    pub report: T::Report,
    /// Why the eBPF programs are not active; `None` if they are.
    pub obstacle: Option<String>,
    /// The latest events, newest last: when each happened, in nanoseconds since 1970, and a sentence.
    pub events: VecDeque<(u64, String)>,
    /// When the board was last written, in nanoseconds since 1970.
    pub now_ns: u64,
    /// Requests that wait for flows.
    pub queries: Vec<(RequestId, T::Query)>,
    /// The flows that were read for these requests.
    pub read: Vec<(RequestId, T::Flows)>,
}

impl<T: Task> Board<T> {
    /// Records an event that happened at `at_ns`, in nanoseconds since 1970. Of more than
    /// [`EVENTS`] events, only the latest are kept.
    pub fn note(&mut self, at_ns: u64, what: String) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back((at_ns, what));
        self.now_ns = self.now_ns.max(at_ns);
    }
}

/// A board that a thread and its app share.
#[derive(Clone, Debug)]
pub struct Publisher<T: Task>(Arc<Mutex<Board<T>>>);

impl<T: Task> Default for Publisher<T> {
    fn default() -> Publisher<T> {
        Publisher(Arc::new(Mutex::new(Board {
            report: T::Report::default(),
            obstacle: None,
            events: VecDeque::new(),
            now_ns: 0,
            queries: Vec::new(),
            read: Vec::new(),
        })))
    }
}

impl<T: Task> Publisher<T> {
    /// Locks the board for reading and writing. The lock is never held longer than a copy takes.
    pub fn look(&self) -> MutexGuard<'_, Board<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task, and the board that its thread publishes on.
#[derive(Clone, Debug)]
pub struct Wanted<T: Task> {
    /// The task that the thread carries out.
    pub task: T,
    /// The board on which the thread publishes, and from which the app answers requests.
    pub board: Publisher<T>,
}

/// The app of a task.
#[derive(Clone, Debug)]
pub struct TaskApp<T: Task> {
    wanted: Wanted<T>,
    /// Requests that wait for flows, with their deadlines.
    waiting: Vec<(RequestId, u64, T::Query)>,
    wake_ns: Option<u64>,
}

impl<T: Task> TaskApp<T> {
    /// Returns the app of a task.
    #[must_use]
    pub fn new(wanted: Wanted<T>) -> TaskApp<T> {
        TaskApp { wanted, waiting: Vec::new(), wake_ns: None }
    }

    /// Locks the board of the task for reading and writing.
    pub fn board(&self) -> MutexGuard<'_, Board<T>> {
        self.wanted.board.look()
    }

    /// Makes a request wait for flows.
    fn wait(&mut self, id: RequestId, now_ns: u64, query: T::Query) {
        self.board().queries.push((id, query.clone()));
        self.waiting.push((id, now_ns + PATIENCE_NS, query));
        self.wake_ns = Some(now_ns + POLL_NS);
    }

    /// Answers waiting requests whose flows have arrived or whose deadline has passed.
    fn answer_waiting(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let (read, obstacle) = {
            let mut board = self.board();
            (std::mem::take(&mut board.read), board.obstacle.clone())
        };
        for (id, flows) in read {
            // The request may already have been answered with a timeout.
            let Some(at) = self.waiting.iter().position(|(waits, ..)| *waits == id) else { continue };
            let (_, _, query) = self.waiting.remove(at);
            let answer = self.wanted.task.answer(&query, flows, obstacle.as_deref());
            actions.push(Action::Answer { id, answer });
        }
        let (kind, name) = (T::KIND, self.wanted.task.name());
        for (id, ..) in self.waiting.extract_if(.., |(_, until_ns, _)| *until_ns <= now_ns) {
            let why =
                format!("the flows of `{name}` cannot be read right now: see `weir show {kind} {name}`");
            actions.push(Action::Answer { id, answer: Err(why) });
            self.wanted.board.look().queries.retain(|(asked, _)| *asked != id);
        }
        self.wake_ns = (!self.waiting.is_empty()).then_some(now_ns + POLL_NS);
    }
}

impl<T: Task> App for TaskApp<T> {
    fn name(&self) -> &str {
        self.wanted.task.name()
    }

    fn kind(&self) -> &'static str {
        T::KIND
    }

    /// If the task has not changed, its thread keeps running, and its board is kept.
    fn inherit(&mut self, predecessor: Box<dyn App>) {
        let predecessor: Box<dyn Any> = predecessor;
        if let Ok(old) = predecessor.downcast::<TaskApp<T>>() {
            if old.wanted.task == self.wanted.task {
                self.wanted.board = old.wanted.board;
            }
            (self.waiting, self.wake_ns) = (old.waiting, old.wake_ns);
        }
    }

    fn bind(&mut self, _: &Program) {}

    fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        match event {
            Event::Request { id, request } => match T::query(request) {
                Ok(None) => {
                    let board = self.board().clone();
                    actions.push(Action::Answer { id, answer: Ok(self.wanted.task.show(&board)) });
                }
                Ok(Some(query)) => self.wait(id, now_ns, query),
                Err(why) => actions.push(Action::Answer { id, answer: Err(why) }),
            },
            Event::Tick => self.answer_waiting(now_ns, actions),
            _ => {}
        }
    }

    fn wake_ns(&self) -> Option<u64> {
        self.wake_ns
    }

    fn punts(&self) -> Vec<String> {
        Vec::new()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        T::counts(&self.board().report)
    }

    fn helps(&self) -> &'static [MetricHelp] {
        T::HELPS
    }

    /// The series of the task, and one that says whether its programs are active: if they are not, it may be
    /// the only one.
    fn samples(&self) -> Vec<Sample> {
        let board = self.board();
        let running = Sample {
            name: "running",
            help: "1 if the app's eBPF programs are active; if not, `weir show` says why",
            labels: Vec::new(),
            value: SampleValue::Gauge(f64::from(u8::from(board.obstacle.is_none()))),
        };
        T::samples(&board.report).into_iter().chain([running]).collect()
    }

    fn report(&self, _now_ns: u64) -> Value {
        let board = self.board();
        let mut report = T::summary(&board.report);
        report["obstacle"] = json!(board.obstacle);
        report
    }
}

/// Returns the facts that a page shows of every app of a task, from its answer to `show`.
pub fn obstacle_and_last_event(app: &Value) -> impl Iterator<Item = (&'static str, String)> {
    let last = items(&app["events"]).last().map(|event| ("last", word(&event["what"]).to_string()));
    app["obstacle"].as_str().map(|why| ("not running", why.to_string())).into_iter().chain(last)
}

/// The threads of an agent, one for each task, each of which shares an `S` with the agent.
pub struct TaskThreads<T: Task, S = ()>(Vec<TaskThread<T, S>>);

struct TaskThread<T, S> {
    task: T,
    shared: S,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The work that a thread runs.
pub type Work = Box<dyn FnOnce() + Send>;

impl<T: Task, S> Default for TaskThreads<T, S> {
    fn default() -> TaskThreads<T, S> {
        TaskThreads(Vec::new())
    }
}

impl<T: Task, S> TaskThreads<T, S> {
    /// Works on these tasks from now on. Unchanged tasks keep their threads. Threads of other tasks end
    /// before new threads begin, because two programs at one interface would both change frames. `begin`
    /// returns what a thread shares, and its work, which ends soon after the flag is set.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn follow(
        &mut self,
        tasks: Vec<Wanted<T>>,
        begin: impl Fn(Wanted<T>, Arc<AtomicBool>) -> Result<(S, Work)>,
    ) -> Result<()> {
        let mut before = std::mem::take(&mut self.0);
        let mut new = Vec::new();
        for one in tasks {
            match before.iter().position(|old| old.task == one.task) {
                Some(at) => self.0.push(before.swap_remove(at)),
                None => new.push(one),
            }
        }
        drop(before);
        for one in new {
            let (task, stop) = (one.task.clone(), Arc::<AtomicBool>::default());
            let (shared, work) = begin(one, stop.clone())?;
            let thread = std::thread::Builder::new().name(format!("weir-{}", T::KIND)).spawn(work);
            let thread = Some(thread.with_context(|| format!("cannot start a thread for {}", T::KIND))?);
            self.0.push(TaskThread { task, shared, stop, thread });
        }
        Ok(())
    }

    /// Returns what the threads share with the agent.
    pub fn shared(&self) -> impl Iterator<Item = &S> {
        self.0.iter().map(|one| &one.shared)
    }
}

impl<T, S> Drop for TaskThread<T, S> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, the message has been printed, and the programs have been removed
            // with it.
            let _ = thread.join();
        }
    }
}
