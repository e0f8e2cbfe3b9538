//! Which parts of a program compile, and why the others do not. Packets that need a part that does not
//! compile are handed to the batch engine as they arrived.

use crate::acl::AclShape;
use crate::flows;
use crate::kept;
use crate::layout::{is_spread_by_entry, source_bits};
use weir_packet::{Depth, Field, FieldKind, KeySource, LevelId};
use weir_program::operation::Headers;
use weir_program::replica::Leads;
use weir_program::{
    Affinity, Entry, Fill, Forward, GlbHash, Group, GroupChoice, GroupId, HashInput, KatranHash,
    KatranVersion, Learn, Operation, Pipe, PipeId, PipeKind, Program, Template,
};

/// Why something is left to the batch engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// The frame is malformed: the engine says how.
    Malformed,
    /// The frame is a fragment.
    Fragment,
    /// The packet has IPv6 extension headers.
    ExtensionHeaders,
    /// The packet is an ICMP error, which belongs to the flow that it is about.
    IcmpError,
    /// The program reads headers inside tunnels, and those inside the packet's tunnel are unusual.
    Tunnel,
    /// An action sets addresses, and the packet's protocol has a checksum over them that is not compiled.
    Checksum,
    /// The pipe has a meter, whose state cannot be divided.
    Meter,
    /// The pipe is measured.
    Measured,
    /// The pipe recomputes the flow key.
    Rehash,
    /// The packet is too long, and an app answers its sender.
    TooLong,
    /// The pipe hashes something that is not compiled.
    HashInput,
    /// The group's buckets are assigned at run time, or the group needs one more kind of hash than there is
    /// room for.
    Fill,
    /// Metadata chooses one of too many groups.
    Chosen,
    /// The group has an app for packets without a target.
    NoTarget,
    /// The program has more pipes than fit the stack of an XDP program.
    Pipes,
    /// The pipe compares more bytes than a key has.
    Key,
    /// The pipe's rules take more room than a table has.
    Rules,
    /// The packet goes to an app, is copied, or is flooded.
    Forward,
    /// The operation is not compiled.
    Operation,
    /// The action changes the packet, and a pipe behind it may hand the packet to the engine.
    ActsBeforeHandOver,
    /// The action moves headers, and another pipe follows.
    MovesHeaders,
    /// The action lowers the maximum segment size of a SYN that a later pipe may leave to the engine.
    Syn,
    /// The packet goes to a port to which XDP cannot send.
    Port,
    /// The frame is in several buffers, or may be longer than what some port sends.
    Length,
    /// An entry has a destination that no entry had before: the program must be compiled again.
    NewLead,
    /// The packet belongs to no flow that is followed here.
    NewFlow,
    /// Earlier packets of the flow are on their way through the engine, and none may overtake them.
    Pending,
    /// The packet may change the state of its TCP connection.
    TcpFlags,
    /// The pipe learns no flows.
    Learn,
    /// The key of flows is that of headers inside tunnels.
    InnerKey,
    /// The newest segments of connections are kept.
    Segments,
    /// A flow that follows its group has no target.
    Targetless,
}

