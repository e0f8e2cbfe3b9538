//! The bond while it runs: links, LACP and load come in as events, and moves of buckets, entries of its pipes and frames go
//! out as actions. What is decided is decided in `links`, `lacp`, `assignment` and `rebalance`; here they are wired up.
//!
//! Members have numbers that stay theirs while the bond lives, whatever a reload does to the list; the group's targets are
//! positions in that list.

use super::announce;
use super::assignment::{Assignment, Move, When, weight_of_speed};
use super::config::{Bond, Inward, Member, Mode};
use super::lacp::{self, Lacp, Negotiation};
use super::learnt::{Learnt, Mac};
use super::links::{self, Admission, Links, Output, Reason};
use super::pipes::Names;
use super::rebalance::{Carrier, Plan, Rebalance, View};
use super::show;
use crate::app::{Action, App, Event, RequestId};
use engine::change::{Change, EntryKey};
use engine::program::{Entry, EntryMatch, GroupId, PipeId, PortId, Program};
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

/// Moves that `show bond` remembers.
const MOVES_REMEMBERED: usize = 32;

/// A bond that runs.
pub struct BondApp {
    pub(super) bond: Bond,
    numbers: Numbers,
    pub(super) state: State,
}

/// What it is called in the program it is bound to.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    group: GroupId,
    inward: Option<PipeId>,
    learn: Option<PipeId>,
    reflected: Option<PipeId>,
    group_active: Option<PipeId>,
}

/// What outlives a reload.
pub(super) struct State {
    /// Names of members and their numbers.
    pub ids: BTreeMap<String, u16>,
    next_id: u16,
    pub lacp: Option<Lacp>,
    pub links: Links,
    pub assignment: Assignment,
    pub rebalance: Rebalance,
    pub learnt: Learnt,
    /// Whose frames come in: entries of `in`, and of `group/active`.
    admitted: BTreeSet<u16>,
    broadcast: Option<u16>,
    /// Members that are listened to until then.
    lingering: BTreeMap<u16, u64>,
    /// Members of which LACP is told then that they are out.
    holding: BTreeMap<u16, u64>,
    /// Members that the operator took out.
    pub disabled: BTreeSet<u16>,
    pub negotiation: Negotiation,
    /// Totals of the buckets when they were read last.
    pub buckets: BucketReport,
    asked: Vec<(RequestId, Question)>,
    /// The rebalance waits for totals.
    counting: bool,
    pub moves: VecDeque<Moved>,
    pub moves_total: u64,
    /// Speeds of the links that are known.
    speeds: BTreeMap<u16, u64>,
    /// Members that the configuration has no longer.
    gone: Vec<u16>,
    /// Entries of `in` that another kind of bond left.
    leftover: BTreeSet<u16>,
    begun: bool,
}

/// Buckets that were told to move.
#[derive(Clone, Debug)]
pub(super) struct Moved {
    pub at_ns: u64,
    pub buckets: Vec<u32>,
    pub to: u16,
    pub why: String,
}

/// What an operator waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Show,
    Buckets,
    Rebalance,
    DryRun,
}

impl BondApp {
    /// A bond whose links are not known yet. It has no [`super::Problem`].
    #[must_use]
    pub fn new(bond: Bond) -> BondApp {
        let ids: BTreeMap<String, u16> = bond.members.iter().map(|member| member.name.clone()).zip(0..).collect();
        let weight = |(id, member): (u16, &Member)| (id, member.weight.unwrap_or(UNKNOWN_WEIGHT));
        let weights: Vec<(u16, u32)> = (0..).zip(&bond.members).map(weight).collect();
        let size = bond.size() as usize;
        let state = State {
            next_id: ids.len() as u16,
            lacp: bond.lacp.clone().map(Lacp::new),
            links: Links::new(0, policy(&bond, &ids), None, &[]).0,
            assignment: Assignment::new(bond.size(), &weights),
            rebalance: Rebalance::new(bond.rule, bond.rebalance_ms, 0, &vec![0; size]),
            learnt: Learnt::new(bond.learnt_max),
            admitted: BTreeSet::new(),
            broadcast: None,
            lingering: BTreeMap::new(),
            holding: BTreeMap::new(),
            disabled: BTreeSet::new(),
            negotiation: Negotiation::default(),
            buckets: no_buckets(size),
            asked: Vec::new(),
            counting: false,
            moves: VecDeque::new(),
            moves_total: 0,
            speeds: BTreeMap::new(),
            gone: Vec::new(),
            leftover: BTreeSet::new(),
            begun: false,
            ids,
        };
        BondApp { bond, numbers: Numbers::default(), state }
    }

