//! The forwarding tables of the GLB director: JSON with binds and back ends.

use super::services::{BackEnd, Imported, Service, name_of_ip};
use std::net::IpAddr;
use weir_config::Report;
use weir_config::raw::{self, Kind, Node};
use weir_config::section::{list, pairs, parsed, text};

/// Where the director's proxies decapsulate GUE
/// (github.com/github/glb-director/docs/development/gue-header.md).
const TUNNELS: &str = "tunnels: { gue: { port: 19523 } }";

/// Reads the tables; `file` is the name used in the report.
pub fn read(file: &str, json: &str) -> Imported {
    let mut all = Imported { head: Some(TUNNELS), ..Imported::new(file, json) };
    let Some(document) = raw::parse(json, &mut all.report) else { return all };
    let mut tables = None;
    for (key, span, node) in pairs(&document, &mut all.report) {
        match key {
            "tables" => tables = Some(node),
            _ => all.note(None, span, format!("`{key}` has no counterpart and was omitted")),
        }
    }
    let Some(tables) = tables else {
        all.report.error(document.span, "`tables` is missing: a list of forwarding tables");
        return all;
    };
    for node in list(tables, "forwarding tables", &mut all.report) {
        table(&mut all, node);
    }
    all
}

fn table(all: &mut Imported, node: &Node) {
    let place = all.services.len();
    all.services.push(Service { scheduler: "glb", ..Service::default() });
    let (mut seed, mut hash_key) = (None, None);
    for (key, span, node) in pairs(node, &mut all.report) {
        match key {
            "name" => {
                let name = text(node, "a name", &mut all.report).unwrap_or_default();
                let name = name.replace(|one: char| !is_of_name(one), "-");
                all.services[place].name = name.trim_start_matches(['-', '.']).chars().take(64).collect();
            }
            "seed" => seed = hex(node, &mut all.report),
            "hash_key" => hash_key = hex(node, &mut all.report),
            "binds" => {
                for node in list(node, "binds", &mut all.report) {
                    bind(all, place, node);
                }
            }
            "backends" => {
                for node in list(node, "back ends", &mut all.report) {
                    back_end(all, place, node);
                }
            }
            _ => all.note(Some(place), span, format!("`{key}` has no counterpart and was omitted")),
        }
    }
    let service = &mut all.services[place];
    if service.name.is_empty() {
        service.name = format!("table{}", place + 1);
    }
    if service.addresses.is_empty() && all.report.errors() == 0 {
        all.report.error(node.span, "this table has no `binds`");
    }
    match (seed, hash_key) {
        (Some(seed), Some(key)) => service.keys.push(format!("glb: {{ seed: {seed}, hash_key: {key} }}")),
        _ if all.report.errors() == 0 => all.report.error(node.span, "a table needs `seed` and `hash_key`"),
        _ => {}
    }
}

fn is_of_name(one: char) -> bool {
    one.is_ascii_alphanumeric() || "_-.".contains(one)
}

fn hex(node: &Node, report: &mut Report) -> Option<String> {
    let digits = text(node, "32 hexadecimal digits", report)?;
    let good = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !good {
        report.error(node.span, "this is not 32 hexadecimal digits");
    }
    // Quoted, because digits alone, or with an `e` between them, would be a number to other YAML parsers.
    good.then(|| format!("\"{digits}\""))
}

