//! The GLB director's forwarding table, and the hash with which a flow finds its row, both compatible bit for
//! bit: a node of weir sends each flow to the same two back ends, in the same order, as a director with the
//! same table.
//!
//! The table has [`ROWS`] rows. Each row orders the back ends by rendezvous hashing, and holds the first two:
//! packets go to the first, which passes packets that it does not know on to the second ("second chance"). A
//! back end that drains or is down changes places with the second one of the row.
//!
//! Written from the published design (github.com/github/glb-director/docs/development/glb-hashing.md), and
//! checked by the results of the director's own tests and by a second implementation in another language
//! (tests/vectors).

use crate::NO_TARGET;
use crate::bucket::TARGETS_MAX;
use crate::published::siphash24;
use std::net::IpAddr;
use weir_packet::FlowKey;

/// The number of rows of a table.
pub const ROWS: usize = 65_536;

/// A back end, as the director sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlbTarget {
    /// The back end's address, from which its place in each row is computed.
    pub address: IpAddr,
    /// The state that operators want for the back end.
    pub state: GlbState,
    /// Whether the back end's checks succeed.
    pub healthy: bool,
}

/// The states that operators can give a back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GlbState {
    /// Gets packets of new and existing flows.
    #[default]
    Active,
    /// Serves, and was added recently.
    Filling,
    /// Gets no new flows.
    Draining,
    /// Behaves as if it did not exist.
    Inactive,
}

/// A row: positions of back ends, or [`NO_TARGET`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlbRow {
    /// The position of the back end to which packets of the row go.
    pub first: u16,
    /// The position of the back end to which the first one forwards packets of connections that it does not
    /// know.
    pub second: u16,
}

/// Fills the table of the back ends of one service with its `seed`. Back ends beyond 65535 get no row.
#[must_use]
pub fn fill_glb(targets: &[GlbTarget], seed: [u8; 16]) -> Vec<GlbRow> {
    (0..ROWS as u32).map(|row| glb_row(targets, seed, row)).collect()
}

/// Fills one row of the table that [`fill_glb`] fills.
#[must_use]
pub fn glb_row(targets: &[GlbTarget], seed: [u8; 16], row: u32) -> GlbRow {
    let there = |(_, target): &(u16, &GlbTarget)| target.state != GlbState::Inactive;
    let row_seed = siphash24(seed, &row.to_be_bytes());
    let mut least: [Option<(u64, u16, &GlbTarget)>; 2] = [None; 2];
    for (at, target) in (0..=u16::MAX).zip(targets.iter().take(TARGETS_MAX)).filter(there) {
        let rank = (rank(seed, row_seed, target.address), at, target);
        let before = |other: Option<(u64, u16, &GlbTarget)>| other.is_none_or(|other| rank.0 < other.0);
        if before(least[0]) {
            least = [Some(rank), least[0]];
        } else if before(least[1]) {
            least[1] = Some(rank);
        }
    }
    let number = |ranked: Option<(u64, u16, &GlbTarget)>| ranked.map_or(NO_TARGET, |(_, at, _)| at);
    let (first, second) = (number(least[0]), number(least[1]));
    let [Some((.., primary)), Some((.., secondary))] = least else { return GlbRow { first, second } };
    let bad = primary.state == GlbState::Draining || !primary.healthy;
    // The director asks whether the second is active, not whether it is healthy.
    if bad && secondary.state == GlbState::Active {
        return GlbRow { first: second, second: first };
    }
    GlbRow { first, second }
}

/// Returns the key that determines the order of back ends in a row. The director compares the hash's bytes as
/// they are stored, so the first byte is the most significant.
fn rank(seed: [u8; 16], row_seed: u64, address: IpAddr) -> u64 {
    let mut message = [0; 24];
    message[..8].copy_from_slice(&row_seed.to_le_bytes());
    let length = match address {
        IpAddr::V4(address) => {
            message[8..12].copy_from_slice(&address.octets());
            12
        }
        IpAddr::V6(address) => {
            message[8..].copy_from_slice(&address.octets());
            24
        }
    };
    siphash24(seed, &message[..length]).swap_bytes()
}

/// The inputs that determine the row of a flow: a key that the fleet shares, and fields, in the order of the
/// constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GlbHash {
    /// The forwarding table's `hash_key`: the key of SipHash-2-4, 16 bytes in the order in which they are
    /// written.
    pub key: [u8; 16],
    /// The director's `hash_fields`, as a set of bits.
    pub fields: u8,
}

impl GlbHash {
    /// The bit of the source address, the only field that a director uses unless configured otherwise.
    pub const SOURCE: u8 = 1;
    /// The bit of the destination address.
    pub const DESTINATION: u8 = 2;
    /// The bit of the source port.
    pub const SOURCE_PORT: u8 = 4;
    /// The bit of the destination port.
    pub const DESTINATION_PORT: u8 = 8;

    /// Returns the hash of a flow.
    #[must_use]
    pub fn hash(&self, flow: &FlowKey) -> u64 {
        let mut message = [0; 36];
        let mut length = 0;
        let mut add = |field: u8, bytes: &[u8]| {
            if self.fields & field != 0 {
                message[length..length + bytes.len()].copy_from_slice(bytes);
                length += bytes.len();
            }
        };
        for (field, address) in [(GlbHash::SOURCE, flow.src()), (GlbHash::DESTINATION, flow.dst())] {
            match address {
                IpAddr::V4(address) => add(field, &address.octets()),
                IpAddr::V6(address) => add(field, &address.octets()),
            }
        }
        add(GlbHash::SOURCE_PORT, &flow.sport().to_be_bytes());
        add(GlbHash::DESTINATION_PORT, &flow.dport().to_be_bytes());
        siphash24(self.key, &message[..length])
    }

