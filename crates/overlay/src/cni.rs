//! Container networks, recognised by their interfaces, and whether the cache works with them.

use weir_netlink::Link;

/// What was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContainerNetwork {
    /// Its name, with the mode in which it runs.
    pub name: &'static str,
    /// The configuration that suits it, or the reason why there is none.
    pub says: Result<&'static str, &'static str>,
}

/// Interfaces, all of which a network has: beginnings of names, or whole names where they end in `=`.
type Marks = &'static [&'static str];

/// Why Open vSwitch bridges are not supported.
const OVS: &str = "not supported: pods are ports of an Open vSwitch bridge, whose flows forward and filter \
                   their frames, and weir follows only the kernel's own tables and rules";

/// Why encrypted networks are not supported.
const ENCRYPTED: &str = "not supported: packets between nodes are encrypted; the tunnel must be a VXLAN or \
                         Geneve device";

/// Checked in this order: a network's modes come before the interfaces that all of its modes have.
const NETWORKS: [(Marks, ContainerNetwork); 13] = [
    (
        &["cilium_host="],
        ContainerNetwork {
            name: "Cilium",
            says: Err(
                "not supported: its own eBPF programs forward pods' frames past netfilter, and its policies \
                 are in maps, which weir does not follow",
            ),
        },
    ),
    (&["antrea-gw"], ContainerNetwork { name: "Antrea", says: Err(OVS) }),
    (&["ovn-k8s-mp"], ContainerNetwork { name: "OVN-Kubernetes", says: Err(OVS) }),
    (
        &["vxlan.calico="],
        ContainerNetwork {
            name: "Calico with VXLAN",
            says: Ok(
                "supported: `tunnel: vxlan.calico, pods: cali*`, and a `mark` that Calico does not use, such \
                 as `0xff0`",
            ),
        },
    ),
    (&["wireguard.cali=", "cali"], ContainerNetwork { name: "Calico with WireGuard", says: Err(ENCRYPTED) }),
    (
        &["tunl0=", "cali"],
        ContainerNetwork {
            name: "Calico with IPIP",
            says: Err("not supported: the tunnel must be a VXLAN or Geneve device, and an IPIP device adds \
                 neither a VNI nor MAC addresses; Calico can use VXLAN (`vxlanMode: Always` of its IPPool)"),
        },
    ),
    (
        &["cali"],
        ContainerNetwork {
            name: "Calico without a tunnel",
            says: Err("there is no tunnel whose work could be saved"),
        },
    ),
    (&["flannel-wg="], ContainerNetwork { name: "Flannel with WireGuard", says: Err(ENCRYPTED) }),
    (
        &["flannel."],
        ContainerNetwork {
            name: "Flannel with VXLAN",
            says: Ok("supported: `tunnel: flannel.1, bridge: cni0`"),
        },
    ),
    (
        &["kube-bridge="],
        ContainerNetwork {
            name: "kube-router",
            says: Err(
                "not supported: its tunnels are IPIP or FoU devices, and the tunnel must be a VXLAN or \
                 Geneve device",
            ),
        },
    ),
    (
        &["weave="],
        ContainerNetwork {
            name: "Weave Net",
            says: Err("not supported: its tunnels belong to an Open vSwitch datapath"),
        },
    ),
    (&["genev_sys_"], ContainerNetwork { name: "Open vSwitch with Geneve", says: Err(OVS) }),
    (&["vxlan_sys_"], ContainerNetwork { name: "Open vSwitch with VXLAN", says: Err(OVS) }),
];

/// Returns the network to which these interfaces belong, if it is a known one.
pub(crate) fn recognise(links: &[Link]) -> Option<ContainerNetwork> {
    let has = |mark: &&str| {
        links.iter().any(|link| match mark.strip_suffix('=') {
            // `tunl0` exists wherever the module is loaded.
            Some(name) => link.name == name && link.up,
            None => link.name.starts_with(*mark),
        })
    };
    NETWORKS.iter().find(|(marks, _)| marks.iter().all(has)).map(|(_, network)| *network)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(names: &[&str]) -> Vec<Link> {
        let link = |name: &&str| {
            let (name, up) = name.strip_suffix('-').map_or((*name, true), |name| (name, false));
            Link { name: name.to_string(), up, ..Link::default() }
        };
        names.iter().map(link).collect()
    }

    /// Interfaces, and the network that has them, if it is known and supported.
    type Case = (&'static [&'static str], Option<(&'static str, bool)>);

    #[test]
    fn each_network_is_recognised_in_its_mode() {
        let cases: [Case; 11] = [
            (&["lo", "eth0", "cni0", "flannel.1", "veth1"], Some(("Flannel with VXLAN", true))),
            (&["eth0", "cali12ab", "vxlan.calico", "tunl0-"], Some(("Calico with VXLAN", true))),
            (&["eth0", "cali12ab", "tunl0"], Some(("Calico with IPIP", false))),
            (&["eth0", "cali12ab", "tunl0-"], Some(("Calico without a tunnel", false))),
            (&["eth0", "tunl0"], None),
            (&["eth0", "ovs-system", "genev_sys_6081", "antrea-gw0"], Some(("Antrea", false))),
            (&["ovn-k8s-mp0", "genev_sys_6081"], Some(("OVN-Kubernetes", false))),
            (&["br-int-", "genev_sys_6081"], Some(("Open vSwitch with Geneve", false))),
            (&["cilium_net", "cilium_host", "cilium_vxlan", "lxc12"], Some(("Cilium", false))),
            (&["eth0", "docker0", "vxlan0"], None),
            (&["kube-bridge", "tun-10"], Some(("kube-router", false))),
        ];
        for (names, wanted) in cases {
            let found = recognise(&links(names)).map(|network| (network.name, network.says.is_ok()));
            assert_eq!(found, wanted, "{names:?}");
        }
    }

    /// Both kinds of devices that the app accepts are named, never one alone.
    #[test]
    fn reasons_name_every_kind_of_tunnel() {
        let whys = NETWORKS.iter().filter_map(|(_, network)| network.says.err());
        let about_tunnels: Vec<&str> = whys.filter(|why| why.contains("tunnel must be")).collect();
        assert_eq!(about_tunnels.len(), 4);
        assert!(
            about_tunnels.iter().all(|why| why.contains("a VXLAN or Geneve device")),
            "{about_tunnels:?}"
        );
    }

    /// A mode that is listed behind what all modes have would never be found.
    #[test]
    fn no_network_hides_one_behind_it() {
        for (at, (marks, network)) in NETWORKS.iter().enumerate() {
            let names: Vec<&str> = marks.iter().map(|mark| mark.trim_end_matches('=')).collect();
            assert_eq!(recognise(&links(&names)), Some(*network), "number {at}");
        }
    }
}