fn bind(all: &mut Imported, place: usize, node: &Node) {
    let (mut vip, mut protocol, mut ports) = (None, None, [None; 3]);
    for (key, span, node) in pairs(node, &mut all.report) {
        let report = &mut all.report;
        let mut port = || weir_config::section::number(node, "a port", 0..=65_535, report);
        match key {
            "port" => ports[0] = port(),
            "port_start" => ports[1] = port(),
            "port_end" => ports[2] = port(),
            "ip" => vip = prefix(node, report),
            "proto" => {
                let words = [("tcp", "tcp"), ("udp", "udp")];
                protocol = weir_config::section::choice(node, "`proto`", &words, report);
            }
            _ => all.note(Some(place), span, format!("`{key}` has no counterpart and was omitted")),
        }
    }
    let port = match ports {
        [Some(port), ..] => Some(port.to_string()),
        [None, Some(first), Some(last)] if first <= last => {
            Some(if (first, last) == (0, 65_535) { "all".into() } else { format!("{first}-{last}") })
        }
        _ => None,
    };
    match (vip, protocol, port) {
        (Some(vip), Some(protocol), Some(port)) => {
            all.services[place].addresses.push((vip, protocol, port));
        }
        _ if all.report.errors() == 0 => {
            all.report
                .error(node.span, "a bind has `ip`, `proto` and `port`, or `port_start` and `port_end`");
        }
        _ => {}
    }
}

/// Parses an address or a prefix, and returns it unchanged.
fn prefix(node: &Node, report: &mut Report) -> Option<String> {
    let text = text(node, "an IP address or a prefix", report)?;
    let (address, length) = text.split_once('/').map_or((text, None), |(ip, length)| (ip, Some(length)));
    let good = match (address.parse::<IpAddr>(), length.map(str::parse::<u8>)) {
        (Ok(ip), Some(Ok(length))) => length <= if ip.is_ipv4() { 32 } else { 128 },
        (Ok(_), None) => true,
        _ => false,
    };
    if !good {
        report.error(node.span, format!("`{text}` is not an IP address or prefix"));
    }
    good.then(|| text.to_string())
}

fn back_end(all: &mut Imported, place: usize, node: &Node) {
    let mut found =
        BackEnd { ip: IpAddr::from([0, 0, 0, 0]), port: None, mode: "gue", weight: 1, keys: Vec::new() };
    let (mut has_ip, mut unhealthy) = (false, false);
    for (key, span, node) in pairs(node, &mut all.report) {
        match key {
            "ip" => {
                let ip = parsed(node, "an IP address", &mut all.report);
                has_ip = true;
                found.ip = ip.unwrap_or(found.ip);
            }
            "state" => {
                let words = ["active", "filling", "draining", "inactive"].map(|word| (word, word));
                match weir_config::section::choice(node, "`state`", &words, &mut all.report) {
                    Some("draining") => found.keys.push("state: draining".to_string()),
                    Some("inactive") => found.weight = 0,
                    _ => {}
                }
            }
            "healthy" if node.is("true") => {}
            "healthy" => {
                unhealthy = true;
                let message = format!(
                    "back end {} was not healthy: it drains until you change its `state`, \
                    or write `check`",
                    found.ip
                );
                all.note(Some(place), span, message);
            }
            "healthchecks" => {
                let checks = pairs(node, &mut all.report);
                let check = |(kind, _, port): &(&str, _, &Node)| match &port.kind {
                    Kind::Scalar(port) => format!("{kind} on port {port}"),
                    _ => (*kind).to_string(),
                };
                let checks: Vec<String> = checks.iter().map(check).collect();
                let message = format!("the checks ({}) were omitted: write `check`", checks.join(", "));
                all.note(Some(place), span, message);
            }
            _ => all.note(Some(place), span, format!("`{key}` has no counterpart and was omitted")),
        }
    }
    // The director sends new flows of such a back end to the second back end of their rows.
    if unhealthy && found.weight > 0 && found.keys.is_empty() {
        found.keys.push("state: draining".to_string());
    }
    if !has_ip {
        all.report.error(node.span, "a back end needs an `ip`");
    }
    let service = &mut all.services[place];
    if has_ip && service.back_ends.iter().any(|other| other.ip == found.ip) {
        let message = format!("back end {} appears twice", name_of_ip(&found.ip.to_string()));
        return all.report.error(node.span, message);
    }
    service.back_ends.push(found);
}
