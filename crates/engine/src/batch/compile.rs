//! Compiles a pipe: guards, a table of the right type, plans for its actions, and its entries.

use crate::aggregate::{Aggregate, RowTargets};
use crate::batch::compile_error::{CompileError, milliseconds};
use crate::batch::load::Guards;
use crate::batch::rows::{Actions, PipeWide, Slab};
use crate::batch::steps::Plan;
use crate::pipes::table::Table;
use crate::pipes::{Making, table_of};
use std::collections::HashMap;
use weir_program::change::{ChangeError, EntryKey};
use weir_program::check::Shape;
use weir_program::snapshot::Count;
use weir_program::{AppId, Criterion, Forward, MeterConfig, Pipe, Program, SharedUse};

/// A pipe that is ready to run.
#[derive(Debug)]
pub struct CompiledPipe {
    /// The pipe as written, without its entries.
    pub shape: Pipe,
    pub guards: Guards,
    pub table: Table,
    /// The rows that the table's keys lead to; unused if the table keeps them itself.
    pub slab: Slab,
    pub wide: PipeWide,
    pub plans: Vec<Plan>,
    pub actions: Actions,
    /// The traffic that passes, summed up by flow, if the pipe is measured and there is no flow table.
    pub sums: Option<Box<Aggregate>>,
    pub forward: Forward,
    pub miss: Forward,
    pub too_long: Option<AppId>,
    pub drop_red: bool,
    pub metered: bool,
    pub counted: bool,
    pub rehash: bool,
    pub idle_timeout_ms: u32,
    /// Whether other workers have replicas of its entries.
    pub shared: bool,
    /// Where the next check of ages starts.
    pub aged: u32,
    pub capacity: u32,
    /// While counts are being taken over from the pipe's predecessor: the keys of entries added or removed
    /// meanwhile, and whether each existed before.
    pub settling: Option<HashMap<EntryKey, bool>>,
    /// Entries for which room is held while a reservation has the pipe.
    pub held: Option<u32>,
    /// Packets that hit entries, including removed ones.
    pub hits: u64,
    pub misses: Count,
}

/// Compiles a pipe without its entries.
pub fn pipe(pipe: &Pipe, making: Making<'_>) -> Result<CompiledPipe, CompileError> {
    let plans: Vec<Plan> = pipe
        .templates
        .iter()
        .map(|one| Plan::new(one, &making.program.tunnels, pipe.kind.translates()))
        .collect();
    let given = (0..pipe.templates.len()).map(|at| pipe.values_wanted(at as u16)).max().unwrap_or(0);
    let table = table_of(pipe, making)?;
    let has_slab = !matches!(table, Table::Basic(_));
    let (counter, meter) = (pipe.monitor.counter, pipe.monitor.meter);
    let apart = has_slab && counter == Some(SharedUse::PerEntry);
    let wide = PipeWide { forward: pipe.forward, counter, apart, meter };
    let most = pipe.kind.entries_max(making.program, pipe.capacity);
    Ok(CompiledPipe {
        shape: pipe.without_entries(),
        guards: guards(pipe),
        slab: Slab::with_capacity(if has_slab { most } else { 0 }),
        table,
        wide,
        actions: Actions::new(&plans, given, most),
        plans,
        sums: sums(pipe, making)?,
        forward: pipe.forward,
        miss: pipe.miss,
        too_long: pipe.too_long,
        drop_red: pipe.monitor.drop_red,
        metered: pipe.monitor.meter.is_some(),
        counted: pipe.monitor.counter.is_some(),
        rehash: pipe.rehash,
        idle_timeout_ms: milliseconds(pipe.monitor.idle_timeout_ns),
        aged: 0,
        capacity: pipe.capacity,
        settling: None,
        held: None,
        shared: false,
        hits: 0,
        misses: Count::default(),
    })
}

fn sums(pipe: &Pipe, making: Making<'_>) -> Result<Option<Box<Aggregate>>, CompileError> {
    let Some(measured) = pipe.sums_up() else { return Ok(None) };
    let number = making.program.pipe_named(&pipe.name).unwrap_or_default();
    let secret = [making.secret, making.hash.hash(&[1])];
    let sums = Aggregate::new(measured, number.0, secret);
    let sums = sums.map_err(|why| CompileError::Sums { pipe: pipe.name.clone(), why: why.to_string() })?;
    Ok(Some(Box::new(sums.sending_to(RowTargets::new(making.program, pipe)))))
}

fn guards(pipe: &Pipe) -> Guards {
    let constant = |one: &weir_program::Match| match one.criterion {
        Criterion::Const { value, mask } => Some((one.field, value, mask)),
        _ => None,
    };
    Guards::new(&pipe.matches.iter().filter_map(constant).collect::<Vec<_>>())
}

/// Returns the error for a refused entry of the program.
pub fn refused(pipe: &Pipe, entry: usize, why: &ChangeError) -> CompileError {
    CompileError::Entry { pipe: pipe.name.clone(), entry: entry + 1, why: why.to_string() }
}

/// Creates a meter with full buckets.
pub fn meter(name: &str, config: &MeterConfig) -> Result<weir_table::Meter, CompileError> {
    weir_table::Meter::new(*config)
        .map_err(|why| CompileError::Meter { meter: name.into(), why: why.to_string() })
}

/// Returns the order of pipes: every forward leads onward, and among several candidates the one written first
/// comes first.
pub fn order(program: &Program, shape: &Shape) -> Result<Vec<usize>, CompileError> {
    let order: Vec<usize> = shape.order.iter().map(|pipe| pipe.index()).collect();
    match (0..program.pipes.len()).find(|at| !order.contains(at)) {
        Some(at) => Err(CompileError::Loop(program.pipes[at].name.clone())),
        None => Ok(order),
    }
}
