//! TLS in a weir that was built without it; the configuration cannot enable it.

use anyhow::{Result, bail};
use std::path::Path;
use tokio::net::TcpStream;

pub type RestStream = TcpStream;

#[derive(Clone)]
pub struct Acceptor;

impl Acceptor {
    pub fn new(_: &Path, _: &Path) -> Result<Acceptor> {
        bail!("this weir was built without TLS: build it with `--features tls`")
    }

    pub async fn accept(self, _: TcpStream) -> Option<RestStream> {
        None
    }
}
