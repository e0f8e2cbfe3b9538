//! Commands that a worker executes between breaths: a new program, a change, a query, a stop.

use super::kernel::NextCopy;
use super::pending::{CHANGES_PER_BREATH, PendingAnswers};
use super::{HandOver, Inject, Injected, Part, Report, RetiredState, Worker};
use crate::batch::{Engine, FlowPage, FlowStock, Share, SwapReport, TakenOver};
use crate::ring::CarrierSender;
use std::fmt;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;
use weir_packet::{Batch, DropReason, FlowKey, Leave, Pool, Pools, Port};
use weir_program::change::{Change, ChangeError, Changes, EntryKey};
use weir_program::nat::Binding;
use weir_program::replica::{EntryUses, FlowReplica, TableReplica};
use weir_program::snapshot::{
    BucketReport, FlowSnapshot, FlowsPage, KeptOperations, NewFlowTurns, Page, Seen,
};
use weir_program::{Copied, Verdict};
use weir_program::{GroupId, PipeId, PortId};

/// Maximum number of commands executed between two breaths, so that a flood of them cannot delay frames.
const COMMANDS_PER_BREATH: usize = 16;

/// Maximum number of buckets in one answer: about 100 KB of counts, which take some 20 us to copy.
pub const BUCKETS_AT_ONCE: usize = 2048;

/// A command for a worker. Each carries a sender for the answer, which is lost if the other end is gone.
#[derive(Debug)]
pub enum Command {
    /// Replace the program with this one, which was compiled with the same secret.
    Swap(Box<Engine>, Rewiring, SyncSender<Swapped>),
    /// Change an entry or a weight.
    Change(Box<Change>, SyncSender<Result<(), ChangeError>>),
    /// Reserve changes for this owner, so that they can be committed whatever happens meanwhile. Answered
    /// when that is done, which takes several breaths for many changes; after an error, nothing is reserved.
    /// With `true`, removing an entry that is not idle is refused.
    Reserve(u64, Changes, bool, PendingAnswers),
    /// Commit what this owner has reserved. Answered when that is done.
    Commit(u64, PendingAnswers),
    /// Release what this owner has reserved, if anything. Answered when that is done.
    Release(u64, PendingAnswers),
    /// Make replicas of the engine for new workers, out of engines for the same program. The engine must not
    /// change until they are in use. Answered when that is done, which takes several breaths.
    Replicate(Vec<Box<Engine>>, SyncSender<Vec<Box<Engine>>>),
    /// Take part in a change of the number of workers. No other command is executed until it has ended.
    Resize(Box<Part>),
    /// Take over the counts of a worker that was removed.
    Inherit(Box<RetiredState>),
    /// Send these bytes on behalf of an app. Answered when they have been sent: a frame for a port whose ring
    /// is full waits.
    Inject(Inject, SyncSender<Injected>),
    /// Report the ledger, ports and counters.
    Report(SyncSender<Report>),
    /// Report the buckets of a group starting at this one, at most [`BUCKETS_AT_ONCE`] of them. Counts are
    /// those of this worker and can be summed; targets may differ while moves are pending.
    Buckets(GroupId, usize, SyncSender<BucketReport>),
    /// List entries of a pipe: the first row, and the maximum number of rows.
    Page(PipeId, u32, u32, SyncSender<Page>),
    /// Report entries that have been idle here for longer than their timeout, up to a maximum number.
    Idle(usize, SyncSender<Vec<(PipeId, EntryKey)>>),
    /// Report what these entries have counted here, and when a packet last hit them.
    Seen(Arc<Vec<(PipeId, EntryKey)>>, SyncSender<Vec<Option<Seen>>>),
    /// Make entries as young as other replicas, which packets last hit at these times in milliseconds.
    Rejuvenate(Vec<(PipeId, EntryKey, u32)>),
    /// List flows of a pipe from one page of rows: the first row, and the maximum number of flows.
    Flows(PipeId, u32, usize, SyncSender<FlowsPage>),
    /// Look up one flow.
    Flow(PipeId, FlowKey, SyncSender<Option<FlowSnapshot>>),
    /// Report what one flow keeps of its entry's action.
    Kept(PipeId, FlowKey, SyncSender<Option<KeptOperations>>),
    /// Write records of a pipe's flows for another process, as [`Engine::flow_records`] does: the first row
    /// and the number of rows, and the time in milliseconds since which flows must have changed.
    FlowRecords(PipeId, (u32, u32), Option<u32>, SyncSender<FlowPage>),
    /// Report the properties of each pipe's flows.
    FlowStocks(SyncSender<Vec<(PipeId, FlowStock)>>),
    /// Continue those flows of another process that belong to this worker. `None` means that all have
    /// arrived.
    ResumeFlows(Option<(PipeId, Arc<FlowPage>)>, SyncSender<TakenOver>),
    /// Predict what the engine would do with a frame, without counting it.
    Probe(PortId, Vec<u8>, SyncSender<Option<FramePrediction>>),
    /// Receive nothing from now on, and hence hand nothing over. All workers get this command before the
    /// first is stopped.
    Quiesce(SyncSender<()>),
    /// Receive from now on, on a worker that is [dormant](Worker::dormant) or quiesced.
    Receive(SyncSender<()>),
    /// Report where the entries of each pipe lead, and the rules of ACL pipes.
    EntryUses(SyncSender<EntryUses>),
    /// Keep the tables of this program in the kernel equal to the engine's, and let packets use it; or stop
    /// using the present one. Only one worker gets this. Ignored if the number is not that of the program.
    RunInKernel(u64, Option<Box<dyn TableReplica>>),
    /// Return every frame and close the ports, but keep the program in the kernel, which continues to handle
    /// frames. Only reports and the end may follow.
    ClosePorts(SyncSender<()>),
    /// Let the program in the kernel, whose tables another worker keeps, follow flows of this worker, or stop
    /// that. Ignored if the number is not that of the program.
    FollowInKernel(u64, Option<Box<dyn FlowReplica>>),
    /// Return every frame and end.
    Stop(SyncSender<Report>),
}

