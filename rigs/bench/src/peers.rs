//! Programs that forward frames, measured in turns: while one forwards, the others wait for a command and use
//! no processor time.
//!
//! A forwarder is a process that reads `start` and `stop` from its standard input and then reports how many
//! frames it has sent: dpdk-testpmd, or this program (`arm.rs`). A process lives for all its turns, so that
//! turns can be short and alternate often. This way, disturbances affect all forwarders equally.

use anyhow::{Context, Result, anyhow, bail};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};
use weir_bed::{Run, Started, namespace};
use weir_lab::Interrupt;
use weir_lab::premise::carried;

/// The peer, and the Debian package that contains it.
pub const TESTPMD: &str = "dpdk-testpmd";
pub const TESTPMD_PACKAGE: &str = "dpdk-dev";

/// How long a forwarder may take to start or to answer; DPDK takes a second to load its drivers on an idle
/// machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum number of lines that wait to be read.
const LINES: usize = 1024;

/// The frames that testpmd allocates for one core by default; weir gets as many.
pub const FRAMES: u32 = 163_456;

/// The settings of forwarders, which are the same for all.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The core that forwards frames.
    pub core: usize,
    /// The core for everything else.
    pub other: usize,
    /// DPDK's memory in MiB, and whether it is in huge pages.
    pub mebibytes: u32,
    pub huge: bool,
    /// Frames that fit testpmd's memory, including those of looped recordings.
    pub frames: u32,
}

impl Setting {
    /// Makes the last core that this process may use forward frames, and the first do everything else.
    pub fn new(mebibytes: u32, huge: bool) -> Setting {
        let set = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| rustix::thread::CpuSet::new());
        let mut cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core));
        let other = cores.next().unwrap_or(0);
        Setting { core: cores.next_back().unwrap_or(other), other, mebibytes, huge, frames: FRAMES }
    }
}

/// The result of a turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Frames sent.
    pub frames: u64,
    /// Processor time of the forwarding thread. On an idle machine this equals elapsed time; on a busy one it
    /// excludes the core's time spent on other programs.
    pub busy: Duration,
}

impl Turn {
    /// Returns million frames per second of processor time.
    pub fn mpps(&self) -> f64 {
        self.frames as f64 / self.busy.as_secs_f64() / 1e6
    }
}

/// The settings in which one testpmd differs from another.
#[derive(Clone, Copy)]
pub struct Testpmd {
    /// Its forwarding threads.
    pub threads: usize,
    /// Arguments of DPDK.
    pub dpdk: &'static [&'static str],
    /// Arguments of testpmd itself.
    pub own: &'static [&'static str],
}

impl Default for Testpmd {
    fn default() -> Testpmd {
        Testpmd { threads: 1, dpdk: &[], own: &[] }
    }
}

/// A process that forwards between `start` and `stop`.
pub struct Forwarder {
    name: &'static str,
    process: Started,
    input: ChildStdin,
    lines: Receiver<String>,
    /// The kernel's accounting files of the forwarding threads.
    accounts: Vec<PathBuf>,
    words: ForwarderOutput,
}

/// The words that a forwarder prints.
#[derive(Clone, Copy)]
struct ForwarderOutput {
    /// The words in the line that says that the forwarder is ready.
    ready: &'static str,
    /// The words in the line that says that the forwarder is forwarding.
    started: &'static str,
    /// The words in a line that precedes the line with the number of frames sent.
    summary: Option<&'static str>,
    /// The words before the number of frames sent.
    sent: &'static str,
}

const WEIR: ForwarderOutput =
    ForwarderOutput { ready: "ready", started: "started", summary: None, sent: "transmitted" };

const PEER: ForwarderOutput = ForwarderOutput {
    ready: "Done",
    started: "packets/burst=",
    summary: Some("Accumulated forward statistics"),
    sent: "TX-packets:",
};

impl Forwarder {
    /// Starts `weir bench arm`, with `command` as its command line.
    pub fn weir(run: &mut Run, name: &'static str, command: &mut Command) -> Result<Forwarder> {
        Forwarder::start(run, name, command, WEIR)
    }

    /// Starts dpdk-testpmd on these devices; `command` runs a program (in a namespace, or not).
    pub fn testpmd(
        run: &mut Run,
        command: impl FnOnce(&str) -> Command,
        setting: &Setting,
        devices: &[String],
    ) -> Result<Forwarder> {
        Forwarder::testpmd_with(run, command, setting, devices, &Testpmd::default())
    }

