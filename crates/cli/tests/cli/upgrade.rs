//! `weir upgrade`: by itself, and as systemd's `ExecReload=` with the shipped unit and sockets, in a real
//! user manager.

use super::folder::Folder;
use super::nat;
use super::running::Daemon;
use super::systemd::UNIT;
use super::wire::{Wire, sh};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long systemd and weir may take for a step; test machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Replaces the executable with a new file of the same content, as a package manager does.
fn install(folder: &Folder) {
    // In a process of its own: a child that another test forks would keep the file open for writing for a
    // moment, and until then it could not be executed (ETXTBSY).
    let mut copy = Command::new("cp");
    copy.args([env!("CARGO_BIN_EXE_weir"), "weir.new"]).current_dir(folder.path());
    assert!(copy.status().unwrap().success());
    std::fs::rename(folder.file("weir.new"), folder.file("weir")).unwrap();
}

/// Starts a weir that does NAT from its own executable file, which can be replaced.
fn start(wire: &Wire) -> Daemon {
    let folder = Folder::new();
    folder.write("weir.yaml", nat::config());
    install(&folder);
    let mut ip = Command::new("ip");
    ip.args(["netns", "exec", &wire.weir]).arg(folder.file("weir"));
    Daemon::start_by(folder, ip)
}

/// Runs the folder's weir in a network namespace.
fn run(folder: &Path, netns: &str, arguments: &[&str]) -> Output {
    let mut ip = Command::new("ip");
    ip.args(["netns", "exec", netns]).arg(folder.join("weir")).args(arguments);
    ip.current_dir(folder).stdin(Stdio::null()).output().expect("weir runs")
}

/// Returns the process that answers on the control socket.
fn process(folder: &Folder) -> Option<u32> {
    let answer: anyhow::Result<serde_json::Value> =
        weir_control::ask(&folder.file("weir.sock"), &json!({ "command": "process" }));
    answer.ok()?["pid"].as_u64().map(|pid| pid as u32)
}

/// Ends the process that answers on a folder's control socket, whichever that is by then.
struct Last<'a>(&'a Folder);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        if let Some(pid) = process(self.0).and_then(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[test]
fn an_upgrade_replaces_the_process_or_leaves_it_as_it_was() {
    let Some(wire) = nat::wire("upgrade") else { return };
    let mut daemon = start(&wire);
    let first = daemon.pid().as_raw_nonzero().get() as u32;
    let upgrade = |folder: &Folder| run(folder.path(), &wire.weir, &["upgrade", "--socket", "weir.sock"]);
    let said = upgrade(&daemon.folder);
    assert!(said.status.success() && process(&daemon.folder) == Some(first), "a reload: {said:?}");
    install(&daemon.folder);
    let said = upgrade(&daemon.folder);
    assert!(said.status.success(), "{said:?}");
    assert!(daemon.end().success(), "{}", daemon.log());
    let folder = daemon.into_folder();
    let last = Last(&folder);
    let second = process(&folder).expect("the successor answers");
    assert_ne!(second, first);
    folder.write("weir.yaml", "ports: nothing\n");
    install(&folder);
    let said = upgrade(&folder);
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(1), "{text}");
    assert!(text.contains("did not take over") && text.contains("log for the reason"), "{text}");
    let log = || std::fs::read_to_string(folder.file("stderr")).unwrap();
    until("the reason in the log", || log().contains("weir.yaml:1").then_some(()));
    assert_eq!(process(&folder), Some(second), "the old one continues");
    drop(last);
}

/// Whether or not there is a successor by then.
#[test]
fn a_weir_that_is_asked_to_end_in_the_middle_of_an_upgrade_ends() {
    let Some(wire) = nat::wire("upend") else { return };
    for delay_ms in [0, 20, 60, 150] {
        let mut daemon = start(&wire);
        install(&daemon.folder);
        let folder = daemon.folder.path().to_path_buf();
        let upgrade = std::thread::spawn({
            let netns = wire.weir.clone();
            move || run(&folder, &netns, &["upgrade", "--socket", "weir.sock"])
        });
        std::thread::sleep(Duration::from_millis(delay_ms));
        // The daemon may already have handed over and ended.
        let _ = kill_process(daemon.pid(), Signal::TERM);
        daemon.end();
        upgrade.join().unwrap();
        drop(Last(&daemon.into_folder()));
    }
}

/// A user manager in a separate control group and mount namespace, inside a network namespace. A manager
/// without them would take over controllers that the host's other processes need: after it, real-time
/// scheduling is refused everywhere.
struct Manager {
    process: Child,
    group: PathBuf,
    runtime: PathBuf,
}

