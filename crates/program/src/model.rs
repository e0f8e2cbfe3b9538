//! A program as written: ports, pipes, groups, counters and meters, with names resolved to indices and
//! nothing compiled yet. The check, the interpreter, the compiler and the control plane all read this form.
//!
//! Indices (`PipeId`, ...) are positions in the program's own lists. Names identify things across programs:
//! an entry, a counter or a target that keeps its name keeps its state.

pub use crate::affinity::{AFFINITY_TIMEOUT_MAX, Affinity};
pub use crate::entry_list::{Cursor, EntryList};
pub use crate::nat::{NatPool, NatPrefix, SLICES as NAT_SLICES};
pub use crate::operation::{Encap, NatPart, Operation, Place, Value};
pub use crate::owner::OwnedBy;
pub use crate::pipes::{HashInput, Learn, PipeKind, Timeouts};
pub use crate::quic::{QuicConfig, ServerId};
use std::net::IpAddr;
use std::sync::Arc;
use weir_packet::{Depth, Field, FlowKey, KeySource, TunnelPorts};
pub use weir_table::{FlowState, GlbHash, KatranHash, KatranVersion};
pub use weir_table::{MeterConfig, MeterSecond, MeterUnit};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u16);

        impl $name {
            /// Returns the position in the program's list.
            #[inline(always)]
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// Identifies a port: its position in [`Program::ports`], and the value of the match field `port`.
    PortId;
    /// Identifies a pipe: its position in [`Program::pipes`].
    PipeId;
    /// Identifies a group: its position in [`Program::groups`].
    GroupId;
    /// Identifies a shared counter: its position in [`Program::counters`].
    CounterId;
    /// Identifies a meter: its position in [`Program::meters`].
    MeterId;
    /// Identifies a NAT pool: its position in [`Program::nat_pools`].
    NatPoolId;
    /// Identifies an app that receives frames: its position in [`Program::apps`].
    AppId;
}

/// A place in the configuration, which the configuration reader can convert to file, line and column. 0 means
/// none (created by an app or at run time).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin(pub u32);

/// A whole program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// The ports.
    pub ports: Vec<PortDeclaration>,
    /// The tables, in the order in which they were written; their forwards form a graph.
    pub pipes: Vec<Pipe>,
    /// Groups of targets with their buckets.
    pub groups: Vec<Group>,
    /// Names of shared counters; empty for those that nothing uses yet.
    pub counters: Vec<String>,
    /// Meters.
    pub meters: Vec<MeterDeclaration>,
    /// Addresses and ports that flows take.
    pub nat_pools: Vec<NatPool>,
    /// Names of apps that frames can be forwarded to.
    pub apps: Vec<String>,
    /// Seed of the select hash; the same on all nodes of a fleet.
    pub select_seed: u64,
    /// UDP ports that identify tunnels, and to which tunnel packets are sent.
    pub tunnels: TunnelPorts,
    /// Whether fragments of TCP and UDP have the ports of their datagram's first fragment.
    pub follow_fragments: bool,
}

/// How a program uses one kind of flow keys, so that nothing unused is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyUse {
    /// Whether flows are looked up with the keys.
    pub table: bool,
    /// Whether buckets are picked with the keys for all packets.
    pub select: bool,
    /// Whether buckets or source ports are picked for some packets, which are hashed once they are known.
    pub select_some: bool,
    /// Whether buckets are picked with the keys for frames without a NIC's hash.
    pub select_unhashed: bool,
    /// Whether the state of flows is tracked, which needs the flags of TCP headers.
    pub flags: bool,
    /// Whether packets are summed up by flow.
    pub sums: bool,
}

/// A port, as seen by the program.
#[derive(Clone, Debug, PartialEq)]
pub struct PortDeclaration {
    /// Its name.
    pub name: String,
    /// The pipe that its frames enter; if `None`, they are dropped (`policy`).
    pub root: Option<PipeId>,
    /// Whether frames can be passed to the host's stack here (`forward: kernel`).
    pub kernel_path: bool,
    /// The port's own MAC address, if known. No executor reads it: configurations use it as a value.
    pub mac: Option<[u8; 6]>,
    /// Place in the configuration.
    pub origin: Origin,
}

