//! What a reload cannot change: it is refused, with everything that needs a restart, rather than ignored.

use crate::config::{Plan, PortConfig, PortKind, Workers};

/// Returns what only a restart can change from one plan to the other.
pub fn needs(old: &Plan, new: &Plan) -> Vec<String> {
    let mut all = Vec::new();
    let mut note = |differs: bool, what: String| {
        if differs {
            all.push(what);
        }
    };
    note(old.workers != new.workers, format!("`workers` ({} to {})", told(&old.workers), told(&new.workers)));
    note(old.busy != new.busy, "`busy`".into());
    note(old.mtu != new.mtu, "`mtu`".into());
    note(old.socket != new.socket, "`socket`".into());
    note(old.metrics != new.metrics, "`metrics`".into());
    for port in &old.ports {
        let same = new.ports.iter().any(|other| other.name == port.name);
        note(!same, format!("port `{}` is missing", port.name));
    }
    for port in &new.ports {
        match old.ports.iter().find(|other| other.name == port.name) {
            None => note(true, format!("port `{}` is new", port.name)),
            Some(old) => of_port(old, port).into_iter().for_each(|what| note(true, what)),
        }
    }
    all
}

fn told(workers: &Workers) -> String {
    match workers {
        Workers::Count(count) => count.to_string(),
        Workers::Cores(cores) => format!("cores {cores:?}"),
    }
}

fn of_port(old: &PortConfig, new: &PortConfig) -> Vec<String> {
    let name = &new.name;
    let (PortKind::Xdp(before), PortKind::Xdp(now)) = (&old.kind, &new.kind) else {
        let differs = old.kind != new.kind;
        return differs.then(|| format!("the kind or device of port `{name}`")).into_iter().collect();
    };
    let changes = [
        (before.interface != now.interface, "the interface"),
        (before.queues != now.queues, "`queues`"),
        (before.mode != now.mode, "`mode`"),
    ];
    changes
        .into_iter()
        .filter(|(differs, _)| *differs)
        .map(|(_, key)| format!("{key} of port `{name}`"))
        .collect()
}
