//! A node that answers as weir does.

use super::*;
use crate::config::Config;
use crate::desired::VirtualService;
use crate::objects::Protocol;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use tokio::net::UnixListener;

/// The services of a node that refuses port 666.
type FakeNode = Arc<Mutex<BTreeMap<String, Value>>>;

/// Returns the `ETag` of a node's services.
fn tag(node: &BTreeMap<String, Value>) -> String {
    let mut hasher = DefaultHasher::new();
    json!(node).to_string().hash(&mut hasher);
    format!("{:x}", hasher.finish())
}

async fn answer(node: FakeNode, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mut node = node.lock().unwrap();
    let before = tag(&node);
    let matches =
        |name: &str| head.headers.get(name).map(|tag| tag.to_str().unwrap().trim_matches('"') == before);
    if head.method == Method::GET && matches("if-none-match") == Some(true) {
        return Ok(Response::builder().status(304).body(Full::default()).unwrap());
    }
    if head.method == Method::GET {
        let all = json!({ "services": node.values().collect::<Vec<_>>(), "status": { "etag": before } });
        let answer = Response::builder().header("etag", format!("\"{before}\""));
        return Ok(answer.body(Full::from(all.to_string())).unwrap());
    }
    if matches("if-match") == Some(false) {
        let why = json!({ "error": "another ETag" }).to_string();
        return Ok(Response::builder().status(412).body(Full::from(why)).unwrap());
    }
    let new: Value = serde_json::from_slice(&body).unwrap();
    let is_all = head.uri.path() == "/v1/services";
    let all = if is_all { new["services"].as_array().unwrap().clone() } else { vec![new] };
    if let Some(at) = all.iter().position(|one| one["service"]["port"] == "666") {
        let why = json!({ "error": format!("/services/{at}/service/port: wrong") }).to_string();
        return Ok(Response::builder().status(400).body(Full::from(why)).unwrap());
    }
    node.retain(|_, one| !is_all || one["status"]["owner"] == "file");
    for mut one in all {
        one["status"] = json!({ "owner": "api", "etag": "e", "back_ends": [] });
        node.insert(one["name"].as_str().unwrap().to_string(), one);
    }
    let changes = json!({ "set_before": before, "set_after": tag(&node) });
    Ok(Response::new(Full::from(changes.to_string())))
}

async fn serve(node: FakeNode, listener: UnixListener) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let node = node.clone();
        let answer = service_fn(move |request| answer(node.clone(), request));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

/// Makes a service at a port wanted.
fn want(hub: &Hub, name: &str, port: u16) {
    let service = VirtualService {
        origin: Arc::default(),
        front_end: FrontEnd { vips: vec![[192, 0, 2, 1].into()], protocol: Protocol::Tcp, port },
        clients: Vec::new(),
        affinity_s: None,
        is_local: false,
        groups: Vec::new(),
    };
    let one = WantedService { service: Arc::new(service), text: OnceLock::new() };
    let mut state = hub.state();
    state.wanted.get_or_insert_default().insert(name.into(), Arc::new(one));
    state.nodes.get_mut("n").unwrap().changed.insert(name.into());
}

fn ports(node: &FakeNode) -> Vec<(String, String)> {
    let port = |one: &Value| one["service"]["port"].as_str().unwrap().to_string();
    node.lock().unwrap().iter().map(|(name, one)| (name.clone(), port(one))).collect()
}

/// Returns the state of a controller with one node, which listens at this path.
fn hub(path: &Path) -> Arc<Hub> {
    let config = format!(
        "{{ template: {{ port: p0 }}, nodes: [{{ name: n, url: 'unix:{}' }}],
            pools: [{{ name: a, addresses: [192.0.2.0/30] }}] }}",
        path.display()
    );
    Arc::new(Hub::new(Config::parse(&config).unwrap()))
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("weir-kube-{name}-{}", std::process::id()))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Lets the controller lead for some time.
fn lead(hub: &Hub, time: Duration) {
    hub.state().leads_until = Some(Instant::now() + time);
}

