//! A lab as a child process: start it, inspect it while it runs, end it, and check that it left nothing
//! behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a lab may take to start its processes.
const START: Duration = Duration::from_secs(120);

/// How long the kernel may take to end what a lab has killed. Clients that a lab has forgotten run longer.
const KILLED: Duration = Duration::from_secs(10);

/// How long a lab may take to print its next line.
const LINE: Duration = Duration::from_secs(120);

/// Labs measure, so only one runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A permit to run a lab; `None` without root.
pub fn may_run() -> Option<MutexGuard<'static, ()>> {
    weir_bed::is_root().then(|| ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs a lab to its end. Returns the JSON object on its last line, its other output, and its exit status.
pub fn run(arguments: &[&str]) -> (Value, String, ExitStatus) {
    let Output { stdout, stderr, status } = command(arguments).arg("--json").output().expect("the lab runs");
    let (text, stderr_text) =
        (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr).into_owned());
    let last = text.lines().last().unwrap_or_else(|| panic!("{status}: nothing printed; {stderr_text}"));
    let result = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last}; {stderr_text}"));
    (result, stderr_text, status)
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("lab").args(arguments).stdin(Stdio::null());
    command
}

/// A lab that is running.
pub struct Lab {
    child: Child,
    /// The processes it has started.
    processes: Vec<u32>,
}

impl Drop for Lab {
    /// Ends the lab of a test that has failed, which then removes what it set up.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

impl Lab {
    /// Starts a lab and waits until it has five processes, which means that it has begun its work.
    pub fn start(arguments: &[&str]) -> Lab {
        let child =
            command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the lab runs");
        let mut lab = Lab { child, processes: Vec::new() };
        let deadline = Instant::now() + START;
        while Instant::now() < deadline {
            // The lab's own process comes first.
            if let [_, started @ ..] = lab.recorded().as_slice()
                && started.len() >= 5
            {
                lab.processes = started.to_vec();
                return lab;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        lab.send(Signal::TERM);
        panic!("the lab did not start its load: {:?}", lab.child.wait());
    }

    /// Starts a lab that is kept, and waits until it has printed a line that contains `text`. Returns what it
    /// printed until then.
    #[allow(dead_code, reason = "only one kind of lab has web pages")]
    pub fn start_kept(arguments: &[&str], text: &str) -> (Lab, String) {
        let child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        // From here on, a failed test ends it.
        let mut lab = Lab { child: child.expect("the lab runs"), processes: Vec::new() };
        let lines = BufReader::new(lab.child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let (sends, received) = mpsc::channel();
        // The lab must not block on a full pipe, nor fail on a closed one.
        std::thread::spawn(move || lines.for_each(|line| _ = sends.send(line)));
        let mut said = String::new();
        while !said.contains(text) {
            let line = received.recv_timeout(LINE).unwrap_or_else(|why| panic!("{why}: {said}"));
            said.push_str(&line);
            said.push('\n');
        }
        lab.processes = lab.recorded().into_iter().skip(1).collect();
        (lab, said)
    }

    /// Sends a signal and waits for the lab to end.
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        self.send(signal);
        self.child.wait().expect("the lab ends")
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the lab is there");
    }

    /// Whether its folder exists.
    pub fn has_folder(&self) -> bool {
        Path::new(&self.folder()).exists()
    }

    fn folder(&self) -> String {
        format!("/run/weir/lab/{}", self.child.id())
    }

    fn recorded(&self) -> Vec<u32> {
        let text = fs::read_to_string(format!("{}/processes", self.folder())).unwrap_or_default();
        text.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
    }

    /// Asserts that it left no namespace, no folder and no process.
    pub fn assert_nothing_is_left(&self) {
        let prefix = format!("weir-{}-", self.child.id());
        let namespaces =
            fs::read_dir("/run/netns").into_iter().flatten().flatten().map(|entry| entry.file_name());
        let left: Vec<_> = namespaces.filter(|name| name.to_string_lossy().starts_with(&prefix)).collect();
        assert!(left.is_empty(), "namespaces are left: {left:?}");
        assert!(!self.has_folder(), "{} is left", self.folder());
        let deadline = Instant::now() + KILLED;
        for pid in &self.processes {
            // The process that adopted an ended one may not have reaped it yet (state Z).
            let stat = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let has_ended = |stat: &str| stat.is_empty() || stat.contains(") Z ");
            while !has_ended(&stat()) {
                assert!(Instant::now() < deadline, "a process is left: {}", stat());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
