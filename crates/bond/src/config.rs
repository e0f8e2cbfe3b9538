//! The configuration of a bond with names resolved, and what can be wrong with it.

use super::lacp;
use super::links::{self, Need, Reselect};
use super::members::Members;
use super::rebalance::Rule;
use std::net::{IpAddr, Ipv4Addr};
use thiserror::Error;
use weir_packet::KeySource;
use weir_program::{Origin, PipeId, PortId};

/// The largest number of buckets (`Fill::Given`).
pub const BUCKETS_MAX: u32 = 1 << 16;
/// The default number of buckets, as in Open vSwitch.
pub const BUCKETS: u32 = 256;
/// The largest number of members in a bond.
pub const MEMBERS_MAX: usize = 64;
/// The largest number of flows with a bucket of their own.
pub const ELEPHANTS_MAX: u32 = 64;
/// The default for the largest number of MAC addresses learnt inside.
pub const LEARNT_MAX: u32 = 1024;

/// Several ports that act as one.
#[derive(Clone, Debug, PartialEq)]
pub struct Bond {
    /// The bond's name, which is also that of the pipe that sends through the bond.
    pub name: String,
    /// How the member for a frame is chosen, and which members may receive.
    pub mode: Mode,
    /// Its ports.
    pub members: Vec<Member>,
    /// Where frames from its members go.
    pub inward: Inward,
    /// Whether frames to reserved group addresses pass between the inside and the members.
    pub forward_reserved: bool,
    /// Number of buckets, a power of two.
    pub buckets: u32,
    /// A number that is mixed into the hash that picks a bucket.
    pub basis: u64,
    /// The headers from which that hash is computed.
    pub key: KeySource,
    /// Whether to use the NIC's hash instead, if a frame has one.
    pub rss: bool,
    /// LACP settings, if the bond uses LACP.
    pub lacp: Option<lacp::Config>,
    /// Name of the preferred active member.
    pub primary: Option<String>,
    /// When the primary replaces another active member.
    pub reselect: Reselect,
    /// How long a link must work before it is used, in milliseconds.
    pub updelay_ms: u32,
    /// How long a link must fail before it is no longer used, in milliseconds.
    pub downdelay_ms: u32,
    /// Probes in addition to link state.
    pub probe: Option<Probe>,
    /// How buckets move because of load.
    pub rule: Rule,
    /// Interval of rebalancing in milliseconds; 0 means never.
    pub rebalance_ms: u32,
    /// How many flows may have a bucket of their own at a time, 0 to [`ELEPHANTS_MAX`] (`balance_tcp`,
    /// `static`). With 0, no pipes are written for this.
    pub elephants: u32,
    /// How long a bucket must be idle before a move that can wait takes place, in nanoseconds.
    pub idle_gap_ns: u64,
    /// The longest that such a move waits, in nanoseconds.
    pub idle_gap_max_ns: u64,
    /// The largest number of MAC addresses learnt inside (`balance_slb`; `active_backup` without LACP).
    pub learnt_max: u32,
    /// Addresses announced as the bond's own when the path to them changes.
    pub announce: Vec<IpAddr>,
    /// Its position in the configuration.
    pub origin: Origin,
}

/// A port of a bond.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Id of the port.
    pub port: PortId,
    /// Name of the port.
    pub name: String,
    /// Its MAC address, if known.
    pub mac: Option<[u8; 6]>,
    /// Its MTU in bytes, if known.
    pub mtu: Option<u32>,
    /// Its share relative to the other members; `None` means by link speed.
    pub weight: Option<u32>,
    /// Its LACP priority; lower values are preferred.
    pub priority: u16,
    /// Its LACP key, if it differs from the bond's.
    pub key: Option<u16>,
    /// Its position in the configuration.
    pub origin: Origin,
}

/// Probes: requests for these addresses are sent on every member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The addresses.
    pub targets: Vec<IpAddr>,
    /// Source address for IPv4; 0.0.0.0 reveals no address (RFC 5227 §1.1).
    pub source: Ipv4Addr,
    /// The VLAN in which probes are sent; `None` means untagged.
    pub vlan: Option<u16>,
    /// Interval in milliseconds.
    pub interval_ms: u32,
    /// How many unanswered probes in a row count as silence.
    pub missed_max: u32,
    /// Which of the addresses must answer.
    pub need: Need,
}

/// Where frames received by a bond go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inward {
    /// Through this port; frames received there leave through the bond.
    Port(PortId),
    /// Into this pipe.
    Pipe(PipeId),
    /// The bond does not determine this; another app on top of it may.
    Open,
}

