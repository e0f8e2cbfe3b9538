//! `weir upgrade`: replaces the running daemon with this executable, without losing a packet.
//!
//! Under systemd this is what `ExecReload=` runs, in the unit's control group and with the unit's privileges.
//! From anywhere else, it asks systemd to reload the unit.

use super::show::{self, Plain};
use super::socket;
use crate::output;
use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use weir_control::{Request, answer};
use weir_daemon::{own_cgroup, own_executable};

/// How long the successor may take: reading and compiling a large configuration takes seconds.
const PATIENCE: Duration = Duration::from_secs(80);

/// How often to check which process answers on the control socket.
const EVERY: Duration = Duration::from_millis(20);

/// Runs the command.
///
/// # Errors
/// Fails if there is no daemon, or if the successor did not take over; the daemon then continues.
pub fn run(arguments: &Plain) -> Result<ExitCode> {
    let path = socket(arguments.connection.socket.clone(), None);
    let daemon = process(&path)?;
    let unit = daemon.unit.as_deref();
    if let Some(unit) = unit.filter(|unit| Some(*unit) != own_cgroup().as_deref()) {
        return reload_unit(unit, &path, &daemon);
    }
    if own_executable()? == daemon.executable {
        return show::reload(arguments);
    }
    let mut successor = start(&daemon)?;
    wait(&mut successor, &path)?;
    output::line(format!("process {} has taken over from {}", successor.id(), daemon.pid))?;
    Ok(ExitCode::SUCCESS)
}

/// Asks the daemon for its process.
fn process(path: &Path) -> Result<answer::Process> {
    weir_control::ask(path, &Request::Process {})
}

/// Makes systemd reload the unit in whose control group the daemon runs.
fn reload_unit(unit: &str, path: &Path, daemon: &answer::Process) -> Result<ExitCode> {
    let Some(name) = unit.rsplit('/').next().filter(|name| name.ends_with(".service")) else {
        bail!("the running weir is in the control group {unit}: run `weir upgrade` there");
    };
    let mut systemctl = Command::new("systemctl");
    if daemon.user_manager {
        systemctl.arg("--user");
    }
    let status = systemctl.args(["reload", name]).status().context("cannot run systemctl")?;
    if !status.success() {
        bail!("`systemctl reload {name}` failed: `journalctl -u {name}` says why");
    }
    let now = process(path)?;
    let done = if now.pid == daemon.pid { "was reloaded by" } else { "has been replaced by" };
    output::line(format!("process {} {done} process {}", daemon.pid, now.pid))?;
    Ok(ExitCode::SUCCESS)
}

/// Starts this executable with the daemon's arguments and working directory, to take over from it.
fn start(daemon: &answer::Process) -> Result<Child> {
    let words = daemon.arguments.iter().map(String::as_str);
    let mut successor = Command::new(std::env::current_exe().context("the path of this executable")?);
    successor.args(words.filter(|word| *word != "--takeover")).arg("--takeover");
    successor.current_dir(daemon.directory.as_deref().unwrap_or("/"));
    // systemd's variables refer to this process. The daemon passes its sockets on itself.
    for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID", "WATCHDOG_USEC"] {
        successor.env_remove(name);
    }
    if let Some(usec) = daemon.watchdog_usec {
        successor.env("WATCHDOG_USEC", usec.to_string());
    }
    // The successor must not get signals that a terminal sends to this process.
    successor.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    if let Some(log) = log_of(daemon) {
        successor.stderr(log);
    }
    successor.spawn().context("cannot start the successor")
}

/// Opens the daemon's log. Otherwise, anything that waits for the end of this process's standard error would
/// also wait for the successor's. A socket, such as the journal's, cannot be opened and need not be: systemd
/// has given this process the same socket.
fn log_of(daemon: &answer::Process) -> Option<File> {
    OpenOptions::new().append(true).open(format!("/proc/{}/fd/2", daemon.pid)).ok()
}

/// Waits until the successor answers on the control socket.
fn wait(successor: &mut Child, path: &Path) -> Result<()> {
    let start = Instant::now();
    loop {
        if let Some(status) = successor.try_wait()? {
            bail!(
                "the new weir did not take over ({status}): see weir's log for the reason; the old one \
                continues"
            );
        }
        // Meanwhile, the daemon refuses to answer, or the socket is being handed over.
        if process(path).is_ok_and(|answer| answer.pid == successor.id()) {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            successor.kill()?;
            successor.wait()?;
            bail!("the new weir did not take over within {} s and was killed", PATIENCE.as_secs());
        }
        std::thread::sleep(EVERY);
    }
}
