//! The tunnels that an app watches: the type of their headers, and the UDP port by which they are recognised.

use std::fmt;
use weir_packet::TunnelKind;

/// A type of tunnel over UDP. The kernel's programs use the same numbers (`header.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum TunnelType {
    /// VXLAN (RFC 7348).
    #[default]
    Vxlan = 0,
    /// Geneve (RFC 8926).
    Geneve = 1,
    /// GUE (draft-ietf-intarea-gue) and, if it carries IP, Linux's FOU, which looks like GUE without a
    /// header.
    Gue = 2,
}

impl TunnelType {
    /// Every type, with its word in the configuration.
    pub const WORDS: [(&'static str, TunnelType); 3] = [
        (TunnelKind::Vxlan.word(), TunnelType::Vxlan),
        (TunnelKind::Geneve.word(), TunnelType::Geneve),
        (TunnelKind::Gue.word(), TunnelType::Gue),
    ];

    /// The same type in crate packet, which reads its header.
    #[must_use]
    pub const fn kind(self) -> TunnelKind {
        match self {
            TunnelType::Vxlan => TunnelKind::Vxlan,
            TunnelType::Geneve => TunnelKind::Geneve,
            TunnelType::Gue => TunnelKind::Gue,
        }
    }

    /// Its name, as it is usually written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TunnelType::Vxlan => "VXLAN",
            TunnelType::Geneve => "Geneve",
            TunnelType::Gue => "GUE",
        }
    }

    /// The UDP port that IANA assigned.
    #[must_use]
    pub const fn standard_port(self) -> u16 {
        match self {
            TunnelType::Vxlan => 4789,
            TunnelType::Geneve => 6081,
            TunnelType::Gue => 6080,
        }
    }
}

impl fmt::Display for TunnelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Tunnels of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathTunnel {
    /// Their headers.
    pub of: TunnelType,
    /// Their UDP destination port.
    pub port: u16,
}

/// Bytes of a probe's tunnel header, the same for all types.
pub(crate) const PROBE_HEADER: usize = 8;

/// The first byte of the header of a GUE probe: a control message with one word of private data, which is the
/// VNI. A kernel without weir drops control messages.
const GUE_CONTROL_AND_WORD: u8 = 0x21;
/// The second byte: the type of the control message, which is for private use.
const GUE_PROBE_TYPE: u8 = 255;

impl PathTunnel {
    /// VXLAN at the port that IANA assigned.
    pub const VXLAN: PathTunnel = PathTunnel::vxlan(TunnelType::Vxlan.standard_port());

    /// VXLAN at this port.
    #[must_use]
    pub const fn vxlan(port: u16) -> PathTunnel {
        PathTunnel { of: TunnelType::Vxlan, port }
    }

    /// The header of a probe with this VNI.
    pub(crate) fn probe_header(self, vni: u32) -> [u8; PROBE_HEADER] {
        let [_, a, b, c] = vni.to_be_bytes();
        let [first, second, third, fourth] = match self.of {
            TunnelType::Vxlan => [8, 0, 0, 0],
            TunnelType::Geneve => [0, 0, 0x65, 0x58],
            TunnelType::Gue => [GUE_CONTROL_AND_WORD, GUE_PROBE_TYPE, 0, 0],
        };
        [first, second, third, fourth, a, b, c, 0]
    }

    /// Whether a header is that of a probe with this VNI. One with options is not.
    pub(crate) fn is_probe_header(self, header: [u8; PROBE_HEADER], vni: u32) -> bool {
        let is_shaped = match self.of {
            TunnelType::Vxlan => header[0] & 8 != 0,
            TunnelType::Geneve => header[0] == 0,
            TunnelType::Gue => header[..2] == [GUE_CONTROL_AND_WORD, GUE_PROBE_TYPE],
        };
        is_shaped && header[4..7] == vni.to_be_bytes()[1..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::TunnelPorts;

    #[test]
    fn types_are_those_of_crate_packet() {
        for (word, of) in TunnelType::WORDS {
            assert_eq!(TunnelKind::from_word(word), Some(of.kind()));
            assert_eq!(TunnelPorts::STANDARD.of(of.kind()), of.standard_port());
        }
    }

    #[test]
    fn headers_of_probes_are_valid_carry_nothing_and_are_recognised() {
        for (_, of) in TunnelType::WORDS {
            let tunnel = PathTunnel { of, port: 1 };
            let header = tunnel.probe_header(0xff_fffe);
            let read = of.kind().read(&header, 17).expect("a valid header");
            assert_eq!(read.length, PROBE_HEADER, "{of}");
            assert_eq!(read.id.map(|id| id.value), (of != TunnelType::Gue).then_some(0xff_fffe));
            assert!(tunnel.is_probe_header(header, 0xff_fffe) && !tunnel.is_probe_header(header, 0xff_ffff));
            let mut options = header;
            options[0] ^= 1;
            assert_eq!(tunnel.is_probe_header(options, 0xff_fffe), of == TunnelType::Vxlan, "{of}");
        }
    }
}
