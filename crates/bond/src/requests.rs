//! Requests of operators and their answers: some wait until the buckets are read.

use super::app::BondApp;
use super::config::Mode;
use super::rebalance::Plan;
use super::text::VERBS;
use super::{lacp, links, show};
use serde::Deserialize;
use serde_json::{Value, json};
use weir_app::{Action, RequestId};
use weir_program::GroupId;
use weir_program::snapshot::BucketReport;

/// A request of an operator.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
enum BondRequest {
    Show {},
    Buckets {},
    Rebalance {
        #[serde(default)]
        dry_run: bool,
    },
    Migrate {
        bucket: u32,
        member: String,
    },
    Disable {
        member: String,
    },
    Enable {
        member: String,
    },
    SetActive {
        member: String,
    },
}

/// A request that is answered once the buckets are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Show,
    Buckets,
    Rebalance,
    DryRun,
}

impl BondApp {
    /// Continues with the requests that waited for the buckets to be read.
    pub(super) fn count(
        &mut self,
        now_ns: u64,
        group: GroupId,
        report: &BucketReport,
        actions: &mut Vec<Action>,
    ) {
        let (traffic, context) = self.traffic(now_ns);
        let Some(rebalances) = traffic.count(context, group, report) else { return };
        if rebalances {
            self.rebalance(now_ns, false, actions);
        }
        for (id, question) in std::mem::take(&mut self.asked) {
            let answer = match question {
                Question::Show => json!(show::bond(self, now_ns)),
                Question::Buckets => json!(show::buckets(self)),
                Question::Rebalance => {
                    let carriers = self.carriers();
                    let plan = self.rebalance(now_ns, true, actions);
                    json!(show::plan(self, plan.as_ref().map(|plan| (plan, carriers.as_slice()))))
                }
                Question::DryRun => {
                    let carriers = self.carriers();
                    let plan = self.may_rebalance().then(|| self.traffic.plan(&self.bond, &carriers));
                    json!(show::plan(self, plan.as_ref().map(|plan| (plan, carriers.as_slice()))))
                }
            };
            actions.push(Action::Answer { id, answer: Ok(answer) });
        }
    }

    /// Rebalances loads if it is time, or if the operator asked.
    fn rebalance(&mut self, now_ns: u64, asked: bool, actions: &mut Vec<Action>) -> Option<Plan> {
        if !self.may_rebalance() {
            return None;
        }
        let carriers = self.carriers();
        let (traffic, context) = self.traffic(now_ns);
        traffic.rebalance(context, &carriers, asked, actions)
    }

    pub(super) fn request(&mut self, now_ns: u64, id: RequestId, request: &Value, actions: &mut Vec<Action>) {
        let answer = match weir_app::request::read(VERBS, request) {
            Ok(BondRequest::Show {}) => return self.ask(id, Question::Show, actions),
            Ok(BondRequest::Buckets {}) => return self.ask(id, Question::Buckets, actions),
            Ok(BondRequest::Rebalance { dry_run: true }) => return self.ask(id, Question::DryRun, actions),
            Ok(BondRequest::Rebalance { dry_run: false }) => {
                return self.ask(id, Question::Rebalance, actions);
            }
            Ok(BondRequest::Migrate { bucket, member }) => self.migrate(now_ns, bucket, &member, actions),
            Ok(BondRequest::Disable { member }) => self.drain(now_ns, &member, actions),
            Ok(BondRequest::Enable { member }) => self.enable(now_ns, &member, actions),
            Ok(BondRequest::SetActive { member }) => self.set_active(now_ns, &member, actions),
            Err(why) => Err(why),
        };
        actions.push(Action::Answer { id, answer: answer.map(Value::String) });
    }

    /// Answers a question once the buckets are read.
    fn ask(&mut self, id: RequestId, question: Question, actions: &mut Vec<Action>) {
        self.asked.push((id, question));
        self.traffic.read(actions);
    }

    /// Returns the number of a member.
    fn member(&self, name: &str) -> Result<u16, String> {
        let id = self.members.id(name).filter(|id| self.members.get(*id).is_some());
        id.ok_or_else(|| show::no_member(&self.bond, name))
    }

    fn migrate(
        &mut self,
        now_ns: u64,
        bucket: u32,
        member: &str,
        actions: &mut Vec<Action>,
    ) -> Result<String, String> {
        let to = self.member(member)?;
        if !self.bond.mode.is_balanced() {
            return Err(format!("in mode {}, buckets cannot be moved manually", self.bond.mode.name()));
        }
        let moves = self.traffic.buckets.assignment.migrate(bucket, to);
        let moves = moves.map_err(|why| show::refusal(self, &why))?;
        let (traffic, context) = self.traffic(now_ns);
        traffic.order(context, &moves, "the operator's word", actions);
        Ok(format!("bucket {bucket} moves to {member} when it is idle, within {} ms", self.wait_ms()))
    }

    fn drain(&mut self, now_ns: u64, member: &str, actions: &mut Vec<Action>) -> Result<String, String> {
        self.disable(now_ns, self.member(member)?, actions);
        let wait_ms = self.wait_ms();
        Ok(format!("{member} is being drained: its buckets move when they are idle, within {wait_ms} ms"))
    }

    fn enable(&mut self, now_ns: u64, member: &str, actions: &mut Vec<Action>) -> Result<String, String> {
        let id = self.member(member)?;
        self.members.disabled.remove(&id);
        self.aggregation.release(id);
        self.notify_lacp(now_ns, lacp::Event::Hold { member: id, held: false }, actions);
        self.notify_links(now_ns, links::LinkEvent::Operator(id, true), actions);
        Ok(format!("{member} may be used again"))
    }

    fn set_active(&mut self, now_ns: u64, member: &str, actions: &mut Vec<Action>) -> Result<String, String> {
        let id = self.member(member)?;
        if !self.is_single() && self.bond.mode != Mode::BalanceSlb {
            return Err(format!("mode {} has no active member", self.bond.mode.name()));
        }
        let outputs = self.links.set_active(id).map_err(|_| format!("{member} is not enabled"))?;
        self.follow(now_ns, outputs, actions);
        Ok(format!("{member} is active"))
    }

    /// Returns the longest time that a bucket waits to be idle.
    fn wait_ms(&self) -> u64 {
        self.bond.idle_gap_max_ns / 1_000_000
    }

    /// Takes a member out of use until it is enabled again.
    pub(super) fn disable(&mut self, now_ns: u64, id: u16, actions: &mut Vec<Action>) {
        self.members.disabled.insert(id);
        self.notify_links(now_ns, links::LinkEvent::Operator(id, false), actions);
        // The partner is informed once nothing leaves through the member any more.
        self.aggregation.hold(id, now_ns + self.leaves_in_ns());
    }
}
