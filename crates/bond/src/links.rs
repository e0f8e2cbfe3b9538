//! Which members of a bond are enabled, and which one is active.
//!
//! A member is *usable* while it has carrier, LACP (if it is used) lets it distribute, and its probes (if
//! there are any) are answered. It is *enabled* once it has been usable for the updelay, and disabled once it
//! has been unusable for the downdelay; flaps shorter than that have no effect. An operator's request takes
//! effect at once and overrides the rest. While no member is enabled the updelay is waived: the member that
//! would be enabled first is enabled immediately.
//!
//! One of the enabled members is *active*: the member that an active-backup bond sends on, and from which a
//! balance-slb bond accepts broadcasts. When it is lost, the primary becomes active; failing that, the member
//! that was active last; failing that, the lowest-numbered one. A primary that returns becomes active again
//! according to the [`Reselect`] policy.
//!
//! This module does no I/O and reads no clock: [`Links::step`] is given an event and the time, and returns
//! the actions to take. [`Links::wake_ns`] is the time at which it must be called next.

use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

const NS_PER_MS: u64 = 1_000_000;

/// How members are judged and how the active one is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkPolicy {
    /// How long a member must be usable before it is enabled.
    pub updelay_ms: u32,
    /// How long a member must be unusable before it is disabled.
    pub downdelay_ms: u32,
    /// The member that should be active. It need not be a member of the bond.
    pub primary: Option<u16>,
    /// When the primary replaces another active member.
    pub reselect: Reselect,
    /// Probes of hosts beyond the link, if configured.
    pub probe: Option<Probe>,
}

/// When the primary replaces an active member that still works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reselect {
    /// As soon as the primary is enabled.
    #[default]
    Always,
    /// If the primary is faster.
    Better,
    /// Never; the active member must fail first.
    Failure,
}

/// Probes (ARP or NDP requests) sent on every member that has carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Time between two probes of a target, at least 1 ms.
    pub interval_ms: u32,
    /// Consecutive unanswered probes after which a target counts as silent, at least 1.
    pub missed_max: u32,
    /// Number of targets.
    pub targets: u8,
    /// Which targets must answer.
    pub need: Need,
    /// If true, only answers count; if false, any frame received on the member does.
    pub validate: bool,
}

/// Which targets must answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Need {
    /// At least one.
    #[default]
    Any,
    /// All of them.
    All,
}

/// What LACP permits for a member; both fields are true if LACP has no say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Whether frames received on the member are accepted.
    pub collecting: bool,
    /// Whether frames may be sent on the member.
    pub distributing: bool,
}

impl Default for Admission {
    fn default() -> Admission {
        Admission { collecting: true, distributing: true }
    }
}

/// The initial state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its port number.
    pub member: u16,
    /// Whether it has carrier.
    pub carrier: bool,
    /// Its speed, if known.
    pub speed_bps: Option<u64>,
    /// What LACP permits it to do.
    pub admission: Admission,
}

/// An input to [`Links::step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// Time has passed.
    Tick,
    /// A member was added.
    Add(Link),
    /// A member was removed.
    Remove(u16),
    /// A member gained (`true`) or lost carrier.
    Carrier(u16, bool),
    /// A member's speed changed.
    Speed(u16, Option<u64>),
    /// LACP changed what a member may do.
    Admission(u16, Admission),
    /// The operator enabled or disabled a member; `false` holds until the operator enables it again.
    Operator(u16, bool),
    /// A target, given by its index in the list, answered on this member.
    Answer(u16, u8),
    /// The member received frames.
    Received(u16),
    /// The policy was replaced. If the primary differs, the new primary becomes active at once.
    Policy(LinkPolicy),
}

/// An action or a report returned by [`Links::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The member may be used.
    Enabled(u16),
    /// The member may no longer be used.
    Disabled(u16, Reason),
    /// The active member changed.
    Active {
        /// The previous active member, if any.
        from: Option<u16>,
        /// The new active member, if any member is enabled.
        to: Option<u16>,
    },
    /// Probe this target (by index) on this member.
    Probe(u16, u8),
}

/// Why a member is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The member was removed.
    Removed,
    /// The operator has disabled the member.
    Operator,
    /// The member has no carrier.
    Carrier,
    /// LACP does not let the member distribute.
    Lacp,
    /// The member's probes go unanswered.
    Probe,
}

/// Why a member cannot be made active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActivationRefusal {
    /// The bond has no such member.
    #[error("there is no member {0}")]
    NoMember(u16),
    /// The member is not enabled.
    #[error("member {0} is not enabled")]
    Disabled(u16),
}

