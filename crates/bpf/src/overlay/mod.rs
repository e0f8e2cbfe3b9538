//! The programs of `overlay.bpf.c` and their maps, laid out as integers in the order of its structures.

mod counts;
mod flow;
mod left;

pub use counts::{OVERLAY_COUNTS, OverlayEntries, OverlayFrames};
pub use flow::{OverlayFlow, OverlayFlows, OverlayGone, OverlayKey, OverlayTuple};
pub use left::{OverlayProgram, overlay_pins, overlay_programs, overlay_programs_at};

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, TestRunOptions};
use aya::{Ebpf, EbpfError, EbpfLoader, TestRun};
use counts::EVENTS;
use flow::{GONE, SET, WAYS};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};

const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/overlay.bpf.o"));

/// The largest number of remote nodes, and of pods' interfaces.
pub const OVERLAY_NODES_MAX: usize = 1024;
/// The largest number of flows.
pub const OVERLAY_FLOWS_MAX: u32 = 1 << 20;
/// The largest number of connections with NAT that are known.
pub const OVERLAY_TRANSLATIONS_MAX: usize = 65_536;
/// Bits of a mark that are needed at least: two directions, whether a connection is established, whether NAT
/// changes it, and two of the epoch.
pub const OVERLAY_MARK_BITS: u32 = MARK_EPOCH + 2;
/// Tuples that are returned at once.
const ASKED_MAX: usize = 1024;
/// The first bit of the epoch.
const MARK_EPOCH: u32 = 4;

/// The stamp that all entries depend on.
pub const STAMP_GLOBAL: u32 = 0;
/// The stamp of what nftables decides, which all entries depend on, too.
pub const STAMP_POLICY: u32 = 1;
/// The first stamp of remote nodes and pods.
pub const STAMP_FIRST: u32 = 2;
const STAMPS: usize = STAMP_FIRST as usize + 2 * OVERLAY_NODES_MAX;

/// The programs at the interface of a pod, and where.
const AT_POD: [(&str, TcAttachType); 2] =
    [("overlay_send", TcAttachType::Ingress), ("overlay_learn_receive", TcAttachType::Egress)];
/// Those at the uplink. What learns is there before what marks.
const AT_UPLINK: [(&str, TcAttachType); 2] =
    [("overlay_learn_send", TcAttachType::Egress), ("overlay_receive", TcAttachType::Ingress)];

/// What the programs go by. It has no `Debug`, because it has a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OverlaySettings {
    /// The VNI of the tunnels.
    pub vni: u32,
    /// Their UDP port.
    pub vxlan_port: u16,
    /// The index of the VXLAN device.
    pub tunnel: u32,
    /// The range of outer source ports, from which the kernel's device chooses, too: the first, and the one
    /// behind the last.
    pub sources: [u16; 2],
    /// Bits of `skb->mark` that are ours: neighbours, [`OVERLAY_MARK_BITS`] at least.
    pub mark: u32,
    /// How long a direction of a flow goes on without a frame that takes the kernel's way, in nanoseconds.
    pub ttl_ns: u64,
    /// The seed of the table's hash.
    pub seed: u64,
}

impl OverlaySettings {
    /// Returns the bits that say that a direction of a flow is to be learnt.
    #[must_use]
    pub fn wants(&self) -> u32 {
        3 << self.mark.trailing_zeros()
    }

    /// Returns the bit that says that the frame's connection is established.
    #[must_use]
    pub fn established(&self) -> u32 {
        4 << self.mark.trailing_zeros()
    }

    /// Returns the bit that says that NAT changes the frame's connection.
    #[must_use]
    pub fn translated(&self) -> u32 {
        8 << self.mark.trailing_zeros()
    }

    /// Returns how many epochs a mark tells apart.
    #[must_use]
    pub fn epochs(&self) -> usize {
        1 << self.mark.count_ones().saturating_sub(MARK_EPOCH)
    }
}

/// The programs and their maps.
pub struct TcOverlay {
    ebpf: Ebpf,
    epoch: u64,
    stamps: Vec<u64>,
    /// By interface; dropping the links detaches the programs.
    pods: BTreeMap<u32, Vec<FdLink>>,
    uplink: Vec<FdLink>,
    asked: RingBuf<MapData>,
    left: RingBuf<MapData>,
}

