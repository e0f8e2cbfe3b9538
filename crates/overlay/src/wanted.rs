//! The configuration of an overlay.

/// The key of overlays under `apps`.
pub const KEY: &str = "overlay";

/// How changes of nftables rules affect known flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The next frames of known flows pass through the rules.
    Strict,
    /// Known flows continue until the kernel sees one of their frames again.
    Connection,
}

/// An overlay, and the size and lifetime of its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// The name of the app in the configuration.
    pub name: String,
    /// The kernel's VXLAN or Geneve device.
    pub tunnel: String,
    /// The kernel's interface through which encapsulated frames leave and arrive.
    pub uplink: String,
    /// The bridge whose ports are the pods' interfaces, if there is one.
    pub bridge: Option<String>,
    /// The prefix of the names of pods' interfaces, if there is no bridge.
    pub pods: Option<String>,
    /// The bits of `skb->mark` that belong to the overlay; they are adjacent.
    pub mark: u32,
    /// The maximum number of flows that are kept.
    pub flows: u32,
    /// How long a direction of a flow may use the fast path without a frame on the kernel's path, in
    /// nanoseconds. `None`: it depends on what the node uses (`agent/refresh.rs`).
    pub refresh_ns: Option<u64>,
    /// How new rules affect flows.
    pub policy: Policy,
    /// How long an unused flow is kept, in nanoseconds.
    pub idle_ns: u64,
}

/// Returns the name under which the flows of an overlay are measured and shown, like those of pipes.
#[must_use]
pub fn flows_of(overlay: &str) -> String {
    weir_app::kind::flow_table(KEY, overlay)
}
