//! The pipes, groups and app names that a bond writes into a program. README.md has a diagram.

use super::config::{Bond, ELEPHANTS_MAX, Inward, Member, Mode};
use super::lacp::{ETHER_TYPE, SLOW_ADDRESS};
use std::net::IpAddr;
use weir_config::attachment::{Attachment, Closed, Inlet};
use weir_packet::{ETHER_ARP, Field};
use weir_program::builder::ProgramBuilder;
use weir_program::{
    Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Learn, Operation, Pipe, PipeId, PortId,
    Target, Template, Value,
};

/// The key of bonds under `apps`.
pub(super) const KEY: &str = "bond";

/// The bit of a destination MAC address that marks broadcast and multicast.
const GROUP_BIT: u128 = 1 << 40;

/// The addresses 01:80:c2:00:00:00 to 0f, which no bridge relays (IEEE 802.1Q table 8-1), and the bits that
/// identify them.
const RESERVED: u128 = 0x0180_c200_0000;
const RESERVED_MASK: u128 = 0xffff_ffff_fff0;

/// Separates the hash of a bond, with any basis, from that of a group without a seed: a load balancer in
/// front of a bond hashes the same packets.
const SEED: u64 = 0x626f_6e64_0000_0000;

/// The seed of the group of buckets with one flow each. It does not depend on the basis, because a flow's
/// bucket is in its entry.
pub(super) const HEAVY_SEED: u64 = 0x626f_6e64_6865_6176;

/// Holds the bucket of a flow in that group or, on the sampling path, the member through which a sampled
/// frame leaves. Nothing behind a bond reads metadata.
const MARK: Field = Field::Meta0;

/// Capacity of `in`: the entries of the largest number of members, and of those that a reload has just
/// removed.
const ADMITTED_MAX: u32 = 2 * super::config::MEMBERS_MAX as u32;

/// Names of the parts of a bond.
pub struct Names<'a>(pub &'a str);

