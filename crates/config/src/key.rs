//! The keys of a mapping: one table defines what the configuration reads, what errors name and what `weir
//! schema` prints, so that the three cannot diverge.

use crate::schema::Schema;
use serde_json::Value;

/// A key of a mapping.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// How the key is written.
    pub word: &'static str,
    /// The key's meaning, in one line, which follows "`word` is missing: " and which editors show.
    pub help: &'static str,
    /// What the key's value may be.
    pub shape: Shape,
    /// Whether the key is required.
    pub needed: bool,
    /// The only kind of mapping that has the key: the type of a pipe, the kind of a port.
    pub only: Option<&'static str>,
    /// The default value, as it would be written.
    pub default: Option<&'static str>,
}

/// Builds a table of keys, each `"word": shape, "help"`, preceded by `needed` if the key is required, and
/// followed by `or` with the key's default and `only` with the kind of mapping that has the key.
#[macro_export]
macro_rules! keys {
    ($($($needed:ident)? $word:literal: $shape:expr, $help:literal $(or $default:tt)?
        $(only $kind:literal)?;)*) => {
        &[$($crate::Key::new($word, $shape, $help)$(.$needed())?$(.or($default))?$(.only($kind))?),*]
    };
}

/// What a value may be.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// `true` or `false`.
    Boolean,
    /// A whole number in this range, bounds included.
    Number(u64, u64),
    /// One of a few numbers.
    Numbers(&'static [u16]),
    /// One of a few words.
    Words(fn() -> Vec<&'static str>),
    /// Any single value: a path, a device.
    Text,
    /// The name of something.
    Name,
    /// A number with a unit of time, or `never`.
    Time,
    /// A MAC address.
    Mac,
    /// An IPv4 or IPv6 address.
    Ip,
    /// An IPv4 address.
    Ipv4,
    /// An IP address, or a prefix.
    Prefix,
    /// An IP address and a port.
    Endpoint,
    /// A share between 0 and 1, or in percent.
    Share,
    /// Nothing: the key alone.
    Nothing,
    /// A list.
    List(&'static Shape),
    /// Names chosen by the user, and the shape of what each contains.
    Named(&'static Shape),
    /// A mapping with these keys.
    Map(&'static [Key]),
    /// A mapping with some of these keys, which override those of another mapping, so none is required.
    Overrides(&'static [Key]),
    /// One of several shapes.
    Either(&'static [Shape]),
    /// A definition in the schema, created on first use.
    Defined(&'static str, fn(&mut Schema) -> Value),
    /// The definition with this name, supplied by the caller of [`document`](crate::schema::document).
    Given(&'static str),
}

impl Key {
    /// An optional key.
    #[must_use]
    pub const fn new(word: &'static str, shape: Shape, help: &'static str) -> Key {
        Key { word, help, shape, needed: false, only: None, default: None }
    }

    /// Returns the same key, but required.
    #[must_use]
    pub const fn needed(self) -> Key {
        Key { needed: true, ..self }
    }

    /// Returns the same key with a default, given as it would be written.
    #[must_use]
    pub const fn or(self, default: &'static str) -> Key {
        Key { default: Some(default), ..self }
    }

    /// Returns the same key, limited to one kind of mapping.
    #[must_use]
    pub const fn only(self, kind: &'static str) -> Key {
        Key { only: Some(kind), ..self }
    }
}
