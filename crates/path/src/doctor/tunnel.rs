//! Tunnels of the kernel: interfaces for VXLAN, Geneve and GUE, with their MTUs and ports, the uplinks below
//! them, and routes to peers.

use super::{Finding, Level};
use crate::Fabric;
use crate::tunnel::{PathTunnel, TunnelType};
use serde_json::Value;
use weir_app::doctor::ip;
use weir_netlink::links;
use weir_port::xdp::Ethtool;

/// What VXLAN and Geneve without options add to an inner Ethernet frame's payload over IPv4 (Ethernet 14,
/// IPv4 20, UDP 8, VXLAN or Geneve 8), and over IPv6, whose header is 20 bytes longer.
const OVERHEADS: [u64; 2] = [50, 70];

/// Returns the tunnels that an interface sends, as `ip -d link` describes it; `None` if it sends none that
/// path apps can watch.
fn tunnel_of(device: &Value) -> Option<PathTunnel> {
    let info = &device["linkinfo"];
    let data = &info["info_data"];
    let (of, port) = match info["info_kind"].as_str()? {
        "vxlan" => (TunnelType::Vxlan, &data["port"]),
        "geneve" => (TunnelType::Geneve, &data["port"]),
        // IP tunnels may be encapsulated in UDP. FOU has no header of its own, so it is read as GUE.
        _ => match data["encap"]["type"].as_str()? {
            "gue" | "fou" => (TunnelType::Gue, &data["encap"]["dport"]),
            _ => return None,
        },
    };
    Some(PathTunnel { of, port: port.as_u64()?.try_into().ok()? })
}

/// Examines all interfaces of tunnels, and what path apps need.
pub fn findings(fabrics: &[Fabric]) -> Vec<Finding> {
    let devices = match ip(&["-d", "link", "show"]) {
        Ok(devices) => devices,
        Err(why) => return vec![Finding::new("tunnel", "ip", Level::Warning, why)],
    };
    let devices: Vec<(PathTunnel, Value)> =
        devices.into_iter().filter_map(|device| Some((tunnel_of(&device)?, device))).collect();
    let of_device = |(tunnel, device): &(PathTunnel, Value)| device_findings(*tunnel, device, fabrics);
    let mut found: Vec<Finding> = devices.iter().flat_map(of_device).collect();
    for fabric in fabrics {
        found.extend(fabric.uplinks.iter().map(|name| uplink(fabric, name, &devices)));
        found.extend(fabric.peers.iter().map(|peer| route(fabric, &peer.to_string())));
    }
    found
}

fn device_findings(tunnel: PathTunnel, device: &Value, fabrics: &[Fabric]) -> Vec<Finding> {
    let name = device["ifname"].as_str().unwrap_or_default();
    let data = &device["linkinfo"]["info_data"];
    let is_theirs = |fabric: &&Fabric| fabric.tunnel == tunnel;
    let below = data["link"].as_str().map(str::to_string);
    let below =
        below.or_else(|| fabrics.iter().find(is_theirs).and_then(|fabric| fabric.uplinks.first().cloned()));
    let mut found = Vec::new();
    // Other devices derive the source port from the flow, unless their encapsulation has a fixed one.
    match tunnel.of {
        TunnelType::Vxlan => found.push(source_ports(name, &data["port_range"])),
        TunnelType::Geneve | TunnelType::Gue => {}
    }
    let Some((below, least)) = below.and_then(|below| Some((below.clone(), mtu(&below)?))) else {
        return found;
    };
    let own = device["mtu"].as_u64().unwrap_or_default();
    found.push(checksums(name, &below));
    // The kernel itself derives the MTU of an IP tunnel from its encapsulation.
    if tunnel.of == TunnelType::Gue {
        return found;
    }
    let overhead = overhead(data);
    let fits = least.saturating_sub(overhead);
    found.push(if own > fits {
        let says = format!(
            "its MTU of {own} plus {overhead} bytes of tunnel headers exceeds {least}, the MTU of `{below}`: \
             `ip link set {name} mtu {fits}`, or raise that of `{below}` and of the fabric"
        );
        Finding::new("mtu", name, Level::Fault, says)
    } else {
        Finding::new("mtu", name, Level::Ok, format!("{own}, which fits the {least} of `{below}`"))
    });
    found
}

/// Checks whether inner checksums are left to the interface below, and whether that interface supports them
/// in tunnels. If it does not, the kernel computes them packet by packet just before it sends, and a veth
/// leaves them incomplete.
fn checksums(name: &str, below: &str) -> Finding {
    let feature = |interface: &str, wanted: &[u8]| {
        Ethtool::open().ok().and_then(|ethtool| ethtool.feature(interface, wanted))
    };
    let leaves = feature(name, b"tx-checksum-ip-generic");
    let is_veth = links().is_ok_and(|all| all.iter().any(|one| one.name == below && one.kind == "veth"));
    let does_tunnels = !is_veth && feature(below, b"tx-udp_tnl-csum-segmentation") == Some(true);
    judge_checksums(name, below, leaves, does_tunnels)
}

