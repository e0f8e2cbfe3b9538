//! The answers of a bond, which the commands and `weir top` read.

use weir_app::answers;
use weir_app::shown::seconds;

answers! {
    /// The state of a bond, its members and its latest moves.
    BondState {
        name: String, mode: String, lacp: Option<LacpState>, active: Option<String>, buckets: u32,
        /// The time until the next rebalance; negative if it is overdue.
        next_rebalance_ms: Option<i64>,
        members: Vec<MemberState>, moved: u64, moved_busy: u64, waiting: usize, pinned: Vec<PinnedFlow>,
        learnt: usize, moves: Vec<LoggedMove>,
        /// The headers from which the hash is computed, as in the configuration, and the number that is mixed
        /// in.
        headers: String, basis: u64,
        primary: Option<String>, updelay_ms: u32, downdelay_ms: u32,
        /// Whether one member is used while no partner speaks LACP.
        fallback: bool,
    }

    LacpState { negotiation: String, system: String, links: u16, min_links: u16, }

    MemberState {
        name: String, enabled: bool, active: bool, disabled_by_operator: bool, against: Option<String>,
        changes_in_ms: Option<u64>, buckets: usize, packets: u64, bytes: u64, lacp: Option<MemberLacp>,
    }

    MemberLacp {
        receive: String, mux: String, periodic: String, selected: bool, actor: LacpEnd, partner: LacpEnd,
        actor_churn: String, partner_churn: String, received: u64, sent: u64, markers: u64, refused: u64,
        expired: u64, defaulted: u64,
    }

    LacpEnd { system: String, key: u16, port: u16, port_priority: u16, state: Vec<String>, }

    PinnedFlow { flow: String, member: String, bucket: u32, load: u64, for_ms: u64, why: String, }

    LoggedMove {
        ago_ms: u64, buckets: usize, first: Option<u32>, to: String, why: String,
        /// The pinned flow that moved; without it, a bucket moved.
        #[serde(skip_serializing_if = "Option::is_none")]
        flow: Option<String>,
    }

    BucketList { name: String, buckets: Vec<BucketRow>, }

    BucketRow { bucket: usize, member: String, packets: Option<u64>, bytes: Option<u64>, }

    /// The plan of a rebalance, which is carried out or would be.
    PlanReport {
        moves: Vec<PlannedMove>,
        /// Why the bond does not balance by load.
        #[serde(skip_serializing_if = "Option::is_none")]
        why_not: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        loads: Option<Vec<PlannedLoad>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        elephants: Option<Vec<HeavyBucket>>,
    }

    /// The move of a bucket or of a pinned flow.
    PlannedMove {
        #[serde(skip_serializing_if = "Option::is_none")]
        bucket: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        flow: Option<String>,
        from: String, to: String, why: String,
    }

    PlannedLoad { member: String, before: u64, after: u64, }

    /// A bucket that is too heavy for any member, and the fair share of one.
    HeavyBucket { bucket: u32, load: u64, fair: u64, }
}

impl BondState {
    /// Describes when the next rebalance is.
    pub fn next_rebalance(&self) -> String {
        let in_ms = self.next_rebalance_ms.map(|ms| u64::try_from(ms).unwrap_or_default());
        in_ms.map_or_else(|| "never".to_string(), |ms| format!("in {}", seconds(ms)))
    }

    /// Describes how many buckets were moved.
    pub fn moved(&self) -> String {
        let BondState { moved, moved_busy, waiting, .. } = self;
        format!("{moved} buckets, {moved_busy} of them in use; {waiting} waiting")
    }
}

impl MemberState {
    /// Describes whether the member is used, and why not.
    pub fn state(&self) -> String {
        match (self.enabled, &self.against, self.changes_in_ms.map(seconds)) {
            (true, Some(why), Some(due)) => format!("enabled, until in {due}: {why}"),
            (true, ..) => "enabled".to_string(),
            (false, None, Some(due)) => format!("works, enabled in {due}"),
            (false, Some(why), _) => format!("disabled: {why}"),
            (false, None, None) => "disabled".to_string(),
        }
    }

    /// Describes its LACP state.
    pub fn lacp_state(&self) -> &str {
        let Some(lacp) = &self.lacp else { return "-" };
        match (lacp.mux.as_str(), lacp.receive.as_str()) {
            ("distributing", _) => "in use",
            ("collecting", _) => "receives, does not yet send",
            ("attached", _) => "in sync, but the partner is not",
            ("waiting", _) => "waiting for other members",
            (_, "port disabled") => "no link",
            (_, "defaulted") => "no partner",
            (_, "expired") => "partner is silent",
            (_, "current") if !lacp.selected => "not selected: another partner or key",
            (mux, _) => mux,
        }
    }
}

impl LoggedMove {
    /// Describes what has moved.
    pub fn what(&self) -> String {
        match (&self.flow, self.buckets, self.first) {
            (Some(flow), ..) => flow.clone(),
            (None, 1, Some(first)) => format!("bucket {first}"),
            (None, count, _) => format!("{count} buckets"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs read the answers, so names and their order must not change.
    #[test]
    fn names_stay_and_so_does_their_order() {
        let member = MemberState { lacp: Some(MemberLacp::default()), ..MemberState::default() };
        let moves =
            vec![LoggedMove::default(), LoggedMove { flow: Some("f".into()), ..LoggedMove::default() }];
        let (lacp, pinned) = (Some(LacpState::default()), vec![PinnedFlow::default()]);
        let state = BondState { lacp, members: vec![member], pinned, moves, ..BondState::default() };
        let end = r#"{"system":"","key":0,"port":0,"port_priority":0,"state":[]}"#;
        assert_eq!(
            serde_json::json!(state).to_string(),
            [
                r#"{"name":"","mode":"","lacp":{"negotiation":"","system":"","links":0,"min_links":0},"#,
                r#""active":null,"buckets":0,"next_rebalance_ms":null,"members":[{"name":"","enabled":false,"#,
                r#""active":false,"disabled_by_operator":false,"against":null,"changes_in_ms":null,"#,
                r#""buckets":0,"packets":0,"bytes":0,"lacp":{"receive":"","mux":"","periodic":"","#,
                &format!(r#""selected":false,"actor":{end},"partner":{end},"actor_churn":"","#),
                r#""partner_churn":"","received":0,"sent":0,"markers":0,"refused":0,"expired":0,"#,
                r#""defaulted":0}}],"moved":0,"moved_busy":0,"waiting":0,"pinned":[{"flow":"","member":"","#,
                r#""bucket":0,"load":0,"for_ms":0,"why":""}],"learnt":0,"moves":[{"ago_ms":0,"buckets":0,"#,
                r#""first":null,"to":"","why":""},{"ago_ms":0,"buckets":0,"first":null,"to":"","why":"","#,
                r#""flow":"f"}],"headers":"","basis":0,"primary":null,"updelay_ms":0,"downdelay_ms":0,"#,
                r#""fallback":false}"#,
            ]
            .concat()
        );
    }
}
