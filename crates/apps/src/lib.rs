//! The functions of weir. Each is an app: code that writes pipes, groups, entries and counters into a program, and says
//! which frames its ports take from the kernel. An app has no thread and never sleeps.

pub mod bond;
pub mod lb;
mod take;

pub use take::TakeRule;
