//! The pipes, the group and the app names that a bond writes into a program. README.md draws them.

use super::config::{Bond, ELEPHANTS_MAX, Inward, Mode};
use super::lacp::{ETHER_TYPE, SLOW_ADDRESS};
use engine::program::{
    AppId, Criterion, Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Learn, Match, Monitor, Operation,
    Origin, Pipe, PipeId, PipeKind, PortId, Program, Target, Template, Value,
};
use packet::{ETHER_ARP, Field};
use std::net::IpAddr;

/// The bit of a destination MAC address that says broadcast or multicast.
const GROUP_BIT: u128 = 1 << 40;

/// Tells the hash of a bond from that of a group without seed, whatever its basis: a load balancer in front of a bond
/// hashes the same packets.
const SEED: u64 = 0x626f_6e64_0000_0000;

/// The seed of the group whose buckets have one flow each. Not the basis: which bucket a flow has is written in its entry.
pub(super) const HEAVY_SEED: u64 = 0x626f_6e64_6865_6176;

/// Which bucket of that group a flow has; on another way, by which member a frame leaves that was looked at. Nobody
/// behind a bond reads metadata.
const MARK: Field = Field::Meta0;

/// Entries of `in`: those of all members there can be, and of all that a reload has just taken away.
const ADMITTED_MAX: u32 = 2 * super::config::MEMBERS_MAX as u32;

/// What a bond calls its parts.
pub struct Names<'a>(pub &'a str);

impl Names<'_> {
    /// The group of its members.
    #[must_use]
    pub fn group(&self) -> String {
        format!("{}/members", self.0)
    }

    /// The app name under which frames of slow protocols come.
    #[must_use]
    pub fn slow(&self) -> String {
        format!("{}/slow", self.0)
    }

    /// The pipe that knows by which members frames may come in.
    #[must_use]
    pub fn inward(&self) -> String {
        format!("{}/in", self.0)
    }

    /// The pipe of MAC addresses known inside, and the app name under which copies from others come.
    #[must_use]
    pub fn learn(&self) -> String {
        format!("{}/learn", self.0)
    }

    /// The app name under which copies of answers to probes come: a flood of those leaves LACP alone.
    #[must_use]
    pub fn answers(&self) -> String {
        format!("{}/answers", self.0)
    }

    /// The pipe that turns away frames from inside which come back.
    #[must_use]
    pub fn reflected(&self) -> String {
        format!("{}/reflected", self.0)
    }

    /// The pipe that knows by which member broadcast comes in.
    #[must_use]
    pub fn group_active(&self) -> String {
        format!("{}/group/active", self.0)
    }

    /// With elephants, the pipe that finds a bucket: what has the bond's name then are flows with entries of their own.
    #[must_use]
    pub fn hash(&self) -> String {
        format!("{}/hash", self.0)
    }

    /// The group and the pipe of flows with a bucket of their own, and the app name under which copies of frames come
    /// that may be of such a flow.
    #[must_use]
    pub fn heavy(&self) -> String {
        format!("{}/heavy", self.0)
    }

    fn part(&self, part: &str) -> String {
        format!("{}/{part}", self.0)
    }
}

impl Bond {
    /// Adds what the bond is made of to `program`, whose ports are known, and makes it the root of its ports. Gives the
    /// pipe that sends by it.
    pub fn write(&self, program: &mut Program) -> PipeId {
        let names = Names(&self.name);
        let outward = if self.elephants > 0 { self.by_flow(program, &names) } else { self.outward(program) };
        let slow = app(program, names.slow());
        let inward = self.inward(program, &names);
        let inward = self.answers(program, &names, inward);
        let match_slow = vec![
            constant(Field::EthType, u128::from(ETHER_TYPE), Field::EthType.max()),
            constant(Field::EthDst, number(SLOW_ADDRESS), Field::EthDst.max()),
        ];
        let to_app = Pipe {
            matches: match_slow,
            forward: Forward::App(slow),
            miss: Forward::Pipe(inward),
            entries: vec![Entry::default()],
            ..self.blank(names.slow())
        };
        let root = push(program, to_app);
        for member in &self.members {
            program.ports[member.port.index()].root = Some(root);
        }
        if let Inward::Port(inside) = self.inward {
            let entry = if self.learns() { self.learn(program, &names, outward) } else { outward };
            program.ports[inside.index()].root = Some(entry);
        }
        outward
    }

