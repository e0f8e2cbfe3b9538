//! The features in this build, as kinds of apps. The command line, the daemon and replay iterate over this
//! list and do not name any of them.

use weir_app::kind::Kind;

/// All kinds of apps, in the order in which they are read: first those that offer attachments, last those
/// that wrap what others have written.
pub static KINDS: &[Kind] = &[
    weir_bond::KIND,
    weir_app::external::KIND,
    weir_lb::KIND,
    weir_measure::KIND,
    weir_overlay::KIND,
    weir_path::KIND,
];
