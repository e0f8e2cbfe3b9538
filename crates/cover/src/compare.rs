//! Runs the packets of an exploration in every executor: the interpreter, the batch engine and, if the host
//! allows it, the program in the kernel.

use crate::record::{Case, HEADROOM, NOW_NS, RowId, rows_of};
use std::collections::BTreeSet;
use weir_engine::batch::{CompileError, Engine};
use weir_kernel::{Executor, FrameOutcome};
use weir_oracle::{Interpreter, Walk};
use weir_packet::{FRAME_BYTES_MAX, TableHash};
use weir_program::change::Change;
use weir_program::snapshot::Snapshot;
use weir_program::{Fill, Group, GroupId, Program, Verdict};

/// The time between the arrivals of two packets.
const APART_NS: u64 = 1_000;

/// The shortest and the longest frame that the kernel can be given.
const KERNEL_FRAMES: std::ops::RangeInclusive<usize> = 14..=3500;

/// A packet with which executors do not agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The position of the packet.
    pub case: usize,
    /// The executor that differs from the interpreter.
    pub executor: &'static str,
    /// What the interpreter does.
    pub wanted: String,
    /// What the executor does.
    pub found: String,
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub struct Comparison {
    /// The outcome of each packet in the interpreter, in their order.
    pub walks: Vec<Walk>,
    /// The entries that were hit.
    pub rows: BTreeSet<RowId>,
    /// Where executors differ.
    pub differences: Vec<Difference>,
    /// Packets that the kernel handled, and those that it left to the engine.
    pub kernel: Option<KernelCounts>,
    /// Why the kernel did not run the packets.
    pub without_kernel: Option<String>,
}

/// How many packets the kernel handled, and how many it did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Packets that the kernel handled.
    pub decided: usize,
    /// Packets that the kernel left to the engine.
    pub left: usize,
}

/// Returns the buckets of a program's groups, as workers have them at the start.
///
/// # Errors
/// The engine cannot run the program.
pub fn buckets(program: &Program) -> Result<Vec<Vec<u16>>, CompileError> {
    Ok(Engine::new(program, TableHash::random())?.buckets())
}

/// Returns what the interpreter does with packets that arrive one after the other, as in a comparison of
/// executors.
///
/// # Errors
/// The engine cannot run the program.
pub fn walks(program: &Program, cases: &[Case]) -> Result<Vec<Walk>, CompileError> {
    let mut oracle = Interpreter::new(program, buckets(program)?);
    for change in assignments(program) {
        let assigned = oracle.apply(&change);
        debug_assert!(assigned.is_ok(), "{assigned:?}");
    }
    let walk = |(case, now_ns): (&Case, u64)| oracle.walk(case.input, &case.frame, HEADROOM, now_ns);
    Ok(cases.iter().zip(arrivals()).map(walk).collect())
}

/// When packets arrive.
fn arrivals() -> impl Iterator<Item = u64> {
    (NOW_NS..).step_by(APART_NS as usize)
}

/// Returns changes that give the buckets which apps assign at run time to all targets in turn.
#[must_use]
pub fn assignments(program: &Program) -> Vec<Change> {
    let groups = (0..).map(GroupId).zip(&program.groups);
    let given = groups.filter(|(_, group)| group.fill == Fill::Given && !group.targets.is_empty());
    let moves = |group: &Group| {
        let targets = (0..group.targets.len() as u16).cycle();
        (0..group.size).zip(targets).collect()
    };
    let change = |(id, group): (GroupId, &Group)| Change::MoveBuckets {
        group: id,
        moves: moves(group),
        idle_gap_ns: 0,
        wait_max_ns: 0,
    };
    given.map(change).collect()
}

/// Runs packets one after the other, so that each finds the flows that earlier ones began. `compiled` is the
/// program that the engine and the kernel get: `program` itself, or one with a fault that is to be found.
///
/// The packets run three times: with the weights of the program, with one live target in each group, and with
/// none. The last two runs only add differences.
///
/// # Errors
/// The engine cannot run the program.
pub fn compare(
    program: &Program,
    compiled: &Program,
    cases: &[Case],
    with_kernel: bool,
) -> Result<Comparison, CompileError> {
    let mut comparison = run([program, compiled], cases, with_kernel, &assignments(program))?;
    if program.groups.iter().any(|group| !group.targets.is_empty()) {
        for (live, says) in [(1, "with one live target in each group: "), (0, "without live targets: ")] {
            let both = [program, compiled].map(|one| with_live(one, live));
            // Without them, the buckets that apps assign have no targets.
            let assigned = if live > 0 { assignments(program) } else { Vec::new() };
            let other = run(both.each_ref(), cases, with_kernel, &assigned)?;
            comparison.differences.extend(
                other
                    .differences
                    .into_iter()
                    .map(|one| Difference { wanted: format!("{says}{}", one.wanted), ..one }),
            );
        }
    }
    Ok(comparison)
}

/// Returns the program with only `live` live targets in each group that is filled by weights.
fn with_live(program: &Program, live: usize) -> Program {
    let mut changed = program.clone();
    for group in changed.groups.iter_mut().filter(|group| group.fill != Fill::Given) {
        let weighted = (0..group.targets.len()).filter(|at| group.targets[*at].weight > 0);
        for target in weighted.skip(live).collect::<Vec<_>>() {
            group.set_weight(target, 0);
        }
    }
    changed
}

