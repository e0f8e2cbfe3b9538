//! From bytes to headers: frames and their pools, batches, the port trait, one-pass parsing, flow keys, the
//! two hashes, checksums, and the ledger that accounts for every frame. `craft` builds frames from text for
//! tests and people.
//!
//! Nothing here does I/O, and nothing on the data path allocates. All unsafe code is in `memory.rs` and
//! `lanes.rs`.

mod batch;
mod checksum;
pub mod craft;
mod drop_reason;
mod extension;
mod field;
mod flow_key;
pub mod fragment;
mod hash;
mod headers;
mod icmp_error;
#[allow(unsafe_code, reason = "calls to functions compiled for CPU features that were detected")]
mod lanes;
mod ledger;
#[allow(unsafe_code, reason = "frames are move-only handles on pool memory; see the file's head")]
mod memory;
mod observed;
mod parse;
mod pools;
mod port;
pub mod quic_lb;
pub mod random;
#[allow(unsafe_code, reason = "advice to the kernel about memory, which changes none of its contents")]
mod resident;
mod rss;
mod text;
pub mod tunnel;

pub use batch::{BATCH, Batch, Bits};
pub use checksum::{Sum, checksum, update, update_udp};
pub use drop_reason::DropReason;
pub use extension::pseudo_header;
pub use field::{Access, Depth, Field, FieldKind, FieldSpec, Source};
pub use flow_key::{FlowKey, IPV4_MARK, KeySource};
pub use hash::{SelectIpv4, TableHash, select_hash};
pub use headers::{Base, Headers, Layer, Layers, Level, LevelId, LevelLayers, Tunnel};
pub use icmp_error::{Inside, inside_icmp_error};
pub use lanes::widest;
pub use ledger::Ledger;
pub use memory::{CHUNK_MIN, FRAME_BYTES_MAX, Frame, HEADROOM, NoRoom, PoolId, RegionPool, Room, prefetch};
pub use observed::{NO_TARGET_OBSERVED, Observed};
pub use parse::{
    ETHER_ARP, ETHER_IPV4, ETHER_IPV6, ETHER_QINQ, ETHER_VLAN, EXTENSION_HEADERS_MAX, PROTOCOL_ICMP,
    PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP, parse, parse_into,
};
pub use pools::{ForeignPool, Pool, Pools};
pub use port::{Leave, Port, PortStatistics, Remark, SendProgress};
pub use resident::{Frontier, advise_huge, populate};
pub use rss::{RSS_KEY, RSS_KEY_BYTES, rss_hash};
pub use text::{read_hex, read_mac, write_hex};
pub use tunnel::{TunnelKind, TunnelPorts};
