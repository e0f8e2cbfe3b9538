//! Flows of the programs, read a page at a time.

use super::layout::{Flow, FlowKey};
use super::{PathFlow, PathFlowKey};
use aya::maps::{HashMap, MapData};
use std::io;

/// A reader of the programs' flows.
pub struct PathFlows(pub(super) HashMap<MapData, [u8; FlowKey::SIZE], [u8; Flow::SIZE]>);

/// Some of the flows, and where the next ones begin; `None` after the last.
pub type PathFlowsPage = (Vec<(PathFlowKey, PathFlow)>, Option<u32>);

impl PathFlows {
    /// Returns up to `most` flows from a place on, 0 at first, and where the next page begins; `None` after
    /// the last. A flow that exists throughout is returned exactly once.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn page(&self, from: u32, most: u32) -> io::Result<PathFlowsPage> {
        let (some, next) = weir_bpf::elements(&self.0, from, most)?;
        Ok((some.iter().map(|(key, value)| (PathFlowKey(FlowKey::of(key)), flow(value))).collect(), next))
    }
}

fn flow(value: &[u8; Flow::SIZE]) -> PathFlow {
    let Flow { last_ns, packets, bytes, path, kernel_port, port, moves, .. } = Flow::of(value);
    PathFlow { last_ns, packets, bytes, path, kernel_port: kernel_port as u16, port: port as u16, moves }
}
