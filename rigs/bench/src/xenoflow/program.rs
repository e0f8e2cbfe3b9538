//! XenoFlow's program: packets are assigned to back ends by bits of their source address, and their MAC
//! addresses are rewritten.

use crate::scenarios::{Scenario, shuffled};
use weir_packet::Field;
use weir_program::builder::ProgramBuilder;
use weir_program::{Entry, Operation, Pipe, PortId, SharedUse, Value};

/// Flows of the traffic.
const FLOWS: u32 = 65_536;

/// The MAC address of the first of the back ends of `configs/backends.json`; the others follow it.
const BACK_END: u64 = 0xa088_c2b5_f45a;

/// How back ends are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackEndsAs {
    /// One pipe has an entry for each back end, as XenoFlow does.
    Entries,
    /// Each back end has a pipe of its own, whose misses go to that of the next one, as section 8.4 of the
    /// thesis considers.
    Pipes,
}

/// Returns the program for a number of back ends, which is a power of two. With `monitored`, each back end
/// has a counter. For two back ends with counters in entries, it is what `weir import xenoflow --out` writes.
pub fn scenario(back_ends: u32, shape: BackEndsAs, monitored: bool) -> Scenario {
    let mut program = ProgramBuilder::new();
    let [input, out] = program.ports(["in", "out"]);
    let counters: Vec<_> = (0..back_ends).map(|at| program.counter(format!("b{at}"))).collect();
    let entry = |at: u32| {
        let entry = Entry::on(at).value(u128::from(BACK_END + u64::from(at)));
        if monitored { entry.counter(counters[at as usize]) } else { entry }
    };
    let mut add = |name: String, first: u32, count: u32, miss: Option<weir_program::PipeId>| {
        let pipe = Pipe::basic(name)
            .constant_bits(Field::EthDst, 0_u64, 1 << 40)
            .per_entry_bits(Field::Ipv4Src, u128::from(back_ends - 1));
        let pipe = if monitored { pipe.counter(SharedUse::PerEntry) } else { pipe };
        let pipe = pipe
            .act([
                Operation::Copy { from: Field::EthDst, to: Field::EthSrc },
                Operation::Set(Field::EthDst, Value::PerEntry),
            ])
            .forward(out)
            .entries((first..first + count).map(entry));
        program.pipe(if let Some(next) = miss { pipe.miss(next) } else { pipe })
    };
    let root = match shape {
        BackEndsAs::Entries => add("balance".to_string(), 0, back_ends, None),
        BackEndsAs::Pipes => {
            let last = add(format!("b{}", back_ends - 1), back_ends - 1, 1, None);
            (0..back_ends - 1).rev().fold(last, |next, at| add(format!("b{at}"), at, 1, Some(next)))
        }
    };
    program.root(input, root);
    debug_assert_eq!((input, out), (PortId(0), PortId(1)));
    let what = "XenoFlow's rule";
    Scenario { name: "xenoflow", what, program: program.build(), flows: shuffled(FLOWS), learns: false }
}
