//! What an interface takes from the kernel: the rules of its port, and those of the apps.

use super::{LeaveRule, Plan, PortKind, Take, Xdp};
use ::config::{Frames, IpRule};
use engine::program::PortId;
use std::collections::HashSet;

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

    /// Returns what the interface of a port takes; nothing if the port has none. The host's addresses are not
    /// known here.
    #[must_use]
    pub fn frames(&self, port: PortId) -> bpf::Take {
        let Some(PortKind::Xdp(xdp)) = self.ports.get(port.index()).map(|port| &port.kind) else {
            return bpf::Take::default();
        };
        let promiscuous = xdp.promisc || self.bridges(port);
        let leave = xdp.leave.iter().map(left).collect();
        let rules: Vec<bpf::TakeRule> = match self.take(port) {
            None => {
                // The NIC must let questions through whatever is taken of what it lets through.
                let asked = self.apps.take(port).into_iter().filter(|one| matches!(one, Frames::Asked(_)));
                bpf::Take::all().rules.into_iter().chain(asked.map(|one| rule(&one))).collect()
            }
            Some(rules) => rules.iter().map(rule).collect(),
        };
        bpf::Take { promiscuous, leave, rules, ..bpf::Take::default() }
    }
}

fn left(rule: &LeaveRule) -> bpf::TakeRule {
    bpf::TakeRule {
        ethertype: rule.ethertype,
        protocol: rule.protocol,
        destination: rule.dst.map(|(address, length)| bpf::Prefix { address, length }),
        dport: rule.dport.map(ports),
        ..bpf::TakeRule::default()
    }
}

fn rule(frames: &Frames) -> bpf::TakeRule {
    match *frames {
        Frames::All => bpf::TakeRule::default(),
        Frames::Group(ethertype) => {
            bpf::TakeRule { ethertype: Some(ethertype), group: true, ..bpf::TakeRule::default() }
        }
        Frames::Own(ethertype) => bpf::TakeRule { ethertype: Some(ethertype), ..bpf::TakeRule::default() },
        Frames::From(source) => bpf::TakeRule { source: Some(source.into()), ..bpf::TakeRule::default() },
        Frames::Asked(address) => {
            bpf::TakeRule { asked: Some(address), group: true, ..bpf::TakeRule::default() }
        }
        Frames::Ip(IpRule { dst, prefix, protocol, dport, fragments }) => bpf::TakeRule {
            protocol,
            destination: Some(bpf::Prefix { address: dst, length: prefix }),
            dport: dport.map(ports),
            fragments: if fragments { bpf::Fragments::Alone } else { bpf::Fragments::No },
            ..bpf::TakeRule::default()
        },
        Frames::Errors(IpRule { dst, prefix, protocol, dport, .. }) => bpf::TakeRule {
            protocol,
            destination: Some(bpf::Prefix { address: dst, length: prefix }),
            dport: dport.map(ports),
            errors: true,
            ..bpf::TakeRule::default()
        },
    }
}

fn ports((first, last): (u16, u16)) -> bpf::Ports {
    bpf::Ports { first, last }
}
