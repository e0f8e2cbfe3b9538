//! The fabric: leaves, spines, hosts, the links between them, and faults.
//!
//! A link consists of the queue in front of it, its rate and its delay. Because a queue is first in, first
//! out, a packet's departure time is known when it arrives, and each packet takes one event per link.

use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::str::FromStr;
use weir_packet::random::Random;

/// Maximum number of leaves, and of spines: their numbers have 16 bits, and routes are stored for each pair
/// of leaves.
pub const SWITCHES_MAX: u32 = 512;
/// Maximum number of hosts.
pub const HOSTS_MAX: u32 = 65_536;

/// The dimensions of a fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Leaf switches, at least 1.
    pub leaves: u32,
    /// Spine switches, at least 1. This is also the number of distinct paths between two leaves.
    pub spines: u32,
    /// Hosts per leaf, at least 1.
    pub hosts: u32,
    /// Rate of a host's link, Gbit/s.
    pub host_rate: f64,
    /// Rate of a link between leaf and spine, Gbit/s.
    pub rate: f64,
    /// Delay of every link, ns.
    pub delay_ns: u64,
    /// Buffer of a switch port, bytes.
    pub buffer: u64,
    /// Queue length from which a switch port marks packets, bytes.
    pub mark: u64,
}

impl Shape {
    /// Checks that the fabric can be built.
    pub fn check(&self) -> Result<()> {
        let between = |what: &str, value: u32, most: u32| {
            ensure!((1..=most).contains(&value), "{what}: {value} is not between 1 and {most}");
            Ok(())
        };
        between("--leaves", self.leaves, SWITCHES_MAX)?;
        between("--spines", self.spines, SWITCHES_MAX)?;
        between("--hosts", self.hosts, HOSTS_MAX)?;
        between("--leaves times --hosts", self.leaves.saturating_mul(self.hosts), HOSTS_MAX)?;
        for (what, rate) in [("--host-rate", self.host_rate), ("--rate", self.rate)] {
            ensure!((0.001..=1000.0).contains(&rate), "{what}: {rate} is not between 0.001 and 1000 Gbit/s");
        }
        ensure!(self.buffer >= 1600, "--buffer: {} bytes do not hold a packet", self.buffer);
        Ok(())
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn all_hosts(&self) -> u32 {
        self.leaves * self.hosts
    }

    /// The leaf of a host.
    #[must_use]
    pub fn leaf(&self, host: u32) -> u32 {
        host / self.hosts
    }
}

/// A fault of the fabric.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The link between a leaf and a spine runs at this percentage of its rate.
    Slow(u32, u32, f64),
    /// The link is missing, and routing knows it.
    Cut(u32, u32),
    /// The link drops everything from this time (ms) on, and routing does not know it.
    Dead(u32, u32, f64),
    /// A spine drops this percentage of its packets.
    Loss(u32, f64),
    /// A spine drops the packets of one class, given this number of classes of the hash of addresses and
    /// ports.
    Blackhole(u32, u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Slow(leaf, spine, percent) => write!(f, "slow:{leaf}-{spine}:{percent}"),
            Fault::Cut(leaf, spine) => write!(f, "cut:{leaf}-{spine}"),
            Fault::Dead(leaf, spine, ms) => write!(f, "dead:{leaf}-{spine}:{ms}"),
            Fault::Loss(spine, percent) => write!(f, "loss:{spine}:{percent}"),
            Fault::Blackhole(spine, classes) => write!(f, "blackhole:{spine}:{classes}"),
        }
    }
}

