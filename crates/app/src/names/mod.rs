//! Names of addresses: which pod, service, node or other host has an address. Flow records, lists of flows
//! and measurements show them beside addresses.
//!
//! Names come from a file, which the daemon follows, and from clients of control over HTTP. Each source
//! replaces its names as a whole. Names are looked up when records are written and lists are shown, never for
//! each packet.

pub mod http;
mod read;
mod table;

pub use read::{read_file, read_set};
pub use table::{NameTable, NameTableBuilder, RawName, WrongName};

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use weir_control::addresses::AddressName;
use weir_packet::FlowKey;

/// The maximum number of names from each source: more than a cluster of 150 000 pods has.
pub const NAMES_MAX: usize = 1 << 18;

/// The largest file or body with names, in bytes.
pub const BYTES_MAX: usize = 64 << 20;

/// What has a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NameKind {
    /// A pod of Kubernetes.
    Pod,
    /// A service.
    Service,
    /// A node of a cluster.
    Node,
    /// Anything else, such as a network.
    #[default]
    Other,
}

impl NameKind {
    /// All kinds and their words.
    pub const WORDS: [(&'static str, NameKind); 4] = [
        ("pod", NameKind::Pod),
        ("service", NameKind::Service),
        ("node", NameKind::Node),
        ("other", NameKind::Other),
    ];

    /// Returns the word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            NameKind::Pod => "pod",
            NameKind::Service => "service",
            NameKind::Node => "node",
            NameKind::Other => "other",
        }
    }
}

/// The name of an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The name itself: 1 to 253 bytes.
    pub name: Arc<str>,
    /// The namespace that the name belongs to.
    pub namespace: Option<Arc<str>>,
    /// What has the name.
    pub kind: NameKind,
    /// The node that it runs on; a node's own name.
    pub node: Option<Arc<str>>,
}

impl Name {
    /// Returns the name as it is written to JSON.
    #[must_use]
    pub fn answer(&self) -> AddressName {
        let text = |word: &Arc<str>| word.to_string();
        AddressName {
            name: self.name.to_string(),
            namespace: self.namespace.as_ref().map(text),
            kind: self.kind.word().to_string(),
            node: self.node.as_ref().map(text),
        }
    }
}

/// `NAMESPACE/NAME`, or the name alone.
impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// All names at one moment.
#[derive(Clone, Debug, Default)]
pub struct AddressNames {
    file: Arc<NameTable>,
    api: Arc<NameTable>,
}

impl AddressNames {
    /// Returns the name of an address: that of the longest prefix, and among equal ones that of the file.
    #[must_use]
    pub fn find(&self, address: IpAddr) -> Option<&Arc<Name>> {
        let [file, api] = [&self.file, &self.api].map(|table| table.find(address));
        let longer = match (file, api) {
            (Some(file), Some(api)) => Some(if api.0 > file.0 { api } else { file }),
            (one, other) => one.or(other),
        };
        longer.map(|(_, name)| name)
    }

    /// Returns the names of a flow's source and destination.
    #[must_use]
    pub fn of_flow(&self, key: &FlowKey) -> [Option<Arc<Name>>; 2] {
        if self.is_empty() {
            return [None, None];
        }
        [key.src(), key.dst()].map(|address| self.find(address).cloned())
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.file.is_empty() && self.api.is_empty()
    }

    /// Returns the names from the file.
    #[must_use]
    pub fn of_file(table: NameTable) -> AddressNames {
        AddressNames { file: Arc::new(table), api: Arc::default() }
    }
}

/// A board on which names are published. Each source replaces its own names, and readers take a snapshot of
/// all. Clones share one board.
#[derive(Clone, Debug, Default)]
pub struct NamesBoard(Arc<Mutex<BoardContent>>);

#[derive(Debug, Default)]
struct BoardContent {
    names: AddressNames,
    /// Why the file cannot be read at present.
    failure: Option<String>,
    /// When the file was last read, in seconds since 1970.
    read_s: Option<u64>,
}

/// The state of the sources of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamesState {
    /// How many names the file has.
    pub of_file: usize,
    /// Why the file cannot be read at present.
    pub failure: Option<String>,
    /// How long ago the file was last read, in seconds.
    pub age_s: Option<u64>,
    /// How many names clients have set.
    pub of_api: usize,
    /// Identifies the names that clients have set.
    pub etag: String,
}

/// The current names do not have the tag that a client gave; this is their tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleNames(pub String);

impl NamesBoard {
    fn lock(&self) -> MutexGuard<'_, BoardContent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all names.
    #[must_use]
    pub fn names(&self) -> AddressNames {
        self.lock().names.clone()
    }

    /// Sets the names of the file.
    pub fn set_file(&self, table: NameTable) {
        let old = {
            let mut content = self.lock();
            (content.failure, content.read_s) = (None, Some(now_s()));
            std::mem::replace(&mut content.names.file, Arc::new(table))
        };
        // Freed without the lock, because it may take a while.
        drop(old);
    }

    /// Notes that the file has not changed since it was last read.
    pub fn confirm_file(&self) {
        self.lock().read_s = Some(now_s());
    }

    /// Notes why the file cannot be read; its names stay.
    pub fn fail_file(&self, why: String) {
        self.lock().failure = Some(why);
    }

    /// Forgets the file and its names.
    pub fn forget_file(&self) {
        let mut content = self.lock();
        *content = BoardContent {
            names: AddressNames { file: Arc::default(), api: content.names.api.clone() },
            ..BoardContent::default()
        };
    }

    /// Replaces the names set by clients if `is_expected` accepts the tag of the current ones. Returns
    /// whether the new names differ from the current ones.
    ///
    /// # Errors
    /// The tag is not accepted.
    pub fn set_api(&self, table: NameTable, is_expected: impl Fn(&str) -> bool) -> Result<bool, StaleNames> {
        let mut content = self.lock();
        let tag = content.names.api.tag();
        if !is_expected(&tag) {
            return Err(StaleNames(tag));
        }
        let is_changed = tag != table.tag();
        let old = std::mem::replace(&mut content.names.api, Arc::new(table));
        drop(content);
        // Freed without the lock, because it may take a while.
        drop(old);
        Ok(is_changed)
    }

    /// Returns the names that clients have set.
    #[must_use]
    pub fn api(&self) -> Arc<NameTable> {
        self.lock().names.api.clone()
    }

    /// Returns the state of the sources.
    #[must_use]
    pub fn state(&self) -> NamesState {
        let content = self.lock();
        NamesState {
            of_file: content.names.file.len(),
            failure: content.failure.clone(),
            age_s: content.read_s.map(|read_s| now_s().saturating_sub(read_s)),
            of_api: content.names.api.len(),
            etag: content.names.api.tag(),
        }
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
