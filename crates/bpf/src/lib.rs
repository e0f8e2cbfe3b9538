//! eBPF programs, written in small C that clang compiles and aya loads, each with its user-space half: those
//! that belong to no feature, and what the programs of features share: how programs are compiled
//! (`clang.rs`), loaded ([`load`]) and attached to interfaces ([`hook`]). Features keep their programs in
//! their own crates, in the module `bpf`, and so does rigs/papers.
//!
//! The programs' licence is `GPL-2.0-only OR BSD-2-Clause`, because the kernel offers its helpers only to
//! GPL-compatible programs. Structures that programs share with user space are written only in C, and are
//! generated for Rust (`layouts.rs`). Only `link.rs` and `elements.rs` contain unsafe code.

#![deny(unsafe_code)]

mod decap;
#[allow(unsafe_code, reason = "the system call bpf(2), which rustix lacks")]
mod elements;
pub mod hook;
mod impair;
#[allow(unsafe_code, reason = "the system call bpf(2), which rustix lacks")]
mod link;
pub mod load;
mod plain;
mod shared;
mod take;
mod xdp_errors;
mod xdp_take;

pub use decap::{DECAP_COUNTS, DecapSettings, TcDecap, Tunnel};
pub use elements::elements;
pub use impair::{Impaired, Impairment, TcImpair, class_of};
pub use plain::Plain;
pub use take::{Fragments, MASKS_MAX, MaskedSource, Ports, Prefix, Take, TakeError, TakeRule, VALUES_MAX};
pub use xdp_errors::XdpErrors;
pub use xdp_take::{AttachMode, Counters, JudgeError, Judged, QUEUES_MAX, TakeMaps, XdpTake};

/// The error that aya returns when the kernel refuses a program, a map or an attachment.
pub use aya::EbpfError;
pub use aya::maps::MapError;
pub use aya::programs::ProgramError;
