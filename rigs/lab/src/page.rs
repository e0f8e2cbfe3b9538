//! The web pages of a lab's nodes, for a browser on the host. A daemon in a network namespace cannot listen
//! on an address of the host, so the lab opens the listener there, and passes it on as systemd does.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use weir_bed::{Run, with_listener};

/// Each read of this file returns a different random text of 36 characters.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";

/// The web page of a node.
pub struct NodePage {
    listener: TcpListener,
    address: SocketAddr,
    token: String,
    file: PathBuf,
}

/// Opens the listeners of `count` nodes, with one token that permits changes.
pub fn open(run: &Run, count: usize) -> Result<Vec<NodePage>> {
    let open = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|one| Ok((one.local_addr()?, one)));
    let listeners: std::io::Result<Vec<_>> = (0..count).map(|_| open()).collect();
    let listeners = listeners.context("no port for the web page")?;
    // Bounded: the kernel writes one line.
    let token = std::fs::read_to_string(RANDOM).context(RANDOM)?.trim().to_string();
    let file = run.folder().join("token");
    let mut private = OpenOptions::new();
    let private = private.write(true).create_new(true).mode(0o600).open(&file);
    private.and_then(|mut file| file.write_all(token.as_bytes())).context("the token of the web page")?;
    let page = |(address, listener)| {
        let (token, file) = (token.clone(), file.clone());
        NodePage { listener, address, token, file }
    };
    Ok(listeners.into_iter().map(page).collect())
}

impl NodePage {
    /// Returns the line of the configuration that enables the page.
    pub fn control(&self) -> String {
        format!("control: {{ listen: \"{}\", token: {} }}\n", self.address, self.file.display())
    }

    /// Returns the page's address, with the token.
    pub fn url(&self) -> String {
        format!("http://{}/#token={}", self.address, self.token)
    }

    /// Returns the same command, with the listener passed to it.
    pub fn passed_to(&self, command: &Command) -> Result<Command> {
        Ok(with_listener(command, "control", self.listener.try_clone()?))
    }
}
