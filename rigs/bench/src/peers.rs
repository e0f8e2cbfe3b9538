//! Programs that forward frames, measured in turn: while one does, the others wait for a word and use no
//! processor.
//!
//! A forwarder is a process that reads `start` and `stop` from its standard input and then says how many
//! frames it has sent: dpdk-testpmd, or this program (`arm.rs`). One process stays for all its turns, so that
//! turns can be short and alternate often: what disturbs the machine then disturbs all alike.

use anyhow::{Context, Result, anyhow, bail};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};
use weir_lab::Interrupt;
use weir_lab::premise::carried;
use weir_lab::run::{Run, Started};

/// The peer, and the Debian package that has it.
pub const TESTPMD: &str = "dpdk-testpmd";
pub const TESTPMD_PACKAGE: &str = "dpdk-dev";

/// How long a forwarder may take to start, or to answer: DPDK loads its drivers in a second, on an idle
/// machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lines that may wait to be read.
const LINES: usize = 1024;

/// The frames that testpmd makes for one core unless it is told otherwise; weir gets as many.
pub const FRAMES: u32 = 163_456;

/// How forwarders run: the same for all.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The core that carries frames.
    pub core: usize,
    /// The core for everything else.
    pub other: usize,
    /// MiB of DPDK's memory, and whether it is huge pages.
    pub mebibytes: u32,
    pub huge: bool,
    /// Frames that testpmd's memory has room for, those of looped recordings included.
    pub frames: u32,
}

impl Setting {
    /// The last core this process may use carries frames, the first does the rest.
    pub fn new(mebibytes: u32, huge: bool) -> Setting {
        let set = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| rustix::thread::CpuSet::new());
        let mut cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core));
        let other = cores.next().unwrap_or(0);
        Setting { core: cores.next_back().unwrap_or(other), other, mebibytes, huge, frames: FRAMES }
    }
}

/// What came of a turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Frames sent.
    pub frames: u64,
    /// Processor time of the thread that carried them. On an idle machine that is the time that went by; on a
    /// busy one it leaves out what other programs had of the core.
    pub busy: Duration,
}

impl Turn {
    /// Million frames a second of processor time.
    pub fn mpps(&self) -> f64 {
        self.frames as f64 / self.busy.as_secs_f64() / 1e6
    }
}

/// A process that forwards between `start` and `stop`.
pub struct Forwarder {
    name: &'static str,
    process: Started,
    input: ChildStdin,
    lines: Receiver<String>,
    /// The kernel's accounts of the threads that carry frames.
    accounts: Vec<PathBuf>,
    words: Words,
}

/// What a forwarder says.
#[derive(Clone, Copy)]
struct Words {
    /// In a line once it is ready.
    ready: &'static str,
    /// In a line once it forwards.
    started: &'static str,
    /// In a line before that with the frames it has sent.
    summary: Option<&'static str>,
    /// Before the number of frames it has sent.
    sent: &'static str,
}

const WEIR: Words = Words { ready: "ready", started: "started", summary: None, sent: "transmitted" };

const PEER: Words = Words {
    ready: "Done",
    started: "packet forwarding packets/burst",
    summary: Some("Accumulated forward statistics"),
    sent: "TX-packets:",
};

