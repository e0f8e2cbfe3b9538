//! The comparison: the same messages with every arm, many times, in random order.
//!
//! A run sends one message over each of several concurrent flows. The results are the time of the last one
//! (`MaxFCT`, as DOCA-AR's authors call it), and the times of all flows. The arms take turns, so that a
//! machine that is slow for a while is slow for all of them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use weir_packet::random::Random;

use super::cell::{Cell, ElephantStarts, Sample};
use super::elephant::Elephant;
use super::messages::Messages;
use super::node::{Moves, Nodes, PathScheme, Scheme};
use super::statistics::{at, shuffle, sorted};
use super::topology::{LINKS, Topology};
use crate::Interrupt;
use crate::premise::{Unmet, carried, premise};
use crate::stream::{RunningStream, outages_ms};
use weir_bed::Run;

/// How long the elephant runs before flows start, so that its queue is full and a prober has noticed.
const SETTLE: Duration = Duration::from_millis(1200);
/// The pause between runs, in which queues empty.
const PAUSE: Duration = Duration::from_millis(100);
/// When a late elephant starts: 5 MB flows have left slow start, and have most of their data still to send.
const LATE: Duration = Duration::from_millis(400);
/// Packets per second of the stream while links are cut: one per flow every 5 ms.
const STREAM_RATE: u32 = 3200;
/// How long the stream runs before a link is cut, and how long the link stays cut.
const LEAD: Duration = Duration::from_millis(500);
/// How often runs are performed whose elephant has not filled its link.
const TRIES: usize = 3;
/// Duration of each turn of opening connections.
const CONNECTING: Duration = Duration::from_millis(1000);

/// The plan of a comparison.
pub struct ComparisonPlan {
    /// Rate of a link in Mbit/s.
    pub rate_mbit: u32,
    /// The elephant's rate, in percent of the link rate.
    pub elephant_percent: u32,
    /// Runs of each arm in each cell.
    pub runs: usize,
    /// Runs of DOCA-AR's arms, whose rare slow runs need many runs to count.
    pub faithful_runs: usize,
    /// The cells to measure.
    pub cells: Vec<Cell>,
    /// The arms, at least one; the first is the baseline for the others.
    pub arms: Vec<PathScheme>,
    /// Determines the order of runs.
    pub seed: u64,
}

impl ComparisonPlan {
    /// Number of rounds.
    fn rounds(&self) -> usize {
        let has = |faithful| self.arms.iter().any(|arm| (arm.scheme == Scheme::DocaAr) == faithful);
        let of = |faithful, runs| if has(faithful) { runs } else { 0 };
        of(false, self.runs).max(of(true, self.faithful_runs))
    }

    /// The arms that take part in a round, counted from 1. Arms with fewer runs are spread over all rounds.
    fn arms_of(&self, round: usize) -> Vec<PathScheme> {
        let rounds = self.rounds();
        let takes_part = |arm: &&PathScheme| {
            let runs = if arm.scheme == Scheme::DocaAr { self.faithful_runs } else { self.runs };
            round * runs / rounds > (round - 1) * runs / rounds
        };
        self.arms.iter().filter(takes_part).copied().collect()
    }

    /// Returns the conditions that samples must have in common.
    #[must_use]
    pub fn conditions(&self) -> [u32; 2] {
        [self.rate_mbit, self.elephant_percent]
    }
}

/// The effect of a reload on flows.
#[derive(Clone, Copy, Debug)]
pub struct Reload {
    /// Entries of the program.
    pub entries: u32,
    /// How long it took, including reading the file.
    pub seconds: f64,
    /// Moves of flows during the reload, except those after a pause, which the stream's own sender causes.
    /// These are moves off a path that counts as failed or congested because its prober was late.
    pub moves: u64,
}

impl Reload {
    /// The result as a line of text.
    #[must_use]
    pub fn text(self) -> String {
        let Reload { entries, seconds, moves } = self;
        format!("a reload of {entries} entries, {seconds:.1} s: it caused {moves} moves")
    }

    /// The result as JSON. This format is stable.
    #[must_use]
    pub fn json(self) -> Value {
        json!({ "entries": self.entries, "seconds": self.seconds, "moves": self.moves })
    }
}

/// The network with everything that runs in it.
pub struct ComparisonBed {
    topology: Topology,
    elephant: Elephant,
    messages: Messages,
    nodes: Nodes,
}