impl Command {
    /// Whether the answer has counts, or depends on when entries were last hit.
    fn reads_counts(&self) -> bool {
        use Command as C;
        match self {
            C::Report(_) | C::Page(..) | C::Idle(..) | C::Seen(..) => true,
            C::Swap(..)
            | C::Change(..)
            | C::Reserve(..)
            | C::Commit(..)
            | C::Release(..)
            | C::Replicate(..)
            | C::Resize(_)
            | C::Inherit(_)
            | C::Inject(..)
            | C::Buckets(..)
            | C::Rejuvenate(_)
            | C::Flows(..)
            | C::Flow(..)
            | C::Kept(..)
            | C::FlowRecords(..)
            | C::FlowStocks(_)
            | C::ResumeFlows(..)
            | C::Probe(..)
            | C::Quiesce(_)
            | C::Receive(_)
            | C::EntryUses(_)
            | C::RunInKernel(..)
            | C::ClosePorts(_)
            | C::FollowInKernel(..)
            | C::Stop(_) => false,
        }
    }
}

/// How often to check whether the frames of a port that is being closed have been sent.
const LOOK: Duration = Duration::from_millis(1);

/// Makes a port leave to the extent possible without another thread.
fn leave_at_once(port: &mut dyn Port, pools: &mut Pools) -> Leave {
    loop {
        match port.leave(pools) {
            Leave::Later => std::thread::sleep(LOOK),
            other => return other,
        }
    }
}

/// The answer to a swap.
#[derive(Debug)]
pub struct Swapped {
    /// What was kept and removed.
    pub report: SwapReport,
    /// The engine that was replaced. It is returned because freeing it takes too long for a worker.
    pub former: Box<Engine>,
}

/// How a swap reconnects ports and apps, by the numbers of the new program.
#[derive(Debug, Default)]
pub struct Rewiring {
    /// The number of the new program, which reports carry from now on.
    pub generation: u64,
    /// `ports[n]` is the source of the new port `n`.
    pub ports: Vec<Rewire>,
    /// New rings to the apps, so that the numbers in frames of the old rings are known to be those of the old
    /// program.
    pub punts: Vec<CarrierSender>,
    /// New rings to and from the other workers, if they change: a program that keeps flows needs rings, and
    /// others do not.
    pub hand_over: Option<HandOver>,
    /// The copy of the new program in the kernel, on the worker that keeps it.
    pub copy: Option<Box<NextCopy>>,
}

/// Turns a port into another between two breaths.
pub type PortChange = Box<dyn FnOnce(Box<dyn Port>) -> Box<dyn Port> + Send>;

/// The source of a port of the new program.
pub enum Rewire {
    /// The current port with this index.
    Keep(usize),
    /// The result of this function for the current port with this index, such as the same port with a
    /// recording.
    Change(usize, PortChange),
    /// A new port, and the pool that it was opened on, unless the worker has that already.
    New(Box<dyn Port>, Option<Pool>),
}

