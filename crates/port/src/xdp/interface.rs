//! An interface with weir's XDP program attached.
//!
//! The program and its maps exist once per interface and are shared by the ports on its queues. The kernel
//! removes them when the interface and the last of its ports are dropped, and also when the process ends in
//! any other way, because the process owns the link.
//!
//! Interfaces disappear and come back: containers restart, drivers are reset. [`XdpInterface::follow`]
//! detaches the ports of an interface that is gone, and attaches a new program and new sockets when it is
//! back; the ports keep their identity and counts. An interface that is renamed is still the same one.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustix::io::Errno;
use weir_bpf::{AttachMode, Counters, EbpfError, MapError, ProgramError, Take, XdpTake};
use weir_netlink::{Link, links};
use weir_packet::{PoolId, Pools};

use super::ethtool::Ethtool;
use super::line::Line;
use super::membership::{Admit, Groups, Membership};
use super::succession::Offers;
use super::{InterfaceList, InterfaceNews, InterfaceState, Rings, XdpError, XdpPort};

/// How frames get from the driver to weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The NIC reads and writes frames in weir's memory.
    NativeZeroCopy,
    /// XDP in the driver, copying each frame. The best mode for a veth.
    NativeCopy,
    /// XDP in the network stack, after the kernel has allocated a packet, copying each frame. Works with
    /// every driver.
    GenericCopy,
}

impl Mode {
    /// The mode of a socket, by where the program runs and whether the driver reads and writes in place.
    pub(super) fn of(native: bool, zero_copy: bool) -> Mode {
        match (native, zero_copy) {
            (true, true) => Mode::NativeZeroCopy,
            (true, false) => Mode::NativeCopy,
            (false, _) => Mode::GenericCopy,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::NativeZeroCopy => "native zero-copy",
            Mode::NativeCopy => "native copy",
            Mode::GenericCopy => "generic copy",
        })
    }
}

/// Configuration of the ports on an interface.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// The port's name in the program.
    pub port: String,
    /// The interface's name.
    pub interface: String,
    /// The frames to take from the kernel.
    pub frames: Wanted,
    /// The mode to run in; if absent, the best mode that the driver supports.
    pub mode: Option<Mode>,
    /// Ring sizes of each queue.
    pub rings: Rings,
}

/// The frames that a port wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Which of the frames that the NIC lets through are wanted.
    pub take: Take,
    /// Whether the NIC lets frames for all MAC addresses through.
    pub promiscuous: bool,
    /// The port's own MAC address, if it is not the interface's. Frames for either address are the port's
    /// own.
    pub mac: Option<[u8; 6]>,
}

impl XdpConfig {
    /// A port with the name of its interface and defaults for the rest.
    #[must_use]
    pub fn new(interface: &str, take: Take) -> XdpConfig {
        let (name, frames) = (interface.to_owned(), Wanted { take, ..Wanted::default() });
        XdpConfig { port: name.clone(), interface: name, frames, mode: None, rings: Rings::default() }
    }
}

/// An interface from which weir takes frames. Its queues become ports.
pub struct XdpInterface {
    pub(super) config: XdpConfig,
    /// The interface as the kernel described it last.
    pub(super) link: Link,
    /// The attached program; `None` while the interface is gone.
    pub(super) attached: Option<Arc<Attached>>,
    /// The counts of programs that are no longer attached.
    former: Counters,
    pub(super) membership: Option<Membership>,
    pub(super) groups: Option<Groups>,
    lines: Lines,
    /// Why the interface cannot be used although it exists.
    refused: Option<String>,
    /// The program that will replace another process's.
    pub(super) prepared: Option<XdpTake>,
    pub(super) offers: Offers,
    /// The link of the other process's program. Until it is replaced, it sends frames to our sockets.
    pub(super) replaces: Option<OwnedFd>,
}