/// A table: match, monitor, action, forward.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipe {
    /// Its name.
    pub name: String,
    /// How the pipe looks packets up.
    pub kind: PipeKind,
    /// Fields that must all match.
    pub matches: Vec<Match>,
    /// The counter and the meter of a hit.
    pub monitor: Monitor,
    /// Action templates; each entry names one. There is at least one, which may have no operations.
    pub templates: Vec<Template>,
    /// Where hits go.
    pub forward: Forward,
    /// Where misses go.
    pub miss: Forward,
    /// The app that gets packets that `limit_length` refuses; otherwise they are dropped.
    pub too_long: Option<AppId>,
    /// Whether to recompute flow key and select hash from the bytes after the actions.
    pub rehash: bool,
    /// The part of a flow's key that determines the worker it belongs to (FLOW).
    pub owner: OwnedBy,
    /// The pool from which each of its flows takes an address and a port (FLOW).
    pub nat: Option<NatPoolId>,
    /// The largest number of entries, or of flows for a FLOW pipe.
    pub capacity: u32,
    /// Entries written by the configuration or an app.
    pub entries: EntryList,
    /// Place in the configuration.
    pub origin: Origin,
}

/// A field that a pipe matches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Match {
    /// The field.
    pub field: Field,
    /// What the field is compared with.
    pub criterion: Criterion,
    /// Place in the configuration.
    pub origin: Origin,
}

/// What a field is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// `field & mask == value` for the whole pipe; otherwise the packet misses.
    Const {
        /// Value, within the mask.
        value: u128,
        /// The bits to compare.
        mask: u128,
    },
    /// The entry gives the value (BASIC): [`EntryMatch::Value`].
    PerEntry {
        /// The bits to compare.
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
    /// Returns the criterion's YAML keyword; a constant has none.
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

    /// Returns true if an entry may match any value, even where the packet lacks the field.
    #[must_use]
    pub fn has_any(self) -> bool {
        matches!(self, Criterion::Masked | Criterion::Range)
    }
}

/// The counters and meters of a pipe's hits, besides the packets and bytes of every entry.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Monitor {
    /// A shared counter.
    pub counter: Option<SharedUse<CounterId>>,
    /// A meter.
    pub meter: Option<SharedUse<MeterId>>,
    /// Whether packets that the meter colours red are dropped.
    pub drop_red: bool,
    /// Run-time entries without a hit for longer are removed, in nanoseconds; 0 means never. Configured
    /// entries stay.
    pub idle_timeout_ns: u64,
    /// Whether the pipe's packets are measured: by its flows if it keeps any, otherwise summed up by flow.
    pub measured: Option<Measured>,
}

/// How soon flows report their counts to a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Counts from before the last multiple of this time are reported, in milliseconds; at least 1.
    pub period_ms: u32,
    /// The number of packets after which a flow reports its counts, before it counts the next packet; at
    /// least 1. Ignored without a FLOW pipe.
    pub packets: u32,
    /// The headers that tell flows apart where packets are summed up; a FLOW pipe has its own.
    pub key: KeySource,
    /// How many flows fit where packets are summed up; further flows make others report their counts early.
    pub keys: u32,
}

impl Measured {
    /// Counts are reported once per period; where they are summed up, by outer headers, for 131,072 flows at
    /// a time, which takes nine megabytes twice. With a quarter of that, traffic of Zipf 1.1 yields ten times
    /// as many deltas.
    #[must_use]
    pub const fn every(period_ms: u32) -> Measured {
        Measured { period_ms, packets: u32::MAX, key: KeySource::Outer, keys: 1 << 17 }
    }
}

/// A shared counter or meter: one for the pipe, or named by each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedUse<Id> {
    /// One for the pipe.
    Pipe(Id),
    /// Each entry names one.
    PerEntry,
}

