//! Watches a file of Kubernetes objects, which others replace: by a rename, by another target of a symbolic
//! link (as mounted ConfigMaps do), or in place. The file is polled, because polling works for all of these
//! and on every file system. A file that is gone or cannot be read changes nothing.

use crate::sources::{ServiceSource, SourceBoard, SourceKind, SourceTask, convert};
use anyhow::{Context, Result};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_config::infile;

/// How often the file is looked at.
const POLL: Duration = Duration::from_millis(100);
/// How many polls may pass until a file that keeps changing is read.
const POLLS_MAX: u32 = 5;
/// If a file changed less than this time before it was read, it may have changed again in the same tick of
/// its clock.
const TICK: Duration = Duration::from_millis(20);
/// When a file that could not be read is read again, even though it has not changed: there may have been too
/// many open files.
const RETRY: Duration = Duration::from_secs(5);
/// The largest size of a file, in bytes.
const SIZE_MAX: u64 = 64 << 20;

/// The thread of a file.
pub(super) struct FileThread {
    pub source: Arc<ServiceSource>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FileThread {
    /// Starts the thread of a source.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start((source, board): SourceTask) -> Result<FileThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let SourceKind::File(path) = &source.kind else { anyhow::bail!("this source is not a file") };
        let (path, of, ends) = (path.clone(), source.clone(), stop.clone());
        let run = move || {
            let mut watch = FileWatch::default();
            while !ends.load(Ordering::Relaxed) {
                watch.poll(&path, &of, &board);
                std::thread::park_timeout(POLL);
            }
        };
        let thread = std::thread::Builder::new().name("weir-source".into()).spawn(run);
        let thread = thread.context("no thread for a source of services")?;
        Ok(FileThread { source, stop, thread: Some(thread) })
    }
}

impl Drop for FileThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// What identifies the contents of a file: its device, inode, size, and times of its last changes.
type Identity = (u64, u64, u64, [i64; 4]);

fn identity(about: &Metadata) -> Identity {
    let times = [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()];
    (about.dev(), about.ino(), about.size(), times)
}

/// Returns whether a file that changes after now gets another identity. Its modification time does not show
/// this, because programs can set it, even to a time in the future.
fn is_settled(about: &Metadata) -> bool {
    let (seconds, nanoseconds) = (about.ctime().max(0) as u64, about.ctime_nsec().max(0) as u32);
    let changed = UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds));
    let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
    age.is_some_and(|age| age > TICK)
}

/// What was seen of a file.
#[derive(Default)]
struct FileWatch {
    /// The file that was read last.
    read: Option<Identity>,
    text: Option<String>,
    /// The file in the previous poll, and for how many polls in a row it has changed.
    seen: Option<Identity>,
    polls: u32,
    /// When to read the same file again, because it could not be read.
    retry: Option<Instant>,
    failure: Option<String>,
}

impl FileWatch {
    fn poll(&mut self, path: &Path, source: &ServiceSource, board: &SourceBoard) {
        let about = match std::fs::metadata(path) {
            Ok(about) => about,
            Err(error) => {
                (self.read, self.seen, self.text) = (None, None, None);
                return self.fail(error.to_string(), board);
            }
        };
        let now = identity(&about);
        let retries = self.retry.is_some_and(|retry| retry <= Instant::now());
        if self.read == Some(now) && !retries {
            if self.failure.is_none() {
                board.confirm();
            }
            return;
        }
        // It may be half written.
        self.polls += 1;
        if self.seen.replace(now) != Some(now) && self.polls < POLLS_MAX && self.read.is_some() {
            return;
        }
        self.polls = 0;
        let text = read(path);
        self.read = is_settled(&about).then_some(now);
        self.take(text, source, board);
    }

    /// Uses the text of the file.
    fn take(&mut self, text: Result<String, String>, source: &ServiceSource, board: &SourceBoard) {
        self.retry = None;
        match text {
            Err(why) => {
                // Whatever it has once it can be read is used.
                (self.text, self.retry) = (None, Some(Instant::now() + RETRY));
                self.fail(why, board);
            }
            Ok(text) if self.text.as_ref() == Some(&text) => {
                if self.failure.is_none() {
                    board.confirm();
                }
            }
            Ok(text) => {
                match convert(source, &source.of(), &text) {
                    Err(why) => self.fail(why, board),
                    Ok(converted) => {
                        let counts = [converted.services.len(), converted.back_ends];
                        board.publish(converted.services, counts, converted.notes);
                        self.failure = None;
                    }
                }
                self.text = Some(text);
            }
        }
    }

