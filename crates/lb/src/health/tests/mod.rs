//! Health of back ends: the decision, the resulting weights, the app, and its configuration.

mod app;
mod monitor;
mod passive;
mod weights;
mod yaml;
