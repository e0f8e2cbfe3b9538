//! Reports to systemd (`sd_notify(3)`): that weir is ready, reloading, stopping, and alive.
//!
//! Reports are datagrams to the socket named by `NOTIFY_SOCKET`. Crates such as sd-notify block if the queue
//! of that socket is full, but the main thread, which keeps links and LACP alive, must never block. So a
//! report that cannot be sent now is sent later; a newer state replaces it.

use anyhow::{Context, Result, anyhow};
use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};
use weir_control::answer::Process;
use weir_engine::worker::Report;

/// When to retry notifications that could not be sent.
const AGAIN: Duration = Duration::from_millis(100);

/// How many times the daemon checks its workers within the watchdog interval of systemd.
const LOOKS: u32 = 4;

/// The connection to systemd; without one, nothing is sent.
#[derive(Default)]
pub struct Systemd {
    socket: Option<(UnixDatagram, SocketAddr)>,
    unsent: Option<(String, Instant)>,
    watchdog: Option<Watchdog<Report>>,
}

impl Systemd {
    /// Finds out whether systemd wants notifications.
    pub fn find() -> Result<Systemd> {
        let socket = std::env::var_os("NOTIFY_SOCKET").map(|path| -> Result<_> {
            let address = match path.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
                _ => SocketAddr::from_pathname(&path),
            };
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            Ok((socket, address?))
        });
        Ok(Systemd { socket: socket.transpose().context("NOTIFY_SOCKET")?, unsent: None, watchdog: None })
    }

    /// Reports that weir is ready, in place of another process if it `succeeds` one, and starts to monitor
    /// `workers` workers if systemd has a watchdog.
    pub fn ready(&mut self, succeeds: bool, workers: usize, ask: impl Fn(usize) -> Receiver<Report>) {
        let allowed = watchdog_usec().filter(|_| self.socket.is_some());
        self.watchdog = allowed.map(|usec| {
            let every = Duration::from_micros(usec) / LOOKS;
            Watchdog { every, next: Instant::now(), answers: (0..workers).map(ask).collect() }
        });
        // After a takeover, systemd still considers the previous process the main one, and that process may
        // have sent its last keep-alive long ago.
        let main =
            if succeeds { format!("\nMAINPID={}\nWATCHDOG=1", std::process::id()) } else { String::new() };
        self.say(format!("READY=1{main}"));
    }

    /// Reports another process as the main one. This process, which systemd trusts, must do so before it
    /// ends; otherwise systemd would conclude that the service has ended. Waits up to a second.
    pub fn succeeded_by(&mut self, process: Pid) {
        self.say(format!("MAINPID={}", process.as_raw_nonzero()));
        for _ in 0..10 {
            let Some((state, _)) = self.unsent.take() else { return };
            std::thread::sleep(AGAIN);
            self.say(state);
        }
    }

    /// Returns the control group in which systemd expects the processes of this service.
    pub fn unit_cgroup(&self) -> Option<String> {
        self.socket.as_ref().and_then(|_| own_cgroup())
    }

    /// Describes this process, for a successor that is started in its place (`weir upgrade`).
    pub fn process(&self) -> Result<Process> {
        let exact = |word: OsString| word.into_string().map_err(|word| anyhow!("{word:?} is not UTF-8"));
        let arguments: Result<Vec<String>> = std::env::args_os().skip(1).map(exact).collect();
        let arguments =
            arguments.context("the command line cannot be passed on: run `weir run --takeover`")?;
        let directory = std::env::current_dir()?.into_os_string();
        Ok(Process {
            pid: std::process::id(),
            arguments,
            directory: Some(exact(directory)?),
            executable: own_executable()?,
            unit: self.unit_cgroup(),
            user_manager: has_user_manager(),
            watchdog_usec: watchdog_usec(),
        })
    }

    /// Reports that a reload begins.
    pub fn reloading(&mut self) {
        let now = clock_gettime(ClockId::Monotonic);
        let usec = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.say(format!("RELOADING=1\nMONOTONIC_USEC={usec}"));
    }

    /// Reports that a reload has ended, successfully or not.
    pub fn reloaded(&mut self) {
        self.say("READY=1".into());
    }

    /// Reports that weir is stopping.
    pub fn stopping(&mut self) {
        self.say("STOPPING=1".into());
    }

    /// Called in every iteration of the main loop: sends what could not be sent before, and reports that weir
    /// is alive if all workers are.
    pub fn turn(&mut self, workers: usize, ask: impl Fn(usize) -> Receiver<Report>) {
        let now = Instant::now();
        if let Some((state, _)) = self.unsent.take_if(|(_, when)| *when <= now) {
            self.say(state);
        }
        if self.watchdog.as_mut().is_some_and(|watchdog| watchdog.look(now, workers, ask)) {
            // A lost one is replaced by the next.
            let _ = self.send("WATCHDOG=1");
        }
    }

    /// Returns when [`Systemd::turn`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let again = self.unsent.as_ref().map(|(_, when)| *when);
        again.into_iter().chain(self.watchdog.as_ref().map(|watchdog| watchdog.next)).min()
    }

    fn say(&mut self, state: String) {
        let sent = self.send(&state);
        let full = sent.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        self.unsent = full.then(|| (state, Instant::now() + AGAIN));
    }

    fn send(&self, state: &str) -> std::io::Result<()> {
        let Some((socket, address)) = &self.socket else { return Ok(()) };
        socket.send_to_addr(state.as_bytes(), address).map(drop)
    }
}