    /// Sends what comes in by the bond into `pipe`: another app stands on it.
    pub fn lead(&self, program: &mut Program, pipe: PipeId) {
        let names = Names(&self.name);
        let last = if self.mode == Mode::BalanceSlb { names.group_active() } else { names.inward() };
        let last = program.pipe_named(&last).map(PipeId::index);
        for (at, pipe_of) in program.pipes.iter_mut().enumerate() {
            if Some(at) == last {
                pipe_of.forward = Forward::Pipe(pipe);
            } else if self.mode == Mode::BalanceSlb && pipe_of.name == names.part("group") {
                pipe_of.miss = Forward::Pipe(pipe);
            }
        }
    }

    /// The ports that frames arrive on for whoever stands on the bond.
    #[must_use]
    pub fn ports(&self) -> Vec<PortId> {
        self.members.iter().map(|member| member.port).collect()
    }

    fn group(&self, program: &mut Program) -> GroupId {
        program.groups.push(Group {
            name: Names(&self.name).group(),
            fill: Fill::Given,
            size: self.size(),
            seed: Some(self.seed()),
            targets: self.targets(),
            origin: self.origin,
        });
        GroupId((program.groups.len() - 1) as u16)
    }

    fn targets(&self) -> Vec<Target> {
        let target = |member: &super::config::Member| Target {
            name: member.name.clone(),
            weight: 1,
            forward: Forward::Port(member.port),
            origin: member.origin,
        };
        self.members.iter().map(target).collect()
    }

    /// Buckets of its group: one is enough where all frames leave by the same members.
    #[must_use]
    pub fn size(&self) -> u32 {
        match self.mode {
            Mode::ActiveBackup => 1,
            // One for each member, and all of those are flooded.
            Mode::Broadcast => (self.members.len() as u32).next_power_of_two(),
            _ => self.buckets,
        }
    }

    /// What is mixed into the hash that picks a bucket.
    pub(super) fn seed(&self) -> u64 {
        SEED ^ self.basis
    }

    fn outward(&self, program: &mut Program) -> PipeId {
        let group = self.group(program);
        let hash = |input| self.hash(self.name.clone(), input, group);
        let pipe = match self.mode {
            // There is one bucket to take turns in, and nothing to read for it.
            Mode::ActiveBackup => hash(HashInput::RoundRobin),
            Mode::BalanceTcp | Mode::Static if self.rss => hash(HashInput::Rss),
            Mode::BalanceTcp | Mode::Static => hash(HashInput::Select(self.key)),
            Mode::RoundRobin => hash(HashInput::RoundRobin),
            Mode::BalanceSlb => {
                let mac = (Field::EthSrc, Field::EthSrc.max());
                let untagged = self.hash(self.part("untagged"), HashInput::Fields(vec![mac]), group);
                let untagged = push(program, untagged);
                let tagged = HashInput::Fields(vec![mac, (Field::VlanVid, Field::VlanVid.max())]);
                // What has no tag is not in this pipe's reach.
                Pipe { miss: Forward::Pipe(untagged), ..hash(tagged) }
            }
            Mode::Broadcast => Pipe {
                forward: Forward::Flood(group),
                entries: vec![Entry::default()],
                ..self.blank(self.name.clone())
            },
        };
        push(program, pipe)
    }

