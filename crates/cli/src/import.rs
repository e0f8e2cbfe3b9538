//! Configurations of other systems. XenoFlow's `backends.json` is converted to the YAML that `weir import`
//! prints, and read from that, so that import and run cannot differ. Configurations of IPVS, Katran and the
//! GLB director become services of the load balancer; settings without a counterpart are reported.

mod checked;
mod glb;
mod ipvs;
mod katran;
mod services;
#[cfg(test)]
mod tests;

pub use checked::{Checked, checked};

use crate::config::{self, Loaded, Nics, Report, Span};
use crate::kinds::KINDS;
use anyhow::{Context, Result};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use weir_app::edits::{self, Edits};
use weir_config::infile;
use weir_daemon::nics;
use weir_lb::{BackEnd, By};
use weir_program::builder::Number;

/// What XenoFlow hard-codes or takes from elsewhere; not used with weir's own configurations.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// backends.json: the interface on which packets arrive.
    #[arg(long = "in", value_name = "INTERFACE", default_value = "eth0")]
    pub input: String,
    /// backends.json: the interface to the back ends; by default the one on which a packet arrived.
    #[arg(long = "out", value_name = "INTERFACE")]
    pub output: Option<String>,
    /// backends.json: how packets are assigned to back ends: 5-tuple, source, or bits of the source address.
    #[arg(long, default_value = "src/0.0.0.1")]
    pub by: By,
    /// backends.json: only packets to this address; by default all IPv4 packets.
    #[arg(long)]
    pub vip: Option<Ipv4Addr>,
    /// backends.json: source MAC address of forwarded packets; by default that of the port through which they
    /// leave.
    #[arg(long, value_parser = mac)]
    pub source_mac: Option<u128>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            input: "eth0".to_string(),
            output: None,
            by: By::SourceBits(1),
            vip: None,
            source_mac: None,
        }
    }
}

fn mac(text: &str) -> Result<u128, String> {
    let mac = config::mac(text).filter(|mac| mac[0] & 1 == 0);
    mac.map(Number::number).ok_or_else(|| "a station's MAC address is wanted: 02:00:00:00:00:01".to_string())
}

/// Returns the text of a file, or a report of the first byte that is not UTF-8.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn text(file: &Path) -> Result<std::result::Result<String, Report>> {
    let bytes = infile::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        Report::not_utf8(&file.display().to_string(), error.as_bytes(), good)
    }))
}

/// Reads a configuration file: weir's own, or a `backends.json`.
///
/// # Errors
/// Fails if the file cannot be read. Errors in its contents are in the report.
pub fn load(file: &Path, options: &Options) -> Result<Loaded> {
    load_edited(file, options, &*edits::none(KINDS), &Nics::default())
}

/// The same, with changes made at run time, and with what is `known` about interfaces that do not exist under
/// these names.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn load_edited(file: &Path, options: &Options, edits: &dyn Edits, known: &Nics) -> Result<Loaded> {
    let text = match text(file)? {
        Ok(text) => text,
        Err(report) => return Ok(Loaded { plan: None, report, forgotten: Vec::new() }),
    };
    let nics = nics::present().or(known);
    if !is_xenoflow(&text) {
        let file = file.display().to_string();
        return Ok(config::read_edited(&file, Arc::new(text), &nics, edits));
    }
    Ok(match xenoflow(file, &text, options) {
        Ok(yaml) => config::read_knowing(&format!("{} (imported)", file.display()), &yaml, &nics),
        Err(report) => Loaded { plan: None, report, forgotten: Vec::new() },
    })
}

/// Returns true for a XenoFlow file: a JSON object, or the same in YAML. weir's own files have no key
/// `backends`.
fn is_xenoflow(text: &str) -> bool {
    let is_json = text.trim_start().starts_with('{') && text.contains("\"backends\"");
    let is_blank = |line: &&str| line.trim().is_empty() || line.starts_with('#') || *line == "---";
    is_json || text.lines().find(|line| !is_blank(line)).is_some_and(|line| line.starts_with("backends:"))
}

/// A system whose services become those of the load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// IPVS, as `ipvsadm -S -n` prints it.
    Ipvs,
    /// Katran, by the commands of its example client.
    Katran,
    /// The GLB director's forwarding tables.
    Glb,
}

/// What the other system's file does not contain.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ports<'a> {
    /// The interface on which packets arrive.
    pub interface: &'a str,
    /// Source addresses of tunnels, at most one of each IP version.
    pub sources: &'a [IpAddr],
}

/// Converts the services of another system to YAML; also returns warnings about settings without a
/// counterpart, which are also in the YAML as comments.
///
/// # Errors
/// Fails with everything that is wrong with the file.
pub fn services(
    system: System,
    file: &Path,
    text: &str,
    ports: &Ports<'_>,
) -> Result<(String, Report), Report> {
    let name = file.display().to_string();
    let (imported, whose) = match system {
        System::Ipvs => (ipvs::read(&name, text), "IPVS's"),
        System::Katran => (katran::read(&name, text), "Katran's"),
        System::Glb => (glb::read(&name, text), "The GLB director's"),
    };
    let of = format!("{whose} {}", file.file_name().unwrap_or_default().to_string_lossy());
    imported.yaml(&of, ports)
}

