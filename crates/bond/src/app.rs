//! A running bond. Events come in; moves of buckets, changes of entries and frames go out as actions. Each
//! part of the bond makes its decisions in its own file; this file passes the results from one part to the
//! others.

use super::admission::Admitted;
use super::aggregation::{Aggregation, settings};
use super::announcements::{self, Announcements};
use super::config::{Bond, Inward, Mode};
use super::lacp;
use super::links::{self, Admission, Links, Output, Reason};
use super::members::Members;
use super::pipes::{KEY, Names};
use super::rebalance::Carrier;
use super::requests::Question;
use super::show;
use super::stations::Stations;
use super::traffic::{Context, Traffic};
use serde_json::{Value, json};
use std::any::Any;
use std::collections::BTreeSet;
use weir_app::{Action, App, Event, Level, MetricHelp, RequestId, Sample};
use weir_program::change::Change;
use weir_program::{PortId, Program};

/// How long frames are still accepted from a member that was taken out: its partner is informed within a
/// second.
const LINGER_NS: u64 = 1_100_000_000;

/// The longest delay between the request for a change and the moment when the workers carry it out.
const SLACK_NS: u64 = 20_000_000;

/// What its metrics mean.
const HELPS: &[MetricHelp] = &[
    ("buckets_moved", "Buckets that had moved at the last rebalance"),
    ("buckets_moved_busy", "Buckets that had moved while they were in use, at the last rebalance"),
    ("moves_ordered", "Buckets that were ordered to move"),
];

/// A running bond, made of parts with one concern each.
pub struct BondApp {
    pub(super) bond: Bond,
    pub(super) members: Members,
    pub(super) links: Links,
    pub(super) aggregation: Aggregation,
    pub(super) admitted: Admitted,
    pub(super) stations: Stations,
    announcements: Announcements,
    pub(super) traffic: Traffic,
    /// Requests that wait for bucket counters to be read.
    pub(super) asked: Vec<(RequestId, Question)>,
    pub(super) begun: bool,
    /// State of another process that this one takes over from.
    resumed: Option<Resumed>,
}

/// Members of another process's bond.
struct Resumed {
    /// Members that were in use.
    enabled: BTreeSet<u16>,
    /// Members that the operator had disabled.
    disabled: BTreeSet<u16>,
}

impl BondApp {
    /// Creates a bond whose links are not known yet. It must have no [`super::ConfigProblem`].
    #[must_use]
    pub fn new(bond: Bond) -> BondApp {
        let members = Members::new(&bond);
        BondApp {
            links: Links::new(0, bond.link_policy(&members), None, &[]).0,
            aggregation: Aggregation::new(&bond),
            admitted: Admitted::default(),
            stations: Stations::new(&bond),
            announcements: Announcements::default(),
            traffic: Traffic::new(&bond, &members),
            asked: Vec::new(),
            begun: false,
            resumed: None,
            members,
            bond,
        }
    }

    /// Whether all frames leave through the active member.
    pub(super) fn is_single(&self) -> bool {
        self.bond.mode == Mode::ActiveBackup || self.aggregation.falls_back()
    }

    /// The part that determines through which member frames leave, and the context that it needs.
    pub(super) fn traffic(&mut self, now_ns: u64) -> (&mut Traffic, Context<'_>) {
        let BondApp { bond, members, traffic, .. } = self;
        (traffic, Context { now_ns, bond, members })
    }

