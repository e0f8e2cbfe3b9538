//! Reloads: a dedicated thread reads, checks and compiles; the main thread hands the result to the workers.
//!
//! The main thread drives LACP and links, so it must not wait for a program of any size. A reload has two
//! phases. While it is *prepared*, the old program runs unchanged. Then it is *committed*: each worker is
//! sent its engine, and plan, apps and interfaces change in the same iteration of the main loop. A command
//! that a worker is sent afterwards finds the new program there, because commands stay in order. So plan and
//! engines agree no matter how late a worker answers.
//!
//! Changes to the program in the meantime are kept. Entries are state and pass from engine to engine. Weights
//! that are set while a program is prepared are set again in the new program. Until all workers have
//! switched, changes and queries would block on the workers. Changes and queries of apps are therefore
//! deferred ([`Reloads::put_off`]), and those of clients wait in the socket.
//!
//! One reload runs at a time. Requests that arrive meanwhile are coalesced into one reload that follows,
//! because the file may have changed after it was read.

use super::added::Added;
use super::amendment::Amendment;
use super::app_host::{self, weigh};
use super::doorbell::Doorbell;
use super::interfaces::{knows, nics_of};
use super::kernel::Surroundings;
use super::resize::{Making, Resizing, WorkerResize};
use super::workshop::Workshop;
use super::{Daemon, Weights, open, restart, rings_for};
use crate::config::{self, Edited, Load, Plan};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};
use tracing::{error, info};
use weir_app::clock::Clock;
use weir_app::{Action, RequestId};
use weir_control::answer::{Progress, Reloaded};
use weir_engine::batch::{Engine, Moved};
use weir_engine::ring::CarrierSender;
use weir_engine::worker::{Command, NextCopy, Rewire, Rewiring, Swapped};
use weir_packet::TableHash;
use weir_port::XdpInterface;
use weir_port::numa::Preferred;
use weir_port::xdp::{Queues, Remnant};
use weir_program::GroupId;
use weir_program::buckets::GroupTables;

/// How many outcomes of reloads are remembered for clients that ask later.
const OUTCOMES: usize = 16;

/// The maximum number of actions of apps that are deferred while workers switch programs; further changes are
/// refused.
pub const PUT_OFF_MAX: usize = 65_536;

/// How long a reload that is under way when weir stops may take, and how often it is polled.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// The number of a requested reload.
pub type Ticket = u64;

/// Why a program is compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Requested by a client.
    Asked(Ticket),
    /// Requested by an app for an operator.
    Configure(RequestId),
    /// The MAC address of an interface has changed.
    Mac,
}

/// A plan and its engines, one per worker. The plan no longer has entries: they are in the engines.
struct Prepared {
    plan: Plan,
    tables: GroupTables,
    #[allow(clippy::vec_box, reason = "each goes to its worker in the box")]
    engines: Vec<Box<Engine>>,
    /// The current position of each port; `None` for added ports.
    order: Vec<Option<usize>>,
    added: Added,
    /// A change of the number of workers.
    crew: Option<Box<WorkerResize>>,
    /// What requests have changed, an object or null.
    changes: Value,
}

/// The result of preparing a program.
enum Preparing {
    /// A program.
    Program(Box<Prepared>),
    /// The running program, with other targets in some groups; `None` if more than these must change.
    Amended(Option<Box<Amendment>>),
    /// No program is needed, because requests change nothing, or only ask what would change, which the value
    /// says.
    None(Value),
}

/// The phase of the current reload.
enum ReloadPhase {
    Preparing {
        prepared: Receiver<Result<Preparing>>,
        /// The new program is ready, and waits for changes that workers have begun.
        ready: Option<Preparing>,
        /// Weights that were set since the reload began, by group and target.
        weights: Vec<(String, String, u32)>,
    },
    TakingOver {
        swaps: Vec<Swap>,
        weights: Vec<(String, String, u32)>,
        former: Arc<Plan>,
        /// A change of the number of workers, and its progress.
        crew: Option<Box<WorkerResize>>,
        resizing: Option<Box<Resizing>>,
        /// The errors that occurred after the workers had been sent their engines.
        failed: Option<anyhow::Error>,
    },
}

