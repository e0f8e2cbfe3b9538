//! Two hosts with VXLAN, two routers, and four links between them, all in network namespaces.

use crate::spaces::Spaces;
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_bed::{Started, cable};

const HOSTS: [&str; 2] = ["a", "b"];
pub const LINKS: usize = 4;
/// How many of 1000 packets, one each millisecond, may be lost while a flow leaves a path that fails. A
/// kernel that rehashes would need a timeout of at least 200 ms, and only TCP has one.
const LOST_MAX: usize = 200;
/// How often a failure is tried: if the machine stalls weir during one of them, more is lost.
const TRIES: usize = 3;
/// Additional routers, of beds over IPv6.
pub const SPINES: usize = 2;

/// The namespaces, and what is configured in them.
pub struct PathNetwork {
    spaces: Spaces,
    pub daemons: Vec<Started>,
    /// The underlay addresses of both hosts, and those inside the tunnel.
    outer: [&'static str; 2],
    inner: [String; 2],
    /// The keys for the uplink and the tunnel in each host's configuration.
    pub at_hosts: [String; 2],
}

impl Deref for PathNetwork {
    type Target = Spaces;

    fn deref(&self) -> &Spaces {
        &self.spaces
    }
}

impl DerefMut for PathNetwork {
    fn deref_mut(&mut self) -> &mut Spaces {
        &mut self.spaces
    }
}

impl PathNetwork {
    /// Builds it, with this letter in its names; `None` without root.
    pub fn build(letter: char) -> Option<PathNetwork> {
        let spaces = Spaces::build(&letter.to_string(), &["a", "b", "r1", "r2"])?;
        let (outer, inner) = (["10.0.1.1", "10.0.2.1"], ["192.168.0.1", "192.168.0.2"].map(str::to_string));
        let at_hosts = [(); 2].map(|()| "uplink: up0".to_string());
        let bed = PathNetwork { spaces, daemons: Vec::new(), outer, inner, at_hosts };
        bed.wire();
        bed.route();
        Some(bed)
    }

    /// Runs `tc` in the first router.
    pub fn tc(&self, line: &str) {
        self.at("r1").output("tc", &line.split(' ').collect::<Vec<_>>()).unwrap();
    }

    fn wire(&self) {
        for role in ["a", "b", "r1", "r2"] {
            self.set(role, &["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"]);
            // A new namespace has the host's.
            self.set(role, &["net.ipv4.ip_forward=0", "net.ipv4.fib_multipath_hash_policy=0"]);
        }
        for (host, router, net) in [("a", "r1", 1), ("b", "r2", 2)] {
            let end = self.at(host).end("up0").address(format!("10.0.{net}.1/24"));
            cable(None, &end, &self.at(router).end("host").address(format!("10.0.{net}.254/24"))).unwrap();
            self.ip(host, &format!("route add default via 10.0.{net}.254"));
        }
        for link in 0..LINKS {
            let name = format!("p{link}");
            let end = |router, end| self.at(router).end(&name).address(format!("10.9.{link}.{end}/24"));
            cable(None, &end("r1", 1), &end("r2", 2)).unwrap();
        }
    }

    fn route(&self) {
        for (router, other, net) in [("r1", 2, 2), ("r2", 1, 1)] {
            let by_udp_port = "net.ipv4.fib_multipath_hash_policy=1";
            let by_link = "net.ipv4.icmp_errors_use_inbound_ifaddr=1";
            self.set(router, &["net.ipv4.ip_forward=1", by_udp_port, by_link, "net.ipv4.icmp_ratelimit=0"]);
            let hops: String = (0..LINKS).map(|link| format!(" nexthop via 10.9.{link}.{other}")).collect();
            self.ip(router, &format!("route add 10.0.{net}.0/24{hops}"));
        }
        for (host, own, peer) in [("a", 1, 2), ("b", 2, 1)] {
            let tunnel = format!("local 10.0.{own}.1 remote 10.0.{peer}.1 noudpcsum");
            self.ip(host, &format!("link add vx type vxlan id 42 dstport 4789 {tunnel}"));
            self.ip(host, &format!("addr add 192.168.0.{own}/24 dev vx\nlink set dev vx up"));
        }
    }

