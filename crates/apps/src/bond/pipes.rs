//! The pipes, the group and the app names that a bond writes into a program. README.md draws them.

use super::config::{Bond, ELEPHANTS_MAX, Inward, Member, Mode};
use super::lacp::{ETHER_TYPE, SLOW_ADDRESS};
use config::attachment::{Attachment, Closed, Inlet};
use engine::builder::ProgramBuilder;
use engine::program::{
    Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Learn, Operation, Pipe, PipeId, PortId, Target,
    Template, Value,
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
    /// Adds what the bond is made of to `program`, whose ports are known, and makes it the root of its ports. Gives what
    /// other apps may stand on.
    pub fn write(&self, program: &mut ProgramBuilder) -> Attachment {
        let names = Names(&self.name);
        let outward = if self.elephants > 0 { self.by_flow(program, &names) } else { self.outward(program) };
        let slow = program.app(names.slow());
        let inward = self.inward(program, &names);
        let inward = self.answers(program, &names, inward);
        let to_app = self.pipe(names.slow()).constant(Field::EthType, ETHER_TYPE).constant(Field::EthDst, SLOW_ADDRESS);
        let root = program.pipe(to_app.entry(Entry::default()).forward(slow).miss(inward));
        for member in &self.members {
            program.root(member.port, root);
        }
        if let Inward::Port(inside) = self.inward {
            let entry = if self.learns() { self.learn(program, &names, outward) } else { outward };
            program.root(inside, entry);
        }
        self.attachment(outward, program)
    }

    /// The bond as others see it. A partner may send by any member what is for another.
    fn attachment(&self, outward: PipeId, program: &ProgramBuilder) -> Attachment {
        let names = Names(&self.name);
        let inlets = if self.mode == Mode::BalanceSlb {
            let active = program.pipe_named(&names.group_active()).map(Inlet::Forward);
            active.into_iter().chain(program.pipe_named(&names.part("group")).map(Inlet::Miss)).collect()
        } else {
            program.pipe_named(&names.inward()).map(Inlet::Forward).into_iter().collect()
        };
        let closed = || Closed {
            why: format!("bond `{}` sends what comes in to its `inside` or `root`", self.name),
            help: "leave `inside` and `root` out",
        };
        Attachment {
            name: self.name.clone(),
            kind: super::KIND.key,
            to: Forward::Pipe(outward),
            ports: self.ports(),
            lead: self.members.first().map(|member| member.port).unwrap_or_default(),
            mac: Some(self.mac()),
            macs: self.members.iter().filter_map(|member| member.mac).collect(),
            inlets,
            closed: (self.inward != Inward::Open).then(closed),
            origin: self.origin,
        }
    }

    /// The ports that frames arrive on for whoever stands on the bond.
    #[must_use]
    pub fn ports(&self) -> Vec<PortId> {
        self.members.iter().map(|member| member.port).collect()
    }

    /// A group whose buckets the app gives to members.
    fn group(&self, name: String, size: u32, seed: u64) -> Group {
        let target = |member: &Member| Target::new(&member.name, member.port).origin(member.origin);
        let targets = self.members.iter().map(target);
        Group::new(name, Fill::Given, size).seed(seed).targets(targets).origin(self.origin)
    }

    fn members_group(&self) -> Group {
        self.group(Names(&self.name).group(), self.size(), self.seed())
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

    fn outward(&self, program: &mut ProgramBuilder) -> PipeId {
        let group = program.group(self.members_group());
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
                let untagged = program.pipe(untagged);
                let tagged = HashInput::Fields(vec![mac, (Field::VlanVid, Field::VlanVid.max())]);
                // What has no tag is not in this pipe's reach.
                hash(tagged).miss(untagged)
            }
            Mode::Broadcast => self.pipe(self.name.clone()).entry(Entry::default()).forward(Forward::Flood(group)),
        };
        program.pipe(pipe)
    }

    /// In place of that, where elephants have buckets of their own: the pipe of the bond's name knows their flows, and
    /// all else finds its bucket behind it. A bucket that is looked at is with a member's twin, by which a frame leaves by
    /// the same port and the app gets a copy.
    fn by_flow(&self, program: &mut ProgramBuilder, names: &Names<'_>) -> PipeId {
        let sampled = self.sampled(program, names);
        let twin = |member: &Member| Target::new(format!("{}/sampled", member.name), sampled).origin(member.origin);
        let group = program.group(self.members_group().targets(self.members.iter().map(twin)));
        let twin = |(at, member): (u16, &Member)| {
            let target = EntryMatch::Target(self.members.len() as u16 + at);
            Entry::on(target).template(1).value(at).to(sampled).origin(member.origin)
        };
        let hash = self.hash(names.hash(), HashInput::Select(self.key), group);
        let hash = hash.actions([Template::default(), mark("sampled")]).entries((0..).zip(&self.members).map(twin));
        let hash = program.pipe(hash);
        // As large as the limit can be: over a reload that changes the limit, buckets stay.
        let heavy = program.group(self.group(names.heavy(), ELEPHANTS_MAX, HEAVY_SEED));
        let heavy = self.hash(names.heavy(), HashInput::Fields(vec![(MARK, MARK.max())]), heavy);
        let heavy = program.pipe(heavy);
        let flows = Pipe::flow(&self.name, Learn::Nothing).key(self.key).origin(self.origin).capacity(ELEPHANTS_MAX);
        program.pipe(flows.actions([mark("heavy")]).forward(heavy).miss(hash))
    }

    /// Copies of frames to the app; the frames leave by the member that they are marked with.
    fn sampled(&self, program: &mut ProgramBuilder, names: &Names<'_>) -> PipeId {
        let app = program.app(names.heavy());
        let onwards = self.pipe(names.part("sampled/on")).per_entry(MARK);
        let next = program.pipe(self.to_members(onwards, EntryMatch::from));
        program.pipe(self.pipe(names.part("sampled")).entry(Entry::default()).forward(Forward::Tee { app, next }))
    }

    fn hash(&self, name: String, input: HashInput, group: GroupId) -> Pipe {
        self.to_members(Pipe::hash(name, input, group).origin(self.origin), EntryMatch::Target)
    }

    /// An entry for each member, by its position, that leaves by the member's port.
    fn to_members(&self, pipe: Pipe, given: fn(u16) -> EntryMatch) -> Pipe {
        let entry = |(at, member): (u16, &Member)| Entry::on(given(at)).to(member.port).origin(member.origin);
        pipe.entries((0..).zip(&self.members).map(entry)).forward(Forward::PerEntry)
    }

    /// The pipes from the members to the inside, the last one first.
    fn inward(&self, program: &mut ProgramBuilder, names: &Names<'_>) -> PipeId {
        let to = match self.inward {
            Inward::Port(port) => Forward::Port(port),
            Inward::Pipe(pipe) => Forward::Pipe(pipe),
            Inward::Open => Forward::Drop,
        };
        let next = if self.mode == Mode::BalanceSlb { self.single_switch(program, names, to) } else { to };
        program.pipe(self.pipe(names.inward()).per_entry(Field::InputPort).capacity(ADMITTED_MAX).forward(next))
    }

    /// In front of that, where it probes: copies of answers go to the app. Neighbour advertisements have no field for
    /// their target, so all of them do.
    fn answers(&self, program: &mut ProgramBuilder, names: &Names<'_>, next: PipeId) -> PipeId {
        let Some(probe) = &self.probe else { return next };
        let app = program.app(names.answers());
        let copied = |part: &str, next| self.pipe(names.part(part)).forward(Forward::Tee { app, next }).miss(next);
        let arp: Vec<IpAddr> = probe.targets.iter().copied().filter(IpAddr::is_ipv4).collect();
        let mut next = next;
        if arp.len() < probe.targets.len() {
            let advertised = copied("answers/v6", next).constant(Field::Icmpv6Type, 136);
            next = program.pipe(advertised.entry(Entry::default()));
        }
        if !arp.is_empty() {
            let replies = copied("answers/v4", next).constant(Field::ArpOperation, 2).per_entry(Field::ArpSenderIp);
            next = program.pipe(replies.entries(arp));
        }
        next
    }

    /// The rules of a bond whose switch does not know that it is one: broadcast comes in once, by the active member; and
    /// what was sent by one member and comes back by another is thrown away, but for gratuitous ARP, by which an address
    /// that has moved outside says so.
    fn single_switch(&self, program: &mut ProgramBuilder, names: &Names<'_>, to: Forward) -> Forward {
        let members = self.members.len().max(1) as u32;
        let active = self.pipe(names.group_active()).per_entry(Field::InputPort).capacity(members).forward(to);
        let active = program.pipe(active);
        let broadcast = self.pipe(names.part("group")).constant_bits(Field::EthDst, GROUP_BIT, GROUP_BIT);
        let broadcast = program.pipe(broadcast.entry(Entry::default()).forward(active).miss(to));
        // The app looks whether an address has moved; it knows when it was seen inside last.
        let app = program.app(names.learn());
        let moved = self.pipe(names.part("moved")).constant(Field::EthType, ETHER_ARP);
        let moved = program.pipe(moved.entry(Entry::default()).forward(app));
        let reflected = self.pipe(names.reflected()).per_entry(Field::EthSrc).capacity(self.learnt_max);
        Forward::Pipe(program.pipe(reflected.forward(moved).miss(broadcast)))
    }

    /// In front of the bond, from inside: a copy of what comes from an address not known yet goes to the app.
    fn learn(&self, program: &mut ProgramBuilder, names: &Names<'_>, outward: PipeId) -> PipeId {
        let app = program.app(names.learn());
        let learn = self.pipe(names.learn()).per_entry(Field::EthSrc).capacity(self.learnt_max);
        program.pipe(learn.forward(outward).miss(Forward::Tee { app, next: outward }))
    }

    fn part(&self, part: &str) -> String {
        Names(&self.name).part(part)
    }

    fn pipe(&self, name: String) -> Pipe {
        Pipe::basic(name).origin(self.origin)
    }
}

/// An action that marks a frame with the entry's own number.
fn mark(name: &str) -> Template {
    Template::new(name, [Operation::Set(MARK, Value::PerEntry)])
}