/// A worker that is switching to a program.
struct Swap {
    answer: Receiver<Swapped>,
    swapped: Option<Swapped>,
}

struct Reload {
    cause: Cause,
    since: Instant,
    phase: ReloadPhase,
    /// What requests have changed, once that is known.
    changes: Value,
}

/// The current reload, and those to come.
#[derive(Default)]
pub struct Reloads {
    workshop: Workshop,
    /// The thread that prepares changes in place.
    quick: Workshop,
    now: Option<Reload>,
    /// A reload that is requested and has not begun.
    next: Option<Ticket>,
    /// Requested changes of apps' configurations: app, request, content.
    pub(super) configures: VecDeque<(Option<String>, RequestId, Arc<Value>)>,
    /// The next requested change cannot be made in place, so a whole program is prepared.
    is_whole: bool,
    /// The MAC address of an interface differs from the program's, or its MTU has changed.
    mac: bool,
    pub(super) mtu: bool,
    tickets: Ticket,
    outcomes: VecDeque<(Ticket, Result<Value, String>)>,
    put_off: VecDeque<(usize, Action)>,
    /// The new number of workers and the effect on flows, if the current reload has changed the number.
    moved: Option<(usize, Moved)>,
}

impl Reloads {
    /// Returns true while workers switch programs, during which they are slow to answer.
    pub fn are_taking_over(&self) -> bool {
        matches!(&self.now, Some(Reload { phase: ReloadPhase::TakingOver { .. }, .. }))
    }

    /// Returns true from when a program is ready until all workers have switched to it: changes from clients
    /// must wait.
    pub fn are_due(&self) -> bool {
        let ready =
            matches!(&self.now, Some(Reload { phase: ReloadPhase::Preparing { ready: Some(_), .. }, .. }));
        ready || self.are_taking_over()
    }

    /// Returns true while a program is being prepared.
    #[cfg(test)]
    pub fn are_preparing(&self) -> bool {
        matches!(&self.now, Some(Reload { phase: ReloadPhase::Preparing { .. }, .. }))
    }

    /// Returns how many reloads were requested; coalesced requests count once.
    #[cfg(test)]
    pub fn tickets(&self) -> Ticket {
        self.tickets
    }

    /// Defers an app's action until all workers have switched.
    pub fn put_off(&mut self, app: usize, action: Action) {
        self.put_off.push_back((app, action));
    }

    /// Records the new number of workers, and the effect on flows.
    pub fn note_moved(&mut self, workers: usize, moved: Moved) {
        self.moved = Some((workers, moved));
    }

    /// Returns true if no further action can be deferred.
    pub fn are_full(&self) -> bool {
        self.put_off.len() >= PUT_OFF_MAX
    }

    /// Returns how a reload ended, once it has ended.
    pub fn outcome(&self, ticket: Ticket) -> Option<Result<Value>> {
        if let Some((_, outcome)) = self.outcomes.iter().find(|(one, _)| *one == ticket) {
            return Some(outcome.clone().map_err(|why| anyhow!("{why}")));
        }
        let known = self.next == Some(ticket)
            || self.now.as_ref().is_some_and(|reload| reload.cause == Cause::Asked(ticket));
        (!known).then(|| Err(anyhow!("there is no reload with number {ticket}, or it ended long ago")))
    }

    /// Describes the progress of a reload.
    pub fn progress(&self, ticket: Ticket) -> Value {
        let phase = match &self.now {
            Some(reload) if reload.cause == Cause::Asked(ticket) => reload.progress_text(),
            Some(reload) => format!("it is waiting for another to end: {}", reload.progress_text()),
            None => "it begins".into(),
        };
        let seconds = self.now.as_ref().map_or(0, |reload| reload.since.elapsed().as_secs());
        json!(Progress { reload: ticket, stage: phase, seconds })
    }

    fn ask(&mut self) -> Ticket {
        *self.next.get_or_insert_with(|| {
            self.tickets += 1;
            self.tickets
        })
    }

