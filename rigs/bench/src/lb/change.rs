//! How soon packets follow a back-end change, on AF_XDP, at 80 % of the highest rate without loss.
//!
//! ```text
//!   far: f0 (this program: sends, receives, commands) ---- w0 :node (a daemon, 100 back ends)
//! ```
//!
//! A back end is repeatedly removed and added again. The time of a change is from before the command is sent
//! to the first frame on f0 that follows the change. This is a frame of a flow of the removed back end, which
//! now has the MAC address of another one, or a frame with the MAC address of the added back end. From the
//! command until then, every second frame belongs to one of these flows: a back end gets only a hundredth of
//! all frames, and waiting for one would dominate the measurement.
//!
//! The service is stateless, so that packets of existing flows follow a change. The worker has its own core;
//! everything else shares another one.

use crate::peers::Setting;
use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use weir_bed::{Run, cable};
use weir_lab::Interrupt;
use weir_lab::screen::line;
use weir_lab::weir::{self, Weir};
use weir_packet::{Batch, Pool, Pools, Port, RegionPool, Sum, checksum};
use weir_port::xdp::{Rings, XdpConfig, XdpInterface, XdpPort};
use weir_port::zero_loss::{Trial, rate_without_loss};

/// Number of back ends of the service.
const BACK_ENDS: u8 = 100;

/// Chunks of the pool beyond those that the port holds.
const CHUNKS_SPARE: u32 = 1024;

/// How long a trial sends, and how long frames may be in flight after it.
const TRIAL: Duration = Duration::from_millis(300);
const UNDER_WAY: Duration = Duration::from_millis(50);

/// A sender slower than this share of its target rate proves nothing about the daemon.
const LATE: f64 = 0.98;

/// The load, as a share of the highest rate without loss.
const LOAD: f64 = 0.8;

/// How long the sender sleeps when nothing is due, so that the daemon's main thread can use the core.
const NAP: Duration = Duration::from_micros(20);

/// The interval between two changes, and how long packets may take to follow one.
const APART: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(5);

/// The interval between metric scrapes, and between reloads, in the phases of these names.
const SCRAPE_EVERY: Duration = Duration::from_millis(100);
const RELOAD_EVERY: Duration = Duration::from_millis(250);

/// Source ports of the flows.
const SPORTS: std::ops::Range<u16> = 1024..65_535;

/// The options of the far end.
#[derive(clap::Args)]
pub struct FarEndOptions {
    /// The interface on which frames leave and return.
    interface: String,
    /// The daemon's control socket.
    socket: PathBuf,
    /// Changes per phase.
    changes: u32,
}

/// An activity alongside the changes.
type Beside = fn(&Path) -> Result<()>;

const PHASES: [(&str, Beside, Duration); 3] =
    [("quiet", |_| Ok(()), SCRAPE_EVERY), ("scrape", scrape, SCRAPE_EVERY), ("reload", reload, RELOAD_EVERY)];

/// Measures; if that is impossible, the result says why.
pub fn measure(changes: u32) -> Result<Value> {
    let setting = Setting::new(0, false);
    if !rustix::process::geteuid().is_root() || setting.core == setting.other {
        let why = "network namespaces and AF_XDP need root, and the worker needs a core of its own";
        return Ok(json!({ "median_us": null, "p99_us": null, "lost": null, "why": why }));
    }
    let mut other = CpuSet::new();
    other.set(setting.other);
    // The daemon inherits the affinity; its worker moves to its own core.
    sched_setaffinity(None, &other).context("a core that was allowed is not")?;
    let interrupt = Interrupt::on_signals()?;
    let mut run = Run::begin(false)?;
    let (far, node) = (run.namespace("far")?, run.namespace("node")?);
    cable(None, &far.end("f0"), &node.end("w0").mac("02:00:00:00:00:02"))?;
    let command = |program: &str| node.command(program);
    let weir = Weir::start(&mut run, "weir", command, &configuration(setting.core), &interrupt)?;
    let (core, socket) = (setting.other.to_string(), weir.socket().to_string_lossy().into_owned());
    let mut probe = far.command(&weir::program()?);
    probe.args(["bench", "arm", "--core", &core, "changes", "f0", &socket, &changes.to_string()]);
    let finished = probe.output().context("the far end does not start")?;
    ensure!(finished.status.success(), "the far end: {}", String::from_utf8_lossy(&finished.stderr).trim());
    weir.stop(&mut run)?;
    let text = String::from_utf8_lossy(&finished.stdout);
    let last = text.lines().last().context("the far end printed nothing")?;
    serde_json::from_str(last).with_context(|| format!("the far end said `{last}`"))
}

