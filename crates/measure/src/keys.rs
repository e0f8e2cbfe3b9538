//! Derives from a flow's key the keys that its packets are counted by.

use crate::queries::tops;
use crate::settings::Settings;
use weir_packet::FlowKey;
use weir_sketch::{Evicted, Item, KeyHash, KeyKind, Projection, Seed};

/// Places in the table of queries.
pub(crate) const FLOWS: usize = 0;
pub(crate) const SOURCES: usize = 1;
pub(crate) const DESTINATIONS: usize = 2;

/// Projections and the hash of their keys. Packets are added up by 5-tuples (of truncated addresses); a flow
/// is a projection of these.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) hash: KeyHash,
    /// The projections by the place of their list: the one at [`FLOWS`] defines what a flow is, according to
    /// the settings.
    pub(crate) tops: Vec<Projection>,
    tuple: Projection,
    pair: Projection,
    /// Whether keys are used unchanged, because the settings neither truncate addresses nor omit tunnels.
    is_whole: bool,
}

impl Keys {
    pub(crate) fn new(settings: &Settings, seed: &Seed) -> Keys {
        let mut tops: Vec<Projection> = tops().map(|(.., top)| settings.projection(top.kind)).collect();
        tops[FLOWS] = settings.projection(settings.flow);
        Keys {
            hash: KeyHash::new(seed),
            tops,
            tuple: settings.projection(KeyKind::FiveTuple),
            pair: settings.projection(KeyKind::Pair),
            is_whole: settings.prefixes == (32, 128) && settings.tunnels_apart,
        }
    }

    /// The 5-tuple under which packets of a flow are added up.
    #[inline(always)]
    pub(crate) fn tuple(&self, key: &FlowKey) -> [u64; 5] {
        if self.is_whole { key.0 } else { self.tuple.of(key) }
    }

    /// The key of one kind for a 5-tuple, by place.
    #[inline(always)]
    pub(crate) fn of(&self, place: usize, tuple: &[u64; 5]) -> [u64; 5] {
        self.tops[place].of(&FlowKey(*tuple))
    }

    /// Source and destination.
    #[inline(always)]
    pub(crate) fn pair(&self, tuple: &[u64; 5]) -> [u64; 5] {
        self.pair.of(&FlowKey(*tuple))
    }

    /// The item of one kind, by place. A 5-tuple is used directly, with its existing hash.
    #[inline(always)]
    pub(crate) fn item(&self, place: usize, evicted: &Evicted<5>) -> Item<5> {
        if place == FLOWS && self.tops[FLOWS].kind() == KeyKind::FiveTuple {
            return evicted.item;
        }
        self.hash.item(self.of(place, &evicted.item.key))
    }

    /// Returns the source and destination of a key for this place, where the key has the whole address.
    pub(crate) fn addresses(&self, place: usize, key: &[u64; 5]) -> [Option<std::net::IpAddr>; 2] {
        self.tops[place].addresses(key)
    }

    /// Formats a key for humans.
    pub(crate) fn text(&self, place: usize, key: &[u64; 5]) -> String {
        self.tops[place].text(key)
    }
}
