//! The interpreter's own decoding of server IDs in QUIC connection IDs: RFC 8999 for the headers,
//! draft-ietf-quic-load-balancers-21 §3 and §5 for the connection ID, FIPS 197 for AES. It undoes all four
//! passes, one nibble at a time.

use super::bytes::{TransportKind, number16};
use super::packet::Packet;
use std::sync::LazyLock;
use weir_program::quic::QuicConfig;

/// Returns the payload of the outer UDP datagram of a packet.
pub(super) fn payload(packet: &Packet) -> Option<&[u8]> {
    let transport = packet.headers.transport.filter(|one| one.kind == TransportKind::Udp)?;
    let length = usize::from(number16(&packet.bytes, transport.start + 4)?);
    packet.bytes.get(transport.start + 8..transport.start + length)
}

/// Returns the receiver's connection ID; for a short header, the longest possible one.
fn connection_id(packet: &[u8]) -> Option<&[u8]> {
    let (first, rest) = packet.split_first()?;
    if first & 0x80 == 0 {
        return Some(&rest[..rest.len().min(20)]);
    }
    // The version has four bytes.
    let length = usize::from(*rest.get(4)?);
    if length > 20 {
        return None;
    }
    rest.get(5..5 + length)
}

/// Returns the server ID in a QUIC packet.
pub(super) fn server_id(configs: &[QuicConfig], packet: &[u8]) -> Option<Vec<u8>> {
    let id = connection_id(packet)?;
    let config = configs.iter().find(|config| config.id == id.first().copied().unwrap_or(0xff) >> 5)?;
    let (server, nonce) = (usize::from(config.server_id), usize::from(config.nonce));
    let text = id.get(1..1 + server + nonce)?;
    let plain = match config.key {
        None => text.to_vec(),
        Some(key) if text.len() == 16 => Aes::new(key).decrypt(text),
        Some(key) => four_passes(&Aes::new(key), text),
    };
    Some(plain[..server].to_vec())
}

/// The nibbles of some bytes.
fn digits(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect()
}

/// Joins nibbles into bytes.
fn joined(digits: &[u8]) -> Vec<u8> {
    digits.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or(0)).collect()
}

/// Undoes the passes from last to first. Each half has as many nibbles as there are bytes.
fn four_passes(aes: &Aes, text: &[u8]) -> Vec<u8> {
    let all = digits(text);
    let (mut left, mut right) = (all[..text.len()].to_vec(), all[text.len()..].to_vec());
    for pass in (1..=4).rev() {
        let of_left = pass % 2 == 1;
        let (from, to) = if of_left { (&left, &mut right) } else { (&right, &mut left) };
        // If a half is not a whole number of bytes, the left one lacks a nibble at its end, the right one at
        // its beginning.
        let odd = text.len() % 2 == 1;
        let zero = |here: bool| if odd && here { vec![0] } else { Vec::new() };
        let half = [zero(!of_left), from.clone(), zero(of_left)].concat();
        let mut block = joined(&half);
        block.resize(14, 0);
        block.extend([text.len() as u8, pass]);
        let mask = digits(&aes.encrypt(&block));
        let skipped = usize::from(odd && of_left);
        to.iter_mut().zip(&mask[skipped..]).for_each(|(digit, mask)| *digit ^= mask);
    }
    joined(&[left, right].concat())
}

/// Multiplies in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1.
fn times(mut one: u8, mut other: u8) -> u8 {
    let mut product = 0;
    while other != 0 {
        if other & 1 == 1 {
            product ^= one;
        }
        one = one << 1 ^ if one & 0x80 == 0 { 0 } else { 0x1b };
        other >>= 1;
    }
    product
}

/// The S-box: the inverse of each byte, followed by an affine transformation.
static S_BOX: LazyLock<[u8; 256]> = LazyLock::new(|| {
    let inverse = |byte: u8| (0..=255).find(|&other| times(byte, other) == 1).unwrap_or(0);
    let affine = |byte: u8| (0..5).fold(0x63, |sum, turn| sum ^ byte.rotate_left(turn));
    std::array::from_fn(|byte| affine(inverse(byte as u8)))
});

