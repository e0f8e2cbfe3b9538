//! A run of a lab, a bench or a test: its id, directory, namespaces and processes, and how they are removed.
//!
//! The id is the process id; tests, of which a process has several, add a number and their name. In
//! `/run/weir/lab/<id>/processes` are this process and every process it started, one `<pid> <start time>` per
//! line. If a run is killed by SIGKILL, the next run removes its leftovers. This ends only processes listed
//! there, and only if they are still the processes that were started.
//!
//! Promise: dropping a [`Run`] ends its processes and removes its namespaces (with their interfaces) and its
//! directory.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, geteuid, kill_process_group};

use super::namespace::{self, Namespace};

const FOLDER: &str = "/run/weir/lab";
const PROCESSES: &str = "processes";
/// How long a process may take to exit after SIGTERM, unless the machine is slow. weir and nsd need
/// milliseconds, but weir detaches its programs, and waits for other runs that remove their interfaces.
const GRACE: Duration = Duration::from_secs(10);

/// The tests of this process that have begun.
static TESTS: AtomicU32 = AtomicU32::new(0);

/// Returns whether a test may do what only root may. If not, prints that the test is skipped; in CI, this is
/// a failure, because a skipped test proves nothing.
///
/// # Panics
/// CI does not run as root.
#[must_use]
pub fn is_root() -> bool {
    let is_root = geteuid().is_root();
    assert!(is_root || std::env::var_os("CI").is_none(), "this test needs root, and CI does not skip it");
    if !is_root {
        eprintln!("skipped: needs root");
    }
    is_root
}

/// Prints that a test is skipped because the running kernel lacks something. Under Debian's own kernel, which
/// has all that tests need (`tests/kernels/parts` sets `KERNEL_LACKS_NOTHING`), this is a failure.
///
/// # Panics
/// `KERNEL_LACKS_NOTHING` is set, so the kernel should have it.
pub fn kernel_lacks(what: &str) {
    println!("this kernel has no {what}");
    assert!(std::env::var_os("KERNEL_LACKS_NOTHING").is_none(), "Debian's kernel has {what}");
}

/// A handle to a process of a run.
#[derive(Clone, Copy)]
pub struct Started(usize);

/// A run of a lab.
pub struct Run {
    id: String,
    folder: PathBuf,
    children: Vec<Child>,
    keep: bool,
    /// How long a process may take to exit after SIGTERM.
    grace: Duration,
}

impl Run {
    /// Removes the leftovers of dead runs and starts a new run. With `keep`, dropping the new run removes
    /// nothing, but the next run removes its leftovers.
    pub fn begin(keep: bool) -> Result<Run> {
        Run::with_id(std::process::id().to_string(), keep)
    }

    /// Begins a run of the test `name`; a number distinguishes runs of the same name. `None` without root
    /// ([`is_root`]).
    ///
    /// # Panics
    /// There is no directory for the run.
    #[must_use]
    pub fn of_test(name: &str) -> Option<Run> {
        let number = TESTS.fetch_add(1, Ordering::Relaxed);
        // The number is in front, so that no id is the beginning of another id, whose namespaces would be
        // removed with those of this run.
        let id = || format!("{}-{number}-{name}", std::process::id());
        is_root().then(|| Run::with_id(id(), false).expect("root creates a directory"))
    }

    fn with_id(id: String, keep: bool) -> Result<Run> {
        remove_leftovers();
        // A run of this id belonged to a process with the same number.
        remove_namespaces(&id);
        let folder = Path::new(FOLDER).join(&id);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let run = Run { id, folder, children: Vec::new(), keep, grace: GRACE };
        run.record(std::process::id())?;
        Ok(run)
    }

    /// Returns the same run, whose processes may take `factor` times as long to exit.
    #[must_use]
    pub fn slowed_down_by(mut self, factor: u32) -> Run {
        self.grace = GRACE * factor;
        self
    }

    /// Returns the directory of the run's files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Creates the namespace `weir-<id>-<role>`.
    pub fn namespace(&self, role: &str) -> Result<Namespace> {
        Namespace::create(&format!("{}{role}", prefix(&self.id)))
    }

    /// Starts a process in its own process group (the lab handles Ctrl-C); its error output goes to
    /// `<name>.log`.
    pub fn start(&mut self, name: &str, command: &mut Command) -> Result<Started> {
        let log = File::create(self.log(name))?;
        let child = command
            .process_group(0)
            .stderr(Stdio::from(log))
            .spawn()
            .with_context(|| format!("cannot start {name}: {command:?}"))?;
        let pid = child.id();
        self.children.push(child);
        self.record(pid)?;
        Ok(Started(self.children.len() - 1))
    }

    /// Returns the process for a handle.
    pub fn child(&mut self, started: Started) -> &mut Child {
        &mut self.children[started.0]
    }

    /// Suspends a process (SIGSTOP).
    pub fn hold(&mut self, started: Started) {
        signal_group(self.children[started.0].id(), Signal::STOP);
    }

    /// Resumes a suspended process (SIGCONT).
    pub fn go_on(&mut self, started: Started) {
        signal_group(self.children[started.0].id(), Signal::CONT);
    }

    /// Interrupts a process (SIGINT), which makes a load generator report its counts, and waits; kills it if
    /// it takes longer than `patience`.
    pub fn interrupt(&mut self, started: Started, patience: Duration) -> Result<ExitStatus> {
        let child = &mut self.children[started.0];
        if child.try_wait()?.is_none() {
            signal_group(child.id(), Signal::INT);
        }
        Ok(end_by(child, Instant::now() + patience)?)
    }

