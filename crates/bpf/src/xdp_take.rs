//! Loads and attaches the XDP program in front of an interface's AF_XDP sockets.
//!
//! The program is attached through a bpf_link that this object owns. However the process ends, the kernel
//! detaches the program and restores the interface; the older attachment by netlink would survive kill -9.
//! Another process that receives the link's descriptor can replace this program with its own.

use std::io;
use std::ops::AddAssign;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray, XskMap};
use aya::programs::{ProgramError, TestRun, TestRunOptions, Xdp, loaded_programs};
use aya::{Ebpf, EbpfError, EbpfLoader};

use std::collections::HashSet;

use crate::link::{Hook, OwnedLink};
use crate::load::uninterrupted;
use crate::shared::xdp_take::{Counters as Counted, Key, Mask, Settings};
use crate::take::{Compiled, MASKS_MAX, Masked, Take, TakeError, compile};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xdp_take.bpf.o"));

/// The largest number of receive queues: each has one socket and one set of counters.
pub const QUEUES_MAX: u32 = 1024;

/// Where in the receive path the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver, before the kernel allocates a packet for the frame.
    Native,
    /// In the network stack, for drivers without XDP: works everywhere, costs one packet allocation per
    /// frame.
    Generic,
}

/// Counters of a queue. Each frame is counted in exactly one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// A rule matched; the frame went to the queue's socket.
    pub taken: u64,
    /// No rule matched; left to the kernel.
    pub passed: u64,
    /// Addressed to another host's MAC address; left to the kernel, which drops it.
    pub not_ours: u64,
    /// A rule matched, but no socket was bound to the queue; left to the kernel.
    pub redirect_failed: u64,
    /// A rule matched, but no socket was bound to the queue; dropped, because another process was taking over
    /// ([`XdpTake::hold_back`]).
    pub held_back: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.taken += other.taken;
        self.passed += other.passed;
        self.not_ours += other.not_ours;
        self.redirect_failed += other.redirect_failed;
        self.held_back += other.held_back;
    }
}

/// Flags of the attachment, as in linux/if_link.h.
const FLAG_GENERIC: u32 = 1 << 1;
const FLAG_NATIVE: u32 = 1 << 2;

/// Verdicts, as in linux/bpf.h.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

/// How many bytes of a frame are passed to a test run: more than all headers that the program reads, and no
/// more than the kernel allows in a test run.
const JUDGED_MAX: usize = 2048;

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The frame is taken if a socket is bound to its queue.
    Taken,
    /// The frame stays with the kernel.
    Left,
    /// The frame stays with the kernel, and is for another host's MAC address.
    NotOurs,
}

impl Judged {
    /// Returns the verdict's name in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Judged::Taken => "taken",
            Judged::Left => "left",
            Judged::NotOurs => "not_ours",
        }
    }
}

