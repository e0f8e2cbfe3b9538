//! Selection (802.1AX 6.4.14): which members lead to the same partner with the same keys, and which of these
//! aggregators is used.
//!
//! A member outside the aggregator in use is detached. A working aggregator is kept unless another one is
//! better, so that a PDU with a wrong system id costs only one member. The two ends can have several
//! aggregators between them and must agree on one, although each has its own policy and may know other
//! speeds. Therefore the end with the lower system id chooses, and the other end uses the aggregator in which
//! that end is in sync; after a minute without success, the roles are reversed.

use super::churn::Churn;
use super::config::{Config, Policy};
use super::info::{Port, State, System};
use super::member::Member;
use super::mux::Mux;
use super::notice::Notice;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The properties that the members of an aggregator share (a LAG ID).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lag {
    pub key: u16,
    pub partner: System,
    pub partner_key: u16,
    /// The only member, if its partner does not aggregate.
    pub alone: Option<u16>,
}

/// Rank of an aggregator: higher is better.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    enough: bool,
    measure: (u64, u64),
    port: Reverse<Option<Port>>,
}

type Members = BTreeMap<u16, Member>;

/// Chooses the aggregator to use.
pub(super) fn choose(config: &Config, members: &Members, active: Option<Lag>) -> Option<Lag> {
    let candidates: BTreeSet<Lag> =
        current(members).filter_map(|(number, member)| lag(number, member)).collect();
    let rank = |lag: &Lag| rank(config, members, lag);
    let best =
        candidates.iter().copied().max_by_key(rank).map(|best| agree(config, members, &candidates, best));
    match (active, best) {
        (Some(active), Some(best)) if works(members, active) => {
            let (old, new) = (rank(&active), rank(&best));
            let better = match config.policy {
                Policy::Stable => new.enough && !old.enough,
                Policy::Bandwidth | Policy::Count => (new.enough, new.measure) > (old.enough, old.measure),
            };
            Some(if better { best } else { active })
        }
        (_, Some(best)) => Some(best),
        // All partners are silent; the one in use may speak again.
        (Some(active), None) => {
            members.iter().any(|(number, member)| lag(*number, member) == Some(active)).then_some(active)
        }
        (None, None) => None,
    }
}

/// Returns `best`, or the aggregator that the partner has chosen instead.
fn agree(config: &Config, members: &Members, candidates: &BTreeSet<Lag>, best: Lag) -> Lag {
    let partner_leads = best.partner < config.system;
    let in_vain = || current_of(members, best).all(|(_, member)| member.partner_churn == Churn::Churning);
    if !partner_leads && !in_vain() {
        return best;
    }
    let in_sync =
        |lag: &Lag| current_of(members, *lag).any(|(_, member)| member.partner.state.has(State::SYNC));
    let chosen = candidates.iter().copied().filter(|lag| lag.partner == best.partner && in_sync(lag));
    chosen.max_by_key(|lag| rank(config, members, lag)).unwrap_or(best)
}

/// Selects the members of `active` and no others. Returns true if a member's selection changed.
pub(super) fn select(now_ns: u64, members: &mut Members, active: Option<Lag>) -> bool {
    let mut changed = false;
    for (number, member) in members {
        let lag = lag(*number, member);
        let inside = lag.is_some() && lag == active;
        // An unselected member is detached before it is selected again, so that the partner notices.
        let selected = inside && (member.selected || member.is_current() && member.mux == Mux::Detached);
        changed |= selected != member.selected;
        member.selected = selected;
        let outside = lag.is_some() && !inside && member.is_current();
        if outside && !member.outside {
            member.note(
                now_ns,
                Notice::NotSelected { partner: member.partner.system, key: member.partner.key },
            );
        }
        member.outside = outside;
    }
    changed
}

/// Returns the aggregator that a member belongs to.
pub(super) fn lag(number: u16, member: &Member) -> Option<Lag> {
    let loops = member.partner.system.mac == member.actor.system.mac;
    if !member.has_partner() || loops || member.held {
        return None;
    }
    let alone = (!member.partner.state.has(State::AGGREGATION)).then_some(number);
    Some(Lag {
        key: member.actor.key,
        partner: member.partner.system,
        partner_key: member.partner.key,
        alone,
    })
}

/// Iterates over the members of `lag` whose partner's information is current.
pub(super) fn current_of(members: &Members, of: Lag) -> impl Iterator<Item = (u16, &Member)> {
    current(members).filter(move |(number, member)| lag(*number, member) == Some(of))
}

/// Returns the sum of the known link speeds of these members.
pub(super) fn speed_bps(members: &Members, of: Lag) -> u64 {
    current_of(members, of).fold(0, |sum, (_, member)| sum.saturating_add(member.link.speed_bps.unwrap_or(0)))
}

fn current(members: &Members) -> impl Iterator<Item = (u16, &Member)> {
    members.iter().filter(|(_, member)| member.is_current()).map(|(number, member)| (*number, member))
}

fn works(members: &Members, lag: Lag) -> bool {
    current_of(members, lag).any(|(_, member)| member.is_in_sync())
}

fn rank(config: &Config, members: &Members, lag: &Lag) -> Rank {
    let of = || current_of(members, *lag).map(|(_, member)| member);
    let count = of().count() as u64;
    let bandwidth = speed_bps(members, *lag);
    let measure = match config.policy {
        Policy::Stable | Policy::Bandwidth => (bandwidth, count),
        Policy::Count => (count, bandwidth),
    };
    let enough = count >= u64::from(config.min_links);
    Rank { enough, measure, port: Reverse(of().map(|member| member.actor.port).min()) }
}
