//! The far end: sends at given rates through AF_XDP, receives the frames that return, and reports how long
//! they took.
//!
//! A frame carries its number, from which its send time is looked up. The latency of a frame runs from before
//! its batch is handed to the interface until the frame is received, so it includes waiting for the batch.
//! The kernel counts arriving frames at the interface, because this process may be too slow to receive all of
//! them.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::time::{Duration, Instant};
use weir_lab::screen::line;
use weir_packet::{Batch, Pool, Pools, Port, RegionPool, Sum, checksum};
use weir_port::xdp::{Rings, XdpConfig, XdpInterface, XdpPort};

use super::rate::SHORTEST;

/// Chunks of the pool beyond those that the ports hold.
const CHUNKS_SPARE: u32 = 1024;
/// How long frames may be in flight.
const UNDER_WAY: Duration = Duration::from_millis(50);
/// Number of frames whose send times are kept: more than rings hold.
const KNOWN: usize = 1 << 16;
/// Offset of the payload.
const PAYLOAD: usize = 42;
/// Client addresses.
const CLIENTS: u32 = 254;
/// Each group of this many clients has the configured share of even ones.
const TURN: u32 = 10;

/// The options of the far end.
#[derive(clap::Args)]
pub struct Far {
    /// The interface on which frames leave.
    from: String,
    /// The interface on which they return.
    to: String,
    /// How many of ten clients have an even address.
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(0..=TURN as i64))]
    even: u32,
    /// Milliseconds to send at each rate.
    #[arg(long, default_value = "1000")]
    millis: u64,
    /// Frames per second; 0 is as fast as possible.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    rates: Vec<f64>,
}

/// Sends at each rate, and prints the results as one line of JSON.
pub fn run(far: &Far) -> Result<()> {
    let mut ends = Ends::open(far)?;
    let time = Duration::from_millis(far.millis);
    // Warm up, so that one-time costs occur now.
    ends.turn(1000.0, time / 4)?;
    let rows = far.rates.iter().map(|rate| ends.turn(*rate, time)).collect::<Result<Vec<_>>>()?;
    line(json!(rows))
}

/// Both ends of the wire.
struct Ends {
    pools: Pools,
    from: XdpPort,
    to: XdpPort,
    batch: Batch,
    _attached: [XdpInterface; 2],
    /// The name of the interface on which frames return.
    name: String,
    frame: [u8; SHORTEST as usize],
    even: u32,
    start: Instant,
    /// Numbers and send times of the last frames sent.
    known: Vec<(u32, u64)>,
    number: u32,
    /// Latencies of frames in nanoseconds.
    taken: Vec<u64>,
}

impl Ends {
    fn open(far: &Far) -> Result<Ends> {
        let mut pools = Pools::new();
        let chunks = 2 * Rings::default().chunks() + CHUNKS_SPARE;
        let pool = pools.add(Pool::Region(RegionPool::new(chunks, weir_packet::CHUNK_MIN)));
        let attach = |name: &str, take| XdpInterface::attach(XdpConfig::new(name, take));
        let out = attach(&far.from, weir_bpf::Take::default())?;
        let back = attach(&far.to, weir_bpf::Take { promiscuous: true, ..weir_bpf::Take::all() })?;
        let from = out.open_queue(0, &mut pools, pool)?;
        let to = back.open_queue(0, &mut pools, pool)?;
        Ok(Ends {
            pools,
            from,
            to,
            batch: Batch::new(),
            _attached: [out, back],
            name: far.to.clone(),
            frame: frame(),
            even: far.even,
            start: Instant::now(),
            known: vec![(u32::MAX, 0); KNOWN],
            number: 0,
            taken: Vec::new(),
        })
    }

    /// Sends at a rate for some time. Returns the frames sent, the frames that arrived, and their latencies.
    fn turn(&mut self, rate: f64, time: Duration) -> Result<serde_json::Value> {
        self.taken.clear();
        let before = self.arrived()?;
        let (start, first) = (Instant::now(), self.number);
        while start.elapsed() < time {
            let due = (start.elapsed().as_secs_f64() * rate) as u64;
            let late = due.saturating_sub(u64::from(self.number.wrapping_sub(first)));
            if rate == 0.0 || late > 0 {
                self.send(if rate == 0.0 { u64::MAX } else { late })?;
            } else {
                // Yielding would mean waiting for other programs on this core.
                std::hint::spin_loop();
            }
            self.receive();
        }
        let seconds = start.elapsed().as_secs_f64();
        let sent = u64::from(self.number.wrapping_sub(first));
        let settled = Instant::now();
        while settled.elapsed() < UNDER_WAY {
            self.receive();
            std::hint::spin_loop();
        }
        let arrived = self.arrived()? - before;
        self.taken.sort_unstable();
        let at = |share: f64| {
            let last = self.taken.len().checked_sub(1)?;
            Some(self.taken[((self.taken.len() as f64 * share) as usize).min(last)] as f64 / 1e3)
        };
        Ok(json!({
            "rate": rate, "offered_mpps": sent as f64 / seconds / 1e6, "sent": sent, "arrived": arrived,
            "timed": self.taken.len(), "median_us": at(0.5), "p99_us": at(0.99),
        }))
    }

