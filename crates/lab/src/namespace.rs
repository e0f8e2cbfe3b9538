//! A network namespace, through `ip`.
//!
//! Commands instead of rtnetlink: forty short processes cost 0.2 s, every line can be typed by hand to look around
//! (`weir lab dns --keep`), and no thread of ours has to change its namespace.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Namespaces made by `ip netns add` are files here.
const NAMESPACES: &str = "/run/netns";
/// No command of a lab takes longer; `timeout` ends those that hang.
const TIMEOUT_S: &str = "10";
/// Servers and network tools are not on every root's PATH.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// A namespace. Run removes it.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes it, without IPv6: autoconfiguration would send frames that no test asked for.
    pub fn create(name: &str) -> Result<Namespace> {
        run(&mut bounded("ip", &["netns", "add", name]), "")?;
        let namespace = Namespace { name: name.to_owned() };
        namespace.set(&[("ipv6/conf/all/disable_ipv6", 1), ("ipv6/conf/default/disable_ipv6", 1)])?;
        namespace.ip("link set lo up\n")?;
        Ok(namespace)
    }

    /// Its name, for `ip -n NAME`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs lines of `ip` commands in it.
    pub fn ip(&self, lines: &str) -> Result<()> {
        run(&mut bounded("ip", &["-n", &self.name, "-batch", "-"]), lines).map(drop)
    }

    /// Runs lines of `bridge` commands in it.
    pub fn bridge(&self, lines: &str) -> Result<()> {
        run(&mut bounded("bridge", &["-n", &self.name, "-batch", "-"]), lines).map(drop)
    }

    /// Sets values under /proc/sys/net.
    pub fn set(&self, values: &[(&str, u32)]) -> Result<()> {
        let lines: String =
            values.iter().map(|(path, value)| format!("echo {value} >/proc/sys/net/{path}\n")).collect();
        run(&mut bounded("ip", &["netns", "exec", &self.name, "sh", "-e"]), &lines).map(drop)
    }

    /// Runs a short command in it, with this on its standard input.
    pub fn input(&self, program: &str, arguments: &[&str], lines: &str) -> Result<()> {
        let inside = [&["netns", "exec", &self.name, program], arguments].concat();
        run(&mut bounded("ip", &inside), lines).map(drop)
    }

    /// Runs a short command in it; what it printed.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let inside = [&["netns", "exec", &self.name, program], arguments].concat();
        run(&mut bounded("ip", &inside), "")
    }

    /// A command to be started in it, with the caller's own bound.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.env("PATH", PATH).args(["netns", "exec", &self.name, program]).stdin(Stdio::null());
        command
    }

    /// The same for a program that carries frames: what else runs on this machine shall not keep it waiting.
    pub fn preferred(&self, program: &str) -> Command {
        let mut command = self.command("nice");
        command.args(["-n", "-20", program]);
        command
    }

    /// Leaves a frame's checksum to nobody: a veth peer that reads raw frames must see it complete.
    pub fn checksum_in_software(&self, interface: &str) -> Result<()> {
        self.output("ethtool", &["-K", interface, "tx", "off"]).map(drop)
    }
}

/// Runs a short command of the host; what it printed.
pub fn output(program: &str, arguments: &[&str]) -> Result<String> {
    run(&mut bounded(program, arguments), "")
}

/// The names of all namespaces of the host.
pub fn names() -> Vec<String> {
    let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Removes a namespace, and with it the interfaces in it and their peers.
pub fn remove(name: &str) {
    let _ = run(&mut bounded("ip", &["netns", "del", name]), "");
}

/// The programs of `needed` that are not installed.
pub fn missing<'a>(needed: &[&'a str]) -> Vec<&'a str> {
    let found =
        |program: &str| PATH.split(':').any(|folder| fs::exists(format!("{folder}/{program}")).unwrap_or(false));
    needed.iter().copied().filter(|program| !found(program)).collect()
}

fn bounded(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.env("PATH", PATH).args(["--kill-after=1", TIMEOUT_S, program]).args(arguments);
    command
}

/// Runs a command to its end with `input`; what it printed, or an error with what it complained about.
fn run(command: &mut Command, input: &str) -> Result<String> {
    let what = || format!("{:?}", command.get_args().skip(2).collect::<Vec<_>>());
    let what = what();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {what}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that has failed early has closed its input; its exit status says more than EPIPE.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{what} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
