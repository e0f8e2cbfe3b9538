//! `routes`: where routes to announced services are written for a route daemon to read.

use weir_config::raw::Node;
use weir_config::section::{Section, number, text, words};
use weir_config::{Key, Report, Shape};
use weir_port::tun::NAME_MAX;

/// The defaults.
const TABLE: u32 = 1850;
const PROTOCOL: u8 = 185;
const DEVICE: &str = "weir-routes";
const METRIC: u32 = 100;
const DEGRADED_METRIC: u32 = 200;

/// The tables that the host itself consults (linux/rtnetlink.h: RT_TABLE_*), and the one that means "any".
const HOST_TABLES: [(u64, &str); 4] = [
    (0, "means no table"),
    (253, "is the host's table `default`"),
    (254, "is the host's table `main`"),
    (255, "is the host's table `local`"),
];

/// Protocol numbers that the kernel and route daemons use for their own routes (linux/rtnetlink.h: RTPROT_*).
/// BIRD ignores its own routes, and FRR removes its own when it starts.
const TAKEN_PROTOCOLS: [(std::ops::RangeInclusive<u64>, &str); 4] = [
    (0..=4, "the kernel and ip(8) use"),
    (11..=11, "FRR uses"),
    (12..=12, "BIRD uses"),
    (186..=199, "FRR uses"),
];

/// The choices of `needs`.
const NEEDS: [(&str, Needs); 2] = [("any", Needs::Any), ("all", Needs::All)];

pub(super) const KEYS: &[Key] = weir_config::keys! {
    "table": Shape::Number(1, u32::MAX as u64), "the number of the kernel's routing table" or "1850";
    "protocol": Shape::Number(5, 255), "the protocol number of the routes in it" or "185";
    "device": Shape::Name, "the name of the TUN device that the routes lead to" or DEVICE;
    "metric": Shape::Number(1, u32::MAX as u64), "the metric of a route" or "100";
    "degraded_metric": Shape::Number(1, u32::MAX as u64),
        "the metric of a route while one of its services is degraded or does not work" or "200";
    "needs": Shape::Words(|| words(&NEEDS)), "whether any or all of the services of a VIP must work" or "any";
};

/// Which services of a VIP must work for it to be announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Needs {
    /// One of them.
    #[default]
    Any,
    /// All of them.
    All,
}

/// Where and how routes are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutesConfig {
    /// The number of the kernel's routing table.
    pub table: u32,
    /// The protocol number of the routes.
    pub protocol: u8,
    /// The name of the TUN device that the routes lead to.
    pub device: String,
    /// The metric of a route.
    pub metric: u32,
    /// The metric while the node should not be preferred.
    pub degraded_metric: u32,
    /// Which services of a VIP must work.
    pub needs: Needs,
}

impl Default for RoutesConfig {
    fn default() -> RoutesConfig {
        RoutesConfig {
            table: TABLE,
            protocol: PROTOCOL,
            device: DEVICE.to_string(),
            metric: METRIC,
            degraded_metric: DEGRADED_METRIC,
            needs: Needs::default(),
        }
    }
}

/// Reads the section. Errors are reported; the values are then of no further use.
pub(super) fn read(node: &Node, report: &mut Report) -> RoutesConfig {
    let section = Section::read(node, KEYS, report);
    let usual = RoutesConfig::default();
    let mut within = |key: &str, least: u64, most: u64, otherwise: u64| {
        let node = section.get(key)?;
        Some(number(node, &format!("`{key}`"), least..=most, report).unwrap_or(otherwise))
    };
    let table = within("table", 0, u32::MAX.into(), TABLE.into());
    let protocol = within("protocol", 0, 255, PROTOCOL.into());
    let metric = within("metric", 1, u32::MAX.into(), METRIC.into());
    let degraded = within("degraded_metric", 1, u32::MAX.into(), DEGRADED_METRIC.into());
    if let (Some(node), Some(number)) = (section.get("table"), table)
        && let Some((_, what)) = HOST_TABLES.iter().find(|(one, _)| *one == number)
    {
        let message = format!("{number} {what}: the host would send packets for VIPs to itself");
        report.error_help(node.span, message, format!("write the number of another table, such as {TABLE}"));
    }
    if let (Some(node), Some(number)) = (section.get("protocol"), protocol)
        && let Some((_, whose)) = TAKEN_PROTOCOLS.iter().find(|(all, _)| all.contains(&number))
    {
        let message = format!("{whose} the protocol number {number} for routes of their own");
        report.error_help(node.span, message, format!("write another number, such as {PROTOCOL}"));
    }
    let config = RoutesConfig {
        table: table.map_or(usual.table, |number| number as u32),
        protocol: protocol.map_or(usual.protocol, |number| number as u8),
        device: section.get("device").and_then(|node| device(node, report)).unwrap_or(usual.device),
        metric: metric.map_or(usual.metric, |number| number as u32),
        degraded_metric: degraded.map_or(usual.degraded_metric, |number| number as u32),
        needs: section.choice("needs", &NEEDS, report).unwrap_or_default(),
    };
    if config.degraded_metric < config.metric {
        let at = section.get("degraded_metric").or(section.get("metric")).unwrap_or(node);
        let RoutesConfig { metric, degraded_metric, .. } = config;
        let message = format!(
            "`degraded_metric` is {degraded_metric}, less than `metric`, {metric}: routers would prefer \
             degraded nodes"
        );
        report.error(at.span, message);
    }
    config
}

/// Reads the name of an interface.
fn device(node: &Node, report: &mut Report) -> Option<String> {
    let name = text(node, "the name of an interface", report)?;
    let is_fine = |one: char| one.is_ascii_graphic() && !"/:%".contains(one);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_fine) || [".", ".."].contains(&name) {
        let message = format!("`{name}` cannot be the name of an interface: at most {NAME_MAX} letters");
        report.error(node.span, message);
        return None;
    }
    Some(name.to_string())
}
