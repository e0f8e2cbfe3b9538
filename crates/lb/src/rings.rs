//! Services as other nodes of a fleet see them.

use super::bits::assignment;
use super::pipes::group_name;
use super::service::{Address, BackEnd, By, Mode, Service};
use std::net::Ipv4Addr;
use weir_app::rings::{Balanced, BalancedBackEnd};
use weir_program::NatPool;

/// Returns the parts of a service that determine which back end a flow gets.
pub(super) fn balanced(service: &Service, pools: &[NatPool]) -> Balanced {
    let destination = |one: &Address| (one.protocol, (one.vip, one.prefix), one.ports);
    let by = match service.by {
        By::FiveTuple => "5-tuple".to_string(),
        By::Source => "source".to_string(),
        By::SourcePort => "source + dport".to_string(),
        By::SourceBits(mask) => format!("src/{}", Ipv4Addr::from_bits(mask)),
    };
    let nat_pool = service.nat_pool.and_then(|pool| pools.get(pool.index()));
    Balanced {
        name: service.name.clone(),
        group: group_name(service),
        destinations: service.addresses.iter().map(destination).collect(),
        by,
        keeps: service.is_sticky(),
        bits: assignment(service),
        back_ends: service.back_ends.iter().map(back_end).collect(),
        nat_pool: nat_pool.map(|pool| pool.name.clone()),
    }
}

fn back_end(one: &BackEnd) -> BalancedBackEnd {
    let port = match one.mode {
        Mode::Nat { port, .. } | Mode::FullNat { port, .. } => port,
        Mode::L2 | Mode::Ipip(_) | Mode::Gue(_) | Mode::BareGue(_) | Mode::Gre(_) | Mode::Vxlan { .. } => {
            None
        }
        Mode::Reject => None,
    };
    BalancedBackEnd { name: one.name.clone(), address: one.known_as(), port, mode: one.mode.word() }
}
