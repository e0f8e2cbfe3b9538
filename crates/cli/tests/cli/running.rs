//! A daemon for one test, in a folder of its own.

use super::folder::Folder;
use super::{CommandOutput, weir};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for something that usually takes a moment; test machines are busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns an address without a listener. No other test of this process gets it, and the kernel never chooses
/// its port (`ip_local_port_range`): such a port might be another test's by the time a daemon listens on it.
pub fn free_address() -> SocketAddr {
    const PORTS: std::ops::Range<u32> = 12_000..32_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Tests of other processes begin elsewhere.
        let number = std::process::id().wrapping_mul(1009).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + number % (PORTS.end - PORTS.start);
        let address = SocketAddr::from(([127, 0, 0, 1], port as u16));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

pub struct Daemon {
    pub folder: Folder,
    child: Child,
}

impl Daemon {
    /// Starts a daemon with a configuration and waits until it answers.
    pub fn start(config: &str) -> Daemon {
        let folder = Folder::new();
        folder.write("weir.yaml", config);
        Daemon::start_in(folder)
    }

    /// Starts a daemon with the `weir.yaml` of a folder.
    pub fn start_in(folder: Folder) -> Daemon {
        Daemon::start_by(folder, Command::new(env!("CARGO_BIN_EXE_weir")))
    }

    /// Starts it inside a network namespace.
    pub fn start_in_namespace(folder: Folder, netns: &str) -> Daemon {
        let mut ip = Command::new("ip");
        ip.args(["netns", "exec", netns, env!("CARGO_BIN_EXE_weir")]);
        Daemon::start_by(folder, ip)
    }

    /// The same, with a listener of the host for `control`.
    pub fn start_in_namespace_with(folder: Folder, netns: &str, control: TcpListener) -> Daemon {
        let mut ip = Command::new("ip");
        ip.args(["netns", "exec", netns, env!("CARGO_BIN_EXE_weir")]);
        let command = weir_bed::with_listener(&ip, "control", control);
        Daemon::start_with_input(folder, command)
    }

    /// Starts a daemon with a given environment and output, and waits until it answers.
    pub fn start_as(mut command: Command, config: &str) -> Daemon {
        let folder = Folder::new();
        folder.write("weir.yaml", config);
        command.args(["run", "weir.yaml", "--socket", "weir.sock"]).current_dir(folder.path());
        let child = command.stdin(Stdio::null()).spawn().expect("weir runs");
        let mut daemon = Daemon { folder, child };
        daemon.wait_for("an answer", |daemon| {
            assert_eq!(daemon.child.try_wait().unwrap(), None);
            daemon.weir(&["show", "ledger"]).code == Some(0)
        });
        daemon
    }

    pub fn start_by(folder: Folder, mut command: Command) -> Daemon {
        command.stdin(Stdio::null());
        Daemon::start_with_input(folder, command)
    }

    fn start_with_input(folder: Folder, mut command: Command) -> Daemon {
        let log = File::create(folder.file("stderr")).expect("a file in the test's folder");
        command.args(["run", "weir.yaml", "--socket", "weir.sock"]).current_dir(folder.path());
        command.stdout(Stdio::null()).stderr(log);
        let child = command.spawn().expect("weir runs");
        let mut daemon = Daemon { folder, child };
        daemon.wait_for("the socket", |daemon| {
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", daemon.log());
            daemon.log().contains("; control socket: ")
        });
        daemon
    }

    /// Lets another daemon take over from this one, inside a network namespace, and waits until it runs.
    /// Returns how the old one ended.
    pub fn succeed_in_namespace(&mut self, netns: &str) -> ExitStatus {
        // `log` still returns the log of the daemon that is now replaced.
        let _ = std::fs::rename(self.folder.file("successor"), self.folder.file("stderr"));
        let log = File::create(self.folder.file("successor")).expect("a file in the test's folder");
        let mut ip = Command::new("ip");
        ip.args(["netns", "exec", netns, env!("CARGO_BIN_EXE_weir"), "run", "weir.yaml", "--takeover"]);
        ip.args(["--socket", "weir.sock"]).current_dir(self.folder.path());
        ip.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut successor = ip.spawn().expect("weir runs");
        self.wait_for("a successor", |daemon| {
            let said = std::fs::read_to_string(daemon.folder.file("successor")).unwrap_or_default();
            let ended = successor.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {said}; {}", daemon.log());
            said.contains("; control socket: ")
        });
        let status = self.end();
        self.child = successor;
        status
    }

    pub fn wait_for(&mut self, what: &str, mut is_so: impl FnMut(&mut Daemon) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until its log contains `text`. A thread of the daemon writes the log, so a line may appear after
    /// the state that it is about.
    pub fn wait_for_log(&self, text: &str) {
        let start = Instant::now();
        while !self.log().contains(text) {
            assert!(start.elapsed() < PATIENCE, "no `{text}` in {PATIENCE:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns its log so far. To assert that it has a line, use [`Daemon::wait_for_log`].
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.file("stderr")).unwrap_or_default()
    }

    /// Runs a `weir` command against this daemon.
    pub fn weir(&self, arguments: &[&str]) -> CommandOutput {
        weir(self.folder.path(), &[arguments, &["--socket", "weir.sock"]].concat())
    }

    /// Runs a `weir` command in this daemon's folder, without the daemon, and returns its JSON.
    pub fn weir_file(&self, arguments: &[&str]) -> Value {
        weir(self.folder.path(), arguments).good().json()
    }

    /// The output of `weir show WHAT --json`.
    pub fn show(&self, what: &str) -> Value {
        self.weir(&["show", what, "--json"]).good().json()[what].clone()
    }

    /// Sends a raw request to the control socket.
    pub fn ask(&self, request: &Value) -> Value {
        weir_control::ask(&self.folder.file("weir.sock"), request)
            .unwrap_or_else(|error| json!({ "error": format!("{error:#}") }))
    }

    /// The metrics as text.
    pub fn metrics(&self) -> String {
        let mut stream = UnixStream::connect(self.folder.file("weir.sock")).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Makes `p0` receive packets.
    pub fn receive(&self, recipes: &[&str]) {
        for recipe in recipes {
            let answer = self.ask(&json!({ "command": "inject", "packet": recipe, "input": "p0" }));
            assert_eq!(answer, json!({ "done": true }));
        }
    }

    /// The number of packets counted by a shared counter.
    pub fn count(&self, counter: &str) -> u64 {
        let counters = self.show("counters");
        let one = counters.as_array().unwrap().iter().find(|one| one["name"] == counter);
        one.unwrap_or_else(|| panic!("no counter {counter}: {counters}"))["packets"].as_u64().unwrap()
    }

    /// The folder of a daemon that has ended.
    pub fn into_folder(mut self) -> Folder {
        assert!(self.child.try_wait().unwrap().is_some(), "it still runs");
        std::mem::replace(&mut self.folder, Folder::new())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the daemon is listening");
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until it ends.
    pub fn end(&mut self) -> ExitStatus {
        let mut status = None;
        self.wait_for("the daemon's end", |daemon| {
            status = daemon.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
