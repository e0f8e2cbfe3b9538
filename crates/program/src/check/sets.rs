//! Checks groups, meters and names, and finds what is declared but never used.

use super::finding::{Finding, FindingKind};
use super::pipes::{dangling, meters_of, too_large};
use super::{BUCKETS_MAX, MAGLEV_MAX, WANTS_MAX, WEIGHT_MAX};
use crate::pipes::targets;
use crate::{
    Affinity, EntryMatch, Fill, Forward, Group, GroupChoice, GroupId, MeterConfig, MeterSecond, NewFlows,
    Origin, Pipe, Program, ServerId, SharedUse,
};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

pub(super) fn check(program: &Program, findings: &mut Vec<Finding>) {
    names(program, findings);
    for group in &program.groups {
        self::group(program, group, findings);
    }
    numbers(program, findings);
    without_entries(program, findings);
    let count = program.groups.iter().map(|group| u64::from(group.size)).sum();
    if count > BUCKETS_MAX {
        let kind = FindingKind::TooManyBuckets { count, max: BUCKETS_MAX };
        findings.push(Finding::new(Origin::default(), kind));
    }
    for meter in &program.meters {
        let kinds = rates(&meter.config);
        findings.extend(kinds.into_iter().map(|kind| Finding::new(meter.origin, kind)));
    }
    meters_once(program, findings);
    floods(program, findings);
    unused(program, findings);
}

fn names(program: &Program, findings: &mut Vec<Finding>) {
    let none = Origin::default();
    twice("port", program.ports.iter().map(|one| (&one.name, one.origin)), findings);
    twice("pipe", program.pipes.iter().map(|one| (&one.name, one.origin)), findings);
    twice("group", program.groups.iter().map(|one| (&one.name, one.origin)), findings);
    twice("meter", program.meters.iter().map(|one| (&one.name, one.origin)), findings);
    twice("NAT pool", program.nat_pools.iter().map(|one| (&one.name, one.origin)), findings);
    twice("counter", program.counters.iter().map(|name| (name, none)), findings);
    twice("app", program.apps.iter().map(|name| (name, none)), findings);
}

fn twice<'a>(
    what: &'static str,
    names: impl Iterator<Item = (&'a String, Origin)>,
    findings: &mut Vec<Finding>,
) {
    let mut seen = HashSet::new();
    // Counters and targets that nothing uses yet have empty names.
    for (name, origin) in names.filter(|(name, _)| !name.is_empty()) {
        if !seen.insert(name) {
            findings.push(Finding::new(origin, FindingKind::NameTwice { what, name: name.clone() }));
        }
    }
}

fn group(program: &Program, group: &Group, findings: &mut Vec<Finding>) {
    let name = || group.name.clone();
    if group.targets.is_empty() {
        findings.push(Finding::new(group.origin, FindingKind::GroupEmpty { group: name() }));
    } else if group.fill != Fill::Given && group.targets.iter().all(|target| target.weight == 0) {
        findings.push(Finding::new(group.origin, FindingKind::GroupDead { group: name() }));
    }
    findings.extend(size(group).map(|kind| Finding::new(group.origin, kind)));
    foreign(group, findings);
    if group.new_flows != NewFlows::Hash && !matches!(group.fill, Fill::Maglev | Fill::Wants) {
        findings.push(Finding::new(group.origin, FindingKind::NewFlowsOfFill { group: name() }));
    }
    affinity(group, findings);
    let apps = group.no_target.into_iter().chain(group.idle);
    let kinds = apps.filter_map(|app| dangling(program, Forward::App(app)));
    findings.extend(kinds.map(|kind| Finding::new(group.origin, kind)));
    quic(group, findings);
    twice("target", group.targets.iter().map(|target| (&target.name, target.origin)), findings);
    for target in &*group.targets {
        let (weight, max) = (target.weight.into(), WEIGHT_MAX.into());
        let heavy = too_large("weight".to_string(), weight, max);
        findings.extend(heavy.map(|kind| Finding::new(target.origin, kind)));
        let found = match target.forward {
            Forward::Group(_) => Some("a group"),
            Forward::PerEntry => Some("`per_entry`"),
            Forward::Tee { .. } => Some("a copy"),
            Forward::Flood(_) => Some("a flood"),
            _ => None,
        };
        let kind = found.map(|found| FindingKind::TargetForward { found });
        let kind = kind.or_else(|| dangling(program, target.forward));
        findings.extend(kind.map(|kind| Finding::new(target.origin, kind)));
    }
}

