//! `weir plan FILE --from OLD`: which share of each group's flows another configuration would send elsewhere,
//! before anybody loads it.

use super::bad_input;
use crate::config::Plan;
use crate::{import, output};
use anyhow::{Result, bail};
use engine::buckets::BucketTable;
use engine::program::{EntryMatch, Fill, Group, PipeKind, Program, Target};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `weir plan`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The configuration that would be loaded.
    file: PathBuf,
    /// The configuration that is running.
    #[arg(long, value_name = "OLD")]
    from: PathBuf,
    /// Fail if a larger share of a group's flows would move: in percent, such as `5%`, or from 0 to 1.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    max_move: Option<f64>,
    /// Print a JSON object: `ok, groups[{name, moved, least, flows_end}]`.
    #[arg(long)]
    json: bool,
}

/// What becomes of the flows of a group, as shares of all that its buckets stand for.
#[derive(Debug, PartialEq)]
struct Moves {
    name: String,
    /// Those whose bucket has another target, by name.
    moved: f64,
    /// The least with which the targets could have got the shares that they get.
    least: f64,
    /// Whether flows that are pinned begin anew, because other tables keep those of the group.
    flows_end: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let (number, whole) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent, 100.0));
    let share = number.trim().parse::<f64>().ok().map(|number| number / whole);
    let share = share.filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("`{text}` is not a share such as 5% or 0.05"))
}

/// Runs the command.
///
/// # Errors
/// A file cannot be read, or standard output cannot be written to.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut plans = Vec::new();
    for file in [&arguments.from, &arguments.file] {
        let Some(plan) = load(file)? else { return Ok(bad_input()) };
        plans.push(plan);
    }
    let [old, new] = plans.as_slice() else { bail!("two configurations are compared") };
    let moves = compare(&old.program, &new.program);
    let most = arguments.max_move.unwrap_or(1.0);
    let over: Vec<&Moves> = moves.iter().filter(|moves| moves.moved > most).collect();
    if arguments.json {
        output::line(answer(&moves, over.is_empty()))?;
    } else {
        for line in text(&moves) {
            output::line(line)?;
        }
    }
    for Moves { name, .. } in moves.iter().filter(|moves| moves.flows_end) {
        output::complain(format!(
            "the flows of `{name}` that live now begin anew: another table keeps them then, and each goes \
             where the buckets say\n"
        ));
    }
    for Moves { name, moved, .. } in &over {
        output::complain(format!("{:.2} % of the flows of `{name}` would move\n", moved * 100.0));
    }
    Ok(if over.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn load(file: &Path) -> Result<Option<Plan>> {
    let loaded = import::load(file, &import::Options::default())?;
    output::complain(&loaded.report);
    Ok(loaded.plan)
}

fn answer(moves: &[Moves], ok: bool) -> Value {
    let row = |one: &Moves| {
        let Moves { name, moved, least, flows_end } = one;
        json!({ "name": name, "moved": moved, "least": least, "flows_end": flows_end })
    };
    json!({ "ok": ok, "groups": moves.iter().map(row).collect::<Vec<_>>() })
}

fn text(moves: &[Moves]) -> Vec<String> {
    let width = moves.iter().map(|one| one.name.len()).max().unwrap_or_default();
    let row = |one: &Moves| {
        format!(
            "{:width$}  {:6.2} % of flows without an entry move, {:.2} % must",
            one.name,
            one.moved * 100.0,
            one.least * 100.0
        )
    };
    moves.iter().map(row).collect()
}

/// Compares the groups that both programs have. Buckets that apps give are not in a program.
fn compare(old: &Program, new: &Program) -> Vec<Moves> {
    let before: HashMap<&str, &Group> = old.groups.iter().map(|group| (group.name.as_str(), group)).collect();
    let both = new.groups.iter().filter(|group| group.fill != Fill::Given);
    let tables = [old, new].map(keepers);
    let ends = |name: &str| {
        let [before, after] = [0, 1].map(|at: usize| tables[at].get(name));
        before.is_some_and(|before| after.is_none_or(|after| before.is_disjoint(after)))
    };
    let compared = |group: &Group| {
        let moves = moves(before.get(group.name.as_str())?, group);
        Some(Moves { flows_end: ends(&group.name), ..moves })
    };
    both.filter_map(compared).collect()
}

/// Returns the pipes that keep flows of each group, by name. Flows go on where a reload finds the same pipe.
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

/// Compares the buckets of a group, which may be of another number: a bucket stands for a part of all hashes,
/// and two such parts are compared where they overlap.
fn moves(old: &Group, new: &Group) -> Moves {
    let tables = [BucketTable::fill(old, None), BucketTable::fill(new, None)];
    let [before, after] = [0, 1].map(|at: usize| tables[at].buckets().slots());
    // Targets by their positions in the new group, those that it does not have behind them.
    let positions: HashMap<&str, usize> =
        (0..).zip(&*new.targets).map(|(at, one)| (one.name.as_str(), at)).collect();
    let gone = new.targets.len();
    let position = |(at, one): (usize, &Target)| *positions.get(one.name.as_str()).unwrap_or(&(gone + at));
    let known: Vec<usize> = old.targets.iter().enumerate().map(position).collect();
    let (one, two) = (before.len() as u64, after.len() as u64);
    // Hashes are counted from 0 to the product of both numbers, so that the edges of buckets are whole.
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
    Moves { name: new.name.clone(), moved, least, flows_end: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::program::{Entry, Forward, GroupChoice, GroupId, Learn, Pipe};

    fn group(size: u32, targets: &[(&str, u32)]) -> Group {
        let target = |(name, weight): &(&str, u32)| Target::new(*name, Forward::Drop).weight(*weight);
        Group::new("web", Fill::Maglev, size).targets(targets.iter().map(target))
    }

    #[test]
    fn a_removed_target_moves_its_own_and_hardly_another() {
        let names: Vec<String> = (0..100).map(|at| format!("b{at}")).collect();
        let all: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let (old, new) = (group(65_537, &all), group(65_537, &all[1..]));
        assert_eq!(moves(&old, &old), Moves { name: "web".into(), moved: 0.0, least: 0.0, flows_end: false });
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
        let (flows, nat) = (program("lb/flows"), program("lb/nat/v4"));
        let end = |old, new| compare(old, new)[0].flows_end;
        assert!(!end(&flows, &flows) && end(&flows, &nat) && end(&nat, &flows));
        let mut none = program("lb/flows");
        none.pipes.clear();
        assert!(end(&flows, &none) && !end(&none, &flows), "flows are kept no longer, or were not");
    }

    #[test]
    fn sizes_and_weights_are_compared_as_shares() {
        let old = group(251, &[("a", 1), ("b", 1)]);
        let other = moves(&old, &group(509, &[("a", 1), ("b", 1)]));
        assert!(other.moved > 0.2 && other.least < 0.01, "{other:?}");
        let heavier = moves(&old, &group(251, &[("a", 3), ("b", 1)]));
        assert!((0.2..0.3).contains(&heavier.least), "{heavier:?}");
        let nobody = moves(&old, &group(251, &[("c", 1)]));
        assert_eq!((nobody.moved, nobody.least), (1.0, 1.0));
    }

    #[test]
    fn shares_are_read_in_percent_and_as_numbers() {
        assert_eq!((share("5%"), share("0.05"), share("100 %")), (Ok(0.05), Ok(0.05), Ok(1.0)));
        assert!(share("5").is_err() && share("-1%").is_err() && share("").is_err());
    }
}