    /// A member's number.
    fn id(&self, name: &str) -> Option<u16> {
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
        self.member(id).map_or("none", |member| &member.name)
    }

    /// A member's place among the group's targets.
    fn target(&self, id: u16) -> u16 {
        let place = self.bond.members.iter().position(|member| self.id(&member.name) == Some(id));
        place.map_or(NO_TARGET, |place| place as u16)
    }

    /// Do all frames leave by the active member?
    pub(super) fn is_single(&self) -> bool {
        self.bond.mode == Mode::ActiveBackup || self.state.negotiation == Negotiation::Fallback
    }

    /// Adds the members to LACP and links; those that are there already stay as they are.
    fn begin(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        if std::mem::replace(&mut self.state.begun, true) {
            self.adapt(now_ns, actions);
        }
        for (id, member) in self.members() {
            let admission = if self.state.lacp.is_some() { shut() } else { Admission::default() };
            let settings = settings(&self.bond, id, &member);
            self.tell_lacp(now_ns, lacp::Event::Add { member: id, settings }, actions);
            let link = links::Link { member: id, carrier: false, speed_bps: None, admission };
            self.tell_links(now_ns, links::Event::Add(link), actions);
        }
    }

    fn link(&mut self, now_ns: u64, port: PortId, up: bool, speed_bps: Option<u64>, actions: &mut Vec<Action>) {
        let Some((id, member)) = self.member_at(port) else { return };
        let member = member.clone();
        if let Some(speed) = speed_bps {
            self.state.speeds.insert(id, speed);
            let moves = self.state.assignment.set_weight(id, self.weight(id, &member));
            self.order(now_ns, &moves, "a member's speed", actions);
        }
        // The carrier first: what LACP makes of its loss is not the reason.
        self.tell_links(now_ns, links::Event::Speed(id, speed_bps), actions);
        self.tell_links(now_ns, links::Event::Carrier(id, up), actions);
        self.tell_lacp(now_ns, lacp::Event::Link { member: id, up, speed_bps }, actions);
        // A member that was left on purpose may have had buckets that waited: now nothing must wait.
        if !up && self.state.disabled.contains(&id) {
            self.send_table(actions);
        }
    }

    fn frame(&mut self, now_ns: u64, app: &str, input: PortId, bytes: &[u8], actions: &mut Vec<Action>) {
        let member = self.member_at(input).map(|(id, _)| id);
        if app == Names(&self.bond.name).learn() {
            return match member {
                Some(_) => self.came_back(now_ns, bytes, actions),
                None => self.learn(now_ns, bytes, actions),
            };
        }
        let Some(id) = member else { return };
        let answered = announce::answer(bytes).and_then(|from| {
            let targets = &self.bond.probe.as_ref()?.targets;
            targets.iter().position(|target| *target == from)
        });
        match answered {
            Some(target) => self.tell_links(now_ns, links::Event::Answer(id, target as u8), actions),
            None => self.tell_lacp(now_ns, lacp::Event::Pdu { member: id, bytes }, actions),
        }
    }

    fn learn(&mut self, now_ns: u64, bytes: &[u8], actions: &mut Vec<Action>) {
        let Some((mac, gone)) = self.state.learnt.learn(now_ns, bytes) else { return };
        for pipe in [self.numbers.learn, self.numbers.reflected].into_iter().flatten() {
            actions.extend(gone.map(|gone| Action::Change(remove(pipe, number(gone)))));
            actions.push(Action::Change(add(pipe, number(mac))));
        }
    }