/// The files below `inaccessible` are normally created by the system manager: units with `ProtectHome=` and
/// the like see them in place of what is forbidden.
const MANAGER: &str = r#"
echo $$ >"$1/cgroup.procs"
exec ip netns exec "$2" unshare --mount --cgroup sh -ec '
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkdir -p /run/systemd
    mount -t tmpfs tmpfs /run/systemd
    mkdir /run/systemd/system /run/systemd/inaccessible
    cd /run/systemd/inaccessible
    mkdir -m 0 dir
    touch reg
    chmod 0 reg
    mknod -m 0 chr c 0 0
    mknod -m 0 blk b 0 0
    mkfifo -m 0 fifo
    cd /
    exec /usr/lib/systemd/systemd --user'
"#;

/// Where the kernel's unified hierarchy of control groups is mounted.
fn unified() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let found =
        mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|all| all[2] == "cgroup2");
    found.expect("cgroup2 is mounted")[1].into()
}

impl Manager {
    fn start(folder: &Folder, netns: &str) -> Manager {
        let group = unified().join(format!("weir-test-{}", std::process::id()));
        std::fs::create_dir(&group).unwrap();
        let runtime = folder.file("run");
        let mut command = Command::new("sh");
        command.args(["-c", MANAGER, "sh"]).arg(&group).arg(netns).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", &runtime).env("HOME", folder.path());
        command.env_remove("DBUS_SESSION_BUS_ADDRESS").env_remove("NOTIFY_SOCKET");
        command.env("SYSTEMD_LOG_TARGET", "null");
        let process = command.spawn().expect("sh runs");
        let manager = Manager { process, group, runtime };
        until("a user manager", || manager.systemctl(&["is-system-running"]).status.success().then_some(()));
        manager
    }

    /// A command that believes that systemd has booted this machine.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.process.id().to_string(), "--"]).arg(program);
        command.env("XDG_RUNTIME_DIR", &self.runtime).stdin(Stdio::null());
        command
    }

    fn systemctl(&self, arguments: &[&str]) -> Output {
        self.command("systemctl").arg("--user").args(arguments).output().expect("systemctl runs")
    }

    fn does(&self, arguments: &[&str]) {
        let said = self.systemctl(arguments);
        let status = || String::from_utf8_lossy(&self.systemctl(&["status", "weir"]).stdout).into_owned();
        assert!(said.status.success(), "{arguments:?}: {said:?}\n{}", status());
    }

    fn shows(&self, property: &str) -> String {
        let said = self.systemctl(&["show", "--value", "--property", property, "weir.service"]);
        String::from_utf8_lossy(&said.stdout).trim().to_string()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < PATIENCE && self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = std::fs::write(self.group.join("cgroup.kill"), "1");
        let _ = self.process.wait();
        let line = format!("find {} -depth -type d -exec rmdir {{}} +", self.group.display());
        until("the end of the control group", || {
            let _ = Command::new("sh").args(["-c", &line]).stderr(Stdio::null()).status();
            (!self.group.exists()).then_some(())
        });
    }
}

/// Requests through weir's NAT, one after the other, until a file exists.
const REQUESTS: &str = r#"
good=0 bad=0
until [ -e stop ]; do
    if timeout 20 bash -c 'exec 3<>/dev/tcp/10.0.1.2/9105 && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 &&
        cat <&3' | grep -q EOF; then good=$((good + 1)); else bad=$((bad + 1)); fi
done
echo $good $bad
"#;

/// A scrape and a `show`, every 0.2 s.
const QUESTIONS: &str = r#"
good=0 bad=0
until [ -e stop ]; do
    if timeout 20 bash -c 'exec 3<>/dev/tcp/127.0.0.1/9105 && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 &&
        cat <&3' | grep -q EOF && ./weir show ledger --socket weir.sock >/dev/null
    then good=$((good + 1)); else bad=$((bad + 1)); fi
    sleep 0.2
done
echo $good $bad
"#;

/// Starts a script in a namespace. It reports how many of its requests were answered, and how many were not.
fn ask(folder: &Folder, netns: &str, script: &str) -> RequestScript {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns, "bash", "-c", script]).current_dir(folder.path());
    RequestScript(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("bash runs"))
}

/// A script that sends requests until the file `stop` exists, or the test fails.
struct RequestScript(Child);

