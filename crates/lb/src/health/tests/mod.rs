//! Health of back ends: the decision, the resulting weights, the app, and its configuration.

mod app;
mod monitor;
mod passive;
mod routes;
mod weights;
mod yaml;