    /// Publishes a failure once.
    fn fail(&mut self, why: String, board: &SourceBoard) {
        if self.failure.as_ref() != Some(&why) {
            board.fail(why.clone());
            self.failure = Some(why);
        }
    }
}

/// Reads a file.
///
/// # Errors
/// A sentence that says why the file cannot be read.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let file = infile::open(path).map_err(|error| error.to_string())?;
    let bytes = infile::read_from(file, SIZE_MAX).map_err(|error| error.to_string())?;
    String::from_utf8(bytes)
        .map_err(|error| format!("byte {} is not UTF-8", error.utf8_error().valid_up_to()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("weir-source-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn text(name: &str) -> String {
        let spec = json!({ "clusterIP": "192.0.2.1", "ports": [{ "port": 80 }] });
        json!({ "services": [{ "metadata": { "name": name }, "spec": spec }], "endpoints": [] }).to_string()
    }

    #[test]
    fn a_file_from_the_future_is_read_once_and_one_that_could_not_be_read_is_read_again() {
        let folder = folder("again");
        let path = folder.join("f.json");
        let kind = SourceKind::File(path.clone());
        let source = ServiceSource { name: "s".into(), kind, template: Map::new(), each: Map::new() };
        let (board, mut watch) = (SourceBoard::default(), FileWatch::default());
        std::fs::write(&path, text("a")).unwrap();
        let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(tomorrow).unwrap();
        std::thread::sleep(2 * TICK);
        watch.poll(&path, &source, &board);
        assert!(watch.read.is_some() && board.status().state() == "ok");
        watch.take(Err("too many open files".into()), &source, &board);
        watch.poll(&path, &source, &board);
        assert_eq!(board.status().state(), "failing", "not in every poll");
        watch.retry = Some(Instant::now());
        watch.poll(&path, &source, &board);
        assert_eq!((board.status().state(), watch.retry), ("ok", None));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_way_to_replace_a_file_is_noticed_and_garbage_or_a_removal_changes_nothing() {
        let folder = folder("watch");
        let path = folder.join("link.json");
        let kind = SourceKind::File(path.clone());
        let source = ServiceSource { name: "s".into(), kind, template: Map::new(), each: Map::new() };
        let (board, mut watch) = (SourceBoard::default(), FileWatch::default());
        let mut polled = || {
            for _ in 0..=POLLS_MAX {
                watch.poll(&path, &source, &board);
                std::thread::sleep(2 * TICK);
            }
            let names = match board.found() {
                crate::sources::SourceContent::These(these) => {
                    these.iter().map(|one| one["name"].as_str().unwrap().to_string()).collect()
                }
                crate::sources::SourceContent::Nothing | crate::sources::SourceContent::Failed => Vec::new(),
            };
            (names, board.status().state(), board.status().says())
        };
        let named = |name: &str| vec![format!("default.{name}.80-tcp")];
        assert_eq!((polled().0, polled().1), (Vec::<String>::new(), "failing"));
        // A symbolic link whose target is replaced, as in a ConfigMap.
        for name in ["a", "b"] {
            std::fs::write(folder.join(name), text(name)).unwrap();
            let new = folder.join("new");
            std::os::unix::fs::symlink(name, &new).unwrap();
            std::fs::rename(&new, &path).unwrap();
            assert_eq!((polled().0, polled().1), (named(name), "ok"));
        }
        // In place, with the same size.
        std::fs::write(folder.join("b"), text("c")).unwrap();
        assert_eq!(polled().0, named("c"));
        // A rename over it.
        std::fs::write(folder.join("d"), text("d")).unwrap();
        std::fs::rename(folder.join("d"), &path).unwrap();
        assert_eq!(polled().0, named("d"));
        std::fs::write(&path, &text("e")[..40]).unwrap();
        let (names, state, says) = polled();
        assert_eq!((names, state), (named("d"), "failing"));
        assert!(says.contains("this is not JSON: "), "{says}");
        std::fs::remove_file(&path).unwrap();
        let (names, state, says) = polled();
        assert_eq!((names, state), (named("d"), "failing"));
        assert!(says.contains("No such file"), "{says}");
        assert_eq!(board.status().errors, 3, "each failure is counted once");
        std::fs::write(&path, text("d")).unwrap();
        assert_eq!((polled().0, polled().1), (named("d"), "ok"));
        std::fs::write(&path, "{\"services\": [], \"endpoints\": []}").unwrap();
        assert_eq!((polled().0, polled().1), (Vec::new(), "ok"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
