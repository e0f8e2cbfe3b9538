//! The LACP settings of a bond, and what can be wrong with them.

use super::info::{Info, Port, State, System};
use std::num::NonZeroU16;
use thiserror::Error;

/// Settings of a bond, common to all its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Our system id. Where both ends could disagree, the choice of the end with the lower id applies.
    pub system: System,
    /// Members with the same key may be aggregated (802.1AX 6.3.5); [`Settings::key`] overrides it for one
    /// member.
    pub key: u16,
    /// Whether to send LACPDUs without having received one. A passive end answers an active one; two passive
    /// ends never communicate.
    pub active: bool,
    /// How often the partner is asked to send.
    pub rate: Rate,
    /// The minimum number of members that must be in sync with a partner for the bond to be used; 0 counts as
    /// 1.
    pub min_links: u16,
    /// Which aggregator to use if members have different partners.
    pub policy: Policy,
    /// Whether to report [`super::Negotiation::Fallback`] while no member has a partner.
    pub fallback: bool,
}

impl Config {
    /// Returns what is wrong with the configuration.
    pub fn problem(&self) -> Option<LacpProblem> {
        match self.system.mac {
            [0, 0, 0, 0, 0, 0] => Some(LacpProblem::SystemZero),
            mac if mac[0] & 1 == 1 => Some(LacpProblem::SystemGroup),
            _ => None,
        }
    }

    /// The information that a member announces before any machine has run.
    pub(super) fn actor(&self, settings: &Settings) -> Info {
        Info {
            system: self.system,
            key: settings.key.unwrap_or(self.key),
            port: Port { priority: settings.priority, number: settings.port.get() },
            state: State::AGGREGATION
                .with(State::ACTIVITY, self.active)
                .with(State::TIMEOUT, self.rate == Rate::Fast),
        }
    }
}

/// Settings of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Source address of its frames.
    pub mac: [u8; 6],
    /// Its port number, unique in the system. Switches refuse 0.
    pub port: NonZeroU16,
    /// Lower values are preferred.
    pub priority: u16,
    /// Its key; `None` means the bond's.
    pub key: Option<u16>,
}

/// How often a partner is asked to send, and hence after how much silence its information expires (802.1AX
/// 6.4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// Every second; expires after 3 s.
    Fast,
    /// Every 30 seconds; expires after 90 s.
    #[default]
    Slow,
}

/// Which aggregator to use if members have different partners. A working aggregator is never given up for an
/// equal one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The aggregator in use, as long as it works; otherwise as with `Bandwidth`.
    #[default]
    Stable,
    /// The aggregator with the largest sum of link speeds.
    Bandwidth,
    /// The aggregator with the most members.
    Count,
}

/// What can be wrong with a configuration.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "every variant's sentence is its documentation")]
pub enum LacpProblem {
    #[error("the LACP system id must not be 00:00:00:00:00:00, which means no system")]
    SystemZero,
    #[error("the LACP system id must be a station address, not a group address")]
    SystemGroup,
}
