//! Bonds of Open vSwitch, as its database describes them: the output of `ovs-vsctl --format=json list bridge
//! -- list port -- list interface`. A port with two or more interfaces is a bond. Names, defaults and limits
//! of the settings are those of ovs-vswitchd.conf.db(5).

#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use weir_app::foreign::{Foreign, Setting, SettingValues};
use weir_config::{Report, Span};

/// The database of Open vSwitch.
pub const OVS: Foreign = Foreign {
    name: "ovs",
    about: "Bonds of Open vSwitch: the output of `ovs-vsctl --format=json list bridge -- list port -- list \
            interface`",
    file: "The output of ovs-vsctl",
    settings: &[
        Setting {
            name: "bond",
            value: "NAME",
            help: "Only this bond; by default all of them",
            default: None,
            several: true,
            check: |_| Ok(()),
        },
        Setting {
            name: "inside",
            value: "INTERFACE",
            help: "The interface that the bond extends; by default the only other port of the bond's bridge",
            default: None,
            several: false,
            check: |_| Ok(()),
        },
    ],
    recognise: None,
    is_partial: true,
    convert,
};

/// The largest number of rows read, over all tables.
const ROWS_MAX: usize = 1 << 16;
/// The least interval between two rebalances in Open vSwitch, in milliseconds; 0 means never.
const REBALANCE_MIN_MS: i64 = 1000;
/// The default of the interval between two rebalances in Open vSwitch, in milliseconds.
const REBALANCE_MS: i64 = 10_000;

/// A table as `ovs-vsctl --format=json list` prints it.
#[derive(Deserialize)]
struct OvsTable {
    headings: Vec<String>,
    data: Vec<Vec<Value>>,
}

/// A row of a table, with the line on which its table begins.
struct OvsRow {
    columns: BTreeMap<String, Value>,
    line: u32,
}

impl OvsRow {
    fn text(&self, column: &str) -> Option<&str> {
        self.columns.get(column)?.as_str().filter(|text| !text.is_empty())
    }

    fn number(&self, column: &str) -> i64 {
        self.columns.get(column).and_then(Value::as_i64).unwrap_or(0)
    }

    /// Returns the keys and values of a column that is a map: `["map", [[KEY, VALUE], ...]]`.
    fn map<'row>(&'row self, column: &str) -> BTreeMap<&'row str, &'row str> {
        let pairs = self.columns.get(column).and_then(|value| value.get(1)).and_then(Value::as_array);
        let pair = |pair: &'row Value| match &pair.as_array()?[..] {
            [Value::String(key), Value::String(value)] => Some((key.as_str(), value.as_str())),
            _ => None,
        };
        pairs.into_iter().flatten().filter_map(pair).collect()
    }

    /// Returns the rows that a column refers to: `["uuid", ID]` or `["set", [["uuid", ID], ...]]`.
    fn references<'row>(&'row self, column: &str) -> Vec<&'row str> {
        let one = |value: &'row Value| match &value.as_array()?[..] {
            [Value::String(kind), Value::String(id)] if kind == "uuid" => Some(id.as_str()),
            _ => None,
        };
        let Some(value) = self.columns.get(column) else { return Vec::new() };
        match one(value) {
            Some(id) => vec![id],
            None => value.get(1).and_then(Value::as_array).into_iter().flatten().filter_map(one).collect(),
        }
    }

    fn is_empty(&self, column: &str) -> bool {
        match self.columns.get(column) {
            None | Some(Value::Null) => true,
            Some(Value::Bool(value)) => !value,
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Number(number)) => number.as_i64() == Some(0),
            Some(Value::Array(_)) => {
                let list = self.columns[column].get(1).and_then(Value::as_array);
                list.is_some_and(Vec::is_empty)
            }
            Some(Value::Object(_)) => false,
        }
    }
}

/// The rows of one table by their UUIDs.
type OvsRows = BTreeMap<String, OvsRow>;

