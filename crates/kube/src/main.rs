//! The controller that brings a cluster's services to nodes.

fn main() {}
