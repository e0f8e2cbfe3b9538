//! The program, with an API server that repeats a conversation (written by hand so far, in the form of
//! Kubernetes 1.33) and a node that accepts everything. Of the Gateway API, the API server has only Gateways:
//! one of another controller, which weir-kube cannot read.

mod packaging;
#[path = "../../cli/tests/prometheus/mod.rs"]
mod prometheus;

use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for what comes soon, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const STATUS: &str = "/api/v1/namespaces/shop/services/web/status";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/weir/leases";

/// A request, of which only this much counts.
#[derive(Clone, Debug)]
struct HttpRequest {
    method: String,
    path: String,
    query: String,
    body: Value,
}

/// What was asked, and what is answered to watches.
#[derive(Default)]
struct Log {
    requests: Mutex<Vec<HttpRequest>>,
    watches: Mutex<HashMap<String, TcpStream>>,
    changed: Condvar,
    lies: AtomicBool,
    /// Whether an event has been refused: the first one is.
    has_refused: AtomicBool,
}

impl Log {
    /// Waits for a request of which this returns something.
    fn wait<T>(&self, what: &str, find: impl Fn(&HttpRequest) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        let mut requests = self.requests.lock().unwrap();
        loop {
            if let Some(found) = requests.iter().rev().find_map(&find) {
                return found;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what}: {requests:#?}");
            requests = self.changed.wait_timeout(requests, left).unwrap().0;
        }
    }

    fn note(&self, request: HttpRequest) {
        self.requests.lock().unwrap().push(request);
        self.changed.notify_all();
    }

    /// Sends a line to the watch of a path, and waits for the watch if there is none yet.
    fn send(&self, path: &str, line: &str) {
        self.wait("a watch", |one| (one.path == path && one.query.contains("watch=true")).then_some(()));
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(stream) = self.watches.lock().unwrap().get_mut(path) {
                write!(stream, "{:x}\r\n{line}\n\r\n", line.len() + 1).unwrap();
                return;
            }
            assert!(Instant::now() < end, "no watch of {path}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Log {
    /// Sends a last line to the watch of a path: another one needs another watch.
    fn send_last(&self, path: &str, line: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let stream = self.watches.lock().unwrap().remove(path);
            if let Some(mut stream) = stream {
                write!(stream, "{:x}\r\n{line}\n\r\n", line.len() + 1).unwrap();
                return;
            }
            assert!(Instant::now() < end, "no watch of {path}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns a status and a body, or nothing for a watch.
type ApiAnswer = dyn Fn(&Log, &HttpRequest) -> Option<(u16, Value)>;

/// Serves HTTP, each connection in a thread.
fn serve(
    log: &Arc<Log>,
    answer: impl Fn(&Log, &HttpRequest) -> Option<(u16, Value)> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (log, answer) = (log.clone(), Arc::new(answer));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (log, answer) = (log.clone(), answer.clone());
            thread::spawn(move || converse(&log, stream, &*answer));
        }
    });
    address
}

fn converse(log: &Log, mut stream: TcpStream, answer: &ApiAnswer) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read(&mut reader) {
        let answered = answer(log, &request);
        log.note(request.clone());
        // The client may be gone.
        match answered {
            Some((status, body)) => {
                let body = body.to_string();
                let head = format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n");
                if write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).is_err() {
                    return;
                }
            }
            None => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
                if write!(stream, "{head}transfer-encoding: chunked\r\n\r\n").is_err() {
                    return;
                }
                log.watches.lock().unwrap().insert(request.path, stream);
                return;
            }
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<HttpRequest> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_string(), words.next()?.to_string());
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        if header.trim().is_empty() {
            break;
        }
        let (name, value) = header.split_once(':')?;
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some(HttpRequest { method, path: path.into(), query: query.into(), body })
}

/// The API server.
fn api(
    lease: &Mutex<Option<Value>>,
    lists: &Value,
    log: &Log,
    request: &HttpRequest,
) -> Option<(u16, Value)> {
    let status = |code: u16| {
        (code, json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": code }))
    };
    if request.path == "/version" {
        return Some((
            200,
            json!({ "major": "1", "minor": "33", "gitVersion": "v1.33.0", "gitCommit": "",
            "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "" }),
        ));
    }
    if request.path.starts_with(LEASES) {
        let mut lease = lease.lock().unwrap();
        if request.method != "GET" {
            *lease = Some(request.body.clone());
        }
        return Some(lease.clone().map_or_else(|| status(404), |lease| (200, lease)));
    }
    if request.body["kind"] == "Event" && !log.has_refused.swap(true, Ordering::Relaxed) {
        return Some(status(500));
    }
    if request.method == "PATCH" || request.method == "POST" {
        // What was sent is as good as what a server would make of it.
        let mut body = request.body.clone();
        if request.path == STATUS {
            body = lists[SERVICES]["items"][0].clone();
            body["status"] = request.body["status"].clone();
            body["metadata"]["resourceVersion"] = "101".into();
            log.send(SERVICES, &json!({ "type": "MODIFIED", "object": body }).to_string());
        }
        return Some((200, body));
    }
    match lists.get(&request.path) {
        Some(_) if log.lies.load(Ordering::Relaxed) => Some((200, json!({ "items": [{ "spec": 7 }] }))),
        Some(_) if request.query.contains("watch=true") => None,
        Some(list) => Some((200, list.clone())),
        None => Some(status(404)),
    }
}

/// Ends the program with the test.
struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str) -> (bool, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    (text.starts_with("HTTP/1.1 200"), text)
}

/// Waits for an answer of the program.
fn until(address: &str, path: &str, wanted: impl Fn(bool, &str) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        let (is_ok, text) = get(address, path);
        if wanted(is_ok, &text) {
            return;
        }
        assert!(Instant::now() < end, "{path}: {text}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the addresses of the back ends of the service in a PUT of it or of all services.
fn back_ends(request: &HttpRequest) -> Option<Vec<String>> {
    let is_all = request.body.get("services").and_then(Value::as_array);
    let all = is_all.map_or_else(|| std::slice::from_ref(&request.body), Vec::as_slice);
    let service = all.iter().find(|one| one["name"] == "shop.web.80-tcp")?;
    let all = service["back_ends"].as_array()?;
    Some(all.iter().map(|one| one["ip"].as_str().unwrap().to_string()).collect())
}

/// Starts the program, and returns it with the address where it serves.
fn start(folder: &std::path::Path, api: SocketAddr, node: SocketAddr) -> (RunningProgram, String) {
    std::fs::create_dir_all(folder).unwrap();
    let file = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    let token = file("token", "0123456789abcdef0123456789abcdef\n".into());
    let config = file(
        "config.yaml",
        format!(
            "listen: 127.0.0.1:0
template: {{ port: p0 }}
each: {{ mode: full_nat }}
pools: [{{ name: a, addresses: [192.0.2.0/30] }}]
nodes: [{{ name: n1, url: 'http://{node}', token: '{}' }}]
lease: {{ namespace: weir }}
",
            token.display()
        ),
    );
    let kubeconfig = file(
        "kubeconfig",
        format!(
            "apiVersion: v1
kind: Config
clusters: [{{ name: c, cluster: {{ server: 'http://{api}' }} }}]
users: [{{ name: u, user: {{}} }}]
contexts: [{{ name: x, context: {{ cluster: c, user: u }} }}]
current-context: x
"
        ),
    );
    let program = Command::new(env!("CARGO_BIN_EXE_weir-kube"))
        .arg("--config")
        .arg(config)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .stderr(Stdio::piped())
        .spawn();
    let mut program = RunningProgram(program.unwrap());
    let mut lines = BufReader::new(program.0.stderr.take().unwrap()).lines();
    let line = lines.by_ref().map_while(Result::ok).find_map(|line| {
        eprintln!("{line}");
        line.split_once("/readyz on ").map(|(_, address)| address.trim().to_string())
    });
    thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
    (program, line.unwrap())
}

#[test]
fn objects_reach_nodes_and_what_is_known_stays_when_the_server_lies() {
    let lists: Value = serde_json::from_str(include_str!("conversation.json")).unwrap();
    let (cluster, nodes) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let lease = Mutex::new(None);
    let mut slice = lists[SLICES]["items"][0].clone();
    let api = serve(&cluster, move |log, request| api(&lease, &lists, log, request));
    let node = accepting_node(&nodes);
    let folder = std::env::temp_dir().join(format!("weir-kube-{}", std::process::id()));
    let (mut program, address) = start(&folder, api, node);

    let first = nodes.wait("all services", back_ends);
    assert_eq!(first, ["10.1.0.1"]);
    let status = cluster.wait("a status", |one| (one.path == STATUS).then(|| one.body.clone()));
    let ingress = json!([{ "ip": "192.0.2.0", "ipMode": "VIP" }]);
    assert_eq!(status["status"]["loadBalancer"]["ingress"], ingress);
    assert_eq!(status["metadata"]["resourceVersion"], "90");
    let event = cluster.wait("an event", |one| (one.body["kind"] == "Event").then(|| one.body.clone()));
    assert_eq!(event["reason"], "AddressAssigned");
    let name = &event["metadata"]["name"];
    let is_again =
        |one: &HttpRequest| one.body["reason"] == event["reason"] && one.body["metadata"]["name"] != *name;
    cluster.wait("an event that is sent again", |one| is_again(one).then_some(()));
    until(&address, "/readyz", |is_ok, _| is_ok);

    slice["endpoints"].as_array_mut().unwrap().push(json!({ "addresses": ["10.1.0.2"] }));
    slice["metadata"]["resourceVersion"] = "102".into();
    cluster.send(SLICES, &json!({ "type": "MODIFIED", "object": slice }).to_string());
    nodes.wait("two back ends", |one| back_ends(one).filter(|all| *all == ["10.1.0.1", "10.1.0.2"]));
    let statuses = cluster.requests.lock().unwrap().iter().filter(|one| one.path == STATUS).count();
    assert_eq!(statuses, 1, "an address that is known is not written again");
    until(&address, "/metrics", |is_ok, text| {
        is_ok && text.contains("weir_kube_leader 1") && text.contains("weir_kube_objects{kind=\"Service\"} 1")
    });

    // From here on, the server answers nonsense.
    let before = nodes.requests.lock().unwrap().iter().filter(|one| one.method == "PUT").count();
    cluster.lies.store(true, Ordering::Relaxed);
    let gone = json!({ "type": "ERROR", "object": { "kind": "Status", "status": "Failure", "code": 410,
        "reason": "Expired", "message": "too old resource version" } });
    cluster.send(SLICES, &gone.to_string());
    until(&address, "/readyz", |is_ok, text| !is_ok && text.contains("EndpointSlice: "));
    let after = nodes.requests.lock().unwrap().iter().filter(|one| one.method == "PUT").count();
    assert_eq!(before, after, "nodes keep what they have");

    alerts_and_dashboard_have_answers(&address);

    // It gives the lease back when it ends.
    let ended = Command::new("kill").arg(program.0.id().to_string()).status().unwrap();
    assert!(ended.success() && program.0.wait().unwrap().success());
    let free = |one: &HttpRequest| {
        (one.method == "PUT" && one.path.starts_with(LEASES) && one.body["spec"]["holderIdentity"] == "")
            .then_some(())
    };
    cluster.wait("a free lease", free);
    the_roles_are_just_enough(&cluster.requests.lock().unwrap());
    std::fs::remove_dir_all(folder).unwrap();
}

/// A node that accepts everything.
fn accepting_node(log: &Arc<Log>) -> SocketAddr {
    serve(log, |_, request| match request.method.as_str() {
        "PUT" => Some((200, json!({}))),
        _ => Some((200, json!({ "services": [], "status": { "etag": "1" } }))),
    })
}

/// An event that cannot be read may have removed an object, so there is a new list; a list that lacks most
/// objects is not trusted.
#[test]
fn objects_are_listed_again_after_a_garbled_event_and_do_not_all_vanish() {
    let lists: Value = serde_json::from_str(include_str!("conversation.json")).unwrap();
    let (cluster, nodes) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let lease = Mutex::new(None);
    let slice = lists[SLICES]["items"][0].clone();
    // A list of fewer is believed.
    let others = (1..10).map(|at| {
        let mut other = slice.clone();
        other["metadata"]["name"] = format!("other-{at}").into();
        other["metadata"]["labels"] = json!({});
        other
    });
    let others: Vec<Value> = others.collect();
    let lists = Arc::new(Mutex::new(lists));
    let list = |version: &str, ip: &str| {
        let mut one = slice.clone();
        one["metadata"]["resourceVersion"] = version.into();
        one["endpoints"] = json!([{ "addresses": [ip] }]);
        lists.lock().unwrap()[SLICES]["items"] = [vec![one], others.clone()].concat().into();
    };
    list("91", "10.1.0.1");
    let of_server = lists.clone();
    let api = serve(&cluster, move |log, request| {
        let lists = of_server.lock().unwrap().clone();
        api(&lease, &lists, log, request)
    });
    let folder = std::env::temp_dir().join(format!("weir-kube-lists-{}", std::process::id()));
    let (_program, address) = start(&folder, api, accepting_node(&nodes));
    nodes.wait("all services", back_ends);
    until(&address, "/readyz", |is_ok, _| is_ok);

    let garbled = json!({ "type": "DELETED", "object": { "endpoints": 7 } }).to_string();
    list("103", "10.1.0.7");
    cluster.send_last(SLICES, &garbled);
    nodes.wait("the list", |one| back_ends(one).filter(|all| *all == ["10.1.0.7"]));
    until(&address, "/readyz", |is_ok, _| is_ok);

    lists.lock().unwrap()[SLICES]["items"] = json!([]);
    cluster.send_last(SLICES, &garbled);
    until(&address, "/readyz", |is_ok, text| !is_ok && text.contains("lists 0 objects instead of 10;"));
    list("104", "10.1.0.8");
    nodes.wait("a list that is trusted", |one| back_ends(one).filter(|all| *all == ["10.1.0.8"]));
    until(&address, "/readyz", |is_ok, _| is_ok);
    let has_lost = |one: &HttpRequest| back_ends(one).is_some_and(|all| all.is_empty());
    assert!(!nodes.requests.lock().unwrap().iter().any(has_lost), "nodes keep what they have");
    std::fs::remove_dir_all(folder).unwrap();
}

/// An event that the server never accepts does not hold up others, and events with the same reason but other
/// notes are events of their own.
#[test]
fn each_event_is_sent() {
    let mut lists: Value = serde_json::from_str(include_str!("conversation.json")).unwrap();
    let mut odd = lists[SERVICES]["items"][0].clone();
    odd["metadata"]["name"] = "odd".into();
    odd["metadata"]["annotations"] = json!({ "weir-net.github.io/pool": "none" });
    let port = |port: u16| json!({ "name": format!("p{port}"), "port": port, "protocol": "SCTP" });
    odd["spec"]["ports"] = json!([port(1), port(2)]);
    lists[SERVICES]["items"].as_array_mut().unwrap().push(odd);
    let (cluster, nodes) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let lease = Mutex::new(None);
    let api = serve(&cluster, move |log, request| match request.body["reason"] == "InvalidAnnotation" {
        true => Some((500, json!({ "kind": "Status", "status": "Failure", "code": 500 }))),
        false => api(&lease, &lists, log, request),
    });
    let folder = std::env::temp_dir().join(format!("weir-kube-events-{}", std::process::id()));
    let (_program, _) = start(&folder, api, accepting_node(&nodes));
    for port in [1, 2] {
        let note = format!("port {port} is left out");
        let is_it = |one: &HttpRequest| {
            one.method == "POST" && one.body["note"].as_str().is_some_and(|all| all.contains(&note))
        };
        cluster.wait(&note, |one| is_it(one).then_some(()));
    }
    let requests = cluster.requests.lock().unwrap();
    let refused = requests.iter().filter(|one| one.body["reason"] == "InvalidAnnotation").count();
    assert!(refused >= 5, "{refused}");
    drop(requests);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Every expression about this program in `monitoring/` has an answer, and every metric is documented.
fn alerts_and_dashboard_have_answers(address: &str) {
    let metrics = get(address, "/metrics").1;
    assert!(metrics.contains("content-type: application/openmetrics-text"), "{metrics}");
    prometheus::promtool_accepts(&metrics, &[]);
    if !prometheus::is_installed("prometheus") {
        return;
    }
    let mut expressions = prometheus::expressions();
    expressions.retain(|one| prometheus::is_of_kube(&one.text));
    assert!(expressions.len() > 7, "{expressions:?}");
    let mut documented = prometheus::documented("docs/how-to/kubernetes.md");
    documented.retain(|name| prometheus::is_of_kube(name));
    let prometheus = prometheus::Prometheus::start(&[("weir-kube", &[address])]);
    prometheus.assert_answers(expressions, &documented, || ());
}

/// Returns the permission that a request needs, as `VERB GROUP/RESOURCE`.
fn permission(request: &HttpRequest) -> Option<String> {
    let (group, rest) = match request.path.strip_prefix("/api/v1/") {
        Some(rest) => ("", rest),
        None => request.path.strip_prefix("/apis/")?.split_once('/')?,
    };
    let mut parts: Vec<&str> = rest.split('/').collect();
    if !group.is_empty() {
        // The version.
        parts.remove(0);
    }
    if parts[0] == "namespaces" && parts.len() > 2 {
        parts.drain(..2);
    }
    let (resource, has_name) = match parts[..] {
        [resource] => (resource.to_string(), false),
        [resource, _] => (resource.to_string(), true),
        [resource, _, part] => (format!("{resource}/{part}"), true),
        _ => panic!("{}", request.path),
    };
    let verb = match (request.method.as_str(), has_name) {
        ("GET", false) if request.query.contains("watch=true") => "watch",
        ("GET", false) => "list",
        ("GET", true) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        other => panic!("{other:?}"),
    };
    Some(format!("{verb} {group}/{resource}"))
}

/// The roles in packaging/kubernetes allow exactly what the program needs. Of what they allow, it has not
/// used here: watches, statuses and finalizers of the Gateway API, of which this API server has only
/// Gateways, and patches of repeated events.
fn the_roles_are_just_enough(requests: &[HttpRequest]) {
    let mut granted = BTreeSet::new();
    for role in packaging::base("lb") {
        for rule in role["rules"].as_array().into_iter().flatten() {
            let words = |key: &str| rule[key].as_array().unwrap().iter().map(|one| one.as_str().unwrap());
            for (verb, group, resource) in words("verbs").flat_map(|verb| {
                words("apiGroups")
                    .flat_map(move |group| words("resources").map(move |one| (verb, group, one)))
            }) {
                assert!(granted.insert(format!("{verb} {group}/{resource}")), "{verb} {resource}: twice");
            }
        }
    }
    let asked: BTreeSet<String> = requests.iter().filter_map(permission).collect();
    let missing: Vec<_> = asked.difference(&granted).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let gateways = ["gatewayclasses", "gateways", "referencegrants", "tcproutes", "udproutes"];
    let gateways = gateways.map(|kind| format!("gateway.networking.k8s.io/{kind}"));
    let mut others: BTreeSet<String> = gateways.iter().map(|kind| format!("watch {kind}")).collect();
    let with_status = gateways.iter().filter(|kind| !kind.ends_with("referencegrants"));
    others.extend(with_status.map(|kind| format!("patch {kind}/status")));
    others.remove("watch gateway.networking.k8s.io/gateways");
    others.insert("patch events.k8s.io/events".into());
    others.insert("patch gateway.networking.k8s.io/gatewayclasses".into());
    let unused: BTreeSet<String> = granted.difference(&asked).cloned().collect();
    assert_eq!(unused, others);
}

#[test]
fn help_and_wrong_configurations_end_at_once() {
    let help = Command::new(env!("CARGO_BIN_EXE_weir-kube")).arg("--help").output().unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(help.status.success() && text.contains("--config") && text.contains("--kubeconfig"), "{text}");
    let missing =
        Command::new(env!("CARGO_BIN_EXE_weir-kube")).args(["--config", "/nowhere"]).output().unwrap();
    let text = String::from_utf8(missing.stderr).unwrap();
    assert!(!missing.status.success() && text.contains("/nowhere"), "{text}");
}