/// The state of a member, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// The member may be used.
    pub enabled: bool,
    /// Frames received on it are accepted: it has carrier, and neither LACP nor the operator forbids it.
    pub collecting: bool,
    /// Why the member is unusable, if it is, whether or not the downdelay has passed.
    pub against: Option<Reason>,
    /// When the member will be enabled or disabled if nothing changes.
    pub due_ns: Option<u64>,
}

/// The members of a bond and the active one.
#[derive(Clone, Debug)]
pub struct Links {
    policy: LinkPolicy,
    members: BTreeMap<u16, LinkMember>,
    active: Option<u16>,
    /// The member that was active last.
    last: Option<u16>,
    /// Whether the operator chose the active member. If so, the primary does not become active until that
    /// member is lost.
    chosen: bool,
}

#[derive(Clone, Debug)]
struct LinkMember {
    carrier: bool,
    speed_bps: Option<u64>,
    admission: Admission,
    /// Whether the operator allows the member to be used.
    allowed: bool,
    enabled: bool,
    due_ns: Option<u64>,
    /// Whether the member was enabled in another process, and is therefore enabled without the updelay the
    /// first time.
    waived: bool,
    probes: Option<Probes>,
}

/// The probe targets as seen from one member.
#[derive(Clone, Debug)]
struct Probes {
    next_ns: u64,
    targets: Vec<Target>,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    /// Whether the target has answered recently enough.
    speaks: bool,
    /// Probes unanswered since its last answer.
    missed: u32,
    /// Whether the target has answered since the last probe.
    answered: bool,
}

impl Target {
    fn answer(&mut self) {
        *self = Target { speaks: true, missed: 0, answered: true };
    }

    /// Accounts for a new probe: counts the previous one as missed if it went unanswered.
    fn probe(&mut self, missed_max: u32) {
        self.missed = if self.answered { 0 } else { self.missed.saturating_add(1) };
        self.speaks &= self.missed < missed_max.max(1);
        self.answered = false;
    }
}

impl Probes {
    fn suffice(&self, need: Need) -> bool {
        match need {
            Need::Any => self.targets.iter().any(|target| target.speaks),
            Need::All => self.targets.iter().all(|target| target.speaks),
        }
    }
}

impl LinkMember {
    fn new(link: Link) -> LinkMember {
        let Link { carrier, speed_bps, admission, .. } = link;
        let (enabled, due_ns, waived, probes) = (false, None, false, None);
        LinkMember { carrier, speed_bps, admission, allowed: true, enabled, due_ns, waived, probes }
    }

    fn against(&self, need: Need) -> Option<Reason> {
        let probed = self.probes.as_ref().is_none_or(|probes| probes.suffice(need));
        match (self.allowed, self.carrier, self.admission.distributing, probed) {
            (false, ..) => Some(Reason::Operator),
            (_, false, ..) => Some(Reason::Carrier),
            (_, _, false, _) => Some(Reason::Lacp),
            (_, _, _, false) => Some(Reason::Probe),
            _ => None,
        }
    }

    /// Starts probing at once if there is carrier. Unless `trusted`, targets count as silent until they
    /// answer.
    fn restart_probes(&mut self, now_ns: u64, rule: Option<Probe>, trusted: bool) {
        let next_ns = if self.carrier { now_ns } else { u64::MAX };
        let target = Target { speaks: trusted, missed: 0, answered: trusted };
        self.probes = rule.map(|rule| Probes { next_ns, targets: vec![target; usize::from(rule.targets)] });
    }
}

impl Links {
    /// Creates the state from the present members, with the member that was active before a restart.
    #[must_use]
    pub fn new(now_ns: u64, policy: LinkPolicy, last: Option<u16>, members: &[Link]) -> (Links, Vec<Output>) {
        let mut links = Links { policy, members: BTreeMap::new(), active: None, last, chosen: false };
        for &link in members {
            links.add(now_ns, link);
        }
        let mut outputs = Vec::new();
        links.turn(now_ns, now_ns, &mut outputs);
        (links, outputs)
    }

    /// The active member.
    #[must_use]
    pub fn active(&self) -> Option<u16> {
        self.active
    }

