//! An Open vSwitch for a lab or bench, with its own database and switch in the run's directory, separate from
//! the host's.
//!
//! Debian's packages start a switch for the host; this is a separate one. Its userspace datapath (`netdev`)
//! needs no kernel module. The switch's control socket is used directly, because each `ovs-appctl` would be a
//! process on a core that is being measured.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Interrupt;
use weir_bed::namespace;
use weir_bed::{Run, Started};

/// The switch.
pub const SWITCH: &str = "/usr/lib/openvswitch-switch/ovs-vswitchd";
/// Debian package of the switch.
pub const PACKAGE: &str = "openvswitch-switch";
/// The switch with DPDK.
pub const SWITCH_DPDK: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// Debian package of the switch with DPDK.
pub const PACKAGE_DPDK: &str = "openvswitch-switch-dpdk";

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const NAME: &str = "ovs-vswitchd";
/// How long the database and the switch may take to start; with DPDK, the switch allocates its pools.
const START: Duration = Duration::from_secs(30);
/// How long the switch may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running switch.
pub struct Ovs {
    folder: PathBuf,
    switch: Started,
}

impl Ovs {
    /// Starts a database and a switch with these columns of `Open_vSwitch`; `command` runs a program where
    /// the switch should run.
    pub fn start(
        run: &mut Run,
        program: &str,
        settings: &[&str],
        command: impl Fn(&str) -> Command,
        interrupt: &Interrupt,
    ) -> Result<Ovs> {
        let folder = run.folder().join("ovs");
        std::fs::create_dir_all(&folder)?;
        let database = path(&folder.join("conf.db"));
        namespace::output("ovsdb-tool", &["create", &database, SCHEMA])?;
        let mut server = Command::new("ovsdb-server");
        server.args([&database, "-vconsole:warn", "--no-chdir"]).stdin(Stdio::null()).stdout(Stdio::null());
        server.arg(format!("--remote=punix:{}", path(&folder.join("db.sock"))));
        server.arg(format!("--unixctl={}", path(&folder.join("db.ctl"))));
        run.start("ovsdb-server", &mut server)?;
        wait_for(&folder.join("db.sock"), interrupt)?;
        let ovs = Ovs { switch: switch(run, &folder, program, &command, interrupt, settings)?, folder };
        Ok(ovs)
    }

    /// Restarts the switch after it was stopped; its configuration is in the database.
    pub fn restart(
        &mut self,
        run: &mut Run,
        program: &str,
        command: impl Fn(&str) -> Command,
        interrupt: &Interrupt,
    ) -> Result<()> {
        self.switch = switch(run, &self.folder, program, &command, interrupt, &[])?;
        Ok(())
    }

    /// Returns the switch's process.
    pub fn process(&self) -> Started {
        self.switch
    }

    /// Changes the configuration, and waits until the switch has applied it.
    pub fn vsctl(&self, words: &str) -> Result<()> {
        vsctl(&self.folder, &words.split_whitespace().collect::<Vec<_>>())
    }

    /// Replaces the flows of a bridge.
    pub fn set_flows(&self, name: &str, flows: &str) -> Result<()> {
        let bridge = self.management(name);
        namespace::output("ovs-ofctl", &["del-flows", &bridge])?;
        self.add_flow(name, flows)
    }

    /// Adds a flow to a bridge.
    pub fn add_flow(&self, bridge: &str, flow: &str) -> Result<()> {
        namespace::output("ovs-ofctl", &["add-flow", &self.management(bridge), flow]).map(drop)
    }

    /// Applies these lines of flows and groups (OpenFlow 1.5) to a bridge, in one step.
    pub fn bundle(&self, bridge: &str, lines: &str) -> Result<()> {
        let file = self.folder.join("flows");
        std::fs::write(&file, lines)?;
        let arguments = ["-O", "OpenFlow15", "bundle", &self.management(bridge), &path(&file)];
        namespace::output("ovs-ofctl", &arguments).map(drop)
    }

    /// Returns where `ovs-ofctl` finds a bridge.
    fn management(&self, bridge: &str) -> String {
        format!("unix:{}", path(&self.folder.join(format!("{bridge}.mgmt"))))
    }

    /// Returns the switch's answer to a command of `ovs-appctl`.
    pub fn appctl(&self, command: &str, arguments: &[&str]) -> Result<String> {
        appctl(&self.folder.join("switch.ctl"), command, arguments)
    }

    /// Returns how many members of a bond carry traffic. A switch that has just started answers before it has
    /// read its bonds from the database; until then a bond has none.
    pub fn members_enabled(&self, bond: &str) -> Result<usize> {
        let text = match self.appctl("bond/show", &[bond]) {
            Err(refusal) if refusal.to_string().contains("no such bond") => return Ok(0),
            answer => answer?,
        };
        Ok(text.lines().filter(|line| line.starts_with("member ") && line.ends_with(": enabled")).count())
    }
}

fn switch(
    run: &mut Run,
    folder: &Path,
    program: &str,
    command: &impl Fn(&str) -> Command,
    interrupt: &Interrupt,
    settings: &[&str],
) -> Result<Started> {
    let init = [&["--no-wait", "init", "--", "set", "Open_vSwitch", "."], settings].concat();
    vsctl(folder, if settings.is_empty() { &["--no-wait", "init"] } else { &init })?;
    let control = folder.join("switch.ctl");
    let mut command = command(program);
    command
        .arg(format!("unix:{}", path(&folder.join("db.sock"))))
        .arg(format!("--unixctl={}", path(&control)));
    for folder_of in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR", "RUNTIME_DIRECTORY"] {
        command.env(folder_of, folder);
    }
    command.arg("-vconsole:warn").stdin(Stdio::null()).stdout(Stdio::null());
    let process = run.start(NAME, &mut command)?;
    let answers = || match run.child(process).try_wait()? {
        Some(status) => bail!("Open vSwitch has ended ({status}): {}", run.last_words(NAME)),
        None => Ok(appctl(&control, "version", &[]).is_ok()),
    };
    if !interrupt.wait(START, answers)? {
        bail!("Open vSwitch did not answer within {} s: {}", START.as_secs(), run.last_words(NAME));
    }
    Ok(process)
}

fn vsctl(folder: &Path, words: &[&str]) -> Result<()> {
    let database = format!("--db=unix:{}", path(&folder.join("db.sock")));
    namespace::output("ovs-vsctl", &[&[database.as_str()], words].concat()).map(drop)
}

/// Sends a JSON-RPC request. There is no framing: an answer ends where its object ends.
fn appctl(control: &Path, command: &str, arguments: &[&str]) -> Result<String> {
    let mut stream = UnixStream::connect(control).context("Open vSwitch does not answer")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(json!({"id": 0, "method": command, "params": arguments}).to_string().as_bytes())?;
    let mut answers = serde_json::Deserializer::from_reader(&stream).into_iter::<Value>();
    let answer = answers.next().context("Open vSwitch closed the connection")??;
    match (&answer["result"], &answer["error"]) {
        (Value::String(text), _) => Ok(text.clone()),
        (_, error) => bail!("Open vSwitch refuses `{command}`: {error}"),
    }
}

fn wait_for(socket: &Path, interrupt: &Interrupt) -> Result<()> {
    if !interrupt.wait(START, || Ok(UnixStream::connect(socket).is_ok()))? {
        bail!("no process listens on {}", socket.display());
    }
    Ok(())
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
