//! The state that survives a restart, if an app wants that: changes of the configuration at run time, and the
//! states of apps. The state is one JSON file, which a thread rewrites after changes. The client that
//! requested a change is answered once a file with it is written, with an error if that fails. Changes made
//! while the file is being written share the next write. An unusable file is set aside, and never keeps weir
//! from starting.

use super::doorbell::Doorbell;
use crate::config::{Load, Nics, Plan};
use crate::private::{self, state_file};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use tracing::{error, info};
use weir_app::edits::{self, Edits};
use weir_app::kind::Kind;
use weir_app::priority;
use weir_config::infile;
use weir_config::outfile::{self, Whole};

/// The version of the file's format.
const VERSION: u64 = 1;

/// The largest size of the file in bytes.
const SIZE_MAX: u64 = 64 << 20;

/// The contents of the file.
#[derive(Clone)]
struct Saved {
    edits: Arc<dyn Edits>,
    states: Value,
}

impl Saved {
    /// Returns the text of the file. The text may be long, so it is made by the thread that writes the file.
    fn text(&self) -> std::io::Result<Vec<u8>> {
        let Saved { edits, states } = self;
        let mut text = Vec::new();
        write!(text, "{{\"version\":{VERSION},\"edits\":")?;
        edits.write(&mut text)?;
        writeln!(text, ",\"states\":{states}}}")?;
        Ok(text)
    }

    /// Returns true if these are the same edits, and the same states.
    fn is(&self, other: &Saved) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.edits), Arc::as_ptr(&other.edits)) && self.states == other.states
    }
}

/// Returns a plan with the changes that have survived a restart, and the states of apps.
pub fn recall(plan: Plan, load: &Load) -> (Plan, Value) {
    if !plan.apps.persist() {
        return (plan, Value::Null);
    }
    let path = state_file(&plan);
    let Saved { edits, states } = match read(&path, plan.apps.kinds()) {
        Ok(Some(saved)) => saved,
        Ok(None) => return (plan, Value::Null),
        Err(error) => {
            put_aside(&path, &format!("{error:#}"));
            return (plan, Value::Null);
        }
    };
    if edits.count() == 0 {
        return (plan, states);
    }
    match load(&*edits, &Nics::default()) {
        Ok(edited) => {
            info!("restored {} run-time changes from {}", edited.edits.count(), path.display());
            (edited, states)
        }
        Err(error) => {
            put_aside(&path, &format!("with it, {error:#}"));
            (plan, states)
        }
    }
}

/// Logs why a file is not used, and keeps it for the operator.
fn put_aside(path: &Path, why: &str) {
    let aside = path.with_extension("json.refused");
    let kept = match outfile::move_aside(path, &aside) {
        Ok(()) => format!("it is now {}", aside.display()),
        Err(error) => format!("it cannot be renamed: {error}"),
    };
    error!("run-time changes are lost, because {} cannot be used: {why}; {kept}", path.display());
}

fn read(path: &Path, kinds: &[Kind]) -> Result<Option<Saved>> {
    let Some(file) = private::open_if_there(path)? else { return Ok(None) };
    let text = infile::read_from(file, SIZE_MAX)?;
    let value: Value = serde_json::from_slice(&text).context("it is not JSON")?;
    if value["version"] != VERSION {
        bail!("its version is {}, not {VERSION}", value["version"]);
    }
    let edits = edits::read(kinds, &value["edits"]).context("`edits` is not in weir's format")?;
    Ok(Some(Saved { edits, states: value["states"].clone() }))
}

/// The file, its new contents, and where the outcome goes.
type Job = (PathBuf, Saved, WriteOutcome);

/// Writes the file.
#[derive(Default)]
pub struct Store {
    thread: Option<Sender<Job>>,
    /// The path and the contents of the last job, and its outcome.
    last: Option<(PathBuf, Saved, Saving)>,
}

/// A file that is being written.
#[derive(Clone, Default)]
pub struct Saving(Arc<OnceLock<Result<(), String>>>);

