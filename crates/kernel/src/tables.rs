//! A program's entries and buckets in the kernel, and where each entry is counted.

use crate::acl::{self, AclShape};
use crate::asm::Code;
use crate::compile::Maps;
use crate::counts::CountTable;
use crate::coverage::{Coverage, NotCompiled, Why};
use crate::flows::{FlowEntry, FlowTable};
use crate::followed::FollowedEntries;
use crate::keyed::{KeyShape, KeyTable};
use crate::layout::{self, CountPlaces, CountedAt, EntryPlace};
use crate::routes::{RouteShape, RouteTable};
use crate::samples::DropSamples;
use crate::sys::{self, Map, MapKind, Memory};
use crate::{LoadError, compile};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_program::change::EntryKey;
use weir_program::replica::Swept;
use weir_program::snapshot::Count;
use weir_program::{Entry, EntryMatch, Group, GroupId, Pipe, PipeId, PipeKind, PortId, Program, Verdict};

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The kernel refuses the change.
    #[error("the kernel's table of pipe `{pipe}` does not take an entry: {error}")]
    Refused {
        /// The pipe.
        pipe: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// There are more entries than the pipe has room for.
    #[error("the kernel's table of pipe `{pipe}` is full")]
    Full {
        /// The pipe.
        pipe: String,
    },
    /// A new entry has a destination that the compiled program does not know, and its pipe's packets may not
    /// be left to the engine.
    #[error("an entry of pipe `{pipe}` needs another compilation")]
    NewLead {
        /// The pipe.
        pipe: String,
    },
}

/// The tables of a program.
#[derive(Debug)]
pub struct Tables {
    program: Program,
    coverage: Coverage,
    counts: CountTable,
    samples: DropSamples,
    pipes: Vec<PipeTable>,
    groups: Vec<GroupTable>,
    flows: Option<FlowTable>,
    followed: Arc<FollowedEntries>,
}

/// The table of a pipe.
#[derive(Debug)]
struct PipeTable {
    map: Map,
    /// HASH: the records, with room for two records of each target.
    memory: Option<Arc<Memory>>,
    /// The place of the pipe's first count.
    first: u32,
    /// The entries by their numbers.
    keys: Vec<Option<EntryKey>>,
    free: Vec<u32>,
    /// ACL: the rules, in the order in which they were added.
    rules: Option<Rules>,
    /// BASIC, and LPM without a trie: the index and the records.
    index: Option<Index>,
    /// LPM: the entries' numbers by prefix, because a look-up in the map finds only the longest prefix.
    prefixes: HashMap<EntryKey, u32>,
}

/// How packets find a record in memory, other than that of a target.
#[derive(Debug)]
enum Index {
    Keys(KeyTable),
    Routes(RouteTable),
}

/// The rules of an ACL pipe. The map has one table for all of them, which is written as a whole.
#[derive(Debug)]
struct Rules {
    shape: AclShape,
    all: Vec<(u32, Entry)>,
    /// Whether the map has another table.
    has_changed: bool,
}

/// The buckets of a group.
#[derive(Debug)]
struct GroupTable {
    map: Map,
    memory: Memory,
}

impl Tables {
    /// Creates tables without entries for a program that `workers` workers run.
    ///
    /// # Errors
    /// The kernel has no memory for the tables, or does not support such maps.
    pub fn new((program, workers): (Program, usize), coverage: Coverage) -> Result<Tables, LoadError> {
        let room: Vec<u32> = program.pipes.iter().map(|pipe| layout::room(&program, pipe)).collect();
        let places = CountPlaces::new(&program, &room);
        let processors = sys::processors().map_err(|error| map_error("counts", 0, error))?;
        let counts = CountTable::new(places, processors);
        let counts = counts.map_err(|(bytes, error)| map_error("counts", bytes, error))?;
        let samples = DropSamples::new(processors);
        let samples = samples.map_err(|(bytes, error)| map_error("dropped frames", bytes, error))?;
        let mut pipes = Vec::new();
        for (at, pipe) in program.pipes.iter().enumerate() {
            let first = counts.places().entry(PipeId(at as u16), 0);
            pipes.push(PipeTable::new(pipe, (first, room[at]), coverage.pipes[at].is_none())?);
        }
        let groups = program.groups.iter().map(GroupTable::new).collect::<Result<_, _>>()?;
        let flows = match coverage.flow_lines(&program) {
            0 => None,
            lines => {
                let error = |(bytes, error)| map_error("flows", bytes, error);
                Some(FlowTable::new(lines * workers.max(1) as u64).map_err(error)?)
            }
        };
        let mut records = vec![None; pipes.len()];
        for at in coverage.flow_pipes(&program) {
            records[at] = pipes[at].memory.clone();
        }
        let followed = Arc::new(FollowedEntries::new(program.clone(), records));
        Ok(Tables { program, coverage, counts, samples, pipes, groups, flows, followed })
    }