impl FromStr for Fault {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Fault> {
        let mut parts = text.split(':');
        let kind = parts.next().unwrap_or_default();
        let place = parts.next().with_context(|| {
            format!(
                "`{text}` does not say where the fault is: \
            {FORMS}"
            )
        })?;
        let amount = parts.next();
        ensure!(parts.next().is_none(), "`{text}` has too many parts: {FORMS}");
        let number = |text: &str| -> Result<u32> {
            text.parse().with_context(|| format!("`{text}` is not a switch number: {FORMS}"))
        };
        let link = || -> Result<(u32, u32)> {
            let (leaf, spine) = place
                .split_once('-')
                .with_context(|| format!("`{place}` is not a link such as 0-3: {FORMS}"))?;
            Ok((number(leaf)?, number(spine)?))
        };
        let amount = |what: &str, most: f64| -> Result<f64> {
            let given = amount.with_context(|| format!("`{text}` lacks {what}: {FORMS}"))?;
            let value: f64 = given.parse().with_context(|| format!("`{given}` is not a number: {FORMS}"))?;
            ensure!((0.0..=most).contains(&value), "`{text}`: {what} is not between 0 and {most}");
            Ok(value)
        };
        Ok(match kind {
            "slow" => {
                let percent = amount("its percent of the rate", 100.0)?;
                ensure!(percent >= 0.1, "`{text}`: below 0.1 percent; use `cut` to remove the link");
                Fault::Slow(link()?.0, link()?.1, percent)
            }
            "cut" => Fault::Cut(link()?.0, link()?.1),
            "dead" => Fault::Dead(link()?.0, link()?.1, amount("its time, ms", 1e6)?),
            "loss" => Fault::Loss(number(place)?, amount("its percent", 100.0)?),
            "blackhole" => {
                let classes = amount("its number of classes", 65_536.0)? as u32;
                ensure!(classes > 0, "`{text}`: there must be at least one class");
                Fault::Blackhole(number(place)?, classes)
            }
            _ => bail!("no fault is named `{kind}`: {FORMS}"),
        })
    }
}

const FORMS: &str = "use slow:LEAF-SPINE:PERCENT, cut:LEAF-SPINE, dead:LEAF-SPINE:MS, loss:SPINE:PERCENT or \
                     blackhole:SPINE:CLASSES";

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// The queue was full.
    Full,
    /// By chance.
    Loss,
    /// The packet's hash fell into the black hole.
    Blackhole,
    /// The link was dead.
    Dead,
}

/// The names of the reasons, in the order of [`Drop`].
pub const DROPS: [&str; 4] = ["full", "loss", "blackhole", "dead"];

/// A link, and the queue in front of it.
#[derive(Clone, Debug)]
struct QueuedLink {
    free_at: u64,
    ps_per_byte: u32,
    delay_ns: u32,
    /// Limits of the queue, as the time to drain it.
    buffer_ns: u64,
    mark_ns: u64,
    is_faulty: bool,
    bytes: u64,
}

/// A fault of a link.
#[derive(Clone, Debug, Default)]
struct Defect {
    /// In 2^-32.
    loss: u64,
    classes: u32,
    dead_from: Option<u64>,
}

/// The outcome of a packet on a link.
#[derive(Clone, Copy, Debug)]
pub enum Passage {
    /// The packet arrives at this time, marked or not.
    Arrives(u64, bool),
    /// The packet was dropped.
    Dropped(Drop),
}

/// The links of a packet's route, in order; at most 4.
pub type PacketRoute = [u32; 4];

/// The fabric.
pub struct Fabric {
    shape: Shape,
    links: Vec<QueuedLink>,
    defects: Vec<Defect>,
    /// The spines between two leaves: `leaf from * leaves + leaf to`.
    groups: Vec<Vec<u16>>,
    seed: u64,
}

