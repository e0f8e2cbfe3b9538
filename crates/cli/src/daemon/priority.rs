//! How the kernel shares a busy core among the daemon's threads.
//!
//! Changes, health checks and LACP wait for the main thread, which seldom has much to do: it goes first, as
//! that of `ovs-vswitchd` does. Workers share with the host's own programs as these do among themselves.
//! What takes long and has time, such as a reload, goes behind them.

use rustix::process::setpriority_process;

/// Nice values of the kernel, from -20 (first) to 19.
const URGENT: i32 = -10;
const ORDINARY: i32 = 0;
const PATIENT: i32 = 5;

/// Lets this thread, and those that it starts, go before others. Needs the capability `CAP_SYS_NICE`; without
/// it nothing changes.
pub fn urgent() {
    set(URGENT);
}

/// Lets this thread share its core as other programs do.
pub fn ordinary() {
    set(ORDINARY);
}

/// Lets this thread go behind others.
pub fn patient() {
    set(PATIENT);
}

/// Sets the nice value of the calling thread: Linux has one for each.
fn set(nice: i32) {
    // Everything works with any value, only later.
    let _ = setpriority_process(None, nice);
}
