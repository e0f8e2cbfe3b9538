//! Groups and meters.

use crate::affinity;
use crate::diagnostic::{Report, Span};
use crate::fills::{self, FILLS, GLB_KEYS, KATRAN_KEYS};
use crate::forward;
use crate::key::{Key, Shape};
use crate::quic::{self, QUIC};
use crate::raw::{Kind, Node};
use crate::section::{Section, name, number, pairs, words};
use std::collections::HashMap;
use std::sync::Arc;
use weir_program::check::{MAGLEV_MAX, WANTS_MAX};
use weir_program::{
    Fill, Forward, Group, GroupId, MeterConfig, MeterDeclaration, MeterSecond, MeterUnit, NewFlows, Program,
    Target,
};

/// Default number of buckets of a Maglev group: the smaller size in the paper (NSDI'16 §5.3), with which
/// changes among 1000 targets cause little disruption.
pub const MAGLEV_SIZE: u32 = 65_537;
/// Default number of buckets of a group filled by wants, as in Open vSwitch's bonds.
const WANTS_SIZE: u32 = 256;

/// The minimum number of buckets per target in a group whose size follows the number of targets. With Maglev
/// and 100 buckets each, the removal of one of 100 targets moves less than 2 % of the others' buckets; with
/// 40 it moves 3 %.
const MAGLEV_EACH: u32 = 100;
const WANTS_EACH: u32 = 32;

/// Keys of a group.
pub const GROUP: &[Key] = crate::keys! {
    "fill": Shape::Words(|| words(&FILLS)), "how targets get their buckets" or "maglev";
    "number": Shape::Number(1, u16::MAX as u64),
        "the metadata value that selects the group, which can also be written `group(NAME)`";
    "size": Shape::Number(1, MAGLEV_MAX as u64),
        "the number of buckets: with `maglev` a prime (default 65537), otherwise a power of two (default \
         256); with a `number`, the default depends on the number of targets; for the rings of other \
         systems, the size is fixed";
    "katran": Shape::Map(KATRAN_KEYS), "which fields of a flow Katran's hash covers";
    "glb": Shape::Map(GLB_KEYS), "parameters from the GLB director's forwarding table";
    "seed": Shape::Number(0, u64::MAX), "a number mixed into the hash before it picks a bucket";
    "new_flows": Shape::Words(|| words(&NewFlows::WORDS)),
        "how a flow pipe that pins chooses the targets of new flows" or "hash";
    "affinity": affinity::SHAPE, "which bits of a packet's source address pick the bucket, instead of its \
     flow";
    "no_target": Shape::Name, "the app that gets packets when no target is live" or "drop";
    "quic": Shape::Map(QUIC), "how the server IDs of targets are encoded in QUIC connection IDs";
    needed "targets": Shape::Named(&Shape::Either(&[forward::SHAPE, Shape::Map(TARGET)])),
        "the targets that share the buckets";
};
const TARGET: &[Key] = crate::keys! {
    "weight": Shape::Number(0, WEIGHT_MAX), "the target's share of the buckets; 0 gets none" or "1";
    "address": Shape::Ip, "the address that identifies it in other systems (`katran`, `glb`)";
    "server_id": Shape::Text, "its server ID in QUIC connection IDs, in hexadecimal";
    "forward": forward::SHAPE, "where the target's packets go" or "drop";
};

/// Keys of a meter (RFC 2697, or RFC 2698 with a peak rate).
pub const METER: &[Key] = crate::keys! {
    "unit": Shape::Words(|| words(&UNITS)), "the unit of rates and bursts" or "bytes";
    needed "cir": Shape::Number(1, RATE_MAX), "the committed rate per second";
    needed "cbs": Shape::Number(1, RATE_MAX), "the committed burst";
    "ebs": Shape::Number(0, RATE_MAX), "the excess burst (RFC 2697)" or "0";
    "pir": Shape::Number(1, RATE_MAX), "the peak rate per second (RFC 2698), at least `cir`";
    "pbs": Shape::Number(1, RATE_MAX), "the peak burst (RFC 2698)";
    "colour_aware": Shape::Boolean, "whether the meter honours the colour a packet already has" or "false";
};
const UNITS: [(&str, MeterUnit); 2] = [("bytes", MeterUnit::Bytes), ("packets", MeterUnit::Packets)];

/// Reads the contents of a group whose name the program knows.
#[must_use]
pub fn group(id: GroupId, node: &Node, program: &Program, report: &mut Report) -> Group {
    let blank = program.groups[id.index()].clone();
    let section = Section::read(node, GROUP, report).at(report.span_of(blank.origin));
    let fill = section.choice("fill", &FILLS, report).unwrap_or(Fill::Maglev);
    let fill = fills::settings(fill, &section, true, report);
    let max = if matches!(fill, Fill::Wants | Fill::Given) { WANTS_MAX } else { MAGLEV_MAX };
    let size = section.get("size").and_then(|node| number(node, "`size`", 1..=u64::from(max), report));
    let seed = section.number("seed", report);
    let number = section.number("number", report).map(|number| number as u16);
    let new_flows = section.choice("new_flows", &NewFlows::WORDS, report).unwrap_or_default();
    let affinity = section.get("affinity").and_then(|node| affinity::read(node, report));
    let quic = section.get("quic").and_then(|node| quic::configs(node, report));
    let no_target = section.get("no_target").and_then(|node| forward::app_or_drop(node, program, report));
    let targets = section.needed("targets", report);
    let targets = targets.map(|node| pairs(node, report)).unwrap_or_default();
    // The targets of a group mostly have the same forward, and there may be a million of them.
    let mut read = HashMap::new();
    let targets: Arc<[Target]> = targets
        .into_iter()
        .filter_map(|(name, span, node)| target((name, span, node), fill, (program, &mut read), report))
        .collect();
    let size = size.map_or_else(|| default_size(fill, number, targets.len()), |size| size as u32);
    Group { number, fill, size, seed, new_flows, affinity, quic, no_target, targets, ..blank }
}

