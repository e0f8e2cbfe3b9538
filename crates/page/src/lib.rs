//! The web page that the daemon serves: the files of the page, its content security policy, and its data. The
//! page itself is in `web/`, and is bundled and compressed at development time (`make page`), so that neither
//! a build nor a user needs Node.js.
//!
//! Everything here is a function of values: the daemon owns the clock, the threads and the connections.

pub mod advice;
mod asset;
pub mod describe;
mod history;
mod live;
mod plain;
mod query;

pub use asset::{PageAsset, asset, content_security_policy};
pub use history::{HISTORY_POINTS, HISTORY_SERIES, PageHistory, SampleKind};
pub use live::LiveState;
pub use plain::plain_page;
pub use query::{QueryParameters, query};
