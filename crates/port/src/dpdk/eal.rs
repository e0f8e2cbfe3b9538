//! DPDK's environment (EAL): started once in a process, and never again.
//!
//! DPDK's own log does not reach the terminal; its last 16 KiB are kept, and an error quotes the line that matters
//! after a sentence that says what to do. The thread that starts DPDK keeps its affinity.

use super::shim::{self, Errno};
use std::ffi::CString;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// `EACCES`, `EBUSY`, `ENODEV` and `EPERM` of Linux.
const EPERM: Errno = 1;
const EACCES: Errno = 13;
const EBUSY: Errno = 16;
const ENODEV: Errno = 19;

/// Where DPDK's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EalMemory {
    /// Ordinary pages, so many MiB, of which a frame takes 4 KiB: for tests and for devices without DMA.
    NoHuge(u32),
    /// Huge pages, so many MiB at start; more are taken as needed. No file is left behind.
    Huge(u32),
}

/// How DPDK is started.
#[derive(Clone, Debug)]
pub struct EalOptions {
    /// Its memory.
    pub memory: EalMemory,
    /// Whether it takes the PCI devices that are bound to vfio-pci or uio.
    pub pci: bool,
    /// Further arguments, as DPDK's manual has them.
    pub arguments: Vec<String>,
}

impl Default for EalOptions {
    fn default() -> EalOptions {
        EalOptions { memory: EalMemory::NoHuge(256), pci: false, arguments: Vec::new() }
    }
}

impl EalOptions {
    fn argv(&self) -> Vec<String> {
        let mut argv = vec!["weir".to_string(), "--no-shconf".into(), "--no-telemetry".into()];
        argv.push(format!("--file-prefix={}", file_prefix()));
        // DPDK's own worker threads are not used: one lcore, for the thread that starts it.
        argv.push(format!("--lcores=0@{}", shim::first_cpu()));
        if !self.pci {
            argv.push("--no-pci".into());
        }
        let (kind, mebibytes) = match self.memory {
            EalMemory::NoHuge(mebibytes) => ("--no-huge", mebibytes),
            EalMemory::Huge(mebibytes) => ("--in-memory", mebibytes),
        };
        argv.extend([kind.into(), "-m".into(), mebibytes.to_string()]);
        argv.extend(self.arguments.iter().cloned());
        argv
    }
}

fn file_prefix() -> String {
    format!("weir-{}", std::process::id())
}

/// Why DPDK refused, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// A second start.
    #[error("DPDK was started before in this process, and can be started once only")]
    AlreadyStarted,
    /// No huge pages.
    #[error(
        "DPDK finds no free huge pages: reserve some (`echo 512 > /proc/sys/vm/nr_hugepages`) or let it use ordinary \
         memory (`--no-huge`)"
    )]
    NoHugePages,
    /// Not allowed.
    #[error("DPDK may not do that: run weir as root or with CAP_NET_ADMIN, CAP_IPC_LOCK and CAP_SYS_RAWIO ({0})")]
    NotPermitted(String),
    /// Any other failure to start.
    #[error("DPDK does not start; it says: {0}")]
    Start(String),
    /// No driver claims the device.
    #[error(
        "no DPDK driver knows device `{device}`: check its name, and that its driver is installed (`apt-cache search \
         librte-net`) ({log})"
    )]
    NoDriver {
        /// The devargs.
        device: String,
        /// What DPDK says.
        log: String,
    },
    /// The device has a port already.
    #[error("DPDK device `{0}` is in use by another port: give this one another name or number")]
    InUse(String),
    /// The driver refuses its arguments.
    #[error("the driver of DPDK device `{device}` refuses it: check the arguments after its name ({log})")]
    Refused {
        /// The devargs.
        device: String,
        /// What DPDK says.
        log: String,
    },
    /// Not so many queues.
    #[error("DPDK device `{device}` has {most} queues, not {wanted}: lower `queues`")]
    Queues {
        /// The devargs.
        device: String,
        /// Queues wanted.
        wanted: u16,
        /// Queues there are.
        most: u16,
    },
    /// The port was plugged in but does not run.
    #[error("DPDK device `{device}` does not start: {log}")]
    PortStart {
        /// The devargs.
        device: String,
        /// What DPDK says.
        log: String,
    },
    /// No memory for a pool.
    #[error("DPDK has no memory for a pool of {frames} frames: give it more MiB or make the pool smaller ({log})")]
    PoolMemory {
        /// Frames wanted.
        frames: u32,
        /// What DPDK says.
        log: String,
    },
    /// More threads than DPDK has numbers for.
    #[error("DPDK takes no more threads (128 in all): use fewer workers")]
    Threads,
}