/// The tables that describe bonds.
#[derive(Default)]
struct Database {
    bridges: OvsRows,
    ports: OvsRows,
    interfaces: OvsRows,
}

impl Database {
    fn read(text: &str, report: &mut Report) -> Database {
        let mut all = Database::default();
        let mut tables = serde_json::Deserializer::from_str(text).into_iter::<OvsTable>();
        let mut rows = 0;
        loop {
            let rest = &text[tables.byte_offset()..];
            let start = text.len() - rest.trim_start().len();
            let line = text[..start].matches('\n').count() as u32 + 1;
            let table = match tables.next() {
                None => break,
                Some(Ok(table)) => table,
                Some(Err(error)) => {
                    let at = Span { line, column: 1, ..Span::default() };
                    let help = "print the tables with `ovs-vsctl --format=json list bridge -- list port -- \
                                list interface`";
                    report.error_help(at, format!("this is no table of ovs-vsctl: {error}"), help);
                    break;
                }
            };
            let has = |heading: &str| table.headings.iter().any(|one| one == heading);
            let rows_of = match (has("ports"), has("interfaces"), has("name")) {
                (true, _, _) => &mut all.bridges,
                (_, true, _) => &mut all.ports,
                (_, _, true) => &mut all.interfaces,
                // Another table, from which nothing is needed.
                (false, false, false) => continue,
            };
            for values in table.data {
                rows += 1;
                if rows > ROWS_MAX {
                    let at = Span { line, column: 1, ..Span::default() };
                    report.error(at, format!("there are more than {ROWS_MAX} rows"));
                    return all;
                }
                let columns: BTreeMap<_, _> = table.headings.iter().cloned().zip(values).collect();
                let id = columns.get("_uuid").and_then(|id| id.get(1)).and_then(Value::as_str);
                if let Some(id) = id.map(str::to_string) {
                    rows_of.insert(id, OvsRow { columns, line });
                }
            }
        }
        all
    }
}

/// A configuration that is being written.
struct Imported {
    /// The lines of `ports`, by name.
    ports: BTreeMap<String, String>,
    /// The lines of `apps`.
    apps: String,
    report: Report,
}

impl Imported {
    /// Warns of a setting that cannot be converted, and records it above the bond.
    fn note(&mut self, line: u32, message: String) {
        let _ = writeln!(self.apps, "  # {message}");
        self.report.warning(Span { line, column: 1, ..Span::default() }, message);
    }
}

fn convert(file: &Path, text: &str, settings: &SettingValues) -> Result<(String, Report), Report> {
    let report = Report::new(&file.display().to_string(), text);
    let mut all = Imported { ports: BTreeMap::new(), apps: String::new(), report };
    let database = Database::read(text, &mut all.report);
    let wanted: Vec<&str> = settings.all("bond").collect();
    let mut found = Vec::new();
    // A database has no order, so names give one.
    let mut ports: Vec<&OvsRow> = database.ports.values().collect();
    ports.sort_by_key(|port| port.text("name"));
    for port in ports {
        let name = port.text("name").unwrap_or_default();
        if port.references("interfaces").len() > 1 {
            found.push(name);
            if wanted.is_empty() || wanted.contains(&name) {
                bond(&mut all, &database, port, settings.get("inside"));
            }
        }
    }
    let missing = wanted.iter().find(|name| !found.contains(name));
    if all.report.errors() == 0 && (found.is_empty() || missing.is_some()) {
        let message = match missing {
            Some(name) if !found.is_empty() => {
                format!("there is no bond `{name}` here; the bonds are {}", found.join(", "))
            }
            _ => "there is no bond here: no port with two interfaces or more".to_string(),
        };
        all.report.error(Span { line: 1, column: 1, ..Span::default() }, message);
    }
    if all.report.errors() > 0 {
        return Err(all.report);
    }
    let of = file.file_name().unwrap_or_default().to_string_lossy();
    let mut out = format!(
        "# Open vSwitch's {of}, as weir understands it; docs/reference/bond.md describes the keys.\nports:\n"
    );
    all.ports.iter().for_each(|(name, port)| _ = writeln!(out, "  {name}: {port}"));
    Ok((format!("{out}apps:\n{}", all.apps), all.report))
}

