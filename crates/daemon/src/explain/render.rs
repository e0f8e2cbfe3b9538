//! Prints a walk as text for people, and as JSON for programs.

use crate::config::{self, Report, write_value};
use serde_json::{Value, json};
use std::fmt::Write;
use weir_oracle::Walk;
use weir_oracle::trace::{
    Asked, Change, Difference, End, FlowMet, Forwarded, Known, Lookup, Mask, Moving, Pick, Rss, Step,
};
use weir_packet::craft::describe_short;
use weir_packet::{DropReason, write_hex};
use weir_port::{WrongChecksum, wrong_checksums};
use weir_program::change::EntryKey;
use weir_program::snapshot::FlowDecision;
use weir_program::{Copied, Verdict};
use weir_program::{
    Criterion, Fill, Forward, Group, GroupChoice, GroupId, Operation, Origin, PipeId, PortId, Program,
};

/// Names for numbers, and the places of parts in the configuration.
pub struct RenderNames<'a> {
    /// The program.
    pub program: &'a Program,
    /// The places, if the program was read from a file.
    pub report: Option<&'a Report>,
}

impl RenderNames<'_> {
    pub(super) fn port(&self, id: PortId) -> &str {
        self.program.ports.get(id.index()).map_or("?", |port| &port.name)
    }

    fn pipe(&self, id: PipeId) -> &str {
        self.program.pipes.get(id.index()).map_or("?", |pipe| &pipe.name)
    }

    pub(super) fn entry(&self, pipe: PipeId, key: &EntryKey) -> String {
        self.program
            .pipes
            .get(pipe.index())
            .map_or_else(String::new, |pipe| config::write_key(self.program, pipe, key))
    }

    fn place(&self, origin: Origin) -> Option<String> {
        let report = self.report?;
        (origin != Origin(0)).then(|| report.place(origin))
    }

    fn verdict(&self, verdict: Verdict) -> String {
        let text = verdict.describe(self.program);
        match verdict {
            Verdict::Drop(reason) => format!("{text}: {}", reason.explanation()),
            Verdict::Transmit(_) | Verdict::Kernel(_) | Verdict::App(_) => text,
        }
    }

    /// Returns the pipe or group where a packet ends in the program of the file, although it would continue
    /// in a daemon: a running app assigns the buckets of a bond and admits its members.
    fn undecided(&self, walk: &Walk) -> Option<&str> {
        self.report?;
        let last = self.program.pipes.get(walk.trace.last()?.pipe.index())?;
        match walk.verdict {
            Verdict::Drop(DropReason::NoTarget) => {
                let given =
                    |group: &&Group| matches!(group.fill, Fill::Given) && is_of(&last.name, &group.name);
                self.program.groups.iter().find(given).map(|group| group.name.as_str())
            }
            Verdict::Drop(DropReason::Miss) => {
                let filled_later = last.name.contains('/') && last.entries.is_empty() && last.capacity > 0;
                filled_later.then_some(last.name.as_str())
            }
            Verdict::Drop(_) | Verdict::Transmit(_) | Verdict::Kernel(_) | Verdict::App(_) => None,
        }
    }

    fn forward(&self, forward: Forward) -> String {
        config::write_forward(forward, self.program)
    }
}

/// Returns true if a pipe and a group are parts of the same app, whose name precedes the `/`.
fn is_of(pipe: &str, group: &str) -> bool {
    let app = |name: &str| name.split('/').next().map(str::to_string);
    app(pipe) == app(group)
}

/// Returns a walk as text.
pub fn walk(names: &RenderNames<'_>, walk: &Walk, input: PortId, frame: &[u8]) -> String {
    let mut out = String::new();
    let _ =
        writeln!(out, "frame   {} bytes in on {}: {}", frame.len(), names.port(input), describe_short(frame));
    for wrong in wrong_checksums(frame).into_iter().flatten() {
        let WrongChecksum { header, found, expected } = wrong;
        let _ = writeln!(out, "        {header} checksum {found:#06x} is wrong, expected {expected:#06x}");
    }
    for (number, one) in walk.trace.iter().enumerate() {
        step(&mut out, names, number + 1, one);
    }
    for copy in &walk.copies {
        let bytes = format!("{} bytes: {}", copy.bytes.len(), describe_short(&copy.bytes));
        let _ = writeln!(out, "copy    {}, {bytes}", names.verdict(copy.to));
    }
    let verdict = names.undecided(walk).map_or_else(
        || names.verdict(walk.verdict),
        |part| {
            format!(
                "undecided: an app fills `{part}` while it runs. `weir replay` runs apps, and `weir explain \
                 --live` asks the daemon"
            )
        },
    );
    let _ = writeln!(out, "verdict {verdict}");
    if let Some(limit) = walk.limit {
        let _ = writeln!(out, "limit   the packet may have {limit} bytes");
    }
    if !matches!(walk.verdict, Verdict::Drop(_)) {
        let _ = writeln!(out, "frame   {} bytes out: {}", walk.bytes.len(), describe_short(&walk.bytes));
    }
    out
}

