//! The clients that a service serves.

use super::announce_yaml::several;
use std::net::IpAddr;
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
    nodes.iter().filter_map(|node| weir_config::ports::address_prefix(node, report)).collect()
}
