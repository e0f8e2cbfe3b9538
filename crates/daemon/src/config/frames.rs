//! The frames that a port takes from the kernel at its interface: those of its own rules, and those of the
//! apps.

use super::{LeaveRule, Plan, PortKind, Take, Xdp};
use std::collections::HashSet;
use weir_config::{Frames, IpRule};
use weir_program::PortId;

impl Plan {
    /// Returns the rules of a port, from its own configuration and from apps. `None` means all frames.
    #[must_use]
    pub fn take(&self, port: PortId) -> Option<Vec<Frames>> {
        let PortKind::Xdp(Xdp { take: Take::Rules(own), .. }) = &self.ports.get(port.index())?.kind else {
            return None;
        };
        let all = self.apps.take(port).into_iter().chain(own.iter().map(|rule| rule.frames));
        let mut seen = HashSet::new();
        let all: Vec<Frames> = all.filter(|frames| seen.insert(*frames)).collect();
        (!seen.contains(&Frames::All)).then_some(all)
    }

    /// Returns the rules for the interface of a port; there are none if the port has no interface. The host's
    /// addresses are not known here.
    #[must_use]
    pub fn frames(&self, port: PortId) -> weir_bpf::Take {
        let Some(PortKind::Xdp(xdp)) = self.ports.get(port.index()).map(|port| &port.kind) else {
            return weir_bpf::Take::default();
        };
        let promiscuous = xdp.promisc || self.bridges(port);
        let leave = xdp.leave.iter().map(left).collect();
        let rules: Vec<weir_bpf::TakeRule> = match self.take(port) {
            None => {
                // The NIC must let solicitations through, whichever of them are taken afterwards.
                let asked = self.apps.take(port).into_iter().filter(|one| matches!(one, Frames::Asked(_)));
                weir_bpf::Take::all().rules.into_iter().chain(asked.map(|one| rule(&one))).collect()
            }
            Some(rules) => rules.iter().map(rule).collect(),
        };
        weir_bpf::Take { promiscuous, leave, rules, ..weir_bpf::Take::default() }
    }
}

fn left(rule: &LeaveRule) -> weir_bpf::TakeRule {
    weir_bpf::TakeRule {
        ethertype: rule.ethertype,
        protocol: rule.protocol,
        destination: rule.dst.map(|(address, length)| weir_bpf::Prefix { address, length }),
        dport: rule.dport.map(ports),
        ..weir_bpf::TakeRule::default()
    }
}

fn rule(frames: &Frames) -> weir_bpf::TakeRule {
    match *frames {
        Frames::All => weir_bpf::TakeRule::default(),
        Frames::Group(ethertype) => {
            weir_bpf::TakeRule { ethertype: Some(ethertype), group: true, ..weir_bpf::TakeRule::default() }
        }
        Frames::Own(ethertype) => {
            weir_bpf::TakeRule { ethertype: Some(ethertype), ..weir_bpf::TakeRule::default() }
        }
        Frames::From(source) => {
            weir_bpf::TakeRule { source: Some(source.into()), ..weir_bpf::TakeRule::default() }
        }
        Frames::Asked(address) => {
            weir_bpf::TakeRule { asked: Some(address), group: true, ..weir_bpf::TakeRule::default() }
        }
        Frames::Ip(IpRule { dst, prefix, protocol, dport, fragments }) => weir_bpf::TakeRule {
            protocol,
            destination: Some(weir_bpf::Prefix { address: dst, length: prefix }),
            dport: dport.map(ports),
            fragments: if fragments { weir_bpf::Fragments::Alone } else { weir_bpf::Fragments::No },
            ..weir_bpf::TakeRule::default()
        },
        Frames::Errors(IpRule { dst, prefix, protocol, dport, .. }) => weir_bpf::TakeRule {
            protocol,
            destination: Some(weir_bpf::Prefix { address: dst, length: prefix }),
            dport: dport.map(ports),
            errors: true,
            ..weir_bpf::TakeRule::default()
        },
    }
}

fn ports((first, last): (u16, u16)) -> weir_bpf::Ports {
    weir_bpf::Ports { first, last }
}
