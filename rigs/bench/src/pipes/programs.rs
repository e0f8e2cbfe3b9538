//! The programs that both run: weir's as scenarios, SWX's in its own language. Each SWX program counts its
//! hits in a register, as weir's do in a counter or an entry.

use crate::scenarios::flow;
use std::fmt::Write;
use std::path::Path;

/// An SWX program.
pub struct Program {
    /// The program's name, which is also that of weir's counterpart (`scenarios::peer`).
    pub name: &'static str,
    /// Creates the program for a number of flows; one program comes from the example's folder, which is
    /// passed too.
    pub swx: fn(u32, &Path) -> std::io::Result<SwxSource>,
}

/// The inputs of SWX for a program.
#[derive(Default)]
pub struct SwxSource {
    /// The program.
    pub text: String,
    /// The table with entries, and the entries.
    pub table: &'static str,
    pub entries: Vec<String>,
    /// The selector with members, and the members.
    pub selector: &'static str,
    pub members: Vec<String>,
}

pub const ALL: [Program; 6] = [
    Program { name: "macswap", swx: macswap },
    Program { name: "basic2", swx: basic2 },
    Program { name: "exact", swx: exact },
    Program { name: "selector", swx: selector },
    Program { name: "learner", swx: learner },
    Program { name: "vxlan", swx: vxlan },
];

/// Members of the selector.
const MEMBERS: u32 = 256;

/// The packet's headers.
const HEADERS: &str = "
struct ethernet_h {
  bit<48> dst
  bit<48> src
  bit<16> type
}
struct ipv4_h {
  bit<8> version_length
  bit<8> tos
  bit<16> length
  bit<16> id
  bit<16> offset
  bit<8> ttl
  bit<8> protocol
  bit<16> checksum
  bit<32> src
  bit<32> dst
}
struct udp_h {
  bit<16> sport
  bit<16> dport
  bit<16> length
  bit<16> checksum
}
header ethernet instanceof ethernet_h
header ipv4 instanceof ipv4_h
header udp instanceof udp_h
struct meta_t {
  bit<32> input
  bit<32> output
  bit<32> parity
  bit<32> group
  bit<32> member
  bit<32> timeout
  bit<48> address
  bit<32> src
  bit<32> dst
  bit<16> sport
  bit<16> dport
  bit<8> protocol
}
metadata instanceof meta_t
regarray hits size 1 initval 0
struct set_t {
  bit<48> dst
  bit<48> src
}
action set args instanceof set_t {
  mov h.ethernet.dst t.dst
  mov h.ethernet.src t.src
  regadd hits 0 1
  return
}
action no args none {
  drop
  return
}
";

/// The code between `apply {` and the lookup, and after it.
const BEGIN: &str = "apply {\n  rx m.input\n  extract h.ethernet\n  extract h.ipv4\n  extract h.udp\n";
const END: &str = "  emit h.ethernet\n  emit h.ipv4\n  emit h.udp\n  tx m.output\n}\n";

/// The 5-tuple: the fields of the metadata, and where they come from.
const TUPLE: [(&str, &str); 5] = [
    ("m.src", "h.ipv4.src"),
    ("m.dst", "h.ipv4.dst"),
    ("m.sport", "h.udp.sport"),
    ("m.dport", "h.udp.dport"),
    ("m.protocol", "h.ipv4.protocol"),
];

fn tuple(line: impl Fn(&str, &str) -> String) -> String {
    TUPLE.into_iter().map(|(field, header)| line(field, header)).collect()
}

fn load_tuple() -> String {
    tuple(|field, header| format!("  mov {field} {header}\n"))
}

fn table(key: &str, size: u32) -> String {
    format!(
        "table t {{\n  key {{\n{key}  }}\n  actions {{\n    set\n    no\n  }}\n  \
         default_action no args none\n  size {size}\n}}\n"
    )
}

fn set(key: impl std::fmt::Display, number: u32) -> String {
    format!(
        "match {key} action set dst 0x{:012x} src 0x020000000001",
        0x0200_0000_1000u64 + u64::from(number)
    )
}

fn macswap(_: u32, _: &Path) -> std::io::Result<SwxSource> {
    let swap = "apply {\n  rx m.input\n  extract h.ethernet\n  mov m.address h.ethernet.dst\n  \
         mov h.ethernet.dst h.ethernet.src\n  mov h.ethernet.src m.address\n  emit h.ethernet\n  \
         tx m.output\n}\n";
    Ok(SwxSource { text: format!("{HEADERS}{swap}"), ..SwxSource::default() })
}

