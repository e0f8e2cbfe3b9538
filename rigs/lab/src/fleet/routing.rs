//! Route daemons: BIRD on nodes, and BIRD or FRR at the router.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::network::{Family, FleetHost, FleetNetwork, ROUTER};
use crate::topology::INTERFACE;
use weir_bed::{Namespace, Run, Started};

/// The autonomous systems of the router and of the nodes.
const ROUTER_AS: u32 = 65_000;
const NODES_AS: u32 = 65_001;
/// BIRD's configuration on nodes, as packages install it. It includes what differs between nodes.
const NODE: &str = include_str!("../../../../packaging/bird/weir.conf");
/// Where Debian has the daemons of FRR.
const FRR: &str = "/usr/lib/frr";
/// How long a daemon may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// The route daemon of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RouteDaemon {
    /// BIRD.
    Bird,
    /// FRR.
    Frr,
}

impl RouteDaemon {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            RouteDaemon::Bird => "BIRD",
            RouteDaemon::Frr => "FRR",
        }
    }

    /// The kernel's name for the protocol of its routes.
    pub fn protocol(self) -> &'static str {
        match self {
            RouteDaemon::Bird => "bird",
            RouteDaemon::Frr => "bgp",
        }
    }

    /// The process whose log says why sessions end.
    fn log(self) -> &'static str {
        match self {
            RouteDaemon::Bird => "bird-router",
            RouteDaemon::Frr => "bgpd",
        }
    }

    /// Returns how much the router has said so far.
    pub fn said(self, run: &Run) -> usize {
        run.words(self.log()).len()
    }

    /// Returns why the router ended its session with a node after `then` bytes of its log. `None` if it did
    /// not: the node itself withdrew its routes.
    pub fn why_left(self, run: &Run, node: &FleetHost, then: usize) -> Option<String> {
        let text = run.words(self.log());
        let of_node = match self {
            RouteDaemon::Bird => format!(" {}: ", node.name),
            RouteDaemon::Frr => format!(" {}", node.v4),
        };
        let mut lines = text.get(then..).unwrap_or_default().lines().filter(|line| line.contains(&of_node));
        let ended = |line: &&str| {
            ["BFD", "Received", "Error", "Down", "closed"].iter().any(|word| line.contains(word))
        };
        let (_, what) = lines.find(ended)?.split_once(&of_node)?;
        Some(what.trim().to_owned())
    }

    /// Returns what is not installed.
    pub fn missing(self) -> Vec<&'static str> {
        match self {
            RouteDaemon::Frr if !Path::new(FRR).join("bgpd").exists() => vec!["frr"],
            RouteDaemon::Bird | RouteDaemon::Frr => Vec::new(),
        }
    }

    /// Starts it at the router, with a session to each node.
    pub fn start_at_router(self, run: &mut Run, network: &FleetNetwork) -> Result<()> {
        match self {
            RouteDaemon::Bird => {
                let text = bird_at_router(network);
                start_bird(run, "router", &network.router, &[("bird.conf", &text)]).map(drop)
            }
            RouteDaemon::Frr => start_frr(run, network),
        }
    }
}

/// Starts BIRD on a node, configured as packages do.
pub fn start_at_node(run: &mut Run, host: &FleetHost) -> Result<Started> {
    let address = &host.v4;
    let local = format!(
        "log stderr all;\nrouter id {address};\nprotocol bgp upstream from weir_router {{\n  \
         local {address} as {NODES_AS};\n  neighbor {ROUTER} as {ROUTER_AS};\n  connect delay time 1;\n  \
         connect retry time 1;\n  error wait time 1, 2;\n}}\n"
    );
    start_bird(run, host.name, &host.namespace, &[("weir.conf", NODE), ("weir-local.conf", &local)])
}

