//! The functions of weir. Each is an app: code that writes pipes, groups, entries and counters into a program, and says
//! which frames its ports take from the kernel. An app that goes on while the program runs is an [`App`]: it is told what
//! happens and says what to do. An app has no thread and never sleeps.

mod app;
pub mod bond;
pub mod external;
pub mod kind;
pub mod lb;
mod running;

pub use app::{Action, App, ClientEvent, ClientId, Event, RequestId};
pub use running::{Account, INJECTS_MAX, RunningApps, buckets};

use kind::Kind;

/// The kinds of apps there are, in the order in which they are read: those that offer attachments first.
pub static KINDS: &[Kind] = &[bond::KIND, external::KIND, lb::KIND];
