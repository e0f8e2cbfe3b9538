//! Keeps a copy of the program in the kernel. Another thread compiles it again whenever the program or an
//! interface has changed, or an entry has a destination that the copy does not know. The first worker then
//! keeps the copy's tables equal to its own, and every worker lets the copy follow its flows. Until then, and
//! wherever the kernel cannot be used, every frame goes to a worker. If the running program has a copy, the
//! copy of the next program is made before the workers switch to that program, and both are switched
//! together.

use super::doorbell::Doorbell;
use super::fleet::Fleet;
use super::interfaces::Interfaces;
use crate::config::{Plan, kernel_use, port_obstacle};
use anyhow::{Result, anyhow};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tracing::{error, info, warn};
use weir_app::priority;
use weir_bpf::XdpErrors;
use weir_config::ports::KernelUse;
use weir_engine::worker::{Command, NextCopy, Report};
use weir_kernel::{PortLink, Replica, UnsentFrames};
use weir_port::XdpInterface;
use weir_program::replica::{EntryUses, FlowReplica, Leads, TableReplica};
use weir_program::{PipeId, PortId, Program};

/// How often to check whether an entry has a destination that the compiled program does not know.
const EVERY: Duration = Duration::from_secs(1);

/// How long a successor waits for a complete copy before it takes over without one. The other daemon waits a
/// little longer for an answer.
const COMPLETE: Duration = Duration::from_secs(20);

/// How often a successor checks whether the copy is complete.
const PAUSE: Duration = Duration::from_millis(1);

/// The worker that keeps the copy: every program has it.
const WORKER: usize = 0;

/// Places in a copy for the flows of the other workers.
type OthersFlows = Vec<Box<dyn FlowReplica>>;

/// The state of the copy.
#[derive(Default)]
pub struct KernelCopy {
    step: CopyStep,
    /// Whether the copy is current.
    is_current: bool,
    /// Why the kernel does not handle frames of each port.
    obstacles: Vec<Option<String>>,
    /// What was logged last.
    said: String,
    next: Option<Instant>,
    errors: Errors,
}

/// Counts the frames that the kernel fails to send; set once weir has tried to watch for them.
type Errors = Arc<OnceLock<Option<Arc<dyn UnsentFrames>>>>;

#[derive(Default)]
enum CopyStep {
    #[default]
    Idle,
    /// The worker was asked for the destinations of entries.
    Asking(Receiver<EntryUses>),
    /// Another thread compiles.
    Loading(u64, Receiver<Result<Replica>>),
    /// The workers switch to another program, and another thread makes the copy of that program and reports
    /// when it is complete.
    Succeeding(Receiver<OthersFlows>),
    /// The worker has the copy, and is asked now and then whether it is stale.
    Running(Option<Receiver<Report>>),
}

impl KernelCopy {
    /// Compiles the program again.
    pub fn renew(&mut self) {
        self.is_current = false;
    }

    /// Returns when there is something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Returns for each of the `ports` ports why the kernel does not handle its frames.
    pub fn obstacles(&self, ports: usize) -> Vec<Option<String>> {
        let starts = || Some("the program is being compiled".to_string());
        (0..ports).map(|at| self.obstacles.get(at).cloned().unwrap_or_else(starts)).collect()
    }

    fn say(&mut self, text: String, is_error: bool) {
        if self.said != text {
            if is_error { error!("{text}") } else { info!("{text}") }
        }
        self.said = text;
    }
}

/// The running program, and everything that is needed to run a copy.
pub struct Surroundings<'a> {
    pub plan: &'a Plan,
    pub generation: u64,
    pub fleet: &'a Fleet,
    pub interfaces: &'a Interfaces,
    pub doorbell: &'a Doorbell,
}