/// Starts a BIRD in a namespace, and waits until it has read its configuration, which is the first of these
/// files.
fn start_bird(run: &mut Run, name: &str, host: &Namespace, files: &[(&str, &str)]) -> Result<Started> {
    let name = format!("bird-{name}");
    let folder = run.folder().join(&name);
    fs::create_dir_all(&folder)?;
    for (file, text) in files {
        fs::write(folder.join(file), text)?;
    }
    let file = folder.join(files.first().map_or("", |(file, _)| *file));
    let mut command = host.preferred("bird");
    command.arg("-f").arg("-c").arg(&file).arg("-s").arg(folder.join("ctl")).stdout(Stdio::null());
    let process = run.start(&name, &mut command)?;
    let deadline = Instant::now() + PATIENCE;
    // It ends if the configuration has errors.
    while !run.words(&name).contains("Started") {
        if let Some(status) = run.child(process).try_wait()? {
            bail!("{name} has ended ({status}): {}", run.last_words(&name));
        }
        if Instant::now() > deadline {
            bail!("{name} does not start: {}", run.last_words(&name));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(process)
}

/// Returns the configuration of the router's BIRD: a BGP session with BFD to each node, and routes with
/// several next hops. The log says why a session ends.
fn bird_at_router(network: &FleetNetwork) -> String {
    let channel = match network.family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    let mut text = format!(
        "router id {ROUTER};\nlog stderr all;\nprotocol device {{}}\n\
         protocol bfd {{ interface \"{INTERFACE}\" {{ interval {BFD_MS} ms; multiplier {BFD_TIMES}; }}; }}\n\
         protocol kernel {{\n  merge paths on;\n  \
         {channel} {{ import none; export where source = RTS_BGP; }};\n}}\n"
    );
    for FleetHost { name, v4: address, .. } in &network.nodes {
        let _ = writeln!(
            text,
            "protocol bgp {name} {{\n  local {ROUTER} as {ROUTER_AS};\n  \
             neighbor {address} as {NODES_AS};\n  bfd on;\n  connect delay time 1;\n  \
             connect retry time 1;\n  error wait time 1, 2;\n  debug {{ states, events }};\n  \
             {channel} {{ import all; export none; }};\n}}"
        );
    }
    text
}

/// Starts the daemons of FRR at the router. They become its user, who must be able to create their sockets.
fn start_frr(run: &mut Run, network: &FleetNetwork) -> Result<()> {
    let folder = run.folder().join("frr");
    fs::create_dir_all(&folder)?;
    let files = [("zebra", String::new()), ("bfdd", frr_bfd()), ("bgpd", frr_bgp(network))];
    for (daemon, text) in &files {
        fs::write(folder.join(format!("{daemon}.conf")), text)?;
    }
    let status = Command::new("chown").args(["-R", "frr:frr"]).arg(&folder).status().context("chown")?;
    ensure!(status.success(), "chown failed: is frr installed?");
    for (daemon, _) in &files {
        let mut command = network.router.preferred(&format!("{FRR}/{daemon}"));
        command.arg("-f").arg(folder.join(format!("{daemon}.conf")));
        command.arg("-i").arg(folder.join(format!("{daemon}.pid")));
        command.arg("-z").arg(folder.join("zserv.api"));
        command.arg("--vty_socket").arg(&folder).args(["--log", "stdout"]).stdout(Stdio::null());
        if *daemon == "bfdd" {
            command.arg("--bfdctl").arg(folder.join("bfdd.sock"));
        }
        let process = run.start(daemon, &mut command)?;
        let deadline = Instant::now() + PATIENCE;
        let socket = folder.join(format!("{daemon}.vty"));
        while !socket.exists() {
            if let Some(status) = run.child(process).try_wait()? {
                bail!("{daemon} has ended ({status}): {}", run.last_words(daemon));
            }
            if Instant::now() > deadline {
                bail!("{daemon} does not start: {}", run.last_words(daemon));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

/// Milliseconds between BFD's packets in both directions, because the slower end decides, and how many a node
/// must miss to give up the router. The router gives up a node after three, as nodes' configuration says.
/// These times are longer than on routers, because here all nodes and the router share the processors of one
/// machine.
const BFD_MS: u32 = 300;
const BFD_TIMES: u32 = 5;

/// Returns the configuration of FRR's bfdd.
fn frr_bfd() -> String {
    format!(
        "bfd\n profile lab\n  transmit-interval {BFD_MS}\n  receive-interval {BFD_MS}\n  \
         detect-multiplier {BFD_TIMES}\n"
    )
}

/// Returns the configuration of FRR's bgpd.
fn frr_bgp(network: &FleetNetwork) -> String {
    let mut text = format!(
        "router bgp {ROUTER_AS}\n bgp router-id {ROUTER}\n no bgp ebgp-requires-policy\n \
         bgp bestpath as-path multipath-relax\n bgp log-neighbor-changes\n"
    );
    for node in &network.nodes {
        let address = &node.v4;
        let _ = writeln!(
            text,
            " neighbor {address} remote-as {NODES_AS}\n neighbor {address} bfd profile lab\n \
             neighbor {address} timers connect 1"
        );
    }
    let version = network.family.number();
    let _ = writeln!(text, " address-family ipv{version} unicast\n  maximum-paths 16");
    if network.family == Family::V6 {
        for node in &network.nodes {
            let _ = writeln!(text, "  neighbor {} activate", node.v4);
        }
    }
    text + " exit-address-family\n"
}
