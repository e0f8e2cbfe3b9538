//! Servers by the server IDs in QUIC connection IDs (draft-ietf-quic-load-balancers-21): how IDs are encoded,
//! and which target of a group each one identifies.
//!
//! Server IDs are looked up where a HASH pipe says `hash: quic` (pipes.md M29). [`weir_packet::quic_lb`]
//! decodes them; the interpreter has its own decoder (`oracle/src/quic.rs`).

use crate::Group;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
pub use weir_packet::quic_lb::ServerId;
use weir_packet::quic_lb::{QuicLb, QuicLbConfig, QuicLbError, UNROUTABLE};
use weir_table::NO_TARGET;

/// A configuration of the draft (§3): how server IDs are encoded in connection IDs whose first three bits
/// are its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuicConfig {
    /// The configuration's number, 0 to 6.
    pub id: u8,
    /// Octets of a server ID, 1 to 15.
    pub server_id: u8,
    /// Octets of a nonce, 4 to 18; together with the server ID at most 19.
    pub nonce: u8,
    /// The AES-128 key; without one, server IDs are in plaintext.
    pub key: Option<[u8; 16]>,
}

impl fmt::Debug for QuicConfig {
    /// Does not print the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.key.is_some() { "encrypted" } else { "plain" };
        write!(f, "QuicConfig({}, {kind}, {} + {} octets)", self.id, self.server_id, self.nonce)
    }
}

impl QuicConfig {
    /// Returns a decoder for the configuration.
    ///
    /// # Errors
    /// The draft does not allow these lengths.
    pub fn decoder(&self) -> Result<QuicLbConfig, QuicLbError> {
        QuicLbConfig::new(self.server_id.into(), self.nonce.into(), self.key)
    }

    /// Whether the configuration's number is valid.
    #[must_use]
    pub fn has_number(&self) -> bool {
        self.id < UNROUTABLE
    }
}

/// The targets of a group by their server IDs.
#[derive(Clone, Debug)]
pub struct QuicServers {
    configs: Arc<[QuicConfig]>,
    decoder: QuicLb,
    targets: HashMap<ServerId, u16>,
}

impl PartialEq for QuicServers {
    fn eq(&self, other: &QuicServers) -> bool {
        (&self.configs, &self.targets) == (&other.configs, &other.targets)
    }
}

impl Eq for QuicServers {}

impl QuicServers {
    /// Returns the servers of a group, if it has any. The check has already refused invalid configurations.
    #[must_use]
    pub fn of(group: &Group) -> Option<Arc<QuicServers>> {
        let configs = Arc::clone(group.quic.as_ref()?);
        let mut decoder = QuicLb::default();
        for config in &*configs {
            let _ = decoder.set(config.id, config.decoder().ok());
        }
        let targets = (0..).zip(&*group.targets).filter_map(|(at, target)| Some((target.server_id?, at)));
        Some(Arc::new(QuicServers { configs, decoder, targets: targets.collect() }))
    }

    /// Returns the target whose server ID is in a QUIC packet, which is the payload of a UDP datagram, or
    /// [`NO_TARGET`].
    #[inline]
    #[must_use]
    pub fn target(&self, packet: &[u8]) -> u16 {
        let id = self.decoder.route(packet).ok();
        id.and_then(|id| self.targets.get(&id)).copied().unwrap_or(NO_TARGET)
    }
}
