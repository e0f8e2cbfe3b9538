//! Network namespaces with weir and real programs in them, for tests that need root. All are removed, however
//! a test ends.
#![allow(dead_code, reason = "each test uses only a part")]

use serde_json::Value;
use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_bed::{Namespace, Run, Started, cable, namespace};

/// The longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The control socket, in the folder of the run.
const SOCKET: [&str; 2] = ["--socket", "weir.sock"];

/// The namespaces by role, and the running processes.
pub struct Spaces {
    run: Run,
    roles: Vec<(String, Namespace)>,
    running: Vec<Started>,
}

impl Spaces {
    /// Creates a namespace for each role; `name` distinguishes tests of one process. `None` without root.
    pub fn build(name: &str, roles: &[&str]) -> Option<Spaces> {
        let run = Run::of_test(name)?.slowed_down_by(10);
        let mut spaces = Spaces { run, roles: Vec::new(), running: Vec::new() };
        roles.iter().for_each(|role| spaces.add(role));
        Some(spaces)
    }

    /// Creates another namespace, with IPv6.
    pub fn add(&mut self, role: &str) {
        let namespace = self.run.namespace(role).unwrap();
        self.roles.push((role.to_string(), namespace));
        for values in ["accept_dad=0", "disable_ipv6=0"] {
            let [all, default] = ["all", "default"].map(|of| format!("net.ipv6.conf.{of}.{values}"));
            self.set(role, &[&all, &default]);
        }
    }

    /// The folder of the run's files.
    pub fn folder(&self) -> &Path {
        self.run.folder()
    }

    /// The run, which owns the processes.
    pub fn run_mut(&mut self) -> &mut Run {
        &mut self.run
    }

    /// The namespace of a role.
    pub fn at(&self, role: &str) -> &Namespace {
        &self.roles.iter().find(|(name, _)| name == role).expect("a role of the test").1
    }

    /// The name of a role's namespace.
    pub fn name(&self, role: &str) -> &str {
        self.at(role).name()
    }

    pub fn command(&self, role: &str, program: &str) -> Command {
        self.at(role).command(program)
    }

    pub fn set(&self, role: &str, values: &[&str]) {
        self.at(role).output("sysctl", &[&["-qw"][..], values].concat()).unwrap();
    }

    /// Runs `ip` with each of these lines. Returns what it printed.
    pub fn ip(&self, role: &str, lines: &str) -> String {
        let run = |line: &str| {
            let words: Vec<&str> = ["-n", self.name(role)].into_iter().chain(line.split(' ')).collect();
            namespace::output("ip", &words).unwrap()
        };
        lines.lines().map(str::trim).filter(|line| !line.is_empty()).map(run).collect()
    }