    /// Starts testpmd with a second forwarding thread, on the core that otherwise does everything else. Turns
    /// use the mean of the threads' processor times.
    pub fn testpmd_on_two(
        run: &mut Run,
        command: impl FnOnce(&str) -> Command,
        setting: &Setting,
        devices: &[String],
    ) -> Result<Forwarder> {
        Forwarder::testpmd_with(run, command, setting, devices, &Testpmd { threads: 2, ..Testpmd::default() })
    }

    /// Starts testpmd with arguments in addition to those that every testpmd gets.
    pub fn testpmd_with(
        run: &mut Run,
        command: impl FnOnce(&str) -> Command,
        setting: &Setting,
        devices: &[String],
        testpmd: &Testpmd,
    ) -> Result<Forwarder> {
        let threads = testpmd.threads;
        // Line-buffered, although its output is a pipe.
        let mut command = command("stdbuf");
        command
            .args(["-oL", TESTPMD])
            .env("RUNTIME_DIRECTORY", run.folder())
            .args(testpmd_arguments(setting, devices, testpmd));
        let mut testpmd = Forwarder::start(run, "testpmd", &mut command, PEER)?;
        let accounts = (1..=threads).map(|number| {
            let account = testpmd.lcore(run, number);
            account.with_context(|| format!("{TESTPMD} has no forwarding thread"))
        });
        testpmd.accounts = accounts.collect::<Result<_>>()?;
        Ok(testpmd)
    }

    fn start(
        run: &mut Run,
        name: &'static str,
        command: &mut Command,
        words: ForwarderOutput,
    ) -> Result<Forwarder> {
        let process = run.start(name, command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let child = run.child(process);
        let (input, output) = (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
        let (sender, lines) = sync_channel(LINES);
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        let accounts = vec![format!("/proc/{}/schedstat", child.id()).into()];
        let mut forwarder = Forwarder { name, process, input, lines, accounts, words };
        forwarder.wait_for_words(run, words.ready)?;
        Ok(forwarder)
    }

    /// Returns the accounting file of testpmd's thread on an lcore.
    fn lcore(&self, run: &mut Run, number: usize) -> Option<PathBuf> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process_id(run))).ok()?;
        let named = |path: &PathBuf| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|name| is_lcore(&name, number))
        };
        threads.flatten().map(|thread| thread.path()).find(named).map(|path| path.join("schedstat"))
    }

    /// Returns the forwarder's process.
    pub fn process(&self) -> Started {
        self.process
    }

    /// Returns the kernel's accounting file of the forwarding thread.
    pub fn account(&self) -> &Path {
        &self.accounts[0]
    }

    /// Gives all threads a real-time priority, so that none waits for other work on its core: `priority` for
    /// those that forward, and a higher one for the main thread, which answers.
    pub fn make_real_time(&self, run: &mut Run, priority: u32) -> Result<()> {
        let process = self.process_id(run).to_string();
        let fifo = |more: &[&str], priority: u32, thread: &str| {
            let priority = priority.to_string();
            namespace::output("chrt", &[more, &["--fifo", "--pid", &priority, thread]].concat())
        };
        fifo(&["--all-tasks"], priority + 1, &process)?;
        for account in &self.accounts {
            let thread = account.parent().and_then(Path::file_name).context("a thread's folder")?;
            fifo(&[], priority, &thread.to_string_lossy())?;
        }
        Ok(())
    }

    /// Returns the frames that testpmd has sent since it started, through all ports or through `port`, and
    /// those that it failed to send, through any port, while it continues.
    pub fn forwarded(&mut self, run: &Run, port: Option<u16>) -> Result<(u64, u64)> {
        self.say("show fwd stats all")?;
        let counts = |line: &str| {
            let count = |name: &str| line.split_once(name)?.1.split_whitespace().next()?.parse().ok();
            Some((count("TX-packets:")?, count("TX-dropped:")?))
        };
        // The ports are in their order, and the sums come last.
        let sent = match port {
            Some(port) => {
                self.wait_for_words(run, &format!("Forward statistics for port {port} "))?;
                Some(self.wait_for(run, counts)?.0)
            }
            None => None,
        };
        self.wait_for_words(run, "Accumulated forward statistics")?;
        let all: (u64, u64) = self.wait_for(run, counts)?;
        Ok((sent.unwrap_or(all.0), all.1))
    }

    /// Returns the number of frames that a sink has received.
    pub fn arrived(&mut self, run: &Run) -> Result<u64> {
        self.say("count")?;
        self.wait_for(run, |line| line.strip_prefix("arrived ")?.parse().ok())
    }

    /// Returns the forwarder's process ID.
    pub fn process_id(&self, run: &mut Run) -> u32 {
        run.child(self.process).id()
    }

    /// Changes testpmd's forwarding mode from the next turn on.
    pub fn set_mode(&mut self, mode: &str) -> Result<()> {
        self.say(&format!("set fwd {mode}"))
    }

    /// Lets the forwarder run for `time`.
    pub fn turn(&mut self, run: &Run, time: Duration, interrupt: &Interrupt) -> Result<Turn> {
        let before = self.busy()?;
        self.begin(run)?;
        interrupt.sleep(time)?;
        let frames = self.end(run)?;
        carried(self.name, frames as f64)?;
        Ok(Turn { frames, busy: self.busy()? - before })
    }

    /// Lets the forwarder run.
    pub fn begin(&mut self, run: &Run) -> Result<()> {
        self.say("start")?;
        self.wait_for_words(run, self.words.started)
    }

    /// Stops forwarding, and returns the frames sent since the start.
    pub fn end(&mut self, run: &Run) -> Result<u64> {
        self.say("stop")?;
        if let Some(summary) = self.words.summary {
            self.wait_for_words(run, summary)?;
        }
        let sent = self.words.sent;
        self.wait_for(run, |line| line.split_once(sent)?.1.split_whitespace().next()?.parse().ok())
    }

    /// Ends the process.
    pub fn stop(self, run: &mut Run) -> Result<()> {
        run.stop(self.process).map(drop)
    }

    /// Returns the processor time of the forwarding threads, the mean if there are several.
    fn busy(&self) -> Result<Duration> {
        let mut sum = 0;
        for account in &self.accounts {
            let text =
                std::fs::read_to_string(account).with_context(|| format!("{} has ended", self.name))?;
            let first = text.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
            sum += first.context("/proc/PID/schedstat")?;
        }
        Ok(Duration::from_nanos(sum / self.accounts.len() as u64))
    }

    fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}").with_context(|| format!("{} has ended", self.name))
    }

    /// Reads lines until one contains these words.
    fn wait_for_words(&mut self, run: &Run, words: &str) -> Result<()> {
        self.wait_for(run, |line| line.contains(words).then_some(()))
    }

    /// Reads lines until `find` returns a value.
    fn wait_for<T>(&mut self, run: &Run, find: impl Fn(&str) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => match find(&line) {
                    Some(found) => return Ok(found),
                    None => continue,
                },
                Err(RecvTimeoutError::Timeout) => bail!("{} does not answer", self.name),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(anyhow!("{} has ended: {}", self.name, run.last_words(self.name)));
                }
            }
        }
    }
}