impl ComparisonBed {
    /// Sets up the network; `run` removes it.
    pub fn start(run: &mut Run, plan: &ComparisonPlan, interrupt: &Interrupt) -> Result<ComparisonBed> {
        let topology = Topology::build(run, plan.rate_mbit)?;
        let offered = plan.rate_mbit * plan.elephant_percent / 100;
        let elephant = Elephant::start(run, &topology, offered, interrupt.slowdown())?;
        let messages = Messages::start(run, &topology)?;
        let nodes = Nodes::start(run, &topology, plan.arms[0], interrupt)?;
        Ok(ComparisonBed { topology, elephant, messages, nodes })
    }

    /// Runs the comparison. Passes the samples of every turn of an arm to `take`, with the number of the
    /// round.
    pub fn compare(
        &mut self,
        run: &mut Run,
        plan: &ComparisonPlan,
        interrupt: &Interrupt,
        take: &mut dyn FnMut(usize, Vec<Sample>) -> Result<()>,
    ) -> Result<()> {
        let mut random = Random::new(plan.seed);
        for number in 1..=plan.rounds() {
            let mut arms = plan.arms_of(number);
            shuffle(&mut random, &mut arms);
            for arm in arms {
                self.nodes.choose_by(&self.topology, arm, interrupt)?;
                let moves = self.moves_alone(arm)?;
                for before in [false, true] {
                    let fits = |cell: &Cell| (cell.elephant == ElephantStarts::Before) == before;
                    let mut cells: Vec<Cell> = plan.cells.iter().copied().filter(fits).collect();
                    shuffle(&mut random, &mut cells);
                    take(number, self.samples_under_load(run, (&cells, arm), interrupt)?)?;
                }
                if let Some((before, after)) = moves.zip(self.moves_alone(arm)?) {
                    keep_order(before, after)?;
                }
            }
        }
        Ok(())
    }

    /// Returns a's counts of flow moves if its scheme is `one_sided`.
    fn moves_alone(&self, arm: PathScheme) -> Result<Option<Moves>> {
        (arm.scheme == Scheme::OneSided).then(|| self.nodes.moves()).transpose()
    }

