//! The target to which the flows of a source went last, for groups whose `affinity` has a timeout (pipes.md
//! M31).
//!
//! All workers share this memory, because flows of one source belong to several of them. The memory is a
//! fixed number of words in lines of eight: a source maps to one line, and if the line is full, the source
//! that has gone unused for longest is evicted. Words are relaxed atomics: if two workers write at the same
//! moment, one write may be lost. Words are read and written only for new flows.
//!
//! A successor's memory starts as a copy of its predecessor's, with groups and targets matched by name.
//! Sources that the successor's memory does not have are also looked up in the predecessor's, to which
//! workers that still run the previous program write.
//!
//! Costs: 2 MiB for each FLOW pipe that may pick from such a group.

use crate::pipes::targets;
use crate::{Affinity, GroupChoice, Program};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Number of lines in a memory.
const LINES: usize = 1 << 15;
/// Number of words in each line.
const WAYS: usize = 8;
/// Bits of a word: the time, the number of the target plus one, and the rest of the source's hash.
const TIME_BITS: u32 = 22;
const NUMBER_BITS: u32 = 20;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// A time step has 1024 milliseconds, so that times wrap where the milliseconds do.
const STEP_SHIFT: u32 = 10;

type CacheLine = [AtomicU64; WAYS];
/// The lines of a previous program, and the current number of each of its targets.
type Former = (Arc<[CacheLine]>, Box<[Option<u32>]>);

/// Which target each source went to.
#[derive(Debug)]
pub struct Sources {
    hasher: RandomState,
    /// For each group that remembers sources: the hash of the group's name, and its address prefix and
    /// timeout.
    groups: Box<[Option<(u64, Affinity)>]>,
    lines: Arc<[CacheLine]>,
    /// The sources of the previous program, and the current number of each of its targets.
    former: Option<Former>,
    /// The next line from which expired words are cleared.
    next: AtomicUsize,
}

/// The place of a source: its line, and what distinguishes it there.
#[derive(Clone, Copy, Debug)]
struct SourceKey {
    line: usize,
    tag: u64,
}

impl Sources {
    /// Creates an empty memory for a pipe that picks from these groups, if one of them remembers sources.
    pub fn new(program: &Program, choice: GroupChoice) -> Option<Sources> {
        let remembers = |id: crate::GroupId| program.groups[id.index()].remembers();
        targets::groups(program, choice).any(remembers).then(|| Sources::with(program, RandomState::new()))
    }

    fn with(program: &Program, hasher: RandomState) -> Sources {
        let group = |group: &crate::Group| {
            let affinity = group.affinity.filter(|_| group.remembers());
            affinity.map(|affinity| (hasher.hash_one(&group.name), affinity))
        };
        Sources {
            groups: program.groups.iter().map(group).collect(),
            lines: std::iter::repeat_with(CacheLine::default).take(LINES).collect(),
            former: None,
            next: AtomicUsize::new(0),
            hasher,
        }
    }

    /// Creates the memory of the next program. `was` maps each of its targets to its previous number.
    pub fn succeed(&self, program: &Program, was: &[Option<u32>]) -> Sources {
        let mut now = vec![None; was.iter().flatten().max().map_or(0, |most| *most as usize + 1)];
        for (number, was) in (0..).zip(was).filter_map(|(number, was)| Some((number, (*was)?))) {
            now[was as usize] = Some(number);
        }
        let new = Sources::with(program, self.hasher.clone());
        for (to, from) in new.lines.iter().flatten().zip(self.lines.iter().flatten()) {
            to.store(renumbered(from.load(Relaxed), &now).unwrap_or(0), Relaxed);
        }
        Sources { former: Some((Arc::clone(&self.lines), now.into())), ..new }
    }

    fn place(&self, group: usize, source: IpAddr) -> Option<(SourceKey, u64)> {
        let (name, affinity) = self.groups.get(group).copied().flatten()?;
        let hash = self.hasher.hash_one((name, affinity.first(source)));
        let place = SourceKey { line: hash as usize % LINES, tag: hash >> (TIME_BITS + NUMBER_BITS) };
        Some((place, steps(affinity)))
    }

    /// Returns the number of the target that flows of a source go to, if one began within the timeout.
    pub fn recall(&self, group: usize, source: IpAddr, now_ms: u32) -> Option<u32> {
        let (place, timeout) = self.place(group, source)?;
        let is_young = |word: &u64| age(*word, now_ms) <= timeout;
        let own = find(&self.lines, place).filter(is_young);
        let former = || {
            let (lines, now) = self.former.as_ref()?;
            renumbered(find(lines, place).filter(is_young)?, now)
        };
        own.or_else(former).map(number_of)
    }

    /// Records that a flow of a source begins at a target, or began there some time ago, in which case later
    /// flows take precedence.
    pub fn remember(&self, group: usize, source: IpAddr, number: u32, now_ms: u32) {
        let Some((place, _)) = self.place(group, source) else { return };
        let word = place.tag << (TIME_BITS + NUMBER_BITS)
            | (u64::from(number) + 1) << TIME_BITS
            | u64::from(now_ms >> STEP_SHIFT);
        let line = &self.lines[place.line];
        let words = line.iter().map(|word| (word, word.load(Relaxed)));
        let own = words.clone().find(|(_, word)| *word != 0 && is_of(*word, place));
        if own.is_some_and(|(_, word)| is_ahead(word, now_ms)) {
            return;
        }
        let free = || words.clone().find(|(_, word)| *word == 0);
        let oldest = || words.clone().max_by_key(|(_, word)| age(*word, now_ms));
        if let Some((at, _)) = own.or_else(free).or_else(oldest) {
            at.store(word, Relaxed);
        }
    }

