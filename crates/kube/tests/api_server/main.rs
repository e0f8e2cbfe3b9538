//! The program, a real API server of Kubernetes with its etcd, and two nodes. `make test-kube` starts the
//! server by tests/kube/serve and names `weir` in WEIR. There are no kubelets and no other controllers, so
//! the test writes what they would write.

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

/// How long to wait for what comes soon, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a restart may take, and the memory that the controller may use.
const RESTART_MAX: Duration = Duration::from_secs(10);
const MEMORY_MAX_KB: u64 = 200 << 10;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const NODES: [u16; 2] = [9131, 9132];
const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
const SERVICES: &str = "/api/v1/namespaces/shop/services";

/// A program that ends with the test.
struct RunningProgram(Child);

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

    /// Ends it as SIGTERM does.
    fn end(mut self) {
        assert!(Command::new("kill").arg(self.0.id().to_string()).status().unwrap().success());
        assert!(self.0.wait().unwrap().success(), "it ends in order");
    }

    /// Returns how much of its memory is in use, in kB.
    fn memory_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// The cluster and its nodes.
struct Bed {
    folder: PathBuf,
    runtime: Runtime,
    api: kube::Client,
    nodes: Vec<(Client, RunningProgram)>,
}

/// A controller, and where it answers.
struct Controller {
    program: RunningProgram,
    address: String,
}

fn wait<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
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
    fn new() -> Bed {
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
        let nodes = NODES.iter().map(|port| node(&folder, *port)).collect();
        Bed { folder, runtime, api, nodes }
    }

    /// Sends a request to the API server.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, kube::Error> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let request = request.body(body.to_string().into_bytes()).unwrap();
        self.runtime.block_on(self.api.request::<Value>(request))
    }

    fn get(&self, path: &str) -> Value {
        self.ask("GET", path, &Value::Null).unwrap()
    }

    fn create(&self, path: &str, object: &Value) {
        self.ask("POST", path, object).unwrap_or_else(|why| panic!("{path}: {object}: {why}"));
    }

    fn put_slice(&self, name: &str, addresses: &[String]) {
        let endpoints: Vec<Value> = addresses.iter().map(|ip| json!({ "addresses": [ip] })).collect();
        let change = json!({ "endpoints": endpoints });
        self.ask("PATCH", &format!("{SLICES}/{name}"), &change).unwrap();
    }

    fn services(&self, node: usize) -> Services {
        self.runtime.block_on(self.nodes[node].0.services()).unwrap()
    }

    /// Waits until all nodes have a service with just these back ends.
    fn until(&self, service: &str, back_ends: &[&str]) {
        for node in 0..self.nodes.len() {
            let mut last = None;
            wait(&format!("{service} at node {node}"), || {
                last = self.back_ends(node, service);
                last.as_ref().is_some_and(|last| last == back_ends).then_some(())
            });
        }
    }

    /// Returns the addresses of the back ends that get new flows, in order.
    fn back_ends(&self, node: usize, service: &str) -> Option<Vec<String>> {
        let services = self.services(node).services;
        let service = services.iter().find(|one| one["name"] == service)?;
        let all = service["back_ends"].as_array()?.iter();
        let mut all: Vec<String> = all
            .filter(|one| one["weight"] != 0)
            .filter_map(|one| one["ip"].as_str().map(Into::into))
            .collect();
        all.sort();
        Some(all)
    }

    fn controller(&self, name: &str) -> Controller {
        let mut nodes = String::new();
        for port in NODES {
            let token = self.folder.join("token");
            nodes += &format!(
                "  - {{ name: n{port}, url: 'http://127.0.0.1:{port}', token: {} }}\n",
                token.display()
            );
        }
        let config = self.folder.join(name);
        let text = format!(
            "listen: 127.0.0.1:0\ntemplate: {{ port: p0, source: 198.51.100.254 }}\n\
             each: {{ mode: ipip, mac: 02:00:00:00:00:fe }}\n\
             pools: [{{ name: a, addresses: [192.0.2.0/24, 10.200.0.0/16] }}]\n\
             lease: {{ namespace: shop, duration_s: 3 }}\nnodes:\n{nodes}"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-kube"));
        command.arg("--config").arg(config).arg("--kubeconfig").arg(std::env::var("KUBECONFIG").unwrap());
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

impl Controller {
    fn get(&self, path: &str) -> (bool, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        (text.starts_with("HTTP/1.1 200"), text)
    }

    fn until_ready(&self) {
        wait("ready", || self.get("/readyz").0.then_some(()));
    }
}

fn node(folder: &Path, port: u16) -> (Client, RunningProgram) {
    let here = folder.join(port.to_string());
    std::fs::create_dir_all(&here).unwrap();
    std::fs::copy(folder.join("token"), here.join("token")).unwrap();
    let text = format!(
        "control: {{ listen: \"127.0.0.1:{port}\", token: token }}\n\
         ports: {{ p0: {{ mem: ~, mac: 02:00:00:00:00:01 }} }}\napps:\n  - lb: {{}}\n"
    );
    std::fs::write(here.join("weir.yaml"), text).unwrap();
    let mut command = Command::new(std::env::var("WEIR").unwrap());
    command.arg("run").arg("weir.yaml").arg("--socket").arg("weir.sock").current_dir(&here);
    let program = RunningProgram::start(&mut command);
    let client = Client::tcp(format!("127.0.0.1:{port}"), TOKEN);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    wait("a node", || runtime.block_on(client.services()).ok());
    (client, program)
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "weir-net.github.io/lb",
            "allocateLoadBalancerNodePorts": false,
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        },
    })
}

