//! Reloads: a thread of their own reads, checks and compiles, the main thread hands the result to the
//! workers.
//!
//! The main thread drives LACP and links, so it must not wait for a program of any size. A reload has two
//! phases. While it is *prepared*, the old program runs and everything is as always. Then it is *committed*:
//! each worker is sent its engine, and plan, apps and interfaces change in the same turn of the main thread.
//! A command that a worker is sent afterwards finds the new program there, because commands stay in order, so
//! plan and engines agree however late a worker answers.
//!
//! What changes the program meanwhile is kept. Entries are state and pass from engine to engine. Weights that
//! are set while a program is prepared are set again in the new one. Until all workers have taken over,
//! changes and questions would wait for them, so those of apps are put off ([`Reloads::put_off`]), and those
//! of clients wait in the socket.
//!
//! One reload runs at a time. Those that are asked for meanwhile become one that follows, because the file
//! may have changed after it was read.

use super::added::Added;
use super::clock::Clock;
use super::configure::weigh;
use super::doorbell::Doorbell;
use super::interfaces::{knows, nics_of};
use super::resize::{Crew, Making, Resizing};
use super::weights::Weights;
use super::{Daemon, Load, answer, apps, open, priority, restart, rings_for};
use crate::config::{self, Plan};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, Sender, TryRecvError, channel, sync_channel};
use std::time::{Duration, Instant};
use tracing::{error, info};
use weir_app::{Action, RequestId};
use weir_engine::batch::{Engine, Moved};
use weir_engine::ring::CarrierSender;
use weir_engine::worker::{Command, Rewire, Rewiring, Swapped};
use weir_packet::TableHash;
use weir_port::XdpInterface;
use weir_port::numa::Preferred;
use weir_port::xdp::{Queues, Remnant};
use weir_program::GroupId;
use weir_program::buckets::GroupTables;

/// The largest number of shared counters, including those of former programs, because what is kept must not
/// grow for ever.
const COUNTERS_MAX: usize = 4096;

/// How many reloads are remembered for clients that ask again how theirs has ended.
const OUTCOMES: usize = 16;

/// The largest number of actions of apps that are put off while workers take over; further changes are
/// refused.
pub const PUT_OFF_MAX: usize = 65_536;

/// How long a reload may take that is under way when weir stops, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// The number of a reload that somebody has asked for.
pub type Ticket = u64;

/// Why a program is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Somebody asked for it.
    Asked(Ticket),
    /// An app has, for an operator.
    Configure(RequestId),
    /// An interface has another MAC address.
    Mac,
}

/// A plan and its engines, one for each worker. The plan has no entries any more: the engines have them.
struct Prepared {
    plan: Plan,
    tables: GroupTables,
    #[allow(clippy::vec_box, reason = "each goes to its worker in the box")]
    engines: Vec<Box<Engine>>,
    /// The present position of each port; `None` for those that are added.
    order: Vec<Option<usize>>,
    added: Added,
    /// Another number of workers.
    crew: Option<Box<Crew>>,
}

/// The present reload.
enum Phase {
    Preparing {
        prepared: Receiver<Result<Prepared>>,
        /// It is there, and waits for changes to end that workers have begun.
        ready: Option<Box<Prepared>>,
        /// Weights set since it began, by group and target.
        weights: Vec<(String, String, u32)>,
    },
    TakingOver {
        swaps: Vec<Swap>,
        weights: Vec<(String, String, u32)>,
        former: Arc<Plan>,
        /// Another number of workers, and how far that has come.
        crew: Option<Box<Crew>>,
        resizing: Option<Box<Resizing>>,
        /// What went wrong after the workers had been sent their engines.
        failed: Option<anyhow::Error>,
    },
}

/// A worker that takes over a program.
struct Swap {
    answer: Receiver<Swapped>,
    swapped: Option<Swapped>,
}

