//! Sketch files: measurements that can be written, read and merged with others.
//!
//! Little-endian: a magic number, the version of the format, a checksum of everything that follows; then
//! seed, settings, totals, and the contents of each part. Counts of distinct keys and quantiles are stored in
//! the format of Apache DataSketches; the rest has no such format. Tables are written without empty slots, so
//! that the size of a file reflects what was measured. A file is as secret as the seed it contains.
//!
//! Input is not trusted: lengths are checked before they are used, and anything that no measurement could
//! have written is an error.

use crate::queries::{Asks, Query, tops};
use crate::settings::Settings;
use crate::sketches::{Sketch, Sketches, Totals, keys_of};
use crate::summary::Summary;
use std::borrow::Cow;
use std::io::{self, Read, Write};
use weir_sketch::top_counts::TopCount;
use weir_sketch::{
    Count, Distinct, FormatError, KeyHash, KeyKind, Mrac, Quantiles, Seed, SpreadSketch, TopCounts,
};

/// The magic number of a sketch file.
const MARK: [u8; 8] = *b"weir-sk\n";

/// The version of the format that is written, and the only one that is read.
const VERSION: u32 = 1;

/// The maximum size of a file that is read: more than any measurement writes.
const BYTES_MAX: u64 = 1 << 30;

/// The maximum number of keys that a file may claim: 100 MiB of them.
const KEYS_MAX: u64 = 1 << 20;

/// Why a sketch file cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of each variant is its documentation")]
pub enum FileError {
    #[error("reading failed: {0}")]
    Io(#[from] io::Error),
    #[error("it has more than {BYTES_MAX} bytes, the limit: no measurement writes a file this large")]
    TooLarge,
    #[error("not a sketch file: it was not written by `weir measure --save`")]
    NotOurs,
    #[error(
        "sketch file version {0} is not supported, only {VERSION}: measure again, or use the weir that \
        wrote it"
    )]
    Version(u32),
    #[error("the file is damaged: its checksum is {found:08x}, not {expected:08x}; was it truncated?")]
    Checksum { expected: u32, found: u32 },
    #[error("the file is inconsistent at byte {0}")]
    Contradiction(usize),
    #[error("part of the file is invalid: {0}")]
    Format(#[from] FormatError),
}

/// The maximum number of packets or bytes in a file: 72 PB, or two years of a thousand million packets per
/// second.
const COUNT_MAX: u64 = 1 << 56;

/// Why two measurements cannot be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of each variant is its documentation")]
pub enum Unlike {
    #[error("they have different seeds: measure both with the same `--seed`")]
    Seed,
    #[error("they have different flow keys, prefixes or tunnels: measure both with the same options")]
    Keys,
    #[error("they have different sizes, {0} and {1} keys: measure both with the same version of weir")]
    Sizes(usize, usize),
}