/// Converts a text to a name in weir, which consists of letters, digits, `_`, `-` and `.`.
fn name_of(text: &str) -> String {
    let good = |one: char| one.is_ascii_alphanumeric() || "_-.".contains(one);
    text.replace(|one| !good(one), "-").trim_start_matches(['-', '.']).chars().take(64).collect()
}

/// Returns how weir opens an interface, or why it cannot.
fn port_of(interface: &OvsRow) -> Result<String, String> {
    let name = interface.text("name").unwrap_or_default();
    match interface.text("type").unwrap_or("system") {
        "system" | "afxdp" | "afxdp-nonpmd" => Ok(format!("{{ xdp: {} }}", quoted(name))),
        "dpdk" => match interface.map("options").get("dpdk-devargs") {
            Some(device) => Ok(format!("{{ dpdk: {} }}", quoted(device))),
            None => Err(format!("`{name}` has no `options:dpdk-devargs`, so its device is not known")),
        },
        other => Err(format!("`{name}` has type `{other}`, which is no port of weir")),
    }
}

/// Quotes a text for YAML where that is needed.
fn quoted(text: &str) -> String {
    let is_plain = text.starts_with(|one: char| one.is_ascii_alphabetic()) && name_of(text) == text;
    if is_plain { text.to_string() } else { Value::from(text).to_string() }
}

fn bond(all: &mut Imported, database: &Database, port: &OvsRow, inside: Option<&str>) {
    let name = port.text("name").unwrap_or_default();
    let mut keys = vec![format!("name: {}", name_of(name))];
    let other = port.map("other_config");
    let mode = match port.text("bond_mode") {
        Some("balance-tcp") => "balance_tcp",
        Some("balance-slb") => "balance_slb",
        Some("active-backup") | None => "active_backup",
        Some(mode) => {
            all.note(
                port.line,
                format!(
                    "bond_mode={mode} of {name} is unknown to Open vSwitch, which uses \
                active-backup instead"
                ),
            );
            "active_backup"
        }
    };
    keys.push(format!("mode: {mode}"));
    let members = members(all, database, port, &mut keys);
    keys.extend(inward(all, database, port, inside));
    keys.extend(lacp(all, port, &other));
    for (column, key) in [("bond_updelay", "updelay"), ("bond_downdelay", "downdelay")] {
        let delay_ms = port.number(column).max(0);
        keys.extend((delay_ms > 0).then(|| format!("{key}: {delay_ms}ms")));
    }
    for (key, value) in &other {
        setting(all, port, (key, value), (mode, &members), &mut keys);
    }
    columns(all, port);
    all.apps.push_str("  - bond:\n");
    keys.iter().for_each(|key| _ = writeln!(all.apps, "      {key}"));
}