fn slice(service: &str, addresses: &[String]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": service, "labels": { "kubernetes.io/service-name": service } },
        "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        "endpoints": addresses.iter().map(|ip| json!({ "addresses": [ip] })).collect::<Vec<_>>(),
    })
}

fn endpoints(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let all = status["conditions"].as_array().unwrap();
    &all.iter().find(|one| one["type"] == kind).unwrap_or_else(|| panic!("no {kind}: {status}"))["status"]
}

#[test]
#[ignore = "needs an API server: make test-kube"]
fn objects_of_a_real_api_server_reach_nodes() {
    let bed = Bed::new();
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } });
    bed.create("/api/v1/namespaces", &namespace);
    let first = bed.controller("first.yaml");
    first.until_ready();
    endpoints_come_and_go(&bed);
    a_gateway_has_conditions(&bed);

    // Another controller takes over from one that was killed.
    let second = bed.controller("second.yaml");
    drop(first);
    bed.put_slice("web", &endpoints(&["10.1.0.4"]));
    bed.until("shop.web.80-tcp", &["10.1.0.4"]);
    second.until_ready();

    // The API server is away: nodes keep what they have, and follow once it is back.
    let server = PathBuf::from(std::env::var("KUBE_SERVER").unwrap());
    let pid = std::fs::read_to_string(server.join("server.pid")).unwrap();
    assert!(Command::new("kill").args(["-9", pid.trim()]).status().unwrap().success());
    wait("not ready", || (!second.get("/readyz").0).then_some(()));
    bed.until("shop.web.80-tcp", &["10.1.0.4"]);
    assert!(Command::new(server.join("start")).status().unwrap().success());
    bed.put_slice("web", &endpoints(&["10.1.0.5"]));
    bed.until("shop.web.80-tcp", &["10.1.0.5"]);

    many(&bed, second);
}