impl XdpInterface {
    /// Attaches the program to an interface of this thread's network namespace. Its queues must be opened in
    /// the same namespace.
    ///
    /// No frame of a queue is taken before the queue has a port: until then, they stay with the kernel.
    ///
    /// # Errors
    /// Returns an [`XdpError`], which says what to do.
    pub fn attach(config: XdpConfig) -> Result<XdpInterface, XdpError> {
        let link = find(&config.interface)?;
        let attached = Some(Arc::new(Attached::new(&config, &link)?));
        let membership = join(&config.frames, &link)?;
        let groups = Some(join_groups(&config.frames, &link)?);
        Ok(XdpInterface { attached, membership, groups, ..XdpInterface::without_program(config, link) })
    }

    pub(super) fn without_program(config: XdpConfig, link: Link) -> XdpInterface {
        let (lines, offers) = (Lines::default(), Offers::default());
        XdpInterface {
            config,
            link,
            attached: None,
            former: Counters::default(),
            membership: None,
            groups: None,
            lines,
            refused: None,
            prepared: None,
            offers,
            replaces: None,
        }
    }

    /// Returns the interface's index in this network namespace, or its last index if it is gone.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.link.index
    }

    /// Opens a port on a queue. Ports on the same pool pass frames by descriptor, without a copy.
    ///
    /// # Errors
    /// Returns an [`XdpError`], which says what to do.
    ///
    /// # Panics
    /// Panics if the pool is not a region pool in `pools`.
    pub fn open_queue(&self, queue: u32, pools: &mut Pools, pool: PoolId) -> Result<XdpPort, XdpError> {
        self.queues().open(queue, pools, pool)
    }

    /// Returns the interface's queues, which any thread may open.
    #[must_use]
    pub fn queues(&self) -> Queues {
        Queues {
            port: self.config.port.clone(),
            interface: self.link.name.clone(),
            frame_max: frame_max(&self.link),
            attached: self.attached.clone(),
            prepared: self.prepared.as_ref().map(|program| (program.queues(), self.config.rings)),
            mode: self.config.mode,
            lines: Arc::clone(&self.lines),
            offers: self.offers.clone(),
        }
    }

    /// Changes the frames that the interface takes. The change happens between two frames, and the ports stay
    /// open.
    ///
    /// # Errors
    /// A rule is invalid, or the NIC refuses. In either case, nothing has changed.
    pub fn want(&mut self, frames: Wanted) -> Result<(), XdpError> {
        if frames == self.config.frames {
            return Ok(());
        }
        if let Some(attached) = &self.attached {
            let asked = |frames: &Wanted| admit(frames, &self.link);
            let same = asked(&frames) == asked(&self.config.frames);
            let membership = if same { None } else { join(&frames, &self.link)? };
            let are_same = self.groups.as_ref().is_some_and(|groups| groups.are_those_of(&frames.take));
            let groups = if are_same { None } else { Some(join_groups(&frames, &self.link)?) };
            attached.set_rules(&frames, &self.link)?;
            if !same {
                self.membership = membership;
            }
            self.groups = groups.or(self.groups.take());
        }
        self.config.frames = frames;
        Ok(())
    }

    /// Changes the rules only.
    ///
    /// # Errors
    /// A rule is invalid. In this case, nothing has changed.
    pub fn set_take(&mut self, take: &Take) -> Result<(), XdpError> {
        self.want(Wanted { take: take.clone(), ..self.config.frames.clone() })
    }

    /// Reacts to changes of the interface, and returns them. Opening sockets takes milliseconds.
    pub fn follow(&mut self, links: &InterfaceList) -> Vec<InterfaceNews> {
        let mut news = Vec::new();
        if self.is_prepared() {
            return news;
        }
        if let Some(attached) = &self.attached {
            match links.attached(attached.index) {
                Some(link) => self.update(link.clone(), &mut news),
                None => {
                    let moved = links.has_moved(attached.index);
                    self.detach();
                    news.push(if moved { InterfaceNews::Moved } else { InterfaceNews::Gone });
                }
            }
        } else if links.has_moved(self.link.index) {
            // The interface was missing from a list before the kernel reported why.
            news.push(InterfaceNews::Moved);
        }
        if self.attached.is_none() {
            match links.found(&self.config.interface, &self.link) {
                Some(link) => self.return_of(link.clone(), &mut news),
                None => self.refused = None,
            }
        }
        news
    }

    /// Returns whether `link` is this interface, judged by its index, its configured name or its last name.
    #[must_use]
    pub(super) fn is(&self, link: &Link) -> bool {
        self.link.index == link.index
            || link.is_called(&self.config.interface)
            || link.is_called(&self.link.name)
    }

    /// Uses this as the configured name from now on.
    pub fn call(&mut self, name: &str) {
        name.clone_into(&mut self.config.interface);
    }

    /// Returns the state of the interface.
    #[must_use]
    pub fn state(&self) -> InterfaceState {
        match (&self.attached, &self.refused) {
            (Some(_), _) => state(&self.link),
            (None, Some(_)) => InterfaceState::Refused,
            (None, None) => InterfaceState::Gone,
        }
    }

    /// Returns the program's counters of all queues, whether or not they have a port, including those of
    /// programs from before the interface disappeared.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = self.former;
        self.attached.iter().for_each(|attached| sum += attached.counters());
        sum
    }

    /// Returns the same counters by name.
    #[must_use]
    pub fn statistics(&self) -> [(&'static str, u64); 5] {
        let Counters { taken, passed, not_ours, redirect_failed, held_back } = self.counters();
        [
            ("xdp_taken", taken),
            ("xdp_passed", passed),
            ("xdp_not_ours", not_ours),
            ("xdp_redirect_failed", redirect_failed),
            ("xdp_held_back", held_back),
        ]
    }

    /// Returns the interface as the kernel described it last.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the interface's present name, or its last one.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.link.name
    }

    /// Returns the interface's present MAC address, or its last one.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.link.mac
    }

    /// Leaves all frames to the kernel from now on, because its ports are being closed. Once the last of them
    /// is closed, [`Remnant::is_left`] returns false and the interface can be attached again.
    #[must_use]
    pub fn withdraw(self) -> Remnant {
        let attached = self.attached.as_ref();
        let nothing = Wanted { take: Take::default(), ..Wanted::default() };
        // Frames still being taken are counted by their port, and dropped.
        let _ = attached.map(|attached| attached.set_rules(&nothing, &self.link));
        Remnant(attached.map(Arc::downgrade).unwrap_or_default())
    }

    fn detach(&mut self) {
        self.former = self.counters();
        self.lines().iter().for_each(|line| line.detach());
        self.attached = None;
        (self.membership, self.groups) = (None, None);
    }

    /// Starts using an interface that was gone.
    fn return_of(&mut self, link: Link, news: &mut Vec<InterfaceNews>) {
        match self.reopen(&link) {
            Ok(()) => {
                self.refused = None;
                news.push(InterfaceNews::Back);
                self.update(link, news);
            }
            Err(error) => {
                let why = Some(error.to_string());
                if self.refused != why {
                    news.extend(why.clone().map(InterfaceNews::Refused));
                    self.refused = why;
                }
            }
        }
    }

    /// Attaches a program, and opens a socket for each port.
    fn reopen(&mut self, link: &Link) -> Result<(), XdpError> {
        let attached = Arc::new(Attached::new(&self.config, link)?);
        let membership = join(&self.config.frames, link)?;
        let groups = Some(join_groups(&self.config.frames, link)?);
        let mut lines = self.lines();
        lines.retain(|line| !line.is_closed());
        if let Err(error) = lines.iter().try_for_each(|line| line.attach(&attached)) {
            lines.iter().for_each(|line| line.detach());
            return Err(error);
        }
        drop(lines);
        (self.attached, self.membership, self.groups) = (Some(attached), membership, groups);
        Ok(())
    }

    /// Records the present state of the interface, and what depends on it.
    fn update(&mut self, now: Link, news: &mut Vec<InterfaceNews>) {
        let before = std::mem::replace(&mut self.link, now);
        let now = &self.link;
        if before.name != now.name {
            news.push(InterfaceNews::Renamed(before.name.clone(), now.name.clone()));
            self.attached.iter().for_each(|attached| attached.rename(&now.name));
        }
        if state(&before) != state(now) {
            news.push(InterfaceNews::State(state(now)));
        }
        if before.mtu != now.mtu {
            news.push(InterfaceNews::Mtu(before.mtu, now.mtu));
        }
        self.lines().iter().for_each(|line| line.set_frame_max(frame_max(now)));
        if before.mac != now.mac {
            news.push(InterfaceNews::Mac(now.mac));
            if let Some(attached) = &self.attached {
                // The rules were accepted before.
                let _ = attached.set_rules(&self.config.frames, now);
            }
        }
    }

    pub(super) fn lines(&self) -> MutexGuard<'_, Vec<Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state that the daemon and its ports share about an interface's queues.
