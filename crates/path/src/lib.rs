//! Which path a flow takes to a remote node: what daemon, engine and simulator share.
//!
//! A fabric with ECMP chooses a path by a hash that covers the UDP source port of the tunnel, so a source
//! port is a path. [`survey`] finds out what probes of growing TTL show, and [`discovery`] one port for each
//! distinct path ([`known`]); [`probing`] says when to probe which; [`paths::Paths`] turns what becomes of
//! the probes into a delay, a loss, a state and a weight for every path; [`flow::Flow`] places the packets of
//! a flow as a [`scheme::Scheme`] says (the simulator does so; the kernel's programs have a copy in C);
//! [`buckets`] does the same for flows that nobody keeps, by a table of buckets.
//!
//! Nothing here does I/O, has a thread or reads a clock: time is a `u64` in nanoseconds that the caller
//! passes and that never goes back (`CLOCK_MONOTONIC`), and randomness comes from a seeded
//! [`random::Random`]. Equal calls give equal answers.
//!
//! The state of a remote node is meant to be shared by all nodes behind the same last hop (a leaf switch):
//! they have their paths in common, but not the ports that lead there.

pub mod buckets;
pub mod covariation;
pub mod delay;
pub mod discovery;
pub mod flow;
pub mod icmp;
pub mod known;
pub mod loss;
pub mod paths;
pub mod probing;
pub mod random;
pub mod scheme;
pub mod settings;
pub mod survey;
pub mod wire;
