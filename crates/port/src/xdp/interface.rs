//! An interface with weir's XDP program attached.
//!
//! The program and its maps exist once per interface and are shared by the ports on its queues. The kernel
//! removes them when the interface and the last of its ports are dropped, and also when the process ends in
//! any other way, because the process owns the link.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bpf::{AttachMode, Counters, EbpfError, MapError, ProgramError, Take, XdpTake};
use packet::{PoolId, Pools};
use rustix::io::Errno;

use super::ethtool::Ethtool;
use super::links::{Link, links};
use super::{Rings, XdpError, XdpPort};

/// How frames get from the driver to weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The NIC reads and writes frames in weir's memory.
    NativeZeroCopy,
    /// XDP in the driver, copying each frame. The best that a veth can do.
    NativeCopy,
    /// XDP in the network stack, after the kernel has allocated a packet, copying each frame. Works with
    /// every driver.
    GenericCopy,
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
    pub take: Take,
    /// The mode to run in; if absent, the best that the driver supports.
    pub mode: Option<Mode>,
    /// Ring sizes of each queue.
    pub rings: Rings,
}

impl XdpConfig {
    /// A port with the name of its interface and defaults for the rest.
    #[must_use]
    pub fn new(interface: &str, take: Take) -> XdpConfig {
        let name = interface.to_owned();
        XdpConfig { port: name.clone(), interface: name, take, mode: None, rings: Rings::default() }
    }
}

/// An interface from which weir takes frames. Its queues become ports.
pub struct XdpInterface(Arc<Attached>);

impl XdpInterface {
    /// Attaches the program to an interface of this thread's network namespace. Its queues must be opened in
    /// the same namespace.
    ///
    /// Nothing is taken before a queue has a port: frames of other queues stay with the kernel.
    ///
    /// # Errors
    /// Returns an [`XdpError`], which says what to do.
    pub fn attach(config: XdpConfig) -> Result<XdpInterface, XdpError> {
        let name = &config.interface;
        let link = find(name)?;
        let queues = Ethtool::open()
            .ok()
            .and_then(|ethtool| ethtool.queues(name))
            .map_or(link.rx_queues, |(rx, _)| rx);
        let mut program = XdpTake::load(queues).map_err(load_error)?;
        program.set_take(link.mac, &config.take)?;
        let native = match config.mode {
            Some(Mode::GenericCopy) => attach_generic(&mut program, &link)?,
            Some(_) => attach(&mut program, &link, AttachMode::Native)?,
            None => match attach(&mut program, &link, AttachMode::Native) {
                Err(
                    XdpError::NoNativeMode { .. } | XdpError::MtuTooLarge { .. } | XdpError::TooFewQueues(_),
                ) => attach_generic(&mut program, &link)?,
                other => other?,
            },
        };
        Ok(XdpInterface(Arc::new(Attached { link, native, config, program: Mutex::new(program) })))
    }

    /// Opens a port on a queue. Ports on the same pool pass frames by descriptor, without a copy.
    ///
    /// # Errors
    /// Returns an [`XdpError`], which says what to do.
    ///
    /// # Panics
    /// Panics if the pool is not a region pool in `pools`.
    pub fn open_queue(&self, queue: u32, pools: &mut Pools, pool: PoolId) -> Result<XdpPort, XdpError> {
        if queue >= self.queues() {
            let (interface, queues) = (self.0.link.name.clone(), self.queues());
            return Err(XdpError::QueueOutOfRange { interface, queue, queues });
        }
        XdpPort::open(Arc::clone(&self.0), queue, pools.region_mut(pool))
    }

    /// Replaces the rules atomically, leaving the ports open. The port's MAC address remains the one read by
    /// `attach`.
    ///
    /// # Errors
    /// A rule is invalid; nothing has changed then.
    pub fn set_take(&self, take: &Take) -> Result<(), XdpError> {
        Ok(self.0.program().set_take(self.0.link.mac, take)?)
    }

    /// Returns the number of receive queues in use.
    #[must_use]
    pub fn queues(&self) -> u32 {
        self.0.program().queues()
    }

    /// Returns the program's counters of a queue, whether or not it has a port.
    #[must_use]
    pub fn counters(&self, queue: u32) -> Counters {
        self.0.counters(queue)
    }

    /// Returns the interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the interface's MAC address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.0.link.mac
    }
}

/// State shared by the ports of an interface.
pub(super) struct Attached {
    link: Link,
    native: bool,
    config: XdpConfig,
    program: Mutex<XdpTake>,
}

impl Attached {
    pub(super) fn name(&self) -> &str {
        &self.link.name
    }

    pub(super) fn config(&self) -> &XdpConfig {
        &self.config
    }

    pub(super) fn index(&self) -> u32 {
        self.link.index
    }

    pub(super) fn mtu(&self) -> u32 {
        self.link.mtu
    }

    /// Whether sockets should be zero-copy. With XDP in the network stack they cannot be, although the driver
    /// might try.
    pub(super) fn zero_copy(&self) -> Option<bool> {
        match (self.native, self.config.mode) {
            (false, _) => Some(false),
            (true, wanted) => wanted.map(|mode| mode == Mode::NativeZeroCopy),
        }
    }

    pub(super) fn mode(&self, zero_copy: bool) -> Mode {
        match (self.native, zero_copy) {
            (true, true) => Mode::NativeZeroCopy,
            (true, false) => Mode::NativeCopy,
            (false, _) => Mode::GenericCopy,
        }
    }

    pub(super) fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), XdpError> {
        self.program()
            .set_socket(queue, socket)
            .map_err(|error| self.system("giving a queue to a socket", map_io(error)))
    }

    pub(super) fn counters(&self, queue: u32) -> Counters {
        self.program().counters(queue)
    }

    fn system(&self, doing: &'static str, reason: io::Error) -> XdpError {
        XdpError::System { doing, interface: self.link.name.clone(), reason }
    }

    fn program(&self) -> MutexGuard<'_, XdpTake> {
        // The maps are changed by single system calls, so a panic in another thread left nothing half done.
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(name: &str) -> Result<Link, XdpError> {
    let all = links().map_err(|reason| XdpError::System {
        doing: "looking up the index",
        interface: name.to_owned(),
        reason,
    })?;
    all.into_iter().find(|link| link.name == name).ok_or_else(|| XdpError::NoInterface(name.to_owned()))
}

/// Attaches the program. Returns true if it runs natively.
fn attach(program: &mut XdpTake, link: &Link, mode: AttachMode) -> Result<bool, XdpError> {
    let interface = link.name.clone();
    let Err(error) = program.attach(link.index, mode) else { return Ok(mode == AttachMode::Native) };
    let reason = program_io(error);
    Err(match reason.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::PERM | Errno::ACCESS) => XdpError::NoPrivilege("attaching an XDP program"),
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
        EbpfError::ProgramError(error) => privilege(program_io(error), text),
        EbpfError::MapError(error) => privilege(map_io(error), text),
        _ => XdpError::Program(text),
    }
}

fn privilege(reason: io::Error, text: String) -> XdpError {
    match reason.kind() {
        io::ErrorKind::PermissionDenied => XdpError::NoPrivilege("loading an XDP program"),
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

fn map_io(error: MapError) -> io::Error {
    match error {
        MapError::SyscallError(error) => error.io_error,
        MapError::CreateError { io_error, .. } => io_error,
        other => io::Error::other(other),
    }
}
