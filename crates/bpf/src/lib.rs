//! All eBPF programs of weir, written in small C that clang compiles and aya loads, each with its user-space
//! half.
//!
//! The programs' licence is `GPL-2.0-only OR BSD-2-Clause`, because the kernel offers its helpers only to
//! GPL-compatible programs. Map values are exchanged as arrays of integers laid out here. Only `link.rs`
//! contains unsafe code.

#![deny(unsafe_code)]

mod decap;
mod hook;
mod impair;
#[allow(unsafe_code, reason = "the system call bpf(2), which rustix lacks")]
mod link;
mod load;
mod oncache;
mod overlay;
mod path;
mod take;
mod xdp_generate;
mod xdp_take;

pub use decap::{DECAP_COUNTS, DecapSettings, TcDecap, Tunnel};
pub use hook::{has_tcx, programs_at as programs_at_hook, remove_dead as remove_dead_hooks};
pub use impair::{Impaired, Impairment, TcImpair, class_of};
pub use oncache::Oncache;
pub use overlay::{
    OVERLAY_COUNTS, OVERLAY_FLOWS_MAX, OVERLAY_MARK_BITS, OVERLAY_NODES_MAX, OVERLAY_TRANSLATIONS_MAX,
    OverlayEnd, OverlayEntries, OverlayFlow, OverlayFlows, OverlayFrames, OverlayGone, OverlayIp, OverlayKey,
    OverlayProgram, OverlaySettings, OverlaySweep, OverlayTuple, STAMP_FIRST, STAMP_GLOBAL, STAMP_POLICY,
    TcOverlay, overlay_pins, overlay_programs, overlay_programs_at,
};
pub use path::{
    PATHS_MAX, PEERS_MAX, PathActivity, PathAnswer, PathCounters, PathFlow, PathFlowKey, PathFlows,
    PathMissed, PathOut, PathPeer, PathSettings, PathTraffic, Steer, TcPath, programs_at,
};
pub use take::{Fragments, MASKS_MAX, MaskedSource, Ports, Prefix, Take, TakeError, TakeRule, VALUES_MAX};
pub use xdp_generate::XdpGenerate;
pub use xdp_take::{AttachMode, Counters, JudgeError, Judged, QUEUES_MAX, XdpTake};

/// The error that aya returns when the kernel refuses a program, a map or an attachment.
pub use aya::EbpfError;
pub use aya::maps::MapError;
pub use aya::programs::ProgramError;