impl Saving {
    /// Returns whether the file has reached the disk, once that is known.
    pub fn outcome(&self) -> Option<Result<()>> {
        self.0.get().map(|outcome| outcome.clone().map_err(|why| anyhow!("{why}")))
    }
}

/// Where the outcome of a job goes. If it is dropped without one, the file is not written.
struct WriteOutcome(Saving);

impl WriteOutcome {
    fn set(self, outcome: Result<(), String>) {
        let _ = self.0.0.set(outcome);
    }
}

impl Drop for WriteOutcome {
    fn drop(&mut self) {
        let why = "the change is in effect but will not survive a restart: nothing saves it";
        let _ = self.0.0.set(Err(why.to_string()));
    }
}

impl Store {
    /// Begins to write a plan's edits and the states of its apps, if anything that must survive has changed.
    pub fn save(&mut self, plan: &Plan, states: &Value, doorbell: &Doorbell) -> Option<Saving> {
        if !plan.apps.persist() {
            return None;
        }
        let (path, now) = (state_file(plan), Saved { edits: plan.edits.clone(), states: states.clone() });
        self.save_at(path, now, doorbell)
    }

    /// Returns `None` if the file already has these contents. If they are being written, the caller shares
    /// the outcome, and if that failed, they are written again.
    fn save_at(&mut self, path: PathBuf, now: Saved, doorbell: &Doorbell) -> Option<Saving> {
        if let Some((_, _, saving)) = self.last.as_ref().filter(|(at, last, _)| *at == path && last.is(&now))
        {
            match saving.0.get() {
                None => return Some(saving.clone()),
                Some(Ok(())) => return None,
                Some(Err(_)) => {}
            }
        }
        let bell = doorbell.clone();
        let thread = self.thread.get_or_insert_with(|| {
            let (thread, jobs) = channel::<Job>();
            let work = move || {
                priority::ordinary();
                while let Ok(first) = jobs.recv() {
                    write_newest(std::iter::once(first).chain(jobs.try_iter()));
                    bell.ring();
                }
            };
            let _ = std::thread::Builder::new().name("weir-save".into()).spawn(work);
            thread
        });
        let saving = Saving::default();
        let _ = thread.send((path.clone(), now.clone(), WriteOutcome(saving.clone())));
        self.last = Some((path, now, saving.clone()));
        Some(saving)
    }
}

/// Writes the newest contents of each file, which include all earlier ones, and reports the outcome to all
/// that wait for it.
fn write_newest(jobs: impl Iterator<Item = Job>) {
    let mut files: Vec<(PathBuf, Saved, Vec<WriteOutcome>)> = Vec::new();
    for (path, saved, outcome) in jobs {
        match files.iter_mut().find(|file| file.0 == path) {
            Some(file) => {
                file.1 = saved;
                file.2.push(outcome);
            }
            None => files.push((path, saved, vec![outcome])),
        }
    }
    for (path, saved, outcomes) in files {
        let written = saved.text().map_err(Into::into).and_then(|text| write(&path, &text));
        let what = "the change is in effect but will not survive a restart";
        let written = written.map_err(|why| format!("{what}: {} cannot be written: {why:#}", path.display()));
        if let Err(why) = &written {
            error!("{why}");
        }
        outcomes.into_iter().for_each(|outcome| outcome.set(written.clone()));
    }
}

