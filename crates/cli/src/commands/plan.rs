//! `weir plan FILE --from OLD`: which share of each group's flows another configuration would send elsewhere,
//! before it is loaded.

use super::bad_input;
use super::fleet::FleetArguments;
use crate::config::Plan;
use crate::{import, output};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_app::moves::{Moves, compare};

/// Arguments of `weir plan`.
#[derive(clap::Args)]
pub struct PlanArguments {
    /// The configuration that would be loaded.
    file: PathBuf,
    /// The configuration that is running.
    #[arg(long, value_name = "OLD", required_unless_present = "fleet")]
    from: Option<PathBuf>,
    /// Fail if more than this share of a group's flows would move: in percent, such as `5%`, or from 0 to 1.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    max_move: Option<f64>,
    #[command(flatten)]
    fleet: FleetArguments,
    /// Print a JSON object: `ok, groups[{name, moved, least, why[], flows_end}]`; with `--fleet`,
    /// `services[{name, mode, flows, broken, share, least, most, why}], broken`.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: import::NodeOption,
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
/// Fails if a file cannot be read, or if standard output cannot be written to.
pub fn run(arguments: &PlanArguments) -> Result<ExitCode> {
    let Some(from) = &arguments.from else {
        return super::fleet::run((&arguments.file, &arguments.node), &arguments.fleet, arguments.json);
    };
    let mut plans = Vec::new();
    for file in [from, &arguments.file] {
        let Some(plan) = load(file, &arguments.node)? else { return Ok(bad_input()) };
        plans.push(plan);
    }
    let [old, new] = plans.as_slice() else { bail!("two configurations are needed") };
    let moves =
        compare((&old.program, &old.apps.bit_assignments()), (&new.program, &new.apps.bit_assignments()));
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
            "the live flows of `{name}` start over: a different table will keep them, and each goes where \
             the buckets send it\n"
        ));
    }
    for Moves { name, moved, .. } in &over {
        output::complain(format!("{:.2} % of the flows of `{name}` would move\n", moved * 100.0));
    }
    Ok(if over.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn load(file: &Path, node: &import::NodeOption) -> Result<Option<Plan>> {
    let loaded = import::load(file, node, &import::ImportOptions::default())?;
    output::complain(&loaded.report);
    Ok(loaded.plan)
}

fn answer(moves: &[Moves], ok: bool) -> Value {
    json!({ "ok": ok, "groups": moves.iter().map(Moves::json).collect::<Vec<_>>() })
}

fn text(moves: &[Moves]) -> Vec<String> {
    let width = moves.iter().map(|one| one.name.len()).max().unwrap_or_default();
    let row = |one: &Moves| {
        let why = if one.why.is_empty() { String::new() } else { format!(": {}", one.why.join(", ")) };
        format!(
            "{:width$}  {:6.2} % of flows without an entry move, {:.2} % must{why}",
            one.name,
            one.moved * 100.0,
            one.least * 100.0
        )
    };
    moves.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_in_percent_and_as_numbers() {
        assert_eq!((share("5%"), share("0.05"), share("100 %")), (Ok(0.05), Ok(0.05), Ok(1.0)));
        assert!(share("5").is_err() && share("-1%").is_err() && share("").is_err());
    }
}
