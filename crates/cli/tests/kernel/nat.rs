//! A NAT pool: the engine takes an address and a port for a flow, and the kernel translates its packets and
//! their answers from then on.

use crate::flows::{ClientFlow, PACKETS, connect, serve, talk};
use crate::{B1, B2, IN, Network, VIP, build};
use std::net::Shutdown;

/// The address of the pool.
const POOL: &str = "10.7.0.64";

/// The flows get another source; back ends have the VIP, so the destination stays.
fn translator() -> String {
    format!(
        "
nat_pools:
  world: {{ addresses: {POOL}/32 }}
ports:
  p0: {{ xdp: eth0, take: [{{ dst: {VIP} }}, {{ dst: {POOL} }}], kernel: require, root: flows }}
groups:
  back: {{ size: 251, targets: {{ b1: p0, b2: p0 }} }}
pipes:
  flows:
    type: flow
    learn: {{ pin: back, reverse: true, nat_pool: world }}
    capacity: 1000
    monitor: {{ timeouts: {{ single: 20s, stream: 20s, tcp_established: 1h, tcp_fin: 1s }} }}
    actions:
      to:
        - set: {{ ipv4.src: {{ per_flow: nat_pool }}, l4.sport: {{ per_flow: nat_pool }} }}
        - set: {{ eth.dst: per_entry, eth.src: {IN} }}
      back:
        - set: {{ ipv4.dst: {{ per_flow: ipv4.src }}, l4.dport: {{ per_flow: l4.sport }} }}
        - set: {{ eth.dst: {{ per_flow: eth.src }}, eth.src: {IN} }}
    forward: in_port
    miss: drop
    entries:
      - {{ match: {{ target: b1 }}, action: to, set: {{ eth.dst: {B1} }} }}
      - {{ match: {{ target: b2 }}, action: to, set: {{ eth.dst: {B2} }} }}
      - {{ match: default, action: back }}
"
    )
}

impl Network {
    /// Starts weir as a translator, to which back ends send their answers.
    fn translate(&mut self) {
        let known = format!("neigh add {POOL} lladdr {IN} dev eth0 nud permanent");
        for role in ["b1", "b2"] {
            self.spaces.ip(role, &known);
        }
        self.spaces.weir("weir", &translator());
        self.until_it_runs();
    }

    /// Waits until all places of the pool are free.
    fn until_the_pool_is_free(&self) {
        let is_free = || (self.show("nat_pools")[0]["used"] == 0).then_some(());
        self.spaces.until("all places of the pool are free", is_free);
    }

    /// Whether the kernel handles the packets of a flow and of its answers, each of which has counted
    /// `packets` packets.
    fn is_translated(&self, name: &str, packets: Option<u64>) -> bool {
        let row = self.row(name).unwrap_or_else(|| panic!("{name} is gone"));
        let bound = row["nat"].as_str().expect("a place in the pool");
        let (protocol, ends) = name.split_once(' ').expect("a protocol");
        let (_, service) = ends.split_once(" > ").expect("two ends");
        let answers = self.row(&format!("{protocol} {service} > {bound}")).expect("its answers");
        [row, answers]
            .into_iter()
            .all(|row| packets.is_none_or(|packets| row["packets"] == packets) && row["in_kernel"] == true)
    }
}

#[test]
fn the_kernel_translates_flows_and_their_answers_and_their_ports_are_free_when_they_end() {
    let Some(mut network) = build("kn") else { return };
    network.translate();
    let mut flows: Vec<ClientFlow> = (0..8).map(|_| ClientFlow::new(&network)).collect();
    flows.iter_mut().for_each(|flow| flow.burst(&network, PACKETS, 50));
    network.spaces.until("the kernel translates all flows", || {
        flows.iter().all(|flow| network.is_translated(&flow.name(), Some(flow.sent))).then_some(())
    });
    let decided = network.decided();
    // All of them from now on, in both directions.
    flows.iter_mut().for_each(|flow| flow.burst(&network, PACKETS, 0));
    let all: u64 = flows.iter().map(|flow| 2 * flow.sent).sum();
    assert_eq!(network.decided(), decided + 2 * 8 * PACKETS);
    assert!(flows.iter().all(|flow| network.is_translated(&flow.name(), Some(flow.sent))));
    assert_eq!(network.show("nat_pools")[0]["used"], 8);
    network.until_account(all);
    network.assert_all_counted(all, 0);
    network.until_the_pool_is_free();
    let account = network.until_account(all);
    assert_eq!(account["deltas"], all, "{account}");
}

#[test]
fn a_connection_through_the_pool_is_translated_in_the_kernel_and_ends_with_its_state() {
    let Some(mut network) = build("km") else { return };
    ["b1", "b2"].into_iter().for_each(|role| serve(&network, role));
    network.translate();
    let mut stream = connect(&network);
    let name = format!("tcp {} > {VIP}:80", stream.local_addr().unwrap());
    talk(&mut stream, 50);
    network.spaces.until("the kernel translates it", || network.is_translated(&name, None).then_some(()));
    let decided = network.decided();
    talk(&mut stream, 100);
    assert!(network.decided() >= decided + 200, "data goes through the kernel in both directions");
    assert!(network.is_translated(&name, None));
    assert_eq!(network.row(&name).unwrap()["state"], "tcp_established");
    stream.shutdown(Shutdown::Write).unwrap();
    drop(stream);
    network.until_the_pool_is_free();
    let account = network.account();
    assert_eq!(account["balances"], true, "{account}");
    assert_eq!(account["met"], account["deltas"], "{account}");
}