fn run(
    [program, compiled]: [&Program; 2],
    cases: &[Case],
    with_kernel: bool,
    assigned: &[Change],
) -> Result<Comparison, CompileError> {
    let buckets = buckets(program)?;
    let mut oracle = Interpreter::new(program, buckets.clone());
    let mut engine = Engine::new(compiled, TableHash::random())?;
    let mut comparison = Comparison::default();
    for change in assigned {
        let wanted = oracle.apply(change);
        let done = engine.apply(change, NOW_NS);
        if done != wanted {
            let (wanted, found) = (format!("{wanted:?}"), format!("{done:?}"));
            comparison.differences.push(Difference { case: 0, executor: "engine", wanted, found });
        }
    }
    let kernel = match with_kernel.then(|| Executor::load(compiled, &buckets)) {
        Some(Ok(executor)) => Some(executor),
        Some(Err(error)) => {
            comparison.without_kernel = Some(error.to_string());
            None
        }
        None => None,
    };
    comparison.kernel = kernel.is_some().then(KernelCounts::default);
    for ((at, case), now_ns) in cases.iter().enumerate().zip(arrivals()) {
        let walk = oracle.walk(case.input, &case.frame, HEADROOM, now_ns);
        comparison.rows.extend(rows_of(&walk));
        if case.frame.len() <= FRAME_BYTES_MAX {
            let ran = engine.process_one(case.input, &case.frame, now_ns);
            let bytes_agree = matches!(walk.verdict, Verdict::Drop(_)) || ran.bytes == walk.bytes;
            if ran.verdict != walk.verdict || !bytes_agree || ran.copies != walk.copies {
                comparison.differ((program, at), "engine", &walk, (ran.verdict, &ran.bytes));
            }
        }
        if let Some(executor) = kernel.as_ref().filter(|_| KERNEL_FRAMES.contains(&case.frame.len())) {
            comparison.run_in_kernel((program, executor), (at, case), &walk);
        }
        comparison.walks.push(walk);
    }
    let (own, wanted) = (comparable(engine.snapshot()), comparable(oracle.snapshot()));
    if comparison.differences.is_empty() && own != wanted {
        comparison.differences.push(Difference {
            case: cases.len().saturating_sub(1),
            executor: "engine",
            wanted: "the counts, flows and buckets of the interpreter after the last packet".into(),
            found: first_difference(&own, &wanted),
        });
    }
    Ok(comparison)
}

impl Comparison {
    fn run_in_kernel(
        &mut self,
        (program, executor): (&Program, &Executor),
        (at, case): (usize, &Case),
        walk: &Walk,
    ) {
        let counts = self.kernel.get_or_insert_default();
        match executor.run(case.input, &case.frame) {
            Ok((FrameOutcome::Left(_), bytes)) if bytes == case.frame => counts.left += 1,
            Ok((FrameOutcome::Left(why), bytes)) => {
                let found =
                    format!("changes a packet that it leaves to the engine ({why:?}): {}", hex(&bytes));
                self.differences.push(Difference {
                    case: at,
                    executor: "kernel",
                    wanted: outcome(program, (walk.verdict, &walk.bytes)),
                    found,
                });
            }
            Ok((FrameOutcome::Decided(verdict), bytes)) => {
                counts.decided += 1;
                let bytes_agree = matches!(verdict, Verdict::Drop(_)) || bytes == walk.bytes;
                if verdict != walk.verdict || !bytes_agree {
                    self.differ((program, at), "kernel", walk, (verdict, &bytes));
                }
            }
            Err(error) => {
                let found = error.to_string();
                self.differences.push(Difference {
                    case: at,
                    executor: "kernel",
                    wanted: outcome(program, (walk.verdict, &walk.bytes)),
                    found,
                });
            }
        }
    }

    fn differ(
        &mut self,
        (program, case): (&Program, usize),
        executor: &'static str,
        walk: &Walk,
        (verdict, bytes): (Verdict, &[u8]),
    ) {
        let (wanted, found) =
            (outcome(program, (walk.verdict, &walk.bytes)), outcome(program, (verdict, bytes)));
        self.differences.push(Difference { case, executor, wanted, found });
    }
}

/// Returns a state without what executors are free to choose: the order of flows, and when they report
/// counts.
fn comparable(mut state: Snapshot) -> Snapshot {
    for pipe in &mut state.pipes {
        pipe.flows.sort_by_key(|flow| flow.key.0);
        for flow in &mut pipe.flows {
            flow.hits.add(std::mem::take(&mut flow.given));
        }
        pipe.account.live += std::mem::take(&mut pipe.account.given);
    }
    state
}

/// Names the first part of two states that differs.
fn first_difference(engine: &Snapshot, oracle: &Snapshot) -> String {
    let pipes = engine.pipes.iter().zip(&oracle.pipes).enumerate();
    for (at, (own, wanted)) in pipes {
        if own != wanted {
            return format!("pipe {}: {own:?}, not {wanted:?}", at + 1);
        }
    }
    format!("{:?} {:?}, not {:?} {:?}", engine.counters, engine.buckets, oracle.counters, oracle.buckets)
}

fn outcome(program: &Program, (verdict, bytes): (Verdict, &[u8])) -> String {
    format!("{}: {}", verdict.describe(program), hex(bytes))
}

fn hex(bytes: &[u8]) -> String {
    weir_packet::write_hex(bytes, "")
}
