//! The agents of all kinds of apps ([`weir_app::agent`]).

use anyhow::Result;
use std::sync::Arc;
use weir_app::agent::{Agent, DeltaReader, FlowTable, Host, Next};
use weir_app::kind::{Apps, Kind};

/// All agents. Dropping them ends their threads.
#[derive(Default)]
pub struct Agents(Vec<Box<dyn Agent>>);

impl Agents {
    /// Creates the agents of these kinds, which have not begun to work.
    pub fn of(kinds: &[Kind]) -> Agents {
        Agents(kinds.iter().filter_map(|kind| kind.agent).map(|create| create()).collect())
    }

    /// Returns the readers of flow deltas.
    pub fn readers(&mut self) -> Vec<Box<dyn DeltaReader>> {
        self.0.iter_mut().filter_map(|agent| agent.reader()).collect()
    }

    /// Announces a program that no worker runs yet.
    pub fn prepare(&mut self, next: &Next<'_>) {
        self.0.iter_mut().for_each(|agent| agent.prepare(next));
    }

    /// Makes the agents work for these apps from now on. If an agent cannot, all others still do.
    pub fn follow(&mut self, apps: &Apps, host: &Host<'_>) -> Result<()> {
        let followed = self.0.iter_mut().map(|agent| agent.follow(apps, host)).fold(Ok(()), Result::and);
        let tables = self.flow_tables();
        self.0.iter_mut().for_each(|agent| agent.follow_tables(&tables));
        followed
    }

    /// Returns the flow tables outside of pipes.
    pub fn flow_tables(&self) -> Vec<Arc<dyn FlowTable>> {
        self.0.iter().flat_map(|agent| agent.flow_tables()).collect()
    }
}
