//! The sink for frames of a bond's members in a comparison: two DPDK devices on one core, whose frames are
//! counted and freed. As the bond's partner, it speaks LACP.
//!
//! The sink must never be the slower end, nor slow down the other end: a consumer that polls an empty ring
//! competes with its producer for the cache lines of the ring's head, which would be measured too. Therefore
//! the sink naps when there are few frames, and then takes those that have accumulated, about a thousand.

use anyhow::{Context, Result};
use std::io::BufRead;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_bond::lacp::{Action, Config, ETHER_TYPE, Event, Lacp, Rate, Settings, System};
use weir_lab::screen::line;
use weir_packet::{Batch, Pools, Port};

/// The minimum number of frames from a poll of all queues; with fewer, the sink naps.
const FEW: usize = 32;

/// Duration of a nap, without what the kernel adds: far less than a ring takes to fill.
const NAP: Duration = Duration::from_micros(50);

/// Length of the frames that are only counted; LACPDUs are longer.
const FRAME: usize = 60;

/// How often LACP is serviced, and other threads on this core get to run for the duration of a nap.
const TICK: Duration = Duration::from_millis(2);

const SYSTEM: [u8; 6] = [2, 0, 0, 0, 0, 0x51];

/// The queues of one device; LACPDUs are sent through the first.
pub type Queues = Vec<Box<dyn Port>>;

/// Counts until standard input ends; reports how many frames have arrived whenever asked.
pub fn run(pools: Pools, members: Vec<Queues>) -> Result<()> {
    let (arrived, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut sink =
        Sink { pools, batch: Batch::new(), members, partner: Partner::new(), arrived: Arc::clone(&arrived) };
    let stop = Arc::clone(&ended);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            if line(format_args!("arrived {}", arrived.load(Ordering::Relaxed))).is_err() {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    line("ready")?;
    let mut ticked = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        if sink.look()? < FEW {
            std::thread::sleep(NAP);
        }
        if ticked.elapsed() >= TICK {
            ticked = Instant::now();
            sink.tick()?;
            std::thread::sleep(NAP);
        }
    }
    Ok(())
}

struct Sink {
    pools: Pools,
    batch: Batch,
    members: Vec<Queues>,
    partner: Partner,
    arrived: Arc<AtomicU64>,
}

impl Sink {
    /// Takes a batch from every queue, and returns the number of frames.
    fn look(&mut self) -> Result<usize> {
        let mut frames = 0;
        for at in 0..self.members.len() {
            for queue in 0..self.members[at].len() {
                self.members[at][queue].receive(&mut self.pools, &mut self.batch);
                frames += self.batch.len();
                self.let_go(at as u16);
            }
        }
        self.arrived.fetch_add(frames as u64, Ordering::Relaxed);
        Ok(frames)
    }

    fn let_go(&mut self, member: u16) {
        for slot in 0..self.batch.len() {
            let frame = self.batch.take(slot);
            if frame.len() > FRAME {
                self.partner.receive(member, frame.bytes());
            }
            self.pools.give(frame);
        }
        self.batch.clear();
    }

    fn tick(&mut self) -> Result<()> {
        for (member, bytes) in self.partner.speak() {
            let mut frame = self.pools.first().take().context("no free frame for an LACPDU")?;
            frame.fill(&bytes).ok().context("an LACPDU is longer than a frame")?;
            if let Err(frame) = self.batch.push(frame) {
                self.pools.give(frame);
            }
            let queue = &mut self.members[usize::from(member)][0];
            // An LACPDU that does not fit the ring is repeated later.
            if queue.transmit(&mut self.pools, &mut self.batch, 1) == 0 {
                let frame = self.batch.take(0);
                self.pools.give(frame);
            }
            self.batch.clear();
        }
        Ok(())
    }
}

/// LACP as the members' partner, with the slow rate, so that a pause between two turns does not cause a
/// timeout.
struct Partner {
    lacp: Lacp,
    started: Instant,
    actions: Vec<Action>,
}

impl Partner {
    fn new() -> Partner {
        let config = Config {
            system: System { priority: 0xffff, mac: SYSTEM },
            key: 1,
            active: true,
            rate: Rate::Slow,
            min_links: 0,
            policy: Default::default(),
            fallback: false,
        };
        let mut partner = Partner { lacp: Lacp::new(config), started: Instant::now(), actions: Vec::new() };
        for member in 0..2 {
            let port = NonZeroU16::MIN.saturating_add(member);
            let settings = Settings { mac: SYSTEM, port, priority: 0xffff, key: None };
            partner.step(Event::Add { member, settings });
            partner.step(Event::Link { member, up: true, speed_bps: None });
        }
        partner
    }

    fn step(&mut self, event: Event<'_>) {
        self.lacp.step(self.started.elapsed().as_nanos() as u64, event, &mut self.actions);
    }

    fn receive(&mut self, member: u16, bytes: &[u8]) {
        if bytes[12..14] == ETHER_TYPE.to_be_bytes() {
            self.step(Event::Pdu { member, bytes });
        }
    }

    /// Returns the frames to send now.
    fn speak(&mut self) -> Vec<(u16, Vec<u8>)> {
        self.step(Event::Tick);
        let transmit = |action| match action {
            Action::Transmit { member, frame } => Some((member, frame)),
            _ => None,
        };
        self.actions.drain(..).filter_map(transmit).collect()
    }
}