    /// Returns the program, without entries.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the flows that are followed here, if the program has a FLOW pipe that compiles.
    pub fn flows(&self) -> Option<&FlowTable> {
        self.flows.as_ref()
    }

    /// Hands out the flows that are followed here, if the program has a FLOW pipe that compiles.
    pub fn take_flows(&mut self) -> Option<FlowTable> {
        self.flows.take()
    }

    /// Returns the entries that flows may be decided for.
    pub fn followed_entries(&self) -> &Arc<FollowedEntries> {
        &self.followed
    }

    /// Returns how flows refer to an entry that they are decided for; `None` if there is no such entry here.
    pub fn flow_entry(&self, pipe: PipeId, matches: &[EntryMatch]) -> Option<FlowEntry> {
        self.followed.of(pipe, matches)
    }

    /// Returns the parts of the program that compile.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Returns where each count is.
    pub fn places(&self) -> &CountPlaces {
        self.counts.places()
    }

    /// Returns the maps for the compiler.
    pub fn maps(&self, devices: Option<&Map>) -> Maps {
        Maps {
            pipes: self.pipes.iter().map(|pipe| pipe.map.fd()).collect(),
            groups: self.groups.iter().map(|group| group.map.fd()).collect(),
            counts: self.counts.fd(),
            samples: self.samples.fd(),
            flows: self.flows.as_ref().map(|flows| flows.place()),
            devices: devices.map(Map::fd),
            processors: self.counts.processors(),
            count_bytes: self.counts.slice_bytes(),
        }
    }

    /// Compiles the program of a port.
    pub fn compile(&self, maps: &Maps, port: PortId, exit: &compile::Exit) -> Code {
        let (program, coverage, counts) = (&self.program, &self.coverage, self.places());
        compile::compile(&compile::Input { program, coverage, counts, maps, port, exit })
    }

    /// Compiles a program that leaves all frames of a port to the engine.
    pub fn compile_pause(&self, maps: &Maps, port: PortId, exit: &compile::Exit) -> Code {
        let (program, coverage, counts) = (&self.program, &self.coverage, self.places());
        compile::compile_pause(&compile::Input { program, coverage, counts, maps, port, exit })
    }

    /// Adds an entry, or replaces the one with the same key. Returns false if the program should be compiled
    /// again, because the entry's packets are left to the engine until then.
    ///
    /// # Errors
    /// The kernel refuses the entry, or the entry needs another compilation; in both cases, packets must not
    /// use the tables.
    pub fn put(&mut self, pipe: PipeId, entry: &Entry) -> Result<bool, TableError> {
        let at = pipe.index();
        if self.coverage.pipes[at].is_some() {
            return Ok(true);
        }
        let of = &self.program.pipes[at];
        if is_own_flow(&entry.matches) {
            return Ok(true);
        }
        let (left, is_known) = match self.coverage.entry(&self.program, pipe, entry) {
            Ok(left) => (left, true),
            Err(NotCompiled) if self.coverage.gives_up[at] => (Some(Why::NewLead), false),
            Err(NotCompiled) => return Err(TableError::NewLead { pipe: of.name.clone() }),
        };
        let full = || TableError::Full { pipe: of.name.clone() };
        let target = layout::target_number(&self.program, of, &entry.matches).map(|target| target as u32);
        let number = target.or_else(|| self.pipes[at].number(of, entry)).ok_or_else(full)?;
        let place = EntryPlace { pipe, count: self.counts.places().entry(pipe, number), left };
        let record = layout::record(&self.program, self.counts.places(), place, entry);
        let done = self.pipes[at].put(of, number, entry, &record);
        done.map_err(|error| TableError::Refused { pipe: of.name.clone(), error })?;
        Ok(is_known)
    }

