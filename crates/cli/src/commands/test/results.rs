//! The results of a search, as text and as JSON.

use super::{SHOWN, and_more};
use crate::config::{Report, write_key};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;
use weir_cover::compare::Comparison;
use weir_cover::shadow::WhyUnreachable;
use weir_cover::{Exploration, Path, RowId, Taken};
use weir_packet::craft::describe;
use weir_program::change::EntryKey;
use weir_program::{Entry, Program};

/// Entries that no packet can hit, and why.
pub type Dead = Vec<(RowId, WhyUnreachable)>;

/// Everything that is known about a program.
pub struct TestResults<'a> {
    program: &'a Program,
    report: &'a Report,
    /// The entries of each pipe.
    entries: Vec<Vec<Entry>>,
    found: &'a Exploration,
    compared: &'a Comparison,
    dead: Dead,
}

impl<'a> TestResults<'a> {
    /// Takes entries that no packet can hit, whatever leads to their pipes, and adds the entries that the
    /// search has proved unreachable.
    pub fn new(
        (program, report): (&'a Program, &'a Report),
        found: &'a Exploration,
        compared: &'a Comparison,
        mut dead: Dead,
    ) -> TestResults<'a> {
        let known: BTreeSet<RowId> = dead.iter().map(|(row, _)| *row).collect();
        let proved = found.unhit.iter().filter(|one| one.proved && !known.contains(&one.row));
        dead.extend(proved.map(|one| (one.row, WhyUnreachable::NotReached)));
        let entries = program.pipes.iter().map(|pipe| pipe.entries.iter().collect()).collect();
        TestResults { program, report, entries, found, compared, dead }
    }

    /// Whether all executors agree. A path that is not reached is a gap in the search, not an error of the
    /// configuration.
    pub fn ok(&self) -> bool {
        self.compared.differences.is_empty()
    }

    /// Whether there are entries that no packet can hit.
    pub fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    pub fn json(&self, ok: bool, time: Duration) -> Value {
        let differences = self.compared.differences.iter().map(|one| {
            let case = &self.found.record.cases[one.case];
            json!({ "port": self.port(case.input), "packet": describe(&case.frame),
                "purpose": case.purpose, "executor": one.executor,
                "wanted": one.wanted, "found": one.found })
        });
        let kernel = self.compared.kernel;
        json!({
            "ok": ok, "paths": self.paths(), "covered": self.found.record.paths.len(),
            "unreachable": self.dead.iter().map(|(row, why)| self.dead_json(*row, why)).collect::<Vec<_>>(),
            "differences": differences.collect::<Vec<_>>(),
            "seconds": time.as_secs_f64(),
            "packets": self.found.record.cases.len(),
            "entries": self.entries.iter().map(Vec::len).sum::<usize>(),
            "entries_hit": self.compared.rows.len(),
            "kernel": kernel.map(|counts| json!({ "decided": counts.decided, "left": counts.left })),
            "unexplored": self.found.unexplored,
        })
    }

    pub fn text(&self) -> String {
        let record = &self.found.record;
        let entries: usize = self.entries.iter().map(Vec::len).sum();
        let mut text = format!(
            "{} of {} paths reached by {} packets, {} of {entries} entries hit, {} differences\n",
            record.paths.len(),
            self.paths(),
            record.cases.len(),
            self.compared.rows.len(),
            self.compared.differences.len()
        );
        if let Some(kernel) = self.compared.kernel {
            let _ = writeln!(
                text,
                "kernel: {} packets decided, {} left to a worker",
                kernel.decided, kernel.left
            );
        }
        if let Some(why) = &self.compared.without_kernel {
            let _ = writeln!(text, "kernel: not tested: {why}");
        }
        text += &self.differences();
        for (path, frame) in self.found.missed.iter().take(SHOWN) {
            let _ = writeln!(text, "path not reached: {}", path_text(self.program, path));
            let end = path.end.describe(self.program);
            let _ = writeln!(text, "  {} should have ended thus: {end}", describe(frame));
        }
        text += &and_more(self.found.missed.len());
        for ((pipe, at), why) in self.dead.iter().take(SHOWN) {
            let (entry, why) = (self.entry((*pipe, *at)), self.reason((*pipe, *at), why));
            let _ = writeln!(text, "unreachable: {entry}: {why}");
        }
        text += &and_more(self.dead.len());
        text += &self.unhit();
        for what in &self.found.unexplored {
            let _ = writeln!(text, "not explored: {what}");
        }
        text
    }

    fn differences(&self) -> String {
        let mut text = String::new();
        for one in self.compared.differences.iter().take(SHOWN) {
            let case = &self.found.record.cases[one.case];
            let _ = writeln!(text, "the {} differs from the interpreter: {}", one.executor, case.purpose);
            let _ = writeln!(text, "  {} {}", self.port(case.input), describe(&case.frame));
            let _ = writeln!(text, "  wanted {}\n  found  {}", one.wanted, one.found);
        }
        text + &and_more(self.compared.differences.len())
    }

    /// Lists the entries that no packet hits although, as far as is known, they could be hit.
    fn unhit(&self) -> String {
        let mut text = String::new();
        let is_dead = |row: &RowId| self.dead.iter().any(|(dead, _)| dead == row);
        let unhit = self.found.unhit.iter().map(|one| one.row);
        let unhit: Vec<RowId> =
            unhit.filter(|row| !self.compared.rows.contains(row) && !is_dead(row)).collect();
        for row in unhit.iter().take(SHOWN) {
            let _ = writeln!(text, "no packet found: {}", self.entry(*row));
        }
        text + &and_more(unhit.len())
    }

    fn paths(&self) -> usize {
        self.found.record.paths.len() + self.found.missed.len()
    }

    fn port(&self, id: weir_program::PortId) -> &str {
        &self.program.ports[id.index()].name
    }

    fn entry(&self, (pipe, at): RowId) -> String {
        format!("{} {}", self.program.pipes[pipe.index()].name, self.number((pipe, at)))
    }

    /// Returns the number of an entry with its place, or with its key if an app wrote it.
    fn number(&self, (pipe, at): RowId) -> String {
        let Some(entry) = self.entries[pipe.index()].get(at) else { return format!("entry {}", at + 1) };
        let place = match self.place((pipe, at)) {
            Some(place) => place,
            None => write_key(self.program, &self.program.pipes[pipe.index()], &EntryKey::of(entry)),
        };
        format!("entry {} ({place})", at + 1)
    }

    fn place(&self, (pipe, at): RowId) -> Option<String> {
        let origin = self.entries[pipe.index()].get(at)?.origin;
        (self.report.span_of(origin).line > 0).then(|| self.report.place(origin))
    }

    fn reason(&self, (pipe, _): RowId, why: &WhyUnreachable) -> String {
        match why {
            WhyUnreachable::Shadowed(by) => every_packet_hits(by, |at| self.number((pipe, at))),
            WhyUnreachable::NoSuchPacket => NO_SUCH_PACKET.into(),
            WhyUnreachable::NotReached => "no packet that arrives at its pipe hits it".into(),
        }
    }

    fn dead_json(&self, (pipe, at): RowId, why: &WhyUnreachable) -> Value {
        let by: Vec<usize> = match why {
            WhyUnreachable::Shadowed(by) => by.iter().map(|at| at + 1).collect(),
            WhyUnreachable::NoSuchPacket | WhyUnreachable::NotReached => Vec::new(),
        };
        json!({ "pipe": self.program.pipes[pipe.index()].name, "entry": at + 1,
            "place": self.place((pipe, at)), "shadowed_by": by, "reason": self.reason((pipe, at), why) })
    }
}

/// Says that an entry is not hit because of its own conditions.
pub const NO_SUCH_PACKET: &str = "no packet meets its conditions";

/// Says which entries take the packets of a shadowed entry.
pub fn every_packet_hits(by: &BTreeSet<usize>, name: impl Fn(usize) -> String) -> String {
    let others: Vec<String> = by.iter().map(|at| name(*at)).collect();
    format!("every packet that meets its conditions hits {}", others.join(" or "))
}

/// Returns the pipes of a path.
pub fn path_text(program: &Program, path: &Path) -> String {
    let mut text = program.ports[path.input.index()].name.clone();
    for step in &path.steps {
        let taken = match step.taken {
            Taken::Hit(_) => "hit",
            Taken::Miss => "miss",
            Taken::NoTarget => "no target",
        };
        let _ = write!(text, " > {}: {taken}", program.pipes[step.pipe.index()].name);
    }
    text
}
