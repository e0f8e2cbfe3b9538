//! The privileges that the daemon keeps once its ports are open: to rewrite the rules of its XDP programs, to
//! open the sockets of an interface that comes back, and to read its configuration again. All others of root
//! are dropped before the first frame is parsed.

use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_no_new_privs};

/// The capabilities kept: BPF and network administration to change take rules in a reload, raw sockets for
/// AF_XDP, locked memory for its frames, and reading for a configuration with another owner.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::DAC_READ_SEARCH);

/// Drops all other capabilities, in this thread and those started from now on. Must be called before workers
/// start.
pub fn drop_others() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.effective &= KEPT;
    sets.permitted &= KEPT;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets)?;
    set_no_new_privs(true)
}
