//! The bond while it runs: links, LACP and load come in as events, and moves of buckets, entries of its pipes and frames go
//! out as actions. What is decided is decided in `links`, `lacp`, `assignment` and `rebalance`; here they are wired up.
//!
//! Members have numbers that stay theirs while the bond lives, whatever a reload does to the list; the group's targets are
//! positions in that list.

use super::announce;
use super::assignment::{Assignment, weight_of_speed};
use super::config::{Bond, Member, Mode};
use super::elephants::{Elephants, Lanes};
use super::lacp::{self, Lacp, Negotiation};
use super::learnt::{Known, Learnt, Mac};
use super::links::{self, Admission, Links, Output, Reason};
use super::moves::Moved;
use super::pipes::Names;
use super::rebalance::{Carrier, Plan, Rebalance, View};
use super::reload::Gone;
use super::requests::Question;
use super::show;
use crate::app::{Action, App, Event, RequestId};
use engine::change::Change;
use engine::program::{GroupId, PipeId, PortId, Program};
use engine::worker::BucketReport;
use serde_json::Value;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU16;
use table::NO_TARGET;

/// The weight of a link whose speed is not known: as 1 Gbit/s.
const UNKNOWN_WEIGHT: u32 = 1000;

/// For so long a member that is left on purpose is still listened to: its partner hears of it within a second.
const LINGER_NS: u64 = 1_100_000_000;

/// Workers carry out a change so much later than it was asked for, at most.
const SLACK_NS: u64 = 20_000_000;

/// A bond that runs.
pub struct BondApp {
    pub(super) bond: Bond,
    pub(super) numbers: Numbers,
    pub(super) state: State,
}

/// What it is called in the program it is bound to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    pub group: GroupId,
    /// With elephants: the pipe that knows pinned flows, and the group of their buckets.
    pub flows: Option<PipeId>,
    pub heavy: Option<GroupId>,
    pub select_seed: u64,
    pub inward: Option<PipeId>,
    pub learn: Option<PipeId>,
    pub reflected: Option<PipeId>,
    pub group_active: Option<PipeId>,
}

/// What outlives a reload.
pub(super) struct State {
    /// Names of members and their numbers.
    pub ids: BTreeMap<String, u16>,
    pub next_id: u16,
    pub lacp: Option<Lacp>,
    pub links: Links,
    pub assignment: Assignment,
    pub rebalance: Rebalance,
    pub learnt: Learnt,
    /// Whose frames come in: entries of `in`, and of `group/active`.
    pub admitted: BTreeMap<u16, PortId>,
    pub broadcast: Option<PortId>,
    /// Members that are listened to until then.
    pub lingering: BTreeMap<u16, u64>,
    /// Members of which LACP is told then that they are out.
    pub holding: BTreeMap<u16, u64>,
    /// Members that the operator took out.
    pub disabled: BTreeSet<u16>,
    pub negotiation: Negotiation,
    /// Totals of the buckets when they were read last.
    pub buckets: BucketReport,
    pub elephants: Elephants,
    pub asked: Vec<(RequestId, Question)>,
    /// The rebalance waits for totals.
    pub counting: bool,
    pub moves: VecDeque<Moved>,
    pub moves_total: u64,
    /// Speeds of the links that are known.
    pub speeds: BTreeMap<u16, u64>,
    /// Members that the configuration has no longer.
    pub gone: BTreeMap<u16, Gone>,
    /// Entries of `in` that are to be taken out.
    pub leftover: BTreeSet<PortId>,
    /// Stations that are still to be announced, and when the next ones are.
    pub announcing: VecDeque<(Mac, Known)>,
    pub announces_ns: Option<u64>,
    /// Addresses that are to be taken out of their pipes.
    pub unlearnt: Vec<Mac>,
    /// Buckets have targets: some member may be used.
    pub sending: bool,
    begun: bool,
    /// Totals of the buckets have been read: what was carried before is nobody's load.
    counted: bool,
}