    /// Adds the members to LACP and to the links; existing members keep their state.
    fn begin(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        self.stations.begin(actions);
        if std::mem::replace(&mut self.begun, true) {
            self.adapt(now_ns, actions);
        } else {
            let (traffic, context) = self.traffic(now_ns);
            traffic.begin(context, actions);
        }
        if !self.traffic.balance.counted {
            self.traffic.read(actions);
        }
        for (id, member) in self.members.each() {
            let decides = self.aggregation.decides();
            let admission = if decides {
                Admission { collecting: false, distributing: false }
            } else {
                Admission::default()
            };
            let settings = settings(&self.bond, id, &member);
            self.notify_lacp(now_ns, lacp::Event::Add { member: id, settings }, actions);
            let link = links::Link { member: id, carrier: false, speed_bps: None, admission };
            self.notify_links(now_ns, links::LinkEvent::Add(link), actions);
        }
        if let Some(Resumed { enabled, disabled }) = self.resumed.take() {
            enabled.into_iter().for_each(|id| self.links.waive(id));
            disabled.into_iter().for_each(|id| self.disable(now_ns, id, actions));
        }
    }

    fn link(
        &mut self,
        now_ns: u64,
        port: PortId,
        up: bool,
        speed_bps: Option<u64>,
        actions: &mut Vec<Action>,
    ) {
        let Some(id) = self.members.at(port) else { return };
        if let Some(speed) = speed_bps {
            self.members.set_speed(id, speed);
            let (traffic, context) = self.traffic(now_ns);
            traffic.set_speed(context, id, actions);
        }
        // Carrier first, so that the reported reason is not LACP's reaction to losing it.
        self.notify_links(now_ns, links::LinkEvent::Speed(id, speed_bps), actions);
        self.notify_links(now_ns, links::LinkEvent::Carrier(id, up), actions);
        self.notify_lacp(now_ns, lacp::Event::Link { member: id, up, speed_bps }, actions);
        if !up {
            self.hasten(now_ns, id, show::reason(Reason::Carrier), actions);
        }
    }

    fn frame(&mut self, now_ns: u64, app: &str, input: PortId, bytes: &[u8], actions: &mut Vec<Action>) {
        let name = self.bond.name.clone();
        let names = Names(&name);
        if self.bond.elephants > 0 && app == names.heavy() {
            let (traffic, context) = self.traffic(now_ns);
            return traffic.looked_at(context, bytes, actions);
        }
        match self.members.at(input) {
            None if app == names.learn() => self.stations.learn(now_ns, bytes, actions),
            Some(id) if app == names.learn() => self.reflected(now_ns, id, bytes, actions),
            Some(id) if app == names.slow() => {
                self.notify_lacp(now_ns, lacp::Event::Pdu { member: id, bytes }, actions);
            }
            Some(id) if app == names.answers() => self.answered(now_ns, id, bytes, actions),
            _ => {}
        }
    }

    /// Handles a frame that was received on a member but whose source address is inside. Broadcasts count
    /// only on the member that accepts them.
    fn reflected(&mut self, now_ns: u64, id: u16, bytes: &[u8], actions: &mut Vec<Action>) {
        let to_all = bytes.first().is_some_and(|first| first & 1 == 1);
        if to_all && self.links.active() != Some(id) || !self.stations.has_moved(now_ns, bytes, actions) {
            return;
        }
        if let Inward::Port(output) = self.bond.inward {
            actions.push(Action::Inject { bytes: bytes.to_vec(), output });
        }
    }

    fn answered(&mut self, now_ns: u64, id: u16, bytes: &[u8], actions: &mut Vec<Action>) {
        let (Some(probe), Some(own)) = (&self.bond.probe, self.asks_as(id)) else { return };
        let from = announcements::answer(bytes, own, probe.vlan);
        let target = from.and_then(|from| probe.targets.iter().position(|target| *target == from));
        if let Some(target) = target {
            self.notify_links(now_ns, links::LinkEvent::Answer(id, target as u8), actions);
        }
    }

    fn tick(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let due = |wake_ns: Option<u64>| wake_ns.is_some_and(|at_ns| at_ns <= now_ns);
        self.notify_lacp(now_ns, lacp::Event::Tick, actions);
        self.notify_links(now_ns, links::LinkEvent::Tick, actions);
        self.have_left(now_ns, actions);
        if due(self.admitted.wake_ns()) {
            self.admit(now_ns, actions);
        }
        self.stations.age(now_ns, actions);
        if due(self.announcements.wake_ns()) {
            self.announcements.send(now_ns, self.bond.inward, &self.stations.learnt, actions);
        }
        let (traffic, context) = self.traffic(now_ns);
        traffic.tick(context, actions);
        if self.may_rebalance() && self.traffic.balance.reads(now_ns) {
            self.traffic.read(actions);
        }
    }

