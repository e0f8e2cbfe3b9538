//! Requests that the main thread answers: those that change something, with JSON in and JSON out. Pure
//! queries go to an observer (`observer.rs`).

use super::changing;
use super::load::{Read, at_line};
use super::persist::Saving;
use super::reload::Ticket;
use super::{Daemon, live};
use crate::config;
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use weir_app::RequestId;
use weir_control::{App, Entry, HandOver, Reload, Request, Weight, answer};
use weir_engine::worker::{Command, Inject, Injected};
use weir_program::PortId;
use weir_program::change::{Change, ChangeError, Changes};

/// How long a request may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// The longest time that a client may ask to wait for the end of a reload: less than the HTTP server waits.
const RELOAD_PATIENCE: Duration = Duration::from_secs(20);

/// The longest time until an app answers, which may take a reload after other reloads.
const CONFIGURE_PATIENCE: Duration = Duration::from_secs(540);

/// The answer to a request.
pub enum Reply {
    /// The answer is available.
    Now(Value),
    /// The answer will arrive later.
    Later(Later),
}

/// An answer that comes from another part of weir.
pub enum Later {
    /// A worker answers when the frame has been sent.
    Injected(Receiver<Injected>),
    /// An app answers.
    App(RequestId),
    /// The change is written to the file that survives a restart.
    Saved(Option<Value>, Saving),
    /// A reload ends, or the client's timeout expires, in which case the client gets the progress of the
    /// reload.
    Reload(Ticket, Duration),
    /// The request is answered when all workers have switched to a new program.
    Settled(Request),
    /// All workers make a change, or none does.
    Change(changing::Ticket),
    /// All workers make many changes at once, or none does.
    Load(BulkChange),
}

/// Returns true for an app's answer to a request that changes something, since such an answer describes the
/// change. A query gets an object with the result, whether or not the state can be saved.
fn is_change(answer: &Value) -> bool {
    answer.is_string() || ["done", "created"].iter().any(|key| answer.get(key).is_some())
}

impl Later {
    /// Returns the answer if it is available.
    pub fn take(&mut self, daemon: &mut Daemon) -> Option<Result<Value>> {
        match self {
            Later::Load(load) => load.look(daemon),
            Later::App(id) => {
                let answer = daemon.take_answer(*id)?;
                match (answer, daemon.save()) {
                    (Ok(answer), Some(saving)) if is_change(&answer) => {
                        *self = Later::Saved(Some(answer), saving);
                        self.take(daemon)
                    }
                    (answer, _) => Some(answer),
                }
            }
            Later::Saved(answer, saving) => {
                saving.outcome().map(|saved| saved.and_then(|()| answer.take().context("taken")))
            }
            Later::Reload(ticket, _) => daemon.reloads.outcome(*ticket),
            Later::Change(ticket) => {
                let made = daemon.fleet.outcome(*ticket)?;
                Some(made.and_then(|made| Ok(made.map(|()| json!({ "done": true }))?)))
            }
            Later::Settled(_) if daemon.reloads.are_due() => None,
            Later::Settled(request) => match daemon.fulfil(request) {
                Ok(Reply::Now(now)) => Some(Ok(now)),
                Ok(Reply::Later(later)) => {
                    *self = later;
                    self.take(daemon)
                }
                Err(error) => Some(Err(error)),
            },
            Later::Injected(answer) => answer.try_recv().ok().map(|injected| match injected {
                Ok(()) => Ok(json!({ "done": true })),
                Err(reason) => Err(anyhow!("the frame was not sent ({reason}): {}", reason.explanation())),
            }),
        }
    }

    /// Returns true if the request is completed even if no client waits for the answer any more.
    pub fn outlives_client(&self) -> bool {
        matches!(self, Later::Change(_) | Later::Load(_))
    }

    /// Discards the request, because no client waits for the answer any more.
    pub fn forget(&self, daemon: &mut Daemon) {
        if let Later::App(id) = self {
            daemon.forget(*id);
        }
    }

    /// Returns how long to wait for the answer.
    pub fn patience(&self) -> Duration {
        match self {
            Later::Reload(_, patience) => *patience,
            Later::App(_) => CONFIGURE_PATIENCE,
            _ => ANSWER_PATIENCE,
        }
    }

    /// Returns the answer for a client whose wait has timed out.
    pub fn too_late(&self, daemon: &Daemon) -> Result<Value> {
        match self {
            Later::Injected(_) => bail!("the port's transmit queue is full: the frame waits for room there"),
            Later::App(_) => bail!("the app has not answered yet; the request may still be carried out"),
            Later::Saved(..) => bail!(
                "the change was made, but could not be saved and will not survive a \
                restart"
            ),
            Later::Change(_) | Later::Load(_) => bail!("the workers have not answered"),
            Later::Settled(_) => bail!("the workers are switching to a new program: try again"),
            Later::Reload(ticket, _) => Ok(daemon.reloads.progress(*ticket)),
        }
    }
}

impl Daemon {
    /// Answers a request, or returns where the answer will come from later.
    pub fn answer(&mut self, request: &Request) -> Result<Reply> {
        if let Some(handover) = self.handover.as_ref().filter(|_| *request != Request::Stop {}) {
            handover.refuse()?;
        }
        match request {
            // The workers would not answer before.
            Request::Entry(_) | Request::Weight(_) if self.reloads.are_due() => {
                Ok(Reply::Later(Later::Settled(request.clone())))
            }
            _ => self.fulfil(request),
        }
    }