/// Waits until something is so, on a busy machine.
async fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "it does not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn the_last_good_form_of_a_refused_service_stays() {
    let path = path("node");
    let hub = hub(&path);
    let config = hub.config.nodes[0].clone();
    let has = |name: &str, owner: &str| {
        let status = json!({ "owner": owner, "etag": "e", "back_ends": [] });
        (name.to_string(), json!({ "name": name, "service": { "port": "80" }, "status": status }))
    };
    let has = [has("a", "api"), has("b", "file"), has("c", "api")];
    let node: FakeNode = Arc::new(Mutex::new(has.into()));
    let expected = |all: [(&str, &str); 3]| all.map(|(name, port)| (name.into(), port.into())).to_vec();
    runtime().block_on(async {
        tokio::spawn(serve(node.clone(), UnixListener::bind(&path).unwrap()));
        want(&hub, "a", 666);
        want(&hub, "d", 81);
        let mut known = Confirmed::default();
        known.bring(&hub, &config, true).await.unwrap();
        assert_eq!(ports(&node), expected([("a", "80"), ("b", "80"), ("d", "81")]));
        assert!(hub.state().nodes["n"].refused.contains_key("a"));
        // After a failure, and a lapse of the lease.
        for refused in [known.refused.clone(), Refusals::new()] {
            known = Confirmed { refused, ..Confirmed::default() };
            known.bring(&hub, &config, true).await.unwrap();
            assert_eq!(ports(&node), expected([("a", "80"), ("b", "80"), ("d", "81")]));
            assert!(hub.state().nodes["n"].refused.contains_key("a"));
        }
        want(&hub, "a", 82);
        known.bring(&hub, &config, true).await.unwrap();
        assert_eq!(ports(&node), expected([("a", "82"), ("b", "80"), ("d", "81")]));
        assert_eq!(hub.state().nodes["n"].refused, BTreeMap::new(), "it is accepted");
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_node_that_refuses_a_service_is_not_in_sync() {
    let path = path("refuses");
    let hub = hub(&path);
    let node = FakeNode::default();
    runtime().block_on(async {
        tokio::spawn(serve(node.clone(), UnixListener::bind(&path).unwrap()));
        lead(&hub, Duration::from_secs(3600));
        want(&hub, "a", 666);
        want(&hub, "b", 80);
        tokio::spawn(feed(hub.clone(), hub.config.nodes[0].clone()));
        hub.nodes["n"].notify_one();
        until(|| hub.unready().contains("node n: it refuses `a`: /services/0/service/port: wrong")).await;
        let metrics = hub.metrics_text();
        assert!(metrics.contains("weir_kube_node_in_sync{node=\"n\"} 0"), "{metrics}");
        assert!(metrics.contains("weir_kube_node_refused{node=\"n\"} 1"), "{metrics}");
        assert_eq!(ports(&node), [("b".into(), "80".into())]);
        want(&hub, "a", 81);
        hub.nodes["n"].notify_one();
        until(|| !hub.unready().contains("node n")).await;
        let metrics = hub.metrics_text();
        assert!(metrics.contains("weir_kube_node_in_sync{node=\"n\"} 1"), "{metrics}");
        assert!(metrics.contains("weir_kube_node_refused{node=\"n\"} 0"), "{metrics}");
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn reasons_of_refusals_outlive_a_request_that_fails() {
    let path = path("reasons");
    let hub = hub(&path);
    let config = hub.config.nodes[0].clone();
    runtime().block_on(async {
        tokio::spawn(serve(FakeNode::default(), UnixListener::bind(&path).unwrap()));
        (0..=REFUSED_MAX).for_each(|at| want(&hub, &format!("s{at}"), 666));
        let mut known = Confirmed::default();
        known.bring(&hub, &config, true).await.unwrap_err();
        known = Confirmed { refused: known.refused, ..Confirmed::default() };
        known.bring(&hub, &config, true).await.unwrap();
        let refused = hub.state().nodes["n"].refused.clone();
        assert_eq!(refused.len(), REFUSED_MAX + 1, "{refused:?}");
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_service_that_changes_back_to_what_the_node_has_is_confirmed() {
    let path = path("back");
    let node = FakeNode::default();
    let confirmed = |hub: &Hub| {
        let state = hub.state();
        state.cluster.confirmed["n"].get("a").map(|front_end| front_end.port)
    };
    runtime().block_on(async {
        tokio::spawn(serve(node.clone(), UnixListener::bind(&path).unwrap()));
        let first = hub(&path);
        want(&first, "a", 80);
        Confirmed::default().bring(&first, &first.config.nodes[0], true).await.unwrap();
        assert_eq!(confirmed(&first), Some(80));
        // Another controller has not seen the node accept it.
        let (second, mut known) = (hub(&path), Confirmed::default());
        for (port, expected) in [(666, None), (80, Some(80))] {
            want(&second, "a", port);
            known.bring(&second, &second.config.nodes[0], true).await.unwrap();
            assert_eq!(confirmed(&second), expected);
        }
        assert_eq!(ports(&node), [("a".into(), "80".into())]);
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_late_request_changes_nothing() {
    let path = path("late");
    let hub = hub(&path);
    let config = hub.config.nodes[0].clone();
    let node = FakeNode::default();
    let all: Vec<String> = (0..=SINGLE_MAX).map(|at| format!("s{at}")).collect();
    runtime().block_on(async {
        tokio::spawn(serve(node.clone(), UnixListener::bind(&path).unwrap()));
        let mut known = Confirmed::default();
        all.iter().for_each(|name| want(&hub, name, 80));
        known.bring(&hub, &config, true).await.unwrap();
        // Another controller has taken over.
        let other = json!({ "name": "x", "service": { "port": "1" }, "status": { "owner": "api" } });
        node.lock().unwrap().insert("x".into(), other);
        let before = ports(&node);
        all.iter().for_each(|name| want(&hub, name, 81));
        let late = known.bring(&hub, &config, true).await;
        let is_stale =
            |why: &ClientError| matches!(why, ClientError::Refused { reason: RefusalReason::Stale, .. });
        assert!(late.as_ref().is_err_and(is_stale), "{late:?}");
        assert_eq!(ports(&node), before);
        // If this controller still leads, it asks again.
        Confirmed::default().bring(&hub, &config, true).await.unwrap();
        assert!(ports(&node).iter().all(|(_, port)| port == "81"));
    });
    std::fs::remove_file(path).unwrap();
}

/// A node that accepts a request and never answers counts as not in sync soon, and is given up before another
/// controller may lead.
#[test]
fn a_node_that_stalls_is_seen_and_given_up() {
    let hub = hub(&path("stalls"));
    let config = &hub.config.nodes[0];
    let stalls = std::future::pending::<Result<(), ClientError>>;
    runtime().block_on(async {
        note(&hub, config, None);
        lead(&hub, Duration::from_secs(3600));
        let times = [10, 1000].map(Duration::from_millis);
        let why = while_leading(&hub, config, times, stalls()).await.unwrap_err();
        assert_eq!(why.to_string(), "weir has not answered within 1 s");
        assert!(hub.unready().contains("node n: weir has not answered for 0 s"), "{}", hub.unready());
        assert!(hub.metrics_text().contains("weir_kube_node_in_sync{node=\"n\"} 0"));
        lead(&hub, Duration::from_millis(100));
        let why = while_leading(&hub, config, ANSWERS, stalls()).await.unwrap_err();
        assert_eq!(why.to_string(), "weir has not answered before the lease ended");
    });
}

#[test]
fn refused_services_are_tried_again_less_and_less_often() {
    let (mut again, begin) = (Again::default(), Instant::now());
    let due = (0..200).filter(|second| again.is_due(begin + Duration::from_secs(*second)));
    assert_eq!(due.collect::<Vec<_>>(), [0, 5, 15, 35, 75, 135, 195]);
}

#[test]
fn a_refusal_names_a_service() {
    let place = |why| place(RefusalReason::Wrong, why);
    assert_eq!(place("/services/3/back_ends/0/mac: wrong"), Some(3));
    assert_eq!(place("conflict: service `web` (at /services/12) belongs to weir.yaml:6"), Some(12));
    assert_eq!(place("the configuration is wrong"), None);
    assert_eq!(super::place(RefusalReason::Busy, "/services/3"), None);
}
