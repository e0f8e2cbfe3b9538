//! Targets by the server IDs in QUIC connection IDs (pipes.md M29).

mod support;

use support::{Bench, start};
use weir_oracle::Interpreter;
use weir_packet::{DropReason, craft};
use weir_program::Verdict;
use weir_program::check::{FindingKind, check};
use weir_program::{
    Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Pipe, PortId, Program, QuicConfig, ServerId,
    Target,
};

const KEY: [u8; 16] = 0x8f95_f092_4576_5f80_2569_34e5_0c66_207f_u128.to_be_bytes();
/// Where packets that miss go.
const ELSEWHERE: PortId = PortId(0);

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn config(id: u8, server_id: u8, nonce: u8, key: Option<[u8; 16]>) -> QuicConfig {
    QuicConfig { id, server_id, nonce, key }
}

fn group(configs: &[QuicConfig], ids: &[&str]) -> Group {
    let target = |(at, id): (usize, &&str)| {
        Target::new(format!("t{at}"), PortId(0)).server_id(ServerId::new(&bytes(id)).unwrap())
    };
    Group::new("g", Fill::Wants, 8).quic(configs.iter().copied()).targets(ids.iter().enumerate().map(target))
}

/// A program whose targets with these server IDs lead to the second and following ports.
fn program(configs: &[QuicConfig], ids: &[&str]) -> Program {
    let rows = (0..ids.len() as u16).map(|at| Entry::on(EntryMatch::Target(at)).to(PortId(at + 1)));
    let pipe = Pipe::hash("quic", HashInput::Quic, GroupId(0)).entries(rows).forward(Forward::PerEntry);
    let mut program = start(&["elsewhere", "r1", "r2", "r3"], [pipe.miss(ELSEWHERE)]);
    program.group(group(configs, ids));
    program.build()
}

/// Where the engine and the interpreter send a frame.
#[track_caller]
fn sent(program: &Program, frame: &[u8]) -> u16 {
    let mut bench = Bench::new(program);
    let mut twin = Interpreter::new(program, bench.engine.buckets());
    let wanted = twin.walk(PortId(0), frame, 128, 0).verdict;
    assert_eq!(bench.frame(PortId(0), frame), wanted, "the twin disagrees");
    let Verdict::Transmit(port) = wanted else { panic!("{wanted:?}") };
    port.0
}

fn udp(from: &str, payload: &str) -> Vec<u8> {
    let to = if from.contains(':') { "2001:db8::1" } else { "192.0.2.1" };
    craft::frame(&format!("src={from} dst={to} proto=udp sport=4000 dport=443 payload={payload}"))
}

/// A packet with a short header (RFC 8999 §5.2), with payload after the connection ID.
fn short(cid: &str) -> String {
    format!("40{cid}00112233445566778899")
}

/// A packet with a long header (§5.1), of version 1 with an empty source connection ID.
fn long(cid: &str) -> String {
    format!("c000000001{:02x}{cid}000000", cid.len() / 2)
}

/// Appendix B of the draft: plain, encrypted in four passes, and in one.
#[test]
fn m29_the_drafts_connection_ids_lead_to_their_servers() {
    for (config, id, cid) in [
        (config(0, 3, 4, None), "c4605e", "07c4605e4504cc4f"),
        (config(1, 5, 5, None), "350d28b420", "2a350d28b42003487d970b"),
        (config(0, 3, 4, Some(KEY)), "ed793a", "0720b1d07b359d3c"),
        (config(1, 10, 5, Some(KEY)), "ed793a51d49b8f5fab65", "2fcc381bc74cb4fbad2823a3d1f8fed2"),
        (config(2, 8, 8, Some(KEY)), "ed793a51d49b8f5f", "504dd2d05a7b0de9b2b9907afb5ecf8cc3"),
        (config(0, 9, 9, Some(KEY)), "ed793a51d49b8f5fab", "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc"),
    ] {
        let other = "ff".repeat(id.len() / 2);
        let program = program(&[config], &[&other, id]);
        for payload in [short(cid), long(cid)] {
            // A client whose address changes keeps its server, whichever IP version it uses.
            for client in ["10.0.0.1", "198.51.100.7", "2001:db8:2::9"] {
                assert_eq!(sent(&program, &udp(client, &payload)), 2, "{config:?} {payload}");
            }
        }
    }
}

