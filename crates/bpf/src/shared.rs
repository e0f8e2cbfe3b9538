//! What the programs share with user space, generated from the programs (`layouts.rs`).

#![allow(clippy::all, dead_code, reason = "generated")]

macro_rules! programs {
    ($($program:ident $file:literal)*) => {$(
        pub mod $program {
            use crate::Plain;

            include!(concat!(env!("OUT_DIR"), $file));
        }
    )*};
}

programs! {
    decap "/decap.rs"
    impair "/impair.rs"
    xdp_errors "/xdp_errors.rs"
    xdp_take "/xdp_take.rs"
}
