//! The verdict on a lab: whether it succeeded, and if not, the reasons as sentences.

use super::premise::premise;
use super::report::{LabReport, LoadReport, NodeReport};
use super::topology::Executor;

/// The minimum number of flows: 5 sigma of a back end's share are then a tenth of all queries.
const FLOWS_MIN: u64 = 500;

/// Returns everything that is wrong with the run; nothing if all is well.
pub fn reasons(report: &LabReport) -> Vec<String> {
    let mut reasons = Vec::new();
    for load in &report.direct {
        of_load("direct", load, &mut reasons);
    }
    let answered = report.loads().map(|load| load.answered).sum();
    for node in &report.nodes {
        let name = node.executor.name();
        let mut its = Vec::new();
        of_load("through weir", &node.load, &mut its);
        of_ledger(node, &mut its);
        of_witness(node, answered, &mut its);
        of_kernel(node, &mut its);
        of_shares(node, &mut its);
        let (done, wanted) = node.reloads;
        if done < wanted {
            its.push(format!("only {done} of {wanted} reloads completed while the load ran"));
        }
        reasons.extend(its.into_iter().map(|reason| format!("{name}: {reason}")));
    }
    reasons
}

fn of_load(name: &str, load: &LoadReport, reasons: &mut Vec<String>) {
    let mut needs = |holds, otherwise: &str| {
        reasons
            .extend(premise(holds, || format!("{name}: {otherwise}")).err().map(|unmet| unmet.to_string()));
    };
    needs(load.answered > 0, "no query was answered");
    // The tolerance of shares depends on the number of flows: with few flows, any share would pass.
    needs(load.flows >= FLOWS_MIN.min(load.sent), "there were too few flows");
    if load.answered != load.sent {
        reasons.push(format!(
            "{name}: {} of {} queries were not answered",
            load.sent.abs_diff(load.answered),
            load.sent
        ));
    }
    if load.refused > 0 {
        reasons.push(format!("{name}: {} queries were answered with an error", load.refused));
    }
}

/// Checks that received + originated + copied = transmitted + to_kernel + to_app + dropped + held.
fn of_ledger(node: &NodeReport, reasons: &mut Vec<String>) {
    let frames = |names: &[&str]| names.iter().map(|name| node.snapshot.frames(name)).sum::<u64>();
    let came = frames(&["received", "originated", "copied"]);
    let went = frames(&["transmitted", "to_kernel", "to_app", "held"]) + node.snapshot.dropped();
    if came != went {
        reasons.push(format!("the ledger does not balance: {came} frames entered, {went} left or are held"));
    }
    if node.snapshot.dropped() > 0 {
        reasons.push(format!("weir dropped {} frames", node.snapshot.dropped()));
    }
    if node.snapshot.packets() != node.load.sent {
        reasons.push(format!(
            "{} queries were sent, but {} frames were sent to back ends",
            node.load.sent,
            node.snapshot.packets()
        ));
    }
}

/// Compares weir's counts with the kernel's. `answered` is the number of queries, over all loads, that back
/// ends have answered.
fn of_witness(node: &NodeReport, answered: u64, reasons: &mut Vec<String>) {
    let (received, transmitted) = (node.snapshot.frames("received"), node.snapshot.frames("transmitted"));
    let witness = &node.witness;
    if received != witness.xdp.taken {
        reasons.push(format!("weir received {received} frames, but XDP took {}", witness.xdp.taken));
    }
    if witness.dropped() > 0 {
        reasons.push(format!("the kernel dropped {} frames on their way to weir", witness.dropped()));
    }
    // The node's kernel sends too (ARP), but never more frames than were passed to it.
    let kernel = witness.weir.transmitted.checked_sub(transmitted);
    if kernel.is_none_or(|kernel| kernel > witness.passed()) {
        reasons.push(format!(
            "weir sent {transmitted} frames, but the interface counts {}",
            witness.weir.transmitted
        ));
    }
    let answers = witness.back_ends.iter().map(|(_, at)| at.transmitted).sum::<u64>();
    if answers < answered {
        reasons.push(format!("{answered} queries were answered, but back ends sent {answers} frames"));
    }
}

/// Checks that the kernel has handled frames where it should and only there, and that there is a reason for
/// each frame that it left to a worker. Frames that arrive during a reload have no reason.
fn of_kernel(node: &NodeReport, reasons: &mut Vec<String>) {
    let (kernel, received) = (&node.kernel, node.snapshot.frames("received"));
    match node.executor {
        Executor::Engine if kernel.frames() > 0 => {
            reasons.push(format!("the kernel saw {} frames that it should not", kernel.frames()));
        }
        Executor::Engine => {}
        Executor::Kernel => {
            let decided = premise(kernel.decided > 0, || "the kernel has decided no frame".into());
            reasons.extend(decided.err().map(|unmet| unmet.to_string()));
            if node.reloads.1 > 0 {
                return;
            }
            if kernel.frames() != received {
                reasons.push(format!(
                    "weir received {received} frames, but the kernel decided or gave up {}",
                    kernel.frames()
                ));
            }
            if kernel.decided != node.witness.xdp.sent_back {
                reasons.push(format!(
                    "the kernel decided {} frames, but sent {} back",
                    kernel.decided, node.witness.xdp.sent_back
                ));
            }
        }
    }
}

fn of_shares(node: &NodeReport, reasons: &mut Vec<String>) {
    for (share, back_end) in node.shares.iter().zip(&node.snapshot.back_ends) {
        if !share.contains(back_end.packets) {
            reasons.push(format!(
                "{} was sent {} frames, more than 5 sigma outside its share of {:.0} to {:.0} (sigma {:.0})",
                share.name, back_end.packets, share.expected.0, share.expected.1, share.sigma
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons_of(sent: u64, answered: u64, flows: u64) -> Vec<String> {
        let mut reasons = Vec::new();
        of_load("direct", &LoadReport { sent, answered, flows, ..LoadReport::default() }, &mut reasons);
        reasons
    }

    #[test]
    fn a_load_that_does_not_run_or_has_few_flows_shows_nothing() {
        assert!(reasons_of(9000, 9000, 500).is_empty() && reasons_of(100, 100, 100).is_empty());
        assert_eq!(reasons_of(0, 0, 0), ["this shows nothing: direct: no query was answered"]);
        assert_eq!(reasons_of(9000, 9000, 499), ["this shows nothing: direct: there were too few flows"]);
    }
}
