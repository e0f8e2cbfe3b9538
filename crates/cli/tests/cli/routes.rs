//! VIPs that routers find by routes: weir on a node with BIRD or FRR, configured as in packaging/, and a
//! router in another namespace with BIRD. What the router's kernel sees is recorded by `ip monitor`.

use super::doctor::{is, says as doctor};
use super::folder::Folder;
use super::running::Daemon;
use super::wire::{Wire, sh};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const VIP: &str = "203.0.113.80";
const VIP6: &str = "2001:db8:f::80";
/// The address of the back ends' server, which is the router.
const SERVER: &str = "10.0.0.2:8080";
const PATIENCE: Duration = Duration::from_secs(60);

/// A service with a VIP of each IP version, whose back ends are checked at the router's address.
const CONFIG: &str = "\
ports: { p0: { xdp: w0 } }
apps:
  - lb:
      name: web
      port: p0
      announce: route
      service: { vip: [203.0.113.80, \"2001:db8:f::80\"], protocol: tcp, port: 80 }
      size: 251
      check: { type: tcp, port: 8080, interval: 50ms, timeout: 5s, rise: 1, fall: 1, jitter: 0% }
      back_ends:
        - { name: b1, mac: 02:00:00:00:10:00, address: 10.0.0.2 }
";

/// BFD is slow, so that no session is lost while a busy machine stalls BIRD: here, routes go because weir
/// withdraws them, or the kernel for it.
const ROUTER: &str = "\
router id 10.0.0.2;
protocol device { }
protocol kernel { merge paths on; ipv4 { export all; import none; }; }
protocol kernel { merge paths on; ipv6 { export all; import none; }; }
protocol bfd { interface \"*\" { interval 2 s; multiplier 5; }; }
protocol bgp node {
    local as 65000;
    neighbor 10.0.0.1 as 65001;
    connect delay time 1;
    connect retry time 1;
    error wait time 1, 2;
    bfd on;
    ipv4 { import all; export none; };
    ipv6 { import all; export none; };
}
";

/// What is specific to the node, besides packaging/bird/weir.conf.
const LOCAL: &str = "\
router id 10.0.0.1;
protocol bgp router1 from weir_router {
    local as 65001;
    neighbor 10.0.0.2 as 65000;
    connect delay time 1;
    connect retry time 1;
}
";

/// Runs the daemons of FRR in a root file system that has them, until it is ended. What it mounts is seen by
/// its own processes only. Arguments: the root and the configuration.
const FRR: &str = r#"
root=$1
[ "$root" = / ] || { mount --bind /dev "$root/dev" && mount -t proc proc "$root/proc"; } || exit 1
mkdir -p "$root/run/frr"
for folder in run/frr etc/frr; do mount -t tmpfs -o mode=755 weir-test "$root/$folder" || exit 1; done
cp "$2" "$root/etc/frr/frr.conf"
: >"$root/etc/frr/vtysh.conf"
chroot "$root" chown -R frr:frr /run/frr /etc/frr
all=
for daemon in mgmtd zebra bgpd bfdd; do
    chroot "$root" "/usr/lib/frr/$daemon" --log stdout &
    all="$all $!"
done
trap 'kill $all; wait; exit' TERM
while [ "$(ls "$root"/run/frr/*.vty 2>/dev/null | wc -l)" -lt 4 ]; do sleep 0.05; done
chroot "$root" vtysh -b
wait
"#;

pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Waits until there is something, for which it looks again and again.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A process in a namespace, which ends with the test.
pub struct Other(Child);

impl Other {
    pub fn start(netns: &str, line: &str, output: &Path) -> Other {
        let file = File::create(output).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns]).args(line.split(' ')).stdin(Stdio::null());
        let child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn();
        Other(child.unwrap_or_else(|error| panic!("{line}: {error}")))
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

/// A server that accepts connections and closes them, until it is dropped.
pub struct TcpServer(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl TcpServer {
    pub fn start(netns: &str, address: &str) -> TcpServer {
        let listener = super::announce::inside(netns, || TcpListener::bind(address).unwrap());
        listener.set_nonblocking(true).unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let seen = ends.clone();
        let accept = move || {
            while !seen.load(Ordering::Relaxed) {
                if listener.accept().is_err() {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        };
        TcpServer(ends, Some(std::thread::spawn(accept)))
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _ = self.1.take().map(JoinHandle::join);
    }
}

/// Returns the root file system with the FRR that packaging/frr is for, version 10 or newer: this host's, or
/// that of Debian 13, which is made once.
fn frr_root() -> PathBuf {
    let version = sh("/usr/lib/frr/zebra --version 2>/dev/null || true");
    let number = version.strip_prefix("zebra version ").and_then(|rest| rest.split('.').next());
    if number.and_then(|number| number.parse().ok()).is_some_and(|number: u32| number >= 10) {
        return PathBuf::from("/");
    }
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("frr-root");
    if !root.exists() {
        let part = root.with_extension(std::process::id().to_string());
        let made = Command::new("mmdebstrap")
            .args(["--variant=essential", "--include=frr", "trixie"])
            .arg(&part)
            .output()
            .expect("mmdebstrap is installed by ./setup");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        std::fs::rename(&part, &root).unwrap();
    }
    root
}

/// The route daemon of the node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Announcer {
    Bird,
    Frr,
}

/// A node and a router, connected by the first pair of a wire.
pub struct Bed {
    pub wire: Wire,
    folder: Folder,
    _others: Vec<Other>,
}

impl Bed {
    /// Starts BIRD on both sides, and waits until they talk to each other.
    pub fn new(name: &str) -> Option<Bed> {
        Bed::with(name, Announcer::Bird)
    }

    /// Starts a route daemon on both sides, and waits until they talk to each other.
    fn with(name: &str, announcer: Announcer) -> Option<Bed> {
        let wire = Wire::new(name, 1)?;
        let folder = Folder::new();
        let Wire { weir, far, .. } = &wire;
        for netns in [weir, far] {
            sh(&format!("ip netns exec {netns} sysctl -qw net.ipv6.conf.all.disable_ipv6=0"));
            sh(&format!("ip netns exec {netns} sysctl -qw net.ipv6.conf.default.disable_ipv6=0"));
            sh(&format!("ip -n {netns} link set lo up"));
        }
        sh(&format!("ip -n {weir} addr add 2001:db8::1/64 dev w0 nodad"));
        sh(&format!("ip -n {far} addr add 2001:db8::2/64 dev f0 nodad"));
        std::fs::copy(repository().join("packaging/bird/weir.conf"), folder.file("weir.conf")).unwrap();
        folder.write("weir-local.conf", LOCAL);
        folder.write("router.conf", ROUTER);
        let bird = |netns: &str, name: &str| {
            let path = |end: &str| folder.file(&format!("{name}.{end}")).display().to_string();
            let line = format!("bird -f -c {} -s {}", path("conf"), path("ctl"));
            Other::start(netns, &line, &folder.file(&format!("{name}.log")))
        };
        let node = match announcer {
            Announcer::Bird => bird(weir, "weir"),
            Announcer::Frr => {
                let text = std::fs::read_to_string(repository().join("packaging/frr/frr.conf")).unwrap();
                let own = [("router-id 192.0.2.11", "router-id 10.0.0.1"), (" 192.0.2.1 ", " 10.0.0.2 ")];
                let text = own.iter().fold(text, |text, (example, value)| {
                    assert_eq!(text.matches(example).count(), 1, "{example}");
                    text.replace(example, value)
                });
                folder.write("frr.conf", text);
                folder.write("frr.sh", FRR);
                let [script, conf] = ["frr.sh", "frr.conf"].map(|name| folder.file(name));
                let line = format!("sh {} {} {}", script.display(), frr_root().display(), conf.display());
                Other::start(weir, &line, &folder.file("frr.log"))
            }
        };
        let _others = vec![node, bird(far, "router")];
        let bed = Bed { wire, folder, _others };
        until("a session", || {
            bed.birdc("router", "show protocols node").contains("Established").then_some(())
        });
        Some(bed)
    }

    /// Returns the MED of each route that the router has learned.
    fn meds(&self) -> Vec<String> {
        let all = self.birdc("router", "show route all");
        all.lines().filter_map(|line| line.trim().strip_prefix("BGP.med: ")).map(str::to_string).collect()
    }

    /// The host neither has the VIPs nor routes them to the device, whatever the route daemon does.
    #[track_caller]
    fn assert_the_node_ignores_its_table(&self) {
        for (vip, family) in [(VIP, "-4"), (VIP6, "-6")] {
            let weir = &self.wire.weir;
            let said = sh(&format!("ip -n {weir} route get {vip} 2>&1 || true"));
            assert!(said.contains("Network is unreachable"), "{said}");
            let main = sh(&format!("ip -n {weir} {family} route show table main"));
            assert!(!main.contains(vip), "{main}");
            assert!(sh(&format!("ip -n {weir} {family} route show table 1850")).contains("weir-routes"));
        }
    }

    fn birdc(&self, name: &str, question: &str) -> String {
        let socket = self.folder.file(&format!("{name}.ctl"));
        sh(&format!("birdc -s {} {question} || true", socket.display()))
    }

    /// Starts weir on the node.
    pub fn start(&self, config: &str) -> Daemon {
        let folder = Folder::new();
        folder.write("weir.yaml", config);
        Daemon::start_in_namespace(folder, &self.wire.weir)
    }

    /// Lets a server listen at the router.
    pub fn serve(&self) -> TcpServer {
        TcpServer::start(&self.wire.far, SERVER)
    }

    /// Records what happens to routes in the router's kernel.
    fn record(&self) -> RouteEvents {
        let file = self.folder.file("monitor");
        let process = Other::start(&self.wire.far, "ip -ts monitor route", &file);
        // The process does not say when it listens.
        let far = &self.wire.far;
        let probe = "198.51.100.1";
        until("ip monitor", || {
            sh(&format!("ip -n {far} route add blackhole {probe}; ip -n {far} route del blackhole {probe}"));
            std::fs::read_to_string(&file).unwrap().contains(probe).then_some(())
        });
        RouteEvents { file, _process: process }
    }

    pub fn vips_at_router(&self) -> [bool; 2] {
        let [four, six] = ["-4", "-6"].map(|family| {
            sh(&format!("ip -n {} {family} route show", self.wire.far)).lines().map(str::to_string).collect()
        });
        let has = |all: Vec<String>, vip: &str| all.iter().any(|line| line.starts_with(vip));
        [has(four, VIP), has(six, VIP6)]
    }

    /// Waits until the router has routes to both VIPs, or to none.
    #[track_caller]
    pub fn wait_for_vips(&self, are_there: bool) {
        until("the router's routes", || (self.vips_at_router() == [are_there; 2]).then_some(()));
    }
}

struct RouteEvents {
    file: std::path::PathBuf,
    _process: Other,
}

impl RouteEvents {
    /// Returns how many times a route to one of the VIPs was removed.
    fn withdrawals(&self) -> usize {
        let text = std::fs::read_to_string(&self.file).unwrap();
        let is_of_vip = |line: &&str| line.contains(VIP) || line.contains(VIP6);
        text.lines().filter(is_of_vip).filter(|line| line.contains("Deleted")).count()
    }
}

/// Returns the row of a VIP.
fn route(daemon: &Daemon, vip: &str) -> Value {
    let rows = daemon.show("routes");
    let found =
        rows.as_array().into_iter().flatten().find(|row| row["vip"].as_str().unwrap().starts_with(vip));
    found.unwrap_or_else(|| panic!("{rows}")).clone()
}

#[test]
fn routers_learn_a_vip_while_a_back_end_serves() {
    let Some(bed) = Bed::new("route") else { return };
    let mut daemon = bed.start(CONFIG);
    daemon.wait_for("a reason", |daemon| {
        let row = route(daemon, VIP);
        row["why"].as_str().is_some_and(|why| why.contains("0 of 1 back ends serve"))
    });
    assert_eq!(bed.vips_at_router(), [false; 2]);
    let server = bed.serve();
    bed.wait_for_vips(true);
    let row = route(&daemon, VIP6);
    assert!(row["announced"] == true && row["metric"] == 100 && row["services"] == "web", "{row}");
    bed.assert_the_node_ignores_its_table();
    let weir = &bed.wire.weir;
    // Another program empties the table or sets the device down.
    for harm in ["route flush table 1850", "-6 route flush table 1850", "link set weir-routes down"] {
        sh(&format!("ip -n {weir} {harm}"));
        until("routes again", || {
            let all =
                sh(&format!("ip -n {weir} route show table 1850; ip -n {weir} -6 route show table 1850"));
            (all.contains(VIP) && all.contains(VIP6)).then_some(())
        });
    }
    drop(server);
    bed.wait_for_vips(false);
    let _server = bed.serve();
    bed.wait_for_vips(true);
    // A stop withdraws before it ends.
    daemon.signal(Signal::TERM);
    assert!(daemon.end().success(), "{}", daemon.log());
    assert!(
        daemon.log().contains(&format!("{VIP}/32 is no longer announced: weir stops")),
        "{}",
        daemon.log()
    );
    bed.wait_for_vips(false);
}

#[test]
fn a_killed_weir_leaves_no_route_and_a_takeover_or_reload_moves_none() {
    let Some(bed) = Bed::new("reroute") else { return };
    let _server = bed.serve();
    let mut daemon = bed.start(CONFIG);
    bed.wait_for_vips(true);
    let recording = bed.record();
    for _ in 0..3 {
        assert!(daemon.succeed_in_namespace(&bed.wire.weir).success(), "{}", daemon.log());
    }
    assert_eq!(bed.vips_at_router(), [true; 2]);
    daemon.weir(&["reload"]).good();
    // A file with errors changes nothing: the services that run stay announced, and no others are.
    let other = "service: { vip: [203.0.113.80, \"2001:db8:f::80\", 203.0.113.81]";
    let broken = CONFIG.replace("service: { vip: [203.0.113.80, \"2001:db8:f::80\"]", other);
    daemon.folder.write("weir.yaml", format!("{broken}nonsense: 1\n"));
    assert_ne!(daemon.weir(&["reload"]).code, Some(0));
    daemon.wait_for("the checks", |daemon| route(daemon, VIP)["why"].is_null());
    assert!(!daemon.show("routes").to_string().contains("203.0.113.81"));
    daemon.folder.write("weir.yaml", &broken);
    daemon.weir(&["reload"]).good();
    daemon.wait_for("another VIP", |daemon| route(daemon, "203.0.113.81")["announced"] == true);
    assert_eq!(recording.withdrawals(), 0);
    daemon.signal(Signal::KILL);
    assert!(!daemon.end().success());
    bed.wait_for_vips(false);
    assert_eq!(recording.withdrawals(), 2);
}

#[test]
fn frr_announces_what_weir_writes_and_withdraws_it_when_weir_is_killed() {
    let Some(bed) = Bed::with("freroute", Announcer::Frr) else { return };
    let server = bed.serve();
    let mut daemon = bed.start(CONFIG);
    bed.wait_for_vips(true);
    bed.assert_the_node_ignores_its_table();
    assert_eq!(bed.meds(), ["100", "100"]);
    // The metric of a degraded service is its MED, and the router always has a route.
    let recording = bed.record();
    daemon.folder.write("weir.yaml", CONFIG.replace("      check:", "      degraded_below: 2\n      check:"));
    daemon.weir(&["reload"]).good();
    until("a higher MED", || (bed.meds() == ["200", "200"]).then_some(()));
    daemon.folder.write("weir.yaml", CONFIG);
    daemon.weir(&["reload"]).good();
    until("a lower MED", || (bed.meds() == ["100", "100"]).then_some(()));
    assert_eq!(recording.withdrawals(), 0);
    drop(server);
    bed.wait_for_vips(false);
    let _server = bed.serve();
    bed.wait_for_vips(true);
    daemon.signal(Signal::KILL);
    assert!(!daemon.end().success());
    bed.wait_for_vips(false);
}

/// Asks `/readyz`: the status and the answer.
fn ready(daemon: &Daemon) -> (u16, Value) {
    let mut stream = UnixStream::connect(daemon.folder.file("weir.sock")).unwrap();
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: w\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn a_drained_node_has_no_route_until_that_ends_and_says_that_it_is_not_ready() {
    let Some(bed) = Bed::new("drain") else { return };
    let mut daemon = bed.start(CONFIG);
    let (status, answer) = ready(&daemon);
    assert_eq!(
        (status, &answer["ready"], &answer["draining"]),
        (503, &json!(false), &json!(false)),
        "{answer}"
    );
    let server = bed.serve();
    bed.wait_for_vips(true);
    assert_eq!(ready(&daemon).0, 200);
    let said = daemon.weir(&["drain", "--quiet", "200ms", "--json"]).good().json();
    assert!(said["quiet"] == true && said["withdrawn"] == 2, "{said}");
    bed.wait_for_vips(false);
    let (status, answer) = ready(&daemon);
    assert_eq!((status, &answer["reasons"]), (503, &json!(["the node is draining"])));
    // A reload and a takeover change nothing about that.
    daemon.weir(&["reload"]).good();
    assert!(daemon.succeed_in_namespace(&bed.wire.weir).success(), "{}", daemon.log());
    daemon.wait_for("the checks", |daemon| daemon.show("backends")[0]["health"] == "up");
    assert!(route(&daemon, VIP)["why"] == "the node is draining" && bed.vips_at_router() == [false; 2]);
    assert!(
        daemon.metrics().contains("weir_draining 1\n")
            && daemon.metrics().contains("weir_routes_withheld 2\n")
    );
    // Packets that still arrive are reported by the exit code.
    let worker = std::thread::spawn({
        let (socket, ends) = (daemon.folder.file("weir.sock"), server.0.clone());
        move || {
            while !ends.load(Ordering::Relaxed) {
                let packet = "eth.dst=02:00:00:00:00:00 src=198.51.100.9 dst=203.0.113.80 proto=tcp dport=80";
                let request = json!({ "command": "inject", "packet": packet, "input": "p0" });
                let _ = weir_control::ask::<Value>(&socket, &request);
            }
        }
    });
    let said = daemon.weir(&["drain", "--timeout", "2s", "--quiet", "1500ms"]);
    assert!(said.code == Some(3) && said.out.contains("packets still arrive"), "{} {}", said.out, said.err);
    daemon.weir(&["undrain"]).good();
    bed.wait_for_vips(true);
    assert_eq!(ready(&daemon).0, 200);
    drop(server);
    worker.join().unwrap();
}

#[test]
fn routes_of_others_stop_a_first_announcement_and_no_later_one() {
    let Some(bed) = Bed::new("foreign") else { return };
    let weir = &bed.wire.weir;
    let foreign = |verb: &str| sh(&format!("ip -n {weir} route {verb} blackhole 198.51.100.0/24 table 1850"));
    foreign("add");
    let _server = bed.serve();
    let mut daemon = bed.start(CONFIG);
    let sentence =
        "table 1850 has routes of other programs, 198.51.100.0/24 (protocol 3): remove them, or write";
    let says = |daemon: &Daemon| route(daemon, VIP)["why"].as_str().is_some_and(|why| why.contains(sentence));
    daemon.wait_for("a reason", |daemon| says(daemon));
    daemon.wait_for_log(sentence);
    let (status, answer) = ready(&daemon);
    assert!(status == 503 && answer["reasons"].to_string().contains(sentence), "{answer}");
    is(doctor(&bed.wire, &daemon.folder, "routes", "table 1850"), "fault", sentence);
    is(doctor(&bed.wire, &daemon.folder, "routes", "route daemon"), "ok", "BIRD runs");
    assert_eq!(bed.vips_at_router(), [false; 2]);
    foreign("del");
    bed.wait_for_vips(true);
    is(doctor(&bed.wire, &daemon.folder, "routes", "table 1850"), "ok", "no routes of other programs");
    assert!(route(&daemon, VIP)["why"].is_null());
    let before = daemon.log().len();
    let recording = bed.record();
    foreign("add");
    until("a sentence", || says(&daemon).then_some(()));
    until("a line of the log", || daemon.log()[before..].contains(sentence).then_some(()));
    is(doctor(&bed.wire, &daemon.folder, "routes", "table 1850"), "fault", sentence);
    assert!(route(&daemon, VIP)["announced"] == true && ready(&daemon).0 == 200);
    assert_eq!((bed.vips_at_router(), recording.withdrawals()), ([true; 2], 0));
}

#[test]
fn what_a_host_lacks_for_routes_is_said_and_added_later() {
    let Some(wire) = Wire::new("lacks", 1) else { return };
    let Wire { weir, far, .. } = &wire;
    sh(&format!("ip netns exec {weir} sysctl -qw net.ipv6.conf.all.disable_ipv6=0"));
    sh(&format!("ip netns exec {weir} sysctl -qw net.ipv6.conf.default.disable_ipv6=0"));
    let _server = TcpServer::start(far, SERVER);
    let folder = Folder::new();
    folder.write("weir.yaml", CONFIG);
    let mut command = Command::new("ip");
    command.args([
        "netns",
        "exec",
        weir,
        "sh",
        "-c",
        "mount -t tmpfs weir-test /dev/net && exec \"$@\"",
        "sh",
    ]);
    command.arg(env!("CARGO_BIN_EXE_weir"));
    let mut daemon = Daemon::start_by(folder, command);
    let lack = "/dev/net/tun cannot be opened";
    daemon.wait_for("a reason", |daemon| {
        let row = route(daemon, VIP);
        row["why"].as_str().is_some_and(|why| why.contains(lack) && why.contains("`modprobe tun`"))
    });
    daemon.wait_for_log(lack);
    assert_eq!(ready(&daemon).0, 503);
    let inside = format!("nsenter -t {} -m -n", daemon.pid().as_raw_nonzero());
    // nsenter changes the working directory.
    let (exe, file) = (env!("CARGO_BIN_EXE_weir"), daemon.folder.file("weir.yaml"));
    let said = sh(&format!("{inside} {exe} doctor {} 2>&1 || true", file.display()));
    let tun = said.lines().find(|line| line.contains("/dev/net/tun")).unwrap_or_else(|| panic!("{said}"));
    assert!(tun.starts_with("fault") && tun.contains("`modprobe tun`"), "{tun}");
    sh(&format!("{inside} umount /dev/net"));
    daemon.wait_for("a route", |daemon| route(daemon, VIP)["announced"] == true);
    is(doctor(&wire, &daemon.folder, "routes", "/dev/net/tun"), "ok", "can be opened");
    // No route daemon runs.
    let lack = "no BIRD, FRR or keepalived is visible in this network namespace";
    assert_eq!(ready(&daemon).0, 200);
    is(doctor(&wire, &daemon.folder, "routes", "route daemon"), "warning", lack);
    // The host forwards, and has no rule, then one, then one for its own packets, too.
    sh(&format!("ip netns exec {weir} sysctl -qw net.ipv4.ip_forward=1"));
    let rule = "`ip -4 rule add iif w0 lookup 1850 priority 100`";
    is(doctor(&wire, &daemon.folder, "routes", "IPv4 rule"), "warning", rule);
    sh(&format!("ip -n {weir} rule add iif w0 lookup 1850 priority 100"));
    is(doctor(&wire, &daemon.folder, "routes", "IPv4 rule"), "ok", "forwarded packets");
    is(doctor(&wire, &daemon.folder, "routes", "the host"), "ok", "does not use the table");
    sh(&format!("ip -n {weir} rule add lookup 1850 priority 99"));
    is(doctor(&wire, &daemon.folder, "routes", "the host"), "warning", "its own packets for 203.0.113.80");
}

#[test]
fn check_refuses_tables_and_protocols_of_others() {
    let folder = Folder::new();
    let check = |routes: &str, service: &str| {
        let config = CONFIG.replace("xdp: w0", "mem: ~").replace("      size: 251\n", service);
        folder.write("weir.yaml", format!("routes: {{ {routes} }}\n{config}"));
        super::weir(folder.path(), &["check", "weir.yaml"])
    };
    check("table: 1850, degraded_metric: 100, needs: all", "      min_up: 0\n").good();
    for (routes, service, why) in [
        ("table: 254", "", "254 is the host's table `main`"),
        ("table: 0", "", "0 means no table"),
        ("protocol: 12", "", "BIRD uses the protocol number 12"),
        ("protocol: 186", "", "FRR uses the protocol number 186"),
        ("device: a-name-that-is-too-long", "", "cannot be the name of an interface"),
        ("metric: 300", "", "`degraded_metric` is 200, less than `metric`, 300"),
        ("needs: some", "", "`needs` cannot be"),
        ("table: 1850", "      announce_vlans: 7\n", "announces nothing"),
    ] {
        let said = check(routes, service);
        assert!(
            said.code == Some(2) && said.err.contains(why) && said.err.contains('^'),
            "{routes}: {}",
            said.err
        );
    }
    folder.write("weir.yaml", CONFIG.replace("xdp: w0", "mem: ~").replace("announce: route", "min_up: 2"));
    let said = super::weir(folder.path(), &["check", "weir.yaml"]);
    assert!(said.code == Some(2) && said.err.contains("`min_up` has no effect"), "{}", said.err);
}