impl Rewire {
    /// Returns the index of the current port, if there is one.
    #[must_use]
    pub fn index(&self) -> Option<usize> {
        match self {
            Rewire::Keep(at) | Rewire::Change(at, _) => Some(*at),
            Rewire::New(..) => None,
        }
    }
}

impl fmt::Debug for Rewire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rewire::Keep(at) => f.debug_tuple("Keep").field(at).finish(),
            Rewire::Change(at, _) => f.debug_tuple("Change").field(at).finish_non_exhaustive(),
            Rewire::New(port, _) => f.debug_tuple("New").field(&port.name()).finish_non_exhaustive(),
        }
    }
}

/// A prediction of what the engine would do with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FramePrediction {
    /// Where the frame would go.
    pub verdict: Verdict,
    /// The bytes of the frame at that point.
    pub bytes: Vec<u8>,
    /// Copies that would be made on the way.
    pub copies: Vec<Copied>,
    /// The worker that the frame belongs to. If that is not this worker, ask the other worker, which has the
    /// frame's flow.
    pub worker: usize,
    /// The number of packets that each pipe of the program had distributed in turn before this frame.
    pub turns: Vec<u64>,
    /// The address and port of the next new flow in each slice of each pipe's NAT pool; empty without a pool.
    pub next_bindings: Vec<Vec<Option<Binding>>>,
    /// How each pipe chose the targets of new flows before this frame.
    pub new_flows: Vec<NewFlowTurns>,
}

/// Sends an answer, unless the other end is gone.
fn reply<T>(asker: &SyncSender<T>, answer: T) {
    let _ = asker.try_send(answer);
}

impl Worker {
    /// Executes a few commands. Returns how many were executed.
    pub(super) fn handle_commands(&mut self, now_ns: u64) -> usize {
        let mut changes = CHANGES_PER_BREATH;
        self.carry_on(&mut changes, now_ns);
        let mut handled = 0;
        while handled < COMMANDS_PER_BREATH && !self.swaps.hold_commands() && !self.resizing.holds_commands()
        {
            let Some(Ok(command)) = self.commands.as_ref().map(Receiver::try_recv) else { break };
            self.handle_command(command, now_ns);
            self.carry_on(&mut changes, now_ns);
            handled += 1;
        }
        handled + usize::from(self.has_work())
    }

    fn handle_command(&mut self, command: Command, now_ns: u64) {
        if command.reads_counts() {
            self.sweep_kernel(false, now_ns);
        }
        match command {
            Command::Swap(engine, rewiring, asker) => self.begin_swap(engine, rewiring, asker, now_ns),
            Command::Change(change, asker) => self.change(&change, &asker, now_ns),
            Command::Reserve(owner, changes, only_idle, asker) => {
                self.reserve(owner, changes, only_idle, asker);
            }
            Command::Commit(owner, asker) => self.commit(owner, asker),
            Command::Release(owner, asker) => self.release(owner, asker),
            Command::Replicate(engines, asker) => self.begin_replicas(engines, asker),
            Command::Resize(part) => self.begin_resize(part, now_ns),
            Command::Inherit(estate) => self.inherit(&estate),
            Command::Inject(inject, asker) => self.inject(inject, asker, now_ns),
            Command::Report(asker) => reply(&asker, self.report()),
            Command::Buckets(group, from, asker) => {
                let range = from..from.saturating_add(BUCKETS_AT_ONCE);
                reply(&asker, self.engine.bucket_report(group, range));
            }
            Command::Page(pipe, from, most, asker) => {
                reply(&asker, self.engine.page(pipe, from, most, now_ns));
            }
            Command::Idle(most, asker) => reply(&asker, self.engine.idle_entries(most, now_ns)),
            Command::Seen(keys, asker) => reply(&asker, self.engine.seen(&keys, now_ns)),
            Command::Rejuvenate(keys) => self.engine.rejuvenate(&keys),
            Command::Flows(pipe, from, most, asker) => {
                reply(&asker, self.engine.flows_page(pipe, from, most));
            }
            Command::Flow(pipe, key, asker) => reply(&asker, self.engine.flow(pipe, &key)),
            Command::Kept(pipe, key, asker) => reply(&asker, self.engine.kept(pipe, &key)),
            Command::FlowRecords(pipe, rows, since, asker) => {
                reply(&asker, self.engine.flow_records(pipe, rows, since));
            }
            Command::FlowStocks(asker) => reply(&asker, self.engine.flow_stocks()),
            Command::ResumeFlows(page, asker) => reply(&asker, self.resume_flows(page)),
            Command::Probe(input, bytes, asker) => reply(&asker, self.probe(input, &bytes, now_ns)),
            Command::Quiesce(asker) => self.quiesce(&asker),
            Command::Receive(asker) => {
                self.quiet = false;
                reply(&asker, ());
            }
            Command::EntryUses(asker) => self.report_entry_uses(&asker),
            Command::RunInKernel(generation, replica) if generation == self.generation => {
                self.run_in_kernel(replica, now_ns);
            }
            Command::RunInKernel(..) => {}
            Command::ClosePorts(asker) => {
                self.close_ports();
                reply(&asker, ());
            }
            Command::FollowInKernel(generation, flows) => self.follow_in_kernel(generation, flows, now_ns),
            Command::Stop(asker) => {
                self.leave_kernel(now_ns);
                reply(&asker, self.stopped());
            }
        }
    }

