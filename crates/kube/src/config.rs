//! The configuration file.

use crate::objects::Protocol;
use crate::pools::{Pool, Pools};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The domain of weir's names in Kubernetes.
pub const DOMAIN: &str = "weir-net.github.io";

/// The largest configuration file in bytes.
const FILE_MAX: u64 = 16 << 20;

/// The configuration: which objects are this controller's, which addresses it gives them, and which nodes it
/// sends services to.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The `loadBalancerClass` of the services that this controller implements.
    #[serde(default = "default_class")]
    pub class: String,
    /// The `controllerName` of the gateway classes that this controller implements.
    #[serde(default = "default_controller")]
    pub controller: String,
    /// Where `/metrics` and `/readyz` are served.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// The addresses for services and gateways.
    #[serde(default)]
    pub pools: Pools,
    /// Keys of every service on nodes: all keys of the app lb except `name`, `service` and `back_ends`.
    pub template: Map<String, Value>,
    /// Keys of every back end, except those that an endpoint provides.
    #[serde(default)]
    pub each: Map<String, Value>,
    /// The nodes, which are instances of `weir run`.
    #[serde(default)]
    pub nodes: Vec<NodeConfig>,
    /// The lease by which one of several controllers is elected. Without it, there is no election.
    pub lease: Option<LeaseName>,
    /// How long changes are collected before they are sent, in milliseconds.
    #[serde(default = "default_debounce")]
    pub debounce_ms: u64,
}

/// A node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The name, in logs and metrics.
    pub name: String,
    /// `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`.
    pub url: String,
    /// The file with the token of its `control`; a control socket needs none.
    pub token: Option<PathBuf>,
    /// The file with the certificates to trust, for `https`.
    pub certificates: Option<PathBuf>,
    /// The name of its Kubernetes node, if it is one. A service with `externalTrafficPolicy: Local` then has
    /// only the endpoints on that node.
    pub kubernetes_node: Option<String>,
    /// Its zone. Endpoints whose hints name other zones then get no new flows.
    pub zone: Option<String>,
}

/// The name of the lease, and for how long a leader has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseName {
    /// The namespace of the lease.
    pub namespace: String,
    /// The name of the lease.
    #[serde(default = "default_lease")]
    pub name: String,
    /// After how many seconds without renewal another controller may take over, from 3 to 3600.
    #[serde(default = "default_duration")]
    pub duration_s: u16,
}

fn default_class() -> String {
    format!("{DOMAIN}/lb")
}

fn default_controller() -> String {
    format!("{DOMAIN}/gateway")
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9108))
}

fn default_debounce() -> u64 {
    5
}

fn default_lease() -> String {
    "weir-kube".into()
}

fn default_duration() -> u16 {
    15
}

/// Reads a file of at most `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<String> {
    let mut text = String::new();
    // Bounded: by `max`, beyond which the file is refused.
    let file = File::open(path)?;
    // Bounded: as the line above says.
    let length = file.take(max + 1).read_to_string(&mut text)?;
    if length as u64 > max {
        return Err(io::Error::other(format!("the file has more than {max} bytes")));
    }
    Ok(text)
}

