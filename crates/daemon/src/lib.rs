//! The daemon: opens ports, starts workers, answers requests and handles signals.
//!
//! One thread per worker carries frames. The main thread does everything else in one loop ([`run`]). In a
//! single poll() it waits for requests from the HTTP server's thread, for SIGHUP (reload) and SIGTERM or
//! SIGINT (stop), for changes of interfaces, for workers that have frames for apps, for clients of apps, and
//! for the time at which an app asked to be woken. Then it serves all of them as far as possible without
//! blocking; slow work, such as compiling, is done by other threads. Nothing here is on the packet path.
//!
//! Two modules are shared with commands that run without a daemon: the configuration as a whole ([`config`]),
//! and the explanation of a packet's walk ([`explain`]).

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod added;
mod agents;
mod amend;
mod amendment;
mod answer;
mod app_host;
mod app_socket;
mod apps;
mod arrival;
mod changing;
mod checks;
mod claim;
mod collector;
pub mod compiled;
pub mod config;
mod configure;
mod connected;
mod doorbell;
#[cfg_attr(not(feature = "dpdk"), path = "no_dpdk.rs")]
mod dpdk;
mod durations;
pub mod explain;
mod feed;
mod fleet;
pub mod fuzzed;
mod host;
mod http;
mod http_control;
mod inherited;
mod interface_news;
mod interfaces;
mod kernel;
mod links;
mod listed;
mod live;
mod load;
pub mod log;
mod metrics;
mod names;
mod neighbours;
pub mod nics;
mod observer;
mod open;
mod page;
pub mod peer;
mod persist;
pub mod private;
mod recordings;
mod reload;
mod resize;
mod rest;
mod restart;
mod rings;
mod routes;
mod shown;
mod signals;
mod socket;
mod stopwatch;
mod systemd;
mod takeover;
#[cfg(test)]
mod tests;
mod watching;
mod weights;
mod workshop;

pub use doorbell::Doorbell;
pub use open::{recording, traced, wrap};
pub use private::state_file;
pub use routes::{RouteReader, foreign_routes, route_reader};
pub use shown::{ledger, shown};
pub use signals::Signals;
pub use systemd::{own_cgroup, own_executable};

use crate::config::{Load, Nics, Plan, Workers};
use agents::Agents;
use anyhow::{Context, Result};
use app_host::AppHost;
use arrival::Arrival;
use collector::{Collector, Totals};
use dpdk::{Dpdk, DpdkLink};
use fleet::Fleet;
use inherited::Inherited;
use interfaces::Interfaces;
use observer::{Scene, ScenePublisher};
use persist::{Saving, Store};
use reload::Reloads;
use routes::Routes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use socket::Control;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::time::{Duration, Instant};
use systemd::Systemd;
use takeover::{Offered, PendingHandover, Takeover};
use tracing::info;
use weir_app::agent::{Host, Next};
use weir_app::clock::Clock;
use weir_app::http::HttpControls;
use weir_app::names::NamesBoard;
use weir_app::{priority, privileges};
use weir_engine::batch::Engine;
use weir_engine::worker::{Command, Disposal, HandOver, Report, Rewire, Worker};
use weir_packet::{Ledger, TableHash};
use weir_port::numa::Preferred;
use weir_program::buckets::GroupTables;
use weir_program::owner::{Owners, Steering};
use weir_program::snapshot::FlowAccount;
use weir_program::{GroupId, Pipe, PipeKind, PortId, Program};

/// Weights that were set at run time, for targets of the current program.
type Weights = BTreeMap<(GroupId, u16), u32>;

/// How long packets are still forwarded after the routes were removed, when the daemon stops: a route daemon
/// tells its neighbours within milliseconds, or within a tenth of a second (FRR).
const FAREWELL: Duration = Duration::from_millis(200);

