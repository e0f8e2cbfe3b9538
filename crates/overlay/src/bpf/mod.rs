//! The programs of `overlay.bpf.c` and their maps.

mod counts;
mod family;
mod flow;
mod left;
mod shared;
mod versions;

pub use counts::{OVERLAY_COUNTS, OverlayEntries, OverlayFrames};
pub use flow::{OverlayEnd, OverlayFlow, OverlayFlows, OverlayGone, OverlayKey, OverlayTuple};
pub use left::{OverlayProgram, overlay_pins, overlay_programs, overlay_programs_at};
pub use versions::OverlayIp;

use aya::maps::MapError;
use aya::programs::{ProgramError, TcAttachType, TestRunOptions};
use aya::{EbpfError, TestRun};
use family::Family;
use shared::v44::{self, Pod};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use weir_bpf::hook::{self, Attachment};

/// The largest number of remote nodes, and of pods' interfaces.
pub const OVERLAY_NODES_MAX: usize = 1024;
/// The largest number of flows of an IP version.
pub const OVERLAY_FLOWS_MAX: u32 = 1 << 20;
/// The largest number of connections with NAT that are known.
pub const OVERLAY_TRANSLATIONS_MAX: usize = 65_536;
/// The smallest number of bits that a mark needs: two directions, whether a connection is established,
/// whether NAT changes it, and two bits of the epoch.
pub const OVERLAY_MARK_BITS: u32 = v44::EPOCH_SHIFT as u32 + 2;

/// The stamp on which all entries depend.
pub const STAMP_GLOBAL: u32 = v44::GLOBAL as u32;
/// The stamp of the nftables rules, on which all entries also depend.
pub const STAMP_POLICY: u32 = v44::POLICY as u32;
/// The first stamp of remote nodes and pods.
pub const STAMP_FIRST: u32 = v44::FIRST_STAMP as u32;
const STAMPS: usize = STAMP_FIRST as usize + 2 * OVERLAY_NODES_MAX;

/// The programs at a pod's interface, and their hooks.
const AT_POD: [(&str, TcAttachType); 2] =
    [("overlay_send", TcAttachType::Ingress), ("overlay_learn_receive", TcAttachType::Egress)];
/// The programs at the uplink. The one that learns is attached before the one that marks.
const AT_UPLINK: [(&str, TcAttachType); 2] =
    [("overlay_learn_send", TcAttachType::Egress), ("overlay_receive", TcAttachType::Ingress)];

/// The header of a tunnel, which carries Ethernet frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlayTunnel {
    /// VXLAN.
    Vxlan,
    /// Geneve. Frames whose header has options take the slow path.
    Geneve,
}

impl OverlayTunnel {
    /// Returns the word before the VNI.
    fn head(self) -> u32 {
        match self {
            OverlayTunnel::Vxlan => v44::VXLAN as u32,
            OverlayTunnel::Geneve => v44::GENEVE as u32,
        }
    }
}

/// The settings of the programs. There is no `Debug`, because they contain a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OverlaySettings {
    /// The header of the tunnels.
    pub kind: OverlayTunnel,
    /// The VNI of the tunnels.
    pub vni: u32,
    /// Their UDP port.
    pub port: u16,
    /// The index of the tunnel device.
    pub tunnel: u32,
    /// The range of outer source ports, from which the kernel's device also chooses: the first, and the one
    /// after the last.
    pub sources: [u16; 2],
    /// Our bits of `skb->mark`: contiguous, and at least [`OVERLAY_MARK_BITS`] of them.
    pub mark: u32,
    /// How long a direction of a flow may continue without a frame on the slow path, in nanoseconds.
    pub ttl_ns: u64,
    /// The seed of the table's hash.
    pub seed: u64,
    /// Whether the device sends UDP over IPv6 with checksum 0, and whether it accepts such packets.
    pub zero_checks: [bool; 2],
}

impl OverlaySettings {
    /// Returns the bits that request that a direction of a flow be learnt.
    #[must_use]
    pub fn wants(&self) -> u32 {
        self.bits(v44::WANTS_SEND | v44::WANTS_RECEIVE)
    }

    /// Returns the bit that says that the frame's connection is established.
    #[must_use]
    pub fn established(&self) -> u32 {
        self.bits(v44::ESTABLISHED)
    }

