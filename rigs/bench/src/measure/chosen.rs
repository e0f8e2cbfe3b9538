//! Measurements with chosen parameters: those that Agg-Evict compiles in.

use super::front::{Front, POLICY};
use super::round::BURST;
use super::solutions::{
    ADDRESSES, FIVE_TUPLES, FIVE_TUPLES_V6, FOUR_TUPLES, Keys, NAMES, PAIRS, WIDTHS, needs_pairs,
};
use super::stream::{PacketOrigin, Size, Traffic};
use super::{MIDDLE, MeasuredCell, Say, text_trace};
use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_app::kind::BadInput;
use weir_measure::{Frames, Link, Packets, read_packets};
use weir_sketch::{Policy, Update};

/// The largest number of KV arrays: with the widest keys, they have half a gibibyte.
const KVS_MAX: usize = 1 << 19;

/// The largest batch.
const BATCH_MAX: usize = 1 << 16;

/// Which cells to measure, instead of all: every combination of what is given.
#[derive(clap::Args)]
#[group(multiple = true, conflicts_with = "in_path")]
pub struct Chosen {
    /// Only these of the nine solutions, separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = NAMES)]
    solution: Vec<String>,
    /// Numbers of KV arrays of the aggregator, of sixteen keys each, such as `100,500,2000`.
    #[arg(long, value_name = "ARRAYS", value_delimiter = ',', value_parser = kvs)]
    kvs: Vec<usize>,
    /// Replacement policies of the aggregator, such as `grr,lru`.
    #[arg(long, value_name = "POLICY", value_delimiter = ',', value_parser = policy)]
    aggregator: Vec<Policy>,
    /// Bytes of keys: 4 (source), 8 (source and destination), 12 (also ports), 13 (5-tuple), 37 (5-tuple of
    /// IPv6).
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = width)]
    key: Vec<u32>,
    /// Packets per batch, such as `32,8192`.
    #[arg(long, value_name = "PACKETS", value_delimiter = ',', value_parser = batch)]
    batch: Vec<usize>,
    /// Skews of true Zipf distributions, such as `1.1,1.5`.
    #[arg(long, value_name = "SKEW", value_delimiter = ',', value_parser = crate::generate::skew)]
    skew: Vec<f64>,
    /// Take the packets from the beginning of this file instead: a recording, or a text trace as Agg-Evict's
    /// sender reads it.
    #[arg(long, value_name = "FILE", conflicts_with = "skew")]
    trace: Option<PathBuf>,
    /// Compare tags one by one, without vector instructions.
    #[arg(long)]
    no_simd: bool,
    /// Aggregate even where it does not pay, as the paper does.
    #[arg(long)]
    always_on: bool,
}

fn kvs(text: &str) -> Result<usize, String> {
    let kvs = text.parse().ok().filter(|kvs| (1..=KVS_MAX).contains(kvs));
    kvs.ok_or_else(|| format!("expected a number of KV arrays from 1 to {KVS_MAX}"))
}

fn batch(text: &str) -> Result<usize, String> {
    let packets = text.parse().ok().filter(|packets| (1..=BATCH_MAX).contains(packets));
    packets.ok_or_else(|| format!("expected a number of packets from 1 to {BATCH_MAX}"))
}

fn policy(text: &str) -> Result<Policy, String> {
    let found = Policy::ALL.into_iter().find(|policy| policy.word() == text);
    found.ok_or_else(|| format!("expected one of {}", Policy::ALL.map(Policy::word).join(", ")))
}

fn width(text: &str) -> Result<u32, String> {
    let found = text.parse().ok().filter(|bytes| WIDTHS.contains(bytes));
    found.ok_or_else(|| format!("expected one of {}", widths(&WIDTHS)))
}

