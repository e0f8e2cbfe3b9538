//! A name server on each back end: Debian's nsd, one process with one small zone.
//!
//! All of nsd's files are in the run's directory. It serves the VIPs and the back end's own addresses.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Result;

use super::topology::{BackEnd, VIPS};
use weir_bed::Namespace;
use weir_bed::{Run, Started};

/// Number of names in the zone.
pub const NAMES: u32 = 256;
/// Size of the socket buffer: room for the frames of 0.2 s at 20 000 per second (the kernel counts about 800
/// bytes for each), because a server must not lose any while it is not scheduled.
const SOCKET_BUFFER: u32 = 4 << 20;

/// Maximum number of concurrent TCP connections.
const CONNECTIONS: u32 = 1000;

/// Starts the name server of a back end of `topology.rs`.
pub(crate) fn start(run: &mut Run, back_end: &BackEnd) -> Result<Started> {
    serve(run, &back_end.namespace, back_end.name, &[&VIPS[..], &[back_end.address]].concat())
}

/// Starts a name server at these addresses, which answers a few milliseconds later; `name` is its identity.
pub fn serve(run: &mut Run, host: &Namespace, name: &str, addresses: &[&str]) -> Result<Started> {
    let folder = run.folder().join(name);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("zone"), zone())?;
    let file = folder.join("nsd.conf");
    fs::write(&file, configuration(&folder, name, addresses))?;
    let mut command = host.command("nsd");
    command.arg("-d").arg("-c").arg(file).stdout(Stdio::null());
    run.start(&format!("nsd-{name}"), &mut command)
}

/// Writes a file of `count` queries through which dnsperf cycles.
pub fn write_queries(folder: &Path, count: u32) -> Result<PathBuf> {
    let path = folder.join(format!("queries-{count}"));
    fs::write(&path, (0..count).map(|i| format!("h{i}.weir.test A\n")).collect::<String>())?;
    Ok(path)
}

fn zone() -> String {
    let head =
        "$ORIGIN weir.test.\n$TTL 3600\n@ SOA ns hostmaster 1 3600 900 86400 300\n@ NS ns\nns A 10.77.0.53\n";
    let mut zone = String::from(head);
    for i in 0..NAMES {
        let _ = writeln!(zone, "h{i} A 192.0.2.{i}");
    }
    zone
}

fn configuration(folder: &Path, name: &str, addresses: &[&str]) -> String {
    let folder = folder.display();
    let addresses: String = addresses.iter().map(|one| format!("  ip-address: {one}\n")).collect();
    format!(
        "server:\n  server-count: 1\n  identity: \"{name}\"\n  tcp-count: {CONNECTIONS}\n{addresses}  \
         username: \"\"\n  \
         zonesdir: \"{folder}\"\n  database: \"\"\n  pidfile: \"{folder}/nsd.pid\"\n  \
         xfrdfile: \"{folder}/xfrd.state\"\n  xfrdir: \"{folder}\"\n  zonelistfile: \
         \"{folder}/zone.list\"\n  \
         receive-buffer-size: {SOCKET_BUFFER}\n  send-buffer-size: {SOCKET_BUFFER}\n  \
         rrl-ratelimit: 0\n  rrl-whitelist-ratelimit: 0\n\
         remote-control:\n  control-enable: no\n\
         zone:\n  name: \"weir.test\"\n  zonefile: \"zone\"\n"
    )
}