type Lines = Arc<Mutex<Vec<Arc<Line>>>>;

/// The queues of an interface, as it was when they were requested.
pub struct Queues {
    pub(super) port: String,
    pub(super) interface: String,
    pub(super) frame_max: usize,
    attached: Option<Arc<Attached>>,
    /// Queues and rings of an interface that another process will hand over.
    pub(super) prepared: Option<(u32, Rings)>,
    pub(super) mode: Option<Mode>,
    lines: Lines,
    pub(super) offers: Offers,
}

impl Queues {
    /// Returns the number of receive queues that are in use now.
    #[must_use]
    pub fn count(&self) -> u32 {
        let prepared = |(all, _)| queues_in_use(&self.interface).map_or(all, |in_use: u32| in_use.min(all));
        let later = || self.prepared.map_or(0, prepared);
        self.attached.as_ref().map_or_else(later, |attached| attached.queues())
    }

    /// Opens a port on a queue, see [`XdpInterface::open_queue`].
    ///
    /// # Errors
    /// Returns an [`XdpError`], which says what to do.
    ///
    /// # Panics
    /// Panics if the pool is not a region pool in `pools`.
    pub fn open(&self, queue: u32, pools: &mut Pools, pool: PoolId) -> Result<XdpPort, XdpError> {
        let (name, place) = (self.port.clone(), (queue, self.frame_max));
        let pool = pools.region_mut(pool);
        let (port, line) = match (&self.attached, self.prepared) {
            (Some(attached), _) => XdpPort::open(name, Arc::clone(attached), place, pool)?,
            (None, Some((_, rings))) => {
                let (port, line) = XdpPort::waiting(name, place, pool);
                line.prepare(&self.interface, rings)?;
                (port, line)
            }
            (None, None) => return Err(XdpError::NoInterface(self.interface.clone())),
        };
        self.keep(line);
        Ok(port)
    }

