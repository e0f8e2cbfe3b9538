//! A real Open vSwitch of the test's own. It gives frames to the switch's ports, and records what leaves
//! them: dummy ports of the user-space datapath, or veth pairs of the kernel's (`wires.rs`).

use serde_json::{Value, json};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SWITCH: &str = "/usr/lib/openvswitch-switch/ovs-vswitchd";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// How long the switch may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// Source address of the frames that mark where the output of a frame ends.
const MARK: [u8; 6] = [2, 0x77, 0x77, 0x77, 0x77, 0x77];

/// The number of frames that are given to the user-space datapath at a time, each followed by a mark; more
/// than a hundred do not fit into its queue. The kernel's datapath gets one frame at a time: it forwards a
/// frame whose flow it has cached, but passes marks up to the switch, so the next frame could overtake a
/// mark. It waits until the mark has arrived.
const AT_A_TIME: usize = 45;

/// The other ends of the ports of the kernel's datapath (`wires.rs`).
pub trait Wires {
    /// Opens them, once the switch has its ports.
    fn open(&mut self);
    /// Sends frames to a port of the switch, in this order.
    fn send(&mut self, port: usize, frames: &[Vec<u8>]);
    /// The frames that a port of the switch has sent since the last call.
    fn receive(&mut self, port: usize) -> Vec<Vec<u8>>;
}

/// A running switch, which ends with this value.
pub struct Switch {
    folder: PathBuf,
    children: Vec<Child>,
    /// The names of its ports.
    ports: Vec<String>,
    /// How much of each port's recording has been read.
    read: Vec<u64>,
    /// The other ends of the ports of the kernel's datapath.
    wires: Option<Box<dyn Wires>>,
    /// The number of marks that were given to the switch.
    marks: u32,
}

/// What left the switch for one frame: port number and bytes, in the order of ports.
pub type Output = Vec<(usize, Vec<u8>)>;

impl Switch {
    /// Starts a switch with ports of these names; `None` if Open vSwitch is not installed. With wires, it has
    /// the kernel's datapath, in the namespace of the calling thread.
    pub fn start(ports: &[&str], wires: Option<Box<dyn Wires>>) -> Option<Switch> {
        let installed = Path::new(SWITCH).exists();
        assert!(installed || std::env::var_os("CI").is_none(), "CI has openvswitch-switch");
        if !installed {
            return None;
        }
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weir-openflow-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (read, ports) = (vec![24; ports.len()], ports.iter().map(ToString::to_string).collect());
        let mut switch = Switch { folder, children: Vec::new(), ports, read, wires, marks: 0 };
        switch.run("ovsdb-tool", &["create", &switch.path("conf.db"), SCHEMA]);
        let server = [
            switch.path("conf.db"),
            format!("--remote=punix:{}", switch.path("db.sock")),
            format!("--unixctl={}", switch.path("db.ctl")),
            "--no-chdir".into(),
        ];
        switch.spawn("ovsdb-server", &server);
        switch.wait_for("db.sock");
        switch.vsctl("--no-wait init -- set Open_vSwitch . other_config:vlan-limit=2");
        let mut server = vec![
            format!("unix:{}", switch.path("db.sock")),
            format!("--unixctl={}", switch.path("switch.ctl")),
        ];
        let kind = if switch.wires.is_some() { "system" } else { "dummy" };
        if kind == "dummy" {
            server.push("--enable-dummy=override".into());
        }
        switch.spawn(SWITCH, &server);
        switch.wait_for("switch.ctl");
        let mut words = format!("add-br br0 -- set bridge br0 datapath_type={kind} fail-mode=secure");
        words += " protocols=OpenFlow15";
        for name in &switch.ports {
            words += &format!(" -- add-port br0 {name}");
            if kind == "dummy" {
                let recording = switch.path(name);
                words += &format!(" -- set interface {name} type=dummy options:tx_pcap={recording}");
            }
        }
        switch.vsctl(&words);
        switch.wait_for("br0.mgmt");
        if let Some(wires) = &mut switch.wires {
            wires.open();
        }
        Some(switch)
    }

    /// Replaces all flows and groups by those in the text, with the real tool.
    pub fn load(&mut self, text: &str) -> Result<(), String> {
        let outputs: String = self.ports.iter().map(|name| format!(",output:{name}")).collect();
        let source = MARK.map(|byte| format!("{byte:02x}")).join(":");
        // Each mark has another destination, which the actions read, so no datapath has cached a flow for it.
        // The switch itself handles it, after the frame before it.
        let mark = format!(
            "flow add table=0,priority=65535,eth_src={source},\
             actions=move:NXM_OF_ETH_DST[0..31]->NXM_NX_REG0[],\
             load:0->NXM_OF_IN_PORT[]{outputs}\n"
        );
        let mut tool = Command::new("ovs-ofctl");
        // It also reports when it had to wait for a processor, which is not a fault of the flows.
        tool.args(["-vtimeval:off", "-vcoverage:off", "-O", "OpenFlow15", "bundle"]);
        tool.args([&format!("unix:{}", self.path("br0.mgmt")), "-"]);
        tool.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.surroundings(&mut tool).spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("{text}{mark}").as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let says = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() || !says.is_empty() {
            return Err(says);
        }
        // Nothing may be left in the datapath of the flows before; a purge passes over those that the switch
        // is looking at.
        let start = Instant::now();
        while self.appctl("dpctl/dump-flows", &[]).contains("in_port") {
            assert!(start.elapsed() < PATIENCE, "the switch keeps old flows");
            self.appctl("revalidator/purge", &[]);
        }
        Ok(())
    }