    /// Connects two namespaces by a cable whose ends have these names.
    pub fn cable(&self, (role, interface): (&str, &str), (other, end): (&str, &str), mac: &str) {
        let ends = [(self.at(role), interface), (self.at(other), end)];
        let [one, other] = ends.map(|(namespace, name)| namespace.end(name));
        cable(None, &one.mac(mac), &other).unwrap();
        for (namespace, interface) in ends {
            // Segmentation and checksums are done where they would be on a wire.
            let off = ["-K", interface, "tx", "off", "gso", "off", "tso", "off", "gro", "off"];
            namespace.output("ethtool", &off).unwrap();
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
        self.at(role).within(work)
    }

    /// Starts weir with a configuration, and waits until it answers.
    pub fn weir(&mut self, role: &str, text: &str) {
        self.weir_with(role, "weir.yaml", text, &[]);
    }

    /// The same with a file of that name, and more arguments.
    pub fn weir_with(&mut self, role: &str, name: &str, text: &str, arguments: &[&str]) {
        std::fs::write(self.run.folder().join(name), text).unwrap();
        self.start(role, "weir", &[&["run", name][..], arguments, &SOCKET].concat());
        self.until("weir answers", || self.show("apps"));
    }

    /// Starts weir in the folder of the run.
    fn start(&mut self, role: &str, name: &str, arguments: &[&str]) {
        let mut command = self.command(role, env!("CARGO_BIN_EXE_weir"));
        command.args(arguments).current_dir(self.run.folder()).stdout(Stdio::null());
        self.running.push(self.run.start(name, &mut command).unwrap());
    }

    /// Starts a successor of the running weir, and returns the name of its log.
    pub fn begin_takeover(&mut self, role: &str) -> String {
        let name = format!("successor-{}", self.running.len());
        self.start(role, &name, &[&["run", "weir.yaml", "--takeover"][..], &SOCKET].concat());
        name
    }

    /// Starts a successor of the running weir, and waits until it has taken over.
    pub fn take_over(&mut self, role: &str) {
        let old = *self.running.last().expect("weir runs");
        self.begin_takeover(role);
        let until = Instant::now() + PATIENCE;
        while self.run.child(old).try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "no takeover: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.until("the successor answers", || self.show("apps"));
    }

    /// Returns the process id of the nth child: `ip netns exec` becomes the program.
    pub fn process(&mut self, nth: usize) -> u32 {
        self.run.child(self.running[nth]).id()
    }

    /// Sends a request to the running weir. Returns the JSON object on the last line, if it answers.
    pub fn ask(&self, words: &[&str]) -> Option<Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(words).arg("--json").args(SOCKET).current_dir(self.run.folder());
        let output = command.output().unwrap();
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

    /// Waits until `look` returns what is expected. If it never does, the panic message says what it returned
    /// last.
    #[track_caller]
    pub fn until_is<T, U>(&self, what: &str, mut look: impl FnMut() -> T, expected: U)
    where
        T: PartialEq<U> + Debug,
        U: Debug,
    {
        let until = Instant::now() + PATIENCE;
        loop {
            let seen = look();
            if seen == expected {
                return;
            }
            let is_patient = Instant::now() < until;
            assert!(is_patient, "{what}: {seen:?}, and not {expected:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the process that was started last (SIGKILL).
    pub fn kill_last(&mut self) {
        let last = self.running.pop().expect("a process runs");
        self.run.kill(last).unwrap();
    }

    /// Forgets the process that was started last, which has ended.
    pub fn forget_last(&mut self) {
        self.running.pop();
    }

    /// Whether the process that was started last still runs.
    pub fn last_runs(&mut self) -> bool {
        let last = *self.running.last().expect("a process was started");
        self.run.child(last).try_wait().unwrap().is_none()
    }

    /// Returns what weir has logged, and after that what its successors have.
    pub fn log(&self) -> String {
        let successors = (1..).map(|number| self.log_of(&format!("successor-{number}")));
        std::iter::once(self.log_of("weir")).chain(successors.take_while(|log| !log.is_empty())).collect()
    }

    /// Returns the log of a process.
    pub fn log_of(&self, name: &str) -> String {
        std::fs::read_to_string(self.run.folder().join(format!("{name}.log"))).unwrap_or_default()
    }

    /// Starts `weir decap` at `eth0`, and waits until it is attached.
    pub fn decap(&mut self, role: &str, arguments: &[&str]) {
        let mut command = self.command(role, env!("CARGO_BIN_EXE_weir"));
        command.args(["decap", "eth0", "--json"]).args(arguments).stdout(Stdio::piped());
        let decap = self.run.start(&format!("decap-{role}"), &mut command).unwrap();
        self.running.push(decap);
        let mut line = String::new();
        let out = self.run.child(decap).stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "{\"attached\":\"eth0\"}\n");
    }

    /// Ends all processes. Returns what each `weir decap` has counted, in the order of their starts.
    pub fn end(&mut self) -> Vec<Value> {
        let mut counts = Vec::new();
        for started in self.running.drain(..) {
            assert!(self.run.stop(started).unwrap().success());
            if let Some(mut out) = self.run.child(started).stdout.take() {
                let mut text = String::new();
                out.read_to_string(&mut text).unwrap();
                counts.push(serde_json::from_str::<Value>(text.trim()).unwrap()["counts"].clone());
            }
        }
        counts
    }
}