fn configuration(core: usize) -> String {
    let back_end = |at| format!("        - {{ name: b{at}, mac: 02:00:00:01:00:{at:02x} }}\n");
    let back_ends: String = (0..BACK_ENDS).map(back_end).collect();
    format!(
        "workers: [{core}]
busy: true
ports:
  p0: {{ xdp: w0 }}
apps:
  - lb:
      name: dns
      port: p0
      stateless: true
      service: {{ vip: 10.0.0.53, protocol: udp, port: 53 }}
      back_ends:
{back_ends}"
    )
}

/// Scrapes metrics.
fn scrape(socket: &Path) -> Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "there are no metrics");
    Ok(())
}

fn reload(socket: &Path) -> Result<()> {
    weir::ask(socket, &json!({ "command": "reload" })).map(drop)
}

/// Runs the far end: finds the rate, makes the changes of each phase, and prints the results as JSON.
pub fn probe(probe: &FarEndOptions) -> Result<()> {
    let mut far = Far::open(&probe.interface)?;
    let rate = far.rate_without_loss()?;
    ensure!(rate > 0.0, "frames are lost at every rate");
    let mut phases = Vec::new();
    for (name, beside, every) in PHASES {
        let over = AtomicBool::new(false);
        let phase = std::thread::scope(|scope| {
            let beside = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    beside(&probe.socket)?;
                    std::thread::sleep(every);
                }
                anyhow::Ok(())
            });
            let phase = far.phase(probe, LOAD * rate);
            over.store(true, Ordering::Relaxed);
            beside.join().expect("it does not panic")?;
            phase
        });
        let mut phase = phase.with_context(|| format!("phase {name}"))?;
        phase["name"] = name.into();
        phases.push(phase);
    }
    let most = |key: &str| phases.iter().filter_map(|phase| phase[key].as_f64()).fold(0.0, f64::max);
    let lost: u64 = phases.iter().filter_map(|phase| phase["lost"].as_u64()).sum();
    line(json!({
        "median_us": most("median_us"), "p99_us": most("p99_us"), "lost": lost, "phases": phases,
        "rate_without_loss": rate, "load": LOAD, "back_ends": BACK_ENDS,
    }))
}

/// The frame that shows that a change has taken effect.
#[derive(Clone, Copy)]
enum Watch {
    /// A frame for this back end.
    Comes(u8),
    /// A frame for another back end, of a flow that belonged to this one.
    Goes(u8),
}

/// The far end of the wire.
struct Far {
    pools: Pools,
    port: XdpPort,
    batch: Batch,
    _attached: XdpInterface,
    frame: [u8; 60],
    sport: u16,
    /// The back end of each flow, by its source port.
    of: Vec<u8>,
    /// The source ports of the flows that follow a change, in rotation.
    changing: std::iter::Cycle<std::vec::IntoIter<u16>>,
    sent: u64,
    arrived: u64,
    watch: Option<Watch>,
    seen: Option<Instant>,
}

impl Far {
    fn open(interface: &str) -> Result<Far> {
        let mut pools = Pools::new();
        let chunks = Rings::default().chunks() + CHUNKS_SPARE;
        let pool = pools.add(Pool::Region(RegionPool::new(chunks, weir_packet::CHUNK_MIN)));
        let take = weir_bpf::Take { promiscuous: true, ..weir_bpf::Take::all() };
        let attached = XdpInterface::attach(XdpConfig::new(interface, take))?;
        let port = attached.open_queue(0, &mut pools, pool)?;
        Ok(Far {
            pools,
            port,
            batch: Batch::new(),
            _attached: attached,
            frame: frame(),
            sport: SPORTS.start,
            of: vec![u8::MAX; usize::from(SPORTS.end)],
            changing: Vec::new().into_iter().cycle(),
            sent: 0,
            arrived: 0,
            watch: None,
            seen: None,
        })
    }