/// Finds source prefixes that are impossible or have no effect.
fn affinity(group: &Group, findings: &mut Vec<Finding>) {
    let Some(Affinity { ipv4, ipv6, timeout_ns }) = group.affinity else { return };
    let mut add = |kind| findings.push(Finding::new(group.origin, kind));
    if ipv4 > 32 || ipv6 > 128 {
        add(FindingKind::AffinityBits { ipv4, ipv6 });
    }
    if timeout_ns > crate::AFFINITY_TIMEOUT_MAX {
        add(FindingKind::AffinityTimeout { group: group.name.clone() });
    }
    if group.new_flows != NewFlows::Hash || !matches!(group.fill, Fill::Maglev | Fill::Wants) {
        add(FindingKind::AffinityOfFill { group: group.name.clone() });
    }
}

/// Finds numbers that choose no group, or more than one.
fn numbers(program: &Program, findings: &mut Vec<Finding>) {
    let mut seen: HashMap<u16, &str> = HashMap::new();
    for group in &program.groups {
        let Some(number) = group.number else { continue };
        if number == 0 {
            findings.push(Finding::new(group.origin, FindingKind::GroupNumber { number }));
        }
        if let Some(first) = seen.insert(number, &group.name) {
            let (first, group_name) = (first.to_string(), group.name.clone());
            let kind = FindingKind::GroupNumberTwice { number, first, group: group_name };
            findings.push(Finding::new(group.origin, kind));
        }
    }
}

/// Finds groups that metadata can choose but no pipe has entries for, although every pipe where metadata
/// chooses has some.
fn without_entries(program: &Program, findings: &mut Vec<Finding>) {
    let by_meta = |pipe: &&Pipe| matches!(pipe.kind.group(), Some(GroupChoice::ByMeta(_)));
    let mut there = vec![false; program.groups.len()];
    for pipe in program.pipes.iter().filter(by_meta) {
        let mut entries = pipe.entries.cursor();
        let mut members = 0;
        while let Some(entry) = entries.next() {
            let [EntryMatch::Member { group, .. }] = entry.matches[..] else { continue };
            members += 1;
            there.get_mut(group.index()).into_iter().for_each(|there| *there = true);
        }
        if members == 0 {
            return;
        }
    }
    if !program.pipes.iter().any(|pipe| by_meta(&pipe)) {
        return;
    }
    let lonely = |(group, there): &(&Group, bool)| group.number.is_some() && !there;
    for (group, _) in program.groups.iter().zip(there).filter(lonely) {
        let kind = FindingKind::NumberWithoutEntries { group: group.name.clone() };
        findings.push(Finding::new(group.origin, kind));
    }
}

fn size(group: &Group) -> Option<FindingKind> {
    let (size, targets) = (group.size, group.targets.len());
    let large_enough = size as usize >= targets;
    match group.fill {
        Fill::Maglev if !(large_enough && size <= MAGLEV_MAX && is_prime(size)) => {
            let from = size.max(targets as u32).min(MAGLEV_MAX);
            let hint = (from..=MAGLEV_MAX).find(|&size| is_prime(size));
            Some(FindingKind::MaglevSize { size, targets, max: MAGLEV_MAX, hint })
        }
        Fill::Wants if !(large_enough && size <= WANTS_MAX && size.is_power_of_two()) => {
            Some(FindingKind::WantsSize { size, targets, max: WANTS_MAX })
        }
        Fill::Given if !(size <= WANTS_MAX && size.is_power_of_two()) => {
            Some(FindingKind::GivenSize { size, max: WANTS_MAX })
        }
        Fill::Maglev | Fill::Wants | Fill::Given => None,
        Fill::Katran(..) | Fill::Glb(..) => {
            let wanted = group.fill.fixed_size().filter(|&wanted| wanted != size);
            wanted.map(|wanted| FindingKind::ForeignSize { size, wanted })
        }
    }
}

