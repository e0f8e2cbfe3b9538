//! What `weir doctor` reports about overlays: whether the kernel has the features that they need, and the
//! kernel's settings.

use crate::Overlay;
use crate::agent::{kind_of, needed_settings, rule};
use crate::bpf::OverlayTunnel;
use crate::cni::{self, ContainerNetwork};
use crate::yaml::overlays;
use std::io;
use weir_app::doctor::{Examined, Finding, Has, Level, hooks};
use weir_bpf::hook::has_tcx;
use weir_netlink::Link;

/// Examines the kernel and its settings.
pub(crate) fn findings(examined: &Examined<'_>) -> Vec<Finding> {
    let wanted = examined.apps.map(overlays).unwrap_or_default();
    let (is_used, mut found) = (!wanted.is_empty(), Vec::new());
    if is_used || examined.apps.is_none() {
        found.push(hooks(has_tcx()).finding("overlay", is_used));
        found.push(nftables(rule::tables().map(drop)).finding("overlay", is_used));
    }
    // Without an overlay, a network that is not supported is no flaw.
    if (is_used || examined.apps.is_none())
        && let Ok(links) = weir_netlink::links()
    {
        found.extend(cni::recognise(&links).map(network));
        found.extend(wanted.iter().flat_map(|wanted| devices(&wanted.task, &links)));
    }
    let setting = |(name, is_so): (&str, anyhow::Result<()>)| match is_so {
        Ok(()) => Finding::new("sysctl", name, Level::Ok, "as the overlay needs it"),
        Err(why) => Finding::new("sysctl", name, Level::Fault, why.to_string()),
    };
    found.extend(wanted.iter().flat_map(|wanted| needed_settings(&wanted.task)).map(setting));
    found
}

/// Reports a network that was recognised.
fn network(network: ContainerNetwork) -> Finding {
    let (level, says) = match network.says {
        Ok(says) => (Level::Ok, says),
        Err(says) => (Level::Warning, says),
    };
    Finding::new("container_network", network.name, level, says)
}

/// Examines the devices of an overlay. They may appear later, so one that does not exist is no fault.
fn devices(overlay: &Overlay, links: &[Link]) -> [Finding; 2] {
    let named = |name: &str| links.iter().find(|link| link.name == name);
    let says = |name: &str, examine: &dyn Fn(&Link) -> (Level, String)| {
        let absent = (Level::Warning, "it does not exist: the overlay waits for it".to_string());
        named(name).map_or(absent, examine)
    };
    let tunnel = says(&overlay.tunnel, &|link| match kind_of(link) {
        Ok(OverlayTunnel::Vxlan) => (Level::Ok, "a VXLAN device: supported".to_string()),
        Ok(OverlayTunnel::Geneve) => (
            Level::Ok,
            "a Geneve device: supported; frames whose header has options take the slow path".to_string(),
        ),
        Err(why) => (Level::Fault, format!("{why:#}")),
    });
    let uplink = says(&overlay.uplink, &|link| {
        let bond = links.iter().find(|bond| bond.index == link.master && bond.kind == "bond");
        match (bond, link.kind.as_str()) {
            (Some(bond), _) => (
                Level::Fault,
                format!(
                    "it is a port of the bond `{0}`, which carries the frames: write `uplink: {0}`",
                    bond.name
                ),
            ),
            (None, "vlan") => (Level::Ok, "a VLAN device: supported".to_string()),
            (None, "bond") => (Level::Ok, "a bond: supported".to_string()),
            (None, _) => (Level::Ok, "it exists".to_string()),
        }
    });
    [("tunnel", &overlay.tunnel, tunnel), ("uplink", &overlay.uplink, uplink)]
        .map(|(check, name, (level, says))| Finding::new(check, name, level, says))
}

/// Connections are marked with an nftables rule. `tables` is the result of listing the tables.
fn nftables(tables: io::Result<()>) -> Has {
    match tables {
        Ok(()) => Has::All("needs nftables: supported by this kernel".to_string()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Has::Unknown(format!("needs nftables, but this process may not query it: {error}"))
        }
        Err(error) => {
            Has::Lacks(format!("needs nftables (the module nf_tables), which does not respond: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;
    use rustix::io::Errno;
    use weir_netlink::{Geneve, Vxlan};

    #[test]
    fn devices_are_supported_or_named_with_what_to_write() {
        let link = |index, name: &str, kind: &str| Link {
            index,
            name: name.into(),
            kind: kind.into(),
            ..Link::default()
        };
        let geneve = Geneve {
            vni: 42,
            port: 6081,
            remote: Some([10, 0, 1, 2].into()),
            sources: [1, u16::MAX],
            zero_checks: [false; 2],
            is_bare: false,
        };
        let external = Geneve { remote: None, ..geneve };
        let links = [
            link(1, "eth0", ""),
            link(2, "bond0", "bond"),
            Link { master: 2, ..link(3, "eth1", "") },
            link(4, "bond0.7", "vlan"),
            Link { vxlan: Some(Vxlan::default()), ..link(5, "flannel.1", "vxlan") },
            Link { geneve: Some(geneve), ..link(6, "gen0", "geneve") },
            Link { geneve: Some(external), ..link(7, "gen1", "geneve") },
            Link { geneve: Some(Geneve { is_bare: true, ..geneve }), ..link(8, "gen2", "geneve") },
            link(9, "tunl0", "ipip"),
        ];
        let of = |tunnel: &str, uplink: &str| {
            let overlay = Overlay {
                name: "pods".into(),
                tunnel: tunnel.into(),
                uplink: uplink.into(),
                bridge: Some("cni0".into()),
                pods: None,
                mark: 0xff00_0000,
                flows: 64,
                refresh_ns: None,
                policy: Policy::Strict,
                idle_ns: 30_000_000_000,
            };
            devices(&overlay, &links).map(|finding| (finding.level, finding.says))
        };
        for (tunnel, uplink, wanted) in [
            ("flannel.1", "eth0", [(Level::Ok, "a VXLAN device"), (Level::Ok, "it exists")]),
            ("gen0", "bond0", [(Level::Ok, "a Geneve device"), (Level::Ok, "a bond")]),
            ("gen1", "bond0.7", [(Level::Fault, "with `external`"), (Level::Ok, "a VLAN device")]),
            ("gen2", "eth1", [(Level::Fault, "no Ethernet frames"), (Level::Fault, "write `uplink: bond0`")]),
            (
                "tunl0",
                "eth9",
                [(Level::Fault, "neither a VXLAN nor a Geneve"), (Level::Warning, "not exist")],
            ),
        ] {
            for ((level, says), (is, contains)) in of(tunnel, uplink).into_iter().zip(wanted) {
                assert!(level == is && says.contains(contains), "{tunnel} {uplink}: {level:?} {says}");
            }
        }
    }

    #[test]
    fn a_kernel_without_nftables_is_told_from_a_missing_privilege() {
        assert!(matches!(nftables(Ok(())), Has::All(_)));
        assert!(matches!(nftables(Err(Errno::PERM.into())), Has::Unknown(_)));
        assert!(matches!(nftables(Err(Errno::INVAL.into())), Has::Lacks(_)));
    }
}