impl BondApp {
    /// A bond whose links are not known yet. It has no [`super::Problem`].
    #[must_use]
    pub fn new(bond: Bond) -> BondApp {
        let ids: BTreeMap<String, u16> = bond.members.iter().map(|member| member.name.clone()).zip(0..).collect();
        let weights: Vec<(u16, u32)> =
            (0..).zip(&bond.members).map(|(id, one)| (id, share(&bond, one, None))).collect();
        let size = bond.size() as usize;
        let state = State {
            next_id: ids.len() as u16,
            lacp: bond.lacp.clone().map(Lacp::new),
            links: Links::new(0, policy(&bond, &ids), None, &[]).0,
            assignment: Assignment::new(bond.size(), &weights),
            rebalance: Rebalance::new(bond.rule, bond.rebalance_ms, 0, &vec![0; size]),
            learnt: Learnt::new(bond.learnt_max),
            admitted: BTreeMap::new(),
            broadcast: None,
            lingering: BTreeMap::new(),
            holding: BTreeMap::new(),
            disabled: BTreeSet::new(),
            negotiation: Negotiation::default(),
            buckets: no_buckets(size),
            elephants: Elephants::new(),
            asked: Vec::new(),
            counting: false,
            moves: VecDeque::new(),
            moves_total: 0,
            speeds: BTreeMap::new(),
            gone: BTreeMap::new(),
            leftover: BTreeSet::new(),
            announcing: VecDeque::new(),
            announces_ns: None,
            unlearnt: Vec::new(),
            sending: false,
            begun: false,
            counted: false,
            ids,
        };
        BondApp { bond, numbers: Numbers::default(), state }
    }

    /// A member's number.
    pub(super) fn id(&self, name: &str) -> Option<u16> {
        self.state.ids.get(name).copied()
    }

    fn member_at(&self, port: PortId) -> Option<(u16, &Member)> {
        let member = self.bond.members.iter().find(|member| member.port == port)?;
        Some((self.id(&member.name)?, member))
    }

    pub(super) fn member(&self, id: u16) -> Option<&Member> {
        self.bond.members.iter().find(|member| self.id(&member.name) == Some(id))
    }

    pub(super) fn name(&self, id: u16) -> &str {
        let gone = || self.state.gone.get(&id).map_or("none", |gone| &gone.name);
        self.member(id).map_or_else(gone, |member| &member.name)
    }

    /// A member's port; also of one that has just gone.
    fn port(&self, id: u16) -> Option<PortId> {
        self.member(id).map(|member| member.port).or_else(|| self.state.gone.get(&id)?.port)
    }

    /// A member's place among the group's targets.
    pub(super) fn target(&self, id: u16) -> u16 {
        let place = self.bond.members.iter().position(|member| self.id(&member.name) == Some(id));
        place.map_or(NO_TARGET, |place| place as u16)
    }

    /// Do all frames leave by the active member?
    pub(super) fn is_single(&self) -> bool {
        self.bond.mode == Mode::ActiveBackup || self.state.negotiation == Negotiation::Fallback
    }

    /// Adds the members to LACP and links; those that are there already stay as they are.
    fn begin(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        for mac in std::mem::take(&mut self.state.unlearnt) {
            self.forget(mac, actions);
        }
        if std::mem::replace(&mut self.state.begun, true) {
            self.adapt(now_ns, actions);
        } else {
            self.begin_elephants(actions);
            // Another kind of bond may have left targets.
            self.stop_sending(actions);
        }
        if !self.state.counted {
            self.read_buckets(actions);
        }
        for (id, member) in self.members() {
            let admission = if self.lacp_decides() { shut() } else { Admission::default() };
            let settings = settings(&self.bond, id, &member);
            self.tell_lacp(now_ns, lacp::Event::Add { member: id, settings }, actions);
            let link = links::Link { member: id, carrier: false, speed_bps: None, admission };
            self.tell_links(now_ns, links::Event::Add(link), actions);
        }
    }

    /// Is it LACP's word that opens a member?
    pub(super) fn lacp_decides(&self) -> bool {
        self.state.lacp.is_some() && self.state.negotiation != Negotiation::Fallback
    }

    fn link(&mut self, now_ns: u64, port: PortId, up: bool, speed_bps: Option<u64>, actions: &mut Vec<Action>) {
        let Some((id, member)) = self.member_at(port) else { return };
        let member = member.clone();
        if let Some(speed) = speed_bps {
            self.state.speeds.insert(id, speed);
            let moves = self.state.assignment.set_weight(id, self.weight(id, &member));
            self.order(now_ns, &moves, "a member's speed", actions);
            self.settle_pins(now_ns, "a member's speed", actions);
        }
        // The carrier first: what LACP makes of its loss is not the reason.
        self.tell_links(now_ns, links::Event::Speed(id, speed_bps), actions);
        self.tell_links(now_ns, links::Event::Carrier(id, up), actions);
        self.tell_lacp(now_ns, lacp::Event::Link { member: id, up, speed_bps }, actions);
        if !up {
            self.hasten(now_ns, id, show::reason(Reason::Carrier), actions);
        }
    }