    /// The enabled members, by number.
    pub fn enabled(&self) -> impl Iterator<Item = u16> + '_ {
        self.members.iter().filter(|entry| entry.1.enabled).map(|entry| *entry.0)
    }

    /// Enables a member without the updelay the first time it is usable.
    pub fn waive(&mut self, member: u16) {
        if let Some(member) = self.members.get_mut(&member) {
            member.waived = true;
        }
    }

    /// The state of a member.
    #[must_use]
    pub fn state(&self, member: u16) -> Option<MemberState> {
        let found = self.members.get(&member)?;
        let collecting = found.allowed && found.carrier && found.admission.collecting;
        let against = found.against(self.need());
        Some(MemberState { enabled: found.enabled, collecting, against, due_ns: found.due_ns })
    }

    /// When the next delay ends or the next probe is due, whichever is earlier; an event may come first.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        let probe = |member: &LinkMember| {
            member.probes.as_ref().map(|probes| probes.next_ns).filter(|&next| next < u64::MAX)
        };
        self.members.values().flat_map(|member| [member.due_ns, probe(member)]).flatten().min()
    }

    /// Handles everything that fell due up to `now_ns`, in chronological order, and then the event.
    pub fn step(&mut self, now_ns: u64, event: LinkEvent) -> Vec<Output> {
        let mut outputs = Vec::new();
        while let Some(due_ns) = self.wake_ns().filter(|&due_ns| due_ns <= now_ns) {
            self.turn(due_ns, now_ns, &mut outputs);
        }
        self.apply(now_ns, event, &mut outputs);
        self.turn(now_ns, now_ns, &mut outputs);
        outputs
    }

    /// Makes a member active until it is lost or the primary changes.
    pub fn set_active(&mut self, member: u16) -> Result<Vec<Output>, ActivationRefusal> {
        if !self.members.get(&member).ok_or(ActivationRefusal::NoMember(member))?.enabled {
            return Err(ActivationRefusal::Disabled(member));
        }
        let mut outputs = Vec::new();
        self.activate(Some(member), &mut outputs);
        self.chosen = true;
        Ok(outputs)
    }

    fn need(&self) -> Need {
        self.policy.probe.map_or(Need::Any, |probe| probe.need)
    }

    fn add(&mut self, now_ns: u64, link: Link) {
        let rule = self.policy.probe;
        self.members.entry(link.member).or_insert_with(|| {
            let mut member = LinkMember::new(link);
            member.restart_probes(now_ns, rule, false);
            member
        });
    }

    fn apply(&mut self, now_ns: u64, event: LinkEvent, outputs: &mut Vec<Output>) {
        match event {
            LinkEvent::Tick => {}
            LinkEvent::Add(link) => self.add(now_ns, link),
            LinkEvent::Remove(member) => {
                if self.members.remove(&member).is_some_and(|removed| removed.enabled) {
                    outputs.push(Output::Disabled(member, Reason::Removed));
                }
            }
            LinkEvent::Policy(policy) => self.set_policy(now_ns, policy, outputs),
            LinkEvent::Carrier(member, _)
            | LinkEvent::Speed(member, _)
            | LinkEvent::Admission(member, _)
            | LinkEvent::Operator(member, _)
            | LinkEvent::Answer(member, _)
            | LinkEvent::Received(member) => {
                let rule = self.policy.probe;
                if let Some(member) = self.members.get_mut(&member) {
                    member.apply(now_ns, event, rule);
                }
            }
        }
    }

    fn set_policy(&mut self, now_ns: u64, policy: LinkPolicy, outputs: &mut Vec<Output>) {
        let old = std::mem::replace(&mut self.policy, policy);
        if old.probe != self.policy.probe {
            for member in self.members.values_mut() {
                // A working member is not cut off merely because probing begins.
                member.restart_probes(now_ns, self.policy.probe, member.enabled);
            }
        }
        if old.primary != self.policy.primary {
            self.chosen = false;
            if let Some(primary) = self.policy.primary.filter(|&primary| self.is_enabled(primary)) {
                self.activate(Some(primary), outputs);
            }
        }
    }

    /// Handles everything due at `due_ns`.
    fn turn(&mut self, due_ns: u64, now_ns: u64, outputs: &mut Vec<Output>) {
        self.probe(due_ns, now_ns, outputs);
        self.settle(due_ns, outputs);
    }

    /// Sends the probes that are due. After a late probe the next is a full interval away, so that answers
    /// have time.
    fn probe(&mut self, due_ns: u64, now_ns: u64, outputs: &mut Vec<Output>) {
        let Some(rule) = self.policy.probe else { return };
        let interval_ns = u64::from(rule.interval_ms.max(1)) * NS_PER_MS;
        for (&number, member) in &mut self.members {
            let Some(probes) = member.probes.as_mut().filter(|probes| probes.next_ns <= due_ns) else {
                continue;
            };
            let next_ns = probes.next_ns.saturating_add(interval_ns);
            probes.next_ns = if next_ns <= now_ns { now_ns.saturating_add(interval_ns) } else { next_ns };
            for (at, target) in (0..).zip(&mut probes.targets) {
                target.probe(rule.missed_max);
                outputs.push(Output::Probe(number, at));
            }
        }
    }

    /// Starts, cancels and ends delays, then makes sure that a member is active if one can be.
    fn settle(&mut self, now_ns: u64, outputs: &mut Vec<Output>) {
        let need = self.need();
        for (&number, member) in &mut self.members {
            member.wait(now_ns, &self.policy, need);
            if member.due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
                outputs.extend(member.flip(number, need));
            }
        }
        if self.enabled().next().is_none() {
            outputs.extend(self.enable_the_first());
        }
        let next = self.choose();
        self.activate(next, outputs);
    }

    /// If no member is enabled, enables the one that would be next. Ties go to the primary, then to the last
    /// active member.
    fn enable_the_first(&mut self) -> Option<Output> {
        let (primary, last, need) = (self.policy.primary, self.last, self.need());
        let waiting = self.members.iter_mut().filter(|entry| entry.1.due_ns.is_some());
        let rank = |number: u16| (Some(number) != primary, Some(number) != last);
        let (&number, member) = waiting.min_by_key(|entry| (entry.1.due_ns, rank(*entry.0)))?;
        member.flip(number, need)
    }

    fn is_enabled(&self, member: u16) -> bool {
        self.members.get(&member).is_some_and(|member| member.enabled)
    }

    fn choose(&self) -> Option<u16> {
        let enabled = |member: Option<u16>| member.filter(|&member| self.is_enabled(member));
        match (enabled(self.active), enabled(self.policy.primary)) {
            (Some(active), Some(primary)) if self.yields(active, primary) => Some(primary),
            (Some(active), _) => Some(active),
            (None, Some(primary)) => Some(primary),
            (None, None) => enabled(self.last).or_else(|| self.enabled().next()),
        }
    }

    /// Returns whether the active member, which still works, gives way to the primary.
    fn yields(&self, active: u16, primary: u16) -> bool {
        let speed = |member: u16| self.members[&member].speed_bps.unwrap_or(0);
        match self.policy.reselect {
            _ if self.chosen => false,
            Reselect::Always => true,
            Reselect::Better => speed(primary) > speed(active),
            Reselect::Failure => false,
        }
    }

    fn activate(&mut self, to: Option<u16>, outputs: &mut Vec<Output>) {
        if self.active != to {
            let from = std::mem::replace(&mut self.active, to);
            self.last = to.or(self.last);
            self.chosen = false;
            outputs.push(Output::Active { from, to });
        }
    }
}