/// A service, its address, a rolling update, none, and again.
fn endpoints_come_and_go(bed: &Bed) {
    bed.create(SERVICES, &service("web"));
    bed.create(SLICES, &slice("web", &endpoints(&["10.1.0.1", "10.1.0.2"])));
    bed.until("shop.web.80-tcp", &["10.1.0.1", "10.1.0.2"]);
    let path = format!("{SERVICES}/web");
    let address: String = wait("an address", || {
        bed.get(&path)["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().map(Into::into)
    });
    assert_eq!(bed.services(0).services[0]["service"]["vip"], address.as_str());
    bed.put_slice("web", &endpoints(&["10.1.0.2", "10.1.0.3"]));
    bed.until("shop.web.80-tcp", &["10.1.0.2", "10.1.0.3"]);
    bed.put_slice("web", &[]);
    bed.until("shop.web.80-tcp", &[]);
    bed.put_slice("web", &endpoints(&["10.1.0.9"]));
    bed.until("shop.web.80-tcp", &["10.1.0.9"]);
    bed.ask("DELETE", &path, &json!({})).unwrap();
    wait("no service", || bed.services(0).services.is_empty().then_some(()));
    bed.create(SERVICES, &service("web"));
    bed.until("shop.web.80-tcp", &["10.1.0.9"]);
}

/// A gateway and a route reach the nodes, and get their conditions.
fn a_gateway_has_conditions(bed: &Bed) {
    let create = |path: &str, kind: &str, name: &str, spec: Value| {
        let version = "gateway.networking.k8s.io/v1";
        let object =
            json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec });
        bed.create(&format!("{GATEWAYS}/{path}"), &object);
    };
    let class = json!({ "controllerName": "weir-net.github.io/gateway" });
    create("gatewayclasses", "GatewayClass", "weir", class);
    let listener = json!({ "name": "db", "port": 5432, "protocol": "TCP" });
    let edge = json!({ "gatewayClassName": "weir", "listeners": [listener] });
    create("namespaces/shop/gateways", "Gateway", "edge", edge);
    let rule = json!({ "backendRefs": [{ "name": "web", "port": 80 }] });
    let route = json!({ "parentRefs": [{ "name": "edge" }], "rules": [rule] });
    create("namespaces/shop/tcproutes", "TCPRoute", "db", route);
    let gateway = format!("{GATEWAYS}/namespaces/shop/gateways/edge");
    wait("a programmed gateway", || {
        let status = &bed.get(&gateway)["status"];
        let all = status["conditions"].as_array()?;
        all.iter().find(|one| one["type"] == "Programmed" && one["status"] == "True").map(drop)
    });
    bed.until("gateway.shop.edge.5432-tcp", &["10.1.0.9"]);
    let class = bed.get(&format!("{GATEWAYS}/gatewayclasses/weir"));
    assert_eq!(condition(&class["status"], "Accepted"), "True");
    let listener = &bed.get(&gateway)["status"]["listeners"][0];
    assert_eq!((condition(listener, "Programmed"), &listener["attachedRoutes"]), (&json!("True"), &json!(1)));
    let route = bed.get(&format!("{GATEWAYS}/namespaces/shop/tcproutes/db"));
    let parent = &route["status"]["parents"][0];
    assert_eq!([condition(parent, "Accepted"), condition(parent, "ResolvedRefs")], ["True", "True"]);
}

/// 1000 services with ten endpoints each; a change of one of them is timed, and a restart changes nothing.
fn many(bed: &Bed, controller: Controller) {
    const SERVICES_MAX: usize = 1000;
    let begun = Instant::now();
    let all = |at: usize, last: usize| -> Vec<String> {
        (1..10).chain([last]).map(|one| format!("10.{}.{}.{one}", 2 + at / 250, at % 250)).collect()
    };
    for at in 0..SERVICES_MAX {
        let name = format!("s{at}");
        bed.create(SLICES, &slice(&name, &all(at, 10)));
        bed.create(SERVICES, &service(&name));
    }
    wait("1000 services", || (bed.services(1).services.len() == SERVICES_MAX + 2).then_some(()));
    println!("{SERVICES_MAX} services were written, and are on the nodes, after {:.1?}", begun.elapsed());

    let mut times = Vec::new();
    for at in (0..SERVICES_MAX).step_by(50) {
        let (service, changed) = (format!("shop.s{at}.80-tcp"), all(at, 11));
        let begun = Instant::now();
        bed.put_slice(&format!("s{at}"), &changed);
        wait(&service, || bed.back_ends(0, &service)?.contains(&changed[9]).then_some(()));
        times.push(begun.elapsed());
    }
    times.sort();
    println!(
        "from the API write until a client sees the change at a node: median {:.1?}, p99 {:.1?}, max {:.1?}",
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        times[times.len() - 1]
    );
    let (_, metrics) = controller.get("/metrics");
    metrics.lines().filter(|line| line.contains("node_delay")).for_each(|line| println!("{line}"));
    println!("memory of the controller: {} kB", controller.program.memory_kb());
    assert!(controller.program.memory_kb() < MEMORY_MAX_KB);

    let before: Vec<_> = (0..2).map(|node| bed.services(node).status.etag).collect();
    controller.program.end();
    let begun = Instant::now();
    let again = bed.controller("again.yaml");
    again.until_ready();
    println!("a restart took {:.1?}", begun.elapsed());
    assert!(begun.elapsed() < RESTART_MAX);
    let after: Vec<_> = (0..2).map(|node| bed.services(node).status.etag).collect();
    assert_eq!(before, after, "a restart changes nothing on nodes");
}