    /// Whether a change of a pipe's entries takes effect only with [`Tables::write_rules`], before which
    /// packets must not use the tables.
    pub fn has_rules(&self, pipe: PipeId) -> bool {
        self.pipes[pipe.index()].rules.is_some()
    }

    /// Writes the tables of ACL pipes whose rules have changed.
    ///
    /// # Errors
    /// There are too many rules for the compiled program.
    pub fn write_rules(&mut self) -> Result<(), TableError> {
        for (at, (of, table)) in self.program.pipes.iter().zip(&mut self.pipes).enumerate() {
            let Some(rules) = table.rules.as_mut().filter(|rules| rules.has_changed) else { continue };
            let entries = rules.all.iter().map(|(_, entry)| entry.clone()).collect();
            let pipe = Pipe { entries, ..of.clone() };
            if !rules.shape.has_room_for(&pipe) {
                return Err(TableError::NewLead { pipe: of.name.clone() });
            }
            let (program, coverage, places) = (&self.program, &self.coverage, self.counts.places());
            let id = PipeId(at as u16);
            let record = |at: usize, entry: &Entry| {
                let left = coverage.entry(program, id, entry).unwrap_or(Some(Why::NewLead));
                let place = EntryPlace { pipe: id, count: places.entry(id, rules.all[at].0), left };
                layout::record(program, places, place, entry)
            };
            let bytes = acl::table(&rules.shape, &pipe, record);
            let memory = table.memory.as_ref().expect("the table of an ACL pipe is mapped");
            memory.write(0, &bytes);
            rules.has_changed = false;
        }
        Ok(())
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// The kernel refuses the change.
    pub fn remove(&mut self, pipe: PipeId, key: &EntryKey) -> Result<(), TableError> {
        let at = pipe.index();
        if self.coverage.pipes[at].is_some() {
            return Ok(());
        }
        let of = &self.program.pipes[at];
        if is_own_flow(&key.matches) {
            return Ok(());
        }
        let target = layout::target_number(&self.program, of, &key.matches).map(|target| target as u32);
        let done = self.pipes[at].remove(of, key, target);
        let number = done.map_err(|error| TableError::Refused { pipe: of.name.clone(), error })?;
        // The next entry with this number begins at 0.
        self.counts.forget(self.counts.places().entry(pipe, number));
        Ok(())
    }

    /// Replaces a group's buckets. Returns false, and changes nothing, if the program was compiled for
    /// another number of them.
    pub fn publish(&mut self, group: GroupId, buckets: &[u16]) -> bool {
        let fits = self.program.groups[group.index()].size as usize == buckets.len();
        if fits {
            self.groups[group.index()].write(buckets);
        }
        fits
    }

    /// Passes on what was counted since the last call. Frames that are left to the engine go to `left`.
    pub fn sweep(
        &mut self,
        all: bool,
        found: &mut dyn FnMut(Swept<'_>),
        mut left: impl FnMut(PortId, Why, u64),
    ) {
        self.samples.sweep(|reason, frame, frames| found(Swept::Dropped(reason, frame, frames)));
        let pipes = &self.pipes;
        self.counts.sweep(all, |counted, count| match counted {
            CountedAt::Decided(port, verdict) => found(Swept::Decided(port, verdict, count)),
            CountedAt::Sent(Verdict::Transmit(port)) => found(Swept::Sent(port, count.bytes)),
            // These frames are counted, but not sent.
            CountedAt::Sent(Verdict::Kernel(_) | Verdict::Drop(_) | Verdict::App(_)) => {}
            CountedAt::Left(port, why) => left(port, why, count.packets),
            CountedAt::Shared(counter) => found(Swept::Counter(counter, count)),
            CountedAt::Misses(pipe) => found(Swept::Misses(pipe, count)),
            CountedAt::Entry(pipe, number) => {
                if let Some(key) = &pipes[pipe.index()].keys[number as usize] {
                    found(Swept::Entry(pipe, key, count));
                }
            }
        });
    }

    /// Returns a count.
    pub fn count(&self, place: u32) -> Count {
        self.counts.read(place)
    }

    /// Returns the number of an entry in its pipe.
    pub fn number(&self, pipe: PipeId, key: &EntryKey) -> Option<u32> {
        let keys = &self.pipes[pipe.index()].keys;
        keys.iter().position(|one| one.as_ref() == Some(key)).map(|at| at as u32)
    }
}

/// Whether an entry is that of a single flow. The kernel follows no such flow.
fn is_own_flow(matches: &[EntryMatch]) -> bool {
    matches!(matches, [EntryMatch::Flow(_)])
}

impl PipeTable {
    fn new(pipe: &Pipe, (first, room): (u32, u32), is_compiled: bool) -> Result<PipeTable, LoadError> {
        let what = format!("pipe {}", pipe.name);
        let (keys, free) = (vec![None; room as usize], (0..room).rev().collect());
        let (mut index, prefixes) = (None, HashMap::new());
        let no_memory = |(bytes, error)| map_error(&what, bytes, error);
        let map = match pipe.kind {
            _ if !is_compiled => create(&what, MapKind::Array, 4, 8, 1)?,
            PipeKind::Hash { .. } | PipeKind::Flow { .. } => {
                create(&what, MapKind::Array, 4, layout::target_bytes(pipe, room as usize), 1)?
            }
            PipeKind::Lpm => match RouteShape::new(pipe, room) {
                Some(shape) => {
                    let (map, table) = RouteTable::new(shape).map_err(no_memory)?;
                    index = Some(Index::Routes(table));
                    map
                }
                None => {
                    let key = pipe.varying().next().map_or(8, |one| layout::prefix_bytes(one.field));
                    create(&what, MapKind::LpmTrie, key, layout::record_bytes(pipe), room.max(1))?
                }
            },
            PipeKind::Acl => {
                let shape = AclShape::of(pipe).expect("the coverage has looked at the shape");
                let map = create(&what, MapKind::Array, 4, shape.bytes().next_multiple_of(8), 1)?;
                let memory = map.memory().map_err(|error| map_error(&what, shape.bytes(), error))?;
                let rules = Some(Rules { shape, all: Vec::new(), has_changed: true });
                return Ok(PipeTable {
                    map,
                    memory: Some(Arc::new(memory)),
                    first,
                    keys,
                    free,
                    rules,
                    index,
                    prefixes,
                });
            }
            PipeKind::Basic => {
                let (map, table) = KeyTable::new(KeyShape::new(pipe, room as usize)).map_err(no_memory)?;
                index = Some(Index::Keys(table));
                map
            }
        };
        let mut table = PipeTable { map, memory: None, first, keys, free, rules: None, index, prefixes };
        if is_compiled && matches!(pipe.kind, PipeKind::Hash { .. } | PipeKind::Flow { .. }) {
            let memory = table.map.memory().map_err(|error| map_error(&what, 0, error))?;
            let absent: Vec<u8> = [0, layout::ABSENT].iter().flat_map(|word| word.to_ne_bytes()).collect();
            for target in 0..room as usize {
                memory.write(layout::target_record(pipe, room as usize, target, 0), &absent);
            }
            table.memory = Some(Arc::new(memory));
        }
        Ok(table)
    }

    /// Returns the number of an entry: that of the entry with the same key, or a free number.
    fn number(&self, pipe: &Pipe, entry: &Entry) -> Option<u32> {
        self.find(pipe, &EntryKey::of(entry)).or_else(|| self.free.last().copied())
    }

    /// Returns the number of the entry with a key.
    fn find(&self, pipe: &Pipe, key: &EntryKey) -> Option<u32> {
        if let Some(rules) = &self.rules {
            return rules.number(key);
        }
        if pipe.kind == PipeKind::Lpm {
            return self.prefixes.get(key).copied();
        }
        match &self.index {
            Some(Index::Keys(keys)) => keys.count_of(&key.matches).map(|place| place - self.first),
            Some(Index::Routes(_)) | None => None,
        }
    }

    fn put(&mut self, pipe: &Pipe, number: u32, entry: &Entry, record: &[u8]) -> io::Result<()> {
        let key = EntryKey::of(entry);
        match (&mut self.rules, &self.memory) {
            (Some(rules), _) => rules.put(number, entry),
            (None, Some(memory)) => self.write_target(memory, pipe, (number, 0), record),
            (None, None) => match &mut self.index {
                Some(Index::Keys(keys)) => keys.put(&key.matches, record)?,
                Some(Index::Routes(routes)) => routes.put(&key.matches, record)?,
                None => self.map.update(&prefix(pipe, &key.matches), record)?,
            },
        }
        if self.free.last() == Some(&number) {
            self.free.pop();
        }
        if pipe.kind == PipeKind::Lpm {
            self.prefixes.insert(key.clone(), number);
        }
        self.keys[number as usize] = Some(key);
        Ok(())
    }

    /// Writes that of a target's two records that packets do not read, and then makes packets read it. A
    /// removal begins another life of the entry, and flows of an earlier life no longer find the entry.
    fn write_target(&self, memory: &Memory, pipe: &Pipe, (target, removals): (u32, u64), record: &[u8]) {
        let slot = memory.word(target as usize * 8);
        let next = (slot.load(Ordering::Relaxed) ^ 1) + 2 * removals;
        let at = layout::target_record(pipe, self.keys.len(), target as usize, next as usize & 1);
        memory.write(at, record);
        slot.store(next, Ordering::Release);
    }

    /// Removes the entry with a key and returns the entry's number; `target` is the number of the entry's
    /// target, if the entry is for a target.
    fn remove(&mut self, pipe: &Pipe, key: &EntryKey, target: Option<u32>) -> io::Result<u32> {
        let found = target.or_else(|| self.find(pipe, key));
        let number = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        match (&mut self.rules, &self.memory) {
            (Some(rules), _) => rules.remove(number),
            (None, Some(memory)) => {
                let mut absent = vec![0; layout::record_bytes(pipe)];
                absent[layout::TEMPLATE as usize..][..4].copy_from_slice(&layout::ABSENT.to_ne_bytes());
                self.write_target(memory, pipe, (number, 1), &absent);
            }
            (None, None) => match &mut self.index {
                Some(Index::Keys(keys)) => keys.remove(&key.matches)?,
                Some(Index::Routes(routes)) => routes.remove(&key.matches)?,
                None => self.map.remove(&prefix(pipe, &key.matches))?,
            },
        }
        if target.is_none() {
            self.prefixes.remove(key);
            self.free.push(number);
        }
        self.keys[number as usize] = None;
        Ok(number)
    }
}

impl Rules {
    fn number(&self, key: &EntryKey) -> Option<u32> {
        let has = |entry: &Entry| entry.priority == key.priority && entry.matches == key.matches;
        self.all.iter().find(|(_, entry)| has(entry)).map(|(number, _)| *number)
    }

    fn put(&mut self, number: u32, entry: &Entry) {
        match self.all.iter_mut().find(|(of, _)| *of == number) {
            Some((_, old)) => *old = entry.clone(),
            None => self.all.push((number, entry.clone())),
        }
        self.has_changed = true;
    }

    fn remove(&mut self, number: u32) {
        self.all.retain(|(of, _)| *of != number);
        self.has_changed = true;
    }
}

/// The key of an LPM pipe's entry.
fn prefix(pipe: &Pipe, matches: &[EntryMatch]) -> Vec<u8> {
    match (pipe.varying().next(), matches) {
        (Some(one), [EntryMatch::Prefix { value, length }]) => layout::prefix(one.field, *value, *length),
        _ => unreachable!("the entries of LPM pipes have a prefix"),
    }
}

impl GroupTable {
    /// Creates buckets without targets.
    fn new(group: &Group) -> Result<GroupTable, LoadError> {
        let what = format!("group {}", group.name);
        let bytes = (group.size as usize * 2).next_multiple_of(8);
        let map = create(&what, MapKind::Array, 4, bytes, 1)?;
        let memory = map.memory().map_err(|error| map_error(&what, bytes, error))?;
        memory.write(0, &vec![0xff; bytes]);
        Ok(GroupTable { map, memory })
    }

    fn write(&self, buckets: &[u16]) {
        let bytes: Vec<u8> = buckets.iter().flat_map(|target| target.to_ne_bytes()).collect();
        self.memory.write(0, &bytes);
    }
}

fn map_error(what: &str, bytes: usize, error: io::Error) -> LoadError {
    LoadError::Map { what: what.to_string(), bytes, error }
}

fn create(what: &str, kind: MapKind, key: usize, value: usize, entries: u32) -> Result<Map, LoadError> {
    let error = |error| map_error(what, (key + value) * entries as usize, error);
    Map::create(kind, key, value, entries).map_err(error)
}
