//! Replaces `dpdk.rs` in a weir built without DPDK, where a DPDK port is an error.

use crate::config::{Plan, PortKind};
use anyhow::{Result, bail};
use weir_packet::{Pool, Port};
use weir_port::LinkState;

/// DPDK itself, which does not exist in this build: the type has no value.
pub enum Dpdk {}

/// The link of a DPDK port, which does not exist in this build: the type has no value.
#[derive(Clone)]
pub enum DpdkLink {}

impl DpdkLink {
    pub fn state(&self) -> LinkState {
        match *self {}
    }
}

impl Dpdk {
    /// Returns `None`. Fails if the plan has DPDK ports.
    pub fn open(plan: &Plan) -> Result<Option<Dpdk>> {
        match plan.ports.iter().find(|port| matches!(port.kind, PortKind::Dpdk { .. })) {
            Some(port) => {
                bail!(
                    "port `{}`: this weir was built without DPDK: build it with `--features dpdk`",
                    port.name
                )
            }
            None => Ok(None),
        }
    }

    pub fn pool(&self) -> Pool {
        match *self {}
    }

    pub fn links(&self) -> Vec<Option<DpdkLink>> {
        match *self {}
    }

    pub fn spread(&self, _at: usize) -> u32 {
        match *self {}
    }

    pub fn queue(&mut self, _at: usize) -> Result<Box<dyn Port>> {
        match *self {}
    }

    pub fn register(&self) -> impl FnOnce() -> Result<()> + Send + use<> {
        match *self {}
        #[expect(unreachable_code, reason = "gives the opaque type a type")]
        || Ok(())
    }
}