/// Finds settings that the buckets of another system cannot be filled with.
fn foreign(group: &Group, findings: &mut Vec<Finding>) {
    if group.fill.fixed_size().is_none() {
        return;
    }
    if group.seed.is_some() {
        findings.push(Finding::new(group.origin, FindingKind::ForeignSeed));
    }
    let mut seen: HashMap<IpAddr, &str> = HashMap::new();
    for target in &*group.targets {
        let name = target.name.clone();
        let Some(address) = target.address else {
            findings.push(Finding::new(target.origin, FindingKind::NoAddress { target: name }));
            continue;
        };
        if let Some(first) = seen.insert(address, &target.name) {
            let kind = FindingKind::AddressTwice { first: first.to_string(), target: name };
            findings.push(Finding::new(target.origin, kind));
        }
    }
}

/// Finds server IDs that cannot be distinguished or that no server can encode.
fn quic(group: &Group, findings: &mut Vec<Finding>) {
    let Some(configs) = &group.quic else { return };
    let mut add = |origin, kind| findings.push(Finding::new(origin, kind));
    for (at, config) in configs.iter().enumerate() {
        let id = config.id;
        if !config.has_number() {
            add(group.origin, FindingKind::QuicNumber { id });
        }
        if configs[..at].iter().any(|other| other.id == id) {
            add(group.origin, FindingKind::QuicNumberTwice { group: group.name.clone(), id });
        }
        if let Err(why) = config.decoder() {
            add(group.origin, FindingKind::QuicLengths { id, why: why.to_string() });
        }
    }
    let mut seen: HashMap<ServerId, &str> = HashMap::new();
    for target in &*group.targets {
        let Some(server_id) = target.server_id else { continue };
        let (name, octets) = (target.name.clone(), server_id.as_bytes().len());
        if let Some(config) = configs.iter().find(|config| usize::from(config.server_id) != octets) {
            let (id, wanted) = (config.id, config.server_id);
            add(target.origin, FindingKind::ServerIdLength { target: name.clone(), octets, id, wanted });
        }
        if let Some(first) = seen.insert(server_id, &target.name) {
            add(target.origin, FindingKind::ServerIdTwice { first: first.to_string(), target: name });
        }
    }
}

fn is_prime(number: u32) -> bool {
    number >= 2
        && (2..)
            .take_while(|divisor| divisor * divisor <= number)
            .all(|divisor| !number.is_multiple_of(divisor))
}

fn rates(config: &MeterConfig) -> Vec<FindingKind> {
    let second = match config.second {
        MeterSecond::Excess { .. } => Vec::new(),
        MeterSecond::Peak { pir, pbs } => vec![("pir", pir), ("pbs", pbs)],
    };
    // RFC 2697 §2: at least one burst must be above 0; without a committed burst nothing would ever be
    // green.
    let rates = [("cir", config.cir), ("cbs", config.cbs)].into_iter().chain(second);
    let mut kinds: Vec<_> =
        rates.filter(|(_, rate)| *rate == 0).map(|(what, _)| FindingKind::MeterZero { what }).collect();
    if let MeterSecond::Peak { pir, .. } = config.second
        && pir < config.cir
    {
        kinds.push(FindingKind::PeakBelowCommitted { pir, cir: config.cir });
    }
    kinds
}

