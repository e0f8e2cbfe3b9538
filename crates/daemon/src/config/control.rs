//! `control`: where services and back ends are controlled over HTTP, and by whom.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use weir_config::raw::Node;
use weir_config::section::{Section, list, parsed, text};
use weir_config::{Key, Report, Shape};

pub(super) const KEYS: &[Key] = weir_config::keys! {
    needed "listen": Shape::Endpoint, "address and port; without `tls` a loopback address";
    needed "token": Shape::Text, "the file with the token that requests must carry";
    "view_token": Shape::Text, "the file with a read-only token";
    "nodes": Shape::List(&Shape::Text), "the addresses of the fleet's web pages, such as https://lb1:9106";
    "tls": Shape::Map(TLS), "the certificate and its key, required for other addresses";
};
const TLS: &[Key] = weir_config::keys! {
    needed "certificate": Shape::Text, "the file with the certificate chain, as PEM";
    needed "key": Shape::Text, "the file with its private key, as PEM";
};

/// The maximum number of nodes in the fleet view.
const NODES_MAX: usize = 64;

/// Where control over HTTP listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlOver {
    /// The address and port on which requests are accepted.
    pub listen: SocketAddr,
    /// The file with the token.
    pub token: PathBuf,
    /// The file with the read-only token.
    pub view_token: Option<PathBuf>,
    /// The origins of the nodes that the web page shows side by side, and whose pages may query this node.
    pub nodes: Vec<String>,
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
    let view_token = section.get("view_token").and_then(|node| text(node, "a file", report));
    let nodes = section.get("nodes").map(|node| nodes(node, report)).unwrap_or_default();
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
    let view_token = view_token.map(PathBuf::from);
    (report.errors() == before).then(|| ControlOver {
        listen: address,
        token: token.into(),
        view_token,
        nodes,
        tls,
    })
}

impl ControlOver {
    /// Returns the address of the web page, on a host with this name.
    #[must_use]
    pub fn url(&self, host: &str) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match self.listen.ip().is_unspecified() {
            true => format!("{scheme}://{host}:{}", self.listen.port()),
            false => format!("{scheme}://{}", self.listen),
        }
    }
}

/// Reads the addresses of nodes.
fn nodes(node: &Node, report: &mut Report) -> Vec<String> {
    let mut nodes: Vec<String> = Vec::new();
    for one in list(node, "nodes", report) {
        let Some(address) = text(one, "an address", report) else { continue };
        let address = address.strip_suffix('/').unwrap_or(address);
        if !is_origin(address) {
            let message = format!("`{address}` is not the address of a node's web page");
            report.error_help(one.span, message, "write scheme, name and port, as in https://lb1:9106");
        } else if address.strip_prefix("http://").is_some_and(|host| !is_loopback(host)) {
            let message = format!(
                "`{address}` is not encrypted: anyone on the path could read the token that it is sent"
            );
            report.error_help(one.span, message, "write https://; only loopback addresses may have http://");
        } else if nodes.iter().any(|other| other == address) {
            report.error(one.span, format!("`{address}` is listed twice"));
        } else if nodes.len() == NODES_MAX {
            report.error(one.span, format!("a fleet view has at most {NODES_MAX} nodes"));
            break;
        } else {
            nodes.push(address.to_string());
        }
    }
    nodes
}

/// Whether a text is an origin as browsers write it: in lower case, and without the default port of the
/// scheme.
fn is_origin(text: &str) -> bool {
    let rest = text.strip_prefix("https://").map(|rest| (rest, ":443"));
    let Some((host, usual)) = rest.or_else(|| text.strip_prefix("http://").map(|rest| (rest, ":80"))) else {
        return false;
    };
    let is_of_host = |one: char| one.is_ascii_lowercase() || one.is_ascii_digit() || ".-:[]".contains(one);
    !host.is_empty() && !host.ends_with(usual) && host.len() <= 255 && host.chars().all(is_of_host)
}

/// Whether a host of an origin, with or without a port, is this host itself.
fn is_loopback(host: &str) -> bool {
    let is_port = |text: &str| text.bytes().all(|one| one.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_six = inner.and_then(|inner| inner.parse::<Ipv6Addr>().ok()).is_some_and(|ip| ip.is_loopback());
    is_six || name == "localhost" || name.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_config::raw;

    #[test]
    fn origins_are_written_as_browsers_send_them() {
        for good in ["https://lb1:9106", "http://127.0.0.1:9106", "https://[2001:db8::1]:9106", "https://a.b"]
        {
            assert!(is_origin(good), "{good}");
        }
        let with_path = "https://lb1:9106/x";
        let injected = "https://lb1; script-src *";
        for wrong in ["lb1:9106", "https://", "https://LB1", "https://a:443", "ftp://a", with_path, injected]
        {
            assert!(!is_origin(wrong), "{wrong}");
        }
    }

    #[test]
    fn only_nodes_on_this_host_may_be_without_encryption() {
        let read = |address: &str| {
            let mut report = Report::new("weir.yaml", format!("[\"{address}\"]"));
            let node = raw::parse(&report.text(), &mut report).unwrap();
            let nodes = nodes(&node, &mut report);
            (nodes, report.to_string())
        };
        let good =
            ["https://lb2:9106", "http://127.0.0.1:9106", "http://[::1]:9106", "http://localhost:9106"];
        for good in good {
            assert_eq!(read(good), (vec![good.to_string()], String::new()));
        }
        let named = ["http://lb2:9106", "http://localhost.example", "http://127.0.0.1.example:9106"];
        let numbered = ["http://10.0.0.1:9106", "http://[2001:db8::1]:9106", "http://[::1].example"];
        for wrong in named.into_iter().chain(numbered) {
            let (nodes, said) = read(wrong);
            assert!(nodes.is_empty(), "{wrong}");
            let part = format!("`{wrong}` is not encrypted");
            assert!(said.contains(&part) && said.contains("weir.yaml:1:2"), "{said}");
        }
    }
}
