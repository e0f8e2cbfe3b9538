//! Back ends that die and return: real servers on the loopback interface, and the daemon that checks them.

use super::folder::Folder;
use super::running::{Daemon, free_address};
use super::{record, weir};
use serde_json::{Value, json};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A web server that answers every request with a status, until it is dropped. No other test uses its port,
/// even while there is no server.
struct Server {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(port: u16, status: &'static str) -> Server {
        let port = if port == 0 { free_address().port() } else { port };
        let until = Instant::now() + Duration::from_secs(30);
        // A starting process of another test may still hold the previous listener.
        let listener = loop {
            match TcpListener::bind(("127.0.0.1", port)) {
                Ok(listener) => break listener,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let port = listener.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stops.load(Ordering::Relaxed) {
                    return;
                }
                let _ = stream.map(|stream| answer(stream, status));
            }
        });
        Server { port, stop, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn answer(mut stream: TcpStream, status: &str) {
    use std::io::{Read, Write};
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|length| length == 1) {
        request.extend(byte);
    }
    let _ = stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok").as_bytes());
}

/// A service with two back ends, whose checks go to these ports.
fn service(ports: [u16; 2], more: &str) -> String {
    let [one, two] = ports;
    format!(
        "\
ports:
  p0: {{ pcap: {{}} }}
apps:
  - lb:
      name: web
      port: p0
      service: {{ vip: 10.0.0.80, protocol: tcp, port: 80 }}
      by: 5-tuple
      size: 251
      check: {{ type: http, interval: 20ms, timeout: 5s, rise: 2, fall: 2, body: ok }}
{more}      back_ends:
        - {{ name: b1, mac: 02:00:00:00:00:11, address: 127.0.0.1, check: {{ port: {one} }} }}
        - {{ name: b2, mac: 02:00:00:00:00:12, address: 127.0.0.1, check: {{ port: {two} }} }}
"
    )
}

fn health(daemon: &Daemon) -> Vec<String> {
    let rows = daemon.show("backends");
    rows.as_array().unwrap().iter().map(|row| row["health"].as_str().unwrap().to_string()).collect()
}

fn wait_for(daemon: &mut Daemon, wanted: [&str; 2]) {
    daemon.wait_for(&format!("{wanted:?}"), |daemon| health(daemon) == wanted);
}

/// The buckets that each back end has.
fn buckets(daemon: &Daemon) -> Vec<u64> {
    let groups = daemon.show("groups");
    let group = groups.as_array().unwrap().iter().find(|group| group["name"] == "lb/web").unwrap();
    group["targets"].as_array().unwrap().iter().map(|target| target["buckets"].as_u64().unwrap()).collect()
}

/// Sends the first packets of 64 connections.
fn send(daemon: &Daemon) {
    let recipes: Vec<String> = (0..64)
        .map(|port| {
            format!(
                "eth.dst=02:00:00:00:00:fe src=192.0.2.1 dst=10.0.0.80 proto=tcp sport={} dport=80",
                4000 + port
            )
        })
        .collect();
    daemon.receive(&recipes.iter().map(String::as_str).collect::<Vec<_>>());
}

fn counts(daemon: &Daemon) -> [u64; 2] {
    ["lb/web/b1", "lb/web/b2"].map(|counter| daemon.count(counter))
}

#[test]
fn a_back_end_that_dies_gets_nothing_until_it_is_back() {
    let (one, two) = (Server::start(0, "200 OK"), Server::start(0, "200 OK"));
    let ports = [one.port, two.port];
    let mut daemon = Daemon::start(&service(ports, ""));
    wait_for(&mut daemon, ["up", "up"]);
    send(&daemon);
    daemon.wait_for("64 packets", |daemon| counts(daemon).iter().sum::<u64>() == 64);
    assert!(counts(&daemon).iter().all(|count| *count > 0));
    drop(one);
    wait_for(&mut daemon, ["down", "up"]);
    let reason = daemon.show("backends")[0]["reason"].as_str().unwrap().to_string();
    assert_eq!(reason, "connection refused");
    daemon.wait_for("no buckets of b1", |daemon| buckets(daemon) == [0, 251]);
    let before = counts(&daemon);
    send(&daemon);
    daemon.wait_for("64 more", |daemon| counts(daemon).iter().sum::<u64>() == 128);
    assert_eq!(counts(&daemon)[0], before[0], "nothing goes to a back end that is down");
    // A reload starts from the known state.
    daemon.weir(&["reload"]).good();
    assert_eq!(
        (health(&daemon), buckets(&daemon)),
        (vec!["down".to_string(), "up".to_string()], vec![0, 251])
    );
    // A back end that answers with an error has not recovered.
    let broken = Server::start(ports[0], "503 Busy");
    daemon.wait_for("the status", |daemon| daemon.show("backends")[0]["reason"] == "status 503");
    drop(broken);
    let _one = Server::start(ports[0], "200 OK");
    wait_for(&mut daemon, ["up", "up"]);
    daemon.wait_for("buckets of b1", |daemon| buckets(daemon).iter().all(|buckets| *buckets > 100));
    daemon.wait_for_log("b1 of web is down: connection refused");
    drop(two);
}

#[test]
fn an_operator_drains_and_maintains() {
    let (one, two) = (Server::start(0, "200 OK"), Server::start(0, "200 OK"));
    let mut daemon = Daemon::start(&service([one.port, two.port], ""));
    wait_for(&mut daemon, ["up", "up"]);
    let said = daemon.weir(&["lb", "drain", "web", "b1"]).good().out;
    assert_eq!(said, "b1 of web gets no new flows\n");
    assert_eq!((health(&daemon)[0].as_str(), buckets(&daemon)), ("draining", vec![0, 251]));
    daemon.weir(&["reload"]).good();
    assert_eq!((health(&daemon)[0].as_str(), buckets(&daemon)), ("draining", vec![0, 251]));
    daemon.weir(&["lb", "maintenance", "web", "b1"]).good();
    assert_eq!(health(&daemon)[0], "maintenance");
    daemon.weir(&["lb", "enable", "web", "b1"]).good();
    wait_for(&mut daemon, ["up", "up"]);
    daemon.weir(&["lb", "weight", "web", "b1", "3"]).good();
    assert!(buckets(&daemon)[0] > 180, "{:?}", buckets(&daemon));
    daemon.weir(&["lb", "drain", "api", "b1"]).refused(
        1,
        &["there is no service `api`; the services are \
        web"],
    );
    daemon.weir(&["lb", "drain", "web", "b3"]).refused(
        1,
        &["has no back end `b3`; its back ends are b1, \
        b2"],
    );
    let app = daemon.show("apps")[0].clone();
    assert_eq!((&app["name"], &app["up"], &app["checked"]), (&json!("lb"), &json!(2), &json!(2)));
}

#[test]
fn with_all_down_the_policy_decides() {
    for (policy, wanted) in [("drop", [0, 0]), ("all", [126, 125])] {
        let closed = || free_address().port();
        let mut daemon = Daemon::start(&service([closed(), closed()], &format!("      fail: {policy}\n")));
        wait_for(&mut daemon, ["down", "down"]);
        daemon.wait_for("their buckets", |daemon| {
            let mut buckets = buckets(daemon);
            buckets.sort_unstable();
            buckets.reverse();
            buckets == wanted
        });
    }
}

#[test]
fn other_checks_work_as_well() {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = udp.local_addr().unwrap().port();
    let stop = Arc::new(AtomicBool::new(false));
    let stops = stop.clone();
    udp.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let thread = std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while !stops.load(Ordering::Relaxed) {
            if let Ok((length, from)) = udp.recv_from(&mut buffer) {
                buffer[2..4].copy_from_slice(&[0x84, 0]);
                let _ = udp.send_to(&buffer[..length], from);
            }
        }
    });
    let config = service([port, port], "").replace("body: ok", "jitter: 0");
    let config = config.replacen("type: http", "type: dns, name: example.org", 1);
    let config = config.replacen(
        &format!("check: {{ port: {port} }}"),
        &format!("check: {{ type: udp, payload: 0x00010203aa, expect: 0xaa, port: {port} }}"),
        1,
    );
    let mut daemon = Daemon::start(&config);
    wait_for(&mut daemon, ["up", "up"]);
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    wait_for(&mut daemon, ["down", "down"]);
}

