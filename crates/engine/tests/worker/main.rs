//! Workers on in-memory ports: in every situation, each frame ends up in exactly one count.

mod ages;
mod commands;
mod copies;
mod hand_over;
mod inject;
mod outbox;
mod ports;
mod proposals;
mod rig;
#[path = "../support/mod.rs"]
mod support;