fn judge_checksums(name: &str, below: &str, leaves: Option<bool>, does_tunnels: bool) -> Finding {
    let mend = format!("`ethtool -K {name} tx-checksum-ip-generic off`");
    match leaves {
        Some(true) if does_tunnels => {
            let says = format!(
                "`{below}` computes inner checksums; if peers count wrong ones (`nstat -az \
                 TcpInCsumErrors`), or TCP is slow: {mend}"
            );
            Finding::new("checksums", name, Level::Ok, says)
        }
        Some(true) => {
            let says = format!(
                "inner checksums are left to `{below}`, which does not compute them for tunnels, so TCP is \
                 slow or its segments arrive with wrong checksums: {mend}"
            );
            Finding::new("checksums", name, Level::Warning, says)
        }
        Some(false) => Finding::new("checksums", name, Level::Ok, "computed before encapsulation"),
        None => Finding::new("checksums", name, Level::Ok, "the kernel has no setting for them here"),
    }
}

/// The overhead of a VXLAN interface's tunnel, by the family of its addresses. An interface without addresses
/// may be used over IPv4.
fn overhead(data: &Value) -> u64 {
    let is_over_ipv6 = ["local6", "remote6", "group6"].iter().any(|key| data.get(key).is_some());
    OVERHEADS[usize::from(is_over_ipv6)]
}

fn source_ports(name: &str, range: &Value) -> Finding {
    let [low, high] = ["low", "high"].map(|end| range[end].as_u64().unwrap_or_default());
    // The kernel uses ports from `low` on, below `high`; for `low` >= `high` its default range.
    if high == low + 1 {
        let says = format!(
            "all its frames have source port {low}, so without weir they take one path: create it with \
             `srcport 49152 65535`"
        );
        return Finding::new("source_ports", name, Level::Warning, says);
    }
    let range = if low >= high { "the kernel's default".to_string() } else { format!("{low} to {high}") };
    Finding::new("source_ports", name, Level::Ok, format!("{range}: flows are spread, with or without weir"))
}

fn mtu(interface: &str) -> Option<u64> {
    links().ok()?.iter().find(|link| link.is_called(interface)).map(|link| link.mtu.into())
}

/// The interface through which an app's tunnels leave, and a tunnel that uses it.
fn uplink(fabric: &Fabric, uplink: &str, devices: &[(PathTunnel, Value)]) -> Finding {
    let Fabric { name, tunnel, .. } = fabric;
    if mtu(uplink).is_none() {
        let says = format!("there is no such interface, but `{name}` names it as its uplink");
        return Finding::new("uplink", uplink, Level::Fault, says);
    }
    let PathTunnel { of, port } = tunnel;
    if devices.iter().any(|(sent, _)| sent == tunnel) {
        let says = format!("it exists, and so does an interface that sends {of} to UDP port {port}");
        return Finding::new("uplink", uplink, Level::Ok, says);
    }
    let says = format!(
        "no interface of this host sends {of} to UDP port {port}, so `{name}` has nothing to do: check \
         `tunnel` and `tunnel_port`"
    );
    Finding::new("uplink", uplink, Level::Warning, says)
}

/// Whether frames to a peer leave through the uplink, where they are assigned a path.
fn route(fabric: &Fabric, peer: &str) -> Finding {
    let uplinks = &fabric.uplinks;
    let is_one = |route: &Value| uplinks.iter().any(|uplink| route["dev"] == uplink.as_str());
    match ip(&["route", "get", peer]) {
        Ok(routes) if routes.first().is_some_and(is_one) => {
            let by = routes.first().and_then(|route| route["dev"].as_str()).unwrap_or_default();
            Finding::new("route", peer, Level::Ok, format!("its route uses `{by}`"))
        }
        Ok(routes) => {
            let by = routes.first().and_then(|route| route["dev"].as_str()).unwrap_or("nothing").to_string();
            let says = format!(
                "its route uses `{by}` instead of `{}`, where frames get their path: change `uplink` \
                 or the route",
                uplinks.join("`, `")
            );
            Finding::new("route", peer, Level::Fault, says)
        }
        Err(why) => Finding::new("route", peer, Level::Fault, format!("there is no route: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn inner_checksums_belong_to_whom_can_compute_them() {
        for (leaves, does_tunnels, level, words) in [
            (Some(true), false, Level::Warning, "`ethtool -K vx tx-checksum-ip-generic off`"),
            (Some(true), true, Level::Ok, "`eth0` computes"),
            (Some(false), false, Level::Ok, "before encapsulation"),
            (None, false, Level::Ok, "no setting"),
        ] {
            let found = judge_checksums("vx", "eth0", leaves, does_tunnels);
            assert!(found.level == level && found.says.contains(words), "{found}");
        }
    }

    #[test]
    fn a_tunnel_over_ipv6_takes_20_bytes_more() {
        assert_eq!(overhead(&json!({ "id": 42, "remote": "10.0.2.1", "local": "10.0.1.1" })), 50);
        assert_eq!(overhead(&json!({ "id": 42, "remote6": "fd00::2", "local6": "fd00::1" })), 70);
        assert_eq!(overhead(&json!({ "id": 42, "group6": "ff05::100" })), 70);
        assert_eq!(overhead(&json!({ "external": true })), 50);
    }
}