impl TcOverlay {
    /// Loads the programs with room for so many flows. They are attached to nothing yet, and without a lease
    /// ([`TcOverlay::extend`]) do nothing.
    ///
    /// # Errors
    /// Returns the kernel's error, usually a missing privilege.
    pub fn load(flows: u32) -> Result<TcOverlay, EbpfError> {
        let sets = (flows.clamp(1, OVERLAY_FLOWS_MAX) / WAYS as u32).max(1).next_power_of_two();
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("table", sets)
            .map_max_entries("stamps", STAMPS as u32)
            .map_max_entries("translations", 2 * OVERLAY_TRANSLATIONS_MAX as u32)
            .load(OBJECT)?;
        for (name, _) in AT_POD.into_iter().chain(AT_UPLINK) {
            program(&mut ebpf, name)?.load()?;
        }
        program(&mut ebpf, "overlay_forget")?.load()?;
        let (asked, left) = (ring(&mut ebpf, "asked")?, ring(&mut ebpf, "left")?);
        Ok(TcOverlay {
            ebpf,
            epoch: 0,
            stamps: vec![0; STAMPS],
            pods: BTreeMap::new(),
            uplink: Vec::new(),
            asked,
            left,
        })
    }

    /// Changes what the programs go by.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set(&mut self, settings: &OverlaySettings) -> Result<(), MapError> {
        let sets = array::<[u64; SET]>(&mut self.ebpf, "table").len() - 1;
        let [first, behind] = settings.sources.map(u32::from);
        let two = |low: u32, high: u32| {
            let ([a, b, c, d], [e, f, g, h]) = (low.to_ne_bytes(), high.to_ne_bytes());
            u64::from_ne_bytes([a, b, c, d, e, f, g, h])
        };
        let words = [
            two(settings.vni, u32::from(settings.vxlan_port)),
            two(settings.tunnel, first),
            two(behind.saturating_sub(first), settings.mark),
            two(settings.mark.trailing_zeros(), sets),
            settings.ttl_ns,
            settings.seed,
        ];
        array::<[u64; 6]>(&mut self.ebpf, "settings").set(0, words, 0)
    }

    /// Lets the programs work until a time of `CLOCK_MONOTONIC`, in nanoseconds.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn extend(&mut self, until_ns: u64) -> Result<(), MapError> {
        array::<u64>(&mut self.ebpf, "pulse").set(0, until_ns, 0)
    }

    /// Lets nothing be learnt before a time of `CLOCK_MONOTONIC`, in nanoseconds.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn learn_from(&mut self, from_ns: u64) -> Result<(), MapError> {
        array::<u64>(&mut self.ebpf, "pulse").set(2, from_ns, 0)
    }

    /// Makes void what depends on these stamps, and what frames on their way would teach: an epoch begins.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn bump(&mut self, stamps: &[u32]) -> Result<(), MapError> {
        self.epoch += 1;
        array::<u64>(&mut self.ebpf, "pulse").set(1, self.epoch, 0)?;
        for &stamp in stamps {
            let value = &mut self.stamps[stamp as usize];
            *value += 1;
            let value = *value;
            array::<u64>(&mut self.ebpf, "stamps").set(stamp, value, 0)?;
        }
        Ok(())
    }

    /// Returns what all stamps are now.
    #[must_use]
    pub fn stamps(&self) -> Vec<u64> {
        self.stamps.clone()
    }

    /// Returns the tuples with which frames left after NAT, of connections that are not known; not all at
    /// once if there are many.
    pub fn asked(&mut self) -> Vec<OverlayTuple> {
        let mut all = Vec::new();
        while all.len() < ASKED_MAX
            && let Some(item) = self.asked.next()
        {
            all.extend(item.first_chunk().map(OverlayTuple::new));
        }
        all
    }

    /// Becomes readable when something was asked.
    #[must_use]
    pub fn asks(&self) -> BorrowedFd<'_> {
        self.asked.as_fd()
    }

    /// Tells that NAT makes one tuple of another.
    ///
    /// # Errors
    /// Returns the kernel's error: there are too many.
    pub fn translate(&mut self, from: &OverlayTuple, to: &OverlayTuple) -> Result<(), MapError> {
        translations(&mut self.ebpf).insert(to.bytes(), from.bytes(), 0)
    }

    /// Forgets what NAT makes this tuple of.
    pub fn forget_translation(&mut self, to: &OverlayTuple) {
        // It is not there if nobody asked.
        let _ = translations(&mut self.ebpf).remove(&to.bytes());
    }

    /// Forgets all NAT.
    pub fn forget_translations(&mut self) {
        let mut map = translations(&mut self.ebpf);
        let all: Vec<[u8; 16]> = map.keys().flatten().collect();
        for key in all {
            let _ = map.remove(&key);
        }
    }

    /// Returns the flows that have gone since the last call and had counted something. If there were too
    /// many, some are in [`TcOverlay::entries`] alone.
    pub fn left(&mut self) -> Vec<OverlayGone> {
        let mut all = Vec::new();
        while let Some(item) = self.left.next() {
            all.extend(item.first_chunk::<{ GONE * 8 }>().map(OverlayGone::new));
        }
        all
    }

    /// Makes a remote node known: flows that it has may be learnt. Its stamp is from [`STAMP_FIRST`] on.
    ///
    /// # Errors
    /// Returns the kernel's error: there are too many.
    pub fn set_node(&mut self, address: Ipv4Addr, stamp: u32) -> Result<(), MapError> {
        numbers(&mut self.ebpf, "nodes").insert(u32::from_ne_bytes(address.octets()), stamp, 0)
    }

    /// Forgets a remote node. Its stamp must be bumped, before or after.
    ///
    /// # Errors
    /// Returns the kernel's error: it is not known.
    pub fn remove_node(&mut self, address: Ipv4Addr) -> Result<(), MapError> {
        numbers(&mut self.ebpf, "nodes").remove(&u32::from_ne_bytes(address.octets()))
    }

    /// Attaches the programs to the uplink; a former one is left.
    ///
    /// # Errors
    /// Returns the kernel's error: there is no such interface, or the kernel is older than 6.6, whose
    /// attachments end with the process.
    pub fn attach_uplink(&mut self, interface: &str) -> Result<(), ProgramError> {
        self.uplink.clear();
        self.uplink = attach(&mut self.ebpf, interface, AT_UPLINK)?;
        Ok(())
    }

    /// Attaches the programs to the interface of a pod, with its index and a stamp from [`STAMP_FIRST`] on.
    ///
    /// # Errors
    /// Those of [`TcOverlay::attach_uplink`].
    pub fn attach_pod(&mut self, (interface, index): (&str, u32), stamp: u32) -> Result<(), ProgramError> {
        pods(&mut self.ebpf).insert(index, [stamp, 0, 0], 0)?;
        let links = attach(&mut self.ebpf, interface, AT_POD)?;
        self.pods.insert(index, links);
        Ok(())
    }

    /// Leaves the interface of a pod, which may be gone. Its stamp must be bumped, before or after.
    pub fn detach_pod(&mut self, index: u32) {
        self.pods.remove(&index);
        // It is not there if attaching failed.
        let _ = pods(&mut self.ebpf).remove(&index);
    }

    /// Leaves all interfaces.
    pub fn detach(&mut self) {
        self.uplink.clear();
        for index in std::mem::take(&mut self.pods).into_keys() {
            self.detach_pod(index);
        }
    }

    /// Forgets a flow, because its connection has ended.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn forget(&mut self, key: &OverlayKey) -> Result<(), ProgramError> {
        self.test_hash(key).map(drop)
    }

    /// Returns what became of frames that pods sent, and of those that the uplink received.
    #[must_use]
    pub fn frames(&self) -> [OverlayFrames; 2] {
        let all: [u64; 2 * OVERLAY_COUNTS.len()] = sums(&self.ebpf, "frames");
        let (sent, received) = all.split_at(OVERLAY_COUNTS.len());
        [sent, received].map(|half| OverlayFrames(half.try_into().expect("half of them")))
    }

    /// Returns what became of entries.
    #[must_use]
    pub fn entries(&self) -> OverlayEntries {
        OverlayEntries::new(sums::<EVENTS>(&self.ebpf, "entries"))
    }

    /// Returns what reads the flows, also from another thread.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn flows(&self) -> Result<OverlayFlows, MapError> {
        let Some(Map::Array(data)) = self.ebpf.map("table") else { unreachable!("overlay.bpf.c defines it") };
        let own = data.fd().as_fd().try_clone_to_owned()?;
        OverlayFlows::new(Map::Array(MapData::from_fd(own)?))
    }

    /// Returns the lower half of a flow's hash (`BPF_PROG_TEST_RUN`), and forgets the flow.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn test_hash(&mut self, key: &OverlayKey) -> Result<u32, ProgramError> {
        // The kernel wants the Ethernet header of a frame in front.
        let bytes = [&[0; 14][..], &key.bytes()].concat();
        let options = TestRunOptions { data_in: Some(&bytes), ..TestRunOptions::new() };
        Ok(program(&mut self.ebpf, "overlay_forget")?.test_run(options)?.return_value)
    }

    /// Runs one of the programs on a frame (`BPF_PROG_TEST_RUN`), which came by this interface with this mark
    /// and, if it is not 0, this length of its segments. Returns its verdict, the frame and its mark.
    ///
    /// # Errors
    /// Returns the kernel's error. The kernel requires at least the 14 bytes of an Ethernet header.
    pub fn test_run(
        &mut self,
        name: &str,
        frame: &[u8],
        (interface, mark, segment): (u32, u32, u32),
    ) -> Result<(i32, Vec<u8>, u32), ProgramError> {
        /// Bytes of `struct __sk_buff`, and where its fields are.
        const CONTEXT: usize = 192;
        const MARK: usize = 8;
        const INTERFACE: usize = 40;
        const SEGMENT: usize = 176;
        let mut context = [0; CONTEXT];
        for (at, value) in [(MARK, mark), (INTERFACE, interface), (SEGMENT, segment)] {
            context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let (mut out, mut after) = (vec![0; frame.len() + 128], [0; CONTEXT]);
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ctx_out: Some(&mut after),
            ..TestRunOptions::new()
        };
        let result = program(&mut self.ebpf, name)?.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        let mark = after[MARK..].first_chunk().copied().map(u32::from_ne_bytes);
        Ok((result.return_value as i32, out, mark.unwrap_or_default()))
    }
}

