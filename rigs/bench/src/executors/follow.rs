//! How soon frames follow a change of one of very many entries: from the request, and from its answer, until
//! the first frame that hits the changed entry arrives at the far end.

use super::{EXECUTORS, ExecutorBench};
use crate::source::use_core;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::fmt::{Display, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use weir_lab::premise::carried;
use weir_lab::weir;
use weir_packet::{Batch, Pool, Pools, Port, RegionPool};
use weir_port::Stream;
use weir_port::xdp::{Rings, XdpConfig, XdpInterface, XdpPort};

/// The address of the first entry.
const FIRST: u32 = 0x0a00_0000;

/// The distance between the entries of consecutive changes: a prime number, so that every entry is changed in
/// turn.
const APART: u32 = 7919;

/// Chunks of the pool beyond those that the ports hold.
const CHUNKS_SPARE: u32 = 1024;

/// How long the sender sleeps between two frames, so that the daemon's main thread can use the core.
const NAP: Duration = Duration::from_micros(20);

/// How long frames may take to follow a change.
const PATIENCE: Duration = Duration::from_secs(5);

/// The interval between two changes.
const PAUSE: Duration = Duration::from_millis(2);

/// Measures both executors with the same entries.
pub fn measure(bench: &mut ExecutorBench<'_>, say: &impl Fn(&dyn Display) -> Result<()>) -> Result<Value> {
    let (entries, changes) = (bench.options.entries, bench.options.changes);
    say(&format_args!("a change of one of {entries} entries, until a frame follows, us (after the answer)"))?;
    let mut found = json!({ "entries": entries, "changes": changes });
    for (between, name) in EXECUTORS {
        let text = bench.with_entries(between, entries);
        let weir = bench.start(between, &text)?;
        let (socket, core) = (weir.socket(), bench.setting.other);
        let times = bench.far.within(|| {
            use_core(core)?;
            let mut probe = FollowProbe::open()?;
            (0..changes).map(|number| probe.change(socket, entries, number)).collect::<Result<Vec<_>>>()
        })?;
        let decided = weir.show("kernel")?["kernel"][0]["decided"].as_f64().unwrap_or(0.0);
        if name == "kernel" {
            carried("the kernel's executor", decided)?;
        }
        weir.stop(&mut bench.run)?;
        let [asked, answered] = [0, 1].map(|at| Times::of(times.iter().map(|times| times[at])));
        say(&format_args!(
            "{name:<8} median {:.0} ({:.0})  p99 {:.0} ({:.0})  longest {:.0} ({:.0})",
            asked.median, answered.median, asked.p99, answered.p99, asked.longest, answered.longest
        ))?;
        found[name] = json!({ "asked": asked.json(), "answered": answered.json() });
    }
    Ok(found)
}

/// Durations in microseconds.
struct Times {
    median: f64,
    p99: f64,
    longest: f64,
}

impl Times {
    /// Sorts at least one duration.
    fn of(times: impl Iterator<Item = Duration>) -> Times {
        let mut us: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e6).collect();
        us.sort_by(f64::total_cmp);
        let at = |percent: usize| us[(us.len() * percent / 100).min(us.len() - 1)];
        Times { median: at(50), p99: at(99), longest: at(100) }
    }

    fn json(&self) -> Value {
        json!({ "median_us": self.median, "p99_us": self.p99, "max_us": self.longest })
    }
}

impl ExecutorBench<'_> {
    /// Returns a configuration with an entry for each of very many destinations.
    fn with_entries(&self, between: super::Between, entries: u32) -> String {
        let text = self.configuration(between, 1);
        let head = text.split_once("    match:").map_or("", |(head, _)| head);
        let mut text = format!(
            "{head}    match: {{ ipv4.dst: per_entry }}
    action: [{{ set: {{ eth.src: 02:00:00:00:00:03, eth.dst: per_entry }} }}]
    forward: out
    miss: drop
    entries:
"
        );
        for at in 0..entries {
            let _ = writeln!(text, "      - {}", entry(at, 0));
        }
        text
    }
}

/// Returns an entry after `version` changes.
fn entry(at: u32, version: u32) -> String {
    let [a, b, c, d] = version.to_be_bytes();
    format!(
        "{{ match: {{ ipv4.dst: {} }}, set: {{ eth.dst: 02:01:{a:02x}:{b:02x}:{c:02x}:{d:02x} }} }}",
        Ipv4Addr::from_bits(FIRST + at)
    )
}