/// A running daemon.
struct Daemon {
    file: PathBuf,
    load: Load,
    /// The current program's plan, without entries: those are in the engines.
    plan: Arc<Plan>,
    /// The buckets that the workers read, and the weights for which they were filled.
    tables: GroupTables,
    weights: Weights,
    reloads: Reloads,
    hash: TableHash,
    fleet: Fleet,
    /// Which worker owns a packet.
    owners: Owners,
    interfaces: Interfaces,
    /// Links of DPDK ports, by the port's position in the program.
    dpdk_links: Vec<Option<DpdkLink>>,
    host: AppHost,
    doorbell: Doorbell,
    board: ScenePublisher,
    systemd: Systemd,
    clock: Clock,
    collector: Collector,
    /// Checks servers on behalf of apps.
    checks: checks::Checks,
    /// Resolves neighbours on behalf of apps.
    neighbours: neighbours::Neighbours,
    /// Work of apps beside the packet path.
    agents: Agents,
    /// Receives values that take long to drop.
    disposal: Disposal,
    generation: u64,
    vocabulary: load::Published,
    /// The events for clients that watch.
    feed: feed::Feed,
    /// Another daemon that is taking over from this one.
    handover: Option<PendingHandover>,
    /// Writes the state that survives a restart.
    store: Store,
    /// What has been reported about recordings.
    recordings: recordings::Recordings,
    /// The program in the kernel.
    kernel: kernel::KernelCopy,
    /// The routes to announced services.
    routes: Routes,
    /// The names of addresses.
    names: names::NameSources,
}

/// Runs until stopped. `load` rereads the configuration for a reload. With `takeover`, it takes over the
/// flows, interfaces and apps of the daemon running on the same socket.
///
/// # Errors
/// The error says why the daemon cannot run.
pub fn run(file: PathBuf, plan: Plan, load: Load, takeover: bool) -> Result<()> {
    let inherited = Inherited::take()?;
    let signals = Signals::take()?;
    // While the daemon still has the privilege.
    priority::urgent();
    let (mut daemon, mut control) = if takeover {
        Daemon::succeed(file, plan, load)?
    } else {
        let (plan, states) = persist::recall(plan, &load);
        let rest = rest::Ready::of(&plan)?;
        let control = Control::bind(&plan.socket, plan.metrics, rest, inherited)?;
        // While the daemon still has the privileges to create sockets anywhere.
        let sockets = app_host::sockets(&plan, &[])?;
        let (mut daemon, rings) = Daemon::start(file, plan, load, None)?;
        daemon.begin(rings, sockets, &states)?;
        (daemon, control)
    };
    control.start(daemon.doorbell.clone(), daemon.board.clone(), daemon.server_parts())?;
    info!("{}", daemon.greeting());
    daemon.systemd.ready(takeover, daemon.fleet.len(), |worker| alive(&daemon.fleet, worker));
    let mut more = false;
    while !signals.stop() {
        if !more {
            daemon.wait(&control, signals.fd());
        }
        daemon.doorbell.answer();
        if signals.take_reload() {
            daemon.ask_reload();
        }
        daemon.follow_interfaces();
        daemon.advance_reload();
        more = daemon.drive_apps();
        daemon.follow_routes();
        daemon.publish();
        daemon.advance_changes();
        daemon.check_recordings();
        daemon.follow_kernel();
        daemon.systemd.turn(daemon.fleet.len(), |worker| alive(&daemon.fleet, worker));
        if !control.serve(&mut daemon) {
            break;
        }
        if let Some(successor) = daemon.ready_handover() {
            // The successor notifies systemd. Clients are answered first, while frames are still forwarded.
            control.answer_last(&daemon);
            return daemon.hand_over_to(successor, control.end());
        }
    }
    control.answer_last(&daemon);
    daemon.systemd.stopping();
    daemon.end_routes();
    let (ledger, balanced, flows) = daemon.stop()?;
    if let Some(words) = flows {
        info!("{words}");
    }
    info!("{}", farewell(&ledger, balanced));
    Ok(())
}

