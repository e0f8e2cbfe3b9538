//! The server's side of TLS, using rustls.

use crate::private;
use anyhow::{Context, Result};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;

/// The maximum size of a file with a private key, in bytes.
const KEY_MAX: u64 = 1 << 20;

/// A connection whose handshake is complete.
pub type RestStream = tokio_rustls::server::TlsStream<TcpStream>;

/// Performs handshakes.
#[derive(Clone)]
pub struct Acceptor(tokio_rustls::TlsAcceptor);

impl Acceptor {
    /// Reads the certificate chain and its key.
    pub fn new(certificate: &Path, key: &Path) -> Result<Acceptor> {
        let of = |path: &Path| path.display().to_string();
        let chain = CertificateDer::pem_file_iter(certificate).with_context(|| of(certificate))?;
        let chain = chain.collect::<Result<Vec<_>, _>>().with_context(|| of(certificate))?;
        let file = private::open(key).with_context(|| of(key))?;
        let private = PrivateKeyDer::from_pem_reader(BufReader::new(file.take(KEY_MAX)));
        let private = private.with_context(|| of(key))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.with_no_client_auth().with_single_cert(chain, private);
        let config = config.with_context(|| format!("{} and {}", of(certificate), of(key)))?;
        Ok(Acceptor(Arc::new(config).into()))
    }

    /// Completes a handshake; `None` if the client does not.
    pub async fn accept(self, stream: TcpStream) -> Option<RestStream> {
        self.0.accept(stream).await.ok()
    }
}
