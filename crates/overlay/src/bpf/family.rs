//! The programs for pods with one IP version, and their maps.

use super::flow::{FlowReader, OverlayGone, OverlayTuple};
use super::shared::v44::{self, COUNTS, EVENTS, Pod, Settings, Sweep};
use super::shared::v66;
use super::versions::{OverlayIp, WAYS};
use super::{AT_POD, AT_UPLINK, OVERLAY_TRANSLATIONS_MAX, OverlaySettings, OverlaySweep, STAMPS};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, ProgramArray, RingBuf};
use aya::programs::{ProgramError, SchedClassifier, TestRunOptions};
use aya::{Ebpf, EbpfError, EbpfLoader, TestRun};
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

/// The programs to which those for IPv4 pass frames on.
const TWINS: [(usize, &str); v44::TWINS] = [
    (v44::TWIN_SEND, "overlay_send"),
    (v44::TWIN_RECEIVE, "overlay_receive"),
    (v44::TWIN_LEARN_SEND, "overlay_learn_send"),
    (v44::TWIN_LEARN_RECEIVE, "overlay_learn_receive"),
];

/// The maximum number of tuples that are returned at once.
const ASKED_MAX: usize = 1024;
/// The maximum number of records of flows that are returned at once.
const LEFT_MAX: usize = 8192;

