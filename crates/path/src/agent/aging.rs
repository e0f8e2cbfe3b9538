//! Forgets flows that have sent nothing for a while, so that the list of flows shows those that exist. It
//! reads a part of the flows at a time.

use crate::bpf::{PathFlow, PathFlows, TcPath};

/// How often a part of the flows is read, ns, and its size: 65,536 flows take 3 s.
const EVERY_NS: u64 = 50_000_000;
const PART: u32 = 1024;

/// The pause after all flows were read, ns.
const PAUSE_NS: u64 = 500_000_000;

/// A flow that has sent fewer packets may never have been answered.
const OPEN_PACKETS: u64 = 3;

/// How much sooner such a flow is forgotten.
const SOONER: u64 = 5;

/// The aging of an app's flows.
pub struct Aging {
    idle_timeout_ns: u64,
    flows: Option<PathFlows>,
    from: u32,
    due_ns: u64,
    forgotten: u64,
}

/// A flow's state as far as its packets show, in one word.
pub fn state_of(packets: u64) -> &'static str {
    if packets < OPEN_PACKETS { "opening" } else { "open" }
}

impl Aging {
    pub fn new(idle_timeout_ns: u64) -> Aging {
        Aging { idle_timeout_ns, flows: None, from: 0, due_ns: 0, forgotten: 0 }
    }

    /// How many flows were forgotten.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Reads a part of the flows if it is due, and forgets those that are idle. What cannot be read now is
    /// read the next time.
    pub fn tick(&mut self, now_ns: u64, programs: &TcPath) {
        if now_ns < self.due_ns {
            return;
        }
        self.due_ns = now_ns + EVERY_NS;
        let flows = match &mut self.flows {
            Some(flows) => flows,
            None => match programs.flows() {
                Ok(flows) => self.flows.insert(flows),
                Err(_) => return,
            },
        };
        let Ok((part, next)) = flows.page(self.from, PART) else { return };
        for (key, flow) in part {
            if is_idle(now_ns, &flow, self.idle_timeout_ns) && flows.forget(&key).is_ok() {
                self.forgotten += 1;
            }
        }
        self.from = next.unwrap_or_default();
        if next.is_none() {
            self.due_ns = now_ns + PAUSE_NS;
        }
    }
}

fn is_idle(now_ns: u64, flow: &PathFlow, timeout_ns: u64) -> bool {
    let timeout_ns = if flow.packets < OPEN_PACKETS { timeout_ns / SOONER } else { timeout_ns };
    now_ns.saturating_sub(flow.last_ns) > timeout_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_was_never_open_is_forgotten_sooner() {
        let flow = |packets| PathFlow { last_ns: 100, packets, ..PathFlow::default() };
        let idle = |now_ns, packets| is_idle(now_ns, &flow(packets), 50);
        assert_eq!([idle(110, 2), idle(111, 2), idle(150, 3), idle(151, 3)], [false, true, false, true]);
        assert!(!idle(90, 9), "another processor was later");
        assert_eq!([state_of(2), state_of(3)], ["opening", "open"]);
    }
}
