//! The thread of an overlay app: follows the kernel's notifications, bumps stamps, extends the lease.

use super::change::{Cause, Change};
use super::epochs::Epochs;
use super::giver::Giver;
use super::news::{KernelSubscriptions, MessageSource};
use super::others::{Others, no_other_overlay};
use super::refresh;
use super::reporter::Reporter;
use super::rule::Rule;
use super::table::Table;
use super::translation::Translations;
use super::world::{Parts, Pods, World};
use crate::bpf::{
    OVERLAY_NODES_MAX, OverlayIp, OverlayKey, OverlaySettings, OverlayTunnel, OverlayTuple, STAMP_FIRST,
    STAMP_GLOBAL, STAMP_POLICY, TcOverlay,
};
use crate::{Overlay, Policy};
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CapabilitySet, capabilities};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_app::clock::monotonic_ns;
use weir_app::task::Wanted;
use weir_netlink::{Geneve, Link, Read, Vxlan, forwarding_and_neighbours};

/// How long the programs keep working if the thread does not extend the lease, in nanoseconds.
const LEASE_NS: u64 = 500_000_000;
/// The longest wait of an iteration: a part of the lease.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest wait while flow records wait for the collector, or the table is swept.
const PAUSE_BUSY: Duration = Duration::from_millis(1);
/// How long to wait after an obstacle before retrying.
const AGAIN: Duration = Duration::from_secs(1);
/// After this time without a change, in nanoseconds, arriving frames certainly carry the current epoch.
const QUIET_NS: u64 = 5_000_000_000;
/// How often the kernel's settings are checked, in nanoseconds.
const LOOK_NS: u64 = 500_000_000;

const LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
const PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// The state of the thread.
pub struct Keeper {
    overlay: Overlay,
    stop: Arc<AtomicBool>,
    reporter: Reporter,
    giver: Giver,
    table: Arc<Table>,
}

/// The state of the thread while the programs are attached.
struct AttachedPrograms {
    programs: TcOverlay,
    /// The nftables rule, which is removed together with the programs.
    _rule: Rule,
    news: KernelSubscriptions,
    world: World,
    settings: OverlaySettings,
    epochs: Epochs,
    translations: Translations,
    stamps: Vec<u32>,
    nodes: BTreeMap<IpAddr, u32>,
    pods: BTreeMap<u32, (String, u32)>,
    look_ns: u64,
    /// When something was last invalidated.
    void_ns: u64,
    /// The counts at the last check: directions that were learnt, and frames from which nothing was learnt
    /// because their mark had other bits.
    learnt: [u64; 2],
    others: Others,
}

impl Keeper {
    pub fn new(wanted: Wanted<Overlay>, stop: Arc<AtomicBool>, giver: Giver, table: Arc<Table>) -> Keeper {
        let Wanted { task: overlay, board } = wanted;
        Keeper { reporter: Reporter::new(overlay.name.clone(), board), overlay, stop, giver, table }
    }