/// How the member for a frame is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The active member carries all frames.
    ActiveBackup,
    /// By source MAC address and VLAN; the switch needs no configuration.
    BalanceSlb,
    /// By 5-tuple, with LACP.
    BalanceTcp,
    /// By 5-tuple without LACP; the switch must be configured for it.
    Static,
    /// Round robin, which reorders flows.
    RoundRobin,
    /// Through all members.
    Broadcast,
}

impl Mode {
    /// All modes and their names in configurations, ordered as they are declared.
    pub const WORDS: [(&str, Mode); 6] = [
        ("active_backup", Mode::ActiveBackup),
        ("balance_slb", Mode::BalanceSlb),
        ("balance_tcp", Mode::BalanceTcp),
        ("static", Mode::Static),
        ("round_robin", Mode::RoundRobin),
        ("broadcast", Mode::Broadcast),
    ];

    /// The name of the mode in configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Mode::WORDS[self as usize].0
    }

    /// Returns true if the 5-tuple picks the bucket.
    #[must_use]
    pub const fn hashes_flows(self) -> bool {
        matches!(self, Mode::BalanceTcp | Mode::Static)
    }

    /// Returns true if load is balanced by moving buckets.
    #[must_use]
    pub const fn is_balanced(self) -> bool {
        matches!(self, Mode::BalanceSlb | Mode::BalanceTcp | Mode::Static)
    }
}

impl Bond {
    /// Returns true if the bond tracks which MAC addresses are inside. A switch that is not configured for
    /// the bond must learn the member that now leads to them.
    #[must_use]
    pub fn learns(&self) -> bool {
        matches!(self.inward, Inward::Port(_))
            && match self.mode {
                Mode::BalanceSlb => true,
                Mode::ActiveBackup => self.lacp.as_ref().is_none_or(|lacp| lacp.fallback),
                Mode::BalanceTcp => self.lacp.as_ref().is_some_and(|lacp| lacp.fallback),
                Mode::Static | Mode::RoundRobin | Mode::Broadcast => false,
            }
    }

    /// Returns the address of its own frames, which is also that of its LACP system unless configured: its
    /// first member's, or one derived from its name (locally administered).
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.members.iter().find_map(|member| member.mac).unwrap_or_else(|| made_of(&self.name))
    }

    /// Returns the address from which a member sends probes, and to which answers must be sent.
    #[must_use]
    pub fn asks_as(&self, member: &Member) -> [u8; 6] {
        member.mac.unwrap_or_else(|| self.mac())
    }

    /// Returns the settings that determine which of the bond's links are used.
    pub(super) fn link_policy(&self, members: &Members) -> links::LinkPolicy {
        let probe = |probe: &Probe| links::Probe {
            interval_ms: probe.interval_ms,
            missed_max: probe.missed_max,
            targets: probe.targets.len() as u8,
            need: probe.need,
            validate: true,
        };
        links::LinkPolicy {
            updelay_ms: self.updelay_ms,
            downdelay_ms: self.downdelay_ms,
            primary: self.primary.as_ref().and_then(|name| members.id(name)),
            reselect: self.reselect,
            probe: self.probe.as_ref().map(probe),
        }
    }

    fn problems(&self, add: &mut impl FnMut(Origin, ConfigProblem)) {
        let name = || self.name.clone();
        if self.members.is_empty() {
            add(self.origin, ConfigProblem::NoMembers { name: name() });
        } else if self.members.iter().all(|member| member.weight == Some(0)) {
            add(self.origin, ConfigProblem::NoWeight { name: name() });
        }
        if self.members.len() > MEMBERS_MAX {
            add(self.origin, ConfigProblem::TooManyMembers { name: name() });
        }
        if !self.buckets.is_power_of_two() || (self.buckets as usize) < self.members.len() {
            add(self.origin, ConfigProblem::Buckets { buckets: self.buckets, members: self.members.len() });
        }
        if self.mode == Mode::BalanceTcp && self.lacp.is_none() {
            add(self.origin, ConfigProblem::NeedsLacp { name: name() });
        }
        if matches!(self.mode, Mode::Static | Mode::RoundRobin | Mode::Broadcast | Mode::BalanceSlb)
            && self.lacp.is_some()
        {
            add(self.origin, ConfigProblem::NoLacp { mode: self.mode.name() });
        }
        if self.elephants > ELEPHANTS_MAX {
            add(self.origin, ConfigProblem::TooManyElephants { elephants: self.elephants });
        }
        if self.elephants > 0 && !self.mode.hashes_flows() {
            add(self.origin, ConfigProblem::NoElephants { mode: self.mode.name() });
        } else if self.elephants > 0 && self.rebalance_ms == 0 {
            add(self.origin, ConfigProblem::ElephantsNever { name: name() });
        } else if self.elephants > 0 && self.rss {
            add(self.origin, ConfigProblem::ElephantsByRss { name: name() });
        }
        if self.rss && !self.mode.hashes_flows() {
            add(self.origin, ConfigProblem::NoRss { mode: self.mode.name() });
        }
        let primary = |name: &&String| self.members.iter().all(|member| member.name != **name);
        if let Some(primary) = self.primary.as_ref().filter(primary) {
            add(self.origin, ConfigProblem::Primary { primary: primary.clone() });
        }
        if let Some(problem) = self.lacp.as_ref().and_then(lacp::Config::problem) {
            add(self.origin, ConfigProblem::Lacp(problem));
        }
        self.members_alike(add);
    }

    fn members_alike(&self, add: &mut impl FnMut(Origin, ConfigProblem)) {
        for (at, member) in self.members.iter().enumerate() {
            if self.members[..at].iter().any(|other| other.port == member.port) {
                add(
                    member.origin,
                    ConfigProblem::MemberTwice { member: member.name.clone(), bond: self.name.clone() },
                );
            }
            if self.inward == Inward::Port(member.port) {
                add(member.origin, ConfigProblem::InsideIsMember { member: member.name.clone() });
            }
        }
        let mut known = self.members.iter().filter_map(|member| member.mtu.map(|mtu| (member, mtu)));
        let Some((first, mtu)) = known.next() else { return };
        if let Some((other, its)) = known.find(|(_, its)| *its != mtu) {
            let (first, second) = (first.name.clone(), other.name.clone());
            add(other.origin, ConfigProblem::MixedMtu { first, mtu, second, its });
        }
    }
}

