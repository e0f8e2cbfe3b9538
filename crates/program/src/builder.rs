//! Builds programs. The configuration, the apps, the tests and the benches all use it.
//!
//! Naming something gives it an id; its contents may follow later: `pipe(Pipe::basic("next"))` gives the id
//! that other pipes lead to, and [`ProgramBuilder::define`] or [`ProgramBuilder::pipe_mut`] fills it in. A
//! blank pipe drops everything, changes nothing and has room for the entries it is written with. The builder
//! dereferences to the program built so far; [`crate::check`] decides whether that program makes sense.
//!
//! ```
//! use weir_program::builder::ProgramBuilder;
//! use weir_program::{Entry, Operation, Pipe, Value};
//! use weir_packet::Field;
//!
//! let mut program = ProgramBuilder::new();
//! let [uplink, lan] = program.ports(["uplink", "lan"]);
//! let rewrite = Pipe::basic("dns")
//!     .constant(Field::IpProtocol, 17)
//!     .per_entry(Field::L4Dport)
//!     .act([Operation::Set(Field::EthDst, Value::PerEntry)])
//!     .entry(Entry::on(53).value([2, 0, 0, 0, 0, 1]))
//!     .forward(lan);
//! let rewrite = program.pipe(rewrite);
//! program.root(uplink, rewrite);
//! let program = program.build();
//! assert_eq!(program.pipe_named("dns"), Some(rewrite));
//! ```

use crate::{
    Affinity, AppId, CounterId, Criterion, Entry, EntryList, EntryMatch, Fill, Forward, Group, GroupChoice,
    GroupId, HashInput, Learn, Match, Measured, MeterConfig, MeterDeclaration, MeterId, Monitor, NatPool,
    NatPoolId, NewFlows, Operation, Origin, OwnedBy, Pipe, PipeId, PipeKind, PortDeclaration, PortId,
    Program, QuicConfig, ServerId, SharedUse, Target, Template, Timeouts, Value,
};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use weir_packet::{Field, KeySource, TunnelPorts};

/// A program under construction.
#[derive(Clone, Debug, Default)]
pub struct ProgramBuilder {
    program: Program,
    /// Ids of shared counters by name, because there may be one for every entry.
    counters: HashMap<String, CounterId>,
}

impl Deref for ProgramBuilder {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

/// Appends to a list and returns the position, which is the id.
fn push<T>(list: &mut Vec<T>, item: T) -> u16 {
    list.push(item);
    (list.len() - 1) as u16
}

impl ProgramBuilder {
    /// Creates a program without ports or pipes.
    #[must_use]
    pub fn new() -> ProgramBuilder {
        ProgramBuilder::default()
    }

    /// Adds a port. A name suffices for a port without a kernel path.
    pub fn port(&mut self, port: impl Into<PortDeclaration>) -> PortId {
        PortId(push(&mut self.program.ports, port.into()))
    }

    /// Adds several ports.
    pub fn ports<P: Into<PortDeclaration>, const N: usize>(&mut self, ports: [P; N]) -> [PortId; N] {
        ports.map(|port| self.port(port))
    }

    /// Sets the first pipe for the frames of a port.
    pub fn root(&mut self, port: PortId, pipe: PipeId) {
        self.program.ports[port.index()].root = Some(pipe);
    }

    /// Sets the first pipe for the frames of all ports.
    pub fn root_of_all(&mut self, pipe: PipeId) {
        self.program.ports.iter_mut().for_each(|port| port.root = Some(pipe));
    }

    /// Adds a pipe.
    pub fn pipe(&mut self, pipe: Pipe) -> PipeId {
        PipeId(push(&mut self.program.pipes, pipe))
    }

    /// Replaces a pipe that has only been named so far.
    pub fn define(&mut self, id: PipeId, pipe: Pipe) {
        self.program.pipes[id.index()] = pipe;
    }

    /// Returns a pipe for modification.
    pub fn pipe_mut(&mut self, id: PipeId) -> &mut Pipe {
        &mut self.program.pipes[id.index()]
    }

    /// Adds a group.
    pub fn group(&mut self, group: Group) -> GroupId {
        GroupId(push(&mut self.program.groups, group))
    }

    /// Returns a group for modification.
    pub fn group_mut(&mut self, id: GroupId) -> &mut Group {
        &mut self.program.groups[id.index()]
    }

    /// Returns the shared counter with this name, which is added if necessary.
    pub fn counter(&mut self, name: impl Into<String>) -> CounterId {
        let name = name.into();
        let names = &mut self.program.counters;
        *self.counters.entry(name.clone()).or_insert_with(|| CounterId(push(names, name)))
    }