/// Why a program could not be run on a frame.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// The program cannot be loaded.
    #[error(transparent)]
    Load(#[from] EbpfError),
    /// The rules are invalid.
    #[error(transparent)]
    Rules(#[from] TakeError),
    /// The program cannot be run on this frame.
    #[error(transparent)]
    Run(#[from] ProgramError),
}

/// The maps with which another program handles frames that are taken. That program sends frames that it does
/// not handle to the socket of the receive queue, and counts them as this program would.
#[derive(Debug)]
pub struct TakeMaps {
    /// A program array with one element: the program that gets the frames that are taken.
    pub programs: OwnedFd,
    /// Sockets by receive queue.
    pub sockets: OwnedFd,
    /// [`Counters`] by receive queue, for each processor.
    pub counters: OwnedFd,
    /// The verdict for a frame whose queue has no socket.
    pub without_socket: OwnedFd,
}

/// The program and its maps.
pub struct XdpTake {
    ebpf: Ebpf,
    queues: u32,
    half: u32,
    /// For each copy of the settings, its keys in the map of values.
    keys: [HashSet<Key>; 2],
    link: Option<OwnedLink>,
    /// The socket map of the program that this one will replace.
    before: Option<XskMap<MapData>>,
}

impl XdpTake {
    /// Returns whether the program with this kernel ID is an `XdpTake` program, no matter which process
    /// loaded it. False without the privilege to list programs.
    #[must_use]
    pub fn is_program(id: u32) -> bool {
        loaded_programs().flatten().any(|one| one.id() == id && one.name_as_str() == Some("xdp_take"))
    }

    /// Loads the program for an interface with `queues` receive queues. At first, the program takes no
    /// frames.
    ///
    /// # Errors
    /// Returns the kernel's error, usually a missing privilege.
    pub fn load(queues: u32) -> Result<XdpTake, EbpfError> {
        let queues = queues.clamp(1, QUEUES_MAX);
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("sockets", queues)
            .map_max_entries("counters", queues)
            .load(OBJECT)?;
        uninterrupted(|| program(&mut ebpf)?.load())?;
        Ok(XdpTake { ebpf, queues, half: 0, keys: Default::default(), link: None, before: None })
    }

    /// Replaces the rules and the port's own MAC addresses atomically, whether the program is attached or
    /// not: each frame is compared with all old rules or with all new ones. Each rule that was not present
    /// two calls ago costs a system call.
    ///
    /// # Errors
    /// A rule is invalid, or the kernel has no memory for it. The previous rules then stay in place.
    pub fn set_take(&mut self, own: [[u8; 6]; 2], take: &Take) -> Result<(), TakeError> {
        self.set_take_by_steps(own, take, |_| ())
    }

    /// Like [`XdpTake::set_take`], and calls `after` after each write to a map, so that a test can observe
    /// the state between two writes.
    ///
    /// # Errors
    /// As for [`XdpTake::set_take`].
    pub fn set_take_by_steps(
        &mut self,
        own: [[u8; 6]; 2],
        take: &Take,
        mut after: impl FnMut(&mut XdpTake),
    ) -> Result<(), TakeError> {
        let compiled = compile(take)?;
        // The program does not use this copy: it was replaced one call ago, and frames are no longer compared
        // with it.
        let half = self.half ^ 1;
        self.set_values(half, keys(half, &compiled), &mut after)?;
        let settings = settings(own, half, &compiled);
        self.array::<[u8; Settings::SIZE]>("settings")
            .set(half, settings.bytes(), 0)
            .expect("a map of our own, of this size");
        after(self);
        self.array::<u32>("active").set(0, half, 0).expect("a map of our own, of this size");
        self.half = half;
        after(self);
        Ok(())
    }

    /// Replaces the keys that one copy of the settings has in the map of values.
    fn set_values(
        &mut self,
        half: u32,
        wanted: HashSet<Key>,
        after: &mut impl FnMut(&mut XdpTake),
    ) -> Result<(), TakeError> {
        let held = &self.keys[half as usize];
        let stale: Vec<Key> = held.difference(&wanted).copied().collect();
        let missing: Vec<Key> = wanted.difference(held).copied().collect();
        let refused = |error: MapError| TakeError::Refused(error.to_string());
        for key in stale {
            self.values().remove(&key.bytes()).map_err(refused)?;
            self.keys[half as usize].remove(&key);
            after(self);
        }
        for key in missing {
            self.values().insert(key.bytes(), 1, 0).map_err(refused)?;
            self.keys[half as usize].insert(key);
            after(self);
        }
        Ok(())
    }

    fn values(&mut self) -> HashMap<&mut MapData, [u8; Key::SIZE], u32> {
        let map = self.ebpf.map_mut("values").expect("xdp_take.bpf.c defines it");
        HashMap::try_from(map).expect("its keys have this size")
    }

    /// Attaches to the interface with this index.
    ///
    /// # Errors
    /// Returns the kernel's error: `EBUSY` if a program is attached already, `EOPNOTSUPP` without native XDP,
    /// `ERANGE` if the MTU is too large for it, `EINVAL` without XDP links (before Linux 5.9).
    pub fn attach(&mut self, interface: u32, mode: AttachMode) -> io::Result<()> {
        let flags = match mode {
            AttachMode::Native => FLAG_NATIVE,
            AttachMode::Generic => FLAG_GENERIC,
        };
        self.link = Some(OwnedLink::create(self.program()?, interface, Hook::Xdp { flags })?);
        Ok(())
    }

    /// Gives sockets also to the program of another process, whose socket map this is, from now on until this
    /// program [replaces it](XdpTake::attach_by).
    ///
    /// # Errors
    /// The map is not a socket map.
    pub fn follow(&mut self, sockets: OwnedFd) -> Result<(), MapError> {
        let map = aya::maps::Map::from_map_data(MapData::from_fd(sockets)?)?;
        self.before = Some(XskMap::try_from(map)?);
        Ok(())
    }

    /// Returns the socket map, for another process to [follow](XdpTake::follow).
    #[must_use]
    pub fn sockets(&self) -> Option<BorrowedFd<'_>> {
        match self.ebpf.map("sockets") {
            Some(aya::maps::Map::XskMap(map)) => Some(map.fd().as_fd()),
            _ => None,
        }
    }

    /// Replaces another process's program, whose link this is: each frame meets exactly one of the two
    /// programs.
    ///
    /// # Errors
    /// Returns the kernel's error: `ENOLINK` if the interface is gone.
    pub fn attach_by(&mut self, link: OwnedFd) -> io::Result<()> {
        (self.link, self.before) = (Some(OwnedLink::take_over(link, self.program()?)?), None);
        Ok(())
    }

    /// Returns the link, so that another process can replace the program. The program then stays attached
    /// until both have dropped the link.
    #[must_use]
    pub fn share_link(&mut self) -> Option<OwnedFd> {
        self.link.as_mut()?.share().ok()
    }

    /// Sets what happens from now on to frames that are taken while their queue has no socket: they are
    /// dropped and counted as `held_back` (`true`), or left to the kernel (`false`, as at first). The kernel
    /// answers frames of unknown connections with a reset, so no such frame may reach it while a successor
    /// takes over.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn hold_back(&mut self, held: bool) -> Result<(), MapError> {
        self.array::<u32>("without_socket").set(0, if held { XDP_DROP } else { XDP_PASS }, 0)
    }

    fn program(&self) -> io::Result<BorrowedFd<'_>> {
        let program = self.ebpf.program("xdp_take").expect("xdp_take.bpf.c defines it");
        program.fd().map(AsFd::as_fd).map_err(io::Error::other)
    }

    /// Sends the frames taken from a receive queue to a socket. The kernel removes the socket when it is
    /// closed.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set_socket(&mut self, queue: u32, socket: impl AsFd) -> Result<(), MapError> {
        let map = self.ebpf.map_mut("sockets").expect("xdp_take.bpf.c defines it");
        XskMap::try_from(map)?.set(queue, socket.as_fd().as_raw_fd(), 0)?;
        match &mut self.before {
            Some(before) => before.set(queue, socket.as_fd().as_raw_fd(), 0),
            None => Ok(()),
        }
    }

    /// Returns the maps with which another program can handle frames that are taken: see [`TakeMaps`].
    ///
    /// # Errors
    /// Returns the kernel's error: there are too many open files.
    pub fn maps(&self) -> io::Result<TakeMaps> {
        let fd = |name| {
            let map = self.ebpf.map(name).expect("xdp_take.bpf.c defines it");
            let data = match map {
                aya::maps::Map::Array(data)
                | aya::maps::Map::PerCpuArray(data)
                | aya::maps::Map::ProgramArray(data)
                | aya::maps::Map::XskMap(data) => data,
                other => unreachable!("{other:?} is not among the maps of xdp_take.bpf.c"),
            };
            data.fd().as_fd().try_clone_to_owned()
        };
        Ok(TakeMaps {
            programs: fd("programs")?,
            sockets: fd("sockets")?,
            counters: fd("counters")?,
            without_socket: fd("without_socket")?,
        })
    }

    /// Returns the number of receive queues given to [`XdpTake::load`].
    #[must_use]
    pub fn queues(&self) -> u32 {
        self.queues
    }

    /// Returns the counters of a receive queue since [`XdpTake::load`].
    #[must_use]
    pub fn counters(&self, queue: u32) -> Counters {
        let map = self.ebpf.map("counters").expect("xdp_take.bpf.c defines it");
        let map =
            PerCpuArray::<&MapData, [u8; Counted::SIZE]>::try_from(map).expect("its values have this size");
        let mut sum = Counters::default();
        for cpu in map.get(&queue, 0).iter().flat_map(|values| values.iter()) {
            let Counted { taken, passed, not_ours, redirect_failed, held_back } = Counted::of(cpu);
            sum += Counters { taken, passed, not_ours, redirect_failed, held_back };
        }
        sum
    }

    /// Loads a program with these MAC addresses and rules, and returns its verdict on a frame. No other
    /// program, counter or socket is involved.
    ///
    /// # Errors
    /// A rule is invalid, or the kernel refuses: usually because a privilege is missing, or because the frame
    /// is shorter than an Ethernet header (14 bytes).
    pub fn judge(own: [[u8; 6]; 2], take: &Take, frame: &[u8]) -> Result<Judged, JudgeError> {
        let mut program = XdpTake::load(1)?;
        program.set_take(own, take)?;
        program.test_run(&frame[..frame.len().min(JUDGED_MAX)])?;
        let Counters { passed, not_ours, .. } = program.counters(0);
        Ok(match (passed, not_ours) {
            (0, 0) => Judged::Taken,
            (0, _) => Judged::NotOurs,
            _ => Judged::Left,
        })
    }

    /// Runs the program on a frame without an interface (`BPF_PROG_TEST_RUN`), on queue 0, and returns its
    /// verdict.
    ///
    /// # Errors
    /// Returns the kernel's error. The kernel requires at least the 14 bytes of an Ethernet header.
    pub fn test_run(&mut self, frame: &[u8]) -> Result<u32, ProgramError> {
        let options = TestRunOptions { data_in: Some(frame), ..TestRunOptions::new() };
        Ok(program(&mut self.ebpf)?.test_run(options)?.return_value)
    }

    fn array<T: aya::Pod>(&mut self, name: &str) -> Array<&mut MapData, T> {
        let map = self.ebpf.map_mut(name).expect("xdp_take.bpf.c defines it");
        Array::try_from(map).expect("its values have this size")
    }
}

fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp, ProgramError> {
    ebpf.program_mut("xdp_take").expect("xdp_take.bpf.c defines it").try_into()
}

/// Returns all masks, each with the number that identifies its values in the map.
fn placed(half: u32, compiled: &Compiled) -> impl Iterator<Item = (u32, &Masked)> {
    (half * MASKS_MAX as u32..).zip(&compiled.0)
}

/// Returns the keys of all values whose mask has more than one value.
fn keys(half: u32, compiled: &Compiled) -> HashSet<Key> {
    let several = placed(half, compiled).filter(|(_, one)| one.values.len() > 1);
    several.flat_map(|(place, one)| one.values.iter().map(move |&value| Key { place, value })).collect()
}

fn settings([host, other]: [[u8; 6]; 2], half: u32, compiled: &Compiled) -> Settings {
    // The last two bytes are padding.
    let padded = |[a, b, c, d, e, f]: [u8; 6]| [a, b, c, d, e, f, 0, 0];
    let mut settings = Settings {
        own_mac: [padded(host), padded(other)],
        count: compiled.0.len() as u32,
        ..Settings::default()
    };
    let masks: &mut [Mask; MASKS_MAX] = &mut settings.masks;
    assert!(compiled.0.len() <= masks.len(), "`compile` refuses more masks");
    for (mask, (place, one)) in masks.iter_mut().zip(placed(half, compiled)) {
        let only = one.values.iter().next().filter(|_| one.values.len() == 1);
        *mask = Mask {
            bits: one.mask,
            value: only.copied().unwrap_or_default(),
            is_single: only.is_some().into(),
            place,
            leaves: one.leaves.into(),
        };
    }
    settings
}
