//! Watches a file that other programs replace: by a rename, by changing the target of a symbolic link (as
//! mounted ConfigMaps do), or in place. The file is polled, because polling works for all of these and on
//! every file system. While the file is missing or cannot be read, nothing changes.

use anyhow::{Context, Result};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_config::infile;

/// The time between two polls.
const POLL: Duration = Duration::from_millis(100);
/// How many polls may pass until a file that keeps changing is read.
const POLLS_MAX: u32 = 5;
/// If a file changed less than this time before it was read, it may have changed again in the same tick of
/// its clock.
const TICK: Duration = Duration::from_millis(20);
/// How long after a failed read an unchanged file is read again: the cause may have been temporary, such as
/// too many open files.
const RETRY: Duration = Duration::from_secs(5);
/// The largest size of a file, in bytes.
const SIZE_MAX: u64 = 64 << 20;

/// The user of a watched file.
pub trait FileUser: Send {
    /// Uses the new text of the file.
    ///
    /// # Errors
    /// Returns the reason if the text cannot be used.
    fn take(&mut self, text: &str) -> Result<(), String>;

    /// Notes why the file cannot be read or its text cannot be used. It is called once for consecutive
    /// failures with the same reason.
    fn fail(&mut self, why: String);

    /// Notes that the file has not changed since it was last taken.
    fn confirm(&mut self);
}

/// The thread that watches a file, until it is dropped.
pub struct FileThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FileThread {
    /// Starts a thread with this name.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(name: &str, path: PathBuf, mut user: impl FileUser + 'static) -> Result<FileThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = stop.clone();
        let run = move || {
            let mut watch = FileWatch::default();
            while !ends.load(Ordering::Relaxed) {
                watch.poll(&path, &mut user);
                std::thread::park_timeout(POLL);
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        Ok(FileThread { stop, thread: Some(thread.context("no thread for a file")?) })
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

/// Returns whether any later change gives the file another identity. The modification time does not show
/// this, because programs can set it, even to a time in the future.
fn is_settled(about: &Metadata) -> bool {
    let (seconds, nanoseconds) = (about.ctime().max(0) as u64, about.ctime_nsec().max(0) as u32);
    let changed = UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds));
    let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
    age.is_some_and(|age| age > TICK)
}

/// What earlier polls have seen of a file.
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
    fn poll(&mut self, path: &Path, user: &mut dyn FileUser) {
        let about = match std::fs::metadata(path) {
            Ok(about) => about,
            Err(error) => {
                (self.read, self.seen, self.text) = (None, None, None);
                return self.fail(error.to_string(), user);
            }
        };
        let now = identity(&about);
        let retries = self.retry.is_some_and(|retry| retry <= Instant::now());
        if self.read == Some(now) && !retries {
            if self.failure.is_none() {
                user.confirm();
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
        self.take(text, user);
    }

    /// Uses the text of the file.
    fn take(&mut self, text: Result<String, String>, user: &mut dyn FileUser) {
        self.retry = None;
        match text {
            Err(why) => {
                // Once the file can be read, its contents are used, whatever they are.
                (self.text, self.retry) = (None, Some(Instant::now() + RETRY));
                self.fail(why, user);
            }
            Ok(text) if self.text.as_ref() == Some(&text) => {
                if self.failure.is_none() {
                    user.confirm();
                }
            }
            Ok(text) => {
                match user.take(&text) {
                    Err(why) => self.fail(why, user),
                    Ok(()) => self.failure = None,
                }
                self.text = Some(text);
            }
        }
    }

    /// Publishes a failure once.
    fn fail(&mut self, why: String, user: &mut dyn FileUser) {
        if self.failure.as_ref() != Some(&why) {
            user.fail(why.clone());
            self.failure = Some(why);
        }
    }
}

/// Reads a file.
///
/// # Errors
/// A sentence that says why the file cannot be read.
pub fn read(path: &Path) -> Result<String, String> {
    let file = infile::open(path).map_err(|error| error.to_string())?;
    let bytes = infile::read_from(file, SIZE_MAX).map_err(|error| error.to_string())?;
    String::from_utf8(bytes)
        .map_err(|error| format!("byte {} is not UTF-8", error.utf8_error().valid_up_to()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a file's user has seen: the last text, why it is failing, and how many failures there were.
    #[derive(Default)]
    struct SeenFile {
        text: String,
        failure: Option<String>,
        failures: usize,
    }

    impl FileUser for SeenFile {
        fn take(&mut self, text: &str) -> Result<(), String> {
            if text.len() < 4 {
                return Err("it is too short".to_string());
            }
            (self.text, self.failure) = (text.to_string(), None);
            Ok(())
        }

        fn fail(&mut self, why: String) {
            (self.failure, self.failures) = (Some(why), self.failures + 1);
        }

        fn confirm(&mut self) {
            self.failure = None;
        }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("weir-watch-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_file_from_the_future_is_read_once_and_one_that_could_not_be_read_is_read_again() {
        let folder = folder("again");
        let path = folder.join("f.json");
        let (mut seen, mut watch) = (SeenFile::default(), FileWatch::default());
        std::fs::write(&path, "text").unwrap();
        let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(tomorrow).unwrap();
        std::thread::sleep(2 * TICK);
        watch.poll(&path, &mut seen);
        assert!(watch.read.is_some() && seen.failure.is_none() && seen.text == "text");
        watch.take(Err("too many open files".into()), &mut seen);
        watch.poll(&path, &mut seen);
        assert!(seen.failure.is_some(), "not in every poll");
        watch.retry = Some(Instant::now());
        watch.poll(&path, &mut seen);
        assert_eq!((seen.failure, watch.retry), (None, None));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_way_to_replace_a_file_is_noticed_and_garbage_or_a_removal_changes_nothing() {
        let folder = folder("ways");
        let path = folder.join("link.json");
        let (mut seen, mut watch) = (SeenFile::default(), FileWatch::default());
        let mut polled = || {
            for _ in 0..=POLLS_MAX {
                watch.poll(&path, &mut seen);
                std::thread::sleep(2 * TICK);
            }
            (seen.text.clone(), seen.failure.clone().unwrap_or_default(), seen.failures)
        };
        let good = |text: &str, failures: usize| (text.to_string(), String::new(), failures);
        assert!(polled().1.contains("No such file"));
        // A symbolic link whose target is replaced, as in a ConfigMap.
        for name in ["aaaa", "bbbb"] {
            std::fs::write(folder.join(name), name).unwrap();
            let new = folder.join("new");
            std::os::unix::fs::symlink(name, &new).unwrap();
            std::fs::rename(&new, &path).unwrap();
            assert_eq!(polled(), good(name, 1));
        }
        // In place, with the same size.
        std::fs::write(folder.join("bbbb"), "cccc").unwrap();
        assert_eq!(polled(), good("cccc", 1));
        // A rename over it.
        std::fs::write(folder.join("dddd"), "dddd").unwrap();
        std::fs::rename(folder.join("dddd"), &path).unwrap();
        assert_eq!(polled(), good("dddd", 1));
        std::fs::write(&path, "e").unwrap();
        assert_eq!(polled(), ("dddd".to_string(), "it is too short".to_string(), 2));
        std::fs::remove_file(&path).unwrap();
        let (text, why, failures) = polled();
        assert!(text == "dddd" && why.contains("No such file") && failures == 3, "{why}");
        std::fs::write(&path, "dddd").unwrap();
        assert_eq!(polled(), good("dddd", 3));
        std::fs::write(&path, b"\xff\xff").unwrap();
        assert_eq!(polled().1, "byte 0 is not UTF-8");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