impl Summary {
    /// Writes everything that was counted, without separating intervals.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn write(&mut self, output: &mut impl Write) -> io::Result<()> {
        self.gather();
        self.write_sketches(&self.all, output)
    }

    /// Writes the sketches of a time span.
    fn write_sketches(&self, sketches: &Sketches, output: &mut impl Write) -> io::Result<()> {
        let mut body = Body::default();
        self.seed.words().into_iter().for_each(|word| body.u64(word));
        let settings = &self.settings;
        let kind = KeyKind::ALL.iter().position(|kind| *kind == settings.flow).unwrap_or_default();
        let (v4, v6) = settings.prefixes;
        body.0.extend([kind as u8, v4, v6, u8::from(settings.tunnels_apart)]);
        body.u64(settings.keys as u64);
        body.u64(self.largest);
        body.totals(&sketches.totals);
        sketches.distinct.iter().for_each(|one| body.blob(&one.to_file()));
        body.0.push(self.kept.len() as u8);
        for query in &self.kept {
            body.0.push(query.row().number);
            sketches.answers[query.place()].iter().for_each(|sketch| body.sketch(sketch));
        }
        output.write_all(&MARK)?;
        output.write_all(&VERSION.to_le_bytes())?;
        output.write_all(&checksum(&body.0).to_le_bytes())?;
        output.write_all(&body.0)
    }

    /// Returns a sketch file of the current interval alone. The interval continues.
    #[must_use]
    pub fn interval_file(&mut self) -> Vec<u8> {
        self.flush();
        let mut file = Vec::new();
        self.write_sketches(&self.interval, &mut file).expect("writing to memory cannot fail");
        file
    }

    /// Returns the parts that have an Apache DataSketches format, as files of that format: their names and
    /// contents. Counts of distinct keys are HLL sketches of keyed hashes, which merge with those of an equal
    /// seed; quantiles are KLL sketches of doubles; heavy keys are frequent items of strings.
    #[must_use]
    pub fn apache(&mut self) -> Vec<(String, Vec<u8>)> {
        self.gather();
        let all = &self.all;
        let distinct = ["flows", "sources", "destinations"].into_iter().zip(&all.distinct);
        let mut files: Vec<(String, Vec<u8>)> =
            distinct.map(|(what, one)| (format!("{what}.hll"), one.to_file())).collect();
        for (query, answer) in Query::all().zip(&all.answers) {
            if let Some(Sketch::Quantiles(quantiles)) = answer {
                files.push((format!("{}.kll", query.word()), quantiles.to_file()));
            }
        }
        for (place, named, _) in tops() {
            let Some(top) = all.top(place) else { continue };
            let row = |row: &TopCount<5>| (self.keys.text(place, &row.key), row.packets - row.error);
            let rows: Vec<(String, u64)> = top.top(top.len()).iter().map(row).collect();
            let bytes = weir_sketch::frequent_items(&rows, top.missing(), top.total().packets);
            files.push((format!("{}.frequent", named.word), bytes));
        }
        files
    }

    /// Reads what [`Summary::write`] wrote. Settings that only concern reports get their defaults.
    ///
    /// # Errors
    /// The input is not a sketch file, has another version, or is damaged.
    pub fn read(input: impl Read) -> Result<Summary, FileError> {
        let mut bytes = Vec::new();
        // Bounded: by `take`.
        input.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(FileError::TooLarge);
        }
        whole(body(&bytes)?)
    }
}

/// Reads all of what follows the header.
fn whole(body: &[u8]) -> Result<Summary, FileError> {
    let mut left = Left { bytes: body, at: 0 };
    let summary = left.summary()?;
    if left.at == body.len() { Ok(summary) } else { left.wrong() }
}

/// What two sketch files must have in common to be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileHead {
    pub(crate) seed: Seed,
    /// The kind of flows, the lengths of prefixes, and whether tunnels are apart.
    pub(crate) keys: (KeyKind, (u8, u8), bool),
    /// The number of keys that the top list of flows remembers.
    pub(crate) size: usize,
}

impl FileHead {
    /// Reads a sketch file, and its sketches unless they are of more than `most` keys.
    pub(crate) fn read(bytes: &[u8], most: usize) -> Result<(FileHead, Option<Summary>), FileError> {
        let body = body(bytes)?;
        let head = Left { bytes: body, at: 0 }.head()?;
        let summary = if head.size > most { None } else { Some(whole(body)?) };
        Ok((head, summary))
    }
}

/// Returns what follows the header of a sketch file, if the file is of this version and not damaged.
fn body(bytes: &[u8]) -> Result<&[u8], FileError> {
    let Some((head, body)) = bytes.split_first_chunk::<16>().filter(|(head, _)| head.starts_with(&MARK))
    else {
        return Err(FileError::NotOurs);
    };
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if word(8) != VERSION {
        return Err(FileError::Version(word(8)));
    }
    let (expected, found) = (word(12), checksum(body));
    if expected == found { Ok(body) } else { Err(FileError::Checksum { expected, found }) }
}

/// CRC-32 (IEEE 802.3).
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(bytes);
    sum.sum()
}

