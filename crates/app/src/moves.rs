//! Which share of each group's flows another configuration sends elsewhere.

use crate::bits::{BitAssignment, gather, spread};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use weir_program::buckets::BucketTable;
use weir_program::{Affinity, EntryMatch, Fill, Group, PipeKind, Program, Target};

/// The effect on the flows of a group, as shares of the hash space of its buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct Moves {
    /// The name of the group.
    pub name: String,
    /// The share of flows whose bucket gets a target with another name.
    pub moved: f64,
    /// The minimum share that has to move for the targets to get their shares.
    pub least: f64,
    /// The changes that move flows.
    pub why: Vec<String>,
    /// Whether pinned flows start over, because the group's flows are kept in other tables.
    pub flows_end: bool,
}

impl Moves {
    /// Returns the object that is printed.
    #[must_use]
    pub fn json(&self) -> Value {
        let Moves { name, moved, least, why, flows_end } = self;
        json!({ "name": name, "moved": moved, "least": least, "why": why, "flows_end": flows_end })
    }
}

/// How the packets of a service are assigned to back ends.
#[derive(Clone, Copy)]
enum Assigned<'a> {
    /// The buckets of a group.
    By(&'a Group),
    /// Bits of the source address.
    ByBits(&'a BitAssignment),
}

/// Returns how packets are assigned, by name of the group or assignment. Buckets assigned by apps are not in
/// a program.
fn assigned<'a>((program, by_bits): (&'a Program, &'a [BitAssignment])) -> BTreeMap<&'a str, Assigned<'a>> {
    let groups = program.groups.iter().filter(|group| group.fill != Fill::Given);
    let groups = groups.map(|group| (group.name.as_str(), Assigned::By(group)));
    groups.chain(by_bits.iter().map(|one| (one.name.as_str(), Assigned::ByBits(one)))).collect()
}

/// Compares what both configurations contain.
#[must_use]
pub fn compare(old: (&Program, &[BitAssignment]), new: (&Program, &[BitAssignment])) -> Vec<Moves> {
    let (before, after) = (assigned(old), assigned(new));
    let tables = [old.0, new.0].map(keepers);
    let ends = |name: &str| {
        let [before, after] = [0, 1].map(|at: usize| tables[at].get(name));
        before.is_some_and(|before| after.is_none_or(|after| before.is_disjoint(after)))
    };
    let compared = |(name, now): (&&str, &Assigned<'_>)| {
        let moves = match (before.get(name)?, now) {
            (Assigned::By(old), Assigned::By(new)) if is_picked_alike(old, new) => moves(old, new),
            (Assigned::ByBits(old), Assigned::ByBits(new)) => moves_of_bits(old, new),
            (old, new) => moves_of_others(name, *old, *new),
        };
        Some(Moves { flows_end: ends(name), ..moves })
    };
    after.iter().filter_map(compared).collect()
}

/// Whether the same hash selects from both groups.
fn is_picked_alike(old: &Group, new: &Group) -> bool {
    let kind = |group: &Group| {
        (std::mem::discriminant(&group.fill), group.seed, group.affinity.map(Affinity::prefixes))
    };
    kind(old) == kind(new)
}

/// Returns the share of packets that each target gets, by name.
fn shares(of: Assigned<'_>) -> HashMap<&str, f64> {
    let names: Vec<&str> = match of {
        Assigned::ByBits(assignment) => assignment.targets.iter().map(String::as_str).collect(),
        Assigned::By(group) => {
            let table = BucketTable::fill(group, None);
            let name = |slot: &u16| group.targets.get(usize::from(*slot)).map_or("", |one| one.name.as_str());
            table.buckets().slots().iter().map(name).collect()
        }
    };
    let mut shares = HashMap::new();
    names.iter().for_each(|name| *shares.entry(*name).or_insert(0.0) += 1.0 / names.len() as f64);
    shares
}

/// Returns the minimum share of packets that must move for targets to get their new shares.
fn least(old: &HashMap<&str, f64>, new: &HashMap<&str, f64>) -> f64 {
    old.iter().map(|(name, share)| (share - new.get(name).copied().unwrap_or(0.0)).max(0.0)).sum()
}

/// Compares two unrelated ways of assigning packets: a packet stays where it was only by chance.
fn moves_of_others(name: &str, old: Assigned<'_>, new: Assigned<'_>) -> Moves {
    let why = match (old, new) {
        (Assigned::By(old), Assigned::By(new)) => reasons(old, new),
        (Assigned::By(_) | Assigned::ByBits(_), _) => vec!["`by` changes".to_string()],
    };
    let (old, new) = (shares(old), shares(new));
    let stay: f64 = old.iter().map(|(name, share)| share * new.get(name).copied().unwrap_or(0.0)).sum();
    Moves { name: name.to_string(), moved: 1.0 - stay, least: least(&old, &new), why, flows_end: false }
}