    /// Returns why the next program must be compiled, if one is needed and none is in progress.
    fn take_next(&mut self) -> Option<Cause> {
        if self.now.is_some() {
            return None;
        }
        let asked = self.next.take().map(Cause::Asked);
        let configure = || self.configures.front().map(|(_, id, _)| Cause::Configure(*id));
        let next = asked.or_else(configure);
        next.or_else(|| std::mem::take(&mut self.mac).then_some(Cause::Mac))
    }
}

impl Reload {
    fn progress_text(&self) -> String {
        match &self.phase {
            ReloadPhase::Preparing { .. } => "the file is being read, checked and compiled".into(),
            ReloadPhase::TakingOver { resizing: Some(resizing), .. } => resizing.progress().into(),
            ReloadPhase::TakingOver { swaps, .. } => {
                let done = swaps.iter().filter(|swap| swap.swapped.is_some()).count();
                format!("the workers are switching: {done} of {} have switched", swaps.len())
            }
        }
    }
}

/// Returns what was prepared, if it is ready.
fn next(
    ready: &mut Option<Preparing>,
    prepared: &Receiver<Result<Preparing>>,
) -> Result<Result<Preparing>, TryRecvError> {
    ready.take().map_or_else(|| prepared.try_recv(), |prepared| Ok(Ok(prepared)))
}

impl Daemon {
    /// Requests a reload. Returns its number.
    pub(super) fn ask_reload(&mut self) -> Ticket {
        // Clients are served after reloads are advanced, so the next iteration must not wait.
        self.doorbell.ring();
        self.reloads.ask()
    }

    /// Requests a program with the current MAC addresses.
    pub(super) fn ask_rebuild(&mut self) {
        self.doorbell.ring();
        self.reloads.mac = true;
    }

    /// Advances reloads as far as possible without waiting: begins one, commits one that is prepared, ends
    /// one to which all workers have switched.
    pub(super) fn advance_reload(&mut self) {
        if let Some(mut reload) = self.reloads.now.take() {
            match &mut reload.phase {
                ReloadPhase::Preparing { prepared, ready, weights } => match next(ready, prepared) {
                    // All workers make a change before the swap, or all of them after it.
                    Ok(Ok(Preparing::None(changes))) => self.end(reload.cause, Ok((None, changes))),
                    Ok(Ok(prepared)) if self.fleet.is_changing() => {
                        *ready = Some(prepared);
                        self.reloads.now = Some(reload);
                    }
                    Ok(Ok(Preparing::Amended(amended))) => {
                        match amended.and_then(|amended| self.amend(*amended)) {
                            Some((text, changes)) => self.end(reload.cause, Ok((Some(text), changes))),
                            None => {
                                self.reloads.is_whole = true;
                                self.prepare(reload.cause);
                            }
                        }
                    }
                    Ok(Ok(Preparing::Program(mut prepared))) => {
                        let weights = std::mem::take(weights);
                        reload.changes = prepared.changes.take();
                        self.commit(reload, *prepared, weights);
                    }
                    Ok(Err(error)) => self.end(reload.cause, Err(error)),
                    Err(TryRecvError::Empty) => self.reloads.now = Some(reload),
                    Err(TryRecvError::Disconnected) => {
                        self.end(reload.cause, Err(anyhow!("weir could not compile it: please report this")))
                    }
                },
                ReloadPhase::TakingOver { swaps, crew, resizing, failed, .. } => {
                    let swapped = swaps.iter_mut().all(Swap::has_ended);
                    if swapped && self.is_resized(crew, resizing, failed) {
                        self.conclude(reload);
                    } else {
                        self.reloads.now = Some(reload);
                    }
                }
            }
        }
        if let Some(cause) = self.reloads.take_next() {
            self.prepare(cause);
        }
    }

