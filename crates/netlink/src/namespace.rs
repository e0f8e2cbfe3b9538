//! Numbers of network namespaces (linux/net_namespace.h).

use super::message::{attribute, find, word};
use super::rtm::RTM_GETNSID;
use super::socket::{Protocol, get};
use rustix::fd::{AsFd, AsRawFd};

const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

/// `struct rtgenmsg`, padded.
const HEADER: usize = 4;

/// Returns the number that a namespace has in this one; `None` if it has no number.
pub fn namespace_number(namespace: impl AsFd) -> Option<u32> {
    let descriptor = namespace.as_fd().as_raw_fd();
    let question = [&[0; HEADER][..], &attribute(NETNSA_FD, &descriptor.to_ne_bytes())].concat();
    let (_, body) = get(Protocol::Route, RTM_GETNSID, &question).ok()?;
    let number = word(find(body.get(HEADER..)?, NETNSA_NSID)?);
    // -1 means that it has no number.
    Some(number).filter(|number| *number != u32::MAX)
}