    /// Returns the bit that says that NAT changes the frame's connection.
    #[must_use]
    pub fn translated(&self) -> u32 {
        self.bits(v44::NAT)
    }

    fn bits(&self, bits: usize) -> u32 {
        (bits as u32) << self.mark.trailing_zeros()
    }

    /// Returns how many epochs a mark can distinguish.
    #[must_use]
    pub fn epochs(&self) -> usize {
        1 << self.mark.count_ones().saturating_sub(v44::EPOCH_SHIFT as u32)
    }
}

/// How a sweep handles the flows of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlaySweep {
    /// Flows not used since this time of `CLOCK_MONOTONIC`, in nanoseconds, expire.
    pub idle_ns: u64,
    /// Among all other flows, those learnt, or last reported, before this time report their counts.
    pub given_ns: u64,
    /// Whether expired flows are reported as ended because the programs are being removed.
    pub ends: bool,
}

/// The programs and their maps: for pods with IPv4, and for pods with IPv6, to which the former pass frames
/// on.
pub struct TcOverlay {
    families: [Family; 2],
    /// IDs of the programs that are attached to an ingress.
    ids: Vec<u32>,
    epoch: u64,
    stamps: Vec<u64>,
    /// The links of the programs by interface; dropping the links detaches the programs.
    pods: BTreeMap<u32, Vec<Attachment>>,
    uplink: Vec<Attachment>,
}

impl TcOverlay {
    /// Loads the programs for nodes with addresses of the IP version `nodes`, with room for `flows` flows of
    /// each version. They are not attached yet, and do nothing without a lease ([`TcOverlay::extend`]).
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

    /// The programs for pods with this IP version.
    fn family(&mut self, ip: OverlayIp) -> &mut Family {
        let [four, six] = &mut self.families;
        if ip == OverlayIp::V4 { four } else { six }
    }

    fn write(&mut self, map: &str, at: usize, value: u64) -> Result<(), MapError> {
        self.families.iter_mut().try_for_each(|family| family.write(map, at as u32, value))
    }

