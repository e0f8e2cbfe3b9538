//! `weir test --against OLD NEW`: the packets that another configuration would send elsewhere.

use super::{NO_PORT, SHOWN, TestArguments, and_more, change, change_text, goes, path_text};
use crate::output;
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Instant;
use weir_cover::compare::buckets;
use weir_cover::{Case, Exploration, explore};
use weir_packet::craft::describe;
use weir_program::Program;

/// Runs the command.
pub fn run(arguments: &TestArguments, (old, new): (&Program, &Program), begun: Instant) -> Result<ExitCode> {
    let search = |program: &Program| anyhow::Ok(explore(program, buckets(program)?, arguments.limits()));
    let (by_old, by_new) = (search(old)?, search(new)?);
    let mut packets: BTreeSet<(&str, &[u8])> = BTreeSet::new();
    let mut order: Vec<(&str, &Case)> = Vec::new();
    for (program, found) in [(old, &by_old), (new, &by_new)] {
        for case in &found.record.cases {
            let port = program.ports[case.input.index()].name.as_str();
            if packets.insert((port, &case.frame)) {
                order.push((port, case));
            }
        }
    }
    let (before, now) = (outcomes(old, &by_old, &order)?, outcomes(new, &by_new, &order)?);
    let mut moved: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for ((port, case), (before, now)) in order.iter().zip(before.iter().zip(&now)) {
        if before.goes != now.goes {
            let mut one = change(port, &describe(&case.frame), (&before.goes, &now.goes));
            one["purpose"] = case.purpose.clone().into();
            one["path"] = before.path.clone().into();
            moved.entry(&before.path).or_default().push(one);
        }
    }
    let all: usize = moved.values().map(Vec::len).sum();
    let limits: BTreeSet<&String> = by_old.unexplored.iter().chain(&by_new.unexplored).collect();
    output::print(text(&moved, all, order.len()))?;
    for what in &limits {
        output::line(format_args!("not explored: {what}"))?;
    }
    if arguments.json {
        let paths = |found: &Exploration| found.record.paths.len();
        output::line(json!({
            "ok": all == 0,
            "paths": paths(&by_old) + by_old.missed.len() + paths(&by_new) + by_new.missed.len(),
            "covered": paths(&by_old) + paths(&by_new),
            "unreachable": [],
            "differences": moved.into_values().flatten().collect::<Vec<_>>(),
            "seconds": begun.elapsed().as_secs_f64(),
            "packets": order.len(),
            "unexplored": limits,
        }))?;
    }
    Ok(if all == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a program does with a packet.
#[derive(Clone)]
struct PathTaken {
    path: String,
    goes: String,
}

/// Returns what a program does with packets that arrive one after the other.
fn outcomes(program: &Program, found: &Exploration, order: &[(&str, &Case)]) -> Result<Vec<PathTaken>> {
    let packets = order.iter().map(|(port, case)| (*port, case.frame.as_slice()));
    let taken = super::outcomes(program, packets, |input, walk| PathTaken {
        path: path_text(program, &found.record.path_of(input, walk)),
        goes: goes(program, walk),
    })?;
    let or_none = |(taken, (port, _)): (Option<PathTaken>, &(&str, &Case))| {
        taken.unwrap_or_else(|| PathTaken { path: (*port).into(), goes: NO_PORT.into() })
    };
    Ok(taken.into_iter().zip(order).map(or_none).collect())
}

fn text(moved: &BTreeMap<&str, Vec<Value>>, all: usize, packets: usize) -> String {
    let mut text = format!("{all} of {packets} packets go elsewhere\n");
    let mut left = SHOWN;
    for (path, packets) in moved {
        if left == 0 {
            break;
        }
        text += &format!("{path}: {}\n", packets.len());
        for one in packets.iter().take(left) {
            text += &change_text(one);
        }
        left = left.saturating_sub(packets.len());
    }
    text + &and_more(all)
}