    /// Runs until stopped.
    pub fn run(&mut self) {
        while !self.stops() {
            let why = match self.open() {
                Ok(mut running) => {
                    self.reporter.obstacle(None);
                    self.table.set(running.programs.flows().ok());
                    let why = self.keep(&mut running);
                    self.table.set(None);
                    self.reporter.missed(self.giver.finish(&mut running.programs));
                    self.reporter.end(&running.programs);
                    why
                }
                Err(error) => Some(format!("{error:#}")),
            };
            if let Some(why) = why {
                self.reporter.obstacle(Some(why));
                self.sleep(AGAIN);
            }
        }
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn sleep(&self, time: Duration) {
        let until = std::time::Instant::now() + time;
        while !self.stops() && std::time::Instant::now() < until {
            std::thread::sleep(PAUSE);
        }
    }

    fn open(&mut self) -> Result<AttachedPrograms> {
        must_be_privileged()?;
        // Before anything is read, so that no later change is missed.
        let news = KernelSubscriptions::open().context("netlink does not report changes")?;
        must_be_liberal()?;
        let links = links()?;
        let (parts, settings, nodes) = settings(&self.overlay, &links)?;
        if nodes == OverlayIp::V6 {
            must_forward(&self.overlay.uplink)?;
        }
        let mut programs = TcOverlay::load(self.overlay.flows, nodes)
            .context("the kernel cannot load the programs for overlays")?;
        programs.set(&settings)?;
        no_other_overlay(&self.overlay)?;
        let bits = [settings.established(), settings.translated()];
        let rule = Rule::make(&self.overlay.name, settings.wants(), bits)
            .context("nftables rejects the rule that identifies established connections")?;
        let uplink = &self.overlay.uplink;
        programs
            .attach_uplink(uplink)
            .with_context(|| format!("cannot attach the programs to `{uplink}`"))?;
        let world = World::new(parts, links);
        let mut running = AttachedPrograms {
            programs,
            _rule: rule,
            news,
            world,
            epochs: Epochs::new(settings.epochs()),
            settings,
            translations: Translations::default(),
            stamps: (STAMP_FIRST..STAMP_FIRST + 2 * OVERLAY_NODES_MAX as u32).rev().collect(),
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            look_ns: 0,
            void_ns: 0,
            learnt: [0; 2],
            others: Others::default(),
        };
        let mut changes = running.world.pods();
        changes.extend(running.world.node());
        running.read_tables(&mut changes)?;
        running.carry_out(&mut self.reporter, self.overlay.policy, changes)?;
        Ok(running)
    }

    /// Continues until stopped, or until the links are replaced, in which case it returns why.
    fn keep(&mut self, running: &mut AttachedPrograms) -> Option<String> {
        while !self.stops() {
            match self.turn(running) {
                Ok(true) => {}
                Ok(false) => return Some("the tunnel device, the uplink or the bridge has changed".into()),
                Err(error) => return Some(format!("{error:#}")),
            }
            wait(running, self.giver.is_busy());
        }
        None
    }

    /// Returns false if everything must start over.
    fn turn(&mut self, running: &mut AttachedPrograms) -> Result<bool> {
        let mut changes = Vec::new();
        let AttachedPrograms { news, world, .. } = running;
        let read = news.read(|source, kind, body| world.take(source, kind, body, &mut changes));
        let now = monotonic_ns();
        if now >= running.look_ns {
            running.look_ns = now + LOOK_NS;
            must_be_liberal()?;
            running.look_for_others(&mut self.reporter, (now, &self.overlay));
            running.adjust_refresh(&mut self.reporter, self.overlay.refresh_ns)?;
        }
        if read == Read::Lost {
            // The loss is counted at once, because rereading everything takes time.
            self.reporter.count(Cause::Lost);
            running.void(&BTreeSet::from([STAMP_GLOBAL]))?;
            running.translations.clear(&mut running.programs);
            running.relearn(&mut changes)?;
        }
        if changes.contains(&Change::Restart) {
            return Ok(false);
        }
        running.carry_out(&mut self.reporter, self.overlay.policy, changes)?;
        running.translations.answer(now, &mut running.programs);
        // Extend the lease only if the state is known, and not while messages may still be unread.
        if read != Read::More {
            running.programs.extend(now + LEASE_NS)?;
        }
        self.giver.turn(now, &mut running.programs)?;
        self.reporter.report(now, &running.programs, &running.pods, &running.nodes);
        Ok(true)
    }
}

impl AttachedPrograms {
    /// Reads forwarding tables and neighbours.
    fn read_tables(&mut self, changes: &mut Vec<Change>) -> Result<()> {
        for (kind, body) in forwarding_and_neighbours().context("neighbours cannot be read")? {
            self.world.take(MessageSource::Route, kind, &body, changes);
        }
        Ok(())
    }

    /// Rereads everything, because messages were lost.
    fn relearn(&mut self, changes: &mut Vec<Change>) -> Result<()> {
        self.world.replace_links(links()?, changes);
        self.world.forget_tables();
        self.read_tables(changes)
    }

