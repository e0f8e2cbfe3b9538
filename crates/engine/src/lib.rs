//! The batch executor of programs, and the workers that run it. It depends only on the `Port` trait, not on
//! any driver.

mod aggregate;
pub mod batch;
pub mod fragments;
#[cfg(any(test, feature = "lockstep"))]
pub mod lockstep;
pub mod parcel;
pub(crate) mod pipes;
pub mod ring;
pub mod single;
mod unflowed;
pub mod worker;

pub use weir_table::delta;
pub use worker::WAITING_MAX;
