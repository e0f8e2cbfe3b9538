//! The control protocol: the requests that a running daemon answers, its answers, and a client.
//!
//! Requests and answers are JSON objects, posted over HTTP to the control socket. They are defined here once:
//! the daemon reads [`Request`] and writes the structs in [`answer`], and commands and `weir top` do the
//! reverse. This crate knows nothing about the daemon.
//!
//! A client may be older than the daemon or, during an upgrade, newer: a field that is added is optional.

pub mod addresses;
pub mod answer;
mod client;
#[doc(hidden)]
pub mod describe;
pub mod kubernetes;
pub mod measure;
pub mod names;
mod read;
mod request;
pub mod services;

pub use client::{ask, change, reload};
pub use describe::Described;
pub use read::read;
pub use request::{App, Entries, Entry, Explain, HandOver, Inject, Reload, Request, Show, Weight, What};