    fn frame(&mut self, now_ns: u64, app: &str, input: PortId, bytes: &[u8], actions: &mut Vec<Action>) {
        let names = Names(&self.bond.name);
        if self.bond.elephants > 0 && app == names.heavy() {
            return self.looked_at(now_ns, bytes, actions);
        }
        match self.member_at(input).map(|(id, _)| id) {
            None if app == names.learn() => self.learn(now_ns, bytes, actions),
            Some(id) if app == names.learn() => self.reflected(now_ns, id, bytes, actions),
            Some(id) if app == names.slow() => {
                self.tell_lacp(now_ns, lacp::Event::Pdu { member: id, bytes }, actions);
            }
            Some(id) if app == names.answers() => self.answered(now_ns, id, bytes, actions),
            _ => {}
        }
    }

    fn answered(&mut self, now_ns: u64, id: u16, bytes: &[u8], actions: &mut Vec<Action>) {
        let target = announce::answer(bytes).and_then(|from| {
            let targets = &self.bond.probe.as_ref()?.targets;
            targets.iter().position(|target| *target == from)
        });
        if let Some(target) = target {
            self.tell_links(now_ns, links::Event::Answer(id, target as u8), actions);
        }
    }

    fn tick(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        self.tell_lacp(now_ns, lacp::Event::Tick, actions);
        self.tell_links(now_ns, links::Event::Tick, actions);
        self.have_left(now_ns, actions);
        if self.state.lingering.values().any(|until| *until <= now_ns) {
            self.admit(now_ns, actions);
        }
        self.age(now_ns, actions);
        if self.state.announces_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.announce_some(now_ns, actions);
        }
        if self.state.elephants.look.as_ref().is_some_and(|look| look.until_ns <= now_ns) {
            self.conclude(now_ns, actions);
        }
        if self.counts_at_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            self.state.counting = true;
            self.read_buckets(actions);
        }
    }

    /// Nothing goes out any more by members that the operator took out: whoever sends to them is told, and they are
    /// listened to until they know.
    fn have_left(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let left = due(&mut self.state.holding, now_ns);
        for &id in &left {
            self.tell_lacp(now_ns, lacp::Event::Hold { member: id, held: true }, actions);
        }
        if !left.is_empty() && self.bond.mode == Mode::BalanceSlb {
            self.announce(now_ns, actions);
        }
    }

    pub(super) fn tell_lacp(&mut self, now_ns: u64, event: lacp::Event<'_>, actions: &mut Vec<Action>) {
        let Some(lacp) = &mut self.state.lacp else { return };
        let mut wanted = Vec::new();
        lacp.step(now_ns, event, &mut wanted);
        for action in wanted {
            match action {
                lacp::Action::Transmit { member, frame } => {
                    let output = self.port(member);
                    actions.extend(output.map(|output| Action::Inject { bytes: frame, output }));
                }
                lacp::Action::Member { member, collecting, distributing } => {
                    let admission = Admission { collecting, distributing };
                    self.tell_links(now_ns, links::Event::Admission(member, admission), actions);
                    if !distributing {
                        self.hasten(now_ns, member, show::reason(Reason::Lacp), actions);
                    }
                }
                lacp::Action::Negotiation(negotiation) => self.negotiated(now_ns, negotiation, actions),
                lacp::Action::Report { member, notice, kept_back } => {
                    let more = if kept_back > 0 { format!(" ({kept_back} like it before)") } else { String::new() };
                    actions.push(Action::Say(format!("{}: {notice}{more}", self.name(member))));
                }
            }
        }
    }

    fn negotiated(&mut self, now_ns: u64, negotiation: Negotiation, actions: &mut Vec<Action>) {
        let was = std::mem::replace(&mut self.state.negotiation, negotiation);
        actions.push(Action::Say(format!("LACP: {}", show::negotiation(negotiation))));
        if (was == Negotiation::Fallback) != (negotiation == Negotiation::Fallback) {
            // Without a partner LACP has no say; with one it has it all.
            let falls_back = negotiation == Negotiation::Fallback;
            let status = self.state.lacp.as_ref().map(Lacp::status);
            for member in status.iter().flat_map(|status| &status.members) {
                let opened = Admission {
                    collecting: matches!(member.mux, "collecting" | "distributing"),
                    distributing: member.mux == "distributing",
                };
                let admission = if falls_back { Admission::default() } else { opened };
                self.tell_links(now_ns, links::Event::Admission(member.member, admission), actions);
            }
            self.reassign(now_ns, "LACP has or has not a partner", actions);
        }
    }

    pub(super) fn tell_links(&mut self, now_ns: u64, event: links::Event, actions: &mut Vec<Action>) {
        let outputs = self.state.links.step(now_ns, event);
        self.follow(now_ns, outputs, actions);
    }

    /// Does what the state of the links asks for.
    pub(super) fn follow(&mut self, now_ns: u64, outputs: Vec<Output>, actions: &mut Vec<Action>) {
        let (mut lost, mut active) = (false, None);
        for output in outputs {
            match output {
                Output::Enabled(id) => {
                    actions.push(Action::Say(format!("{}: enabled", self.name(id))));
                    self.set_up(now_ns, id, None, actions);
                }
                Output::Disabled(id, reason) => {
                    actions.push(Action::Say(format!("{}: disabled, {}", self.name(id), show::reason(reason))));
                    self.set_up(now_ns, id, Some(reason), actions);
                    self.linger(now_ns, id, reason);
                    // What the operator wants has time: see `have_left`.
                    lost |= reason != Reason::Operator;
                }
                Output::Active { to, .. } => active = Some(to),
                Output::Probe(id, target) => self.probe(id, target, actions),
            }
        }
        if self.is_single() {
            let to = self.state.links.active().map_or("none", |id| self.name(id));
            self.reassign(now_ns, &format!("the active member is {to}"), actions);
        }
        self.admit(now_ns, actions);
        let by_switch = self.is_single() || self.bond.mode == Mode::BalanceSlb;
        if by_switch && active.flatten().is_some() || self.bond.mode == Mode::BalanceSlb && lost {
            self.announce(now_ns, actions);
        }
    }

    /// A member is left whose partner does not know yet: what it still sends is taken in.
    fn linger(&mut self, now_ns: u64, id: u16, reason: Reason) {
        let until_ns = match reason {
            Reason::Operator => now_ns + self.leaves_in_ns() + LINGER_NS,
            Reason::Lacp => now_ns + LINGER_NS,
            Reason::Removed | Reason::Carrier | Reason::Probe => return,
        };
        self.state.lingering.insert(id, until_ns);
    }

    /// In so long at most nothing is sent by a member that the operator took out.
    pub(super) fn leaves_in_ns(&self) -> u64 {
        self.bond.idle_gap_max_ns + SLACK_NS
    }

    fn probe(&self, id: u16, target: u8, actions: &mut Vec<Action>) {
        let (Some(member), Some(probe)) = (self.member(id), &self.bond.probe) else { return };
        let Some(&target) = probe.targets.get(usize::from(target)) else { return };
        let mac = member.mac.unwrap_or_else(|| self.bond.mac());
        actions.push(Action::Inject { bytes: announce::question(mac, probe.source, target), output: member.port });
    }

    fn count(&mut self, now_ns: u64, group: GroupId, report: &BucketReport, actions: &mut Vec<Action>) {
        if self.numbers.heavy == Some(group) {
            return self.count_heavy(report);
        }
        self.count_looks(report.moved.saturating_sub(self.state.buckets.moved));
        self.state.buckets.clone_from(report);
        if !std::mem::replace(&mut self.state.counted, true) {
            let totals = self.lanes().totals.into_owned();
            self.state.rebalance = Rebalance::new(self.bond.rule, self.bond.rebalance_ms, now_ns, &totals);
        }
        if self.state.buckets.pending == 0 {
            self.state.assignment.settle(|_| false);
        }
        if std::mem::take(&mut self.state.counting) {
            self.rebalance(now_ns, false, actions);
        }
        for (id, question) in std::mem::take(&mut self.state.asked) {
            let answer = match question {
                Question::Show => show::bond(self, now_ns),
                Question::Buckets => show::buckets(self),
                Question::Rebalance => {
                    let carriers = self.carriers();
                    let plan = self.rebalance(now_ns, true, actions);
                    show::plan(self, plan.as_ref().map(|plan| (plan, carriers.as_slice())))
                }
                Question::DryRun => {
                    let carriers = self.carriers();
                    let lanes = self.lanes();
                    let view = View { totals: &lanes.totals, slots: &lanes.slots, carriers: &carriers };
                    let plan = self.may_rebalance().then(|| self.of_buckets(self.state.rebalance.plan(view)));
                    show::plan(self, plan.as_ref().map(|plan| (plan, carriers.as_slice())))
                }
            };
            actions.push(Action::Answer { id, answer: Ok(answer) });
        }
    }

    pub(super) fn carriers(&self) -> Vec<Carrier> {
        let capacity = |id: u16| self.member(id).map_or(UNKNOWN_WEIGHT, |member| self.weight(id, member));
        self.state.links.enabled().map(|member| Carrier { member, capacity: capacity(member) }).collect()
    }

    pub(super) fn lanes(&self) -> Lanes<'_> {
        self.state.lanes(self.bond.elephants)
    }

    /// A plan whose elephants are buckets of the bond: a flow that has one of its own is known.
    fn of_buckets(&self, mut plan: Plan) -> Plan {
        plan.elephants.retain(|one| one.bucket < self.bond.size());
        plan
    }

    /// When the buckets are to be read for the next rebalance.
    fn counts_at_ns(&self) -> Option<u64> {
        self.state.rebalance.wake_ns().filter(|_| self.may_rebalance() && !self.state.counting)
    }

    pub(super) fn may_rebalance(&self) -> bool {
        !self.is_single() && self.bond.mode.is_balanced()
    }

    /// Evens out loads: if it is time, or if the operator asked.
    pub(super) fn rebalance(&mut self, now_ns: u64, asked: bool, actions: &mut Vec<Action>) -> Option<Plan> {
        if !self.may_rebalance() {
            return None;
        }
        self.judge(now_ns, actions);
        let carriers = self.carriers();
        let lanes = self.lanes();
        let (totals, slots) = (lanes.totals.into_owned(), lanes.slots.into_owned());
        let view = View { totals: &totals, slots: &slots, carriers: &carriers };
        let rebalance = &mut self.state.rebalance;
        let plan = if asked { Some(rebalance.run(now_ns, view)) } else { rebalance.step(now_ns, view) }?;
        let plan = self.of_buckets(plan);
        self.look_for(now_ns, &plan, actions);
        let size = self.bond.size();
        for shift in &plan.moves {
            if shift.bucket >= size {
                self.move_pin(now_ns, shift.bucket - size, shift.to, &shift.reason.to_string(), actions);
                continue;
            }
            let moves = self.state.assignment.rebalance([(shift.bucket, shift.to)]);
            self.order(now_ns, &moves, &shift.reason.to_string(), actions);
        }
        if !plan.moves.is_empty() {
            actions.push(Action::Say(format!("rebalanced: {} buckets move", plan.moves.len())));
        }
        Some(plan)
    }

    pub(super) fn members(&self) -> Vec<(u16, Member)> {
        self.bond.members.iter().filter_map(|member| Some((self.id(&member.name)?, member.clone()))).collect()
    }

    /// A member's share of the buckets.
    pub(super) fn weight(&self, id: u16, member: &Member) -> u32 {
        share(&self.bond, member, self.state.speeds.get(&id).copied())
    }
}