impl KernelCopy {
    /// Takes the next step towards a current copy, without waiting. Must be called only while no worker is
    /// switching programs.
    pub fn follow(&mut self, now: &Surroundings<'_>) {
        self.step = match std::mem::take(&mut self.step) {
            CopyStep::Idle | CopyStep::Running(_) if !self.is_current => self.ask_uses(now),
            CopyStep::Idle => CopyStep::Idle,
            CopyStep::Asking(answer) => match answer.try_recv() {
                Ok(uses) if uses.generation == now.generation => self.load_copy(now, uses),
                Ok(_) | Err(TryRecvError::Disconnected) => self.ask_uses(now),
                Err(TryRecvError::Empty) => CopyStep::Asking(answer),
            },
            CopyStep::Loading(generation, loaded) => match loaded.try_recv() {
                Ok(replica) => self.run_copy(now, generation, replica),
                Err(TryRecvError::Empty) => CopyStep::Loading(generation, loaded),
                Err(TryRecvError::Disconnected) => {
                    let bug = anyhow!("weir could not compile it: please report this");
                    self.run_copy(now, generation, Err(bug))
                }
            },
            CopyStep::Succeeding(made) => match made.try_recv() {
                Ok(flows) if self.is_current => {
                    follow_others(now, flows);
                    self.say_running(now)
                }
                // Compiling it again logs the reason for the failure.
                Ok(_) | Err(_) => self.ask_uses(now),
            },
            CopyStep::Running(answer) => self.check_copy(now, answer),
        };
    }

    /// Makes the copy of a program that no frame meets yet, and waits until it is complete, or until there is
    /// a reason why there is none.
    pub fn complete(&mut self, now: &Surroundings<'_>) {
        let until = Instant::now() + COMPLETE;
        while Instant::now() < until {
            self.follow(now);
            match self.step {
                CopyStep::Idle => return,
                CopyStep::Running(_) if is_complete(now) => return,
                CopyStep::Asking(_)
                | CopyStep::Loading(..)
                | CopyStep::Succeeding(_)
                | CopyStep::Running(_) => std::thread::sleep(PAUSE),
            }
        }
        warn!("the kernel's copy of the program is not complete after {} s", COMPLETE.as_secs());
    }

    /// Starts compiling the copy of the next program, so that the workers and the kernel switch to it
    /// together. Returns `None` if the running program has no copy; the next program's copy is then made
    /// after the switch.
    pub fn succeed(&mut self, now: &Surroundings<'_>) -> Option<Box<NextCopy>> {
        if !self.is_current || !matches!(self.step, CopyStep::Running(_)) {
            return None;
        }
        self.obstacles = (0..now.plan.ports.len()).map(|at| link_obstacle(now, at)).collect();
        if self.obstacles.iter().all(Option::is_some) {
            return None;
        }
        let links = self.links(now).ok()?;
        let (asker, uses) = sync_channel(1);
        let (answer, loaded) = sync_channel(1);
        let (done, made) = sync_channel(1);
        let workers = now.plan.workers.count();
        let program = (now.plan.program.clone(), workers);
        let errors = self.errors.clone();
        let work = move || {
            priority::patient();
            let Ok(uses) = uses.recv() else { return };
            if let Ok(replica) = load_entries(program, uses, links, &errors) {
                // This must be known before the worker can switch, or the copy would be made again.
                let _ = done.send(flows_of_others(&replica, workers));
                let replica: Box<dyn TableReplica> = Box::new(replica);
                let _ = answer.send(replica);
            }
        };
        std::thread::Builder::new().name("weir-kernel".into()).spawn(work).ok()?;
        self.step = CopyStep::Succeeding(made);
        Some(Box::new(NextCopy::new(asker, loaded)))
    }

    /// Notes that all workers have switched to another program.
    pub fn program_switched(&mut self) {
        if !matches!(self.step, CopyStep::Succeeding(_)) {
            self.is_current = false;
        }
    }

    /// Returns what the program needs to know about the ports whose frames the kernel can handle.
    fn links(&self, now: &Surroundings<'_>) -> Result<Vec<Option<PortLink>>> {
        let link = |at: usize| {
            let usable = self.obstacles[at].is_none();
            usable.then(|| link(now.interfaces, PortId(at as u16))).transpose().map(Option::flatten)
        };
        (0..now.plan.ports.len()).map(link).collect()
    }

    /// Logs which frames the kernel handles.
    fn say_running(&mut self, now: &Surroundings<'_>) -> CopyStep {
        let names = now.plan.ports.iter().zip(&self.obstacles);
        let names = names.filter(|(_, why)| why.is_none()).map(|(port, _)| port.name.as_str());
        self.say(format!("the kernel handles frames of {}", names.collect::<Vec<_>>().join(", ")), false);
        self.next = Some(Instant::now() + EVERY);
        CopyStep::Running(None)
    }