    /// Switches the hosts to IPv6, with two more routers between those at the ends: a Linux router uses a
    /// single source address in its ICMPv6 messages, so parallel links cannot be distinguished.
    pub fn over_six(&mut self) {
        let on = ["net.ipv6.conf.all.disable_ipv6=0", "net.ipv6.conf.default.disable_ipv6=0"];
        let router = ["net.ipv6.conf.all.forwarding=1", "net.ipv6.icmp.ratelimit=0"];
        let spines = ["s0", "s1"];
        spines.into_iter().for_each(|spine| self.add(spine));
        for role in HOSTS.into_iter().chain(["r1", "r2"]).chain(spines) {
            self.set(role, &on);
            if !HOSTS.contains(&role) {
                self.set(role, &router);
                self.set(role, &["net.ipv6.fib_multipath_hash_policy=1"]);
            }
        }
        for (host, router, net) in [("a", "r1", 1), ("b", "r2", 2)] {
            self.ip(host, &format!("addr add fd00:{net}::1/64 dev up0 nodad"));
            self.ip(router, &format!("addr add fd00:{net}::ff/64 dev host nodad"));
            self.ip(host, &format!("route add default via fd00:{net}::ff"));
            for (number, spine) in spines.into_iter().enumerate() {
                let of = format!("fd09:{net}:{}:", number + 1);
                let (near, far) = (format!("x{number}"), format!("x{net}"));
                let end = self.at(router).end(&near).address(format!("{of}:1/64"));
                cable(None, &end, &self.at(spine).end(&far).address(format!("{of}:2/64"))).unwrap();
                self.ip(spine, &format!("route add fd00:{net}::/64 via {of}:1"));
            }
        }
        for (router, net, to) in [("r1", 1, 2), ("r2", 2, 1)] {
            let hops: String =
                (1..=SPINES).map(|spine| format!(" nexthop via fd09:{net}:{spine}::2")).collect();
            self.ip(router, &format!("route add fd00:{to}::/64{hops}"));
        }
        (self.outer, self.inner) = (["fd00:1::1", "fd00:2::1"], ["fd06::1", "fd06::2"].map(str::to_string));
        HOSTS.into_iter().for_each(|host| self.tunnel_over_six(host));
    }

    pub fn tunnel_over_six(&self, host: &str) {
        let (own, peer) = if host == "a" { (0, 1) } else { (1, 0) };
        let tunnel = format!("local {} remote {}", self.outer[own], self.outer[peer]);
        self.ip(host, &format!("link add vx6 type vxlan id 43 dstport 4789 {tunnel}"));
        self.ip(host, &format!("addr add {}/64 dev vx6 nodad\nlink set dev vx6 up", self.inner[own]));
    }

    fn socket(&self, host: &str) -> PathBuf {
        self.folder().join(format!("{host}.sock"))
    }

    /// Starts the daemons of both hosts.
    pub fn start(&mut self) {
        HOSTS.into_iter().for_each(|host| self.start_at(host));
    }

    /// Gives both hosts this tunnel, with these addresses inside.
    pub fn tunnel_is(&mut self, tunnel: &str, inner: [String; 2]) {
        self.at_hosts = [(); 2].map(|()| format!("uplink: up0\n      {tunnel}"));
        self.inner = inner;
    }

    /// Ends the daemons.
    pub fn stop(&mut self) {
        for daemon in std::mem::take(&mut self.daemons) {
            assert!(self.run_mut().stop(daemon).unwrap().success());
        }
    }

    fn file(&self, host: &str) -> PathBuf {
        self.folder().join(format!("{host}.yaml"))
    }

    /// Writes the configuration of a host. At 10 Mbit/s, the minimum pause is 40 ms, so a stream with a
    /// packet every millisecond has none, and does not move.
    pub fn configure(&self, host: &str) {
        let peer = self.outer[usize::from(host == "a")];
        let at_host = &self.at_hosts[usize::from(host == "b")];
        let app = format!(
            "socket: {}\napps:\n  - path:\n      name: fabric\n      {at_host}\n      \
             peers: [\"{peer}\"]\n      key: 000102030405060708090a0b0c0d0e0f\n      rate: 10\n      \
             probe: {{ discover: 2s }}\n",
            self.socket(host).display()
        );
        std::fs::write(self.file(host), app).unwrap();
    }

    /// Writes the configuration of host a for an unmodified peer.
    pub fn configure_alone(&self) {
        let app = format!(
            "socket: {}\napps:\n  - path: {{ name: fabric, uplink: up0, peers: [{}], scheme: one_sided, \
             rate: 10, idle_timeout: 2s }}\n",
            self.socket("a").display(),
            self.outer[1]
        );
        std::fs::write(self.file("a"), app).unwrap();
    }

    /// Starts the daemon of host a with the configuration that is there.
    pub fn start_alone(&mut self) {
        let mut command = self.weir_at("a");
        command.arg("run").arg(self.file("a")).stdout(Stdio::null());
        let daemon = self.run_mut().start("a", &mut command).unwrap();
        self.daemons.push(daemon);
    }

    pub fn start_at(&mut self, host: &str) {
        self.configure(host);
        let mut command = self.weir_at(host);
        command.arg("run").arg(self.file(host)).stdout(Stdio::null());
        let daemon = self.run_mut().start(host, &mut command).unwrap();
        self.daemons.push(daemon);
    }

    fn weir_at(&self, host: &str) -> Command {
        self.command(host, env!("CARGO_BIN_EXE_weir"))
    }

