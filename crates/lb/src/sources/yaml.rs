//! Reads items with the key `from`, which are templates for what a source names.

use super::{DNS, DnsQuery, FILE, RecordKind, ServiceSource, SourceKind};
use crate::back_ends::BACK_END;
use crate::edits::tree::json;
use serde_json::{Map, Value};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use weir_config::raw::{Kind, Node};
use weir_config::section::{NAME_MAX, Section, duration, list, name, parsed, text, words};
use weir_config::{Key, Report, Shape, Span};

/// The key of an item that is a template.
const KEY: &str = "from";

pub(crate) const FROM: &[Key] = weir_config::keys! {
    "kubernetes": Shape::Text,
        "a file with Service and EndpointSlice objects: each port of a service becomes a service here";
    "dns": Shape::Text, "the name whose records are the back ends";
    "records": Shape::Words(|| words(&RECORDS)),
        "which records: A and AAAA, as the VIPs need them, or SRV" or "addresses";
    "servers": Shape::List(&Shape::Text),
        "the DNS servers to ask, `ADDRESS` or `ADDRESS:PORT`; by default those of the host";
    "min_ttl": Shape::Time, "the shortest time until the servers are asked again" or "5 s";
    "max_ttl": Shape::Time, "the longest time until the servers are asked again" or "5 m";
    "timeout": Shape::Time, "how long all answers to a question may take" or "5 s";
    "empty_after": Shape::Number(0, 1000),
        "after how many consecutive answers without records no back end is left; 0 means never" or "0";
    "each": Shape::Overrides(BACK_END), "keys of every back end, such as its `mode`";
};
const RECORDS: [(&str, RecordKind); 2] = [("addresses", RecordKind::Addresses), ("srv", RecordKind::Srv)];

/// Keys of a back end whose values come from the source.
const OF_BACK_END: [&str; 6] = ["name", "ip", "address", "port", "weight", "state"];

/// The maximum length of a DNS name, in characters.
const DNS_NAME_MAX: usize = 254;

/// Returns whether an item is a template.
pub(crate) fn is_template(item: &Node) -> bool {
    let Kind::Map(map) = &item.kind else { return false };
    map.iter().any(|(key, _)| key.is(KEY))
}

/// Reads a template. Also returns a service that it may become, for the checks of services. `None` if it has
/// errors.
pub(crate) fn read(item: &Node, report: &mut Report) -> Option<(ServiceSource, Node)> {
    let before = report.errors();
    let Kind::Map(pairs) = &item.kind else { return None };
    let get = |word: &str| pairs.iter().find(|(key, _)| key.is(word)).map(|(_, value)| value);
    let from = get(KEY)?;
    let section = Section::read(from, FROM, report);
    let called = match get("name") {
        Some(node) => text(node, "a name", report).and_then(|text| name(text, node.span, report)),
        None => {
            report.error(item.span, "`name` is missing: the name of the source");
            None
        }
    };
    let kind = match (section.get("kubernetes"), section.get("dns")) {
        (Some(node), None) => file(node, &section, report).map(SourceKind::File),
        (None, Some(node)) => query(node, &section, report).map(SourceKind::Dns),
        _ => {
            report.error_help(from.span, "a source is one of `kubernetes` and `dns`", "write one of them");
            None
        }
    };
    let is_file = matches!(kind, Some(SourceKind::File(_)));
    let given: &[&str] = if is_file { &["service", "back_ends"] } else { &["back_ends"] };
    for word in given {
        if let Some(node) = get(word) {
            report.error_help(node.span, format!("the source says `{word}`"), format!("omit `{word}`"));
        }
    }
    let each = section.get("each");
    if let Some(Node { kind: Kind::Map(each), .. }) = each {
        for (key, _) in each.iter().filter(|(key, _)| OF_BACK_END.iter().any(|word| key.is(word))) {
            report.error_help(key.span, "the source says this of each back end", "omit it");
        }
    }
    let prefix = if is_file { FILE } else { DNS };
    if called.is_some_and(|called| called.len() + prefix.len() > NAME_MAX) {
        let message = format!("the name of this source has at most {} characters", NAME_MAX - prefix.len());
        report.error(item.span, message);
    }
    let (called, kind) = (called?.to_string(), kind?);
    if report.errors() > before {
        return None;
    }
    let object = |node: Option<&Node>| match node.map(json) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let mut template = object(Some(item));
    template.shift_remove(KEY);
    if is_file {
        template.shift_remove("name");
    }
    let source = ServiceSource { name: called, kind, template, each: object(each) };
    let sample = sample(item, each, is_file);
    Some((source, sample))
}

