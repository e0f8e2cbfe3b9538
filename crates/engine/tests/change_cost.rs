//! The cost of a change does not grow with the number of entries.

mod support;

use support::{Bench, start};
use weir_packet::Field;
use weir_program::change::{Change, EntryKey};
use weir_program::{Criterion, Entry, EntryMatch, Operation, Pipe, PipeId, PortId, Value};

#[test]
fn a_change_does_not_search_the_other_entries() {
    // If each change searched all entries or actions, this would take minutes.
    const COUNT: u32 = 60_000;
    for acl in [false, true] {
        let matching = |at: u32| match acl {
            true => EntryMatch::Masked { value: u128::from(at), mask: 0xffff_ffff },
            false => EntryMatch::Value(u128::from(at)),
        };
        let pipe = match acl {
            true => Pipe::acl("p").matching(Field::Ipv4Src, Criterion::Masked),
            false => Pipe::basic("p").per_entry(Field::Ipv4Src),
        };
        let set = Operation::Set(Field::EthDst, Value::PerEntry);
        let pipe = pipe.act([set]).forward(PortId(0)).capacity(COUNT);
        let mut bench = Bench::new(&start(&["a"], [pipe]).build());
        let entry = |at: u32| Entry::on(matching(at)).value(u128::from(at));
        for at in 0..COUNT {
            let change = Change::Add { pipe: PipeId(0), entry: entry(at) };
            bench.engine.apply(&change, 0).expect("there is room");
        }
        assert_eq!(bench.engine.entries(PipeId(0)).len(), COUNT as usize);
        for at in 0..COUNT {
            let change = Change::Remove { pipe: PipeId(0), key: EntryKey::of(&entry(at)) };
            bench.engine.apply(&change, 0).expect("it is there");
        }
        assert_eq!(bench.engine.entries(PipeId(0)).len(), 0);
    }
}