    /// Whether it has the kernel's datapath.
    #[allow(dead_code, reason = "not every test has wires")]
    pub fn has_wires(&self) -> bool {
        self.wires.is_some()
    }

    /// Gives frames to a port, and returns what leaves for each.
    pub fn frames(&mut self, port: usize, frames: &[Vec<u8>]) -> Vec<Output> {
        let at_a_time = if self.wires.is_some() { 1 } else { AT_A_TIME };
        let mut outputs = Vec::new();
        for some in frames.chunks(at_a_time) {
            outputs.extend(self.some_frames(port, some));
        }
        outputs
    }

    fn some_frames(&mut self, port: usize, frames: &[Vec<u8>]) -> Vec<Output> {
        let first = self.marks;
        self.marks += frames.len() as u32;
        let given: Vec<Vec<u8>> =
            (first..).zip(frames).flat_map(|(at, frame)| [frame.clone(), mark(at)]).collect();
        match &mut self.wires {
            Some(wires) => wires.send(port, &given),
            None => {
                let arguments =
                    std::iter::once(self.ports[port].clone()).chain(given.iter().map(|one| hex(one)));
                self.appctl("netdev-dummy/receive", &arguments.collect::<Vec<_>>());
            }
        }
        let mut outputs = vec![Output::new(); frames.len()];
        for port in 0..self.ports.len() {
            let (start, mut marks) = (Instant::now(), 0);
            while marks < frames.len() {
                assert!(start.elapsed() < PATIENCE, "the switch has sent {marks} of {} marks", frames.len());
                for bytes in self.recorded(port) {
                    if bytes.get(6..12) == Some(&MARK[..]) {
                        assert_eq!(bytes, mark(first + marks as u32), "marks leave in order");
                        marks += 1;
                    } else {
                        outputs[marks].push((port, bytes));
                    }
                }
                if marks < frames.len() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        outputs
    }

    /// The frames that a port has sent since the last call.
    fn recorded(&mut self, port: usize) -> Vec<Vec<u8>> {
        if let Some(wires) = &mut self.wires {
            return wires.receive(port);
        }
        let mut bytes = Vec::new();
        let mut file = std::fs::File::open(self.path(&self.ports[port])).unwrap();
        file.seek(SeekFrom::Start(self.read[port])).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        let (mut at, mut frames) = (0, Vec::new());
        while let Some(header) = bytes.get(at..at + 16) {
            let length = u32::from_ne_bytes(header[8..12].try_into().unwrap()) as usize;
            let Some(frame) = bytes.get(at + 16..at + 16 + length) else { break };
            frames.push(frame.to_vec());
            at += 16 + length;
        }
        self.read[port] += at as u64;
        frames
    }

    fn appctl(&self, command: &str, arguments: &[String]) -> String {
        let mut stream = UnixStream::connect(self.path("switch.ctl")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = json!({ "id": 0, "method": command, "params": arguments });
        stream.write_all(request.to_string().as_bytes()).unwrap();
        let mut answers = serde_json::Deserializer::from_reader(&stream).into_iter::<Value>();
        let answer = answers.next().expect("the switch answers").unwrap();
        assert!(answer["error"].is_null(), "{command}: {answer}");
        answer["result"].as_str().unwrap_or_default().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    fn surroundings<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR", "RUNTIME_DIRECTORY"] {
            command.env(name, &self.folder);
        }
        command
    }

    fn vsctl(&self, words: &str) {
        let database = format!("--db=unix:{}", self.path("db.sock"));
        let words: Vec<&str> = std::iter::once(database.as_str()).chain(words.split_whitespace()).collect();
        self.run("ovs-vsctl", &words);
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = self.surroundings(Command::new(program).args(arguments)).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn spawn(&mut self, program: &str, arguments: &[String]) {
        let mut command = Command::new(program);
        let said = std::fs::File::create(self.path("said")).unwrap();
        command.args(arguments).arg("-vconsole:warn").stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        self.children.push(self.surroundings(&mut command).spawn().unwrap());
    }

    fn wait_for(&self, socket: &str) {
        let start = Instant::now();
        while UnixStream::connect(self.path(socket)).is_err() {
            let said = std::fs::read_to_string(self.path("said")).unwrap_or_default();
            assert!(start.elapsed() < PATIENCE, "there is no {socket}: {said}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The frame that follows the frame of this number.
fn mark(number: u32) -> Vec<u8> {
    [&[2, 0], &number.to_be_bytes()[..], &MARK, &[0x88, 0xb5], &[0; 46]].concat()
}

/// Writes a frame as `netdev-dummy/receive` reads it.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
