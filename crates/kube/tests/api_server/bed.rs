//! The cluster, its nodes and its controllers.

use crate::network::ClusterNetwork;
use futures::StreamExt;
use hyper::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use weir_client::{Client, Services};

/// How long to wait for something that comes soon, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How many requests to the API server are under way at a time.
const PARALLEL: usize = 16;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const NODES: [u16; 2] = [9131, 9132];
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
pub const SERVICES: &str = "/api/v1/namespaces/shop/services";

/// What nodes are configured with beside their ports: a NAT pool for `full_nat`, and no services of their
/// own.
const APPS: &str = "nat_pools: { out: { addresses: 10.1.255.0/29 } }\napps:\n  - lb: {}\n";

/// A program that ends with the test.
pub struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl RunningProgram {
    fn start(command: &mut Command) -> RunningProgram {
        RunningProgram(command.spawn().unwrap_or_else(|why| panic!("{command:?}: {why}")))
    }

    /// Ends it with SIGTERM, as Kubernetes does.
    pub fn end(mut self) {
        assert!(Command::new("kill").arg(self.0.id().to_string()).status().unwrap().success());
        assert!(self.0.wait().unwrap().success(), "it ends in order");
    }

    /// Returns how much of its memory is in use, and was at most, in kB.
    pub fn memory_kb(&self) -> [u64; 2] {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        ["VmRSS:", "VmHWM:"].map(|key| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        })
    }
}

/// The cluster and its nodes, the last of which carries packets.
pub struct Bed {
    folder: PathBuf,
    runtime: Runtime,
    api: kube::Client,
    pub nodes: Vec<(Client, RunningProgram)>,
    pub network: ClusterNetwork,
}

/// A controller, and where it answers.
pub struct Controller {
    pub program: RunningProgram,
    address: String,
}

