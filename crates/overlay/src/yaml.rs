//! Reads `overlay` apps from the configuration.

use super::{Overlay, Policy};
use crate::bpf::OVERLAY_MARK_BITS;
use std::sync::Arc;
use weir_app::App;
use weir_app::kind::{Apps, Configured, Scope};
use weir_app::task::{Publisher, TaskApp, Wanted};
use weir_config::raw::{Kind, Node};
use weir_config::section::{Section, text, words};
use weir_config::{Key, Report, Shape};

/// The shortest and the longest time between two frames of a flow on the slow path.
pub(super) const REFRESH_NS: [u64; 2] = [10_000_000, 20_000_000_000];

pub(super) const KEYS: &[Key] = weir_config::keys! {
    needed "name": Shape::Name, "its name";
    needed "tunnel": Shape::Text, "the kernel's VXLAN or Geneve device";
    needed "uplink": Shape::Text, "the kernel interface through which encapsulated frames leave and arrive";
    "bridge": Shape::Text, "the bridge whose ports are the pods' interfaces";
    "pods": Shape::Text, "the prefix of the pods' interface names if there is no bridge, such as `cali*`";
    "mark": Shape::Number(1, 0xffff_ffff), "contiguous bits of skb->mark reserved for weir" or "0xff000000";
    "flows": Shape::Number(64, 1 << 20), "how many flows are kept" or "65536";
    "refresh": Shape::Time,
        "how often the kernel sees a frame of each flow; by default 5s, or 1s with iptables-legacy or ipset";
    "mode": Shape::Words(|| words(&MODES)), "which cache to use; `weir bench overlay` has another" or "weir";
    "idle_timeout": Shape::Time, "flows idle for longer are removed" or "30s";
    "policy": Shape::Words(|| words(&POLICIES)), "how new nftables rules affect flows" or "strict";
};
/// The shortest and the longest time for which an unused flow is kept.
const IDLE_NS: [u64; 2] = [1_000_000_000, 3_600_000_000_000];
const MODES: [(&str, ()); 1] = [("weir", ())];
const POLICIES: [(&str, Policy); 2] = [("strict", Policy::Strict), ("connection", Policy::Connection)];

/// The overlay apps of a configuration.
#[derive(Debug)]
pub(super) struct OverlayApps(Vec<Wanted<Overlay>>);

impl Configured for OverlayApps {
    fn running(&self) -> Vec<Box<dyn App>> {
        self.0.iter().map(|one| -> Box<dyn App> { Box::new(TaskApp::new(one.clone())) }).collect()
    }

    fn flow_tables(&self) -> Vec<String> {
        self.0.iter().map(|wanted| crate::flows_of(&wanted.task.name)).collect()
    }
}

/// Returns the overlays of a configuration.
pub(super) fn overlays(apps: &Apps) -> Vec<Wanted<Overlay>> {
    apps.of::<OverlayApps>().map(|all| all.0.clone()).unwrap_or_default()
}

/// Reads them.
pub(super) fn read(items: &[&Node], scope: &mut Scope<'_>) -> Arc<dyn Configured> {
    let mut all: Vec<Wanted<Overlay>> = Vec::new();
    for item in items {
        let Some((overlay, section)) = overlay(item, scope) else { continue };
        let at = |key| section.get(key).map_or(section.span, |node| node.span);
        if all.iter().any(|other| other.task.name == overlay.name) {
            let message = format!("two overlay apps are called `{}`", overlay.name);
            scope.report.error(at("name"), message);
        } else if let Some(Wanted { task: other, .. }) = all.first() {
            let message = format!("`{}` already exists, and there can be only one overlay", other.name);
            scope.report.error(at("name"), message);
        } else {
            all.push(Wanted { task: overlay, board: Publisher::default() });
        }
    }
    Arc::new(OverlayApps(all))
}

