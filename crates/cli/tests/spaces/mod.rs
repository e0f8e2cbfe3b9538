//! Network namespaces with weir and real programs in them, for tests that need root. All are removed, however
//! a test ends.
#![allow(dead_code, reason = "each test uses only a part")]

use rustix::process::{Pid, Signal, geteuid, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The namespaces, a folder for files, and the running processes.
pub struct Spaces {
    prefix: String,
    roles: Vec<String>,
    folder: PathBuf,
    running: Vec<Child>,
}

impl Spaces {
    /// Creates a namespace for each role; `name` distinguishes tests of one process. `None` without root,
    /// which in CI is a failure: a skipped test proves nothing.
    pub fn build(name: &str, roles: &[&str]) -> Option<Spaces> {
        assert!(geteuid().is_root() || std::env::var_os("CI").is_none(), "CI runs as root");
        if !geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let prefix = format!("w{}{name}", std::process::id());
        let folder = std::env::temp_dir().join(&prefix);
        std::fs::create_dir_all(&folder).unwrap();
        let mut spaces = Spaces { prefix, roles: Vec::new(), folder, running: Vec::new() };
        for role in roles {
            spaces.roles.push((*role).to_string());
            succeeds(Command::new("ip").args(["netns", "add", &spaces.name(role)]));
            spaces.set(role, &["net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0"]);
            spaces.ip(role, "link set lo up");
        }
        Some(spaces)
    }

    /// The name of a role's namespace.
    pub fn name(&self, role: &str) -> String {
        format!("{}{role}", self.prefix)
    }

    pub fn command(&self, role: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(role), program]).stdin(Stdio::null());
        command
    }

    pub fn set(&self, role: &str, values: &[&str]) {
        succeeds(self.command(role, "sysctl").arg("-qw").args(values));
    }

    /// Runs `ip` with each of these lines. Returns what it printed.
    pub fn ip(&self, role: &str, lines: &str) -> String {
        let run = |line: &str| {
            let output = succeeds(Command::new("ip").arg("-n").arg(self.name(role)).args(line.split(' ')));
            String::from_utf8(output.stdout).unwrap()
        };
        lines.lines().map(run).collect()
    }

    /// Connects two namespaces by a cable whose ends have these names.
    pub fn cable(&self, (role, interface): (&str, &str), (other, end): (&str, &str), mac: &str) {
        let peer = self.name(other);
        self.ip(role, &format!("link add {interface} address {mac} type veth peer name {end} netns {peer}"));
        for (role, interface) in [(role, interface), (other, end)] {
            self.ip(role, &format!("link set {interface} up"));
            // Segmentation and checksums are done where they would be on a wire.
            let off = ["-K", interface, "tx", "off", "gso", "off", "tso", "off", "gro", "off"];
            succeeds(self.command(role, "ethtool").args(off));
        }
    }

    /// Connects namespaces by a switch in another one: each by its interface `eth0`, with this address.
    pub fn switch(&self, switch: &str, stations: &[(&str, &str)]) {
        self.ip(switch, "link add br0 type bridge stp_state 0 mcast_snooping 0\nlink set br0 up");
        for (role, mac) in stations {
            self.cable((role, "eth0"), (switch, role), mac);
            self.ip(switch, &format!("link set {role} master br0"));
        }
    }

    /// Gives an interface addresses of both IP versions, with prefixes of 24 and 64 bits.
    pub fn addresses(&self, role: &str, interface: &str, addresses: [&str; 2]) {
        for (address, length) in addresses.iter().zip([24, 64]) {
            self.ip(role, &format!("addr add {address}/{length} dev {interface}"));
        }
    }

    /// Runs something on a thread in a namespace.
    pub fn within<T: Send>(&self, role: &str, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name(role))).unwrap();
        std::thread::scope(|scope| {
            let inside = move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work()
            };
            scope.spawn(inside).join().unwrap()
        })
    }

    /// Starts weir with a configuration, and waits until it answers.
    pub fn weir(&mut self, role: &str, text: &str) {
        self.weir_with(role, "weir.yaml", text, &[]);
    }

    /// The same with a file of that name, and more arguments.
    pub fn weir_with(&mut self, role: &str, name: &str, text: &str, arguments: &[&str]) {
        let file = self.folder.join(name);
        std::fs::write(&file, text).unwrap();
        let log = File::create(self.folder.join("weir.log")).unwrap();
        let mut command = self.command(role, env!("CARGO_BIN_EXE_weir"));
        command.arg("run").arg(&file).args(arguments).arg("--socket").arg(self.folder.join("weir.sock"));
        self.running.push(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        self.until("weir answers", || self.show("apps"));
    }

    /// Starts a successor of the running weir, and waits until it has taken over.
    pub fn take_over(&mut self, role: &str) {
        let log = File::create(self.folder.join("successor.log")).unwrap();
        let mut command = self.command(role, env!("CARGO_BIN_EXE_weir"));
        command.arg("run").arg(self.folder.join("weir.yaml")).arg("--takeover");
        command.arg("--socket").arg(self.folder.join("weir.sock"));
        self.running.push(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let old = self.running.len() - 2;
        let until = Instant::now() + PATIENCE;
        while self.running[old].try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "no takeover: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.until("the successor answers", || self.show("apps"));
    }

    /// Returns the process id of the nth child: `ip netns exec` becomes the program.
    pub fn process(&self, nth: usize) -> u32 {
        self.running[nth].id()
    }

    /// Sends a request to the running weir. Returns the JSON object on the last line, if it answers.
    pub fn ask(&self, words: &[&str]) -> Option<Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.args(words).args(["--json", "--socket"]).arg(self.folder.join("weir.sock"));
        let output = output.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        serde_json::from_str(text.lines().last()?).ok().filter(|_| output.status.success())
    }

    /// Returns the output of `weir show`, once it answers.
    pub fn show(&self, what: &str) -> Option<Value> {
        self.ask(&["show", what])
    }

    /// Waits until `look` finds something.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            match look() {
                Some(found) => return found,
                None => assert!(Instant::now() < until, "not so: {what}\n{}", self.log()),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("weir.log")).unwrap_or_default()
    }

    /// Starts `weir decap` at `eth0`, and waits until it is attached.
    pub fn decap(&mut self, role: &str, arguments: &[&str]) {
        let mut command = self.command(role, env!("CARGO_BIN_EXE_weir"));
        let command = command.args(["decap", "eth0", "--json"]).args(arguments);
        self.running.push(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        let out = self.running.last_mut().unwrap().stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "{\"attached\":\"eth0\"}\n");
    }

    /// Ends all processes. Returns what each `weir decap` has counted, in the order of their starts.
    pub fn end(&mut self) -> Vec<Value> {
        let mut counts = Vec::new();
        for mut child in self.running.drain(..) {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            if let Some(mut out) = child.stdout.take() {
                let mut text = String::new();
                out.read_to_string(&mut text).unwrap();
                counts.push(serde_json::from_str::<Value>(text.trim()).unwrap()["counts"].clone());
            }
            assert!(child.wait().unwrap().success());
        }
        counts
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        for role in &self.roles {
            let _ = Command::new("ip").args(["netns", "del", &self.name(role)]).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs a program that must succeed. Returns what it printed.
pub fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
