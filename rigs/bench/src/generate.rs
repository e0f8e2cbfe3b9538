//! `weir bench generate`: traffic with known ground truth, written to a recording or sent out of an
//! interface.
//!
//! Flows are drawn from seeded distributions (`sketch::traffic`), or the frames of a recording are repeated.
//! A frame is a copy of a template with addresses, ports and checksums filled in, so that a file is written
//! as fast as the disk allows. Equal arguments give equal files.

use crate::measure::Traffic;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_lab::screen::line;
use weir_packet::{Batch, Pool, Pools, Port, RegionPool, Sum, checksum};
use weir_port::pcap::{Reader, Record, Writer};
use weir_port::xdp::{Rings, XdpConfig, XdpInterface, XdpPort};

/// The timestamp of a recording's first frame: the start of 2026.
const START_NS: u64 = 1_767_225_600_000_000_000;

/// TCP flags: an acknowledgement, and the opening of a connection.
const ACK: u8 = 0x10;
const SYN: u8 = 0x02;

/// Flow numbers from this one on belong to a SYN flood (`sketch::traffic::Flood`).
const FLOOD: u64 = 1 << 32;

/// The longest frame sent out of an interface.
const FRAME_MAX: u32 = 1514;

/// Chunks of the pool beyond those that the port holds.
const CHUNKS_SPARE: u32 = 1024;

/// How long a full ring may stay full.
const PATIENCE: Duration = Duration::from_secs(2);

/// The traffic to generate, and its destination.
#[derive(clap::Args)]
pub struct GenerateOptions {
    /// The file to write: classic pcap with nanoseconds.
    #[arg(short, long, value_name = "FILE", conflicts_with = "to", required_unless_present = "to")]
    output: Option<PathBuf>,
    /// The interface to send out of, through AF_XDP; needs root.
    #[arg(long, value_name = "IFACE")]
    to: Option<String>,
    /// How flows arrive: independently by true Zipf, by the popzipf of Agg-Evict's paper, in packet trains,
    /// or along with a SYN flood of 30 % of the packets.
    #[arg(long, default_value = "zipf", value_parser = ["zipf", "popzipf", "trains", "flood"])]
    traffic: String,
    /// The skew of the distribution: 0 is uniform.
    #[arg(long, default_value = "1.1", value_parser = skew)]
    skew: f64,
    /// Number of flows that packets are drawn from.
    #[arg(long, default_value = "600000", value_parser = clap::value_parser!(u64).range(1..=FLOOD - 1))]
    flows: u64,
    /// Number of packets.
    #[arg(short, long, default_value = "1000000")]
    count: u64,
    /// Bytes of a frame without FCS.
    #[arg(long, default_value = "60", value_parser = clap::value_parser!(u32).range(60..=FRAME_MAX as i64))]
    length: u32,
    /// Packets per second: the timestamps in a file, or the pace on an interface (where 0 is as fast as it
    /// goes).
    #[arg(long, default_value = "1000000")]
    rate: u64,
    /// Equal seeds give equal packets.
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Replays the frames of this recording in a loop instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["traffic", "skew", "flows", "length", "seed"])]
    replay: Option<PathBuf>,
}

/// Parses a skew.
pub fn skew(text: &str) -> Result<f64, String> {
    let skew: f64 = text.parse().map_err(|_| "a skew is a number, such as 1.1".to_string())?;
    if (0.0..=3.0).contains(&skew) { Ok(skew) } else { Err("a skew is between 0 and 3".to_string()) }
}

/// Generates the traffic, and reports how much.
pub fn run(options: &GenerateOptions) -> Result<()> {
    let mut frames = match &options.replay {
        Some(file) => Frames::Replayed(Box::new(Replay::open(file)?)),
        None => Frames::Made(Box::new(Made::new(options))),
    };
    let start = Instant::now();
    let to = match (&options.output, &options.to) {
        (Some(file), _) => {
            write(&mut frames, options, file)?;
            file.display().to_string()
        }
        (None, Some(interface)) => {
            Sender::open(interface)?.send(&mut frames, options.rate, (options.count, Duration::MAX))?;
            interface.clone()
        }
        (None, None) => bail!("name a file with `-o FILE` or an interface with `--to IFACE`"),
    };
    let seconds = start.elapsed().as_secs_f64();
    let mpps = options.count as f64 / 1e6 / seconds;
    line(format_args!("{} packets to {to} in {seconds:.2} s, {mpps:.2} Mpps", options.count))
}

