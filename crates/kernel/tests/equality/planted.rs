//! Faults planted in the compiled program, such as an operation that is forgotten or a constant that differs:
//! the comparison finds every kind.

use crate::pair::{Pair, Ran};
use crate::tamed::{drop_operation, tamed};
use crate::{FRAMES, in_parallel, may_load, roots};
use std::collections::BTreeMap;
use std::sync::Mutex;
use weir_oracle::arbitrary::{Choices, program};
use weir_program::operation::{OPERATIONS, Operation, Slot, Value};
use weir_program::{
    Criterion, EntryMatch, Fill, Forward, GroupChoice, HashInput, KatranHash, Pipe, PipeKind, Program,
};

/// How often each kind of fault is tried before it counts as not found.
const TRIES: usize = 80;

/// The maximum number of programs in which faults are planted, and the number of frames for each.
const PROGRAMS: u64 = 8_000;
const MET: usize = 1_200;

/// Kinds of faults besides forgotten operations.
const KINDS: &str = "
    set.number add.number limit_length.bytes clamp_mss.mss
    push_vlan.vid push_vlan.pcp encap.vni encap.key encap.ttl
    encap.src encap.dst encap.sport encap.src_bits encap.eth.dst encap.eth.src
    pipe:basic pipe:lpm pipe:acl pipe:acl:order pipe:hash match:const hash:fields hash:seed
    fill:maglev fill:wants fill:katran fill:glb picked:source
    counter forward miss";

/// Counts of a kind of fault.
#[derive(Clone, Copy, Debug, Default)]
struct FaultCounts {
    tried: usize,
    found: usize,
}

#[test]
fn planted_faults_are_found() {
    if !may_load() {
        return;
    }
    let all: Mutex<BTreeMap<String, FaultCounts>> =
        Mutex::new(wanted().map(|kind| (kind, FaultCounts::default())).collect());
    in_parallel(0..PROGRAMS, |seed, ()| {
        if all.lock().expect("no thread has panicked").values().all(|tally| tally.found > 0) {
            return Ok(());
        }
        let mut random = Choices::from_seed(seed);
        let program = tamed(program(&mut random), &mut random);
        for (kind, faulty) in faults(&program) {
            let is_open = |tally: &&mut FaultCounts| tally.found == 0 && tally.tried < TRIES;
            let tries = |all: &mut BTreeMap<String, FaultCounts>| {
                let tally = all.get_mut(&kind).ok_or_else(|| format!("{kind} is no kind of fault"))?;
                Ok::<_, String>(Some(tally).filter(is_open).map(|tally| tally.tried += 1).is_some())
            };
            if tries(&mut all.lock().expect("no thread has panicked"))?
                && is_found(&program, &faulty, &mut random)
            {
                all.lock().expect("no thread has panicked").entry(kind).or_default().found += 1;
            }
        }
        Ok(())
    });
    let all = all.into_inner().expect("no thread has panicked");
    eprintln!("{all:#?}");
    let few: Vec<_> = all.iter().filter(|(_, tally)| tally.found == 0).collect();
    assert!(few.is_empty(), "not found: {few:#?}");
}

/// Every kind of fault.
fn wanted() -> impl Iterator<Item = String> {
    let forgotten = OPERATIONS.iter().map(|line| format!("without {}", line.word));
    forgotten.chain(KINDS.split_whitespace().map(String::from))
}

/// Compiles a faulty program, and compares its behaviour with that of the right one in the interpreter.
fn is_found(program: &Program, faulty: &Program, random: &mut Choices) -> bool {
    let roots = roots(program);
    let Some(mut pair) = Pair::new(program, faulty).ok().filter(|_| !roots.is_empty()) else { return false };
    for _ in 0..MET {
        let port = random.pick(&roots);
        match pair.frame(port, &FRAMES[random.below(FRAMES.len())]) {
            Ok(Ran::Decided(_) | Ran::Left(_)) => {}
            Err(_) => return true,
        }
    }
    pair.counts().is_err()
}

/// Programs with one fault each, and the kinds of these faults.
fn faults(program: &Program) -> Vec<(String, Program)> {
    let mut all = Vec::new();
    let mut plant = |kind: &str, change: &dyn Fn(&mut Program)| {
        let mut faulty = program.clone();
        change(&mut faulty);
        if faulty != *program {
            all.push((kind.to_string(), faulty));
        }
    };
    for (at, pipe) in program.pipes.iter().enumerate() {
        for (number, template) in pipe.templates.iter().enumerate() {
            for (place, operation) in template.operations.iter().enumerate() {
                plant(&format!("without {}", operation.word()), &|program| {
                    drop_operation(&mut program.pipes[at], number as u16, place);
                });
                for key in constants(operation) {
                    plant(&constant_kind(operation, key), &|program| {
                        let template = &mut program.pipes[at].templates[number];
                        change_constant(&mut template.operations[place], key);
                    });
                }
            }
        }
        // FLOW pipes are not compiled.
        if !matches!(pipe.kind, PipeKind::Flow { .. }) {
            plant(&format!("pipe:{}", pipe.kind.word()), &|program| change_keys(program, at));
        }
        plant("pipe:acl:order", &|program| reverse_priorities(&mut program.pipes[at]));
        plant("match:const", &|program| change_constants(&mut program.pipes[at]));
        plant("hash:fields", &|program| forget_field(&mut program.pipes[at]));
        plant("counter", &|program| program.pipes[at].monitor.counter = None);
        plant("forward", &|program| program.pipes[at].forward = other(program.pipes[at].forward));
        plant("miss", &|program| program.pipes[at].miss = other(program.pipes[at].miss));
    }
    plant("hash:seed", &|program| program.select_seed ^= 1);
    for (at, group) in program.groups.iter().enumerate() {
        let kind = match group.fill {
            Fill::Maglev => "maglev",
            Fill::Wants => "wants",
            Fill::Katran(..) => "katran",
            Fill::Glb(..) => "glb",
            Fill::Given => continue,
        };
        plant(&format!("fill:{kind}"), &|program| hash_differently(program, at));
        plant("picked:source", &|program| {
            let affinity = program.groups[at].affinity.as_mut();
            affinity.into_iter().for_each(|one| one.ipv4 = if one.ipv4 < 8 { 32 } else { one.ipv4 - 8 });
        });
    }
    all
}