fn file(node: &Node, section: &Section<'_>, report: &mut Report) -> Option<std::path::PathBuf> {
    for key in FROM.iter().filter(|key| !["kubernetes", "each"].contains(&key.word)) {
        if let Some(node) = section.get(key.word) {
            report.error_help(node.span, format!("`{}` is of a source with `dns`", key.word), "omit it");
        }
    }
    let folder = Path::new(report.file()).parent().unwrap_or(Path::new("")).to_path_buf();
    text(node, "the name of a file", report).map(|name| folder.join(name))
}

fn query(node: &Node, section: &Section<'_>, report: &mut Report) -> Option<DnsQuery> {
    let name = text(node, "a name in DNS", report)?;
    let label = |label: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        !label.is_empty() && label.len() < 64 && label.bytes().all(fits)
    };
    let bare = name.strip_suffix('.').unwrap_or(name);
    if bare.len() >= DNS_NAME_MAX || !bare.split('.').all(label) {
        report.error_help(node.span, format!("`{name}` is no name in DNS"), "such as `web.example.com`");
        return None;
    }
    let mut time = |word: &str, default: Duration| match section.get(word) {
        Some(node) => duration(node, word, report).map(Duration::from_nanos),
        None => Some(default),
    };
    let [min, max] = [time("min_ttl", Duration::from_secs(5)), time("max_ttl", Duration::from_secs(300))];
    let timeout = time("timeout", Duration::from_secs(5));
    for (word, value, least) in [("min_ttl", min, 100), ("timeout", timeout, 10)] {
        if let (Some(node), Some(value)) = (section.get(word), value)
            && (value < Duration::from_millis(least) || value > Duration::from_secs(86_400))
        {
            report.error(node.span, format!("`{word}` is between {least} ms and 1 day"));
        }
    }
    let (min, max, timeout) = (min?, max?, timeout?);
    if max < min {
        let node = section.get("max_ttl").or(section.get("min_ttl")).unwrap_or(node);
        report.error(node.span, "`max_ttl` is shorter than `min_ttl`, which is 5 s by default");
    }
    let servers = section.get("servers").map(|node| list(node, "servers", report)).unwrap_or_default();
    let servers = servers.iter().filter_map(|node| server(node, report)).collect();
    let records = section.choice("records", &RECORDS, report)?;
    let empty_after = section.number("empty_after", report)? as u32;
    Some(DnsQuery { name: format!("{bare}."), records, servers, ttl: [min, max], timeout, empty_after })
}

fn server(node: &Node, report: &mut Report) -> Option<SocketAddr> {
    let text = text(node, "a DNS server", report)?;
    let address = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53));
    let found = address.ok().or_else(|| text.parse().ok());
    found.or_else(|| parsed::<SocketAddr>(node, "an address such as 10.0.0.53 or 10.0.0.53:5353", report))
}

/// Returns a service that a template may become.
fn sample(item: &Node, each: Option<&Node>, is_file: bool) -> Node {
    let span = Span { length: 1, ..item.span };
    let scalar = |text: &str| Node { span, kind: Kind::Scalar(text.to_string()) };
    let map = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| (scalar(key), scalar(value))).collect::<Vec<_>>()
    };
    let Kind::Map(pairs) = &item.kind else { return item.clone() };
    let mut pairs: Vec<(Node, Node)> = pairs.iter().filter(|(key, _)| !key.is(KEY)).cloned().collect();
    let has_six = pairs.iter().any(|(key, value)| {
        key.is("service") && json(value).get("vip").is_some_and(|vip| vip.to_string().contains(':'))
    });
    if is_file {
        let service = map(&[("vip", "192.0.2.1"), ("protocol", "tcp"), ("port", "80")]);
        pairs.push((scalar("service"), Node { span, kind: Kind::Map(service) }));
    }
    let address = if has_six { "2001:db8::2" } else { "192.0.2.2" };
    let mut back_end = map(&[("name", "sample"), ("ip", address)]);
    if let Some(Node { kind: Kind::Map(each), .. }) = each {
        back_end.extend(each.iter().cloned());
    }
    let list = vec![Node { span, kind: Kind::Map(back_end) }];
    pairs.push((scalar("back_ends"), Node { span, kind: Kind::List(list) }));
    Node { kind: Kind::Map(pairs), ..item.clone() }
}
