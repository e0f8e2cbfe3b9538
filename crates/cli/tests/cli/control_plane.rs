//! Services as a control plane keeps them: connections continue through its changes, services keep their
//! owners through restarts and takeovers, and watchers that do not read harm only themselves.

use super::announce::inside;
use super::folder::Folder;
use super::lb_api::{block, service};
use super::lb_control::{TOKEN, controlled, http, raw};
use super::nat;
use super::running::Daemon;
use super::wire::sh;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use weir_client::{Client, Options, Services};

/// A file with services and a source; the API has others.
const CONFIG: &str = "\
state: state
workers: 2
ports: { p0: { xdp: w0 }, p1: { xdp: w1 } }
apps:
  - lb: { flows: 4096, persist: true }
  - lb:
      name: own
      port: p0
      service: { vip: 10.0.9.9, protocol: tcp, port: 9 }
      back_ends: [{ name: b1, mac: 02:00:00:00:11:00 }]
  - lb: { name: k, port: p0, from: { kubernetes: state.json, each: { mac: 02:00:00:00:11:00 } } }
";

const OBJECTS: &str = r#"{
  "services": [{ "metadata": { "name": "a" },
    "spec": { "clusterIP": "10.0.9.8", "ports": [{ "port": 80 }] } }],
  "endpoints": [{ "metadata": { "labels": { "kubernetes.io/service-name": "a" } }, "addressType": "IPv4",
    "ports": [{ "port": 80 }], "endpoints": [{ "addresses": ["10.0.1.9"] }] }] }"#;

/// A service whose back ends have these weights and the addresses 10.0.1.2 and so on.
fn web(weights: &[u32]) -> Value {
    let back_end = |(at, weight): (usize, &u32)| {
        json!({ "name": format!("b{at}"), "mode": "nat", "ip": format!("10.0.1.{}", at + 2),
            "mac": "02:00:00:00:11:00", "weight": weight })
    };
    json!({
        "name": "web", "port": "p0", "out": "p1",
        "service": { "vip": "10.0.9.1", "protocol": "tcp", "port": 8080 },
        "back_ends": weights.iter().enumerate().map(back_end).collect::<Vec<_>>(),
    })
}

/// Servers at the addresses of the far namespace, which answer each byte with the last one of their address.
fn serve(netns: &str) {
    let listener = inside(netns, || TcpListener::bind("0.0.0.0:8080").unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let std::net::IpAddr::V4(address) = stream.local_addr().unwrap().ip() else { return };
                while stream.read_exact(&mut [0]).is_ok() {
                    let _ = stream.write_all(&address.octets()[3..]);
                }
            });
        }
    });
}

/// Opens connections.
fn connect(netns: &str) -> Vec<TcpStream> {
    let one = |_| {
        let stream = TcpStream::connect_timeout(&"10.0.9.1:8080".parse().unwrap(), Duration::from_secs(20));
        let stream = stream.expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    };
    inside(netns, || (0..40).map(one).collect())
}

/// Returns which server answers each connection.
fn ask(connections: &mut [TcpStream]) -> Vec<u8> {
    let one = |stream: &mut TcpStream| {
        let mut answer = [0];
        stream.write_all(b"?").expect("it is open");
        stream.read_exact(&mut answer).expect("an answer");
        answer[0]
    };
    connections.iter_mut().map(one).collect()
}

/// Returns the names of all services, with their owners.
fn owners(services: &Services) -> Vec<String> {
    let one =
        |service: &Value| format!("{} {}", service["name"], service["status"]["owner"]).replace('"', "");
    services.services.iter().map(one).collect()
}

const ALL: [&str; 4] = ["own file", "default.a.80-tcp file:k", "web api", "more api"];