/// An action template: operations in the order in which they are performed.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// The name that entries use.
    pub name: String,
    /// The operations, already in the fixed order (decap, pop VLAN, set/add/copy/TTL as written, push VLAN,
    /// encap).
    pub operations: Vec<Operation>,
}

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forward {
    /// Through a port.
    Port(PortId),
    /// Back through the port on which it arrived.
    InputPort,
    /// Into another pipe.
    Pipe(PipeId),
    /// To the target of a group that the select hash picks, and on to wherever that target leads.
    Group(GroupId),
    /// To an app.
    App(AppId),
    /// Into another pipe, with a copy to an app if its ring has room. Only for a pipe's own forward or miss.
    Tee {
        /// The app that gets the copy.
        app: AppId,
        /// The pipe that gets the packet.
        next: PipeId,
    },
    /// Through every port that a target with a bucket leads to; dropped if there is no such port.
    Flood(GroupId),
    /// To the host's stack, at the port on which it arrived.
    Kernel,
    /// Dropped.
    #[default]
    Drop,
    /// Given by each entry ([`Entry::forward`]); not allowed for misses.
    PerEntry,
}

/// A row of a pipe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// The entry's matches: one for each match of the pipe that is not constant, in the pipe's order; for
    /// HASH one [`EntryMatch::Target`] or, where metadata chooses the group, [`EntryMatch::Member`]; for FLOW
    /// one of these, [`EntryMatch::Flow`] or [`EntryMatch::Default`].
    pub matches: Vec<EntryMatch>,
    /// For ACL, the priority; the lowest number wins.
    pub priority: u32,
    /// Index of the pipe's template.
    pub template: u16,
    /// Values for the template's `PerEntry` places, in order.
    pub values: Vec<u128>,
    /// Where the entry leads, if the pipe's forward is `PerEntry`.
    pub forward: Option<Forward>,
    /// The entry's counter, if the pipe has counters per entry.
    pub counter: Option<CounterId>,
    /// The entry's meter, if the pipe has meters per entry.
    pub meter: Option<MeterId>,
    /// Whether the entry was added at run time: it ages, and survives a swap that keeps its pipe's shape.
    pub run_time: bool,
    /// Place in the configuration.
    pub origin: Origin,
}

/// The match of an entry in one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryMatch {
    /// `field & mask == value` under the pipe's mask.
    Value(u128),
    /// The first `length` bits equal those of `value`.
    Prefix {
        /// The value; bits beyond the prefix are zero.
        value: u128,
        /// Number of bits in the prefix.
        length: u8,
    },
    /// `field & mask == value` under the entry's own mask.
    Masked {
        /// Value, within the mask.
        value: u128,
        /// The bits to compare.
        mask: u128,
    },
    /// `first <= field <= last`.
    Range {
        /// Lowest port.
        first: u16,
        /// Highest port.
        last: u16,
    },
    /// Any value, even if the packet lacks the field.
    Any,
    /// The actions of a target of the pipe's group (HASH; FLOW that pins or follows).
    Target(u16),
    /// The actions of a target of a group, where metadata chooses the group.
    Member {
        /// The group.
        group: GroupId,
        /// The target's position in the group.
        target: u16,
    },
    /// A flow (FLOW).
    Flow(FlowKey),
    /// The entry for flows written by `learn: default` (FLOW).
    Default,
}

/// The group from which a pipe picks targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupChoice {
    /// Always this group.
    One(GroupId),
    /// For each packet, the group whose number is the value of `meta.N`.
    ByMeta(u8),
}

impl Default for GroupChoice {
    fn default() -> GroupChoice {
        GroupChoice::One(GroupId::default())
    }
}

impl From<GroupId> for GroupChoice {
    fn from(group: GroupId) -> GroupChoice {
        GroupChoice::One(group)
    }
}

impl GroupChoice {
    /// Returns the group, if it is always the same.
    #[must_use]
    pub fn one(self) -> Option<GroupId> {
        if let GroupChoice::One(group) = self { Some(group) } else { None }
    }

