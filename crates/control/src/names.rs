//! Names that nodes and controllers give to services and back ends, so that both find the same ones.

use std::net::IpAddr;

/// Returns weir's name for a port of a Kubernetes service. `protocol` is the protocol as weir spells it.
#[must_use]
pub fn service_port(namespace: &str, name: &str, port: u16, protocol: &str) -> String {
    format!("{namespace}.{name}.{port}-{protocol}")
}

/// Returns the name of a back end, which is the same on all nodes: its address, and its port if it is known.
/// Names have no colons.
#[must_use]
pub fn back_end(address: IpAddr, port: Option<u16>) -> String {
    let mut name = address.to_string().replace(':', "-");
    if name.starts_with('-') {
        name.insert(0, '0');
    }
    match port {
        Some(port) => format!("{name}_{port}"),
        None => name,
    }
}

/// Shortens a name to at most `max` bytes, where `max` is at least 17: in a name that is too long, a hash of
/// the whole name replaces the end.
#[must_use]
pub fn shortened(name: String, max: usize) -> String {
    if name.len() <= max {
        return name;
    }
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let kept: String = name.chars().take(max.saturating_sub(17)).filter(char::is_ascii).collect();
    format!("{kept}_{hash:016x}")
}
