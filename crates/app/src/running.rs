//! The apps of a running program, as their driver sees them: which app receives a frame, what happened to the
//! frames that an app has sent, and when to wake the next app. The daemon and replay share this; each carries
//! out actions in its own way.

use crate::app::{Action, App, Event};
use crate::kind::Apps;
use serde_json::{Value, json};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use weir_engine::worker::{BucketReport, Inject, Injected};
use weir_program::{AppId, Program};

#[cfg(test)]
mod tests;

/// The largest number of an app's frames that may be in flight to a worker or waiting there; further ones are
/// refused.
pub const INJECTS_MAX: usize = 1024;

/// The number of frames in flight from which on clients of the app's socket are not read: half of a worker's
/// room for commands.
const LISTENS_MAX: usize = 128;

/// The minimum time between two ticks of an app, in nanoseconds.
const TICK_LEAST_NS: u64 = 1_000_000;

/// Counts of an app's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Frames that were forwarded to the app.
    pub punted: u64,
    /// Frames that the app sent, through ports or the program.
    pub injected: u64,
    /// Frames that the app could not send. The ledger has the reason, unless too many were in flight.
    pub refused: u64,
}

/// One app.
struct Running {
    app: Box<dyn App>,
    account: Account,
    /// Where workers report the fate of the app's frames.
    answers: (SyncSender<Injected>, Receiver<Injected>),
    /// Frames without a report yet.
    outstanding: usize,
    last_tick_ns: Option<u64>,
}

/// All apps of a program.
#[derive(Default)]
pub struct RunningApps {
    apps: Vec<Running>,
    /// For each app name of the program, the app that owns it.
    owners: Vec<Option<usize>>,
    /// The app names of the program.
    names: Vec<String>,
}

impl RunningApps {
    /// Binds apps to `program`. An app inherits from the one in `before` with the same name and kind, and its
    /// counts continue.
    #[must_use]
    pub fn new(apps: Vec<Box<dyn App>>, before: RunningApps, program: &Program) -> RunningApps {
        let mut before = before.apps;
        let mut running = RunningApps { names: program.apps.clone(), ..RunningApps::default() };
        for app in apps {
            let same = |old: &Running| old.app.name() == app.name() && old.app.kind() == app.kind();
            let old = before.iter().position(same).map(|at| before.swap_remove(at));
            running.apps.push(Running::new(app, old, program));
        }
        let owner = |name: &String| running.apps.iter().position(|one| one.app.punts().contains(name));
        running.owners = program.apps.iter().map(owner).collect();
        running
    }

    /// Returns the state that the apps hand to their successors in another process, by kind and name.
    #[must_use]
    pub fn states(&self) -> Value {
        let one = |one: &Running| Some(json!([one.app.kind(), one.app.name(), one.app.state()?]));
        self.apps.iter().filter_map(one).collect()
    }

    /// Passes apps the state of their predecessors in another process, before their first event.
    pub fn resume(&mut self, states: &Value) {
        for state in states.as_array().into_iter().flatten() {
            let same = |one: &&mut Running| state[0] == one.app.kind() && state[1] == one.app.name();
            if let Some(one) = self.apps.iter_mut().find(same) {
                one.app.resume(&state[2]);
            }
        }
    }

    /// Sets the time of day for all apps, in seconds since 1970.
    #[must_use]
    pub fn on(mut self, unix_s: u64) -> RunningApps {
        self.apps.iter_mut().for_each(|one| one.app.set_date(unix_s));
        self
    }

    /// Passes a configuration that was changed in place to all apps.
    pub fn amend(&mut self, apps: &Apps, program: &Program) {
        self.apps.iter_mut().for_each(|one| one.app.amend(apps, program));
    }

