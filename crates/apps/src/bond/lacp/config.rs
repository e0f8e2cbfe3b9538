//! What a bond's LACP is told, and what can be wrong with it.

use super::info::{Info, Port, State, System};
use std::num::NonZeroU16;
use thiserror::Error;

/// What all members of a bond share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Who we are. The lower of both ends' decides where they could disagree.
    pub system: System,
    /// Members of one key may be aggregated (802.1AX 6.3.5); one may have its own by [`Settings::key`].
    pub key: u16,
    /// Speak first? A passive end speaks only with an active one; two passive ones never do.
    pub active: bool,
    /// How often the partner is asked to send.
    pub rate: Rate,
    /// Members with a partner in sync below which none is used; 0 is as 1.
    pub min_links: u16,
    /// Which aggregator is used if partners differ.
    pub policy: Policy,
    /// Say [`super::Negotiation::Fallback`] while no member has a partner.
    pub fallback: bool,
}

impl Config {
    /// What is wrong with it.
    pub fn problem(&self) -> Option<Problem> {
        match self.system.mac {
            [0, 0, 0, 0, 0, 0] => Some(Problem::SystemZero),
            mac if mac[0] & 1 == 1 => Some(Problem::SystemGroup),
            _ => None,
        }
    }

    /// What a member says of itself before any machine has run.
    pub(super) fn actor(&self, settings: &Settings) -> Info {
        Info {
            system: self.system,
            key: settings.key.unwrap_or(self.key),
            port: Port { priority: settings.priority, number: settings.port.get() },
            state: State::AGGREGATION.with(State::ACTIVITY, self.active).with(State::TIMEOUT, self.rate == Rate::Fast),
        }
    }
}

/// What one member has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Source address of its frames.
    pub mac: [u8; 6],
    /// Its number, its own within the system. Switches refuse 0.
    pub port: NonZeroU16,
    /// Lower is preferred.
    pub priority: u16,
    /// Its key; `None`: the bond's.
    pub key: Option<u16>,
}

/// How often a partner is asked to send, and so after which silence its word is void (802.1AX 6.4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// Every second; void after 3 s.
    Fast,
    /// Every 30 seconds; void after 90 s.
    #[default]
    Slow,
}

/// Which aggregator is used, if members lead to different partners. One that works is never left for an equal one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The one that works stays as long as it does; else as `Bandwidth`.
    #[default]
    Stable,
    /// The one with the greatest sum of link speeds.
    Bandwidth,
    /// The one with the most members.
    Count,
}

/// What is wrong with a configuration.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "every variant's sentence is its documentation")]
pub enum Problem {
    #[error("an LACP system id is not 00:00:00:00:00:00: partners take that for nobody")]
    SystemZero,
    #[error("an LACP system id is a station's address, not a group's")]
    SystemGroup,
}
