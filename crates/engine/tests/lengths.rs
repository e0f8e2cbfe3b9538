//! Limits on length and on TCP segments (pipes.md A21, A22), in the engine and the interpreter.

mod support;

use support::{Bench, start};
use weir_oracle::{Interpreter, Walk};
use weir_packet::{DropReason, Field, Sum};
use weir_program::{AppId, Entry, Operation, Pipe, PipeId, PortId, Program, Value};
use weir_program::{Verdict, check::check};

/// A program with one action, optionally with an app that answers packets that are too long.
fn acting(operations: Vec<Operation>, values: &[u128], answers: bool) -> Program {
    let entry = Entry { values: values.to_vec(), ..Entry::default() };
    let mut pipe = Pipe::basic("p").act(operations).entry(entry).forward(PortId(0));
    let mut program = start(&["a"], []);
    if answers {
        pipe = pipe.too_long(program.app("answers"));
    }
    program.pipe(pipe);
    program.root_of_all(PipeId(0));
    let program = program.build();
    assert!(check(&program).is_empty(), "{:?}", check(&program));
    program
}

/// The outcome of a frame in the engine and the interpreter.
fn both(program: &Program, bytes: &[u8]) -> Walk {
    let mut bench = Bench::new(program);
    let walk = Interpreter::new(program, bench.engine.buckets()).walk(PortId(0), bytes, 128, 0);
    assert_eq!(bench.frame(PortId(0), bytes), walk.verdict, "{:?}", walk.trace);
    if !matches!(walk.verdict, Verdict::Drop(_)) {
        assert_eq!(bench.bytes(PortId(0), bytes), walk.bytes, "{:?}", walk.trace);
    }
    walk
}

fn limit(frame: bool) -> Operation {
    Operation::LimitLength { bytes: Value::PerEntry, frame }
}

const SET: Operation = Operation::Set(Field::EthDst, Value::Const(9));
const SENT: Verdict = Verdict::Transmit(PortId(0));
const TO_APP: Verdict = Verdict::App(AppId(0));

#[test]
fn a21_a_packet_that_is_too_long_goes_to_the_app_as_it_was_before() {
    let packet =
        |more: &str| weir_packet::craft::frame(&format!("{more} proto=udp sport=1 dport=2 payload=0011"));
    let (v4, v6) = (packet("src=10.0.0.1 dst=10.0.0.2 df=1"), packet("src=fd00::1 dst=fd00::2"));
    for (frame, length) in [(&v4, 30), (&v6, 50)] {
        let program = |most: u128| acting(vec![limit(false), SET], &[most], true);
        let walk = both(&program(length), frame);
        assert_eq!((walk.verdict, walk.limit, walk.bytes[5]), (SENT, None, 9), "{:?}", walk.trace);
        let walk = both(&program(length - 1), frame);
        assert_eq!((walk.verdict, walk.limit), (TO_APP, Some(length as u16 - 1)));
        assert_eq!(walk.bytes, *frame, "nothing has changed");
        // Bytes after the packet do not count, nor do tags.
        let padded = [&frame[..], &[0; 40]].concat();
        assert_eq!(both(&program(length), &padded).verdict, SENT);
        let tagged = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
        assert_eq!(both(&program(length), &tagged).verdict, SENT);
    }
}

#[test]
fn a21_of_a_frame_all_bytes_count_and_the_limit_is_that_of_its_packet() {
    let plain =
        weir_packet::craft::frame("src=10.0.0.1 dst=10.0.0.2 df=1 proto=udp sport=1 dport=2 payload=0011");
    let tagged = [&plain[..12], &[0x81, 0, 0, 7], &plain[12..]].concat();
    let program = acting(vec![limit(true), SET], &[44], true);
    assert_eq!(both(&program, &plain).verdict, SENT);
    let walk = both(&program, &tagged);
    assert_eq!((walk.verdict, walk.limit), (TO_APP, Some(26)), "44 bytes minus 18 of headers in front");
    let padded = [&plain[..], &[0]].concat();
    assert_eq!(both(&program, &padded).limit, Some(30));
}

