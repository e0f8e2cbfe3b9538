//! Announced addresses that the host must not have, but has anyway: whenever weir does not take their frames,
//! the host's stack sees connections that are not its own, and resets them. Logged when weir starts and when
//! a reload brings such an address, and reported by `weir doctor`.

use std::collections::HashSet;
use std::net::IpAddr;
use tracing::warn;
use weir_app::kind::Apps;
use weir_netlink::addresses;

/// The advice about such an address.
pub const ADVICE: &str = "the host has it, and would reset its connections whenever weir does not run: \
     remove it from the host, or write `announce: none` for the service";

/// Returns the announced addresses, and whether the host has each.
pub fn owned(apps: &Apps) -> Vec<(IpAddr, bool)> {
    let announced = apps.announced();
    if announced.is_empty() {
        return Vec::new();
    }
    // If the kernel cannot be asked, no problem is known.
    let own: HashSet<IpAddr> = addresses().unwrap_or_default().into_iter().collect();
    announced.into_iter().map(|address| (address, own.contains(&address))).collect()
}

/// Warns of addresses that were not announced before.
pub fn warn_of_owned(apps: &Apps, before: &Apps) {
    let before: HashSet<IpAddr> = before.announced().into_iter().collect();
    for (address, _) in owned(apps).into_iter().filter(|(address, owned)| *owned && !before.contains(address))
    {
        warn!("weir announces {address}: {ADVICE}");
    }
}
