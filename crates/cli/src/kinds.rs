//! The features that this program has, as kinds of apps. The command line, the daemon and replay iterate over
//! this list and know none of them by name.

use weir_app::kind::Kind;

/// All kinds of apps, in the order in which they are read: those that offer attachments first, and those that
/// enclose what others have written last.
pub static KINDS: &[Kind] = &[
    weir_bond::KIND,
    weir_app::external::KIND,
    weir_lb::KIND,
    weir_measure::KIND,
    weir_overlay::KIND,
    weir_path::KIND,
];
