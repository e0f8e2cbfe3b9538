//! Server IDs in QUIC connection IDs (draft-ietf-quic-load-balancers-21), so that a client that migrates
//! keeps its back end.
//!
//! A connection ID begins with an octet whose first three bits identify a configuration; the server ID and a
//! nonce follow. Without a key, both are plain. With a key, they are encrypted with AES-128: as one block if
//! they have 16 octets together, otherwise by a Feistel network of four passes, of which a load balancer
//! needs only three if the server ID is no longer than the nonce.
//!
//! This module only decodes. A connection ID that is not routable comes with a reason, and its packet is
//! balanced by flow, as §4.2 of the draft specifies.

use aes::Aes128;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

/// The longest connection ID of QUIC versions 1 and 2, in octets.
pub const CID_MAX: usize = 20;
/// The identifier of connection IDs without a server ID (§3.2).
pub const UNROUTABLE: u8 = 7;
/// The largest length of server ID and nonce together.
const PLAINTEXT_MAX: usize = CID_MAX - 1;
/// The smallest length of a nonce.
const NONCE_MIN: usize = 4;
/// The length at which a single pass is enough.
const BLOCK: usize = 16;

/// How one configuration encodes server IDs.
#[derive(Clone)]
pub struct QuicLbConfig {
    server_id: usize,
    nonce: usize,
    cipher: Option<Aes128>,
}

impl std::fmt::Debug for QuicLbConfig {
    /// Does not print the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.cipher.is_some() { "encrypted" } else { "plain" };
        write!(f, "QuicLbConfig({kind}, {} + {} octets)", self.server_id, self.nonce)
    }
}

/// What is wrong with a configuration (§5.2 and §5.3 of the draft).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicLbError {
    /// The server ID has no octets.
    NoServerId,
    /// The nonce has fewer than 4 octets.
    ShortNonce,
    /// Server ID and nonce have more than 19 octets together.
    TooLong,
}

impl std::fmt::Display for QuicLbError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            QuicLbError::NoServerId => "the server ID has at least one octet",
            QuicLbError::ShortNonce => "the nonce has at least four octets",
            QuicLbError::TooLong => "server ID and nonce have at most 19 octets together",
        })
    }
}

impl std::error::Error for QuicLbError {}

/// Why a packet's connection ID does not lead to a server (§4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unroutable {
    /// The packet is too short for the header that QUIC's versions have in common (RFC 8999).
    Truncated,
    /// The connection ID is shorter than its configuration says, or longer than any.
    Length,
    /// No configuration has the identifier, or the identifier marks the connection ID as unroutable.
    Config,
}

/// The octets of a server ID; the configuration says how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId {
    octets: [u8; PLAINTEXT_MAX],
    length: u8,
}

impl ServerId {
    /// Creates a server ID; `None` if there are more octets than a server ID may have.
    #[must_use]
    pub fn new(id: &[u8]) -> Option<ServerId> {
        let mut octets = [0; PLAINTEXT_MAX];
        octets.get_mut(..id.len())?.copy_from_slice(id);
        Some(ServerId { octets, length: id.len() as u8 })
    }

    /// Returns its octets.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.octets[..usize::from(self.length)]
    }
}

impl std::fmt::Debug for ServerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_bytes().iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl QuicLbConfig {
    /// Creates a configuration with server IDs and nonces of these lengths in octets, encrypted if there is a
    /// key.
    ///
    /// # Errors
    /// The draft does not allow these lengths.
    pub fn new(server_id: usize, nonce: usize, key: Option<[u8; 16]>) -> Result<QuicLbConfig, QuicLbError> {
        match (server_id, nonce) {
            (0, _) => Err(QuicLbError::NoServerId),
            (_, ..NONCE_MIN) => Err(QuicLbError::ShortNonce),
            (id, nonce) if id.saturating_add(nonce) > PLAINTEXT_MAX => Err(QuicLbError::TooLong),
            _ => Ok(QuicLbConfig { server_id, nonce, cipher: key.map(|key| Aes128::new(&key.into())) }),
        }
    }