#[test]
fn m29_configurations_are_exchanged_one_after_the_other() {
    let (old, new) = (config(0, 3, 4, Some(KEY)), config(3, 3, 6, None));
    let ids = ["000001", "ed793a"];
    let (with_old, with_new) = (short("0720b1d07b359d3c"), short("69ed793a010203040506"));
    let to = |configs: &[QuicConfig]| {
        let program = program(configs, &ids);
        [&with_old, &with_new].map(|payload| sent(&program, &udp("10.0.0.1", payload)))
    };
    assert_eq!(to(&[old]), [2, 0]);
    assert_eq!(to(&[old, new]), [2, 2]);
    assert_eq!(to(&[new]), [0, 2]);
}

#[test]
fn m29_what_has_no_server_id_of_a_target_with_an_entry_misses() {
    let mut program = program(&[config(0, 1, 4, None)], &["01", "02", "03"]);
    program.pipes[0].entries.edit(|entries| entries.remove(1));
    let to = |payload: &str| sent(&program, &udp("10.0.0.1", payload));
    assert_eq!((to(&short("050300000000")), to(&long("050100000000"))), (3, 1));
    // A server that is down, an unknown one, another configuration, none at all.
    for cid in ["050200000000", "050900000000", "250100000000", "e50100000000"] {
        assert_eq!((to(&short(cid)), to(&long(cid))), (0, 0), "{cid}");
    }
    // Truncated packets, and connection IDs that are too long or too short for their header.
    let whole = long("050100000000");
    for end in (2..whole.len() - 6).step_by(2) {
        assert_eq!(to(&whole[..end]), 0, "{}", &whole[..end]);
    }
    for payload in ["4005010000", "40", "c00000000105050100000000", "c0000000010005", "c00000000115"] {
        assert_eq!(to(payload), 0, "{payload}");
    }
    assert_eq!(to(&format!("c00000000115{}", "05".repeat(30))), 0, "21 octets");
    // The datagram ends where UDP says, not where the frame does.
    let mut padded = udp("10.0.0.1", "4005010000");
    padded.extend([0; 20]);
    assert_eq!(sent(&program, &padded), 0);
    for other in ["src=10.0.0.1 dst=192.0.2.1 proto=tcp dport=443 payload=40050100000000", "type=0x88b5"] {
        assert_eq!(sent(&program, &craft::frame(other)), 0, "{other}");
    }
}

#[test]
fn m29_a_group_without_ids_is_refused_and_so_are_those_that_no_server_can_have() {
    let found = |program: &Program| check(program).into_iter().map(|one| one.kind).collect::<Vec<_>>();
    let good = program(&[config(0, 1, 4, None)], &["01", "02", "03"]);
    assert_eq!(found(&good), []);
    let kinds = |configs: &[QuicConfig], ids: &[&str]| found(&program(configs, ids));
    let mut without = good.clone();
    without.groups[0].quic = None;
    assert_eq!(found(&without), [FindingKind::NoServerIds]);
    let ids = ["01", "02", "03"];
    let number = kinds(&[config(7, 1, 4, None)], &ids);
    assert_eq!(number, [FindingKind::QuicNumber { id: 7 }]);
    let twice = kinds(&[config(1, 1, 4, None), config(1, 1, 5, None)], &ids);
    assert_eq!(twice, [FindingKind::QuicNumberTwice { group: "g".into(), id: 1 }]);
    assert!(matches!(kinds(&[config(1, 1, 3, None)], &ids)[..], [FindingKind::QuicLengths { id: 1, .. }]));
    let other = FindingKind::ServerIdLength { target: "t1".into(), octets: 2, id: 0, wanted: 1 };
    assert_eq!(kinds(&[config(0, 1, 4, None)], &["01", "0202", "03"]), [other]);
    let same = FindingKind::ServerIdTwice { first: "t0".into(), target: "t2".into() };
    assert_eq!(kinds(&[config(0, 1, 4, None)], &["01", "02", "01"]), [same]);
    // An entry's miss is like any other.
    let mut drops = good;
    drops.pipes[0].miss = Forward::Drop;
    let mut bench = Bench::new(&drops);
    let verdict = bench.frame(PortId(0), &udp("10.0.0.1", "40"));
    assert_eq!(verdict, Verdict::Drop(DropReason::Miss));
}
