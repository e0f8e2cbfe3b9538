//! `weir measure --from URL...`: one measurement of several nodes. Each node is asked for the sketches of the
//! same complete interval, and these are merged.
//!
//! Nodes are asked in parallel. One that does not answer, is late, or cannot be merged with the others is
//! named with the reason, and the rest is merged. Answers are not trusted: their sizes are bounded, a node
//! whose sketches and totals disagree is left out, and no text from a node is printed as it is.

use crate::file::FileHead;
use crate::numbers::grouped;
use crate::{Report, Summary};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_app::clock::since_1970_ns;
use weir_app::kind::RemoteNode;
use weir_app::names::{NameTable, NameTableBuilder, RawName};
use weir_control::addresses::NamedAddress;
use weir_control::measure::{
    IntervalSketches, IntervalState, MEASUREMENTS, MeasurementState, Measurements, interval_path,
};

const NS_PER_MS: u64 = 1_000_000;

/// How often a node is asked whether it has completed an interval.
const AGAIN: Duration = Duration::from_millis(20);

/// If the nodes take longer than this to answer, those that have answered are asked again which intervals
/// they have. This is the length of the shortest interval; nodes keep three.
const SLOW: Duration = Duration::from_millis(100);

/// The largest number of nodes: each is asked by a thread, and sends megabytes.
pub(crate) const NODES_MAX: usize = 64;

/// The largest number of keys in the top list of flows that is accepted: four times as many as nodes have.
const KEYS_MAX: usize = 1 << 16;

/// The longest interval that a node may claim to have, in milliseconds, and the largest number of intervals.
const INTERVAL_MS_MAX: u64 = 3_600_000;
const INTERVALS_MAX: usize = 64;

/// The largest number of names that are read from a node: more than it sends.
const NAMES_MAX: usize = 4096;

/// How many characters of a name are shown.
const SHOWN_MAX: usize = 64;

/// A node that is asked, and the measurement of it that is merged.
pub(crate) struct AskedNode {
    node: Box<dyn RemoteNode>,
    url: String,
}

/// Several nodes.
pub(crate) struct AskedNodes {
    nodes: Vec<AskedNode>,
    /// The name of the measurement on all nodes, if it was given.
    name: Option<String>,
    /// How long to wait for nodes after the end of an interval.
    patience: Duration,
}

/// What the nodes have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    /// The length of intervals.
    pub(crate) interval_ms: u64,
    /// The latest interval that most nodes have completed, or complete soon.
    pub(crate) start_ns: u64,
    /// How far the nodes' clocks are ahead of the one here, in nanoseconds.
    ahead_ns: i64,
}

impl Agreed {
    fn interval_ns(&self) -> u64 {
        self.interval_ms * NS_PER_MS
    }

    /// Returns the interval after this one.
    pub(crate) fn next(self) -> Agreed {
        Agreed { start_ns: self.start_ns + self.interval_ns(), ..self }
    }

    /// Returns the nanoseconds since the interval's end, by the clocks of the nodes; negative before its end.
    pub(crate) fn since_end_ns(&self) -> i64 {
        let end_ns = self.start_ns + self.interval_ns();
        since_1970_ns() as i64 + self.ahead_ns - end_ns as i64
    }
}

/// What one node has contributed to an interval.
struct NodeInterval {
    state: IntervalState,
    head: FileHead,
    summary: Summary,
    names: NameTable,
}

/// An interval of all nodes.
pub(crate) struct MergedInterval {
    agreed: Agreed,
    /// The state of each node's interval, or why it is missing.
    pub(crate) nodes: Vec<(String, Result<IntervalState, String>)>,
    /// The merged sketches; `None` if no node could be merged.
    pub(crate) summary: Option<Summary>,
    /// The names that the merged nodes know.
    names: Vec<NameTable>,
    /// When it was merged, in nanoseconds since the interval's end.
    after_ns: i64,
}

impl AskedNodes {
    pub(crate) fn new(
        nodes: Vec<Box<dyn RemoteNode>>,
        name: Option<String>,
        patience: Duration,
    ) -> AskedNodes {
        let nodes = nodes.into_iter().map(|node| AskedNode { url: node.url(), node });
        AskedNodes { nodes: nodes.collect(), name, patience }
    }