/// Reads an overlay app; `None` if it cannot be used, and the report says why.
fn overlay<'a>(node: &'a Node, scope: &mut Scope<'_>) -> Option<(Overlay, Section<'a>)> {
    let before = scope.report.errors();
    let section = Section::read(node, KEYS, scope.report);
    let name = scope.name(&section).filter(|_| scope.name_is_free(&section));
    let report = &mut *scope.report;
    let [tunnel, uplink] = ["tunnel", "uplink"].map(|key| interface(section.needed(key, report)?, report));
    let bridge = section.get("bridge").and_then(|node| interface(node, report));
    let pods = section.get("pods").and_then(|node| pattern(node, report));
    if section.get("bridge").is_some() == section.get("pods").is_some() {
        let help = "write `bridge: cni0` if pods are attached to a bridge, or `pods: cali*` if they are \
            routed";
        report.error_help(section.span, "an overlay needs either `bridge` or `pods`", help);
    }
    let mark = mark(&section, report);
    let flows = section.number("flows", report).unwrap_or(1);
    let refresh_ns = refresh(&section, report);
    let idle_ns = idle(&section, report);
    mode(&section, report);
    let policy = section.choice("policy", &POLICIES, report);
    if report.errors() > before {
        return None;
    }
    let overlay = Overlay {
        name: name?,
        tunnel: tunnel?,
        uplink: uplink?,
        bridge,
        pods,
        mark,
        flows: flows as u32,
        refresh_ns,
        policy: policy?,
        idle_ns,
    };
    Some((overlay, section))
}

/// Reads a name that ends with `*`, and returns it without the `*`.
fn pattern(node: &Node, report: &mut Report) -> Option<String> {
    let text = text(node, "a prefix of interface names", report)?;
    match text.strip_suffix('*') {
        Some(start) if !start.is_empty() && start.len() < 15 && !start.contains(['/', ' ', '*']) => {
            Some(start.to_string())
        }
        _ => {
            report.error(node.span, "write the prefix followed by `*`, such as `cali*`");
            None
        }
    }
}

fn interface(node: &Node, report: &mut Report) -> Option<String> {
    let name = text(node, "the name of an interface", report)?;
    if name.is_empty() || name.len() > 15 || name.contains(['/', ' ']) {
        report.error(node.span, "not a valid interface name: use 1 to 15 characters, without `/` and spaces");
        return None;
    }
    Some(name.to_string())
}

fn mark(section: &Section<'_>, report: &mut Report) -> u32 {
    let mark = section.number("mark", report).unwrap_or(1) as u32;
    let bits = mark.count_ones();
    if let Some(node) = section.get("mark")
        && (bits < OVERLAY_MARK_BITS || mark >> mark.trailing_zeros() != u32::MAX >> (32 - bits))
    {
        let help = format!("write at least {OVERLAY_MARK_BITS} contiguous bits, such as 0xff000000");
        report.error_help(node.span, "these mark bits cannot be used", help);
    }
    mark
}

/// Only one mode is available here. The message tells users who have read about the other mode where to find
/// it.
fn mode(section: &Section<'_>, report: &mut Report) {
    match section.get("mode") {
        Some(node) if matches!(&node.kind, Kind::Scalar(word) if word == "oncache") => {
            let message = "`mode: oncache` is for comparisons: it does not notice changes to what it cached";
            report.error_help(node.span, message, "omit it here; `weir bench overlay` measures both");
        }
        _ => drop(section.choice("mode", &MODES, report)),
    }
}

fn refresh(section: &Section<'_>, report: &mut Report) -> Option<u64> {
    let node = section.get("refresh")?;
    let before = report.errors();
    let time = section.time("refresh", report);
    let [least, most] = REFRESH_NS;
    if report.errors() == before && !(least..=most).contains(&time) {
        let help = "write 10 ms to 20 s: the kernel forgets a UDP flow after 30 s";
        report.error_help(node.span, "`refresh` is out of range", help);
    }
    Some(time)
}

fn idle(section: &Section<'_>, report: &mut Report) -> u64 {
    let time = section.time("idle_timeout", report);
    let [least, most] = IDLE_NS;
    if let Some(node) = section.get("idle_timeout")
        && !(least..=most).contains(&time)
    {
        report.error_help(node.span, "`idle_timeout` is out of range", "write 1 s to 1 h");
    }
    time
}
