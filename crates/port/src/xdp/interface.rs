//! An interface with weir's XDP program in front of it.
//!
//! The program and its maps are one per interface and shared by the ports on its queues. They go when the interface
//! and the last of its ports are dropped, or when the process ends, however it ends: the link is the process's own.

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

/// How frames come from the driver to weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The NIC reads and writes frames where weir has them.
    NativeZeroCopy,
    /// XDP in the driver; each frame is copied. What a veth does.
    NativeCopy,
    /// XDP in the stack, after the kernel has made a packet; each frame is copied. Works with any driver.
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

/// What a port on an interface is to be.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// The port's name in the program.
    pub port: String,
    /// The interface's name.
    pub interface: String,
    /// What it takes from the kernel.
    pub take: Take,
    /// How it runs; without it, the best that the driver can do.
    pub mode: Option<Mode>,
    /// Ring sizes, of each queue.
    pub rings: Rings,
}

impl XdpConfig {
    /// A port named like its interface, with defaults for the rest.
    #[must_use]
    pub fn new(interface: &str, take: Take) -> XdpConfig {
        let name = interface.to_owned();
        XdpConfig { port: name.clone(), interface: name, take, mode: None, rings: Rings::default() }
    }
}

/// An interface that weir takes frames from. Its queues become ports.
pub struct XdpInterface(Arc<Attached>);

impl XdpInterface {
    /// Attaches the program to an interface of this thread's network namespace. Open its queues in the same one.
    ///
    /// Nothing is taken before a queue has its port: frames of other queues stay with the kernel.
    ///
    /// # Errors
    /// [`XdpError`], which says what to do.
    pub fn attach(config: XdpConfig) -> Result<XdpInterface, XdpError> {
        let name = &config.interface;
        let link = find(name)?;
        let queues = Ethtool::open().ok().and_then(|ethtool| ethtool.queues(name)).map_or(link.rx_queues, |(rx, _)| rx);
        let mut program = XdpTake::load(queues).map_err(load_error)?;
        program.set_take(link.mac, &config.take)?;
        let native = match config.mode {
            Some(Mode::GenericCopy) => attach_generic(&mut program, &link)?,
            Some(_) => attach(&mut program, &link, AttachMode::Native)?,
            None => match attach(&mut program, &link, AttachMode::Native) {
                Err(XdpError::NoNativeMode { .. } | XdpError::MtuTooLarge { .. } | XdpError::TooFewQueues(_)) => {
                    attach_generic(&mut program, &link)?
                }
                other => other?,
            },
        };
        Ok(XdpInterface(Arc::new(Attached { link, native, config, program: Mutex::new(program) })))
    }

    /// Opens a port on a queue. Ports on the same pool pass frames by descriptor.
    ///
    /// # Errors
    /// [`XdpError`], which says what to do.
    ///
    /// # Panics
    /// When the pool is not a region pool of these.
    pub fn open_queue(&self, queue: u32, pools: &mut Pools, pool: PoolId) -> Result<XdpPort, XdpError> {
        if queue >= self.queues() {
            let (interface, queues) = (self.0.link.name.clone(), self.queues());
            return Err(XdpError::QueueOutOfRange { interface, queue, queues });
        }
        XdpPort::open(Arc::clone(&self.0), queue, pools.region_mut(pool))
    }

    /// Replaces what is taken, between two frames. Ports stay. The port's own MAC address is that of `attach`.
    ///
    /// # Errors
    /// A rule that cannot be; then nothing has changed.
    pub fn set_take(&self, take: &Take) -> Result<(), XdpError> {
        Ok(self.0.program().set_take(self.0.link.mac, take)?)
    }

    /// Receive queues that are in use.
    #[must_use]
    pub fn queues(&self) -> u32 {
        self.0.program().queues()
    }

    /// What the program did with the frames of a queue, with or without a port.
    #[must_use]
    pub fn counters(&self, queue: u32) -> Counters {
        self.0.counters(queue)
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Its MAC address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.0.link.mac
    }
}

/// What the ports of an interface share. Only control-plane calls lock the program.
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

    /// Whether sockets shall be zero-copy. With the program in the stack they cannot be, though the driver might try.
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
        // Its maps are changed by single system calls: a panic elsewhere leaves nothing half done.
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

/// True: the program runs natively.
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
