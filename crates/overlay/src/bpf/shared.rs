//! What the programs of `overlay.bpf.c` share with user space, generated from that file
//! (crates/bpf/layouts.rs), for each IP version of pods and of nodes.

#![allow(clippy::all, dead_code, reason = "generated")]

macro_rules! versions {
    ($($version:ident $file:literal)*) => {$(
        pub mod $version {
            use weir_bpf::Plain;

            include!(concat!(env!("OUT_DIR"), $file));
        }
    )*};
}

versions! { v44 "/overlay44.rs" v46 "/overlay46.rs" v64 "/overlay64.rs" v66 "/overlay66.rs" }
