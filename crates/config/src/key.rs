//! The keys of a mapping: one table that says what the configuration reads, what errors name and what `weir
//! schema` prints, so that the three cannot differ.

use crate::schema::Schema;
use serde_json::Value;

/// A key of a mapping.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// How it is written.
    pub word: &'static str,
    /// What it says, in one line; it follows "`word` is missing: ", and an editor shows it.
    pub help: &'static str,
    /// What its value may be.
    pub shape: Shape,
    /// Must it be written?
    pub needed: bool,
    /// The kind of mapping that alone has it: the type of a pipe, the kind of a port.
    pub only: Option<&'static str>,
    /// The value where it is not written, as it would be written.
    pub default: Option<&'static str>,
}

/// Makes a table of keys, each `"word": shape, "help"`: `needed` before it if it must be written, behind it
/// `or` with its default and `only` with the kind of mapping that has it.
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
    /// A whole number from the first to the second.
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
    /// Names that the user chooses, and what stands under each.
    Named(&'static Shape),
    /// A mapping with these keys.
    Map(&'static [Key]),
    /// One of several shapes.
    Either(&'static [Shape]),
    /// A definition of the schema, which it makes when it is first used.
    Defined(&'static str, fn(&mut Schema) -> Value),
}

impl Key {
    /// A key that may be left out.
    #[must_use]
    pub const fn new(word: &'static str, shape: Shape, help: &'static str) -> Key {
        Key { word, help, shape, needed: false, only: None, default: None }
    }

    /// The same, but it must be written.
    #[must_use]
    pub const fn needed(self) -> Key {
        Key { needed: true, ..self }
    }

    /// The same with a default, as it would be written.
    #[must_use]
    pub const fn or(self, default: &'static str) -> Key {
        Key { default: Some(default), ..self }
    }

    /// The same in one kind of mapping only.
    #[must_use]
    pub const fn only(self, kind: &'static str) -> Key {
        Key { only: Some(kind), ..self }
    }
}
