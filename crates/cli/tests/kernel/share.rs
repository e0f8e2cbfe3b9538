//! The share of packets that the kernel decides: nearly all where flows are long, and where they are short,
//! all but those that a flow needs to begin and to end. Each of the others is counted by the reason for which
//! it was left to the worker.

use crate::flows::{connect, serve, talk};
use crate::{CLIENTS, IN, Network, PATIENCE, QUERIES, VIP, answer_queries, build};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::Shutdown;
use std::time::Instant;

const NEW: &str = "the flow is new, or is not followed in the kernel";
const PENDING: &str = "earlier packets of the flow are still in the engine";
const FLAGS: &str = "the packet opens, closes or resets its connection";

/// Packets of a long flow and of a short one, and how many flows there are of each kind.
const LONG: u64 = 1000;
const SHORT: u64 = 10;
const FLOWS: u64 = 10;

/// Bytes of a connection that, with SYN, FIN and two acknowledgements, has ten packets or some more.
const BYTES: u64 = 6;

/// A load balancer for a protocol and ports, with these back ends.
fn balancer(service: &str, back_ends: &str) -> String {
    format!(
        "
ports: {{ p0: {{ xdp: eth0, kernel: require }} }}
apps:
  - lb:
      name: service
      port: p0
      announce: none
      service: {{ vip: 10.7.0.53, {service} }}
      back_ends: [{back_ends}]
"
    )
}

/// Rules in front of flows: the third client has no access, and neither has any other port.
const FILTER: &str = "
ports: { p0: { xdp: eth0, take: [{ dst: 10.7.0.53 }], kernel: require, root: filter } }
groups: { back: { size: 251, targets: { b1: p0, b2: p0 } } }
pipes:
  filter:
    type: acl
    match: { ipv4.src: masked, ip.protocol: masked, l4.dport: range }
    forward: per_entry
    miss: drop
    entries:
      - { priority: 10, match: { ipv4.src: 10.7.0.102 }, forward: drop }
      - { priority: 20, match: { ipv4.src: 10.7.0.0/24, ip.protocol: udp, l4.dport: 50-60 }, forward: flows }
  flows:
    type: flow
    learn: { pin: back }
    monitor: { timeouts: {} }
    action: [{ set: { eth.dst: per_entry, eth.src: 02:00:00:00:07:02 } }]
    forward: in_port
    miss: drop
    entries:
      - { match: { target: b1 }, set: { eth.dst: 02:00:00:00:07:03 } }
      - { match: { target: b2 }, set: { eth.dst: 02:00:00:00:07:04 } }
";

/// Back ends that get frames as they are.
const L2: &str = "{ name: b1, mac: 02:00:00:00:07:03 }, { name: b2, mac: 02:00:00:00:07:04 }";

/// Back ends with addresses of their own, which answer through weir.
const NAT: &str = "{ name: b1, mode: nat, ip: 10.7.0.3, mac: 02:00:00:00:07:03 },
        { name: b2, mode: nat, ip: 10.7.0.4, mac: 02:00:00:00:07:04 }";

/// Frames that the port has received, by where they were decided.
#[derive(Clone, Debug, PartialEq)]
struct KernelShare {
    received: u64,
    decided: u64,
    /// In the worker, by reason.
    left: BTreeMap<String, u64>,
}

impl KernelShare {
    /// Returns what has been received since an earlier look.
    fn since(&self, before: &KernelShare) -> KernelShare {
        let more = |(why, count): (&String, &u64)| {
            let more = count - before.left(why);
            (more > 0).then(|| (why.clone(), more))
        };
        let left = self.left.iter().filter_map(more).collect();
        let (received, decided) = (self.received - before.received, self.decided - before.decided);
        KernelShare { received, decided, left }
    }

    fn left(&self, why: &str) -> u64 {
        self.left.get(why).copied().unwrap_or(0)
    }

    /// Checks that exactly these frames were left to the worker, and that the kernel decided the others.
    fn assert_left(&self, received: u64, left: &[(&str, u64)]) {
        let left: BTreeMap<_, _> = left.iter().map(|(why, count)| ((*why).to_string(), *count)).collect();
        let decided = received - left.values().sum::<u64>();
        assert_eq!(self, &KernelShare { received, decided, left });
    }

    /// Checks that only first packets of flows were left to the worker, and that every packet is counted.
    fn assert_first(&self, received: u64) {
        let first = self.left(NEW) + self.left(PENDING);
        assert_eq!((self.received, self.decided + first), (received, received), "{self:?}");
    }
}

impl Network {
    /// Returns what the port has received so far.
    fn share(&self) -> KernelShare {
        let all = self.spaces.ask(&["show"]).expect("weir answers");
        let (kernel, received) = (&all["kernel"][0], all["ports"][0]["received"].as_u64().unwrap());
        let left = kernel["left"].as_object().expect("reasons").iter();
        let left = left.map(|(why, count)| (why.clone(), count.as_u64().unwrap())).collect();
        KernelShare { received, decided: kernel["decided"].as_u64().unwrap(), left }
    }

    /// Waits until the kernel follows a flow.
    fn until_followed(&self, flow: &str) {
        let is_followed = || (self.row(flow)?["in_kernel"] == true).then_some(());
        self.spaces.until(&format!("the kernel follows {flow}"), is_followed);
    }