impl Why {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Why; 32] = [
        Why::Malformed,
        Why::Fragment,
        Why::ExtensionHeaders,
        Why::IcmpError,
        Why::Tunnel,
        Why::Checksum,
        Why::Meter,
        Why::Measured,
        Why::Rehash,
        Why::TooLong,
        Why::HashInput,
        Why::Fill,
        Why::Chosen,
        Why::NoTarget,
        Why::Pipes,
        Why::Key,
        Why::Rules,
        Why::Forward,
        Why::Operation,
        Why::ActsBeforeHandOver,
        Why::MovesHeaders,
        Why::Syn,
        Why::Port,
        Why::Length,
        Why::NewLead,
        Why::NewFlow,
        Why::Pending,
        Why::TcpFlags,
        Why::Learn,
        Why::InnerKey,
        Why::Segments,
        Why::Targetless,
    ];

    /// Returns the sentence for operators.
    #[must_use]
    pub const fn explanation(self) -> &'static str {
        match self {
            Why::Malformed => "a header is malformed",
            Why::Fragment => "the packet is a fragment",
            Why::ExtensionHeaders => "the packet has IPv6 extension headers",
            Why::IcmpError => "the packet is an ICMP error",
            Why::Tunnel => "the program reads inside tunnels, and the packet's inner headers are unusual",
            Why::Checksum => "an action sets addresses, and the protocol's checksum covers them",
            Why::Meter => "the pipe has a meter",
            Why::Measured => "the pipe's measurement needs the lengths, flags and times of packets",
            Why::Rehash => "the pipe recomputes the flow key",
            Why::TooLong => "the packet is too long, and an app answers its sender",
            Why::HashInput => "the pipe hashes something that is not compiled",
            Why::Fill => "the group's buckets are assigned at run time, or it picks by a third kind of hash",
            Why::Chosen => "metadata chooses one of more than 64 groups",
            Why::NoTarget => "the group sends packets without a target to an app",
            Why::Pipes => "the program has too many pipes",
            Why::Key => "the pipe's key is too long",
            Why::Rules => "the pipe's rules need more than 64 words of bits, eight fields or 4 MiB",
            Why::Forward => "apps, copies and floods are left to the engine",
            Why::Operation => "an operation of the action is not compiled",
            Why::ActsBeforeHandOver => "the action changes packets that a later pipe may leave to the engine",
            Why::MovesHeaders => "the action moves headers, and another pipe follows",
            Why::Syn => "the action lowers a SYN's MSS, and a later pipe may leave the packet to the engine",
            Why::Port => "XDP cannot send to the port",
            Why::Length => "the frame is in several buffers, or may be too long for a port",
            Why::NewLead => "the entry is new, and the program is being compiled again",
            Why::NewFlow => "the flow is new, or is not followed in the kernel",
            Why::Pending => "earlier packets of the flow are still in the engine",
            Why::TcpFlags => "the packet opens, closes or resets its connection",
            Why::Learn => "the pipe learns no flows",
            Why::InnerKey => "the pipe's flows are those inside tunnels",
            Why::Segments => "an app resets connections of the pipe's group that have been idle too long",
            Why::Targetless => "there is no target for the flow",
        }
    }
}

/// The maximum number of pipes: each has two words on the stack for what it counts.
fn pipes_max(depth: Depth) -> usize {
    if depth == Depth::Inner { 12 } else { 16 }
}

/// The most FLOW pipes: each has a word on the stack for the flow that it counts.
pub const FLOW_PIPES_MAX: usize = 2;

/// The most bytes of a key.
pub const KEY_MAX: usize = 112;

/// The maximum number of pickers, each of which has a word on the stack.
pub const PICKERS_MAX: usize = 2;

/// The maximum number of groups from which metadata chooses: the program compares them one after the other.
const CHOSEN_MAX: usize = 64;

/// The number with which a packet with a flow key picks a target, if not its select hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picker {
    /// The first bits of its source address.
    Source(Affinity),
    /// Katran's hash of the flow.
    Katran(KatranHash),
    /// The GLB director's hash of the flow.
    Glb(GlbHash),
}

impl Picker {
    /// Returns the picker of a group, if it has one.
    pub fn of(group: &Group) -> Option<Picker> {
        match group.fill {
            Fill::Katran(_, hash) => Some(Picker::Katran(hash)),
            Fill::Glb(_, hash) => Some(Picker::Glb(hash)),
            Fill::Maglev | Fill::Wants => group.affinity.map(|affinity| Picker::Source(affinity.prefixes())),
            Fill::Given => None,
        }
    }

    /// Returns the number of buckets, if the bucket is the hash modulo this number.
    pub fn size(self) -> Option<u32> {
        match self {
            Picker::Source(_) => None,
            Picker::Katran(hash) => Fill::Katran(KatranVersion::V1, hash).fixed_size(),
            Picker::Glb(hash) => Fill::Glb([0; 16], hash).fixed_size(),
        }
    }
}