    pub(super) fn keep(&self, line: Arc<Line>) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|line| !line.is_closed());
        lines.push(line);
    }
}

impl Wanted {
    /// Returns the port's own MAC address on an interface.
    fn own(&self, link: &Link) -> [u8; 6] {
        self.mac.unwrap_or(link.mac)
    }
}

fn state(link: &Link) -> InterfaceState {
    match (link.up, link.carrier) {
        (false, _) => InterfaceState::Down,
        (true, false) => InterfaceState::NoCarrier,
        (true, true) => InterfaceState::Up,
    }
}

/// Ethernet header and two VLAN tags, which an interface's MTU does not include.
const LINK_OVERHEAD: u32 = 14 + 2 * 4;

pub(super) fn frame_max(link: &Link) -> usize {
    (link.mtu + LINK_OVERHEAD) as usize
}

/// Returns what the NIC must let through in addition to its default.
fn admit(frames: &Wanted, link: &Link) -> Option<Admit> {
    let other = frames.mac.filter(|mac| *mac != link.mac);
    if frames.promiscuous { Some(Admit::Everything) } else { other.map(Admit::Address) }
}

pub(super) fn join(frames: &Wanted, link: &Link) -> Result<Option<Membership>, XdpError> {
    let joined = admit(frames, link).map(|admit| Membership::join(link.index, admit)).transpose();
    joined.map_err(|errno| refused(errno, link))
}

