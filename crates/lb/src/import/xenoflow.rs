//! XenoFlow's `backends.json`. It lists back ends; values that XenoFlow hard-codes or reads from elsewhere
//! are given as settings.

use crate::back_ends::xenoflow;
use crate::bits::{deal, instead, turn_count};
use crate::service::{BackEnd, By};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use weir_app::bits::spread;
use weir_app::foreign::{Foreign, Setting, SettingValues};
use weir_config::value::write_mac;
use weir_config::{Report, Span};
use weir_packet::read_mac;
use weir_program::builder::Number;

/// XenoFlow.
pub const XENOFLOW: Foreign = Foreign {
    name: "xenoflow",
    about: "XenoFlow: `{\"backends\": [{\"name\": ..., \"mac_address\": ...}]}`",
    file: "The file `backends.json`",
    settings: SETTINGS,
    recognise: Some(is_ours),
    is_partial: false,
    convert,
};

/// Values that the file does not contain. They are not used with weir's own configurations.
const SETTINGS: &[Setting] = &[
    Setting {
        name: "in",
        value: "INTERFACE",
        help: "backends.json: the interface on which packets arrive, or dpdk:DEVICE",
        default: Some("eth0"),
        several: false,
        check: |text| port(text, &[]).map(drop),
    },
    Setting {
        name: "out",
        value: "INTERFACE",
        help: "backends.json: the interface to the back ends, or dpdk:DEVICE; by default the one on which a \
               packet arrived",
        default: None,
        several: false,
        check: |text| port(text, &[]).map(drop),
    },
    Setting {
        name: "by",
        value: "BY",
        help: "backends.json: how packets are assigned to back ends: 5-tuple, source, or bits of the source \
               address, of which more are used if there are too few for the back ends and their weights",
        default: Some("src/0.0.0.1"),
        several: false,
        check: |text| text.parse::<By>().map(drop).map_err(|error| error.to_string()),
    },
    Setting {
        name: "vip",
        value: "VIP",
        help: "backends.json: only packets to this address; by default all IPv4 packets",
        default: None,
        several: false,
        check: |text| text.parse::<Ipv4Addr>().map(drop).map_err(|error| error.to_string()),
    },
    Setting {
        name: "source-mac",
        value: "SOURCE_MAC",
        help: "backends.json: source MAC address of forwarded packets; by default that of the port through \
               which they leave",
        default: None,
        several: false,
        check: |text| mac(text).map(drop),
    },
    Setting {
        name: "udp-only",
        value: "",
        help: "backends.json: only UDP, as in XenoFlow; other packets stay with the host",
        default: None,
        several: false,
        check: |_| Ok(()),
    },
    Setting {
        name: "service",
        value: "",
        help: "backends.json: write a service of the app lb, whose back ends can be checked, drained and \
               weighted at run time; bits of the source address become `by: source`, with the same shares",
        default: None,
        several: false,
        check: |_| Ok(()),
    },
];

/// The settings, parsed.
struct XenoFlowOptions {
    input: String,
    output: Option<String>,
    by: By,
    vip: Option<Ipv4Addr>,
    source_mac: Option<u128>,
    udp_only: bool,
    service: bool,
}

impl XenoFlowOptions {
    fn of(settings: &SettingValues) -> XenoFlowOptions {
        XenoFlowOptions {
            input: settings.get("in").unwrap_or("eth0").to_string(),
            output: settings.get("out").map(str::to_string),
            by: settings.get("by").and_then(|text| text.parse().ok()).unwrap_or(By::SourceBits(1)),
            vip: settings.get("vip").and_then(|text| text.parse().ok()),
            source_mac: settings.get("source-mac").and_then(|text| mac(text).ok()),
            udp_only: settings.get("udp-only").is_some(),
            service: settings.get("service").is_some(),
        }
    }
}

fn mac(text: &str) -> Result<u128, String> {
    let mac = read_mac(text).filter(|mac| mac[0] & 1 == 0);
    mac.map(Number::number).ok_or_else(|| {
        "expected a unicast MAC address such as \
        02:00:00:00:00:01"
            .to_string()
    })
}

/// Returns true for a XenoFlow file: a JSON object, or the same in YAML. weir's own files have no key
/// `backends`.
fn is_ours(text: &str) -> bool {
    let is_json = text.trim_start().starts_with('{') && text.contains("\"backends\"");
    let is_blank = |line: &&str| line.trim().is_empty() || line.starts_with('#') || *line == "---";
    is_json || text.lines().find(|line| !is_blank(line)).is_some_and(|line| line.starts_with("backends:"))
}

