//! Services as a controller sets them over HTTP: one by one and as a whole, and who each belongs to.

use super::lb_control::{TOKEN, controlled, http, raw};
use super::running::Daemon;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use weir_client::{Client, ClientError, Options, Patch, RefusalReason, Watch, WatchEvent};

pub fn service(name: &str, vip: &str, back_ends: &[(&str, u32)]) -> Value {
    let back_end = |(at, (name, weight)): (usize, &(&str, u32))| {
        let mac = format!("02:00:00:00:01:{at:02x}");
        json!({ "name": name, "mac": mac, "weight": weight })
    };
    json!({
        "name": name, "port": "p0", "service": { "vip": vip, "protocol": "tcp", "port": "80" },
        "back_ends": back_ends.iter().enumerate().map(back_end).collect::<Vec<_>>(),
    })
}

fn generation(daemon: &Daemon) -> Value {
    daemon.ask(&json!({ "command": "show" }))["generation"].clone()
}

fn put(address: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    http(address, "PUT", path, &body.to_string())
}

#[test]
fn a_set_of_services_is_reconciled() {
    let (daemon, address) = controlled();
    let read = || http(address, "GET", "/v1/services", "").1;
    let before = read();
    assert_eq!(before["services"][0]["size"], 251);
    assert_eq!(before["services"][0]["status"]["owner"], "file");
    // What is read can be sent back, and changes nothing.
    let first = generation(&daemon);
    let (status, answer) = put(address, "/v1/services", &before);
    assert_eq!(
        (status, &answer["unchanged"], generation(&daemon)),
        (200, &json!(1), first.clone()),
        "{answer}"
    );
    let (a, b) = (service("a", "10.0.1.1", &[("x", 1), ("y", 1)]), service("b", "10.0.1.2", &[]));
    let (status, answer) = put(address, "/v1/services", &json!({ "services": [a, b] }));
    assert_eq!((status, &answer["created"]), (200, &json!(["a", "b"])), "{answer}");
    let now = read();
    assert_eq!(now["services"].as_array().map(Vec::len), Some(3));
    let [of_a, of_b] = [1, 2].map(|at: usize| now["services"][at].clone());
    assert_eq!((&of_a["status"]["owner"], &of_b["back_ends"]), (&json!("api"), &json!([])));
    let second = generation(&daemon);
    assert_ne!(second, first);
    let (_, answer) = put(address, "/v1/services", &now);
    assert_eq!((&answer["unchanged"], generation(&daemon)), (&json!(3), second), "{answer}");
    // One service is replaced; the other and that of the file stay.
    let a = service("a", "10.0.1.1", &[("x", 3), ("z", 1)]);
    let (_, answer) = put(address, "/v1/services/a", &a);
    let counts = ["back_ends_added", "back_ends_removed", "back_ends_reweighted", "back_ends_changed"];
    assert_eq!(counts.map(|key| answer[key].as_u64().unwrap()), [1, 1, 1, 0], "{answer}");
    assert_eq!(answer["updated"], json!(["a"]));
    let (_, answer) = put(address, "/v1/services", &json!({ "services": [a] }));
    assert_eq!((&answer["removed"], &answer["unchanged"]), (&json!(["b"]), &json!(1)), "{answer}");
    assert_eq!(http(address, "GET", "/v1/services/b", "").0, 404);
    // A reload changes nothing about owners.
    let before = read();
    daemon.weir(&["reload"]).good();
    assert_eq!(read(), before);
}

#[test]
fn what_belongs_to_others_is_a_conflict_with_both_places() {
    let (daemon, address) = controlled();
    let before = http(address, "GET", "/v1/services", "").1;
    let first = generation(&daemon);
    let web = service("web", "10.0.0.80", &[("b1", 1)]);
    let same = service("other", "10.0.0.80", &[("b1", 1)]);
    let good = service("a", "10.0.1.1", &[]);
    let mut wrong = good.clone();
    wrong["back_ends"] = json!([{ "name": "x", "mac": "02:00:00:00:01:00", "wieght": 1 }]);
    let set = |services: &[&Value]| json!({ "services": services });
    for (path, body, wanted, parts) in [
        ("/v1/services/web", web.clone(), 409, &["weir.yaml:6", "at /"][..]),
        ("/v1/services", set(&[&good, &web]), 409, &["weir.yaml:6", "/services/1"]),
        ("/v1/services", set(&[&good, &same]), 409, &["weir.yaml:6", "/services/1"]),
        ("/v1/services", set(&[&good, &good]), 400, &["/services/0 and /services/1 have the same name: `a`"]),
        ("/v1/services", set(&[&wrong]), 400, &["/services/0/back_ends/0/wieght", "no key `wieght`"]),
        ("/v1/services/a", wrong.clone(), 400, &["/back_ends/0/wieght"]),
        ("/v1/services/b", good.clone(), 400, &["/name is \"a\", but the path says `b`"]),
        ("/v1/services", set(&[&json!({ "port": "p0" })]), 400, &["/services/0/name is missing"]),
        ("/v1/services", set(&[&json!(7)]), 400, &["/services/0 is not an object"]),
        ("/v1/services", json!({ "services": {} }), 400, &["/services is a list"]),
        ("/v1/services", json!({ "service": [] }), 400, &["no field /service"]),
        ("/v1/services", json!([]), 400, &["the body is an object"]),
    ] {
        let (status, answer) = put(address, path, &body);
        let why = answer["error"].as_str().unwrap_or_default();
        assert!(status == wanted && parts.iter().all(|part| why.contains(part)), "{body}: {status} {answer}");
    }
    assert_eq!(http(address, "GET", "/v1/services", "").1, before);
    assert_eq!(generation(&daemon), first);
}

