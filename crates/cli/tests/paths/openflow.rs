//! A peer without weir: a switch in front of it sends probes back by the flows of DOCA-AR.

use crate::bed::{Stream, all_good};
use crate::spaces::Spaces;
use serde_json::Value;
use std::net::UdpSocket;
use std::process::Stdio;
use weir_bed::{Namespace, namespace};
use weir_lab::Interrupt;
use weir_lab::ovs::{Ovs, SWITCH};

/// The receiver's flows as its README has them, for one sender.
const README: &str = "\
flow delete
flow add priority=300,in_port=p0,udp,tp_dst=4789,nw_tos=0x20,actions=set_field:02:00:00:00:00:0a->eth_dst,\
set_field:4788->udp_dst,output:IN_PORT
flow add priority=100,in_port=p0,actions=output:pf0hpf
flow add priority=100,in_port=pf0hpf,actions=output:p0
";

/// The fabric loses what comes from even ports.
const HALF: &str = "flow add priority=400,in_port=p0,udp,udp_src=0/1,tp_dst=4789,actions=drop\n";

const RECEIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/doca-ar-receiver.yaml");

/// A sender `a`, the switch `d` of a receiver, and the receiver's host `b`.
struct Receiver {
    spaces: Spaces,
    switch: Option<Ovs>,
}

impl Receiver {
    fn build() -> Option<Receiver> {
        let spaces = Spaces::build("o", &["a", "d", "b"])?;
        spaces.cable(("a", "up0"), ("d", "p0"), "02:00:00:00:00:0a");
        spaces.cable(("b", "up0"), ("d", "pf0hpf"), "02:00:00:00:00:01");
        for (role, own, peer) in [("a", 1, 2), ("b", 2, 1)] {
            let tunnel = format!("local 10.0.1.{own} remote 10.0.1.{peer} noudpcsum");
            spaces.ip(role, &format!("addr add 10.0.1.{own}/24 dev up0"));
            spaces.ip(role, &format!("link add vx type vxlan id 42 dstport 4789 {tunnel}"));
            spaces.ip(role, &format!("addr add 192.168.0.{own}/24 dev vx\nlink set dev vx up"));
        }
        Some(Receiver { spaces, switch: None })
    }

    fn start_switch(&mut self) {
        let interrupt = Interrupt::on_signals().unwrap();
        let name = self.spaces.name("d").to_string();
        let command = |program: &str| Namespace::existing(&name).command(program);
        let run = self.spaces.run_mut();
        let switch = Ovs::start(run, SWITCH, &[], command, &interrupt).unwrap();
        let bridge =
            "add-br br0 -- set bridge br0 datapath_type=netdev fail-mode=secure protocols=OpenFlow15";
        switch.vsctl(&format!("{bridge} -- add-port br0 p0 -- add-port br0 pf0hpf")).unwrap();
        self.switch = Some(switch);
    }

    /// Changes the flows of the switch.
    fn flows(&self, text: &str) {
        let file = self.spaces.folder().join("flows");
        std::fs::write(&file, text).unwrap();
        let bridge = format!("unix:{}", self.spaces.folder().join("ovs/br0.mgmt").display());
        let file = file.display().to_string();
        namespace::output("ovs-ofctl", &["-O", "OpenFlow15", "bundle", &bridge, &file]).unwrap();
    }

    /// The paths of the sender.
    fn paths(&self) -> Option<Vec<Value>> {
        self.spaces.show("path")?.pointer("/path/0/nodes/0/paths")?.as_array().cloned()
    }

    /// Waits until all paths answer, or until none does. A path that answers again is not good at once.
    fn until_answers(&self, answers: bool) {
        let what = if answers { "all paths answer" } else { "no path answers" };
        self.spaces.until(what, || {
            self.paths()?.iter().all(|path| (path["state"] != "failed") == answers).then_some(())
        });
    }

    fn stream(&self) -> Stream {
        let bind = |role, address| self.spaces.within(role, || UdpSocket::bind((address, 7001)).unwrap());
        Stream::between(bind("a", "192.168.0.1"), bind("b", "192.168.0.2"))
    }
}

/// Runs a program of weir, and returns what it prints.
fn weir(arguments: &[&str]) -> String {
    namespace::output(env!("CARGO_BIN_EXE_weir"), arguments).unwrap()
}

#[test]
fn a_switch_with_the_flows_of_doca_ar_is_a_peer() {
    let Some(mut bed) = Receiver::build() else { return };
    bed.start_switch();
    bed.flows(README);
    bed.spaces.weir(
        "a",
        "apps:\n  - path:\n      name: fabric\n      uplink: up0\n      peers: [10.0.1.2]\n      \
         reflect: openflow\n      key: 000102030405060708090a0b0c0d0e0f\n      rate: 10\n      \
         probe: { discover: 2s }\n",
    );
    // No router reveals itself, so each port counts as a path.
    let paths = bed.spaces.until("ports are paths", || all_good(&bed.paths()?));
    assert_eq!(paths.len(), 16);
    let shown = bed.spaces.show("path").unwrap();
    let counts = shown.pointer("/path/0/counts").unwrap();
    assert!(counts["path_answers"].as_u64() > Some(16), "{counts}");
    let mut stream = bed.stream();
    // The first packets wait for ARP.
    stream.lost_of(50);

    bed.flows(HALF);
    let paths = bed.spaces.until("the paths of even ports fail, and no others", || {
        let paths = bed.paths()?;
        let is_even = |path: &Value| path["port"].as_u64().is_some_and(|port| port % 2 == 0);
        paths.iter().all(|path| (path["state"] == "failed") == is_even(path)).then_some(paths)
    });
    assert!((1..16).contains(&paths.iter().filter(|path| path["state"] == "failed").count()), "{paths:?}");
    bed.spaces.until("the flow is on an odd port", || (stream.lost_of(200) == 0).then_some(()));

    // The flows that weir writes do the same.
    bed.flows(&weir(&["compile", "--to", "openflow", RECEIVER]));
    bed.until_answers(true);
    assert_eq!(stream.lost_of(200), 0);

    // So does weir itself, with the configuration that they were compiled from.
    let process = bed.switch.take().expect("it runs").process();
    bed.spaces.run_mut().kill(process).unwrap();
    bed.until_answers(false);
    let mut command = bed.spaces.command("d", env!("CARGO_BIN_EXE_weir"));
    command.args(["run", RECEIVER, "--socket", "receiver.sock"]).current_dir(bed.spaces.folder());
    bed.spaces.run_mut().start("receiver", command.stdout(Stdio::null())).unwrap();
    bed.until_answers(true);
    bed.spaces.until("data passes", || (stream.lost_of(200) == 0).then_some(()));
}