/// Converts XenoFlow's file to YAML.
///
/// # Errors
/// Returns a report of all errors in the file.
fn convert(file: &Path, text: &str, settings: &SettingValues) -> Result<(String, Report), Report> {
    let mut options = XenoFlowOptions::of(settings);
    let mut report = Report::new(&file.display().to_string(), text);
    let back_ends = xenoflow(text, &mut report);
    if report.errors() > 0 {
        return Err(report);
    }
    if options.service {
        if let By::SourceBits(_) = options.by {
            options.by = By::Source;
        }
        return Ok((head(file, &options) + &service(&back_ends, &options), report));
    }
    widen(&mut options, &back_ends, &mut report);
    let options = &options;
    let hashed = !matches!(options.by, By::SourceBits(_));
    let mut yaml = head(file, options);
    if hashed {
        yaml += &group(&back_ends, options);
    }
    yaml += &pipe(hashed, options);
    for (key, back_end) in keys(&back_ends, options) {
        let mac = write_mac(back_end.mac.number());
        let _ = writeln!(
            yaml,
            "      - {{ match: {{ {key} }}, set: {{ eth.dst: {mac} }}, counter: {} }}",
            back_end.name
        );
    }
    Ok((yaml, report))
}

/// Uses more bits of the source address, or all of them, if the mask has too few values for the back ends and
/// their weights: those without a value would silently get nothing.
fn widen(options: &mut XenoFlowOptions, back_ends: &[BackEnd], report: &mut Report) {
    let By::SourceBits(mask) = options.by else { return };
    let (values, turns) = (1_u64 << mask.count_ones(), turn_count(back_ends));
    if turns <= values {
        return;
    }
    let mask = Ipv4Addr::from_bits(mask);
    let instead = instead(mask, turns);
    let at = Span { line: 1, column: 1, ..Span::default() };
    let message = format!(
        "the bits of `src/{mask}` have {values} values, too few for the {turns} shares of the back ends: \
         `{instead}` is used instead"
    );
    report.warning_help(at, message, format!("--by {instead}"));
    options.by = instead.parse().unwrap_or(By::Source);
}

/// Returns a port in YAML, with these keys if it is an interface. A text such as `dpdk:DEVICE` names its
/// kind.
fn port(text: &str, xdp: &[String]) -> Result<String, String> {
    let (kind, name) = text.split_once(':').unwrap_or(("xdp", text));
    let kind = ["xdp", "dpdk"].into_iter().find(|known| *known == kind).ok_or_else(|| {
        format!("`{kind}` is no kind of port: write an interface, or `dpdk:` and a device with its devargs")
    })?;
    if name.is_empty() {
        return Err("the name is missing".to_string());
    }
    let is_plain = name.chars().all(|one| one.is_ascii_alphanumeric() || "._-".contains(one));
    let quoted = || format!("\"{}\"", name.escape_default());
    let name = if is_plain { name.to_string() } else { quoted() };
    let more = xdp.iter().filter(|_| kind == "xdp").map(|key| format!(", {key}"));
    Ok(format!("{kind}: {name}{}", more.collect::<String>()))
}

/// Returns a comment and the ports.
fn head(file: &Path, options: &XenoFlowOptions) -> String {
    let file = file.file_name().unwrap_or_default().to_string_lossy();
    let mut yaml = format!(
        "# XenoFlow's {file}, as weir understands it; docs/reference/configuration.md describes the keys.\n\
         ports:\n"
    );
    // The app lb takes what its services need, and is the root of their ports.
    let (root, takes) =
        if options.service { ("", Vec::new()) } else { (", root: balance", vec![take(options)]) };
    let mut add = |name: &str, port_name: &str, root: &str, takes: &[String]| {
        // The options have been checked.
        let port = port(port_name, takes).unwrap_or_default();
        let _ = writeln!(yaml, "  {name}: {{ {port}{root} }}");
    };
    add("in", &options.input, root, &takes);
    if let Some(output) = &options.output {
        add("out", output, "", &[]);
    }
    yaml
}

/// Returns which packets are taken from the host.
fn take(options: &XenoFlowOptions) -> String {
    let dst = options.vip.map_or_else(|| "0.0.0.0/0".to_string(), |vip| vip.to_string());
    if options.udp_only {
        let udp = format!("dst: {dst}, protocol: udp");
        format!("take: [{{ {udp} }}, {{ {udp}, fragments: true }}]")
    } else {
        format!("take: [{{ dst: {dst} }}]")
    }
}

