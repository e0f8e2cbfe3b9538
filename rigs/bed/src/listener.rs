//! Sockets that are passed to programs, as systemd passes them.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

/// Passes standard input on as the socket `$0`, and executes the program in place of the shell, because the
/// environment names the process that the socket is for.
const PASS: &str = r#"export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES="$0"; exec "$@" 3<&0 </dev/null"#;

/// Returns the same command, with a listener passed to it under `name`, as descriptor 3 (sd_listen_fds(3)): a
/// program in a network namespace cannot listen on an address of the host. Its standard input is empty; the
/// folder in which `command` runs, and its output, have to be set again.
pub fn with_listener(command: &Command, name: &str, listener: TcpListener) -> Command {
    let mut passes = Command::new("sh");
    passes.args(["-c", PASS, name]).arg(command.get_program()).args(command.get_args());
    for (variable, value) in command.get_envs() {
        match value {
            Some(value) => passes.env(variable, value),
            None => passes.env_remove(variable),
        };
    }
    passes.stdin(Stdio::from(OwnedFd::from(listener)));
    passes
}
