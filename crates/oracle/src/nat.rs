//! The slow twin of NAT pools: the free places of each slice are two plain sets of addresses and ports.

use super::state::PipeState;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use weir_packet::{FlowKey, rss_hash};
use weir_program::nat::Binding;
use weir_program::{NatPool, Pipe, Program};

/// The addresses and ports that a pipe's flows can take: by slice, those that this round hands out and those
/// that were freed during it. They are ordered by address, as in the pool, and then by port.
#[derive(Clone, Debug, Default)]
pub(super) struct NatState {
    pool: Option<NatPool>,
    slices: BTreeMap<usize, [BTreeSet<(usize, u16)>; 2]>,
    addresses: Vec<IpAddr>,
}

impl NatState {
    pub fn new(program: &Program, pipe: &Pipe) -> NatState {
        let Some(pool) = pipe.nat.map(|id| &program.nat_pools[id.index()]) else {
            return NatState::default();
        };
        let mut addresses = Vec::new();
        for prefix in &pool.prefixes {
            let mut address = prefix.first;
            for _ in 0..prefix.addresses() {
                addresses.push(address);
                address = next(address);
            }
        }
        NatState { pool: Some(pool.clone()), slices: BTreeMap::new(), addresses }
    }

    /// The free places of a slice: all of them, if nothing was taken so far.
    fn slice(&self, slice: usize) -> [BTreeSet<(usize, u16)>; 2] {
        if let Some(sets) = self.slices.get(&slice) {
            return sets.clone();
        }
        let pool = self.pool.as_ref().expect("the pipe has a pool");
        let ports = (pool.first..=pool.last).filter(|port| usize::from(port % 64) == slice);
        let all = ports.flat_map(|port| (0..self.addresses.len()).map(move |at| (at, port)));
        [all.collect(), BTreeSet::new()]
    }

    pub fn is_there(&self) -> bool {
        self.pool.is_some()
    }

    /// Whether the pool has IPv4 addresses.
    pub fn is_ipv4(&self) -> bool {
        self.addresses[0].is_ipv4()
    }

    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// The address and port that the next new flow with this key gets, once `freed` is free.
    pub fn next(&self, key: &FlowKey, freed: Option<Binding>) -> Option<Binding> {
        let [fresh, mut rested] = self.slice(rss_hash(key) as usize % 64);
        rested.extend(freed.map(|freed| self.place(freed)));
        let &(at, port) = fresh.first().or(rested.first())?;
        Some((self.addresses[at], port))
    }

    fn place(&self, (address, port): Binding) -> (usize, u16) {
        let at = self.addresses.iter().position(|one| *one == address).expect("it is of the pool");
        (at, port)
    }

    pub fn take(&mut self, binding: Binding) {
        let place = self.place(binding);
        let slice = usize::from(binding.1 % 64);
        let [mut fresh, mut rested] = self.slice(slice);
        if fresh.is_empty() {
            (fresh, rested) = (rested, fresh);
        }
        fresh.remove(&place);
        self.slices.insert(slice, [fresh, rested]);
    }

    fn free(&mut self, binding: Binding) {
        let place = self.place(binding);
        let sets = self.slices.get_mut(&usize::from(binding.1 % 64)).expect("something was taken");
        sets[1].insert(place);
    }
}

impl PipeState {
    /// Frees the binding of a flow that has ended, unless another flow still has the same binding.
    pub(super) fn unbind(&mut self, binding: Option<Binding>) {
        if let Some(binding) = binding
            && self.flows.values().all(|flow| flow.binding != Some(binding))
        {
            self.nat.free(binding);
        }
    }
}

fn next(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => std::net::Ipv4Addr::from_bits(address.to_bits().wrapping_add(1)).into(),
        IpAddr::V6(address) => std::net::Ipv6Addr::from_bits(address.to_bits().wrapping_add(1)).into(),
    }
}