struct Reload {
    cause: Cause,
    since: Instant,
    phase: Phase,
}

/// The thread that makes programs. It is the same for all reloads, because the allocator keeps memory for
/// each thread, and more of it whenever a thread begins while another has not quite ended.
#[derive(Default)]
struct Workshop(Option<Sender<Work>>);

type Work = Box<dyn FnOnce() + Send>;

impl Workshop {
    /// Hands work to the thread, which is started if there is none, or if it has panicked.
    fn take_on(&mut self, work: Work) -> Result<()> {
        let work = match &self.0 {
            Some(thread) => match thread.send(work) {
                Ok(()) => return Ok(()),
                Err(SendError(work)) => work,
            },
            None => work,
        };
        let (thread, all) = channel::<Work>();
        let run = move || {
            // It must not take the time of a worker that the kernel has placed on the same core.
            priority::patient();
            all.into_iter().for_each(|work| work());
        };
        std::thread::Builder::new().name("weir-reload".into()).spawn(run).context("no thread for it")?;
        let _ = thread.send(work);
        self.0 = Some(thread);
        Ok(())
    }
}

/// The present reload, and those to come.
#[derive(Default)]
pub struct Reloads {
    workshop: Workshop,
    now: Option<Reload>,
    /// A reload is asked for and has not begun.
    next: Option<Ticket>,
    /// Changes of apps' configurations that are asked for: app, request, what is asked.
    pub(super) configures: VecDeque<(String, RequestId, Value)>,
    /// An interface has another MAC address than the program, or its MTU has changed.
    mac: bool,
    pub(super) mtu: bool,
    tickets: Ticket,
    outcomes: VecDeque<(Ticket, Result<Value, String>)>,
    put_off: VecDeque<(usize, Action)>,
    /// The number of workers and the flows that have moved, if the present reload has changed that.
    moved: Option<(usize, Moved)>,
}

impl Reloads {
    /// Returns true while workers take over a program, and are slow to answer.
    pub fn are_taking_over(&self) -> bool {
        matches!(&self.now, Some(Reload { phase: Phase::TakingOver { .. }, .. }))
    }

    /// Returns true from when a program is there until all workers have taken it over: clients must wait with
    /// changes.
    pub fn are_due(&self) -> bool {
        let ready = matches!(&self.now, Some(Reload { phase: Phase::Preparing { ready: Some(_), .. }, .. }));
        ready || self.are_taking_over()
    }

    /// Returns true while a program is made.
    #[cfg(test)]
    pub fn are_preparing(&self) -> bool {
        matches!(&self.now, Some(Reload { phase: Phase::Preparing { .. }, .. }))
    }

    /// Returns how many reloads were asked for; those that became one count once.
    #[cfg(test)]
    pub fn tickets(&self) -> Ticket {
        self.tickets
    }

    /// Keeps an app's action until all workers have taken over.
    pub fn put_off(&mut self, app: usize, action: Action) {
        self.put_off.push_back((app, action));
    }

    /// Notes that there are so many workers now, and what became of flows.
    pub fn note_moved(&mut self, workers: usize, moved: Moved) {
        self.moved = Some((workers, moved));
    }

    /// Returns true if no further action can be put off.
    pub fn are_full(&self) -> bool {
        self.put_off.len() >= PUT_OFF_MAX
    }

    /// Returns how a reload ended, once it has.
    pub fn outcome(&self, ticket: Ticket) -> Option<Result<Value>> {
        if let Some((_, outcome)) = self.outcomes.iter().find(|(one, _)| *one == ticket) {
            return Some(outcome.clone().map_err(|why| anyhow!("{why}")));
        }
        let known = self.next == Some(ticket)
            || self.now.as_ref().is_some_and(|reload| reload.cause == Cause::Asked(ticket));
        (!known).then(|| Err(anyhow!("no reload has the number {ticket}, or it ended long ago")))
    }

