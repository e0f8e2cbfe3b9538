//! `weir top` in a pseudo-terminal: its pages and keys on a running daemon, and a terminal that is restored
//! however it ends.

use super::TWO;
use super::running::Daemon;
use super::weir;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for something that usually takes a moment; test machines are busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// `weir top` in a terminal, and the screen contents.
struct Top {
    child: Child,
    /// The end that shows what is drawn, and sends keys.
    keys: File,
    /// The program's end.
    terminal: OwnedFd,
    before: Termios,
    seen: Arc<Mutex<vt100::Parser>>,
}

impl Top {
    /// Starts it against a daemon, in a terminal of this size.
    fn start(daemon: &Daemon, (width, height): (u16, u16)) -> Top {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap().into_string().unwrap();
        let terminal: OwnedFd = File::options().read(true).write(true).open(name).unwrap().into();
        let before = tcgetattr(&terminal).unwrap();
        resize(&terminal, width, height);
        let stdio = || terminal.try_clone().unwrap();
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_weir"), "top"]);
        command.args(["--interval", "0.1", "--socket", "weir.sock"]).current_dir(daemon.folder.path());
        let child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().expect("weir runs");
        let seen = Arc::new(Mutex::new(parser(width, height)));
        let keys = File::from(screen);
        let (mut from, to) = (keys.try_clone().unwrap(), seen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = from.read(&mut bytes) {
                to.lock().unwrap().process(&bytes[..count]);
            }
        });
        Top { child, keys, terminal, before, seen }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn screen(&self) -> String {
        self.seen.lock().unwrap().screen().contents()
    }

    /// Waits until all of `parts` are on the screen, and returns it.
    #[track_caller]
    fn wait_for(&self, parts: &[&str]) -> String {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if parts.iter().all(|part| screen.contains(part)) {
                return screen;
            }
            assert!(start.elapsed() < PATIENCE, "no {parts:?} in\n{screen}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it ends, and asserts that the terminal is as it was before.
    #[track_caller]
    fn end(mut self) -> ExitStatus {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(5));
        };
        self.is_restored();
        status
    }