    /// Applies changes in order; then invalidates everything that depends on them, all at once.
    fn carry_out(&mut self, reporter: &mut Reporter, policy: Policy, changes: Vec<Change>) -> Result<()> {
        let (mut void, mut counted, mut free) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        for change in changes {
            let (stamp, cause) = match change {
                Change::All(cause) => (STAMP_GLOBAL, cause),
                Change::Policy if policy == Policy::Strict => (STAMP_POLICY, Cause::Policy),
                Change::Policy | Change::Restart => continue,
                Change::Node(node, cause) => (self.nodes.get(&node).copied().unwrap_or(STAMP_GLOBAL), cause),
                Change::Pod(pod, cause) => {
                    (self.pods.get(&pod).map_or(STAMP_GLOBAL, |(_, stamp)| *stamp), cause)
                }
                Change::NodeCame(node) => {
                    self.node_came(reporter, node)?;
                    continue;
                }
                Change::PodCame(pod, name) => {
                    self.pod_came(reporter, pod, name);
                    continue;
                }
                Change::PodLeft(pod) => {
                    let Some(stamp) = self.pod_left(reporter, pod) else { continue };
                    free.push(stamp);
                    (stamp, Cause::Link)
                }
                Change::Ended(tuples) => {
                    reporter.count(Cause::Connection);
                    self.ended(&tuples)?;
                    continue;
                }
            };
            void.insert(stamp);
            if counted.insert((stamp, cause)) {
                reporter.count(cause);
            }
        }
        if !void.is_empty() {
            self.void(&void)?;
        }
        // These stamps are free for other pods from now on.
        self.stamps.append(&mut free);
        Ok(())
    }

    /// Looks for other programs at the same hooks, one interface per call, and for other users of the mark
    /// bits.
    fn look_for_others(&mut self, reporter: &mut Reporter, (now, overlay): (u64, &Overlay)) {
        let uplink = (self.world.uplink(), overlay.uplink.as_str());
        let pods = self.pods.iter().map(|(index, (name, _))| (*index, name.as_str()));
        self.others.look(&self.programs, reporter, std::iter::once(uplink).chain(pods));
        let entries = self.programs.entries();
        let learnt = [entries.learnt.iter().sum(), entries.outdated];
        let [before, outdated] = std::mem::replace(&mut self.learnt, learnt);
        let is_quiet = now.saturating_sub(self.void_ns) > QUIET_NS;
        if learnt[0] > before {
            reporter.mark_in_use(None);
        } else if is_quiet && learnt[1] > outdated {
            reporter.mark_in_use(Some(overlay.mark));
        }
    }

    /// Lets the kernel see frames as often as configured, or else as often as it must.
    fn adjust_refresh(&mut self, reporter: &mut Reporter, configured: Option<u64>) -> Result<()> {
        let refresh = configured.map_or_else(refresh::default, |refresh| (refresh, None));
        if refresh.0 != self.settings.ttl_ns {
            self.settings.ttl_ns = refresh.0;
            self.programs.set(&self.settings).context("settings cannot be written")?;
        }
        reporter.refresh(refresh);
        Ok(())
    }

    /// Invalidates the entries that depend on these stamps.
    fn void(&mut self, stamps: &BTreeSet<u32>) -> Result<()> {
        self.void_ns = monotonic_ns();
        if let Some(from) = self.epochs.next(self.void_ns) {
            self.programs.learn_from(from).context("a time cannot be written")?;
        }
        let stamps: Vec<u32> = stamps.iter().copied().collect();
        self.programs.bump(&stamps).context("a stamp cannot be written")
    }

    /// Forgets the flows of a connection that has ended.
    fn ended(&mut self, tuples: &[OverlayTuple]) -> Result<()> {
        for tuple in tuples {
            self.translations.forget(tuple, &mut self.programs);
            let OverlayTuple { addresses, ports, protocol } = *tuple;
            self.programs.forget(&OverlayKey { addresses, ports, vni: self.settings.vni, protocol })?;
        }
        Ok(())
    }