/// A source of frames.
pub enum Frames {
    Made(Box<Made>),
    Replayed(Box<Replay>),
}

impl Frames {
    /// Frames of `length` bytes, of flows drawn from Zipf 1.1.
    pub fn zipf(flows: u64, length: u32) -> Frames {
        Frames::Made(Box::new(Made::drawn(Traffic::Zipf(1.1).flows(flows, 1), length)))
    }

    /// Sets the destination and source MAC addresses of generated frames; recorded frames keep theirs.
    pub fn with_macs(mut self, destination: [u8; 6], source: [u8; 6]) -> Frames {
        if let Frames::Made(made) = &mut self {
            made.frame[..6].copy_from_slice(&destination);
            made.frame[6..12].copy_from_slice(&source);
        }
        self
    }

    /// Returns the next frame, and its length on the wire.
    fn next(&mut self) -> Result<(&[u8], u32)> {
        match self {
            Frames::Made(made) => {
                let frame = made.next()?;
                Ok((frame, frame.len() as u32))
            }
            Frames::Replayed(replay) => replay.next(),
        }
    }
}

/// TCP over IPv4 frames of drawn flows.
pub struct Made {
    flows: Box<dyn Iterator<Item = u64>>,
    frame: Vec<u8>,
    /// The checksums of the IPv4 header and of the TCP segment with its pseudo-header, without the fields
    /// that differ.
    sums: [Sum; 2],
}

impl Made {
    fn new(options: &GenerateOptions) -> Made {
        let skew = options.skew;
        let traffic = match options.traffic.as_str() {
            "popzipf" => Traffic::PopZipf(skew),
            "trains" => Traffic::Trains(skew),
            "flood" => Traffic::Flood(skew),
            "zipf" => Traffic::Zipf(skew),
            other => unreachable!("`{other}` is accepted as an argument but is not a kind of traffic"),
        };
        Made::drawn(traffic.flows(options.flows, options.seed), options.length)
    }

    fn drawn(flows: Box<dyn Iterator<Item = u64>>, length: u32) -> Made {
        let mut frame = vec![0; length as usize];
        let length = length as u16 - 14;
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        frame[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6]);
        frame[16..18].copy_from_slice(&length.to_be_bytes());
        // Data offset of five words; a window.
        frame[46] = 5 << 4;
        frame[48..50].copy_from_slice(&0xffff_u16.to_be_bytes());
        let segment = Sum::default().bytes(&frame[34..]).bytes(&[0, 6]).bytes(&(length - 20).to_be_bytes());
        let sums = [Sum::default().bytes(&frame[14..34]), segment];
        Made { flows, frame, sums }
    }

    fn next(&mut self) -> Result<&[u8]> {
        let flow = self.flows.next().context("a distribution does not end")?;
        let [addresses, last] = five_tuple(flow);
        let (addresses, ports) = (addresses.to_be_bytes(), ((last >> 32) as u32).to_be_bytes());
        let flags = if flow >= FLOOD { SYN } else { ACK };
        let [header, segment] = self.sums;
        let header = checksum(header.bytes(&addresses));
        let segment = checksum(segment.bytes(&addresses).bytes(&ports).bytes(&[0, flags]));
        let frame = &mut self.frame;
        frame[24..26].copy_from_slice(&header.to_be_bytes());
        frame[26..34].copy_from_slice(&addresses);
        frame[34..38].copy_from_slice(&ports);
        frame[47] = flags;
        frame[50..52].copy_from_slice(&segment.to_be_bytes());
        Ok(frame)
    }
}

/// The 5-tuple of a flow number. Its source is a unicast address: 1.0.0.0 to 127.255.255.255.
const fn five_tuple(flow: u64) -> [u64; 2] {
    let [addresses, last] = weir_sketch::traffic::five_tuple(flow);
    [addresses & !(1 << 63) | 1 << 56, last]
}

