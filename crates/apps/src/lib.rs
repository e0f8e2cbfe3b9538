//! The functions of weir as apps: code that writes pipes, groups, entries and counters into a program, and
//! declares which frames its ports take from the kernel. An app that acts while the program runs is an
//! [`App`]: it receives events and returns actions. An app has no thread and never sleeps.

mod app;
pub mod bond;
pub mod check;
pub mod external;
pub mod kind;
pub mod lb;
pub mod measure;
pub mod neighbour;
pub mod overlay;
pub mod page;
pub mod path;
mod running;
mod shown;

pub use app::{Action, App, ClientEvent, ClientId, Event, Level, Refusal, RequestId, Sample, SampleValue};
pub use running::{Account, INJECTS_MAX, RunningApps, buckets};

use kind::Kind;

/// All kinds of apps, in the order in which they are read: those that offer attachments first, and those that
/// enclose what others have written last.
pub static KINDS: &[Kind] = &[bond::KIND, external::KIND, lb::KIND, measure::KIND, overlay::KIND, path::KIND];
