//! Entries that a running bond adds to its pipes and removes from them. Each matches one value, a port or a
//! MAC address.

use weir_app::Action;
use weir_program::builder::Number;
use weir_program::change::{Change, EntryKey};
use weir_program::{Entry, PipeId};

/// The action that adds the entry of a value.
pub(super) fn add(pipe: PipeId, value: impl Number) -> Action {
    Action::Change(Change::Add { pipe, entry: Entry::on(value).run_time() })
}

/// The action that removes it.
pub(super) fn remove(pipe: PipeId, value: impl Number) -> Action {
    Action::Change(Change::Remove { pipe, key: EntryKey::of(&Entry::on(value)) })
}