/// The frames of a recording, in a loop.
pub struct Replay {
    file: PathBuf,
    reader: Reader<BufReader<File>>,
    record: Record,
}

impl Replay {
    fn open(file: &Path) -> Result<Replay> {
        let mut replay =
            Replay { file: file.to_owned(), reader: Replay::reader(file)?, record: Record::default() };
        let has_frames = replay.reader.read(&mut replay.record).with_context(|| replay.file_name())?;
        ensure!(has_frames, "{}: no Ethernet frame in this recording", file.display());
        replay.reader = Replay::reader(file)?;
        Ok(replay)
    }

    fn reader(file: &Path) -> Result<Reader<BufReader<File>>> {
        let input = File::open(file).with_context(|| format!("{} cannot be read", file.display()))?;
        Reader::open(input).with_context(|| file.display().to_string())
    }

    fn file_name(&self) -> String {
        self.file.display().to_string()
    }

    fn next(&mut self) -> Result<(&[u8], u32)> {
        if !self.reader.read(&mut self.record).with_context(|| self.file.display().to_string())? {
            self.reader = Replay::reader(&self.file)?;
            let has_frames = self.reader.read(&mut self.record).with_context(|| self.file_name())?;
            ensure!(has_frames, "{}: the recording became empty", self.file.display());
        }
        Ok((&self.record.bytes, self.record.length))
    }
}

/// Returns the nanoseconds from the first packet to packet `number`.
fn time_ns(number: u64, rate: u64) -> u64 {
    (u128::from(number) * 1_000_000_000 / u128::from(rate.max(1))) as u64
}

fn write(frames: &mut Frames, options: &GenerateOptions, file: &Path) -> Result<()> {
    ensure!(options.rate > 0, "`--rate 0` gives a recording no timestamps: specify packets per second");
    let unwritable = || format!("{} cannot be written", file.display());
    let mut writer = Writer::new(File::create(file).with_context(unwritable)?).with_context(unwritable)?;
    for number in 0..options.count {
        let (bytes, length) = frames.next()?;
        let time_ns = START_NS + time_ns(number, options.rate);
        writer.write(time_ns, length, bytes).with_context(unwritable)?;
    }
    writer.flush().with_context(unwritable)
}

/// An interface to send frames out of.
pub struct Sender {
    pools: Pools,
    port: XdpPort,
    batch: Batch,
    /// Keeps the program on the interface while frames are sent.
    _attached: XdpInterface,
}

impl Sender {
    /// Attaches to an interface. The port only sends, so the kernel still gets all received frames.
    pub fn open(interface: &str) -> Result<Sender> {
        let mut pools = Pools::new();
        let chunks = Rings::default().chunks() + CHUNKS_SPARE;
        let pool = pools.add(Pool::Region(RegionPool::new(chunks, weir_packet::CHUNK_MIN)));
        let attached = XdpInterface::attach(XdpConfig::new(interface, weir_bpf::Take::default()))?;
        let port = attached.open_queue(0, &mut pools, pool)?;
        Ok(Sender { pools, port, batch: Batch::new(), _attached: attached })
    }

    /// Sends at a rate (0: as fast as the interface accepts frames) until `count` frames are sent or `time`
    /// is over. Returns how many were sent.
    pub fn send(&mut self, frames: &mut Frames, rate: u64, (count, time): (u64, Duration)) -> Result<u64> {
        let Sender { pools, port, batch, .. } = self;
        let (start, mut progress, mut sent) = (Instant::now(), Instant::now(), 0);
        while sent < count && start.elapsed() < time {
            ensure!(progress.elapsed() < PATIENCE, "{} takes no frames: is it up?", port.name());
            let due = if rate == 0 { count } else { due(start.elapsed(), rate).min(count) };
            if due > sent {
                fill(frames, pools, batch, due - sent)?;
            } else {
                progress = Instant::now();
            }
            let before = sent;
            sent += transmit(port, pools, batch)?;
            if sent > before {
                progress = Instant::now();
            }
        }
        Ok(sent)
    }
}