/// Compares the back ends of all values of the bits that either configuration uses.
fn moves_of_bits(old: &BitAssignment, new: &BitAssignment) -> Moves {
    let mask = old.mask | new.mask;
    let of = |assignment: &BitAssignment, address| {
        assignment.targets.get(gather(address, assignment.mask) as usize).cloned()
    };
    let values = 1_u32 << mask.count_ones();
    let moves = |value: &u32| of(old, spread(*value, mask)) != of(new, spread(*value, mask));
    let moved = (0..values).filter(moves).count() as f64 / f64::from(values);
    let mut why = Vec::new();
    if old.mask != new.mask {
        why.push("`by` uses different bits".to_string());
    } else if moved > 0.0 {
        why.push("each value of the bits is assigned again, in turn".to_string());
    }
    let least = least(&shares(Assigned::ByBits(old)), &shares(Assigned::ByBits(new)));
    Moves { name: new.name.clone(), moved, least, why, flows_end: false }
}

/// Lists the changes of a group that move packets, largest effect first.
fn reasons(old: &Group, new: &Group) -> Vec<String> {
    let mut why = Vec::new();
    let mut add = |is_so: bool, text: String| why.extend(is_so.then_some(text));
    let prefixes = |group: &Group| group.affinity.map(Affinity::prefixes);
    add(prefixes(old) != prefixes(new), "`affinity` changes".to_string());
    add(old.seed != new.seed, "`seed` changes".to_string());
    add(old.fill != new.fill, "the method of filling buckets changes".to_string());
    let how = if new.size > old.size { "grows" } else { "shrinks" };
    let size = format!("`size` {how} from {} to {}", old.size, new.size);
    add(old.size != new.size, size);
    let weights = |group: &Group| -> HashMap<String, u32> {
        group.targets.iter().map(|one| (one.name.clone(), one.weight)).collect()
    };
    let (before, after) = (weights(old), weights(new));
    let names = |of: &HashMap<String, u32>| of.keys().cloned().collect::<HashSet<String>>();
    let (had, has) = (names(&before), names(&after));
    let (more, fewer) = (has.difference(&had).count(), had.difference(&has).count());
    let others = had.intersection(&has).filter(|name| before.get(*name) != after.get(*name)).count();
    add(more > 0, format!("{more} added"));
    add(fewer > 0, format!("{fewer} removed"));
    add(others > 0, format!("{others} with a different weight"));
    why
}

/// Returns the pipes that keep flows of each group, by name. Flows survive if a reload finds the same pipe.
fn keepers(program: &Program) -> HashMap<&str, BTreeSet<&str>> {
    let mut keepers: HashMap<&str, BTreeSet<&str>> = HashMap::new();
    for pipe in program.pipes.iter().filter(|pipe| matches!(pipe.kind, PipeKind::Flow { .. })) {
        for matched in pipe.entries.iter().flat_map(|entry| entry.matches) {
            if let EntryMatch::Member { group, .. } = matched
                && let Some(group) = program.groups.get(group.index())
            {
                keepers.entry(&group.name).or_default().insert(&pipe.name);
            }
        }
    }
    keepers
}