pub(super) fn join_groups(frames: &Wanted, link: &Link) -> Result<Groups, XdpError> {
    Groups::join(link.index, &frames.take).map_err(|errno| refused(errno, link))
}

fn refused(errno: Errno, link: &Link) -> XdpError {
    match errno {
        Errno::PERM => XdpError::not_permitted("frames for other MAC addresses"),
        _ => XdpError::System {
            doing: "asking for frames for other MAC addresses",
            interface: link.name.clone(),
            reason: errno.into(),
        },
    }
}

/// What is left of an interface that was [withdrawn](XdpInterface::withdraw).
#[derive(Clone, Debug, Default)]
pub struct Remnant(Weak<Attached>);

impl Remnant {
    /// Returns true if the program is still attached, because a port is not closed yet.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// The program on an interface, shared by the ports on its queues.
pub(super) struct Attached {
    name: Mutex<String>,
    index: u32,
    pub(super) native: bool,
    mode: Option<Mode>,
    rings: Rings,
    /// Whether the driver does zero-copy, which is known once a socket is bound. It is the same for all
    /// sockets, and querying it costs milliseconds.
    pub(super) zero_copy: OnceLock<bool>,
    program: Mutex<XdpTake>,
}

impl Attached {
    fn new(config: &XdpConfig, link: &Link) -> Result<Attached, XdpError> {
        let mut program = Attached::load(config, link)?;
        let native = match config.mode {
            Some(Mode::GenericCopy) => attach_generic(&mut program, link)?,
            Some(_) => attach(&mut program, link, AttachMode::Native)?,
            None => match attach(&mut program, link, AttachMode::Native) {
                Err(
                    XdpError::NoNativeMode { .. } | XdpError::MtuTooLarge { .. } | XdpError::TooFewQueues(_),
                ) => attach_generic(&mut program, link)?,
                other => other?,
            },
        };
        Ok(Attached::of(config, link, program, native))
    }

    pub(super) fn load(config: &XdpConfig, link: &Link) -> Result<XdpTake, XdpError> {
        // The maximum that may ever be in use: `ethtool -L` changes how many are in use.
        let queues = link.rx_queues.max(queues_in_use(&link.name).unwrap_or_default());
        let mut program = XdpTake::load(queues).map_err(load_error)?;
        program.set_take([link.mac, config.frames.own(link)], &config.frames.take)?;
        Ok(program)
    }

    pub(super) fn of(config: &XdpConfig, link: &Link, program: XdpTake, native: bool) -> Attached {
        let (name, index, program) = (Mutex::new(link.name.clone()), link.index, Mutex::new(program));
        let zero_copy = OnceLock::new();
        Attached { name, index, native, mode: config.mode, rings: config.rings, zero_copy, program }
    }

