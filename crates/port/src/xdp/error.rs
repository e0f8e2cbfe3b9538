//! Why an interface or a queue cannot be opened. Each sentence says what to do.

use std::io;

use bpf::TakeError;

/// An AF_XDP port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// No such interface here.
    #[error("there is no interface `{0}` in this network namespace; `weir ports` lists those there are")]
    NoInterface(String),
    /// The process may not.
    #[error(
        "the kernel does not permit {0}: run as root, or `setcap cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon,cap_ipc_lock+ep` the binary"
    )]
    NoPrivilege(&'static str),
    /// RLIMIT_MEMLOCK.
    #[error(
        "frame memory cannot be locked: raise the limit (`ulimit -l unlimited`, systemd: LimitMEMLOCK=infinity) or give CAP_IPC_LOCK"
    )]
    MemoryLimit,
    /// The driver cannot run XDP.
    #[error("`{interface}` has no native XDP ({reason}): leave `mode` out to run in the mode it has")]
    NoNativeMode {
        /// The interface.
        interface: String,
        /// What the kernel said.
        reason: io::Error,
    },
    /// The driver cannot do zero-copy.
    #[error("queue {queue} of `{interface}` cannot do zero-copy: leave `mode` out to run in the mode it has")]
    NoZeroCopy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// Another program is attached.
    #[error("`{0}` already runs somebody's XDP program: `bpftool net` and `bpftool link` say whose; stop that first")]
    AlreadyAttached(String),
    /// The driver wants smaller frames.
    #[error(
        "the MTU of `{interface}` or of its veth peer is too large for native XDP (here {mtu}): `ip link set {interface} mtu 1500`, on both ends"
    )]
    MtuTooLarge {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu: u32,
    },
    /// The peer of a veth has more transmit queues than this end receive queues.
    #[error(
        "`{0}` has fewer receive queues than its veth peer transmit queues: `ethtool -L {0} rx N`, with N those of the peer"
    )]
    TooFewQueues(String),
    /// No such queue.
    #[error("`{interface}` has {queues} receive queues, numbered from 0; there is no queue {queue}")]
    QueueOutOfRange {
        /// The interface.
        interface: String,
        /// The queue asked for.
        queue: u32,
        /// Those there are.
        queues: u32,
    },
    /// Another socket has the queue.
    #[error("queue {queue} of `{interface}` already has an AF_XDP socket: `ss -f xdp -p` says whose")]
    QueueInUse {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// Ring sizes are powers of two.
    #[error("{0} descriptors are no ring: a power of two from 64 to 32768 is")]
    RingSize(u32),
    /// A `take` rule cannot be.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// The XDP program does not load.
    #[error(
        "the kernel refuses weir's XDP program ({0}); Linux 5.18 or newer with CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS is needed"
    )]
    Program(String),
    /// Anything else.
    #[error("{doing} of `{interface}`: {reason}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// The interface.
        interface: String,
        /// What the kernel said.
        reason: io::Error,
    },
}