    /// Returns how many octets of a connection ID the decoder reads, including the first octet.
    #[must_use]
    pub fn length(&self) -> usize {
        1 + self.server_id + self.nonce
    }

    /// Returns the server ID in a connection ID, which may have further octets; `None` if the connection ID
    /// is too short.
    #[must_use]
    pub fn server_id(&self, cid: &[u8]) -> Option<ServerId> {
        let text = cid.get(1..self.length())?;
        let mut plain = [0; 2 * HALF_MAX];
        match &self.cipher {
            None => plain[..text.len()].copy_from_slice(text),
            Some(cipher) if text.len() == BLOCK => {
                let mut block = Array::default();
                block.copy_from_slice(text);
                cipher.decrypt_block(&mut block);
                plain[..BLOCK].copy_from_slice(&block);
            }
            Some(cipher) => self.four_passes(cipher, text, &mut plain),
        }
        ServerId::new(&plain[..self.server_id])
    }

    /// Undoes the Feistel network (§5.4.2), as far as this is needed for the server ID.
    fn four_passes(&self, cipher: &Aes128, text: &[u8], plain: &mut [u8; 2 * HALF_MAX]) {
        let (length, half, odd) = (text.len(), text.len().div_ceil(2), text.len() % 2 == 1);
        let (mut left, mut right) = ([0; HALF_MAX], [0; HALF_MAX]);
        left[..half].copy_from_slice(&text[..half]);
        right[..half].copy_from_slice(&text[length - half..]);
        // The octet in the middle of an odd number is split between the halves, four bits each.
        let (left_bits, right_bits) = if odd { (0xF0, 0x0F) } else { (0xFF, 0xFF) };
        left[half - 1] &= left_bits;
        right[0] &= right_bits;
        let passes = if self.server_id > self.nonce { 4 } else { 3 };
        for pass in (1..=4_u8).rev().take(passes) {
            let (from, to) = if pass % 2 == 0 { (&right, &mut left) } else { (&left, &mut right) };
            let mut block = Array::default();
            block[..half].copy_from_slice(&from[..half]);
            block[14] = length as u8;
            block[15] = pass;
            cipher.encrypt_block(&mut block);
            to[..half].iter_mut().zip(&block).for_each(|(octet, mask)| *octet ^= mask);
            left[half - 1] &= left_bits;
            right[0] &= right_bits;
        }
        plain[..half].copy_from_slice(&left[..half]);
        if odd {
            plain[half - 1] |= right[0];
            plain[half..length].copy_from_slice(&right[1..half]);
        } else {
            plain[half..length].copy_from_slice(&right[..half]);
        }
    }
}

/// Half of the longest plaintext, rounded up.
const HALF_MAX: usize = PLAINTEXT_MAX.div_ceil(2);

/// The configurations of a fleet, by their identifiers 0 to 6: during a rotation there are several.
#[derive(Clone, Debug, Default)]
pub struct QuicLb {
    configs: [Option<QuicLbConfig>; UNROUTABLE as usize],
}

impl QuicLb {
    /// Puts a configuration in place; returns false if the identifier does not exist.
    pub fn set(&mut self, identifier: u8, config: Option<QuicLbConfig>) -> bool {
        let place = self.configs.get_mut(usize::from(identifier));
        place.map(|place| *place = config).is_some()
    }

    /// Returns the server ID that a QUIC packet, the payload of a UDP datagram, is addressed to.
    ///
    /// # Errors
    /// The packet has to be balanced another way.
    pub fn route(&self, packet: &[u8]) -> Result<ServerId, Unroutable> {
        let long = packet.first().ok_or(Unroutable::Truncated)? & 0x80 != 0;
        if !long {
            // A short header does not include the length of its connection ID.
            let cid = packet.get(1..).filter(|cid| !cid.is_empty()).ok_or(Unroutable::Truncated)?;
            return self.decode(&cid[..cid.len().min(CID_MAX)]);
        }
        let length = usize::from(*packet.get(5).ok_or(Unroutable::Truncated)?);
        if length == 0 || length > CID_MAX {
            return Err(Unroutable::Length);
        }
        self.decode(packet.get(6..6 + length).ok_or(Unroutable::Truncated)?)
    }

