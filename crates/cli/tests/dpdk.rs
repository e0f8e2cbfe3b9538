//! `weir run` on DPDK's virtual devices, which need no NIC, no huge pages and no root.
#![cfg(feature = "dpdk")]

mod folder;

use folder::Folder;
use serde_json::{Value, json};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longest wait. DPDK takes a second to load its drivers, more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Frames in the recording.
const FRAMES: u64 = 100;

/// A running daemon, killed if the test fails.
struct DpdkDaemon {
    child: Child,
    socket: PathBuf,
}

impl DpdkDaemon {
    fn start(folder: &Folder, configuration: &str) -> DpdkDaemon {
        let (file, socket) = (folder.write("weir.yaml", configuration), folder.file("socket"));
        let child = run(&file, &socket).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut daemon = DpdkDaemon { child, socket };
        let start = Instant::now();
        while UnixStream::connect(&daemon.socket).is_err()
            || daemon.ask(&json!({"command": "show"})).is_none()
        {
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none() && start.elapsed() < PATIENCE, "{ended:?}: {}", daemon.said());
            std::thread::sleep(Duration::from_millis(20));
        }
        daemon
    }

    fn ask(&self, request: &Value) -> Option<Value> {
        weir_control::ask(&self.socket, request).ok()
    }

    /// For each member of the bond, whether it is enabled, and the reason if it is not.
    fn members(&self) -> Vec<(bool, Value)> {
        let request = json!({"command": "app", "app": "bond0", "request": "show"});
        let bond = self.ask(&request).unwrap();
        let members = bond["members"].as_array().unwrap_or_else(|| panic!("{bond}"));
        members.iter().map(|member| (member["enabled"] == true, member["against"].clone())).collect()
    }

    fn wait_for_members(&self, wanted: &[(bool, Value)]) {
        let start = Instant::now();
        while self.members() != wanted {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.members());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn show(&self, what: &str) -> Value {
        self.ask(&json!({"command": "show", "what": what})).unwrap()[what].take()
    }

    /// Waits until `weir show WHAT` satisfies a condition.
    fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let shown = self.show(what);
            if wanted(&shown) {
                return shown;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {shown}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends SIGTERM and returns the daemon's output; it must exit successfully.
    fn stop(mut self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        let said = self.said();
        assert!(status.success(), "{status}: {said}");
        said
    }

    /// Everything the ended daemon printed.
    fn said(&mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        let _ = self.child.stdout.take().map(|mut output| output.read_to_string(&mut text));
        let _ = self.child.stderr.take().map(|mut output| output.read_to_string(&mut text));
        text
    }
}

impl Drop for DpdkDaemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(file: &Path, socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("run").arg(file).arg("--socket").arg(socket).stdin(Stdio::null());
    command
}

/// The error printed for a configuration that cannot run.
fn refusal(folder: &Folder, configuration: &str) -> String {
    let file = folder.write("wrong.yaml", configuration);
    let Output { status, stderr, .. } = run(&file, &folder.file("socket")).output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    // Apart from remarks about memory there is one sentence, on one line.
    said.lines().filter(|line| !line.contains("ordinary memory")).map(|line| format!("{line}\n")).collect()
}

/// A recording of UDP frames, every second one of them to port 53.
fn recording() -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut text = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1]);
    for number in 0..FRAMES {
        let dport = if number % 2 == 0 { 53 } else { 54 };
        let mut frame = vec![0; 60];
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[34..40].copy_from_slice(&[0x30, 0x39, 0, dport, 0, 26]);
        text.extend(words(&[0, 0, 60, 60]));
        text.extend(frame);
    }
    text
}

