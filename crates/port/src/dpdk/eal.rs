//! DPDK's environment abstraction layer (EAL), which a process can start only once.
//!
//! DPDK's log does not reach the terminal. Its last 16 KiB are kept, and an error quotes the relevant line
//! after a sentence that says what to do. The thread that starts DPDK keeps its CPU affinity.

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
    /// Ordinary pages, in MiB. Each frame takes 4 KiB. For tests and for devices without DMA.
    NoHuge(u32),
    /// Huge pages, in MiB at the start; DPDK takes more as needed. No file remains afterwards.
    Huge(u32),
}

/// How DPDK is started.
#[derive(Clone, Debug)]
pub struct EalOptions {
    /// Memory of the process's pools.
    pub memory: EalMemory,
    /// Whether to use the PCI devices bound to vfio-pci or uio.
    pub pci: bool,
    /// Further arguments from DPDK's manual.
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
        // DPDK's own worker threads are not used: one lcore, for the thread that starts DPDK.
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

/// Why DPDK failed, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// DPDK was started a second time.
    #[error("DPDK was already started in this process, and can be started only once")]
    AlreadyStarted,
    /// There are no free huge pages.
    #[error(
        "DPDK finds no free huge pages: reserve some (`echo 512 > /proc/sys/vm/nr_hugepages`) or let it use \
         ordinary memory (`--no-huge`)"
    )]
    NoHugePages,
    /// A privilege is missing.
    #[error(
        "DPDK lacks a privilege: run weir as root or with CAP_NET_ADMIN, CAP_IPC_LOCK and CAP_SYS_RAWIO ({0})"
    )]
    NotPermitted(String),
    /// DPDK did not start for another reason.
    #[error("DPDK does not start: {0}")]
    Start(String),
    /// No driver supports the device.
    #[error(
        "no DPDK driver supports device `{device}`: check its name, and that its driver is installed \
         (`apt-cache search librte-net`) ({log})"
    )]
    NoDriver {
        /// The device arguments.
        device: String,
        /// The relevant line of DPDK's log.
        log: String,
    },
    /// A port uses the device already.
    #[error("DPDK device `{0}` is in use by another port: give this one another name or number")]
    InUse(String),
    /// The driver rejects the device's arguments.
    #[error("the driver of DPDK device `{device}` rejects it: check the arguments after its name ({log})")]
    Refused {
        /// The device arguments.
        device: String,
        /// The relevant line of DPDK's log.
        log: String,
    },
    /// The device has too few queues.
    #[error("DPDK device `{device}` supports {most} queues, not {wanted}: lower `queues`")]
    Queues {
        /// The device arguments.
        device: String,
        /// Queues requested.
        wanted: u16,
        /// Queues available.
        most: u16,
    },
    /// The port was plugged in but did not start.
    #[error("DPDK device `{device}` does not start: {log}")]
    PortStart {
        /// The device arguments.
        device: String,
        /// The relevant line of DPDK's log.
        log: String,
    },
    /// There is too little memory for a pool.
    #[error(
        "DPDK has no memory for a pool of {frames} frames: give it more, or make the pool smaller ({log})"
    )]
    PoolMemory {
        /// Frames requested.
        frames: u32,
        /// The relevant line of DPDK's log.
        log: String,
    },
    /// There are more threads than DPDK supports.
    #[error("DPDK supports at most 128 threads: use fewer workers")]
    Threads,
}

/// Proof that DPDK runs in this process, which it does until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Eal(());

impl Eal {
    /// Starts DPDK.
    ///
    /// # Errors
    /// Returns why DPDK does not start. From the second call on, even if the first one failed, returns
    /// [`DpdkError::AlreadyStarted`].
    pub fn init(options: &EalOptions) -> Result<Eal, DpdkError> {
        static STARTED: AtomicBool = AtomicBool::new(false);
        let arguments = options.argv().into_iter().map(CString::new).collect::<Result<Vec<_>, _>>();
        let arguments = arguments.map_err(|_| DpdkError::Start("an argument contains a NUL byte".into()))?;
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(DpdkError::AlreadyStarted);
        }
        let started = shim::start_eal(arguments);
        // DPDK creates a directory for run-time files, which stays empty without shared configuration.
        let _ = std::fs::remove_dir(format!("/var/run/dpdk/{}", file_prefix()));
        started.map_err(|errno| start_error(errno, &shim::take_log()))?;
        Ok(Eal(()))
    }

    /// Registers the calling thread with DPDK, which gives it a pool cache of its own until the result is
    /// dropped. A worker calls this first.
    ///
    /// # Errors
    /// Returns [`DpdkError::Threads`] if there are too many threads.
    pub fn register_thread(self) -> Result<EalThread, DpdkError> {
        let ours = shim::register_thread().map_err(|_| DpdkError::Threads)?;
        Ok(EalThread { ours, not_send: PhantomData })
    }

    /// Returns what DPDK has logged since the last call or the last error.
    #[must_use]
    pub fn take_log(self) -> String {
        shim::take_log()
    }

    pub(super) fn pool_memory(self, frames: u32) -> DpdkError {
        DpdkError::PoolMemory { frames, log: first_line(&shim::take_log()) }
    }
}

/// A thread registered with DPDK. It cannot be sent to another thread.
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

/// Explains why a device could not be plugged in.
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

/// When a device fails, the first line of the log is the driver's own complaint; later lines only repeat it.
pub(super) fn first_line(log: &str) -> String {
    log.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing was logged").to_string()
}

/// When DPDK does not start, the last line of the log is the reason; earlier lines report progress.
fn last_line(log: &str) -> String {
    log.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("nothing was logged").to_string()
}
