//! What `weir plan` predicts for a change that the lab makes, to compare it with what breaks.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::configuration::{FleetMode, NodeState};
use super::router::{Ecmp, RouteChange};
use crate::weir;
use weir_bed::namespace;

/// How many broken connections may be more or less than predicted, as a share.
const TOLERANCE: f64 = 0.1;
/// The same in standard deviations, for few connections: their hashes are not spread evenly.
const SIGMAS: f64 = 3.0;

/// How many connections a change breaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// As `weir plan --fleet` predicts.
    pub broken: u64,
    /// How many may be more or less: the greater of 10 % and three standard deviations of the binomial
    /// distribution. If 1000 of 2000 connections break, that is 10 %, and if 50 of 200 do, 38 %.
    pub margin: u64,
}

impl Prediction {
    fn of(broken: u64, connections: u64) -> Prediction {
        let share = broken as f64 / connections.max(1) as f64;
        let sigma = (broken as f64 * (1.0 - share)).max(0.0).sqrt();
        Prediction { broken, margin: (broken as f64 * TOLERANCE).max(SIGMAS * sigma).ceil() as u64 }
    }

    /// Returns whether this many agree with it.
    pub fn agrees(self, broken: u64) -> bool {
        self.broken.abs_diff(broken) <= self.margin
    }
}

/// Runs `weir plan FILE --fleet` for a change of the router's next hops before which connections from these
/// ports had these nodes.
pub fn predict(
    file: &Path,
    mode: FleetMode,
    ecmp: Ecmp,
    change: &RouteChange,
    owners: &BTreeMap<u16, usize>,
) -> Result<Prediction> {
    let [left, joined]: [Vec<usize>; 2] = [change.left().collect(), change.joined().collect()];
    let positions = |of: &[usize], nodes: &[usize]| {
        let at = |node: &usize| of.iter().position(|one| one == node).map(|at| (at + 1).to_string());
        nodes.iter().filter_map(at).collect::<Vec<_>>().join(",")
    };
    let (verb, count, at) = match (left.len(), joined.len()) {
        (left_count, 0) => ("--remove", left_count, positions(&change.from, &left)),
        (_, joined_count) => ("--add", joined_count, positions(&change.to, &joined)),
    };
    let flows = |node: &usize| owners.values().filter(|owner| *owner == node).count().to_string();
    let flows = format!("web={}", change.from.iter().map(flows).collect::<Vec<_>>().join("/"));
    let [file, nodes, count] =
        [file.to_string_lossy().into(), change.from.len().to_string(), count.to_string()];
    let mut arguments = vec!["plan", &file, "--fleet", "--nodes", &nodes, verb, &count, "--at", &at];
    arguments.extend(["--flows", &flows, "--json"]);
    match ecmp {
        Ecmp::Plain => {}
        Ecmp::Resilient => arguments.push("--resilient"),
    }
    match mode.state() {
        NodeState::Answers => arguments.push("--answers-follow"),
        NodeState::Nothing | NodeState::Translation => {}
    }
    let text = namespace::output(&weir::program()?, &arguments)?;
    let plan: Value = serde_json::from_str(&text)?;
    let services = plan["services"].as_array().map(Vec::as_slice).unwrap_or_default();
    let web = services.iter().find(|service| service["name"] == "web");
    let web = web.with_context(|| format!("`weir plan --fleet` does not know the service: {text}"))?;
    ensure!(
        web["flows"].as_u64() == Some(owners.len() as u64),
        "`weir plan --fleet` has other flows: {text}"
    );
    let broken =
        web["broken"].as_u64().with_context(|| format!("`weir plan --fleet` predicts nothing: {text}"))?;
    Ok(Prediction::of(broken, owners.len() as u64))
}

/// Which shares of connections get another back end from a node that does not know them, because back ends
/// have changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RingChange {
    /// Of all connections.
    pub moved: f64,
    /// Those that a back end which left had, or that one which joined must get.
    pub least: f64,
}

/// Runs `weir plan AFTER --from BEFORE` for two configurations of a node.
pub fn ring_change(folder: &Path, before: &str, after: &str) -> Result<RingChange> {
    let files = ["before.yaml", "after.yaml"].map(|name| folder.join(name));
    for (file, text) in files.iter().zip([before, after]) {
        std::fs::write(file, text)?;
    }
    let [before, after] = files.each_ref().map(|file| file.to_string_lossy());
    let text = namespace::output(&weir::program()?, &["plan", &after, "--from", &before, "--json"])?;
    let plan: Value = serde_json::from_str(&text)?;
    let groups = plan["groups"].as_array().map(Vec::as_slice).unwrap_or_default();
    let web = groups.iter().find(|group| group["name"] == "lb/web");
    let share = |key: &str| web.and_then(|web| web[key].as_f64());
    let shares = share("moved").zip(share("least"));
    let (moved, least) = shares.with_context(|| format!("`weir plan` does not know the service: {text}"))?;
    Ok(RingChange { moved, least })
}

/// Returns how many of these connections break at most if each does with this probability: three standard
/// deviations more than the mean.
pub fn at_most(share: f64, connections: u64) -> u64 {
    let (share, count) = (share.clamp(0.0, 1.0), connections as f64);
    let sigma = (count * share * (1.0 - share)).sqrt();
    ((count * share + SIGMAS * sigma).ceil() as u64).min(connections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_a_tenth_or_three_standard_deviations() {
        assert_eq!(Prediction::of(1000, 2000), Prediction { broken: 1000, margin: 100 });
        // The square root of 50 * 3/4 is 6.1.
        assert_eq!(Prediction::of(50, 200), Prediction { broken: 50, margin: 19 });
        assert_eq!(Prediction::of(0, 200), Prediction { broken: 0, margin: 0 });
        let one = Prediction::of(50, 200);
        assert!(one.agrees(31) && one.agrees(69) && !one.agrees(30) && !one.agrees(70));
        assert!(!Prediction::of(0, 200).agrees(1));
    }

    #[test]
    fn a_share_of_few_connections_may_be_all_of_them() {
        // 29 and three times 5.
        assert_eq!(at_most(0.145, 201), 45);
        assert_eq!([at_most(0.145, 1), at_most(0.0, 200), at_most(1.0, 7)], [1, 0, 7]);
    }
}