    /// Asserts that the terminal is as it was before.
    #[track_caller]
    fn is_restored(&self) {
        let start = Instant::now();
        let (now, then) = (tcgetattr(&self.terminal).unwrap(), &self.before);
        assert_eq!((now.input_modes, now.output_modes), (then.input_modes, then.output_modes));
        assert_eq!((now.local_modes, now.control_modes), (then.local_modes, then.control_modes));
        let is_left = |seen: &vt100::Parser| seen.screen().alternate_screen() || seen.screen().hide_cursor();
        while is_left(&self.seen.lock().unwrap()) {
            assert!(start.elapsed() < PATIENCE, "its screen or no cursor is left:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: &OwnedFd, width: u16, height: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

fn parser(width: u16, height: u16) -> vt100::Parser {
    vt100::Parser::new(height.try_into().unwrap(), width.try_into().unwrap(), 0)
}

/// [`TWO`] as a load balancer of its own, a bond of two ports, and an app.
fn program() -> String {
    TWO.replace("pipes:\n", "  p2: { pcap: {} }\n  p3: { pcap: {} }\npipes:\n")
        + "apps:
  - bond: { name: bond0, mode: static, members: [p2, p3], inside: p1 }
  - external: { name: slow, socket: slow.sock }
"
}

const EVEN: &str = "src=192.0.2.2 dst=10.0.0.53";
const OTHER: &str = "src=192.0.2.2 dst=10.0.0.54";

#[test]
fn pages_show_what_the_daemon_does() {
    let daemon = Daemon::start(&program());
    daemon.receive(&[EVEN, EVEN, OTHER]);
    let mut top = Top::start(&daemon, (80, 24));
    let screen = top.wait_for(&["overview", "ledger", "balances", "health", " ok", "received, by answer"]);
    let line = |name: &str| {
        let found = screen.lines().find(|line| line.starts_with(name));
        found
            .unwrap_or_else(|| panic!("no {name} in\n{screen}"))
            .split_whitespace()
            .last()
            .unwrap()
            .to_string()
    };
    assert_eq!([line("originated"), line("transmitted"), line("dropped")], ["3", "2", "1"]);
    assert!(screen.contains("6 flows 7 kernel 8 bond 9 external") && !screen.contains(" lb "), "{screen}");
    top.press("\t");
    top.wait_for(&["port", "bit/s in", "p3"]);
    top.press("\x1b[C");
    top.wait_for(&["miss ", "No entry of a pipe matched", "frames/s"]);
    top.press("4");
    top.wait_for(&["balance", "misses/s", "basic"]);
    top.press("5");
    top.wait_for(&["p99.99", "breaths of all workers"]);
    top.press("6");
    top.wait_for(&["aged", "account of flows", "met flow pipes"]);
    top.press("7");
    top.wait_for(&["frames left to workers", "it is not an AF_XDP port"]);
    top.press("8");
    let screen = top.wait_for(&["bond0, mode static", "members of bond0", "a p2  b p3", "128"]);
    let letters: String =
        screen.lines().filter_map(|line| line.split_once(' ')).map(|(_, map)| map).collect();
    assert!(letters.matches(['a', 'A', 'b', 'B']).count() >= 128, "{screen}");
    top.press("9");
    top.wait_for(&["slow ", "unheard/s"]);
    top.press("?");
    top.wait_for(&["another page", "q, Ctrl-C"]);
    top.press("?1");
    top.wait_for(&["overview", "ledger"]);
    top.press("q");
    assert!(top.end().success());
}

#[test]
fn rates_sizes_and_a_pause() {
    let daemon = Daemon::start(TWO);
    let mut top = Top::start(&daemon, (80, 24));
    top.press("2");
    top.wait_for(&["bit/s in"]);
    for (width, height) in [(20, 5), (1, 1), (200, 60), (7, 2), (80, 24)] {
        let mut seen = top.seen.lock().unwrap();
        // While it is locked, nothing that is drawn for the new size goes to the screen of the old one.
        resize(&top.terminal, width, height);
        *seen = parser(width, height);
        drop(seen);
        top.signal(Signal::WINCH);
        if width >= 20 {
            top.wait_for(&["ports"]);
        }
    }
    top.press("p");
    top.wait_for(&["PAUSED"]);
    top.press("p4");
    top.wait_for(&["misses/s"]);
    top.press("s");
    top.wait_for(&["pipe*"]);
    let start = Instant::now();
    // Any hits at all: the rate depends on the machine.
    let is_rate = |line: &str| line.starts_with("balance") && line.split_whitespace().nth(2) != Some("0");
    while !top.screen().lines().any(is_rate) {
        assert!(start.elapsed() < PATIENCE, "{}", top.screen());
        daemon.receive(&[EVEN]);
    }
    top.press("\x03");
    assert!(top.end().success());
}

#[test]
fn signals_and_a_terminal_that_is_none() {
    let daemon = Daemon::start(TWO);
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2), (Signal::HUP, 1)] {
        let top = Top::start(&daemon, (80, 24));
        top.wait_for(&["overview"]);
        top.signal(signal);
        assert_eq!(top.end().signal(), Some(number));
    }
    daemon.weir(&["top"]).refused(1, &["`weir top` needs a terminal", "`weir show`"]);
    assert_eq!(daemon.weir(&["top", "--interval", "0"]).code, Some(2));
    weir(daemon.folder.path(), &["top", "--socket", "nothing.sock"]).refused(1, &["needs a terminal"]);
}

#[test]
fn a_daemon_that_goes_is_told_and_found_again() {
    let mut daemon = Daemon::start(TWO);
    let mut top = Top::start(&daemon, (80, 24));
    top.wait_for(&["balances"]);
    daemon.weir(&["stop"]).good();
    daemon.end();
    top.wait_for(&["NO ANSWER", "retrying: no weir daemon is listening on weir.sock"]);
    let daemon = Daemon::start_in(daemon.into_folder());
    top.wait_for(&["balances"]);
    let start = Instant::now();
    while top.screen().contains("NO ANSWER") {
        assert!(start.elapsed() < PATIENCE, "{}", top.screen());
        std::thread::sleep(Duration::from_millis(5));
    }
    top.press("q");
    assert!(top.end().success());
    drop(daemon);
}

#[test]
fn ctrl_z_gives_the_terminal_back_until_it_is_continued() {
    let daemon = Daemon::start(TWO);
    let mut top = Top::start(&daemon, (80, 24));
    top.wait_for(&["balances"]);
    top.press("\x1a");
    let start = Instant::now();
    let status = format!("/proc/{}/status", top.child.id());
    while !std::fs::read_to_string(&status).unwrap().contains("State:\tT") {
        assert!(start.elapsed() < PATIENCE, "it does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
    top.is_restored();
    top.signal(Signal::CONT);
    top.press("2");
    top.wait_for(&["bit/s in", "q quit"]);
    top.press("q");
    assert!(top.end().success());
}
