//! How long executors know and keep fragments of datagrams (pipes.md F13, F14).

/// How long ports are known after the last fragment, in nanoseconds. The fragments of a datagram are sent
/// together, and identifications are reused: those of IPv4 after 65 536 packets.
pub const KNOWN_NS: u64 = 1_000_000_000;

/// How long a fragment waits for the first one, in nanoseconds.
pub const WAIT_NS: u64 = 500_000_000;