/// Adds the members' ports, and returns the names of the members.
fn members(all: &mut Imported, database: &Database, port: &OvsRow, keys: &mut Vec<String>) -> Vec<String> {
    let (mut names, mut listed) = (Vec::new(), Vec::new());
    let mut references = port.references("interfaces");
    references.sort_by_key(|id| database.interfaces.get(*id).and_then(|row| row.text("name")));
    for id in references {
        let Some(interface) = database.interfaces.get(id) else {
            let at = Span { line: port.line, column: 1, ..Span::default() };
            all.report.error_help(
                at,
                format!("there is no interface {id} here"),
                "print the table `interface`, too: `ovs-vsctl ... -- list interface`",
            );
            continue;
        };
        let name = name_of(interface.text("name").unwrap_or_default());
        match port_of(interface) {
            Ok(port) => _ = all.ports.insert(name.clone(), port),
            Err(why) => all.note(interface.line, format!("a member was omitted: {why}")),
        }
        if !all.ports.contains_key(&name) {
            continue;
        }
        let mut own = vec![format!("port: {name}")];
        for (key, value) in interface.map("other_config") {
            match key {
                "lacp-port-priority" => own.push(format!("lacp_priority: {}", quoted_number(value))),
                "lacp-aggregation-key" => own.push(format!("lacp_key: {}", quoted_number(value))),
                _ => all.note(
                    interface.line,
                    format!("other_config:{key}={value} of {name} has no counterpart and was omitted"),
                ),
            }
        }
        if !interface.is_empty("bfd") || !interface.is_empty("cfm_mpid") {
            let message = format!("BFD or CFM of {name} has no counterpart: `probe` checks what lies behind");
            all.note(interface.line, message);
        }
        listed.push(if own.len() > 1 { format!("{{ {} }}", own.join(", ")) } else { name.clone() });
        names.push(name);
    }
    keys.push(format!("members: [{}]", listed.join(", ")));
    names
}

/// Returns a number unchanged, and anything else as a text, which weir then refuses.
fn quoted_number(text: &str) -> String {
    if text.parse::<u64>().is_ok() { text.to_string() } else { Value::from(text).to_string() }
}

/// Finds the port that the bond extends: the given interface, or the only other port of the bond's bridge.
fn inward(all: &mut Imported, database: &Database, port: &OvsRow, given: Option<&str>) -> Vec<String> {
    let name = port.text("name").unwrap_or_default();
    let id = port.columns.get("_uuid").and_then(|id| id.get(1)).and_then(Value::as_str).unwrap_or_default();
    let bridge = database.bridges.values().find(|bridge| bridge.references("ports").contains(&id));
    let mut keys = Vec::new();
    if let Some(bridge) = bridge {
        let is_true = |key: &str| bridge.map("other_config").get(key) == Some(&"true");
        keys.extend(is_true("forward-bpdu").then(|| "forward_reserved: true".to_string()));
        for column in ["stp_enable", "rstp_enable", "mcast_snooping_enable", "mirrors", "controller", "ipfix"]
        {
            if !bridge.is_empty(column) {
                let message = format!("`{column}` of {name}'s bridge has no counterpart and was omitted");
                all.note(bridge.line, message);
            }
        }
    }
    if let Some(given) = given {
        let inside = name_of(given);
        all.ports.insert(inside.clone(), format!("{{ xdp: {} }}", quoted(given)));
        keys.push(format!("inside: {inside}"));
        return keys;
    }
    let others =
        bridge.into_iter().flat_map(|bridge| bridge.references("ports")).filter(|other| *other != id);
    let others: Vec<&OvsRow> = others
        .filter_map(|other| database.ports.get(other)?.references("interfaces").first().copied())
        .filter_map(|interface| database.interfaces.get(interface))
        .collect();
    let mut usable: Vec<(String, String)> =
        others.iter().filter_map(|row| Some((name_of(row.text("name")?), port_of(row).ok()?))).collect();
    usable.sort();
    match &usable[..] {
        [(inside, port)] => {
            all.ports.insert(inside.clone(), port.clone());
            keys.push(format!("inside: {inside}"));
        }
        several => {
            let what = match several.len() {
                0 => "no other port of its bridge can be a port of weir".to_string(),
                _ => {
                    let names: Vec<&str> = several.iter().map(|(name, _)| name.as_str()).collect();
                    format!("its bridge has several other ports: {}", names.join(", "))
                }
            };
            let message =
                format!("what {name} extends is not known, because {what}: use `--inside INTERFACE`");
            all.note(port.line, message);
        }
    }
    keys
}

