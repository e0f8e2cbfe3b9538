//! The program of `decap.bpf.c` and its maps.

use crate::hook::{self, Attachment};
use crate::load::uninterrupted;
use crate::shared::decap::{COUNT_NAMES, COUNTS, GRE, GUE, IPIP, Settings, VXLAN};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, TestRunOptions};
use aya::{Ebpf, EbpfError, TestRun};
use std::net::IpAddr;

const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/decap.bpf.o"));

/// Outcomes of tunnelled frames: decapsulated, by tunnel; left to the kernel; dropped; or passed on to the
/// host that is the frame's second chance.
pub const DECAP_COUNTS: [&str; COUNTS] = *COUNT_NAMES.first_chunk().expect("COUNTS follows them");

/// A tunnel that is decapsulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// IPv4 or IPv6 in IPv4 or IPv6.
    Ipip,
    /// GUE, variants 0 and 1.
    Gue,
    /// GRE, with an IP packet or an Ethernet frame inside.
    Gre,
    /// VXLAN with this VNI.
    Vxlan(u32),
}

/// The settings of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecapSettings {
    /// The tunnels that are decapsulated. If there are several VNIs, only the last one is used.
    pub tunnels: Vec<Tunnel>,
    /// The UDP port of GUE.
    pub gue_port: u16,
    /// The UDP port of VXLAN.
    pub vxlan_port: u16,
    /// Trusted outer sources: at most 1024 prefixes.
    pub senders: Vec<(IpAddr, u8)>,
    /// Outer destinations: at most 1024 addresses of this host.
    pub locals: Vec<IpAddr>,
    /// Whether packets in GUE that belong to no connection here are passed on to the host named in their
    /// header (github.com/github/glb-director/docs/development/gue-header.md).
    pub second_chance: bool,
}

/// The program and its maps.
pub struct TcDecap {
    ebpf: Ebpf,
    /// Dropping the link detaches the program.
    link: Option<Attachment>,
}

impl TcDecap {
    /// Loads the program. It is not attached yet.
    ///
    /// # Errors
    /// Returns the kernel's error, usually a missing privilege.
    pub fn load(settings: &DecapSettings) -> Result<TcDecap, EbpfError> {
        let mut ebpf = Ebpf::load(OBJECT)?;
        uninterrupted(|| program(&mut ebpf)?.load())?;
        let mut decap = TcDecap { ebpf, link: None };
        decap.set(settings)?;
        Ok(decap)
    }

    fn set(&mut self, settings: &DecapSettings) -> Result<(), MapError> {
        let bit = |tunnel: &Tunnel| match tunnel {
            Tunnel::Ipip => 1 << IPIP,
            Tunnel::Gue => 1 << GUE,
            Tunnel::Gre => 1 << GRE,
            Tunnel::Vxlan(_) => 1 << VXLAN,
        };
        let vni = settings.tunnels.iter().rev().find_map(|tunnel| match tunnel {
            Tunnel::Vxlan(vni) => Some(*vni),
            _ => None,
        });
        let value = Settings {
            tunnels: settings.tunnels.iter().fold(0, |bits, tunnel| bits | bit(tunnel)),
            vni: vni.unwrap_or_default(),
            gue_port: settings.gue_port.into(),
            vxlan_port: settings.vxlan_port.into(),
            second_chance: settings.second_chance.into(),
        };
        let map = self.ebpf.map_mut("settings_map").expect("decap.bpf.c defines it");
        Array::<&mut MapData, [u8; Settings::SIZE]>::try_from(map)?.set(0, value.bytes(), 0)?;
        let map = self.ebpf.map_mut("senders").expect("decap.bpf.c defines it");
        let mut senders = LpmTrie::<&mut MapData, [u8; 16], u32>::try_from(map)?;
        for &(address, length) in &settings.senders {
            let length = if address.is_ipv4() { 96 + u32::from(length) } else { length.into() };
            senders.insert(&Key::new(length, bytes(address)), 1, 0)?;
        }
        let map = self.ebpf.map_mut("locals").expect("decap.bpf.c defines it");
        let mut locals = HashMap::<&mut MapData, [u8; 16], u32>::try_from(map)?;
        settings.locals.iter().try_for_each(|local| locals.insert(bytes(*local), 1, 0))
    }

    /// Attaches the program to the ingress of an interface, and detaches it from a previous interface.
    ///
    /// # Errors
    /// Returns the kernel's error: there is no such interface.
    pub fn attach(&mut self, interface: &str) -> Result<(), ProgramError> {
        self.link = None;
        let program = program(&mut self.ebpf)?;
        self.link = Some(hook::attach(program, interface, TcAttachType::Ingress)?);
        Ok(())
    }

    /// Returns the number of tunnelled frames by outcome, in the order of [`DECAP_COUNTS`].
    #[must_use]
    pub fn counts(&self) -> [u64; DECAP_COUNTS.len()] {
        let map = self.ebpf.map("counts").expect("decap.bpf.c defines it");
        let map = PerCpuArray::<&MapData, u64>::try_from(map).expect("numbers");
        std::array::from_fn(|at| map.get(&(at as u32), 0).map(|cpus| cpus.iter().sum()).unwrap_or_default())
    }

    /// Runs the program on a frame (`BPF_PROG_TEST_RUN`), with the given segment length if it is not 0.
    /// Returns its verdict and the frame.
    ///
    /// # Errors
    /// Returns the kernel's error. The kernel requires at least the 14 bytes of an Ethernet header.
    pub fn test_run(&mut self, frame: &[u8], segment: u32) -> Result<(i32, Vec<u8>), ProgramError> {
        /// Size of `struct __sk_buff`, and the offset of its field `gso_size`.
        const CONTEXT: usize = 192;
        const SEGMENT: usize = 176;
        let mut context = [0; CONTEXT];
        context[SEGMENT..SEGMENT + 4].copy_from_slice(&segment.to_ne_bytes());
        let mut out = vec![0; frame.len() + 128];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ..TestRunOptions::new()
        };
        let result = program(&mut self.ebpf)?.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        Ok((result.return_value as i32, out))
    }
}

/// An address as in the maps: IPv4 as ::ffff:a.b.c.d.
fn bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn program(ebpf: &mut Ebpf) -> Result<&mut SchedClassifier, ProgramError> {
    ebpf.program_mut("decap").expect("decap.bpf.c defines it").try_into()
}
