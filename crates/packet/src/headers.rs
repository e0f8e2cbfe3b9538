//! What parsing finds in a frame: for each of two levels (the outer headers, and those inside a tunnel),
//! which headers are present and where; and the tunnel between the levels. 40 bytes, one row for each frame
//! of a batch.

use crate::TunnelKind;

/// A header that a level can have, or a property of one; a bit of [`Layers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Layer {
    /// The level is present: the outer one always is, the inner one if a tunnel carries something that is
    /// parsed.
    Present = 1,
    /// Ethernet. A tunnel can carry IP without it.
    Ethernet = 1 << 1,
    /// At least one VLAN tag.
    Vlan = 1 << 2,
    /// Two VLAN tags.
    SecondVlan = 1 << 3,
    /// ARP for IPv4 over Ethernet.
    Arp = 1 << 4,
    /// IPv4.
    Ipv4 = 1 << 5,
    /// IPv6.
    Ipv6 = 1 << 6,
    /// A fragment of an IPv4 or IPv6 datagram; there is then no L4 layer.
    Fragment = 1 << 7,
    /// TCP.
    Tcp = 1 << 8,
    /// UDP.
    Udp = 1 << 9,
    /// ICMP for IPv4.
    Icmp = 1 << 10,
    /// ICMP for IPv6.
    Icmpv6 = 1 << 11,
    /// TCP or UDP: the packet has ports.
    Ports = 1 << 12,
    /// A tunnel header. Its kind has a bit of its own ([`Layers::of_tunnel`]).
    Tunnel = 1 << 13,
    /// The tunnel header has an ID.
    TunnelId = 1 << 14,
    /// An ICMP error with the header of the packet that triggered it.
    IcmpError = 1 << 15,
    /// The packet inside the ICMP error has ports.
    ErrorPorts = 1 << 16,
}

/// The bit of the first kind of tunnel; the others follow.
const TUNNEL_KINDS: u32 = 17;

/// A set of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layers(pub u32);

impl Layers {
    /// The set of the tunnels of one kind.
    #[must_use]
    pub const fn of_tunnel(kind: TunnelKind) -> Layers {
        Layers(Layer::Tunnel as u32 | 1 << (TUNNEL_KINDS + kind as u32))
    }

    /// True when `layer` is in the set.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, layer: Layer) -> bool {
        self.0 & layer as u32 != 0
    }

    /// True when every layer of `needs` is in the set.
    #[inline(always)]
    #[must_use]
    pub const fn has_all(self, needs: Layers) -> bool {
        self.0 & needs.0 == needs.0
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, layer: Layer) {
        self.0 |= layer as u32;
    }
}

/// One of the two levels of headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LevelId {
    /// The frame's own headers.
    #[default]
    Outer = 0,
    /// The headers inside a tunnel.
    Inner = 1,
}

/// Sets of layers, by level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelLayers(pub [Layers; 2]);

impl LevelLayers {
    /// Every layer at every level.
    pub const ALL: LevelLayers = LevelLayers([Layers(u32::MAX); 2]);

    /// Adds layers at a level.
    pub fn add(&mut self, level: LevelId, layers: Layers) {
        self.0[level as usize].0 |= layers.0;
    }

    /// Adds the layers of another set.
    pub fn join(&mut self, other: LevelLayers) {
        self.0[0].0 |= other.0[0].0;
        self.0[1].0 |= other.0[1].0;
    }

    /// Keeps the layers that a frame has.
    #[inline(always)]
    pub fn keep(&mut self, headers: &Headers) {
        self.0[0].0 &= headers.levels[0].layers.0;
        self.0[1].0 &= headers.levels[1].layers.0;
    }

    /// True when every layer of `needs` is present.
    #[inline(always)]
    #[must_use]
    pub const fn has_all(self, needs: LevelLayers) -> bool {
        self.0[0].has_all(needs.0[0]) && self.0[1].has_all(needs.0[1])
    }
}

/// The header from whose start an offset is counted: an index into [`Level::at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Base {
    /// Ethernet header.
    L2 = 0,
    /// IPv4, IPv6 or ARP header.
    L3 = 1,
    /// TCP, UDP, ICMP or ICMPv6 header, or whatever else IP carries.
    L4 = 2,
    /// ID in the tunnel header: a VNI or a key.
    TunnelId = 3,
    /// The transport header of the packet inside an ICMP error. No packet has both this and a tunnel, so both
    /// use the same index, which is the low two bits.
    ErrorL4 = 7,
}

/// The headers of one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Which layers are present.
    pub layers: Layers,
    /// Where the headers are: offsets from the frame's start, indexed by [`Base`]; the offsets of absent
    /// headers are meaningless.
    pub at: [u16; 4],
    /// EtherType after all VLAN tags.
    pub ether_type: u16,
    /// Transport protocol after all extension headers; 0 without IP.
    pub protocol: u8,
}

impl Level {
    /// Where a header is, from the frame's start.
    #[inline(always)]
    #[must_use]
    pub const fn at(&self, base: Base) -> usize {
        self.at[base as usize & 3] as usize
    }
}

/// The tunnel header between the outer and the inner headers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The kind of tunnel, which determines the layout of the header.
    pub kind: TunnelKind,
    /// Where the header starts, in bytes from the start of the frame.
    pub at: usize,
    /// VNI or key; 0 if the tunnel has no ID.
    pub id: u32,
}

/// Which headers a frame has, and where. Parsing fills this in as deep as the program reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Outer and inner headers, indexed by [`LevelId`].
    pub levels: [Level; 2],
    /// The tunnel's ID, as returned by [`Headers::tunnel`].
    pub tunnel_id: u32,
    /// Where the tunnel header starts.
    pub(crate) tunnel_at: u16,
}

impl Headers {
    /// The headers of a level. Those of the inner level are empty if the frame has no tunnel that was parsed.
    #[inline(always)]
    #[must_use]
    pub const fn level(&self, level: LevelId) -> &Level {
        &self.levels[level as usize]
    }

    /// The outer headers: the only ones, if the frame has no tunnel.
    #[inline(always)]
    #[must_use]
    pub const fn outer(&self) -> &Level {
        &self.levels[0]
    }

    /// The headers inside the tunnel; empty if the frame has no tunnel that was parsed.
    #[inline(always)]
    #[must_use]
    pub const fn inner(&self) -> &Level {
        &self.levels[1]
    }

    /// The tunnel between the levels; `None` if the frame has none, or if parsing did not go that deep.
    #[must_use]
    pub fn tunnel(&self) -> Option<Tunnel> {
        let kind = (self.outer().layers.0 >> TUNNEL_KINDS).trailing_zeros() as usize;
        let kind = *TunnelKind::ALL.get(kind)?;
        Some(Tunnel { kind, at: usize::from(self.tunnel_at), id: self.tunnel_id })
    }

    /// True when every layer of `needs` is present.
    #[inline(always)]
    #[must_use]
    pub const fn has_all(&self, needs: LevelLayers) -> bool {
        LevelLayers([self.levels[0].layers, self.levels[1].layers]).has_all(needs)
    }
}
