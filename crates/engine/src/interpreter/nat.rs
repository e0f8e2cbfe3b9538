//! The slow twin of NAT pools: what each slice can give is two plain sets of addresses and ports.

use super::state::PipeState;
use crate::nat::{Binding, SLICES};
use crate::program::{NatPool, Pipe, Program};
use packet::{FlowKey, rss_hash};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The addresses and ports that a pipe's flows can take: by slice, what this round gives and what was left
/// behind in it. They are ordered by address, as the pool has them, and then by port.
#[derive(Clone, Debug, Default)]
pub(super) struct NatState {
    pool: Option<NatPool>,
    slices: Vec<[BTreeSet<(usize, u16)>; 2]>,
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
        let mut slices = vec![[BTreeSet::new(), BTreeSet::new()]; SLICES as usize];
        for at in 0..addresses.len() {
            for port in pool.first..=pool.last {
                slices[usize::from(port % 64)][0].insert((at, port));
            }
        }
        NatState { pool: Some(pool.clone()), slices, addresses }
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

    /// What the next new flow with this key gets.
    pub fn next(&self, key: &FlowKey) -> Option<Binding> {
        let [fresh, rested] = &self.slices[rss_hash(key) as usize % 64];
        let &(at, port) = fresh.first().or(rested.first())?;
        Some((self.addresses[at], port))
    }

    fn place(&self, (address, port): Binding) -> (usize, u16) {
        let at = self.addresses.iter().position(|one| *one == address).expect("it is of the pool");
        (at, port)
    }

    pub fn take(&mut self, binding: Binding) {
        let place = self.place(binding);
        let [fresh, rested] = &mut self.slices[usize::from(binding.1 % 64)];
        if fresh.is_empty() {
            std::mem::swap(fresh, rested);
        }
        fresh.remove(&place);
    }

    fn free(&mut self, binding: Binding) {
        let place = self.place(binding);
        self.slices[usize::from(binding.1 % 64)][1].insert(place);
    }
}

impl PipeState {
    /// A flow with this binding is gone: if no other has it, it is free.
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
