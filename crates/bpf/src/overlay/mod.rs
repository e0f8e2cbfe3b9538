//! The programs of `overlay.bpf.c` and their maps, laid out as integers in the order of its structures.

mod counts;
mod family;
mod flow;
mod layout;
mod left;

pub use counts::{OVERLAY_COUNTS, OverlayEntries, OverlayFrames};
pub use flow::{OverlayEnd, OverlayFlow, OverlayFlows, OverlayGone, OverlayKey, OverlayTuple};
pub use layout::OverlayIp;
pub use left::{OverlayProgram, overlay_pins, overlay_programs, overlay_programs_at};

use crate::hook::{self, Attachment};
use aya::maps::MapError;
use aya::programs::{ProgramError, TcAttachType, TestRunOptions};
use aya::{EbpfError, TestRun};
use family::Family;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

/// The largest number of remote nodes, and of pods' interfaces.
pub const OVERLAY_NODES_MAX: usize = 1024;
/// The largest number of flows of a version of IP.
pub const OVERLAY_FLOWS_MAX: u32 = 1 << 20;
/// The largest number of connections with NAT that are known.
pub const OVERLAY_TRANSLATIONS_MAX: usize = 65_536;
/// Bits of a mark that are needed at least: two directions, whether a connection is established, whether NAT
/// changes it, and two of the epoch.
pub const OVERLAY_MARK_BITS: u32 = MARK_EPOCH + 2;
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
    /// Whether the device sends UDP over IPv6 with checksum 0, and whether it takes it so.
    pub zero_checks: [bool; 2],
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

/// What flows of the table are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlaySweep {
    /// Those that were not used since then go, on the clock `CLOCK_MONOTONIC`, in nanoseconds.
    pub idle_ns: u64,
    /// Of the others, those that were learnt or gave their counts before then give them.
    pub given_ns: u64,
    /// Those that go do so because the programs end.
    pub ends: bool,
}

/// The programs and their maps: for pods with IPv4, and for those with IPv6, to which the former hand frames
/// over.
pub struct TcOverlay {
    families: [Family; 2],
    /// Of the programs that are attached to an ingress.
    ids: Vec<u32>,
    epoch: u64,
    stamps: Vec<u64>,
    /// By interface; dropping the links detaches the programs.
    pods: BTreeMap<u32, Vec<Attachment>>,
    uplink: Vec<Attachment>,
}

/// Items of `pulse`.
const UNTIL: u32 = 0;
const EPOCH: u32 = 1;
const LEARN_FROM: u32 = 2;

impl TcOverlay {
    /// Loads the programs for nodes whose addresses are of a version of IP, with room for so many flows of
    /// each. They are attached to nothing yet, and without a lease ([`TcOverlay::extend`]) do nothing.
    ///
    /// # Errors
    /// Returns the kernel's error, usually a missing privilege.
    pub fn load(flows: u32, nodes: OverlayIp) -> Result<TcOverlay, EbpfError> {
        let flows = flows.clamp(1, OVERLAY_FLOWS_MAX);
        let mut families =
            [Family::load(OverlayIp::V4, nodes, flows)?, Family::load(OverlayIp::V6, nodes, flows)?];
        let [four, six] = &mut families;
        four.hand_over(six)?;
        let ids = four.ids();
        Ok(TcOverlay {
            families,
            ids,
            epoch: 0,
            stamps: vec![0; STAMPS],
            pods: BTreeMap::new(),
            uplink: Vec::new(),
        })
    }

    /// The programs for pods with a version of IP.
    fn family(&mut self, ip: OverlayIp) -> &mut Family {
        let [four, six] = &mut self.families;
        if ip == OverlayIp::V4 { four } else { six }
    }

    fn write(&mut self, map: &str, at: u32, value: u64) -> Result<(), MapError> {
        self.families.iter_mut().try_for_each(|family| family.write(map, at, value))
    }

