//! The search on random programs.

use std::collections::BTreeSet;
use weir_cover::compare::{buckets, compare};
use weir_cover::{Limits, explore};
use weir_oracle::arbitrary::{Choices, frame, program};
use weir_packet::craft::describe;
use weir_program::PortId;

const PROGRAMS: u64 = 25;

/// Packets go where the search says, unless it had to guess, and the engine agrees with the interpreter about
/// all of them. Random packets find few paths that it does not know: those that depend on meters, and on more
/// than one thing that is unusual.
#[test]
fn packets_take_the_paths_that_they_were_made_for() {
    let (mut known, mut unknown) = (0, BTreeSet::new());
    for seed in 0..PROGRAMS {
        let program = program(&mut Choices::from_seed(seed));
        let found = explore(&program, buckets(&program), Limits { packets: 2000, ..Limits::default() });
        if let Some((path, frame)) = found.missed.first_key_value() {
            let took = found.record.path_of(path.input, &found.record.explain(path.input, frame));
            panic!("seed {seed}: {path:?}\ntook {took:?}\n{}", describe(frame));
        }
        let compared = compare(&program, &program, &found.record.cases, false).expect("it compiles");
        if let Some(difference) = compared.differences.first() {
            let case = &found.record.cases[difference.case];
            panic!("seed {seed}: {difference:?}\n{}\n{}", case.purpose, describe(&case.frame));
        }
        let mut random = Choices::from_seed(seed + 1_000_000);
        for _ in 0..300 {
            let frame = frame(&mut random);
            let path = found.record.path_of(PortId(0), &found.record.explain(PortId(0), &frame));
            if !path.steps.is_empty()
                && path.end != "Drop(Metered)"
                && !found.record.paths.contains_key(&path)
            {
                unknown.insert((seed, path));
            }
        }
        known += found.record.paths.len();
    }
    assert!(known > 300, "{known} paths");
    assert!(unknown.len() * 25 < known, "{} of {known} paths were not found: {unknown:?}", unknown.len());
}