/// Returns the key `lacp`, if the bond uses LACP.
fn lacp(all: &mut Imported, port: &OvsRow, other: &BTreeMap<&str, &str>) -> Option<String> {
    let mode = match port.text("lacp").unwrap_or("off") {
        "off" => return None,
        mode @ ("active" | "passive") => mode,
        mode => {
            all.note(
                port.line,
                format!("lacp={mode} is unknown to Open vSwitch, which does not use LACP then"),
            );
            return None;
        }
    };
    let mut keys = vec![format!("mode: {mode}")];
    for (key, value) in other {
        match (*key, *value) {
            ("lacp-time", "fast") => keys.push("rate: fast".to_string()),
            ("lacp-fallback-ab", "true") => keys.push("fallback: true".to_string()),
            ("lacp-system-id", id) => keys.push(format!("system_id: \"{id}\"")),
            ("lacp-system-priority", value) => {
                keys.push(format!("system_priority: {}", quoted_number(value)))
            }
            _ => {}
        }
    }
    Some(format!("lacp: {{ {} }}", keys.join(", ")))
}

/// Converts an entry of `other_config`; those of LACP are converted by [`lacp`].
fn setting(
    all: &mut Imported,
    port: &OvsRow,
    (key, value): (&str, &str),
    (mode, members): (&str, &[String]),
    keys: &mut Vec<String>,
) {
    let name = port.text("name").unwrap_or_default();
    let has_lacp = ["active", "passive"].contains(&port.text("lacp").unwrap_or("off"));
    let omitted = |why: &str| format!("other_config:{key}={value} of {name} was omitted: {why}");
    match key {
        "lacp-time" | "lacp-fallback-ab" | "lacp-system-id" | "lacp-system-priority" if has_lacp => {}
        "lacp-time" | "lacp-fallback-ab" | "lacp-system-id" | "lacp-system-priority" => {
            all.note(port.line, omitted("the bond does not use LACP"));
        }
        // Each mode finds the member of a bucket in one lookup.
        "lb-output-action" => {}
        "bond-detect-mode" if value == "carrier" => {}
        "bond-detect-mode" | "bond-miimon-interval" => {
            all.note(port.line, omitted("weir reads the carrier, of which the kernel notifies it"));
        }
        "bond-rebalance-interval" => match value.parse::<i64>() {
            Ok(0) => keys.push("rebalance: never".to_string()),
            Ok(REBALANCE_MS) => {}
            Ok(interval_ms) => {
                let interval_ms = interval_ms.max(REBALANCE_MIN_MS);
                keys.push(format!("rebalance: {{ interval: {interval_ms}ms }}"));
            }
            Err(_) => all.note(port.line, omitted("it is not a number of milliseconds")),
        },
        "bond-hash-basis" if value == "0" => {}
        "bond-hash-basis" => {
            keys.push(format!("hash: {{ basis: {} }}", quoted_number(value)));
            if mode == "balance_tcp" {
                let message =
                    format!("{key} of {name}: weir's hash differs from Open vSwitch's, so flows move once");
                all.note(port.line, message);
            }
        }
        "bond-primary" if members.contains(&name_of(value)) => {
            keys.push(format!("primary: {}", name_of(value)))
        }
        "bond-primary" => all.note(port.line, omitted("it is not a member")),
        _ => all.note(port.line, omitted("it has no counterpart")),
    }
}

/// Reports columns of a port that have no counterpart in weir's bonds.
fn columns(all: &mut Imported, port: &OvsRow) {
    let name = port.text("name").unwrap_or_default();
    for column in ["bond_fake_iface", "fake_bridge", "mac", "protected", "qos"] {
        if !port.is_empty(column) {
            all.note(port.line, format!("`{column}` of {name} has no counterpart and was omitted"));
        }
    }
    for column in ["tag", "trunks", "cvlans", "vlan_mode"] {
        if !port.is_empty(column) {
            let message =
                format!("`{column}` of {name} was omitted: a bond passes all VLANs, and pipes filter them");
            all.note(port.line, message);
        }
    }
}
