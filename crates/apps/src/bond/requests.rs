//! Requests of an operator to a bond.

use super::app::BondApp;
use super::config::Mode;
use super::{lacp, links, show};
use crate::app::{Action, RequestId};
use serde_json::Value;

/// An operation that an operator waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Show,
    Buckets,
    Rebalance,
    DryRun,
}

impl BondApp {
    pub(super) fn request(&mut self, now_ns: u64, id: RequestId, request: &Value, actions: &mut Vec<Action>) {
        let words: Vec<&str> = request.as_str().unwrap_or_default().split_whitespace().collect();
        let question = match words.as_slice() {
            ["show"] => Some(Question::Show),
            ["buckets"] => Some(Question::Buckets),
            ["rebalance"] => Some(Question::Rebalance),
            ["rebalance", "dry-run"] => Some(Question::DryRun),
            _ => None,
        };
        if let Some(question) = question {
            self.state.asked.push((id, question));
            self.read_buckets(actions);
            return;
        }
        let answer = self.command(now_ns, &words, actions).map(Value::String);
        actions.push(Action::Answer { id, answer });
    }

    fn command(&mut self, now_ns: u64, words: &[&str], actions: &mut Vec<Action>) -> Result<String, String> {
        let named = |name: &str| self.id(name).filter(|id| self.member(*id).is_some());
        let known = |name: &str| named(name).ok_or_else(|| show::no_member(self, name));
        match *words {
            ["migrate", bucket, name] => {
                let to = known(name)?;
                let bucket = bucket.parse().map_err(|_| format!("`{bucket}` is not a bucket's number"))?;
                if !self.bond.mode.is_balanced() {
                    return Err(format!("in mode {} buckets do not move by hand", self.bond.mode.name()));
                }
                let moves = self.state.assignment.migrate(bucket, to).map_err(|why| show::refusal(self, &why))?;
                self.order(now_ns, &moves, "the operator's word", actions);
                Ok(format!("bucket {bucket} goes to {name} when it is idle, within {} ms", self.wait_ms()))
            }
            ["disable", name] => {
                let id = known(name)?;
                self.state.disabled.insert(id);
                self.tell_links(now_ns, links::Event::Operator(id, false), actions);
                // The partner is informed once nothing is sent through the member any more.
                self.state.holding.insert(id, now_ns + self.leaves_in_ns());
                Ok(format!("{name} is left: its buckets move when they are idle, within {} ms", self.wait_ms()))
            }
            ["enable", name] => {
                let id = known(name)?;
                self.state.disabled.remove(&id);
                self.state.holding.remove(&id);
                self.tell_lacp(now_ns, lacp::Event::Hold { member: id, held: false }, actions);
                self.tell_links(now_ns, links::Event::Operator(id, true), actions);
                Ok(format!("{name} may be used again"))
            }
            ["set-active", name] => {
                let id = known(name)?;
                if !self.is_single() && self.bond.mode != Mode::BalanceSlb {
                    return Err(format!("in mode {} no member is the active one", self.bond.mode.name()));
                }
                let outputs = self.state.links.set_active(id).map_err(|_| format!("{name} is not enabled"))?;
                self.follow(now_ns, outputs, actions);
                Ok(format!("{name} is active"))
            }
            _ => Err("a bond understands show, buckets, migrate BUCKET MEMBER, disable MEMBER, enable MEMBER, \
                      set-active MEMBER, rebalance and rebalance dry-run"
                .to_string()),
        }
    }

    fn wait_ms(&self) -> u64 {
        self.bond.idle_gap_max_ns / 1_000_000
    }
}