    /// Advances a change of the number of workers as far as possible without waiting. Returns true when it is
    /// done.
    fn is_resized(
        &mut self,
        crew: &mut Option<Box<WorkerResize>>,
        resizing: &mut Option<Box<Resizing>>,
        failed: &mut Option<anyhow::Error>,
    ) -> bool {
        let begun = crew.take().map(|crew| self.begin_resizing(crew)).transpose();
        let next = begun.and_then(|begun| match begun.or_else(|| resizing.take().map(|one| *one)) {
            Some(now) => self.go_on_resizing(now),
            None => Ok(None),
        });
        let next = next.unwrap_or_else(|error| {
            *failed = Some(error);
            None
        });
        *resizing = next.map(Box::new);
        resizing.is_none()
    }

    /// If workers are switching programs, completes the current reload, because weir stops.
    pub(super) fn end_reload(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.reloads.are_taking_over() && Instant::now() < until {
            self.advance_reload();
            std::thread::sleep(PAUSE);
        }
    }

    /// Starts compiling the program on the other thread.
    fn prepare(&mut self, cause: Cause) {
        // A reload may already have brought the addresses.
        if cause == Cause::Mac && !std::mem::take(&mut self.reloads.mtu) && knows(&self.plan) {
            return;
        }
        if matches!(cause, Cause::Asked(_)) {
            self.systemd.reloading();
        }
        let orders = match cause {
            Cause::Configure(_) => self.reloads.configures.front().map(|(.., orders)| orders.clone()),
            Cause::Asked(_) | Cause::Mac => None,
        };
        let is_whole = std::mem::take(&mut self.reloads.is_whole);
        let in_place = matches!(cause, Cause::Configure(_)) && !is_whole;
        let (answer, prepared) = sync_channel(1);
        let preparation = Preparation {
            cause,
            orders: orders.unwrap_or_default(),
            old: self.plan.clone(),
            weights: if in_place { Weights::default() } else { self.weights.clone() },
            first_weights: if in_place { Vec::new() } else { self.host.running.first_weights() },
            tables: self.tables.share(),
            workers: self.fleet.len(),
            generation: self.generation + 1,
            queues: self.interfaces.queues(),
            hash: self.hash,
            load: self.load.clone(),
            remnants: self.interfaces.remnants(),
            clock: self.clock,
            in_place,
        };
        let doorbell = self.doorbell.clone();
        let work = move || {
            let _rings_at_last = RingAtLast(doorbell);
            let _ = answer.send(preparation.prepare());
        };
        let thread = if in_place { &mut self.reloads.quick } else { &mut self.reloads.workshop };
        match thread.take_on(!in_place, Box::new(work)) {
            Ok(()) => {
                let phase = ReloadPhase::Preparing { prepared, ready: None, weights: Vec::new() };
                let (since, changes) = (Instant::now(), Value::Null);
                self.reloads.now = Some(Reload { cause, since, phase, changes });
            }
            Err(error) => self.end(cause, Err(error)),
        }
    }

