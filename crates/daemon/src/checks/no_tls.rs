//! TLS in a weir that was built without it.

use super::Server;
use tokio::net::TcpStream;

/// Refuses.
pub async fn shake(_: TcpStream, _: Server<'_>, _: Option<&str>) -> Result<TcpStream, String> {
    Err("this weir was built without TLS".to_string())
}