    /// Returns the present name, which only ethtool and messages need.
    pub(super) fn name(&self) -> String {
        self.name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn rename(&self, name: &str) {
        name.clone_into(&mut self.name.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn rings(&self) -> Rings {
        self.rings
    }

    /// Returns the number of receive queues that are in use now.
    fn queues(&self) -> u32 {
        let queues = self.program().queues();
        queues_in_use(&self.name()).map_or(queues, |in_use| in_use.min(queues))
    }

    pub(super) fn check_queue(&self, queue: u32) -> Result<(), XdpError> {
        let queues = self.queues();
        if queue < queues {
            return Ok(());
        }
        Err(XdpError::QueueOutOfRange { interface: self.name(), queue, queues })
    }

    /// Whether sockets should be zero-copy. With XDP in the network stack they cannot be, although the driver
    /// might try.
    pub(super) fn zero_copy(&self) -> Option<bool> {
        match (self.native, self.mode) {
            (false, _) => Some(false),
            (true, Some(mode)) => Some(mode == Mode::NativeZeroCopy),
            (true, None) => self.zero_copy.get().copied(),
        }
    }

    /// Returns the mode of a socket that was bound.
    pub(super) fn mode(&self, zero_copy: bool) -> Mode {
        self.zero_copy.get_or_init(|| zero_copy);
        Mode::of(self.native, zero_copy)
    }

    pub(super) fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), XdpError> {
        self.program()
            .set_socket(queue, socket)
            .map_err(|error| self.system("giving a queue to a socket", map_io(error)))
    }

    fn counters(&self) -> Counters {
        let (program, mut sum) = (self.program(), Counters::default());
        (0..program.queues()).for_each(|queue| sum += program.counters(queue));
        sum
    }

    fn set_rules(&self, frames: &Wanted, link: &Link) -> Result<(), XdpError> {
        Ok(self.program().set_take([link.mac, frames.own(link)], &frames.take)?)
    }

    fn system(&self, doing: &'static str, reason: io::Error) -> XdpError {
        XdpError::System { doing, interface: self.name(), reason }
    }

    pub(super) fn program(&self) -> MutexGuard<'_, XdpTake> {
        // The maps are changed by single system calls, so a panic in another thread left nothing half
        // changed.
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn queues_in_use(interface: &str) -> Option<u32> {
    Ethtool::open().ok()?.queues(interface).map(|queues| queues.rx)
}

pub(super) fn find(name: &str) -> Result<Link, XdpError> {
    let all = links().map_err(|reason| XdpError::System {
        doing: "looking up the index",
        interface: name.to_owned(),
        reason,
    })?;
    all.into_iter().find(|link| link.is_called(name)).ok_or_else(|| XdpError::NoInterface(name.to_owned()))
}

/// Attaches the program. Returns true if it runs natively.
fn attach(program: &mut XdpTake, link: &Link, mode: AttachMode) -> Result<bool, XdpError> {
    let interface = link.name.clone();
    let Err(reason) = program.attach(link.index, mode) else { return Ok(mode == AttachMode::Native) };
    Err(match reason.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::PERM | Errno::ACCESS) => XdpError::not_permitted("attaching an XDP program"),
        Some(Errno::BUSY | Errno::EXIST) => XdpError::AlreadyAttached(interface),
        Some(Errno::OPNOTSUPP) => XdpError::NoNativeMode { interface, reason },
        Some(Errno::RANGE) => XdpError::MtuTooLarge { interface, mtu: link.mtu },
        Some(Errno::NOSPC) => XdpError::TooFewQueues(interface),
        _ => XdpError::System { doing: "attaching the XDP program", interface, reason },
    })
}

fn attach_generic(program: &mut XdpTake, link: &Link) -> Result<bool, XdpError> {
    attach(program, link, AttachMode::Generic)
}

fn load_error(error: EbpfError) -> XdpError {
    let text = error.to_string();
    match error {
        EbpfError::ProgramError(error) => XdpError::of_load(&program_io(error), text),
        EbpfError::MapError(error) => XdpError::of_load(&map_io(error), text),
        _ => XdpError::Program(text),
    }
}

fn program_io(error: ProgramError) -> io::Error {
    match error {
        ProgramError::SyscallError(error) => error.io_error,
        ProgramError::LoadError { io_error, .. } => io_error,
        other => io::Error::other(other),
    }
}

pub(super) fn map_io(error: MapError) -> io::Error {
    match error {
        MapError::SyscallError(error) => error.io_error,
        MapError::CreateError { io_error, .. } => io_error,
        other => io::Error::other(other),
    }
}
