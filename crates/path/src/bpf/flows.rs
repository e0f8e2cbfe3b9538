//! Flows of the programs, read a page at a time.

use super::{FLOW, PathFlow, PathFlowKey, flow};
use aya::maps::{HashMap, MapData};
use std::io;

/// A reader of the programs' flows.
pub struct PathFlows(pub(super) HashMap<MapData, [u32; 12], [u32; FLOW]>);

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
        Ok((some.iter().map(|&(words, value)| (PathFlowKey { words }, flow(&value))).collect(), next))
    }
}