    /// Says how far a reload has come.
    pub fn progress(&self, ticket: Ticket) -> Value {
        let phase = match &self.now {
            Some(reload) if reload.cause == Cause::Asked(ticket) => reload.told(),
            Some(reload) => format!("it waits for another to end: {}", reload.told()),
            None => "it begins".into(),
        };
        let seconds = self.now.as_ref().map_or(0, |reload| reload.since.elapsed().as_secs());
        json!({ "reload": ticket, "stage": phase, "seconds": seconds })
    }

    fn ask(&mut self) -> Ticket {
        *self.next.get_or_insert_with(|| {
            self.tickets += 1;
            self.tickets
        })
    }

    /// Returns why the next program must be made, if one must and none is being made.
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
    fn told(&self) -> String {
        match &self.phase {
            Phase::Preparing { .. } => "the file is read, checked and compiled".into(),
            Phase::TakingOver { resizing: Some(resizing), .. } => resizing.told().into(),
            Phase::TakingOver { swaps, .. } => {
                let done = swaps.iter().filter(|swap| swap.swapped.is_some()).count();
                format!("the workers take over: {done} of {} have", swaps.len())
            }
        }
    }
}

/// Returns what was prepared, if it is there.
fn next(
    ready: &mut Option<Box<Prepared>>,
    prepared: &Receiver<Result<Prepared>>,
) -> Result<Result<Prepared>, TryRecvError> {
    ready.take().map_or_else(|| prepared.try_recv(), |prepared| Ok(Ok(*prepared)))
}

impl Daemon {
    /// Asks for a reload. Returns its number.
    pub(super) fn ask_reload(&mut self) -> Ticket {
        // Clients are served after reloads are minded, so the next turn must not wait.
        self.doorbell.ring();
        self.reloads.ask()
    }

    /// Asks for a program that knows the present MAC addresses.
    pub(super) fn ask_rebuild(&mut self) {
        self.doorbell.ring();
        self.reloads.mac = true;
    }

