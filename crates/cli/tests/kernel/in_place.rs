//! Back ends of a service are changed in place while the kernel handles packets of its flows.

use crate::flows::ClientFlow;
use crate::{B1, B2, CLIENTS, IN, Network, PATIENCE, VIP, answer_queries, build};
use serde_json::{Value, json};
use std::time::Instant;

/// The address of the pool.
const POOL: &str = "10.7.0.64";

/// A service of the file makes the port one that the kernel can run.
const CONFIG: &str = "
nat_pools: { world: { addresses: 10.7.0.64/32 } }
ports: { p0: { xdp: eth0, kernel: require } }
apps:
  - lb: { flows: 1000 }
  - lb:
      name: other
      port: p0
      announce: none
      service: { vip: 10.7.0.54, protocol: udp, port: 53 }
      back_ends: [{ name: b1, mac: 02:00:00:00:07:03 }]
";

/// Queries of each flow that the kernel must handle.
const QUERIES: u64 = 20;

impl Network {
    /// Sets the back ends of the service, given which of the two they are, and their weights.
    fn put(&self, mode: &str, back_ends: &[(u8, u32)]) {
        let back_end = |(which, weight): &(u8, u32)| {
            let mac = if *which == 1 { B1 } else { B2 };
            let mut one = json!({ "name": format!("b{which}"), "mac": mac, "weight": weight });
            if mode != "l2" {
                (one["mode"], one["ip"]) = (json!(mode), json!(format!("10.7.0.{}", which + 2)));
            }
            one
        };
        let mut service = json!({
            "name": "web", "port": "p0", "announce": "none", "size": 251,
            "service": { "vip": VIP, "protocol": "udp", "port": 53 },
            "back_ends": back_ends.iter().map(back_end).collect::<Vec<_>>(),
        });
        if mode == "full_nat" {
            service["nat_pool"] = json!("world");
        }
        let request = json!({ "do": "put", "service": service });
        let request = json!({ "command": "app", "app": "lb", "request": request });
        let answer: Value = weir_control::ask(&self.spaces.folder().join("weir.sock"), &request).unwrap();
        assert!(answer.get("error").is_none(), "{answer}");
        // The table of translated answers is part of the compiled program, which is compiled again.
        if mode == "nat" {
            self.until_it_runs();
        }
    }

    fn generation(&self) -> Value {
        self.spaces.ask(&["show"]).expect("weir answers")["generation"].clone()
    }

    fn has_in_kernel(&self, flow: &ClientFlow) -> bool {
        self.row(&flow.name()).is_some_and(|row| row["in_kernel"] == true)
    }

    /// Sends queries until the kernel follows all flows.
    fn until_followed_all(&self, flows: &mut [ClientFlow]) {
        let until = Instant::now() + PATIENCE;
        while !flows.iter().all(|flow| self.has_in_kernel(flow)) {
            assert!(Instant::now() < until, "{}: {}", self.show("flows"), self.show("kernel"));
            flows.iter_mut().for_each(|flow| flow.burst(self, 1, 0));
        }
    }

    /// Sends queries, all of which the kernel handles, with their answers if these return through weir.
    fn is_in_kernel(&self, mode: &str, flows: &mut [ClientFlow]) {
        if mode == "nat" {
            self.until_followed_all(flows);
        }
        let (decided, ways) = (self.decided(), if mode == "l2" { 1 } else { 2 });
        flows.iter_mut().for_each(|flow| flow.burst(self, QUERIES, 0));
        let all = flows.len() as u64 * QUERIES * ways;
        assert_eq!(self.decided(), decided + all, "{mode}: {}", self.show("kernel"));
    }
}

#[test]
fn flows_in_the_kernel_stay_with_their_back_ends_while_others_come_and_go() {
    for (name, mode) in [("kpl", "l2"), ("kpn", "nat"), ("kpf", "full_nat")] {
        let Some(mut network) = build(name) else { return };
        for (which, role) in [(1, "b1"), (2, "b2")] {
            if mode != "l2" {
                answer_queries(&network.spaces, role, &format!("10.7.0.{}", which + 2), which);
            }
            let back = if mode == "nat" { CLIENTS[0] } else { POOL };
            network.spaces.ip(role, &format!("neigh replace {back} lladdr {IN} dev eth0 nud permanent"));
        }
        network.spaces.weir("weir", CONFIG);
        network.put(mode, &[(1, 1)]);
        network.until_it_runs();
        let first = network.generation();
        let mut flows: Vec<ClientFlow> = (0..6).map(|_| ClientFlow::new(&network)).collect();
        network.until_followed_all(&mut flows);
        network.is_in_kernel(mode, &mut flows);

        // Another back end comes, and the one that stays has a smaller weight.
        network.put(mode, &[(2, 50), (1, 1)]);
        network.is_in_kernel(mode, &mut flows);
        let mut new: Vec<ClientFlow> = (0..6).map(|_| ClientFlow::new(&network)).collect();
        network.until_followed_all(&mut new);
        let mut of_second: Vec<ClientFlow> =
            new.into_iter().filter(|flow| flow.back_end == Some(2)).collect();
        assert!(!of_second.is_empty());
        network.is_in_kernel(mode, &mut flows);
        network.is_in_kernel(mode, &mut of_second);

        // Flows end with their back end; those of the other one do not notice.
        network.put(mode, &[(2, 1)]);
        network.is_in_kernel(mode, &mut of_second);
        flows.iter_mut().for_each(|flow| flow.back_end = None);
        network.until_followed_all(&mut flows);
        assert!(flows.iter().all(|flow| flow.back_end == Some(2)), "{mode}");

        // The first back end comes again, in a place that was vacated.
        network.put(mode, &[(1, 50), (2, 1)]);
        network.is_in_kernel(mode, &mut flows);
        network.is_in_kernel(mode, &mut of_second);
        let mut again: Vec<ClientFlow> = (0..6).map(|_| ClientFlow::new(&network)).collect();
        network.until_followed_all(&mut again);
        assert!(again.iter().any(|flow| flow.back_end == Some(1)), "{mode}");
        network.is_in_kernel(mode, &mut again);
        assert_eq!(network.generation(), first, "{mode}: {}", network.spaces.log());
        assert_eq!(network.spaces.ask(&["show"]).unwrap()["balances"], true);
        assert!(network.show("drops").as_array().unwrap().is_empty(), "{}", network.show("drops"));
    }
}