/// Puts at most `most` frames into an empty batch, or fewer if the pool runs out.
fn fill(frames: &mut Frames, pools: &mut Pools, batch: &mut Batch, most: u64) -> Result<()> {
    for _ in 0..most.min(weir_packet::BATCH as u64) {
        let Some(mut frame) = pools.first().take() else { break };
        let (bytes, _) = frames.next()?;
        let fits = bytes.len() <= FRAME_MAX as usize && frame.fill(bytes).is_ok();
        ensure!(fits, "a frame of {} bytes is too long for the interface: at most {FRAME_MAX}", bytes.len());
        if let Err(frame) = batch.push(frame) {
            pools.give(frame);
        }
    }
    Ok(())
}

/// Returns the number of packets due after some time.
fn due(elapsed: Duration, rate: u64) -> u64 {
    (elapsed.as_nanos() * u128::from(rate) / 1_000_000_000) as u64 + 1
}

/// Sends a whole batch, retrying frames that do not fit the ring, and empties it. Returns how many were sent.
fn transmit(port: &mut dyn Port, pools: &mut Pools, batch: &mut Batch) -> Result<u64> {
    let (mut left, start, count) = (batch.mask(), Instant::now(), batch.len() as u64);
    loop {
        left &= !port.transmit(pools, batch, left);
        port.flush(pools);
        if left == 0 {
            batch.clear();
            return Ok(count);
        }
        ensure!(start.elapsed() < PATIENCE, "{} takes no frames: is it up?", port.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::FlowKey;

    fn options(traffic: &str) -> GenerateOptions {
        GenerateOptions {
            output: None,
            to: None,
            traffic: traffic.to_string(),
            skew: 1.1,
            flows: 1000,
            count: 500,
            length: 64,
            rate: 2_000_000,
            seed: 3,
            replay: None,
        }
    }

    /// A recording holds the drawn flows, with timestamps at the rate and correct checksums.
    #[test]
    fn a_recording_holds_the_flows_that_were_drawn() {
        let file = std::env::temp_dir().join(format!("weir-generate-{}.pcap", std::process::id()));
        let asked = options("flood");
        let mut made = Frames::Made(Box::new(Made::new(&asked)));
        write(&mut made, &asked, &file).expect("a temporary file");
        let drawn: Vec<u64> = Traffic::Flood(1.1).flows(1000, 3).take(500).collect();
        let mut reader = Replay::reader(&file).expect("it was written");
        let mut record = Record::default();
        for (number, flow) in drawn.iter().enumerate() {
            assert!(reader.read(&mut record).expect("whole"), "{number}");
            assert_eq!(record.time_ns, START_NS + number as u64 * 500);
            let frame = &record.bytes;
            let headers = weir_packet::parse(frame, weir_packet::Depth::L4).expect("sound headers");
            let key = FlowKey::of(frame, &headers, weir_packet::KeySource::Outer).expect("an IP packet");
            assert_eq!(key.0, weir_sketch::key::widen(five_tuple(*flow)));
            assert_eq!(frame[47], if *flow >= FLOOD { SYN } else { ACK });
            assert_eq!(checksum(Sum::default().bytes(&frame[14..34])), 0);
            let pseudo = Sum::default().bytes(&frame[26..34]).bytes(&[0, 6, 0, 30]);
            assert_eq!(checksum(pseudo.bytes(&frame[34..])), 0);
        }
        assert!(!reader.read(&mut record).expect("whole"));
        let mut replayed = Replay::open(&file).expect("frames");
        let mut first = Vec::new();
        for number in 0..501 {
            let bytes = replayed.next().expect("it begins again").0.to_vec();
            if number == 0 {
                first = bytes;
            } else if number == 500 {
                assert_eq!(bytes, first);
            }
        }
        std::fs::remove_file(&file).expect("it is ours");
    }

    #[test]
    fn equal_seeds_give_equal_frames_and_others_do_not() {
        let frames = |seed| {
            let mut made = Made::new(&GenerateOptions { seed, ..options("trains") });
            (0..100).map(|_| made.next().expect("no end").to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(frames(5), frames(5));
        assert_ne!(frames(5), frames(6));
    }
}