    /// Adds a remote node, which stays known: flows to it are invalidated when its tables change.
    fn node_came(&mut self, reporter: &mut Reporter, node: IpAddr) -> Result<()> {
        if self.nodes.contains_key(&node) {
            return Ok(());
        }
        if self.nodes.len() == OVERLAY_NODES_MAX {
            reporter.say(&format!("no room for node {node}: its flows take the slow path"));
            return Ok(());
        }
        let Some(stamp) = self.stamps.pop() else { return Ok(()) };
        self.programs.set_node(node, stamp)?;
        self.nodes.insert(node, stamp);
        reporter.say(&format!("the remote node {node} is known"));
        Ok(())
    }

    fn pod_came(&mut self, reporter: &mut Reporter, pod: u32, name: String) {
        if self.pods.contains_key(&pod) {
            return;
        }
        let Some(stamp) = self.stamps.pop() else { return };
        match self.programs.attach_pod(&name, pod, stamp) {
            Ok(()) => {
                reporter.say(&format!("`{name}` has the programs"));
                self.pods.insert(pod, (name, stamp));
            }
            Err(error) => {
                self.programs.detach_pod(pod);
                self.stamps.push(stamp);
                let why = anyhow::Error::new(error);
                reporter.say(&format!("cannot attach the programs to `{name}`: {why:#}"));
            }
        }
    }

    /// Removes a pod. Returns its stamp, which must be bumped before another pod may use it.
    fn pod_left(&mut self, reporter: &mut Reporter, pod: u32) -> Option<u32> {
        let (name, stamp) = self.pods.remove(&pod)?;
        self.programs.detach_pod(pod);
        reporter.say(&format!("`{name}` is gone"));
        Some(stamp)
    }
}

/// Returns all links.
pub fn links() -> Result<Vec<Link>> {
    weir_netlink::links().context("links cannot be read")
}

/// Finds the links, and returns the settings for the programs.
fn settings(overlay: &Overlay, links: &[Link]) -> Result<(Parts, OverlaySettings, OverlayIp)> {
    let named = |name: &str| {
        let found = links.iter().find(|link| link.name == name);
        found.with_context(|| format!("there is no interface `{name}`"))
    };
    let (tunnel, uplink) = (named(&overlay.tunnel)?, named(&overlay.uplink)?);
    let pods = match (&overlay.bridge, &overlay.pods) {
        (Some(bridge), _) => Pods::Bridge(named(bridge)?.index),
        (None, start) => Pods::Named(start.clone().context("an overlay has pods")?),
    };
    let device = Device::of(tunnel)?;
    let sources = match device.sources {
        [first, last] if first < last => [first, last],
        _ => local_ports()?,
    };
    let parts = Parts { tunnel: tunnel.index, uplink: uplink.index, pods };
    let settings = OverlaySettings {
        kind: device.kind,
        vni: device.vni,
        port: device.port,
        tunnel: tunnel.index,
        sources,
        mark: overlay.mark,
        ttl_ns: overlay.refresh_ns.unwrap_or_else(|| refresh::default().0),
        seed: RandomState::new().hash_one(0_u64),
        zero_checks: device.zero_checks,
    };
    Ok((parts, settings, if device.is_six { OverlayIp::V6 } else { OverlayIp::V4 }))
}

/// Returns the kind of a tunnel device.
///
/// # Errors
/// Fails if the cache does not support the device; the error says why.
pub fn kind_of(tunnel: &Link) -> Result<OverlayTunnel> {
    Device::of(tunnel).map(|device| device.kind)
}

/// The relevant settings of a tunnel device of either kind.
struct Device {
    kind: OverlayTunnel,
    vni: u32,
    port: u16,
    sources: [u16; 2],
    is_six: bool,
    zero_checks: [bool; 2],
}

impl Device {
    /// Fails if the cache does not support the device.
    fn of(link: &Link) -> Result<Device> {
        let name = &link.name;
        if let Some(Vxlan { vni, port, sources, external, is_six, zero_checks, copies_label }) = link.vxlan {
            if external {
                bail!("`{name}` is a VXLAN device with `external`, which has no VNI of its own");
            }
            if copies_label {
                bail!("`{name}` copies flow labels, which the cache does not support");
            }
            return Ok(Device { kind: OverlayTunnel::Vxlan, vni, port, sources, is_six, zero_checks });
        }
        let Some(Geneve { vni, port, remote, sources, zero_checks, is_bare }) = link.geneve else {
            bail!("`{name}` is neither a VXLAN nor a Geneve device; other tunnels stay on the slow path");
        };
        let Some(remote) = remote else {
            bail!("`{name}` is a Geneve device with `external`, which has no VNI of its own");
        };
        if is_bare {
            bail!("`{name}` is a Geneve device with `innerprotoinherit`, which carries no Ethernet frames");
        }
        let is_six = remote.is_ipv6();
        Ok(Device { kind: OverlayTunnel::Geneve, vni, port, sources, is_six, zero_checks })
    }
}

fn local_ports() -> Result<[u16; 2]> {
    // Bounded: the kernel writes it.
    let text = std::fs::read_to_string(PORTS).with_context(|| format!("cannot read {PORTS}"))?;
    let mut numbers = text.split_whitespace().filter_map(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(first), Some(last)) => Ok([first, last]),
        _ => bail!("{PORTS} is not a range of ports"),
    }
}