    /// Performs one run of each cell. If this machine stood still for so long that the elephant left room on
    /// its link, the samples show nothing, and the runs are performed again.
    fn samples_under_load(
        &mut self,
        run: &mut Run,
        (cells, arm): (&[Cell], PathScheme),
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>> {
        for _ in 1..TRIES {
            match self.samples(run, (cells, arm), interrupt) {
                Err(error) if error.is::<Unmet>() => {}
                ended => return ended,
            }
        }
        self.samples(run, (cells, arm), interrupt)
    }

    /// Performs one run of each cell; the elephant starts before all of them or none.
    fn samples(
        &mut self,
        run: &mut Run,
        (cells, arm): (&[Cell], PathScheme),
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>> {
        let mut samples = Vec::new();
        if cells.iter().any(|cell| cell.elephant == ElephantStarts::Before) {
            self.elephant.go_on(run, &self.topology)?;
            interrupt.sleep(SETTLE)?;
        }
        for &cell in cells {
            interrupt.sleep(PAUSE)?;
            let bytes = cell.regime.bytes(self.topology.rate_mbit);
            self.messages.begin(cell.flows, bytes)?;
            if cell.elephant == ElephantStarts::After {
                interrupt.sleep(LATE)?;
                self.elephant.go_on(run, &self.topology)?;
            }
            let flow_ms = self.messages.end(run, interrupt)?;
            premise(flow_ms.len() == cell.flows, || {
                format!("{} of {} flows have ended", flow_ms.len(), cell.flows)
            })?;
            if cell.elephant == ElephantStarts::After {
                self.elephant.hold(run, &self.topology)?;
            }
            samples.push(Sample { cell, arm, flow_ms });
        }
        self.elephant.hold(run, &self.topology)?;
        Ok(samples)
    }

    /// Makes the links drop everything, one after another, `cuts` times in total, under a stream of UDP
    /// flows. Returns the sorted outages, in milliseconds, of the flows that lost packets.
    pub fn cut(&mut self, run: &mut Run, cuts: usize, interrupt: &Interrupt) -> Result<Vec<f64>> {
        self.nodes.choose_by(&self.topology, PathScheme::OURS, interrupt)?;
        let mut outages = Vec::new();
        for number in 0..cuts {
            let stream = RunningStream::start(run, self.topology.ends(), STREAM_RATE, interrupt)?;
            interrupt.sleep(LEAD)?;
            self.topology.blackhole(number % LINKS)?;
            interrupt.sleep(LEAD)?;
            self.topology.mend()?;
            self.nodes.wait_for_paths(interrupt)?;
            let (sent, received) = stream.end(run, interrupt)?;
            outages.extend(outages_ms(&sent, &received));
        }
        premise(cuts == 0 || !outages.is_empty(), || {
            format!("{cuts} links were cut, but no flow lost a packet")
        })?;
        Ok(sorted(outages))
    }

    /// Makes a node read, check and compile a program with `entries` entries, and then one without them,
    /// under a stream of UDP flows.
    ///
    /// # Errors
    /// The reload has restarted the app: its counts start from 0.
    pub fn reload(&mut self, run: &mut Run, entries: u32, interrupt: &Interrupt) -> Result<Reload> {
        self.nodes.choose_by(&self.topology, PathScheme::OURS, interrupt)?;
        let stream = RunningStream::start(run, self.topology.ends(), STREAM_RATE, interrupt)?;
        interrupt.sleep(LEAD)?;
        let (before, start) = (self.nodes.moves()?, Instant::now());
        self.nodes.load(entries)?;
        let time = start.elapsed();
        self.nodes.load(0)?;
        interrupt.sleep(LEAD)?;
        let after = self.nodes.moves()?;
        let (_, received) = stream.end(run, interrupt)?;
        carried("the stream during the reload", received.len() as f64)?;
        ensure!(after.steered > before.steered, "the reload restarted the app: {before:?}, {after:?}");
        Ok(Reload { entries, seconds: time.as_secs_f64(), moves: after.forced - before.forced })
    }

    /// Opens connections with and without weir, in turns. Returns the ratio of the rate with weir to the rate
    /// without, as the median of `rounds`. In a round, each comes first once (with, without, without, with),
    /// so that drift on the machine does not bias the ratio.
    pub fn new_flows(&mut self, run: &mut Run, rounds: usize, interrupt: &Interrupt) -> Result<f64> {
        let mut ratios = Vec::new();
        for _ in 0..rounds {
            self.nodes.choose_by(&self.topology, PathScheme::OURS, interrupt)?;
            let mut with = self.messages.connect(run, CONNECTING)?;
            self.nodes.stop(run)?;
            let mut without = 0;
            for _ in 0..2 {
                without += self.messages.connect(run, CONNECTING)?;
            }
            self.nodes = Nodes::start(run, &self.topology, PathScheme::OURS, interrupt)?;
            with += self.messages.connect(run, CONNECTING)?;
            carried("the connections with weir", with as f64)?;
            carried("the connections without weir", without as f64)?;
            ratios.push(with as f64 / without as f64);
        }
        Ok(at(&sorted(ratios), 0.5))
    }

    /// Stops the daemons, which must end with success.
    pub fn stop(self, run: &mut Run) -> Result<()> {
        self.nodes.stop(run)
    }
}

/// Fails if flows of `one_sided` may have been reordered between two counts, or if there were none. Unlike
/// times, this does not depend on the machine.
fn keep_order(before: Moves, after: Moves) -> Result<()> {
    carried("one_sided", after.steered.saturating_sub(before.steered) as f64)?;
    let moves = after.without_gap.saturating_sub(before.without_gap);
    ensure!(moves == 0, "one_sided: without a pause, flows have left a path that worked: {moves} times");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_one_sided_no_flow_may_move_without_a_pause() {
        let moves = |steered, without_gap| Moves { steered, forced: 7 + without_gap, without_gap };
        assert!(keep_order(moves(5, 2), moves(6, 2)).is_ok());
        let error = |before, after| keep_order(before, after).unwrap_err().to_string();
        assert!(error(moves(5, 2), moves(6, 3)).contains("a path that worked: 1 times"));
        assert!(error(moves(5, 2), moves(5, 2)).contains("one_sided has carried nothing"));
    }

    #[test]
    fn arms_with_fewer_runs_are_spread_over_all_rounds() {
        let arms = [Scheme::Ecmp, Scheme::DocaAr].map(|scheme| PathScheme { scheme, rehash: false });
        let mut plan = ComparisonPlan {
            rate_mbit: 1,
            elephant_percent: 1,
            runs: 3,
            faithful_runs: 9,
            cells: Vec::new(),
            arms: arms.to_vec(),
            seed: 1,
        };
        let of = |plan: &ComparisonPlan| {
            (1..=plan.rounds()).map(|round| plan.arms_of(round).len()).collect::<Vec<_>>()
        };
        assert_eq!(of(&plan), [1, 1, 2, 1, 1, 2, 1, 1, 2]);
        plan.faithful_runs = 0;
        assert_eq!(of(&plan), [1; 3]);
        plan.arms.truncate(1);
        plan.faithful_runs = 9;
        assert_eq!(of(&plan), [1; 3], "no arm runs nine times");
    }
}
