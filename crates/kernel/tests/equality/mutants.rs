//! Faults planted in the compiler: a place that emits an instruction emits none, an inverted jump, or another
//! number. The comparison finds those that do something else.
//!
//! The fault is planted in the code that comes out, in every instruction that the place has emitted.

use crate::pair::{Pair, Ran};
use crate::tamed::tamed;
use crate::{FRAMES, first_seed, in_parallel, may_load, number, roots};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use weir_kernel::asm::Code;
use weir_oracle::arbitrary::{Choices, program};
use weir_program::PortId;

/// Programs in a run, faults that are planted in each, and in how many programs a fault is planted before it
/// counts as not found.
const PROGRAMS: u64 = 40;
const EACH: usize = 10;
const TRIES: usize = 40;

/// Programs of more instructions take the verifier too long.
const LONGEST: usize = 3_000;

/// How many frames there are of those that a program treats alike, and how many they are chosen from.
const ALIKE: usize = 4;
const TRIED: usize = 1_500;

/// Does nothing: a jump to the next instruction.
const NOTHING: u64 = 0x05;

/// Where a fault is, in the compiler's source, and what it is.
type PlantedFault = (String, &'static str);

/// What has become of a fault.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    tries: usize,
    /// The comparison has found it, or the verifier has refused a program.
    found: bool,
    /// All that it does is to leave packets to the engine.
    gives_up: bool,
}

/// An instruction's place, and what is there instead.
type Replaced = (usize, u64);

#[test]
fn faults_of_the_compiler_are_found() {
    if !may_load() {
        return;
    }
    let (first, programs) = (first_seed(), number("KERNEL_MUTATED", PROGRAMS));
    let fates: Mutex<BTreeMap<PlantedFault, Fate>> = Mutex::default();
    in_parallel(first..first + programs, |seed, ()| plant_in(seed, &fates));
    let mut fates = fates.into_inner().expect("no thread has panicked");
    fates.retain(|_, fate| fate.tries > 0);
    let found = fates.values().filter(|fate| fate.found).count();
    let open = fates.iter().filter(|(_, fate)| !fate.found && !fate.gives_up);
    let survivors: Vec<_> = open.filter(|(_, fate)| fate.tries >= TRIES).collect();
    let gives_up = fates.values().filter(|fate| !fate.found && fate.gives_up).count();
    let survivors: Vec<String> =
        survivors.iter().map(|((site, kind), _)| format!("{site}: {kind}")).collect();
    eprintln!("{} faults: {found} found, {gives_up} only leave packets to the engine", fates.len());
    eprintln!("not found in {TRIES} programs: {survivors:#?}");
    // Most of those that are left change what the kernel's verifier needs to know, and no packet.
    assert!(found > fates.len() / 4 && survivors.len() * 8 <= found, "{survivors:#?}");
}

/// Plants faults in a program, those first that have been tried least.
fn plant_in(seed: u64, fates: &Mutex<BTreeMap<PlantedFault, Fate>>) -> Result<(), String> {
    let mut random = Choices::from_seed(seed);
    let program = tamed(program(&mut random), &mut random);
    let [port, ..] = roots(&program)[..] else { return Ok(()) };
    let mut pair = Pair::new(&program, &program).map_err(|error| error.to_string())?;
    let code = pair.executor.code(port).clone();
    if code.instructions.len() > LONGEST {
        return Ok(());
    }
    let frames = select(&mut pair, port, &mut random)?;
    let mut all: Vec<(usize, usize, PlantedFault, Vec<Replaced>)> = Vec::new();
    for (fault, replaced) in faults(&code) {
        let fate = fates.lock().expect("no thread has panicked").entry(fault.clone()).or_default().to_owned();
        if !fate.found && fate.tries < TRIES {
            all.push((fate.tries, random.below(1_000), fault, replaced));
        }
    }
    all.sort();
    for (_, _, fault, replaced) in all.into_iter().take(number("KERNEL_EACH", EACH as u64) as usize) {
        let mut instructions = pair.executor.code(port).instructions.clone();
        replaced.into_iter().for_each(|(at, instruction)| instructions[at] = instruction);
        let result = match pair.executor.replace(port, &instructions) {
            Err(_) => Err("refused".into()),
            Ok(()) => {
                let result = meet(&mut pair, port, &frames);
                if result.is_err() {
                    // It may have overwritten counts.
                    pair = Pair::new(&program, &program).map_err(|error| error.to_string())?;
                }
                result
            }
        };
        let mut fates = fates.lock().expect("no thread has panicked");
        let fate = fates.entry(fault).or_default();
        fate.tries += 1;
        fate.found |= result.is_err();
        fate.gives_up |= result == Ok(true);
    }
    Ok(())
}

