//! Requests of clients through a node, while endpoints, services, controllers and the API server come and go.

use crate::bed::{Bed, Controller, SERVICES, SLICES, wait};
use crate::network::{ClientRequest, PORT, PodServer, RequestOutcome, ServiceClients};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How many endpoints the rolling update replaces, and how many of them at a time.
const REPLACED: u8 = 100;
const BATCH: usize = 10;
/// How long Kubernetes waits for a pod to terminate, by default.
const TERMINATION: Duration = Duration::from_secs(30);
/// How long servers continue once nodes send them no new flows, to answer requests that are under way.
const GRACE: Duration = Duration::from_millis(500);
/// The minimum length of a phase, so that it contains requests.
const LASTS: Duration = Duration::from_secs(2);

/// A part of a phase in which requests of a service need not be answered.
pub struct ServicePause {
    begun: Instant,
    ended: Instant,
    /// The part of it in which requests must be refused, because the service exists and nodes know that it
    /// has no endpoints.
    refused: Option<[Instant; 2]>,
}

/// The services to which clients send requests, and these clients.
pub struct ServiceTraffic<'a> {
    bed: &'a Bed,
    /// The clients of the service that changes, and of one that stays as it is.
    clients: [ServiceClients; 2],
    servers: Vec<PodServer>,
    /// The pauses of the changing service. A request may end long after the phase in which it began.
    pauses: RefCell<Vec<ServicePause>>,
    /// The servers of the service that stays as it is.
    _steady: Vec<PodServer>,
}

/// Returns the address of a server.
fn address(of: u8, number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, of, number)
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "weir-net.github.io/lb",
            "allocateLoadBalancerNodePorts": false,
            "ports": [
                { "name": "tcp", "port": PORT, "protocol": "TCP" },
                { "name": "udp", "port": PORT, "protocol": "UDP" },
            ],
        },
    })
}

fn slice(service: &str, servers: &[PodServer]) -> Value {
    let endpoints: Vec<Value> = servers.iter().map(ready).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": service, "labels": { "kubernetes.io/service-name": service } },
        "ports": [
            { "name": "tcp", "port": PORT, "protocol": "TCP" },
            { "name": "udp", "port": PORT, "protocol": "UDP" },
        ],
        "endpoints": endpoints,
    })
}

fn ready(server: &PodServer) -> Value {
    json!({ "addresses": [server.address.to_string()] })
}

fn terminating(server: &PodServer) -> Value {
    let conditions = json!({ "ready": false, "serving": true, "terminating": true });
    json!({ "addresses": [server.address.to_string()], "conditions": conditions })
}

