//! Names of addresses, as clients set them and as weir shows them beside flows.

use crate::answers;

/// The path of the names that clients have set.
pub const NAMES: &str = "/v1/names";

answers! {
    /// The name of an address.
    AddressName {
        /// The name.
        name: String,
        /// The namespace that the name belongs to.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// What has the name: `pod`, `service`, `node` or `other`.
        kind: String,
        /// The node that it runs on.
        #[serde(skip_serializing_if = "Option::is_none")]
        node: Option<String>,
    }

    /// An address, or all addresses of a prefix, and their name.
    NamedAddress {
        /// The address or prefix.
        address: String,
        /// The name.
        name: String,
        /// The namespace that the name belongs to.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// What has the name: `pod`, `service`, `node` or `other`, the default.
        #[serde(skip_serializing_if = "String::is_empty")]
        kind: String,
        /// The node that it runs on.
        #[serde(skip_serializing_if = "Option::is_none")]
        node: Option<String>,
    }

    /// All names that clients set.
    NameSet {
        /// The names, in the order of their addresses.
        names: Vec<NamedAddress>,
    }

    /// The result of setting names.
    NamesSet {
        /// How many names there are now.
        names: usize,
        /// Whether they differ from the previous ones.
        changed: bool,
        /// Identifies the set: its `ETag`.
        etag: String,
    }
}