    /// Returns the metadata field that chooses the group, if one does.
    #[must_use]
    pub fn field(self) -> Option<Field> {
        const WORDS: [Field; 4] = [Field::Meta0, Field::Meta1, Field::Meta2, Field::Meta3];
        if let GroupChoice::ByMeta(word) = self { Some(WORDS[usize::from(word) & 3]) } else { None }
    }

    /// Returns the choice without the number of its group, which differs between programs.
    pub fn unnumbered(self) -> GroupChoice {
        if let GroupChoice::One(_) = self { GroupChoice::One(GroupId(0)) } else { self }
    }

    /// Returns how an entry names a target of a group in a pipe with this choice.
    #[must_use]
    pub fn key(self, group: GroupId, target: u16) -> EntryMatch {
        match self {
            GroupChoice::One(_) => EntryMatch::Target(target),
            GroupChoice::ByMeta(_) => EntryMatch::Member { group, target },
        }
    }
}

/// Targets, and how buckets are filled with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// The value of metadata that chooses the group, from 1; a group without a number is chosen by name only.
    pub number: Option<u16>,
    /// How buckets are filled.
    pub fill: Fill,
    /// Number of buckets: a power of two up to 65536 (wants, given), a prime (Maglev), or what the other
    /// system has (Katran, GLB).
    pub size: u32,
    /// Mixed into the hash before a bucket is picked, so that consecutive groups choose independently.
    pub seed: Option<u64>,
    /// How a FLOW pipe that pins chooses the targets of new flows.
    pub new_flows: NewFlows,
    /// The part of a packet's source address that picks the bucket, instead of its whole flow key.
    pub affinity: Option<Affinity>,
    /// How the server IDs of targets are encoded in QUIC connection IDs, if they have any.
    pub quic: Option<Arc<[QuicConfig]>>,
    /// The app that gets packets for which the group has no target; otherwise they are dropped.
    pub no_target: Option<AppId>,
    /// The app that resets TCP connections whose flows have been idle too long; without it they just expire.
    pub idle: Option<AppId>,
    /// The targets. A target's id is its position here. Shared by all copies of the program, because there
    /// may be a million of them, and a worker holds a copy. Some may be vacant ([`Target::vacant`]).
    pub targets: Arc<[Target]>,
    /// Place in the configuration.
    pub origin: Origin,
}

/// How the targets of new flows are chosen. Everything else that picks from the group does so by hash, as
/// does a new flow for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NewFlows {
    /// By hash.
    #[default]
    Hash,
    /// In turn, by weight ([`mod@weir_table::in_turn`]).
    RoundRobin,
    /// To the target with the fewest live flows for its weight: out of all targets in a small group,
    /// otherwise the better of two that the hash picks.
    LeastFlows,
}

impl NewFlows {
    /// The choices with their words.
    pub const WORDS: [(&'static str, NewFlows); 3] = [
        ("hash", NewFlows::Hash),
        ("round_robin", NewFlows::RoundRobin),
        ("least_flows", NewFlows::LeastFlows),
    ];

    /// The maximum number of targets in a group of which [`NewFlows::LeastFlows`] compares all.
    pub const FEW: usize = 16;
}

/// How a group's buckets are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// A pure function of the set of targets (Maglev, NSDI'16 §3.4): all nodes of a fleet compute the same.
    Maglev,
    /// Wants-count: depends on history, and moves as few buckets as possible.
    Wants,
    /// Assigned from outside: a bucket has no target until [`crate::change::Change::MoveBuckets`] gives it
    /// one. Weights have no effect.
    Given,
    /// The ring of Katran, by the addresses of targets; a flow finds its slot with Katran's hash.
    Katran(KatranVersion, KatranHash),
    /// The first back ends of the rows of the GLB director with this seed, by the addresses of targets; a
    /// flow finds its row with the director's hash. A target without weight drains or, if
    /// [`Target::inactive`] says so, is in no row; other weights make no difference.
    Glb([u8; 16], GlbHash),
}