pub fn block<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

fn refused<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (RefusalReason, String) {
    match answer {
        Err(ClientError::Refused { reason, why }) => (reason, why),
        other => panic!("{other:?}"),
    }
}

/// Over the control socket, and over TCP with the token.
#[test]
fn a_client_sets_only_what_it_has_read() {
    let (daemon, address) = controlled();
    let socket = Client::unix(daemon.folder.file("weir.sock"));
    let tcp = Client::tcp(address.to_string(), TOKEN);
    let before = generation(&daemon);
    block(async {
        let (dry, none) = (Options { dry_run: true, ..Options::default() }, Options::default());
        let a = service("a", "10.0.1.1", &[("x", 1), ("y", 1)]);
        let answer = socket.put("a", &a, &dry).await.unwrap();
        assert_eq!((&answer.created[..], answer.groups.len()), (&["a".to_string()][..], 0));
        assert_eq!(refused(socket.service("a").await).0, RefusalReason::Absent);
        assert_eq!(generation(&daemon), before);
        let new = Options { absent: true, ..Options::default() };
        let etag = tcp.put("a", &a, &new).await.unwrap().etag;
        assert_eq!(refused(tcp.put("a", &a, &new).await).0, RefusalReason::Stale);
        let read = tcp.service("a").await.unwrap();
        assert_eq!(etag.as_deref(), read["status"]["etag"].as_str());
        let set = tcp.services().await.unwrap();
        // Of four parts, one moves to the back end that comes.
        let more = service("a", "10.0.1.1", &[("x", 1), ("y", 1), ("z", 1), ("w", 1)]);
        let answer = tcp.put("a", &more, &dry).await.unwrap();
        let group = &answer.groups[0];
        assert_eq!((group.name.as_str(), answer.back_ends_added), ("lb/a", 2));
        assert!((0.4..0.8).contains(&group.moved) && (0.4..0.6).contains(&group.least), "{group:?}");
        let known = Options { etag: etag.clone(), ..Options::default() };
        let after = tcp.put("a", &more, &known).await.unwrap();
        let (reason, why) = refused(tcp.put("a", &a, &known).await);
        assert!(reason == RefusalReason::Stale && why.contains("service `a` has another ETag"), "{why}");
        assert_eq!(refused(tcp.delete("a", &known).await).0, RefusalReason::Stale);
        let patch = Patch { weight: Some(3), state: None };
        assert_eq!(refused(tcp.patch("a", "x", &patch, &known).await).0, RefusalReason::Stale);
        let known = Options { etag: after.etag, ..Options::default() };
        assert_eq!(tcp.patch("a", "x", &patch, &known).await.unwrap().done, 1);
        assert_eq!(tcp.service("a").await.unwrap()["status"]["back_ends"][0]["weight"], 3);
        let of_set = Options { etag: Some(set.status.etag), ..Options::default() };
        assert_eq!(refused(socket.put_all(&[], &of_set).await).0, RefusalReason::Stale);
        let answer = socket.delete("a", &dry).await.unwrap();
        assert_eq!((answer.done, answer.changes.unwrap().removed), (0, vec!["a".to_string()]));
        assert_eq!(socket.put_all(&[], &none).await.unwrap().removed, ["a"]);
        assert_eq!(refused(Client::tcp(address.to_string(), "x").services().await).0, RefusalReason::Token);
        let absent = Client::unix(daemon.folder.file("none.sock")).services().await;
        assert!(matches!(absent, Err(ClientError::Unreachable(_))), "{absent:?}");
    });
    for (head, part) in [("GET /v1/services?dry=1", "no parameter `dry=1`"), ("PUT /v1/services", "If-Match")]
    {
        let answer = raw(address, &format!("{head} HTTP/1.1\r\nIf-Match: x\r\nContent-Length: 0\r\n"));
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.to_lowercase().contains(&part.to_lowercase()),
            "{answer}"
        );
    }
    // A body that is shorter than it claims is not waited for without end, and changes nothing.
    let cut = raw(address, "PUT /v1/services HTTP/1.1\r\nContent-Length: 9000000\r\n");
    assert!(cut.is_empty() || cut.contains("truncated"), "{cut}");
}