    /// Adds counters without names, for entries that may be added while the program runs.
    pub fn spare_counters(&mut self, count: usize) {
        self.program.counters.extend(std::iter::repeat_n(String::new(), count));
    }

    /// Returns the app with this name, which is added if necessary.
    pub fn app(&mut self, name: impl Into<String>) -> AppId {
        let (names, name) = (&mut self.program.apps, name.into());
        let known = names.iter().position(|known| *known == name);
        AppId(known.map_or_else(|| push(names, name), |at| at as u16))
    }

    /// Adds a meter.
    pub fn meter(&mut self, meter: MeterDeclaration) -> MeterId {
        MeterId(push(&mut self.program.meters, meter))
    }

    /// Adds a NAT pool.
    pub fn nat_pool(&mut self, pool: NatPool) -> NatPoolId {
        NatPoolId(push(&mut self.program.nat_pools, pool))
    }

    /// Sets the seed of the select hash.
    pub fn select_seed(&mut self, seed: u64) {
        self.program.select_seed = seed;
    }

    /// Sets the UDP ports that identify tunnels.
    pub fn tunnels(&mut self, ports: TunnelPorts) {
        self.program.tunnels = ports;
    }

    /// Gives fragments of TCP and UDP the ports of their datagram's first fragment.
    pub fn follow_fragments(&mut self) {
        self.program.follow_fragments = true;
    }

    /// Returns the program.
    ///
    /// # Panics
    /// Panics if two ports, pipes, groups or meters have the same name. If that can be a user's mistake, run
    /// [`crate::check::check`] first.
    #[must_use]
    pub fn build(self) -> Program {
        let Program { ports, pipes, groups, meters, .. } = &self.program;
        refuse_twice("ports", ports.iter().map(|port| &port.name));
        refuse_twice("pipes", pipes.iter().map(|pipe| &pipe.name));
        refuse_twice("groups", groups.iter().map(|group| &group.name));
        refuse_twice("meters", meters.iter().map(|meter| &meter.name));
        self.program
    }
}

fn refuse_twice<'a>(what: &str, names: impl Iterator<Item = &'a String>) {
    let mut seen = HashSet::new();
    for name in names {
        assert!(seen.insert(name), "two {what} are called `{name}`");
    }
}

// ---- numbers ----

/// A value that a program accepts as a number: an integer, an address, or the id of a port.
pub trait Number {
    /// Returns the number, as wide as the widest field.
    fn number(self) -> u128;
}

macro_rules! numbers {
    ($($type:ty: |$from:ident| $number:expr;)*) => {$(
        impl Number for $type {
            fn number(self) -> u128 {
                let $from = self;
                $number
            }
        }
    )*};
}

numbers! {
    u8: |value| value.into();
    u16: |value| value.into();
    u32: |value| value.into();
    u64: |value| value.into();
    u128: |value| value;
    // The type of a literal without a suffix.
    i32: |value| value.try_into().expect("a field has no sign");
    [u8; 6]: |mac| mac.iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
    Ipv4Addr: |address| address.to_bits().into();
    Ipv6Addr: |address| address.to_bits();
    IpAddr: |address| match address {
        IpAddr::V4(address) => address.number(),
        IpAddr::V6(address) => address.number(),
    };
    PortId: |port| port.0.into();
}

impl<N: Number> From<N> for Value {
    fn from(number: N) -> Value {
        Value::Const(number.number())
    }
}

impl<N: Number> From<N> for EntryMatch {
    fn from(number: N) -> EntryMatch {
        EntryMatch::Value(number.number())
    }
}

impl<N: Number> From<N> for Entry {
    fn from(number: N) -> Entry {
        Entry::on(number)
    }
}

impl From<EntryMatch> for Entry {
    fn from(one: EntryMatch) -> Entry {
        Entry::on(one)
    }
}

