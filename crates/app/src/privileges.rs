//! The privileges that threads keep. The daemon's threads start with all privileges of root, because opening
//! ports requires them. Each thread drops the privileges that it does not need before it reads any external
//! input.
//!
//! Every thread has its own capability sets, and a new thread inherits those of the thread that starts it. So
//! a thread that starts before the main thread has dropped its capabilities must drop them itself
//! ([`drop_all`]).

use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_bounding_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// The capabilities kept by the daemon once its ports are open: BPF, performance monitoring (which the
/// verifier requires of programs with pointer arithmetic) and network administration to load programs and
/// change take rules in a reload, raw sockets for AF_XDP, locked memory for its frames, and reading for a
/// configuration with another owner.
pub const DAEMON: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::DAC_READ_SEARCH);

/// The capabilities kept by `weir decap` once its program is attached: BPF to read counters, and network
/// administration to detach the program.
pub const DECAP: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::BPF);

/// Drops all capabilities of this thread, and of threads that it starts from now on.
///
/// # Errors
/// The error is the kernel's.
pub fn drop_all() -> rustix::io::Result<()> {
    keep(CapabilitySet::empty())
}

/// Drops all capabilities except `kept` of this thread, and of threads that it starts from now on. They are
/// also dropped from its bounding set, so that a program it executes cannot have them either.
///
/// # Errors
/// The error is the kernel's.
pub fn keep(kept: CapabilitySet) -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        limit(kept)?;
    }
    sets.effective &= kept;
    sets.permitted &= kept;
    sets.inheritable = CapabilitySet::empty();
    // The kernel lowers the ambient set together with the inheritable one.
    set_capabilities(None, sets)?;
    set_no_new_privs(true)
}

/// Removes all capabilities except `kept` from the bounding set.
fn limit(kept: CapabilitySet) -> rustix::io::Result<()> {
    for capability in CapabilitySet::all().difference(kept).iter() {
        // The kernel may be older than the newest capability.
        if capability_is_in_bounding_set(capability) == Ok(true) {
            remove_capability_from_bounding_set(capability)?;
        }
    }
    Ok(())
}