impl Daemon {
    /// Starts the workers. `takeover` is the daemon that will hand over its interfaces.
    fn start(
        file: PathBuf,
        mut plan: Plan,
        load: Load,
        mut takeover: Option<&mut Takeover>,
    ) -> Result<(Daemon, Vec<app_host::Ring>)> {
        app_host::settle(&mut plan, Default::default());
        let (hash, clock) =
            (TableHash::random(), takeover.as_deref().map_or_else(Clock::start, Takeover::clock));
        let interfaces =
            Interfaces::attach(&plan, |port| takeover.as_deref().is_some_and(|takeover| takeover.has(port)))?;
        let dpdk_links = plan.ports.iter().map(|_| None).collect();
        let owners = Owners::new(&plan.program, hash.into(), plan.workers.count());
        let tables = GroupTables::new(&plan.program);
        let doorbell = Doorbell::new()?;
        let mut agents = Agents::of(plan.apps.kinds());
        let routes = Routes::new(&plan.routes, doorbell.clone());
        let mut daemon = Daemon {
            file,
            load,
            owners,
            plan: Arc::new(plan),
            tables,
            weights: Weights::default(),
            reloads: Reloads::default(),
            hash,
            fleet: Fleet::default(),
            interfaces,
            dpdk_links,
            host: AppHost::default(),
            board: ScenePublisher::new(doorbell.clone()),
            checks: checks::Checks::new(doorbell.clone()),
            neighbours: neighbours::Neighbours::new(doorbell.clone()),
            doorbell,
            systemd: Systemd::find()?,
            clock,
            collector: Collector::start(clock, agents.readers())?,
            agents,
            // Its thread starts without privileges.
            disposal: channel().0,
            generation: 1,
            vocabulary: load::Published::default(),
            feed: feed::Feed::default(),
            handover: None,
            store: Store::default(),
            recordings: recordings::Recordings::default(),
            kernel: kernel::KernelCopy::default(),
            routes,
            names: names::NameSources::default(),
        };
        daemon.agents.prepare(&next(&daemon.plan, daemon.generation, daemon.names.board()));
        let (mut none, is_successor) = (Offered::default(), takeover.is_some());
        let offered = takeover.as_mut().map(|takeover| takeover.offer(&daemon.interfaces));
        let rings = daemon.start_workers(offered.unwrap_or(&mut none), is_successor)?;
        daemon.plan = Arc::new(reload::without_entries(Arc::unwrap_or_clone(daemon.plan)));
        daemon.note_interfaces();
        daemon.vocabulary.set(daemon.generation, &daemon.plan);
        Ok((daemon, rings))
    }

    /// Starts everything that only one daemon at a time may run. `states` are the states of a previous
    /// daemon's apps.
    fn begin(
        &mut self,
        rings: Vec<app_host::Ring>,
        sockets: Vec<Option<app_host::Socket>>,
        states: &serde_json::Value,
    ) -> Result<()> {
        // Their threads start with the remaining privileges.
        let plan = self.plan.clone();
        self.follow_agents(&plan)?;
        self.begin_apps(rings, sockets.into_iter().flatten().collect(), states)?;
        self.save();
        Ok(())
    }

    /// Returns the parts that the HTTP server needs.
    fn server_parts(&self) -> http::ServerParts {
        http::ServerParts {
            vocabulary: self.vocabulary.clone(),
            feed: self.feed.clone(),
            names: self.names.board().clone(),
            apps: HttpControls(self.plan.apps.kinds()),
        }
    }

    /// Makes the agents work for the apps of a plan.
    fn follow_agents(&mut self, plan: &Plan) -> Result<()> {
        self.names.follow(plan.names.as_deref())?;
        let host = Host { clock: self.clock, open_ring: &|| self.collector.open_outside() };
        self.agents.follow(&plan.apps, &host)
    }

    /// Takes over from the daemon that runs on the same socket.
    fn succeed(file: PathBuf, mut plan: Plan, load: Load) -> Result<(Daemon, Control)> {
        let rest = rest::Ready::of(&plan)?;
        let mut takeover = Takeover::begin(&plan.socket)?;
        if let Some(edits) = takeover.edits(plan.apps.kinds()) {
            plan = load(&*edits, &Nics::default())
                .context("with changes made at run time (`weir lb reset` discards them)")?;
        }
        let weights = takeover.set_weights(&mut plan);
        let (mut daemon, rings) = Daemon::start(file, plan, load, Some(&mut takeover))?;
        daemon.weights = weights;
        takeover.add_entries(&mut daemon)?;
        daemon.complete_kernel_copy();
        takeover.take_flows(&daemon.fleet)?;
        let (states, inherited) = takeover.switch_over(&mut daemon)?;
        let control = Control::bind(&daemon.plan.socket, daemon.plan.metrics, rest, inherited)?;
        let sockets = app_host::sockets(&daemon.plan, &[])?;
        daemon.begin(rings, sockets, &states)?;
        takeover.finish(&mut daemon)?;
        Ok((daemon, control))
    }