/// A member's share: as written, or by its speed; that of any other where all are to have a bucket, or the active one all.
fn share(bond: &Bond, member: &Member, speed_bps: Option<u64>) -> u32 {
    match bond.mode {
        Mode::ActiveBackup => 1,
        Mode::Broadcast => member.weight.map_or(1, |weight| weight.min(1)),
        _ => member.weight.or(speed_bps.map(weight_of_speed)).unwrap_or(UNKNOWN_WEIGHT),
    }
}

pub(super) fn no_buckets(size: usize) -> BucketReport {
    BucketReport { packets: vec![0; size], bytes: vec![0; size], ..BucketReport::default() }
}

impl App for BondApp {
    fn name(&self) -> &str {
        &self.bond.name
    }

    fn kind(&self) -> &'static str {
        "bond"
    }

    fn punts(&self) -> Vec<String> {
        let names = Names(&self.bond.name);
        let heavy = (self.bond.elephants > 0).then(|| names.heavy());
        [names.slow(), names.learn(), names.answers()].into_iter().chain(heavy).collect()
    }

    fn watches(&self) -> Vec<PortId> {
        self.bond.ports()
    }

    fn inherit(&mut self, predecessor: Box<dyn App>) {
        let predecessor: Box<dyn Any> = predecessor;
        if let Ok(old) = predecessor.downcast::<BondApp>() {
            self.take_over(*old);
        }
    }

    fn bind(&mut self, program: &Program) {
        self.find_gone(program);
        let names = Names(&self.bond.name);
        self.numbers = Numbers {
            group: program.group_named(&names.group()).unwrap_or_default(),
            flows: (self.bond.elephants > 0).then(|| program.pipe_named(&self.bond.name)).flatten(),
            heavy: (self.bond.elephants > 0).then(|| program.group_named(&names.heavy())).flatten(),
            select_seed: program.select_seed,
            inward: program.pipe_named(&names.inward()),
            learn: program.pipe_named(&names.learn()),
            reflected: program.pipe_named(&names.reflected()),
            group_active: program.pipe_named(&names.group_active()),
        };
    }

    fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        match event {
            Event::Start => self.begin(now_ns, actions),
            Event::Frame { app, input, bytes } => self.frame(now_ns, app, input, bytes, actions),
            Event::Tick => self.tick(now_ns, actions),
            Event::Link { port, up, speed_bps } => self.link(now_ns, port, up, speed_bps, actions),
            Event::Request { id, request } => self.request(now_ns, id, request, actions),
            Event::Buckets { group, report } => self.count(now_ns, group, report, actions),
            // What is to go, and has gone already.
            Event::Refused { change: Change::Remove { .. }, .. } => {}
            Event::Refused { why, .. } => actions.push(Action::Say(format!("a change was refused: {why}"))),
            Event::Client { .. } => {}
        }
    }

    fn wake_ns(&self) -> Option<u64> {
        let lacp = self.state.lacp.as_ref().and_then(Lacp::wake_ns);
        let rebalance = self.counts_at_ns();
        let times = self.state.lingering.values().chain(self.state.holding.values()).min().copied();
        let learnt = self.state.learnt.wake_ns();
        let look = self.state.elephants.look.as_ref().map(|look| look.until_ns);
        [lacp, self.state.links.wake_ns(), rebalance, times, learnt, self.state.announces_ns, look]
            .into_iter()
            .flatten()
            .min()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let (moved, moved_busy) = self.state.moved();
        vec![("buckets_moved", moved), ("buckets_moved_busy", moved_busy), ("moves_ordered", self.state.moves_total)]
    }

    fn report(&self, now_ns: u64) -> Value {
        show::bond(self, now_ns)
    }
}

