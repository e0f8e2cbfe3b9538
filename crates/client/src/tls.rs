//! TLS.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Whom to trust, and which name the server's certificate must have.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// Trusts the certificates in a PEM file, for a server with this name or IP address.
    ///
    /// # Errors
    /// The file cannot be read or has no certificate, or `name` is not a valid name.
    pub fn new(certificates: &Path, name: &str) -> io::Result<Tls> {
        let mut roots = RootCertStore::empty();
        for one in CertificateDer::pem_file_iter(certificates).map_err(io::Error::other)? {
            roots.add(one.map_err(io::Error::other)?).map_err(io::Error::other)?;
        }
        if roots.is_empty() {
            return Err(io::Error::other(format!("{} has no certificate", certificates.display())));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(io::Error::other)?.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from(name.to_string()).map_err(io::Error::other)?;
        Ok(Tls { config: Arc::new(config), name })
    }

    /// Performs the handshake.
    pub(crate) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsConnector::from(self.config.clone()).connect(self.name.clone(), stream).await
    }
}
