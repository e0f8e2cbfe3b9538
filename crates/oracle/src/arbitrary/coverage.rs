//! The features that a run has really exercised, counted from traces: a test suite that never reaches a
//! feature fails and names it.

use crate::trace::{
    Asked, Change as Done, Color, End, FlowMet, Known, Lookup, Miss, Moving, Pick, Rss, Step,
};
use crate::{Effect, Walk, Why};
use std::collections::BTreeMap;
use weir_packet::{Access, DropReason, Field};
use weir_program::Verdict;
use weir_program::change::{Change, ChangeError};
use weir_program::operation::{OPERATIONS, Value};
use weir_program::snapshot::FlowDecision;
use weir_program::{
    Criterion, EntryMatch, Fill, Forward, GroupChoice, HashInput, Learn, MeterSecond, NewFlows, Pipe,
    PipeKind, Program, SharedUse,
};

/// How often each thing occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    met: BTreeMap<String, u64>,
}

/// Drop reasons that a program can produce.
const REASONS: &[DropReason] = &[
    DropReason::Policy,
    DropReason::Miss,
    DropReason::MalformedEthernet,
    DropReason::MalformedArp,
    DropReason::MalformedIpv4,
    DropReason::Ipv4LengthZero,
    DropReason::MalformedIpv6,
    DropReason::MalformedTcp,
    DropReason::MalformedUdp,
    DropReason::MalformedIcmp,
    DropReason::MalformedVxlan,
    DropReason::MalformedGeneve,
    DropReason::MalformedGre,
    DropReason::MalformedGue,
    DropReason::MalformedInner,
    DropReason::FirstFragmentMissing,
    DropReason::TooManyExtensionHeaders,
    DropReason::TtlExpired,
    DropReason::NoHeadroom,
    DropReason::NotApplicable,
    DropReason::EcnCeNotEct,
    DropReason::GeneveCriticalOption,
    DropReason::NoTarget,
    DropReason::NoNatPort,
    DropReason::AnswersTaken,
    DropReason::Metered,
    DropReason::TooLong,
    DropReason::NotFragmented,
];

/// Everything else, apart from pipe types, operations, and the fields that are matched and written.
const KINDS: &str = "
    pipe:hash:no_target pipe:flow:no_target no_target:app:hash no_target:app:flow no_target:app:group
    match:const:hit match:const:miss match:per_entry match:masked match:range match:prefix match:prefix:0
    match:any match:any:absent hash:select hash:fields hash:rss:taken hash:rss:absent
    flow:default:learnt flow:default:found flow:default:full flow:pin:learnt flow:pin:found flow:pin:full
    flow:pin:unlearnt flow:follow:learnt flow:follow:found flow:follow:full flow:follow:unlearnt
    flow:default:reopened flow:pin:reopened flow:follow:reopened flow:nat:reopened
    flow:nothing:unknown flow:own flow:no_key flow:answers kept:per_flow kept:learnt
    kept:nat encap:second_chance encap:no_second_chance flow:nat:answers flow:nat:full flow:no_nat_port
    flow:answers_taken
    mended:ipv4 mended:l4 mended:inner_ipv4 mended:inner_l4 mended:udp mended:gre mended:icmp
    mended:inside_ipv4 mended:inside_l4 flow:error:unknown rehash malformed_again
    counter:pipe counter:per_entry meter:pipe meter:per_entry
    forward:port:hit forward:in_port:hit forward:pipe:hit forward:group:hit forward:app:hit forward:kernel:hit
    forward:drop:hit forward:port:miss forward:in_port:miss forward:pipe:miss forward:group:miss
        forward:app:miss
    forward:kernel:miss forward:drop:miss forward:port:entry forward:in_port:entry forward:pipe:entry
    forward:group:entry forward:app:entry forward:kernel:entry forward:drop:entry
    meter:srtcm:blind:green meter:srtcm:blind:yellow meter:srtcm:blind:red
    meter:srtcm:aware:yellow meter:srtcm:aware:red
    meter:trtcm:blind:green meter:trtcm:blind:yellow meter:trtcm:blind:red
    meter:trtcm:aware:yellow meter:trtcm:aware:red
    verdict:transmit verdict:kernel verdict:app verdict:too_long flow:error:pinned no_root
    change:add:done change:add:exists change:add:full change:add:unknown change:update:done
        change:update:not_found
    change:remove:done change:remove:not_found change:weight:done change:weight:unknown change:weight:filled
    change:weight:heavy
    change:batch:done change:batch:exists change:batch:full change:batch:unknown change:batch:not_found
    change:move:done change:move:unknown change:move:filled aged:flow aged:entry aged:bucket
    given:hash:rests given:hash:waits given:hash:moves given:hash:moves_busy given:hash:nobody
    given:group:rests given:group:waits given:group:moves given:group:moves_busy given:group:nobody
    seed:hash seed:flow seed:group affinity:hash affinity:flow affinity:group
    affinity:remembered
    hash:round_robin hash:quic:hit hash:quic:miss
    new_flows:turn new_flows:fewest new_flows:by_hash new_flows:full
    by_meta:hash:chosen by_meta:hash:none by_meta:flow:chosen by_meta:flow:none
    forward:tee:hit forward:tee:miss forward:flood:hit forward:flood:miss forward:flood:entry
    flood:nowhere flood:one flood:several copied:app copied:port copied:then_dropped";

