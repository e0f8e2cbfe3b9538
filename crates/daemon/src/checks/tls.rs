//! TLS handshakes, using rustls.
//!
//! A server's certificate is not verified against authorities: a check asks whether the server works, sends
//! no secrets and trusts nothing that it hears beyond that. The server must prove that it has the key of its
//! certificate, as in every handshake.

use super::Server;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use std::sync::{Arc, OnceLock};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Completes a handshake for a name, or for the server's address.
pub async fn shake(
    stream: TcpStream,
    server: Server<'_>,
    name: Option<&str>,
) -> Result<TlsStream<TcpStream>, String> {
    let host = name.map(|name| name.split(':').next().unwrap_or(name).to_string());
    let name = match host {
        Some(host) => ServerName::try_from(host).map_err(|error| format!("invalid server name: {error}"))?,
        None => ServerName::from(server.at.ip()),
    };
    let connector = TlsConnector::from(config()?);
    connector.connect(name, stream).into_fallible().await.map_err(|(error, stream)| {
        server.part(stream);
        format!("no TLS handshake: {error}")
    })
}

fn config() -> Result<Arc<ClientConfig>, String> {
    static CONFIG: OnceLock<Result<Arc<ClientConfig>, String>> = OnceLock::new();
    CONFIG.get_or_init(|| make().map(Arc::new).map_err(|error| error.to_string())).clone()
}

fn make() -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let anybody = Arc::new(Anybody(provider));
    Ok(builder.dangerous().with_custom_certificate_verifier(anybody).with_no_client_auth())
}

/// Accepts every certificate whose key the server has.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
