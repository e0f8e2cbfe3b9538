//! Sources: services whose list, or whose back ends, are kept outside of the configuration. An item with
//! `from` is a template; the source fills it in, and the result is reconciled like what clients of the API
//! put ([`crate::edits`]), with the source as its owner.
//!
//! The threads that read files and ask DNS servers are in `agent/`. Each writes what it has found on the
//! [`SourceBoard`] of its source, and the running app ([`SourceFollower`]) requests the changes.

mod answers;
mod board;
mod follow;
mod kubernetes;
mod yaml;

pub(crate) use answers::{DnsAnswer, DnsServer, Priorities, back_ends_of};
pub use board::SourceBoards;
pub(crate) use board::{SourceBoard, SourceContent, SourceTask};
pub(crate) use follow::SourceFollower;
pub(crate) use kubernetes::convert;
pub(crate) use yaml::{FROM, is_template, read};

use serde_json::{Map, Value};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use weir_control::names;

/// How the name of the owner of a DNS source's services begins.
const DNS: &str = "dns:";
/// How the name of the owner of a file's services begins.
const FILE: &str = "file:";

/// The key of a back end's priority on the board; services have no such key.
const PRIORITY: &str = "priority";

/// The maximum number of services of a source.
pub(crate) const SERVICES_MAX: usize = 16_384;
/// The maximum number of back ends of a service of a source.
pub(crate) const BACK_ENDS_MAX: usize = 4096;

/// A source as it is configured.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceSource {
    /// The name of the item.
    pub name: String,
    /// Where the services or back ends come from.
    pub kind: SourceKind,
    /// The keys of each service, as they are written.
    pub template: Map<String, Value>,
    /// The keys of each back end.
    pub each: Map<String, Value>,
}

/// Where services or back ends come from.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceKind {
    /// A file with Kubernetes objects.
    File(PathBuf),
    /// DNS.
    Dns(DnsQuery),
}

/// A question to DNS, and how its answers are used.
#[derive(Clone, Debug, PartialEq)]
pub struct DnsQuery {
    /// The name, with a final dot.
    pub name: String,
    /// The type of its records.
    pub records: RecordKind,
    /// The servers to ask; those of the host if there are none.
    pub servers: Vec<SocketAddr>,
    /// The limits of the time between two questions, whatever the records say.
    pub ttl: [Duration; 2],
    /// How long all answers to a question may take.
    pub timeout: Duration,
    /// After how many consecutive answers without records the service has no back ends; 0 means never.
    pub empty_after: u32,
}

/// A type of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A and AAAA, as the VIPs need them.
    Addresses,
    /// SRV, and the addresses of their targets.
    Srv,
}

impl ServiceSource {
    /// Returns the owner of its services.
    pub fn owner(&self) -> String {
        match &self.kind {
            SourceKind::File(_) => format!("{FILE}{}", self.name),
            SourceKind::Dns(_) => format!("{DNS}{}", self.name),
        }
    }

    /// Returns a description of what is read.
    pub fn of(&self) -> String {
        match &self.kind {
            SourceKind::File(path) => path.display().to_string(),
            SourceKind::Dns(query) => query.name.clone(),
        }
    }

    /// Returns whether packets to its back ends have another destination port than those of clients.
    fn translates(&self) -> bool {
        ["nat", "full_nat"].iter().any(|mode| self.each.get("mode").is_some_and(|word| word == mode))
    }

    /// Returns a back end.
    fn back_end(&self, address: IpAddr, port: Option<u16>, more: &[(&str, String)]) -> (String, Value) {
        let name = names::back_end(address, port);
        let mut map = self.each.clone();
        map.insert("name".into(), name.clone().into());
        map.insert("ip".into(), address.to_string().into());
        if let Some(port) = port.filter(|_| self.translates()) {
            map.insert("port".into(), port.to_string().into());
        }
        for (key, value) in more {
            map.insert((*key).into(), value.clone().into());
        }
        (name, Value::Object(map))
    }
}

/// Returns whether services with this owner belong to a source.
fn is_of_source(owner: &str) -> bool {
    owner.starts_with(DNS) || owner.starts_with(FILE)
}