impl Coverage {
    /// Creates an empty record.
    #[must_use]
    pub fn new() -> Coverage {
        Coverage::default()
    }

    /// Counts what a packet encountered.
    pub fn walk(&mut self, program: &Program, walk: &Walk) {
        for step in &walk.trace {
            self.step(program, step);
        }
        let last = walk.trace.last();
        for copy in &walk.copies {
            self.meet(if matches!(copy.to, Verdict::App(_)) { "copied:app" } else { "copied:port" });
        }
        if matches!(walk.verdict, Verdict::Drop(_)) && !walk.copies.is_empty() {
            self.meet("copied:then_dropped");
        }
        let said = last.and_then(|step| step.forward.as_ref()).map(|forward| forward.said);
        if let Some(Forward::Flood(_)) = said {
            let ports = walk.copies.iter().filter(|copy| matches!(copy.to, Verdict::Transmit(_))).count();
            let dropped = matches!(walk.verdict, Verdict::Drop(_));
            self.meet(if dropped {
                "flood:nowhere"
            } else if ports == 0 {
                "flood:one"
            } else {
                "flood:several"
            });
        }
        let is_error = |effect: &Effect| matches!(effect, Effect::Unflowed { why: Why::IcmpError, .. });
        if walk.effects.iter().any(is_error) {
            self.meet("flow:error:pinned");
        }
        match walk.verdict {
            Verdict::Transmit(_) => self.meet("verdict:transmit"),
            Verdict::Kernel(_) => self.meet("verdict:kernel"),
            Verdict::App(_) if walk.limit.is_some() => self.meet("verdict:too_long"),
            Verdict::App(_) => self.meet("verdict:app"),
            Verdict::Drop(reason) => {
                self.meet(&format!("drop:{reason}"));
                let malformed = reason.as_str().starts_with("malformed");
                if last.is_some() && malformed {
                    self.meet("malformed_again");
                }
                if last.is_none() && reason == DropReason::Policy {
                    self.meet("no_root");
                }
            }
        }
    }

    /// Counts a change and its outcome.
    pub fn change(&mut self, change: &Change, result: &Result<(), ChangeError>) {
        let what = match change {
            Change::Add { .. } => "add",
            Change::Update { .. } => "update",
            Change::Remove { .. } => "remove",
            Change::SetWeight { .. } | Change::SetWeights { .. } | Change::Publish { .. } => "weight",
            Change::NameCounters(_) => "name",
            Change::MoveBuckets { .. } => "move",
            Change::Batch(_) => "batch",
        };
        let result = match result.as_ref().map_err(ChangeError::cause) {
            Ok(()) => "done",
            Err(ChangeError::Full { .. }) => "full",
            Err(ChangeError::Exists { .. }) => "exists",
            Err(ChangeError::NotFound { .. }) => "not_found",
            Err(ChangeError::Unfit { .. }) => "unfit",
            Err(ChangeError::Unknown { .. }) => "unknown",
            Err(ChangeError::Filled { .. }) => "filled",
            Err(ChangeError::Weight { .. }) => "heavy",
            Err(ChangeError::Busy { .. } | ChangeError::InUse { .. }) => "busy",
            Err(ChangeError::Twice | ChangeError::Alone | ChangeError::At { .. }) => "no_batch",
        };
        self.meet(&format!("change:{what}:{result}"));
    }

    /// Counts what aging removed.
    pub fn aged(&mut self, flows: usize, entries: usize) {
        if flows > 0 {
            self.meet("aged:flow");
        }
        if entries > 0 {
            self.meet("aged:entry");
        }
    }

