//! The client's side of TLS. The token must not be sent to anyone else, so certificates are verified, against
//! the authorities in a file.

use super::Timed;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::path::Path;
use std::sync::Arc;

/// Prepares a connection for TLS. The handshake takes place at the first write.
pub fn wrap(
    stream: Timed,
    host: &str,
    authorities: Option<&Path>,
) -> Result<StreamOwned<ClientConnection, Timed>, String> {
    let file =
        authorities.ok_or("needs --authorities FILE, with the certificate that signs those of nodes")?;
    let of = |why: String| format!("cannot be verified: {}: {why}", file.display());
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| of(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| of(error.to_string()))?;
        roots.add(certificate).map_err(|error| of(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(of("it has no certificate".to_string()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name =
        ServerName::try_from(host.to_string()).map_err(|error| format!("has an invalid name: {error}"))?;
    let client = ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())?;
    Ok(StreamOwned::new(client, stream))
}