    fn fulfil(&mut self, request: &Request) -> Result<Reply> {
        let later = match request {
            Request::Entry(entry) => self.entry(entry)?,
            Request::Weight(weight) => return self.weight(weight),
            Request::Inject(inject) => self.inject(inject)?,
            Request::App(App { app, request }) => Later::App(self.request(app, request)?),
            Request::Reload(Reload { reload, wait_s }) => {
                let ticket = reload.unwrap_or_else(|| self.ask_reload());
                let patience = wait_s.map_or(ANSWER_PATIENCE, Duration::from_secs);
                Later::Reload(ticket, patience.min(RELOAD_PATIENCE))
            }
            Request::HandOver(HandOver { socket, sockets }) => {
                self.prepare_handover(socket, *sockets)?;
                return Ok(Reply::Now(json!({ "handing_over": true })));
            }
            Request::Drain {} => return Ok(Reply::Now(json!(self.drain(true)))),
            Request::Undrain {} => return Ok(Reply::Now(json!(self.drain(false)))),
            Request::Process {} => return Ok(Reply::Now(json!(self.systemd.process()?))),
            Request::Stop {} => return Ok(Reply::Now(json!({ "stopping": true }))),
            Request::Show(_) | Request::Entries(_) | Request::Explain(_) => bail!("an observer answers this"),
        };
        Ok(Reply::Later(later))
    }

    /// Begins or ends to drain the node. The answer describes the state at this moment, which may still
    /// change.
    fn drain(&mut self, drains: bool) -> answer::Drained {
        let (announced, now_ns) = (self.routes.announced(), self.clock.now_ns());
        let changed = self.routes.drain(drains, now_ns);
        self.follow_routes();
        let withdrawn = announced.saturating_sub(self.routes.announced()) as u64;
        answer::Drained { draining: drains, changed, withdrawn }
    }

    /// Describes the state of a port's link; `None` for recordings and memory.
    pub(super) fn link_of(&self, port: PortId) -> Option<String> {
        if let Some(interface) = self.interfaces.of(port) {
            return Some(interface.state().to_string());
        }
        let link = self.dpdk_links.get(port.index())?.as_ref()?;
        Some(if link.state().up { "up" } else { "no carrier" }.to_string())
    }

    /// Begins to change an entry.
    fn entry(&mut self, Entry { verb, pipe, entry }: &Entry) -> Result<Later> {
        let mut reader = config::RunTime::new(&self.plan.program, &self.plan.attachments);
        let read = reader.change(verb, pipe, entry);
        let change = read.map_err(|report| anyhow!("{}", report.to_string().trim_end()))?;
        Ok(Later::Change(self.fleet.begin(Changes::of(change), self.clock)))
    }

    /// Changes a weight. If the group belongs to an app, the app makes the change, so that both have the same
    /// weight.
    fn weight(&mut self, Weight { group, target, weight }: &Weight) -> Result<Reply> {
        let id =
            self.plan.program.group_named(group).with_context(|| format!("there is no group `{group}`"))?;
        if let Some((app, request)) = self.host.running.weighing(group, target, *weight) {
            return Ok(Reply::Later(Later::App(self.request(&app, &request)?)));
        }
        let targets = &self.plan.program.groups[id.index()].targets;
        let at = targets.iter().position(|one| one.name == *target);
        let at = at.with_context(|| format!("group `{group}` has no target `{target}`"))?;
        self.change(&Change::SetWeight { group: id, target: at as u16, weight: *weight })?;
        Ok(Reply::Now(json!({ "done": true })))
    }

    fn inject(&mut self, request: &weir_control::Inject) -> Result<Later> {
        let bytes = live::packet(request.packet.as_deref(), request.hex.as_deref(), None)?;
        let port = |name: &Option<String>| -> Result<Option<PortId>> {
            let Some(name) = name else { return Ok(None) };
            let id =
                self.plan.program.port_named(name).with_context(|| format!("there is no port `{name}`"))?;
            Ok(Some(id))
        };
        let (output, input) = (port(&request.output)?, port(&request.input)?.unwrap_or_default());
        let (answer, injected) = sync_channel(1);
        let inject = Inject { bytes, output, input };
        if !self.fleet.offer(self.worker_for(&inject), Command::Inject(inject, answer)) {
            bail!("the worker is overloaded: try again");
        }
        Ok(Later::Injected(injected))
    }
}

/// Changes from a text, made by all workers or none.
pub struct BulkChange {
    read: Read,
    /// The ticket of changes that are on their way to the workers.
    ticket: Option<changing::Ticket>,
}

impl BulkChange {
    /// Wraps changes that have not been started.
    pub fn new(read: Read) -> BulkChange {
        BulkChange { read, ticket: None }
    }

    /// Takes the next step. Returns the answer once it is available.
    fn look(&mut self, daemon: &mut Daemon) -> Option<Result<Value>> {
        let ticket = match self.ticket {
            Some(ticket) => ticket,
            // The workers would not answer before.
            None if daemon.reloads.are_due() => return None,
            None if self.read.generation != daemon.generation => {
                return Some(Err(anyhow!("the program was replaced meanwhile: try again")));
            }
            None => *self.ticket.insert(daemon.fleet.begin(self.read.changes.clone(), daemon.clock)),
        };
        let made = daemon.fleet.outcome(ticket)?;
        Some(made.and_then(|made| done(made, &self.read)))
    }
}

fn done(made: Result<(), ChangeError>, read: &Read) -> Result<Value> {
    match made {
        Ok(()) => Ok(json!({ "done": read.changes.len() })),
        Err(why) => bail!("{}", at_line(&why, &read.lines)),
    }
}
