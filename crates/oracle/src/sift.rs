//! Entries that are stored elsewhere: out of a million entries in a daemon, a walk needs those on which its
//! look-ups depend. They are read one by one, and irrelevant ones are dropped along the way.

use super::Interpreter;
use super::lookup::{best, failed_constant};
use super::near::{nearest, nearest_flow};
use super::packet::Packet;
use super::source::EntrySource;
use super::state::{PipeState, Row};
use super::trace::KeyField;
use weir_program::snapshot::Count;
use weir_program::{Entry, EntryMatch, Pipe, PipeId, PipeKind};

/// Entries read before irrelevant ones are dropped.
const BATCH: usize = 64;

impl EntrySource for Interpreter {
    fn each_entry(&self, pipe: PipeId, each: &mut dyn FnMut(Entry)) {
        self.pipes[pipe.index()].rows.iter().for_each(|row| each(row.entry.clone()));
    }
}

impl PipeState {
    /// The entries that a walk sees: the pipe's, or what [`Interpreter::sift`] has kept of a source's.
    pub fn rows(&self) -> &[Row] {
        self.sifted.get().unwrap_or(&self.rows)
    }

    /// Returns the position of the entry with exactly this match.
    pub fn row_of(&self, wanted: &EntryMatch) -> Option<usize> {
        self.rows().iter().position(|row| row.entry.matches == [*wanted])
    }
}

impl Interpreter {
    /// Reads the entries of a pipe and keeps those on which the look-up of a packet depends. Programs have no
    /// loops, so a packet meets a pipe only once.
    pub(super) fn sift(&self, id: PipeId, packet: &Packet, key: &[KeyField], entries: &dyn EntrySource) {
        let pipe = &self.program.pipes[id.index()];
        let mut rows = Vec::new();
        let mut most = BATCH;
        entries.each_entry(id, &mut |entry| {
            rows.push(Row { entry, hits: Count::default(), last_hit_ms: None, added_ms: 0 });
            if rows.len() >= most {
                forget(pipe, packet, key, &mut rows);
                most = 2 * rows.len() + BATCH;
            }
        });
        forget(pipe, packet, key, &mut rows);
        let _ = self.pipes[id.index()].sifted.set(rows);
    }
}

/// Drops the entries on which the look-up of a packet does not depend. The look-up picks the same one from
/// the remaining entries as from all.
fn forget(pipe: &Pipe, packet: &Packet, key: &[KeyField], rows: &mut Vec<Row>) {
    let nearest = |rows: &[Row]| nearest(key, rows).map(|near| near.row);
    if key.iter().any(|field| failed_constant(field).is_some()) {
        let one = nearest(rows);
        return keep_rows(rows, |at, _| Some(at) == one);
    }
    match pipe.kind {
        PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => {
            let one = best(pipe, key, rows).or_else(|| nearest(rows));
            keep_rows(rows, |at, _| Some(at) == one);
        }
        // A row for each target.
        PipeKind::Hash { .. } => {}
        PipeKind::Flow { key: source, .. } => {
            let flow = packet.key(source);
            let own = flow.and_then(|flow| {
                let its = rows.iter().position(|row| row.entry.matches == [EntryMatch::Flow(flow)]);
                its.or_else(|| nearest_flow(&flow, rows).map(|near| near.row))
            });
            keep_rows(rows, |at, row| {
                Some(at) == own || !matches!(row.entry.matches[..], [EntryMatch::Flow(_)])
            });
        }
    }
}

fn keep_rows(rows: &mut Vec<Row>, keep: impl Fn(usize, &Row) -> bool) {
    let mut at = 0..;
    rows.retain(|row| at.next().is_some_and(|at| keep(at, row)));
}