/// Compares the buckets of a group, whose number may have changed: a bucket covers a part of the hash space,
/// and parts are compared where they overlap.
fn moves(old: &Group, new: &Group) -> Moves {
    let tables = [BucketTable::fill(old, None), BucketTable::fill(new, None)];
    let [before, after] = [0, 1].map(|at: usize| tables[at].buckets().slots());
    // Targets by their positions in the new group, followed by those that it lacks.
    let positions: HashMap<&str, usize> =
        (0..).zip(&*new.targets).map(|(at, one)| (one.name.as_str(), at)).collect();
    let gone = new.targets.len();
    let position = |(at, one): (usize, &Target)| *positions.get(one.name.as_str()).unwrap_or(&(gone + at));
    let known: Vec<usize> = old.targets.iter().enumerate().map(position).collect();
    let (one, two) = (before.len() as u64, after.len() as u64);
    // Hashes are counted from 0 to the product of both bucket counts, so that the edges of buckets are
    // integers.
    let (mut at, mut moved) = (0, 0);
    let mut shares = vec![[0_u64; 2]; gone + known.len() + 1];
    while at < one * two {
        let (old_bucket, new_bucket) = (at / two, at / one);
        let end = ((old_bucket + 1) * two).min((new_bucket + 1) * one);
        // A bucket without a target counts as one of the last.
        let had = known.get(usize::from(before[old_bucket as usize])).map_or(gone + known.len(), |at| *at);
        let has = Some(usize::from(after[new_bucket as usize])).filter(|at| *at < gone);
        let has = has.unwrap_or(gone + known.len());
        moved += if had == has { 0 } else { end - at };
        shares[had][0] += end - at;
        shares[has][1] += end - at;
        at = end;
    }
    let lost: u64 = shares.iter().map(|[before, after]| before.saturating_sub(*after)).sum();
    let whole = (one * two) as f64;
    let (moved, least) = (moved as f64 / whole, lost as f64 / whole);
    let why = if moved > 0.0 { reasons(old, new) } else { Vec::new() };
    Moves { name: new.name.clone(), moved, least, why, flows_end: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_program::{Entry, Forward, GroupChoice, GroupId, Learn, Pipe};

    fn group(size: u32, targets: &[(&str, u32)]) -> Group {
        let target = |(name, weight): &(&str, u32)| Target::new(*name, Forward::Drop).weight(*weight);
        Group::new("web", Fill::Maglev, size).targets(targets.iter().map(target))
    }

    #[test]
    fn a_removed_target_moves_its_own_and_hardly_another() {
        let names: Vec<String> = (0..100).map(|at| format!("b{at}")).collect();
        let all: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let (old, new) = (group(65_537, &all), group(65_537, &all[1..]));
        assert_eq!(
            moves(&old, &old),
            Moves { name: "web".into(), moved: 0.0, least: 0.0, why: Vec::new(), flows_end: false }
        );
        let removed = moves(&old, &new);
        assert!((0.0098..0.0102).contains(&removed.least), "{removed:?}");
        assert!(removed.moved >= removed.least && removed.moved < 0.03, "{removed:?}");
        let added = moves(&new, &old);
        assert!((0.0098..0.0102).contains(&added.least) && added.moved < 0.03, "{added:?}");
    }

    #[test]
    fn flows_end_where_another_table_keeps_those_of_a_group() {
        let program = |pipe: &str| {
            let mut program = Program::default();
            program.groups.push(group(251, &[("a", 1), ("b", 1)]));
            let member = EntryMatch::Member { group: GroupId(0), target: 1 };
            let pinned = Pipe::flow(pipe, Learn::Pin(GroupChoice::ByMeta(0)));
            program.pipes.push(pinned.entries([Entry::on(member)]));
            program
        };
        let (flows, nat) = (program("flows"), program("nat"));
        let end = |old, new| compare((old, &[]), (new, &[]))[0].flows_end;
        assert!(!end(&flows, &flows) && end(&flows, &nat) && end(&nat, &flows));
        let mut none = program("flows");
        none.pipes.clear();
        assert!(end(&flows, &none) && !end(&none, &flows), "the service starts or stops keeping flows");
    }

    #[test]
    fn sizes_and_weights_are_compared_as_shares() {
        let old = group(251, &[("a", 1), ("b", 1)]);
        let other = moves(&old, &group(509, &[("a", 1), ("b", 1)]));
        assert!(other.moved > 0.2 && other.least < 0.01, "{other:?}");
        assert_eq!(other.why, ["`size` grows from 251 to 509"]);
        let heavier = moves(&old, &group(251, &[("a", 3), ("b", 1)]));
        assert!((0.2..0.3).contains(&heavier.least), "{heavier:?}");
        let all = moves(&old, &group(251, &[("c", 1)]));
        assert_eq!((all.moved, all.least), (1.0, 1.0));
    }

    #[test]
    fn what_has_changed_is_said() {
        let (old, all) = (group(251, &[("a", 1), ("b", 1)]), [("a", 2), ("c", 1)]);
        assert_eq!(moves(&old, &group(251, &all)).why, ["1 added", "1 removed", "1 with a different weight"]);
        assert_eq!(moves(&old, &old).why, [""; 0]);
        // With another hash, a packet stays only by chance.
        let by_source = group(251, &[("a", 1), ("b", 1)]).affinity(Some(Affinity::ADDRESS));
        let program = |group: &Group| Program { groups: vec![group.clone()], ..Program::default() };
        let all = compare((&program(&old), &[]), (&program(&by_source), &[]));
        assert!((0.49..0.51).contains(&all[0].moved) && all[0].least == 0.0, "{all:?}");
        assert_eq!(all[0].why, ["`affinity` changes"]);
    }

    #[test]
    fn services_by_bits_of_the_source_count() {
        let dealt = |mask: u32, names: &[&str]| {
            let targets = names.iter().map(|name| (*name).to_string()).collect();
            vec![BitAssignment { name: "web".into(), mask, targets }]
        };
        let none = Program::default();
        let compare =
            |old: &[BitAssignment], new: &[BitAssignment]| compare((&none, old), (&none, new)).remove(0);
        let old = dealt(1, &["a", "b"]);
        assert_eq!((compare(&old, &old).moved, compare(&old, &old).why), (0.0, vec![]));
        let swapped = compare(&old, &dealt(1, &["b", "a"]));
        assert_eq!((swapped.moved, swapped.least), (1.0, 0.0));
        let wider = compare(&old, &dealt(3, &["a", "b", "c", "b"]));
        assert_eq!((wider.moved, wider.least), (0.25, 0.25));
        assert_eq!(wider.why, ["`by` uses different bits"]);
        // Another kind of assignment.
        let mut buckets = Program::default();
        buckets.groups.push(Group { name: "web".into(), ..group(251, &[("a", 1), ("b", 1)]) });
        let other = super::compare((&none, &old), (&buckets, &[])).remove(0);
        assert!((0.49..0.51).contains(&other.moved), "{other:?}");
        assert_eq!(other.why, ["`by` changes"]);
    }
}
