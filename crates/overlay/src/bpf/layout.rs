//! Where the fields of the programs' structures are, which depends on the IP versions that the programs are
//! compiled for.

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverlayIp {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

/// Number of flows in a set.
pub(super) const WAYS: usize = 4;

/// Where the fields of the programs' structures are, as offsets in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// The version of IP that pods use.
    pub pods: OverlayIp,
    /// The version of IP that tunnels between nodes use.
    pub nodes: OverlayIp,
    /// Bytes of `struct key`, with which a way begins.
    pub key: usize,
    /// Bytes of `struct tuple`.
    pub tuple: usize,
    /// The half for what is sent, and the half for what is received: `struct half`.
    pub halves: [usize; 2],
    /// The index of the pod's interface, in a way.
    pub pod: usize,
    /// The headers, and their length in bytes.
    pub headers: [usize; 2],
    /// The interface of the other pod.
    pub peer: usize,
    /// Times and counts, one after the other.
    pub born: usize,
    /// Bytes of `struct way`.
    pub way: usize,
}

/// Where the fields of `struct half` are: four times and stamps, two numbers, a tuple.
pub(super) const HALF_AT: usize = 32;
pub(super) const HALF_FLAGS: usize = 36;
pub(super) const HALF_TO: usize = 40;
/// Where the tuple of `struct gone` is, behind the key: behind times and counts.
pub(super) const GONE_TO: usize = 48;

impl Layout {
    pub const fn new(pods: OverlayIp, nodes: OverlayIp) -> Layout {
        let (key, tuple) = match pods {
            OverlayIp::V4 => (24, 16),
            OverlayIp::V6 => (48, 40),
        };
        let header: usize = match nodes {
            OverlayIp::V4 => 64,
            OverlayIp::V6 => 84,
        };
        let halves = [key, key + HALF_TO + tuple];
        // Two interfaces.
        let headers = halves[1] + HALF_TO + tuple + 8;
        // The packet's `look`, and MAC addresses.
        let peer = headers + header.next_multiple_of(8) + 16;
        // Together with a reserved field and a time.
        let born = peer + 16;
        Layout {
            pods,
            nodes,
            key,
            tuple,
            halves,
            pod: headers - 4,
            headers: [headers, header],
            peer,
            born,
            way: born + 48,
        }
    }

    /// Returns the bytes of `struct set`: a lock, a version, and its ways.
    pub const fn set(&self) -> usize {
        8 + WAYS * self.way
    }

    /// Returns the bytes of `struct gone`: a key, times and counts, a tuple, two numbers.
    pub const fn gone(&self) -> usize {
        self.key + GONE_TO + self.tuple + 8
    }
}