    /// Returns the server ID in a connection ID.
    ///
    /// # Errors
    /// The connection ID has no server ID that can be decoded.
    pub fn decode(&self, cid: &[u8]) -> Result<ServerId, Unroutable> {
        let identifier = cid.first().ok_or(Unroutable::Length)? >> 5;
        let config = self.configs.get(usize::from(identifier)).and_then(Option::as_ref);
        config.ok_or(Unroutable::Config)?.server_id(cid).ok_or(Unroutable::Length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: [u8; 16] = 0x8f95_f092_4576_5f80_2569_34e5_0c66_207f_u128.to_be_bytes();

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// Asserts that a connection ID decodes to a server ID, given the length of its nonce and a key.
    #[track_caller]
    fn decodes(identifier: u8, (id, nonce): (&str, usize), key: Option<[u8; 16]>, cid: &str) {
        let (id, cid) = (bytes(id), bytes(cid));
        let config = QuicLbConfig::new(id.len(), nonce, key).unwrap();
        assert_eq!(config.length(), cid.len());
        let mut fleet = QuicLb::default();
        assert!(fleet.set(identifier, Some(config)));
        assert_eq!(fleet.decode(&cid), Ok(ServerId::new(&id).unwrap()));
    }

    /// Appendix B.1 of the draft.
    #[test]
    fn plain_server_ids_are_those_of_the_drafts_vectors() {
        decodes(0, ("c4605e", 4), None, "07c4605e4504cc4f");
        // The draft writes this nonce with nine digits, and the connection ID with an odd number of digits;
        // with a leading zero, the nonce has five octets.
        decodes(1, ("350d28b420", 5), None, "2a350d28b42003487d970b");
    }

    /// Appendix B.2. The draft gives the last example the identifier 3, but its first octet has 0.
    #[test]
    fn encrypted_server_ids_are_those_of_the_drafts_vectors() {
        decodes(0, ("ed793a", 4), Some(KEY), "0720b1d07b359d3c");
        decodes(1, ("ed793a51d49b8f5fab65", 5), Some(KEY), "2fcc381bc74cb4fbad2823a3d1f8fed2");
        decodes(2, ("ed793a51d49b8f5f", 8), Some(KEY), "504dd2d05a7b0de9b2b9907afb5ecf8cc3");
        decodes(0, ("ed793a51d49b8f5fab", 9), Some(KEY), "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc");
    }

    /// The example of §5.4.2.4. Its step 10 has a wrong digit in one line, but not in the connection ID.
    #[test]
    fn the_example_of_the_draft_decodes() {
        let key = 0xfdf7_26a9_893e_c05c_0632_d395_6680_baf0_u128.to_be_bytes();
        decodes(0, ("31441a", 4), Some(key), "0767947d29be054a");
    }

    #[test]
    fn both_headers_are_read_and_what_is_not_routable_has_its_reason() {
        let mut fleet = QuicLb::default();
        assert!(fleet.set(2, QuicLbConfig::new(1, 4, None).ok()));
        assert!(!fleet.set(UNROUTABLE, None));
        let cid = [0x45, 0x09, 1, 2, 3, 4];
        let short = |cid: &[u8]| [&[0x40], cid, &[0xAA; 30]].concat();
        let long = |length: u8, cid: &[u8]| [&[0xC0, 0, 0, 0, 1, length], cid, &[0, 0xAA]].concat();
        let id = Ok(ServerId::new(&[9]).unwrap());
        assert_eq!((fleet.route(&short(&cid)), fleet.route(&long(6, &cid))), (id, id));
        assert_eq!(fleet.route(&long(5, &cid)), Err(Unroutable::Length));
        assert_eq!(fleet.route(&long(0, &[])), Err(Unroutable::Length));
        assert_eq!(fleet.route(&long(21, &[0x45; 21])), Err(Unroutable::Length));
        assert_eq!(fleet.route(&long(20, &cid)), Err(Unroutable::Truncated));
        assert_eq!(fleet.route(&[0x40, 0x45, 9]), Err(Unroutable::Length));
        assert_eq!(fleet.route(&short(&[0x65; 8])), Err(Unroutable::Config));
        assert_eq!(fleet.route(&short(&[0xE5; 8])), Err(Unroutable::Config));
        assert_eq!(
            (fleet.route(&[]), fleet.route(&[0x40])),
            (Err(Unroutable::Truncated), Err(Unroutable::Truncated))
        );
        assert_eq!(QuicLbConfig::new(0, 4, None).unwrap_err(), QuicLbError::NoServerId);
        assert_eq!(QuicLbConfig::new(1, 3, None).unwrap_err(), QuicLbError::ShortNonce);
        assert_eq!(QuicLbConfig::new(15, 5, None).unwrap_err(), QuicLbError::TooLong);
        assert!(!format!("{:?}", QuicLbConfig::new(3, 4, Some(KEY))).contains("207f"));
    }

    /// Encodes as a server does; written from the draft's description of the server side.
    fn encode(id: &[u8], nonce: &[u8], key: [u8; 16]) -> Vec<u8> {
        let cipher = Aes128::new(&key.into());
        let mut text = [id, nonce].concat();
        let length = text.len();
        let encrypt = |block: [u8; 16]| {
            let mut block = block.into();
            cipher.encrypt_block(&mut block);
            <[u8; 16]>::from(block)
        };
        if length == 16 {
            let block: [u8; 16] = text.as_slice().try_into().unwrap();
            return [&[0x1F][..], &encrypt(block)].concat();
        }
        // Digits of four bits: an odd number of octets is cut in the middle of an octet.
        let mut digits: Vec<u8> = text.iter().flat_map(|octet| [octet >> 4, octet & 15]).collect();
        let (left, right) = digits.split_at_mut(length);
        for pass in 1..=4 {
            let (from, to) = if pass % 2 == 1 { (&*left, &mut *right) } else { (&*right, &mut *left) };
            // The right half of an odd number begins with four zero bits, and the left one ends with them.
            let skip = usize::from(length % 2 == 1 && pass % 2 == 0);
            let mut block = [0; 16];
            for (at, digit) in from.iter().enumerate() {
                let at = at + skip;
                block[at / 2] |= if at % 2 == 0 { digit << 4 } else { *digit };
            }
            block[14] = length as u8;
            block[15] = pass;
            let mask: Vec<u8> = encrypt(block).iter().flat_map(|octet| [octet >> 4, octet & 15]).collect();
            let skip = usize::from(length % 2 == 1 && pass % 2 == 1);
            to.iter_mut().zip(&mask[skip..]).for_each(|(digit, mask)| *digit ^= mask);
        }
        for (octet, pair) in text.iter_mut().zip(digits.chunks(2)) {
            *octet = pair[0] << 4 | pair[1];
        }
        [&[0x1F][..], &text].concat()
    }

    proptest! {
        #[test]
        fn what_a_server_encodes_is_decoded(
            key in any::<[u8; 16]>(), octets in any::<[u8; 19]>(), id in 1..16_usize, nonce in 4..19_usize,
        ) {
            prop_assume!(id + nonce <= 19);
            let (id, nonce) = (&octets[..id], &octets[id..id + nonce]);
            let config = QuicLbConfig::new(id.len(), nonce.len(), Some(key)).unwrap();
            let read = config.server_id(&encode(id, nonce, key)).unwrap();
            prop_assert_eq!(read.as_bytes(), id);
        }

        #[test]
        fn no_packet_panics(packet in prop::collection::vec(any::<u8>(), 0..40), id in 1..16_usize) {
            let mut fleet = QuicLb::default();
            (0..UNROUTABLE).for_each(|at| _ = fleet.set(at, QuicLbConfig::new(id, 4, Some(KEY)).ok()));
            let _ = fleet.route(&packet);
        }
    }
}