fn attach(
    ebpf: &mut Ebpf,
    interface: &str,
    of: [(&str, TcAttachType); 2],
) -> Result<Vec<FdLink>, ProgramError> {
    let mut links = Vec::new();
    for (name, hook) in of {
        let program = program(ebpf, name)?;
        let id = program.attach(interface, hook)?;
        let link = program.take_link(id)?;
        // Dropping an attachment by netlink undoes it.
        links.push(FdLink::try_from(link).map_err(|_| ProgramError::NotAttached)?);
    }
    Ok(links)
}

fn sums<const N: usize>(ebpf: &Ebpf, name: &str) -> [u64; N] {
    let map = ebpf.map(name).expect("overlay.bpf.c defines it");
    let map = PerCpuArray::<&MapData, u64>::try_from(map).expect("numbers");
    std::array::from_fn(|at| map.get(&(at as u32), 0).map(|cpus| cpus.iter().sum()).unwrap_or_default())
}

/// `struct pod` by interface.
fn pods(ebpf: &mut Ebpf) -> HashMap<&mut MapData, u32, [u32; 3]> {
    let map = ebpf.map_mut("pods").expect("overlay.bpf.c defines it");
    HashMap::try_from(map).expect("its value is laid out as here")
}

/// `struct tuple` by the same, as it leaves.
fn translations(ebpf: &mut Ebpf) -> HashMap<&mut MapData, [u8; 16], [u8; 16]> {
    let map = ebpf.map_mut("translations").expect("overlay.bpf.c defines it");
    HashMap::try_from(map).expect("its value is laid out as here")
}

fn ring(ebpf: &mut Ebpf, name: &str) -> Result<RingBuf<MapData>, EbpfError> {
    let map = ebpf.take_map(name).expect("overlay.bpf.c defines it");
    Ok(RingBuf::try_from(map)?)
}

fn numbers<'a>(ebpf: &'a mut Ebpf, name: &str) -> HashMap<&'a mut MapData, u32, u32> {
    let map = ebpf.map_mut(name).expect("overlay.bpf.c defines it");
    HashMap::try_from(map).expect("a number for each number")
}

fn array<'a, T: aya::Pod>(ebpf: &'a mut Ebpf, name: &str) -> Array<&'a mut MapData, T> {
    let map = ebpf.map_mut(name).expect("overlay.bpf.c defines it");
    Array::try_from(map).expect("its value is laid out as here")
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, ProgramError> {
    ebpf.program_mut(name).expect("overlay.bpf.c defines it").try_into()
}