fn is_lcore(name: &str, number: usize) -> bool {
    name.trim().ends_with(&format!("worker-{number}"))
}

fn testpmd_arguments(setting: &Setting, devices: &[String], testpmd: &Testpmd) -> Vec<String> {
    let Testpmd { threads, dpdk, own } = *testpmd;
    let memory = if setting.huge { "--in-memory" } else { "--no-huge" };
    let mut arguments: Vec<String> =
        ["--no-pci", "--no-telemetry", "--no-shconf", memory].map(String::from).into();
    arguments.extend(["-m".into(), setting.mebibytes.to_string()]);
    arguments.push(format!("--file-prefix=weir-peer-{}", std::process::id()));
    let second = if threads > 1 { format!(",2@{}", setting.other) } else { String::new() };
    arguments.push(format!("--lcores=0@{},1@{}{second}", setting.other, setting.core));
    arguments.extend(devices.iter().map(|device| format!("--vdev={device}")));
    arguments.extend(dpdk.iter().map(|&argument| argument.into()));
    // Without --no-flush-rx, it would first try to drain a device that is never empty.
    let always = ["--", "--interactive", "--forward-mode=macswap", "--no-flush-rx"];
    arguments.extend(always.iter().chain(own).map(|&argument| argument.into()));
    arguments.push(format!("--nb-cores={threads}"));
    arguments.push(format!("--total-num-mbufs={}", setting.frames));
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_for_frames_is_lcore_1() {
        assert!(is_lcore("lcore-worker-1\n", 1) && is_lcore("rte-worker-1\n", 1));
        assert!(!is_lcore("dpdk-testpmd\n", 1) && !is_lcore("rte-worker-2\n", 1));
    }
}
