//! A service that loses all its back ends and regains them: `fail: reject` answers its clients meanwhile.

use super::folder::Folder;
use super::running::Daemon;
use super::weir;
use rustix::process::Signal;
use serde_json::{Value, json};

const CONFIG: &str = "\
state: state
ports: { p0: { pcap: {} }, p1: { pcap: {} } }
apps:
  - lb:
      name: web
      port: [p0, p1]
      service: { vip: 10.0.0.80, protocol: tcp, port: 80 }
      size: 251
      fail: reject
      back_ends: [{ name: b1, mac: 02:00:00:00:00:11 }]
  - lb: { persist: true }
";

/// A daemon, and the requests that clients have sent to it.
struct Clients {
    daemon: Daemon,
    asked: u16,
}

impl Clients {
    /// Sends SYNs of `count` new clients to a port. Returns how many reach the back end, and how many are
    /// rejected.
    fn ask(&mut self, count: u16, input: &str) -> [u64; 2] {
        let before = [self.reached(), self.rejected()];
        for _ in 0..count {
            self.asked += 1;
            let port = 4000 + self.asked;
            let mac = "eth.src=02:00:00:00:00:09 eth.dst=02:00:00:00:00:fe";
            let packet = format!("{mac} src=192.0.2.1 dst=10.0.0.80 proto=tcp sport={port} dport=80 flags=S");
            let answer = self.daemon.ask(&json!({ "command": "inject", "packet": packet, "input": input }));
            assert_eq!(answer, json!({ "done": true }));
        }
        let wanted = before.iter().sum::<u64>() + u64::from(count);
        let (reached, rejected) = (self.reached(), self.rejected());
        if reached + rejected < wanted {
            self.daemon.wait_for("every answer", |daemon| reached + rejections(daemon) == wanted);
        }
        [self.reached() - before[0], self.rejected() - before[1]]
    }

    /// Returns how many packets have reached the back end; its counter is removed with it.
    fn reached(&self) -> u64 {
        let counters = self.daemon.show("counters");
        let one = counters.as_array().into_iter().flatten().find(|one| one["name"] == "lb/web/b1");
        one.map_or(0, |one| one["packets"].as_u64().unwrap())
    }

    fn rejected(&self) -> u64 {
        rejections(&self.daemon)
    }

    fn change(&self, request: Value) -> Value {
        self.daemon.ask(&json!({ "command": "app", "app": "lb", "request": request }))
    }
}

fn rejections(daemon: &Daemon) -> u64 {
    let apps = daemon.show("apps");
    apps[0]["rejections_sent"].as_u64().unwrap_or_else(|| panic!("{apps}"))
}

/// The scenario of the test of Cilium's load balancer: requests through one interface and through another,
/// with weight 0, with weight again, and after a restart; and back ends that are removed and added.
#[test]
fn clients_are_rejected_as_long_as_there_is_no_back_end_for_them() {
    let mut clients = Clients { daemon: Daemon::start(CONFIG), asked: 0 };
    assert_eq!(clients.ask(10, "p0"), [10, 0]);
    assert_eq!(clients.ask(10, "p1"), [10, 0], "by another port");
    let warning = "no back end of web has a weight: it gets no new flows";
    let said = clients.daemon.weir(&["lb", "weight", "web", "b1", "0"]).good().out;
    assert_eq!(said, format!("the weight of b1 of web is 0; {warning}\n"));
    assert_eq!(clients.ask(10, "p0"), [0, 10], "in maintenance");
    let weigh =
        |weight: u32| json!([{ "do": "weight", "service": "web", "back_end": "b1", "weight": weight }]);
    assert_eq!(clients.change(weigh(1)), json!({ "done": 1 }));
    assert_eq!(clients.ask(1, "p0"), [1, 0], "back again");
    // Rejections are also remembered across a restart.
    assert_eq!(clients.change(weigh(0)), json!({ "done": 1, "warning": warning }));
    clients.daemon.signal(Signal::KILL);
    clients.daemon.end();
    clients.daemon = Daemon::start_in(clients.daemon.into_folder());
    assert_eq!(clients.ask(10, "p1"), [0, 10]);
    clients.daemon.weir(&["lb", "enable", "web", "b1"]).good();
    assert_eq!(clients.change(weigh(1)), json!({ "done": 1 }));
    assert_eq!(clients.ask(50, "p0"), [50, 0], "after a restart");
    // A service may lose its last back end, and get one.
    let said = clients.daemon.weir(&["lb", "remove", "web", "b1"]).good().out;
    assert_eq!(said, format!("b1 was removed from web; {warning}\n"));
    assert_eq!(clients.ask(10, "p0"), [0, 10]);
    let back = "{ name: b1, mac: 02:00:00:00:00:11 }";
    assert_eq!(clients.daemon.weir(&["lb", "add", "web", back]).good().out, "b1 was added to web\n");
    assert_eq!(clients.ask(10, "p0"), [10, 0]);
    clients.daemon.weir(&["lb", "drain", "web", "b1"]).good();
    assert_eq!(clients.ask(10, "p0"), [0, 10], "drained");
}

