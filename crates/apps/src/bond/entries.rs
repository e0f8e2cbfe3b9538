//! Entries that a bond adds to its pipes and removes while it runs: each is one value, a port or a MAC address.

use crate::app::Action;
use engine::builder::Number;
use engine::change::{Change, EntryKey};
use engine::program::{Entry, PipeId};

/// Adds the entry of a value.
pub(super) fn add(pipe: PipeId, value: impl Number) -> Action {
    Action::Change(Change::Add { pipe, entry: Entry::on(value).run_time() })
}

/// Removes it.
pub(super) fn remove(pipe: PipeId, value: impl Number) -> Action {
    Action::Change(Change::Remove { pipe, key: EntryKey::of(&Entry::on(value)) })
}