/// DNS frames of the recording go to the sink; the rest is dropped, as is everything that arrives on the
/// ring.
fn configuration(recording: &Path, sink: &str, workers: &str) -> String {
    format!(
        "{workers}
ports:
  source: {{ dpdk: \"net_pcap0,rx_pcap={}\", root: dns }}
  loop: {{ dpdk: net_ring0, root: back }}
  sink: {{ dpdk: \"{sink}\" }}
pipes:
  dns:
    type: basic
    match: {{ udp.dport: per_entry }}
    monitor: {{ counter: per_entry }}
    forward: sink
    miss: drop
    entries: [{{ match: {{ udp.dport: 53 }}, counter: dns }}]
  back:
    type: basic
    match: {{ udp.dport: per_entry }}
    forward: sink
    miss: drop
    entries: [{{ match: {{ udp.dport: 99 }} }}]
",
        recording.display()
    )
}

const INJECTED: &str = "eth.dst=02:00:00:00:00:02 eth.src=02:00:00:00:00:01 src=10.0.0.9 dst=10.0.0.2 \
    proto=udp sport=5 dport=99";

#[test]
fn a_recording_goes_through_dpdk_ports_and_every_frame_is_accounted_for() {
    let folder = Folder::new();
    let recording = folder.write("in.pcap", recording());
    let daemon = DpdkDaemon::start(&folder, &configuration(&recording, "net_null0,no-rx=1", ""));
    daemon.wait_for("ports", |ports| ports[0]["received"] == FRAMES);
    let injected = json!({"command": "inject", "packet": INJECTED, "output": "loop"});
    assert_eq!(daemon.ask(&injected).unwrap(), json!({"done": true}));
    let ports = daemon.wait_for("ports", |ports| ports[1]["received"] == 1);
    let modes: Vec<&str> =
        ports.as_array().unwrap().iter().map(|port| port["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["net_pcap", "net_ring", "net_null"]);
    assert_eq!((&ports[1]["transmitted"], &ports[2]["transmitted"]), (&json!(1), &json!(FRAMES / 2 + 1)));
    assert_eq!(daemon.show("counters")[0]["packets"], FRAMES / 2);
    let all = daemon.ask(&json!({"command": "show"})).unwrap();
    let (ledger, wanted) = (&all["ledger"], FRAMES + 1);
    assert_eq!((&ledger["received"], &ledger["originated"]), (&json!(wanted), &json!(1)));
    assert_eq!(
        (&ledger["transmitted"], &ledger["dropped"]),
        (&json!(FRAMES / 2 + 2), &json!({"miss": FRAMES / 2}))
    );
    assert_eq!((&all["balances"], &all["pool_copies"]), (&json!(true), &json!(0)));
    let said = daemon.stop();
    assert!(said.contains("every frame is accounted for"), "{said}");
}

#[test]
fn every_worker_has_a_queue_and_other_ports_may_stand_beside() {
    let folder = Folder::new();
    let configuration = "
workers: 2
ports:
  a: { dpdk: net_null0, root: all }
  b: { dpdk: net_null1, root: all }
  memory: { mem: {}, root: all }
pipes:
  all: { type: basic, match: { ipv4.dst: per_entry }, forward: b, miss: b }
";
    let daemon = DpdkDaemon::start(&folder, configuration);
    let ports = daemon.wait_for("ports", |ports| ports[1]["transmitted"].as_u64().unwrap() > 10_000);
    assert_eq!(ports[0]["mode"], "net_null");
    // A frame sent out of a port is built in that port's memory; one from ordinary memory is copied into an
    // mbuf and counted.
    for (way, copies) in [("output", 0), ("input", 1)] {
        let port = if way == "output" { "b" } else { "memory" };
        let injected = json!({"command": "inject", "packet": INJECTED, way: port});
        assert_eq!(daemon.ask(&injected).unwrap(), json!({"done": true}));
        assert_eq!(daemon.show("pool_copies"), copies);
    }
    let said = daemon.stop();
    assert!(said.contains("every frame is accounted for"), "{said}");
}

/// Two daemons at the two ends of a wire, with a second member that is always up.
#[test]
fn a_bond_uses_a_member_while_its_link_is_up() {
    let (folder, other) = (Folder::new(), Folder::new());
    let wire = |role: &str| {
        let socket = folder.path().join("memif");
        format!("net_memif0,role={role},socket-abstract=no,socket={}", socket.display())
    };
    let bonded = format!(
        "
ports:
  inside: {{ dpdk: net_ring0 }}
  p1: {{ dpdk: \"{}\", mac: 02:00:00:00:00:11 }}
  p2: {{ dpdk: \"net_null0,no-rx=1\", mac: 02:00:00:00:00:12 }}
apps:
  - bond: {{ name: bond0, mode: static, members: [p1, p2], inside: inside }}
",
        wire("server")
    );
    let daemon = DpdkDaemon::start(&folder, &bonded);
    let (up, down) = ((true, Value::Null), (false, json!("no carrier")));
    daemon.wait_for_members(&[down.clone(), up.clone()]);
    let ports = format!("ports:\n  p0: {{ dpdk: \"{}\", root: all }}\n", wire("client"));
    let pipes = "pipes:\n  all: { type: basic, match: { ipv4.dst: per_entry }, forward: drop, miss: drop }\n";
    for _ in 0..2 {
        let client = DpdkDaemon::start(&other, &(ports.clone() + pipes));
        daemon.wait_for_members(&[up.clone(), up.clone()]);
        // A reload must not lose track of the port's link.
        assert_eq!(daemon.ask(&json!({"command": "reload"})).unwrap()["error"], Value::Null);
        assert_eq!(daemon.members(), [up.clone(), up.clone()]);
        client.stop();
        daemon.wait_for_members(&[down.clone(), up.clone()]);
    }
    let said = daemon.stop();
    assert!(said.contains("every frame is accounted for"), "{said}");
}

#[test]
fn what_cannot_be_opened_is_answered_in_a_sentence() {
    let folder = Folder::new();
    let recording = folder.write("in.pcap", recording());
    let misspelt = refusal(&folder, &configuration(&recording, "net_nul0", ""));
    assert!(
        misspelt.starts_with("weir: port `sink`: no DPDK driver supports device `net_nul0`: check its name")
    );
    assert_eq!(misspelt.lines().count(), 1, "{misspelt}");
    let argument = refusal(&folder, &configuration(&recording, "net_null0,sizze=3", ""));
    assert!(
        argument.contains("port `sink`: the driver of DPDK device `net_null0,sizze=3` rejects it"),
        "{argument}"
    );
    let queues = refusal(&folder, &configuration(&recording, "net_null0", "workers: 2"));
    assert!(queues.contains("port `source`: DPDK device"), "{queues}");
    assert!(
        queues.contains("supports 1 queues, but each of the 2 workers") && queues.contains("`workers: 1`"),
        "{queues}"
    );
}
