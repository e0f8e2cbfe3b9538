//! Which interface a name means: that of the process's own network namespace, whatever it is called now. Needs
//! root.

use super::Said;
use super::folder::Folder;
use super::wire::Wire;
use std::process::Command;

/// UDP to w0 is sent back, by a balancer that matches the interface's MAC address.
const WEB: &str = "\
ports: { p0: { xdp: w0, queues: [0] } }
apps:
  - lb:
      name: web
      port: p0
      by: source
      service: { vip: 10.0.0.1, protocol: udp, port: 7777 }
      back_ends: [{ name: b1, mac: 02:00:00:00:10:01 }]
";

/// Runs weir in the namespace with the /sys of this one, as after `setns`.
fn weir(wire: &Wire, arguments: &[&str]) -> Said {
    let net = format!("--net=/run/netns/{}", wire.weir);
    let mut command = Command::new("nsenter");
    Said::of(command.args([&net, env!("CARGO_BIN_EXE_weir")]).args(arguments).output().unwrap())
}

#[test]
fn an_interface_is_looked_up_in_the_namespace_of_the_process() {
    let Some(wire) = Wire::new("own", 1) else { return };
    let folder = Folder::new();
    let file = folder.write("weir.yaml", WEB).display().to_string();
    let checked = weir(&wire, &["check", &file]).good();
    assert!(!checked.err.contains("no interface"), "{}", checked.err);
    let verdict = |mac: &str| {
        let packet = format!("eth.dst={mac} src=10.0.0.2 dst=10.0.0.1 proto=udp dport=7777");
        weir(&wire, &["explain", &file, "--packet", &packet]).good().out
    };
    let (own, other) = (verdict("02:00:00:00:00:00"), verdict("02:00:00:00:00:09"));
    assert!(own.contains("verdict transmit") && !other.contains("verdict transmit"), "{own}\n{other}");
}
