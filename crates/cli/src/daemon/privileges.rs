//! What the daemon may still do once its ports are open: rewrite what its XDP programs take, and read its configuration
//! anew. Everything else that root may do is given up before the first frame is looked at.

use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_no_new_privs};

/// What stays: BPF and network administration for a reload's take rules, raw sockets for AF_XDP's own, reading for a
/// configuration that belongs to somebody else.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::DAC_READ_SEARCH);

/// Gives up everything else, in this thread and those it starts from now on. Must come before workers start.
pub fn drop_others() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.effective &= KEPT;
    sets.permitted &= KEPT;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets)?;
    set_no_new_privs(true)
}
