//! Tables of pipes, one directory per type. Differences between types are resolved here and in `table.rs` by
//! exhaustive matches.
//!
//! The oracle's independent look-up (`oracle/src/lookup.rs`) shares none of this code.

pub(crate) mod acl;
pub(crate) mod basic;
pub(crate) mod flow;
pub(crate) mod hash;
pub(crate) mod lookup;
pub(crate) mod lpm;
pub(crate) mod table;
pub(crate) mod targets;

use crate::batch::compile_error::CompileError;
use table::Table;
use weir_packet::TableHash;
use weir_program::{Pipe, PipeKind, Program};

/// Context for creating tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Making<'a> {
    pub program: &'a Program,
    pub hash: TableHash,
    pub secret: u64,
}

/// Creates an empty table for a pipe.
pub(crate) fn table_of(pipe: &Pipe, making: Making<'_>) -> Result<Table, CompileError> {
    let Making { program, hash, secret } = making;
    Ok(match &pipe.kind {
        PipeKind::Basic => Table::Basic(Box::new(basic::BasicTable::new(pipe, hash)?)),
        PipeKind::Hash { input, group } => Table::Hash(hash::HashTable::new(pipe, program, input, *group)?),
        PipeKind::Flow { key, learn, timeouts, first, reverse } => {
            let mut flows = flow::Flows::new(pipe, program, (*key, *learn, *timeouts), hash)?;
            flows.report_first(*first);
            flows.keep_values(pipe, program, *reverse);
            Table::Flow(Box::new(flows))
        }
        PipeKind::Lpm => Table::Lpm(lpm::LpmTable::new(pipe)?),
        PipeKind::Acl => Table::Acl(Box::new(acl::AclTable::new(pipe, secret)?)),
    })
}