    /// Runs long flows beside each other, each of which waits for an answer before its next query. Also
    /// returns the number of queries: each flow has LONG of them from when the kernel follows it, because on
    /// a busy machine, many round trips may pass until then.
    fn long_flows(&self) -> (KernelShare, u64) {
        let before = self.share();
        let flow = || {
            let client = self.client(0);
            let name = format!("udp {} > {VIP}:53", client.local_addr().unwrap());
            let (mut sent, until) = (0, Instant::now() + PATIENCE);
            while self.row(&name).is_none_or(|row| row["in_kernel"] != true) {
                assert!(Instant::now() < until, "the kernel does not follow {name} after {sent} queries");
                (sent..sent + SHORT).for_each(|number| _ = self.query(&client, number));
                sent += SHORT;
            }
            (sent..sent + LONG).for_each(|number| _ = self.query(&client, number));
            sent + LONG
        };
        let sent = std::thread::scope(|scope| {
            let flows: Vec<_> = (0..FLOWS).map(|_| scope.spawn(flow)).collect();
            flows.into_iter().map(|flow| flow.join().unwrap()).sum::<u64>()
        });
        (self.share().since(&before), sent)
    }

    /// Runs short flows one after the other. Each waits after its second packet until the kernel follows it.
    fn short_flows(&self) -> KernelShare {
        let before = self.share();
        for _ in 0..FLOWS {
            let client = self.client(0);
            (0..2).for_each(|number| _ = self.query(&client, number));
            self.until_followed(&format!("udp {} > {VIP}:53", client.local_addr().unwrap()));
            (2..SHORT).for_each(|number| _ = self.query(&client, number));
        }
        self.share().since(&before)
    }
}

/// Checks that the kernel has decided all packets of long flows from when it followed them. On an idle
/// machine, these are more than 99 %.
fn assert_most((share, sent): (KernelShare, u64)) {
    eprintln!("flows of at least {LONG} packets: {share:?}");
    share.assert_first(sent);
    assert_eq!(share.left(NEW), FLOWS);
    assert!(share.decided >= FLOWS * LONG, "{share:?}");
}

#[test]
fn of_a_load_balancers_flows_the_kernel_decides_all_but_the_first_two_packets() {
    let Some(mut network) = build("kv") else { return };
    ["b1", "b2"].into_iter().for_each(|role| serve(&network, role));
    network.spaces.weir("weir", &balancer("protocol: both, port: [53, 80]", L2));
    network.until_it_runs();
    assert_most(network.long_flows());
    network.short_flows().assert_left(FLOWS * SHORT, &[(NEW, FLOWS), (PENDING, FLOWS)]);

    let before = network.share();
    for _ in 0..FLOWS {
        let mut stream = connect(&network);
        network.until_followed(&format!("tcp {} > {VIP}:80", stream.local_addr().unwrap()));
        talk(&mut stream, BYTES as u32);
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    // The SYN is new, and the acknowledgement of the server's SYN is pending; the FIN closes the connection,
    // and after it the acknowledgement of the server's FIN is pending.
    network.spaces.until("all connections have closed", || {
        (network.share().since(&before).left(PENDING) >= 2 * FLOWS).then_some(())
    });
    let share = network.share().since(&before);
    eprintln!("connections: {share:?}");
    assert!(share.decided >= FLOWS * BYTES, "{share:?}");
    share.assert_left(share.received, &[(NEW, FLOWS), (PENDING, 2 * FLOWS), (FLAGS, FLOWS)]);
}

#[test]
fn of_flows_behind_rules_the_kernel_decides_all_but_the_first_two_packets() {
    let Some(mut network) = build("kw") else { return };
    network.spaces.weir("weir", FILTER);
    network.until_it_runs();
    assert_most(network.long_flows());
    network.short_flows().assert_left(FLOWS * SHORT, &[(NEW, FLOWS), (PENDING, FLOWS)]);

    // What the rules refuse begins no flow.
    let before = network.share();
    let refused = network.client(2);
    network.send_unanswered(&refused);
    let share = network.spaces.until("all queries have arrived", || {
        let share = network.share().since(&before);
        (share.received == QUERIES).then_some(share)
    });
    share.assert_left(QUERIES, &[]);
}

#[test]
fn of_flows_with_nat_the_kernel_decides_all_but_the_first_two_packets_of_each_direction() {
    let Some(mut network) = build("kp") else { return };
    for (number, role) in [(1, "b1"), (2, "b2")] {
        answer_queries(&network.spaces, role, &format!("10.7.0.{}", number + 2), number);
        let through = |client| format!("neigh replace {client} lladdr {IN} dev eth0 nud permanent\n");
        network.spaces.ip(role, &CLIENTS.map(through).concat());
    }
    network.spaces.weir("weir", &balancer("protocol: udp, port: 53", NAT));
    network.until_it_runs();
    for packets in [LONG, SHORT] {
        let before = network.share();
        for _ in 0..FLOWS {
            let client = network.client(0);
            client.connect((VIP, 53)).unwrap();
            let (name, mut from) = (client.local_addr().unwrap(), 0);
            (0..2).for_each(|number| from = network.query(&client, number));
            network.until_followed(&format!("udp {name} > {VIP}:53"));
            network.until_followed(&format!("udp 10.7.0.{}:53 > {name}", from + 2));
            (2..packets).for_each(|number| assert_eq!(network.query(&client, number), from));
        }
        let share = network.share().since(&before);
        eprintln!("flows of {packets} packets, and their answers: {share:?}");
        share.assert_first(2 * FLOWS * packets);
        assert!(share.received - share.decided <= 4 * FLOWS, "{share:?}");
    }
}
