//! Workers on ports in memory: whatever happens, every frame ends in exactly one count.

mod commands;
mod hand_over;
mod inject;
mod outbox;
mod rig;
#[path = "../support/mod.rs"]
mod support;
