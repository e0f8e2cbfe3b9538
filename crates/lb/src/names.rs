//! Names that the load balancer writes into programs and other parts refer to.

/// The pipe that all packets for the load balancer enter, used with `root:` and `forward:`.
pub const NAME: &str = "lb";

/// The name under which the app gets packets that are too long for the path to their back end.
pub const TOO_LONG: &str = "lb/too_long";

/// The name under which the app gets packets without a back end whose service rejects them.
pub const REJECT: &str = "lb/reject";
