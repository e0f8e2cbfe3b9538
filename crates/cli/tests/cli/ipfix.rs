//! Wireshark is independent of weir: it decodes the IPFIX messages to the values that were written.

use super::folder::Folder;
use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use weir_app::names::{Name, NameKind};
use weir_measure::FlowRecord;
use weir_measure::export::ipfix::Encoder;
use weir_measure::export::{End, Given};
use weir_packet::craft::Recipe;
use weir_packet::{FlowKey, Observed};
use weir_port::pcap::Writer;

const RECORDS: u16 = 200;
/// The decisions of flows, in rotation.
const TARGETS: [Option<&str>; 3] = [None, Some("web/b1"), Some("web/b2")];

/// The n-th record: IPv4 and IPv6 alternating, outside tunnels, and every second pair inside one.
fn given(n: u16) -> Given {
    let address = |last: u16| -> IpAddr {
        if n % 2 == 1 { [0x2001, 0xdb8, 0, 0, 0, 0, 0, last].into() } else { [10, 0, 0, last as u8].into() }
    };
    let vni = (n % 4 > 1).then_some(u32::from(n));
    let protocol = if n.is_multiple_of(5) { [1, 58][usize::from(n % 2)] } else { 6 };
    let key = FlowKey::new(address(1), address(n), protocol, (n, 443), vni);
    let first_ns = 1_790_000_000_000_000_000;
    let packets = u64::from(n) + 1;
    let (octets, flags, class, vlan) = (77 * packets, n as u8, !(n as u8), n);
    let observed = Observed { octets, flags, class, vlan, icmp: 0x0801, ..Observed::default() };
    let (bytes, last_ns) = (100 * packets, first_ns + 7_000_000);
    let record = FlowRecord { key, packets, bytes, first_ns, last_ns, observed };
    let end = [End::Idle, End::Active, End::Closed, End::Forced, End::Evicted][usize::from(n) % 5];
    let target = TARGETS[usize::from(n) % 3].map(Into::into);
    // Every third record has names.
    let name = |name: &str, kind| Name {
        name: format!("{name}-{n}").into(),
        namespace: Some("shop".into()),
        kind,
        node: Some("worker-1".into()),
    };
    let names = [name("web", NameKind::Pod), name("db", NameKind::Service)];
    let names = names.map(|name| n.is_multiple_of(3).then(|| Arc::new(name)));
    let (ingress, point) = (Some("p0".into()), Some("measure/edge/p0".into()));
    Given { record, end, target, ingress, point, names }
}

/// Writes all records as a recording of datagrams. Returns the number of datagrams.
fn record(path: &Path) -> usize {
    let mut writer = Writer::new(File::create(path).unwrap()).unwrap();
    let mut encoder = Encoder::new(42, 1400);
    let mut messages = 0;
    let mut send = |message: &[u8], _: u32| {
        let mut datagram: Recipe =
            "src=127.0.0.1 dst=127.0.0.1 proto=udp sport=9 dport=4739".parse().unwrap();
        datagram.payload = message.to_vec();
        let bytes = datagram.build();
        writer.write(messages * 1_000_000, bytes.len() as u32, &bytes).unwrap();
        messages += 1;
    };
    (0..RECORDS).for_each(|n| encoder.add(&given(n), 1_790_000_000, &mut send));
    encoder.finish(1_790_000_000, &mut send);
    writer.flush().unwrap();
    messages as usize
}

/// Returns the values of fields in a recording, in the order of their records.
fn fields(path: &Path, name: &str) -> Vec<String> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-n").arg("-r").arg(path).args(["-d", "udp.port==4739,cflow", "-T", "fields"]);
    let output = tshark.args(["-E", "aggregator=;", "-e", name]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split(['\n', ';']).filter(|word| !word.is_empty()).map(str::to_string).collect()
}

/// `flowEndReason`, as numbered by RFC 5102.
fn reason(end: End) -> u64 {
    match end {
        End::Idle => 1,
        End::Active => 2,
        End::Closed => 3,
        End::Forced => 4,
        End::Evicted => 5,
    }
}