/// Converts XenoFlow's file to YAML.
///
/// # Errors
/// Fails with everything that is wrong with it.
pub fn xenoflow(file: &Path, text: &str, options: &Options) -> Result<String, Report> {
    let mut report = Report::new(&file.display().to_string(), text);
    let back_ends = weir_lb::xenoflow(text, &mut report);
    if let By::SourceBits(mask) = options.by
        && back_ends.len() as u64 > 1 << mask.count_ones()
    {
        let (values, mask) = (1_u32 << mask.count_ones(), Ipv4Addr::from_bits(mask));
        let instead = weir_lb::instead(mask, back_ends.len() as u64);
        let message = format!(
            "the bits of `src/{mask}` have {values} values, too few for {} back ends",
            back_ends.len()
        );
        let at = Span { line: 1, column: 1, ..Span::default() };
        report.error_help(at, message, format!("--by {instead}"));
    }
    if report.errors() > 0 {
        return Err(report);
    }
    let hashed = !matches!(options.by, By::SourceBits(_));
    let mut yaml = head(file, options);
    if hashed {
        yaml += &group(&back_ends, options);
    }
    yaml += &pipe(hashed, options);
    for (key, back_end) in keys(&back_ends, options) {
        let mac = config::write_mac(back_end.mac.number());
        let _ = writeln!(
            yaml,
            "      - {{ match: {{ {key} }}, set: {{ eth.dst: {mac} }}, counter: {} }}",
            back_end.name
        );
    }
    Ok(yaml)
}

fn head(file: &Path, options: &Options) -> String {
    let take = options.vip.map_or_else(|| "0.0.0.0/0".to_string(), |vip| vip.to_string());
    let file = file.file_name().unwrap_or_default().to_string_lossy();
    let mut yaml = format!(
        "# XenoFlow's {file}, as weir understands it: docs/configuration.md says what every key means.\n\
         ports:\n  in: {{ xdp: {}, root: balance, take: [{{ dst: {take} }}] }}\n",
        options.input
    );
    if let Some(output) = &options.output {
        let _ = writeln!(yaml, "  out: {{ xdp: {output} }}");
    }
    yaml
}

fn forward(options: &Options) -> &'static str {
    if options.output.is_some() { "out" } else { "in_port" }
}

fn group(back_ends: &[BackEnd], options: &Options) -> String {
    let target = |back_end: &BackEnd| format!("{}: {}", back_end.name, forward(options));
    let targets: Vec<String> = back_ends.iter().map(target).collect();
    format!("groups:\n  back_ends: {{ fill: maglev, targets: {{ {} }} }}\n", targets.join(", "))
}

fn pipe(hashed: bool, options: &Options) -> String {
    let mut yaml = format!("pipes:\n  balance:\n    type: {}\n", if hashed { "hash" } else { "basic" });
    if hashed {
        let hash = match options.by {
            By::Source => "[ipv4.src]",
            By::SourcePort => "[ipv4.src, l4.dport]",
            _ => "5-tuple",
        };
        let _ = writeln!(yaml, "    hash: {hash}\n    group: back_ends");
    }
    yaml +=
        "    match:\n      eth.dst: 00:00:00:00:00:00/01:00:00:00:00:00   # broadcasts are not forwarded\n";
    if let Some(vip) = options.vip {
        let _ = writeln!(yaml, "      ipv4.dst: {vip}");
    } else if hashed {
        yaml += "      ip.version: 4\n";
    }
    if let By::SourceBits(mask) = options.by {
        let _ = writeln!(yaml, "      ipv4.src: per_entry/{}", Ipv4Addr::from_bits(mask));
    }
    let source = match options.source_mac {
        Some(mac) => format!("set: {{ eth.src: {} }}", config::write_mac(mac)),
        // If the source were the address that the packet was sent to, a switch connected to both ports would
        // learn it on the wrong port.
        None if options.output.is_some() => "set: { eth.src: { mac_of: out } }".to_string(),
        None => "copy: { from: eth.dst, to: eth.src }".to_string(),
    };
    let _ = write!(
        yaml,
        "    monitor: {{ counter: per_entry }}\n    action:\n      - {source}\n      - set: {{ eth.dst: \
            per_entry }}\n    \
         forward: {}\n    miss: drop\n    entries:\n",
        forward(options)
    );
    yaml
}

/// Returns what each entry matches, and its back end: every value of the masked bits in turn, or the targets.
fn keys<'a>(back_ends: &'a [BackEnd], options: &Options) -> Vec<(String, &'a BackEnd)> {
    match options.by {
        By::SourceBits(mask) => {
            let address = |value: u32| {
                format!("ipv4.src: {}", Ipv4Addr::from_bits(weir_app::bits::spread(value, mask)))
            };
            (0..1 << mask.count_ones()).map(address).zip(back_ends.iter().cycle()).collect()
        }
        By::FiveTuple | By::Source | By::SourcePort => {
            back_ends.iter().map(|back_end| (format!("target: {}", back_end.name), back_end)).collect()
        }
    }
}