/// AES-128, column by column.
struct Aes {
    /// Eleven round keys.
    keys: Vec<[u8; 16]>,
}

impl Aes {
    fn new(key: [u8; 16]) -> Aes {
        let (mut keys, mut constant) = (vec![key], 1);
        for round in 0..10 {
            let before: [u8; 16] = keys[round];
            let mut next = before;
            for at in 0..16 {
                let above = match at {
                    0..4 => S_BOX[usize::from(before[12 + (at + 1) % 4])],
                    _ => next[at - 4],
                };
                next[at] ^= above;
            }
            next[0] ^= constant;
            // The constant is added to the first column, and thereby to those derived from it.
            (1..4).for_each(|column| next[4 * column] ^= constant);
            constant = times(constant, 2);
            keys.push(next);
        }
        Aes { keys }
    }

    fn encrypt(&self, block: &[u8]) -> Vec<u8> {
        let mut state = block.to_vec();
        add(&mut state, &self.keys[0]);
        for round in 1..=10 {
            state.iter_mut().for_each(|byte| *byte = S_BOX[usize::from(*byte)]);
            // Row r is rotated by r columns.
            state = (0..16).map(|at| state[(at + 4 * (at % 4)) % 16]).collect();
            if round < 10 {
                mix(&mut state, [2, 3, 1, 1]);
            }
            add(&mut state, &self.keys[round]);
        }
        state
    }

    fn decrypt(&self, block: &[u8]) -> Vec<u8> {
        let mut state = block.to_vec();
        for round in (1..=10).rev() {
            add(&mut state, &self.keys[round]);
            if round < 10 {
                mix(&mut state, [14, 11, 13, 9]);
            }
            state = (0..16).map(|at| state[(at + 16 - 4 * (at % 4)) % 16]).collect();
            let inverse = |byte: u8| S_BOX.iter().position(|&one| one == byte).unwrap_or_default();
            state.iter_mut().for_each(|byte| *byte = inverse(*byte) as u8);
        }
        add(&mut state, &self.keys[0]);
        state
    }
}

fn add(state: &mut [u8], key: &[u8; 16]) {
    state.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
}

/// Multiplies each column by the matrix whose first row is given.
fn mix(state: &mut [u8], row: [u8; 4]) {
    for column in state.chunks_mut(4) {
        let before = column.to_vec();
        for (at, byte) in column.iter_mut().enumerate() {
            *byte = (0..4).fold(0, |sum, of| sum ^ times(before[of], row[(of + 4 - at) % 4]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_packet::quic_lb::QuicLb;

    /// FIPS 197, appendix B.
    #[test]
    fn aes_is_that_of_the_standard() {
        let key = 0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes();
        let plain = 0x3243_f6a8_885a_308d_3131_98a2_e037_0734_u128.to_be_bytes();
        let text = 0x3925_841d_02dc_09fb_dc11_8597_196a_0b32_u128.to_be_bytes();
        let aes = Aes::new(key);
        assert_eq!((aes.encrypt(&plain), aes.decrypt(&text)), (text.to_vec(), plain.to_vec()));
    }

    proptest! {
        /// Both decoders read the same from any packet.
        #[test]
        fn both_decoders_agree(
            packet in prop::collection::vec(any::<u8>(), 0..40), server in 1_u8..16, nonce in 4_u8..19,
            key in prop::option::of(any::<[u8; 16]>()), first in prop::sample::select(vec![0x40, 0xc0]),
            length in 0_u8..24,
        ) {
            prop_assume!(server + nonce <= 19);
            let configs: Vec<QuicConfig> =
                [0, 1, 2, 5].map(|id| QuicConfig { id, server_id: server, nonce, key }).into();
            let mut fleet = QuicLb::default();
            configs.iter().for_each(|config| assert!(fleet.set(config.id, config.decoder().ok())));
            let mut packet = packet;
            packet.first_mut().into_iter().for_each(|byte| *byte = first);
            packet.get_mut(5).into_iter().filter(|_| first == 0xc0).for_each(|byte| *byte = length);
            let theirs = fleet.route(&packet).ok().map(|id| id.as_bytes().to_vec());
            prop_assert_eq!(server_id(&configs, &packet), theirs);
        }
    }
}