/// Checks the names of addresses.
fn check_names(path: &Path, all: &[Given]) {
    // Wireshark knows whose elements these are, but not their types. It leaves empty strings out.
    let hex = |text: String| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let strings = all.iter().filter_map(|one| one.names[0].as_ref()).flat_map(|name| {
        let n = name.name.trim_start_matches("web-");
        ["shop", &name.name, "worker-1", "worker-1", &format!("shop/db-{n}")].map(|text| hex(text.into()))
    });
    let read = fields(path, "cflow.enterprise_private_entry").into_iter().map(|one| one.replace(':', ""));
    assert_eq!(read.collect::<Vec<_>>(), strings.collect::<Vec<_>>());
    let numbers = fields(path, "cflow.template_ipfix_field_pen");
    assert!(!numbers.is_empty() && numbers.iter().all(|number| number == "56506"), "{numbers:?}");
}

#[test]
fn tshark_reads_every_field_of_every_record() {
    if Command::new("tshark").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI has tshark");
        eprintln!("skipped: there is no tshark");
        return;
    }
    let folder = Folder::new();
    let path = folder.file("ipfix.pcap");
    let messages = record(&path);
    assert!(messages > 5);
    let all: Vec<Given> = (0..RECORDS).map(given).collect();
    let exported =
        |each: &dyn Fn(&Given) -> Option<String>| all.iter().filter_map(each).collect::<Vec<String>>();
    let number = |name: &str, each: &dyn Fn(&Given) -> u64| {
        assert_eq!(fields(&path, name), exported(&|one| Some(each(one).to_string())), "{name}");
    };
    number("cflow.srcport", &|one| one.record.key.sport().into());
    number("cflow.dstport", &|one| one.record.key.dport().into());
    number("cflow.protocol", &|one| one.record.key.protocol().into());
    number("cflow.packets", &|one| one.record.packets);
    number("cflow.octets", &|one| one.record.observed.octets);
    number("cflow.layer2_octet_delta_count", &|one| one.record.bytes);
    number("cflow.flow_end_reason", &|one| reason(one.end));
    // Numbers are assigned in the order in which names first occur.
    let names = ["p0", "measure/edge/p0", "web/b1", "web/b2"];
    assert_eq!(fields(&path, "cflow.if_descr"), names);
    let of = |name: Option<&str>| 1 + names.iter().position(|one| Some(*one) == name).unwrap() as u64;
    number("cflow.outputint", &|one| one.target.as_deref().map_or(0, |target| of(Some(target))));
    number("cflow.observation_point_id", &|one| of(one.point.as_deref()));
    let ingress: Vec<String> = fields(&path, "cflow.inputint");
    // The records of names have it too, as their scope.
    assert_eq!(ingress.iter().filter(|one| **one == "1").count(), all.len() + 1);
    number("cflow.vlanid", &|one| one.record.observed.vlan.into());
    let read = |bits: &String| u8::from_str_radix(bits.trim_start_matches("0x"), 16).unwrap();
    let bits = |name: &str, each: fn(&Observed) -> u8| {
        let wanted: Vec<u8> = all.iter().map(|one| each(&one.record.observed)).collect();
        assert_eq!(fields(&path, name).iter().map(read).collect::<Vec<_>>(), wanted, "{name}");
    };
    bits("cflow.tcpflags", |one| one.flags);
    bits("cflow.tos", |one| one.class);
    let addresses = |name: &str, ipv6: bool, each: &dyn Fn(&FlowKey) -> IpAddr| {
        let of = |one: &Given| Some(each(&one.record.key)).filter(|one| one.is_ipv6() == ipv6);
        assert_eq!(fields(&path, name), exported(&|one| of(one).map(|one| one.to_string())), "{name}");
    };
    addresses("cflow.srcaddr", false, &FlowKey::src);
    addresses("cflow.dstaddr", false, &FlowKey::dst);
    addresses("cflow.srcaddrv6", true, &FlowKey::src);
    addresses("cflow.dstaddrv6", true, &FlowKey::dst);
    let vni = |one: &Given| one.record.key.vni().map(|vni| vni.to_string());
    assert_eq!(fields(&path, "cflow.layer2_segment_id"), exported(&vni));
    check_names(&path, &all);
    let times = fields(&path, "cflow.abstimeend");
    assert!(times.len() == all.len() && times.iter().all(|time| time.contains(":20.007")), "{times:?}");
    // In each message's header, and with every name.
    assert_eq!(fields(&path, "cflow.od_id"), vec!["42"; messages + names.len()]);
    assert_eq!(fields(&path, "_ws.malformed"), Vec::<String>::new());
}
