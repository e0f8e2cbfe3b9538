//! Which changes a reload cannot make: rather than ignoring such changes, weir refuses the reload and lists
//! everything that needs a restart. Also, which ports stay.

use crate::config::{Plan, PortConfig, PortKind, Workers, Xdp};
use std::path::PathBuf;
use weir_engine::batch::SwapReport;

/// Returns the changes from one plan to the other that only a restart can make.
pub fn needs(old: &Plan, new: &Plan) -> Vec<String> {
    let mut all: Vec<String> = workers(old, new).into_iter().collect();
    let mut note = |differs: bool, what: String| {
        if differs {
            all.push(what);
        }
    };
    note(old.busy != new.busy, "`busy`".into());
    note(old.mtu != new.mtu, "`mtu`".into());
    note(old.socket != new.socket, "`socket`".into());
    note(old.metrics != new.metrics, "`metrics`".into());
    note(old.control != new.control, "`control`".into());
    note(old.routes.table != new.routes.table, "`table` in `routes`".into());
    note(old.routes.protocol != new.routes.protocol, "`protocol` in `routes`".into());
    note(old.routes.device != new.routes.device, "`device` in `routes`".into());
    all.extend(ports(old, new));
    all
}

/// Returns the current position of each port of the new plan; `None` for a port that has to be opened. A port
/// stays if its device does, under the same name or another.
pub fn order(old: &Plan, new: &Plan) -> Vec<Option<usize>> {
    let counts = (old.workers.count(), new.workers.count());
    let by_name = |port: &PortConfig| {
        old.ports.iter().position(|before| before.name == port.name && is_same_device(before, port, counts))
    };
    let mut order: Vec<Option<usize>> = new.ports.iter().map(by_name).collect();
    for (at, port) in new.ports.iter().enumerate() {
        let is_free = |before: &usize| !order.contains(&Some(*before));
        let has_device =
            |before: &usize| is_exclusive(port) && is_same_device(&old.ports[*before], port, counts);
        if order[at].is_none() {
            order[at] = (0..old.ports.len()).filter(is_free).find(has_device);
        }
    }
    order
}

/// Returns the positions of the old plan's ports that do not stay.
pub fn removed(old: &Plan, order: &[Option<usize>]) -> Vec<usize> {
    (0..old.ports.len()).filter(|at| !order.contains(&Some(*at))).collect()
}

/// Describes which ports are added and removed, for people; empty if none is.
pub fn ports_summary(old: &Plan, new: &Plan) -> String {
    let order = order(old, new);
    let opened = new.ports.iter().zip(&order).filter(|(_, old)| old.is_none()).map(|(port, _)| &port.name);
    let closed = removed(old, &order).into_iter().map(|at| &old.ports[at].name);
    let mut text = String::new();
    opened.for_each(|name| text += &format!("; port {name} opened"));
    closed.for_each(|name| text += &format!("; port {name} closed"));
    text
}

/// Describes what a swap kept and removed, for the log and for the client.
pub fn swap_summary(generation: u64, reports: &[SwapReport]) -> String {
    let Some(report) = reports.first() else { return String::new() };
    let flows: usize = reports.iter().map(|report| report.flows_kept).sum();
    let mut text = format!("generation {generation}: {} entries and {flows} flows kept", report.entries_kept);
    for (at, (pipe, entries, _)) in report.removed.iter().enumerate() {
        let flows: usize = reports.iter().filter_map(|report| report.removed.get(at)).map(|one| one.2).sum();
        text += &format!("; pipe {pipe}: {entries} entries and {flows} flows removed");
    }
    text
}

fn workers_text(workers: &Workers) -> String {
    match workers {
        Workers::Count(count) => count.to_string(),
        Workers::Cores(cores) => format!("cores {cores:?}"),
    }
}

/// Returns the changes of ports that a reload cannot make while other ports stay, or cannot undo if another
/// part of it is refused.
fn ports(old: &Plan, new: &Plan) -> Vec<String> {
    let mut all = Vec::new();
    let order = order(old, new);
    let is_dpdk = |port: &PortConfig| matches!(port.kind, PortKind::Dpdk { .. });
    for port in new.ports.iter().zip(&order).filter(|(_, old)| old.is_none()).map(|(port, _)| port) {
        let name = &port.name;
        if is_dpdk(port) {
            all.push(format!("port `{name}`, which is new (DPDK opens devices when it starts)"));
        }
        all.extend(old.ports.iter().find_map(|before| shared(before, port)));
    }
    for port in removed(old, &order).into_iter().map(|at| &old.ports[at]).filter(|port| is_dpdk(port)) {
        all.push(format!("port `{}`, which is missing (DPDK closes devices when it ends)", port.name));
    }
    all
}

