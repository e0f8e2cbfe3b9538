//! The hash of receive side scaling, with a key that gives both directions of a flow the same hash.
//!
//! A NIC computes the Toeplitz hash of addresses and ports: the exclusive or of the 32 bits of its key that
//! begin at the position of each set bit. If the key repeats every 16 bits, only a bit's position modulo 16
//! matters. The hash then depends only on the exclusive or of all 16-bit words, whatever their order. (Woo
//! and Park, "Scalable TCP Session Monitoring with Symmetric Receive-side Scaling", 2012.)

use crate::FlowKey;

/// The word that the key repeats.
const WORD: u16 = 0x6d5a;

/// Bytes of the key: enough for two IPv6 addresses and two ports, and the length that most NICs accept.
pub const RSS_KEY_BYTES: usize = 40;

/// The key, for the NIC.
pub const RSS_KEY: [u8; RSS_KEY_BYTES] = {
    let mut key = [0; RSS_KEY_BYTES];
    let mut at = 0;
    while at < RSS_KEY_BYTES {
        key[at] = (WORD >> (8 * (1 - at % 2))) as u8;
        at += 1;
    }
    key
};

/// Returns the hash with which a NIC that uses [`RSS_KEY`] distributes the frames of a flow. The hash is the
/// same for both directions. It covers addresses and ports, or only addresses for a key without ports.
#[inline]
#[must_use]
pub fn rss_hash(key: &FlowKey) -> u32 {
    let [source, destination] = key.ends();
    let words = source.iter().chain(&destination).fold(0, |all, word| all ^ word);
    let folded = (words ^ words >> 32) as u32;
    let folded = (folded ^ folded >> 16) as u16;
    let hash = (0..16).fold(0, |hash, at| {
        let is_set = folded >> (15 - at) & 1;
        hash ^ WORD.rotate_left(at) & is_set.wrapping_neg()
    });
    u32::from(hash) << 16 | u32::from(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    /// The definition (Microsoft, "RSS hashing functions"): bit by bit, with any key.
    fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
        let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1 == 1;
        let window = |at: usize| (at..at + 32).fold(0, |window, at| window << 1 | u32::from(bit(key, at)));
        (0..input.len() * 8).filter(|&at| bit(input, at)).fold(0, |hash, at| hash ^ window(at))
    }

    fn input(source: IpAddr, destination: IpAddr, ports: Option<(u16, u16)>) -> Vec<u8> {
        let octets = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let mut bytes = [octets(source), octets(destination)].concat();
        if let Some((sport, dport)) = ports {
            bytes.extend([sport.to_be_bytes(), dport.to_be_bytes()].concat());
        }
        bytes
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_definition_gives_the_published_values() {
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
            0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
            0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let (source, destination) = (ip("66.9.149.187"), ip("161.142.100.80"));
        assert_eq!(toeplitz(&key, &input(source, destination, None)), 0x323e_8fc2);
        assert_eq!(toeplitz(&key, &input(source, destination, Some((2794, 1766)))), 0x51cc_c178);
    }

    #[test]
    fn the_folded_hash_is_that_of_the_definition_in_both_directions() {
        let ends =
            [("10.0.0.1", "192.0.2.77"), ("66.9.149.187", "161.142.100.80"), ("2001:db8::1", "fe80::9:7")];
        for (source, destination) in ends.map(|(source, destination)| (ip(source), ip(destination))) {
            for ports in [None, Some((2794, 1766)), Some((1, 65535)), Some((0, 80))] {
                let (sport, dport) = ports.unwrap_or_default();
                let there = FlowKey::new(source, destination, 17, (sport, dport), None);
                let back = FlowKey::new(destination, source, 17, (dport, sport), None);
                let wanted = toeplitz(&RSS_KEY, &input(source, destination, ports));
                assert_eq!([rss_hash(&there), rss_hash(&back)], [wanted; 2], "{there}");
            }
        }
    }
}
