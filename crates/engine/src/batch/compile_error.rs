//! Why a program cannot be compiled, and what tables of all types read from a pipe.

use crate::batch::load::KEY_WORDS_MAX;
use thiserror::Error;
use weir_packet::Field;
use weir_program::{Criterion, Pipe};

/// Why a program cannot be compiled. The check reports most of this better, with a place; this is the last
/// resort.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CompileError {
    /// The pipes form a loop.
    #[error("pipes forward in a circle through `{0}`")]
    Loop(String),
    /// The matched fields need more bits than the widest key.
    #[error("pipe `{0}` matches too many bits: at most {KEY_WORDS_MAX} words of 64 bits")]
    KeyTooWide(String),
    /// The pipe's type does not support a criterion.
    #[error("pipe `{pipe}`: {field} cannot be matched like this in a pipe of this type")]
    Criterion {
        /// The pipe.
        pipe: String,
        /// The field.
        field: Field,
    },
    /// An LPM pipe has no prefix field, or several.
    #[error("pipe `{0}`: an lpm pipe matches one field by prefix")]
    Prefix(String),
    /// The numbers of a meter are invalid.
    #[error("meter `{meter}`: {why}")]
    Meter {
        /// The meter.
        meter: String,
        /// The reason.
        why: String,
    },
    /// There is no room for the sums of a measured pipe.
    #[error("pipe `{pipe}` cannot be measured: {why}")]
    Sums {
        /// The pipe.
        pipe: String,
        /// The reason.
        why: String,
    },
    /// An entry was refused.
    #[error("pipe `{pipe}`, entry {entry}: {why}")]
    Entry {
        /// The pipe.
        pipe: String,
        /// Its position in the list, counted from 1.
        entry: usize,
        /// The reason.
        why: String,
    },
}

/// Converts an age limit to milliseconds; a limit below one counts as one.
pub fn milliseconds(ns: u64) -> u32 {
    if ns == 0 { 0 } else { u32::try_from(ns / 1_000_000).unwrap_or(u32::MAX / 4).max(1) }
}

/// Returns the matched fields that are not constant, with their masks.
pub fn fields(
    pipe: &Pipe,
    mask: impl Fn(Criterion) -> Option<u128>,
) -> Result<Vec<(Field, u128)>, CompileError> {
    let mut fields = Vec::new();
    for one in pipe.varying() {
        let refused = || CompileError::Criterion { pipe: pipe.name.clone(), field: one.field };
        fields.push((one.field, mask(one.criterion).ok_or_else(refused)?));
    }
    Ok(fields)
}
