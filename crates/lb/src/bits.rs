//! Services that assign packets by bits of the source address: each value of the bits is assigned to a back
//! end, round robin and by weight.

use super::names::NAME;
use super::problems::Problem;
use super::service::{BITS_MAX, BackEnd, By, Service};
use weir_app::bits::BitAssignment;

/// Returns the assignment of a service that assigns packets by bits of the source address.
pub(super) fn assignment(service: &Service) -> Option<BitAssignment> {
    let By::SourceBits(mask) = service.by else { return None };
    let back_end = |at: usize| service.back_ends[at].name.clone();
    let mut targets: Vec<String> = deal(&service.back_ends, mask).map(back_end).collect();
    targets.resize(1 << mask.count_ones(), String::new());
    Some(BitAssignment { name: format!("{NAME}/{}", service.name), mask, targets })
}

/// Returns the back end of each value of the bits of a mask.
pub(super) fn deal(back_ends: &[BackEnd], mask: u32) -> impl Iterator<Item = usize> + use<> {
    turns(back_ends).into_iter().cycle().take(1 << mask.count_ones())
}

/// Lists each back end once, then those of weight 2 and more again, and so on, so that equal weights
/// alternate. The weights are divided by their greatest common divisor first.
fn turns(back_ends: &[BackEnd]) -> Vec<usize> {
    let common = common(back_ends);
    let weight = |one: &BackEnd| one.effective_weight() / common;
    let most = back_ends.iter().map(weight).max().unwrap_or(0).min(1 << BITS_MAX);
    let round = |round| (0..back_ends.len()).filter(move |at: &usize| weight(&back_ends[*at]) > round);
    (0..most).flat_map(round).collect()
}

/// Returns the greatest common divisor of the weights, at least 1.
fn common(back_ends: &[BackEnd]) -> u32 {
    let divisor = |mut one: u32, mut other: u32| {
        while other > 0 {
            (one, other) = (other, one % other);
        }
        one
    };
    back_ends.iter().map(BackEnd::effective_weight).fold(0, divisor).max(1)
}

/// Returns how many values back ends need so that each has its share.
pub(super) fn turn_count(back_ends: &[BackEnd]) -> u64 {
    let weights = back_ends.iter().map(|one| u64::from(one.effective_weight()));
    weights.sum::<u64>() / u64::from(common(back_ends))
}

/// Checks that the mask has enough values for all back ends and their weights.
pub(super) fn surplus(service: &Service, mask: u32) -> Option<Problem> {
    let values = 1_u64 << mask.count_ones();
    let turns = turn_count(&service.back_ends);
    let (name, mask) = (service.name.clone(), std::net::Ipv4Addr::from_bits(mask));
    (turns > values).then(|| Problem::SurplusBits {
        name,
        mask,
        values,
        turns,
        instead: instead(mask, turns),
    })
}

/// Suggests how to assign packets so that each of `turns` turns has a value: by more bits, if possible.
pub fn instead(mask: std::net::Ipv4Addr, turns: u64) -> String {
    let mut mask = mask.to_bits();
    while mask.count_ones() <= BITS_MAX && 1_u64 << mask.count_ones() < turns {
        mask |= 1 << mask.trailing_ones();
    }
    match mask.count_ones() {
        ..=BITS_MAX => format!("src/{}", std::net::Ipv4Addr::from_bits(mask)),
        _ => "source".to_string(),
    }
}