/// The pickers of a program for which there is room.
fn pickers(program: &Program) -> Vec<Picker> {
    let mut all = Vec::new();
    for picker in program.groups.iter().filter_map(Picker::of) {
        if !all.contains(&picker) && all.len() < PICKERS_MAX {
            all.push(picker);
        }
    }
    all
}

/// The parts of a program that compile.
#[derive(Clone, Debug)]
pub struct Coverage {
    /// For each pipe, why all its packets are left to the engine.
    pub pipes: Vec<Option<Why>>,
    /// For each pipe, whether any of its packets may be left to the engine, there or further on.
    pub gives_up: Vec<bool>,
    /// For each pipe, the forwards and templates of its entries. An entry with another one needs another
    /// compilation.
    pub leads: Vec<Leads>,
    /// For each port, whether frames can be sent there.
    reaches: Vec<bool>,
    /// The pickers of groups, besides the select hash.
    pub pickers: Vec<Picker>,
}

impl Coverage {
    /// Examines a checked program, whose entries have these forwards and templates. Frames can be sent to the
    /// ports in `reaches`.
    #[must_use]
    pub fn of(program: &Program, leads: &[Leads], reaches: &[bool]) -> Coverage {
        let leads = program.pipes.iter().zip(leads).map(|(pipe, leads)| all_leads(pipe, leads)).collect();
        let none = vec![None; program.pipes.len()];
        let gives_up = vec![false; program.pipes.len()];
        let pickers = pickers(program);
        let mut coverage = Coverage { pipes: none, gives_up, leads, reaches: reaches.to_vec(), pickers };
        coverage.pipes = program.pipes.iter().map(|pipe| why_not_pipe(program, pipe)).collect();
        if program.pipes.len() > pipes_max(program.depth()) {
            coverage.pipes.fill(Some(Why::Pipes));
        }
        coverage.leave_more_flows(program);
        coverage.find_who_gives_up(program);
        coverage
    }

    fn find_who_gives_up(&mut self, program: &Program) {
        // Packets of new flows are always left to the engine.
        self.gives_up = (program.pipes.iter().zip(&self.pipes))
            .map(|(pipe, why)| why.is_some() || matches!(pipe.kind, PipeKind::Flow { .. }))
            .collect();
        // A pipe's forwards lead to others, and there are no loops: as many rounds as pipes reach the end.
        for _ in 0..program.pipes.len() {
            for at in 0..program.pipes.len() {
                self.gives_up[at] = self.gives_up[at] || self.leads_up(program, at);
            }
        }
    }

    /// Leaves to the engine those FLOW pipes for which there is no word on the stack.
    fn leave_more_flows(&mut self, program: &Program) {
        for at in self.flow_pipes(program).into_iter().skip(FLOW_PIPES_MAX) {
            self.pipes[at] = Some(Why::Pipes);
        }
    }

    /// The positions of the FLOW pipes that compile.
    pub fn flow_pipes(&self, program: &Program) -> Vec<usize> {
        let is_flow = |at: &usize| matches!(program.pipes[*at].kind, PipeKind::Flow { .. });
        (0..program.pipes.len()).filter(is_flow).filter(|at| self.pipes[*at].is_none()).collect()
    }

    /// How many lines a worker's flows take at most, given the room that the compiled pipes have for flows.
    pub fn flow_lines(&self, program: &Program) -> u64 {
        let pipes = self.flow_pipes(program).into_iter().map(|at| &program.pipes[at]);
        pipes
            .map(|pipe| flows::lines_for(pipe.capacity, kept::bytes_of_pipe(pipe).min(flows::KEPT_MAX)))
            .sum()
    }