impl Fill {
    /// Returns the number of buckets, for systems that allow only one number.
    #[must_use]
    pub fn fixed_size(self) -> Option<u32> {
        match self {
            Fill::Katran(..) => Some(weir_table::katran::RING as u32),
            Fill::Glb(..) => Some(weir_table::glb::ROWS as u32),
            Fill::Maglev | Fill::Wants | Fill::Given => None,
        }
    }

    /// Returns another system's hash of a flow, whose remainder modulo the number of buckets is the flow's
    /// bucket; `None` where buckets are picked by one of weir's own hashes.
    #[inline]
    #[must_use]
    pub fn hash(self, flow: &FlowKey) -> Option<u64> {
        match self {
            Fill::Katran(_, hash) => Some(u64::from(hash.hash(flow))),
            Fill::Glb(_, hash) => Some(hash.hash(flow)),
            Fill::Maglev | Fill::Wants | Fill::Given => None,
        }
    }
}

/// A target of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Its name; empty for a vacant place.
    pub name: String,
    /// The target's share relative to the others; with 0, it gets no buckets.
    pub weight: u32,
    /// Whether the target is in no row of the GLB director's table while it has no weight, like a target that
    /// has no weight in the configuration; otherwise the target drains while it has no weight.
    pub inactive: bool,
    /// The target's address in other systems, required where buckets are filled as in those systems.
    pub address: Option<IpAddr>,
    /// The target's server ID in QUIC connection IDs.
    pub server_id: Option<ServerId>,
    /// Where `forward: group` sends packets for this target.
    pub forward: Forward,
    /// Place in the configuration.
    pub origin: Origin,
}

/// A meter with its name. Used by one pipe only, because two pipes would see a batch in different orders.
#[derive(Clone, Debug, PartialEq)]
pub struct MeterDeclaration {
    /// Its name.
    pub name: String,
    /// Its rates.
    pub config: MeterConfig,
    /// Place in the configuration.
    pub origin: Origin,
}

impl Group {
    /// Sets the weight of a target, which must exist. A target that has had a weight drains when it loses it.
    pub fn set_weight(&mut self, target: usize, weight: u32) {
        let target = self.target_mut(target);
        (target.weight, target.inactive) = (weight, target.inactive && weight == 0);
    }

    /// Returns a target, which must exist; from then on the list belongs to this program alone.
    pub fn target_mut(&mut self, target: usize) -> &mut Target {
        &mut Arc::make_mut(&mut self.targets)[target]
    }
}

impl Program {
    /// Returns how deep frames must be parsed: as deep as anything in the program reads.
    #[must_use]
    pub fn depth(&self) -> Depth {
        self.pipes.iter().map(|pipe| pipe.depth(!self.groups.is_empty())).max().unwrap_or_default()
    }

    /// Returns how the flow keys of received frames, outer or inner, are used.
    #[must_use]
    pub fn key_use(&self, source: KeySource) -> KeyUse {
        let uses = self.pipes.iter().map(|pipe| pipe.key_use(source, !self.groups.is_empty()));
        let all = uses.fold(KeyUse::default(), |all, one| KeyUse {
            table: all.table || one.table,
            select: all.select || one.select,
            select_some: all.select_some || one.select_some,
            select_unhashed: all.select_unhashed || one.select_unhashed,
            flags: all.flags || one.flags,
            sums: all.sums || one.sums,
        });
        // Which TCP packet is the first of a connection.
        let begins = self.groups.iter().any(|group| group.new_flows != NewFlows::Hash);
        KeyUse { flags: all.flags || begins && all.table, ..all }
    }

    /// Returns whether the program keeps flows, in which case each flow must stay on one worker.
    #[must_use]
    pub fn keeps_flows(&self) -> bool {
        self.pipes.iter().any(|pipe| matches!(pipe.kind, PipeKind::Flow { .. }))
    }