fn widths(widths: &[u32]) -> String {
    widths.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns what was given, or the default.
fn or<T: Copy>(given: &[T], default: T) -> Vec<T> {
    if given.is_empty() { vec![default] } else { given.to_vec() }
}

impl Chosen {
    /// Returns true if anything was chosen.
    pub fn is_any(&self) -> bool {
        let Chosen { solution, kvs, aggregator, key, batch, skew, trace, no_simd, always_on } = self;
        let is_empty = solution.is_empty() && kvs.is_empty() && aggregator.is_empty() && key.is_empty();
        !(is_empty && batch.is_empty() && skew.is_empty()) || trace.is_some() || *no_simd || *always_on
    }

    /// Measures every combination.
    pub fn run(&self, size: Size, say: Say<'_>) -> Result<Value> {
        let keys = or(&self.key, FIVE_TUPLES.bytes);
        self.check(&keys)?;
        let trace = self.trace.as_deref().map(|file| Trace::read(file, size.packets)).transpose()?;
        let mut rows = Vec::new();
        for bytes in keys {
            let (rows, trace) = (&mut rows, trace.as_ref());
            match bytes {
                4 => self.of_keys::<1, 4, 1>(size, ADDRESSES, trace, rows, say)?,
                8 => self.of_keys::<1, 4, 1>(size, PAIRS, trace, rows, say)?,
                12 => self.of_keys::<2, 4, 1>(size, FOUR_TUPLES, trace, rows, say)?,
                13 => self.of_keys::<2, 4, 1>(size, FIVE_TUPLES, trace, rows, say)?,
                37 => self.of_keys::<5, 8, 2>(size, FIVE_TUPLES_V6, trace, rows, say)?,
                other => unreachable!("{other} is accepted as an argument but is not a width"),
            }
        }
        Ok(json!({
            "solutions": rows,
            "flows": trace.is_none().then_some(size.flows),
            "packets": trace.as_ref().map_or(size.packets, |trace| trace.keys.len()),
            "trace": self.trace.as_ref().map(|file| file.display().to_string()),
            "unflowed": trace.as_ref().map(|trace| trace.unflowed),
        }))
    }

    /// Rejects a solution that was named with keys that it cannot have.
    fn check(&self, keys: &[u32]) -> Result<()> {
        let Some(name) = self.solution.iter().find(|name| needs_pairs(name)) else { return Ok(()) };
        if keys.contains(&ADDRESSES.bytes) {
            let others = widths(&WIDTHS[1..]);
            return Err(BadInput(format!(
                "{name} counts pairs of addresses: `--key 4` has no destination; {name} has the keys {others}"
            ))
            .into());
        }
        Ok(())
    }

    fn names(&self) -> Vec<&'static str> {
        let is_chosen = |name: &&str| self.solution.is_empty() || self.solution.iter().any(|one| one == name);
        NAMES.into_iter().filter(is_chosen).collect()
    }

    /// Returns all combinations of the aggregator's parameters.
    fn fronts(&self) -> Vec<Front> {
        let mut fronts = Vec::new();
        let kvs: Vec<Option<usize>> = self.kvs.iter().copied().map(Some).collect();
        for batch in or(&self.batch, BURST) {
            for policy in or(&self.aggregator, POLICY) {
                for kvs in or(&kvs, None) {
                    let (is_scalar, is_always_on) = (self.no_simd, self.always_on);
                    fronts.push(Front { kvs, policy, is_scalar, is_always_on, batch });
                }
            }
        }
        fronts
    }

    /// Measures keys of one width.
    fn of_keys<const W: usize, const Q: usize, const L: usize>(
        &self,
        size: Size,
        keys: Keys<W>,
        trace: Option<&Trace>,
        rows: &mut Vec<Value>,
        say: Say<'_>,
    ) -> Result<()> {
        let streams: Vec<(PacketOrigin, Vec<Update<W>>)> = match trace {
            Some(trace) => vec![(PacketOrigin::TRACE, trace.packets(keys)?)],
            None => or(&self.skew, MIDDLE)
                .into_iter()
                .map(|skew| (Traffic::Zipf(skew).origin(), Traffic::Zipf(skew).packets(size, 1, keys.of)))
                .collect(),
        };
        for (origin, packets) in streams {
            for front in self.fronts() {
                let cell = MeasuredCell { origin, keys, front, rounds: size.rounds };
                cell.measure::<Q, L>(&self.names(), &packets, rows, say)?;
            }
        }
        Ok(())
    }
}

/// The flows of a recording's packets.
struct Trace {
    file: PathBuf,
    keys: Vec<([u64; 5], u32)>,
    /// Packets in no flow.
    unflowed: u64,
    most: usize,
    frames: Frames,
    stop: Arc<AtomicBool>,
}

impl Trace {
    /// Reads at most this many packets.
    fn read(file: &Path, most: usize) -> Result<Trace> {
        let mut trace = Trace {
            file: file.to_owned(),
            keys: Vec::new(),
            unflowed: 0,
            most,
            frames: Frames::default(),
            stop: Arc::default(),
        };
        if let Some(text) = text_trace::read(file, most).map_err(|error| BadInput(format!("{error:#}")))? {
            (trace.keys, trace.unflowed) = (text.keys, text.unflowed);
            return Ok(trace);
        }
        let stop = trace.stop.clone();
        let read = read_packets(&[file.to_owned()], &mut trace, &stop);
        let reports = read.map_err(|error| BadInput(format!("{error:#}")))?;
        match reports.into_iter().find_map(|report| report.error) {
            Some(error) => Err(anyhow!("{}: {error}", file.display())),
            None => Ok(trace),
        }
    }

    /// Returns the packets whose flows fit into keys of this width.
    fn packets<const W: usize>(&self, keys: Keys<W>) -> Result<Vec<Update<W>>> {
        let update =
            |(key, bytes): &([u64; 5], u32)| Some(Update::packet((keys.from)(key)?, u64::from(*bytes)));
        let packets: Vec<Update<W>> = self.keys.iter().filter_map(update).collect();
        if packets.is_empty() {
            let file = self.file.display();
            let widest = FIVE_TUPLES_V6.bytes;
            return Err(BadInput(match self.keys.len() {
                0 => format!("{file}: no packet belongs to a flow"),
                _ => format!("{file}: no IPv4 flow; only keys of {widest} bytes hold IPv6 and tunnels"),
            })
            .into());
        }
        Ok(packets)
    }
}

impl Packets for Trace {
    fn packet(&mut self, _: u64, link: Link, bytes: &[u8], length: u32) {
        if self.keys.len() == self.most {
            self.stop.store(true, Ordering::Relaxed);
            return;
        }
        match self.frames.flow_on(link, bytes, length) {
            Ok((key, _)) => self.keys.push((key.0, length)),
            Err(_) => self.unflowed += 1,
        }
    }

    fn skipped(&mut self, _: String, packets: u64, _: u64) {
        self.unflowed += packets;
    }
}
