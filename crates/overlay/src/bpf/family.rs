//! The programs for pods with one IP version, and their maps.

use super::counts::EVENTS;
use super::flow::{FlowReader, OverlayGone, OverlayTuple};
use super::layout::{Layout, OverlayIp, WAYS};
use super::{
    AT_POD, AT_UPLINK, OVERLAY_COUNTS, OVERLAY_TRANSLATIONS_MAX, OverlaySettings, OverlaySweep, STAMPS,
};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, ProgramArray, RingBuf};
use aya::programs::{ProgramError, SchedClassifier, TestRunOptions};
use aya::{Ebpf, EbpfError, EbpfLoader, Pod, TestRun};
use std::io::ErrorKind::Interrupted;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use weir_bpf::load::uninterrupted;

/// An object file, by the IP versions of pods and nodes.
macro_rules! object {
    ($versions:literal) => {
        aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/overlay", $versions, ".bpf.o"))
    };
}

/// The programs to which those for IPv4 pass frames on, in the order of `enum twin`.
const TWINS: [&str; 4] = ["overlay_send", "overlay_receive", "overlay_learn_send", "overlay_learn_receive"];

/// The most tuples that are returned at once.
const ASKED_MAX: usize = 1024;
/// The most records of flows that are returned at once.
const LEFT_MAX: usize = 8192;
/// In the order of `enum end`.
const IDLE: u64 = 2;
const STOPPED: u64 = 4;

pub(super) struct Family {
    ebpf: Ebpf,
    layout: Layout,
    sets: u32,
    asked: RingBuf<MapData>,
    left: RingBuf<MapData>,
}

impl Family {
    pub fn load(pods: OverlayIp, nodes: OverlayIp, flows: u32) -> Result<Family, EbpfError> {
        use OverlayIp::{V4, V6};
        let object = match (pods, nodes) {
            (V4, V4) => object!("44"),
            (V4, V6) => object!("46"),
            (V6, V4) => object!("64"),
            (V6, V6) => object!("66"),
        };
        let sets = (flows / WAYS as u32).max(1).next_power_of_two();
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("table", sets)
            .map_max_entries("stamps", STAMPS as u32)
            .map_max_entries("translations", 2 * OVERLAY_TRANSLATIONS_MAX as u32)
            .load(object)?;
        for (name, _) in AT_POD.into_iter().chain(AT_UPLINK) {
            uninterrupted(|| program(&mut ebpf, name)?.load())?;
        }
        for name in ["overlay_forget", "overlay_sweep"] {
            uninterrupted(|| program(&mut ebpf, name)?.load())?;
        }
        let (asked, left) = (ring(&mut ebpf, "asked")?, ring(&mut ebpf, "left")?);
        Ok(Family { ebpf, layout: Layout::new(pods, nodes), sets, asked, left })
    }

    /// Makes the IPv4 programs pass frames of the other version on to these programs.
    pub fn hand_over(&mut self, other: &mut Family) -> Result<(), EbpfError> {
        let map = self.ebpf.map_mut("twins").expect("overlay.bpf.c defines it");
        let mut twins = ProgramArray::try_from(map)?;
        for (at, name) in TWINS.into_iter().enumerate() {
            let program = program(&mut other.ebpf, name)?;
            twins.set(at as u32, program.fd()?, 0)?;
        }
        Ok(())
    }

    /// Writes `struct settings`.
    pub fn set(&mut self, settings: &OverlaySettings) -> Result<(), MapError> {
        let [first, behind] = settings.sources.map(u32::from);
        let [sent, taken] = settings.zero_checks.map(u32::from);
        let two = |low: u32, high: u32| {
            let ([a, b, c, d], [e, f, g, h]) = (low.to_ne_bytes(), high.to_ne_bytes());
            u64::from_ne_bytes([a, b, c, d, e, f, g, h])
        };
        let words = [
            two(settings.vni, u32::from(settings.vxlan_port)),
            two(settings.tunnel, first),
            two(behind.saturating_sub(first), settings.mark),
            two(settings.mark.trailing_zeros(), self.sets - 1),
            settings.ttl_ns,
            settings.seed,
            u64::from(sent | taken << 1),
        ];
        self.array::<[u64; 7]>("settings").set(0, words, 0)
    }

    /// Writes one of the times and numbers of `pulse`, or a stamp.
    pub fn write(&mut self, map: &str, at: u32, value: u64) -> Result<(), MapError> {
        self.array::<u64>(map).set(at, value, 0)
    }

    fn array<T: Pod>(&mut self, name: &str) -> Array<&mut MapData, T> {
        let map = self.ebpf.map_mut(name).expect("overlay.bpf.c defines it");
        Array::try_from(map).expect("its value is laid out as here")
    }

    /// A map from one structure to another.
    fn table<K: Pod, V: Pod>(&mut self, name: &str) -> HashMap<&mut MapData, K, V> {
        let map = self.ebpf.map_mut(name).expect("overlay.bpf.c defines it");
        HashMap::try_from(map).expect("its value is laid out as here")
    }

    /// `struct pod` by interface.
    pub fn pods(&mut self) -> HashMap<&mut MapData, u32, [u32; 3]> {
        self.table("pods")
    }

    /// Makes a remote node known by its stamp, or forgets it.
    pub fn set_node(&mut self, address: IpAddr, stamp: Option<u32>) -> Result<(), MapError> {
        match (address, self.layout.nodes) {
            (IpAddr::V4(address), OverlayIp::V4) => change(self.table("nodes"), address.octets(), stamp),
            (IpAddr::V6(address), OverlayIp::V6) => change(self.table("nodes"), address.octets(), stamp),
            // No frame can come from that address.
            _ => Ok(()),
        }
    }

