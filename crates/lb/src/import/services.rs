//! Services in the terms of other systems, and their conversion to weir's YAML.

use super::Ports;

use std::fmt::Write;
use std::net::IpAddr;
use weir_config::{Report, Span};

/// A service of another system.
#[derive(Debug, Default)]
pub struct Service {
    pub name: String,
    /// VIP (an address or a prefix), protocol and port, in weir's notation.
    pub addresses: Vec<(String, &'static str, String)>,
    pub scheduler: &'static str,
    /// Further keys of the service, one per line.
    pub keys: Vec<String>,
    pub back_ends: Vec<BackEnd>,
    /// Settings that cannot be converted, one sentence each.
    pub notes: Vec<String>,
}

/// A back end of another system.
#[derive(Clone, Debug)]
pub struct BackEnd {
    pub ip: IpAddr,
    /// Its own port, if that differs from the service's.
    pub port: Option<u16>,
    pub mode: &'static str,
    pub weight: u64,
    /// Further keys, such as `state: draining`.
    pub keys: Vec<String>,
}

/// Everything that was imported.
#[derive(Debug)]
pub struct Imported {
    pub services: Vec<Service>,
    /// Settings that belong to no service and cannot be converted, one sentence each.
    pub notes: Vec<String>,
    /// A line before the ports, such as the UDP ports of tunnels.
    pub head: Option<&'static str>,
    pub report: Report,
}

impl Imported {
    pub fn new(file: &str, text: &str) -> Imported {
        Imported { services: Vec::new(), notes: Vec::new(), head: None, report: Report::new(file, text) }
    }

    /// Warns of a setting at `span` that cannot be converted, and records it at a service if it belongs to
    /// one.
    pub fn note(&mut self, service: Option<usize>, span: Span, message: String) {
        let note = format!("line {}: {message}", span.line);
        let notes = service.and_then(|at| self.services.get_mut(at)).map(|service| &mut service.notes);
        notes.unwrap_or(&mut self.notes).push(note);
        self.report.warning(span, message);
    }

    /// Writes the services as a configuration whose packets arrive on an interface. Fails if the file has
    /// errors, and returns them. Warnings about omissions are in the report, too.
    pub fn yaml(mut self, of: &str, ports: &Ports) -> Result<(String, Report), Report> {
        if self.report.errors() == 0 && self.services.is_empty() {
            self.report.error(Span { line: 1, column: 1, ..Span::default() }, "there is no service here");
        }
        if self.report.errors() > 0 {
            return Err(self.report);
        }
        let mut out =
            format!("# {of}, as weir understands it; docs/reference/configuration.md describes the keys.\n");
        notes(&mut out, "", &self.notes);
        self.head.into_iter().for_each(|line| _ = writeln!(out, "{line}"));
        let _ = write!(out, "ports:\n  in: {{ xdp: {} }}\napps:\n", ports.interface);
        self.services.iter().for_each(|service| service.write(&mut out, &ports.sources));
        Ok((out, self.report))
    }
}

impl Service {
    fn write(&self, out: &mut String, sources: &[IpAddr]) {
        notes(out, "  ", &self.notes);
        let _ = write!(out, "  - lb:\n      name: {}\n      port: in\n", self.name);
        let address = |(vip, protocol, port): &(String, &str, String)| {
            let vip = if vip.contains(':') { format!("\"{vip}\"") } else { vip.clone() };
            format!("{{ vip: {vip}, protocol: {protocol}, port: {port} }}")
        };
        match &self.addresses[..] {
            [one] => _ = writeln!(out, "      service: {}", address(one)),
            several => {
                out.push_str("      service:\n");
                several.iter().for_each(|one| _ = writeln!(out, "        - {}", address(one)));
            }
        }
        let _ = writeln!(out, "      scheduler: {}", self.scheduler);
        let is_tunnel = |back_end: &BackEnd| !["l2", "nat", "full_nat"].contains(&back_end.mode);
        if !sources.is_empty() && self.back_ends.iter().any(is_tunnel) {
            let sources: Vec<String> = sources.iter().map(|source| format!("\"{source}\"")).collect();
            let _ = writeln!(out, "      source: [{}]", sources.join(", "));
        }
        self.keys.iter().for_each(|key| _ = writeln!(out, "      {key}"));
        out.push_str(if self.back_ends.is_empty() { "      back_ends: []\n" } else { "      back_ends:\n" });
        for back_end in &self.back_ends {
            let BackEnd { ip, mode, weight, .. } = back_end;
            let ip = if ip.is_ipv6() { format!("\"{ip}\"") } else { ip.to_string() };
            let mut keys = vec![format!("name: {}", self.name_of(back_end)), format!("ip: {ip}")];
            keys.push(format!("mode: {mode}"));
            keys.extend(back_end.port.map(|port| format!("port: {port}")));
            keys.push(format!("weight: {weight}"));
            keys.extend(back_end.keys.iter().cloned());
            let _ = writeln!(out, "        - {{ {} }}", keys.join(", "));
        }
    }

    /// Returns a back end's address as a name; with its port if the address occurs more than once.
    fn name_of(&self, back_end: &BackEnd) -> String {
        let name = name_of_ip(&back_end.ip.to_string());
        let same = self.back_ends.iter().filter(|other| other.ip == back_end.ip).count();
        match back_end.port.filter(|_| same > 1) {
            Some(port) => format!("{name}-{port}"),
            None => name,
        }
    }
}

/// Converts an address or prefix to a name, which consists of letters, digits, `_`, `-` and `.` and begins
/// with a letter or digit.
pub fn name_of_ip(ip: &str) -> String {
    let name = ip.replace([':', '/'], "-");
    if name.starts_with('-') { format!("0{name}") } else { name }
}

fn notes(out: &mut String, indent: &str, notes: &[String]) {
    notes.iter().for_each(|note| _ = writeln!(out, "{indent}# {}", note.replace('\n', " ")));
}

/// A word of a line, and its place.
pub type Word<'a> = (&'a str, Span);

/// Splits a line into words, like a shell if there are no quotes.
pub fn words(line: &str, number: usize) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut rest = line;
    while let Some(start) = rest.find(|one: char| !one.is_whitespace()) {
        let from = line.len() - rest.len() + start;
        let word = rest[start..].split_whitespace().next().unwrap_or_default();
        rest = &rest[start + word.len()..];
        let column = line[..from].chars().count() as u32 + 1;
        let span = Span { line: number as u32, column, length: word.chars().count() as u32, file: 0 };
        words.push((word.trim_matches(['"', '\'']), span));
    }
    words
}

/// Parses `ADDRESS:PORT` or `[ADDRESS]:PORT`. The port may be missing.
pub fn endpoint((text, span): Word<'_>, report: &mut Report) -> Option<(IpAddr, Option<u16>)> {
    let (address, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((address, port)) => (address, port.strip_prefix(':')),
        None => match text.rsplit_once(':').filter(|(address, _)| !address.contains(':')) {
            Some((address, port)) => (address, Some(port)),
            None => (text, None),
        },
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        report.error(span, format!("`{address}` is not an IP address"));
        return None;
    };
    match port.map(str::parse::<u16>) {
        None => Some((address, None)),
        Some(Ok(port)) => Some((address, Some(port))),
        Some(Err(_)) => {
            let help = "expected numbers, not service names: `ipvsadm -S -n` prints them";
            report.error_help(span, format!("`{}` is not a port", port.unwrap_or_default()), help);
            None
        }
    }
}