pub(super) struct Family {
    ebpf: Ebpf,
    /// The IP versions of pods and of nodes.
    versions: [OverlayIp; 2],
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
        Ok(Family { ebpf, versions: [pods, nodes], sets, asked, left })
    }

    /// Makes the IPv4 programs pass frames of the other version on to these programs.
    pub fn hand_over(&mut self, other: &mut Family) -> Result<(), EbpfError> {
        let map = self.ebpf.map_mut("twins").expect("overlay.bpf.c defines it");
        let mut twins = ProgramArray::try_from(map)?;
        for (at, name) in TWINS {
            let program = program(&mut other.ebpf, name)?;
            twins.set(at as u32, program.fd()?, 0)?;
        }
        Ok(())
    }

    /// Writes `struct settings`.
    pub fn set(&mut self, settings: &OverlaySettings) -> Result<(), MapError> {
        let [first, behind] = settings.sources.map(u32::from);
        let [sent, taken] = settings.zero_checks.map(usize::from);
        let settings = Settings {
            vni: settings.vni,
            port: settings.port.into(),
            tunnel: settings.tunnel,
            source_first: first,
            source_span: behind.saturating_sub(first),
            mark_mask: settings.mark,
            mark_shift: settings.mark.trailing_zeros(),
            sets: self.sets - 1,
            ttl_ns: settings.ttl_ns,
            seed: settings.seed,
            checks: (sent * v44::ZERO_SENT + taken * v44::ZERO_TAKEN) as u32,
            head: settings.kind.head(),
        };
        self.array::<[u8; Settings::SIZE]>("settings").set(0, settings.bytes(), 0)
    }

    /// Writes one of the times and numbers of `pulse`, or a stamp.
    pub fn write(&mut self, map: &str, at: u32, value: u64) -> Result<(), MapError> {
        self.array::<u64>(map).set(at, value, 0)
    }

    fn array<T: aya::Pod>(&mut self, name: &str) -> Array<&mut MapData, T> {
        let map = self.ebpf.map_mut(name).expect("overlay.bpf.c defines it");
        Array::try_from(map).expect("its values have this size")
    }

    /// A map from one structure to another.
    fn table<K: aya::Pod, V: aya::Pod>(&mut self, name: &str) -> HashMap<&mut MapData, K, V> {
        let map = self.ebpf.map_mut(name).expect("overlay.bpf.c defines it");
        HashMap::try_from(map).expect("its keys and values have this size")
    }

    /// `struct pod` by interface.
    pub fn pods(&mut self) -> HashMap<&mut MapData, u32, [u8; Pod::SIZE]> {
        self.table("pods")
    }

    /// Makes a remote node known by its stamp.
    pub fn set_node(&mut self, address: IpAddr, stamp: u32) -> Result<(), MapError> {
        match (address, self.versions[1]) {
            (IpAddr::V4(address), OverlayIp::V4) => {
                self.table::<[u8; 4], u32>("nodes").insert(address.octets(), stamp, 0)
            }
            (IpAddr::V6(address), OverlayIp::V6) => {
                self.table::<[u8; 16], u32>("nodes").insert(address.octets(), stamp, 0)
            }
            // No frame can come from an address of the other version.
            _ => Ok(()),
        }
    }

    /// Records that NAT turns one tuple into another, or removes the record.
    pub fn translate(&mut self, from: Option<&OverlayTuple>, to: &OverlayTuple) -> Result<(), MapError> {
        let pods = self.versions[0];
        if to.ip() != pods || from.is_some_and(|from| from.ip() != pods) {
            return Err(MapError::KeyNotFound);
        }
        match pods {
            OverlayIp::V4 => {
                let bytes = |tuple: &OverlayTuple| v44::Tuple::from(tuple).bytes();
                change(self.table("translations"), bytes(to), from.map(bytes))
            }
            OverlayIp::V6 => {
                let bytes = |tuple: &OverlayTuple| v66::Tuple::from(tuple).bytes();
                change(self.table("translations"), bytes(to), from.map(bytes))
            }
        }
    }

    /// Removes all NAT records.
    pub fn forget_translations(&mut self) {
        match self.versions[0] {
            OverlayIp::V4 => forget_all::<{ v44::Tuple::SIZE }>(self.table("translations")),
            OverlayIp::V6 => forget_all::<{ v66::Tuple::SIZE }>(self.table("translations")),
        }
    }

    pub fn asked(&mut self, all: &mut Vec<OverlayTuple>) {
        let mut count = 0;
        while count < ASKED_MAX
            && let Some(item) = self.asked.next()
        {
            count += 1;
            all.extend(OverlayTuple::read(&item, self.versions[0]));
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
            all.extend(OverlayGone::read(&item, self.versions[0]));
        }
    }

    /// Returns the number of sets of flows.
    pub fn sets(&self) -> u32 {
        self.sets
    }

    /// Makes the flows of some sets report their counts; returns the set to continue with.
    pub fn sweep(&mut self, from: u32, sets: u32, what: &OverlaySweep) -> Result<u32, ProgramError> {
        let why = if what.ends { v44::STOPPED } else { v44::IDLE } as u32;
        let sweep = Sweep { idle_ns: what.idle_ns, given_ns: what.given_ns, at: from, why };
        self.array::<[u8; Sweep::SIZE]>("sweeps").set(0, sweep.bytes(), 0)?;
        // The kernel requires a frame.
        let options = TestRunOptions { data_in: Some(&[0; 14]), repeat: sets, ..TestRunOptions::new() };
        let done = self.program("overlay_sweep")?.test_run(options);
        // A signal ends the run early, but its progress is recorded.
        let was_interrupted = |error: &ProgramError| match error {
            ProgramError::SyscallError(error) => error.io_error.kind() == Interrupted,
            _ => false,
        };
        if let Err(error) = done
            && !was_interrupted(&error)
        {
            return Err(error);
        }
        Ok(Sweep::of(&self.array("sweeps").get(&0, 0)?).at)
    }

    /// The IDs of the programs that are attached to an ingress.
    pub fn ids(&mut self) -> Vec<u32> {
        let id = |name: &str| Some(self.program(name).ok()?.info().ok()?.id());
        ["overlay_send", "overlay_receive"].into_iter().filter_map(id).collect()
    }

    pub fn flows(&self) -> Result<FlowReader, MapError> {
        let Some(Map::Array(data)) = self.ebpf.map("table") else { unreachable!("overlay.bpf.c defines it") };
        let own = data.fd().as_fd().try_clone_to_owned()?;
        Ok(FlowReader { versions: self.versions, map: Map::Array(MapData::from_fd(own)?) })
    }

    pub fn program(&mut self, name: &str) -> Result<&mut SchedClassifier, ProgramError> {
        program(&mut self.ebpf, name)
    }

    pub fn frames(&self) -> [u64; 2 * COUNTS] {
        sums(&self.ebpf, "frames")
    }

    pub fn entries(&self) -> [u64; EVENTS] {
        sums(&self.ebpf, "entries")
    }
}

/// Inserts a value, or removes it.
fn change<K: aya::Pod, V: aya::Pod>(
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