    /// Returns the doctor's result for a check of host a: level and sentence.
    pub fn doctor(&self, check: &str) -> (String, String) {
        let output = self.weir_at("a").arg("doctor").arg(self.file("a")).arg("--json").output().unwrap();
        let output_of: Value = serde_json::from_slice(&output.stdout).expect("a JSON object");
        let checks = output_of["checks"].as_array().expect("checks");
        let is_fault = checks.iter().any(|one| one["level"] == "fault");
        assert_eq!(
            (output_of["ok"].as_bool(), output.status.code()),
            (Some(!is_fault), Some(i32::from(is_fault)))
        );
        let one =
            checks.iter().find(|one| one["check"] == check).unwrap_or_else(|| panic!("{check}: {output_of}"));
        (one["level"].as_str().unwrap().to_string(), one["says"].as_str().unwrap().to_string())
    }

    pub fn wait_for_doctor(&self, check: &str, level: &str, words: &str) {
        self.wait_for(&format!("{check}: {level} {words}"), |bed| {
            let (is, says) = bed.doctor(check);
            (is == level && says.contains(words)).then_some(())
        });
    }

    pub fn ask(&self, words: &[&str]) -> Option<Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output =
            command.args(words).arg("--json").arg("--socket").arg(self.socket("a")).output().unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Returns what a command prints for people.
    pub fn output_of(&self, words: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.args(words).arg("--socket").arg(self.socket("a")).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The paths of host a to host b, when all are good.
    pub fn paths(&self) -> Option<Vec<Value>> {
        let shown = self.ask(&["show", "path"])?;
        all_good(shown.pointer("/path/0/nodes/0/paths")?.as_array()?)
    }

    pub fn wait_for<T>(&self, what: &str, mut look: impl FnMut(&PathNetwork) -> Option<T>) -> T {
        let until = Instant::now() + Duration::from_secs(90);
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(Instant::now() < until, "{what}: {:?}", self.ask(&["show", "path"]));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns how many frames a router has sent on each link.
    pub fn sent_by_link(&self) -> [u64; LINKS] {
        self.within("r1", || {
            let counts = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            std::array::from_fn(|link| {
                let name = format!("p{link}:");
                let line = counts.lines().find_map(|line| line.trim().strip_prefix(&name)).unwrap();
                line.split_whitespace().nth(9).unwrap().parse().unwrap()
            })
        })
    }

    /// Returns the link that a flow to this port takes, by its path's last hop.
    pub fn link_of(&self, dport: u16) -> Option<usize> {
        self.path_of(dport)?["hops"].as_array()?.last()?.as_str()?.split('.').nth(2)?.parse().ok()
    }

    /// The path of a flow to this port.
    pub fn path_of(&self, dport: u16) -> Option<Value> {
        let flows = self.ask(&["path", "conntrack", "fabric"])?;
        let flow = flows["flows"].as_array()?.iter().find(|flow| flow["dport"] == dport)?.clone();
        let shown = self.ask(&["show", "path"])?;
        shown.pointer(&format!("/path/0/nodes/0/paths/{}", flow["path"])).cloned()
    }
}

/// Lets a flow's path fail until few packets are lost meanwhile. `fail` returns how many are.
pub fn few_are_lost(mut fail: impl FnMut() -> usize) {
    let mut all = Vec::new();
    while all.len() < TRIES {
        let lost = fail();
        eprintln!("{lost} of 1000 packets, one each millisecond, were lost");
        if lost < LOST_MAX {
            return;
        }
        all.push(lost);
    }
    panic!("of 1000 packets each time, {all:?} were lost");
}

/// Returns paths if there are some and all are good.
pub fn all_good(paths: &[Value]) -> Option<Vec<Value>> {
    let good = paths.iter().all(|path| path["state"] == "good");
    (good && !paths.is_empty()).then(|| paths.to_vec())
}

/// A flow of numbered packets through the tunnel.
pub struct Stream {
    from: UdpSocket,
    to: UdpSocket,
    next: u32,
}

impl Stream {
    pub fn open(bed: &PathNetwork, port: u16) -> Stream {
        let bind =
            |role, address: &String| bed.within(role, || UdpSocket::bind((address.as_str(), port)).unwrap());
        let [here, there] = &bed.inner;
        Stream::between(bind("a", here), bind("b", there))
    }

    /// A flow between two sockets.
    pub fn between(from: UdpSocket, to: UdpSocket) -> Stream {
        from.connect(to.local_addr().unwrap()).unwrap();
        to.set_nonblocking(true).unwrap();
        Stream { from, to, next: 0 }
    }

    /// Sends a packet every millisecond; returns how many did not arrive.
    pub fn lost_of(&mut self, packets: u32) -> usize {
        let begin = Instant::now();
        let first = self.next;
        let mut seen = BTreeSet::new();
        // Also receives while sending, because a socket buffers only a few hundred packets, and for a little
        // longer.
        for number in 0..packets + 300 {
            if number < packets {
                self.from.send(&(first + number).to_be_bytes()).unwrap();
            }
            let mut packet = [0; 4];
            while self.to.recv(&mut packet).is_ok() {
                seen.extend(Some(u32::from_be_bytes(packet)).filter(|number| *number >= first));
            }
            if seen.len() == packets as usize {
                break;
            }
            let due = Duration::from_millis(u64::from(number) + 1);
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
        }
        self.next += packets;
        packets as usize - seen.len()
    }
}