/// Defines methods that set a field.
macro_rules! setters {
    ($($type:ident {
        $($(#[$doc:meta])* $method:ident($value:ident: $of:ty) $field:ident = $set:expr;)*
    })*) => {$(
        impl $type {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $method(self, $value: $of) -> $type {
                    $type { $field: $set, ..self }
                }
            )*
        }
    )*};
}

setters! {
    PortDeclaration {
        /// Sets whether the port has a kernel path.
        kernel_path(has: bool) kernel_path = has;
        /// Sets the port's own MAC address.
        mac(known: Option<[u8; 6]>) mac = known;
        /// Sets the place in the configuration.
        origin(place: Origin) origin = place;
    }
    MeterDeclaration {
        /// Sets the place in the configuration.
        origin(place: Origin) origin = place;
    }
    Group {
        /// Sets a seed that is mixed into the hash before a bucket is picked.
        seed(seed: u64) seed = Some(seed);
        /// Sets the place in the configuration.
        origin(place: Origin) origin = place;
    }
    Target {
        /// Sets the share relative to the other targets; 1 by default.
        weight(weight: u32) weight = weight;
        /// Sets whether the target is in no row of the GLB director's table while it has no weight.
        inactive(inactive: bool) inactive = inactive;
        /// Sets the address that identifies the target in other systems.
        address(address: IpAddr) address = Some(address);
        /// Sets the place in the configuration.
        origin(place: Origin) origin = place;
    }
    Entry {
        /// Selects one of the pipe's actions by its position.
        template(position: u16) template = position;
        /// Sets the priority; the lowest number wins (ACL).
        priority(priority: u32) priority = priority;
        /// Sets the forward, in a pipe with forwards per entry.
        to(forward: impl Into<Forward>) forward = Some(forward.into());
        /// Sets the shared counter, in a pipe with counters per entry.
        counter(counter: CounterId) counter = Some(counter);
        /// Sets the meter, in a pipe with meters per entry.
        meter(meter: MeterId) meter = Some(meter);
        /// Sets the place in the configuration.
        origin(place: Origin) origin = place;
    }
    Pipe {
        /// Sets how many entries or flows the pipe has room for.
        capacity(most: u32) capacity = most;
        /// Sets which part of a flow's key determines the worker it belongs to (FLOW).
        owner(by: OwnedBy) owner = by;
        /// Sets the pool from which each flow takes an address and a port (FLOW).
        nat(pool: NatPoolId) nat = Some(pool);
        /// Sets whether the flow key and the select hash are recomputed after the actions.
        rehash(again: bool) rehash = again;
        /// Sets several actions; each entry selects one.
        actions(templates: impl Into<Vec<Template>>) templates = templates.into();
        /// Sets where hits go.
        forward(forward: impl Into<Forward>) forward = forward.into();
        /// Sets where misses go.
        miss(miss: impl Into<Forward>) miss = miss.into();
        /// Sets the app that gets packets that are too long.
        too_long(app: AppId) too_long = Some(app);
        /// Sets the place in the configuration.
        origin(place: Origin) origin = place;
    }
}

// ---- ports, forwards, meters ----

impl PortDeclaration {
    /// Creates a port without a kernel path and without a root pipe.
    #[must_use]
    pub fn new(name: impl Into<String>) -> PortDeclaration {
        PortDeclaration {
            name: name.into(),
            root: None,
            kernel_path: false,
            mac: None,
            origin: Origin::default(),
        }
    }
}

impl<S: Into<String>> From<S> for PortDeclaration {
    fn from(name: S) -> PortDeclaration {
        PortDeclaration::new(name)
    }
}

macro_rules! forwards {
    ($($id:ident => $forward:ident;)*) => {$(
        impl From<$id> for Forward {
            fn from(id: $id) -> Forward {
                Forward::$forward(id)
            }
        }
    )*};
}

forwards! {
    PortId => Port;
    PipeId => Pipe;
    GroupId => Group;
    AppId => App;
}

impl<Id> From<Id> for SharedUse<Id> {
    fn from(id: Id) -> SharedUse<Id> {
        SharedUse::Pipe(id)
    }
}

impl MeterDeclaration {
    /// Creates a meter with its rates.
    #[must_use]
    pub fn new(name: impl Into<String>, config: MeterConfig) -> MeterDeclaration {
        MeterDeclaration { name: name.into(), config, origin: Origin::default() }
    }
}

// ---- groups ----

impl Group {
    /// Creates a group without targets.
    #[must_use]
    pub fn new(name: impl Into<String>, fill: Fill, size: u32) -> Group {
        Group {
            name: name.into(),
            number: None,
            fill,
            size,
            seed: None,
            new_flows: NewFlows::Hash,
            affinity: None,
            quic: None,
            no_target: None,
            idle: None,
            targets: [].into(),
            origin: Origin::default(),
        }
    }

    /// Sets how the targets of new flows are chosen.
    #[must_use]
    pub fn new_flows(self, new_flows: NewFlows) -> Group {
        Group { new_flows, ..self }
    }

    /// Sets the part of the source address that picks the bucket instead of the flow key.
    #[must_use]
    pub fn affinity(self, affinity: Option<Affinity>) -> Group {
        Group { affinity, ..self }
    }

    /// Sets how server IDs are encoded in QUIC connection IDs.
    #[must_use]
    pub fn quic(self, configs: impl IntoIterator<Item = QuicConfig>) -> Group {
        Group { quic: Some(configs.into_iter().collect()), ..self }
    }

    /// Sets the app that gets packets for which the group has no target.
    #[must_use]
    pub fn no_target(self, no_target: Option<AppId>) -> Group {
        Group { no_target, ..self }
    }

    /// Sets the app that resets connections whose flows have been idle too long.
    #[must_use]
    pub fn idle(self, idle: Option<AppId>) -> Group {
        Group { idle, ..self }
    }

    /// Sets the value of metadata that chooses the group.
    #[must_use]
    pub fn number(self, number: u16) -> Group {
        Group { number: Some(number), ..self }
    }

    /// Adds a target.
    #[must_use]
    pub fn target(self, target: Target) -> Group {
        self.targets([target])
    }

    /// Adds targets.
    #[must_use]
    pub fn targets(self, targets: impl IntoIterator<Item = Target>) -> Group {
        let targets = self.targets.iter().cloned().chain(targets).collect();
        Group { targets, ..self }
    }
}

impl Target {
    /// Sets the target's server ID in QUIC connection IDs.
    #[must_use]
    pub fn server_id(self, id: ServerId) -> Target {
        Target { server_id: Some(id), ..self }
    }

    /// Creates a target of weight 1.
    #[must_use]
    pub fn new(name: impl Into<String>, forward: impl Into<Forward>) -> Target {
        let (name, forward) = (name.into(), forward.into());
        let origin = Origin::default();
        Target { name, weight: 1, inactive: false, address: None, server_id: None, forward, origin }
    }
}

// ---- entries ----

impl Entry {
    /// Creates an entry that matches this value in the pipe's first per-entry field. `Entry::default()` is
    /// the entry of a pipe without such fields: every packet that matches the pipe's constants hits it.
    #[must_use]
    pub fn on(first: impl Into<EntryMatch>) -> Entry {
        Entry::default().and(first)
    }

    /// Adds the match for the next per-entry field.
    #[must_use]
    pub fn and(mut self, next: impl Into<EntryMatch>) -> Entry {
        self.matches.push(next.into());
        self
    }

    /// Adds the next per-entry value of the action.
    #[must_use]
    pub fn value(mut self, value: impl Number) -> Entry {
        self.values.push(value.number());
        self
    }

    /// Marks the entry as added at run time: such an entry ages, and survives a swap of programs.
    #[must_use]
    pub fn run_time(self) -> Entry {
        Entry { run_time: true, ..self }
    }
}

// ---- pipes ----

impl Default for Template {
    /// Returns an action without operations, the only action of its pipe.
    fn default() -> Template {
        Template::new(Template::DEFAULT, [])
    }
}

impl Template {
    /// The name of a pipe's only action.
    pub const DEFAULT: &str = "default";

    /// Creates an action with a name.
    #[must_use]
    pub fn new(name: impl Into<String>, operations: impl IntoIterator<Item = Operation>) -> Template {
        Template { name: name.into(), operations: operations.into_iter().collect() }
    }
}

impl Pipe {
    /// Creates a blank pipe: it matches no fields, changes nothing and drops everything.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: PipeKind) -> Pipe {
        Pipe {
            name: name.into(),
            kind,
            matches: Vec::new(),
            monitor: Monitor::default(),
            templates: vec![Template::default()],
            forward: Forward::Drop,
            miss: Forward::Drop,
            too_long: None,
            rehash: false,
            owner: OwnedBy::Both,
            capacity: 1,
            nat: None,
            entries: EntryList::default(),
            origin: Origin::default(),
        }
    }

    /// Creates a pipe with exact match. Without per-entry fields, it has a single entry.
    #[must_use]
    pub fn basic(name: impl Into<String>) -> Pipe {
        Pipe::new(name, PipeKind::Basic)
    }

    /// Creates a pipe that maps a hash to a bucket to a target; entries match [`EntryMatch::Target`].
    #[must_use]
    pub fn hash(name: impl Into<String>, input: HashInput, group: impl Into<GroupChoice>) -> Pipe {
        Pipe::new(name, PipeKind::Hash { input, group: group.into() })
    }

    /// Creates a pipe with exact match on the flow key of the outer headers.
    #[must_use]
    pub fn flow(name: impl Into<String>, learn: Learn) -> Pipe {
        Pipe::new(
            name,
            PipeKind::Flow {
                key: KeySource::Outer,
                learn,
                timeouts: Timeouts::NEVER,
                first: false,
                reverse: false,
            },
        )
    }

    /// Creates a pipe with longest prefix match on a field.
    #[must_use]
    pub fn lpm(name: impl Into<String>, field: Field) -> Pipe {
        Pipe::new(name, PipeKind::Lpm).matching(field, Criterion::Prefix)
    }

    /// Creates a pipe with masks, ranges and priorities.
    #[must_use]
    pub fn acl(name: impl Into<String>) -> Pipe {
        Pipe::new(name, PipeKind::Acl)
    }

    /// Sets the headers from which a FLOW pipe takes its key.
    #[must_use]
    pub fn key(mut self, source: KeySource) -> Pipe {
        if let PipeKind::Flow { key, .. } = &mut self.kind {
            *key = source;
        }
        self
    }

    /// Adds a field to the match; the field's place in the configuration is that of the pipe.
    #[must_use]
    pub fn matching(mut self, field: Field, criterion: Criterion) -> Pipe {
        self.matches.push(Match { field, criterion, origin: self.origin });
        self
    }

    /// Compares a field with one value for the whole pipe.
    #[must_use]
    pub fn constant(self, field: Field, value: impl Number) -> Pipe {
        self.constant_bits(field, value, field.max())
    }

    /// Like [`Pipe::constant`], under a mask.
    #[must_use]
    pub fn constant_bits(self, field: Field, value: impl Number, mask: u128) -> Pipe {
        self.matching(field, Criterion::Const { value: value.number(), mask })
    }

    /// Compares a field with the entries' values.
    #[must_use]
    pub fn per_entry(self, field: Field) -> Pipe {
        self.per_entry_bits(field, field.max())
    }

    /// Like [`Pipe::per_entry`], under a mask.
    #[must_use]
    pub fn per_entry_bits(self, field: Field, mask: u128) -> Pipe {
        self.matching(field, Criterion::PerEntry { mask })
    }

    /// Adds an entry, and capacity for it.
    #[must_use]
    pub fn entry(self, entry: impl Into<Entry>) -> Pipe {
        self.entries([entry])
    }

    /// Adds entries, and capacity for them.
    #[must_use]
    pub fn entries(mut self, entries: impl IntoIterator<Item = impl Into<Entry>>) -> Pipe {
        self.entries.extend(entries.into_iter().map(Into::into));
        self.capacity = self.capacity.max(self.entries.len() as u32);
        self
    }

    /// Sets the only action.
    #[must_use]
    pub fn act(self, operations: impl IntoIterator<Item = Operation>) -> Pipe {
        self.actions([Template::new(Template::DEFAULT, operations)])
    }

    /// Sets a shared counter for hits.
    #[must_use]
    pub fn counter(mut self, counter: impl Into<SharedUse<CounterId>>) -> Pipe {
        self.monitor.counter = Some(counter.into());
        self
    }

    /// Sets a meter for hits.
    #[must_use]
    pub fn meter(mut self, meter: impl Into<SharedUse<MeterId>>) -> Pipe {
        self.monitor.meter = Some(meter.into());
        self
    }

    /// Sets whether packets that the meter colours red are dropped.
    #[must_use]
    pub fn drop_red(mut self, drop: bool) -> Pipe {
        self.monitor.drop_red = drop;
        self
    }

    /// Sets how long flows of a FLOW pipe may be idle in each state.
    #[must_use]
    pub fn timeouts(mut self, by_state: Timeouts) -> Pipe {
        if let PipeKind::Flow { timeouts, .. } = &mut self.kind {
            *timeouts = by_state;
        }
        self
    }

    /// Sets whether a FLOW pipe learns the answers to a flow together with the flow.
    #[must_use]
    pub fn reverse(mut self, learns: bool) -> Pipe {
        if let PipeKind::Flow { reverse, .. } = &mut self.kind {
            *reverse = learns;
        }
        self
    }

    /// Marks the pipe as measured.
    #[must_use]
    pub fn measured(mut self, measured: Measured) -> Pipe {
        self.monitor.measured = Some(measured);
        self
    }

    /// Sets whether the first packet of a flow of a FLOW pipe produces a delta.
    #[must_use]
    pub fn report_first(mut self, tell: bool) -> Pipe {
        if let PipeKind::Flow { first, .. } = &mut self.kind {
            *first = tell;
        }
        self
    }

    /// Sets how long flows of a FLOW pipe, or run-time entries of other pipes, may be idle before they are
    /// removed.
    #[must_use]
    pub fn idle_timeout_ns(mut self, timeout_ns: u64) -> Pipe {
        match &mut self.kind {
            PipeKind::Flow { timeouts, .. } => *timeouts = Timeouts::all(timeout_ns),
            _ => self.monitor.idle_timeout_ns = timeout_ns,
        }
        self
    }
}