/// The keys of a service or a back end that come from the objects.
const SERVICE_KEYS: [&str; 4] = ["name", "service", "back_ends", "from"];
const BACK_END_KEYS: [&str; 5] = ["name", "ip", "port", "weight", "state"];

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is wrong; the text names the file and the place.
    pub fn read(path: &Path) -> anyhow::Result<Config> {
        let shown = path.display();
        let wrong = |why: String| anyhow::anyhow!("{shown}: {why}");
        let text = read(path, FILE_MAX).map_err(|why| wrong(why.to_string()))?;
        Config::parse(&text).map_err(wrong)
    }

    /// Reads YAML.
    ///
    /// # Errors
    /// The text says where the configuration is wrong, and how.
    pub fn parse(text: &str) -> Result<Config, String> {
        // serde-saphyr limits depth, size and aliases.
        let config: Config = serde_saphyr::from_str(text).map_err(|why| why.to_string())?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        self.pools.check()?;
        if let Some(key) = SERVICE_KEYS.iter().find(|key| self.template.contains_key(**key)) {
            return Err(format!("template: `{key}` comes from the objects of the cluster; remove it"));
        }
        if !self.template.contains_key("port") {
            return Err("template: `port` is missing, the port of weir where packets arrive".into());
        }
        if let Some(key) = BACK_END_KEYS.iter().find(|key| self.each.contains_key(**key)) {
            return Err(format!("each: `{key}` comes from the endpoints; remove it"));
        }
        let mut names = BTreeSet::new();
        for node in &self.nodes {
            let wrong = |why: &str| Err(format!("node `{}`: {why}", node.name));
            if !names.insert(&node.name) {
                return wrong("another node has the same name");
            }
            let is_socket = node.url.starts_with("unix:");
            let is_tls = node.url.starts_with("https://");
            if !is_socket && !is_tls && !node.url.starts_with("http://") {
                return wrong("`url` is http://HOST:PORT, https://HOST:PORT or unix:PATH");
            }
            if !is_socket && node.token.is_none() {
                return wrong("`token` is missing, the file with the token of the node's `control`");
            }
            if is_tls != node.certificates.is_some() {
                return wrong("`certificates` and `https` need each other");
            }
        }
        match &self.lease {
            Some(lease) if !(3..=3600).contains(&lease.duration_s) => {
                Err("lease: `duration_s` is from 3 to 3600".into())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether nodes send packets to the ports of endpoints. In other modes than address translation, packets
    /// keep the port that clients sent them to.
    #[must_use]
    pub fn translates(&self) -> bool {
        matches!(self.each.get("mode").and_then(Value::as_str), Some("nat" | "full_nat"))
    }

    /// Whether `check` can say anything about a service with this protocol. A check is sent to the endpoint's
    /// port, which need not be open for another protocol, unless the check has a `port` of its own.
    #[must_use]
    pub fn checks(&self, protocol: Protocol) -> bool {
        let keys = [&self.each, &self.template];
        let key = |name: &str| keys.iter().find_map(|keys| keys.get("check")?.get(name));
        let uses = match key("type").and_then(Value::as_str) {
            Some("tcp" | "http" | "https" | "tls") => Protocol::Tcp,
            Some("udp" | "dns") => Protocol::Udp,
            // `icmp` and `none` have no port, and nodes know other types better than this controller.
            Some(_) | None => return true,
        };
        uses == protocol || key("port").is_some()
    }

    /// Returns the pool with a name.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.0.iter().find(|pool| pool.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "template: { port: p0 }\n";

    fn wrong(more: &str) -> String {
        Config::parse(&format!("{SMALL}{more}")).unwrap_err()
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let config = Config::parse(SMALL).unwrap();
        assert_eq!(config.class, "weir-net.github.io/lb");
        assert_eq!(config.controller, "weir-net.github.io/gateway");
        assert!(config.lease.is_none() && !config.translates());
    }

    #[test]
    fn a_wrong_configuration_is_refused_with_its_place() {
        let unknown = wrong("nodez: []\n");
        assert!(unknown.contains("nodez") && unknown.contains('2'), "{unknown}");
        assert!(wrong("each: { ip: 10.0.0.1 }\n").contains("each: `ip`"));
        let node = wrong("nodes: [{ name: a, url: 'http://10.0.0.1:9106' }]\n");
        assert!(node.contains("node `a`: `token` is missing"), "{node}");
        let overlap =
            wrong("pools: [{ name: a, addresses: [192.0.2.0/28] }, { name: b, addresses: [192.0.2.15] }]\n");
        assert!(overlap.contains("`b`") && overlap.contains("`a`") && overlap.contains("192.0.2.15"));
    }
}