impl Fabric {
    /// Builds a fabric with faults. `seed` seeds the switches' hashes.
    pub fn new(shape: &Shape, faults: &[Fault], seed: u64) -> Result<Fabric> {
        shape.check()?;
        let (leaves, spines, hosts) = (shape.leaves, shape.spines, shape.all_hosts());
        let edge = QueuedLink::new(shape, shape.host_rate);
        let core = QueuedLink::new(shape, shape.rate);
        let mut links = vec![QueuedLink { buffer_ns: u64::MAX, ..edge.clone() }; hosts as usize];
        links.extend(vec![edge; hosts as usize]);
        links.extend(vec![core; 2 * (leaves * spines) as usize]);
        let defects = vec![Defect::default(); links.len()];
        let all: Vec<u16> = (0..spines as u16).collect();
        let groups = vec![all; (leaves * leaves) as usize];
        let mut fabric = Fabric { shape: shape.clone(), links, defects, groups, seed };
        for fault in faults {
            fabric.break_it(fault).with_context(|| format!("--fault {fault}"))?;
        }
        let cut_off = fabric.groups.iter().position(Vec::is_empty);
        if let Some(pair) = cut_off {
            let (from, to) = (pair as u32 / leaves, pair as u32 % leaves);
            bail!("no path is left between leaf {from} and leaf {to}: cut fewer links");
        }
        Ok(fabric)
    }

    fn break_it(&mut self, fault: &Fault) -> Result<()> {
        let (leaves, spines) = (self.shape.leaves, self.shape.spines);
        let (leaf, spine) = match *fault {
            Fault::Slow(leaf, spine, _) | Fault::Cut(leaf, spine) | Fault::Dead(leaf, spine, _) => {
                (leaf, spine)
            }
            Fault::Loss(spine, _) | Fault::Blackhole(spine, _) => (0, spine),
        };
        ensure!(leaf < leaves, "there is no leaf {leaf}: leaves are numbered 0 to {}", leaves - 1);
        ensure!(spine < spines, "there is no spine {spine}: spines are numbered 0 to {}", spines - 1);
        let both = [self.up(leaf, spine), self.down(spine, leaf)];
        match *fault {
            Fault::Slow(.., percent) => both.iter().for_each(|link| self.links[*link as usize].slow(percent)),
            Fault::Cut(..) => {
                for other in 0..leaves {
                    for pair in [leaf * leaves + other, other * leaves + leaf] {
                        self.groups[pair as usize].retain(|member| u32::from(*member) != spine);
                    }
                }
            }
            Fault::Dead(.., ms) => {
                both.iter().for_each(|link| self.defect(*link).dead_from = Some((ms * 1e6) as u64));
            }
            Fault::Loss(_, percent) => {
                let loss = (percent / 100.0 * 2_f64.powi(32)) as u64;
                (0..leaves).for_each(|leaf| self.defect(self.down(spine, leaf)).loss = loss);
            }
            Fault::Blackhole(_, classes) => {
                (0..leaves).for_each(|leaf| self.defect(self.down(spine, leaf)).classes = classes);
            }
        }
        Ok(())
    }

    fn defect(&mut self, link: u32) -> &mut Defect {
        self.links[link as usize].is_faulty = true;
        &mut self.defects[link as usize]
    }

    fn up(&self, leaf: u32, spine: u32) -> u32 {
        2 * self.shape.all_hosts() + leaf * self.shape.spines + spine
    }

    fn down(&self, spine: u32, leaf: u32) -> u32 {
        self.up(self.shape.leaves, 0) + spine * self.shape.leaves + leaf
    }

    /// The spines between the leaves of two hosts; a path number is an index into them.
    #[must_use]
    pub fn spines(&self, from: u32, to: u32) -> &[u16] {
        let (from, to) = (self.shape.leaf(from), self.shape.leaf(to));
        &self.groups[(from * self.shape.leaves + to) as usize]
    }

    /// The hash that switches compute over a packet's outer addresses and ports.
    #[inline]
    #[must_use]
    pub fn hash(&self, from: u32, to: u32, port: u16) -> u64 {
        Random::new(self.seed ^ u64::from(from) << 40 ^ u64::from(to) << 16 ^ u64::from(port)).bits()
    }

    /// The path that ECMP selects for a hash.
    #[inline]
    #[must_use]
    pub fn path_of(&self, from: u32, to: u32, hash: u64) -> usize {
        let count = self.spines(from, to).len() as u64;
        (((hash >> 32) * count) >> 32) as usize
    }

