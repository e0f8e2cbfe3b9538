//! soon
use anyhow::Result;
pub fn run() -> Result<Option<()>> {
    Ok(None)
}
