//! A configuration with very many entries, and with everything that may change while frames pass: a table, a
//! group of 100 targets on 65 537 buckets, flows that age, a bond whose timers must not be delayed.
//!
//! ```text
//!   line: traffic without end -> exact: an entry for each flow -> spread: buckets -> line
//!   once: one frame of each flow -> seen: flows, which age
//! ```

use std::fmt::Write;

/// The traffic of the two ports.
pub struct Traffic {
    /// The traffic of `line`, as in its configuration, after the flows.
    pub line: &'static str,
    /// Frames of `once` per flow.
    pub once: u32,
    /// Whether the worker never sleeps.
    pub busy: bool,
    /// The worker's core.
    pub core: Option<usize>,
    /// How long a flow lives without a packet.
    pub idle_timeout: &'static str,
}

/// No traffic, for measurements of only memory and time.
pub const QUIET: Traffic =
    Traffic { line: "frames: 0", once: 0, busy: false, core: None, idle_timeout: "20s" };

/// Targets of the group.
pub const TARGETS: u32 = 100;

/// Returns the configuration with `entries` entries.
pub fn configuration(entries: u32, traffic: &Traffic) -> String {
    let mut text = String::with_capacity(entries as usize * 40 + 8192);
    let workers = traffic.core.map_or("1".to_string(), |core| format!("[{core}]"));
    let Traffic { line, once, busy, idle_timeout, .. } = traffic;
    let frames = entries * once;
    let _ = write!(
        text,
        "workers: {workers}
busy: {busy}
ports:
  line: {{ mem: {{ flows: {entries}, {line} }}, root: exact }}
  once: {{ mem: {{ flows: {entries}, frames: {frames}, rate: 2000000 }}, root: seen }}
  inside: {{ mem: {{ flows: 1, frames: 0 }}, mac: 02:00:00:00:00:10 }}
  p1: {{ mem: {{ flows: 1, frames: 0 }}, mac: 02:00:00:00:00:11 }}
  p2: {{ mem: {{ flows: 1, frames: 0 }}, mac: 02:00:00:00:00:12 }}
apps:
  - bond: {{ name: bond0, mode: balance_tcp, members: [p1, p2], inside: inside,
      lacp: {{ mode: active, rate: fast }} }}
groups:
  web: {{ size: 65537, targets: {{ {} }} }}
pipes:
  spread: {{ type: hash, group: web, hash: 5-tuple, forward: line, miss: drop }}
  seen: {{ type: flow, learn: default, capacity: {entries}, monitor: {{ idle_timeout: {idle_timeout} }},
    forward: drop, miss: drop, entries: [{{ match: default }}] }}
  exact:
    type: basic
    match: {{ ipv4.src: per_entry }}
    monitor: {{ idle_timeout: 1h }}
    capacity: {}
    forward: spread
    miss: drop
    entries:
",
        (0..TARGETS).map(|at| format!("t{at}: line")).collect::<Vec<_>>().join(", "),
        entries + entries / 4,
    );
    for at in 0..entries {
        let _ = writeln!(text, "      - {{ match: {{ ipv4.src: {} }} }}", address(0x0a00_0000 + at));
    }
    text
}

/// Returns a configuration of the load balancer without traffic: 10 000 services on 4100 back ends, in lists
/// of 100 that services share, and thus a million pairs. `weight` is that of the first back end.
pub fn services(workers: usize, weight: u32) -> String {
    const LISTS: u32 = 41;
    const SERVICES: u32 = 10_000;
    let mut text = format!(
        "workers: {workers}\nports:\n  p0: {{ mem: {{ flows: 1, frames: 0 }}, mac: 02:00:00:00:00:10 }}\n\
         apps:\n  - lb:\n      pools:\n"
    );
    for list in 0..LISTS {
        let _ = writeln!(text, "        l{list}:");
        for at in 0..TARGETS {
            let weight = if (list, at) == (0, 0) { weight } else { 1 };
            let mac = format!("02:00:00:01:{list:02x}:{at:02x}");
            let _ = writeln!(text, "          - {{ name: b{at}, mac: {mac}, weight: {weight} }}");
        }
    }
    for at in 0..SERVICES {
        let (vip, list) = (address(0xac10_0000 + at), at % LISTS);
        let _ = write!(
            text,
            "  - lb:\n      name: s{at}\n      port: p0\n      back_ends: l{list}\n      \
             service: {{ vip: {vip}, protocol: udp, port: 53 }}\n"
        );
    }
    text
}

/// Returns an entry of `exact` that is in no configuration.
pub fn entry(number: u32) -> String {
    format!("{{ match: {{ ipv4.src: {} }} }}", address(0x0b00_0000 + number))
}

fn address(bits: u32) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from_bits(bits)
}