fn step(out: &mut String, names: &RenderNames<'_>, number: usize, step: &Step) {
    let _ = writeln!(out, "{number:>2} pipe {} ({})", step.name, kind(names, step.pipe));
    for field in &step.key {
        let value = field
            .actual
            .map_or_else(|| "absent".to_string(), |value| write_value(field.field, value, names.program));
        let asked = asked(names, field.asked, field.field);
        let _ = writeln!(out, "     key     {:<16} {value:<24} {asked}", field.field.name());
    }
    if let Some(flow) = &step.flow {
        let key = flow.key.map_or_else(|| "none: the packet has no IP".into(), |key| key.to_string());
        let _ = writeln!(out, "     flow    {key}: {}", known(names.program, step.pipe, flow));
    }
    if let Some(one) = &step.pick {
        let _ = writeln!(out, "     bucket  {}", pick(names, one));
    }
    lookup(out, names, step);
    if let Some((_, name)) = &step.monitor.counter {
        let _ = writeln!(out, "     count   {name}, {} bytes", step.bytes);
    }
    if let Some(meter) = &step.monitor.meter {
        let _ = writeln!(out, "     meter   {}: {} -> {}", meter.name, meter.before, meter.after);
    }
    for performed in &step.operations {
        let _ = write!(out, "     action  {}", change(names, performed.change, &performed.operation));
        for one in &performed.mended {
            let _ = write!(out, "; {} checksum {:#06x} -> {:#06x}", one.name, one.before, one.after);
        }
        out.push('\n');
    }
    if let Some(rehash) = &step.rehash {
        let key = rehash.outer.map_or_else(|| "none".into(), |key| key.to_string());
        let _ = writeln!(out, "     rehash  {key}");
    }
    if let Some(forwarded) = &step.forward {
        let _ = writeln!(out, "     forward {}", forward(names, forwarded, step.end));
    }
}