/// What is written after the header.
#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn u32(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    /// Writes numbers of packets or bytes, which the reader limits. Only a merge of forged files exceeds the
    /// limit.
    fn counts<const N: usize>(&mut self, counts: [u64; N]) {
        counts.into_iter().for_each(|count| self.u64(count.min(COUNT_MAX)));
    }

    fn blob(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend(bytes);
    }

    fn totals(&mut self, totals: &Totals) {
        self.counts(totals.flowed);
        totals.span_ns.into_iter().for_each(|time| self.u64(time));
        self.counts([totals.backwards]);
        self.u32(totals.unflowed.len() as u32);
        for (reason, counts) in &totals.unflowed {
            self.blob(reason.as_bytes());
            self.counts(*counts);
        }
    }

    fn sketch(&mut self, sketch: &Sketch) {
        match sketch {
            Sketch::Top(top) => self.top(top),
            Sketch::Sizes(sizes) => self.sizes(sizes),
            Sketch::Spread(spread) => self.spread(spread),
            Sketch::Quantiles(quantiles) => self.blob(&quantiles.to_file()),
        }
    }

    fn sizes(&mut self, sizes: &Mrac) {
        let filled: Vec<(usize, &u32)> =
            sizes.counters().iter().enumerate().filter(|(_, count)| **count > 0).collect();
        self.u32(filled.len() as u32);
        for (place, count) in filled {
            self.u32(place as u32);
            self.u32(*count);
        }
    }

    fn spread(&mut self, spread: &SpreadSketch<5>) {
        let buckets: Vec<_> = spread.filled().collect();
        self.u32(buckets.len() as u32);
        for (place, registers, key, level) in buckets {
            self.u32(place);
            self.0.extend(registers);
            key.iter().for_each(|word| self.u64(*word));
            self.0.push(level);
        }
    }

    fn top(&mut self, top: &TopCounts<5>) {
        let Count { packets, bytes } = top.total();
        self.counts([packets, bytes, top.left_out()]);
        // In the order of keys, so that equal measurements produce equal files.
        let mut rows: Vec<TopCount<5>> = top.iter().collect();
        rows.sort_unstable_by_key(|row| row.key);
        self.u32(rows.len() as u32);
        for row in rows {
            row.key.iter().for_each(|word| self.u64(*word));
            self.counts([row.packets, row.error, row.bytes]);
        }
    }
}