/// The far end: sends frames for one entry at a time, and receives them with the address that it gave them.
struct FollowProbe {
    pools: Pools,
    from: XdpPort,
    to: XdpPort,
    batch: Batch,
    _attached: [XdpInterface; 2],
}

impl FollowProbe {
    fn open() -> Result<FollowProbe> {
        let mut pools = Pools::new();
        let chunks = 2 * Rings::default().chunks() + CHUNKS_SPARE;
        let pool = pools.add(Pool::Region(RegionPool::new(chunks, weir_packet::CHUNK_MIN)));
        let attach = |name: &str, take| XdpInterface::attach(XdpConfig::new(name, take));
        let out = attach("f0", weir_bpf::Take::default())?;
        let back = attach("f1", weir_bpf::Take { promiscuous: true, ..weir_bpf::Take::all() })?;
        let from = out.open_queue(0, &mut pools, pool)?;
        let to = back.open_queue(0, &mut pools, pool)?;
        Ok(FollowProbe { pools, from, to, batch: Batch::new(), _attached: [out, back] })
    }

    /// Changes an entry, and waits for a frame that follows. Returns how long that took since the request was
    /// sent, and since it was answered.
    fn change(&mut self, socket: &Path, entries: u32, number: u32) -> Result<[Duration; 2]> {
        std::thread::sleep(PAUSE);
        let (at, version) = ((number.wrapping_mul(APART)) % entries, number + 1);
        let address = Ipv4Addr::from_bits(FIRST + at);
        let flow = (Ipv4Addr::new(10, 255, 0, 1), address, 4096, 53);
        let frame = Stream::udp(60, [flow]).frame(0);
        let request = json!({
            "command": "entry", "do": "update", "pipe": "balance", "entry": entry(at, version),
        });
        let (answered, answer) = channel();
        std::thread::scope(|scope| {
            let asked = scope.spawn(move || {
                let begun = Instant::now();
                let reply = weir::ask(socket, &request);
                let _ = answered.send([begun, Instant::now()]);
                reply
            });
            let seen = self.watch(&frame, version)?;
            asked.join().expect("it does not panic")?;
            let times = answer.recv().context("the request has ended")?;
            Ok(times.map(|time| seen.saturating_duration_since(time)))
        })
    }

    /// Sends copies of a frame until one returns from an entry that was changed this often. Returns when it
    /// arrived.
    fn watch(&mut self, frame: &[u8], version: u32) -> Result<Instant> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            self.send(frame)?;
            std::thread::sleep(NAP);
            if self.receive(version) {
                return Ok(Instant::now());
            }
        }
        bail!("no frame follows change {version}")
    }

    fn send(&mut self, frame: &[u8]) -> Result<()> {
        let FollowProbe { pools, from, batch, .. } = self;
        if let Some(mut next) = pools.first().take() {
            ensure!(next.fill(frame).is_ok(), "a frame is too long for its chunk");
            if let Err(next) = batch.push(next) {
                pools.give(next);
            }
        }
        let list = batch.mask();
        let sent = from.transmit(pools, batch, list);
        from.flush(pools);
        weir_packet::Bits(list & !sent).for_each(|slot| pools.give(batch.take(slot)));
        batch.clear();
        Ok(())
    }

    /// Receives the frames that have arrived. Returns true if one follows.
    fn receive(&mut self, version: u32) -> bool {
        let FollowProbe { pools, to, batch, .. } = self;
        to.receive(pools, batch);
        let mut follows = false;
        for slot in 0..batch.len() {
            let frame = batch.take(slot);
            follows |= frame.bytes().get(2..6) == Some(&version.to_be_bytes()[..]);
            pools.give(frame);
        }
        batch.clear();
        to.flush(pools);
        follows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_sorted_list() {
        let times = Times::of((1..=200).rev().map(Duration::from_micros));
        assert_eq!((times.median.round(), times.p99.round(), times.longest.round()), (101.0, 199.0, 200.0));
    }

    #[test]
    fn an_entry_says_how_often_it_was_changed() {
        let text = "{ match: { ipv4.dst: 10.0.1.1 }, set: { eth.dst: 02:01:00:01:00:02 } }";
        assert_eq!(entry(257, 65_538), text);
    }
}