/// Replaces the file atomically.
fn write(path: &Path, text: &[u8]) -> Result<()> {
    let folder = path.parent().context("it has no folder")?;
    if !folder.exists() {
        fs::DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
    }
    let (mut file, whole) = Whole::begin(path, outfile::PRIVATE)?;
    file.write_all(text)?;
    Ok(whole.finish(&file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(state: u64) -> Saved {
        Saved { edits: edits::none(&[]), states: Value::from(state) }
    }

    #[test]
    fn what_is_not_what_weir_writes_is_refused() {
        let folder = std::env::temp_dir().join(format!("weir-persist-{}", std::process::id()));
        let path = folder.join("deep").join("weir.json");
        write(&path, b"{}").unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap()) & 0o777, 0o600);
        for (text, part) in [
            ("", "not JSON"),
            ("{\"version\": 2}", "its version is 2"),
            ("{\"version\": 1}", "`edits`"),
            ("{\"version\": 1, \"edits\": [{\"service\": 7}]}", "`edits`"),
            ("\u{0}\u{1}", "not JSON"),
        ] {
            write(&path, text.as_bytes()).unwrap();
            let why = format!("{:#}", read(&path, &[]).err().expect("refused"));
            assert!(why.contains(part), "{text}: {why}");
        }
        write(&path, b"{\"version\": 1, \"edits\": [], \"states\": null}").unwrap();
        assert!(read(&path, &[]).unwrap().is_some_and(|saved| saved.edits.count() == 0));
        assert!(read(&folder.join("none"), &[]).unwrap().is_none());
        put_aside(&path, "a test says so");
        assert!(!path.exists() && path.with_extension("json.refused").exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn changes_that_wait_share_a_file_and_each_gets_the_outcome() {
        let folder = std::env::temp_dir().join(format!("weir-persist-shared-{}", std::process::id()));
        let (path, other) = (folder.join("weir.json"), folder.join("other.json"));
        let job = |path: &Path, state: u64| {
            let (saving, saved) = (Saving::default(), saved(state));
            ((path.to_path_buf(), saved, WriteOutcome(saving.clone())), saving)
        };
        let all = [(&path, 1), (&other, 2), (&path, 3)].map(|(path, state)| job(path, state));
        let (jobs, waiting): (Vec<Job>, Vec<Saving>) = all.into_iter().unzip();
        write_newest(jobs.into_iter());
        assert!(waiting.iter().all(|one| one.outcome().is_some_and(|outcome| outcome.is_ok())));
        let states = |path: &Path| read(path, &[]).unwrap().unwrap().states;
        assert_eq!((states(&path), states(&other)), (3.into(), 2.into()));
        fs::remove_dir_all(&folder).unwrap();
        // If a file cannot be written, all that wait for it get the error.
        fs::write(&folder, "").unwrap();
        let (jobs, waiting): (Vec<Job>, Vec<Saving>) = [1, 2].map(|one| job(&path, one)).into_iter().unzip();
        write_newest(jobs.into_iter());
        for one in waiting {
            let why = format!("{:#}", one.outcome().unwrap().unwrap_err());
            assert!(why.contains("will not survive a restart") && why.contains("weir.json"), "{why}");
        }
        fs::remove_file(folder).unwrap();
    }

    #[test]
    fn contents_are_unchanged_only_once_they_are_written() {
        let path = std::env::temp_dir().join(format!("weir-persist-same-{}", std::process::id()));
        let bell = Doorbell::new().unwrap();
        // The test takes the place of the thread.
        let (thread, jobs) = channel();
        let mut store = Store { thread: Some(thread), last: None };
        let now = saved(1);
        let mut save = |now: &Saved| store.save_at(path.clone(), now.clone(), &bell);
        let (first, second) = (save(&now).unwrap(), save(&now).unwrap());
        assert!(first.outcome().is_none() && second.outcome().is_none(), "it is not written yet");
        write_newest(jobs.try_iter());
        assert!(first.outcome().unwrap().is_ok() && second.outcome().unwrap().is_ok());
        assert!(save(&now).is_none());
        // What failed is written again.
        let other = saved(2);
        let failed = save(&other).unwrap();
        drop(jobs.recv().unwrap());
        assert!(format!("{:#}", failed.outcome().unwrap().unwrap_err()).contains("nothing saves it"));
        let again = save(&other).unwrap();
        write_newest(jobs.try_iter());
        assert!(again.outcome().unwrap().is_ok() && save(&other).is_none());
        // Nothing waits for a thread that does not run.
        drop(jobs);
        assert!(save(&saved(3)).unwrap().outcome().unwrap().is_err());
        fs::remove_file(path).unwrap();
    }
}