    /// Sends at a rate (0: as fast as possible) and receives, until `until` returns true or time is over.
    /// Returns the actual rate.
    fn carry(&mut self, rate: f64, time: Duration, until: impl Fn(&Far) -> bool) -> Result<f64> {
        let (start, before) = (Instant::now(), self.sent);
        while start.elapsed() < time && !until(self) {
            let due = (start.elapsed().as_secs_f64() * rate) as u64;
            let late = due.saturating_sub(self.sent - before);
            if rate == 0.0 || late > 0 {
                self.send(if rate == 0.0 { u64::MAX } else { late })?;
            }
            self.receive();
            if rate > 0.0 && late < weir_packet::BATCH as u64 {
                std::thread::sleep(NAP);
            }
        }
        Ok((self.sent - before) as f64 / start.elapsed().as_secs_f64())
    }

    /// Sends a batch, or fewer frames.
    fn send(&mut self, most: u64) -> Result<()> {
        let Far { pools, port, batch, frame, .. } = self;
        for at in 0..most.min(weir_packet::BATCH as u64) {
            let Some(mut next) = pools.first().take() else { break };
            let changing = if at % 2 == 0 && self.watch.is_some() { self.changing.next() } else { None };
            let sport = changing.unwrap_or_else(|| {
                self.sport = if self.sport + 1 < SPORTS.end { self.sport + 1 } else { SPORTS.start };
                self.sport
            });
            frame[34..36].copy_from_slice(&sport.to_be_bytes());
            ensure!(next.fill(frame).is_ok(), "a frame is too long for its chunk");
            if let Err(next) = batch.push(next) {
                pools.give(next);
            }
        }
        let (list, count) = (batch.mask(), batch.len() as u64);
        let sent = port.transmit(pools, batch, list);
        port.flush(pools);
        self.sent += u64::from(sent.count_ones());
        if u64::from(sent.count_ones()) < count {
            weir_packet::Bits(list & !sent).for_each(|slot| pools.give(batch.take(slot)));
        }
        batch.clear();
        Ok(())
    }

    /// Receives the frames that have arrived.
    fn receive(&mut self) {
        loop {
            self.port.receive(&mut self.pools, &mut self.batch);
            let count = self.batch.len();
            for slot in 0..count {
                let frame = self.batch.take(slot);
                self.see(frame.bytes());
                self.pools.give(frame);
            }
            self.batch.clear();
            if count < weir_packet::BATCH {
                return;
            }
        }
    }

    fn see(&mut self, bytes: &[u8]) {
        let Some(&[2, 0, 0, 1, 0, back_end]) = bytes.first_chunk() else { return };
        let sport = usize::from(u16::from_be_bytes([bytes[34], bytes[35]]));
        self.arrived += 1;
        let Some(of) = self.of.get_mut(sport) else { return };
        let was = std::mem::replace(of, back_end);
        let follows = match self.watch {
            Some(Watch::Comes(awaited)) => back_end == awaited,
            Some(Watch::Goes(gone)) => was == gone && back_end != gone,
            None => false,
        };
        if follows {
            (self.seen, self.watch) = (Some(Instant::now()), None);
        }
    }

    fn rate_without_loss(&mut self) -> Result<f64> {
        let ceiling = self.carry(0.0, TRIAL, |_| false)?;
        rate_without_loss(ceiling, |rate| {
            let (sent, arrived) = (self.sent, self.arrived);
            let reached = self.carry(rate, TRIAL, |_| false)?;
            self.settle();
            Ok(match (self.arrived - arrived >= self.sent - sent, reached >= LATE * rate) {
                (true, true) => Trial::Carried,
                (_, false) => Trial::Disturbed,
                (false, true) => Trial::Lost,
            })
        })
    }

