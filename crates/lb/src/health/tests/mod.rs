//! Health of back ends: what decides, the weights that follow, the app, and its configuration.

mod app;
mod monitor;
mod passive;
mod weights;
mod yaml;