macro_rules! names {
    ($($(#[$doc:meta])* $part:ident = $word:literal;)*) => {
        impl Names<'_> {
            $($(#[$doc])* #[must_use] pub fn $part(&self) -> String { self.part($word) })*

            fn part(&self, part: &str) -> String {
                format!("{}/{part}", self.0)
            }
        }
    };
}

names! {
    /// The group of members.
    group = "members";
    /// The app that receives frames of slow protocols.
    slow = "slow";
    /// The pipe that admits frames from members.
    inward = "in";
    /// The pipe that drops frames from members to reserved group addresses.
    reserved = "reserved";
    /// The pipe that drops frames from inside to reserved group addresses.
    reserved_out = "reserved/out";
    /// The pipe of MAC addresses known inside, and the app that receives copies of frames from other
    /// addresses.
    learn = "learn";
    /// The app that receives copies of answers to probes; it is separate so that a flood of answers does not
    /// affect LACP.
    answers = "answers";
    /// The pipe that drops frames from inside when they come back.
    reflected = "reflected";
    /// The pipe that admits broadcasts from the active member.
    group_active = "group/active";
    /// With elephants, the pipe that finds a bucket; the pipe with the bond's name then has entries for
    /// flows.
    hash = "hash";
    /// The group and the pipe of flows with a bucket of their own, and the app that receives copies of frames
    /// that may belong to such a flow.
    heavy = "heavy";
}

impl Bond {
    /// Adds the parts of the bond to `program`, whose ports must exist, and makes it the root of its ports.
    /// Returns the attachment for other apps.
    pub fn write(&self, program: &mut ProgramBuilder) -> Attachment {
        let names = Names(&self.name);
        let outward = if self.elephants > 0 { self.by_flow(program, &names) } else { self.outward(program) };
        let slow = program.app(names.slow());
        let inward = self.inward(program, &names);
        let inward = self.answers(program, &names, inward);
        let inward = self.reserved(program, names.reserved(), inward);
        let to_app = self
            .pipe(names.slow())
            .constant(Field::EthType, ETHER_TYPE)
            .constant(Field::EthDst, SLOW_ADDRESS);
        let root = program.pipe(to_app.entry(Entry::default()).forward(slow).miss(inward));
        for member in &self.members {
            program.root(member.port, root);
        }
        if let Inward::Port(inside) = self.inward {
            let entry = if self.learns() { self.learn(program, &names, outward) } else { outward };
            let entry = self.reserved(program, names.reserved_out(), entry);
            program.root(inside, entry);
        }
        self.attachment(outward, program)
    }

    /// Returns the bond as other apps see it. A partner may send frames addressed to one member on any other.
    fn attachment(&self, outward: PipeId, program: &ProgramBuilder) -> Attachment {
        let names = Names(&self.name);
        let inlets = if self.mode == Mode::BalanceSlb {
            let active = program.pipe_named(&names.group_active()).map(Inlet::Forward);
            active.into_iter().chain(program.pipe_named(&names.part("group")).map(Inlet::Miss)).collect()
        } else {
            program.pipe_named(&names.inward()).map(Inlet::Forward).into_iter().collect()
        };
        let closed = || Closed {
            why: format!("bond `{}` sends incoming frames to its `inside` or `root`", self.name),
            help: "omit `inside` and `root`",
        };
        Attachment {
            name: self.name.clone(),
            kind: KEY,
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

    /// Returns the ports on which frames arrive for an app on top of the bond.
    #[must_use]
    pub fn ports(&self) -> Vec<PortId> {
        self.members.iter().map(|member| member.port).collect()
    }

    /// Returns a group whose buckets the app assigns to members.
    fn group(&self, name: String, size: u32, seed: u64) -> Group {
        let target = |member: &Member| Target::new(&member.name, member.port).origin(member.origin);
        let targets = self.members.iter().map(target);
        Group::new(name, Fill::Given, size).seed(seed).targets(targets).origin(self.origin)
    }

    fn members_group(&self) -> Group {
        self.group(Names(&self.name).group(), self.size(), self.seed())
    }

    /// Returns the number of buckets of its group: one suffices if all frames leave through the same members.
    #[must_use]
    pub fn size(&self) -> u32 {
        match self.mode {
            Mode::ActiveBackup => 1,
            // One for each member; a flood uses all of them.
            Mode::Broadcast => (self.members.len() as u32).next_power_of_two(),
            _ => self.buckets,
        }
    }

    /// Returns the seed of the hash that picks a bucket.
    pub(super) fn seed(&self) -> u64 {
        SEED ^ self.basis
    }

    fn outward(&self, program: &mut ProgramBuilder) -> PipeId {
        let group = program.group(self.members_group());
        let hash = |input| self.hash(self.name.clone(), input, group);
        let pipe = match self.mode {
            // There is only one bucket, so the round robin uses no field of the packet.
            Mode::ActiveBackup => hash(HashInput::RoundRobin),
            Mode::BalanceTcp | Mode::Static if self.rss => hash(HashInput::Rss),
            Mode::BalanceTcp | Mode::Static => hash(HashInput::Select(self.key)),
            Mode::RoundRobin => hash(HashInput::RoundRobin),
            Mode::BalanceSlb => {
                let mac = (Field::EthSrc, Field::EthSrc.max());
                let untagged = self.hash(self.part("untagged"), HashInput::Fields(vec![mac]), group);
                let untagged = program.pipe(untagged);
                let tagged = HashInput::Fields(vec![mac, (Field::VlanVid, Field::VlanVid.max())]);
                // Untagged frames are not looked up in this pipe.
                hash(tagged).miss(untagged)
            }
            Mode::Broadcast => {
                self.pipe(self.name.clone()).entry(Entry::default()).forward(Forward::Flood(group))
            }
        };
        program.pipe(pipe)
    }

    /// Replaces the pipe with the bond's name if elephants have buckets of their own. The pipe with the
    /// bond's name knows their flows, and all other packets find their bucket in the pipe after it. A bucket
    /// being sampled is assigned to a member's twin, which sends through the same port and copies frames to
    /// the app.
    fn by_flow(&self, program: &mut ProgramBuilder, names: &Names<'_>) -> PipeId {
        let sampled = self.sampled(program, names);
        let twin =
            |member: &Member| Target::new(format!("{}/sampled", member.name), sampled).origin(member.origin);
        let group = program.group(self.members_group().targets(self.members.iter().map(twin)));
        let twin = |(at, member): (u16, &Member)| {
            let target = EntryMatch::Target(self.members.len() as u16 + at);
            Entry::on(target).template(1).value(at).to(sampled).origin(member.origin)
        };
        let hash = self.hash(names.hash(), HashInput::Select(self.key), group);
        let hash =
            hash.actions([Template::default(), mark("sampled")]).entries((0..).zip(&self.members).map(twin));
        let hash = program.pipe(hash);
        // Of the largest size allowed, so that buckets persist over a reload that changes the limit.
        let heavy = program.group(self.group(names.heavy(), ELEPHANTS_MAX, HEAVY_SEED));
        let heavy = self.hash(names.heavy(), HashInput::Fields(vec![(MARK, MARK.max())]), heavy);
        let heavy = program.pipe(heavy);
        let flows =
            Pipe::flow(&self.name, Learn::Nothing).key(self.key).origin(self.origin).capacity(ELEPHANTS_MAX);
        program.pipe(flows.actions([mark("heavy")]).forward(heavy).miss(hash))
    }

    /// Copies frames to the app; the frames leave through the member with which they are marked.
    fn sampled(&self, program: &mut ProgramBuilder, names: &Names<'_>) -> PipeId {
        let app = program.app(names.heavy());
        let onwards = self.pipe(names.part("sampled/on")).per_entry(MARK);
        let next = program.pipe(self.to_members(onwards, EntryMatch::from));
        program.pipe(
            self.pipe(names.part("sampled")).entry(Entry::default()).forward(Forward::Tee { app, next }),
        )
    }

    fn hash(&self, name: String, input: HashInput, group: GroupId) -> Pipe {
        self.to_members(Pipe::hash(name, input, group).origin(self.origin), EntryMatch::Target)
    }

    /// Adds an entry for each member, by its index, that sends through the member's port.
    fn to_members(&self, pipe: Pipe, given: fn(u16) -> EntryMatch) -> Pipe {
        let entry = |(at, member): (u16, &Member)| Entry::on(given(at)).to(member.port).origin(member.origin);
        pipe.entries((0..).zip(&self.members).map(entry)).forward(Forward::PerEntry)
    }

    /// Adds the pipes from the members to the inside, the last one first.
    fn inward(&self, program: &mut ProgramBuilder, names: &Names<'_>) -> PipeId {
        let to = match self.inward {
            Inward::Port(port) => Forward::Port(port),
            Inward::Pipe(pipe) => Forward::Pipe(pipe),
            Inward::Open => Forward::Drop,
        };
        let next = if self.mode == Mode::BalanceSlb { self.single_switch(program, names, to) } else { to };
        program
            .pipe(self.pipe(names.inward()).per_entry(Field::InputPort).capacity(ADMITTED_MAX).forward(next))
    }

    /// Adds a pipe in front of `next` that drops frames to reserved group addresses, if frames pass between
    /// an inside and the members there: a host inside that speaks the same protocol must not be taken for the
    /// bond or its partner. With `forward_reserved`, it drops only LACPDUs, and only if the bond has LACP.
    fn reserved(&self, program: &mut ProgramBuilder, name: String, next: PipeId) -> PipeId {
        let pipe = self.pipe(name);
        let pipe = match (self.inward, self.forward_reserved, &self.lacp) {
            (Inward::Pipe(_) | Inward::Open, ..) | (_, true, None) => return next,
            (Inward::Port(_), false, _) => pipe.constant_bits(Field::EthDst, RESERVED, RESERVED_MASK),
            (Inward::Port(_), true, Some(_)) => {
                pipe.constant(Field::EthType, ETHER_TYPE).constant(Field::EthDst, SLOW_ADDRESS)
            }
        };
        program.pipe(pipe.entry(Entry::default()).forward(Forward::Drop).miss(next))
    }

    /// If the bond probes, adds a pipe in front of it that copies answers to the app. Neighbour
    /// advertisements are all copied, because there is no match field for their target.
    fn answers(&self, program: &mut ProgramBuilder, names: &Names<'_>, next: PipeId) -> PipeId {
        let Some(probe) = &self.probe else { return next };
        let app = program.app(names.answers());
        let copied =
            |part: &str, next| self.pipe(names.part(part)).forward(Forward::Tee { app, next }).miss(next);
        let arp: Vec<IpAddr> = probe.targets.iter().copied().filter(IpAddr::is_ipv4).collect();
        let mut next = next;
        if arp.len() < probe.targets.len() {
            let advertised = copied("answers/v6", next).constant(Field::Icmpv6Type, 136);
            next = program.pipe(advertised.entry(Entry::default()));
        }
        if !arp.is_empty() {
            let replies =
                copied("answers/v4", next).constant(Field::ArpOperation, 2).per_entry(Field::ArpSenderIp);
            next = program.pipe(replies.entries(arp));
        }
        next
    }

    /// Adds the rules of a bond whose switch is not configured for it: broadcasts are received once, through
    /// the active member; frames sent through one member that come back through another are dropped, except
    /// gratuitous ARP, which announces that an address has moved outside.
    fn single_switch(&self, program: &mut ProgramBuilder, names: &Names<'_>, to: Forward) -> Forward {
        let members = self.members.len().max(1) as u32;
        let active =
            self.pipe(names.group_active()).per_entry(Field::InputPort).capacity(members).forward(to);
        let active = program.pipe(active);
        let broadcast = self.pipe(names.part("group")).constant_bits(Field::EthDst, GROUP_BIT, GROUP_BIT);
        let broadcast = program.pipe(broadcast.entry(Entry::default()).forward(active).miss(to));
        // The app decides whether an address has moved, because it knows when it was last seen inside.
        let app = program.app(names.learn());
        let moved = self.pipe(names.part("moved")).constant(Field::EthType, ETHER_ARP);
        let moved = program.pipe(moved.entry(Entry::default()).forward(app));
        let reflected = self.pipe(names.reflected()).per_entry(Field::EthSrc).capacity(self.learnt_max);
        Forward::Pipe(program.pipe(reflected.forward(moved).miss(broadcast)))
    }

    /// Adds a pipe in front of the bond, from inside, that copies frames from unknown addresses to the app.
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

/// Returns an action that marks a frame with the entry's number.
fn mark(name: &str) -> Template {
    Template::new(name, [Operation::Set(MARK, Value::PerEntry)])
}