impl<'a> ServiceTraffic<'a> {
    /// Creates the services with their servers, and starts the clients.
    pub fn begin(bed: &'a Bed) -> ServiceTraffic<'a> {
        let servers = bed.network.serve(&[address(1, 1), address(1, 2)]);
        let steady = bed.network.serve(&[address(2, 1), address(2, 2)]);
        for (name, servers) in [("changing", &servers), ("steady", &steady)] {
            bed.create(SLICES, &slice(name, servers));
            bed.create(SERVICES, &service(name));
            until(bed, name, servers);
        }
        let clients = [("changing", 0), ("steady", 1)]
            .map(|(name, number)| bed.network.ask(name, vip(bed, name), number));
        let traffic = ServiceTraffic { bed, clients, servers, pauses: RefCell::default(), _steady: steady };
        traffic.phase("nothing changes", None);
        traffic
    }

    /// Ends a phase: asserts that all requests were answered, except those of the changing service during
    /// this pause.
    pub fn phase(&self, name: &str, pause: Option<ServicePause>) {
        sleep(LASTS);
        self.pauses.borrow_mut().extend(pause);
        let pauses = self.pauses.borrow();
        let mut failures = Vec::new();
        for (at, clients) in self.clients.iter().enumerate() {
            let pauses = if at == 0 { pauses.as_slice() } else { &[] };
            let all = clients.take();
            let refused = all.iter().filter(|one| one.outcome == RequestOutcome::Refused).count();
            let missing: Vec<&ClientRequest> =
                all.iter().filter(|one| !matches!(one.outcome, RequestOutcome::Answered(_))).collect();
            let failed: Vec<&&ClientRequest> = missing.iter().filter(|one| is_failure(one, pauses)).collect();
            println!(
                "packets, {name}: {} requests of {}, {} failed ({refused} refused, {} not served in a pause)",
                all.len(),
                clients.name,
                failed.len(),
                missing.len() - failed.len(),
            );
            assert!(!all.is_empty(), "clients of {} send nothing", clients.name);
            failures.extend(
                failed.into_iter().map(|one| format!("{} {}: {:?}", clients.name, one.protocol, one.outcome)),
            );
        }
        assert!(failures.is_empty(), "{name}: {failures:?}\n{}", self.bed.drops());
    }

    /// Replaces the servers of the changing service with a single new one, as an update of a Deployment does.
    fn replace_by_one(&mut self, number: u8) {
        let new = self.bed.network.serve(&[address(1, number)]);
        let old = std::mem::replace(&mut self.servers, new);
        let endpoints: Vec<Value> =
            old.iter().map(terminating).chain(self.servers.iter().map(ready)).collect();
        self.bed.put_endpoints("changing", &endpoints);
        until(self.bed, "changing", &self.servers);
        sleep(GRACE);
        self.bed.network.end(old);
        self.bed.put_endpoints("changing", &self.servers.iter().map(ready).collect::<Vec<_>>());
    }

    /// All endpoints terminate and are removed, and later others are added.
    pub fn scale_to_zero_and_back(&mut self) {
        self.bed.put_endpoints("changing", &self.servers.iter().map(terminating).collect::<Vec<_>>());
        sleep(LASTS);
        self.phase("all endpoints terminate", None);
        let begun = Instant::now();
        self.bed.put_endpoints("changing", &[]);
        until(self.bed, "changing", &[]);
        let settled = Instant::now();
        self.bed.network.end(std::mem::take(&mut self.servers));
        sleep(LASTS);
        let refused = Some([settled, Instant::now()]);
        self.servers = self.bed.network.serve(&[address(1, 3), address(1, 4)]);
        self.bed.put_endpoints("changing", &self.servers.iter().map(ready).collect::<Vec<_>>());
        until(self.bed, "changing", &self.servers);
        self.phase("scaled to zero and back", Some(ServicePause { begun, ended: Instant::now(), refused }));
    }

    /// A rolling update: while its replacement is ready, each endpoint stops being ready and terminates, and
    /// some time later it is removed.
    pub fn roll(&mut self) {
        let old = self.bed.network.serve(&(1..=REPLACED).map(|one| address(3, one)).collect::<Vec<_>>());
        let all: Vec<Value> = old.iter().map(ready).collect();
        let first = std::mem::take(&mut self.servers);
        let both: Vec<Value> = first.iter().map(terminating).chain(all.iter().cloned()).collect();
        self.bed.put_endpoints("changing", &both);
        until(self.bed, "changing", &old);
        sleep(GRACE);
        self.bed.network.end(first);
        self.bed.put_endpoints("changing", &all);
        self.phase("100 endpoints", None);

        let begun = Instant::now();
        let (mut old, mut going) = (old, Vec::new());
        while !old.is_empty() {
            let next = u8::try_from(self.servers.len()).unwrap() + 1;
            let addresses: Vec<Ipv4Addr> = (next..).take(BATCH).map(|one| address(4, one)).collect();
            self.servers.extend(self.bed.network.serve(&addresses));
            // The servers of the previous batch end before their endpoints are removed, as pods do.
            self.bed.network.end(std::mem::take(&mut going));
            let rest = old.split_off(BATCH.min(old.len()));
            going = std::mem::replace(&mut old, rest);
            let endpoints = going.iter().map(terminating).chain(old.iter().chain(&self.servers).map(ready));
            let asked = Instant::now();
            self.bed.put_endpoints("changing", &endpoints.collect::<Vec<_>>());
            let serving: Vec<&PodServer> = old.iter().chain(&self.servers).collect();
            until_addresses(self.bed, "changing", serving.iter().map(|one| one.address));
            assert!(asked.elapsed() < TERMINATION, "pods of a cluster would have ended before");
            sleep(GRACE);
        }
        self.bed.network.end(going);
        self.bed.put_endpoints("changing", &self.servers.iter().map(ready).collect::<Vec<_>>());
        println!("the rolling update took {:.1?}", begun.elapsed());
        self.phase("rolling update of 100 endpoints", None);
        let answered: BTreeSet<IpAddr> = self.answering();
        let expected = self.servers.iter().map(|one| IpAddr::from(one.address)).collect();
        assert!(answered.is_subset(&expected) && answered.len() > 10, "{answered:?}");
    }

    /// Returns the addresses of the servers that answer clients of the changing service.
    fn answering(&self) -> BTreeSet<IpAddr> {
        self.clients[0].take();
        sleep(LASTS);
        let all = self.clients[0].take().into_iter();
        all.filter_map(|one| if let RequestOutcome::Answered(ip) = one.outcome { Some(ip) } else { None })
            .collect()
    }

    /// A service is deleted and created again.
    pub fn delete_and_create(&self) {
        let before = vip(self.bed, "changing");
        let begun = Instant::now();
        self.bed.ask("DELETE", &format!("{SERVICES}/changing"), &json!({})).unwrap();
        let gone = || self.bed.back_ends(2, "shop.changing.80-tcp").is_none().then_some(());
        wait("no service", gone);
        sleep(LASTS);
        let mut again = service("changing");
        again["metadata"]["annotations"] = json!({ "weir-net.github.io/addresses": before.to_string() });
        self.bed.create(SERVICES, &again);
        until(self.bed, "changing", &self.servers);
        let pause = ServicePause { begun, ended: Instant::now(), refused: None };
        self.phase("a service was deleted and created", Some(pause));
    }

    /// Only the clients that `loadBalancerSourceRanges` names are served.
    pub fn limit_clients(&self) {
        let path = format!("{SERVICES}/changing");
        let allow = |ranges: &[&str]| {
            let change = json!({ "spec": { "loadBalancerSourceRanges": ranges } });
            self.bed.ask("PATCH", &path, &change).unwrap();
            let wanted = if ranges.is_empty() { Value::Null } else { json!(ranges) };
            let last = self.bed.nodes.len() - 1;
            wait("these clients", || {
                let services = self.bed.services(last).services;
                let own = services.iter().filter(|one| {
                    one["name"].as_str().is_some_and(|name| name.starts_with("shop.changing."))
                });
                own.clone().all(|one| one["clients"] == wanted).then_some(())
            });
        };
        allow(&["10.1.254.0/24", "2001:db8::/32"]);
        self.phase("its clients are in a source range", None);
        let begun = Instant::now();
        allow(&["198.51.100.0/24"]);
        let settled = Instant::now();
        sleep(LASTS);
        allow(&[]);
        let ended = Instant::now();
        // Requests that were dropped end later.
        sleep(2 * LASTS);
        let all = self.clients[0].take();
        let within = all.iter().filter(|one| one.begun > settled && one.ended < ended);
        assert!(within.clone().count() == 0, "served: {:?}", within.collect::<Vec<_>>());
        assert!(all.iter().any(|one| one.begun > begun && one.begun < ended), "no request was dropped");
        self.phase("its clients were in no source range", Some(ServicePause { begun, ended, refused: None }));
    }

    /// The leader is killed, and later its successor is ended; each time, another controller continues.
    /// Returns the one that leads then.
    pub fn leaders(&mut self, first: Controller) -> Controller {
        let second = self.bed.controller("second.yaml");
        second.until_ready();
        drop(first);
        self.replace_by_one(11);
        second.until_ready();
        self.phase("the leader was killed", None);
        let third = self.bed.controller("third.yaml");
        third.until_ready();
        second.program.end();
        self.replace_by_one(12);
        third.until_ready();
        self.phase("the leader ended", None);
        third
    }

    /// The API server is killed, and started again after a minute.
    pub fn without_api_server(&mut self, controller: &Controller) {
        let server = PathBuf::from(std::env::var("KUBE_SERVER").unwrap());
        let pid = std::fs::read_to_string(server.join("server.pid")).unwrap();
        assert!(Command::new("kill").args(["-9", pid.trim()]).status().unwrap().success());
        let begun = Instant::now();
        wait("not ready", || (!controller.get("/readyz").0).then_some(()));
        until(self.bed, "changing", &self.servers);
        sleep(Duration::from_secs(60).saturating_sub(begun.elapsed()));
        self.phase("the API server was away for a minute", None);
        assert!(Command::new(server.join("start")).status().unwrap().success());
        self.replace_by_one(13);
        controller.until_ready();
        self.phase("the API server is back", None);
    }
}

/// Whether a request that was not answered should have been answered or refused.
fn is_failure(asked: &ClientRequest, pauses: &[ServicePause]) -> bool {
    let excused = |pause: &&ServicePause| asked.begun <= pause.ended && asked.ended >= pause.begun;
    let Some(pause) = pauses.iter().find(excused) else { return true };
    let is_within = |[from, to]: [Instant; 2]| asked.begun >= from && asked.ended <= to;
    asked.outcome != RequestOutcome::Refused && pause.refused.is_some_and(is_within)
}

fn vip(bed: &Bed, name: &str) -> Ipv4Addr {
    let path = format!("{SERVICES}/{name}");
    wait("an address", || bed.get(&path)["status"]["loadBalancer"]["ingress"][0]["ip"].as_str()?.parse().ok())
}

/// Waits until all nodes send new flows to just these servers.
fn until(bed: &Bed, service: &str, servers: &[PodServer]) {
    until_addresses(bed, service, servers.iter().map(|one| one.address));
}

fn until_addresses(bed: &Bed, service: &str, addresses: impl Iterator<Item = Ipv4Addr>) {
    let mut names: Vec<String> = addresses.map(|one| one.to_string()).collect();
    names.sort();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for protocol in ["tcp", "udp"] {
        bed.until(&format!("shop.{service}.80-{protocol}"), &names);
    }
}