    /// Sends each worker its engine. If anything is refused before that, the old program continues.
    fn commit(&mut self, reload: Reload, prepared: Prepared, weights: Vec<(String, String, u32)>) {
        let Prepared { plan, tables, engines, order, mut added, mut crew, changes: _ } = prepared;
        // The apps' sockets and the interfaces' rules come first: these may still be refused, in which case
        // nothing has changed.
        let ready = app_host::sockets(&plan, &self.host.sockets).and_then(|sockets| {
            let wrappers = self.wrappers(&plan, &order)?;
            self.interfaces.set_take(&plan, &order, &self.plan)?;
            Ok((sockets, wrappers))
        });
        let (sockets, wrappers) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                // Closing ports takes long.
                let _ = self.disposal.send(Box::new((added, crew)));
                return self.end(reload.cause, Err(error));
            }
        };
        self.interfaces.succeed(&order, &plan, &mut added);
        let of_worker = |(worker, kept): (usize, Vec<Option<Rewire>>)| -> Vec<Rewire> {
            let places = kept.into_iter().enumerate();
            places.filter_map(|(at, kept)| kept.or_else(|| added.take(worker, at))).collect()
        };
        let ports = wrappers.into_iter().enumerate().map(of_worker).collect();
        let (punts, rings) = self.rings_of_apps(&plan, &mut crew);
        if let Some(engine) = engines.first() {
            self.owners = engine.owners(self.owners.steering, self.fleet.len());
        }
        self.generation += 1;
        self.agents.prepare(&super::next(&plan, self.generation, self.names.board()));
        if let Err(error) = self.follow_agents(&plan) {
            error!("{error:#}");
        }
        let Daemon { generation, fleet, interfaces, doorbell, kernel, .. } = &mut *self;
        let now = Surroundings { plan: &plan, generation: *generation, fleet, interfaces, doorbell };
        let copy = kernel.succeed(&now);
        let swaps = self.send_swaps(&plan, engines, punts, ports, copy);
        self.dpdk_links = super::reorder(std::mem::take(&mut self.dpdk_links), &order);
        let former = std::mem::replace(&mut self.plan, Arc::new(plan));
        self.note_interfaces();
        self.tables = tables;
        self.say_discarded(&former, &weights);
        self.weights.clear();
        self.vocabulary.set(self.generation, &self.plan);
        let phase = ReloadPhase::TakingOver { swaps, weights, former, crew, resizing: None, failed: None };
        self.reloads.now = Some(Reload { phase, ..reload });
        // From here on, apps refer to the new program.
        if let Err(error) = self.succeed_apps(rings, sockets, order)
            && let Some(Reload { phase: ReloadPhase::TakingOver { failed, .. }, .. }) = &mut self.reloads.now
        {
            *failed = Some(error);
        }
    }

    /// Sends each worker its engine, its ends of the rings and the changes of its ports.
    #[allow(clippy::vec_box, reason = "each goes to its worker in the box")]
    fn send_swaps(
        &self,
        plan: &Plan,
        engines: Vec<Box<Engine>>,
        punts: Vec<Vec<CarrierSender>>,
        ports: Vec<Vec<Rewire>>,
        mut copy: Option<Box<NextCopy>>,
    ) -> Vec<Swap> {
        // Rings between workers come and go with the program's flows.
        let flows = (self.plan.program.hands_over(), plan.program.hands_over());
        let mut hand_over =
            (flows.0 != flows.1).then(|| rings_for(&plan.program, self.fleet.len()).into_iter());
        let generation = self.generation;
        let swap = |(worker, ((engine, punts), ports))| {
            let hand_over = hand_over.as_mut().and_then(Iterator::next);
            let (sender, answer) = sync_channel(1);
            // The first worker keeps the copy in the kernel.
            let rewiring = Rewiring { generation, ports, punts, hand_over, copy: copy.take() };
            // A worker that has ended drops `tell`, which shows when the answers are collected.
            let _ = self.fleet.send(worker, Command::Swap(engine, rewiring, sender));
            Swap { answer, swapped: None }
        };
        engines.into_iter().zip(punts).zip(ports).enumerate().map(swap).collect()
    }

    /// Ends a reload after all workers have switched: carries out the deferred actions, and frees the old
    /// program.
    fn conclude(&mut self, reload: Reload) {
        let Reload { cause, phase, changes, .. } = reload;
        let ReloadPhase::TakingOver { swaps, weights, former, failed, .. } = phase else { return };
        self.take_former_frames();
        let (mut reports, mut engines, mut ended) = (Vec::new(), Vec::new(), failed);
        for (worker, swap) in swaps.into_iter().enumerate() {
            match swap.swapped {
                Some(Swapped { report, former }) => {
                    reports.push(report);
                    engines.push(former);
                }
                None => ended = Some(anyhow!("worker {worker} has ended")),
            }
        }
        // A million entries take a while to free, and nothing waits for it.
        let ports = restart::ports_summary(&former, &self.plan);
        let _ = self.disposal.send(Box::new((engines, former)));
        for (group, target, weight) in weights {
            self.set_weight_again(&group, &target, weight);
        }
        for (app, action) in std::mem::take(&mut self.reloads.put_off) {
            self.carry_out(app, VecDeque::from([action]));
        }
        self.kernel.program_switched();
        let moved = self.reloads.moved.take();
        // Workers stop using the kernel while flows move between them.
        moved.iter().for_each(|_| self.kernel.renew());
        let workers = moved.map(workers_summary).unwrap_or_default();
        let text = || restart::swap_summary(self.generation, &reports) + &ports + &workers;
        let summary = ended.map_or_else(|| Ok((Some(text()), changes)), Err);
        self.end(cause, summary);
    }

    /// Records a weight that has been set, for a program that is being prepared.
    pub(super) fn note_weight(&mut self, group: GroupId, target: u16, weight: u32) {
        self.weights.insert((group, target), weight);
        if let Some(Reload { phase: ReloadPhase::Preparing { weights, .. }, .. }) = &mut self.reloads.now
            && let Some(group) = self.plan.program.groups.get(group.index())
            && let Some(target) = group.targets.get(usize::from(target))
        {
            weights.retain(|(of, name, _)| (of, name) != (&group.name, &target.name));
            weights.push((group.name.clone(), target.name.clone(), weight));
        }
    }

    /// Ends a reload: records a sentence about the new program, if there is one, and what requests have
    /// changed.
    fn end(&mut self, cause: Cause, ended: Result<(Option<String>, Value)>) {
        let summary =
            |ended: Result<(Option<String>, Value)>| ended.map(|(text, _)| text.unwrap_or_default());
        let (ticket, summary) = match cause {
            Cause::Configure(id) => return self.end_configure(id, ended),
            Cause::Asked(ticket) => (ticket, summary(ended)),
            Cause::Mac => {
                return match summary(ended) {
                    Ok(summary) => info!("the program was rebuilt for the interface; {summary}"),
                    Err(error) => error!("the program was not rebuilt for the interface: {error:#}"),
                };
            }
        };
        self.save();
        self.systemd.reloaded();
        match &summary {
            Ok(summary) => info!("{summary}"),
            Err(error) => error!("not reloaded, the old program continues: {error:#}"),
        }
        let outcome = summary
            .map(|summary| json!(Reloaded { summary, generation: self.generation }))
            .map_err(|error| format!("{error:#}"));
        self.reloads.outcomes.truncate(OUTCOMES - 1);
        self.reloads.outcomes.push_front((ticket, outcome));
    }
}

