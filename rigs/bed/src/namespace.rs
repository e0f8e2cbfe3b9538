//! Network namespaces, managed through `ip`.
//!
//! This module uses commands rather than rtnetlink: forty short processes cost 0.2 s, every line can be typed
//! by hand for inspection (`weir lab dns --keep`), and none of our threads has to change its namespace.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The directory with a file for each namespace created by `ip netns add`.
const NAMESPACES: &str = "/run/netns";
/// Time limit for every command of a lab; `timeout` ends those that hang. On an emulated processor, `tc` can
/// take more than 10 s.
const TIMEOUT_S: &str = "30";
/// Root's PATH does not always include servers and network tools.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// A namespace; the run removes it.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a namespace without IPv6, whose autoconfiguration would send additional frames.
    pub fn create(name: &str) -> Result<Namespace> {
        run(&mut bounded("ip", &["netns", "add", name]), "")?;
        let namespace = Namespace { name: name.to_owned() };
        namespace.set(&[("ipv6/conf/all/disable_ipv6", 1), ("ipv6/conf/default/disable_ipv6", 1)])?;
        namespace.ip("link set lo up\n")?;
        Ok(namespace)
    }

    /// Returns a namespace that another process has created, given its name.
    #[must_use]
    pub fn existing(name: &str) -> Namespace {
        Namespace { name: name.to_owned() }
    }

    /// Returns the namespace's name, for `ip -n NAME`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves the calling thread into the namespace, for the rest of the thread's life.
    pub fn enter(&self) -> Result<()> {
        // Bounded: nothing is read.
        let file = File::open(format!("{NAMESPACES}/{}", self.name)).with_context(|| self.name.clone())?;
        Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Runs `work` on a thread in the namespace.
    ///
    /// # Panics
    /// `work` panics, or the namespace cannot be entered.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            self.enter().expect("root may enter a namespace");
            work()
        };
        std::thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs `ip` commands in the namespace, one per line.
    pub fn ip(&self, lines: &str) -> Result<()> {
        run(&mut bounded("ip", &["-n", &self.name, "-batch", "-"]), lines).map(drop)
    }

    /// Runs `ip` commands that query something, one per line, and returns their output.
    pub fn ask_ip(&self, lines: &str) -> Result<String> {
        run(&mut bounded("ip", &["-n", &self.name, "-batch", "-"]), lines)
    }

    /// Like `ask_ip`, for commands that are about IPv4 unless `ip` has the option `-6`, such as `route show`.
    pub fn ask_ip6(&self, lines: &str) -> Result<String> {
        run(&mut bounded("ip", &["-6", "-n", &self.name, "-batch", "-"]), lines)
    }

    /// Runs `bridge` commands in the namespace, one per line.
    pub fn bridge(&self, lines: &str) -> Result<()> {
        run(&mut bounded("bridge", &["-n", &self.name, "-batch", "-"]), lines).map(drop)
    }

    /// Sets values under /proc/sys/net.
    pub fn set(&self, values: &[(&str, u32)]) -> Result<()> {
        let lines: String =
            values.iter().map(|(path, value)| format!("echo {value} >/proc/sys/net/{path}\n")).collect();
        run(&mut bounded("ip", &["netns", "exec", &self.name, "sh", "-e"]), &lines).map(drop)
    }

    /// Runs a short command in the namespace with `lines` as standard input.
    pub fn input(&self, program: &str, arguments: &[&str], lines: &str) -> Result<()> {
        let inside = [&["netns", "exec", &self.name, program], arguments].concat();
        run(&mut bounded("ip", &inside), lines).map(drop)
    }

    /// Runs a short command in the namespace and returns its output.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let inside = [&["netns", "exec", &self.name, program], arguments].concat();
        run(&mut bounded("ip", &inside), "")
    }

    /// Returns a command to be started in the namespace; the caller limits the command's duration.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.env("PATH", PATH).args(["netns", "exec", &self.name, program]).stdin(Stdio::null());
        command
    }

    /// Like `command`, for a program that forwards frames and must not wait for other programs on this
    /// machine.
    pub fn preferred(&self, program: &str) -> Command {
        let mut command = self.command("nice");
        command.args(["-n", "-20", program]);
        command
    }

    /// Disables checksum offload on an interface: a veth peer that reads raw frames needs complete checksums.
    pub fn checksum_in_software(&self, interface: &str) -> Result<()> {
        self.output("ethtool", &["-K", interface, "tx", "off"]).map(drop)
    }
}

/// Runs a short command on the host and returns its output.
pub fn output(program: &str, arguments: &[&str]) -> Result<String> {
    run(&mut bounded(program, arguments), "")
}

/// Returns the names of all namespaces on the host.
pub fn names() -> Vec<String> {
    let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Removes a namespace, its interfaces and their peers.
pub fn remove(name: &str) {
    let _ = run(&mut bounded("ip", &["netns", "del", name]), "");
}

/// Returns the programs of `needed` that are not installed.
pub fn missing<'a>(needed: &[&'a str]) -> Vec<&'a str> {
    let found = |program: &str| {
        PATH.split(':').any(|folder| fs::exists(format!("{folder}/{program}")).unwrap_or(false))
    };
    needed.iter().copied().filter(|program| !found(program)).collect()
}

fn bounded(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.env("PATH", PATH).args(["--kill-after=1", TIMEOUT_S, program]).args(arguments);
    command
}

/// Runs a command with `input` to its end. Returns its output, or an error with its error output.
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
        // A command that fails early closes its input; its exit status says more than EPIPE.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{what} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
