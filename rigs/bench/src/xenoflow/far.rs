//! The far end: sends at given rates through AF_XDP, receives the frames that return, and reports how long
//! they took. It is also a generator of load, which only sends.
//!
//! A frame carries its number, from which its send time is looked up. The latency of a frame runs from before
//! its batch is handed to the interface until the frame is received, so it includes waiting for the batch.
//! The kernel counts arriving frames at the interface, because this process may be too slow to receive all of
//! them.

use anyhow::{Result, ensure};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_lab::screen::line;
use weir_packet::{Batch, Pool, Pools, Port, RegionPool, Sum, checksum};
use weir_port::xdp::{Rings, XdpConfig, XdpInterface, XdpPort};

use super::rate::SHORTEST;
use crate::source::received;

/// Chunks of the pool beyond those that the ports hold.
const CHUNKS_SPARE: u32 = 1024;
/// How long frames may be in flight.
const UNDER_WAY: Duration = Duration::from_millis(50);
/// Number of frames whose send times are kept: more than rings hold.
const KNOWN: usize = 1 << 16;
/// Offset of the payload.
const PAYLOAD: usize = 42;
/// UDP ports of frames: that of DNS, and one whose packets are discarded (RFC 863).
const DNS: u16 = 53;
pub const DISCARD: u16 = 9;
/// Lengths of frames, without FCS.
const LENGTHS: std::ops::RangeInclusive<i64> = 60..=1514;
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

/// The options of a generator of load.
#[derive(clap::Args)]
pub struct GeneratorOptions {
    /// The interface on which frames leave.
    from: String,
    /// How many of ten clients have an even address.
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(0..=TURN as i64))]
    even: u32,
    /// Frames per second; 0 is as fast as possible.
    #[arg(long, default_value = "0")]
    rate: f64,
    /// Bytes of a frame.
    #[arg(long, default_value = "60", value_parser = clap::value_parser!(u16).range(LENGTHS))]
    length: u16,
}