    /// Counts moves of buckets carried out by age.
    pub fn settled(&mut self, buckets: usize) {
        if buckets > 0 {
            self.meet("aged:bucket");
        }
    }

    /// Adds the record of another run.
    pub fn add(&mut self, other: &Coverage) {
        for (name, count) in &other.met {
            *self.met.entry(name.clone()).or_default() += count;
        }
    }

    /// Everything that can occur.
    #[must_use]
    pub fn wanted() -> Vec<String> {
        let writable = |field: &&Field| field.spec().access == Access::Writable;
        // ARP and ICMP errors inside a tunnel are generated too rarely to be relied on: tests/icmp_errors.rs
        // and engine/tests/interpreter/frames.rs cover them.
        let usual =
            |field: &&Field| !["inner.arp.", "inner.error."].iter().any(|one| field.name().starts_with(one));
        let matched = Field::ALL.iter().filter(usual).map(|field| format!("field:{field}"));
        let written = Field::ALL.iter().filter(writable).map(|field| format!("write:{field}"));
        let reasons = REASONS.iter().map(|reason| format!("drop:{reason}"));
        let operations =
            OPERATIONS.iter().flat_map(|line| [format!("do:{}", line.word), format!("fail:{}", line.word)]);
        // It leaves packets alone that it does not apply to.
        let operations =
            operations.filter(|word| word != "fail:clamp_mss").chain(["lowered:mss".to_string()]);
        let results =
            |kind: &PipeKind| ["hit", "miss"].map(|result| format!("pipe:{}:{result}", kind.word()));
        let types = PipeKind::BLANK.iter().flat_map(results);
        KINDS
            .split_whitespace()
            .map(String::from)
            .chain(types)
            .chain(operations)
            .chain(matched)
            .chain(written)
            .chain(reasons)
            .collect()
    }

