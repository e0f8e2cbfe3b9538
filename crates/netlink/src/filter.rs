//! Filters of traffic control at an interface (linux/pkt_sched.h, linux/pkt_cls.h).

use super::message::{find, word};
use super::rtm::{RTM_GETTFILTER, RTM_NEWTFILTER};
use super::socket::{Protocol, dump};
use std::io;

const TCA_OPTIONS: u16 = 2;
/// The attribute of a filter that holds the ID of its eBPF program.
const TCA_BPF_ID: u16 = 11;

/// `struct tcmsg`.
const HEADER: usize = 20;

/// A filter that runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The ID of the program.
    pub program: u32,
    /// The filter's position among the filters.
    pub priority: u16,
    /// The filter's number within that position.
    pub handle: u32,
}

impl Filter {
    /// Parses the body of a message. For each priority, the list also has an entry without a program.
    pub(crate) fn parse(body: &[u8]) -> Option<Filter> {
        let options = find(body.get(HEADER..)?, TCA_OPTIONS)?;
        let program = word(find(options, TCA_BPF_ID)?);
        Some(Filter { program, handle: word(&body[8..]), priority: (word(&body[16..]) >> 16) as u16 })
    }
}

/// Lists the filters at a hook (`TC_H_*`) of an interface that run programs; none if the interface has no
/// clsact.
///
/// # Errors
/// Returns the kernel's error.
pub fn filters(interface: u32, hook: u32) -> io::Result<Vec<Filter>> {
    let body = [0, interface, 0, hook, 0].map(u32::to_ne_bytes);
    let all = dump(Protocol::Route, RTM_GETTFILTER, body.as_flattened())?;
    let filters = all.iter().filter(|(kind, _)| *kind == RTM_NEWTFILTER);
    Ok(filters.filter_map(|(_, body)| Filter::parse(body)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::message::{attribute, nested};
    use super::*;

    #[test]
    fn a_filter_is_read_whole_or_not_at_all() {
        let mut body = [0, 3, 0x10002, 0, 50_000 << 16].map(u32::to_ne_bytes).as_flattened().to_vec();
        body.extend(nested(TCA_OPTIONS, &[attribute(TCA_BPF_ID, &77_u32.to_ne_bytes())]));
        let filter = Filter { program: 77, priority: 50_000, handle: 0x10002 };
        assert_eq!(Filter::parse(&body), Some(filter));
        assert!((0..body.len()).all(|length| Filter::parse(&body[..length]).is_none()));
    }
}