    /// Changes the settings of the programs.
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
        self.write("pulse", v44::UNTIL, until_ns)
    }

    /// Lets nothing be learnt before a time of `CLOCK_MONOTONIC`, in nanoseconds.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn learn_from(&mut self, from_ns: u64) -> Result<(), MapError> {
        self.write("pulse", v44::LEARN_FROM, from_ns)
    }

    /// Invalidates the entries that depend on these stamps, and whatever would be learnt from frames in
    /// flight, by beginning a new epoch.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn bump(&mut self, stamps: &[u32]) -> Result<(), MapError> {
        self.epoch += 1;
        self.write("pulse", v44::EPOCH, self.epoch)?;
        for &stamp in stamps {
            let value = &mut self.stamps[stamp as usize];
            *value += 1;
            let value = *value;
            self.write("stamps", stamp as usize, value)?;
        }
        Ok(())
    }

    /// Returns the current values of all stamps.
    #[must_use]
    pub fn stamps(&self) -> Vec<u64> {
        self.stamps.clone()
    }

    /// Returns the tuples with which frames of unknown connections left after NAT; if there are many, not all
    /// at once.
    pub fn asked(&mut self) -> Vec<OverlayTuple> {
        let mut all = Vec::new();
        self.families.iter_mut().for_each(|family| family.asked(&mut all));
        all
    }

    /// Descriptors that become readable when there are requests.
    #[must_use]
    pub fn asks(&self) -> [BorrowedFd<'_>; 2] {
        self.families.each_ref().map(Family::asks)
    }

    /// Records that NAT turns one tuple into another.
    ///
    /// # Errors
    /// The error is the kernel's: there are too many.
    pub fn translate(&mut self, from: &OverlayTuple, to: &OverlayTuple) -> Result<(), MapError> {
        self.family(to.ip()).translate(Some(from), to)
    }

    /// Removes the record of the tuple that NAT turns into this one.
    pub fn forget_translation(&mut self, to: &OverlayTuple) {
        // The record does not exist if it was never requested.
        let _ = self.family(to.ip()).translate(None, to);
    }

    /// Removes all NAT records.
    pub fn forget_translations(&mut self) {
        self.families.iter_mut().for_each(Family::forget_translations);
    }

    /// Returns records that flows have reported since the last call, up to a limit. Records for which the
    /// kernel had no room are only counted, in [`TcOverlay::entries`].
    pub fn left(&mut self) -> Vec<OverlayGone> {
        let mut all = Vec::new();
        self.families.iter_mut().for_each(|family| family.left(&mut all));
        all
    }

    /// Returns the number of sets of flows: those of IPv4, followed by those of IPv6.
    #[must_use]
    pub fn sets(&self) -> u32 {
        self.families.iter().map(Family::sets).sum()
    }

    /// Makes the flows of some sets, at most all sets of one IP version, report their counts. Returns the set
    /// to continue with, which is the same set if there is no room for the report.
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

    /// Makes a remote node known, so that flows with it may be learnt. Stamps start at [`STAMP_FIRST`]. An
    /// address of the IP version for which the programs are not loaded is ignored.
    ///
    /// # Errors
    /// The error is the kernel's: there are too many.
    pub fn set_node(&mut self, address: IpAddr, stamp: u32) -> Result<(), MapError> {
        self.families.iter_mut().try_for_each(|family| family.set_node(address, stamp))
    }

    /// Attaches the programs to the uplink, and detaches them from a previous one.
    ///
    /// # Errors
    /// Returns the kernel's error: there is no such interface.
    pub fn attach_uplink(&mut self, interface: &str) -> Result<(), ProgramError> {
        self.uplink.clear();
        self.uplink = attach(&mut self.families[0], interface, AT_UPLINK)?;
        Ok(())
    }

    /// Attaches the programs to the interface of a pod, with its index and a stamp of at least
    /// [`STAMP_FIRST`].
    ///
    /// # Errors
    /// As for [`TcOverlay::attach_uplink`].
    pub fn attach_pod(&mut self, interface: &str, index: u32, stamp: u32) -> Result<(), ProgramError> {
        for family in &mut self.families {
            family.pods().insert(index, Pod { stamp, ..Pod::default() }.bytes(), 0)?;
        }
        let links = attach(&mut self.families[0], interface, AT_POD)?;
        self.pods.insert(index, links);
        Ok(())
    }

    /// Detaches from the interface of a pod, which may be gone. Its stamp must be bumped, before or after.
    pub fn detach_pod(&mut self, index: u32) {
        self.pods.remove(&index);
        for family in &mut self.families {
            // The pod does not exist there if attaching failed.
            let _ = family.pods().remove(&index);
        }
    }

    /// Returns the IDs of other programs at the ingress of an interface, before and after ours.
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

    /// Detaches from all interfaces.
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

    /// Returns the outcomes of the frames that pods sent, and of those that the uplink received.
    #[must_use]
    pub fn frames(&self) -> [OverlayFrames; 2] {
        let all = sums(self.families.each_ref().map(Family::frames));
        let (sent, received) = all.split_at(OVERLAY_COUNTS.len());
        [sent, received].map(|half| OverlayFrames(half.try_into().expect("half of them")))
    }

    /// Returns the events of entries.
    #[must_use]
    pub fn entries(&self) -> OverlayEntries {
        OverlayEntries::new(sums(self.families.each_ref().map(Family::entries)))
    }

    /// Returns a reader of the flows, which also works from another thread.
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
        // The kernel requires the Ethernet header of a frame first.
        let bytes = [&[0; 14][..], &key.bytes()].concat();
        let options = TestRunOptions { data_in: Some(&bytes), ..TestRunOptions::new() };
        Ok(self.family(key.ip()).program("overlay_forget")?.test_run(options)?.return_value)
    }

    /// Runs one of the programs on a frame (`BPF_PROG_TEST_RUN`) that arrived on this interface with this
    /// mark and, if it is not 0, this segment length. Returns its verdict, the frame and its mark.
    ///
    /// # Errors
    /// Returns the kernel's error. The kernel requires at least the 14 bytes of an Ethernet header.
    pub fn test_run(
        &mut self,
        name: &str,
        frame: &[u8],
        (interface, mark, segment): (u32, u32, u32),
    ) -> Result<(i32, Vec<u8>, u32), ProgramError> {
        /// Size of `struct __sk_buff`, and offsets of its fields.
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

/// Attaches programs: those for IPv4.
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