    /// Records that NAT turns one tuple into another, or removes the record.
    pub fn translate(&mut self, from: Option<&OverlayTuple>, to: &OverlayTuple) -> Result<(), MapError> {
        let from = from.map(OverlayTuple::bytes);
        let from = from.as_deref();
        match self.layout.pods {
            OverlayIp::V4 => self.translate_bytes::<16>(from, &to.bytes()),
            OverlayIp::V6 => self.translate_bytes::<40>(from, &to.bytes()),
        }
    }

    /// `struct tuple` by the `struct tuple` with which the frame leaves.
    fn translate_bytes<const N: usize>(&mut self, from: Option<&[u8]>, to: &[u8]) -> Result<(), MapError> {
        let whole = |bytes: &[u8]| <[u8; N]>::try_from(bytes).map_err(|_| MapError::KeyNotFound);
        let from = from.map(whole).transpose()?;
        change(self.table("translations"), whole(to)?, from)
    }

    /// Removes all NAT records.
    pub fn forget_translations(&mut self) {
        match self.layout.pods {
            OverlayIp::V4 => forget_all::<16>(self.table("translations")),
            OverlayIp::V6 => forget_all::<40>(self.table("translations")),
        }
    }

    pub fn asked(&mut self, all: &mut Vec<OverlayTuple>) {
        let mut count = 0;
        while count < ASKED_MAX
            && let Some(item) = self.asked.next()
        {
            count += 1;
            all.extend(OverlayTuple::new(&item, self.layout.pods));
        }
    }

    /// The descriptor that becomes readable when there are requests.
    pub fn asks(&self) -> BorrowedFd<'_> {
        self.asked.as_fd()
    }

    pub fn left(&mut self, all: &mut Vec<OverlayGone>) {
        let mut count = 0;
        while count < LEFT_MAX
            && let Some(item) = self.left.next()
        {
            count += 1;
            all.extend(OverlayGone::new(&item, &self.layout));
        }
    }

    /// Returns the number of sets of flows.
    pub fn sets(&self) -> u32 {
        self.sets
    }

    /// Makes the flows of some sets report their counts; returns the set to continue with.
    pub fn sweep(&mut self, from: u32, sets: u32, what: &OverlaySweep) -> Result<u32, ProgramError> {
        let why = if what.ends { STOPPED } else { IDLE };
        let words = [what.idle_ns, what.given_ns, u64::from(from) | why << 32];
        self.array::<[u64; 3]>("sweeps").set(0, words, 0)?;
        // The kernel requires a frame.
        let options = TestRunOptions { data_in: Some(&[0; 14]), repeat: sets, ..TestRunOptions::new() };
        let done = self.program("overlay_sweep")?.test_run(options);
        // A signal ends it early; its progress is recorded.
        let was_interrupted = |error: &ProgramError| match error {
            ProgramError::SyscallError(error) => error.io_error.kind() == Interrupted,
            _ => false,
        };
        if let Err(error) = done
            && !was_interrupted(&error)
        {
            return Err(error);
        }
        Ok(self.array::<[u64; 3]>("sweeps").get(&0, 0)?[2] as u32)
    }

    /// The IDs of the programs that are attached to an ingress.
    pub fn ids(&mut self) -> Vec<u32> {
        let id = |name: &str| Some(self.program(name).ok()?.info().ok()?.id());
        ["overlay_send", "overlay_receive"].into_iter().filter_map(id).collect()
    }

    pub fn flows(&self) -> Result<FlowReader, MapError> {
        let Some(Map::Array(data)) = self.ebpf.map("table") else { unreachable!("overlay.bpf.c defines it") };
        let own = data.fd().as_fd().try_clone_to_owned()?;
        Ok(FlowReader::new(self.layout, Map::Array(MapData::from_fd(own)?)))
    }

    pub fn program(&mut self, name: &str) -> Result<&mut SchedClassifier, ProgramError> {
        program(&mut self.ebpf, name)
    }

    pub fn frames(&self) -> [u64; 2 * OVERLAY_COUNTS.len()] {
        sums(&self.ebpf, "frames")
    }

    pub fn entries(&self) -> [u64; EVENTS] {
        sums(&self.ebpf, "entries")
    }
}

/// Inserts a value, or removes it.
fn change<K: Pod, V: Pod>(
    mut map: HashMap<&mut MapData, K, V>,
    key: K,
    value: Option<V>,
) -> Result<(), MapError> {
    match value {
        Some(value) => map.insert(key, value, 0),
        None => map.remove(&key),
    }
}

fn forget_all<const N: usize>(mut map: HashMap<&mut MapData, [u8; N], [u8; N]>) {
    let all: Vec<[u8; N]> = map.keys().flatten().collect();
    for key in all {
        let _ = map.remove(&key);
    }
}

fn sums<const N: usize>(ebpf: &Ebpf, name: &str) -> [u64; N] {
    let map = ebpf.map(name).expect("overlay.bpf.c defines it");
    let map = PerCpuArray::<&MapData, u64>::try_from(map).expect("numbers");
    std::array::from_fn(|at| map.get(&(at as u32), 0).map(|cpus| cpus.iter().sum()).unwrap_or_default())
}

fn ring(ebpf: &mut Ebpf, name: &str) -> Result<RingBuf<MapData>, EbpfError> {
    let map = ebpf.take_map(name).expect("overlay.bpf.c defines it");
    Ok(RingBuf::try_from(map)?)
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, ProgramError> {
    ebpf.program_mut(name).expect("overlay.bpf.c defines it").try_into()
}