    /// Handles members taken out by the operator once nothing is sent on them any more: informs their
    /// partner, and keeps accepting their frames until the partner knows.
    fn have_left(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let left = self.aggregation.due(now_ns);
        for &id in &left {
            self.notify_lacp(now_ns, lacp::Event::Hold { member: id, held: true }, actions);
        }
        if !left.is_empty() && self.bond.mode == Mode::BalanceSlb {
            self.announce(now_ns, actions);
        }
    }

    /// Announces to the network that the stations inside are now reached through another member.
    fn announce(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let Some(output) = self.links.active().and_then(|id| Some(self.members.get(id)?.port)) else {
            return;
        };
        self.announcements.start(&self.bond, output, &self.stations.learnt, actions);
        self.announcements.send(now_ns, self.bond.inward, &self.stations.learnt, actions);
    }

    pub(super) fn notify_lacp(&mut self, now_ns: u64, event: lacp::Event<'_>, actions: &mut Vec<Action>) {
        for action in self.aggregation.step(now_ns, event) {
            match action {
                lacp::Action::Transmit { member, frame } => {
                    let output = self.members.port(member);
                    actions.extend(output.map(|output| Action::Inject { bytes: frame, output }));
                }
                lacp::Action::Member { member, collecting, distributing } => {
                    let admission = Admission { collecting, distributing };
                    self.notify_links(now_ns, links::LinkEvent::Admission(member, admission), actions);
                    if !distributing {
                        self.hasten(now_ns, member, show::reason(Reason::Lacp), actions);
                    }
                }
                lacp::Action::Negotiation(negotiation) => {
                    let admissions = self.aggregation.negotiated(negotiation);
                    actions
                        .push(Action::Say(Level::Info, format!("LACP: {}", show::negotiation(negotiation))));
                    let Some(admissions) = admissions else { continue };
                    for (member, admission) in admissions {
                        self.notify_links(now_ns, links::LinkEvent::Admission(member, admission), actions);
                    }
                    self.reassign(now_ns, "LACP has or has not a partner", actions);
                }
                lacp::Action::Report { member, notice, kept_back } => {
                    let more = if kept_back > 0 {
                        format!(" ({kept_back} similar ones before)")
                    } else {
                        String::new()
                    };
                    actions.push(Action::Say(
                        Level::Warning,
                        format!("{}: {notice}{more}", self.members.name(member)),
                    ));
                }
            }
        }
    }

    pub(super) fn notify_links(&mut self, now_ns: u64, event: links::LinkEvent, actions: &mut Vec<Action>) {
        let outputs = self.links.step(now_ns, event);
        self.follow(now_ns, outputs, actions);
    }

    /// Acts on a change in the state of the links.
    pub(super) fn follow(&mut self, now_ns: u64, outputs: Vec<Output>, actions: &mut Vec<Action>) {
        let (mut lost, mut active) = (false, None);
        for output in outputs {
            match output {
                Output::Enabled(id) => {
                    actions.push(Action::Say(Level::Info, format!("{}: enabled", self.members.name(id))));
                    self.set_up(now_ns, id, None, actions);
                }
                Output::Disabled(id, reason) => {
                    let why = show::reason(reason);
                    actions.push(Action::Say(
                        Level::Warning,
                        format!("{}: disabled, {why}", self.members.name(id)),
                    ));
                    self.set_up(now_ns, id, Some(reason), actions);
                    self.linger(now_ns, id, reason);
                    // A member that the operator takes out may be drained gradually; see `have_left`.
                    lost |= reason != Reason::Operator;
                }
                Output::Active { to, .. } => active = Some(to),
                Output::Probe(id, target) => self.probe(id, target, actions),
            }
        }
        if self.is_single() {
            let to = self.links.active().map_or("none", |id| self.members.name(id));
            self.reassign(now_ns, &format!("the active member is {to}"), actions);
        }
        self.admit(now_ns, actions);
        let by_switch = self.is_single() || self.bond.mode == Mode::BalanceSlb;
        if by_switch && active.flatten().is_some() || self.bond.mode == Mode::BalanceSlb && lost {
            self.announce(now_ns, actions);
        }
    }