/// Returns a service of the app lb. Without a VIP, it has all addresses.
fn service(back_ends: &[BackEnd], options: &XenoFlowOptions) -> String {
    let vip = options.vip.map_or_else(|| "0.0.0.0/0".to_string(), |vip| vip.to_string());
    let protocol = if options.udp_only { "udp" } else { "both" };
    let by = match options.by {
        By::FiveTuple => "5-tuple",
        By::SourcePort => "source + dport",
        By::Source | By::SourceBits(_) => "source",
    };
    let mut yaml = "apps:\n  - lb:\n      name: balance\n      port: in\n".to_string();
    if options.output.is_some() {
        yaml += "      out: out\n";
    }
    let _ =
        write!(yaml, "      service: {{ vip: {vip}, protocol: {protocol}, port: all }}\n      by: {by}\n");
    if let Some(mac) = options.source_mac {
        let _ = writeln!(yaml, "      source_mac: {}", write_mac(mac));
    }
    yaml += "      back_ends:\n";
    for back_end in back_ends {
        let BackEnd { name, weight, .. } = back_end;
        let mac = write_mac(back_end.mac.number());
        let _ = writeln!(yaml, "        - {{ name: {name}, mac: {mac}, weight: {weight} }}");
    }
    yaml
}

fn forward(options: &XenoFlowOptions) -> &'static str {
    if options.output.is_some() { "out" } else { "in_port" }
}

fn group(back_ends: &[BackEnd], options: &XenoFlowOptions) -> String {
    let target = |back_end: &BackEnd| match (&back_end.name, back_end.weight, forward(options)) {
        (name, 1, to) => format!("{name}: {to}"),
        (name, weight, to) => format!("{name}: {{ forward: {to}, weight: {weight} }}"),
    };
    let targets: Vec<String> = back_ends.iter().map(target).collect();
    format!("groups:\n  back_ends: {{ fill: maglev, targets: {{ {} }} }}\n", targets.join(", "))
}

fn pipe(hashed: bool, options: &XenoFlowOptions) -> String {
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
    if options.udp_only {
        yaml += "      ip.protocol: udp\n";
    }
    if let By::SourceBits(mask) = options.by {
        let _ = writeln!(yaml, "      ipv4.src: per_entry/{}", Ipv4Addr::from_bits(mask));
    }
    let source = match options.source_mac {
        Some(mac) => format!("set: {{ eth.src: {} }}", write_mac(mac)),
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

/// Returns what each entry matches, and its back end: every value of the masked bits in turn and by weight,
/// or the targets.
fn keys<'a>(back_ends: &'a [BackEnd], options: &XenoFlowOptions) -> Vec<(String, &'a BackEnd)> {
    match options.by {
        By::SourceBits(mask) => {
            let key = |value: u32| format!("ipv4.src: {}", Ipv4Addr::from_bits(spread(value, mask)));
            let entry = |(value, at): (u32, usize)| (key(value), &back_ends[at]);
            (0..).zip(deal(back_ends, mask)).map(entry).collect()
        }
        By::FiveTuple | By::Source | By::SourcePort => {
            back_ends.iter().map(|back_end| (format!("target: {}", back_end.name), back_end)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_yaml() {
        let mut report = Report::new("b.json", "");
        let text = r#"{"backends":[{"name":"fips2","mac_address":"A0:88:C2:B5:F4:5A"}]}"#;
        let back_ends = xenoflow(text, &mut report);
        assert_eq!(
            (back_ends[0].name.as_str(), back_ends[0].mac),
            ("fips2", [0xa0, 0x88, 0xc2, 0xb5, 0xf4, 0x5a])
        );
        for (text, expected) in [
            (
                r#"{"backends":[{"name":"a","mac_address":"A0:88:C2"}]}"#,
                "b.json:1:40: error: `A0:88:C2` is not a MAC address",
            ),
            (r#"{"backends":[]}"#, "b.json:1:13: error: there are no back ends"),
            (r#"{"backend":[]}"#, "b.json:1:2: error: there is no key `backend` here"),
            (
                r#"{"backends":[{"name":"a","mac_address":"02:00:00:00:00:01"},{"name":"a","mac_address":"02:00:00:00:00:01"}]}"#,
                "b.json:1:69: error: two back ends are called `a`",
            ),
        ] {
            let mut report = Report::new("b.json", text);
            let _ = xenoflow(text, &mut report);
            assert!(report.to_string().contains(expected), "{report}");
        }
    }
}