    fn came_back(&mut self, now_ns: u64, bytes: &[u8], actions: &mut Vec<Action>) {
        let Some(mac) = self.state.learnt.has_moved(now_ns, bytes) else { return };
        for pipe in [self.numbers.learn, self.numbers.reflected].into_iter().flatten() {
            actions.push(Action::Change(remove(pipe, number(mac))));
        }
        if let Inward::Port(output) = self.bond.inward {
            actions.push(Action::Inject { bytes: bytes.to_vec(), output });
        }
    }

    fn tick(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        self.tell_lacp(now_ns, lacp::Event::Tick, actions);
        self.tell_links(now_ns, links::Event::Tick, actions);
        for id in due(&mut self.state.holding, now_ns) {
            self.tell_lacp(now_ns, lacp::Event::Hold { member: id, held: true }, actions);
        }
        let lapsed = due(&mut self.state.lingering, now_ns);
        if !lapsed.is_empty() {
            self.admit(now_ns, false, actions);
        }
        if self.counts_at_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            self.state.counting = true;
            actions.push(Action::ReadBuckets(self.numbers.group));
        }
    }

    fn tell_lacp(&mut self, now_ns: u64, event: lacp::Event<'_>, actions: &mut Vec<Action>) {
        let Some(lacp) = &mut self.state.lacp else { return };
        let mut wanted = Vec::new();
        lacp.step(now_ns, event, &mut wanted);
        for action in wanted {
            match action {
                lacp::Action::Transmit { member, frame } => {
                    let output = self.member(member).map(|member| member.port);
                    actions.extend(output.map(|output| Action::Inject { bytes: frame, output }));
                }
                lacp::Action::Member { member, collecting, distributing } => {
                    let admission = Admission { collecting, distributing };
                    self.tell_links(now_ns, links::Event::Admission(member, admission), actions);
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
                let open = falls_back || member.mux == "distributing";
                let admission = if open { Admission::default() } else { shut() };
                self.tell_links(now_ns, links::Event::Admission(member.member, admission), actions);
            }
            self.reassign(now_ns, "LACP has or has not a partner", actions);
        }
    }

    fn tell_links(&mut self, now_ns: u64, event: links::Event, actions: &mut Vec<Action>) {
        let outputs = self.state.links.step(now_ns, event);
        self.follow(now_ns, outputs, actions);
    }

    /// Does what the state of the links asks for.
    fn follow(&mut self, now_ns: u64, outputs: Vec<Output>, actions: &mut Vec<Action>) {
        let (mut lost, mut moved) = (false, None);
        for output in outputs {
            match output {
                Output::Enabled(id) => {
                    actions.push(Action::Say(format!("{}: enabled", self.name(id))));
                    self.set_up(now_ns, id, true, "a member is there", None, actions);
                }
                Output::Disabled(id, reason) => {
                    actions.push(Action::Say(format!("{}: disabled, {}", self.name(id), show::reason(reason))));
                    lost = true;
                    self.set_up(now_ns, id, false, show::reason(reason), Some(reason), actions);
                    if matches!(reason, Reason::Operator | Reason::Lacp) {
                        self.state.lingering.insert(id, now_ns + LINGER_NS);
                    }
                }
                Output::Active { from, to } => moved = from.map(|_| to),
                Output::Probe(id, target) => self.probe(id, target, actions),
            }
        }
        if let Some(active) = moved.filter(|_| self.is_single()) {
            let to = active.map_or("none", |id| self.name(id)).to_string();
            self.reassign(now_ns, &format!("the active member is {to}"), actions);
        } else if self.is_single() {
            self.reassign(now_ns, "the active member", actions);
        }
        self.admit(now_ns, true, actions);
        let by_switch = self.is_single() || self.bond.mode == Mode::BalanceSlb;
        if by_switch && (moved.flatten().is_some() || lost) {
            self.announce(actions);
        }
    }

    fn set_up(&mut self, now_ns: u64, id: u16, up: bool, why: &str, reason: Option<Reason>, actions: &mut Vec<Action>) {
        if self.is_single() {
            return;
        }
        let mut moves = self.state.assignment.set_up(id, up);
        if reason == Some(Reason::Operator) {
            // The link works: no bucket has to leave it in a hurry.
            moves.iter_mut().for_each(|one| one.when = When::Idle);
        }
        self.order(now_ns, &moves, why, actions);
    }

    /// Everybody's state anew: the active member alone, or all that are enabled.
    fn reassign(&mut self, now_ns: u64, why: &str, actions: &mut Vec<Action>) {
        let moves = if self.is_single() {
            self.state.assignment.set_only(self.state.links.active())
        } else {
            let enabled: BTreeSet<u16> = self.state.links.enabled().collect();
            let ids: Vec<u16> = self.state.ids.values().copied().collect();
            ids.into_iter().flat_map(|id| self.state.assignment.set_up(id, enabled.contains(&id))).collect()
        };
        self.order(now_ns, &moves, why, actions);
    }

    /// Orders moves of buckets.
    fn order(&mut self, now_ns: u64, moves: &[Move], why: &str, actions: &mut Vec<Action>) {
        for when in [When::Now, When::Idle] {
            let list = moves.iter().filter(|one| one.when == when);
            let list: Vec<(u32, u16)> = list.map(|one| (one.bucket, self.target(one.to))).collect();
            if !list.is_empty() {
                actions.push(self.move_buckets(list, when));
            }
        }
        self.state.moves_total += moves.len() as u64;
        let targets: BTreeSet<u16> = moves.iter().map(|one| one.to).collect();
        for to in targets {
            if self.state.moves.len() == MOVES_REMEMBERED {
                self.state.moves.pop_front();
            }
            let buckets: Vec<u32> = moves.iter().filter(|one| one.to == to).map(|one| one.bucket).collect();
            self.state.moves.push_back(Moved { at_ns: now_ns, buckets, to, why: why.to_string() });
        }
    }

    fn move_buckets(&self, list: Vec<(u32, u16)>, when: When) -> Action {
        let (idle_gap_ns, wait_max_ns) = match when {
            When::Now => (0, 0),
            When::Idle => (self.bond.idle_gap_ns, self.bond.idle_gap_max_ns),
        };
        Action::Change(Change::MoveBuckets { group: self.numbers.group, moves: list.into(), idle_gap_ns, wait_max_ns })
    }

    /// Has every bucket be at once where it should.
    fn send_table(&mut self, actions: &mut Vec<Action>) {
        let list = (0..).zip(self.state.assignment.slots()).map(|(bucket, &id)| (bucket, self.target(id))).collect();
        actions.push(self.move_buckets(list, When::Now));
    }

    /// Brings the entries of `in` and `group/active` in line with the links.
    fn admit(&mut self, now_ns: u64, linger: bool, actions: &mut Vec<Action>) {
        let wanted: BTreeSet<u16> = self.state.ids.values().copied().filter(|id| self.listens(*id)).collect();
        self.state.lingering.retain(|id, _| !wanted.contains(id));
        let kept = |id: &u16| linger && self.state.lingering.get(id).is_some_and(|until| *until > now_ns);
        let gone: Vec<u16> = self.state.admitted.difference(&wanted).copied().filter(|id| !kept(id)).collect();
        let new: Vec<u16> = wanted.difference(&self.state.admitted).copied().collect();
        let Some(inward) = self.numbers.inward else { return };
        for id in std::mem::take(&mut self.state.leftover) {
            let port = self.member(id).map(|member| u128::from(member.port.0));
            actions.extend(port.map(|port| Action::Change(remove(inward, port))));
        }
        for (id, comes) in gone.into_iter().map(|id| (id, false)).chain(new.into_iter().map(|id| (id, true))) {
            let Some(port) = self.member(id).map(|member| u128::from(member.port.0)) else { continue };
            actions.push(Action::Change(if comes { add(inward, port) } else { remove(inward, port) }));
            if comes {
                self.state.admitted.insert(id)
            } else {
                self.state.admitted.remove(&id)
            };
        }
        self.admit_broadcast(actions);
    }

    fn admit_broadcast(&mut self, actions: &mut Vec<Action>) {
        let Some(pipe) = self.numbers.group_active else { return };
        let active = self.state.links.active();
        let was = std::mem::replace(&mut self.state.broadcast, active);
        let port = |id: Option<u16>| Some(u128::from(self.member(id?)?.port.0));
        if was != active {
            actions.extend(port(was).map(|port| Action::Change(remove(pipe, port))));
            actions.extend(port(active).map(|port| Action::Change(add(pipe, port))));
        }
    }

    /// Are frames from this member taken in?
    fn listens(&self, id: u16) -> bool {
        if self.is_single() {
            return self.state.links.active() == Some(id);
        }
        let Some(state) = self.state.links.state(id) else { return false };
        if self.state.lacp.is_some() { state.collecting } else { state.enabled }
    }

    /// Tells the network that what is inside is reached another way now.
    fn announce(&self, actions: &mut Vec<Action>) {
        let Some(active) = self.state.links.active().and_then(|id| self.member(id)) else { return };
        if let Inward::Port(input) = self.bond.inward {
            let through = |(mac, known): (Mac, super::learnt::Known)| Action::InjectThrough {
                bytes: announce::rarp(mac, known.vid),
                input,
            };
            actions.extend(self.state.learnt.iter().map(through));
        }
        let mac = self.bond.mac();
        let own = |address: &std::net::IpAddr| Action::Inject {
            bytes: announce::address(mac, *address),
            output: active.port,
        };
        actions.extend(self.bond.announce.iter().map(own));
    }

    fn probe(&self, id: u16, target: u8, actions: &mut Vec<Action>) {
        let (Some(member), Some(probe)) = (self.member(id), &self.bond.probe) else { return };
        let Some(&target) = probe.targets.get(usize::from(target)) else { return };
        let mac = member.mac.unwrap_or_else(|| self.bond.mac());
        actions.push(Action::Inject { bytes: announce::question(mac, probe.source, target), output: member.port });
    }

    fn count(&mut self, now_ns: u64, report: &BucketReport, actions: &mut Vec<Action>) {
        self.state.buckets.clone_from(report);
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
                    let plan = self.may_rebalance().then(|| self.state.rebalance.plan(self.view(&carriers)));
                    show::plan(self, plan.as_ref().map(|plan| (plan, carriers.as_slice())))
                }
            };
            actions.push(Action::Answer { id, answer: Ok(answer) });
        }
    }

    fn carriers(&self) -> Vec<Carrier> {
        let capacity = |id: u16| self.member(id).map_or(UNKNOWN_WEIGHT, |member| self.weight(id, member));
        self.state.links.enabled().map(|member| Carrier { member, capacity: capacity(member) }).collect()
    }

    fn view<'a>(&'a self, carriers: &'a [Carrier]) -> View<'a> {
        View { totals: &self.state.buckets.bytes, slots: self.state.assignment.slots(), carriers }
    }

    /// When the buckets are to be read for the next rebalance.
    fn counts_at_ns(&self) -> Option<u64> {
        self.state.rebalance.wake_ns().filter(|_| self.may_rebalance() && !self.state.counting)
    }

    fn may_rebalance(&self) -> bool {
        !self.is_single() && self.bond.mode.is_balanced()
    }

    /// Evens out loads: if it is time, or if the operator asked.
    fn rebalance(&mut self, now_ns: u64, asked: bool, actions: &mut Vec<Action>) -> Option<Plan> {
        if !self.may_rebalance() {
            return None;
        }
        let carriers = self.carriers();
        let State { rebalance, buckets, assignment, .. } = &mut self.state;
        let view = View { totals: &buckets.bytes, slots: assignment.slots(), carriers: &carriers };
        let plan = if asked { Some(rebalance.run(now_ns, view)) } else { rebalance.step(now_ns, view) }?;
        for shift in &plan.moves {
            let moves = self.state.assignment.rebalance([(shift.bucket, shift.to)]);
            self.order(now_ns, &moves, &shift.reason.to_string(), actions);
        }
        if !plan.moves.is_empty() {
            actions.push(Action::Say(format!("rebalanced: {} buckets move", plan.moves.len())));
        }
        Some(plan)
    }

    fn request(&mut self, now_ns: u64, id: RequestId, request: &Value, actions: &mut Vec<Action>) {
        let words: Vec<&str> = request.as_str().unwrap_or_default().split_whitespace().collect();
        let question = match words.as_slice() {
            ["show"] => Some(Question::Show),
            ["buckets"] => Some(Question::Buckets),
            ["rebalance"] => Some(Question::Rebalance),
            ["rebalance", "dry-run"] => Some(Question::DryRun),
            _ => None,
        };
        if let Some(question) = question {
            self.state.asked.push((id, question));
            actions.push(Action::ReadBuckets(self.numbers.group));
            return;
        }
        let answer = self.command(now_ns, &words, actions).map(Value::String);
        actions.push(Action::Answer { id, answer });
    }

    fn command(&mut self, now_ns: u64, words: &[&str], actions: &mut Vec<Action>) -> Result<String, String> {
        let named = |name: &str| self.id(name).filter(|id| self.member(*id).is_some());
        let known = |name: &str| named(name).ok_or_else(|| show::no_member(self, name));
        match *words {
            ["migrate", bucket, name] => {
                let to = known(name)?;
                let bucket = bucket.parse().map_err(|_| format!("`{bucket}` is not a bucket's number"))?;
                if !self.bond.mode.is_balanced() {
                    return Err(format!("in mode {} buckets do not move by hand", self.bond.mode.name()));
                }
                let moves = self.state.assignment.migrate(bucket, to).map_err(|why| show::refusal(self, &why))?;
                self.order(now_ns, &moves, "the operator's word", actions);
                Ok(format!("bucket {bucket} goes to {name} when it is idle, within {} ms", self.wait_ms()))
            }
            ["disable", name] => {
                let id = known(name)?;
                self.state.disabled.insert(id);
                self.tell_links(now_ns, links::Event::Operator(id, false), actions);
                // The partner is told once nothing goes out by the member any more.
                self.state.holding.insert(id, now_ns + self.bond.idle_gap_max_ns);
                Ok(format!("{name} is left: its buckets move when they are idle, within {} ms", self.wait_ms()))
            }
            ["enable", name] => {
                let id = known(name)?;
                self.state.disabled.remove(&id);
                self.state.holding.remove(&id);
                self.tell_lacp(now_ns, lacp::Event::Hold { member: id, held: false }, actions);
                self.tell_links(now_ns, links::Event::Operator(id, true), actions);
                Ok(format!("{name} may be used again"))
            }
            ["set-active", name] => {
                let id = known(name)?;
                if !self.is_single() && self.bond.mode != Mode::BalanceSlb {
                    return Err(format!("in mode {} no member is the active one", self.bond.mode.name()));
                }
                let outputs = self.state.links.set_active(id).map_err(|_| format!("{name} is not enabled"))?;
                self.follow(now_ns, outputs, actions);
                Ok(format!("{name} is active"))
            }
            _ => Err("a bond understands show, buckets, migrate BUCKET MEMBER, disable MEMBER, enable MEMBER, \
                      set-active MEMBER, rebalance and rebalance dry-run"
                .to_string()),
        }
    }

    fn wait_ms(&self) -> u64 {
        self.bond.idle_gap_max_ns / 1_000_000
    }

    /// Takes over what another of the same name had, member by member. What that takes to do is done when it begins.
    fn take_over(&mut self, old: BondApp) {
        let BondApp { bond: before, state: had, .. } = old;
        if before.mode != self.bond.mode || before.lacp.is_some() != self.bond.lacp.is_some() {
            // Another kind of bond: only what lies in the pipes is known still.
            (self.state.learnt, self.state.leftover) = (had.learnt, had.admitted);
            return;
        }
        let fresh = std::mem::replace(&mut self.state, had);
        let old_ids = std::mem::take(&mut self.state.ids);
        for name in fresh.ids.into_keys() {
            let id = old_ids.get(&name).copied().unwrap_or_else(|| {
                self.state.next_id += 1;
                self.state.next_id - 1
            });
            self.state.ids.insert(name, id);
        }
        let stays = |id: &u16| self.state.ids.values().any(|one| one == id);
        self.state.gone = old_ids.into_values().filter(|id| !stays(id)).collect();
    }

    /// Brings what was taken over in line with the configuration.
    fn adapt(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let (size, totals) = (self.bond.size(), self.state.buckets.bytes.clone());
        self.state.rebalance.set_rule(self.bond.rule);
        self.state.rebalance.set_interval(self.bond.rebalance_ms, now_ns, &totals);
        for id in std::mem::take(&mut self.state.gone) {
            self.tell_lacp(now_ns, lacp::Event::Remove { member: id }, actions);
            self.tell_links(now_ns, links::Event::Remove(id), actions);
            let moves = self.state.assignment.remove(id);
            self.order(now_ns, &moves, "a member was removed", actions);
            self.state.admitted.remove(&id);
        }
        if self.state.assignment.slots().len() != size as usize {
            let moves = self.state.assignment.resize(size);
            self.order(now_ns, &moves, "another number of buckets", actions);
            self.state.buckets = no_buckets(size as usize);
        }
        if let Some(config) = self.bond.lacp.clone() {
            self.tell_lacp(now_ns, lacp::Event::Reconfigure(&config), actions);
        }
        let policy = policy(&self.bond, &self.state.ids);
        self.tell_links(now_ns, links::Event::Policy(policy), actions);
        for (id, member) in self.members() {
            let weight = self.weight(id, &member);
            let up = !self.is_single() && self.state.links.enabled().any(|enabled| enabled == id);
            let mut moves = self.state.assignment.add(id, weight, up);
            moves.extend(self.state.assignment.set_weight(id, weight));
            self.order(now_ns, &moves, "another weight, or a new member", actions);
        }
    }

    fn members(&self) -> Vec<(u16, Member)> {
        self.bond.members.iter().filter_map(|member| Some((self.id(&member.name)?, member.clone()))).collect()
    }

    /// A member's share: as written, or by its speed.
    fn weight(&self, id: u16, member: &Member) -> u32 {
        let speed = self.state.speeds.get(&id).copied().map(weight_of_speed);
        member.weight.or(speed).unwrap_or(UNKNOWN_WEIGHT)
    }
}