    /// Keeps accepting the frames of a member that was taken out while its partner does not know yet.
    fn linger(&mut self, now_ns: u64, id: u16, reason: Reason) {
        match reason {
            Reason::Operator => self.admitted.linger(id, now_ns + self.leaves_in_ns() + LINGER_NS),
            Reason::Lacp => self.admitted.linger(id, now_ns + LINGER_NS),
            Reason::Removed | Reason::Carrier | Reason::Probe => {}
        }
    }

    /// The maximum time until nothing is sent any more on a member that the operator has taken out.
    pub(super) fn leaves_in_ns(&self) -> u64 {
        self.bond.idle_gap_max_ns + SLACK_NS
    }

    /// Returns the MAC address from which a member sends probes, and to which answers must be sent.
    fn asks_as(&self, id: u16) -> Option<[u8; 6]> {
        self.members.get(id).map(|member| self.bond.asks_as(member))
    }

    fn probe(&self, id: u16, target: u8, actions: &mut Vec<Action>) {
        let (Some(member), Some(probe)) = (self.members.get(id), &self.bond.probe) else { return };
        let Some(&target) = probe.targets.get(usize::from(target)) else { return };
        let Some(own) = self.asks_as(id) else { return };
        let bytes = announcements::question((own, probe.vlan), probe.source, target);
        actions.push(Action::Inject { bytes, output: member.port });
    }

    /// Updates the entries of `in` and `group/active` to the state of the links.
    fn admit(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let each = self.members.each();
        let wanted =
            each.iter().filter(|(id, _)| self.listens(*id)).map(|(id, member)| (*id, member.port)).collect();
        let active = self.links.active().and_then(|id| Some(self.members.get(id)?.port));
        self.admitted.update(now_ns, &wanted, active, actions);
    }

    /// Whether frames from this member are accepted.
    fn listens(&self, id: u16) -> bool {
        let Some(state) = self.links.state(id) else { return false };
        if self.aggregation.decides() {
            // The partner spreads its frames over all collecting links, regardless of which member is active
            // here.
            state.collecting
        } else if self.is_single() {
            self.links.active() == Some(id)
        } else {
            state.enabled
        }
    }

    fn set_up(&mut self, now_ns: u64, id: u16, against: Option<Reason>, actions: &mut Vec<Action>) {
        if !self.is_single() {
            let (traffic, context) = self.traffic(now_ns);
            traffic.set_up(context, id, against, actions);
        }
    }

    fn hasten(&mut self, now_ns: u64, id: u16, why: &str, actions: &mut Vec<Action>) {
        if self.members.disabled.contains(&id) && !self.is_single() {
            let (traffic, context) = self.traffic(now_ns);
            traffic.hasten(context, id, why, actions);
        }
    }

    fn reassign(&mut self, now_ns: u64, why: &str, actions: &mut Vec<Action>) {
        let single = self.is_single();
        let BondApp { bond, members, links, traffic, .. } = self;
        traffic.reassign(Context { now_ns, bond, members }, links, single, why, actions);
    }

    pub(super) fn may_rebalance(&self) -> bool {
        !self.is_single() && self.bond.mode.is_balanced()
    }

    pub(super) fn carriers(&self) -> Vec<Carrier> {
        let carrier = |member: u16| Carrier { member, capacity: self.members.weight(member) };
        self.links.enabled().map(carrier).collect()
    }
}

impl App for BondApp {
    fn name(&self) -> &str {
        &self.bond.name
    }