pub(super) fn shut() -> Admission {
    Admission { collecting: false, distributing: false }
}

pub(super) fn policy(bond: &Bond, ids: &BTreeMap<String, u16>) -> links::Policy {
    let probe = |probe: &super::config::Probe| links::Probe {
        interval_ms: probe.interval_ms,
        missed_max: probe.missed_max,
        targets: probe.targets.len() as u8,
        need: probe.need,
        validate: true,
    };
    links::Policy {
        updelay_ms: bond.updelay_ms,
        downdelay_ms: bond.downdelay_ms,
        primary: bond.primary.as_ref().and_then(|name| ids.get(name).copied()),
        reselect: bond.reselect,
        probe: bond.probe.as_ref().map(probe),
    }
}

pub(super) fn settings(bond: &Bond, id: u16, member: &Member) -> lacp::Settings {
    let port = NonZeroU16::MIN.saturating_add(id);
    lacp::Settings { mac: member.mac.unwrap_or_else(|| bond.mac()), port, priority: member.priority, key: member.key }
}

fn due(times: &mut BTreeMap<u16, u64>, now_ns: u64) -> Vec<u16> {
    let due: Vec<u16> = times.iter().filter(|entry| *entry.1 <= now_ns).map(|entry| *entry.0).collect();
    times.retain(|_, at| *at > now_ns);
    due
}