fn kind(names: &RenderNames<'_>, pipe: PipeId) -> &'static str {
    names.program.pipes.get(pipe.index()).map_or("?", |pipe| pipe.kind.word())
}

fn asked(names: &RenderNames<'_>, asked: Asked, field: weir_packet::Field) -> String {
    let value = |value| write_value(field, value, names.program);
    let masked =
        |mask: u128| if mask == field.max() { String::new() } else { format!(" under mask {}", Mask(mask)) };
    match asked {
        Asked::Match(Criterion::Const { value: wanted, mask }) => {
            format!("must be {}{}", value(wanted), masked(mask))
        }
        Asked::Match(Criterion::PerEntry { mask }) => format!("looked up{}", masked(mask)),
        Asked::Match(Criterion::Prefix) => "longest prefix".into(),
        Asked::Match(Criterion::Masked) => "rules' values and masks".into(),
        Asked::Match(Criterion::Range) => "rules' ranges".into(),
        Asked::Hashed(mask) => format!("hashed{}", masked(mask)),
    }
}

/// Describes the decision for a flow of a pipe.
pub fn decision(program: &Program, pipe: PipeId, decision: FlowDecision) -> String {
    let group = |id: Option<GroupId>| program.groups.get(id?.index());
    let target_of = |id: Option<GroupId>, target: u16| {
        let target = group(id).and_then(|group| group.targets.get(usize::from(target)));
        target.map_or("?", |target| target.name.as_str())
    };
    match decision {
        FlowDecision::Default => "default entry".to_string(),
        FlowDecision::Pinned(target) => {
            let choice = program.pipes.get(pipe.index()).and_then(|pipe| pipe.kind.group());
            format!("pinned to {}", target_of(choice.and_then(GroupChoice::one), target))
        }
        FlowDecision::PinnedIn(id, target) => {
            let name = group(Some(id)).map_or("?", |group| &group.name);
            format!("pinned to {} of {name}", target_of(Some(id), target))
        }
        FlowDecision::Follow(id) => {
            format!("follows the buckets of {}", group(Some(id)).map_or("?", |group| &group.name))
        }
        FlowDecision::FollowChosen => "follows the buckets of the group that metadata chooses".to_string(),
        FlowDecision::Own => "its own entry".to_string(),
    }
}

fn known(program: &Program, pipe: PipeId, flow: &FlowMet) -> String {
    let decision = |of: FlowDecision| decision(program, pipe, of);
    let ended = if flow.reopened { "ended, and this SYN begins another connection; " } else { "" };
    let known = match flow.known {
        Known::No => "unknown".into(),
        Known::Found(found) => format!("live, {}", decision(found)),
        Known::Learnt(new) => format!("new, would be learnt: {}", decision(new)),
        Known::NoNatPort => "new, but no pair of address and port is free".into(),
        Known::AnswersTaken => "new, but another connection uses the same answers".into(),
        Known::Full(new) => format!("new, not learnt because the table is full: {}", decision(new)),
    };
    format!("{ended}{known}")
}

fn pick(names: &RenderNames<'_>, pick: &Pick) -> String {
    let target = pick.target.as_ref().map_or("no live target", |(_, name)| name);
    let moving = match pick.moving {
        Moving::No => "",
        Moving::Waits => " (its move waits until it is idle)",
        Moving::Rested => " (moved now: it was idle)",
        Moving::Overdue => " (moved now: it has waited long enough)",
    };
    if let Some(id) = &pick.server_id {
        let id = write_hex(id, "");
        return format!("server ID {id} of group {} -> {target}", pick.name);
    }
    let by = match pick.turn {
        Some(turn) => format!("turn {turn}"),
        None if pick.fewest.is_some() => {
            format!("the fewest flows for its weight, {}", pick.fewest.unwrap_or_default())
        }
        None if pick.foreign => {
            let whose = match names.program.groups[pick.group.index()].fill {
                Fill::Glb(..) => "the GLB director's",
                _ => "Katran's",
            };
            format!("{whose} hash {:#010x}", pick.hash)
        }
        None => format!("hash {:#018x}", pick.hash),
    };
    let by = match pick.source {
        Some((first, length)) if pick.remembered => {
            return format!("remembered for {first}/{length} in group {} -> {target}", pick.name);
        }
        Some((first, length)) => format!("{by} of the source's prefix {first}/{length}"),
        None => by,
    };
    let by = match pick.rss {
        Rss::NotAsked => by,
        Rss::Absent => by + " (the select hash: the frame carries no NIC hash)",
        Rss::Taken(hash) => format!("{by} (the NIC's, {hash:#010x})"),
    };
    format!("{by} -> bucket {} of group {} -> {target}{moving}", pick.bucket, pick.name)
}

fn lookup(out: &mut String, names: &RenderNames<'_>, step: &Step) {
    match &step.lookup {
        Lookup::Hit(hit) => {
            let mark = if hit.run_time { " (added at run time)" } else { "" };
            let place = names.place(hit.origin).map(|place| format!("  at {place}")).unwrap_or_default();
            let _ = writeln!(out, "     hit     {}{mark}{place}", names.entry(step.pipe, &hit.entry));
        }
        Lookup::NoTarget => out.push_str("     hit     none: the group has no live target for it\n"),
        Lookup::Miss(miss) => {
            out.push_str("     miss\n");
            miss.failed.iter().for_each(|one| difference(out, one));
            if let Some(nearest) = &miss.nearest {
                let place =
                    names.place(nearest.origin).map(|place| format!("  at {place}")).unwrap_or_default();
                let _ = writeln!(out, "     nearest {}{place}", names.entry(step.pipe, &nearest.entry));
                nearest.differences.iter().for_each(|one| difference(out, one));
            }
        }
    }
}

fn difference(out: &mut String, one: &Difference) {
    let actual = one.actual.as_deref().unwrap_or("nothing: the packet does not have this field");
    let _ = writeln!(out, "             differs in {}: expected {}, found {actual}", one.name, one.wanted);
}

fn change(names: &RenderNames<'_>, change: Change, operation: &Operation) -> String {
    match change {
        Change::Field { field, before, after } => {
            let value = |value| write_value(field, value, names.program);
            format!("{} {} -> {}", field.name(), value(before), value(after))
        }
        Change::Removed(bytes) => format!("{}: {bytes} bytes removed from the front", operation),
        Change::Added(bytes) => format!("{}: {bytes} bytes added in front", operation),
        Change::AddedWithSecondChance(bytes, hop) => {
            let hop = hop.map_or("no second chance".to_string(), |hop| format!("second chance: {hop}"));
            format!("{operation}: {bytes} bytes added in front, {hop}")
        }
        Change::Fits { length, most } => format!("{operation}: {length} bytes, limit {most}"),
        Change::Mss { before, after } => format!("{operation}: {before} -> {after}"),
        Change::Nothing => format!("{operation}: nothing to do"),
        Change::Failed(reason) => format!("{} failed: {}", operation, reason.explanation()),
    }
}

fn forward(names: &RenderNames<'_>, forwarded: &Forwarded, end: End) -> String {
    let who = match (forwarded.miss, forwarded.per_entry) {
        (true, _) => "the pipe's miss says",
        (false, true) => "the entry says",
        (false, false) => "the pipe says",
    };
    let mut text = format!("{who} {}", names.forward(forwarded.said));
    if let Some(one) = &forwarded.pick {
        let _ = write!(text, "; {}", pick(names, one));
    }
    match end {
        End::Pipe(next) => text + &format!(" -> pipe {}", names.pipe(next)),
        End::Verdict(verdict) => text + &format!(" -> {}", names.verdict(verdict)),
    }
}

/// Returns a walk as JSON.
pub fn json(names: &RenderNames<'_>, walk: &Walk, input: PortId, frame: &[u8]) -> Value {
    let verdict = |verdict: Verdict| match verdict {
        Verdict::Transmit(port) => json!({ "transmit": names.port(port) }),
        Verdict::Kernel(port) => json!({ "kernel": names.port(port) }),
        Verdict::App(app) => json!({ "app": names.program.apps.get(app.index()) }),
        Verdict::Drop(reason) => json!({ "drop": reason.as_str() }),
    };
    let copy = |copy: &Copied| json!({ "to": verdict(copy.to), "bytes": write_hex(&copy.bytes, "") });
    json!({
        "input": names.port(input),
        "frame": describe_short(frame),
        "wrong_checksums": wrong_checksums(frame).into_iter().flatten().map(wrong_json).collect::<Vec<_>>(),
        "verdict": names.undecided(walk).map_or_else(
            || verdict(walk.verdict),
            |part| json!({ "undecided": part }),
        ),
        "limit": walk.limit,
        "bytes": write_hex(&walk.bytes, ""),
        "copies": walk.copies.iter().map(copy).collect::<Vec<_>>(),
        "pipes": walk.trace.iter().map(|step| step_json(names, step)).collect::<Vec<_>>(),
    })
}

fn wrong_json(wrong: WrongChecksum) -> Value {
    let WrongChecksum { header, found, expected } = wrong;
    json!({ "header": header, "found": found, "expected": expected })
}

fn step_json(names: &RenderNames<'_>, step: &Step) -> Value {
    let key: Vec<Value> = step
        .key
        .iter()
        .map(|field| {
            let value = field.actual.map(|value| write_value(field.field, value, names.program));
            json!({ "field": field.field.name(), "value": value, "asked": asked(names, field.asked,
                field.field) })
        })
        .collect();
    let differences = |list: &[Difference]| -> Vec<Value> {
        list.iter()
            .map(|one| json!({ "field": one.name, "wanted": one.wanted, "actual": one.actual }))
            .collect()
    };
    let lookup = match &step.lookup {
        Lookup::Hit(hit) => json!({
            "hit": names.entry(step.pipe, &hit.entry), "run_time": hit.run_time,
                "at": names.place(hit.origin),
        }),
        Lookup::NoTarget => json!({ "no_target": true }),
        Lookup::Miss(miss) => json!({
            "miss": differences(&miss.failed),
            "nearest": miss.nearest.as_ref().map(|nearest| json!({
                "entry": names.entry(step.pipe, &nearest.entry),
                "at": names.place(nearest.origin),
                "differences": differences(&nearest.differences),
            })),
        }),
    };
    let actions: Vec<String> =
        step.operations.iter().map(|one| change(names, one.change, &one.operation)).collect();
    json!({
        "pipe": step.name,
        "type": kind(names, step.pipe),
        "key": key,
        "flow": step.flow.as_ref().map(|flow| json!({ "key": flow.key.map(|key| key.to_string()),
            "known": known(names.program, step.pipe, flow) })),
        "bucket": step.pick.as_ref().map(|one| pick(names, one)),
        "lookup": lookup,
        "counter": step.monitor.counter.as_ref().map(|(_, name)| name),
        "actions": actions,
        "forward": step.forward.as_ref().map(|forwarded| forward(names, forwarded, step.end)),
    })
}
