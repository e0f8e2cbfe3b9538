//! Random events for a running program: frames, changes, time.

use super::entries::entry;
use super::packets::frame_of;
use super::pools::PORTS;
use super::{Choices, frame};
use weir_packet::FlowKey;
use weir_program::change::{Change, Changes, EntryKey};
use weir_program::snapshot::Snapshot;
use weir_program::{Entry, Fill, GroupId, PipeId, PortId, Program};

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A frame arrives.
    Frame {
        /// The port on which the frame arrives.
        input: PortId,
        /// Its bytes.
        bytes: Vec<u8>,
        /// Bytes of headroom.
        headroom: usize,
        /// The hash delivered by the port's NIC; 0 means none.
        hash: u32,
    },
    /// An entry or a weight changes.
    Change(Change),
    /// Time passes.
    Time {
        /// Nanoseconds.
        ns: u64,
    },
    /// Idle entries and flows are removed.
    Age,
}

/// Generates the next event for a program in a state.
#[must_use]
pub fn event(random: &mut Choices, program: &Program, state: &Snapshot) -> Event {
    let given = program.groups.iter().any(|group| group.fill == Fill::Given);
    match random.weighted(&[80, 8, 9, 3, if given { 12 } else { 0 }]) {
        0 => Event::Frame {
            input: PortId(random.below(program.ports.len()) as u16),
            bytes: of_flow(random, state).unwrap_or_else(|| frame(random)),
            headroom: if random.percent(90) { 128 } else { random.below(75) },
            hash: hash(random),
        },
        1 => Event::Change(change(random, program, state)),
        2 => Event::Time {
            ns: random.pick(&[1, 1_000, 999_999, 1_000_000, 4_000_000, 120_000_000, 2_000_000_000]),
        },
        3 => Event::Age,
        _ => Event::Change(move_buckets(random, program, 90)),
    }
}

/// Generates a frame of a live flow that has an address and a port of a NAT pool, or a frame of the flow's
/// answers: no other frame hits these flows. Returns `None` if there is no such flow and, to generate other
/// frames as well, most of the time.
fn of_flow(random: &mut Choices, state: &Snapshot) -> Option<Vec<u8>> {
    let flows = state.pipes.iter().flat_map(|pipe| &pipe.flows).filter(|flow| flow.binding.is_some());
    // A key may be older than the headers that contain the ports.
    let with_ports = |key: &FlowKey| matches!(key.protocol(), 6 | 17);
    let mut keys: Vec<FlowKey> = flows.map(|flow| flow.key).filter(with_ports).collect();
    if keys.is_empty() || random.percent(60) {
        return None;
    }
    keys.sort_unstable();
    let key = random.pick(&keys);
    Some(frame_of(random, &key))
}

/// Generates a NIC's hash: none half of the time, otherwise one of a few hashes, some of which differ in one
/// half only.
#[must_use]
pub fn hash(random: &mut Choices) -> u32 {
    random.pick(&[0, 0, 0, 0, 1, 0x4000_0000, 0x8000_0001, u32::MAX])
}

/// Generates the known ports of a later fragment's datagram.
#[must_use]
pub fn datagram_ports(random: &mut Choices) -> Option<[u16; 2]> {
    random.percent(80).then(|| [random.pick(PORTS), random.pick(PORTS)])
}

/// Generates a change, or a few of them as a batch.
#[must_use]
pub fn change(random: &mut Choices, program: &Program, state: &Snapshot) -> Change {
    if random.percent(75) {
        return one_change(random, program, state);
    }
    let changes: Vec<Change> =
        (0..random.between(1, 6)).map(|_| one_change(random, program, state)).collect();
    // A list that changes an entry twice is no batch.
    let first = changes[0].clone();
    Changes::new(changes).map_or(first, Change::Batch)
}

fn one_change(random: &mut Choices, program: &Program, state: &Snapshot) -> Change {
    let at = random.below(program.pipes.len());
    let id = PipeId(at as u16);
    if random.percent(15) && !program.groups.is_empty() {
        return set_weight(random, program);
    }
    let pipe = &program.pipes[at];
    let new = |random: &mut Choices| entry(random, program, pipe, at, program.pipes.len());
    let present = &state.pipes[at].entries;
    let key = |random: &mut Choices| match present.len() {
        0 => EntryKey::of(&new(random)),
        _ if random.percent(10) => EntryKey::of(&new(random)),
        count => present[random.below(count)].key.clone(),
    };
    match random.below(10) {
        0..=4 => Change::Add { pipe: id, entry: new(random) },
        5..=6 => {
            let key = key(random);
            let entry = Entry { matches: key.matches, priority: key.priority, ..new(random) };
            Change::Update { pipe: id, entry }
        }
        7..=8 => Change::Remove { pipe: id, key: key(random) },
        // A pipe that does not exist.
        _ => Change::Add { pipe: PipeId(program.pipes.len() as u16), entry: new(random) },
    }
}

fn set_weight(random: &mut Choices, program: &Program) -> Change {
    let group = random.below(program.groups.len());
    if random.percent(5) {
        return move_buckets(random, program, 50);
    }
    let targets = program.groups[group].targets.len();
    let target = if random.percent(5) { targets } else { random.below(targets) };
    let weight = random.pick(&[0, 0, 1, 2, 7, 99_999]);
    if random.percent(30) {
        let other = (random.below(targets) as u16, random.pick(&[0, 1, 5]));
        let weights = [(target as u16, weight), other].into();
        return Change::SetWeights { group: GroupId(group as u16), weights };
    }
    Change::SetWeight { group: GroupId(group as u16), target: target as u16, weight }
}

/// Generates moves of a group's buckets, mostly of a group with given buckets: of a few buckets or all of
/// them, immediate or later.
fn move_buckets(random: &mut Choices, program: &Program, given_percent: usize) -> Change {
    let given = |at: &usize| program.groups[*at].fill == Fill::Given;
    let list: Vec<usize> = (0..program.groups.len()).filter(given).collect();
    let group = match list.is_empty() || !random.percent(given_percent) {
        true => random.below(program.groups.len() + 1),
        false => random.pick(&list),
    };
    let (size, targets) = program.groups.get(group).map_or((1, 1), |group| (group.size, group.targets.len()));
    let one = |random: &mut Choices, bucket: u32| match random.below(100) {
        0 => (size, 0),
        1 => (bucket, targets as u16),
        2..12 => (bucket, u16::MAX),
        _ => (bucket, random.below(targets) as u16),
    };
    let moves: Vec<(u32, u16)> = match random.percent(50) {
        true => (0..size.min(64)).map(|bucket| one(random, bucket)).collect(),
        false => {
            let some: Vec<u32> =
                (0..random.between(1, 3)).map(|_| random.below(size as usize) as u32).collect();
            some.into_iter().map(|bucket| one(random, bucket)).collect()
        }
    };
    Change::MoveBuckets {
        group: GroupId(group as u16),
        moves: moves.into(),
        idle_gap_ns: random.pick(&[0, 1_000_000, 100_000_000, 5_000_000_000]),
        wait_max_ns: random.pick(&[1_000, 1_000_000, 100_000_000, u64::MAX]),
    }
}