/// Without `fail: reject`, a service without back ends drops; the file may have one, with a warning.
#[test]
fn a_file_may_have_services_without_back_ends() {
    let config = CONFIG.replace("      fail: reject\n", "");
    for (back_ends, warning) in [
        ("[]", "group `lb/web` has no targets"),
        ("[{ name: b1, mac: 02:00:00:00:00:11, weight: 0 }]", "all targets of group `lb/web` have weight 0"),
    ] {
        let config = config.replace("[{ name: b1, mac: 02:00:00:00:00:11 }]", back_ends);
        let daemon = Daemon::start(&config);
        let checked = weir(daemon.folder.path(), &["check", "weir.yaml"]);
        assert!(checked.code == Some(0) && checked.err.contains(warning), "{}", checked.err);
        daemon.receive(&["eth.dst=02:00:00:00:00:fe src=192.0.2.1 dst=10.0.0.80 proto=tcp sport=1 dport=80"]);
        assert_eq!(daemon.show("ledger")["dropped"]["no_target"], 1);
    }
}

/// Services that share a NAT pool share a table of flows, even after one of them has lost its last back end.
#[test]
fn a_service_with_a_nat_pool_may_be_without_back_ends() {
    let service = |name: &str, vip: &str, back_ends: &str| {
        format!(
            "  - lb:\n      name: {name}\n      port: p0\n      nat_pool: out\n      fail: reject\n      \
             back_ends: [{back_ends}]\n      service: {{ vip: {vip}, protocol: tcp, port: 80 }}\n"
        )
    };
    let back_end = "{ name: b1, mode: full_nat, ip: 10.1.0.1, mac: 02:00:00:00:00:11 }";
    let (empty, other) = (service("empty", "10.0.0.80", ""), service("other", "10.0.0.81", back_end));
    let folder = Folder::new();
    for services in [format!("{empty}{other}"), format!("{other}{empty}")] {
        let pool = "nat_pools: { out: { addresses: 10.1.255.0/29 } }";
        folder.write("weir.yaml", format!("ports: {{ p0: {{ pcap: {{}} }} }}\n{pool}\napps:\n{services}"));
        let checked = weir(folder.path(), &["check", "weir.yaml"]);
        assert_eq!(checked.code, Some(0), "{}", checked.err);
    }
}

/// A back end with `mode: reject` gets its share of connections, which are rejected.
#[test]
fn a_share_of_the_connections_is_rejected() {
    let reject = "{ name: none, mode: reject, weight: 3 }";
    let direct = CONFIG.replace("0:11 }]", &format!("0:11 }}, {reject}]"));
    let full = "{ name: b1, mode: full_nat, ip: 10.1.0.1, mac: 02:00:00:00:00:11 }";
    let pool = "nat_pools: { out: { addresses: 10.1.255.0/29 } }\napps:";
    let full = CONFIG.replace("{ name: b1, mac: 02:00:00:00:00:11 }", &format!("{full}, {reject}"));
    let full = full.replace("apps:", pool).replace("      size", "      nat_pool: out\n      size");
    for config in [direct, full] {
        let mut clients = Clients { daemon: Daemon::start(&config), asked: 0 };
        let [reached, rejected] = clients.ask(100, "p0");
        assert!(reached > 5 && rejected > 50, "{reached} {rejected}: a quarter and three quarters");
        // Checks of all back ends skip it.
        let rows = clients.daemon.show("backends");
        assert_eq!(rows[1]["mode"], "reject", "{rows}");
    }
}

#[test]
fn a_back_end_that_rejects_has_no_address_and_clients_are_prefixes() {
    let folder = Folder::new();
    for (from, to, said) in [
        ("mac: 02:00:00:00:00:11", "mode: reject, ip: 10.0.0.1", "`mode: reject` are sent nowhere"),
        ("fail: reject", "clients: []", "`clients` is empty"),
        ("fail: reject", "clients: 192.0.2.0/33", "192.0.2.0/33"),
    ] {
        folder.write("weir.yaml", CONFIG.replace(from, to));
        let checked = weir(folder.path(), &["check", "weir.yaml"]);
        assert!(checked.code == Some(2) && checked.err.contains(said), "{to}: {}", checked.err);
    }
}
