//! The programs that choose paths, in the kernel (`BPF_PROG_TEST_RUN`). Needs root.

mod four;
mod lockstep;
mod six;
mod tunnels;
mod watch;

use std::net::{Ipv4Addr, Ipv6Addr};
use weir_path::bpf::{PathSettings, Steer, TcPath};
use weir_path::tunnel::PathTunnel;
use weir_path::wire::{Secret, VNI};

const SECRET: Secret = Secret([0x0123_4567_89ab_cdef, 42]);
const PASS: i32 = -1;
const SHOT: i32 = 2;
const REDIRECT: i32 = 7;
const PORTS: [u16; 4] = [50_001, 50_002, 50_003, 50_004];
const KERNEL_PORT: u16 = 61_234;

const SETTINGS: PathSettings = PathSettings {
    steer: Steer::Adaptive,
    tunnel: PathTunnel::VXLAN,
    sources: [49_152, 65_535],
    answers: 1_000_000,
    answers_burst: 100_000,
    pinned_ms: 10_000,
    gap_us: 50_000,
    noise_ns: 1000,
    reroute_bytes: 64_000,
    gain_ns: 100_000,
    hold_us: 1000,
    drain_ns: 819,
    half_life_us: 1000,
    echo_port: 0,
    uplinks: [0; 4],
    peers: 1,
    probe_vni: VNI,
    secret: SECRET.0,
};

/// Loads the programs with settings; `None` without root.
fn loaded(settings: &PathSettings) -> Option<TcPath> {
    let mut programs = weir_bed::is_root().then(|| TcPath::load(4, 1024).unwrap())?;
    programs.set(settings).unwrap();
    Some(programs)
}

fn folded(bytes: &[u8], start: u32) -> u16 {
    let sum = bytes.chunks(2).fold(start, |sum, two| {
        sum + u32::from(u16::from_be_bytes([two[0], two.get(1).copied().unwrap_or_default()]))
    });
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
