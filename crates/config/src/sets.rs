//! Groups and meters.

use crate::diagnostic::{Report, Span};
use crate::forward;
use crate::raw::{Kind, Node};
use crate::section::{Section, boolean, choice, name, number, pairs};
use engine::check::{MAGLEV_MAX, WANTS_MAX};
use engine::program::{
    Fill, Forward, Group, GroupId, MeterConfig, MeterDeclaration, MeterSecond, MeterUnit, Program, Target,
};

/// Buckets of a Maglev group, unless it says otherwise: the smaller size of the paper (NSDI'16 §5.3), where a change
/// of 1000 targets disturbs little.
pub const MAGLEV_SIZE: u32 = 65_537;
/// Buckets of a group filled by wants, unless it says otherwise: what Open vSwitch's bonds have.
const WANTS_SIZE: u32 = 256;

/// Reads the contents of a group that the program knows by name.
#[must_use]
pub fn group(id: GroupId, node: &Node, program: &Program, report: &mut Report) -> Group {
    let blank = program.groups[id.index()].clone();
    let section = Section::of(node, &["fill", "size", "seed", "targets"], report).at(report.span_of(blank.origin));
    let fills = [("maglev", Fill::Maglev), ("wants", Fill::Wants), ("given", Fill::Given)];
    let fill = section.get("fill").and_then(|node| choice(node, "`fill`", &fills, report)).unwrap_or(Fill::Maglev);
    let (default, max) = match fill {
        Fill::Maglev => (MAGLEV_SIZE, MAGLEV_MAX),
        Fill::Wants | Fill::Given => (WANTS_SIZE, WANTS_MAX),
    };
    let size = section
        .get("size")
        .map_or(Some(u64::from(default)), |node| number(node, "a group's size", 1..=u64::from(max), report));
    let seed = section.get("seed").and_then(|node| number(node, "a seed", 0..=u64::MAX, report));
    let targets = section.need("targets", "who gets the buckets", report);
    let targets = targets.map(|node| pairs(node, report)).unwrap_or_default();
    let targets =
        targets.into_iter().filter_map(|(name, span, node)| target(name, span, node, fill, program, report)).collect();
    Group { fill, size: size.map_or(default, |size| size as u32), seed, targets, ..blank }
}

fn target(called: &str, span: Span, node: &Node, fill: Fill, program: &Program, report: &mut Report) -> Option<Target> {
    let name = name(called, span, report)?.to_string();
    let origin = report.origin(span);
    // `b1: p1` is `b1: { forward: p1 }`.
    if let Kind::Scalar(_) = node.kind {
        let forward = forward::read(node, program, report).unwrap_or_default();
        return Some(Target { name, weight: 1, forward, origin });
    }
    let section = Section::of(node, &["weight", "forward"], report);
    if let Some(node) = section.get("weight").filter(|_| fill == Fill::Given) {
        report.error(node.span, "a weight has no part in a group whose buckets are given");
    }
    let weight = section.get("weight").map_or(Some(1), |node| number(node, "a weight", 0..=WEIGHT_MAX, report));
    let forward = section.get("forward").map_or(Some(Forward::Drop), |node| forward::read(node, program, report));
    Some(Target { name, weight: weight.unwrap_or(1) as u32, forward: forward.unwrap_or_default(), origin })
}

/// A weight at most: 65535 targets of it do not overflow a sum of 32 bits.
pub const WEIGHT_MAX: u64 = 65_535;

/// Reads a meter.
#[must_use]
pub fn meter(called: &str, span: Span, node: &Node, report: &mut Report) -> Option<MeterDeclaration> {
    let section = Section::of(node, &["unit", "cir", "cbs", "ebs", "pir", "pbs", "colour_aware"], report).at(span);
    let name = name(called, span, report)?.to_string();
    let units = [("bytes", MeterUnit::Bytes), ("packets", MeterUnit::Packets)];
    let unit = section.get("unit").and_then(|node| choice(node, "`unit`", &units, report)).unwrap_or(MeterUnit::Bytes);
    let mut need = |key: &str, what: &str| {
        section.need(key, what, report).and_then(|node| number(node, what, 1..=RATE_MAX, report)).unwrap_or(1)
    };
    let (cir, cbs) = (need("cir", "the committed rate per second"), need("cbs", "the committed burst"));
    let second = second(&section, cir, report);
    let aware =
        section.get("colour_aware").and_then(|node| boolean(node, "`colour_aware`", report)).unwrap_or_default();
    let config = MeterConfig { unit, cir, cbs, second, colour_aware: aware };
    Some(MeterDeclaration { name, config, origin: report.origin(span) })
}

/// A rate or burst at most: a terabyte, so that rate times nanoseconds fits 128 bits by far.
const RATE_MAX: u64 = 1 << 40;

/// RFC 2698 if there is a peak rate, else RFC 2697.
fn second(section: &Section, cir: u64, report: &mut Report) -> MeterSecond {
    let mut given = |key: &str, what: &str, least: u64| {
        section.get(key).and_then(|node| number(node, what, least..=RATE_MAX, report))
    };
    let ebs = given("ebs", "the excess burst", 0);
    let (pir, pbs) = (given("pir", "the peak rate per second", 1), given("pbs", "the peak burst", 1));
    let has = |key: &str| section.get(key).is_some();
    if has("ebs") && (has("pir") || has("pbs")) {
        report.error(section.span, "`ebs` (RFC 2697) or `pir` and `pbs` (RFC 2698), not both");
    }
    match (pir, pbs) {
        (Some(pir), Some(pbs)) => {
            if let Some(node) = section.get("pir").filter(|_| pir < cir) {
                report.error(node.span, format!("the peak rate {pir} is below the committed rate {cir}"));
            }
            MeterSecond::Peak { pir: pir.max(cir), pbs }
        }
        _ => {
            if has("pir") != has("pbs") {
                report.error(section.span, "a peak rate has two numbers: `pir` and `pbs`");
            }
            MeterSecond::Excess { ebs: ebs.unwrap_or(0) }
        }
    }
}