impl Forwarder {
    /// Starts `weir bench arm`, as `command` has it.
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
        Forwarder::testpmd_with(run, command, setting, devices, 1)
    }

    /// Starts it with a second thread for frames, on the core that otherwise does everything else. Its turns
    /// are by the mean of their processor time.
    pub fn testpmd_on_two(
        run: &mut Run,
        command: impl FnOnce(&str) -> Command,
        setting: &Setting,
        devices: &[String],
    ) -> Result<Forwarder> {
        Forwarder::testpmd_with(run, command, setting, devices, 2)
    }

    fn testpmd_with(
        run: &mut Run,
        command: impl FnOnce(&str) -> Command,
        setting: &Setting,
        devices: &[String],
        threads: usize,
    ) -> Result<Forwarder> {
        // Line by line, though its output is a pipe.
        let mut command = command("stdbuf");
        command
            .args(["-oL", TESTPMD])
            .env("RUNTIME_DIRECTORY", run.folder())
            .args(testpmd_arguments(setting, devices, threads));
        let mut testpmd = Forwarder::start(run, "testpmd", &mut command, PEER)?;
        let accounts = (1..=threads).map(|number| {
            let account = testpmd.lcore(run, number);
            account.with_context(|| format!("{TESTPMD} has no thread for frames"))
        });
        testpmd.accounts = accounts.collect::<Result<_>>()?;
        Ok(testpmd)
    }

    fn start(run: &mut Run, name: &'static str, command: &mut Command, words: Words) -> Result<Forwarder> {
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
        forwarder.hear(run, words.ready)?;
        Ok(forwarder)
    }

    /// testpmd's thread on an lcore.
    fn lcore(&self, run: &mut Run, number: usize) -> Option<PathBuf> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process_id(run))).ok()?;
        let named = |path: &PathBuf| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|name| is_lcore(&name, number))
        };
        threads.flatten().map(|thread| thread.path()).find(named).map(|path| path.join("schedstat"))
    }

    /// Its process.
    pub fn process(&self) -> Started {
        self.process
    }

    /// The kernel's account of the thread that carries frames.
    pub fn account(&self) -> &Path {
        &self.accounts[0]
    }

    /// Frames that testpmd has sent since it began, and those that it could not, while it goes on.
    pub fn forwarded(&mut self, run: &Run) -> Result<(u64, u64)> {
        self.say("show fwd stats all")?;
        self.hear(run, "Accumulated forward statistics")?;
        self.wait_for(run, |line| {
            let count = |name: &str| line.split_once(name)?.1.split_whitespace().next()?.parse().ok();
            Some((count("TX-packets:")?, count("TX-dropped:")?))
        })
    }

    /// Frames that a sink has received.
    pub fn arrived(&mut self, run: &Run) -> Result<u64> {
        self.say("count")?;
        self.wait_for(run, |line| line.strip_prefix("arrived ")?.parse().ok())
    }

    /// Its process's number.
    pub fn process_id(&self, run: &mut Run) -> u32 {
        run.child(self.process).id()
    }

    /// Has testpmd forward in another way from the next turn on.
    pub fn set_mode(&mut self, mode: &str) -> Result<()> {
        self.say(&format!("set fwd {mode}"))
    }

    /// Lets it forward for so long.
    pub fn turn(&mut self, run: &Run, time: Duration, interrupt: &Interrupt) -> Result<Turn> {
        let before = self.busy()?;
        self.begin(run)?;
        interrupt.sleep(time)?;
        let frames = self.end(run)?;
        carried(self.name, frames as f64)?;
        Ok(Turn { frames, busy: self.busy()? - before })
    }

    /// Lets it forward.
    pub fn begin(&mut self, run: &Run) -> Result<()> {
        self.say("start")?;
        self.hear(run, self.words.started)
    }

    /// Has it stop; the frames it has sent since it began.
    pub fn end(&mut self, run: &Run) -> Result<u64> {
        self.say("stop")?;
        if let Some(summary) = self.words.summary {
            self.hear(run, summary)?;
        }
        let sent = self.words.sent;
        self.wait_for(run, |line| line.split_once(sent)?.1.split_whitespace().next()?.parse().ok())
    }

    /// Ends the process.
    pub fn stop(self, run: &mut Run) -> Result<()> {
        run.stop(self.process).map(drop)
    }

    /// Processor time of the threads that carry frames, the mean if there are several.
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

    /// Reads on until a line has these words.
    fn hear(&mut self, run: &Run, words: &str) -> Result<()> {
        self.wait_for(run, |line| line.contains(words).then_some(()))
    }

    /// Reads on until `find` finds what it looks for.
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

fn testpmd_arguments(setting: &Setting, devices: &[String], threads: usize) -> Vec<String> {
    let memory = if setting.huge { "--in-memory" } else { "--no-huge" };
    let mut arguments: Vec<String> =
        ["--no-pci", "--no-telemetry", "--no-shconf", memory].map(String::from).into();
    arguments.extend(["-m".into(), setting.mebibytes.to_string()]);
    arguments.push(format!("--file-prefix=weir-peer-{}", std::process::id()));
    let second = if threads > 1 { format!(",2@{}", setting.other) } else { String::new() };
    arguments.push(format!("--lcores=0@{},1@{}{second}", setting.other, setting.core));
    arguments.extend(devices.iter().map(|device| format!("--vdev={device}")));
    // Without --no-flush-rx it would first empty a device that never is.
    let own = ["--", "--interactive", "--forward-mode=macswap", "--no-flush-rx"];
    arguments.extend(own.map(String::from));
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
