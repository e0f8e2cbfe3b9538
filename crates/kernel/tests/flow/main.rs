//! Flows that the engine has learnt and the kernel follows: packets of flows that the interpreter knows are
//! treated and counted as it says, whatever is changed in the meantime.

mod nat;
mod protocol;
mod random;
mod sentences;
mod tamed;
#[path = "../equality/uncompiled.rs"]
mod uncompiled;
mod undivided;

use weir_kernel::Executor;
use weir_program::Program;

/// Whether test runs work here: they take a privilege.
pub fn may_load() -> bool {
    let loads = Executor::load(&Program::default(), &[]).is_ok();
    assert!(loads || std::env::var_os("CI").is_none(), "CI runs as root, and eBPF programs load there");
    loads
}