    fn ask_uses(&mut self, now: &Surroundings<'_>) -> CopyStep {
        self.is_current = true;
        self.next = None;
        let links: Vec<_> = (0..now.plan.ports.len()).map(|at| link_obstacle(now, at)).collect();
        self.obstacles = links;
        if self.obstacles.iter().all(Option::is_some) {
            self.say_unmet(now);
            stop_copy(now, now.generation);
            return CopyStep::Idle;
        }
        let (answer, uses) = sync_channel(1);
        if now.fleet.offer(WORKER, Command::EntryUses(answer)) {
            now.doorbell.ring();
            return CopyStep::Asking(uses);
        }
        self.is_current = false;
        self.next = Some(Instant::now() + EVERY);
        CopyStep::Idle
    }

    /// Logs which ports require the kernel and do not have it.
    fn say_unmet(&mut self, now: &Surroundings<'_>) {
        let ports = now.plan.ports.iter().zip(&self.obstacles);
        let required = ports.filter(|(port, _)| kernel_use(port) == Some(KernelUse::Require));
        let unmet = required.filter_map(|(port, why)| Some(format!("port {}: {}", port.name, why.as_ref()?)));
        let unmet: Vec<String> = unmet.collect();
        if !unmet.is_empty() {
            let text = format!("`kernel: require` is not met: {}", unmet.join("; "));
            self.say(text, true);
        }
    }

    /// Compiles and loads the program on another thread.
    fn load_copy(&mut self, now: &Surroundings<'_>, uses: EntryUses) -> CopyStep {
        let links = match self.links(now) {
            Ok(links) => links,
            Err(error) => return self.run_copy(now, now.generation, Err(error)),
        };
        let (answer, loaded) = sync_channel(1);
        let program = (now.plan.program.clone(), now.plan.workers.count());
        let doorbell = now.doorbell.clone();
        let errors = self.errors.clone();
        let work = move || {
            priority::patient();
            let _ = answer.send(load_entries(program, uses, links, &errors));
            doorbell.ring();
        };
        match std::thread::Builder::new().name("weir-kernel".into()).spawn(work) {
            Ok(_) => CopyStep::Loading(now.generation, loaded),
            Err(error) => self.run_copy(now, now.generation, Err(error.into())),
        }
    }

    /// Gives the worker the copy.
    fn run_copy(&mut self, now: &Surroundings<'_>, generation: u64, replica: Result<Replica>) -> CopyStep {
        match replica {
            // The program was replaced in the meantime, or something else has changed.
            _ if generation != now.generation || !self.is_current => self.ask_uses(now),
            Ok(replica) => {
                let flows = flows_of_others(&replica, now.fleet.len());
                let command = Command::RunInKernel(generation, Some(Box::new(replica)));
                // A worker that has ended shows elsewhere.
                let _ = now.fleet.send(WORKER, command);
                follow_others(now, flows);
                self.say_running(now)
            }
            Err(error) => {
                let why = format!("{error:#}");
                self.say(format!("the kernel handles no frames: {why}"), false);
                for obstacle in self.obstacles.iter_mut().filter(|one| one.is_none()) {
                    *obstacle = Some(why.clone());
                }
                self.say_unmet(now);
                stop_copy(now, generation);
                CopyStep::Idle
            }
        }
    }

    /// Asks the worker now and then whether the copy is still current.
    fn check_copy(&mut self, now: &Surroundings<'_>, answer: Option<Receiver<Report>>) -> CopyStep {
        if let Some(report) = answer.as_ref().and_then(|answer| answer.try_recv().ok()) {
            match report.kernel {
                Some(kernel) if kernel.stale => self.is_current = false,
                Some(kernel) => {
                    if let Some(why) = kernel.obstacle {
                        warn!("the kernel no longer handles frames: {why}");
                        self.obstacles.iter_mut().for_each(|one| _ = one.get_or_insert(why.clone()));
                        return CopyStep::Idle;
                    }
                }
                None => {}
            }
            return CopyStep::Running(None);
        }
        if answer.is_some() || self.next.is_some_and(|next| Instant::now() < next) {
            return CopyStep::Running(answer);
        }
        self.next = Some(Instant::now() + EVERY);
        let (asker, report) = sync_channel(1);
        now.fleet.offer(WORKER, Command::Report(asker));
        CopyStep::Running(Some(report))
    }
}

/// Whether packets can meet the copy, or never will.
fn is_complete(now: &Surroundings<'_>) -> bool {
    let reports = now.fleet.ask_all(|_, answer| Command::Report(answer));
    let is_there = |report: &Report| {
        let copy = report.kernel.as_ref();
        copy.is_none_or(|copy| copy.active || copy.obstacle.is_some())
    };
    // A worker that has ended shows elsewhere.
    reports.is_ok_and(|reports| reports.get(WORKER).is_none_or(is_there))
}