    /// Receives the frames in flight.
    fn settle(&mut self) {
        let start = Instant::now();
        while start.elapsed() < UNDER_WAY {
            self.receive();
            std::thread::sleep(NAP);
        }
    }

    /// Makes changes at this rate. Returns how long packets took to follow, and how many were lost.
    fn phase(&mut self, probe: &FarEndOptions, rate: f64) -> Result<Value> {
        self.settle();
        let (sent, arrived, start) = (self.sent, self.arrived, Instant::now());
        let mut taken = Vec::new();
        for number in 0..probe.changes {
            self.carry(rate, APART, |_| false)?;
            taken.push(self.change(probe, number, rate)?.as_secs_f64() * 1e6);
        }
        self.carry(rate, APART, |_| false)?;
        let seconds = start.elapsed().as_secs_f64();
        self.settle();
        let (sent, arrived) = (self.sent - sent, self.arrived - arrived);
        taken.sort_by(f64::total_cmp);
        let at = |share: f64| taken.get(((taken.len() as f64 * share) as usize).min(taken.len() - 1));
        Ok(json!({
            "median_us": at(0.5), "p99_us": at(0.99), "max_us": taken.last(), "changes": taken.len(),
            "sent": sent, "lost": sent.saturating_sub(arrived), "rate": sent as f64 / seconds,
        }))
    }

    /// Removes a back end or adds it again, and waits for a packet that follows. Returns how long that took.
    fn change(&mut self, probe: &FarEndOptions, number: u32, rate: f64) -> Result<Duration> {
        let back_end = (number / 2 % u32::from(BACK_ENDS)) as u8;
        let (what, watch) = match number % 2 {
            0 => ("maintenance", Watch::Goes(back_end)),
            _ => ("enable", Watch::Comes(back_end)),
        };
        if let Watch::Goes(gone) = watch {
            let its: Vec<u16> = SPORTS.filter(|&sport| self.of[usize::from(sport)] == gone).collect();
            ensure!(!its.is_empty(), "back end {gone} has no flow");
            self.changing = its.into_iter().cycle();
        }
        (self.watch, self.seen) = (Some(watch), None);
        let request = format!("{what} dns b{back_end}");
        let command = json!({ "command": "app", "app": "lb", "request": request });
        let (finished, begun) = channel();
        std::thread::scope(|scope| -> Result<Duration> {
            let socket = &probe.socket;
            let asked = scope.spawn(move || {
                let _ = finished.send(Instant::now());
                weir::ask(socket, &command)
            });
            self.carry(rate, PATIENCE, |far| far.seen.is_some())?;
            asked.join().expect("it does not panic")?;
            let Some(seen) = self.seen else { bail!("no packet follows `{request}`") };
            Ok(seen.saturating_duration_since(begun.recv()?))
        })
    }
}

/// A frame for the service: UDP without a checksum, so that flows differ only in the source port.
fn frame() -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 0, 0, 53]);
    let sum = checksum(Sum::default().bytes(&frame[14..34]));
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[36..40].copy_from_slice(&[0, 53, 0, 26]);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_is_for_the_service() {
        let bytes = frame();
        let headers = weir_packet::parse(&bytes, weir_packet::Depth::L4).expect("sound headers");
        let key =
            weir_packet::FlowKey::of(&bytes, &headers, weir_packet::KeySource::Outer).expect("an IP packet");
        assert_eq!(key.dst(), std::net::IpAddr::from([10, 0, 0, 53]));
        assert_eq!(checksum(Sum::default().bytes(&bytes[14..34])), 0);
    }

    #[test]
    fn the_configuration_has_a_line_for_each_back_end() {
        let text = configuration(1);
        assert_eq!(text.matches("mac: ").count(), usize::from(BACK_ENDS));
        assert!(text.contains("- { name: b99, mac: 02:00:00:01:00:63 }\n"));
    }
}
