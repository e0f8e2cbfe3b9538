//! What the programs of `path.bpf.c` share with user space, generated from that file (crates/bpf/layouts.rs).

#![allow(clippy::all, dead_code, reason = "generated")]

use weir_bpf::Plain;

include!(concat!(env!("OUT_DIR"), "/path.rs"));
