//! A program as it was written: ports, pipes, groups, counters and meters, with names resolved to indices and nothing
//! compiled yet. The check, the interpreter, the compiler and the control plane all read this one form.
//!
//! Indices (`PipeId`, ...) are positions in the program's own lists. Names are what lasts from one program to the next:
//! an entry, a counter or a target that keeps its name keeps its state.

pub use crate::operation::{Encap, Operation, Place, Value};
pub use crate::pipes::{HashInput, Learn, PipeKind};
use packet::{Depth, Field, FlowKey, KeySource, TunnelPorts};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u16);

        impl $name {
            /// As a position in the program's list.
            #[inline(always)]
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A port: position in [`Program::ports`], and the value of the match field `port`.
    PortId;
    /// A pipe: position in [`Program::pipes`].
    PipeId;
    /// A group: position in [`Program::groups`].
    GroupId;
    /// A shared counter: position in [`Program::counters`].
    CounterId;
    /// A meter: position in [`Program::meters`].
    MeterId;
    /// An app that takes frames: position in [`Program::apps`].
    AppId;
}

/// Where in the configuration something was written: a key the configuration reader can turn into file, line and
/// column. 0: nowhere (made by an app or at run time).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin(pub u32);

/// A whole program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Where frames come from and go to.
    pub ports: Vec<PortDeclaration>,
    /// The tables, in the order they were written; forwards make the graph.
    pub pipes: Vec<Pipe>,
    /// Sets of targets with their bucket tables.
    pub groups: Vec<Group>,
    /// Names of shared counters.
    pub counters: Vec<String>,
    /// Meters.
    pub meters: Vec<MeterDeclaration>,
    /// Names of apps that frames can be forwarded to.
    pub apps: Vec<String>,
    /// Seed of the select hash; equal over a fleet.
    pub select_seed: u64,
    /// UDP ports by which tunnels are recognised and to which they are sent.
    pub tunnels: TunnelPorts,
}

/// What a program does with flow keys of one kind: what nobody reads is not computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyUse {
    /// Looks flows up.
    pub table: bool,
    /// Picks buckets or source ports.
    pub select: bool,
    /// Picks buckets of frames that came without a NIC's hash.
    pub select_unhashed: bool,
}

/// A port as the program knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct PortDeclaration {
    /// Its name.
    pub name: String,
    /// The pipe its frames enter; `None`: what it receives is dropped (`policy`).
    pub root: Option<PipeId>,
    /// Can a frame be given to the host's stack from here (`forward: kernel`)?
    pub kernel_path: bool,
    /// Where it was written.
    pub origin: Origin,
}

/// One table: match, monitor, action, forward.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipe {
    /// Its name.
    pub name: String,
    /// How it looks packets up.
    pub kind: PipeKind,
    /// Fields that must match, all of them.
    pub matches: Vec<Match>,
    /// What is counted and metered on a hit.
    pub monitor: Monitor,
    /// Action templates; an entry names one of them. Never empty: no action is one template without operations.
    pub templates: Vec<Template>,
    /// Where a hit goes.
    pub forward: Forward,
    /// Where a miss goes.
    pub miss: Forward,
    /// Compute flow key and select hash anew from the bytes after the actions.
    pub rehash: bool,
    /// Entries (flows of a FLOW pipe) it can hold.
    pub capacity: u32,
    /// Entries the configuration or an app wrote.
    pub entries: Vec<Entry>,
    /// Where it was written.
    pub origin: Origin,
}

/// One field a pipe matches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Match {
    /// The field.
    pub field: Field,
    /// What it is compared with.
    pub criterion: Criterion,
    /// Where it was written.
    pub origin: Origin,
}

/// What a field is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// `field & mask == value` for the whole pipe; otherwise the packet misses.
    Const {
        /// Value, within the mask.
        value: u128,
        /// Bits compared.
        mask: u128,
    },
    /// The entry gives the value (BASIC): [`EntryMatch::Value`].
    PerEntry {
        /// Bits compared.
        mask: u128,
    },
    /// The entry gives a prefix (LPM): [`EntryMatch::Prefix`].
    Prefix,
    /// The entry gives value and mask, or anything (ACL): [`EntryMatch::Masked`], [`EntryMatch::Any`].
    Masked,
    /// The entry gives a range of ports (ACL): [`EntryMatch::Range`], [`EntryMatch::Any`].
    Range,
}

impl Criterion {
    /// Its word in YAML; a constant has none.
    #[must_use]
    pub fn word(self) -> Option<&'static str> {
        match self {
            Criterion::Const { .. } => None,
            Criterion::PerEntry { .. } => Some("per_entry"),
            Criterion::Prefix => Some("prefix"),
            Criterion::Masked => Some("masked"),
            Criterion::Range => Some("range"),
        }
    }

    /// May an entry match whatever the field is, also when the packet does not have it?
    #[must_use]
    pub fn has_any(self) -> bool {
        matches!(self, Criterion::Masked | Criterion::Range)
    }
}

