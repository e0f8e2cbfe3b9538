//! How often the kernel must see a frame of each flow, if the configuration does not say.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use weir_netlink::{Protocol, attribute, dump};

/// If nothing requires a shorter time, in nanoseconds.
const LONG_NS: u64 = 5_000_000_000;
/// While the kernel may change something without announcing it, in nanoseconds.
const UNANNOUNCED_NS: u64 = 1_000_000_000;
/// As the least that can be configured, in nanoseconds.
const LEAST_NS: u64 = 10_000_000;

/// How long connection tracking keeps a UDP flow of which it sees no frames, in seconds.
const UDP_TIMEOUTS: [&str; 2] = [
    "/proc/sys/net/netfilter/nf_conntrack_udp_timeout",
    "/proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream",
];

/// The tables of iptables-legacy in this network namespace. The file is absent without the kernel module.
const LEGACY_TABLES: [&str; 2] =
    ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];

/// The kernel has ipset, which may be asked.
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
    let unannounced = if has_legacy_tables() {
        Some("iptables-legacy has tables, whose changes the kernel does not announce")
    } else if has_sets() {
        Some("there are IP sets, whose changes the kernel does not announce")
    } else {
        None
    };
    let refresh = unannounced.map_or((LONG_NS, None), |why| (UNANNOUNCED_NS, Some(why)));
    let kept = UDP_TIMEOUTS.into_iter().filter_map(timeout_ns).min().unwrap_or(u64::MAX);
    if kept / 2 < refresh.0 {
        return (
            (kept / 2).max(LEAST_NS),
            Some("connection tracking soon forgets UDP flows that it does not see"),
        );
    }
    refresh
}

/// Returns a timeout of connection tracking, in nanoseconds; `None` if there is no connection tracking.
fn timeout_ns(file: &str) -> Option<u64> {
    let seconds: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    Some(seconds.saturating_mul(1_000_000_000))
}

/// Whether there are tables of iptables-legacy, or may be.
fn has_legacy_tables() -> bool {
    LEGACY_TABLES.iter().any(|file| match fs::read_to_string(file) {
        Ok(names) => !names.trim().is_empty(),
        Err(error) => error.kind() != ErrorKind::NotFound,
    })
}

/// Whether there are sets of ipset, or may be.
fn has_sets() -> bool {
    if !Path::new(IPSET_MODULE).exists() {
        return false;
    }
    let question = [
        vec![0; 4],
        attribute(IPSET_ATTR_PROTOCOL, &[IPSET_PROTOCOL]),
        attribute(IPSET_ATTR_FLAGS, &IPSET_FLAG_LIST_SETNAME.to_be_bytes()),
    ];
    dump(Protocol::Netfilter, IPSET << 8 | IPSET_CMD_LIST, &question.concat())
        .map_or(true, |sets| !sets.is_empty())
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
            assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
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
            change(Protocol::Netfilter, request).unwrap();
            let (refresh, why) = default();
            assert!(refresh == 1_000_000_000 && why.unwrap().starts_with("there are IP sets"), "{why:?}");
        });
    }

    #[test]
    fn it_is_shorter_than_connection_tracking_keeps_a_flow() {
        in_namespace(|| {
            for (seconds, expected) in [(8, 4_000_000_000), (0, LEAST_NS), (30, LONG_NS)] {
                fs::write(UDP_TIMEOUTS[1], format!("{seconds}")).unwrap();
                let (refresh, why) = default();
                assert_eq!((refresh, why.is_none()), (expected, expected == LONG_NS));
            }
        });
    }
}