/// Stops the copy, and lets it follow no flows.
fn stop_copy(now: &Surroundings<'_>, generation: u64) {
    for worker in 0..now.fleet.len() {
        let command = if worker == WORKER {
            Command::RunInKernel(generation, None)
        } else {
            Command::FollowInKernel(generation, None)
        };
        let _ = now.fleet.offer(worker, command);
    }
}

/// Returns places for the flows of the workers that do not keep the copy.
fn flows_of_others(replica: &Replica, workers: usize) -> OthersFlows {
    (1..workers).map_while(|_| replica.flows()).collect()
}

/// Lets the copy follow the flows of the other workers.
fn follow_others(now: &Surroundings<'_>, flows: OthersFlows) {
    for (worker, flows) in (0..).filter(|worker| *worker != WORKER).zip(flows) {
        // A worker that has ended shows elsewhere.
        let _ = now.fleet.send(worker, Command::FollowInKernel(now.generation, Some(flows)));
    }
}

/// Returns why the kernel cannot handle frames of a port now.
fn link_obstacle(now: &Surroundings<'_>, at: usize) -> Option<String> {
    if let Some(obstacle) = port_obstacle(&now.plan.ports[at]) {
        return Some(obstacle.into());
    }
    let is_gone = now.interfaces.of(PortId(at as u16)).is_none();
    is_gone.then(|| "its interface is gone".into())
}

/// Counts of frames that the kernel fails to send.
#[derive(Debug)]
struct SendErrors(XdpErrors);

impl UnsentFrames for SendErrors {
    fn take_unsent(&self, from: u32, to: u32) -> u64 {
        self.0.take_unsent(from, to)
    }

    fn take_unredirected(&self, from: u32, port: u32) -> u64 {
        self.0.take_unredirected(from, port)
    }
}

fn watch_errors() -> Option<Arc<dyn UnsentFrames>> {
    match XdpErrors::attach() {
        Ok(errors) => Some(Arc::new(SendErrors(errors))),
        Err(error) => {
            warn!("frames that the kernel handles and fails to send are counted as transmitted: {error}");
            None
        }
    }
}

/// Returns what the program needs to know about a port's interface.
fn link(interfaces: &Interfaces, port: PortId) -> Result<Option<PortLink>> {
    let of = |interface: &XdpInterface| -> Result<Option<PortLink>> {
        let Some(maps) = interface.take_maps()? else { return Ok(None) };
        Ok(Some(PortLink {
            interface: interface.index(),
            frame_max: interface.frame_max(),
            programs: maps.programs,
            sockets: maps.sockets,
            counters: maps.counters,
            without_socket: maps.without_socket,
        }))
    };
    interfaces.of(port).map_or(Ok(None), of)
}

/// Loads the program for entries with these leads, if any part of it compiles.
fn load_entries(
    (mut program, workers): (Program, usize),
    uses: EntryUses,
    links: Vec<Option<PortLink>>,
    errors: &Errors,
) -> Result<Replica> {
    for (pipe, rules) in program.pipes.iter_mut().zip(uses.rules) {
        pipe.entries = rules.into();
    }
    load((program, workers), &uses.leads, links, errors.get_or_init(watch_errors).clone())
}

/// Loads the program, if any part of it compiles.
fn load(
    (program, workers): (Program, usize),
    leads: &[Leads],
    links: Vec<Option<PortLink>>,
    unsent: Option<Arc<dyn UnsentFrames>>,
) -> Result<Replica> {
    let roots: Vec<PipeId> = program
        .ports
        .iter()
        .zip(&links)
        .filter(|(_, link)| link.is_some())
        .filter_map(|(port, _)| port.root)
        .collect();
    let names: Vec<String> = program.pipes.iter().map(|pipe| pipe.name.clone()).collect();
    let replica = Replica::load((program, workers), leads, links, unsent)?;
    let pipes = &replica.coverage().pipes;
    match roots.iter().find_map(|root| pipes[root.index()].map(|why| (root, why))) {
        Some((root, why)) if roots.iter().all(|root| pipes[root.index()].is_some()) => {
            Err(anyhow!("pipe `{}` is not compiled: {}", names[root.index()], why.explanation()))
        }
        _ => Ok(replica),
    }
}