    /// Whether a pipe has an entry or a miss that is left to the engine, or leads to a pipe that may leave
    /// packets to it.
    fn leads_up(&self, program: &Program, at: usize) -> bool {
        let pipe = &program.pipes[at];
        self.after(program, pipe.miss)
            || self.leads[at].iter().any(|lead| {
                self.lead(program, PipeId(at as u16), *lead).is_some()
                    || limits(pipe, &pipe.templates[usize::from(lead.1)])
                    || self.after(program, lead.0)
            })
    }

    /// Whether a packet that is forwarded there may be left to the engine.
    fn after(&self, program: &Program, forward: Forward) -> bool {
        match forward {
            Forward::Pipe(pipe) => self.gives_up[pipe.index()],
            Forward::Group(group) => {
                let group_of = &program.groups[group.index()];
                why_not_group(program, group).is_some()
                    || group_of.targets.iter().any(|target| self.after(program, target.forward))
            }
            Forward::App(_) | Forward::Tee { .. } | Forward::Flood(_) => true,
            Forward::Port(port) => !self.reaches[port.index()],
            Forward::InputPort | Forward::Kernel | Forward::Drop | Forward::PerEntry => false,
        }
    }

    /// Why packets that hit an entry with this forward and template are left to the engine.
    #[must_use]
    pub fn lead(&self, program: &Program, pipe: PipeId, (forward, template): (Forward, u16)) -> Option<Why> {
        let of = &program.pipes[pipe.index()];
        if let Some(why) = self.pipes[pipe.index()] {
            return Some(why);
        }
        let template = &of.templates[usize::from(template)];
        if let Some(why) = self.why_not_forward(program, forward) {
            return Some(why);
        }
        if let Some(why) = why_not_template(template) {
            return Some(why);
        }
        if limits_late(of, template) {
            return Some(Why::TooLong);
        }
        let follows = matches!(forward, Forward::Pipe(_))
            || matches!(forward, Forward::Group(group) if program.groups[group.index()]
                .targets.iter().any(|target| matches!(target.forward, Forward::Pipe(_))));
        if follows && template.operations.iter().any(|one| one.headers() != Headers::Stay) {
            return Some(Why::MovesHeaders);
        }
        if template.operations.iter().any(changes_bytes) && self.after(program, forward) {
            return Some(Why::ActsBeforeHandOver);
        }
        None
    }

    /// Whether a template leaves SYNs to the engine. It does if it would lower the maximum segment size of
    /// SYNs that the engine may have to handle later: the engine handles packets from the start. The template
    /// does not change other packets.
    #[must_use]
    pub fn leaves_syns(&self, program: &Program, pipe: PipeId, template: u16) -> bool {
        let of = &program.pipes[pipe.index()];
        let operations = &of.templates[usize::from(template)].operations;
        let clamps = operations.iter().any(|one| matches!(one, Operation::ClampMss { .. }));
        let mut leads = self.leads[pipe.index()].iter().filter(|lead| lead.1 == template);
        clamps
            && (limits(of, &of.templates[usize::from(template)])
                || leads.any(|lead| self.after(program, lead.0)))
    }

    /// Why packets that hit an entry are left to the engine; `Err` if only another compilation can show this.
    pub fn entry(&self, program: &Program, pipe: PipeId, entry: &Entry) -> Result<Option<Why>, NotCompiled> {
        let lead = (forward_of(&program.pipes[pipe.index()], entry), entry.template);
        if self.pipes[pipe.index()].is_none() && !self.leads[pipe.index()].contains(&lead) {
            return Err(NotCompiled);
        }
        Ok(self.lead(program, pipe, lead))
    }

    /// Why a forward is left to the engine.
    pub fn why_not_forward(&self, program: &Program, forward: Forward) -> Option<Why> {
        match forward {
            Forward::App(_) | Forward::Tee { .. } | Forward::Flood(_) => Some(Why::Forward),
            Forward::Group(group) => {
                let targets = &program.groups[group.index()].targets;
                why_not_group(program, group).or_else(|| {
                    targets.iter().find_map(|target| self.why_not_forward(program, target.forward))
                })
            }
            Forward::Port(port) => (!self.reaches[port.index()]).then_some(Why::Port),
            Forward::InputPort | Forward::Pipe(_) | Forward::Kernel | Forward::Drop | Forward::PerEntry => {
                None
            }
        }
    }
}