/// A frame and whether the kernel decides it.
type SelectedFrame = (Vec<u8>, bool);

/// Selects frames that the program treats in many ways, some of each.
fn select(pair: &mut Pair, port: PortId, random: &mut Choices) -> Result<Vec<SelectedFrame>, String> {
    let mut by_way: BTreeMap<String, Vec<SelectedFrame>> = BTreeMap::new();
    for _ in 0..TRIED {
        let bytes = &FRAMES[random.below(FRAMES.len())];
        let (way, decided) = match pair.frame(port, bytes)? {
            Ran::Left(why) => (format!("{why:?}"), false),
            Ran::Decided(walk) => {
                let step = |step: &weir_oracle::trace::Step| {
                    let changes = step.operations.iter().map(|done| std::mem::discriminant(&done.change));
                    format!("{:?}{:?}{:?}", step.lookup, step.forward, changes.collect::<Vec<_>>())
                };
                let steps: Vec<String> = walk.trace.iter().map(step).collect();
                (format!("{:?}{}{steps:?}", walk.verdict, bytes.len().min(80)), true)
            }
        };
        let alike = by_way.entry(way).or_default();
        if alike.len() < ALIKE {
            alike.push((bytes.clone(), decided));
        }
    }
    Ok(by_way.into_values().flatten().collect())
}

/// Compares what becomes of each frame. `Ok(true)` if frames are left to the engine that the program decides.
fn meet(pair: &mut Pair, port: PortId, frames: &[SelectedFrame]) -> Result<bool, String> {
    let compared = catch_unwind(AssertUnwindSafe(|| {
        pair.start_over();
        let mut gives_up = false;
        for (bytes, decided) in frames {
            gives_up |= matches!(pair.frame(port, bytes)?, Ran::Left(_)) && *decided;
        }
        pair.counts().map(|()| gives_up)
    }));
    // Counts that were overwritten may be too large for a sum.
    compared.unwrap_or_else(|_| Err("panic".into()))
}

/// All faults that can be planted in a program.
fn faults(code: &Code) -> BTreeMap<PlantedFault, Vec<Replaced>> {
    let mut all: BTreeMap<PlantedFault, Vec<Replaced>> = BTreeMap::new();
    let mut wide = false;
    for (at, (&instruction, site)) in code.instructions.iter().zip(&code.sites).enumerate() {
        // A load of 64 bits takes two instructions, and most are of maps.
        let is_wide = instruction as u8 == 0x18;
        if !std::mem::replace(&mut wide, is_wide) && !is_wide {
            for (kind, other) in others(instruction) {
                let site = format!("{}:{}:{}", site.file(), site.line(), site.column());
                all.entry((site, kind)).or_default().push((at, other));
            }
        }
    }
    all
}

/// What a faulty compiler might emit in place of an instruction.
fn others(instruction: u64) -> Vec<(&'static str, u64)> {
    let op = instruction as u8;
    let plus_one = u64::from(((instruction >> 32) as u32).wrapping_add(1)) << 32 | instruction & 0xffff_ffff;
    let (is_number, is_swap) = (op & 0x08 == 0, op & 0xf0 == 0xd0);
    match op & 0x07 {
        // Stores of numbers and of registers.
        0x02 => vec![("store left out", NOTHING), ("other number stored", plus_one)],
        0x03 => vec![("store left out", NOTHING)],
        // Arithmetic in 32 and 64 bits.
        0x04 | 0x07 if is_number && !is_swap => {
            vec![("arithmetic left out", NOTHING), ("other number", plus_one)]
        }
        0x04 | 0x07 => vec![("arithmetic left out", NOTHING)],
        // Conditional jumps.
        0x05 => inverted(op).map_or(Vec::new(), |opposite| {
            let mut all = vec![("jump inverted", instruction & !0xff | u64::from(opposite))];
            all.extend(is_number.then_some(("compared with another number", plus_one)));
            all
        }),
        _ => Vec::new(),
    }
}

/// The jump with the opposite condition.
fn inverted(op: u8) -> Option<u8> {
    let opposite = match op & 0xf0 {
        0x10 => 0x50,
        0x50 => 0x10,
        0x20 => 0xb0,
        0xb0 => 0x20,
        0x30 => 0xa0,
        0xa0 => 0x30,
        _ => return None,
    };
    Some(op & 0x0f | opposite)
}