    /// In place of that, where elephants have buckets of their own: the pipe of the bond's name knows their flows, and
    /// all else finds its bucket behind it. A bucket that is looked at is with a member's twin, by which a frame leaves by
    /// the same port and the app gets a copy.
    fn by_flow(&self, program: &mut Program, names: &Names<'_>) -> PipeId {
        let group = self.group(program);
        let sampled = self.sampled(program, names);
        let twins = self.members.iter().map(|member| Target {
            name: format!("{}/sampled", member.name),
            weight: 1,
            forward: Forward::Pipe(sampled),
            origin: member.origin,
        });
        program.groups[group.index()].targets.extend(twins);
        let mut hash = self.hash(names.hash(), HashInput::Select(self.key), group);
        let twin = |(at, member): (usize, &super::config::Member)| Entry {
            matches: vec![EntryMatch::Target((self.members.len() + at) as u16)],
            template: 1,
            values: vec![at as u128],
            forward: Some(Forward::Pipe(sampled)),
            origin: member.origin,
            ..Entry::default()
        };
        hash.entries.extend(self.members.iter().enumerate().map(twin));
        hash.capacity = hash.entries.len().max(1) as u32;
        hash.templates.push(mark("sampled"));
        let hash = push(program, hash);
        program.groups.push(Group {
            name: names.heavy(),
            fill: Fill::Given,
            // Whatever the limit: over a reload that changes it, buckets stay.
            size: ELEPHANTS_MAX,
            seed: Some(HEAVY_SEED),
            targets: self.targets(),
            origin: self.origin,
        });
        let heavy = GroupId((program.groups.len() - 1) as u16);
        let heavy = self.hash(names.heavy(), HashInput::Fields(vec![(MARK, MARK.max())]), heavy);
        let heavy = push(program, heavy);
        let flows = Pipe {
            kind: PipeKind::Flow { key: self.key, learn: Learn::Nothing, idle_timeout_ns: 0 },
            templates: vec![mark("heavy")],
            forward: Forward::Pipe(heavy),
            miss: Forward::Pipe(hash),
            capacity: ELEPHANTS_MAX,
            ..self.blank(self.name.clone())
        };
        push(program, flows)
    }

    /// Copies of frames to the app; the frames leave by the member that they are marked with.
    fn sampled(&self, program: &mut Program, names: &Names<'_>) -> PipeId {
        let app = app(program, names.heavy());
        let entry = |(at, member): (usize, &super::config::Member)| Entry {
            matches: vec![EntryMatch::Value(at as u128)],
            forward: Some(Forward::Port(member.port)),
            origin: member.origin,
            ..Entry::default()
        };
        let onwards = Pipe {
            matches: vec![per_entry(MARK)],
            forward: Forward::PerEntry,
            capacity: self.members.len().max(1) as u32,
            entries: self.members.iter().enumerate().map(entry).collect(),
            ..self.blank(names.part("sampled/on"))
        };
        let next = push(program, onwards);
        let copied = Pipe {
            forward: Forward::Tee { app, next },
            entries: vec![Entry::default()],
            ..self.blank(names.part("sampled"))
        };
        push(program, copied)
    }

    fn hash(&self, name: String, input: HashInput, group: GroupId) -> Pipe {
        let entry = |(at, member): (usize, &super::config::Member)| Entry {
            matches: vec![EntryMatch::Target(at as u16)],
            forward: Some(Forward::Port(member.port)),
            origin: member.origin,
            ..Entry::default()
        };
        Pipe {
            kind: PipeKind::Hash { input, group },
            forward: Forward::PerEntry,
            capacity: self.members.len().max(1) as u32,
            entries: self.members.iter().enumerate().map(entry).collect(),
            ..self.blank(name)
        }
    }

    /// The pipes from the members to the inside, the last one first.
    fn inward(&self, program: &mut Program, names: &Names<'_>) -> PipeId {
        let to = match self.inward {
            Inward::Port(port) => Forward::Port(port),
            Inward::Pipe(pipe) => Forward::Pipe(pipe),
            Inward::Open => Forward::Drop,
        };
        let next = if self.mode == Mode::BalanceSlb { self.single_switch(program, names, to) } else { to };
        let admitted = Pipe {
            matches: vec![per_entry(Field::InputPort)],
            forward: next,
            capacity: ADMITTED_MAX,
            ..self.blank(names.inward())
        };
        push(program, admitted)
    }

    /// In front of that, where it probes: copies of answers go to the app. Neighbour advertisements have no field for
    /// their target, so all of them do.
    fn answers(&self, program: &mut Program, names: &Names<'_>, next: PipeId) -> PipeId {
        let Some(probe) = &self.probe else { return next };
        let app = app(program, names.answers());
        let answer = |target: &IpAddr| match target {
            IpAddr::V4(target) => Some(vec![EntryMatch::Value(u128::from(target.to_bits()))]),
            IpAddr::V6(_) => None,
        };
        let entry = |matches| Entry { matches, ..Entry::default() };
        let arp: Vec<Entry> = probe.targets.iter().filter_map(answer).map(entry).collect();
        let advertised = Pipe {
            matches: vec![constant(Field::Icmpv6Type, 136, Field::Icmpv6Type.max())],
            forward: Forward::Tee { app, next },
            miss: Forward::Pipe(next),
            entries: vec![Entry::default()],
            ..self.blank(names.part("answers/v6"))
        };
        let next = if arp.len() < probe.targets.len() { push(program, advertised) } else { next };
        if arp.is_empty() {
            return next;
        }
        let replies = Pipe {
            matches: vec![constant(Field::ArpOperation, 2, Field::ArpOperation.max()), per_entry(Field::ArpSenderIp)],
            forward: Forward::Tee { app, next },
            miss: Forward::Pipe(next),
            capacity: arp.len() as u32,
            entries: arp,
            ..self.blank(names.part("answers/v4"))
        };
        push(program, replies)
    }

