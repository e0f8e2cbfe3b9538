//! The measurement of XDP programs restores each frame before the next run. Needs root.

use std::net::Ipv4Addr;
use weir_packet::tunnel::{Inside, Outer, OuterShape};
use weir_packet::{TunnelKind, TunnelPorts};
use weir_papers::{Buffers, FRAME, HandTables, XdpArm, XdpByHand, XdpRestore};

/// `XDP_TX` and `XDP_PASS` (linux/bpf.h).
const TX: u32 = 3;
const PASS: u32 = 2;

/// Bytes of VXLAN's headers.
const TUNNEL: usize = 50;

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let root = status.lines().any(|line| line.starts_with("Uid:\t0\t"));
    assert!(root || std::env::var_os("CI").is_none(), "CI runs as root");
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

/// UDP from 10.0.0.`at`.
fn frame(at: u8) -> [u8; FRAME] {
    let mut frame = [at; FRAME];
    frame[12..34]
        .copy_from_slice(&[8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, at, 172, 16, 0, 1]);
    // The length that the UDP header has.
    frame[38..40].copy_from_slice(&[0, 30]);
    frame
}

fn tunnel() -> HandTables {
    let shape = OuterShape { kind: TunnelKind::Vxlan, is_ipv6: false, extended: true, bare: false };
    let (src, dst) = (Ipv4Addr::new(192, 168, 0, 1).into(), Ipv4Addr::new(192, 168, 0, 2).into());
    let outer = Outer { eth_dst: [2; 6], eth_src: [4; 6], src, dst, ttl: 64, id: 7 };
    let mut record = [0; 64];
    shape.write(&outer, Inside::Ethernet, &TunnelPorts::default(), &mut record[..TUNNEL]);
    HandTables { records: vec![record; 2], ..HandTables::default() }
}

#[test]
fn a_program_that_moves_the_frames_start_gets_original_frames() {
    if !is_root() {
        return;
    }
    let frames: Vec<_> = (1..=5).map(frame).collect();
    let mut restore = XdpRestore::load(&frames).unwrap();
    let vxlan = XdpByHand::load("vxlan", &tunnel()).unwrap();
    let buffers = restore.measure(vxlan.arm()).unwrap();
    assert_eq!(buffers, Buffers::Several);
    // A thousand runs in steps of five, from each frame: the last one is the frame before the first.
    for first in 0..5 {
        let ran = restore.run(buffers, first, 1000).unwrap();
        assert_eq!((ran.action, ran.bytes.len()), (TX, FRAME + TUNNEL));
        assert_eq!(ran.bytes[TUNNEL..], frames[(first as usize + 4) % 5], "from frame {first}");
    }
    for buffers in [Buffers::One, Buffers::Several] {
        assert_eq!(restore.measure(XdpArm::Stub(buffers)).unwrap(), buffers);
        let ran = restore.run(buffers, 3, 7).unwrap();
        assert_eq!((ran.action, &ran.bytes[..]), (TX, &frames[4][..]));
    }
}

#[test]
fn a_longer_frame_keeps_its_length_and_what_follows_is_zero() {
    if !is_root() {
        return;
    }
    const LENGTH: usize = 1066;
    let frames: Vec<_> = (1..=3).map(frame).collect();
    let mut restore = XdpRestore::load(&frames).unwrap().of_length(LENGTH);
    for buffers in [Buffers::One, Buffers::Several] {
        restore.measure(XdpArm::Stub(buffers)).unwrap();
        let ran = restore.run(buffers, 1, 4).unwrap();
        assert_eq!((ran.action, ran.bytes.len()), (TX, LENGTH));
        assert_eq!((&ran.bytes[..FRAME], &ran.bytes[FRAME..]), (&frames[1][..], &[0; LENGTH - FRAME][..]));
    }
}

#[test]
fn other_frames_than_the_program_expects_pass_unchanged() {
    if !is_root() {
        return;
    }
    let mut restore = XdpRestore::load(&[[9; FRAME]]).unwrap();
    for name in ["basic2", "hash256", "ipip", "lb_flows", "nat", "acl100", "lpm10k", "vxlan"] {
        let program = XdpByHand::load(name, &HandTables::default()).unwrap();
        let buffers = restore.measure(program.arm()).unwrap();
        let ran = restore.run(buffers, 0, 2).unwrap();
        assert_eq!((ran.action, &ran.bytes[..]), (PASS, &[9; FRAME][..]), "{name}");
    }
}
