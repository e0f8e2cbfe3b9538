//! The XDP features that drivers support: the generic family `netdev` (linux/netdev.h, linux/genetlink.h).

use super::message::{attribute, find, word};
use super::socket::{Protocol, dump, get};
use std::io;

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;

/// `struct genlmsghdr`.
const HEADER: usize = 4;

/// Bits of `enum netdev_xdp_act`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpFeatures(u64);

impl XdpFeatures {
    /// Native XDP with redirection, which AF_XDP needs.
    #[must_use]
    pub fn native(self) -> bool {
        self.0 & 3 == 3
    }

    /// Zero-copy AF_XDP.
    #[must_use]
    pub fn zero_copy(self) -> bool {
        self.0 & 8 != 0
    }
}

/// Returns what drivers report, by interface index. Empty on kernels before 6.3.
#[must_use]
pub fn xdp_features() -> Vec<(u32, XdpFeatures)> {
    let body = [NETDEV_CMD_DEV_GET, 1, 0, 0];
    let answers = family().and_then(|family| dump(Protocol::Generic, family, &body)).unwrap_or_default();
    answers.iter().filter_map(|(_, body)| device(body)).collect()
}

fn family() -> io::Result<u16> {
    let name = attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let question = [&[CTRL_CMD_GETFAMILY, 1, 0, 0][..], &name].concat();
    let (_, body) = get(Protocol::Generic, GENL_ID_CTRL, &question)?;
    let id = body.get(HEADER..).and_then(|rest| find(rest, CTRL_ATTR_FAMILY_ID)?.first_chunk());
    id.map(|id| u16::from_ne_bytes(*id)).ok_or(io::ErrorKind::NotFound.into())
}

/// Parses the body of a message about a device.
pub(crate) fn device(body: &[u8]) -> Option<(u32, XdpFeatures)> {
    let attributes = body.get(HEADER..)?;
    let features = find(attributes, NETDEV_A_DEV_XDP_FEATURES)?.try_into().ok()?;
    Some((word(find(attributes, NETDEV_A_DEV_IFINDEX)?), XdpFeatures(u64::from_ne_bytes(features))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_read_whole_or_not_at_all() {
        let index = attribute(NETDEV_A_DEV_IFINDEX, &7_u32.to_ne_bytes());
        let features = attribute(NETDEV_A_DEV_XDP_FEATURES, &3_u64.to_ne_bytes());
        let body = [&[NETDEV_CMD_DEV_GET, 1, 0, 0][..], &index, &features].concat();
        assert!(
            device(&body).is_some_and(|(index, known)| index == 7 && known.native() && !known.zero_copy())
        );
        assert!((0..body.len()).all(|length| device(&body[..length]).is_none()));
    }
}