/// The remaining input.
struct Left<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Left<'a> {
    fn wrong<T>(&self) -> Result<T, FileError> {
        Err(FileError::Contradiction(16 + self.at))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], FileError> {
        match self.bytes[self.at..].get(..count) {
            Some(taken) => {
                self.at += count;
                Ok(taken)
            }
            None => self.wrong(),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FileError> {
        Ok(self.take(N)?.try_into().expect("as many as were taken"))
    }

    fn u8(&mut self) -> Result<u8, FileError> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, FileError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, FileError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn words<const N: usize>(&mut self) -> Result<[u64; N], FileError> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.u64()?;
        }
        Ok(words)
    }

    /// Reads numbers of packets or bytes. Numbers larger than those of any measurement are errors: their sum
    /// could exceed 64 bits.
    fn counts<const N: usize>(&mut self) -> Result<[u64; N], FileError> {
        let counts = self.words()?;
        if counts.iter().all(|count| *count <= COUNT_MAX) { Ok(counts) } else { self.wrong() }
    }

    fn blob(&mut self) -> Result<&'a [u8], FileError> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    fn head(&mut self) -> Result<FileHead, FileError> {
        let seed = Seed::new(self.words()?);
        let [kind, v4, v6, tunnels] = self.array()?;
        let keys = self.u64()?;
        let flow = KeyKind::ALL.get(usize::from(kind)).copied();
        let (Some(flow), 1..=KEYS_MAX, true) = (flow, keys, v4 <= 32 && v6 <= 128) else {
            return self.wrong();
        };
        Ok(FileHead { seed, keys: (flow, (v4, v6), tunnels != 0), size: keys as usize })
    }

    fn summary(&mut self) -> Result<Summary, FileError> {
        let FileHead { seed, keys: (flow, prefixes, tunnels_apart), size: keys } = self.head()?;
        let (memory, defaults) = (usize::MAX, Settings::default());
        let settings = Settings { flow, prefixes, tunnels_apart, keys, memory, ..defaults };
        let mut summary = Summary::new(&settings, seed);
        summary.largest = self.u64()?;
        summary.all.totals = self.totals()?;
        for distinct in &mut summary.all.distinct {
            *distinct = Distinct::from_file(self.blob()?)?;
        }
        let mut missing = Query::shed_order();
        for _ in 0..self.u8()? {
            let query = Query::numbered(self.u8()?).filter(|query| missing.contains(query));
            let Some(query) = query else { return self.wrong() };
            missing.retain(|one| *one != query);
            self.sketch(&mut summary, query)?;
        }
        missing.into_iter().for_each(|query| summary.shed_query(query));
        Ok(summary)
    }

    fn totals(&mut self) -> Result<Totals, FileError> {
        let [packets, bytes] = self.counts()?;
        let span_ns = self.words()?;
        let [backwards] = self.counts()?;
        let mut totals = Totals { flowed: [packets, bytes], span_ns, backwards, ..Totals::default() };
        for _ in 0..self.u32()? {
            let Ok(reason) = std::str::from_utf8(self.blob()?) else { return self.wrong() };
            let [packets, bytes] = self.counts()?;
            totals.add_unflowed(Cow::Owned(reason.to_string()), packets, bytes);
        }
        Ok(totals)
    }

    fn sketch(&mut self, summary: &mut Summary, query: Query) -> Result<(), FileError> {
        let answer = &mut summary.all.answers[query.place()];
        match (&query.row().asks, answer) {
            (Asks::Top(top), answer) => {
                *answer = Some(Sketch::Top(self.top(keys_of(&summary.settings, top), &summary.keys.hash)?));
            }
            (Asks::Quantiles(_), answer) => {
                *answer = Some(Sketch::Quantiles(Quantiles::from_file(self.blob()?)?));
            }
            (Asks::FlowSizes, Some(Sketch::Sizes(sizes))) => self.sizes(sizes)?,
            (Asks::Spreaders, Some(Sketch::Spread(spread))) => self.spread(spread)?,
            (Asks::FlowSizes | Asks::Spreaders, _) => return self.wrong(),
        }
        Ok(())
    }

    fn sizes(&mut self, sizes: &mut Mrac) -> Result<(), FileError> {
        for _ in 0..self.u32()? {
            let (place, count) = (self.u32()?, self.u32()?);
            let Some(counter) = sizes.counters_mut().get_mut(place as usize) else { return self.wrong() };
            *counter = count;
        }
        Ok(())
    }

    fn spread(&mut self, spread: &mut SpreadSketch<5>) -> Result<(), FileError> {
        for _ in 0..self.u32()? {
            let (place, registers) = (self.u32()?, self.array()?);
            let (key, level) = (self.words()?, self.u8()?);
            if !spread.fill(place, &registers, &key, level) {
                return self.wrong();
            }
        }
        Ok(())
    }

    fn top(&mut self, keys: usize, hash: &KeyHash) -> Result<TopCounts<5>, FileError> {
        let [packets, bytes, left_out] = self.counts()?;
        let count = self.u32()? as usize;
        if count > keys {
            return self.wrong();
        }
        let mut rows = Vec::with_capacity(count);
        for _ in 0..count {
            let key = self.words()?;
            let [packets, error, bytes] = self.counts()?;
            rows.push(TopCount { key, packets, error, bytes });
        }
        match TopCounts::of_rows(keys, &rows, Count { packets, bytes }, left_out, hash) {
            Some(top) => Ok(top),
            None => self.wrong(),
        }
    }
}