#[test]
fn connections_continue_through_changes_and_services_keep_their_owners() {
    let Some(wire) = nat::wire("plane") else { return };
    sh(&format!("ip -n {} route add 10.0.0.0/24 via 10.0.1.1", wire.far));
    (3..6).for_each(|host| drop(sh(&format!("ip -n {} addr add 10.0.1.{host}/24 dev f1", wire.far))));
    serve(&wire.far);
    let folder = Folder::new();
    folder.write("weir.yaml", CONFIG);
    folder.write("state.json", OBJECTS);
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    let client = Client::unix(daemon.folder.file("weir.sock"));
    let none = Options::default();
    let services = || block(client.services()).unwrap();
    daemon.wait_for("the source", |_| services().services.len() == 2);
    block(client.put("web", &web(&[1, 1]), &none)).unwrap();
    let mut before = connect(&wire.third);
    let servers = ask(&mut before);
    assert_eq!(servers.iter().collect::<BTreeSet<_>>(), BTreeSet::from([&2, &3]));
    // Other weights, more back ends, and another service.
    let changes = block(client.put("web", &web(&[1, 5, 3, 3]), &none)).unwrap();
    assert_eq!((changes.back_ends_added, changes.back_ends_reweighted), (2, 1), "{changes:?}");
    assert_eq!(ask(&mut before), servers);
    let more = service("more", "10.0.9.2", &[("m1", 1)]);
    block(client.put_all(&[web(&[1, 0, 3, 3]), more], &none)).unwrap();
    assert_eq!(ask(&mut before), servers, "also with weight 0");
    let new = ask(&mut connect(&wire.third));
    assert!(!new.contains(&3) && new.contains(&4) && new.contains(&5), "{new:?}");
    assert_eq!(owners(&services()), ALL);
    // A takeover, and a restart.
    assert!(daemon.succeed_in_namespace(&wire.weir).success(), "{}", daemon.log());
    assert_eq!(ask(&mut before), servers);
    assert_eq!(owners(&services()), ALL);
    let etag = services().status.etag;
    daemon.signal(Signal::TERM);
    daemon.end();
    let mut daemon = Daemon::start_in_namespace(daemon.into_folder(), &wire.weir);
    let client = Client::unix(daemon.folder.file("weir.sock"));
    let services = || block(client.services()).unwrap();
    assert_eq!((owners(&services()), services().status.etag), (ALL.map(String::from).to_vec(), etag));
    // The set of the API is that of its own services only.
    let changes = block(client.put_all(&[], &none)).unwrap();
    assert_eq!((&changes.removed[..], changes.unchanged), (&["web".to_string(), "more".into()][..], 0));
    assert_eq!(owners(&services()), ALL[..2]);
    // The source still follows its file.
    daemon.folder.write("state.json", r#"{ "services": [] }"#);
    daemon.wait_for("no service of the source", |_| owners(&services()) == ALL[..1]);
}

#[test]
fn what_has_not_changed_is_not_sent_again() {
    let (_daemon, address) = controlled();
    let client = Client::tcp(address.to_string(), TOKEN);
    let etag = block(client.services()).unwrap().status.etag;
    assert_eq!(block(client.services_unless(&etag)).unwrap(), None);
    let head = format!("GET /v1/services HTTP/1.1\r\nIf-None-Match: \"x\", \"{etag}\"\r\n");
    let answer = raw(address, &head);
    assert!(answer.starts_with("HTTP/1.1 304 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(answer.contains(&format!("etag: \"{etag}\"\r\n")), "{answer}");
    block(client.put("a", &service("a", "10.0.1.1", &[]), &Options::default())).unwrap();
    let now = block(client.services_unless(&etag)).unwrap().expect("another set");
    assert!(now.services.len() == 2 && now.status.etag != etag);
    // A service has a tag of its own.
    let etag = block(client.service("web")).unwrap()["status"]["etag"].as_str().unwrap().to_string();
    let head = |tag: &str| format!("GET /v1/services/web HTTP/1.1\r\nIf-None-Match: \"{tag}\"\r\n");
    assert!(raw(address, &head(&etag)).starts_with("HTTP/1.1 304 "));
    assert!(raw(address, &head("x")).starts_with("HTTP/1.1 200 "));
}

