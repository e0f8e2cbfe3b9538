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

/// A file that was written less than this long ago may be written again without a new timestamp: file systems
/// round times to up to 2 s, and the seconds that are compared here round by another one.
const RECENT: Duration = Duration::from_secs(3);

/// The last answer to GET of the configuration: reading and comparing a large file takes long.
#[derive(Default)]
pub struct ComparedFile {
    /// What the answer is about; `None` if it must not be kept.
    about: Option<Compared>,
    /// Until when the answer is kept; `None` if it depends on no other files.
    until: Option<Instant>,
    text: String,
}

/// The versions of the running configuration and of the file that were compared.
#[derive(Clone)]
struct Compared {
    /// The running configuration. This weak reference keeps its address from being used for another plan.
    plan: Weak<Plan>,
    generation: u64,
    /// Inode, length and times of the file; `None` if they cannot be read.
    stamp: Option<[i128; 4]>,
}

impl PartialEq for Compared {
    fn eq(&self, other: &Compared) -> bool {
        Weak::ptr_eq(&self.plan, &other.plan)
            && (self.generation, self.stamp) == (other.generation, other.stamp)
    }
}

impl ComparedFile {
    /// Answers GET of the configuration.
    pub fn answer(&mut self, now: &Snapshot) -> String {
        let file = std::fs::metadata(&now.file).ok();
        let about = Compared {
            plan: Arc::downgrade(&now.plan),
            generation: now.generation,
            stamp: file.as_ref().map(stamp),
        };
        if !self.has(&about, Instant::now()) {
            let facts = compare(now);
            let is_settled = file.is_some_and(|file| !is_recent(&file));
            self.keep(is_settled.then_some(about), facts.same, format!("{}\n", json!(facts)));
        }
        self.text.clone()
    }

    /// Whether the last answer is still valid.
    fn has(&self, about: &Compared, now: Instant) -> bool {
        self.about.as_ref() == Some(about) && self.until.is_none_or(|until| now < until)
    }

    fn keep(&mut self, about: Option<Compared>, is_same: bool, text: String) {
        let until = (!is_same).then(|| Instant::now() + OTHERS_AGE);
        *self = ComparedFile { about, until, text };
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
    changed.elapsed().map_or(true, |age| age < RECENT)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_kept_until_something_that_it_depends_on_changes() {
        let about = Compared { plan: Weak::new(), generation: 3, stamp: Some([1, 2, 3, 4]) };
        let mut last = ComparedFile::default();
        let now = Instant::now();
        assert!(!last.has(&about, now));
        last.keep(Some(about.clone()), true, "same".to_string());
        assert!(last.has(&about, now + 2 * OTHERS_AGE));
        assert!(!last.has(&Compared { generation: 4, ..about.clone() }, now));
        assert!(!last.has(&Compared { stamp: Some([1, 2, 3, 5]), ..about.clone() }, now));
        assert!(!last.has(&Compared { stamp: None, ..about.clone() }, now));
        // If the file differs, the answer may depend on other files.
        last.keep(Some(about.clone()), false, "other".to_string());
        assert!(last.has(&about, now) && !last.has(&about, now + 2 * OTHERS_AGE));
        last.keep(None, true, "a moment ago".to_string());
        assert!(!last.has(&about, now));
    }

    #[test]
    fn a_file_that_was_just_written_may_be_written_again() {
        let name = format!("weir-page-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "a").unwrap();
        let one = std::fs::metadata(&path).unwrap();
        std::fs::write(&path, "ab").unwrap();
        let other = std::fs::metadata(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(is_recent(&one) && is_recent(&other) && stamp(&one) != stamp(&other));
    }
}