    /// Changes what the programs go by.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set(&mut self, settings: &OverlaySettings) -> Result<(), MapError> {
        self.families.iter_mut().try_for_each(|family| family.set(settings))
    }

    /// Lets the programs work until a time of `CLOCK_MONOTONIC`, in nanoseconds.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn extend(&mut self, until_ns: u64) -> Result<(), MapError> {
        self.write("pulse", UNTIL, until_ns)
    }

    /// Lets nothing be learnt before a time of `CLOCK_MONOTONIC`, in nanoseconds.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn learn_from(&mut self, from_ns: u64) -> Result<(), MapError> {
        self.write("pulse", LEARN_FROM, from_ns)
    }

    /// Makes void what depends on these stamps, and what frames on their way would teach: an epoch begins.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn bump(&mut self, stamps: &[u32]) -> Result<(), MapError> {
        self.epoch += 1;
        self.write("pulse", EPOCH, self.epoch)?;
        for &stamp in stamps {
            let value = &mut self.stamps[stamp as usize];
            *value += 1;
            let value = *value;
            self.write("stamps", stamp, value)?;
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
        self.families.iter_mut().for_each(|family| family.asked(&mut all));
        all
    }

    /// Become readable when something was asked.
    #[must_use]
    pub fn asks(&self) -> [BorrowedFd<'_>; 2] {
        self.families.each_ref().map(Family::asks)
    }

    /// Tells that NAT makes one tuple of another.
    ///
    /// # Errors
    /// Returns the kernel's error: there are too many.
    pub fn translate(&mut self, from: &OverlayTuple, to: &OverlayTuple) -> Result<(), MapError> {
        self.family(to.ip()).translate(Some(from), to)
    }

    /// Forgets what NAT makes this tuple of.
    pub fn forget_translation(&mut self, to: &OverlayTuple) {
        // It is not there if nobody asked.
        let _ = self.family(to.ip()).translate(None, to);
    }

    /// Forgets all NAT.
    pub fn forget_translations(&mut self) {
        self.families.iter_mut().for_each(Family::forget_translations);
    }

    /// Returns what flows have given since the last call; not all at once if there is much. If there was too
    /// much, some is in [`TcOverlay::entries`] alone.
    pub fn left(&mut self) -> Vec<OverlayGone> {
        let mut all = Vec::new();
        self.families.iter_mut().for_each(|family| family.left(&mut all));
        all
    }

    /// Returns the number of sets of flows: those of IPv4, and behind them those of IPv6.
    #[must_use]
    pub fn sets(&self) -> u32 {
        self.families.iter().map(Family::sets).sum()
    }

    /// Has flows of some sets, not more than those of a version of IP, give what they have counted; returns
    /// the set to go on with, which is that of before if there is no room for what they would give.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn sweep(&mut self, from: u32, sets: u32, what: &OverlaySweep) -> Result<u32, ProgramError> {
        let [four, six] = &mut self.families;
        match from.checked_sub(four.sets()) {
            None => four.sweep(from, sets, what),
            Some(at) => Ok(four.sets() + six.sweep(at, sets, what)?),
        }
    }

    /// Makes a remote node known: flows that it has may be learnt. Its stamp is from [`STAMP_FIRST`] on. One
    /// with an address of the other version than the programs are loaded for is none.
    ///
    /// # Errors
    /// Returns the kernel's error: there are too many.
    pub fn set_node(&mut self, address: IpAddr, stamp: u32) -> Result<(), MapError> {
        self.families.iter_mut().try_for_each(|family| family.set_node(address, Some(stamp)))
    }

    /// Forgets a remote node. Its stamp must be bumped, before or after.
    ///
    /// # Errors
    /// Returns the kernel's error: it is not known.
    pub fn remove_node(&mut self, address: IpAddr) -> Result<(), MapError> {
        self.families.iter_mut().try_for_each(|family| family.set_node(address, None))
    }

    /// Attaches the programs to the uplink; a former one is left.
    ///
    /// # Errors
    /// Returns the kernel's error: there is no such interface.
    pub fn attach_uplink(&mut self, interface: &str) -> Result<(), ProgramError> {
        self.uplink.clear();
        self.uplink = attach(&mut self.families[0], interface, AT_UPLINK)?;
        Ok(())
    }

    /// Attaches the programs to the interface of a pod, with its index and a stamp from [`STAMP_FIRST`] on.
    ///
    /// # Errors
    /// Those of [`TcOverlay::attach_uplink`].
    pub fn attach_pod(&mut self, (interface, index): (&str, u32), stamp: u32) -> Result<(), ProgramError> {
        for family in &mut self.families {
            family.pods().insert(index, [stamp, 0, 0], 0)?;
        }
        let links = attach(&mut self.families[0], interface, AT_POD)?;
        self.pods.insert(index, links);
        Ok(())
    }

    /// Leaves the interface of a pod, which may be gone. Its stamp must be bumped, before or after.
    pub fn detach_pod(&mut self, index: u32) {
        self.pods.remove(&index);
        for family in &mut self.families {
            // It is not there if attaching failed.
            let _ = family.pods().remove(&index);
        }
    }

    /// Returns the ids of programs of others at the ingress of an interface, before and behind ours.
    #[must_use]
    pub fn strangers_at(&self, interface: u32) -> [Vec<u32>; 2] {
        let links = self.uplink.iter().chain(self.pods.values().flatten());
        let filters: Vec<u32> = links.filter_map(Attachment::stands_in).collect();
        let own = |id: &u32| self.ids.contains(id) || filters.contains(id);
        let all = hook::ids_at(interface, TcAttachType::Ingress).unwrap_or_default();
        let Some(at) = all.iter().position(own) else { return Default::default() };
        let behind = all[at..].iter().copied().filter(|id| !own(id)).collect();
        [all[..at].to_vec(), behind]
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
        let all = sums(self.families.each_ref().map(Family::frames));
        let (sent, received) = all.split_at(OVERLAY_COUNTS.len());
        [sent, received].map(|half| OverlayFrames(half.try_into().expect("half of them")))
    }

    /// Returns what became of entries.
    #[must_use]
    pub fn entries(&self) -> OverlayEntries {
        OverlayEntries::new(sums(self.families.each_ref().map(Family::entries)))
    }

    /// Returns what reads the flows, also from another thread.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn flows(&self) -> Result<OverlayFlows, MapError> {
        let tables = self.families.iter().map(Family::flows).collect::<Result<_, _>>()?;
        Ok(OverlayFlows::new(tables))
    }

    /// Returns the lower half of a flow's hash (`BPF_PROG_TEST_RUN`), and forgets the flow.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn test_hash(&mut self, key: &OverlayKey) -> Result<u32, ProgramError> {
        // The kernel wants the Ethernet header of a frame in front.
        let bytes = [&[0; 14][..], &key.bytes()].concat();
        let options = TestRunOptions { data_in: Some(&bytes), ..TestRunOptions::new() };
        Ok(self.family(key.ip()).program("overlay_forget")?.test_run(options)?.return_value)
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
        let result = self.families[0].program(name)?.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        let mark = after[MARK..].first_chunk().copied().map(u32::from_ne_bytes);
        Ok((result.return_value as i32, out, mark.unwrap_or_default()))
    }
}

/// Attaches programs, which are those for IPv4.
fn attach(
    family: &mut Family,
    interface: &str,
    of: [(&str, TcAttachType); 2],
) -> Result<Vec<Attachment>, ProgramError> {
    let mut links = Vec::new();
    for (name, at) in of {
        let program = family.program(name)?;
        links.push(hook::attach(program, interface, at)?);
    }
    Ok(links)
}

/// Adds the counts of both versions.
fn sums<const N: usize>([four, six]: [[u64; N]; 2]) -> [u64; N] {
    std::array::from_fn(|at| four[at] + six[at])
}