fn meters_once(program: &Program, findings: &mut Vec<Finding>) {
    let mut user: HashMap<usize, usize> = HashMap::new();
    for (at, pipe) in program.pipes.iter().enumerate() {
        for (meter, origin) in meters_of(pipe) {
            let first = *user.entry(meter).or_insert(at);
            let Some(declared) = program.meters.get(meter).filter(|_| first != at) else { continue };
            let (meter, first) = (declared.name.clone(), program.pipes[first].name.clone());
            findings.push(Finding::new(origin, FindingKind::MeterTwice { meter, first }));
        }
    }
}

/// Finds floods that reach no port.
fn floods(program: &Program, findings: &mut Vec<Finding>) {
    for pipe in &program.pipes {
        let entries = pipe.entries.forwards();
        for (forward, origin) in
            [(pipe.forward, pipe.origin), (pipe.miss, pipe.origin)].into_iter().chain(entries)
        {
            let Forward::Flood(id) = forward else { continue };
            let Some(group) = program.groups.get(id.index()) else { continue };
            if !group.targets.iter().any(|target| matches!(target.forward, Forward::Port(_))) {
                findings.push(Finding::new(origin, FindingKind::FloodNowhere { group: group.name.clone() }));
            }
        }
    }
}

/// Finds what nothing refers to. Per-entry counters and meters may be used by run-time entries, so they are
/// exempt.
fn unused(program: &Program, findings: &mut Vec<Finding>) {
    let per_entry = |test: fn(&Pipe) -> bool| program.pipes.iter().any(test);
    let none = Origin::default();
    if !per_entry(|pipe| pipe.monitor.counter == Some(SharedUse::PerEntry)) {
        let names = program.counters.iter().map(|name| (name, none));
        not_in("counter", &used_counters(program), names, findings);
    }
    if !per_entry(|pipe| pipe.forward == Forward::PerEntry) {
        let names = program.groups.iter().map(|group| (&group.name, group.origin));
        not_in("group", &used_groups(program), names, findings);
    }
    let used = program.pipes.iter().filter_map(|pipe| pipe.nat.map(|id| id.index())).collect();
    let names = program.nat_pools.iter().map(|pool| (&pool.name, pool.origin));
    not_in("NAT pool", &used, names, findings);
    if !per_entry(|pipe| pipe.monitor.meter == Some(SharedUse::PerEntry)) {
        let used = program.pipes.iter().flat_map(meters_of).map(|(meter, _)| meter).collect();
        let names = program.meters.iter().map(|meter| (&meter.name, meter.origin));
        not_in("meter", &used, names, findings);
    }
}

fn not_in<'a>(
    what: &'static str,
    used: &HashSet<usize>,
    names: impl Iterator<Item = (&'a String, Origin)>,
    findings: &mut Vec<Finding>,
) {
    for (_, (name, origin)) in names.enumerate().filter(|(at, _)| !used.contains(at)) {
        findings.push(Finding::new(origin, FindingKind::Unused { what, name: name.clone() }));
    }
}

fn used_counters(program: &Program) -> HashSet<usize> {
    let mut used = HashSet::new();
    for pipe in &program.pipes {
        if let Some(SharedUse::Pipe(id)) = pipe.monitor.counter {
            used.insert(id.index());
        }
        used.extend(pipe.entries.counters().map(|id| id.index()));
    }
    used
}

fn used_groups(program: &Program) -> HashSet<usize> {
    let mut used = HashSet::new();
    for pipe in &program.pipes {
        let choice = pipe.kind.group();
        let groups = choice.into_iter().flat_map(|choice| targets::groups(program, choice));
        used.extend(groups.map(GroupId::index));
        let own = pipe.entries.forwards().map(|(forward, _)| forward);
        let forwards = own.chain([pipe.forward, pipe.miss]);
        used.extend(forwards.filter_map(|forward| match forward {
            Forward::Group(group) | Forward::Flood(group) => Some(group.index()),
            _ => None,
        }));
    }
    used
}