#[test]
fn the_metrics_have_each_back_end() {
    let one = Server::start(0, "200 OK");
    let closed = free_address().port();
    let mut daemon = Daemon::start(&service([one.port, closed], ""));
    wait_for(&mut daemon, ["up", "down"]);
    // Back ends that go down within a few milliseconds lose their weights together.
    let weightless = r#"weir_app_backend_weight{app="lb",service="web",back_end="b2"} 0"#;
    daemon.wait_for("its weight", |daemon| daemon.metrics().contains(weightless));
    let metrics = daemon.metrics();
    for wanted in [
        r#"weir_app_backend_up{app="lb",service="web",back_end="b1"} 1"#,
        r#"weir_app_backend_up{app="lb",service="web",back_end="b2"} 0"#,
        r#"weir_app_backend_checks_passed_total{app="lb",service="web",back_end="b1"}"#,
        r#"weir_app_backend_checks_failed_total{app="lb",service="web",back_end="b2"}"#,
    ] {
        assert!(metrics.contains(wanted), "no `{wanted}` in\n{metrics}");
    }
}

/// Replay runs no checks, and all back ends count as up.
#[test]
fn replay_believes_that_all_are_up() {
    let folder = Folder::new();
    folder.write("weir.yaml", service([1, 2], ""));
    let packet = |sport: u16| {
        format!("eth.dst=02:00:00:00:00:fe src=192.0.2.1 dst=10.0.0.80 proto=tcp sport={sport} dport=80")
    };
    let packets: Vec<String> = (4000..4064).map(packet).collect();
    record(&folder.file("in.pcap"), &packets.iter().map(String::as_str).collect::<Vec<_>>());
    let said = weir(folder.path(), &["replay", "weir.yaml", "p0=in.pcap", "--json"]).good().json();
    let count = |name: &str| -> Value {
        let counters = said["counters"].as_array().unwrap();
        counters.iter().find(|counter| counter["name"] == name).unwrap()["packets"].clone()
    };
    assert!(count("lb/web/b1").as_u64() > Some(0) && count("lb/web/b2").as_u64() > Some(0), "{said}");
}
