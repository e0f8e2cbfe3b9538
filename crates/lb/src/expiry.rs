//! Reads how long idle flows of a service are kept, and what happens to their connections afterwards.

use super::service::{BackEnd, By};
use weir_config::section::Section;
use weir_config::{Key, Report, Shape};
use weir_program::{FlowState, Timeouts};

pub(super) const TIMEOUTS: &[Key] = weir_config::keys! {
    "single": Shape::Time, "one packet, not TCP" or "30 s";
    "stream": Shape::Time, "more packets, not TCP" or "30 s";
    "tcp_syn": Shape::Time, "TCP: only a SYN, or one packet" or "30 s";
    "tcp_established": Shape::Time,
        "TCP: packets after the first; default 2 h, or 15 min where answers bypass weir";
    "tcp_half_closed": Shape::Time,
        "TCP: a FIN in one direction; default 1 h, or 4 min where answers bypass weir";
    "tcp_fin": Shape::Time, "TCP: a FIN in each direction" or "10 s";
    "tcp_rst": Shape::Time, "TCP: an RST" or "10 s";
};

/// The values of `idle`, and whether each resets connections.
pub(super) const IDLE: [(&str, bool); 2] = [("forget", false), ("reset", true)];

/// Returns the timeouts of a service's flows, and whether idle connections are reset.
pub(super) fn read(
    section: &Section<'_>,
    keeps: (Option<By>, bool),
    back_ends: &[BackEnd],
    report: &mut Report,
) -> (Timeouts, bool) {
    (timeouts(section, back_ends, report), resets_idle(section, keeps, report))
}

/// The timeouts of a service's flows; the defaults depend on whether weir sees the answers. With a NAT pool,
/// they are the same even without back ends, because such a service shares its table of flows with others.
fn timeouts(section: &Section<'_>, back_ends: &[BackEnd], report: &mut Report) -> Timeouts {
    let has_pool = section.get("nat_pool").is_some();
    let usual = super::timeouts(has_pool || back_ends.iter().any(|one| one.mode.is_nat()));
    let Some(node) = section.get("timeouts") else { return usual };
    let by_state = Section::read(node, TIMEOUTS, report);
    let given = FlowState::ALL.into_iter().filter(|state| by_state.get(state.word()).is_some());
    given.fold(usual, |all, state| all.with(state, by_state.time(state.word(), report)))
}

/// Whether idle connections are reset, which requires flows.
fn resets_idle(section: &Section<'_>, (by, stateless): (Option<By>, bool), report: &mut Report) -> bool {
    let resets = section.choice("idle", &IDLE, report).unwrap_or_default();
    if let Some(node) = section.get("idle").filter(|_| resets && (stateless || by != Some(By::FiveTuple))) {
        let key = if stateless { "stateless" } else { "by" };
        let message = format!("with `{key}` there are no flows, so idle connections cannot be detected");
        report.error_help(node.span, message, format!("omit `{key}` or `idle`"));
    }
    resets
}
