//! The clients that a service serves.

use super::announce_yaml::several;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_config::Report;
use weir_config::section::Section;

/// The maximum number of client prefixes of a service.
const CLIENTS_MAX: usize = 256;

/// Reads the clients that are served: prefixes, with their lengths in bits. An empty list, which would serve
/// none, is an error.
pub(super) fn read(section: &Section<'_>, report: &mut Report) -> Vec<(IpAddr, u8)> {
    let Some(node) = section.get("clients") else { return Vec::new() };
    if section.get("quic").is_some() {
        let message =
            "`clients` and `quic` cannot be combined: connections that migrate change their addresses";
        report.error_help(node.span, message, "omit one of them");
    }
    let nodes = several(node);
    if nodes.is_empty() {
        report.error_help(node.span, "`clients` is empty", "omit it, or list the prefixes of clients");
    }
    if nodes.len() > CLIENTS_MAX {
        let count = nodes.len();
        let message = format!("`clients` has {count} prefixes, but at most {CLIENTS_MAX} are allowed");
        report.error(node.span, message);
        return Vec::new();
    }
    distinct(nodes.iter().filter_map(|node| weir_config::ports::address_prefix(node, report)))
}

/// Returns each prefix once, because a table must not have an entry twice. Bits beyond its length do not
/// matter.
fn distinct(prefixes: impl Iterator<Item = (IpAddr, u8)>) -> Vec<(IpAddr, u8)> {
    let mut all = Vec::new();
    for (address, length) in prefixes {
        let prefix = (first(address, length), length);
        if !all.contains(&prefix) {
            all.push(prefix);
        }
    }
    all
}

/// Returns the first address of a prefix.
fn first(address: IpAddr, length: u8) -> IpAddr {
    let length = u32::from(length);
    match address {
        IpAddr::V4(four) => {
            let rest = u32::MAX.checked_shr(length).unwrap_or(0);
            Ipv4Addr::from_bits(four.to_bits() & !rest).into()
        }
        IpAddr::V6(six) => {
            let rest = u128::MAX.checked_shr(length).unwrap_or(0);
            Ipv6Addr::from_bits(six.to_bits() & !rest).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_distinct() {
        let all = [
            ("10.1.0.0", 8),
            ("10.2.0.0", 8),
            ("10.2.0.0", 16),
            ("10.2.0.0", 16),
            ("1.2.3.4", 0),
            ("1.2.3.4", 32),
            ("2001:db8::1", 32),
            ("2001:db8::", 32),
            ("::1", 128),
            ("::1", 0),
        ];
        let prefix = |(address, length): (&str, u8)| (address.parse::<IpAddr>().unwrap(), length);
        let some = [("10.0.0.0", 8), ("10.2.0.0", 16), ("0.0.0.0", 0), ("1.2.3.4", 32)];
        let some = some.into_iter().chain([("2001:db8::", 32), ("::1", 128), ("::", 0)]);
        assert_eq!(distinct(all.into_iter().map(prefix)), some.map(prefix).collect::<Vec<_>>());
    }
}
