//! `weir decap INTERFACE --from PREFIX --to ADDRESS`: decapsulates tunnels on a back end, for as long as it
//! runs.
//!
//! An eBPF program decapsulates (`bpf/src/decap.bpf.c`); the command attaches the program, waits for a
//! signal, and prints the program's counters. The program is removed with the process, however the process
//! ends.

use super::{BadInput, bad_input};
use crate::output;
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use serde_json::{Map, Value, json};
use std::net::IpAddr;
use std::process::ExitCode;
use weir_app::privileges;
use weir_bpf::{DECAP_COUNTS, DecapSettings, TcDecap, Tunnel};
use weir_daemon::Signals;

/// How often to check whether the interface still exists.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The maximum number of prefixes, and of addresses.
const ADDRESSES_MAX: usize = 1024;

/// The largest VNI.
const VNI_MAX: i64 = 0xff_ffff;

/// Arguments of `weir decap`.
#[derive(clap::Args)]
pub struct DecapArguments {
    /// The interface on which tunnelled frames arrive.
    interface: String,
    /// A prefix of trusted outer sources: those of load balancers. May be repeated.
    #[arg(long, required = true, value_name = "PREFIX")]
    from: Vec<String>,
    /// An outer destination: an address of this host. May be repeated.
    #[arg(long, required = true, value_name = "ADDRESS")]
    to: Vec<IpAddr>,
    /// The tunnels to decapsulate, besides VXLAN.
    #[arg(long, value_delimiter = ',', default_value = "ipip,gue,gre", value_name = "LIST")]
    tunnels: Vec<TunnelKind>,
    /// Also decapsulate VXLAN with this VNI.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=VNI_MAX))]
    vni: Option<u32>,
    /// The UDP port of GUE.
    #[arg(long, default_value_t = 6080)]
    gue_port: u16,
    /// The UDP port of VXLAN.
    #[arg(long, default_value_t = 4789)]
    vxlan_port: u16,
    /// Forward TCP segments in GUE that belong to no connection here to the host named in their header, like
    /// the GLB director's back ends.
    #[arg(long)]
    second_chance: bool,
    /// Print JSON objects: `attached`, and at the end `counts`.
    #[arg(long)]
    json: bool,
}

/// A kind of tunnel without an identifier.
#[derive(Clone, Copy, clap::ValueEnum)]
enum TunnelKind {
    Ipip,
    Gue,
    Gre,
}

/// Runs the command.
///
/// # Errors
/// Fails if the kernel refuses the program or the interface, or if the interface disappears.
pub fn run(arguments: &DecapArguments) -> Result<ExitCode> {
    let settings = match settings(arguments) {
        Ok(settings) => settings,
        Err(error) => {
            output::complain(format_args!("weir: {error}\n"));
            return Ok(bad_input());
        }
    };
    let name = &arguments.interface;
    let signals = Signals::take()?;
    let ioctl = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let index = name_to_index(&ioctl, name).with_context(|| format!("there is no interface {name}"))?;
    let mut decap = TcDecap::load(&settings).context("the kernel refuses the program")?;
    decap.attach(name).with_context(|| format!("cannot attach the program to {name}"))?;
    privileges::keep(privileges::DECAP).context("giving up privileges")?;
    say(arguments, || format!("weir removes tunnel headers at {name}"), || json!({ "attached": name }))?;
    while !signals.stop() {
        let mut waits = [PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN)];
        let _ = poll(&mut waits, Some(&LOOK));
        signals.take_reload();
        if name_to_index(&ioctl, name) != Ok(index) {
            bail!("the interface {name} is gone");
        }
    }
    let counts: Vec<(&str, u64)> = DECAP_COUNTS.iter().copied().zip(decap.counts()).collect();
    let text = || {
        let some: Vec<String> = counts
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(what, count)| format!("{what} {count}"))
            .collect();
        if some.is_empty() { "no tunnel frame arrived".to_string() } else { some.join(", ") }
    };
    let all: Map<String, Value> =
        counts.iter().map(|(what, count)| ((*what).to_string(), json!(count))).collect();
    say(arguments, text, || json!({ "counts": all }))?;
    Ok(ExitCode::SUCCESS)
}

fn say(arguments: &DecapArguments, text: impl Fn() -> String, json: impl Fn() -> Value) -> Result<()> {
    if arguments.json { output::line(json()) } else { output::line(text()) }
}

fn settings(arguments: &DecapArguments) -> Result<DecapSettings, BadInput> {
    let DecapArguments { from, to, .. } = arguments;
    if from.len() > ADDRESSES_MAX || to.len() > ADDRESSES_MAX {
        return Err(BadInput(format!(
            "at most {ADDRESSES_MAX} prefixes and {ADDRESSES_MAX} addresses are possible"
        )));
    }
    let ports = [arguments.gue_port, arguments.vxlan_port];
    if ports.contains(&0) || ports[0] == ports[1] {
        return Err(BadInput("the ports of GUE and VXLAN must be different, from 1 to 65535".to_string()));
    }
    if let Some(bad) = to.iter().find(|address| address.is_unspecified() || address.is_multicast()) {
        return Err(BadInput(format!("--to {bad} is not a host address")));
    }
    let tunnel = |kind: &TunnelKind| match kind {
        TunnelKind::Ipip => Tunnel::Ipip,
        TunnelKind::Gue => Tunnel::Gue,
        TunnelKind::Gre => Tunnel::Gre,
    };
    let tunnels = arguments.tunnels.iter().map(tunnel).chain(arguments.vni.map(Tunnel::Vxlan)).collect();
    let senders = from.iter().map(|text| prefix(text)).collect::<Result<_, _>>()?;
    let [gue_port, vxlan_port] = ports;
    let (locals, second_chance) = (to.clone(), arguments.second_chance);
    Ok(DecapSettings { tunnels, gue_port, vxlan_port, senders, locals, second_chance })
}

/// Parses an address with an optional prefix length after a slash, by default the full length.
fn prefix(text: &str) -> Result<(IpAddr, u8), BadInput> {
    let (address, length) = text.split_once('/').map_or((text, None), |(one, two)| (one, Some(two)));
    let refused = || BadInput(format!("--from {text} is not an address or a prefix such as 10.0.0.0/8"));
    let address: IpAddr = address.parse().map_err(|_| refused())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = length.map_or(Ok(most), |length| length.parse().map_err(|_| refused()))?;
    if length > most {
        return Err(refused());
    }
    Ok((address, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read() {
        let read = |text: &str| prefix(text).ok().map(|(address, length)| (address.to_string(), length));
        assert_eq!(read("10.0.0.0/8"), Some(("10.0.0.0".to_string(), 8)));
        assert_eq!(read("10.0.0.1"), Some(("10.0.0.1".to_string(), 32)));
        assert_eq!(read("2001:db8::/64"), Some(("2001:db8::".to_string(), 64)));
        for bad in ["", "10.0.0.0/33", "10.0.0/8", "2001:db8::/129", "10.0.0.0/", "10.0.0.0/-1", "x/8"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