/// Derives a locally administered address from a name (FNV-1a).
fn made_of(name: &str) -> [u8; 6] {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [_, _, _, a, b, c, d, e] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}

/// What is wrong with a bond.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "every variant's sentence is its documentation, its fields are what the sentence names"
)]
pub enum ConfigProblem {
    #[error("bond `{name}` has no members")]
    NoMembers { name: String },
    #[error("bond `{name}` has more than {MEMBERS_MAX} members")]
    TooManyMembers { name: String },
    #[error("all members of bond `{name}` have weight 0: it cannot send anything")]
    NoWeight { name: String },
    #[error(
        "port `{member}` is already a member of bond `{bond}`: a port can be a member of only one bond, \
        and only once"
    )]
    MemberTwice { member: String, bond: String },
    #[error("port `{member}` is a member, so it cannot also be `inside`")]
    InsideIsMember { member: String },
    #[error(
        "{buckets} buckets for {members} members: write a power of two, with at least one bucket per \
        member"
    )]
    Buckets { buckets: u32, members: usize },
    #[error("bond `{name}` needs `lacp`; for a switch without LACP, use `mode: static`")]
    NeedsLacp { name: String },
    #[error("`mode: {mode}` does not use LACP: only `active_backup` and `balance_tcp` can")]
    NoLacp { mode: &'static str },
    #[error("{elephants} elephants: at most {ELEPHANTS_MAX} flows can have their own bucket")]
    TooManyElephants { elephants: u32 },
    #[error("`mode: {mode}` cannot pin elephants: only `balance_tcp` and `static` balance by flow")]
    NoElephants { mode: &'static str },
    #[error("bond `{name}` looks for elephants when it rebalances, but it never does: write an `interval`")]
    ElephantsNever { name: String },
    #[error("bond `{name}` cannot find elephants with `hash: rss`: only the NIC knows a flow's bucket")]
    ElephantsByRss { name: String },
    #[error(
        "`hash: rss` has no effect in `mode: {mode}`, which does not hash the 5-tuple: use `balance_tcp` or \
         `static`"
    )]
    NoRss { mode: &'static str },
    #[error("`primary: {primary}` is not a member")]
    Primary { primary: String },
    #[error("{0}")]
    Lacp(lacp::LacpProblem),
    #[error(
        "`{first}` has MTU {mtu} but `{second}` has {its}: all members of a bond must carry the same frames"
    )]
    MixedMtu { first: String, mtu: u32, second: String, its: u32 },
}

/// Returns everything wrong with the bonds of a configuration.
#[must_use]
pub fn problems(bonds: &[Bond]) -> Vec<(Origin, ConfigProblem)> {
    let mut list = Vec::new();
    for (at, bond) in bonds.iter().enumerate() {
        bond.problems(&mut |origin, problem| list.push((origin, problem)));
        for member in &bond.members {
            let owner =
                bonds[..at].iter().find(|other| other.members.iter().any(|one| one.port == member.port));
            if let Some(owner) = owner {
                let problem =
                    ConfigProblem::MemberTwice { member: member.name.clone(), bond: owner.name.clone() };
                list.push((member.origin, problem));
            }
        }
    }
    list
}
