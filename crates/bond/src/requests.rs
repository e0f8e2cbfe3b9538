//! Requests of operators, in words, and their answers: some wait until the buckets are read.

use super::app::BondApp;
use super::config::{Bond, Mode};
use super::members::Members;
use super::rebalance::Plan;
use super::{lacp, links, show};
use serde_json::Value;
use weir_app::{Action, RequestId};
use weir_program::GroupId;
use weir_program::snapshot::BucketReport;

/// The supported requests, for the error message.
const UNDERSTOOD: &str = "a bond understands show, buckets, migrate BUCKET MEMBER, disable MEMBER, enable \
    MEMBER, \
                          set-active MEMBER, rebalance and rebalance dry-run";

/// A request of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BondRequest {
    /// Answered once the buckets are read.
    Question(Question),
    /// Carried out at once.
    Command(Command),
}

/// A question of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Show,
    Buckets,
    Rebalance,
    DryRun,
}

/// A command of an operator; members are given by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Migrate { bucket: u32, to: u16 },
    Disable(u16),
    Enable(u16),
    SetActive(u16),
}

impl BondRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// A sentence.
    pub fn read(words: &str, bond: &Bond, members: &Members) -> Result<BondRequest, String> {
        let known = |name: &str| {
            let id = members.id(name).filter(|id| members.get(*id).is_some());
            id.ok_or_else(|| show::no_member(bond, name))
        };
        let words: Vec<&str> = words.split_whitespace().collect();
        let command = match *words.as_slice() {
            ["show"] => return Ok(BondRequest::Question(Question::Show)),
            ["buckets"] => return Ok(BondRequest::Question(Question::Buckets)),
            ["rebalance"] => return Ok(BondRequest::Question(Question::Rebalance)),
            ["rebalance", "dry-run"] => return Ok(BondRequest::Question(Question::DryRun)),
            ["migrate", bucket, name] => {
                let to = known(name)?;
                let bucket = bucket.parse().map_err(|_| format!("`{bucket}` is not a bucket number"))?;
                if !bond.mode.is_balanced() {
                    return Err(format!("in mode {}, buckets cannot be moved manually", bond.mode.name()));
                }
                Command::Migrate { bucket, to }
            }
            ["disable", name] => Command::Disable(known(name)?),
            ["enable", name] => Command::Enable(known(name)?),
            ["set-active", name] => Command::SetActive(known(name)?),
            _ => return Err(UNDERSTOOD.to_string()),
        };
        Ok(BondRequest::Command(command))
    }
}

impl BondApp {
    /// Buckets were read: continues with what was waiting for that.
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
                Question::Show => show::bond(self, now_ns),
                Question::Buckets => show::buckets(self),
                Question::Rebalance => {
                    let carriers = self.carriers();
                    let plan = self.rebalance(now_ns, true, actions);
                    show::plan(self, plan.as_ref().map(|plan| (plan, carriers.as_slice())))
                }
                Question::DryRun => {
                    let carriers = self.carriers();
                    let plan = self.may_rebalance().then(|| self.traffic.plan(&self.bond, &carriers));
                    show::plan(self, plan.as_ref().map(|plan| (plan, carriers.as_slice())))
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
        let answer = match BondRequest::read(request.as_str().unwrap_or_default(), &self.bond, &self.members)
        {
            Ok(BondRequest::Question(question)) => {
                self.asked.push((id, question));
                return self.traffic.read(actions);
            }
            Ok(BondRequest::Command(command)) => self.carry_out(now_ns, command, actions),
            Err(why) => Err(why),
        };
        actions.push(Action::Answer { id, answer: answer.map(Value::String) });
    }

    fn carry_out(
        &mut self,
        now_ns: u64,
        command: Command,
        actions: &mut Vec<Action>,
    ) -> Result<String, String> {
        let wait_ms = self.bond.idle_gap_max_ns / 1_000_000;
        let (Command::Migrate { to: id, .. }
        | Command::Disable(id)
        | Command::Enable(id)
        | Command::SetActive(id)) = command;
        let name = self.members.name(id).to_string();
        match command {
            Command::Migrate { bucket, to } => {
                let moves = self.traffic.buckets.assignment.migrate(bucket, to);
                let moves = moves.map_err(|why| show::refusal(self, &why))?;
                let (traffic, context) = self.traffic(now_ns);
                traffic.order(context, &moves, "the operator's word", actions);
                Ok(format!("bucket {bucket} moves to {name} when it is idle, within {wait_ms} ms"))
            }
            Command::Disable(_) => {
                self.disable(now_ns, id, actions);
                Ok(format!(
                    "{name} is being drained: its buckets move when they are idle, within {wait_ms} \
                    ms"
                ))
            }
            Command::Enable(_) => {
                self.members.disabled.remove(&id);
                self.aggregation.release(id);
                self.notify_lacp(now_ns, lacp::Event::Hold { member: id, held: false }, actions);
                self.notify_links(now_ns, links::LinkEvent::Operator(id, true), actions);
                Ok(format!("{name} may be used again"))
            }
            Command::SetActive(_) => {
                if !self.is_single() && self.bond.mode != Mode::BalanceSlb {
                    return Err(format!("mode {} has no active member", self.bond.mode.name()));
                }
                let outputs = self.links.set_active(id).map_err(|_| format!("{name} is not enabled"))?;
                self.follow(now_ns, outputs, actions);
                Ok(format!("{name} is active"))
            }
        }
    }

    /// Takes a member out of use until it is enabled again.
    pub(super) fn disable(&mut self, now_ns: u64, id: u16, actions: &mut Vec<Action>) {
        self.members.disabled.insert(id);
        self.notify_links(now_ns, links::LinkEvent::Operator(id, false), actions);
        // The partner is informed once nothing leaves through the member any more.
        self.aggregation.hold(id, now_ns + self.leaves_in_ns());
    }
}
