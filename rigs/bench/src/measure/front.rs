//! The aggregator in front of a solution: its parameters, and the arms with and without it.

use super::round::{Aggregated, ArmCost, BURST, Make, Nothing, Pure, SEED, measure_in};
use super::solutions::{Keys, solution};
use anyhow::Result;
use serde_json::{Value, json};
use weir_sketch::{Aggregator, Compare, Gate, Policy, Scalar, Update, Vectors};

/// Bytes of the aggregator: 29,000 keys of 13 bytes (the paper has 32,000 keys of 4 bytes).
pub const AGGREGATOR: usize = 1 << 20;

/// Its replacement policy, except where policies are compared.
pub const POLICY: Policy = Policy::MinCount;

/// Rounds in which a look-up and an update are measured, to decide whether aggregation pays.
const PROBES: usize = 3;

/// The parameters of an aggregator, and the packets of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    /// KV arrays, of sixteen keys each; without them, as many as [`AGGREGATOR`] bytes have.
    pub kvs: Option<usize>,
    /// The replacement policy.
    pub policy: Policy,
    /// Tags are compared one by one, without vector instructions.
    pub is_scalar: bool,
    /// It is on even where it does not pay.
    pub is_always_on: bool,
    /// Packets per batch.
    pub batch: usize,
}

impl Front {
    /// As weir uses it.
    pub const OURS: Front =
        Front { kvs: None, policy: POLICY, is_scalar: false, is_always_on: false, batch: BURST };

    /// As in the paper, where the aggregator is always on.
    pub const PAPER: Front = Front { policy: Policy::Grr, is_always_on: true, ..Front::OURS };

    /// Returns the number of KV arrays for keys of `W` words.
    pub fn kvs<const W: usize>(self) -> usize {
        self.kvs.unwrap_or(AGGREGATOR / Aggregator::<W>::BYTES_PER_ROW)
    }

    /// Adds its fields, except the KV arrays, to a JSON object.
    pub fn put(self, row: &mut Value) {
        row["aggregator"] = json!(self.policy.word());
        row["simd"] = json!(!self.is_scalar);
        row["always_on"] = json!(self.is_always_on);
        row["batch"] = json!(self.batch);
    }

    fn aggregator<const W: usize, M: Compare>(self, gate: Gate) -> Result<Aggregator<W, M>> {
        let bytes = self.kvs::<W>() * Aggregator::<W>::BYTES_PER_ROW;
        Ok(Aggregator::comparing(bytes, self.policy, gate, &SEED)?)
    }

    /// Returns the arm of a solution behind this aggregator.
    fn arm<const W: usize, const Q: usize, const L: usize>(
        self,
        name: &'static str,
        keys: Keys<W>,
        gate: Gate,
    ) -> Result<Make<'static, W>> {
        // Create both once here, so that an impossible size is an error and not a panic in an arm.
        drop((solution::<W, Q, L>(name, keys.source)?, self.aggregator::<W, Vectors>(gate)?));
        let sketch = move || solution::<W, Q, L>(name, keys.source).expect("it was created before");
        const CREATED: &str = "it was created before";
        Ok(if self.is_scalar {
            Box::new(move || {
                let aggregator = self.aggregator::<W, Scalar>(gate).expect(CREATED);
                Box::new(Aggregated::new(aggregator, sketch()))
            })
        } else {
            Box::new(move || {
                let aggregator = self.aggregator::<W, Vectors>(gate).expect(CREATED);
                Box::new(Aggregated::new(aggregator, sketch()))
            })
        })
    }

    /// Returns the arm of the aggregator without a solution behind it.
    fn look_up<const W: usize>(self) -> Make<'static, W> {
        let gate = Gate::always_open();
        const CREATED: &str = "it was created before";
        if self.is_scalar {
            Box::new(move || {
                let aggregator = self.aggregator::<W, Scalar>(gate).expect(CREATED);
                Box::new(Aggregated::new(aggregator, Box::new(|_| ())))
            })
        } else {
            Box::new(move || {
                let aggregator = self.aggregator::<W, Vectors>(gate).expect(CREATED);
                Box::new(Aggregated::new(aggregator, Box::new(|_| ())))
            })
        }
    }
}

/// Returns an aggregator of [`AGGREGATOR`] bytes whose evictions are not counted.
pub fn alone<const W: usize, M: Compare>(policy: Policy, gate: Gate) -> Aggregated<W, M> {
    let aggregator = Aggregator::comparing(AGGREGATOR, policy, gate, &SEED);
    Aggregated::new(aggregator.expect("it is larger than a row"), Box::new(|_| ()))
}

/// Returns the arm of a solution that counts every packet.
fn pure<const W: usize, const Q: usize, const L: usize>(
    name: &'static str,
    keys: Keys<W>,
) -> Make<'static, W> {
    let sketch = move || solution::<W, Q, L>(name, keys.source).expect("it was created before");
    Box::new(move || Box::new(Pure::new(sketch())))
}

/// Measures nothing, a solution alone, and the solution behind an aggregator whose gate knows what a look-up
/// and an update cost on this traffic.
pub fn pair<const W: usize, const Q: usize, const L: usize>(
    name: &'static str,
    keys: Keys<W>,
    packets: &[Update<W>],
    rounds: usize,
    front: Front,
) -> Result<[ArmCost; 3]> {
    let gate = if front.is_always_on {
        Gate::always_open()
    } else {
        drop((solution::<W, Q, L>(name, keys.source)?, front.aggregator::<W, Vectors>(Gate::default())?));
        let arms = [pure::<W, Q, L>(name, keys), front.look_up()];
        let costs = measure_in(front.batch, packets, rounds.min(PROBES), &arms);
        Gate::for_costs(costs[1].ns.median, costs[0].ns.median)
    };
    let aggregated = front.arm::<W, Q, L>(name, keys, gate)?;
    let floor: Make<'_, W> = Box::new(|| Box::new(Nothing));
    let arms = [floor, pure::<W, Q, L>(name, keys), aggregated];
    let costs = measure_in(front.batch, packets, rounds, &arms);
    Ok([0, 1, 2].map(|at| costs[at]))
}

/// Measures a solution alone, and behind each of some aggregators that are always on, in batches of the first
/// one.
pub fn sweep<const W: usize>(
    name: &'static str,
    keys: Keys<W>,
    packets: &[Update<W>],
    rounds: usize,
    fronts: &[Front],
) -> Result<Vec<ArmCost>> {
    let batch = fronts.first().map_or(BURST, |front| front.batch);
    let mut arms = vec![pure::<W, 4, 1>(name, keys)];
    for front in fronts {
        arms.push(front.arm::<W, 4, 1>(name, keys, Gate::always_open())?);
    }
    Ok(measure_in(batch, packets, rounds, &arms))
}
