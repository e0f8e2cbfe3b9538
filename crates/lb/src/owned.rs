//! Announced addresses that the host must not have, but has anyway: whenever weir does not take their frames,
//! the host's stack sees connections that are not its own, and resets them. Such addresses are logged when
//! weir starts and when a reload adds one, and `weir doctor` reports them.

use crate::Lb;
use std::collections::HashSet;
use std::net::IpAddr;
use tracing::warn;
use weir_app::doctor::{Examined, Finding, Level};
use weir_app::kind::Apps;
use weir_netlink::addresses;

/// The advice about an announced address that the host has.
const ADVICE: &str = "the host has this address, and would reset its connections whenever weir is not \
    running: remove it from the host, or write `announce: none` for the service";

/// Warns of announced addresses that the host has.
#[derive(Default)]
pub(crate) struct Owned {
    /// What was announced before.
    before: HashSet<IpAddr>,
}

impl Owned {
    /// Queries the kernel only for addresses that are new.
    pub fn follow(&mut self, apps: &Apps) {
        let all = announced(apps);
        let new = all.iter().filter(|address| !self.before.contains(address)).copied().collect();
        for (address, _) in looked_up(new).into_iter().filter(|(_, owned)| *owned) {
            warn!("weir announces {address}: {ADVICE}");
        }
        self.before = all.into_iter().collect();
    }

    /// Reports announced addresses that the host has.
    pub fn findings(&self, examined: &Examined<'_>) -> Vec<Finding> {
        let all = looked_up(examined.apps.map(announced).unwrap_or_default());
        let owned = all.iter().filter(|(_, owned)| *owned);
        let found: Vec<Finding> =
            owned.map(|(vip, _)| Finding::new("vip", vip.to_string(), Level::Warning, ADVICE)).collect();
        if found.is_empty() && !all.is_empty() {
            let says = format!("the host has none of the {} that weir announces", all.len());
            return vec![Finding::new("vip", "announced", Level::Ok, says)];
        }
        found
    }
}

/// Returns the announced addresses, without duplicates.
fn announced(apps: &Apps) -> Vec<IpAddr> {
    let mut all = apps.of::<Lb>().map(Lb::announced).unwrap_or_default();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns whether the host has each of these addresses.
fn looked_up(announced: Vec<IpAddr>) -> Vec<(IpAddr, bool)> {
    if announced.is_empty() {
        return Vec::new();
    }
    // If the kernel cannot be asked, no problem is known.
    let own: HashSet<IpAddr> = addresses().unwrap_or_default().into_iter().collect();
    announced.into_iter().map(|address| (address, own.contains(&address))).collect()
}
