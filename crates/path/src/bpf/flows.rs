//! Flows of the programs, read a page at a time.

use super::layout::{self, Flow, FlowKey};
use super::{PathDecision, PathFlow, PathFlowKey};
use aya::maps::{HashMap, MapData, MapError};
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

    /// Forgets a flow: its next packet begins it again.
    ///
    /// # Errors
    /// Returns the system's error, unless the flow is gone already.
    pub fn forget(&mut self, key: &PathFlowKey) -> Result<(), MapError> {
        match self.0.remove(&key.0.bytes()) {
            Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

fn flow(value: &[u8; Flow::SIZE]) -> PathFlow {
    let Flow { last_ns, packets, bytes, path, kernel_port, decision, port, moves, .. } = Flow::of(value);
    let decision = match u32::from(decision) {
        move_ if move_ == layout::AFTER_GAP as u32 => PathDecision::AfterGap,
        move_ if move_ == layout::AFTER_FAILURE as u32 => PathDecision::AfterFailure,
        move_ if move_ == layout::AFTER_REHASH as u32 => PathDecision::AfterRehash,
        move_ if move_ == layout::WITHOUT_GAP as u32 => PathDecision::WithoutGap,
        _ => PathDecision::AtFirst,
    };
    PathFlow { last_ns, packets, bytes, path, kernel_port, port: port as u16, moves, decision }
}