/// Proof that DPDK runs in this process. It does until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Eal(());

impl Eal {
    /// Starts DPDK.
    ///
    /// # Errors
    /// [`DpdkError::AlreadyStarted`] the second time, also when the first failed: DPDK cannot be started again. Else
    /// why it does not start.
    pub fn init(options: &EalOptions) -> Result<Eal, DpdkError> {
        static STARTED: AtomicBool = AtomicBool::new(false);
        let arguments = options.argv().into_iter().map(CString::new).collect::<Result<Vec<_>, _>>();
        let arguments = arguments.map_err(|_| DpdkError::Start("an argument contains a NUL byte".into()))?;
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(DpdkError::AlreadyStarted);
        }
        let started = shim::start_eal(arguments);
        // DPDK makes a directory for run-time files, and without shared configuration leaves it empty.
        let _ = std::fs::remove_dir(format!("/var/run/dpdk/{}", file_prefix()));
        started.map_err(|errno| start_error(errno, &shim::take_log()))?;
        Ok(Eal(()))
    }

    /// Makes the calling thread known to DPDK for as long as the answer lives: it then takes frames from pools through
    /// a cache of its own. A worker calls this first.
    ///
    /// # Errors
    /// [`DpdkError::Threads`] when there are too many.
    pub fn register_thread(self) -> Result<EalThread, DpdkError> {
        let ours = shim::register_thread().map_err(|_| DpdkError::Threads)?;
        Ok(EalThread { ours, not_send: PhantomData })
    }

    /// What DPDK has logged since the last call or the last error.
    #[must_use]
    pub fn take_log(self) -> String {
        shim::take_log()
    }

    pub(super) fn pool_memory(self, frames: u32) -> DpdkError {
        DpdkError::PoolMemory { frames, log: first_line(&shim::take_log()) }
    }
}

/// A thread that DPDK knows. Stays on its thread.
#[derive(Debug)]
pub struct EalThread {
    ours: bool,
    not_send: PhantomData<*const ()>,
}

impl Drop for EalThread {
    fn drop(&mut self) {
        if self.ours {
            shim::unregister_thread();
        }
    }
}

fn start_error(errno: Errno, log: &str) -> DpdkError {
    let says = |text: &str| log.contains(text);
    if says("hugepage") || says("hugetlbfs") {
        DpdkError::NoHugePages
    } else if says("Permission denied") || errno == EACCES || errno == EPERM {
        DpdkError::NotPermitted(last_line(log))
    } else {
        DpdkError::Start(last_line(log))
    }
}

/// Why a device could not be plugged in.
pub(super) fn plug_error(device: &str, errno: Errno, log: &str) -> DpdkError {
    let (device, line) = (device.to_string(), first_line(log));
    if errno == EBUSY {
        DpdkError::InUse(device)
    } else if errno == ENODEV || log.contains("failed to parse device") {
        DpdkError::NoDriver { device, log: line }
    } else {
        DpdkError::Refused { device, log: line }
    }
}

/// What DPDK says first when a device fails is the driver's own complaint; what follows only passes it on.
pub(super) fn first_line(log: &str) -> String {
    log.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing was logged").to_string()
}

/// What DPDK says last when it does not start is why; what precedes is how far it came.
fn last_line(log: &str) -> String {
    log.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("nothing was logged").to_string()
}
