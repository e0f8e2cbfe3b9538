//! `weir doctor [FILE]`: checks whether this host and the fabric meet weir's needs.

use super::{BadInput, bad_input, socket};
use crate::config::SOCKET;
use crate::doctor::peers::{self, Asking};
use crate::doctor::{self, Level};
use crate::{import, output};
use anyhow::Result;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use weir_app::kind::RemoteNode;
use weir_config::infile;
use weir_control::answer::FleetNode;
use weir_daemon::peer::{self, Client, PeerUrl};

/// Arguments of `weir doctor`.
#[derive(clap::Args)]
pub struct DoctorArguments {
    /// The configuration file; without one, only the host is examined.
    file: Option<PathBuf>,
    /// Compare this node with other nodes of its fleet: URLs such as https://10.0.0.5:9106, separated by
    /// commas, or @FILE with a URL on each line. The daemon of this node must run.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    peers: Vec<String>,
    /// The file with the token for peers; by default that of `control` in the configuration.
    #[arg(long, requires = "peers")]
    token: Option<PathBuf>,
    /// The file with the certificates (PEM) that sign those of peers with https.
    #[arg(long, value_name = "FILE", requires = "peers")]
    authorities: Option<PathBuf>,
    /// Path of the daemon's control socket; overrides the configuration.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Print a JSON object: `ok, checks[]{check, of, level, says}`.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: import::NodeOption,
}

/// The daemon's answer.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Shown {
    pub node: FleetNode,
}

/// The largest number of peers, and the largest size of a file with their URLs.
const PEERS_MAX: usize = 1024;
const URLS_MAX: u64 = 1 << 20;

/// The largest size of a token's file.
const TOKEN_MAX: u64 = 4098;

/// Reads the URLs of peers.
pub(super) fn urls(peers: &[String]) -> Result<Vec<PeerUrl>> {
    let mut urls = Vec::new();
    for one in peers {
        let Some(file) = one.strip_prefix('@') else {
            urls.push(one.parse().map_err(BadInput)?);
            continue;
        };
        let text = infile::open(Path::new(file)).and_then(|open| infile::read_from(open, URLS_MAX));
        let text = text.map_err(|error| BadInput(format!("{file}: {error}")))?;
        let text = String::from_utf8(text).map_err(|_| BadInput(format!("{file}: it is not text")))?;
        for (line, text) in text.lines().enumerate() {
            let text = text.split('#').next().unwrap_or_default().trim();
            if !text.is_empty() {
                let url = text.parse().map_err(|why| BadInput(format!("{file}:{}: {why}", line + 1)))?;
                urls.push(url);
            }
        }
    }
    if urls.len() > PEERS_MAX {
        return Err(BadInput(format!("there are {} peers; the limit is {PEERS_MAX}", urls.len())).into());
    }
    Ok(urls)
}

/// Reads the token for peers.
pub(super) fn token(path: &Path) -> Result<String> {
    let wrong = |why: String| BadInput(format!("{}: {why}", path.display()));
    let file = weir_daemon::private::open(path).map_err(|error| wrong(format!("{error:#}")))?;
    let token = infile::read_from(file, TOKEN_MAX).map_err(|error| wrong(error.to_string()))?;
    let token = token.trim_ascii().to_vec();
    let is_right = !token.is_empty() && token.iter().all(u8::is_ascii_graphic);
    let token = String::from_utf8(token).ok().filter(|_| is_right);
    token.ok_or_else(|| wrong("a token has letters and digits only".to_string()).into())
}

/// The largest answer of a node that a command accepts, in bytes: more than the sketches of an interval take.
const ANSWER_MAX: usize = 32 << 20;

/// A node that is asked by a command.
struct PeerNode {
    url: PeerUrl,
    client: Client,
}

impl RemoteNode for PeerNode {
    fn url(&self) -> String {
        self.url.to_string()
    }

    fn get(&self, path: &str, patience: Duration) -> Result<Value, String> {
        peer::get(&self.client, path, patience)
    }
}

/// Finds out how to ask nodes ([`weir_app::kind::FindNodes`]).
pub(super) fn nodes(
    from: &[String],
    token: Option<&Path>,
    authorities: Option<&Path>,
) -> Result<Vec<Box<dyn RemoteNode>>> {
    let urls = urls(from)?;
    let is_remote = urls.iter().any(|url| matches!(url, PeerUrl::Tcp { .. }));
    let token = match token {
        Some(path) => self::token(path)?,
        None if is_remote => return Err(BadInput("nodes need a token: --token FILE".to_string()).into()),
        None => String::new(),
    };
    let node = |url: PeerUrl| -> Result<Box<dyn RemoteNode>> {
        let client = peer::client(&url, &token, authorities);
        let client = client.map_err(|why| BadInput(format!("{url}: it {why}")))?;
        Ok(Box::new(PeerNode { client: client.with_answer_max(ANSWER_MAX), url }))
    };
    urls.into_iter().map(node).collect()
}

/// Runs the command. The exit code is 1 if something is a fault.
///
/// # Errors
/// Fails if the file cannot be read, or if standard output cannot be written to.
pub fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let mut plan = None;
    if let Some(file) = &arguments.file {
        let loaded = import::load(file, &arguments.node, &import::ImportOptions::default())?;
        if loaded.plan.is_none() {
            output::complain(&loaded.report);
            return Ok(bad_input());
        }
        plan = loaded.plan;
    }
    let configured = plan.as_ref().map(|plan| plan.socket.clone()).filter(|path| path != Path::new(SOCKET));
    let planned = plan.as_ref().zip(arguments.file.as_deref());
    let daemon = socket(arguments.socket.clone(), configured);
    let mut found = doctor::examine(planned, &daemon);
    if !arguments.peers.is_empty() {
        let of_plan =
            plan.as_ref().and_then(|plan| plan.control.as_ref()).map(|control| control.token.clone());
        let token = match arguments.token.clone().or(of_plan) {
            Some(path) => token(&path)?,
            None => return Err(BadInput("peers need a token: --token FILE".to_string()).into()),
        };
        let authorities = arguments.authorities.as_deref();
        let asking = Asking { urls: &urls(&arguments.peers)?, token: &token, authorities };
        match weir_control::ask::<Shown>(&daemon, &weir_control::Request::show("node")) {
            Ok(own) => found.extend(peers::findings(&own.node, &asking)),
            Err(why) => {
                let says = format!("peers are compared with the daemon of this node: {why:#}");
                found.push(doctor::Finding::new("peer", "this node", Level::Fault, says));
            }
        }
    }
    let ok = found.iter().all(|one| one.level < Level::Fault);
    if arguments.json {
        let checks: Vec<_> = found.iter().map(doctor::Finding::json).collect();
        output::line(serde_json::json!({ "ok": ok, "checks": checks }))?;
    } else {
        found.iter().try_for_each(output::line)?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