#[test]
fn a21_without_an_app_or_without_df_there_is_a_reason() {
    let packet = |df: u8| {
        weir_packet::craft::frame(&format!("src=10.0.0.1 dst=10.0.0.2 df={df} proto=udp sport=1 dport=2"))
    };
    let verdict = |answers, df| both(&acting(vec![limit(false)], &[27], answers), &packet(df)).verdict;
    assert_eq!(verdict(true, 1), TO_APP);
    assert_eq!(verdict(true, 0), Verdict::Drop(DropReason::NotFragmented));
    assert_eq!(verdict(false, 1), Verdict::Drop(DropReason::TooLong));
    assert_eq!(verdict(false, 0), Verdict::Drop(DropReason::NotFragmented));
    let arp = weir_packet::craft::frame("arp=request");
    let walk = both(&acting(vec![limit(false)], &[2000], true), &arp);
    assert_eq!(walk.verdict, Verdict::Drop(DropReason::NotApplicable));
}

/// A SYN with these options.
fn syn(family: &str, flags: &str, options: &str) -> Vec<u8> {
    let options = if options.is_empty() { String::new() } else { format!("tcp_options={options}") };
    weir_packet::craft::frame(&format!("{family} proto=tcp sport=7 dport=80 flags={flags} {options}"))
}

const FAMILIES: [&str; 2] = ["src=10.0.0.1 dst=10.0.0.2", "src=fd00::1 dst=fd00::2"];

/// Whether the checksum of the TCP segment at the end of a frame is correct.
fn is_right(frame: &[u8]) -> bool {
    let (l4, addresses) = if frame[12] == 0x86 { (54, 22..54) } else { (34, 26..34) };
    let pseudo = Sum::default().bytes(&frame[addresses]).word(6).word((frame.len() - l4) as u16);
    pseudo.bytes(&frame[l4..]).fold() == 0xffff
}

#[test]
fn a22_the_segment_size_of_a_syn_is_lowered_with_its_checksum() {
    let clamp = |most: u128| acting(vec![Operation::ClampMss { mss: Value::PerEntry }], &[most], false);
    // 1460, alone, after others, and at an odd offset.
    let options =
        ["020405b4", "020405b40402010303070101", "0402020405b40101", "01020405b4010101", "010303070204 05b4"];
    for (family, flags) in FAMILIES.into_iter().flat_map(|family| ["S", "SA"].map(|flags| (family, flags))) {
        for options in options.map(|one| one.replace(' ', "")) {
            let frame = syn(family, flags, &options);
            let lowered = syn(family, flags, &options.replace("05b4", "05a0"));
            assert!(is_right(&frame) && is_right(&lowered));
            assert_eq!(both(&clamp(1440), &frame).bytes, lowered, "{family} {options}");
            for most in [1460, 9000] {
                assert_eq!(both(&clamp(most), &frame).bytes, frame, "it is small enough");
            }
        }
    }
}

#[test]
fn a22_other_packets_and_malformed_options_are_left_alone() {
    let program = acting(vec![Operation::ClampMss { mss: Value::Const(536) }], &[], false);
    let malformed = [
        "",                 // none
        "02030000020405b4", // of three bytes, with another after it
        "0200020405b40000", // of no bytes
        "0201020405b40000",
        "00020405b4000000", // after the end
        "0100020405b40000",
        "030a020405b40101", // another option is longer than all
        "1e00020405b40101",
        "01010204", // truncated
        "01010102",
    ];
    for family in FAMILIES {
        for options in malformed {
            let frame = syn(family, "S", options);
            let walk = both(&program, &frame);
            assert_eq!((walk.verdict, &walk.bytes), (SENT, &frame), "{options}");
        }
        for flags in ["A", "FA", "R", "none"] {
            let frame = syn(family, flags, "020405b4");
            assert_eq!(both(&program, &frame).bytes, frame, "{flags}");
        }
        let udp = weir_packet::craft::frame(&format!("{family} proto=udp sport=7 dport=80 payload=020405b4"));
        assert_eq!(both(&program, &udp).bytes, udp);
        let fragment = weir_packet::craft::frame(&format!(
            "{family} frag=0+ proto=tcp sport=7 dport=80 flags=S tcp_options=020405b4"
        ));
        assert_eq!(both(&program, &fragment).bytes, fragment);
    }
    assert_eq!(both(&program, &weir_packet::craft::frame("arp=request")).verdict, SENT);
}