    /// Returns the number of frames that the kernel has received on the return interface.
    fn arrived(&self) -> Result<u64> {
        let table = std::fs::read_to_string("/proc/net/dev").context("/proc/net/dev")?;
        let line = table.lines().find_map(|line| line.trim().strip_prefix(&self.name)?.strip_prefix(':'));
        let line = line.with_context(|| format!("there is no interface `{}`", self.name))?;
        Ok(line.split_whitespace().nth(1).context("its counters")?.parse()?)
    }

    /// Sends a batch, or fewer frames.
    fn send(&mut self, most: u64) -> Result<()> {
        let Ends { pools, from, batch, frame, .. } = self;
        let now = self.start.elapsed().as_nanos() as u64;
        let first = self.number;
        for _ in 0..most.min(weir_packet::BATCH as u64) {
            let Some(mut next) = pools.first().take() else { break };
            address(frame, self.number, self.even);
            ensure!(next.fill(frame).is_ok(), "a frame is too long for its chunk");
            if let Err(next) = batch.push(next) {
                pools.give(next);
                break;
            }
            self.known[self.number as usize % KNOWN] = (self.number, now);
            self.number = self.number.wrapping_add(1);
        }
        let (list, count) = (batch.mask(), batch.len() as u32);
        let sent = from.transmit(pools, batch, list);
        from.flush(pools);
        // A ring accepts the first frames; the others are sent next time, with the same numbers.
        self.number = first.wrapping_add(sent.count_ones());
        if sent.count_ones() < count {
            weir_packet::Bits(list & !sent).for_each(|slot| pools.give(batch.take(slot)));
        }
        batch.clear();
        Ok(())
    }

    /// Receives the frames that have arrived.
    fn receive(&mut self) {
        loop {
            self.to.receive(&mut self.pools, &mut self.batch);
            let (count, now) = (self.batch.len(), self.start.elapsed().as_nanos() as u64);
            for slot in 0..count {
                let frame = self.batch.take(slot);
                let number = frame.bytes().get(PAYLOAD..PAYLOAD + 4).and_then(|four| four.try_into().ok());
                if let Some(number) = number.map(u32::from_be_bytes)
                    && let (known, sent) = self.known[number as usize % KNOWN]
                    && known == number
                {
                    self.taken.push(now.saturating_sub(sent));
                }
                self.pools.give(frame);
            }
            self.batch.clear();
            // Gives the kernel chunks for more frames.
            self.to.flush(&mut self.pools);
            if count < weir_packet::BATCH {
                return;
            }
        }
    }
}

/// A UDP frame without a checksum, addressed to the node's interface.
fn frame() -> [u8; SHORTEST as usize] {
    let mut frame = [0; SHORTEST as usize];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 0, 0, 53]);
    frame[34..42].copy_from_slice(&[0x10, 0, 0, 53, 0, 26, 0, 0]);
    frame
}

/// Writes the number and a client address into a frame; of ten clients, `even` have an even address.
fn address(frame: &mut [u8; SHORTEST as usize], number: u32, even: u32) {
    let odd = u32::from(number % TURN >= even);
    let client = (number / TURN % (CLIENTS / 2) * 2 + odd) as u8;
    frame[29] = client;
    frame[PAYLOAD..PAYLOAD + 4].copy_from_slice(&number.to_be_bytes());
    frame[24..26].fill(0);
    let sum = checksum(Sum::default().bytes(&frame[14..34]));
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_even_by_the_share_and_frames_are_sound() {
        for share in [0, 5, 7, 10] {
            let mut frame = frame();
            let mut even = 0;
            for number in 0..1000 {
                address(&mut frame, number, share);
                even += u32::from(frame[29].is_multiple_of(2));
                let headers = weir_packet::parse(&frame, weir_packet::Depth::L4).expect("sound headers");
                let key = weir_packet::FlowKey::of(&frame, &headers, weir_packet::KeySource::Outer)
                    .expect("an IP packet");
                assert_eq!(key.dst(), std::net::IpAddr::from([10, 0, 0, 53]));
                assert_eq!(checksum(Sum::default().bytes(&frame[14..34])), 0);
                assert_eq!(frame[PAYLOAD..PAYLOAD + 4], number.to_be_bytes());
            }
            assert_eq!(even, 100 * share);
        }
    }
}