    /// The links from one host to another through a spine.
    #[inline]
    #[must_use]
    pub fn way(&self, from: u32, to: u32, path: usize) -> (PacketRoute, u8) {
        let hosts = self.shape.all_hosts();
        let (here, there) = (self.shape.leaf(from), self.shape.leaf(to));
        if here == there {
            return ([from, hosts + to, 0, 0], 2);
        }
        let spine = u32::from(self.spines(from, to)[path]);
        ([from, self.up(here, spine), self.down(spine, there), hosts + to], 4)
    }

    /// Enqueues a packet at a link.
    #[inline]
    pub fn pass(&mut self, link: u32, now: u64, bytes: u32, hash: u64, random: &mut Random) -> Passage {
        let found = &mut self.links[link as usize];
        let waits = found.free_at.saturating_sub(now);
        let time = u64::from(bytes) * u64::from(found.ps_per_byte) / 1000;
        if waits + time > found.buffer_ns {
            return Passage::Dropped(Drop::Full);
        }
        if found.is_faulty {
            let defect = &self.defects[link as usize];
            if defect.dead_from.is_some_and(|from| now >= from) {
                return Passage::Dropped(Drop::Dead);
            }
            if defect.classes > 0 && (hash as u32).is_multiple_of(defect.classes) {
                return Passage::Dropped(Drop::Blackhole);
            }
            if defect.loss > 0 && random.below(1 << 32) < defect.loss {
                return Passage::Dropped(Drop::Loss);
            }
        }
        found.free_at = now + waits + time;
        found.bytes += u64::from(bytes);
        Passage::Arrives(found.free_at + u64::from(found.delay_ns), waits > found.mark_ns)
    }

    /// How long a packet would wait between two leaves, ns: the longer of the two queues of a path.
    #[must_use]
    pub fn wait(&self, now: u64, from: u32, to: u32, path: usize) -> u64 {
        let (way, _) = self.way(from, to, path);
        let wait = |link: u32| self.links[link as usize].free_at.saturating_sub(now);
        wait(way[1]).max(wait(way[2]))
    }

    /// The time in which `bytes` bytes pass the slowest link of a fabric without faults, and the time from
    /// the first bit of a packet sent to the last bit received, ns.
    #[must_use]
    pub fn unloaded(&self, bytes: u32) -> (u64, u64) {
        let time = |rate: f64| (f64::from(bytes) * 8.0 / rate) as u64;
        let (edge, core) = (time(self.shape.host_rate), time(self.shape.rate));
        (edge.max(core), 2 * edge + 2 * core + 4 * self.shape.delay_ns)
    }
}

impl QueuedLink {
    fn new(shape: &Shape, gbps: f64) -> QueuedLink {
        let ps_per_byte = (8000.0 / gbps).round() as u32;
        let drain = |bytes: u64| bytes * u64::from(ps_per_byte) / 1000;
        QueuedLink {
            free_at: 0,
            ps_per_byte,
            delay_ns: shape.delay_ns as u32,
            buffer_ns: drain(shape.buffer),
            mark_ns: drain(shape.mark),
            is_faulty: false,
            bytes: 0,
        }
    }

    fn slow(&mut self, percent: f64) {
        let times = 100.0 / percent;
        self.ps_per_byte = (f64::from(self.ps_per_byte) * times) as u32;
        self.buffer_ns = (self.buffer_ns as f64 * times) as u64;
        self.mark_ns = (self.mark_ns as f64 * times) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_back_as_written() {
        for text in ["slow:0-3:25", "cut:1-2", "dead:1-2:10", "loss:4:1", "blackhole:0:8"] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_faults_say_where() {
        for (text, says) in [
            ("slow", "does not say where"),
            ("slow:0:5", "`0` is not a link"),
            ("slow:0-1", "lacks its percent"),
            ("slow:0-1:0", "below 0.1 percent"),
            ("loss:x:1", "`x` is not a switch number"),
            ("loss:0:101", "not between 0 and 100"),
            ("burn:0-1", "no fault is named `burn`"),
            ("cut:0-1:2:3", "too many parts"),
        ] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
