//! Two network namespaces connected by veth pairs: one for weir, one for the other end. Needs root.

use std::process::{Command, Stdio};

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
}

impl Wire {
    /// Creates `pairs` pairs: w0 has 10.0.0.1 and f0 10.0.0.2, w1 10.0.1.1 and f1 10.0.1.2, and so on. `name`
    /// distinguishes tests. Returns `None` with a message without root; in CI that is a failure.
    pub fn new(name: &str, pairs: u32) -> Option<Wire> {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "CI runs as root");
            eprintln!("skipped: needs root");
            return None;
        }
        let name = format!("weirtest-{}-{name}", std::process::id());
        let wire = Wire { weir: format!("{name}-w"), far: format!("{name}-f"), third: format!("{name}-t") };
        for netns in [&wire.weir, &wire.far, &wire.third] {
            sh(&format!("ip netns add {netns}"));
            sh(&format!("ip netns exec {netns} sysctl -qw net.ipv6.conf.all.disable_ipv6=1"));
        }
        (0..pairs).for_each(|pair| wire.add(pair, 0));
        Some(wire)
    }

    /// Adds a pair. The last byte of the MAC address of weir's end is `mac`.
    pub fn add(&self, pair: u32, mac: u8) {
        self.add_wide(pair, mac, 1);
    }

    /// The same with this many queues at both ends.
    pub fn add_wide(&self, pair: u32, mac: u8, queues: u32) {
        let Wire { weir, far, .. } = self;
        let queues = format!("numtxqueues {queues} numrxqueues {queues}");
        sh(&format!(
            "ip -n {weir} link add w{pair} address 02:00:00:00:0{pair}:{mac:02x} {queues} type veth \
             peer name f{pair} address 02:00:00:00:1{pair}:00 {queues} netns {far}"
        ));
        sh(&format!("ip netns exec {far} ethtool -K f{pair} tx off txvlan off"));
        for (netns, end, host) in [(weir, "w", 1), (far, "f", 2)] {
            sh(&format!("ip -n {netns} addr add 10.0.{pair}.{host}/24 dev {end}{pair}"));
            sh(&format!("ip -n {netns} link set {end}{pair} up"));
        }
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

impl Drop for Wire {
    fn drop(&mut self) {
        for netns in [&self.weir, &self.far, &self.third] {
            let _ = Command::new("ip").args(["netns", "del", netns]).status();
        }
    }
}

/// Runs a command, which must succeed, and returns what it printed.
#[track_caller]
pub fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