async fn until(watch: &mut Watch, wanted: impl Fn(&WatchEvent) -> bool) -> WatchEvent {
    loop {
        let event = tokio::time::timeout(Duration::from_secs(60), watch.next()).await.expect("an event");
        let event = event.unwrap().expect("the watch lasts");
        if wanted(&event) {
            return event;
        }
    }
}

#[test]
fn a_watcher_sees_every_change_and_continues_where_it_was() {
    let (mut daemon, address) = controlled();
    let client = Client::tcp(address.to_string(), TOKEN);
    let none = Options::default();
    let last = block(async {
        let mut watch = client.watch(None).await.unwrap();
        let first = watch.next().await.unwrap().unwrap();
        let set = client.services().await.unwrap();
        assert_eq!((first.event.as_str(), first.data["etag"].as_str()), ("set", Some(&*set.status.etag)));
        client.put("a", &service("a", "10.0.1.1", &[("x", 1)]), &none).await.unwrap();
        let event = until(&mut watch, |one| one.event == "service").await;
        assert_eq!((&event.data["service"], &event.data["change"]), (&json!("a"), &json!("created")));
        let drain = Patch { weight: None, state: Some("draining") };
        client.patch("a", "x", &drain, &none).await.unwrap();
        let event = until(&mut watch, |one| one.event == "back_end").await;
        assert_eq!((&event.data["back_end"], &event.data["health"]), (&json!("x"), &json!("draining")));
        drop(watch);
        client.put_all(&[], &none).await.unwrap();
        let mut watch = client.watch(Some(event.id)).await.unwrap();
        let event = until(&mut watch, |one| one.event == "service").await;
        assert_eq!((&event.data["service"], &event.data["change"]), (&json!("a"), &json!("removed")));
        assert_eq!(client.watch(Some(7)).await.unwrap().next().await.unwrap().unwrap().event, "reread");
        event.id
    });
    // Watchers that read nothing delay neither the others nor the end.
    let silent: Vec<TcpStream> = (0..70)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            let head = format!("GET /v1/watch HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    daemon.wait_for("too many watchers", |_| {
        block(async {
            matches!(client.watch(None).await, Err(ClientError::Refused { reason: RefusalReason::Busy, .. }))
        })
    });
    assert_eq!(put(address, "/v1/services", &json!({ "services": [] })).0, 200);
    drop(silent);
    daemon.wait_for("room for a watcher", |_| block(async { client.watch(Some(last)).await.is_ok() }));
}

/// Sends a large body. Returns the status, the answer and how long it took.
fn put_large(address: SocketAddr, body: &str) -> (u16, Value, Duration) {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "PUT /v1/services HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer[9..12].parse().unwrap();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, serde_json::from_str(body).unwrap(), begun.elapsed())
}

#[test]
fn ten_thousand_services_are_set_at_once() {
    let (daemon, address) = controlled();
    let of = |at: usize| {
        let vip = format!("10.{}.{}.{}", 1 + at / 65_536, at / 256 % 256, at % 256);
        service(&format!("s{at}"), &vip, &[("b1", 1), ("b2", 1), ("b3", 2), ("b4", 1), ("b5", 1)])
    };
    let services: Vec<Value> = (0..10_000).map(of).collect();
    let body = json!({ "services": services }).to_string();
    let (status, answer, took) = put_large(address, &body);
    assert_eq!((status, answer["created"].as_array().map(Vec::len)), (200, Some(10_000)), "{answer}");
    let before = generation(&daemon);
    let (status, answer, again) = put_large(address, &body);
    assert_eq!((status, &answer["unchanged"]), (200, &json!(10_000)), "{answer}");
    assert_eq!(generation(&daemon), before);
    eprintln!("10 000 services in {} bytes: {took:?}, and again: {again:?}", body.len());
    assert!(took < Duration::from_secs(60) && again < Duration::from_secs(30), "{took:?}, {again:?}");
}