/// Returns the control group of this process.
pub fn own_cgroup() -> Option<String> {
    let all = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    all.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_string)
}

/// Returns whether the systemd that runs this process is a user manager, not the system's.
fn has_user_manager() -> bool {
    std::env::var("NOTIFY_SOCKET").is_ok_and(|path| !path.starts_with("/run/systemd/"))
}

/// Returns the device and inode of this process's executable. A file that has replaced it under the same name
/// has another inode.
pub fn own_executable() -> Result<[u64; 2]> {
    let file = std::fs::metadata("/proc/self/exe")?;
    Ok([file.dev(), file.ino()])
}

/// Returns how long this process may be silent. The setting may be meant for another process, because the
/// environment is inherited.
fn watchdog_usec() -> Option<u64> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|usec| is_ours && *usec > 0)
}

/// Workers that were asked, and when to check for their answers.
struct Watchdog<Answer> {
    every: Duration,
    next: Instant,
    answers: Vec<Receiver<Answer>>,
}

impl<Answer> Watchdog<Answer> {
    /// If a check is due, returns true if all `workers` workers have answered, and queries them again, except
    /// those that have not answered.
    fn look(&mut self, now: Instant, workers: usize, ask: impl Fn(usize) -> Receiver<Answer>) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + self.every;
        let mut alive = true;
        self.answers.truncate(workers);
        for (worker, answer) in self.answers.iter_mut().enumerate() {
            let got = answer.try_recv();
            alive &= got.is_ok();
            if !matches!(got, Err(TryRecvError::Empty)) {
                *answer = ask(worker);
            }
        }
        // New ones have nothing to answer yet.
        self.answers.extend((self.answers.len()..workers).map(ask));
        alive
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::mpsc::{SyncSender, sync_channel};

    #[test]
    fn a_worker_that_does_not_answer_keeps_the_watchdog_silent() {
        let asked: RefCell<Vec<Vec<SyncSender<()>>>> = RefCell::new(vec![vec![], vec![]]);
        let ask = |worker: usize| {
            let (answer, receive) = sync_channel(1);
            asked.borrow_mut()[worker].push(answer);
            receive
        };
        let answer = |worker: usize| asked.borrow_mut()[worker].pop().unwrap().send(()).unwrap();
        let (start, every) = (Instant::now(), Duration::from_secs(1));
        let mut watchdog = Watchdog { every, next: start + every, answers: vec![ask(0), ask(1)] };
        let mut look = |second: u32| watchdog.look(start + every * second, 2, ask);
        (0..2).for_each(answer);
        assert!(!look(0), "not yet");
        assert!(look(1));
        answer(0);
        assert!(!look(2), "worker 1 is silent");
        answer(0);
        assert!(!look(3), "still");
        (0..2).for_each(answer);
        assert!(look(4), "it was only busy");
        // One worker whose thread has ended.
        answer(0);
        asked.borrow_mut()[1].clear();
        assert!(!look(5));
        // The worker was removed, and two were added after that.
        answer(0);
        assert!(watchdog.look(start + every * 6, 1, ask));
        answer(0);
        asked.borrow_mut().push(vec![]);
        assert!(watchdog.look(start + every * 7, 3, ask), "new workers were not asked");
        (0..3).for_each(answer);
        assert!(watchdog.look(start + every * 8, 3, ask));
        assert!(!watchdog.look(start + every * 9, 3, ask), "a new one is silent");
    }
}