/// Sends a request with another line in its head, which may replace the token or the length. Returns the
/// answer.
fn exchange(address: SocketAddr, request: &str, line: &str, body: &str) -> String {
    let mut head = format!("{request} HTTP/1.1\r\nHost: w\r\n");
    let length = format!("Content-Length: {}", body.len());
    for one in [&format!("Authorization: Bearer {TOKEN}"), &length, line] {
        let name = |text: &str| text.split(':').next().unwrap().to_string();
        if one == line || name(one) != name(line) {
            head += &if one.is_empty() { String::new() } else { format!("{one}\r\n") };
        }
    }
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{head}\r\n{body}").unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// Whatever the outcome, the description has its status, and the body of an error is as described.
#[test]
fn every_status_is_described() {
    let (daemon, address) = controlled();
    let (_, description) = http(address, "GET", "/openapi.json", "");
    let version = daemon.weir(&["--version"]).good().out;
    let number = description["info"]["version"].as_str().unwrap();
    assert!(version.starts_with(&format!("weir {number}")), "{version} is not {number}");
    let error = jsonschema::draft202012::new(&description["components"]["schemas"]["Error"]).unwrap();
    let new = service("a", "10.0.1.1", &[]).to_string();
    let other = service("web", "10.0.1.2", &[]).to_string();
    let set = json!({ "services": [] }).to_string();
    let etag = http(address, "GET", "/v1/services", "").1["status"]["etag"].as_str().unwrap().to_string();
    let known = format!("If-None-Match: \"{etag}\"");
    let long = format!("Content-Length: {}", 1 << 30);
    let one = "/v1/services/{service}";
    for (method, path, pattern, head, body, wanted) in [
        ("GET", "/v1/services", "", "", "", 200),
        ("GET", "/v1/services", "", &*known, "", 304),
        ("GET", "/v1/services/none", one, "", "", 404),
        ("GET", "/v1/services", "", "Authorization: x", "", 401),
        ("GET", "/v1/node", "", "Authorization: x", "", 401),
        ("GET", "/v1/watch", "", "Authorization: x", "", 401),
        ("GET", "/v1/node", "", "", "", 200),
        ("POST", "/v1/services?dry_run=true", "", "", &new, 200),
        ("POST", "/v1/services", "", "", &new, 201),
        ("PUT", "/v1/services/web", one, "", &other, 409),
        ("PUT", "/v1/services/a", one, "If-None-Match: *", &new, 412),
        ("PUT", "/v1/services", "", "If-Match: \"x\"", &set, 412),
        ("PUT", "/v1/services", "", "", "{}", 400),
        ("PUT", "/v1/services", "", &long, "", 413),
        ("PUT", "/v1/services?dry_run=true", "", "", &set, 200),
        ("DELETE", "/v1/services/a", one, "If-Match: \"x\"", "", 412),
        ("DELETE", "/v1/services/none", one, "", "", 404),
    ] {
        let answer = exchange(address, &format!("{method} {path}"), head, body);
        let status: u16 = answer.get(9..12).and_then(|one| one.parse().ok()).unwrap_or_default();
        assert_eq!(status, wanted, "{method} {path} {head}: {answer}");
        let pattern = if pattern.is_empty() { path.split('?').next().unwrap() } else { pattern };
        let responses = &description["paths"][pattern][method.to_lowercase()]["responses"];
        let described = &responses[status.to_string()];
        assert!(described["description"].is_string(), "{method} {pattern} {status}: {responses}");
        if status >= 400 {
            let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
            assert!(error.is_valid(&body), "{body}");
        }
        let tag = described["headers"]["ETag"].is_object();
        assert_eq!(tag, answer.contains("\r\netag: "), "{method} {path}: {answer}");
    }
}

/// How often all services change.
const ROUNDS: u32 = 32;

/// Services with long names, so that events about them are long as well.
fn thousand(weight: u32) -> Vec<Value> {
    let one = |at: usize| {
        let name = format!("{}{at}", "n".repeat(60));
        service(&name, &format!("10.1.{}.{}", at / 250, at % 250 + 1), &[("b1", weight), ("b2", 1)])
    };
    (0..1000).map(one).collect()
}

/// It is not waited for: others see every change at once, and it has to read everything again.
#[test]
fn a_watcher_that_does_not_read_is_asked_to_read_everything_again() {
    let (daemon, address) = controlled();
    let client = Client::tcp(address.to_string(), TOKEN);
    let mut slow = TcpStream::connect(address).unwrap();
    let head = format!("GET /v1/watch HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    slow.write_all(head.as_bytes()).unwrap();
    let none = Options::default();
    let mut etag = String::new();
    // More than the buffers of sockets hold, and than weir keeps.
    for round in 0..ROUNDS {
        let changes = block(client.put_all(&thousand(1 + round), &none)).unwrap();
        etag = changes.etag.unwrap();
        let first = block(async { client.watch(None).await.unwrap().next().await.unwrap().unwrap() });
        assert_eq!((first.event.as_str(), &first.data["etag"]), ("set", &json!(etag)), "round {round}");
    }
    slow.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut text = String::new();
    slow.read_to_string(&mut text).expect("the connection is closed");
    let events = text.matches("\nevent: service\n").count();
    assert!((1..1000 * ROUNDS as usize - 4096).contains(&events), "{events} events");
    let last = text.rsplit("id: ").next().unwrap();
    assert!(last.contains("event: reread\n"), "{last}");
    // From there, nothing is missed.
    let id = last.lines().next().unwrap().parse().unwrap();
    block(client.delete(thousand(1)[0]["name"].as_str().unwrap(), &none)).unwrap();
    let event = block(async { client.watch(Some(id)).await.unwrap().next().await.unwrap().unwrap() });
    assert_eq!((event.event.as_str(), &event.data["change"]), ("service", &json!("removed")));
    assert_ne!(block(client.services()).unwrap().status.etag, etag);
    drop(daemon);
}

/// Over TLS; a server that another authority vouches for, or that has another name, does not get the token.
#[cfg(feature = "tls")]
#[test]
fn a_client_over_tls() {
    use super::lb_control::{certificate, with_token};
    use weir_client::{ClientError, Tls};
    let (folder, address) = with_token();
    let other = Folder::new();
    if !(certificate(&folder) && certificate(&other)) {
        return;
    }
    let tls = "tls: { certificate: cert.pem, key: key.pem }";
    let config = super::lb_control::CONFIG;
    folder.write("weir.yaml", format!("control: {{ listen: \"{address}\", token: token, {tls} }}\n{config}"));
    let daemon = Daemon::start_in(folder);
    let client = |file: std::path::PathBuf, name: &str| {
        Client::tls(address.to_string(), TOKEN, Tls::new(&file, name).unwrap())
    };
    let good = client(daemon.folder.file("cert.pem"), "127.0.0.1");
    let a = service("a", "10.0.1.1", &[("x", 1)]);
    block(async {
        assert_eq!(good.put("a", &a, &Options::default()).await.unwrap().created, ["a"]);
        assert_eq!(good.services().await.unwrap().services.len(), 2);
        let mut watch = good.watch(None).await.unwrap();
        assert_eq!(watch.next().await.unwrap().unwrap().event, "set");
        // A large set, in many records.
        assert_eq!(good.put_all(&thousand(1), &Options::default()).await.unwrap().created.len(), 1000);
        for wrong in [
            client(other.file("cert.pem"), "127.0.0.1"),
            client(daemon.folder.file("cert.pem"), "127.0.0.2"),
            Client::tcp(address.to_string(), TOKEN),
        ] {
            let answer = wrong.services().await;
            assert!(matches!(answer, Err(ClientError::Unreachable(_))), "{answer:?}");
        }
    });
    assert!(Tls::new(&daemon.folder.file("weir.yaml"), "127.0.0.1").is_err());
}