    /// Starts the workers, and returns our ends of their rings for the apps. A successor's workers stay
    /// dormant until all of them have the old daemon's sockets.
    fn start_workers(&mut self, offered: &mut Offered, is_successor: bool) -> Result<Vec<app_host::Ring>> {
        let count = self.plan.workers.count();
        let mut rings = rings_for(&self.plan.program, count);
        let (mut punts, ours) = app_host::rings(&self.plan.program, count);
        let mut dpdk = Dpdk::open(&self.plan)?;
        if let Some(dpdk) = &dpdk {
            self.dpdk_links = dpdk.links();
        }
        let rss_table = open::spread(&self.plan, dpdk.as_ref());
        let steering = Steering { hash: self.hash, rss_table };
        self.owners = Owners::new(&self.plan.program, steering, count);
        let node = open::node(&self.plan);
        let _near = Preferred::of(node);
        let queues = self.interfaces.queues();
        let open = |worker| open::ports(&self.plan, &queues, &mut dpdk, worker, offered);
        let open: Vec<_> = (0..count).map(open).collect::<Result<_>>()?;
        if self.plan.apps.checks_ways() {
            self.checks.prepare();
        }
        // DPDK's drivers may map devices and memory for as long as they run.
        if dpdk.is_none() {
            privileges::keep(privileges::DAEMON).context("giving up privileges")?;
        }
        self.disposal = disposal()?;
        for (worker, (pools, ports)) in open.into_iter().enumerate() {
            let mut engine = Engine::with_tables(&self.plan.program, self.hash, &self.tables)?;
            engine.steer(steering);
            engine.share_entries(count > 1);
            let (rings, punts) = (rings.remove(0), punts.remove(0));
            let core = match &self.plan.workers {
                Workers::Cores(cores) => Some(cores[worker]),
                Workers::Count(_) => None,
            };
            let register = dpdk.as_ref().map(Dpdk::register);
            let deltas = self.collector.open(worker as u8)?;
            let disposal = self.disposal.clone();
            let pace = (self.plan.busy, self.clock);
            self.fleet.start((core, node), pace, self.doorbell.clone(), move |commands| {
                let registered = register.map(|register| register()).transpose()?;
                let worker = Worker::new(engine, ports, pools).with_commands(commands).with_deltas(deltas);
                let worker = worker.with_disposal(disposal);
                let worker = if is_successor { worker.dormant() } else { worker };
                Ok((registered, worker.with_punts(punts).with_hand_over(rings)))
            })?;
        }
        Ok(ours)
    }

    /// Returns what happens to each worker's ports: those with a current position in `order` stay, with
    /// updated faults and recordings if these have changed; the slots of others are left empty.
    fn wrappers(&self, plan: &Plan, order: &[Option<usize>]) -> Result<Vec<Vec<Option<Rewire>>>> {
        let now_ns = self.clock.now_ns();
        let one = |worker, (new, old): (&config::PortConfig, &Option<usize>)| {
            old.map(|old| open::rewire(old, &self.plan.ports[old], new, worker, now_ns)).transpose()
        };
        let of_worker = |worker| plan.ports.iter().zip(order).map(|port| one(worker, port)).collect();
        (0..self.fleet.len()).map(of_worker).collect()
    }