impl Drop for RequestScript {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn counted(mut client: RequestScript) -> (u64, u64) {
    let mut said = String::new();
    client.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let mut numbers = said.split_whitespace().map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Writes the shipped units, changed only in paths and in their user, and a drop-in for what a test's folder
/// needs.
fn write_units(folder: &Folder) {
    let units = folder.file("run/systemd/user");
    std::fs::create_dir_all(units.join("weir.service.d")).unwrap();
    let at = folder.path().display().to_string();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for shipped in [UNIT, "packaging/weir.socket", "packaging/weir-metrics.socket"] {
        let text = std::fs::read_to_string(repository.join(shipped)).unwrap();
        let text = text.replace("/usr/bin", &at).replace("/etc/weir", &at).replace("/run/weir", &at);
        // Only the package creates the user: `make test-package`.
        let text = text.replace("User=weir\n", "User=root\n");
        std::fs::write(units.join(Path::new(shipped).file_name().unwrap()), text).unwrap();
    }
    // The test's folder is one for temporary files, which a unit cannot otherwise write to.
    let more = format!(
        "[Service]\nPrivateTmp=no\nReadWritePaths={at}\nEnvironment=WEIR_SOCKET={at}/weir.sock\n\
         StandardError=append:{at}/stderr\n"
    );
    std::fs::write(units.join("weir.service.d/test.conf"), more).unwrap();
}

/// Upgrades weir under systemd `count` times, while it is queried continuously. Every request is answered,
/// and systemd knows the running process.
fn upgrades_under_systemd(count: u32) {
    let Some(wire) = nat::wire("unitup") else { return };
    let folder = Folder::new();
    let socket = folder.file("weir.sock").display().to_string();
    folder.write("weir.yaml", format!("socket: {socket}\nmetrics: 127.0.0.1:9105\n{}", nat::config()));
    install(&folder);
    write_units(&folder);
    sh(&format!("ip -n {} link set lo up", wire.weir));
    let far = Folder::new();
    far.write("weir.yaml", "ports: { p0: { mem: ~ } }\nmetrics: 10.0.1.2:9105\n");
    let _server = Daemon::start_in_namespace(far, &wire.far);
    let log = || std::fs::read_to_string(folder.file("stderr")).unwrap_or_default();
    let manager = Manager::start(&folder, &wire.weir);
    manager.does(&["start", "weir.socket", "weir-metrics.socket", "weir.service"]);
    let mut main = manager.shows("MainPID");
    let clients = [ask(&folder, &wire.third, REQUESTS), ask(&folder, &wire.weir, QUESTIONS)];
    for turn in 0..count {
        install(&folder);
        let said = manager.systemctl(&["reload", "weir.service"]);
        assert!(said.status.success(), "upgrade {turn}: {said:?}\n{}", log());
        let now = process(&folder).expect("it answers").to_string();
        assert_ne!(now, main, "upgrade {turn} was none: {}", log());
        until("systemd's knowledge of the main process", || (manager.shows("MainPID") == now).then_some(()));
        assert_eq!(manager.shows("ActiveState"), "active", "{}", log());
        main = now;
    }
    // The same program: the configuration is reloaded.
    manager.does(&["reload", "weir.service"]);
    assert_eq!(process(&folder).unwrap().to_string(), main);
    folder.write("stop", "");
    for ((good, bad), what) in clients.map(counted).into_iter().zip(["requests", "questions"]) {
        assert!(good > 0 && bad == 0, "{what}: {good} were answered, {bad} were not\n{}", log());
        println!("{count} upgrades under systemd: {good} {what} were answered, {bad} were not");
    }
    // From the outside, a takeover is refused, and an upgrade goes through systemd.
    let said = run(folder.path(), &wire.weir, &["run", "weir.yaml", "--takeover"]);
    assert!(!said.status.success() && process(&folder).unwrap().to_string() == main, "{said:?}");
    assert!(String::from_utf8_lossy(&said.stderr).contains("control group"), "{said:?}");
    install(&folder);
    let said = manager.command(folder.file("weir")).args(["upgrade", "--socket", &socket]).output().unwrap();
    assert!(said.status.success() && process(&folder).unwrap().to_string() != main, "{said:?}\n{}", log());
    // A stop in the middle of an upgrade leaves no process.
    install(&folder);
    manager.does(&["reload", "--no-block", "weir.service"]);
    std::thread::sleep(Duration::from_millis(30));
    manager.does(&["stop", "weir.service", "weir.socket", "weir-metrics.socket"]);
    assert_eq!((manager.shows("MainPID").as_str(), process(&folder)), ("0", None));
    // A process that has just been started may die of the signal.
    assert_ne!(manager.shows("Result"), "timeout", "it did not end when it was asked to");
    drop(manager);
    let real_time = Command::new("chrt").args(["-f", "1", "true"]).status().unwrap();
    assert!(real_time.success(), "the manager has taken real-time scheduling from this machine");
}

#[test]
fn upgrades_under_systemd_lose_no_request() {
    upgrades_under_systemd(3);
}

/// `make test-long`.
#[test]
#[ignore = "takes a minute"]
fn twenty_upgrades_under_systemd_lose_no_request() {
    upgrades_under_systemd(20);
}
