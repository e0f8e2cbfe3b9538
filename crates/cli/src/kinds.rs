//! The features in this build, as kinds of apps. The command line, the daemon and replay iterate over this
//! list and do not name any of them.

use std::net::IpAddr;
use weir_app::kind::{Apps, Kind};
use weir_lb::{Announce, Lb};

/// Measurement; with the rigs, also in the solutions of papers.
#[cfg(feature = "bench")]
const MEASURE: Kind =
    Kind { command: Some(&weir_bench::MEASURE), read: weir_bench::read_measurements, ..weir_measure::KIND };
#[cfg(not(feature = "bench"))]
const MEASURE: Kind = weir_measure::KIND;

/// All kinds of apps, in the order in which they are read: first those that offer attachments, last those
/// that wrap what others have written.
pub static KINDS: &[Kind] =
    &[weir_bond::KIND, weir_app::external::KIND, weir_lb::KIND, MEASURE, weir_overlay::KIND, weir_path::KIND];

/// Returns the VIPs that are announced by routes.
pub fn routed_vips(apps: &Apps) -> Vec<IpAddr> {
    let services = apps.of::<Lb>().map(|lb| lb.services.as_slice()).unwrap_or_default();
    let routed = services.iter().filter(|service| matches!(service.announce, Announce::Route(_)));
    routed.flat_map(|service| &service.addresses).map(|address| address.vip).collect()
}
