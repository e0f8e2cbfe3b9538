//! A source of frames in the kernel (`papers::XdpGenerate`), for the namespace of the thread that opens it.

use crate::scenarios::shuffled;
use anyhow::{Context, Result};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::time::{Duration, Instant};
use weir_papers::XdpGenerate;
use weir_port::Stream;

/// Bytes of a frame, without checksum.
const FRAME: usize = 60;

/// Frames per call at a given rate: as many as the kernel handles at a time, and a quarter of a veth's ring.
const CHUNK: u64 = 64;

/// Most frames of a call if the source is late. A source that is later has lost its core; to catch up would
/// be a burst that overflows rings, which is not what is measured, so it leaves out the other frames.
const LATE: u64 = 16 * CHUNK;

/// Frames of a call if there is no rate.
const BURST: u64 = 1 << 14;

/// A source of UDP frames, each with another source address.
pub struct FrameSource {
    generate: XdpGenerate,
    interface: u32,
    frame: Vec<u8>,
}

impl FrameSource {
    /// Opens a source that sends out of this interface.
    pub fn open(interface: &str) -> Result<FrameSource> {
        let generate = XdpGenerate::load().context("the kernel rejects the source's program")?;
        Ok(FrameSource {
            generate,
            interface: index(interface)?,
            frame: Stream::udp(FRAME, shuffled(1)).frame(0),
        })
    }

    /// Makes calls short: without this, each call takes milliseconds. `interface` has no other use here.
    pub fn prepare(&mut self, interface: &str) -> Result<()> {
        Ok(self.generate.attach(index(interface)?)?)
    }

    /// Sends a number of frames at once.
    pub fn send(&mut self, count: u64) -> Result<u64> {
        self.generate
            .send(self.interface, &self.frame, count as u32)
            .context("the kernel cannot send frames: it needs Linux 5.18 or newer")?;
        Ok(count)
    }

    /// Sends at a rate per second (0: as fast as possible) until `is_over` returns true for the time since
    /// the start. Returns the number of frames sent, and the time that they took. Between two calls it
    /// sleeps, so that it uses no processor time that it does not need.
    pub fn carry(&mut self, rate: f64, is_over: impl Fn(Duration) -> bool) -> Result<(u64, Duration)> {
        let (start, mut sent, mut left_out) = (Instant::now(), 0, 0);
        while !is_over(start.elapsed()) {
            if rate == 0.0 {
                sent += self.send(BURST)?;
                continue;
            }
            let late = ((start.elapsed().as_secs_f64() * rate) as u64).saturating_sub(sent + left_out);
            if late < CHUNK {
                std::thread::sleep(Duration::from_secs_f64((CHUNK - late) as f64 / rate));
            } else {
                left_out += late.saturating_sub(LATE);
                sent += self.send(late.min(LATE))?;
            }
        }
        Ok((sent, start.elapsed()))
    }
}

/// Sources of the same interface, each on a core of its own.
pub struct FrameSources(Vec<(usize, FrameSource)>);

impl FrameSources {
    /// Interfaces that carry no frames; a source attaches its program to one of them.
    const UNUSED: [&str; 2] = ["g0", "g1"];

    /// Opens a source for each of these cores, of which there are at most two.
    pub fn open(interface: &str, cores: &[usize]) -> Result<FrameSources> {
        let open = |(core, unused): (&usize, &str)| {
            let mut source = FrameSource::open(interface)?;
            source.prepare(unused)?;
            Ok((*core, source))
        };
        Ok(FrameSources(cores.iter().zip(FrameSources::UNUSED).map(open).collect::<Result<_>>()?))
    }

    /// Sends from all sources, which share the rate, as [`FrameSource::carry`] does. Returns the number of
    /// frames sent, and the time that the slowest source took.
    pub fn carry(&mut self, rate: f64, is_over: impl Fn(Duration) -> bool + Sync) -> Result<(u64, Duration)> {
        let (share, is_over) = (rate / self.0.len() as f64, &is_over);
        std::thread::scope(|scope| {
            let send = |(core, source): &mut (usize, FrameSource)| {
                use_core(*core)?;
                source.carry(share, is_over)
            };
            let senders: Vec<_> = self.0.iter_mut().map(|source| scope.spawn(move || send(source))).collect();
            senders.into_iter().try_fold((0, Duration::ZERO), |(sent, time), sender| {
                let (more, took) = sender.join().expect("a source does not panic")?;
                Ok((sent + more, time.max(took)))
            })
        })
    }
}

/// Makes this thread, and what it starts, use one core.
pub fn use_core(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).context("a core that was allowed is not")
}

/// Returns the number of frames that the kernel has received at an interface in the namespace of this thread.
pub fn received(interface: &str) -> Result<u64> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").context("/proc/thread-self/net/dev")?;
    let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    let line = line.with_context(|| format!("there is no interface `{interface}`"))?;
    Ok(line.split_whitespace().nth(1).context("its counters")?.parse()?)
}

/// Returns the index of an interface in the namespace of this thread.
fn index(interface: &str) -> Result<u32> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    name_to_index(&any, interface).with_context(|| format!("there is no interface `{interface}`"))
}
