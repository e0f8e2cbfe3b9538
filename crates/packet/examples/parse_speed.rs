//! Measures finding headers, flow keys and hashes in nanoseconds per frame: `cargo run --release -p
//! weir-packet
//! --example parse_speed`.
//!
//! The 64 frames of 64 flows, as in a batch, stay in the first-level cache. Each line is the best of many
//! short rounds, because other activity on the machine can only add time. Nothing is allocated while the
//! clock runs.

use std::hint::black_box;
use std::time::Instant;
use weir_packet::craft::frame;
use weir_packet::{BATCH, Depth, DropReason, FlowKey, Headers, KeySource, TableHash, parse, select_hash};

/// Batches per round: about a tenth of a millisecond, short enough to run undisturbed.
const BATCHES: usize = 400;
/// Number of rounds; the best one counts.
const ROUNDS: usize = 300;

fn main() {
    let udp: Vec<Vec<u8>> =
        frames(|n| format!("src=10.0.0.{n} dst=10.1.0.1 sport={} dport=53 len=64", 1024 + n));
    let tcp6: Vec<Vec<u8>> =
        frames(|n| format!("src=fd00::{n} dst=fd00::1:1 proto=tcp sport={} dport=443", 1024 + n));
    let vxlan: Vec<Vec<u8>> = frames(|n| {
        format!(
            "src=10.0.0.1 dst=10.0.0.2 sport={} vni=7 inner(src=10.9.0.{n} dst=10.9.1.1 proto=tcp)",
            49152 + n
        )
    });
    say("UDP/IPv4 64 B, parse L2", &udp, |frame| parse(frame, Depth::L2));
    say("UDP/IPv4 64 B, parse L3", &udp, |frame| parse(frame, Depth::L3));
    say("UDP/IPv4 64 B, parse L4", &udp, |frame| parse(frame, Depth::L4));
    say("UDP/IPv4 64 B, parse inner", &udp, |frame| parse(frame, Depth::Inner));
    let depth = black_box(Depth::L4);
    say("UDP/IPv4 64 B, parse L4, depth of a program", &udp, |frame| parse(frame, depth));
    say("TCP/IPv6, parse L4", &tcp6, |frame| parse(frame, Depth::L4));
    say("TCP/IPv4 in VXLAN, parse inner", &vxlan, |frame| parse(frame, Depth::Inner));
    hashes(&udp, &vxlan);
}

/// Measures keys and hashes of frames that are already parsed, and then everything together.
fn hashes(udp: &[Vec<u8>], vxlan: &[Vec<u8>]) {
    let table = TableHash::random();
    let seed = black_box(7);
    let outer = black_box(parse(&udp[0], Depth::L4).unwrap_or_default());
    let inner = black_box(parse(&vxlan[0], Depth::Inner).unwrap_or_default());
    say("UDP/IPv4, key", udp, |frame| key(frame, &outer));
    say("UDP/IPv4, key and table hash", udp, |frame| key(frame, &outer).map(|key| table.hash(&key.0)));
    say("UDP/IPv4, key and select hash", udp, |frame| {
        key(frame, &outer).map(|key| select_hash(seed, &key.0))
    });
    say("VXLAN, inner key and table hash", vxlan, |frame| key(frame, &inner).map(|key| table.hash(&key.0)));
    say("UDP/IPv4, parse L4, key, both hashes", udp, |frame| {
        let headers = parse(frame, Depth::L4)?;
        let key = key(frame, &headers)?;
        Ok((table.hash(&key.0), select_hash(seed, &key.0)))
    });
}

fn key(frame: &[u8], headers: &Headers) -> Result<FlowKey, DropReason> {
    FlowKey::of(frame, headers, KeySource::Inner).ok_or(DropReason::NotApplicable)
}

fn frames(text: impl Fn(usize) -> String) -> Vec<Vec<u8>> {
    (1..=BATCH).map(|n| frame(&text(n))).collect()
}

fn say<T: Default + Copy>(what: &str, frames: &[Vec<u8>], work: impl Fn(&[u8]) -> Result<T, DropReason>) {
    let best = (0..ROUNDS).map(|_| round(frames, &work)).min().unwrap_or_default();
    println!("{what:<45} {:6.2} ns", best as f64 / (BATCHES * frames.len()) as f64);
}

/// Measures one round. Results are stored per slot, as a worker stores them.
fn round<T: Default + Copy>(frames: &[Vec<u8>], work: impl Fn(&[u8]) -> Result<T, DropReason>) -> u128 {
    let mut results = [T::default(); BATCH];
    let start = Instant::now();
    for _ in 0..BATCHES {
        for (frame, result) in black_box(frames).iter().zip(&mut results) {
            if let Ok(done) = work(frame) {
                *result = done;
            }
        }
        black_box(&mut results);
    }
    start.elapsed().as_nanos()
}