    /// Returns the number of apps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.apps.len()
    }

    /// Returns true if there are no apps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.apps.is_empty()
    }

    /// Returns an app.
    #[must_use]
    pub fn app(&self, at: usize) -> &dyn App {
        &*self.apps[at].app
    }

    /// Returns the index of the app with this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<usize> {
        self.apps.iter().position(|one| one.app.name() == name)
    }

    /// Returns the counts of an app's frames.
    #[must_use]
    pub fn account(&self, at: usize) -> Account {
        self.apps[at].account
    }

    /// Returns the app that receives frames for `app` of the program.
    #[must_use]
    pub fn owner(&self, app: AppId) -> Option<usize> {
        self.owners.get(app.index()).copied().flatten()
    }

    /// Returns the name under which frames for `app` are forwarded.
    #[must_use]
    pub fn name(&self, app: AppId) -> &str {
        self.names.get(app.index()).map_or("", String::as_str)
    }

    /// Passes an event to an app. Returns the resulting actions.
    #[must_use]
    pub fn step(&mut self, at: usize, now_ns: u64, event: Event<'_>) -> Vec<Action> {
        let one = &mut self.apps[at];
        match event {
            Event::Frame { .. } | Event::TooLong { .. } => one.account.punted += 1,
            Event::Tick => one.last_tick_ns = Some(now_ns),
            _ => {}
        }
        let mut actions = Vec::new();
        one.app.step(now_ns, event, &mut actions);
        actions
    }

    /// Returns the initial weights of the next program, by the names of groups and targets.
    #[must_use]
    pub fn first_weights(&self) -> Vec<(String, String, u32)> {
        self.apps.iter().flat_map(|one| one.app.first_weights()).collect()
    }

    /// Returns the app that owns a group, and the request that changes the weight of one of its targets.
    #[must_use]
    pub fn weighing(&self, group: &str, target: &str, weight: u32) -> Option<(String, Value)> {
        let of = |one: &Running| Some((one.app.name().to_string(), one.app.weighing(group, target, weight)?));
        self.apps.iter().find_map(of)
    }

    /// Returns when the next app must be woken.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        self.apps.iter().filter_map(Running::wake_ns).min()
    }

    /// Returns the first app that is due.
    #[must_use]
    pub fn due(&self, now_ns: u64) -> Option<usize> {
        self.apps.iter().position(|one| one.wake_ns().is_some_and(|wake_ns| wake_ns <= now_ns))
    }

    /// Returns false while an app has too many frames in flight, so its clients should wait.
    #[must_use]
    pub fn has_room(&self, at: usize) -> bool {
        self.apps[at].outstanding < LISTENS_MAX
    }

    /// Sends a frame for an app; `send` passes it to a worker and returns whether the worker accepted it.
    pub fn inject(
        &mut self,
        at: usize,
        inject: Inject,
        send: impl FnOnce(Inject, SyncSender<Injected>) -> bool,
    ) {
        let one = &mut self.apps[at];
        if one.outstanding < INJECTS_MAX && send(inject, one.answers.0.clone()) {
            one.outstanding += 1;
        } else {
            one.account.refused += 1;
        }
    }

    /// Collects the workers' reports on frames. Returns the number of reports.
    pub fn collect(&mut self) -> usize {
        let mut collected = 0;
        for one in &mut self.apps {
            while let Ok(injected) = one.answers.1.try_recv() {
                collected += 1;
                one.outstanding -= 1;
                match injected {
                    Ok(()) => one.account.injected += 1,
                    Err(_) => one.account.refused += 1,
                }
            }
        }
        collected
    }
}

/// Returns a group's buckets, summed over the reports of all workers.
#[must_use]
pub fn buckets(reports: impl IntoIterator<Item = BucketReport>) -> BucketReport {
    let mut all = reports.into_iter();
    let mut sum = all.next().unwrap_or_default();
    for one in all {
        let add = |sums: &mut Vec<u64>, counts: &[u64]| {
            sums.resize(sums.len().max(counts.len()), 0);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        };
        add(&mut sum.packets, &one.packets);
        add(&mut sum.bytes, &one.bytes);
        sum.moved += one.moved;
        sum.moved_busy += one.moved_busy;
        sum.pending += one.pending;
    }
    sum
}

impl Running {
    fn new(mut app: Box<dyn App>, old: Option<Running>, program: &Program) -> Running {
        let (account, answers, outstanding, last_tick_ns) = match old {
            Some(old) => {
                app.inherit(old.app);
                (old.account, old.answers, old.outstanding, old.last_tick_ns)
            }
            None => (Account::default(), sync_channel(INJECTS_MAX), 0, None),
        };
        app.bind(program);
        Running { app, account, answers, outstanding, last_tick_ns }
    }

    fn wake_ns(&self) -> Option<u64> {
        let least = self.last_tick_ns.map_or(0, |last| last + TICK_LEAST_NS);
        self.app.wake_ns().map(|wake_ns| wake_ns.max(least))
    }
}