    /// Returns the nodes' URLs.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|one| one.url.clone()).collect()
    }

    /// Calls `each` for all nodes at once, each with its number, and returns the results in their order.
    fn at_once<T: Send>(
        &self,
        each: impl Fn(usize, &AskedNode) -> Result<T, String> + Sync,
    ) -> Vec<Result<T, String>> {
        std::thread::scope(|scope| {
            let each = &each;
            let one = |(at, node)| scope.spawn(move || each(at, node));
            let running: Vec<_> = self.nodes.iter().enumerate().map(one).collect();
            let failed = |_| Err("could not be asked: a thread failed".to_string());
            running.into_iter().map(|one| one.join().unwrap_or_else(failed)).collect()
        })
    }

    /// Asks all nodes which interval they have completed last, until most have completed one.
    ///
    /// # Errors
    /// No node answers, or none completes an interval in time. The errors are those of the nodes.
    pub(crate) fn agree(&self, stop: &AtomicBool) -> Result<Agreed, Vec<(String, String)>> {
        let mut until_ns = None;
        loop {
            let states = self.states();
            let good: Vec<&(MeasurementState, i64)> = states.iter().flatten().collect();
            let interval_ms = most(good.iter().map(|(state, _)| state.interval_ms));
            let same = good.iter().copied().filter(|one| Some(one.0.interval_ms) == interval_ms);
            let same: Vec<&(MeasurementState, i64)> = same.collect();
            if let (Some(interval_ms), Some(start_ns)) = (interval_ms, latest(&same)) {
                let ahead_ns = median(same.iter().map(|(_, ahead_ns)| *ahead_ns)).unwrap_or(0);
                return Ok(Agreed { interval_ms, start_ns, ahead_ns });
            }
            // A node that has just started has completed none.
            let wait_ns = interval_ms.unwrap_or(0) * NS_PER_MS + self.patience.as_nanos() as u64;
            let until_ns = *until_ns.get_or_insert(since_1970_ns() + wait_ns);
            if interval_ms.is_none() || since_1970_ns() >= until_ns || stop.load(Ordering::Relaxed) {
                let none = || "has not completed an interval yet".to_string();
                let why = states.into_iter().map(|state| state.err().unwrap_or_else(none));
                return Err(self.urls().into_iter().zip(why).collect());
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Returns the states of all nodes' measurements, as of about the same time.
    fn states(&self) -> Vec<Result<(MeasurementState, i64), String>> {
        let begun = Instant::now();
        let states = self.at_once(|_, one| self.state(one, self.patience));
        if begun.elapsed() < SLOW {
            return states;
        }
        // While a node did not answer, the others have completed further intervals.
        self.at_once(|at, one| match &states[at] {
            Ok(_) => self.state(one, self.patience),
            Err(why) => Err(why.clone()),
        })
    }

    /// Returns the state of a node's measurement, and how far its clock is ahead of the one here.
    fn state(&self, one: &AskedNode, patience: Duration) -> Result<(MeasurementState, i64), String> {
        let before_ns = since_1970_ns();
        let answer = one.node.get(MEASUREMENTS, patience)?;
        let now_ns = before_ns + (since_1970_ns() - before_ns) / 2;
        let wrong = |_| "answers with something that is not a list of measurements".to_string();
        let all = Measurements::deserialize(&answer).map_err(wrong)?.measurements;
        let state = chosen(all, self.name.as_deref())?;
        let is_right = (1..=INTERVAL_MS_MAX).contains(&state.interval_ms)
            && state.intervals.len() <= INTERVALS_MAX
            && state.intervals.iter().chain([&IntervalState::default()]).all(|one| {
                let end_ns = one.start_ns.checked_add(state.interval_ms * NS_PER_MS);
                end_ns.is_some_and(|end_ns| i64::try_from(end_ns).is_ok())
            });
        let ahead_ns = i64::try_from(state.now_ns).map(|theirs_ns| theirs_ns - now_ns as i64);
        match (is_right, ahead_ns) {
            (true, Ok(ahead_ns)) => Ok((state, ahead_ns)),
            _ => Err("answers with times that are not possible".to_string()),
        }
    }

    /// Merges the interval of all nodes, as soon as all have completed it or the time to wait for them is
    /// over.
    pub(crate) fn merge(&self, agreed: Agreed, stop: &AtomicBool) -> MergedInterval {
        let parts = self.at_once(|_, one| self.part(one, agreed, stop));
        self.merged(agreed, parts)
    }

    /// Merges the interval before a merged one, if all the nodes in that one still have it.
    pub(crate) fn before(&self, merged: &MergedInterval, stop: &AtomicBool) -> Option<MergedInterval> {
        let agreed = merged.agreed;
        let start_ns = agreed.start_ns.checked_sub(agreed.interval_ns())?;
        let agreed = Agreed { start_ns, ..agreed };
        let is_in = |at: usize| merged.nodes[at].1.is_ok();
        let part = |at: usize, one: &AskedNode| match is_in(at) {
            true => self.part(one, agreed, stop),
            false => Err(String::new()),
        };
        Some(self.merged(agreed, self.at_once(part))).filter(|before| before.is_of_same(merged))
    }

    /// Gets a node's part of an interval.
    fn part(&self, one: &AskedNode, agreed: Agreed, stop: &AtomicBool) -> Result<NodeInterval, String> {
        let Agreed { interval_ms, start_ns, .. } = agreed;
        // If the interval ended a while ago, less time is left to wait for it, but nodes still need time to
        // answer.
        let patience_ns = self.patience.as_nanos() as i64;
        let left_ns = (patience_ns - agreed.since_end_ns()).clamp(patience_ns / 2, patience_ns);
        let until_ns = since_1970_ns() + left_ns as u64;
        loop {
            let left = Duration::from_nanos(until_ns.saturating_sub(since_1970_ns())).max(AGAIN);
            let (state, _) = self.state(one, left)?;
            if state.interval_ms != interval_ms {
                let (theirs, ours) = (state.interval_ms, interval_ms);
                return Err(format!("has intervals of {theirs} ms, most others of {ours} ms"));
            }
            if let Some(interval) = state.intervals.iter().find(|one| one.start_ns == start_ns) {
                let left = Duration::from_nanos(until_ns.saturating_sub(since_1970_ns())).max(AGAIN);
                return self.sketches(one, &state.name, interval, left);
            }
            let last_ns = state.intervals.last().map(|one| one.start_ns);
            let interval_ns = agreed.interval_ns();
            if let Some(off_ns) = last_ns.map(|last_ns| last_ns % interval_ns).filter(|off_ns| *off_ns > 0) {
                return Err(format!(
                    "has intervals that begin {} ms after those of others: its clock was set after weir had \
                     started there; restart weir there",
                    off_ns / NS_PER_MS
                ));
            }
            if last_ns.is_some_and(|last_ns| last_ns > start_ns) {
                return Err("has no interval at that time, or no longer keeps it".to_string());
            }
            if since_1970_ns() >= until_ns || stop.load(Ordering::Relaxed) {
                return Err(match last_ns {
                    Some(last_ns) => format!(
                        "is behind: its last complete interval began {} ms before this one",
                        (start_ns - last_ns) / NS_PER_MS
                    ),
                    None => "has not completed an interval yet".to_string(),
                });
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Gets the sketches of an interval that a node has completed.
    fn sketches(
        &self,
        one: &AskedNode,
        name: &str,
        interval: &IntervalState,
        patience: Duration,
    ) -> Result<NodeInterval, String> {
        let answer = one.node.get(&interval_path(name, interval.start_ns), patience)?;
        let wrong = |_| "answers with something that is not an interval".to_string();
        let answer = IntervalSketches::deserialize(answer).map_err(wrong)?;
        let version = || shown(&answer.version);
        let unread = |why: String| {
            let versions = format!("it runs weir {}, this is {}", version(), env!("CARGO_PKG_VERSION"));
            format!("has sketches that cannot be read ({versions}): {why}")
        };
        let file = BASE64_STANDARD.decode(&answer.sketches).map_err(|_| unread("not base64".to_string()))?;
        let (head, summary) = FileHead::read(&file, KEYS_MAX).map_err(|why| unread(why.to_string()))?;
        let Some(summary) = summary else {
            return Err(format!("has sketches of {} keys; the limit is {KEYS_MAX}", head.size));
        };
        let [packets, bytes] = summary.all.totals.sum();
        if (answer.start_ns, packets, bytes) != (interval.start_ns, interval.packets, interval.bytes) {
            return Err("contradicts itself: its sketches are not of the interval that it lists".to_string());
        }
        Ok(NodeInterval { state: interval.clone(), head, summary, names: names(&answer.names) })
    }

    /// Merges what nodes have answered. Nodes that differ from most others are left out.
    fn merged(&self, agreed: Agreed, parts: Vec<Result<NodeInterval, String>>) -> MergedInterval {
        let head = most(parts.iter().flatten().map(|part| &part.head)).cloned();
        let mut summary: Option<Summary> = None;
        let mut names = Vec::new();
        let mut add = |part: NodeInterval| -> Result<IntervalState, String> {
            let NodeInterval { state, head: own, summary: other, names: known } = part;
            if let Some(why) = head.as_ref().and_then(|head| differs(&own, head)) {
                return Err(why);
            }
            match &mut summary {
                Some(summary) => summary.merge(other).map_err(|why| why.to_string())?,
                None => summary = Some(other),
            }
            names.push(known);
            Ok(state)
        };
        let nodes = self.urls().into_iter().zip(parts.into_iter().map(|part| part.and_then(&mut add)));
        let nodes = nodes.collect();
        MergedInterval { agreed, nodes, summary, names, after_ns: agreed.since_end_ns() }
    }
}

/// Reads the names that a node sends. Those that weir would not accept are left out, because they might have
/// control sequences of a terminal.
fn names(all: &[NamedAddress]) -> NameTable {
    let mut builder = NameTableBuilder::default();
    for (place, one) in (0..).zip(all.iter().take(NAMES_MAX)) {
        let raw = RawName {
            address: &one.address,
            name: &one.name,
            namespace: one.namespace.as_deref(),
            kind: Some(one.kind.as_str()).filter(|kind| !kind.is_empty()),
            node: one.node.as_deref(),
        };
        let _ = builder.add(&raw, place);
    }
    builder.build()
}

/// Returns why sketches cannot be merged with those of most nodes; `None` if they can.
fn differs(own: &FileHead, most: &FileHead) -> Option<String> {
    let (what, advice) = if own.seed != most.seed {
        ("another `seed`", "")
    } else if own.keys != most.keys {
        ("another kind of flows, or other prefixes or tunnels,", "")
    } else if own.size != most.size {
        ("sketches of another size", ": run the same version of weir on all nodes")
    } else {
        return None;
    };
    Some(format!("has {what} than most others{advice}"))
}

/// Returns the measurement to merge among those of a node.
fn chosen(all: Vec<MeasurementState>, name: Option<&str>) -> Result<MeasurementState, String> {
    let names = |all: &[MeasurementState]| {
        all.iter().take(4).map(|one| shown(&one.name)).collect::<Vec<_>>().join(", ")
    };
    let one = match name {
        Some(name) => all
            .into_iter()
            .find(|one| one.name == name)
            .ok_or_else(|| format!("has no measurement `{}`", shown(name)))?,
        None => {
            let (mut seeded, mut others): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.seeded);
            match (seeded.len(), others.len()) {
                (1, _) => seeded.remove(0),
                (0, 1) => others.remove(0),
                (0, 0) => return Err("has no measurement".to_string()),
                (0, _) => return Err("has no measurement with a `seed`".to_string()),
                (_, _) => {
                    return Err(format!("has several measurements ({}): use --name", names(&seeded)));
                }
            }
        }
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if !one.name.bytes().all(is_plain) || one.name.is_empty() {
        return Err("has a measurement with an invalid name".to_string());
    }
    if !one.seeded {
        let why = "without a `seed`: write the same one on all nodes, so that they can be merged";
        return Err(format!("has the measurement {} {why}", one.name));
    }
    Ok(one)
}

/// Returns a node's text in a form that a terminal can show.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).collect::<String>().escape_debug().to_string()
}

/// Returns the most frequent value, the first of several.
fn most<T: PartialEq>(all: impl Iterator<Item = T>) -> Option<T> {
    let mut counted: Vec<(T, usize)> = Vec::new();
    for one in all {
        match counted.iter_mut().find(|(other, _)| *other == one) {
            Some((_, count)) => *count += 1,
            None => counted.push((one, 1)),
        }
    }
    let most = counted.iter().map(|(_, count)| *count).max()?;
    counted.into_iter().find(|(_, count)| *count == most).map(|(one, _)| one)
}

fn median(all: impl Iterator<Item = i64>) -> Option<i64> {
    let mut all: Vec<i64> = all.collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

/// Returns the start of the latest interval that at least half of the nodes have completed, or are about to
/// complete: a single node with a wrong clock must not decide.
fn latest(states: &[&(MeasurementState, i64)]) -> Option<u64> {
    let last = |(state, _): &&(MeasurementState, i64)| state.intervals.last().map(|one| one.start_ns);
    let mut starts: Vec<u64> = states.iter().filter_map(last).collect();
    starts.sort_unstable();
    let interval_ns = states.first()?.0.interval_ms * NS_PER_MS;
    let near = |start_ns: u64| {
        let all = starts.iter().filter(|one| **one <= start_ns && start_ns - **one <= interval_ns);
        all.count()
    };
    starts.iter().rev().copied().find(|start_ns| near(*start_ns) * 2 >= starts.len())
}

impl MergedInterval {
    /// Returns true if both have the same nodes.
    pub(crate) fn is_of_same(&self, other: &MergedInterval) -> bool {
        let both = self.nodes.iter().zip(&other.nodes);
        self.summary.is_some() && both.into_iter().all(|(one, other)| one.1.is_ok() == other.1.is_ok())
    }

    /// Returns true if this is the interval before another one.
    pub(crate) fn is_before(&self, other: &MergedInterval) -> bool {
        self.agreed.next().start_ns == other.agreed.start_ns
    }

    /// Reports on the interval, with `rows` rows per list, and on what has changed since the one before.
    pub(crate) fn report(&mut self, before: Option<&MergedInterval>, rows: usize) -> Report {
        let (start_ns, end_ns) = (self.agreed.start_ns, self.agreed.next().start_ns);
        let Some(summary) = &mut self.summary else {
            return Report { start_ns, end_ns, ..Report::default() };
        };
        summary.set_top(rows);
        // Changes may concern addresses that only the previous interval had.
        let before_names = before.map(|before| before.names.as_slice()).unwrap_or_default();
        let before = before.and_then(|before| before.summary.as_ref());
        let mut report = summary.interval_report([start_ns, end_ns], before);
        let known = || self.names.iter().chain(before_names);
        report.find_names(|address| Some(known().find_map(|one| one.find(address))?.1.answer()));
        report
    }

    /// Returns the nodes that are missing, each with the reason, as sentences.
    pub(crate) fn missing(&self) -> Vec<(String, String)> {
        let missing = |(url, part): &(String, Result<IntervalState, String>)| {
            Some((url.clone(), part.as_ref().err()?.clone()))
        };
        self.nodes.iter().filter_map(missing).collect()
    }

    /// Formats the interval and the nodes, as lines in front of the report.
    pub(crate) fn head(&self) -> String {
        let of_day_ms = self.agreed.start_ns / NS_PER_MS % 86_400_000;
        let (seconds, ms) = (of_day_ms / 1000, of_day_ms % 1000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let length = self.agreed.interval_ms as f64 / 1e3;
        let merged = self.nodes.iter().filter(|(_, part)| part.is_ok()).count();
        let mut text = format!(
            "{length} s from {hours:02}:{minutes:02}:{seconds:02}.{ms:03} UTC, {merged} of {} nodes\n",
            self.nodes.len()
        );
        for (url, part) in &self.nodes {
            let _ = match part {
                Ok(state) => {
                    let IntervalState { late_packets, early_packets, spanning_packets, .. } = state;
                    let _ = write!(text, "  {url}  {} packets", grouped(state.packets));
                    for (count, what) in [
                        (late_packets, "late"),
                        (early_packets, "early"),
                        (spanning_packets, "from records that began before"),
                    ] {
                        if *count > 0 {
                            let _ = write!(text, ", {} {what}", grouped(*count));
                        }
                    }
                    writeln!(text)
                }
                Err(why) => writeln!(text, "  {url}  missing: it {why}"),
            };
        }
        text
    }

    /// Returns what JSON has beside the report.
    pub(crate) fn beside(&self) -> Value {
        let row = |(url, part): &(String, Result<IntervalState, String>)| match part {
            Ok(state) => json!({
                "node": url, "merged": true, "packets": state.packets, "bytes": state.bytes,
                "late_packets": state.late_packets, "early_packets": state.early_packets,
                "spanning_packets": state.spanning_packets, "why": null,
            }),
            Err(why) => json!({ "node": url, "merged": false, "why": format!("it {why}") }),
        };
        let nodes: Vec<Value> = self.nodes.iter().map(row).collect();
        let after_ms = self.after_ns / NS_PER_MS as i64;
        json!({ "nodes": nodes, "interval_ms": self.agreed.interval_ms, "merged_after_ms": after_ms })
    }
}

#[cfg(test)]
mod tests;