/// Returns the kernel settings that an overlay needs, and whether each has the required value.
pub fn needed_settings(overlay: &Overlay) -> Vec<(&'static str, Result<()>)> {
    let mut all = vec![("net.netfilter.nf_conntrack_tcp_be_liberal", must_be_liberal())];
    let links = links().unwrap_or_default();
    let tunnel = links.iter().find(|link| link.name == overlay.tunnel);
    if tunnel.is_some_and(|link| Device::of(link).is_ok_and(|device| device.is_six)) {
        all.push(("net.ipv6.conf.all.forwarding", must_forward(&overlay.uplink)));
    }
    all
}

/// Connection tracking does not see frames that take the short path, and would consider subsequent ones
/// invalid.
fn must_be_liberal() -> Result<()> {
    // Bounded: the kernel writes it.
    match std::fs::read_to_string(LIBERAL) {
        Ok(text) if text.trim() == "0" => bail!(
            "net.netfilter.nf_conntrack_tcp_be_liberal is 0, so TCP frames that return to the slow path \
             would be invalid: `sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1`"
        ),
        _ => Ok(()),
    }
}

/// Returns a sentence about a missing privilege, in place of a series of errors from the kernel.
fn must_be_privileged() -> Result<()> {
    const NEEDED: [(CapabilitySet, &str); 3] = [
        (CapabilitySet::BPF, "CAP_BPF"),
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
        (CapabilitySet::PERFMON, "CAP_PERFMON"),
    ];
    let has = capabilities(None).context("privileges cannot be read")?.effective;
    let missing = NEEDED.iter().filter(|(one, _)| !has.contains(*one)).map(|(_, name)| *name);
    let missing = missing.collect::<Vec<_>>().join(" and ");
    if !missing.is_empty() {
        bail!("an overlay needs {missing}, which this process lacks: run weir as root, or grant it that");
    }
    Ok(())
}

/// Programs can look up the route to other nodes only at interfaces that forward.
fn must_forward(uplink: &str) -> Result<()> {
    let path = format!("/proc/sys/net/ipv6/conf/{uplink}/forwarding");
    // Bounded: the kernel writes it.
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim() == "0" => bail!(
            "net.ipv6.conf.{uplink}.forwarding is 0, so the kernel does not report routes to nodes with \
             IPv6: \
             `sysctl -w net.ipv6.conf.all.forwarding=1`"
        ),
        _ => Ok(()),
    }
}

/// Waits for news, or for the next iteration.
fn wait(running: &AttachedPrograms, is_busy: bool) {
    let [route, filter] = running.news.fds();
    let [four, six] = running.programs.asks();
    let mut waits = [route, filter, four, six].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let pause = if is_busy { PAUSE_BUSY } else { PAUSE };
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
    let _ = poll(&mut waits, Some(&timeout));
}
