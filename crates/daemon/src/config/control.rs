//! `control`: where services and back ends are controlled over HTTP, and by whom.

use std::net::SocketAddr;
use std::path::PathBuf;
use weir_config::raw::Node;
use weir_config::section::{Section, parsed, text};
use weir_config::{Key, Report, Shape};

pub(super) const KEYS: &[Key] = weir_config::keys! {
    needed "listen": Shape::Endpoint, "address and port; without `tls` a loopback address";
    needed "token": Shape::Text, "the file with the token that requests must carry";
    "tls": Shape::Map(TLS), "the certificate and its key, required for other addresses";
};
const TLS: &[Key] = weir_config::keys! {
    needed "certificate": Shape::Text, "the file with the certificate chain, as PEM";
    needed "key": Shape::Text, "the file with its private key, as PEM";
};

/// Where control over HTTP listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlOver {
    /// Its address.
    pub listen: SocketAddr,
    /// The file with the token.
    pub token: PathBuf,
    /// The files with the certificate chain and its key.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// Reads the section; `None` if there is an error, which is reported.
pub(super) fn read(node: &Node, report: &mut Report) -> Option<ControlOver> {
    let before = report.errors();
    let section = Section::read(node, KEYS, report);
    let listen = section.needed("listen", report);
    let address = listen.and_then(|node| parsed(node, "an address and port such as 127.0.0.1:9106", report));
    let token = section.needed("token", report).and_then(|node| text(node, "a file", report));
    let tls = section.get("tls").and_then(|node| {
        let tls = Section::read(node, TLS, report);
        if cfg!(not(feature = "tls")) {
            report.error_help(
                node.span,
                "this weir was built without `tls`",
                "build it with `--features tls`",
            );
        }
        let mut file = |key: &str| {
            let node = tls.needed(key, report)?;
            text(node, "a file", report).map(PathBuf::from)
        };
        Some((file("certificate")?, file("key")?))
    });
    let (address, token): (SocketAddr, &str) = (address?, token?);
    if section.get("tls").is_none() && !address.ip().is_loopback() {
        let message =
            format!("{} is not a loopback address: anyone on the path could read the token", address.ip());
        report.error_help(
            listen.unwrap_or(node).span,
            message,
            "write `tls`, or listen on 127.0.0.1 or [::1]",
        );
    }
    (report.errors() == before).then(|| ControlOver { listen: address, token: token.into(), tls })
}