impl Swap {
    /// Returns true if the worker has switched, or has ended.
    fn has_ended(&mut self) -> bool {
        match self.answer.try_recv() {
            Ok(swapped) => self.swapped = Some(swapped),
            Err(TryRecvError::Disconnected) => return true,
            Err(TryRecvError::Empty) => {}
        }
        self.swapped.is_some()
    }
}

/// Rings when dropped, so that a panic of the thread is noticed, too.
struct RingAtLast(Doorbell);

impl Drop for RingAtLast {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// The inputs from which the thread prepares a program.
struct Preparation {
    cause: Cause,
    /// The change that an app is asked to make.
    orders: Arc<Value>,
    old: Arc<Plan>,
    weights: Weights,
    /// Initial weights of the apps' targets.
    first_weights: Vec<(String, String, u32)>,
    tables: GroupTables,
    /// The current number of workers.
    workers: usize,
    /// The generation of the program.
    generation: u64,
    queues: Vec<Option<Queues>>,
    hash: TableHash,
    load: Load,
    remnants: Vec<Remnant>,
    clock: Clock,
    /// Whether to try a change in place first.
    in_place: bool,
}

impl Preparation {
    fn prepare(mut self) -> Result<Preparing> {
        let mut changes = Value::Null;
        let mut plan = match self.cause {
            Cause::Asked(_) => (self.load)(&*self.old.edits, &nics_of(&self.old))?,
            Cause::Configure(_) => {
                if self.in_place {
                    return Ok(Preparing::Amended(Amendment::of(&self.old, &self.orders).map(Box::new)));
                }
                let edited = config::edit(&self.old, &nics_of(&self.old), &self.orders);
                let Edited { plan, summary } = edited.map_err(|why| anyhow!("{why}"))?;
                let Some(plan) = plan else { return Ok(Preparing::None(summary)) };
                changes = summary;
                self.weighed(plan, false)
            }
            Cause::Mac => self.rebuilt()?,
        };
        let needs = restart::needs(&self.old, &plan);
        if !needs.is_empty() {
            bail!("changing {} needs a restart of weir; nothing was changed", needs.join(", "));
        }
        restart::keep_counters(&self.old.program.counters, &mut plan.program.counters);
        app_host::settle(&mut plan, self.old.apps.known());
        weigh(&self.first_weights, &mut plan.program);
        let _near = Preferred::of(open::node(&plan));
        let tables = self.tables.succeed(&plan.program);
        let engine = |_| Ok(Box::new(Engine::with_tables(&plan.program, self.hash, &tables)?));
        let engines = (0..self.workers).map(engine).collect::<Result<_>>()?;
        // Last, so that frames arriving there do not wait during compilation.
        let order = restart::order(&self.old, &plan);
        let added = Added::open(&plan, &order, &self.remnants, (self.workers, self.clock.now_ns()))
            .context("nothing was changed, because a port cannot be opened")?;
        let crew = self.crew(&plan, &tables, &order, &added).context("nothing was changed")?;
        let plan = without_entries(plan);
        Ok(Preparing::Program(Box::new(Prepared { plan, tables, engines, order, added, crew, changes })))
    }

