//! NAT pools of services: the addresses for which weir answers ARP and neighbour discovery, and warnings
//! about pools so small that connections are refused before the table of flows is full.

use super::announce::{Announce, Source};
use super::choosers::Translated;
use super::service::Service;
use std::collections::HashSet;
use weir_program::{NAT_SLICES, NatPool, Origin};

/// The maximum number of addresses of a pool that weir answers for. Each needs a rule of the port; larger
/// pools must be routed to weir.
const ADDRESSES_MAX: u128 = 256;

/// Returns the addresses of pools that weir answers for, at the ports on which answers from back ends arrive.
/// For services with `announce: none`, others must answer.
pub(super) fn answered(services: &[Service], pools: &[NatPool]) -> Vec<Source> {
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    for service in services.iter().filter(|service| service.announce != Announce::Never) {
        let Some(Translated::Both(pool, _)) = Translated::of(service) else { continue };
        let small = pools.get(pool.index()).filter(|pool| pool.address_count() <= ADDRESSES_MAX);
        let Some(pool) = small else { continue };
        for port in service.back_ports() {
            let new = pool.addresses().filter(|address| seen.insert((port, *address)));
            all.extend(new.map(|address| Source { port, address, origin: service.origin }));
        }
    }
    all
}

/// Returns warnings about pools with a slice that is likely to be exhausted before the table of flows is
/// full, because a connection takes a pair of the slice that its hash selects. Each pool is named once.
pub(super) fn tight(services: &[Service], pools: &[NatPool], flows: u32) -> Vec<(Origin, String)> {
    let wanted = wanted(flows);
    let mut seen = HashSet::new();
    let warning = |service: &Service| {
        let pool = pools.get(service.nat_pool?.index())?;
        let least = pool.smallest_slice();
        if least >= wanted || !seen.insert(&pool.name) {
            return None;
        }
        let name = &pool.name;
        let says = format!(
            "NAT pool `{name}` may refuse connections before the flow table is full: each connection takes \
             a pair of address and port from one of {NAT_SLICES} slices, the smallest has {least}, and \
             `flows: {flows}` needs about {wanted}: add addresses or ports to the pool, or lower `flows`"
        );
        Some((service.origin, says))
    };
    services.iter().filter_map(warning).collect()
}

/// Returns how many pairs a slice needs so that a table of flows can be filled. Each connection has two flows
/// and selects its slice at random, so the fullest slice is a few standard deviations above the mean.
fn wanted(flows: u32) -> u64 {
    let mean = f64::from(flows / 2) / f64::from(NAT_SLICES);
    (mean + 3.0 * mean.sqrt()).ceil() as u64
}
