//! What can be observed of other programs: their routes in the table, and whether a program runs that could
//! read the table.

use std::fs;
use weir_netlink::{DeviceRoute, routes_in};

/// How many routes of other programs are named in a message.
const NAMED: usize = 3;

/// Processes that read the table or direct traffic to the node without it, and what they belong to.
const READERS: [(&str, &str); 3] = [("bird", "BIRD"), ("zebra", "FRR"), ("keepalived", "keepalived")];

/// What was observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableNews {
    /// A sentence about routes of other programs in the table, if there are any.
    pub foreign: Option<String>,
    /// A sentence that says that no program reads the table, if that is so.
    pub reader: Option<String>,
}

/// Whether a program that could announce routes runs in this network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteReader {
    /// This program runs. Whether it reads the table is written in its own configuration.
    Runs(&'static str),
    /// No such program can be seen.
    Absent,
    /// There are such processes, but not even their network namespaces can be seen.
    Unknown,
}

/// Observes a table. `own` is the protocol number and the device of weir's own routes.
///
/// # Errors
/// Fails if the kernel does not list the routes.
pub fn look(table: u32, own: Option<(u8, u32)>) -> Result<TableNews, String> {
    let absent = format!(
        "no BIRD, FRR or keepalived is visible in this network namespace, so routers may not learn the \
         routes in table {table}"
    );
    let reader = match route_reader() {
        RouteReader::Absent => Some(absent),
        RouteReader::Runs(_) | RouteReader::Unknown => None,
    };
    Ok(TableNews { foreign: foreign_routes(table, own)?, reader })
}

/// Returns a sentence about routes of other programs in a table, if there are any.
///
/// # Errors
/// Fails if the kernel does not list the routes.
pub fn foreign_routes(table: u32, own: Option<(u8, u32)>) -> Result<Option<String>, String> {
    let all = routes_in(table).map_err(|error| format!("the routes cannot be listed: {error}"))?;
    let is_foreign = |route: &&DeviceRoute| own != Some((route.protocol, route.device));
    let foreign: Vec<&DeviceRoute> = all.iter().filter(is_foreign).collect();
    if foreign.is_empty() {
        return Ok(None);
    }
    let name = |route: &&DeviceRoute| {
        let DeviceRoute { address, prefix, protocol, .. } = route;
        format!("{address}/{prefix} (protocol {protocol})")
    };
    let named = foreign.iter().take(NAMED).map(name).collect::<Vec<_>>().join(", ");
    let more = match foreign.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Ok(Some(format!(
        "table {table} has routes of other programs, {named}{more}: remove them, or write another `table` in \
         `routes`"
    )))
}

/// Looks for a process that could read the table.
#[must_use]
pub fn route_reader() -> RouteReader {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net"));
    let (Ok(own), Ok(processes)) = (namespace("self"), fs::read_dir("/proc")) else {
        return RouteReader::Unknown;
    };
    let mut found = RouteReader::Absent;
    for process in processes.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        if !process.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // Bounded: the kernel writes it.
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        let Some((_, reader)) = READERS.iter().find(|(comm, _)| *comm == name.trim_end()) else { continue };
        match namespace(&process) {
            Ok(its) if its == own => return RouteReader::Runs(reader),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                found = RouteReader::Unknown
            }
            // It is in another namespace, or has ended.
            Ok(_) | Err(_) => {}
        }
    }
    found
}
