//! The load balancer: services and their back ends. See README.md.

mod app;
mod config;
#[cfg(test)]
mod tests;

pub use app::{Lb, NAME, spread};
pub use config::{BITS_MAX, BackEnd, By, Out, Problem, Service, SourceMac};
