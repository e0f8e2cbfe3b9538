//! The findings of the check, as sentences that a user can act on.

use crate::Origin;
use thiserror::Error;
use weir_packet::Field;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The program runs, but this is probably unintended.
    Warning,
    /// The program is refused.
    Error,
}

/// A finding of the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// Place in the configuration.
    pub origin: Origin,
    /// What was found.
    pub kind: FindingKind,
}

impl Finding {
    /// Creates a finding at `origin`.
    #[must_use]
    pub fn new(origin: Origin, kind: FindingKind) -> Finding {
        Finding { severity: kind.severity(), origin, kind }
    }
}

/// What was found.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "every variant's sentence is its documentation, its fields are what the sentence names"
)]
pub enum FindingKind {
    #[error("there are {count} {what}, the limit is {max}")]
    TooMany { what: &'static str, count: usize, max: usize },
    #[error("two {what}s are called `{name}`")]
    NameTwice { what: &'static str, name: String },
    #[error("{what} {index} does not exist")]
    Dangling { what: &'static str, index: usize },
    #[error("pipes must not form a loop: {}", path.join(" -> "))]
    Loop { path: Vec<String> },
    #[error("no frames reach pipe `{pipe}`: name it as a root or in a forward, or remove it")]
    Unreachable { pipe: String },
    #[error("no port has a root pipe: every frame that is received is dropped")]
    NoRoot,
    #[error(
        "`forward: kernel` in `{place}` is reached from port `{port}`, which cannot give a frame to the \
            kernel"
    )]
    KernelUnavailable { place: String, port: String },
    #[error("`miss` cannot be `per_entry`: a packet that misses has no entry")]
    MissPerEntry,
    #[error("`{field}` is read here, but nothing writes it on the path {}", path.join(" -> "))]
    MetadataUnwritten { field: Field, path: Vec<String> },
    #[error("`meter.color` is always green here: there is no meter on the path {}", path.join(" -> "))]
    ColorUnmetered { path: Vec<String> },
    #[error("a {} pipe cannot match `{field}` by {criterion}: {instead}", kind.to_uppercase())]
    CriterionNotAllowed { kind: &'static str, field: Field, criterion: &'static str, instead: &'static str },
    #[error("an LPM pipe matches exactly one field by `prefix`, but this one matches {count}")]
    PrefixCount { count: usize },
    #[error("`{field}` has {bits} bits; ranges are for fields of at most 16 bits")]
    RangeTooWide { field: Field, bits: u8 },
    #[error("this can never match: no packet has both `{first}` and `{second}`")]
    NeverHits { first: String, second: String },
    #[error(
        "every packet is dropped here: the pipe has neither `match` nor entries, so packets miss it, `miss` \
         is `drop`, and its {unused} is never used; write `entries: [{{}}]` if every packet should hit"
    )]
    DropsAll { unused: &'static str },
    #[error("a HASH pipe must hash at least one field")]
    NothingHashed,
    #[error("`{field}` is read-only: it can be matched and copied from, not written")]
    ReadOnly { field: Field },
    #[error("a pipe needs at least one action template, even if it is empty")]
    NoTemplate,
    #[error(
        "`{later}` must come before `{earlier}`; the order of operations in an action is {}",
        crate::operation::order()
    )]
    ActionOrder { earlier: &'static str, later: &'static str },
    #[error("`{name}` is at most {max:#x}, not {value:#x}")]
    OutOfRange { name: String, value: u128, max: u128 },
    #[error("the value {value:#x} of `{field}` has bits outside the mask {mask:#x}, so it can never match")]
    OutsideMask { field: Field, value: u128, mask: u128 },
    #[error("a prefix of `{field}` has at most {bits} bits, not {length}")]
    PrefixTooLong { field: Field, length: u8, bits: u8 },
    #[error("`port` is a name, not a number: {instead}")]
    PortNumber { instead: &'static str },
    #[error("the range {first}-{last} of `{field}` is empty")]
    RangeEmpty { field: Field, first: u16, last: u16 },
    #[error("{what} is {}, not {value:#06x}", numbers(of))]
    NotOneOf { what: &'static str, of: &'static [u16], value: u16 },
    #[error("the entry gives {found} matches, but its pipe `{pipe}` needs {wanted}")]
    MatchCount { pipe: String, wanted: usize, found: usize },
    #[error("the entry gives {found} for {place}, but its pipe needs {wanted}")]
    MatchKind { place: String, wanted: &'static str, found: &'static str },
    #[error("the entry gives {found} values for its action, which needs {wanted}")]
    ValueCount { wanted: usize, found: usize },
    #[error("the pipe's `{what}` is per entry, but the entry gives none")]
    PerEntryMissing { what: &'static str },
    #[error("the entry gives a {what}, but the pipe's `{what}` is not per entry")]
    PerEntryUnexpected { what: &'static str },
    #[error("only entries of ACL pipes have a priority")]
    PriorityUnexpected,
    #[error("pipe `{pipe}` has this entry twice: the keys are equal under the pipe's mask")]
    EntryTwice { pipe: String },
    #[error(
        "this entry can never be hit: entry {by} of the pipe (priority {priority}) matches everything it \
         matches"
    )]
    Shadowed { by: usize, priority: u32 },
    #[error(
        "pipe `{pipe}` holds at most {capacity} entries, but {entries} are written: raise its \
        `capacity`"
    )]
    CapacityTooSmall { pipe: String, capacity: u32, entries: usize },
    #[error("a capacity is between 1 and {max}, not {capacity}")]
    Capacity { capacity: u32, max: u32 },
    #[error(
        "pipe `{pipe}` has no entry for target `{target}` of group `{group}`: its packets are dropped \
            (no_target)"
    )]
    TargetWithoutEntry { pipe: String, target: String, group: String },
    #[error("`learn: default` needs the entry that new flows get: one with `match: default`")]
    NoDefaultEntry,
    #[error("metadata selects a group by its number, but no group has one: add `number: 1` to it")]
    NoNumberedGroup,
    #[error("group `{group}` has no `number`, so metadata cannot select it")]
    Unnumbered { group: String },
    #[error(
        "group `{group}` has a number, but no pipe has entries for its targets: packets that select it are \
         dropped (no_target)"
    )]
    NumberWithoutEntries { group: String },
    #[error("a group's number must be from 1 to 65535, not {number}: metadata starts as 0")]
    GroupNumber { number: u16 },
    #[error("groups `{first}` and `{group}` have the same number, {number}")]
    GroupNumberTwice { number: u16, first: String, group: String },
    #[error("`round_robin` takes the buckets of one group in turn: metadata cannot select it")]
    TurnsOfSeveral,
    #[error("the groups have {count} buckets in all, the limit is {max}: give them smaller sizes")]
    TooManyBuckets { count: u64, max: u64 },
    #[error("group `{group}` has no targets: its packets are dropped (no_target)")]
    GroupEmpty { group: String },
    #[error("all targets of group `{group}` have weight 0: new packets are dropped (no_target)")]
    GroupDead { group: String },
    #[error("the size of a Maglev group is a prime between its number of targets ({targets}) and {max}, not \
        {size}{}",
            hint.map(|prime| format!(": {prime} is one")).unwrap_or_default())]
    MaglevSize { size: u32, targets: usize, max: u32, hint: Option<u32> },
    #[error(
        "the size of a group filled by wants is a power of two between its number of targets ({targets}) \
            and {max}, not {size}"
    )]
    WantsSize { size: u32, targets: usize, max: u32 },
    #[error("a group filled like another system's ring has {wanted} buckets, not {size}")]
    ForeignSize { size: u32, wanted: u32 },
    #[error("a group filled like another system's ring uses that system's hash, which has no `seed`")]
    ForeignSeed,
    #[error("`{target}` needs an `address`, which identifies it in the other system")]
    NoAddress { target: String },
    #[error("`{target}` and `{first}` have the same address, so they cannot be distinguished")]
    AddressTwice { first: String, target: String },
    #[error("packets pick from group `{group}` by another system's hash: write `hash: 5-tuple`")]
    HashOfOthers { group: String },
    #[error("packets pick from group `{group}` by source address (`affinity`): write `hash: 5-tuple`")]
    HashOfSource { group: String },
    #[error(
        "`affinity` is for groups filled by maglev or wants, with `new_flows: hash`: the flows of `{group}` \
         are assigned differently"
    )]
    AffinityOfFill { group: String },
    #[error("`affinity` can use up to 32 bits of IPv4 and 128 of IPv6, not {ipv4} and {ipv6}")]
    AffinityBits { ipv4: u8, ipv6: u8 },
    #[error("the `timeout` of the `affinity` of `{group}` can be at most 10 days")]
    AffinityTimeout { group: String },
    #[error(
        "`new_flows` is for groups filled by maglev or wants: the buckets of `{group}` decide for every flow"
    )]
    NewFlowsOfFill { group: String },
    #[error("no group that the pipe may pick from has `quic`, so packets have no server IDs")]
    NoServerIds,
    #[error("a `quic` configuration must have a number from 0 to 6, not {id}")]
    QuicNumber { id: u8 },
    #[error("group `{group}` has two `quic` configurations with the number {id}")]
    QuicNumberTwice { group: String, id: u8 },
    #[error("{why} (`quic` configuration {id})")]
    QuicLengths { id: u8, why: String },
    #[error("`{target}` has a server ID of {octets} octets, but `quic` configuration {id} needs {wanted}")]
    ServerIdLength { target: String, octets: usize, id: u8, wanted: u8 },
    #[error("`{target}` and `{first}` have the same server ID, so they cannot be distinguished")]
    ServerIdTwice { first: String, target: String },
    #[error("the size of a group whose buckets are given is a power of two up to {max}, not {size}")]
    GivenSize { size: u32, max: u32 },
    #[error("a FLOW pipe learns from a group filled by maglev or wants; the buckets of `{group}` are given")]
    LearnGiven { group: String },
    #[error(
        "`per_flow` is for flow pipes that do not `follow`: the flow keeps the value of the entry it was \
         learnt for"
    )]
    KeptNowhere,
    #[error(
        "`second_chance` is for pipes that pick from a group by the flow key: a FLOW pipe that learns from a \
        group, or a HASH pipe with `by: select`"
    )]
    SecondChanceNowhere,
    #[error("GUE variant 1 has no header that could hold a `second_chance`")]
    SecondChanceBare,
    #[error("`second_chance` needs IPv4 addresses, both its own and the outer ones")]
    SecondChanceIpv6,
    #[error("a flow learns a value from a field of its first packet's headers, not from `{field}`")]
    LearntFrom { field: Field },
    #[error("`{field}` has {from} bits, but the value that a flow learns from it has {bits}")]
    LearntWider { field: Field, from: u8, bits: u8 },
    #[error(
        "pipe `{pipe}` learns answers with its flows, but `owner: {by}` may give them to another worker, \
         because the action rewrites those fields or they cover only one direction: use one worker"
    )]
    AnswersElsewhere { pipe: String, by: &'static str },
    #[error("`reverse` {why}")]
    Reverse { why: &'static str },
    #[error("NAT pool `{pool}` {why}")]
    NatPool { pool: String, why: String },
    #[error("NAT pool `{pool}` is used by two pipes, first by `{first}`: give each pipe its own pool")]
    NatPoolTwice { pool: String, first: String },
    #[error("`nat_pool` {why}")]
    Nat { why: &'static str },
    #[error("`{{ per_flow: nat_pool }}` is for a pipe with `learn: {{ ..., nat_pool: NAME }}`")]
    NatNowhere,
    #[error("an entry cannot copy: `{{ copy, then }}` is for a pipe's own forward and miss")]
    EntryCopies,
    #[error("no target of group `{group}` leads to a port: what is flooded there is dropped (no_target)")]
    FloodNowhere { group: String },
    #[error("a target leads to a port, a pipe, an app, the kernel, in_port or drop, not to {found}")]
    TargetForward { found: &'static str },
    #[error(
        "pipe `{pipe}` assigns a frame to a worker by {by}, but pipe `{other}`, which the frame also \
         passes, by {other_by}: a frame cannot be on two workers, so use the same in both, or use one worker"
    )]
    TwoOwners { pipe: String, by: String, other: String, other_by: String },
    #[error(
        "pipe `{pipe}` assigns its flows to workers by `owner: {by}`, but a `rehash` on the path to it \
         computes the key from changed headers, and the worker is chosen when a frame is received: {instead}"
    )]
    OwnerChanged { pipe: String, by: &'static str, instead: String },
    #[error(
        "the worker of a flow of pipe `{pipe}` depends on the pipes before it, but what `{by}` does to a \
         packet cannot be predicted: it may only match and write metadata, and must not meter, hash, pick \
         from a group, change headers or keep flows; otherwise use one worker"
    )]
    OwnerHidden { pipe: String, by: String },
    #[error("`owner: client` {why}")]
    OwnerClient { why: &'static str },
    #[error("a meter's {what} must be above 0")]
    MeterZero { what: &'static str },
    #[error("the peak rate must not be below the committed rate: pir {pir}, cir {cir}")]
    PeakBelowCommitted { pir: u64, cir: u64 },
    #[error(
        "meter `{meter}` is already used by pipe `{first}`; two pipes would colour a batch in different \
         orders"
    )]
    MeterTwice { meter: String, first: String },
    #[error("{what} `{name}` is never used")]
    Unused { what: &'static str, name: String },
}

/// `0x8100 or 0x88a8`.
fn numbers(of: &[u16]) -> String {
    of.iter().map(|one| format!("{one:#06x}")).collect::<Vec<_>>().join(" or ")
}

impl FindingKind {
    /// Returns the severity.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            FindingKind::Unreachable { .. }
            | FindingKind::NoRoot
            | FindingKind::ColorUnmetered { .. }
            | FindingKind::NeverHits { .. }
            | FindingKind::DropsAll { .. }
            | FindingKind::Shadowed { .. }
            | FindingKind::TargetWithoutEntry { .. }
            | FindingKind::NumberWithoutEntries { .. }
            | FindingKind::GroupEmpty { .. }
            | FindingKind::GroupDead { .. }
            | FindingKind::FloodNowhere { .. }
            | FindingKind::Unused { .. } => Severity::Warning,
            _ => Severity::Error,
        }
    }
}
