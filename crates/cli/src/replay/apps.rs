//! Apps on the virtual clock: the same apps as in the daemon, with a worker in the same thread. They have no
//! clients or operators; frames forwarded to them can be recorded.

use super::{AppReport, Sayings};
use crate::config::Plan;
use anyhow::{Context, Result};
use std::collections::VecDeque;
use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use weir_app::{Action, Event, RunningApps};
use weir_config::outfile;
use weir_engine::ring::{CarrierReceiver, CarrierSender, carriers};
use weir_engine::worker::{Command, Inject, Worker};
use weir_packet::BATCH;
use weir_port::pcap::Writer;
use weir_program::snapshot::Page;
use weir_program::{AppId, PortId};

/// The maximum number of apps' frames that wait for a breath.
const COMMANDS: usize = 4096;

/// The apps of a replay.
pub struct Acting {
    running: RunningApps,
    rings: Vec<AppFrames>,
    commands: SyncSender<Command>,
    /// The recordings' time at virtual time 0.
    base_ns: u64,
    said: Sayings,
}

/// Frames for one of the program's apps.
struct AppFrames {
    app: AppId,
    name: String,
    receiver: CarrierReceiver,
    record: Option<(PathBuf, Writer<File>)>,
}

/// The worker's ends of channels and rings.
pub struct Wiring {
    pub commands: Receiver<Command>,
    pub punts: Vec<CarrierSender>,
}

impl Acting {
    /// Creates the apps of a plan; `records` are the files in which frames for them are recorded.
    pub fn new(plan: &Plan, records: &[(String, PathBuf)], base_ns: u64) -> Result<(Acting, Wiring)> {
        let running = RunningApps::new(plan.apps.running(), RunningApps::default(), &plan.program);
        let (commands, receiver) = sync_channel(COMMANDS);
        let (mut rings, mut punts) = (Vec::new(), Vec::new());
        // The apps run after every breath, so this is always enough.
        let room = (plan.ports.len() + 1) * BATCH;
        for (at, name) in plan.program.apps.iter().enumerate() {
            let (sender, receiver) = carriers(room);
            let path = records.iter().find(|(app, _)| app == name).map(|(_, path)| path.clone());
            let record = path.map(record).transpose()?;
            rings.push(AppFrames { app: AppId(at as u16), name: name.clone(), receiver, record });
            punts.push(sender);
        }
        let acting = Acting { running, rings, commands, base_ns, said: Vec::new() };
        Ok((acting, Wiring { commands: receiver, punts }))
    }

    /// Starts the apps, at time 0.
    pub fn begin(&mut self, worker: &mut Worker) -> Result<()> {
        for at in 0..self.running.len() {
            self.deliver(at, 0, Event::Start, worker);
            for port in self.running.app(at).watches() {
                self.deliver(at, 0, Event::Link { port, up: true, speed_bps: None }, worker);
            }
        }
        Ok(())
    }

    /// Returns when an app must be woken.
    pub fn wake_ns(&self) -> Option<u64> {
        self.running.wake_ns()
    }

    /// Passes all pending events to the apps. Returns true if there were any.
    pub fn drive(&mut self, worker: &mut Worker, now_ns: u64) -> Result<bool> {
        let mut anything = self.running.collect() > 0;
        while let Some(at) = self.running.due(now_ns) {
            anything = true;
            self.deliver(at, now_ns, Event::Tick, worker);
        }
        for at in 0..self.rings.len() {
            while let Some(carrier) = self.rings[at].receiver.receive() {
                anything = true;
                let ring = &mut self.rings[at];
                let (app, name) = (ring.app, ring.name.clone());
                if let Some((path, writer)) = &mut ring.record {
                    let (time_ns, bytes) = (self.base_ns.saturating_add(now_ns), carrier.bytes());
                    let written = writer.write(time_ns, bytes.len() as u32, bytes);
                    written.with_context(|| format!("{} cannot be written", path.display()))?;
                }
                if let Some(owner) = self.running.owner(app) {
                    self.deliver(owner, now_ns, Event::of_frame(&name, carrier.input, &carrier), worker);
                }
                self.rings[at].receiver.done(carrier);
            }
        }
        Ok(anything)
    }

    /// Completes the recordings, and returns reports about the apps.
    pub fn end(self) -> Result<(Vec<AppReport>, Sayings)> {
        for (path, mut writer) in self.rings.into_iter().filter_map(|ring| ring.record) {
            writer.flush().with_context(|| format!("{} cannot be written", path.display()))?;
        }
        let report = |at: usize| {
            let app = self.running.app(at);
            AppReport {
                name: app.name().to_string(),
                account: self.running.account(at),
                counts: app.counts(),
            }
        };
        Ok(((0..self.running.len()).map(report).collect(), self.said))
    }

    /// Passes an event to an app and carries out the resulting actions.
    fn deliver(&mut self, at: usize, now_ns: u64, event: Event<'_>, worker: &mut Worker) {
        let mut actions = VecDeque::from(self.running.step(at, now_ns, event));
        while let Some(action) = actions.pop_front() {
            actions.extend(self.perform(at, now_ns, action, worker));
        }
    }

    fn perform(&mut self, at: usize, now_ns: u64, action: Action, worker: &mut Worker) -> Vec<Action> {
        match action {
            Action::Inject { bytes, output } => {
                self.inject(at, Inject { bytes, output: Some(output), input: PortId::default() });
            }
            Action::InjectThrough { bytes, input } => self.inject(at, Inject { bytes, output: None, input }),
            Action::Change(change) => {
                if let Err(why) = worker.engine_mut().apply(&change, now_ns) {
                    return self.running.step(
                        at,
                        now_ns,
                        Event::Refused { change: &change, why: &why.into() },
                    );
                }
            }
            Action::ReadBuckets(group) => {
                let report = worker.engine().bucket_report(group, 0..usize::MAX);
                return self.running.step(at, now_ns, Event::Buckets { group, report: &report });
            }
            Action::ReadEntries { pipe, from, .. } => {
                let Page { entries, .. } = worker.engine().page(pipe, from, u32::MAX, now_ns);
                let read = Event::Entries { pipe, from, entries: &entries, next: None };
                return self.running.step(at, now_ns, read);
            }
            Action::Check { id, .. } => {
                return self.running.step(at, now_ns, Event::Checked { id, outcome: &Ok(()) });
            }
            Action::Say(_, text) => {
                self.said.push((now_ns, format!("{}: {text}", self.running.app(at).name())))
            }
            // There is no operator and no client.
            Action::Answer { .. }
            | Action::Configure { .. }
            | Action::SendToClient { .. }
            | Action::Publish { .. }
            | Action::Leave(_) => {}
            // No checks are run, so no flow belongs to one, either.
            Action::ReadFlows(_) => {}
            // No check has sockets.
            Action::CheckHears { .. } => {}
            // There are no routers.
            Action::Announce { .. } => {}
            // They are made up, and do not change.
            Action::Resolve(_) | Action::ResolveOthers { .. } | Action::Confirm(_) => {}
        }
        Vec::new()
    }

    fn inject(&mut self, at: usize, inject: Inject) {
        let commands = &self.commands;
        self.running
            .inject(at, inject, |inject, answer| commands.try_send(Command::Inject(inject, answer)).is_ok());
    }
}

fn record(path: PathBuf) -> Result<(PathBuf, Writer<File>)> {
    let writer = Writer::new(outfile::create(&path)?)?;
    Ok((path, writer))
}