pub fn wait<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < end, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Bed {
    pub fn new() -> Bed {
        let kubeconfig = Kubeconfig::read_from(std::env::var("KUBECONFIG").unwrap()).unwrap();
        let folder = std::env::temp_dir().join(format!("weir-cluster-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let token = folder.join("token");
        std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
        Command::new("chmod").arg("600").arg(&token).status().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let api = runtime.block_on(async {
            let options = KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
            kube::Client::try_from(config).unwrap()
        });
        let network = ClusterNetwork::build();
        let mut nodes: Vec<_> = NODES.iter().map(|port| node(&folder, *port)).collect();
        nodes.push(packet_node(&folder, &network));
        Bed { folder, runtime, api, nodes, network }
    }

    /// Sends a request to the API server.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, kube::Error> {
        self.runtime.block_on(self.api.request::<Value>(api_request(method, path, body)))
    }

    pub fn get(&self, path: &str) -> Value {
        self.ask("GET", path, &Value::Null).unwrap()
    }

    pub fn create(&self, path: &str, object: &Value) {
        self.ask("POST", path, object).unwrap_or_else(|why| panic!("{path}: {object}: {why}"));
    }

    /// Creates objects, several at a time.
    pub fn create_all(&self, objects: impl Iterator<Item = (&'static str, Value)>) {
        let send = |(path, object): (&str, Value)| {
            let (api, request) = (self.api.clone(), api_request("POST", path, &object));
            async move { api.request::<Value>(request).await.unwrap_or_else(|why| panic!("{object}: {why}")) }
        };
        let all = futures::stream::iter(objects).map(send).buffer_unordered(PARALLEL);
        self.runtime.block_on(all.for_each(|_| std::future::ready(())));
    }

    /// Replaces the endpoints of a service's slice.
    pub fn put_endpoints(&self, name: &str, endpoints: &[Value]) {
        let change = json!({ "endpoints": endpoints });
        self.ask("PATCH", &format!("{SLICES}/{name}"), &change).unwrap();
    }

    /// The same, with ready endpoints.
    pub fn put_slice(&self, name: &str, addresses: &[String]) {
        let endpoints: Vec<Value> = addresses.iter().map(|ip| json!({ "addresses": [ip] })).collect();
        self.put_endpoints(name, &endpoints);
    }

    pub fn services(&self, node: usize) -> Services {
        self.runtime.block_on(self.nodes[node].0.services()).unwrap()
    }

    /// Waits until all nodes have a service with just these back ends.
    pub fn until(&self, service: &str, back_ends: &[&str]) {
        for node in 0..self.nodes.len() {
            let end = Instant::now() + PATIENCE;
            loop {
                let has = self.back_ends(node, service);
                if has.as_ref().is_some_and(|has| has == back_ends) {
                    break;
                }
                assert!(Instant::now() < end, "{service} at node {node}: {has:?}, not {back_ends:?}");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Whether a service has a back end with this address on a node.
    pub fn has(&self, node: usize, service: &str, ip: &str) -> bool {
        let found = self.runtime.block_on(self.nodes[node].0.service(service));
        let found = found.unwrap_or_else(|why| panic!("{service}: {why}"));
        found["back_ends"].as_array().is_some_and(|all| all.iter().any(|one| one["ip"] == ip))
    }

    /// Returns the addresses of the back ends that get new flows, in order.
    pub fn back_ends(&self, node: usize, service: &str) -> Option<Vec<String>> {
        let services = self.services(node).services;
        let service = services.iter().find(|one| one["name"] == service)?;
        let all = service["back_ends"].as_array()?.iter();
        let mut all: Vec<String> = all
            .filter(|one| one["weight"] != 0 && one["state"] != "draining")
            .filter_map(|one| one["ip"].as_str().map(Into::into))
            .collect();
        all.sort();
        Some(all)
    }

    /// Returns what the node that carries packets says about frames that it has dropped.
    pub fn drops(&self) -> String {
        let mut weir = Command::new(std::env::var("WEIR").unwrap());
        let shown = weir.args(["show", "drops", "--socket"]).arg(socket(&self.folder)).output();
        String::from_utf8_lossy(&shown.unwrap().stdout).into_owned()
    }

    /// Writes a kubeconfig with which controllers have the permissions of an account.
    pub fn use_account(&self, token: &str) {
        let path = std::env::var("KUBECONFIG").unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once("token: ").unwrap();
        let (_, after) = rest.split_once(' ').unwrap();
        std::fs::write(self.folder.join("kubeconfig"), format!("{before}token: {token} {after}")).unwrap();
    }

    pub fn controller(&self, name: &str) -> Controller {
        let token = self.folder.join("token");
        let mut nodes = String::new();
        for port in NODES {
            let token = token.display();
            nodes += &format!("  - {{ name: n{port}, url: 'http://127.0.0.1:{port}', token: {token} }}\n");
        }
        nodes += &format!("  - {{ name: packets, url: 'unix:{}' }}\n", socket(&self.folder).display());
        let config = self.folder.join(name);
        let text = format!(
            "listen: 127.0.0.1:0\ntemplate: {{ port: p0, nat_pool: out, announce: arp }}\n\
             each: {{ mode: full_nat, mac: {} }}\n\
             pools: [{{ name: a, addresses: [192.0.2.0/24, 10.200.0.0/16] }}]\n\
             lease: {{ namespace: weir-system, duration_s: 3 }}\nnodes:\n{nodes}",
            ClusterNetwork::SERVERS_MAC
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-kube"));
        command.arg("--config").arg(config).arg("--kubeconfig").arg(self.folder.join("kubeconfig"));
        let mut program = RunningProgram::start(command.stderr(Stdio::piped()));
        let mut lines = BufReader::new(program.0.stderr.take().unwrap()).lines().map_while(Result::ok);
        let line = lines.find_map(|line| {
            eprintln!("{line}");
            line.split_once("/readyz on ").map(|(_, address)| address.trim().to_string())
        });
        std::thread::spawn(move || lines.for_each(|line| eprintln!("{line}")));
        Controller { program, address: line.unwrap() }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn api_request(method: &str, path: &str, body: &Value) -> Request<Vec<u8>> {
    let kind = match method {
        "PATCH" if path.contains("fieldManager=") => "application/apply-patch+yaml",
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    request.body(body.to_string().into_bytes()).unwrap()
}

impl Controller {
    pub fn get(&self, path: &str) -> (bool, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        (text.starts_with("HTTP/1.1 200"), text)
    }

    pub fn until_ready(&self) {
        wait("ready", || self.get("/readyz").0.then_some(()));
    }
}

/// A node without packets, which is controlled over HTTP.
fn node(folder: &Path, port: u16) -> (Client, RunningProgram) {
    let here = folder.join(port.to_string());
    std::fs::create_dir_all(&here).unwrap();
    std::fs::copy(folder.join("token"), here.join("token")).unwrap();
    let text = format!(
        "control: {{ listen: \"127.0.0.1:{port}\", token: token }}\n\
         ports: {{ p0: {{ mem: ~, mac: 02:00:00:00:00:01 }} }}\n{APPS}"
    );
    let weir = Command::new(std::env::var("WEIR").unwrap());
    started(&here, &text, weir, Client::tcp(format!("127.0.0.1:{port}"), TOKEN))
}

/// A node with packets, which is controlled over its socket, because it is in a network of its own.
fn packet_node(folder: &Path, network: &ClusterNetwork) -> (Client, RunningProgram) {
    let socket = socket(folder);
    let here = socket.parent().unwrap();
    std::fs::create_dir_all(here).unwrap();
    let text = format!("ports: {{ p0: {{ xdp: eth0 }} }}\n{APPS}");
    let weir = network.node.preferred(&std::env::var("WEIR").unwrap());
    started(here, &text, weir, Client::unix(&socket))
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("packets/weir.sock")
}

fn started(folder: &Path, text: &str, mut weir: Command, client: Client) -> (Client, RunningProgram) {
    std::fs::write(folder.join("weir.yaml"), text).unwrap();
    weir.arg("run").arg("weir.yaml").arg("--socket").arg("weir.sock").current_dir(folder);
    let program = RunningProgram::start(&mut weir);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    wait("a node", || runtime.block_on(client.services()).ok());
    (client, program)
}
