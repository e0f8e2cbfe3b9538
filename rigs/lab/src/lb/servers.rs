//! The programs on back ends: Debian's nginx and nsd, which answer with the back end's name, and `weir
//! decap`.

use std::fs::{self, File};
use std::process::Stdio;

use anyhow::{Result, bail};

use super::bed::PATIENCE;
use super::configuration::{VNI, WEB_PORT_BEHIND};
use super::network::{Host, SOURCES, VIPS};
use crate::Interrupt;
use crate::nsd;
use crate::topology::INTERFACE;
use crate::weir;
use weir_bed::{Namespace, Run, Started};

/// The servers of a back end.
pub struct Servers([Started; 2]);

impl Servers {
    /// Starts the servers; they answer a few milliseconds later.
    pub fn start(run: &mut Run, host: &Host) -> Result<Servers> {
        let [own_4, own_6] = &host.addresses;
        let addresses = [VIPS[0], VIPS[1], own_4, own_6];
        Ok(Servers([
            nsd::serve(run, &host.namespace, host.name, &addresses)?,
            nginx(run, (host.name, &host.namespace))?,
        ]))
    }

    /// Kills the servers (SIGKILL).
    pub fn kill(&self, run: &mut Run) -> Result<()> {
        self.0.into_iter().try_for_each(|server| run.kill(server))
    }
}

/// Starts the web server of a back end: one process, which answers every request with the back end's name and
/// keeps connections open.
pub fn nginx(run: &mut Run, (name, host): (&str, &Namespace)) -> Result<Started> {
    let folder = run.folder().join(format!("nginx-{name}"));
    fs::create_dir_all(&folder)?;
    let (file, at) = (folder.join("nginx.conf"), folder.display());
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {at}/{kind};\n"))
        .collect();
    let listen: String =
        [80, WEB_PORT_BEHIND].iter().map(|port| format!("listen {port}; listen [::]:{port}; ")).collect();
    fs::write(
        &file,
        format!(
            "daemon off;\nmaster_process off;\npid {at}/pid;\nerror_log {at}/error.log;\n\
             events {{ worker_connections 1024; }}\nhttp {{\n  access_log off;\n{temporary}  \
             keepalive_timeout 1h;\n  keepalive_requests 100000000;\n  default_type text/plain;\n  \
             server {{ {listen}location / {{ return 200 \"{name}\\n\"; }} }}\n}}\n"
        ),
    )?;
    let mut command = host.command("nginx");
    command.arg("-e").arg(folder.join("error.log")).arg("-c").arg(&file).stdout(Stdio::null());
    run.start(&format!("nginx-{name}"), &mut command)
}

/// Starts `weir decap` on a back end for every tunnel, and waits until it is attached.
pub fn decap(run: &mut Run, host: &Host, interrupt: &Interrupt) -> Result<()> {
    let tunnels: Vec<_> = SOURCES.into_iter().zip(host.addresses.iter().map(String::as_str)).collect();
    decap_with(run, (host.name, &host.namespace), &["--vni", VNI], &tunnels, interrupt)
}

/// Starts `weir decap` with these options on a back end for tunnels, of which each is a range of sources and
/// a destination, and waits until it is attached.
pub fn decap_with(
    run: &mut Run,
    (name, host): (&str, &Namespace),
    options: &[&str],
    tunnels: &[(&str, &str)],
    interrupt: &Interrupt,
) -> Result<()> {
    let name = format!("decap-{name}");
    let said = run.folder().join(&name);
    let mut command = host.command(&weir::program()?);
    command.args(["decap", INTERFACE, "--json"]).args(options);
    for (from, to) in tunnels {
        command.args(["--from", from, "--to", to]);
    }
    let process = run.start(&name, command.stdout(File::create(&said)?))?;
    let attached = || {
        if let Some(status) = run.child(process).try_wait()? {
            bail!("{name} has ended ({status}): {}", run.last_words(&name));
        }
        Ok(fs::read_to_string(&said)?.contains("attached"))
    };
    if !interrupt.wait(PATIENCE, attached)? {
        bail!("{name} is not attached: {}", run.last_words(&name));
    }
    Ok(())
}