fn no_buckets(size: usize) -> BucketReport {
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
        vec![names.slow(), names.learn()]
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
        let names = Names(&self.bond.name);
        self.numbers = Numbers {
            group: program.group_named(&names.group()).unwrap_or_default(),
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
            Event::Buckets { report, .. } => self.count(now_ns, report, actions),
            Event::Refused { why, .. } => actions.push(Action::Say(format!("a change was refused: {why}"))),
            Event::Client { .. } => {}
        }
    }

    fn wake_ns(&self) -> Option<u64> {
        let lacp = self.state.lacp.as_ref().and_then(Lacp::wake_ns);
        let rebalance = self.counts_at_ns();
        let times = self.state.lingering.values().chain(self.state.holding.values()).min().copied();
        [lacp, self.state.links.wake_ns(), rebalance, times].into_iter().flatten().min()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let BucketReport { moved, moved_busy, .. } = self.state.buckets;
        vec![("buckets_moved", moved), ("buckets_moved_busy", moved_busy), ("moves_ordered", self.state.moves_total)]
    }

    fn report(&self, now_ns: u64) -> Value {
        show::bond(self, now_ns)
    }
}

fn shut() -> Admission {
    Admission { collecting: false, distributing: false }
}

fn policy(bond: &Bond, ids: &BTreeMap<String, u16>) -> links::Policy {
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

fn settings(bond: &Bond, id: u16, member: &Member) -> lacp::Settings {
    let port = NonZeroU16::MIN.saturating_add(id);
    lacp::Settings { mac: member.mac.unwrap_or_else(|| bond.mac()), port, priority: member.priority, key: member.key }
}

fn due(times: &mut BTreeMap<u16, u64>, now_ns: u64) -> Vec<u16> {
    let due: Vec<u16> = times.iter().filter(|entry| *entry.1 <= now_ns).map(|entry| *entry.0).collect();
    times.retain(|_, at| *at > now_ns);
    due
}

fn add(pipe: PipeId, value: u128) -> Change {
    let entry = Entry { matches: vec![EntryMatch::Value(value)], run_time: true, ..Entry::default() };
    Change::Add { pipe, entry }
}

fn remove(pipe: PipeId, value: u128) -> Change {
    Change::Remove { pipe, key: EntryKey { matches: vec![EntryMatch::Value(value)], priority: 0 } }
}

fn number(mac: Mac) -> u128 {
    mac.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}