    fn report_entry_uses(&mut self, asker: &SyncSender<EntryUses>) {
        reply(asker, self.engine.entry_uses(self.generation));
        // The thread that waits for it must be woken.
        self.outbox.signal = true;
    }

    fn quiesce(&mut self, asker: &SyncSender<()>) {
        self.quiet = true;
        self.hand_over.finish();
        reply(asker, ());
    }

    /// Stops, and returns the last report.
    fn stopped(&mut self) -> Report {
        self.stop();
        self.report()
    }

    /// Makes a change in the engine, and in its copy in the kernel.
    fn change(&mut self, change: &Change, asker: &PendingAnswers, now_ns: u64) {
        let done = self.engine.apply(change, now_ns);
        if done.is_ok() {
            self.copy_changes(from_ref(change), 1);
        }
        reply(asker, done);
        self.outbox.signal = true;
    }

    /// Continues flows of another process; `None` says that all have arrived.
    fn resume_flows(&mut self, page: Option<(PipeId, Arc<FlowPage>)>) -> TakenOver {
        let share = Share { own: self.hand_over.own(), workers: self.hand_over.workers() };
        let Some((pipe, page)) = page else {
            self.engine.end_takeover();
            return TakenOver::default();
        };
        self.engine.resume_flows(pipe, &page, share)
    }

    fn probe(&mut self, input: PortId, bytes: &[u8], now_ns: u64) -> Option<FramePrediction> {
        let mut batch = Batch::new();
        self.outbox.originate(&mut batch, bytes, None).ok()?;
        let (turns, next_bindings) = (self.engine.turns(), self.engine.next_bindings());
        let mut worker = self.hand_over.own();
        if let Some(share) = self.hand_over.share() {
            self.engine.of_others(&mut batch, 1, input, share, |_, other| worker = other);
        }
        let new_flows = self.engine.new_flows();
        let outcome = self.engine.probe(&mut batch, input, now_ns);
        let bytes = batch.frame(0).bytes().to_vec();
        let (verdict, copies) = (outcome.verdict(0, input), outcome.copies(0, &bytes));
        let probe = FramePrediction { verdict, copies, bytes, worker, turns, next_bindings, new_flows };
        self.outbox.pools.give(batch.take(0));
        Some(probe)
    }

    /// Takes every frame back from the ports, and gives the counts of all flows to the collector.
    pub fn stop(&mut self) {
        self.close_ports();
        self.end_flows();
        self.stopped = true;
    }

    /// Takes every frame back from the ports. Frames that they held, that waited or that other workers had
    /// handed over are dropped as `stopped`.
    fn close_ports(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.hand_over.finish();
        let mut stopped = self.waiting.give_up(DropReason::Stopped) + self.hand_over.drain();
        stopped += self.fragments.give_up() as u64;
        self.close_leaving();
        let (ports, pools) = (&mut self.outbox.ports, &mut self.outbox.pools);
        // The kernel takes milliseconds to close a socket, and closes several in the time of one.
        let mut closing = Vec::new();
        std::thread::scope(|scope| {
            for port in ports.iter_mut() {
                match leave_at_once(port.as_mut(), pools) {
                    Leave::Give(socket) => {
                        scope.spawn(move || drop(socket));
                        closing.push(port);
                    }
                    Leave::Closed(dropped) => stopped += dropped,
                    Leave::Later => {}
                }
            }
        });
        for port in closing {
            stopped += port.close(pools);
        }
        self.outbox.ledger.dropped[DropReason::Stopped as usize] += stopped;
    }
}