/// The arguments of an operation that are constants.
fn constants(operation: &Operation) -> Vec<&'static str> {
    operation
        .numbers()
        .filter(|(_, value, _)| matches!(value, Value::Const(_)))
        .map(|(key, ..)| key)
        .collect()
}

/// The kind of a fault in a constant.
fn constant_kind(operation: &Operation, key: &str) -> String {
    match operation {
        Operation::Encap(_) => format!("encap.{key}"),
        Operation::Set(..) | Operation::Add(..) => format!("{}.number", operation.word()),
        _ => format!("{}.{key}", operation.word()),
    }
}

fn change_constant(operation: &mut Operation, wanted: &str) {
    for argument in operation.arguments() {
        if argument.key != wanted {
            continue;
        }
        if let Slot::Number(value, _) | Slot::Optional(Some(value), _) | Slot::Hashed(Some(value), _) =
            argument.slot
            && let Value::Const(number) = value
        {
            // Few packets have just this length.
            *number = if wanted == "bytes" { *number / 2 } else { *number ^ 1 };
        }
    }
}

/// Changes what entries match.
fn change_keys(program: &mut Program, at: usize) {
    let members = program.groups.iter().map(|group| group.targets.len() as u16).collect::<Vec<_>>();
    let pipe = &mut program.pipes[at];
    let one = match pipe.kind.group() {
        Some(GroupChoice::One(group)) => members[group.index()],
        _ => 0,
    };
    let masks: Vec<u128> = pipe
        .varying()
        .map(|one| if let Criterion::PerEntry { mask } = one.criterion { mask } else { one.field.max() })
        .collect();
    pipe.entries.edit(|all| {
        for entry in all {
            for (place, given) in entry.matches.iter_mut().enumerate() {
                let lowest = |mask: u128| mask & mask.wrapping_neg();
                match given {
                    EntryMatch::Value(value) => *value ^= lowest(masks[place]),
                    EntryMatch::Prefix { value, length } if *length > 0 => {
                        let bits = masks[place].count_ones();
                        *value ^= 1 << (bits - u32::from(*length));
                    }
                    EntryMatch::Masked { value, mask } => *value ^= lowest(*mask),
                    EntryMatch::Range { first, last } if *first < *last => *last -= 1,
                    EntryMatch::Target(target) => *target = (*target + 1) % one,
                    EntryMatch::Member { group, target } => *target = (*target + 1) % members[group.index()],
                    EntryMatch::Prefix { .. }
                    | EntryMatch::Range { .. }
                    | EntryMatch::Any
                    | EntryMatch::Flow(_)
                    | EntryMatch::Default => {}
                }
            }
        }
    });
}

fn reverse_priorities(pipe: &mut Pipe) {
    if pipe.kind == PipeKind::Acl {
        pipe.entries
            .edit(|all| all.iter_mut().for_each(|entry| entry.priority = 1_000 - entry.priority.min(999)));
    }
}

fn change_constants(pipe: &mut Pipe) {
    for one in &mut pipe.matches {
        if let Criterion::Const { value, mask } = &mut one.criterion {
            *value ^= *mask & mask.wrapping_neg();
        }
    }
}

fn forget_field(pipe: &mut Pipe) {
    if let PipeKind::Hash { input: HashInput::Fields(fields), .. } = &mut pipe.kind {
        fields.iter_mut().take(1).for_each(|(_, mask)| *mask = 0);
    }
}

fn hash_differently(program: &mut Program, at: usize) {
    let group = &mut program.groups[at];
    match &mut group.fill {
        Fill::Katran(_, hash) => {
            *hash = KatranHash { dport_only: !hash.dport_only, ..*hash };
        }
        Fill::Glb(_, hash) => hash.key[0] ^= 1,
        Fill::Maglev | Fill::Wants | Fill::Given => group.seed = Some(group.seed.unwrap_or(1) ^ 2),
    }
}

fn other(forward: Forward) -> Forward {
    match forward {
        Forward::Drop => Forward::InputPort,
        Forward::PerEntry => Forward::PerEntry,
        _ => Forward::Drop,
    }
}
