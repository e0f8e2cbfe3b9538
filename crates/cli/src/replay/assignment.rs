//! Which file is for which port or app: the arguments of `weir replay`, refused if they are ambiguous. A
//! misspelt port must not become the name of a file.

use crate::config::Plan;
use anyhow::{Result, bail};
use std::path::PathBuf;

/// Parses `FILE` or `PORT=FILE`. The first `FILE` without a port is for the port at `first`, the next one for
/// the port after it. `flag` is the name of the argument.
///
/// # Errors
/// Fails if there is no such port, or if a port has two files.
pub fn assign(plan: &Plan, list: &[PathBuf], flag: &str, first: usize) -> Result<Vec<(String, PathBuf)>> {
    let mut all: Vec<(String, PathBuf)> = Vec::new();
    let mut unnamed = plan.ports.iter().skip(first);
    for path in list {
        let text = path.to_string_lossy();
        let (name, path) = match text.split_once('=').filter(|(name, _)| !name.contains('/')) {
            Some((name, path)) if plan.program.port_named(name).is_some() => (name.to_string(), path.into()),
            Some((name, _)) => bail!(
                "{flag}{text}: there is no port `{name}`; the ports are: {} (if it is the name of a file, \
                 write \
                    ./{text})",
                ports(plan)
            ),
            None => match unnamed.next() {
                Some(port) => (port.name.clone(), path.clone()),
                None => {
                    bail!("{flag}{text}: say which port with PORT={text}; the ports are: {}", ports(plan))
                }
            },
        };
        if let Some((_, other)) = all.iter().find(|(other, _)| *other == name) {
            bail!(
                "{flag}{text}: port `{name}` already has {}; a port can have only one file",
                other.display()
            );
        }
        all.push((name, path));
    }
    Ok(all)
}

fn ports(plan: &Plan) -> String {
    plan.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Parses `NAME=OUT.pcap`, where `NAME` is the app to which frames are forwarded.
///
/// # Errors
/// Fails if there is no such name, or if a name has two files.
pub fn assign_apps(plan: &Plan, list: &[PathBuf]) -> Result<Vec<(String, PathBuf)>> {
    let mut all: Vec<(String, PathBuf)> = Vec::new();
    for path in list {
        let text = path.to_string_lossy();
        let Some((name, path)) = text.split_once('=') else { bail!("--app {text}: write NAME=OUT.pcap") };
        if !plan.program.apps.iter().any(|app| app == name) {
            bail!("--app {text}: there is no app `{name}`; the apps are: {}", plan.program.apps.join(", "));
        }
        if all.iter().any(|(other, _)| other == name) {
            bail!("--app {text}: `{name}` appears twice");
        }
        all.push((name.to_string(), path.into()));
    }
    Ok(all)
}
