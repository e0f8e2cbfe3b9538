//! Measures AF_XDP ports: run `xdp_forward forward w0 w1`, with `xdp_forward generate f0` at one far end and
//! `xdp_forward count f1` at the other. Each prints its rates once a second, for `SECONDS` seconds. They use
//! the best mode available and take everything that arrives.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::time::{ClockId, clock_gettime};
use weir_bpf::Take;
use weir_packet::{Batch, Bits, Pool, PoolId, Pools, Port, PortStatistics, RegionPool};
use weir_port::xdp::{Rings, XdpConfig, XdpError, XdpInterface, XdpPort};

const USAGE: &str = "xdp_forward (forward ONE OTHER | generate INTERFACE | count INTERFACE)";

/// A frame of 60 bytes: UDP from 10.1.0.0/16 to 10.0.0.1, so that there are many flows.
const FRAME: [u8; 60] = {
    let mut frame = [0; 60];
    let head: [u8; 38] = [
        2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 1, 9, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 0, 10,
        0, 0, 1, 0x30, 0x39, 0, 80,
    ];
    let mut at = 0;
    while at < head.len() {
        frame[at] = head[at];
        at += 1;
    }
    frame[39] = 26;
    frame
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["forward", one, other] => WorkerPorts::open(&[one, other])?.run(forward),
        ["generate", interface] => WorkerPorts::open(&[interface])?.run(generate),
        ["count", interface] => WorkerPorts::open(&[interface])?.run(count),
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

/// The ports of one worker, on one pool.
struct WorkerPorts {
    ports: Vec<XdpPort>,
    pools: Pools,
    batch: Batch,
    number: u32,
}

impl WorkerPorts {
    fn open(names: &[&str]) -> Result<WorkerPorts, XdpError> {
        let rings = rings();
        let mut pools = Pools::new();
        let chunks = rings.chunks() * names.len() as u32 + 128;
        let pool = pools.add(Pool::Region(RegionPool::new(chunks, 2048)));
        let ports = names.iter().map(|name| open(name, rings, &mut pools, pool)).collect::<Result<_, _>>()?;
        Ok(WorkerPorts { ports, pools, batch: Batch::new(), number: 0 })
    }

    fn run(mut self, breath: fn(&mut WorkerPorts) -> bool) {
        let seconds = number("SECONDS", 3);
        let mut last: Vec<PortStatistics> = self.ports.iter().map(Port::statistics).collect();
        let mut next = Instant::now() + Duration::from_secs(1);
        let mut round = 0;
        while round < seconds {
            for _ in 0..256 {
                if !breath(&mut self) {
                    self.sleep();
                    break;
                }
            }
            if Instant::now() >= next {
                self.print(&mut last);
                next += Duration::from_secs(1);
                round += 1;
            }
        }
        let spent = clock_gettime(ClockId::ThreadCPUTime);
        let spent_ns = spent.tv_sec as f64 * 1e9 + spent.tv_nsec as f64;
        let frames: u64 =
            self.ports.iter().map(Port::statistics).map(|one| one.received.max(one.transmitted)).sum();
        println!("{:.0} ns of processor time per frame and port", spent_ns / frames as f64);
        for port in &mut self.ports {
            println!("{} {:?} {:?}", port.name(), port.statistics(), port.extra_statistics());
            port.close(&mut self.pools);
        }
    }

    /// Waits until one of the ports has frames, unless `BUSY=1` is set.
    fn sleep(&self) {
        if number("BUSY", 0) == 1 {
            return;
        }
        let fds: Vec<BorrowedFd<'_>> = self.ports.iter().filter_map(Port::readiness).collect();
        let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
    }

    fn print(&self, last: &mut Vec<PortStatistics>) {
        let now: Vec<_> = self.ports.iter().map(Port::statistics).collect();
        for ((port, now), last) in self.ports.iter().zip(&now).zip(last.iter()) {
            let mega = |now: u64, last: u64| (now - last) as f64 / 1e6;
            println!(
                "{} ({}): received {:.3} Mpps, transmitted {:.3} Mpps, lost before {:.3} Mpps",
                port.name(),
                Port::mode(port),
                mega(now.received, last.received),
                mega(now.transmitted, last.transmitted),
                mega(now.lost_before, last.lost_before)
            );
        }
        *last = now;
    }
}

fn open(name: &str, rings: Rings, pools: &mut Pools, pool: PoolId) -> Result<XdpPort, XdpError> {
    let take = Take { promiscuous: true, ..Take::all() };
    XdpInterface::attach(XdpConfig { rings, ..XdpConfig::new(name, take) })?.open_queue(0, pools, pool)
}

fn rings() -> Rings {
    let default = Rings::default();
    Rings {
        fill: number("FILL", default.fill),
        receive: number("RECEIVE", default.receive),
        transmit: number("TRANSMIT", default.transmit),
    }
}

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Forwards from each port to the other with MAC addresses swapped, like testpmd's macswap. Returns false if
/// there was nothing to forward.
fn forward(bench: &mut WorkerPorts) -> bool {
    let WorkerPorts { ports, pools, batch, .. } = bench;
    let mut busy = false;
    for from in 0..2 {
        ports[from].receive(pools, batch);
        for slot in Bits(batch.mask()) {
            let [target, source] = batch.frame_mut(slot).bytes_mut()[..12].as_chunks_mut::<6>().0 else {
                continue;
            };
            std::mem::swap(target, source);
        }
        busy |= !batch.is_empty();
        let list = batch.mask();
        let sent = ports[1 - from].transmit(pools, batch, list);
        Bits(list & !sent).for_each(|slot| pools.give(batch.take(slot)));
        batch.clear();
        ports[1 - from].flush(pools);
    }
    busy
}

fn generate(bench: &mut WorkerPorts) -> bool {
    let WorkerPorts { ports, pools, batch, number } = bench;
    while batch.space() > 0 {
        let Some(mut frame) = pools.first().take() else { break };
        *number = number.wrapping_add(1);
        if frame.fill(&FRAME).is_ok() {
            frame.bytes_mut()[28..30].copy_from_slice(&(*number as u16).to_be_bytes());
        }
        if let Err(frame) = batch.push(frame) {
            pools.give(frame);
        }
    }
    let list = batch.mask();
    let sent = ports[0].transmit(pools, batch, list);
    Bits(list & !sent).for_each(|slot| pools.give(batch.take(slot)));
    batch.clear();
    ports[0].flush(pools);
    true
}

fn count(bench: &mut WorkerPorts) -> bool {
    let WorkerPorts { ports, pools, batch, .. } = bench;
    ports[0].receive(pools, batch);
    Bits(batch.mask()).for_each(|slot| pools.give(batch.take(slot)));
    let busy = !batch.is_empty();
    batch.clear();
    ports[0].flush(pools);
    busy
}