/// What is counted and metered when a pipe is hit. Every entry counts packets and bytes besides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Monitor {
    /// A counter shared by name.
    pub counter: Option<SharedUse<CounterId>>,
    /// A meter.
    pub meter: Option<SharedUse<MeterId>>,
    /// What becomes of a packet that the meter colours red.
    pub drop_red: bool,
    /// Run-time entries without a hit for so long are removed; 0: never. Configured entries stay.
    pub idle_timeout_ns: u64,
}

/// A shared counter or meter: the same for the pipe, or named by each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedUse<Id> {
    /// One for the pipe.
    Pipe(Id),
    /// Each entry names one.
    PerEntry,
}

/// An action template: operations in the order in which they are carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// The name entries use.
    pub name: String,
    /// Operations, already in the fixed order (decap, pop VLAN, set/add/copy/TTL as written, push VLAN, encap).
    pub operations: Vec<Operation>,
}

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forward {
    /// Out of a port.
    Port(PortId),
    /// Back out of the port it came in by.
    InputPort,
    /// Into another pipe.
    Pipe(PipeId),
    /// To the target of a group that the select hash picks, and where that target goes.
    Group(GroupId),
    /// To an app.
    App(AppId),
    /// Into another pipe, and a copy to an app if its ring has room. Only a pipe's forward or miss.
    Tee {
        /// Gets the copy.
        app: AppId,
        /// Gets the packet.
        next: PipeId,
    },
    /// Out of every port that a target of the group leads to which holds a bucket; dropped if there is none.
    Flood(GroupId),
    /// To the host's stack, at the port it came in by.
    Kernel,
    /// Nowhere.
    #[default]
    Drop,
    /// Each entry says ([`Entry::forward`]); not allowed as a miss.
    PerEntry,
}

/// One row of a pipe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// What it matches: one per match that is not constant, in the pipe's order; for HASH one [`EntryMatch::Target`];
    /// for FLOW one [`EntryMatch::Flow`], [`EntryMatch::Target`] or [`EntryMatch::Default`].
    pub matches: Vec<EntryMatch>,
    /// ACL: the lowest number wins.
    pub priority: u32,
    /// Which of the pipe's templates.
    pub template: u16,
    /// Values of that template's `PerEntry` places, in order.
    pub values: Vec<u128>,
    /// Where it goes, when the pipe's forward is `PerEntry`.
    pub forward: Option<Forward>,
    /// Its counter, when the pipe's monitor says per entry.
    pub counter: Option<CounterId>,
    /// Its meter, when the pipe's monitor says per entry.
    pub meter: Option<MeterId>,
    /// Added while running: it ages, and it outlives a program swap that keeps its pipe's shape.
    pub run_time: bool,
    /// Where it was written.
    pub origin: Origin,
}

/// What an entry matches in one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryMatch {
    /// `field & mask == value` under the pipe's mask.
    Value(u128),
    /// The first `length` bits are those of `value`.
    Prefix {
        /// Value; bits behind the prefix are zero.
        value: u128,
        /// Bits of the prefix.
        length: u8,
    },
    /// `field & mask == value` under the entry's own mask.
    Masked {
        /// Value, within the mask.
        value: u128,
        /// Bits compared.
        mask: u128,
    },
    /// `first <= field <= last`.
    Range {
        /// Lowest port.
        first: u16,
        /// Highest port.
        last: u16,
    },
    /// Whatever the field is, also when the packet does not have it.
    Any,
    /// The actions of a target (HASH; FLOW that pins or follows).
    Target(u16),
    /// One flow (FLOW).
    Flow(FlowKey),
    /// The entry of flows that `learn: default` writes (FLOW).
    Default,
}

/// A set of targets and how buckets are filled with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// How buckets are filled.
    pub fill: Fill,
    /// Buckets: a power of two up to 65536 (wants, given), a prime (Maglev).
    pub size: u32,
    /// Mixed into the hash before it picks a bucket, so that groups one behind the other do not pick alike.
    pub seed: Option<u64>,
    /// Who may get them. A target's id is its position here.
    pub targets: Vec<Target>,
    /// Where it was written.
    pub origin: Origin,
}

/// How a group's buckets are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// A pure function of the set (Maglev, NSDI'16 §3.4): every node of a fleet builds the same.
    Maglev,
    /// Wants-count: history counts, the fewest buckets move.
    Wants,
    /// By hand: a bucket has no target until [`crate::change::Change::MoveBuckets`] gives it one. Weights mean nothing.
    Given,
}

/// One target of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Its share relative to the others; 0 takes no buckets.
    pub weight: u32,
    /// Where `forward: group` sends what it gets.
    pub forward: Forward,
    /// Where it was written.
    pub origin: Origin,
}

/// A meter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeterConfig {
    /// Bytes or packets.
    pub unit: MeterUnit,
    /// Committed rate, units per second.
    pub cir: u64,
    /// Committed burst, units.
    pub cbs: u64,
    /// The second bucket.
    pub second: MeterSecond,
    /// Take the packet's colour into account (RFC 2697 §2, RFC 2698 §2).
    pub colour_aware: bool,
}