    /// Prepares a change of the number of workers, if the plan has another number.
    fn crew(
        &mut self,
        plan: &Plan,
        tables: &GroupTables,
        order: &[Option<usize>],
        added: &Added,
    ) -> Result<Option<Box<WorkerResize>>> {
        let queues_of = |(at, before): (usize, &Option<usize>)| match before {
            Some(before) => self.queues.get_mut(*before).and_then(Option::take),
            None => added.interfaces[at].as_ref().map(XdpInterface::queues),
        };
        let queues: Vec<_> = order.iter().enumerate().map(queues_of).collect();
        if plan.workers.count() != self.workers {
            open::check_queues(plan, &queues)?;
        }
        let (hash, generation) = (self.hash, self.generation);
        Making { plan, tables, hash, queues: &queues, generation }.prepare(self.workers)
    }

    /// Reparses the text that was read last. No one has asked for a reload, so weights stay as they are.
    fn rebuilt(&self) -> Result<Plan> {
        let (kinds, nics) = (self.old.apps.kinds(), nics_of(&self.old));
        let loaded = config::read(&self.old.source, kinds, &nics, &*self.old.edits);
        let mut plan = loaded.plan.with_context(|| format!("the file has errors\n{}", loaded.report))?;
        plan.socket.clone_from(&self.old.socket);
        Ok(self.weighed(plan, true))
    }

    /// Keeps weights that were set at run time, and also all other weights if `all`.
    fn weighed(&self, mut plan: Plan, all: bool) -> Plan {
        for group in &mut plan.program.groups {
            let Some(id) = self.old.program.group_named(&group.name) else { continue };
            let before = &self.old.program.groups[id.index()].targets;
            let place: BTreeMap<&str, usize> =
                before.iter().enumerate().map(|(at, one)| (one.name.as_str(), at)).collect();
            for target in Arc::make_mut(&mut group.targets) {
                let Some(&at) = place.get(target.name.as_str()) else { continue };
                let now = self.weights.get(&(id, at as u16)).copied();
                if let Some(weight) = now.or(all.then_some(before[at].weight)) {
                    target.weight = weight;
                }
            }
        }
        plan
    }
}

/// Says how many workers there are now.
fn workers_summary((workers, moved): (usize, Moved)) -> String {
    let Moved { moved, ended } = moved;
    let noun = if workers == 1 { "worker" } else { "workers" };
    let lost = if ended == 0 { String::new() } else { format!(", {ended} ended for lack of room") };
    format!("; {workers} {noun} now, {moved} flows moved{lost}")
}

/// Removes a plan's entries: the engines have them, and plans are then cheap to copy and compare.
pub fn without_entries(plan: Plan) -> Plan {
    Plan { program: plan.program.without_entries(), ..plan }
}
