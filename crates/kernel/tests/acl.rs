//! Thousands of rules: the kernel finds the rule that the interpreter finds, by code that does not depend on
//! their number.

use weir_kernel::{Executor, FrameOutcome};
use weir_oracle::Interpreter;
use weir_packet::random::Random;
use weir_packet::{Field, craft};
use weir_program::{
    Criterion, Entry, EntryMatch, Forward, Match, Origin, Pipe, PipeId, PipeKind, PortDeclaration, PortId,
    Program,
};

/// A program with one ACL of random rules over addresses of both versions, protocol and ports.
fn program(random: &mut Random, rules: usize, ipv6: bool) -> Program {
    let (src, dst) = if ipv6 { (Field::Ipv6Src, Field::Ipv6Dst) } else { (Field::Ipv4Src, Field::Ipv4Dst) };
    let one = |field, criterion| Match { field, criterion, origin: Origin::default() };
    let mut pipe = Pipe::new("acl", PipeKind::Acl);
    pipe.matches = vec![
        one(src, Criterion::Masked),
        one(dst, Criterion::Masked),
        one(Field::IpProtocol, Criterion::Masked),
        one(Field::L4Sport, Criterion::Range),
        one(Field::L4Dport, Criterion::Range),
    ];
    pipe.forward = Forward::PerEntry;
    pipe.miss = Forward::Kernel;
    pipe.capacity = rules as u32;
    let mut entries: Vec<Entry> = Vec::new();
    for _ in 0..rules {
        entries.push(rule(random, src));
    }
    pipe.entries = entries.into();
    let port = |name: &str| PortDeclaration {
        root: Some(PipeId(0)),
        kernel_path: true,
        ..PortDeclaration::new(name.to_string())
    };
    Program { ports: vec![port("a"), port("b")], pipes: vec![pipe], ..Program::default() }
}

fn rule(random: &mut Random, like: Field) -> Entry {
    let address = |random: &mut Random| {
        let bits = u32::from(like.spec().bits);
        let length = [0, bits / 4, bits / 2, bits - 8, bits - 3, bits, bits][random.below(7) as usize];
        let mut mask = like.max().checked_shl(bits - length).unwrap_or(0) & like.max();
        if random.below(5) == 0 {
            // Not a prefix.
            mask &= !(0xf0_u128 << random.below(u64::from(bits) - 8));
        }
        if random.below(4) == 0 {
            return EntryMatch::Any;
        }
        EntryMatch::Masked { value: host(random, like) & mask, mask }
    };
    let ports = |random: &mut Random| match random.below(3) {
        0 => EntryMatch::Any,
        1 => {
            let port = port(random);
            EntryMatch::Range { first: port, last: port }
        }
        _ => {
            let (one, other) = (port(random), port(random));
            EntryMatch::Range { first: one.min(other), last: one.max(other) }
        }
    };
    let protocol = match random.below(3) {
        0 => EntryMatch::Any,
        1 => EntryMatch::Masked { value: 6, mask: 0xff },
        _ => EntryMatch::Masked { value: 17, mask: 0xff },
    };
    let matches = vec![address(random), address(random), protocol, ports(random), ports(random)];
    let forward = [Forward::Drop, Forward::InputPort, Forward::Port(PortId(1))][random.below(3) as usize];
    let priority = random.below(50) as u32;
    Entry { matches, priority, forward: Some(forward), ..Entry::default() }
}

/// One of a few thousand addresses.
fn host(random: &mut Random, like: Field) -> u128 {
    let low = u128::from(random.bits() & 0xff0f);
    match like.spec().bits {
        32 => 0x0a00_0000 | low,
        _ => 0x2001_0db8 << 96 | u128::from(random.bits() & 3) << 64 | low,
    }
}

fn port(random: &mut Random) -> u16 {
    [53, 80, 443, 1023, 1024, 4096, 40_000, 65_535][(random.bits() % 8) as usize]
}

fn frame(random: &mut Random, ipv6: bool) -> Vec<u8> {
    let like = if ipv6 { Field::Ipv6Src } else { Field::Ipv4Src };
    let address = |random: &mut Random| match ipv6 {
        true => std::net::Ipv6Addr::from_bits(host(random, like)).to_string(),
        false => std::net::Ipv4Addr::from_bits(host(random, like) as u32).to_string(),
    };
    let protocol = ["tcp", "udp", "udp", if ipv6 { "icmpv6" } else { "icmp" }][(random.bits() % 4) as usize];
    let mut text = format!("src={} dst={} proto={protocol}", address(random), address(random));
    if protocol.starts_with("icmp") {
        text +=
            &format!(" {protocol}_type={}", if ipv6 { 128 } else { 8 }).replace("icmpv6_type", "icmp_type");
    } else {
        text += &format!(" sport={} dport={}", port(random), port(random));
    }
    craft::frame(&text)
}

#[test]
fn thousands_of_rules_are_found_as_the_interpreter_finds_them() {
    if Executor::load(&Program::default(), &[]).is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI runs as root, and eBPF programs load there");
        return;
    }
    let mut random = Random::new(1);
    let mut lengths = Vec::new();
    for (rules, ipv6) in [(1, false), (40, false), (700, false), (2000, false), (300, true), (800, true)] {
        let program = program(&mut random, rules, ipv6);
        let executor = Executor::load(&program, &[]).unwrap_or_else(|error| panic!("{rules}: {error}"));
        let mut oracle = Interpreter::new(&program, Vec::new());
        for _ in 0..300 {
            let frame = frame(&mut random, ipv6);
            let (outcome, _) = executor.run(PortId(0), &frame).expect("a test run");
            let walk = oracle.walk(PortId(0), &frame, 256, 0);
            assert_eq!(outcome, FrameOutcome::Decided(walk.verdict), "{rules} rules: {:#?}", walk.trace);
        }
        let snapshot = oracle.snapshot();
        for (at, entry) in snapshot.pipes[0].entries.iter().enumerate() {
            assert_eq!(executor.hits(PipeId(0), &entry.key), entry.hits, "{rules} rules, rule {at}");
        }
        lengths.push(executor.instructions()[0]);
    }
    // The code depends on the fields, not on the number of rules.
    assert_eq!(lengths[2], lengths[3]);
    assert_eq!(lengths[4], lengths[5]);
}