/// Returns the default number of buckets of a group. There may be thousands of groups with a number, so their
/// size follows the number of targets. The size grows in large steps, because a different size moves nearly
/// all flows.
#[must_use]
pub fn default_size(fill: Fill, number: Option<u16>, targets: usize) -> u32 {
    const PRIMES: [u32; 8] = [251, 1021, 4093, 10_007, 16_381, MAGLEV_SIZE, 262_139, 1_048_573];
    let wanted = |each: u32| (targets as u32).saturating_mul(each);
    match (fill, number) {
        (Fill::Katran(..) | Fill::Glb(..), _) => fill.fixed_size().unwrap_or_default(),
        (Fill::Maglev, None) => MAGLEV_SIZE,
        (Fill::Maglev, Some(_)) => {
            PRIMES.into_iter().find(|&prime| prime >= wanted(MAGLEV_EACH)).unwrap_or(PRIMES[7])
        }
        (Fill::Wants | Fill::Given, None) => WANTS_SIZE,
        (Fill::Wants | Fill::Given, Some(_)) => {
            let powers = (0..5).map(|step| WANTS_SIZE << (2 * step));
            powers.into_iter().find(|&power| power >= wanted(WANTS_EACH)).unwrap_or(WANTS_MAX)
        }
    }
}

fn target<'n>(
    (called, span, node): (&str, Span, &'n Node),
    fill: Fill,
    (program, read): (&Program, &mut HashMap<&'n str, Forward>),
    report: &mut Report,
) -> Option<Target> {
    let name = name(called, span, report)?.to_string();
    let origin = report.origin(span);
    // `b1: p1` means `b1: { forward: p1 }`.
    if let Kind::Scalar(way) = &node.kind {
        let known = read.get(way.as_str()).copied();
        let forward = known.or_else(|| forward::read(node, program, report));
        forward.into_iter().for_each(|forward| _ = read.insert(way, forward));
        let forward = forward.unwrap_or_default();
        return Some(Target { origin, ..Target::new(name, forward) });
    }
    let section = Section::read(node, TARGET, report);
    if let Some(node) = section.get("weight").filter(|_| fill == Fill::Given) {
        report.error(node.span, "a group whose buckets are given one by one does not use weights");
    }
    let weight = section.number("weight", report);
    let forward =
        section.get("forward").map_or(Some(Forward::Drop), |node| forward::read(node, program, report));
    let address = section.get("address").and_then(|node| fills::address(node, report));
    let (weight, forward) = (weight.unwrap_or(1) as u32, forward.unwrap_or_default());
    if let Some(node) = section.get("weight").filter(|_| weight > 1 && matches!(fill, Fill::Glb(..))) {
        report.error(
            node.span,
            "the GLB director has no weights: write 0 for `inactive`, 1 for any other \
            state",
        );
    }
    let server_id = section.get("server_id").and_then(|node| quic::server_id(node, report));
    Some(Target { name, weight, inactive: weight == 0, address, server_id, forward, origin })
}

/// The largest weight.
pub const WEIGHT_MAX: u64 = weir_program::check::WEIGHT_MAX as u64;

/// Reads a meter.
#[must_use]
pub fn meter(called: &str, span: Span, node: &Node, report: &mut Report) -> Option<MeterDeclaration> {
    let section = Section::read(node, METER, report).at(span);
    let name = name(called, span, report)?.to_string();
    let unit = section.choice("unit", &UNITS, report).unwrap_or(MeterUnit::Bytes);
    let mut need = |key: &str| {
        let _ = section.needed(key, report);
        section.number(key, report).unwrap_or(1)
    };
    let (cir, cbs) = (need("cir"), need("cbs"));
    let second = second(&section, cir, report);
    let config =
        MeterConfig { unit, cir, cbs, second, colour_aware: section.boolean("colour_aware", report) };
    Some(MeterDeclaration { name, config, origin: report.origin(span) })
}

/// The maximum rate or burst: a terabyte, so that rate times nanoseconds fits into 128 bits.
const RATE_MAX: u64 = 1 << 40;

/// Reads the second bucket: of RFC 2698 if there is a peak rate, otherwise of RFC 2697.
fn second(section: &Section, cir: u64, report: &mut Report) -> MeterSecond {
    let ebs = section.number("ebs", report);
    let (pir, pbs) = (section.number("pir", report), section.number("pbs", report));
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
                report.error(section.span, "a peak rate needs both `pir` and `pbs`");
            }
            MeterSecond::Excess { ebs: ebs.unwrap_or(0) }
        }
    }
}
