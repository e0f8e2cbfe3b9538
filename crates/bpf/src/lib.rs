//! Every eBPF program of weir, as small C that clang compiles and aya loads, and the user-space half of each.
//!
//! A program's licence is `GPL-2.0-only OR BSD-2-Clause`, because the kernel lends its helpers to such programs only.
//! Map values cross as arrays of integers laid out here, so there is no unsafe code.

#![forbid(unsafe_code)]

mod take;
mod xdp_generate;
mod xdp_take;

pub use take::{Fragments, MaskedSource, Prefix, RULES_MAX, Take, TakeError, TakeRule};
pub use xdp_generate::XdpGenerate;
pub use xdp_take::{AttachMode, Counters, QUEUES_MAX, XdpTake};

/// What aya says when the kernel refuses a program, a map or an attachment.
pub use aya::EbpfError;
pub use aya::maps::MapError;
pub use aya::programs::ProgramError;