/// What a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterUnit {
    /// Frame bytes without FCS.
    Bytes,
    /// Frames.
    Packets,
}

/// The second token bucket of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterSecond {
    /// RFC 2697: an excess burst filled from what the committed one cannot hold.
    Excess {
        /// Excess burst, units.
        ebs: u64,
    },
    /// RFC 2698: a peak rate of its own.
    Peak {
        /// Peak rate, units per second.
        pir: u64,
        /// Peak burst, units.
        pbs: u64,
    },
}

/// A meter with its name. Used by one pipe only: two pipes would see a batch in different orders.
#[derive(Clone, Debug, PartialEq)]
pub struct MeterDeclaration {
    /// Its name.
    pub name: String,
    /// Its rates.
    pub config: MeterConfig,
    /// Where it was written.
    pub origin: Origin,
}

impl Program {
    /// How deep frames must be parsed: as deep as anything in the program reads.
    #[must_use]
    pub fn depth(&self) -> Depth {
        self.pipes.iter().map(|pipe| pipe.depth(!self.groups.is_empty())).max().unwrap_or_default()
    }

    /// What is done with the flow keys of received frames, outer or inner.
    #[must_use]
    pub fn key_use(&self, source: KeySource) -> KeyUse {
        let uses = self.pipes.iter().map(|pipe| pipe.key_use(source, !self.groups.is_empty()));
        uses.fold(KeyUse::default(), |all, one| KeyUse {
            table: all.table || one.table,
            select: all.select || one.select,
            select_unhashed: all.select_unhashed || one.select_unhashed,
        })
    }

    /// Names, shapes and groups. Entries may be a million: they are left where they are, not copied and thrown away.
    #[must_use]
    pub fn without_entries(&self) -> Program {
        Program {
            ports: self.ports.clone(),
            pipes: self.pipes.iter().map(Pipe::without_entries).collect(),
            groups: self.groups.clone(),
            counters: self.counters.clone(),
            meters: self.meters.clone(),
            apps: self.apps.clone(),
            select_seed: self.select_seed,
            tunnels: self.tunnels,
        }
    }

    /// Looks a pipe up by name.
    #[must_use]
    pub fn pipe_named(&self, name: &str) -> Option<PipeId> {
        self.pipes.iter().position(|pipe| pipe.name == name).map(|at| PipeId(at as u16))
    }

    /// Looks a port up by name.
    #[must_use]
    pub fn port_named(&self, name: &str) -> Option<PortId> {
        self.ports.iter().position(|port| port.name == name).map(|at| PortId(at as u16))
    }

    /// Looks a group up by name.
    #[must_use]
    pub fn group_named(&self, name: &str) -> Option<GroupId> {
        self.groups.iter().position(|group| group.name == name).map(|at| GroupId(at as u16))
    }
}

impl Pipe {
    /// The pipe as written, but for its entries.
    #[must_use]
    pub fn without_entries(&self) -> Pipe {
        Pipe {
            name: self.name.clone(),
            kind: self.kind.clone(),
            matches: self.matches.clone(),
            templates: self.templates.clone(),
            entries: Vec::new(),
            ..*self
        }
    }

    /// The matches that entries fill in: entries' matches are in this order.
    pub fn varying(&self) -> impl Iterator<Item = &Match> {
        self.matches.iter().filter(|one| !matches!(one.criterion, Criterion::Const { .. }))
    }

    /// How deep this pipe reads: its matches, its hash input, its actions.
    #[must_use]
    fn depth(&self, groups: bool) -> Depth {
        let matches = self.matches.iter().map(|one| one.field.depth());
        let actions = self.templates.iter().flat_map(|template| &template.operations).map(Operation::depth);
        let forward = if groups && self.forwards_by_hash() { Depth::L4 } else { Depth::L2 };
        matches.chain(actions).max().unwrap_or_default().max(self.kind.depth()).max(forward)
    }

    fn forwards_by_hash(&self) -> bool {
        let by_hash = |forward: &Forward| matches!(forward, Forward::Group(_));
        by_hash(&self.forward)
            || by_hash(&self.miss)
            || self.entries.iter().filter_map(|entry| entry.forward.as_ref()).any(by_hash)
            // Entries that come at run time may.
            || self.forward == Forward::PerEntry
    }

    fn key_use(&self, wanted: KeySource, groups: bool) -> KeyUse {
        let own = self.kind.key_use(wanted);
        let mut operations = self.templates.iter().flat_map(|template| &template.operations);
        // Groups and tunnels go by the outer headers.
        let outer =
            wanted == KeySource::Outer && (groups && self.forwards_by_hash() || operations.any(Operation::uses_hash));
        KeyUse { select: own.select || outer, ..own }
    }

    /// The entry values a template wants.
    #[must_use]
    pub fn values_wanted(&self, template: u16) -> usize {
        self.templates.get(usize::from(template)).map_or(0, |template| template.places().len())
    }
}

impl Template {
    /// The numbers that entries give, in the order of their values.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        crate::operation::places(&self.operations)
    }
}
