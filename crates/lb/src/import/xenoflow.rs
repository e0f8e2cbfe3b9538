//! XenoFlow's `backends.json`. It lists back ends; values that XenoFlow hard-codes or reads from elsewhere
//! are given as settings.

use crate::back_ends::xenoflow;
use crate::bits::instead;
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
        help: "backends.json: the interface on which packets arrive",
        default: Some("eth0"),
        several: false,
        check: |_| Ok(()),
    },
    Setting {
        name: "out",
        value: "INTERFACE",
        help: "backends.json: the interface to the back ends; by default the one on which a packet arrived",
        default: None,
        several: false,
        check: |_| Ok(()),
    },
    Setting {
        name: "by",
        value: "BY",
        help: "backends.json: how packets are assigned to back ends: 5-tuple, source, or bits of the source \
               address",
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
];

/// The settings, parsed.
struct XenoFlowOptions {
    input: String,
    output: Option<String>,
    by: By,
    vip: Option<Ipv4Addr>,
    source_mac: Option<u128>,
}

impl XenoFlowOptions {
    fn of(settings: &SettingValues) -> XenoFlowOptions {
        XenoFlowOptions {
            input: settings.get("in").unwrap_or("eth0").to_string(),
            output: settings.get("out").map(str::to_string),
            by: settings.get("by").and_then(|text| text.parse().ok()).unwrap_or(By::SourceBits(1)),
            vip: settings.get("vip").and_then(|text| text.parse().ok()),
            source_mac: settings.get("source-mac").and_then(|text| mac(text).ok()),
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
    let options = &XenoFlowOptions::of(settings);
    let mut report = Report::new(&file.display().to_string(), text);
    let back_ends = xenoflow(text, &mut report);
    if let By::SourceBits(mask) = options.by
        && back_ends.len() as u64 > 1 << mask.count_ones()
    {
        let (values, mask) = (1_u32 << mask.count_ones(), Ipv4Addr::from_bits(mask));
        let instead = instead(mask, back_ends.len() as u64);
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
        let mac = write_mac(back_end.mac.number());
        let _ = writeln!(
            yaml,
            "      - {{ match: {{ {key} }}, set: {{ eth.dst: {mac} }}, counter: {} }}",
            back_end.name
        );
    }
    Ok((yaml, report))
}

fn head(file: &Path, options: &XenoFlowOptions) -> String {
    let take = options.vip.map_or_else(|| "0.0.0.0/0".to_string(), |vip| vip.to_string());
    let file = file.file_name().unwrap_or_default().to_string_lossy();
    let mut yaml = format!(
        "# XenoFlow's {file}, as weir understands it; docs/reference/configuration.md describes the keys.\n\
         ports:\n  in: {{ xdp: {}, root: balance, take: [{{ dst: {take} }}] }}\n",
        options.input
    );
    if let Some(output) = &options.output {
        let _ = writeln!(yaml, "  out: {{ xdp: {output} }}");
    }
    yaml
}

fn forward(options: &XenoFlowOptions) -> &'static str {
    if options.output.is_some() { "out" } else { "in_port" }
}

fn group(back_ends: &[BackEnd], options: &XenoFlowOptions) -> String {
    let target = |back_end: &BackEnd| format!("{}: {}", back_end.name, forward(options));
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

/// Returns what each entry matches, and its back end: every value of the masked bits in turn, or the targets.
fn keys<'a>(back_ends: &'a [BackEnd], options: &XenoFlowOptions) -> Vec<(String, &'a BackEnd)> {
    match options.by {
        By::SourceBits(mask) => {
            let address = |value: u32| format!("ipv4.src: {}", Ipv4Addr::from_bits(spread(value, mask)));
            (0..1 << mask.count_ones()).map(address).zip(back_ends.iter().cycle()).collect()
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
