//! `weir lab overlay`: a cache in front of a VXLAN container network, while everything that it depends on
//! changes.
//!
//! There are three nodes with two pods each, a daemon on each node, and flows between pods. Then pods move,
//! rules deny flows, neighbours change addresses, and daemons die. Each phase counts requests, and those that
//! reached a different pod than the one the slow path leads to.

mod bed;
mod frames;
mod others;
mod phases;
mod policies;
mod records;
mod six;
mod storms;
pub mod talk;
pub mod topology;

use std::process::ExitCode;

use crate::phase::{chosen, outcome};
use crate::session;
use anyhow::{Result, bail};
use bed::OverlayBed;
use phases::{MEMBER_FAILS, Perform};
use topology::{TunnelKind, Underlay, UplinkKind};
use weir_bed::namespace;

/// Programs that the lab runs.
const NEEDED: [&str; 8] = ["ip", "bridge", "nft", "iptables-nft", "tc", "ethtool", "nfcapd", "nfdump"];

/// Exists with the module `br_netfilter`, without which no rule sees traffic between pods of the same bridge.
const BRIDGED: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

/// The options of `weir lab overlay`.
#[derive(clap::Args)]
pub struct OverlayOptions {
    /// Run only phases whose names start with one of these prefixes, separated by commas.
    #[arg(long, alias = "phase", value_delimiter = ',')]
    phases: Vec<String>,
    #[command(flatten)]
    underlay: Underlay,
    #[command(flatten)]
    common: session::SessionOptions,
}

/// Returns the phases that an underlay allows: a Geneve tunnel has a single remote node, and only a bond has
/// more than one link.
fn possible(underlay: Underlay) -> Vec<(&'static str, Perform)> {
    let is_possible = |name: &str| match underlay.tunnel {
        TunnelKind::Vxlan => name != MEMBER_FAILS || underlay.uplink == UplinkKind::Bond,
        TunnelKind::Geneve => {
            phases::OF_TWO_NODES.contains(&name)
                || name == MEMBER_FAILS && underlay.uplink == UplinkKind::Bond
        }
    };
    phases::ALL.into_iter().filter(|(name, _)| is_possible(name)).collect()
}

/// Runs the lab.
pub fn run(options: &OverlayOptions) -> Result<ExitCode> {
    let chosen = chosen(&possible(options.underlay), &options.phases)?;
    session::check_means("overlay", &namespace::missing(&NEEDED), "./setup")?;
    if !std::fs::exists(BRIDGED).unwrap_or(false) {
        bail!("nftables rules do not see bridged frames here: run `modprobe br_netfilter` first");
    }
    session::run(&options.common, |interrupt, screen| {
        let mut run = options.common.begin()?;
        let tunnel = match options.underlay.tunnel {
            TunnelKind::Vxlan => "VXLAN",
            TunnelKind::Geneve => "Geneve",
        };
        let uplink = match options.underlay.uplink {
            UplinkKind::Plain => "",
            UplinkKind::Vlan => " over VLAN devices",
            UplinkKind::Bond => " over bonds",
        };
        screen.say(&format!(
            "three nodes with two pods each, {tunnel}{uplink} between nodes, a cache on each node"
        ));
        let mut bed = OverlayBed::start(&mut run, options.underlay, interrupt)?;
        let mut done = Vec::new();
        for (name, perform) in chosen {
            let phase = perform(&mut bed, &mut run, interrupt)?;
            screen.say(&phase.text(name));
            done.push(phase.json(name));
        }
        Ok(outcome(done, ["everything as expected", "not everything is as expected"]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_without_phases_does_not_succeed() {
        let plain = possible(Underlay::default());
        let error = chosen(&plain, &["no_such".into()]).expect_err("it would show nothing").to_string();
        assert!(error.contains("no phase begins with `no_such`; the phases are short_way"), "{error}");
        assert_eq!(chosen(&plain, &[]).expect("all").len(), phases::ALL.len() - 1);
    }

    #[test]
    fn an_underlay_has_the_phases_that_it_allows() {
        let of = |uplink, tunnel| possible(Underlay { uplink, tunnel });
        assert_eq!(of(UplinkKind::Bond, TunnelKind::Vxlan).len(), phases::ALL.len());
        let two = phases::OF_TWO_NODES.len();
        assert_eq!(of(UplinkKind::Vlan, TunnelKind::Geneve).len(), two);
        assert_eq!(of(UplinkKind::Bond, TunnelKind::Geneve).len(), two + 1);
    }
}