    /// The rules of a bond whose switch does not know that it is one: broadcast comes in once, by the active member; and
    /// what was sent by one member and comes back by another is thrown away, but for gratuitous ARP, by which an address
    /// that has moved outside says so.
    fn single_switch(&self, program: &mut Program, names: &Names<'_>, to: Forward) -> Forward {
        let active = Pipe {
            matches: vec![per_entry(Field::InputPort)],
            forward: to,
            capacity: self.members.len().max(1) as u32,
            ..self.blank(names.group_active())
        };
        let active = push(program, active);
        let broadcast = Pipe {
            matches: vec![constant(Field::EthDst, GROUP_BIT, GROUP_BIT)],
            forward: Forward::Pipe(active),
            miss: to,
            entries: vec![Entry::default()],
            ..self.blank(names.part("group"))
        };
        let broadcast = push(program, broadcast);
        // The app looks whether an address has moved; it knows when it was seen inside last.
        let moved = Pipe {
            matches: vec![constant(Field::EthType, u128::from(ETHER_ARP), Field::EthType.max())],
            forward: Forward::App(app(program, names.learn())),
            entries: vec![Entry::default()],
            ..self.blank(names.part("moved"))
        };
        let moved = push(program, moved);
        let reflected = Pipe {
            matches: vec![per_entry(Field::EthSrc)],
            forward: Forward::Pipe(moved),
            miss: Forward::Pipe(broadcast),
            capacity: self.learnt_max,
            ..self.blank(names.reflected())
        };
        Forward::Pipe(push(program, reflected))
    }

    /// In front of the bond, from inside: a copy of what comes from an address not known yet goes to the app.
    fn learn(&self, program: &mut Program, names: &Names<'_>, outward: PipeId) -> PipeId {
        let app = app(program, names.learn());
        let learn = Pipe {
            matches: vec![per_entry(Field::EthSrc)],
            forward: Forward::Pipe(outward),
            miss: Forward::Tee { app, next: outward },
            capacity: self.learnt_max,
            ..self.blank(names.learn())
        };
        push(program, learn)
    }

    fn part(&self, part: &str) -> String {
        Names(&self.name).part(part)
    }

    fn blank(&self, name: String) -> Pipe {
        Pipe {
            name,
            kind: PipeKind::Basic,
            matches: Vec::new(),
            monitor: Monitor::default(),
            templates: vec![Template::default()],
            forward: Forward::Drop,
            miss: Forward::Drop,
            rehash: false,
            capacity: 1,
            entries: Vec::new(),
            origin: self.origin,
        }
    }
}

fn push(program: &mut Program, pipe: Pipe) -> PipeId {
    program.pipes.push(pipe);
    PipeId((program.pipes.len() - 1) as u16)
}

fn app(program: &mut Program, name: String) -> AppId {
    let at = program.apps.iter().position(|app| *app == name).unwrap_or_else(|| {
        program.apps.push(name);
        program.apps.len() - 1
    });
    AppId(at as u16)
}

/// An action that marks a frame with the entry's own number.
fn mark(name: &str) -> Template {
    Template { name: name.into(), operations: vec![Operation::Set(MARK, Value::PerEntry)] }
}

fn constant(field: Field, value: u128, mask: u128) -> Match {
    Match { field, criterion: Criterion::Const { value, mask }, origin: Origin::default() }
}

fn per_entry(field: Field) -> Match {
    Match { field, criterion: Criterion::PerEntry { mask: field.max() }, origin: Origin::default() }
}

fn number(mac: [u8; 6]) -> u128 {
    mac.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}