    /// Returns whether fragments have ports: only a program that reads ports needs them.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.follow_fragments && self.depth() >= Depth::L4
    }

    /// Returns whether frames may be handed over to other workers: frames of flows, and fragments.
    #[must_use]
    pub fn hands_over(&self) -> bool {
        self.keeps_flows() || self.follows()
    }

    /// Returns the program without entries. They are never copied, because there may be a million of them.
    #[must_use]
    pub fn without_entries(&self) -> Program {
        Program {
            ports: self.ports.clone(),
            pipes: self.pipes.iter().map(Pipe::without_entries).collect(),
            groups: self.groups.clone(),
            counters: self.counters.clone(),
            meters: self.meters.clone(),
            nat_pools: self.nat_pools.clone(),
            apps: self.apps.clone(),
            select_seed: self.select_seed,
            tunnels: self.tunnels,
            follow_fragments: self.follow_fragments,
        }
    }

    /// Returns the pipe with this name.
    #[must_use]
    pub fn pipe_named(&self, name: &str) -> Option<PipeId> {
        self.pipes.iter().position(|pipe| pipe.name == name).map(|at| PipeId(at as u16))
    }

    /// Returns the port with this name.
    #[must_use]
    pub fn port_named(&self, name: &str) -> Option<PortId> {
        self.ports.iter().position(|port| port.name == name).map(|at| PortId(at as u16))
    }

    /// Returns the group with this name.
    #[must_use]
    pub fn group_named(&self, name: &str) -> Option<GroupId> {
        self.groups.iter().position(|group| group.name == name).map(|at| GroupId(at as u16))
    }
}

impl Pipe {
    /// Returns the pipe without its entries.
    #[must_use]
    pub fn without_entries(&self) -> Pipe {
        Pipe {
            name: self.name.clone(),
            kind: self.kind.clone(),
            matches: self.matches.clone(),
            templates: self.templates.clone(),
            entries: EntryList::default(),
            ..*self
        }
    }

    /// Iterates over the matches that entries fill in, in the order of entries' matches.
    pub fn varying(&self) -> impl Iterator<Item = &Match> {
        self.matches.iter().filter(|one| !matches!(one.criterion, Criterion::Const { .. }))
    }

    /// Returns how deep this pipe reads: its matches, its hash input, its actions.
    #[must_use]
    fn depth(&self, groups: bool) -> Depth {
        let matches = self.matches.iter().map(|one| one.field.depth());
        let actions = self.templates.iter().flat_map(|template| &template.operations).map(Operation::depth);
        let forward = if groups && self.forwards_by_hash() { Depth::L4 } else { Depth::L2 };
        let sums = self.sums_up().map_or(Depth::L2, |measured| crate::pipes::key_depth(measured.key));
        matches.chain(actions).max().unwrap_or_default().max(self.kind.depth()).max(forward).max(sums)
    }

    fn forwards_by_hash(&self) -> bool {
        let by_hash = |forward: &Forward| matches!(forward, Forward::Group(_));
        // With forwards per entry, run-time entries may forward by hash.
        by_hash(&self.forward)
            || by_hash(&self.miss)
            || self.forward == Forward::PerEntry
            || self.entries.forwards().any(|(forward, _)| by_hash(&forward))
    }

    fn key_use(&self, wanted: KeySource, groups: bool) -> KeyUse {
        let own = self.kind.key_use(wanted);
        let mut operations = self.templates.iter().flat_map(|template| &template.operations);
        // Groups and tunnels use the outer headers.
        let outer = wanted == KeySource::Outer
            && (groups && self.forwards_by_hash() || operations.any(Operation::uses_hash));
        let sums = self.sums_up().is_some_and(|measured| measured.key == wanted);
        KeyUse { select_some: own.select_some || outer, sums, ..own }
    }

    /// Returns how the pipe sums up packets, if it is measured and keeps no flows.
    #[must_use]
    pub fn sums_up(&self) -> Option<Measured> {
        self.monitor.measured.filter(|_| !matches!(self.kind, PipeKind::Flow { .. }))
    }

    /// Returns the number of entry values that a template needs.
    #[must_use]
    pub fn values_wanted(&self, template: u16) -> usize {
        self.templates.get(usize::from(template)).map_or(0, |template| template.places().len())
    }
}

impl Template {
    /// Returns the numbers that entries give, in the order of their values.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        crate::operation::places(&self.operations)
    }
}