/// Sends, whenever `running`, and returns the number of frames sent.
pub fn generator(options: &GeneratorOptions) -> Result<impl FnMut(&AtomicBool) -> Result<u64>> {
    let mut generator = Generator::open(&options.from, options.even, frame(options.length, DISCARD))?;
    let rate = options.rate;
    Ok(move |running: &AtomicBool| generator.carry(rate, |_| !running.load(Ordering::Relaxed), |_| {}))
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

/// Sends frames.
struct Generator {
    pools: Pools,
    from: XdpPort,
    batch: Batch,
    _attached: XdpInterface,
    frame: Vec<u8>,
    even: u32,
    start: Instant,
    /// Numbers and send times of the last frames sent.
    known: Vec<(u32, u64)>,
    number: u32,
}

/// Both ends of the wire.
struct Ends {
    generator: Generator,
    to: XdpPort,
    batch: Batch,
    _attached: XdpInterface,
    /// The name of the interface on which frames return.
    name: String,
    /// Latencies of frames in nanoseconds.
    taken: Vec<u64>,
}

impl Generator {
    fn open(from: &str, even: u32, frame: Vec<u8>) -> Result<Generator> {
        let mut pools = Pools::new();
        let chunks = 2 * Rings::default().chunks() + CHUNKS_SPARE;
        let pool = pools.add(Pool::Region(RegionPool::new(chunks, weir_packet::CHUNK_MIN)));
        let attached = XdpInterface::attach(XdpConfig::new(from, weir_bpf::Take::default()))?;
        let from = attached.open_queue(0, &mut pools, pool)?;
        let (start, known) = (Instant::now(), vec![(u32::MAX, 0); KNOWN]);
        let batch = Batch::new();
        Ok(Generator { pools, from, batch, _attached: attached, frame, even, start, known, number: 0 })
    }

    /// Sends at a rate (0: as fast as possible) until `is_over` returns true for the time since the start.
    /// After each batch it does `also`. Returns the number of frames sent.
    fn carry(
        &mut self,
        rate: f64,
        is_over: impl Fn(Duration) -> bool,
        mut also: impl FnMut(&mut Generator),
    ) -> Result<u64> {
        let (start, first) = (Instant::now(), self.number);
        while !is_over(start.elapsed()) {
            let due = (start.elapsed().as_secs_f64() * rate) as u64;
            let late = due.saturating_sub(u64::from(self.number.wrapping_sub(first)));
            if rate == 0.0 || late > 0 {
                self.send(if rate == 0.0 { u64::MAX } else { late })?;
            } else {
                // Yielding would mean waiting for other programs on this core.
                std::hint::spin_loop();
            }
            also(self);
        }
        Ok(u64::from(self.number.wrapping_sub(first)))
    }

    /// Sends a batch, or fewer frames.
    fn send(&mut self, most: u64) -> Result<()> {
        let Generator { pools, from, batch, frame, .. } = self;
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
}

impl Ends {
    fn open(far: &Far) -> Result<Ends> {
        let frame = frame(SHORTEST as u16, DNS);
        let mut generator = Generator::open(&far.from, far.even, frame)?;
        let take = weir_bpf::Take { promiscuous: true, ..weir_bpf::Take::all() };
        let attached = XdpInterface::attach(XdpConfig::new(&far.to, take))?;
        let pool = generator.pools.first().id();
        let to = attached.open_queue(0, &mut generator.pools, pool)?;
        let (batch, name) = (Batch::new(), far.to.clone());
        Ok(Ends { generator, to, batch, _attached: attached, name, taken: Vec::new() })
    }

    /// Sends at a rate for some time. Returns the frames sent, the frames that arrived, and their latencies.
    fn turn(&mut self, rate: f64, time: Duration) -> Result<serde_json::Value> {
        self.taken.clear();
        let before = received(&self.name)?;
        let start = Instant::now();
        let Ends { generator, to, batch, taken, .. } = self;
        let sent = generator.carry(
            rate,
            |elapsed| elapsed >= time,
            |generator| {
                receive(generator, to, batch, taken);
            },
        )?;
        let seconds = start.elapsed().as_secs_f64();
        let settled = Instant::now();
        while settled.elapsed() < UNDER_WAY {
            receive(generator, to, batch, taken);
            std::hint::spin_loop();
        }
        let arrived = received(&self.name)? - before;
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
}

/// Receives the frames that have arrived.
fn receive(generator: &mut Generator, to: &mut XdpPort, batch: &mut Batch, taken: &mut Vec<u64>) {
    let Generator { pools, start, known, .. } = generator;
    loop {
        to.receive(pools, batch);
        let (count, now) = (batch.len(), start.elapsed().as_nanos() as u64);
        for slot in 0..count {
            let frame = batch.take(slot);
            let number = frame.bytes().get(PAYLOAD..PAYLOAD + 4).and_then(|four| four.try_into().ok());
            if let Some(number) = number.map(u32::from_be_bytes)
                && let (known, sent) = known[number as usize % KNOWN]
                && known == number
            {
                taken.push(now.saturating_sub(sent));
            }
            pools.give(frame);
        }
        batch.clear();
        // Gives the kernel chunks for more frames.
        to.flush(pools);
        if count < weir_packet::BATCH {
            return;
        }
    }
}

/// A UDP frame of this length without a checksum, addressed to the node's interface.
fn frame(length: u16, port: u16) -> Vec<u8> {
    let mut frame = vec![0; usize::from(length)];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 0, 0, 53]);
    frame[16..18].copy_from_slice(&(length - 14).to_be_bytes());
    frame[34..36].copy_from_slice(&[0x10, 0]);
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame[38..40].copy_from_slice(&(length - 34).to_be_bytes());
    frame
}

/// Writes the number and a client address into a frame; of ten clients, `even` have an even address.
fn address(frame: &mut [u8], number: u32, even: u32) {
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
        for (share, length) in [(0, 60), (5, 128), (7, 1514), (10, 60)] {
            let mut frame = frame(length, DISCARD);
            let mut even = 0;
            for number in 0..1000 {
                address(&mut frame, number, share);
                even += u32::from(frame[29].is_multiple_of(2));
                let headers = weir_packet::parse(&frame, weir_packet::Depth::L4).expect("sound headers");
                let key = weir_packet::FlowKey::of(&frame, &headers, weir_packet::KeySource::Outer)
                    .expect("an IP packet");
                assert_eq!(key.dst(), std::net::IpAddr::from([10, 0, 0, 53]));
                assert_eq!(key.dport(), DISCARD);
                assert_eq!(u16::from_be_bytes([frame[16], frame[17]]) + 14, length);
                assert_eq!(checksum(Sum::default().bytes(&frame[14..34])), 0);
                assert_eq!(frame[PAYLOAD..PAYLOAD + 4], number.to_be_bytes());
            }
            assert_eq!(even, 100 * share);
        }
    }
}
