//! The configuration as loaded, how its file differs now, and what a reload would do to flows.

use crate::config::{self, Plan};
use crate::interfaces::nics_of;
use crate::observer::Snapshot;
use serde_json::json;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};
use weir_app::moves::Moves;
use weir_config::{hidden, infile};
use weir_page::describe::{ConfigurationFacts, MovedFlows};

/// How long an answer that depends on other files, such as those with entries, is kept.
const OTHERS_AGE: Duration = Duration::from_secs(10);

/// A file that was written less than this ago may be written again without another time of change, because
/// file systems round times.
const RECENT: Duration = Duration::from_secs(2);

/// The last answer to GET of the configuration, and what it depends on: reading and comparing a large file
/// takes long.
#[derive(Default)]
pub struct ComparedFile {
    plan: Weak<Plan>,
    generation: u64,
    /// Inode, length and times of the file; `None` if the answer must not be kept.
    stamp: Option<[i128; 4]>,
    /// Until when the answer is kept; `None` if it depends on no other files.
    until: Option<Instant>,
    text: String,
}

impl ComparedFile {
    /// Answers GET of the configuration.
    pub fn answer(&mut self, now: &Snapshot) -> String {
        let about = std::fs::metadata(&now.file).ok();
        let stamp = about.as_ref().map(stamp);
        let same = self.stamp.is_some()
            && self.stamp == stamp
            && self.generation == now.generation
            // The allocation of a plan is not reused while there are references, also if they are weak.
            && self.plan.as_ptr() == Arc::as_ptr(&now.plan)
            && self.until.is_none_or(|until| Instant::now() < until);
        if !same {
            let facts = compare(now);
            *self = ComparedFile {
                plan: Arc::downgrade(&now.plan),
                generation: now.generation,
                stamp: stamp.filter(|_| about.is_some_and(|about| !is_recent(&about))),
                until: (!facts.same).then(|| Instant::now() + OTHERS_AGE),
                text: format!("{}\n", json!(facts)),
            };
        }
        self.text.clone()
    }
}

fn stamp(about: &Metadata) -> [i128; 4] {
    let time = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    [
        about.ino().into(),
        about.len().into(),
        time(about.mtime(), about.mtime_nsec()),
        time(about.ctime(), about.ctime_nsec()),
    ]
}

/// Whether a file was changed a moment ago, or in the future.
fn is_recent(about: &Metadata) -> bool {
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(about.ctime().try_into().unwrap_or(0));
    changed.elapsed().map_or(true, |age| age < RECENT + Duration::from_secs(1))
}

/// Compares the running configuration with its file.
fn compare(now: &Snapshot) -> ConfigurationFacts {
    let loaded = &now.plan.source.text;
    let read = infile::read(&now.file).map_err(|why| format!("{}: {why}", now.file.display()));
    let text = read.and_then(|bytes| {
        String::from_utf8(bytes).map_err(|_| format!("{}: it is not UTF-8", now.file.display()))
    });
    let mut facts = ConfigurationFacts {
        file: now.file.display().to_string(),
        generation: now.generation,
        loaded: without_secrets(loaded),
        edited: now.plan.edits.count() > 0,
        ..ConfigurationFacts::default()
    };
    match text {
        Ok(text) => {
            facts.same = text == **loaded;
            if !facts.same {
                match (now.load)(&*now.plan.edits, &nics_of(&now.plan)) {
                    Ok(plan) => facts.plan = planned(&now.plan, &plan),
                    Err(why) => facts.refused = Some(format!("{why:#}")),
                }
            }
            facts.file_text = Some(without_secrets(&text));
        }
        Err(why) => facts.file_error = Some(why),
    }
    facts
}

/// Returns the flows that another plan would move.
fn planned(old: &Plan, new: &Plan) -> Vec<MovedFlows> {
    let moved = config::moves(old, new, &nics_of(old)).into_iter();
    let facts =
        |Moves { name, moved, least, why, flows_end }| MovedFlows { name, moved, least, why, flows_end };
    moved.filter(|one| one.moved > 0.0 || one.flows_end).map(facts).collect()
}

fn without_secrets(text: &str) -> String {
    text.split('\n').map(hidden).collect::<Vec<_>>().join("\n")
}
