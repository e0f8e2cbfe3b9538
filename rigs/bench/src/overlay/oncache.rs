//! Mode `oncache` on a node: a process that holds its programs.

use std::fs;
use std::net::Ipv4Addr;
use std::thread;

use anyhow::{Context, Result};
use weir_lab::screen::line;
use weir_papers::Oncache;

/// Where to attach the programs.
#[derive(clap::Args)]
pub struct OnCacheOptions {
    #[arg(long)]
    uplink: String,
    /// The interface of the known pod.
    #[arg(long)]
    pod: String,
    /// The pod's address.
    #[arg(long)]
    address: Ipv4Addr,
}

/// Keeps the programs attached until the process is killed.
pub fn run(options: &OnCacheOptions) -> Result<()> {
    let mut cache = Oncache::load()?;
    cache.attach_uplink(&options.uplink)?;
    cache.attach_pod(&options.pod)?;
    let file = format!("/sys/class/net/{}/ifindex", options.pod);
    let index = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    cache.set_pod(options.address, index.trim().parse()?)?;
    line("ready")?;
    loop {
        thread::park();
    }
}
