//! The programs at the uplinks, which may disappear and return.

use super::wire::{local_addresses, source_to};
use crate::Fabric;
use crate::bpf::{PEERS_MAX, PathSettings, Steer, TcPath};
use crate::fabric::{ECHO_PORT, Reflect};
use crate::paths::NOISE;
use crate::scheme::{DOCA_IDLE_NS, Scheme};
use crate::settings::Settings;
use crate::wire::{Secret, VNI};
use anyhow::{Context, Result};
use aya::maps::MapError;
use rustix::fd::OwnedFd;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::net::IpAddr;
use std::time::Duration;
use weir_netlink::{Link, links};

/// How often the interfaces' indexes are checked.
const LOOK_NS: u64 = Duration::from_millis(500).as_nanos() as u64;

/// Burst size for answers to a peer.
const BURST: u32 = 500;

/// How often the source addresses towards peers are looked up, if all peers have a route.
const SOURCES_NS: u64 = Duration::from_secs(5).as_nanos() as u64;

/// The programs, and where they are attached.
pub struct Uplinks {
    lines: Vec<UplinkLine>,
    pub programs: TcPath,
    ioctl: OwnedFd,
    look_ns: u64,
    peers: Vec<IpAddr>,
    tunnel_port: u16,
    local: Option<IpAddr>,
    /// Our source address towards each peer; `None` without a route.
    sources: Vec<Option<IpAddr>>,
    sources_ns: u64,
    mtu_ns: u64,
    rules: PathSettings,
}

/// An uplink.
struct UplinkLine {
    name: String,
    /// The index of its interface, if the programs are attached there.
    index: Option<u32>,
    /// Whether its interface has appeared since the last call of [`Uplinks::appeared`].
    is_new: bool,
    /// Its MTU; 0 if it is not known.
    mtu: u16,
}

impl Uplinks {
    /// Loads the programs. They are attached in [`Uplinks::mind`].
    pub fn load(fabric: &Fabric, settings: &Settings) -> Result<Uplinks> {
        let load = if fabric.scheme == Scheme::OneSided { TcPath::load_watching } else { TcPath::load };
        let mut programs = load(fabric.peers.len() * fabric.uplinks.len(), fabric.flows)
            .context("the kernel cannot load the programs for paths")?;
        let rules = rules(fabric, settings);
        programs.set(&rules)?;
        let ioctl = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let line = |name: &String| UplinkLine { name: name.clone(), index: None, is_new: false, mtu: 0 };
        Ok(Uplinks {
            lines: fabric.uplinks.iter().map(line).collect(),
            programs,
            ioctl,
            look_ns: 0,
            peers: fabric.peers.clone(),
            tunnel_port: fabric.tunnel.port,
            local: fabric.local,
            sources: vec![fabric.local; fabric.peers.len()],
            sources_ns: 0,
            mtu_ns: 0,
            rules,
        })
    }