fn basic2(_: u32, _: &Path) -> std::io::Result<SwxSource> {
    let key = "    m.parity exact\n";
    let look_up = "  mov m.parity h.ipv4.src\n  and m.parity 1\n  table t\n";
    let text = format!("{HEADERS}{}{BEGIN}{look_up}{END}", table(key, 16));
    Ok(SwxSource {
        text,
        table: "t",
        entries: (0..2).map(|at| set(at, at)).collect(),
        ..SwxSource::default()
    })
}

fn exact(flows: u32, _: &Path) -> std::io::Result<SwxSource> {
    let key = tuple(|field, _| format!("    {field} exact\n"));
    let text = format!("{HEADERS}{}{BEGIN}{}  table t\n{END}", table(&key, 2 * flows), load_tuple());
    let entry = |at: u32| {
        let (source, destination, sport, dport) = flow(at);
        let (source, destination) = (source.to_bits(), destination.to_bits());
        set(format!("0x{source:x} 0x{destination:x} 0x{sport:x} 0x{dport:x} 17"), at & 15)
    };
    Ok(SwxSource { text, table: "t", entries: (0..flows).map(entry).collect(), ..SwxSource::default() })
}

fn selector(_: u32, _: &Path) -> std::io::Result<SwxSource> {
    let mut text = format!("{HEADERS}selector s {{\n  group_id m.group\n  selector {{\n");
    text += &tuple(|field, _| format!("    {field}\n"));
    let _ = write!(
        text,
        "  }}\n  member_id m.member\n  n_groups_max 1\n  n_members_per_group_max {MEMBERS}\n}}\n"
    );
    text += &table("    m.member exact\n", 2 * MEMBERS);
    let _ = write!(text, "{BEGIN}{}  mov m.group 0\n  table s\n  table t\n{END}", load_tuple());
    Ok(SwxSource {
        text,
        table: "t",
        entries: (0..MEMBERS).map(|at| set(at, at)).collect(),
        selector: "s",
        members: (0..MEMBERS).map(|at| format!("group 0 member {at} weight 1")).collect(),
    })
}

fn learner(flows: u32, _: &Path) -> std::io::Result<SwxSource> {
    let known = "struct flow_t {\n  bit<32> output\n}\naction flow args instanceof flow_t {\n  \
         mov m.output t.output\n  regadd hits 0 1\n  rearm\n  return\n}\naction new args none {\n  \
         mov m.timeout 1\n  learn flow m.output m.timeout\n  return\n}\n";
    let key = tuple(|field, _| format!("    {field}\n"));
    let table = format!(
        "learner t {{\n  key {{\n{key}  }}\n  actions {{\n    flow\n    new\n  }}\n  \
         default_action new args none\n  size {}\n  timeout {{\n    60\n    120\n    180\n  }}\n}}\n",
        2 * flows
    );
    let text = format!("{HEADERS}{known}{table}{BEGIN}{}  table t\n{END}", load_tuple());
    Ok(SwxSource { text, ..SwxSource::default() })
}

/// The example's own program, with an entry for the recording's destination.
fn vxlan(_: u32, example: &Path) -> std::io::Result<SwxSource> {
    let text = std::fs::read_to_string(example.join("examples/vxlan.spec"))?;
    let values = [
        ("ethernet_dst_addr", "0x020000001000"),
        ("ethernet_src_addr", "0x020000000001"),
        ("ethernet_ethertype", "0x0800"),
        ("ipv4_ver_ihl", "0x45"),
        ("ipv4_diffserv", "0"),
        ("ipv4_total_len", "50"),
        ("ipv4_identification", "0"),
        ("ipv4_flags_offset", "0"),
        ("ipv4_ttl", "64"),
        ("ipv4_protocol", "17"),
        ("ipv4_hdr_checksum", "0xf745"),
        ("ipv4_src_addr", "0xc0a80001"),
        ("ipv4_dst_addr", "0xc0a80100"),
        ("udp_src_port", "0xe000"),
        ("udp_dst_port", "4789"),
        ("udp_length", "30"),
        ("udp_checksum", "0"),
        ("vxlan_flags", "8"),
        ("vxlan_reserved", "0"),
        ("vxlan_vni", "77"),
        ("vxlan_reserved2", "0"),
        ("port_out", "0"),
    ];
    let values: String = values.into_iter().map(|(name, value)| format!(" {name} {value}")).collect();
    let entries = vec![format!("match 0x020000000002 action vxlan_encap{values}")];
    Ok(SwxSource { text, table: "vxlan_table", entries, ..SwxSource::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weir_has_every_program_too() {
        for program in ALL {
            let scenario = crate::scenarios::peer(program.name, 1000).expect(program.name);
            assert!(weir_engine::batch::Engine::new(&scenario, weir_packet::TableHash::new([1, 2])).is_ok());
        }
        assert!(crate::scenarios::peer("none", 1000).is_none());
    }
}