    /// Moves reloads on as far as possible without waiting: begins one, commits one that is prepared, ends
    /// one that all workers have taken over.
    pub(super) fn mind_reloads(&mut self) {
        if let Some(mut reload) = self.reloads.now.take() {
            match &mut reload.phase {
                Phase::Preparing { prepared, ready, weights } => match next(ready, prepared) {
                    // All workers make a change before the swap, or all of them after it.
                    Ok(Ok(prepared)) if self.fleet.is_changing() => {
                        *ready = Some(Box::new(prepared));
                        self.reloads.now = Some(reload);
                    }
                    Ok(Ok(prepared)) => {
                        let weights = std::mem::take(weights);
                        self.commit(reload, prepared, weights);
                    }
                    Ok(Err(error)) => self.end(reload.cause, Err(error)),
                    Err(TryRecvError::Empty) => self.reloads.now = Some(reload),
                    Err(TryRecvError::Disconnected) => {
                        self.end(reload.cause, Err(anyhow!("weir could not compile it: please report this")))
                    }
                },
                Phase::TakingOver { swaps, crew, resizing, failed, .. } => {
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

    /// Changes the number of workers as far as possible without waiting. Returns true if that is done.
    fn is_resized(
        &mut self,
        crew: &mut Option<Box<Crew>>,
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

    /// Ends the present reload if workers are taking it over, because weir stops.
    pub(super) fn end_reload(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.reloads.are_taking_over() && Instant::now() < until {
            self.mind_reloads();
            std::thread::sleep(PAUSE);
        }
    }

    /// Starts a thread that makes the program.
    fn prepare(&mut self, cause: Cause) {
        // A reload may have brought the addresses already.
        if cause == Cause::Mac && !std::mem::take(&mut self.reloads.mtu) && knows(&self.plan) {
            return;
        }
        if matches!(cause, Cause::Asked(_)) {
            self.systemd.reloading();
        }
        let orders = match cause {
            Cause::Configure(_) => self.reloads.configures.front().map(|(.., orders)| orders.clone()),
            _ => None,
        };
        let (answer, prepared) = sync_channel(1);
        let preparation = Preparation {
            cause,
            orders: orders.unwrap_or_default(),
            old: self.plan.clone(),
            weights: self.weights.clone(),
            first_weights: self.host.running.first_weights(),
            tables: self.tables.share(),
            workers: self.fleet.len(),
            generation: self.generation + 1,
            queues: self.interfaces.queues(),
            hash: self.hash,
            load: self.load.clone(),
            remnants: self.interfaces.remnants(),
            clock: self.clock,
        };
        let doorbell = self.doorbell.clone();
        let work = move || {
            let _rings_at_last = RingAtLast(doorbell);
            let _ = answer.send(preparation.prepare());
        };
        match self.reloads.workshop.take_on(Box::new(work)) {
            Ok(()) => {
                let phase = Phase::Preparing { prepared, ready: None, weights: Vec::new() };
                self.reloads.now = Some(Reload { cause, since: Instant::now(), phase });
            }
            Err(error) => self.end(cause, Err(error)),
        }
    }

    /// Sends each worker its engine. If anything is refused before, the old program continues.
    fn commit(&mut self, reload: Reload, prepared: Prepared, weights: Vec<(String, String, u32)>) {
        let Prepared { plan, tables, engines, order, mut added, mut crew } = prepared;
        // The apps' sockets and the interfaces' rules come first: they may still be refused, and then nothing
        // has changed.
        let ready = apps::sockets(&plan, &self.host.sockets).and_then(|sockets| {
            let wrappers = self.wrappers(&plan, &order)?;
            self.interfaces.set_take(&plan, &order, &self.plan)?;
            Ok((sockets, wrappers))
        });
        let (sockets, wrappers) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                // To close ports takes long.
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
            self.owners = engine.owners(self.owners.steering(), self.fleet.len());
        }
        self.generation += 1;
        // A collector that has ended shows when the daemon stops.
        let _ = self.collector.follow(
            self.generation,
            &plan.program,
            plan.workers.count(),
            plan.apps.wanted::<weir_measure::Measurement>(),
        );
        let followed = self.watched.follow(plan.apps.wanted::<weir_path::Wanted>());
        if let Err(error) = followed.and_then(|()| self.kept.follow(&plan.apps, self.clock, &self.collector))
        {
            error!("{error:#}");
        }
        let swaps = self.send_swaps(&plan, engines, punts, ports);
        self.dpdk_links = super::reorder(std::mem::take(&mut self.dpdk_links), &order);
        let former = std::mem::replace(&mut self.plan, Arc::new(plan));
        self.note_interfaces();
        self.tables = tables;
        self.say_discarded(&former, &weights);
        self.weights.clear();
        self.vocabulary.set(self.generation, &self.plan);
        let phase = Phase::TakingOver { swaps, weights, former, crew, resizing: None, failed: None };
        self.reloads.now = Some(Reload { phase, ..reload });
        // From here on, apps speak of the new program.
        if let Err(error) = self.succeed_apps(rings, sockets, order)
            && let Some(Reload { phase: Phase::TakingOver { failed, .. }, .. }) = &mut self.reloads.now
        {
            *failed = Some(error);
        }
    }

    /// Sends each worker its engine, its ends of the rings and what becomes of its ports.
    #[allow(clippy::vec_box, reason = "each goes to its worker in the box")]
    fn send_swaps(
        &self,
        plan: &Plan,
        engines: Vec<Box<Engine>>,
        punts: Vec<Vec<CarrierSender>>,
        ports: Vec<Vec<Rewire>>,
    ) -> Vec<Swap> {
        // Rings between workers come and go with the program's flows.
        let flows = (self.plan.program.hands_over(), plan.program.hands_over());
        let mut hand_over =
            (flows.0 != flows.1).then(|| rings_for(&plan.program, self.fleet.len()).into_iter());
        let generation = self.generation;
        let swap = |(worker, ((engine, punts), ports))| {
            let hand_over = hand_over.as_mut().and_then(Iterator::next);
            let (tell, answer) = sync_channel(1);
            let rewiring = Rewiring { generation, ports, punts, hand_over };
            // A worker that has ended drops `tell`, which shows when the answers are collected.
            let _ = self.fleet.send(worker, Command::Swap(engine, rewiring, tell));
            Swap { answer, swapped: None }
        };
        engines.into_iter().zip(punts).zip(ports).enumerate().map(swap).collect()
    }

    /// Ends a reload that all workers have taken over: carries out what was put off, and frees the old
    /// program.
    fn conclude(&mut self, reload: Reload) {
        let Phase::TakingOver { swaps, weights, former, failed, .. } = reload.phase else { return };
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
        // A million entries take a while to free, and nobody waits for it.
        let ports = restart::told_of_ports(&former, &self.plan);
        let _ = self.disposal.send(Box::new((engines, former)));
        for (group, target, weight) in weights {
            self.set_weight_again(&group, &target, weight);
        }
        for (app, action) in std::mem::take(&mut self.reloads.put_off) {
            self.carry_out(app, VecDeque::from([action]));
        }
        let workers = self.reloads.moved.take().map(told_of_workers).unwrap_or_default();
        let told = || answer::swap_summary(self.generation, &reports) + &ports + &workers;
        let summary = ended.map_or_else(|| Ok(told()), Err);
        self.end(reload.cause, summary);
    }

    /// Notes a weight that has been set, for a program that is being prepared.
    pub(super) fn note_weight(&mut self, group: GroupId, target: u16, weight: u32) {
        self.weights.insert((group, target), weight);
        if let Some(Reload { phase: Phase::Preparing { weights, .. }, .. }) = &mut self.reloads.now
            && let Some(group) = self.plan.program.groups.get(group.index())
            && let Some(target) = group.targets.get(usize::from(target))
        {
            weights.retain(|(of, name, _)| (of, name) != (&group.name, &target.name));
            weights.push((group.name.clone(), target.name.clone(), weight));
        }
    }

    fn end(&mut self, cause: Cause, summary: Result<String>) {
        let ticket = match cause {
            Cause::Asked(ticket) => ticket,
            Cause::Configure(id) => return self.end_configure(id, summary),
            Cause::Mac => {
                return match summary {
                    Ok(summary) => info!("the program was rebuilt for the interface; {summary}"),
                    Err(error) => error!("the program was not rebuilt for the interface: {error:#}"),
                };
            }
        };
        self.save();
        self.systemd.reloaded();
        match &summary {
            Ok(summary) => info!("{summary}"),
            Err(error) => error!("not reloaded, the old program stays: {error:#}"),
        }
        let outcome = summary
            .map(|summary| json!({ "summary": summary, "generation": self.generation }))
            .map_err(|error| format!("{error:#}"));
        self.reloads.outcomes.truncate(OUTCOMES - 1);
        self.reloads.outcomes.push_front((ticket, outcome));
    }
}

impl Swap {
    /// Returns true if the worker has taken over, or has ended.
    fn has_ended(&mut self) -> bool {
        match self.answer.try_recv() {
            Ok(swapped) => self.swapped = Some(swapped),
            Err(TryRecvError::Disconnected) => return true,
            Err(TryRecvError::Empty) => {}
        }
        self.swapped.is_some()
    }
}

/// Rings when dropped, so that a thread that panics is noticed, too.
struct RingAtLast(Doorbell);

impl Drop for RingAtLast {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// What the thread needs to make a program.
struct Preparation {
    cause: Cause,
    /// What an app is asked to change.
    orders: Value,
    old: Arc<Plan>,
    weights: Weights,
    /// Weights that targets of apps begin with.
    first_weights: Vec<(String, String, u32)>,
    tables: GroupTables,
    /// How many there are.
    workers: usize,
    /// The number of the program.
    generation: u64,
    queues: Vec<Option<Queues>>,
    hash: TableHash,
    load: Load,
    remnants: Vec<Remnant>,
    clock: Clock,
}

impl Preparation {
    fn prepare(mut self) -> Result<Prepared> {
        let mut plan = match self.cause {
            Cause::Asked(_) => (self.load)(&self.old.edits, &nics_of(&self.old))?,
            Cause::Configure(_) => {
                let edited = config::edit(&self.old, &nics_of(&self.old), &self.orders);
                self.weighed(edited.map_err(|why| anyhow!("{why}"))?, false)
            }
            Cause::Mac => self.rebuilt()?,
        };
        let needs = restart::needs(&self.old, &plan);
        if !needs.is_empty() {
            bail!("only a restart of weir can change {}; nothing was changed", needs.join(", "));
        }
        keep_counters(&self.old.program.counters, &mut plan.program.counters);
        super::apps::settle(&mut plan, self.old.apps.known());
        weigh(&self.first_weights, &mut plan.program);
        let _near = Preferred::of(open::node(&plan));
        let tables = self.tables.succeed(&plan.program);
        let engine = |_| Ok(Box::new(Engine::with_tables(&plan.program, self.hash, &tables)?));
        let engines = (0..self.workers).map(engine).collect::<Result<_>>()?;
        // Last, so that frames that arrive there do not wait while it is compiled.
        let order = restart::order(&self.old, &plan);
        let added = Added::open(&plan, &order, &self.remnants, (self.workers, self.clock.now_ns()))
            .context("nothing was changed, because a port cannot be opened")?;
        let crew = self.crew(&plan, &tables, &order, &added).context("nothing was changed")?;
        super::vips::warn_of_owned(&plan.apps, &self.old.apps);
        Ok(Prepared { plan: without_entries(plan), tables, engines, order, added, crew })
    }

    /// Prepares another number of workers, if the plan has one.
    fn crew(
        &mut self,
        plan: &Plan,
        tables: &GroupTables,
        order: &[Option<usize>],
        added: &Added,
    ) -> Result<Option<Box<Crew>>> {
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

    /// Reads the text again that was read last. Nobody has asked for a reload, so weights stay as they are.
    fn rebuilt(&self) -> Result<Plan> {
        let (file, text) = &self.old.source;
        let loaded = config::read_edited(file, text.clone(), &nics_of(&self.old), &self.old.edits);
        let mut plan = loaded.plan.with_context(|| format!("the file has errors\n{}", loaded.report))?;
        plan.socket.clone_from(&self.old.socket);
        Ok(self.weighed(plan, true))
    }

    /// Keeps weights that were set at run time, and perhaps all others.
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
fn told_of_workers((workers, moved): (usize, Moved)) -> String {
    let Moved { moved, ended } = moved;
    let noun = if workers == 1 { "worker" } else { "workers" };
    let lost = if ended == 0 { String::new() } else { format!(", {ended} ended for lack of room") };
    format!("; {workers} {noun} now, {moved} flows moved{lost}")
}

/// Leaves a plan's entries out: the engines have them, and copies and comparisons of plans are cheap then.
pub fn without_entries(plan: Plan) -> Plan {
    Plan { program: plan.program.without_entries(), ..plan }
}

/// Keeps counters that the new program does not name: a back end that returns later continues from its
/// counts, and a sum over all counters never decreases.
fn keep_counters(old: &[String], counters: &mut Vec<String>) {
    let room = COUNTERS_MAX.saturating_sub(counters.len());
    let kept: Vec<String> = old.iter().filter(|name| !counters.contains(name)).take(room).cloned().collect();
    counters.extend(kept);
}
