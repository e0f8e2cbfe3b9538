//! The paths of tunnels whose frames leave through a port of weir. See README.md.

mod app;
mod config;
mod flows;
mod node;
mod pipes;
mod reflector;
mod show;
#[cfg(test)]
mod tests;
mod watch;
mod yaml;

pub use app::PathPortApp;
pub use config::{Discovery, PathPort, Peer};
pub(super) use yaml::read;