/// An entry's forward or template is not among those that were compiled.
#[derive(Clone, Copy, Debug)]
pub struct NotCompiled;

/// Returns the leads of a pipe, given those of its entries. The latter do not matter if the pipe has one
/// forward for all entries.
fn all_leads(pipe: &Pipe, leads: &[(Forward, u16)]) -> Leads {
    let templates = 0..pipe.templates.len() as u16;
    if pipe.forward != Forward::PerEntry {
        return templates.map(|template| (pipe.forward, template)).collect();
    }
    // Entries without a forward are not listed.
    let none = templates.map(|template| (Forward::default(), template));
    let mut all: Leads = leads.iter().copied().chain(none).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Protocols other than TCP, UDP and ICMPv6 whose checksums have addresses (docs/reference/pipes.md A18).
/// Their packets are left to the engine where the program [writes addresses](writes_addresses).
pub const CHECKSUM_PROTOCOLS: [u8; 7] = [33, 89, 103, 112, 135, 136, 139];

/// Whether an action of the program may write an IP address.
#[must_use]
pub fn writes_addresses(program: &Program) -> bool {
    use FieldKind::{Ipv4Dst, Ipv4Src, Ipv6Dst, Ipv6Src};
    let is_address = |field: Field| matches!(field.kind, Ipv4Src | Ipv4Dst | Ipv6Src | Ipv6Dst);
    let templates = program.pipes.iter().flat_map(|pipe| &pipe.templates);
    let mut operations = templates.flat_map(|template| &template.operations);
    operations.any(|one| one.writes().is_some_and(is_address))
}

/// Whether the program hashes flow keys inside tunnels: packets in tunnels are left to the engine then.
#[must_use]
pub fn uses_inner_key(program: &Program) -> bool {
    let inner = program.key_use(KeySource::Inner);
    inner.select || inner.select_some
}

/// The leads of all entries of a program.
#[must_use]
pub fn leads_of(program: &Program) -> Vec<Leads> {
    let of = |pipe: &Pipe| {
        let mut leads: Leads = Vec::new();
        for entry in pipe.entries.iter() {
            let lead = (forward_of(pipe, &entry), entry.template);
            if !leads.contains(&lead) {
                leads.push(lead);
            }
        }
        leads
    };
    program.pipes.iter().map(of).collect()
}

/// Where an entry's packets go.
pub fn forward_of(pipe: &Pipe, entry: &Entry) -> Forward {
    if pipe.forward == Forward::PerEntry { entry.forward.unwrap_or_default() } else { pipe.forward }
}

/// Whether a template leaves packets that are too long to the engine, for an app.
fn limits(pipe: &Pipe, template: &Template) -> bool {
    pipe.too_long.is_some() && template.operations.iter().any(is_limit)
}

/// Whether a template leaves packets that are too long to the engine after it has changed them.
fn limits_late(pipe: &Pipe, template: &Template) -> bool {
    let changed = template.operations.iter().skip_while(|one| !changes_bytes(one));
    pipe.too_long.is_some() && { changed }.any(is_limit)
}

fn is_limit(operation: &Operation) -> bool {
    matches!(operation, Operation::LimitLength { .. })
}

/// Whether an operation changes the packet, rather than only its metadata. The maximum segment size is only
/// in SYNs ([`Coverage::leaves_syns`]).
fn changes_bytes(operation: &Operation) -> bool {
    let changes_none = is_limit(operation) || matches!(operation, Operation::ClampMss { .. });
    !changes_none && operation.writes().is_none_or(|field| field.meta_word().is_none())
}

fn why_not_group(program: &Program, group: GroupId) -> Option<Why> {
    let group = &program.groups[group.index()];
    let has_room = Picker::of(group).is_none_or(|picker| pickers(program).contains(&picker));
    if group.fill == Fill::Given || !has_room {
        return Some(Why::Fill);
    }
    group.no_target.map(|_| Why::NoTarget)
}

/// Why a pipe cannot pick from groups that metadata chooses.
fn why_not_chosen(program: &Program) -> Option<Why> {
    let chosen = || (0..).map(GroupId).zip(&program.groups).filter(|(_, group)| group.number.is_some());
    if chosen().count() > CHOSEN_MAX {
        return Some(Why::Chosen);
    }
    chosen().find_map(|(id, _)| why_not_group(program, id))
}

fn why_not_pipe(program: &Program, pipe: &Pipe) -> Option<Why> {
    let kind = match &pipe.kind {
        PipeKind::Basic | PipeKind::Lpm => None,
        PipeKind::Hash { input, group } => {
            let input = match input {
                // Packets in tunnels are left to the engine where a flow key is made of the inner headers;
                // all others have only outer headers.
                HashInput::Select(_) | HashInput::Rss | HashInput::Fields(_) => None,
                HashInput::RoundRobin | HashInput::Quic => Some(Why::HashInput),
            };
            let group = match group {
                GroupChoice::One(group) => why_not_group(program, *group),
                GroupChoice::ByMeta(_) => why_not_chosen(program),
            };
            input.or(group)
        }
        PipeKind::Acl => AclShape::of(pipe).is_none().then_some(Why::Rules),
        PipeKind::Flow { key, learn, timeouts, .. } => {
            let of_group = |group: &Group| group.idle.is_some();
            let segments = timeouts.are_by_state() && program.groups.iter().any(of_group);
            let reasons = [(*key != KeySource::Outer, Why::InnerKey), (segments, Why::Segments)];
            let learns = match learn {
                Learn::Pin(_) | Learn::Default => None,
                Learn::Follow(GroupChoice::One(group)) => why_not_group(program, *group),
                Learn::Follow(GroupChoice::ByMeta(_)) => why_not_chosen(program),
                Learn::Nothing => Some(Why::Learn),
            };
            learns.or_else(|| reasons.into_iter().find_map(|(applies, why)| applies.then_some(why)))
        }
    };
    let key: usize = pipe.varying().map(|one| if one.field.spec().bits > 64 { 16 } else { 8 }).sum();
    let rest = [
        (pipe.monitor.meter.is_some(), Why::Meter),
        (pipe.monitor.measured.is_some(), Why::Measured),
        (pipe.rehash, Why::Rehash),
        (key > KEY_MAX, Why::Key),
    ];
    let rest = rest.into_iter().find_map(|(applies, why)| applies.then_some(why));
    kind.or(rest)
}

fn why_not_template(template: &Template) -> Option<Why> {
    let operations = &template.operations;
    for (at, operation) in operations.iter().enumerate() {
        let compiled = match operation {
            Operation::Set(field, _) | Operation::Add(field, _) => is_written(*field),
            Operation::Copy { to, .. } => is_written(*to),
            Operation::DecrementTtl | Operation::PopVlan | Operation::PushVlan { .. } => true,
            Operation::LimitLength { .. } | Operation::ClampMss { .. } => true,
            Operation::Encap(encap) => {
                let spreads = is_spread_by_entry(encap) || source_bits(encap).is_some_and(|bits| bits <= 32);
                !encap.udp_checksum && !encap.second_chance && spreads && !operation.is_kept()
            }
            Operation::Decap(_) => true,
        };
        if !compiled {
            return Some(Why::Operation);
        }
        // Headers that have moved would have to be found again.
        if operation.headers() != Headers::Stay && at + 1 < operations.len() {
            return Some(Why::Operation);
        }
    }
    (kept::bytes(template) > flows::KEPT_MAX).then_some(Why::Operation)
}

/// Whether a field can be written by actions: those of the outer headers.
fn is_written(field: Field) -> bool {
    field.level == LevelId::Outer && field.spec().tunnel.is_none()
}
