//! Two network namespaces connected by veth pairs: one for weir, one for the other end. Needs root.

use std::process::{Command, Stdio};
use weir_bed::{Namespace, Run, cable};

/// Arguments for one queue; the default depends on the number of processors.
pub const QUEUE: &str = "numtxqueues 1 numrxqueues 1";

/// Namespaces; dropping it removes them.
pub struct Wire {
    /// Where weir runs.
    pub weir: String,
    /// The other end.
    pub far: String,
    /// One without an interface.
    pub third: String,
    spaces: [Namespace; 3],
    _run: Run,
}

impl Wire {
    /// Creates `pairs` pairs: w0 has 10.0.0.1 and f0 10.0.0.2, w1 10.0.1.1 and f1 10.0.1.2, and so on. `name`
    /// distinguishes tests. `None` without root.
    pub fn new(name: &str, pairs: u32) -> Option<Wire> {
        let run = Run::of_test(name)?;
        let spaces = ["w", "f", "t"].map(|role| run.namespace(role).unwrap());
        let [weir, far, third] = spaces.each_ref().map(|space| space.name().to_string());
        let wire = Wire { weir, far, third, spaces, _run: run };
        (0..pairs).for_each(|pair| wire.add(pair, 0));
        Some(wire)
    }

    /// Adds a pair. The last byte of the MAC address of weir's end is `mac`.
    pub fn add(&self, pair: u32, mac: u8) {
        self.add_wide(pair, mac, 1);
    }

    /// The same with `queues` queues at both ends.
    pub fn add_wide(&self, pair: u32, mac: u8, queues: u32) {
        let [weir, far, _] = &self.spaces;
        let [here, there] = ["w", "f"].map(|end| format!("{end}{pair}"));
        let near = weir.end(&here).mac(format!("02:00:00:00:0{pair}:{mac:02x}"));
        let other = far.end(&there).mac(format!("02:00:00:00:1{pair}:00"));
        let address = |host| format!("10.0.{pair}.{host}/24");
        cable(Some(queues), &near.address(address(1)), &other.address(address(2))).unwrap();
        far.output("ethtool", &["-K", &there, "tx", "off", "txvlan", "off"]).unwrap();
    }

    /// Runs an `ip` command on weir's side.
    pub fn ip(&self, command: &str) {
        sh(&format!("ip -n {} {command}", self.weir));
    }

    /// Runs a command at the far end and returns what it printed.
    pub fn far(&self, command: &str) -> String {
        sh(&format!("ip netns exec {} {command}", self.far))
    }
}

/// Runs a command, which must succeed, and returns what it printed.
#[track_caller]
pub fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
