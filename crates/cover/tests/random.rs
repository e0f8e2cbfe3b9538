//! The search on random programs.

use std::collections::BTreeSet;
use weir_cover::compare::{buckets, compare};
use weir_cover::shadow::unreachable;
use weir_cover::{Exploration, Limits, RowId, explore};
use weir_oracle::Effect;
use weir_oracle::arbitrary::{Choices, frame, program};
use weir_packet::DropReason;
use weir_packet::craft::describe;
use weir_program::{PipeId, PortId, Program, Verdict};

const PROGRAMS: u64 = 25;

/// Returns the entries that no packet is said to hit.
fn unreachable_rows(program: &Program, found: &Exploration) -> BTreeSet<RowId> {
    let proved = found.unhit.iter().filter(|one| one.proved).map(|one| one.row);
    let pipes = (0..program.pipes.len() as u16).map(PipeId);
    let shadowed = pipes.flat_map(|id| {
        let rows = unreachable(program, id, 20_000).into_iter();
        rows.map(move |(at, _)| (id, at)).collect::<Vec<_>>()
    });
    proved.chain(shadowed).collect()
}

/// Packets go where the search says, unless it had to guess, and the engine agrees with the interpreter about
/// all of them. Random packets find few paths that it does not know: those that depend on meters, and on more
/// than one thing that is unusual.
#[test]
fn packets_take_the_paths_that_they_were_made_for() {
    let (mut known, mut unknown) = (0, BTreeSet::new());
    for seed in 0..PROGRAMS {
        let program = program(&mut Choices::from_seed(seed));
        let found = explore(
            &program,
            buckets(&program).expect("it compiles"),
            Limits { packets: 2000, ..Limits::default() },
        );
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
        let unreachable = unreachable_rows(&program, &found);
        for _ in 0..300 {
            let frame = frame(&mut random);
            let walk = found.record.explain(PortId(0), &frame);
            for effect in &walk.effects {
                let Effect::Hit { pipe, row, .. } = effect else { continue };
                assert!(!unreachable.contains(&(*pipe, *row)), "seed {seed}: {}", describe(&frame));
            }
            let path = found.record.path_of(PortId(0), &walk);
            if !path.steps.is_empty()
                && path.end != Verdict::Drop(DropReason::Metered)
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
