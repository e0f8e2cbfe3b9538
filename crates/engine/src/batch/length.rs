//! Two operations that keep packets short enough for the next hops: a limit on their length, which path MTU
//! discovery needs (RFC 1191 §4, RFC 8201 §4), and a clamp on the MSS that a TCP connection uses (RFC 9293
//! §3.7.1). See pipes.md A21, A22.

use crate::batch::mend::{Cover, Transport, mend};
use weir_packet::{Base, DropReason, Headers, Layer, Sum};

/// Offset and bit of Don't Fragment in an IPv4 header (RFC 791 §3.1).
const DF: (usize, u8) = (6, 0x40);
/// Bytes of an IPv6 header.
const IPV6: usize = 40;
/// Bytes of a TCP header without options, and the offsets of the flags and the header length.
const TCP: usize = 20;
const TCP_FLAGS: usize = 13;
const TCP_LENGTH: usize = 12;
const SYN: u8 = 2;
/// TCP option kinds: end of options, no-operation, and the maximum segment size of four bytes (RFC 9293
/// §3.1).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MSS: [u8; 2] = [2, 4];

/// Returns why a packet must not continue and, if it is too long, its maximum length. The limit applies to
/// its IP packet, or to the whole frame.
#[inline]
pub fn refused(bytes: &[u8], headers: &Headers, most: u16, of_frame: bool) -> Option<(DropReason, u16)> {
    let outer = headers.outer();
    let is_ipv4 = outer.layers.has(Layer::Ipv4);
    if !is_ipv4 && !outer.layers.has(Layer::Ipv6) {
        return Some((DropReason::NotApplicable, 0));
    }
    let l3 = outer.at(Base::L3);
    let be16 = |at: usize| bytes.get(at..at + 2).map_or(0, |pair| u16::from_be_bytes([pair[0], pair[1]]));
    let packet = if is_ipv4 { usize::from(be16(l3 + 2)) } else { IPV6 + usize::from(be16(l3 + 4)) };
    let (length, limit) = match of_frame {
        true => (bytes.len(), usize::from(most).saturating_sub(l3)),
        false => (packet, usize::from(most)),
    };
    if length <= usize::from(most) {
        return None;
    }
    let may_be_fragmented = is_ipv4 && bytes.get(l3 + DF.0).is_none_or(|flags| flags & DF.1 == 0);
    let reason = if may_be_fragmented { DropReason::NotFragmented } else { DropReason::TooLong };
    Some((reason, limit as u16))
}

/// Clamps the maximum segment size announced by a TCP SYN. A segment without the option, or with malformed
/// options, stays as it is.
pub fn clamp(bytes: &mut [u8], headers: &Headers, most: u16) -> Option<()> {
    if !headers.outer().layers.has(Layer::Tcp) {
        return None;
    }
    let tcp = headers.outer().at(Base::L4);
    let length = usize::from(*bytes.get(tcp + TCP_LENGTH)? >> 4) * 4;
    if bytes.get(tcp + TCP_FLAGS)? & SYN == 0 {
        return None;
    }
    let at = tcp + TCP + segment_size(bytes.get(tcp + TCP..tcp + length)?)?;
    let old = u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?);
    if old <= most {
        return None;
    }
    // The checksum works on words, and the option need not start at a word boundary.
    let words = tcp + ((at - tcp) & !1)..tcp + ((at - tcp + 3) & !1);
    let mut before = [0; 4];
    let before = &mut before[..words.len()];
    before.copy_from_slice(bytes.get(words.clone())?);
    bytes.get_mut(at..at + 2)?.copy_from_slice(&most.to_be_bytes());
    let change = Sum::default().replace_bytes(before, &bytes[words]);
    mend(bytes, headers, Cover::outer(false, Transport::Port), change);
    Some(())
}

/// Finds the value of the first MSS option: the options have at most 40 bytes.
fn segment_size(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *options.get(at)? {
            END => return None,
            NO_OPERATION => at += 1,
            kind => {
                let length = *options.get(at + 1)?;
                if length < 2 || at + usize::from(length) > options.len() {
                    return None;
                }
                match [kind, length] {
                    MSS => return Some(at + 2),
                    [2, _] => return None,
                    _ => at += usize::from(length),
                }
            }
        }
    }
}