/// Returns why a change of the workers needs a restart, if it does.
fn workers(old: &Plan, new: &Plan) -> Option<String> {
    let dpdk = |plan: &Plan| plan.ports.iter().any(|port| matches!(port.kind, PortKind::Dpdk { .. }));
    let why = match (&old.workers, &new.workers) {
        (before, now) if before == now => return None,
        _ if dpdk(old) || dpdk(new) => "DPDK sets up the queues of its ports and their memory when it starts",
        (Workers::Count(_), Workers::Count(_)) => return None,
        (Workers::Cores(before), Workers::Cores(now))
            if before.iter().zip(now).all(|(one, two)| one == two) =>
        {
            return None;
        }
        _ => "remaining workers keep their cores: add cores at the end of the list, or remove them there",
    };
    Some(format!("`workers` ({} to {}: {why})", workers_text(&old.workers), workers_text(&new.workers)))
}

/// Returns true if both ports use the same device in the same way, given the number of workers before and
/// after.
fn is_same_device(one: &PortConfig, other: &PortConfig, (before, after): (usize, usize)) -> bool {
    // Workers that stay keep their queues.
    let queue = |xdp: &Xdp, at: usize| match &xdp.queues {
        Some(queues) => queues.get(at).copied(),
        None => Some(at as u32),
    };
    let same_queues = |one: &Xdp, other: &Xdp| {
        let stay = before.min(after);
        if before == after {
            one.queues == other.queues
        } else {
            (0..stay).all(|at| queue(one, at) == queue(other, at))
        }
    };
    match (&one.kind, &other.kind) {
        (PortKind::Xdp(before), PortKind::Xdp(now)) => {
            is_same_interface(one, other) && before.mode == now.mode && same_queues(before, now)
        }
        (one, other) => one == other,
    }
}

/// Returns true if both ports have the same interface, which may have been renamed, or deleted and created
/// again.
fn is_same_interface(before: &PortConfig, now: &PortConfig) -> bool {
    let (PortKind::Xdp(one), PortKind::Xdp(other)) = (&before.kind, &now.kind) else { return false };
    match (&before.nic, &now.nic) {
        (Some(one), Some(other)) if one.index == other.index => true,
        // If ours was renamed, the name refers to another interface.
        (Some(nic), Some(_)) => one.interface == other.interface && nic.is_called(&one.interface),
        _ => one.interface == other.interface,
    }
}

/// Returns true if a device of the port can be used only once.
fn is_exclusive(port: &PortConfig) -> bool {
    matches!(port.kind, PortKind::Xdp(_) | PortKind::Pcap { .. } | PortKind::Dpdk { .. })
}

/// Returns what prevents a port from being opened while another one exists that could not be restored once it
/// is closed.
fn shared(before: &PortConfig, port: &PortConfig) -> Option<String> {
    let (name, other) = (&port.name, &before.name);
    let steps = format!("remove port `{other}` in one reload, and add `{name}` in the next");
    if is_same_interface(before, port) {
        let what = if name == other { "`queues` or `mode`" } else { "`queues`, `mode` and name" };
        return Some(format!("{what} of port `{name}` ({steps})"));
    }
    let held = written(before);
    let twice = written(port).into_iter().find(|path| held.contains(path))?;
    Some(format!("which port writes {} ({steps})", twice.display()))
}

/// Returns the files that a port writes.
fn written(port: &PortConfig) -> Vec<&PathBuf> {
    let files = match &port.kind {
        PortKind::Pcap { output, kernel, .. } => [output.as_ref(), kernel.as_ref()],
        _ => [None, None],
    };
    files.into_iter().flatten().chain(&port.trace).collect()
}

/// The maximum number of shared counters, including those of previous programs, so that what is kept does not
/// grow without bound.
const COUNTERS_MAX: usize = 4096;

/// Keeps counters that the new program does not name, so that a back end that returns later continues from
/// its counts, and a sum over all counters never decreases.
pub fn keep_counters(old: &[String], counters: &mut Vec<String>) {
    let room = COUNTERS_MAX.saturating_sub(counters.len());
    let is_gone = |name: &&String| !name.is_empty() && !counters.contains(name);
    let kept: Vec<String> = old.iter().filter(is_gone).take(room).cloned().collect();
    counters.extend(kept);
}