    /// Kills a process (SIGKILL) and waits.
    pub fn kill(&mut self, started: Started) -> Result<()> {
        let child = &mut self.children[started.0];
        signal_group(child.id(), Signal::KILL);
        child.wait()?;
        Ok(())
    }

    /// Asks a process to end (SIGTERM) and waits; kills it if it takes too long.
    pub fn stop(&mut self, started: Started) -> Result<ExitStatus> {
        let child = &mut self.children[started.0];
        if child.try_wait()?.is_none() {
            ask_to_end(child.id());
        }
        Ok(end_by(child, Instant::now() + self.grace)?)
    }

    /// Returns the last lines of a process's error output, for error messages.
    pub fn last_words(&self, name: &str) -> String {
        let text = self.words(name);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }

    /// Returns a process's error output.
    pub fn words(&self, name: &str) -> String {
        let text = fs::read(self.log(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        text.unwrap_or_default()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// Makes a process that another process has started part of the run, so that it ends with the run.
    ///
    /// # Errors
    /// The list of processes cannot be written to.
    pub fn adopt(&self, pid: u32) -> Result<()> {
        self.record(pid)
    }

    fn record(&self, pid: u32) -> Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.folder.join(PROCESSES))?;
        writeln!(file, "{pid} {}", start_time(pid).unwrap_or(0))?;
        Ok(())
    }

    fn end_children(&mut self) {
        for child in &mut self.children {
            if let Ok(None) = child.try_wait() {
                ask_to_end(child.id());
            }
        }
        let deadline = Instant::now() + self.grace;
        for child in &mut self.children {
            let _ = end_by(child, deadline);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        self.end_children();
        // Those that were adopted.
        end_recorded(&self.id);
        remove_namespaces(&self.id);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Waits for a process that was asked to end. At the deadline, kills it and its group.
fn end_by(child: &mut Child, deadline: Instant) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            signal_group(child.id(), Signal::KILL);
            return child.wait();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn prefix(id: &str) -> String {
    format!("weir-{id}-")
}

/// Removes the processes, namespaces and directories of dead runs.
fn remove_leftovers() {
    for entry in fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().into_string().ok().filter(|id| pid_of(id).is_some()) else {
            continue;
        };
        if !lives(&id) {
            end_recorded(&id);
            remove_namespaces(&id);
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let dead = |name: &String| run_of(name).is_some_and(|pid| start_time(pid).is_none());
    namespace::names().iter().filter(|name| dead(name)).for_each(|name| namespace::remove(name));
}

/// Returns the process id of a run: `<pid>` or `<pid>-<test>`.
fn pid_of(id: &str) -> Option<u32> {
    id.split('-').next()?.parse().ok()
}

/// Returns the process id of the run that a namespace belongs to: `weir-<id>-<role>`.
fn run_of(namespace: &str) -> Option<u32> {
    let (id, _role) = namespace.strip_prefix("weir-")?.rsplit_once('-')?;
    pid_of(id)
}

/// Returns true if the run's process is alive. A run that is just starting has no list of processes yet.
fn lives(id: &str) -> bool {
    let now = pid_of(id).and_then(start_time);
    recorded(id).first().map_or(now.is_some(), |&(_, then)| now == Some(then))
}

fn recorded(id: &str) -> Vec<(u32, u64)> {
    let text = fs::read_to_string(Path::new(FOLDER).join(id).join(PROCESSES)).unwrap_or_default();
    let pair = |line: &str| {
        let (pid, start) = line.split_once(' ')?;
        Some((pid.parse().ok()?, start.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

fn end_recorded(id: &str) {
    let ours = |&(pid, start): &(u32, u64)| pid != std::process::id() && start_time(pid) == Some(start);
    let left: Vec<(u32, u64)> = recorded(id).into_iter().filter(ours).collect();
    for &(pid, _) in &left {
        ask_to_end(pid);
    }
    let deadline = Instant::now() + GRACE;
    for (pid, start) in left {
        while start_time(pid) == Some(start) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        if start_time(pid) == Some(start) {
            signal_group(pid, Signal::KILL);
        }
    }
}

fn remove_namespaces(id: &str) {
    let prefix = prefix(id);
    for name in namespace::names().iter().filter(|name| name.starts_with(&prefix)) {
        namespace::remove(name);
    }
}

/// Asks a process to end; a suspended one receives the signal once it is resumed.
fn ask_to_end(pid: u32) {
    signal_group(pid, Signal::TERM);
    signal_group(pid, Signal::CONT);
}

fn signal_group(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, signal);
    }
}

/// Returns when a process started, in ticks since boot (proc(5): field 22 of `stat`); `None` if it is gone or
/// a zombie.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    (state != "Z" && state != "X").then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_names_its_run() {
        assert_eq!(run_of("weir-123-client"), Some(123));
        assert_eq!(run_of("weir-123-name-client"), Some(123));
        assert_eq!(run_of("weir-123"), None);
        assert_eq!(run_of("weir-x-client"), None);
        assert_eq!(run_of("docker-1-client"), None);
    }

    #[test]
    fn a_run_leaves_others_of_its_process_alone_whatever_their_names() {
        let Some(run) = Run::of_test("a") else { return };
        let others = ["a", "a-0", "a-1", "a-2"].map(|name| Run::of_test(name).unwrap());
        let spaces = others.each_ref().map(|run| run.namespace("x").unwrap());
        drop(run);
        let left = namespace::names();
        for (other, space) in others.iter().zip(&spaces) {
            assert!(other.folder().is_dir() && left.iter().any(|name| name == space.name()));
        }
    }

    #[test]
    fn this_process_has_a_start_time_and_pid_zero_has_none() {
        assert!(start_time(std::process::id()).is_some());
        assert_eq!(start_time(0), None);
    }
}
