//! Why an interface or a queue cannot be opened. Each message says what to do.

use std::io;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use weir_bpf::TakeError;

/// The capabilities for the steps that fail with EPERM.
const NEEDED: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON);

/// Why an AF_XDP port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// This network namespace has no such interface.
    #[error("there is no interface `{0}` in this network namespace; `weir ports` lists the interfaces")]
    NoInterface(String),
    /// The process lacks a privilege for the named step.
    #[error(
        "the kernel does not permit {0}: run as root, or give the binary its capabilities with `setcap \
         cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon,cap_ipc_lock+ep`"
    )]
    NoPrivilege(&'static str),
    /// The named step is refused although the process has the privileges.
    #[error(
        "the kernel does not permit {0}, although weir has the capabilities: in a container, use a seccomp \
         profile that permits bpf() with CAP_BPF; on a host, look whether the kernel is locked down (`cat \
         /sys/kernel/security/lockdown`)"
    )]
    Forbidden(&'static str),
    /// RLIMIT_MEMLOCK is too low for the frame memory.
    #[error(
        "frame memory cannot be locked: raise the limit (`ulimit -l unlimited`, systemd: \
         LimitMEMLOCK=infinity) or grant CAP_IPC_LOCK"
    )]
    MemoryLimit,
    /// The driver does not support native XDP.
    #[error(
        "`{interface}` does not support native XDP ({reason}): omit `mode` to use the best mode it supports"
    )]
    NoNativeMode {
        /// Name of the interface.
        interface: String,
        /// The kernel's error.
        reason: io::Error,
    },
    /// The driver does not support zero-copy.
    #[error(
        "queue {queue} of `{interface}` does not support zero-copy: omit `mode` to use the best mode it \
            supports"
    )]
    NoZeroCopy {
        /// Name of the interface.
        interface: String,
        /// Number of the queue.
        queue: u32,
    },
    /// The kernel or the driver does not pass frames in pieces.
    #[error(
        "the kernel does not pass frames larger than a page from `{interface}` (that needs Linux 6.6 or \
         newer): write `mtu: 3818` or less"
    )]
    NoPieces {
        /// Name of the interface.
        interface: String,
    },
    /// Another XDP program is attached.
    #[error(
        "`{0}` already has an XDP program: `bpftool net` and `bpftool link` show its owner; stop that first"
    )]
    AlreadyAttached(String),
    /// The driver requires a smaller MTU.
    #[error(
        "the MTU of `{interface}` ({mtu}) or of its veth peer is too large for native XDP: \
         `ip link set {interface} mtu 1500`, on both ends"
    )]
    MtuTooLarge {
        /// Name of the interface.
        interface: String,
        /// The MTU of the interface in bytes.
        mtu: u32,
    },
    /// The peer of a veth has more transmit queues than this end has receive queues.
    #[error(
        "`{0}` has fewer receive queues than its veth peer has transmit queues: \
         `ethtool -L {0} rx N`, where N is the number of the peer"
    )]
    TooFewQueues(String),
    /// The interface has no such queue.
    #[error("`{interface}` has {queues} receive queues, numbered from 0; there is no queue {queue}")]
    QueueOutOfRange {
        /// Name of the interface.
        interface: String,
        /// The queue requested.
        queue: u32,
        /// Number of receive queues.
        queues: u32,
    },
    /// Another socket is bound to the queue.
    #[error("queue {queue} of `{interface}` already has an AF_XDP socket: `ss -f xdp -p` shows its owner")]
    QueueInUse {
        /// Name of the interface.
        interface: String,
        /// Number of the queue.
        queue: u32,
    },
    /// A ring size is not a power of two, or out of range.
    #[error("a ring cannot have {0} descriptors: use a power of two from 64 to 32768")]
    RingSize(u32),
    /// A `take` rule is invalid.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// The kernel refused the XDP program.
    #[error(
        "the kernel rejects weir's XDP program ({0}); weir needs Linux 5.18 or newer, with \
         CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS"
    )]
    Program(String),
    /// Another system call failed.
    #[error("{doing} failed for `{interface}`: {reason}")]
    System {
        /// The step that failed.
        doing: &'static str,
        /// Name of the interface.
        interface: String,
        /// The kernel's error.
        reason: io::Error,
    },
}

impl XdpError {
    /// Says why a step failed with EPERM.
    pub(super) fn not_permitted(step: &'static str) -> XdpError {
        if XdpError::has_capabilities() { XdpError::Forbidden(step) } else { XdpError::NoPrivilege(step) }
    }

    /// Says why the kernel refused to load a program or to create a map; `text` contains the verifier's log.
    pub(super) fn of_load(reason: &io::Error, text: String) -> XdpError {
        const STEP: &str = "loading an XDP program";
        match reason.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::PERM) => XdpError::not_permitted(STEP),
            // The verifier refuses with this, possibly because a capability is missing.
            Some(Errno::ACCESS) if !XdpError::has_capabilities() => XdpError::NoPrivilege(STEP),
            _ => XdpError::Program(text),
        }
    }

    /// Returns true if this thread has the capabilities that an AF_XDP port needs.
    fn has_capabilities() -> bool {
        capabilities(None).is_ok_and(|sets| sets.effective.contains(NEEDED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_explained_by_what_the_process_may_do() {
        let said = |errno: Errno| XdpError::of_load(&errno.into(), "the verifier's log".into()).to_string();
        let (of_bpf, of_verifier) = match XdpError::has_capabilities() {
            true => ("seccomp", "the verifier's log"),
            false => ("setcap", "setcap"),
        };
        assert!(said(Errno::PERM).contains(of_bpf), "{}", said(Errno::PERM));
        assert!(said(Errno::ACCESS).contains(of_verifier), "{}", said(Errno::ACCESS));
        assert!(said(Errno::INVAL).contains("the verifier's log"));
    }
}
