//! What a source's thread has found, and the outcome of applying it.

use super::ServiceSource;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// What a source has found.
#[derive(Clone, Debug, Default)]
pub(crate) enum SourceContent {
    /// Nothing yet.
    #[default]
    Nothing,
    /// The source could not be read so far.
    Failed,
    /// The services or the back ends, as they are written in the configuration.
    These(Arc<Vec<Value>>),
}

/// The state of a source.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourceStatus {
    /// Why it cannot be read at present.
    pub failure: Option<String>,
    /// Why the source's content is refused at present.
    pub refusal: Option<String>,
    /// What is left out.
    pub notes: Vec<String>,
    /// Why servers of another priority than the lowest are used.
    pub fallback: Option<String>,
    /// When it was last read, in seconds since 1970.
    pub read_s: Option<u64>,
    /// How often it could not be read, or was refused.
    pub errors: u64,
    /// How often it has changed.
    pub changes: u64,
    /// The services and back ends that it names.
    pub counts: [usize; 2],
}

#[derive(Debug, Default)]
struct Content {
    found: SourceContent,
    /// Increases whenever `found` changes.
    version: u64,
    status: SourceStatus,
}

/// The board of a source.
#[derive(Debug, Default)]
pub(crate) struct SourceBoard {
    content: Mutex<Content>,
    /// Increases whenever its content or its state changes, so that unchanged boards cost little.
    stamp: AtomicU64,
}

/// Sources and their boards, which the apps of one configuration share.
#[derive(Clone, Debug, Default)]
pub struct SourceBoards(Arc<Mutex<Vec<SourceTask>>>);

/// A source and its board.
pub(crate) type SourceTask = (Arc<ServiceSource>, Arc<SourceBoard>);

/// Two configurations are equal if their sources are; boards are state.
impl PartialEq for SourceBoards {
    fn eq(&self, other: &SourceBoards) -> bool {
        let sources =
            |one: &SourceBoards| one.all().into_iter().map(|(source, _)| source).collect::<Vec<_>>();
        sources(self) == sources(other)
    }
}

impl SourceBoards {
    /// Creates boards for sources.
    pub(crate) fn of(sources: Vec<ServiceSource>) -> SourceBoards {
        let all = sources.into_iter().map(|source| (Arc::new(source), Arc::default())).collect();
        SourceBoards(Arc::new(Mutex::new(all)))
    }

    /// Returns all sources with their boards.
    pub(crate) fn all(&self) -> Vec<SourceTask> {
        self.lock().clone()
    }

    /// Keeps the boards of sources that have not changed.
    pub(crate) fn inherit(&self, old: &SourceBoards) {
        if Arc::ptr_eq(&self.0, &old.0) {
            return;
        }
        let old = old.all();
        let named: HashMap<&str, &SourceTask> = old.iter().map(|one| (one.0.name.as_str(), one)).collect();
        for (source, board) in self.lock().iter_mut() {
            if let Some((_, kept)) = named.get(source.name.as_str()).filter(|(other, _)| other == source) {
                *board = kept.clone();
            }
        }
    }

    /// Returns whether there are no sources.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Returns a number that increases whenever a board changes.
    pub(crate) fn stamp(&self) -> u64 {
        let stamp = |(_, board): &SourceTask| board.stamp.load(Ordering::Acquire);
        self.lock().iter().map(stamp).fold(0, u64::wrapping_add)
    }

    /// Returns the rows of `weir show sources`.
    pub(crate) fn rows(&self) -> Value {
        self.all().iter().map(|(source, board)| board.row(source)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SourceTask>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SourceBoard {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the content, and makes the app look at it if the state has changed.
    fn change(&self, change: impl FnOnce(&mut Content)) {
        let mut content = self.lock();
        let before = (content.version, content.status.state());
        change(&mut content);
        if (content.version, content.status.state()) != before {
            self.stamp.fetch_add(1, Ordering::Release);
        }
    }

    /// Publishes what was found.
    pub fn publish(&self, found: Vec<Value>, counts: [usize; 2], notes: Vec<String>) {
        self.change(|content| {
            let is_new = !matches!(&content.found, SourceContent::These(before) if **before == found);
            if is_new {
                content.found = SourceContent::These(Arc::new(found));
                content.version += 1;
                content.status.changes += 1;
            }
            let status = &mut content.status;
            (status.failure, status.notes, status.counts) = (None, notes, counts);
            status.read_s = Some(now_s());
        });
    }

    /// Publishes that the source has not changed since it was last read.
    pub fn confirm(&self) {
        self.change(|content| {
            (content.status.failure, content.status.read_s) = (None, Some(now_s()));
        });
    }

    /// Publishes that the source cannot be read. What was found last stays.
    pub fn fail(&self, why: String) {
        self.change(|content| {
            if matches!(content.found, SourceContent::Nothing) {
                content.found = SourceContent::Failed;
                content.version += 1;
            }
            content.status.errors += 1;
            content.status.failure = Some(why);
        });
    }

    /// Records why the content is refused, or that it is in use.
    pub fn decided(&self, refusal: Option<String>) {
        self.change(|Content { status, .. }| {
            status.errors += u64::from(refusal.is_some() && refusal != status.refusal);
            status.refusal = refusal;
        });
    }

    /// Records why servers of another priority than the lowest are used.
    pub fn falls_back(&self, why: Option<String>) {
        self.lock().status.fallback = why;
    }

    /// Returns what was found.
    pub fn found(&self) -> SourceContent {
        self.lock().found.clone()
    }

    /// Returns the version of what was found.
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// Returns its state.
    pub fn status(&self) -> SourceStatus {
        self.lock().status.clone()
    }

    /// Returns the row of its source in `weir show sources`.
    fn row(&self, source: &ServiceSource) -> Value {
        let status = self.status();
        let [services, back_ends] = status.counts;
        json!({ "name": source.name, "of": source.of(), "state": status.state(),
            "services": services, "back_ends": back_ends, "age_s": status.age_s(), "errors": status.errors,
            "changes": status.changes, "reason": status.says() })
    }
}

impl SourceStatus {
    /// Returns a word for its state.
    pub fn state(&self) -> &'static str {
        match (&self.failure, &self.refusal, self.read_s) {
            (Some(_), ..) => "failing",
            (None, Some(_), _) => "refused",
            (None, None, Some(_)) => "ok",
            (None, None, None) => "starting",
        }
    }

    /// Returns how long ago it was last read.
    pub fn age_s(&self) -> Option<u64> {
        self.read_s.map(|read_s| now_s().saturating_sub(read_s))
    }

    /// Returns the reason for its state, or what is left out.
    pub fn says(&self) -> String {
        let why = self.failure.clone().or_else(|| self.refusal.clone());
        let notes = || self.fallback.iter().chain(&self.notes).cloned().collect::<Vec<_>>().join("; ");
        why.unwrap_or_else(notes)
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