    /// Sleeps until there is something to do.
    fn wait(&self, control: &Control, signals: BorrowedFd<'_>) {
        let bells = [signals, self.doorbell.fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let sockets = self.sockets().flat_map(|(socket, has_room)| socket.waits(has_room));
        let interfaces = self.interfaces.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let own = bells.into_iter().chain(interfaces);
        let mut waits: Vec<PollFd<'_>> = own.chain(sockets).collect();
        let now_ns = self.clock.now_ns();
        let ages = self.fleet.wake_ns().filter(|_| self.has_timeouts());
        let wake_ns = self.apps_wake_ns().into_iter().chain(self.interfaces.wake_ns()).chain(ages).min();
        let app = wake_ns.map(|wake_ns| Duration::from_nanos(wake_ns.saturating_sub(now_ns)));
        let others = control.deadline().into_iter().chain(self.systemd.deadline());
        let others = others.chain(self.recordings.deadline()).chain(self.kernel.deadline());
        let others = others.chain(self.routes.deadline()).min();
        let others = others.map(|until| until.saturating_duration_since(Instant::now()));
        let pause = app.into_iter().chain(others).min();
        let timeout = pause.map(|pause| Timespec {
            tv_sec: pause.as_secs().min(3600) as i64,
            tv_nsec: i64::from(pause.subsec_nanos()),
        });
        // Whether or not poll was interrupted, the next iteration checks everything.
        let _ = poll(&mut waits, timeout.as_ref());
    }

    /// Advances changes, and removes entries that have been idle on all workers for their timeout.
    fn advance_changes(&mut self) {
        let ages = !self.reloads.are_due() && self.has_timeouts();
        self.fleet.advance_changes(ages, self.clock);
    }

    /// Whether the program has entries that expire when idle.
    fn has_timeouts(&self) -> bool {
        let of_flows = |pipe: &Pipe| match pipe.kind {
            PipeKind::Flow { timeouts, .. } => timeouts.each_ns().into_iter().max(),
            _ => None,
        };
        let longest = |pipe: &Pipe| of_flows(pipe).max(Some(pipe.monitor.idle_timeout_ns));
        self.plan.program.pipes.iter().any(|pipe| longest(pipe) > Some(0))
    }

    /// Publishes this thread's state, if anyone wants to show it.
    fn publish(&self) {
        let Some(number) = self.board.wanted() else { return };
        let ports = || (0..self.plan.ports.len()).map(|at| PortId(at as u16));
        let scene = Scene {
            generation: self.generation,
            file: self.file.clone(),
            load: self.load.clone(),
            clock: self.clock,
            plan: self.plan.clone(),
            tables: self.tables.share(),
            owners: self.owners.clone(),
            fleet: self.fleet.questioner(),
            links: ports().map(|port| self.link_of(port)).collect(),
            obstacles: ports().map(|port| self.obstacle(port)).collect(),
            programs: ports().map(|port| self.interfaces.counted(port)).collect(),
            arrivals: ports().map(|port| self.interfaces.of(port).map(Arrival::of)).collect(),
            apps: self.apps_json(),
            families: self.app_families(),
            gauges: self.app_gauges(),
            samples: self.app_samples(),
            read: self.collector.totals(),
            flow_tables: self.agents.flow_tables(),
            late: self.host.late.clone(),
            routes: self.routes.rows(self.clock.now_ns()),
            draining_ns: self.routes.draining_ns(),
            unready: self.apps_unready(),
            copies: self.kernel.obstacles(self.plan.ports.len()),
            names: self.names.board().clone(),
        };
        self.board.publish(number, scene);
    }

    /// Begins to write the state that survives a restart, if it has changed.
    fn save(&mut self) -> Option<Saving> {
        if !self.plan.apps.persist() {
            return None;
        }
        self.store.save(&self.plan, &self.host.running.states(), &self.doorbell)
    }

    /// Takes the next step towards a current copy of the program in the kernel.
    fn follow_kernel(&mut self) {
        if self.reloads.are_taking_over() {
            return;
        }
        let Daemon { plan, generation, fleet, interfaces, doorbell, .. } = self;
        let now = kernel::Surroundings { plan, generation: *generation, fleet, interfaces, doorbell };
        self.kernel.follow(&now);
    }

    /// Waits until there is a complete copy of the program in the kernel, or the reason why there is none is
    /// known. No frame meets the copy before the interfaces are taken over.
    fn complete_kernel_copy(&mut self) {
        let Daemon { plan, generation, fleet, interfaces, doorbell, .. } = self;
        let now = kernel::Surroundings { plan, generation: *generation, fleet, interfaces, doorbell };
        self.kernel.complete(&now);
    }

    /// Writes the routes to services that should be announced.
    fn follow_routes(&mut self) {
        self.routes.follow(self.clock.now_ns(), !self.reloads.are_taking_over());
    }

    /// Removes the routes, and continues to forward packets until the routers know.
    fn end_routes(&mut self) {
        if self.routes.announced() > 0 {
            self.routes.end(self.clock.now_ns());
            std::thread::sleep(FAREWELL);
        }
    }

    /// Polls the ports now and then, if any has a recording.
    fn check_recordings(&mut self) {
        self.recordings.check(&self.plan, &self.fleet);
    }

    fn greeting(&self) -> String {
        let ports: Vec<&str> = self.plan.ports.iter().map(|port| port.name.as_str()).collect();
        let ports = if ports.is_empty() { "no port".into() } else { ports.join(", ") };
        format!(
            "weir runs {} with {} worker{} on {}; control socket: {}",
            self.file.display(),
            self.fleet.len(),
            if self.fleet.len() == 1 { "" } else { "s" },
            ports,
            self.plan.socket.display(),
        )
    }

    /// Stops everything. Returns the ledger, whether it balances, and a message about flows.
    fn stop(mut self) -> Result<(Ledger, bool, Option<String>)> {
        self.stop_but_workers()?;
        let reports = std::mem::take(&mut self.fleet).stop()?;
        self.recordings.end(&reports);
        settle(&reports, self.collector)
    }

    /// Closes the ports, and stops everything but the workers, with the program that one of them may have in
    /// the kernel, and the collector.
    fn stop_but_workers(&mut self) -> Result<()> {
        self.end_reload();
        self.fleet.close_ports()?;
        // The last frames that workers passed on.
        while self.take_frames() {}
        // They give the collector what the flows in their tables have counted.
        drop(std::mem::take(&mut self.agents));
        Ok(())
    }
}

/// Returns what agents learn about a program before any worker runs it.
fn next<'a>(plan: &'a Plan, generation: u64, names: &'a NamesBoard) -> Next<'a> {
    Next { apps: &plan.apps, program: &plan.program, generation, workers: plan.workers.count(), names }
}

/// Stops the collector, and computes the totals.
fn settle(reports: &[Report], collector: Collector) -> Result<(Ledger, bool, Option<String>)> {
    let mut ledger = Ledger::default();
    reports.iter().for_each(|report| ledger.add(&report.ledger));
    let (balanced, totals) = (ledger.balances(), collector.finish()?);
    Ok((ledger, balanced, flows_at_end(reports, &totals)))
}

/// Returns the rings between the workers: only a program that hands frames over has any.
fn rings_for(program: &Program, workers: usize) -> Vec<HandOver> {
    if program.hands_over() { HandOver::between(workers) } else { HandOver::none(workers) }
}

/// Asks a worker for a report, which shows that it is alive. There is no answer if it is overloaded.
fn alive(fleet: &Fleet, worker: usize) -> Receiver<Report> {
    let (answer, report) = sync_channel(1);
    fleet.offer(worker, Command::Report(answer));
    report
}

/// Reorders values of ports to their new positions: `order[n]` is the previous position of port `n`, if it
/// had one.
fn reorder<T>(of_ports: Vec<Option<T>>, order: &[Option<usize>]) -> Vec<Option<T>> {
    let mut old = of_ports;
    order.iter().map(|&at| old.get_mut(at?)?.take()).collect()
}

/// Starts a thread that drops values that take long to drop, such as a program or a socket. It ends when the
/// last sender is dropped.
fn disposal() -> Result<Disposal> {
    let (disposal, burdens) = channel();
    let drop_all = move || {
        priority::patient();
        burdens.into_iter().for_each(drop);
    };
    std::thread::Builder::new().name("weir-free".into()).spawn(drop_all)?;
    Ok(disposal)
}

/// Describes where the packets of flows were counted, if there were any.
fn flows_at_end(reports: &[Report], totals: &Totals) -> Option<String> {
    let mut account = FlowAccount::default();
    reports.iter().for_each(|report| account.add(&report.flows));
    let sum = collector::over_reasons(totals);
    let lost = account.given.abs_diff(sum.packets) + account.live;
    (account.met != 0).then(|| {
        let verdict = if lost == 0 && account.balances() {
            "none lost".to_string()
        } else {
            format!("{lost} LOST: please report this")
        };
        format!("flows: {} packets in {} deltas; {verdict}", sum.packets, sum.deltas)
    })
}

fn farewell(ledger: &Ledger, balanced: bool) -> String {
    let (came, went) = ledger.sides();
    let verdict = if balanced {
        "every frame is accounted for"
    } else {
        "THE LEDGER DOES NOT BALANCE: please report this"
    };
    format!("weir stops: {came} frames came, {went} went; {verdict}")
}
