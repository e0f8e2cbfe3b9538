//! The compiled program does the same as the interpreter, or leaves the packet to the engine and changes
//! nothing: random programs, packets and changes.

mod mutants;
mod pair;
mod planted;
mod seen;
mod tamed;
mod uncompiled;

use pair::{Changed, Pair, Ran};
use seen::{MetByOne, SeenByAll};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tamed::tamed;
use weir_kernel::Executor;
use weir_oracle::arbitrary::{Choices, change, frame, program};
use weir_program::{PortId, Program};

/// Programs in a run; each has as many packets.
const PROGRAMS: u64 = 1100;
const PACKETS: usize = 1_900;

/// How many packets there are between two changes, and between two comparisons of counts.
const PER_CHANGE: usize = 40;
const PER_SWEEP: usize = 150;

/// Frames that all programs share: making one takes longer than running it.
static FRAMES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(frames);

/// Whether test runs work here: they need a privilege.
fn may_load() -> bool {
    let loads = Executor::load(&Program::default(), &[]).is_ok();
    assert!(loads || std::env::var_os("CI").is_none(), "CI runs as root, and eBPF programs load there");
    loads
}

/// A number in the environment: another first seed or number of programs, for longer runs and slow machines.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// How many programs are compared: usually [`PROGRAMS`], or as many as have the number of packets in
/// `KERNEL_CASES`.
fn programs() -> u64 {
    let cases = number("KERNEL_CASES", PROGRAMS * PACKETS as u64);
    number("KERNEL_PROGRAMS", cases.div_ceil(PACKETS as u64))
}

/// The first seed. `make explore` sets a new one each time.
fn first_seed() -> u64 {
    number("KERNEL_FIRST", number("PROPTEST_RNG_SEED", 0) << 24)
}

/// Frames that an XDP program can be run on.
fn frames() -> Vec<Vec<u8>> {
    let mut random = Choices::from_seed(first_seed());
    let mut all: Vec<Vec<u8>> = (0..20_000).map(|_| frame(&mut random)).collect();
    all.retain(|bytes| (14..=3000).contains(&bytes.len()));
    for bytes in &mut all {
        if random.percent(50) {
            remove_gue_header(bytes);
        }
        if random.percent(15) {
            spoil_inside(bytes, &mut random);
        }
    }
    all
}

/// Makes GUE of variant 1, which the generator does not make, out of variant 0 over IPv4.
fn remove_gue_header(bytes: &mut Vec<u8>) {
    let is_gue = bytes.len() > 46
        && bytes[12..15] == [8, 0, 0x45]
        && bytes[23] == 17
        && bytes[36..38] == 6080_u16.to_be_bytes()
        && bytes[42] == 0;
    if is_gue {
        bytes.drain(42..46);
        for at in [16, 38] {
            let length = u16::from_be_bytes([bytes[at], bytes[at + 1]]).wrapping_sub(4);
            bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
        }
    }
}

/// Changes a byte where headers inside tunnels are.
fn spoil_inside(bytes: &mut [u8], random: &mut Choices) {
    let end = bytes.len().min(130);
    if end > 43 {
        let at = random.between(42, end - 1);
        bytes[at] = match random.percent(50) {
            true => random.pick(&[0, 1, 4, 6, 17, 0x45, 0x46, 0x60, 0x81, 0xff]),
            false => bytes[at] ^ 1 << random.below(8),
        };
    }
}

/// The ports that lead to a pipe.
fn roots(program: &Program) -> Vec<PortId> {
    let ports = (0..).map(PortId).zip(&program.ports);
    ports.filter(|(_, port)| port.root.is_some()).map(|(id, _)| id).collect()
}

/// Runs `work` for each seed, on all processors. Each thread has a record of its own.
fn in_parallel<T: Default + Send>(
    seeds: Range<u64>,
    work: impl Fn(u64, &mut T) -> Result<(), String> + Sync,
) -> Vec<T> {
    let next = AtomicU64::new(seeds.start);
    let all = || {
        let mut record = T::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(record);
            }
            work(seed, &mut record).map_err(|what| format!("seed {seed}, {what}"))?;
        }
    };
    let results: Vec<Result<T, String>> = std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(all)).collect();
        threads.into_iter().map(|thread| thread.join().expect("the reason is printed")).collect()
    });
    results.into_iter().map(|result| result.unwrap_or_else(|what| panic!("{what}"))).collect()
}

#[test]
fn the_kernel_does_what_the_interpreter_says() {
    if !may_load() {
        return;
    }
    let (first, programs) = (first_seed(), programs());
    let all = in_parallel(first..first + programs, compare);
    let mut seen = SeenByAll::default();
    all.into_iter().for_each(|one| seen.add(one));
    let (cases, last) = (programs * PACKETS as u64, first + programs - 1);
    eprintln!("{cases} cases, seeds {first} to {last}: {seen:#?}");
    seen.is_enough(programs, PROGRAMS);
}

/// Runs a program with its packets and changes.
fn compare(seed: u64, seen: &mut SeenByAll) -> Result<(), String> {
    let mut random = Choices::from_seed(seed);
    let program = tamed(program(&mut random), &mut random);
    let mut pair = Pair::new(&program, &program).map_err(|error| error.to_string())?;
    seen.instructions = seen.instructions.max(pair.executor.instructions().into_iter().max().unwrap_or(0));
    let mut met = MetByOne::default();
    let roots = roots(&program);
    for packet in 0..PACKETS {
        let at = |what: String| format!("packet {packet}: {what}");
        if random.below(PER_CHANGE) == 0 {
            let next = change(&mut random, &pair.program, &pair.snapshot());
            if pair.leads_elsewhere(&next) && random.percent(90) {
                continue;
            }
            let changed = pair.change(&next);
            seen.changed(changed);
            if changed == Changed::Stopped || changed == Changed::Stale && random.percent(50) {
                pair.compile_again().map_err(|error| at(error.to_string()))?;
            }
        }
        if random.below(PER_SWEEP) == 0 {
            pair.counts().map_err(at)?;
        }
        let port = match random.percent(95) && !roots.is_empty() {
            true => random.pick(&roots),
            false => PortId(random.below(program.ports.len()) as u16),
        };
        match pair.frame(port, &FRAMES[random.below(FRAMES.len())]).map_err(at)? {
            Ran::Left(why) => *seen.left.entry(format!("{why:?}")).or_default() += 1,
            Ran::Decided(walk) => {
                seen.decided += 1;
                met.walk(&program, &walk);
            }
        }
    }
    met.add_to(seen);
    pair.counts()
}