    /// Sets the length of the pause after which a flow may take another path. Small changes are ignored.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set_gap(&mut self, gap_ns: u64) -> Result<(), MapError> {
        let gap_us = small(gap_ns.div_ceil(1000));
        if (self.rules.gap_us / 2..=self.rules.gap_us).contains(&gap_us) {
            return Ok(());
        }
        // A little longer than necessary, so that it is not set for each small change.
        let gap_us = gap_us.saturating_add(gap_us / 4);
        self.programs.set(&PathSettings { gap_us, ..self.rules })?;
        self.rules.gap_us = gap_us;
        Ok(())
    }

    /// Attaches the programs when interfaces appear or reappear. Returns the result of attaching, or `None`
    /// if nothing was checked. An uplink that does not exist does not affect the others.
    pub fn mind(&mut self, now_ns: u64) -> Option<Result<(), String>> {
        if now_ns < self.look_ns {
            return None;
        }
        self.look_ns = now_ns + LOOK_NS;
        if let Err(why) = self.mind_sources(now_ns) {
            return Some(Err(why));
        }
        let all: Vec<Result<(), String>> = (0..self.lines.len()).map(|line| self.mind_line(line)).collect();
        self.mind_mtu(now_ns);
        Some(all.into_iter().collect())
    }

    fn mind_line(&mut self, number: usize) -> Result<(), String> {
        let name = self.lines[number].name.clone();
        let Ok(index) = name_to_index(&self.ioctl, &name) else {
            self.lines[number].index = None;
            self.programs.detach(number);
            return Err(format!("there is no interface `{name}`"));
        };
        if self.lines[number].index == Some(index) {
            return Ok(());
        }
        self.lines[number].index = None;
        if self.lines.len() > 1 {
            // The programs must recognise the uplink before frames pass.
            self.rules.uplinks[number] = index;
            let known = self.programs.set(&self.rules);
            known
                .map_err(|error| format!("cannot tell the programs which interface is `{name}`: {error}"))?;
        }
        self.programs.attach(number, &name).map_err(|error| {
            let why = anyhow::Error::new(error);
            format!("cannot attach the programs to `{name}`: {why:#}")
        })?;
        (self.lines[number].index, self.lines[number].is_new) = (Some(index), true);
        self.mtu_ns = 0;
        Ok(())
    }

    /// Returns the numbers and names of uplinks whose interfaces have appeared since the last call.
    pub fn appeared(&mut self) -> Vec<(usize, String)> {
        let all = self.lines.iter_mut().enumerate();
        all.filter_map(|(number, line)| std::mem::take(&mut line.is_new).then(|| (number, line.name.clone())))
            .collect()
    }

    /// Looks up the uplinks' MTUs, which may change at any time.
    fn mind_mtu(&mut self, now_ns: u64) {
        if now_ns < self.mtu_ns {
            return;
        }
        self.mtu_ns = now_ns + SOURCES_NS;
        let mtu = |link: &Link| link.mtu.min(u16::MAX.into()) as u16;
        // If it cannot be read now, keep the old value.
        if let Ok(links) = links() {
            for line in &mut self.lines {
                line.mtu = links.iter().find(|link| Some(link.index) == line.index).map_or(0, mtu);
            }
        }
    }

    /// Returns the largest packets that leave through each uplink, counted from the IP header; 0 if that is
    /// not known.
    pub fn mtus(&self) -> Vec<u16> {
        self.lines.iter().map(|line| line.mtu).collect()
    }

    /// Looks up our own addresses: probes and answers sent to them are accepted.
    fn mind_sources(&mut self, now_ns: u64) -> Result<(), String> {
        if now_ns < self.sources_ns {
            return Ok(());
        }
        if self.local.is_none() {
            self.sources = self.peers.iter().map(|peer| source_to(*peer, self.tunnel_port).ok()).collect();
        }
        let is_whole = self.sources.iter().all(Option::is_some);
        self.sources_ns = now_ns + if is_whole { SOURCES_NS } else { LOOK_NS };
        // A peer may use a different address of ours than the one that our route to it selects.
        let own = local_addresses().map_err(|error| format!("our own addresses cannot be read: {error}"))?;
        let mut locals: Vec<IpAddr> = Vec::new();
        for address in self.sources.iter().flatten().copied().chain(own) {
            if locals.len() < PEERS_MAX && !locals.contains(&address) {
                locals.push(address);
            }
        }
        let written = self.programs.set_locals(&locals);
        written.map_err(|error| format!("our own addresses cannot be written: {error}"))
    }

    /// Returns our source address towards a peer, by its index; `None` without a route.
    pub fn source(&self, peer: usize) -> Option<IpAddr> {
        self.sources.get(peer).copied().flatten()
    }

    /// Looks up source addresses again soon, because a packet could not be sent: its route may have changed,
    /// and our source address with it.
    pub fn doubt_sources(&mut self) {
        self.sources_ns = 0;
    }

    /// Whether the programs are attached to at least one interface.
    pub fn is_attached(&self) -> bool {
        self.lines.iter().any(|line| line.index.is_some())
    }
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn rules(fabric: &Fabric, settings: &Settings) -> PathSettings {
    PathSettings {
        steer: match fabric.scheme {
            Scheme::DocaAr => Steer::DocaAr,
            Scheme::Adaptive | Scheme::OneSided => Steer::Adaptive,
            Scheme::LetFlow => Steer::LetFlow,
            Scheme::Spray => Steer::Spray,
            // CLOVE and PLB exist only in the simulator and cannot be configured.
            Scheme::Ecmp | Scheme::Clove | Scheme::PlbLike => Steer::Ecmp,
        },
        tunnel: fabric.tunnel,
        sources: fabric.sources,
        answers: fabric.answers,
        answers_burst: BURST,
        pinned_ms: small(DOCA_IDLE_NS / 1_000_000),
        gap_us: small(settings.flowlet_ns / 1000),
        noise_ns: small(settings.congested_ns / NOISE),
        reroute_bytes: small(settings.reroute_bytes),
        gain_ns: small(settings.gain_ns),
        hold_us: small(settings.hold_ns / 1000),
        drain_ns: small(settings.drain_ns(1024)),
        half_life_us: small(settings.load_half_life_ns / 1000),
        echo_port: match fabric.reflect {
            Reflect::Weir => 0,
            Reflect::OpenFlow => ECHO_PORT,
        },
        // The indexes are set once the interfaces exist. Until then, they are that of no interface.
        uplinks: std::array::from_fn(
            |number| {
                if fabric.one_of_several(number).is_some() { u32::MAX } else { 0 }
            },
        ),
        peers: fabric.peers.len() as u32,
        probe_vni: VNI,
        secret: secret(fabric).0,
    }
}

/// Without a configured key, a cookie only protects against mistakes.
pub fn secret(fabric: &Fabric) -> Secret {
    fabric.secret.unwrap_or_default()
}
