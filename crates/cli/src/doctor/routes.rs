//! Services with `announce: route`: whether routes can be written, which other programs write to the table,
//! which could read it, and whether the host itself uses it.

use super::{Finding, Level, host, ip};
use crate::config::Plan;
use crate::kinds;
use serde_json::Value;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use weir_daemon::{RouteReader, foreign_routes, route_reader};
use weir_netlink::{Destination, links, route_to};

const TUN: &str = "/dev/net/tun";

/// Examines what routes need, if a service has any.
pub fn findings(plan: &Plan) -> Vec<Finding> {
    let vips = kinds::routed_vips(&plan.apps);
    if vips.is_empty() {
        return Vec::new();
    }
    let mut found = vec![device(), table(plan), route_daemon(plan.routes.table)];
    found.extend(host_routes(plan, &vips));
    for (word, family, setting) in
        [("-4", "IPv4", "net/ipv4/ip_forward"), ("-6", "IPv6", "net/ipv6/conf/all/forwarding")]
    {
        let is_used = vips.iter().any(|vip| vip.is_ipv6() == (word == "-6"));
        if is_used && host::number(setting) == Some(1) {
            found.push(rule(plan, word, family));
        }
    }
    found
}

fn finding(of: &str, level: Level, says: String) -> Finding {
    Finding::new("routes", of, level, says)
}

/// Routes lead to a TUN device.
fn device() -> Finding {
    // Bounded: nothing is read.
    let (level, says) = match fs::File::options().read(true).write(true).open(TUN) {
        Ok(_) => (Level::Ok, "it can be opened".to_string()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let says = format!("it cannot be opened by this process ({error}): run `weir doctor` as root");
            (Level::Warning, says)
        }
        Err(error) => {
            let says = format!(
                "it cannot be opened ({error}), so no route can be written: `modprobe tun`; in a container, \
                 pass the device on"
            );
            (Level::Fault, says)
        }
    };
    finding(TUN, level, says)
}

fn index_of(device: &str) -> Option<u32> {
    links().ok()?.into_iter().find(|link| link.name == device).map(|link| link.index)
}

/// No other program should write to the table. If weir already does, its routes stay.
fn table(plan: &Plan) -> Finding {
    let table = plan.routes.table;
    let own = index_of(&plan.routes.device).map(|index| (plan.routes.protocol, index));
    let (level, says) = match foreign_routes(table, own) {
        Ok(None) => (Level::Ok, "it has no routes of other programs".to_string()),
        Ok(Some(says)) => (Level::Fault, says),
        Err(why) => (Level::Warning, why),
    };
    finding(&format!("table {table}"), level, says)
}

fn route_daemon(table: u32) -> Finding {
    let (level, says) = match route_reader() {
        RouteReader::Runs(name) => {
            let says = format!("{name} runs; whether it uses table {table} is in its own configuration");
            (Level::Ok, says)
        }
        RouteReader::Absent => {
            let says = format!(
                "no BIRD, FRR or keepalived is visible in this network namespace: routers do not learn the \
                 routes in table {table} unless another program announces them (docs/how-to/fleet.md)"
            );
            (Level::Warning, says)
        }
        RouteReader::Unknown => {
            (Level::Warning, "its processes cannot be seen: run `weir doctor` as root".to_string())
        }
    };
    finding("route daemon", level, says)
}

/// The host would lose its own packets for VIPs.
fn host_routes(plan: &Plan, vips: &[IpAddr]) -> Option<Finding> {
    // The device exists while weir announces something.
    let device = &plan.routes.device;
    let index = index_of(device)?;
    let leads = |vip: &&IpAddr| matches!(route_to(**vip, None), Destination::Hop(hop, _) if hop == index);
    let finding = match vips.iter().find(leads) {
        None => finding("the host", Level::Ok, "it does not use the table itself".to_string()),
        Some(vip) => {
            let table = plan.routes.table;
            let says = format!(
                "it sends its own packets for {vip} to {device}, which drops them: find the rule that \
                 looks up table {table} without `iif`, or the route daemon that copies the table, as FRR \
                 before 10 does with `ip import-table`"
            );
            finding("the host", Level::Warning, says)
        }
    };
    Some(finding)
}

/// A host that forwards returns packets that no service takes to the router, unless a rule makes it consult
/// the table.
fn rule(plan: &Plan, word: &str, family: &str) -> Finding {
    let table = plan.routes.table;
    let of = format!("{family} rule");
    let rules = match ip(&[word, "rule", "show"]) {
        Ok(rules) => rules,
        Err(why) => return finding(&of, Level::Warning, why),
    };
    let number = table.to_string();
    let has = |rule: &Value| rule["table"].as_str() == Some(&number) && rule["iif"].is_string();
    if rules.iter().any(has) {
        return finding(&of, Level::Ok, format!("forwarded packets look up table {table}"));
    }
    let nic = plan.ports.iter().find_map(|port| port.nic.as_ref()).map_or("INTERFACE", |nic| &nic.name);
    let says = format!(
        "this host forwards, so it returns packets for VIPs that no service takes to the router, in a loop: \
         `ip {word} rule add iif {nic} lookup {table} priority 100`"
    );
    finding(&of, Level::Warning, says)
}
