//! How often the kernel must see a frame of each flow, if the configuration does not say.

use crate::yaml::REFRESH_NS;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use weir_netlink::{Protocol, attribute, dump};

/// The default, in nanoseconds, unless something requires a shorter time.
const LONG_NS: u64 = 5_000_000_000;
/// The default, in nanoseconds, while iptables-legacy or ipset is in use: the kernel announces neither the
/// rules of the former nor the members of the latter's sets.
const UNANNOUNCED_NS: u64 = 1_000_000_000;

/// How long connection tracking keeps a UDP flow of which it sees no frames, in seconds.
const UDP_TIMEOUTS: [&str; 2] = [
    "/proc/sys/net/netfilter/nf_conntrack_udp_timeout",
    "/proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream",
];

/// The tables of iptables-legacy in this network namespace. The file is absent without the kernel module.
const LEGACY_TABLES: [&str; 2] =
    ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];

/// Exists if the kernel has ipset.
const IPSET_MODULE: &str = "/sys/module/ip_set";
/// NFNL_SUBSYS_IPSET, and a command.
const IPSET: u16 = 6;
const IPSET_CMD_LIST: u16 = 7;
/// Attributes: the version of the protocol, and flags, of which one asks for names alone.
const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_FLAGS: u16 = 6;
const IPSET_PROTOCOL: u8 = 6;
const IPSET_FLAG_LIST_SETNAME: u32 = 1 << 1;

/// Returns the default of `refresh` for this network namespace, in nanoseconds, and why it is not longer.
pub fn default() -> (u64, Option<&'static str>) {
    let unannounced = legacy_tables().or_else(sets);
    let refresh = unannounced.map_or((LONG_NS, None), |why| (UNANNOUNCED_NS, Some(why)));
    let kept = UDP_TIMEOUTS.into_iter().filter_map(timeout_ns).min().unwrap_or(u64::MAX);
    if kept / 2 < refresh.0 {
        let why = "connection tracking soon forgets UDP flows that it does not see";
        return ((kept / 2).max(REFRESH_NS[0]), Some(why));
    }
    refresh
}

/// Returns a timeout of connection tracking, in nanoseconds; `None` if there is no connection tracking.
fn timeout_ns(file: &str) -> Option<u64> {
    // Bounded: the kernel writes it.
    let seconds: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    Some(seconds.saturating_mul(1_000_000_000))
}

/// Returns a reason if there are tables of iptables-legacy, or may be.
fn legacy_tables() -> Option<&'static str> {
    // Bounded: the kernel writes it.
    LEGACY_TABLES.iter().find_map(|file| match fs::read_to_string(file) {
        Ok(names) if names.trim().is_empty() => None,
        Ok(_) => Some("iptables-legacy has tables, whose changes the kernel does not announce"),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(_) => Some("/proc/net/ip_tables_names cannot be read, so iptables-legacy may have tables"),
    })
}

/// Returns a reason if there are sets of ipset, or may be.
fn sets() -> Option<&'static str> {
    if !Path::new(IPSET_MODULE).exists() {
        return None;
    }
    let question = [
        vec![0; 4],
        attribute(IPSET_ATTR_PROTOCOL, &[IPSET_PROTOCOL]),
        attribute(IPSET_ATTR_FLAGS, &IPSET_FLAG_LIST_SETNAME.to_be_bytes()),
    ];
    match dump(Protocol::Netfilter, IPSET << 8 | IPSET_CMD_LIST, &question.concat()) {
        Ok(sets) if sets.is_empty() => None,
        Ok(_) => Some("there are IP sets, whose changes the kernel does not announce"),
        Err(_) => Some("the kernel does not list its IP sets, so there may be some"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use weir_netlink::{NLM_F_CREATE, Request, change, nested};

    /// Runs a function in an empty network namespace; without root, it does not run.
    fn in_namespace(test: fn()) {
        if !weir_bed::is_root() {
            return;
        }
        let thread = std::thread::spawn(move || {
            // SAFETY: only this thread moves, and it ends with the test.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET).unwrap() };
            test();
        });
        thread.join().unwrap();
    }

    #[test]
    fn tables_of_iptables_legacy_shorten_it() {
        in_namespace(|| {
            assert_eq!(default(), (5_000_000_000, None));
            let listed = Command::new("iptables-legacy").args(["-t", "filter", "-L"]).output().unwrap();
            if !listed.status.success() {
                return weir_bed::kernel_lacks("iptables-legacy");
            }
            let (refresh, why) = default();
            assert!(refresh == 1_000_000_000 && why.unwrap().starts_with("iptables-legacy"), "{why:?}");
        });
    }

    #[test]
    fn ip_sets_shorten_it() {
        const IPSET_CMD_CREATE: u16 = 2;
        in_namespace(|| {
            assert_eq!(default(), (5_000_000_000, None));
            let set = [
                vec![0; 4],
                attribute(IPSET_ATTR_PROTOCOL, &[IPSET_PROTOCOL]),
                attribute(2, b"blocked\0"),
                attribute(3, b"hash:ip\0"),
                attribute(4, &[0]),
                attribute(5, &[rustix::net::AddressFamily::INET.as_raw() as u8]),
                nested(7, &[]),
            ];
            let body = &set.concat();
            let request = Request { kind: IPSET << 8 | IPSET_CMD_CREATE, flags: NLM_F_CREATE, body };
            if change(Protocol::Netfilter, request).is_err() {
                return weir_bed::kernel_lacks("ipset");
            }
            let (refresh, why) = default();
            assert!(refresh == 1_000_000_000 && why.unwrap().starts_with("there are IP sets"), "{why:?}");
        });
    }

    #[test]
    fn it_is_shorter_than_connection_tracking_keeps_a_flow() {
        in_namespace(|| {
            if timeout_ns(UDP_TIMEOUTS[1]).is_none() {
                return weir_bed::kernel_lacks("connection tracking");
            }
            for (seconds, expected) in [(8, 4_000_000_000), (0, REFRESH_NS[0]), (30, LONG_NS)] {
                fs::write(UDP_TIMEOUTS[1], format!("{seconds}")).unwrap();
                let (refresh, why) = default();
                assert_eq!((refresh, why.is_none()), (expected, expected == LONG_NS));
            }
        });
    }
}
