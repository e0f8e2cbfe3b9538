//! The verdict on a lab: whether it succeeded, and if not, the reasons as sentences.

use super::premise::premise;
use super::report::{LabReport, LoadReport};

/// With this many flows, 5 sigma of a back end's share are a tenth of all queries.
const FLOWS_MIN: u64 = 500;

/// Returns everything that is wrong with the run; nothing if all is well.
pub fn reasons(report: &LabReport) -> Vec<String> {
    let mut reasons = Vec::new();
    of_arm("through weir", &report.weir, &mut reasons);
    of_arm("direct", &report.direct, &mut reasons);
    of_ledger(report, &mut reasons);
    of_witness(report, &mut reasons);
    of_shares(report, &mut reasons);
    let (done, wanted) = report.reloads;
    if done < wanted {
        reasons.push(format!("only {done} of {wanted} reloads completed while the load ran"));
    }
    reasons
}

fn of_arm(name: &str, arm: &LoadReport, reasons: &mut Vec<String>) {
    let mut needs = |holds, otherwise: &str| {
        reasons
            .extend(premise(holds, || format!("{name}: {otherwise}")).err().map(|unmet| unmet.to_string()));
    };
    needs(arm.answered > 0, "no query was answered");
    // The tolerance of shares depends on the number of flows: with few flows, any share would pass.
    needs(arm.flows >= FLOWS_MIN.min(arm.sent), "there were too few flows");
    if arm.answered != arm.sent {
        reasons.push(format!(
            "{name}: {} of {} queries were not answered",
            arm.sent.abs_diff(arm.answered),
            arm.sent
        ));
    }
    if arm.refused > 0 {
        reasons.push(format!("{name}: {} queries were answered with an error", arm.refused));
    }
}

/// Checks that received + originated + copied = transmitted + to_kernel + to_app + dropped + held.
fn of_ledger(report: &LabReport, reasons: &mut Vec<String>) {
    let frames = |names: &[&str]| names.iter().map(|name| report.snapshot.frames(name)).sum::<u64>();
    let came = frames(&["received", "originated", "copied"]);
    let went = frames(&["transmitted", "to_kernel", "to_app", "held"]) + report.snapshot.dropped();
    if came != went {
        reasons.push(format!("the ledger does not balance: {came} frames entered, {went} left or are held"));
    }
    if report.snapshot.dropped() > 0 {
        reasons.push(format!("weir dropped {} frames", report.snapshot.dropped()));
    }
    if report.snapshot.packets() != report.weir.sent {
        reasons.push(format!(
            "{} queries were sent, but {} frames were sent to back ends",
            report.weir.sent,
            report.snapshot.packets()
        ));
    }
}

fn of_witness(report: &LabReport, reasons: &mut Vec<String>) {
    let (received, transmitted) = (report.snapshot.frames("received"), report.snapshot.frames("transmitted"));
    let witness = &report.witness;
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
    if answers < report.weir.answered {
        reasons.push(format!(
            "{} queries were answered, but back ends sent {answers} frames",
            report.weir.answered
        ));
    }
}

fn of_shares(report: &LabReport, reasons: &mut Vec<String>) {
    for (share, back_end) in report.shares.iter().zip(&report.snapshot.back_ends) {
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
        of_arm(
            "direct",
            &LoadReport { sent, answered, refused: 0, p50_us: 1, p99_us: 1, flows },
            &mut reasons,
        );
        reasons
    }

    #[test]
    fn a_load_that_does_not_run_or_has_few_flows_shows_nothing() {
        assert!(reasons_of(9000, 9000, 500).is_empty() && reasons_of(100, 100, 100).is_empty());
        assert_eq!(reasons_of(0, 0, 0), ["this shows nothing: direct: no query was answered"]);
        assert_eq!(reasons_of(9000, 9000, 499), ["this shows nothing: direct: there were too few flows"]);
    }
}