    /// What has not occurred.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        Coverage::wanted().into_iter().filter(|name| !self.met.contains_key(name)).collect()
    }

    /// Everything that occurred, and how often.
    #[must_use]
    pub fn met(&self) -> &BTreeMap<String, u64> {
        &self.met
    }

    fn meet(&mut self, name: &str) {
        match self.met.get_mut(name) {
            Some(count) => *count += 1,
            None => {
                self.met.insert(name.to_string(), 1);
            }
        }
    }

    fn step(&mut self, program: &Program, step: &Step) {
        let pipe = &program.pipes[step.pipe.index()];
        let result = match &step.lookup {
            Lookup::Hit(_) => "hit",
            Lookup::Miss(_) => "miss",
            Lookup::NoTarget => "no_target",
        };
        self.meet(&format!("pipe:{}:{result}", pipe.kind.word()));
        self.without_target(pipe, step);
        self.matched(pipe, step);
        if let Some(GroupChoice::ByMeta(_)) = pipe.kind.group() {
            let by_meta = |miss: &Miss| miss.failed.iter().any(|one| one.wanted == "the number of a group");
            let chosen = !matches!(&step.lookup, Lookup::Miss(miss) if by_meta(miss));
            let what = if chosen { "chosen" } else { "none" };
            self.meet(&format!("by_meta:{}:{what}", pipe.kind.word()));
        }
        if let Some(flow) = &step.flow {
            self.flow(pipe, flow, &step.lookup);
        }
        self.monitored(program, pipe, step);
        self.kept(pipe, step);
        for done in &step.operations {
            let failed = matches!(done.change, Done::Failed(_));
            let verb = if failed { "fail" } else { "do" };
            self.meet(&format!("{verb}:{}", done.operation.word()));
            match done.change {
                Done::Field { field, .. } => self.meet(&format!("write:{field}")),
                Done::Mss { .. } => self.meet("lowered:mss"),
                Done::AddedWithSecondChance(_, hop) => {
                    self.meet(if hop.is_some() { "encap:second_chance" } else { "encap:no_second_chance" });
                }
                _ => {}
            }
            for mended in &done.mended {
                self.meet(&format!("mended:{}", mended.name.replace(' ', "_")));
            }
        }
        if step.rehash.is_some() {
            self.meet("rehash");
        }
        if let Some(pick) = &step.pick {
            let who = if step.flow.is_some() { "flow" } else { "hash" };
            self.picked(program, pick, who);
            self.new_flow(program, step, pick);
        }
        if let Some(pick) = step.forward.as_ref().and_then(|forward| forward.pick.as_ref()) {
            self.picked(program, pick, "group");
        }
        if let Some(forward) = &step.forward {
            let from = match (forward.miss, forward.per_entry) {
                (true, _) => "miss",
                (_, true) => "entry",
                _ => "hit",
            };
            self.meet(&format!("forward:{}:{from}", forward_name(forward.said)));
        }
    }

    /// Records an app that got a packet for which a group has no target.
    fn without_target(&mut self, pipe: &Pipe, step: &Step) {
        let to_app = matches!(step.end, End::Verdict(Verdict::App(_)));
        let nobody = |pick: &Pick| pick.target.is_none();
        if to_app && step.lookup == Lookup::NoTarget {
            self.meet(&format!("no_target:app:{}", pipe.kind.word()));
        } else if to_app && step.forward.iter().any(|forward| forward.pick.as_ref().is_some_and(nobody)) {
            self.meet("no_target:app:group");
        }
    }

    /// Records how the target of a new flow was chosen.
    fn new_flow(&mut self, program: &Program, step: &Step, pick: &Pick) {
        let pins =
            matches!(program.pipes[step.pipe.index()].kind, PipeKind::Flow { learn: Learn::Pin(_), .. });
        if !pins || program.groups[pick.group.index()].new_flows == NewFlows::Hash {
            return;
        }
        let full = step.flow.is_some_and(|flow| matches!(flow.known, Known::Full(_)));
        self.meet(match (pick.turn, pick.fewest) {
            (Some(_), _) => "new_flows:turn",
            (_, Some(_)) => "new_flows:fewest",
            _ if full => "new_flows:full",
            _ => "new_flows:by_hash",
        });
    }

    fn picked(&mut self, program: &Program, pick: &Pick, who: &str) {
        let group = &program.groups[pick.group.index()];
        if group.seed.is_some() {
            self.meet(&format!("seed:{who}"));
        }
        if pick.source.is_some() {
            self.meet(&format!("affinity:{who}"));
            if pick.remembered {
                self.meet("affinity:remembered");
            }
        }
        if pick.foreign {
            self.meet(&format!("foreign:{who}"));
        }
        if group.fill == Fill::Given {
            let what = match pick.moving {
                _ if pick.target.is_none() => "nobody",
                Moving::No => "rests",
                Moving::Waits => "waits",
                Moving::Rested => "moves",
                Moving::Overdue => "moves_busy",
            };
            self.meet(&format!("given:{who}:{what}"));
        }
    }

    fn matched(&mut self, pipe: &Pipe, step: &Step) {
        if let PipeKind::Hash { input, .. } = &pipe.kind {
            let taken = step.pick.as_ref().is_some_and(|pick| matches!(pick.rss, Rss::Taken(_)));
            self.meet(match input {
                HashInput::Select(_) => "hash:select",
                HashInput::Rss if taken => "hash:rss:taken",
                HashInput::Rss => "hash:rss:absent",
                HashInput::Fields(_) => "hash:fields",
                HashInput::RoundRobin => "hash:round_robin",
                HashInput::Quic if step.lookup.is_hit() => "hash:quic:hit",
                HashInput::Quic => "hash:quic:miss",
            });
        }
        let mut given = match &step.lookup {
            Lookup::Hit(hit) => hit.entry.matches.as_slice(),
            _ => &[],
        }
        .iter();
        for field in &step.key {
            if field.actual.is_some() && step.lookup.is_hit() {
                self.meet(&format!("field:{}", field.field));
            }
            if let Asked::Match(Criterion::Const { value, mask }) = field.asked {
                let equal = field.actual.is_some_and(|actual| actual & mask == value);
                self.meet(if equal { "match:const:hit" } else { "match:const:miss" });
                continue;
            }
            match given.next() {
                Some(EntryMatch::Value(_)) => self.meet("match:per_entry"),
                Some(EntryMatch::Masked { .. }) => self.meet("match:masked"),
                Some(EntryMatch::Range { .. }) => self.meet("match:range"),
                Some(EntryMatch::Prefix { length: 0, .. }) => self.meet("match:prefix:0"),
                Some(EntryMatch::Prefix { .. }) => self.meet("match:prefix"),
                Some(EntryMatch::Any) if field.actual.is_none() => self.meet("match:any:absent"),
                Some(EntryMatch::Any) => self.meet("match:any"),
                Some(
                    EntryMatch::Target(_)
                    | EntryMatch::Member { .. }
                    | EntryMatch::Flow(_)
                    | EntryMatch::Default,
                )
                | None => {}
            }
        }
    }

    fn flow(&mut self, pipe: &Pipe, flow: &FlowMet, lookup: &Lookup) {
        let PipeKind::Flow { learn, reverse, .. } = &pipe.kind else { return };
        let grouped = !matches!(lookup, Lookup::Miss(miss) if !miss.failed.is_empty());
        let missed = flow.known == Known::No && *lookup != Lookup::NoTarget && grouped;
        let learn = match learn {
            // A pipe that learns answers learns from every packet except errors.
            _ if *reverse && flow.key.is_some() && missed => "error",
            Learn::Nothing => "nothing",
            Learn::Default => "default",
            Learn::Pin(_) => "pin",
            Learn::Follow(_) => "follow",
        };
        let name = match (flow.key, flow.known) {
            (None, _) => "flow:no_key".to_string(),
            (_, Known::Found(FlowDecision::Own)) => "flow:own".to_string(),
            (_, Known::Found(FlowDecision::Default)) if learn == "pin" => "flow:answers".to_string(),
            (_, Known::Found(_)) => format!("flow:{learn}:found"),
            (_, Known::Learnt(_)) => format!("flow:{learn}:learnt"),
            (_, Known::Full(_)) => format!("flow:{learn}:full"),
            (_, Known::NoNatPort) => "flow:no_nat_port".to_string(),
            (_, Known::AnswersTaken) => "flow:answers_taken".to_string(),
            (_, Known::No) if *lookup == Lookup::NoTarget => format!("flow:{learn}:unlearnt"),
            (_, Known::No) => format!("flow:{learn}:unknown"),
        };
        self.meet(&name);
        if flow.reopened {
            self.meet(&format!("flow:{learn}:reopened"));
        }
        if pipe.nat.is_some() {
            match flow.known {
                Known::Found(FlowDecision::Default) => self.meet("flow:nat:answers"),
                Known::Full(_) => self.meet("flow:nat:full"),
                Known::Learnt(_) if flow.reopened => self.meet("flow:nat:reopened"),
                _ => {}
            }
        }
    }

    /// Records what a known flow keeps of its entry's action.
    fn kept(&mut self, pipe: &Pipe, step: &Step) {
        if !matches!(&step.flow, Some(FlowMet { known: Known::Found(_), .. })) {
            return;
        }
        let Lookup::Hit(hit) = &step.lookup else { return };
        let template = pipe.templates.iter().find(|template| template.name == hit.template);
        for operation in template.iter().flat_map(|template| &template.operations) {
            for (_, value, _) in operation.numbers() {
                match value {
                    Value::PerFlow => self.meet("kept:per_flow"),
                    Value::Learnt(_) => self.meet("kept:learnt"),
                    Value::Nat(_) => self.meet("kept:nat"),
                    Value::Const(_) | Value::PerEntry => {}
                }
            }
        }
    }

    fn monitored(&mut self, program: &Program, pipe: &Pipe, step: &Step) {
        if step.monitor.counter.is_some() {
            let per_entry = pipe.monitor.counter == Some(SharedUse::PerEntry);
            self.meet(if per_entry { "counter:per_entry" } else { "counter:pipe" });
        }
        let Some(met) = &step.monitor.meter else { return };
        let per_entry = pipe.monitor.meter == Some(SharedUse::PerEntry);
        self.meet(if per_entry { "meter:per_entry" } else { "meter:pipe" });
        let config = program.meters[met.meter.index()].config;
        let marker = match config.second {
            MeterSecond::Excess { .. } => "srtcm",
            MeterSecond::Peak { .. } => "trtcm",
        };
        // Colour awareness shows only when the packet arrives with a colour other than green.
        let aware = if config.colour_aware && met.before > Color::Green { "aware" } else { "blind" };
        self.meet(&format!("meter:{marker}:{aware}:{}", met.after));
    }
}

fn forward_name(forward: Forward) -> &'static str {
    match forward {
        Forward::Port(_) => "port",
        Forward::InputPort => "in_port",
        Forward::Pipe(_) => "pipe",
        Forward::Group(_) => "group",
        Forward::App(_) => "app",
        Forward::Tee { .. } => "tee",
        Forward::Flood(_) => "flood",
        Forward::Kernel => "kernel",
        Forward::Drop => "drop",
        Forward::PerEntry => "per_entry",
    }
}
