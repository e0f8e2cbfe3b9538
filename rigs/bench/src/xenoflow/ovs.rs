//! Open vSwitch as a balancer: a select group in its user-space datapath, on sockets of the kernel.

use anyhow::Result;
use std::fmt::Write;
use weir_bed::{Namespace, Run};
use weir_lab::Interrupt;
use weir_lab::ovs::{Ovs, SWITCH};

/// The bridge between the node's interfaces.
const BRIDGE: &str = "br0";

/// Starts a switch on a core of its own. It has no bridge yet, and so does nothing.
pub fn start(run: &mut Run, core: usize, node: &Namespace, interrupt: &Interrupt) -> Result<Ovs> {
    let command = |program: &str| {
        let mut command = node.command("taskset");
        command.args(["-c", &core.to_string(), program]);
        command
    };
    Ovs::start(run, SWITCH, &[], command, interrupt)
}

/// Connects two interfaces by a bridge that drops everything for now.
pub fn open(ovs: &Ovs, [input, out]: [&str; 2]) -> Result<()> {
    ovs.vsctl(&format!(
        "add-br {BRIDGE} -- set bridge {BRIDGE} datapath_type=netdev fail-mode=secure protocols=OpenFlow15 \
         -- add-port {BRIDGE} {input} -- add-port {BRIDGE} {out}"
    ))
}

/// Leaves both interfaces to others.
pub fn close(ovs: &Ovs) -> Result<()> {
    ovs.vsctl(&format!("del-br {BRIDGE}"))
}

/// Balances what is for an address over back ends with these MAC addresses. `source` is the MAC address of
/// the interface through which frames leave.
pub fn balance(ovs: &Ovs, ports: [&str; 2], vip: &str, source: &str, macs: &[&str]) -> Result<()> {
    ovs.bundle(BRIDGE, &lines(ports, vip, source, macs))
}

/// The group and the flow. As with XenoFlow, only the source address decides.
fn lines([input, out]: [&str; 2], vip: &str, source: &str, macs: &[&str]) -> String {
    let mut lines = String::from("flow delete\ngroup delete group_id=all\n");
    lines += "group add group_id=1,type=select,selection_method=hash,fields(ip_src)";
    for (at, mac) in macs.iter().enumerate() {
        let _ = write!(
            lines,
            ",bucket=bucket_id:{at},weight:1,actions=set_field:{source}->eth_src,set_field:{mac}->eth_dst,\
             output:\"{out}\""
        );
    }
    lines + &format!("\nflow add priority=1,in_port=\"{input}\",udp,nw_dst={vip},actions=group:1\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_back_end_has_a_bucket() {
        let macs = ["a0:88:c2:b5:f4:5a", "a0:88:c2:b5:f4:5b"];
        let lines = lines(["w0", "w1"], "10.0.0.53", "02:00:00:00:00:03", &macs);
        let [.., group, flow] = &lines.lines().collect::<Vec<_>>()[..] else { panic!("{lines}") };
        assert_eq!(group.matches("set_field:02:00:00:00:00:03->eth_src").count(), 2, "{group}");
        assert!(group.contains("bucket_id:1,weight:1"), "{group}");
        assert!(macs.iter().all(|mac| group.contains(&format!("set_field:{mac}->eth_dst"))), "{group}");
        assert!(group.ends_with("output:\"w1\"") && flow.contains("in_port=\"w0\",udp"), "{lines}");
    }
}
