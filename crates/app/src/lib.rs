//! Weir's features are apps: code that writes pipes, groups, entries and counters into a program, and
//! declares which frames its ports take from the kernel. An app that acts while the program runs is an
//! [`App`]: it receives events and returns actions. An app has no thread and never sleeps. Work that needs a
//! thread is done by the [`Agent`](agent::Agent) of its kind.
//!
//! This crate defines apps, agents, the driver of apps, and what threads share: a clock, priorities and
//! privileges. The only app it knows by name is [`external`], whose decisions are made by another process.

pub mod agent;
mod app;
pub mod bits;
pub mod check;
pub mod clock;
pub mod doctor;
pub mod edits;
pub mod external;
pub mod file_watch;
pub mod foreign;
pub mod http;
pub mod kind;
pub mod moves;
pub mod names;
pub mod neighbour;
pub mod page;
pub mod priority;
pub mod privileges;
pub mod request;
pub mod rings;
pub mod route;
mod running;
pub mod shown;
pub mod task;

pub use app::{
    Action, App, ClientEvent, ClientId, Event, Level, MetricHelp, Refusal, RequestId, Sample, SampleValue,
};
pub use running::{Account, INJECTS_MAX, RunningApps, buckets};
pub use weir_control::{Described, answers};