    /// Clears expired words in some lines, because times wrap after 49 days.
    pub fn clear_some(&self, now_ms: u32) {
        let longest = self.groups.iter().flatten().map(|(_, affinity)| steps(*affinity)).max().unwrap_or(0);
        let line = &self.lines[self.next.fetch_add(1, Relaxed) % LINES];
        for at in line {
            let word = at.load(Relaxed);
            if word != 0 && age(word, now_ms) > longest {
                // This fails if the word has been used in the meantime.
                let _ = at.compare_exchange(word, 0, Relaxed, Relaxed);
            }
        }
    }
}

/// Returns a timeout in steps.
fn steps(affinity: Affinity) -> u64 {
    affinity.timeout_ns.div_ceil(1_000_000).div_ceil(1 << STEP_SHIFT)
}

fn is_of(word: u64, place: SourceKey) -> bool {
    word >> (TIME_BITS + NUMBER_BITS) == place.tag
}

fn find(lines: &[CacheLine], place: SourceKey) -> Option<u64> {
    let mut words = lines[place.line].iter().map(|word| word.load(Relaxed));
    words.find(|word| *word != 0 && is_of(*word, place))
}

fn number_of(word: u64) -> u32 {
    ((word >> TIME_BITS & NUMBER_MASK) - 1) as u32
}

/// Returns how many steps ago a word was written; 0 if that is in the future, by another worker's clock.
fn age(word: u64, now_ms: u32) -> u64 {
    let age = u64::from(now_ms >> STEP_SHIFT).wrapping_sub(word) & TIME_MASK;
    if age >> (TIME_BITS - 1) == 0 { age } else { 0 }
}

/// Whether a word was written after this time.
fn is_ahead(word: u64, now_ms: u32) -> bool {
    let age = u64::from(now_ms >> STEP_SHIFT).wrapping_sub(word) & TIME_MASK;
    age >> (TIME_BITS - 1) != 0
}

/// Returns a word with the current number of its target; `None` if the target is gone.
fn renumbered(word: u64, now: &[Option<u32>]) -> Option<u64> {
    let number = (word != 0).then(|| now.get(number_of(word) as usize).copied().flatten())??;
    Some(word & !(NUMBER_MASK << TIME_BITS) | (u64::from(number) + 1) << TIME_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fill, Forward, Group, GroupId, Target};

    const SECOND: u64 = 1_000_000_000;
    const CHOICE: GroupChoice = GroupChoice::One(GroupId(0));

    fn program(names: &[&str]) -> Program {
        let targets = names.iter().map(|name| Target::new(*name, Forward::Drop));
        let affinity = Affinity { timeout_ns: 300 * SECOND, ..Affinity::ADDRESS };
        let group = Group::new("g", Fill::Wants, 64).targets(targets).affinity(Some(affinity));
        Program { groups: vec![group], ..Program::default() }
    }

    fn source(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn a_source_is_remembered_for_the_timeout_after_its_last_flow_and_over_the_wrap_of_the_clock() {
        for start in [0, 5_000_000, u32::MAX - 100_000] {
            let sources = Sources::new(&program(&["a", "b"]), CHOICE).unwrap();
            let recall = |after_ms: u32| sources.recall(0, source(7), start.wrapping_add(after_ms));
            assert_eq!(recall(0), None);
            sources.remember(0, source(7), 1, start);
            assert_eq!([0, 300_000, 303_000].map(recall), [Some(1), Some(1), None], "{start}");
            sources.remember(0, source(7), 0, start.wrapping_add(200_000));
            assert_eq!([200_000, 500_000, 503_000].map(recall), [Some(0), Some(0), None], "{start}");
            assert_eq!(sources.recall(0, source(8), start), None);
            let late = start.wrapping_add(600_000);
            (0..LINES).for_each(|_| sources.clear_some(late));
            assert!(sources.lines.iter().flatten().all(|word| word.load(Relaxed) == 0));
        }
    }

    #[test]
    fn a_successor_knows_sources_by_the_names_of_targets_also_those_that_come_late() {
        let old = program(&["a", "b", "c"]);
        let sources = Sources::new(&old, CHOICE).unwrap();
        (0..3).for_each(|number| sources.remember(0, source(number), number, 0));
        // Numbers of `d`, `c` and `a` in the previous program.
        let next = sources.succeed(&program(&["d", "c", "a"]), &[None, Some(2), Some(0)]);
        (3..6).for_each(|number| sources.remember(0, source(number), number - 3, 0));
        let known: Vec<_> = (0..6).map(|number| next.recall(0, source(number), 1000)).collect();
        assert_eq!(known, [Some(2), None, Some(1), Some(2), None, Some(1)]);
    }

    #[test]
    fn a_full_memory_forgets_the_sources_that_were_used_longest_ago() {
        let sources = Sources::new(&program(&["a"]), CHOICE).unwrap();
        let most = (LINES * WAYS) as u32;
        (0..2 * most).for_each(|number| sources.remember(0, source(number), 0, number / most * 100_000));
        let known =
            |from: u32| (from..from + most).filter(|&at| sources.recall(0, source(at), 0).is_some()).count();
        let (old, new) = (known(0), known(most));
        assert!(new > most as usize * 4 / 5 && old < most as usize / 5, "{old} old and {new} new sources");
    }
}