    /// Returns the row of a flow.
    #[must_use]
    pub fn row(&self, flow: &FlowKey) -> usize {
        (self.hash(flow) & 0xFFFF) as usize
    }

    /// Returns the UDP source port of the packets that a director sends for a flow.
    #[must_use]
    pub fn outer_port(&self, flow: &FlowKey) -> u16 {
        0x8000 | ((self.hash(flow) as u16 ^ flow.sport()) & 0x7FFF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> [u8; 16] {
        u128::from_str_radix(hex, 16).unwrap().to_be_bytes()
    }

    fn targets(addresses: &[&str]) -> Vec<GlbTarget> {
        let target = |address: &&str| GlbTarget {
            address: address.parse().unwrap(),
            state: GlbState::Active,
            healthy: true,
        };
        addresses.iter().map(target).collect()
    }

    fn pair(first: u16, second: u16) -> GlbRow {
        GlbRow { first, second }
    }

    /// The values that test_rendezvous_table.py of glb-director expects: seeds of rows, hashes and orders.
    #[test]
    fn rows_are_those_of_the_directors_tests() {
        let seed = bytes("49a3d861d661ae5ab06ed9326871a2f5");
        let row_seed = |row: u32| siphash24(seed, &row.to_be_bytes());
        assert_eq!(row_seed(0).to_le_bytes(), 0x491c_53a7_2df4_c837_u64.to_be_bytes());
        assert_eq!(row_seed(0xffff).to_le_bytes(), 0xf223_c0cc_6516_1620_u64.to_be_bytes());
        let hosts = targets(&["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]);
        let ranks =
            [0xe471_27dd_8fe0_77de, 0x8b1d_dec5_575c_8634, 0x7054_25e3_e522_989b, 0x6f02_2ce1_ea60_7e16];
        assert_eq!([0, 1, 2, 3].map(|at: usize| rank(seed, row_seed(0), hosts[at].address)), ranks);
        let table = fill_glb(&hosts, seed);
        assert_eq!([table[0], table[0xffff], table[0xbb44]], [pair(3, 2), pair(0, 1), pair(3, 0)]);
    }

    /// The results that test_director_hash_fields.py of glb-director expects for packets.
    #[test]
    fn packets_go_where_the_directors_tests_expect_them() {
        let table =
            fill_glb(&targets(&["1.2.3.4", "2.3.4.5", "3.4.5.6"]), bytes("34567890123456783456789012345678"));
        let key = bytes("12345678901234561234567890123456");
        let row = |fields, sport| {
            let (source, vip) = ([10, 11, 12, 13].into(), [1, 1, 1, 1].into());
            table[GlbHash { key, fields }.row(&FlowKey::new(source, vip, 6, (sport, 80), None))]
        };
        let ports = [45678, 45679, 45680];
        assert_eq!(ports.map(|port| row(GlbHash::SOURCE, port)), [pair(2, 1); 3]);
        let both = GlbHash::SOURCE | GlbHash::SOURCE_PORT;
        assert_eq!(ports.map(|port| row(both, port)), [pair(0, 1), pair(0, 2), pair(1, 2)]);
    }

    #[test]
    fn a_back_end_that_drains_or_is_down_is_second_where_it_was_first() {
        let mut hosts = targets(&["1.1.1.1", "1.1.1.2", "fd00::3"]);
        let before = fill_glb(&hosts, [7; 16]);
        let turned = |row: &GlbRow| if row.first == 1 { pair(row.second, 1) } else { *row };
        hosts[1].state = GlbState::Draining;
        let drained = fill_glb(&hosts, [7; 16]);
        assert_eq!(drained, before.iter().map(turned).collect::<Vec<_>>());
        hosts[1] = GlbTarget { state: GlbState::Filling, healthy: false, ..hosts[1] };
        assert_eq!(fill_glb(&hosts, [7; 16]), drained);
        hosts[1].state = GlbState::Inactive;
        let without = fill_glb(&hosts, [7; 16]);
        let same = |(now, was): (&GlbRow, &GlbRow)| now.first == was.first;
        assert!(without.iter().zip(&drained).all(same), "the second choice is now first");
        assert!(without.iter().all(|row| row.first != 1 && row.second != 1));
    }

    #[test]
    fn one_back_end_has_no_second_and_none_is_no_target() {
        assert_eq!(fill_glb(&targets(&["1.1.1.1"]), [0; 16])[9], pair(0, NO_TARGET));
        assert_eq!(fill_glb(&[], [0; 16])[9], pair(NO_TARGET, NO_TARGET));
    }

    #[test]
    fn the_outer_port_is_high_and_follows_row_and_source_port() {
        let hash = GlbHash { key: [1; 16], fields: GlbHash::SOURCE };
        let port = |sport| {
            let flow = FlowKey::new([9, 9, 9, 9].into(), [1, 1, 1, 1].into(), 6, (sport, 80), None);
            hash.outer_port(&flow)
        };
        assert!(port(0) & 0x8000 != 0 && port(0) ^ port(0x1234) == 0x1234);
    }
}