    fn kind(&self) -> &'static str {
        KEY
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

    /// Returns which members are enabled, and the last LACPDUs of their partners. The successor assigns its
    /// buckets from scratch.
    fn state(&self) -> Option<Value> {
        let named = |(id, bytes): (u16, Vec<u8>)| (self.members.name(id).to_string(), json!(bytes));
        let heard: serde_json::Map<_, _> = self.aggregation.last_pdus().into_iter().map(named).collect();
        let enabled: Vec<&str> = self.links.enabled().map(|id| self.members.name(id)).collect();
        let disabled: Vec<&str> = self.members.disabled.iter().map(|id| self.members.name(*id)).collect();
        Some(json!({ "heard": heard, "enabled": enabled, "disabled": disabled }))
    }

    fn resume(&mut self, state: &Value) {
        let ids = |list: &Value| -> BTreeSet<u16> {
            let names = list.as_array().into_iter().flatten().filter_map(Value::as_str);
            names.filter_map(|name| self.members.id(name)).collect()
        };
        let (enabled, disabled) = (ids(&state["enabled"]), ids(&state["disabled"]));
        self.resumed = Some(Resumed { enabled, disabled });
        for (name, bytes) in state["heard"].as_object().into_iter().flatten() {
            let bytes = bytes.as_array().into_iter().flatten();
            let bytes: Option<Vec<u8>> = bytes.map(|byte| u8::try_from(byte.as_u64()?).ok()).collect();
            if let (Some(id), Some(bytes)) = (self.members.id(name), bytes) {
                self.aggregation.resume(id, &bytes);
            }
        }
    }

    fn bind(&mut self, program: &Program) {
        self.members.find_gone(program);
        let names = Names(&self.bond.name);
        self.admitted.bind(&names, program);
        self.stations.bind(&names, program);
        self.traffic.bind(&self.bond, program.group_named(&names.group()).unwrap_or_default(), program);
    }

    fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        match event {
            Event::Start => self.begin(now_ns, actions),
            Event::Frame { app, input, bytes } => self.frame(now_ns, app, input, bytes, actions),
            Event::Tick => self.tick(now_ns, actions),
            Event::Link { port, up, speed_bps } => self.link(now_ns, port, up, speed_bps, actions),
            Event::Request { id, request } => self.request(now_ns, id, request, actions),
            Event::Buckets { group, report } => self.count(now_ns, group, report, actions),
            // The entry to remove is already gone.
            Event::Refused { change: Change::Remove { .. }, .. } => {}
            Event::Refused { why, .. } => {
                actions.push(Action::Say(Level::Warning, format!("a change was refused: {why}")))
            }
            Event::Entries { .. } | Event::Flows { .. } | Event::Client { .. } | Event::Checked { .. } => {}
            Event::TooLong { .. }
            | Event::Neighbour { .. }
            | Event::CheckSends { .. }
            | Event::Configured { .. }
            | Event::Amended => {}
        }
    }

    fn wake_ns(&self) -> Option<u64> {
        let rebalance = self.traffic.balance.wake_ns().filter(|_| self.may_rebalance());
        let (lacp, links, learnt) =
            (self.aggregation.wake_ns(), self.links.wake_ns(), self.stations.learnt.wake_ns());
        let times = [lacp, links, rebalance, self.admitted.wake_ns(), learnt, self.announcements.wake_ns()];
        times.into_iter().chain([self.traffic.elephants.wake_ns()]).flatten().min()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("buckets_moved", self.traffic.moved()),
            ("buckets_moved_busy", self.traffic.moved_busy()),
            ("moves_ordered", self.traffic.buckets.ordered),
        ]
    }

    fn helps(&self) -> &'static [MetricHelp] {
        HELPS
    }

    fn samples(&self) -> Vec<Sample> {
        show::samples(self)
    }

    fn report(&self, now_ns: u64) -> Value {
        json!(show::bond(self, now_ns))
    }
}