impl LinkMember {
    fn apply(&mut self, now_ns: u64, event: LinkEvent, rule: Option<Probe>) {
        match event {
            LinkEvent::Carrier(_, up) => self.set_carrier(now_ns, up, rule),
            LinkEvent::Speed(_, speed_bps) => self.speed_bps = speed_bps,
            LinkEvent::Admission(_, admission) => self.admission = admission,
            LinkEvent::Operator(_, allowed) => self.allow(now_ns, allowed),
            LinkEvent::Answer(_, target) => self.answer(|at| at == usize::from(target)),
            LinkEvent::Received(_) if rule.is_some_and(|rule| !rule.validate) => self.answer(|_| true),
            _ => {}
        }
    }

    fn set_carrier(&mut self, now_ns: u64, up: bool, rule: Option<Probe>) {
        if std::mem::replace(&mut self.carrier, up) != up {
            self.restart_probes(now_ns, rule, false);
        }
    }

    /// Applies the operator's choice without delay: any resulting change is due now.
    fn allow(&mut self, now_ns: u64, allowed: bool) {
        if std::mem::replace(&mut self.allowed, allowed) != allowed {
            self.due_ns = Some(now_ns);
        }
    }

    fn answer(&mut self, by: impl Fn(usize) -> bool) {
        let carrier = self.carrier;
        let targets = self.probes.iter_mut().flat_map(|probes| &mut probes.targets).enumerate();
        targets.filter(|entry| carrier && by(entry.0)).for_each(|entry| entry.1.answer());
    }

    /// Starts a delay if the member's state should change, and cancels one that is no longer needed.
    fn wait(&mut self, now_ns: u64, policy: &LinkPolicy, need: Need) {
        let usable = self.against(need).is_none();
        if usable == self.enabled {
            self.due_ns = None;
        } else if self.due_ns.is_none() {
            let delay_ms = match usable {
                true if self.waived => 0,
                true => policy.updelay_ms,
                false => policy.downdelay_ms,
            };
            self.due_ns = Some(now_ns.saturating_add(u64::from(delay_ms) * NS_PER_MS));
        }
    }

    fn flip(&mut self, number: u16, need: Need) -> Option<Output> {
        (self.due_ns, self.waived) = (None, false);
        self.enabled = !self.enabled;
        match self.against(need) {
            None => Some(Output::Enabled(number)),
            Some(reason) => Some(Output::Disabled(number, reason)),
        }
    }
}
