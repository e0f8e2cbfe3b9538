//! How the kernel shares a busy core among the daemon's threads.
//!
//! Changes, health checks and LACP depend on the main thread, which is mostly idle: it has priority, like
//! that of `ovs-vswitchd`. Workers compete with the host's own programs as equals. Long work that is not
//! urgent, such as a reload, yields to them.

use rustix::process::setpriority_process;

/// Nice values of the kernel, from -20 (first) to 19.
const URGENT: i32 = -10;
const ORDINARY: i32 = 0;
const PATIENT: i32 = 5;

/// Gives this thread, and the threads that it starts, priority over others. This requires the capability
/// `CAP_SYS_NICE`; without it nothing changes.
pub fn urgent() {
    set(URGENT);
}

/// Gives this thread the normal priority, that of the host's own programs.
pub fn ordinary() {
    set(ORDINARY);
}

/// Gives this thread a lower priority than other programs.
pub fn patient() {
    set(PATIENT);
}

/// Sets the nice value of the calling thread: on Linux it is per thread.
fn set(nice: i32) {
    // A wrong priority delays work but breaks nothing.
    let _ = setpriority_process(None, nice);
}
