//! External apps: frames to and from a client, the commands that inject frames, and their accounting.

use super::folder::Folder;
use super::running::{Daemon, free_address};
use super::wire::Wire;
use super::{record, recorded, weir};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use weir_packet::craft::{Recipe, describe};

/// UDP to port 53 is forwarded; everything else goes to the app.
const SLOW: &str = "\
ports:
  p0: { pcap: { out: p0.pcap }, root: fast }
  p1: { pcap: { out: p1.pcap } }
pipes:
  fast:
    type: basic
    match: { udp.dport: 53 }
    forward: p1
    miss: slow_path
    entries: [{}]
apps:
  - external: { name: slow_path, socket: slow.sock }
";

const FAST: &str = "src=192.0.2.2 dst=10.0.0.53 dport=53";
const PUNTED: &str = "src=192.0.2.2 dst=10.0.0.53 proto=tcp dport=80";
const PATIENCE: Duration = Duration::from_secs(30);

fn frame(recipe: &str) -> Vec<u8> {
    recipe.parse::<Recipe>().unwrap().build()
}

/// A client of an app, written only from the documentation of the socket.
struct Client(OwnedFd);

impl Client {
    fn connect(path: &Path) -> Result<Client, Errno> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            rustix::net::sockopt::Timeout::Recv,
            Some(PATIENCE),
        )?;
        Ok(Client(socket))
    }

    /// Connects, and waits until the daemon has accepted.
    fn of(daemon: &mut Daemon) -> Client {
        let before = app(daemon)["clients"].as_u64();
        let client = Client::connect(&daemon.folder.file("slow.sock")).unwrap();
        daemon.wait_for("a client", |daemon| app(daemon)["clients"].as_u64() > before);
        client
    }

    fn say(&self, kind: u8, port: &str, frame: &[u8]) {
        let mut bytes = vec![1, kind, port.len() as u8, 0];
        bytes.extend((frame.len() as u32).to_be_bytes());
        self.send(&[&bytes, port.as_bytes(), frame].concat());
    }

    fn send(&self, bytes: &[u8]) {
        assert_eq!(send(&self.0, bytes, SendFlags::NOSIGNAL), Ok(bytes.len()));
    }

    /// The next datagram: kind, port, frame. `None` once the socket is closed.
    fn receive(&self) -> Option<(u8, String, Vec<u8>)> {
        let mut buffer = vec![0; 65536];
        let (_, length) = recv(&self.0, &mut buffer[..], RecvFlags::empty()).expect("a datagram in time");
        let (head, rest) = buffer[..length].split_at_checked(8)?;
        let (name, frame) = rest.split_at(head[2].into());
        assert_eq!((head[0], head[3], &head[4..]), (1, 0, &(frame.len() as u32).to_be_bytes()[..]));
        Some((head[1], String::from_utf8(name.to_vec()).unwrap(), frame.to_vec()))
    }
}

fn app(daemon: &Daemon) -> Value {
    daemon.show("apps")[0].clone()
}

fn counts(daemon: &Daemon, names: &[&str]) -> Vec<u64> {
    let app = app(daemon);
    names.iter().map(|name| app[name].as_u64().unwrap_or_else(|| panic!("no {name}: {app}"))).collect()
}

/// Stops the daemon, asserting that every frame is accounted for.
fn end(mut daemon: Daemon) -> Folder {
    daemon.weir(&["stop"]).good();
    assert_eq!(daemon.end().code(), Some(0));
    let said = daemon.log();
    assert!(said.ends_with("every frame is accounted for\n"), "{said}");
    assert!(!daemon.folder.file("slow.sock").exists(), "its socket is gone");
    daemon.into_folder()
}

#[test]
fn a_client_gets_what_is_forwarded_and_its_frames_go_out_or_through() {
    let mut daemon = Daemon::start(SLOW);
    daemon.receive(&[FAST, PUNTED]);
    daemon.wait_for("the app", |daemon| counts(daemon, &["unheard"]) == [1]);
    let (one, other) = (Client::of(&mut daemon), Client::of(&mut daemon));
    daemon.receive(&[PUNTED]);
    let punted = (1, "p0".to_string(), frame(PUNTED));
    assert_eq!((one.receive(), other.receive()), (Some(punted.clone()), Some(punted.clone())));
    one.say(2, "p1", &frame(PUNTED));
    one.say(3, "p1", &frame(FAST));
    one.say(3, "p0", &frame(FAST));
    // Through the program to the app, which delivers it to both clients.
    other.say(3, "p0", &frame(PUNTED));
    assert_eq!((one.receive(), other.receive()), (Some(punted.clone()), Some(punted)));
    daemon.wait_for("four frames", |daemon| counts(daemon, &["injected"]) == [4]);
    assert_eq!(
        counts(&daemon, &["punted", "delivered", "missed", "unheard", "refused", "bad"]),
        [3, 4, 0, 1, 0, 0]
    );
    drop(other);
    daemon.wait_for("one client", |daemon| counts(daemon, &["clients"]) == [1]);
    let ledger = daemon.show("ledger");
    assert_eq!(
        (&ledger["originated"], &ledger["to_app"], &ledger["transmitted"]),
        (&7.into(), &3.into(), &3.into())
    );
    // A port without a root drops what it receives.
    assert_eq!(ledger["dropped"], json!({ "policy": 1 }));
    let said = daemon.weir(&["show", "apps"]).good().out;
    for part in ["apps", "name", "slow_path", "external", "punted", "unheard", "injected", "slow.sock"] {
        assert!(said.contains(part), "no `{part}` in\n{said}");
    }
    let folder = end(daemon);
    assert_eq!(one.receive(), None, "the daemon has stopped");
    assert_eq!(
        recorded(&folder.file("p1.pcap")),
        [FAST, PUNTED, FAST].map(|recipe| describe(&frame(recipe)))
    );
}

#[test]
fn bad_datagrams_are_told_and_nothing_else_happens() {
    let mut daemon = Daemon::start(SLOW);
    let client = Client::of(&mut daemon);
    let mut good = vec![1, 2, 2, 0, 0, 0, 0, 60, b'p', b'1'];
    good.extend([0; 60]);
    for (bytes, why) in [
        (&good[..4], "4 bytes"),
        (&[], "0 bytes"),
        (&[&[9], &good[1..]].concat(), "version 9"),
        (&[&[1, 1], &good[2..]].concat(), "kind 1"),
        (&good[..69], "has 69"),
        (&[&good[..], &[0; 20_000]].concat(), "has 16384"),
        (&[&good[..9], b"7", &good[10..]].concat(), "no port `p7`"),
    ] {
        client.send(bytes);
        let (kind, port, message) = client.receive().unwrap();
        let message = String::from_utf8(message).unwrap();
        assert_eq!((kind, port.as_str()), (4, ""));
        assert!(message.contains(why), "{message}: {why}");
    }
    client.send(&good);
    daemon.wait_for("the good one", |daemon| counts(daemon, &["injected"]) == [1]);
    // Longer than any chunk.
    client.say(2, "p1", &[0; 9000]);
    daemon.wait_for("a refusal", |daemon| counts(daemon, &["refused"]) == [1]);
    assert_eq!(
        (counts(&daemon, &["bad"]), daemon.show("ledger")["dropped"].clone()),
        (vec![7], json!({ "oversize": 1 }))
    );
    end(daemon);
}

#[test]
fn a_slow_client_misses_frames_and_holds_nobody_up() {
    const FRAMES: u64 = 400;
    /// Frames that are on their way at a time: fewer than a client's socket has room for.
    const BATCH: usize = 20;
    let mut daemon = Daemon::start(SLOW);
    let (slow, quick) = (Client::of(&mut daemon), Client::of(&mut daemon));
    let large = format!("{PUNTED} payload={}", "00".repeat(1400));
    let bytes = frame(&large);
    // The quick client has read all earlier frames when the next ones arrive, however busy the machine is.
    for _ in 0..FRAMES / BATCH as u64 {
        daemon.receive(&[large.as_str(); BATCH]);
        for _ in 0..BATCH {
            assert!(quick.receive().is_some_and(|(_, _, frame)| frame == bytes));
        }
    }
    // It has missed none, and the slow one has missed many.
    let names = ["delivered", "missed", "unheard", "punted"];
    daemon.wait_for("all", |daemon| counts(daemon, &["punted"]) == [FRAMES] && app(daemon)["missed"] != 0);
    let [delivered, missed, unheard, _] = counts(&daemon, &names)[..] else { panic!() };
    assert_eq!((delivered + missed, unheard), (2 * FRAMES, 0));
    assert!(delivered >= FRAMES && missed > 50, "{delivered} {missed}");
    end(daemon);
    // The slow client receives what was queued for it, and no more.
    assert!(std::iter::from_fn(|| slow.receive()).count() < FRAMES as usize);
    assert_eq!(quick.receive(), None);
}

#[test]
fn a_client_that_floods_loses_nothing() {
    let mut daemon = Daemon::start(SLOW);
    let client = Client::of(&mut daemon);
    (0..20_000).for_each(|_| client.say(2, "p1", &frame(FAST)));
    daemon.wait_for("all frames", |daemon| counts(daemon, &["injected"]) == [20_000]);
    assert_eq!(counts(&daemon, &["refused", "bad"]), [0, 0]);
    let folder = end(daemon);
    assert_eq!(recorded(&folder.file("p1.pcap")).len(), 20_000);
}

#[test]
fn a_ninth_client_is_told_so_and_sent_away() {
    let mut daemon = Daemon::start(SLOW);
    let clients: Vec<Client> = (0..8).map(|_| Client::of(&mut daemon)).collect();
    let ninth = Client::connect(&daemon.folder.file("slow.sock")).unwrap();
    let (kind, _, message) = ninth.receive().unwrap();
    assert_eq!((kind, String::from_utf8(message).unwrap().as_str()), (4, "8 clients are already connected"));
    assert_eq!(ninth.receive(), None);
    drop(clients);
    daemon.wait_for("all to go", |daemon| counts(daemon, &["clients"]) == [0]);
    Client::of(&mut daemon);
}

#[test]
fn a_reload_keeps_clients_and_accounts_and_another_socket_does_not() {
    let mut daemon = Daemon::start(SLOW);
    let client = Client::of(&mut daemon);
    daemon.receive(&[PUNTED]);
    assert!(client.receive().is_some());
    // Ports are reordered, another app and another pipe are added. Clients name ports, so nothing changes for
    // them.
    let second = SLOW
        .replace("  p0: { pcap: { out: p0.pcap }, root: fast }\n", "")
        .replace(
            "  p1: { pcap: { out: p1.pcap } }\n",
            "  p1: { pcap: { out: p1.pcap } }\n  p0: { pcap: { out: p0.pcap }, root: fast }\n",
        )
        .replace("udp.dport: 53", "udp.dport: 54")
        .replace("apps:\n", "apps:\n  - external: { name: first, socket: first.sock }\n");
    daemon.folder.write("weir.yaml", &second);
    daemon.weir(&["reload"]).good();
    assert!(daemon.folder.file("first.sock").exists());
    daemon.receive(&[FAST]);
    assert_eq!(client.receive(), Some((1, "p0".into(), frame(FAST))));
    client.say(2, "p1", &frame(FAST));
    daemon.wait_for("the frame", |daemon| daemon.show("apps")[1]["injected"] == 1);
    let apps = daemon.show("apps");
    assert_eq!((&apps[0]["name"], &apps[0]["punted"]), (&json!("first"), &json!(0)));
    assert_eq!(
        (&apps[1]["name"], &apps[1]["punted"], &apps[1]["clients"]),
        (&json!("slow_path"), &json!(2), &json!(1))
    );
    // A socket path that cannot be used: nothing changes, and the client stays connected.
    daemon.folder.write("precious.txt", "my novel");
    daemon.folder.write("weir.yaml", second.replace("first.sock", "precious.txt"));
    daemon.weir(&["reload"]).refused(1, &["app `first`", "precious.txt", "not a socket"]);
    daemon.receive(&[FAST]);
    assert!(client.receive().is_some());
    daemon.folder.write("weir.yaml", second.replace("slow.sock", "other.sock"));
    daemon.weir(&["reload"]).good();
    assert_eq!(client.receive(), None, "its socket is closed");
    assert!(!daemon.folder.file("slow.sock").exists() && daemon.folder.file("other.sock").exists());
    assert_eq!(daemon.show("apps")[1]["clients"], 0);
    daemon.receive(&[FAST]);
    daemon.wait_for("nobody", |daemon| daemon.show("apps")[1]["unheard"] == 1);
    // Now remove the app.
    daemon.folder.write("weir.yaml", SLOW.split("apps:").next().unwrap().replace("slow_path", "drop"));
    daemon.weir(&["reload"]).good();
    assert_eq!(daemon.show("apps"), json!([]));
    end(daemon);
}

#[test]
fn its_socket_is_the_owners_and_a_dead_ones_is_taken_over() {
    let mut daemon = Daemon::start(SLOW);
    let socket = daemon.folder.file("slow.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    // A second daemon with its own control socket.
    let said = weir(daemon.folder.path(), &["run", "weir.yaml", "--socket", "another.sock"]);
    said.refused(1, &["app `slow_path`", "slow.sock", "already"]);
    assert!(socket.exists(), "the first one's is left alone");
    Client::of(&mut daemon);
    daemon.signal(rustix::process::Signal::KILL);
    daemon.end();
    assert!(socket.exists(), "kill -9 leaves it behind");
    let folder = Folder::new();
    folder.write("weir.yaml", SLOW);
    std::fs::rename(&socket, folder.file("slow.sock")).unwrap();
    let mut next = Daemon::start_in(folder);
    Client::of(&mut next);
}

/// A complete request.
const WHOLE: &[u8] = b"POST /command HTTP/1.1\r\nContent-Length: 19\r\n\r\n{\"command\": \"show\"}";

/// Clients of the control socket, some of which send half a request, and some do not read the answer.
fn slow_clients(daemon: &Daemon) -> Vec<UnixStream> {
    let begin = |request: &[u8]| {
        let mut stream = UnixStream::connect(daemon.folder.file("weir.sock")).unwrap();
        stream.write_all(request).unwrap();
        stream
    };
    [&WHOLE[..20], b"", WHOLE, &WHOLE[..50]].map(begin).into()
}

/// Whether the daemon still waits for a slow client.
fn is_waited_for(mut slow: &UnixStream) -> bool {
    slow.set_nonblocking(true).unwrap();
    let open = slow.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    slow.set_nonblocking(false).unwrap();
    open
}

#[test]
fn slow_clients_of_the_control_socket_hold_up_neither_others_nor_apps() {
    let mut daemon = Daemon::start(SLOW);
    let client = Client::of(&mut daemon);
    let mut idle = slow_clients(&daemon);
    // A slow client has 5 s. Others that it holds up are not served before it has been disconnected.
    let is_served = |idle: &[UnixStream]| {
        client.say(3, "p0", &frame(PUNTED));
        assert!(client.receive().is_some());
        daemon.show("ledger");
        is_waited_for(&idle[0])
    };
    let mut served = (0..20).take_while(|_| is_served(&idle)).count();
    // The machine may have stalled for so long.
    for _ in 0..3 {
        if served > 0 {
            break;
        }
        idle = slow_clients(&daemon);
        served = usize::from(is_served(&idle));
    }
    assert!(served > 0, "no other client was served until the slow ones were disconnected");
    // A request that arrives in time is answered, however it is split.
    let mut stream = UnixStream::connect(daemon.folder.file("weir.sock")).unwrap();
    for byte in WHOLE {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("originated"), "{answer}");
    // The other clients are disconnected.
    let mut rest = Vec::new();
    idle[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(idle[0].read_to_end(&mut rest).unwrap_or_default(), 0);
    end(daemon);
}

#[test]
fn inject_sends_packets_and_recordings() {
    let daemon = Daemon::start(SLOW);
    record(&daemon.folder.file("two.pcap"), &[FAST, PUNTED]);
    let inject = |arguments: &[&str]| daemon.weir(&[&["inject"], arguments].concat());
    assert_eq!(inject(&["p1", "--packet", FAST]).good().out, "1 frame sent\n");
    assert_eq!(inject(&["p1", "two.pcap"]).good().out, "2 frames sent\n");
    assert_eq!(inject(&["p0", "two.pcap", "--frame", "2", "--json"]).good().json(), json!({ "sent": 1 }));
    inject(&["p0", "two.pcap", "--frame", "1", "--through"]).good();
    inject(&["p7", "two.pcap"]).refused(1, &["after 0 frames", "no port `p7`"]);
    inject(&["p0", "two.pcap", "--frame", "3"]).refused(1, &["2 frames", "no frame 3"]);
    inject(&["p0", "none.pcap"]).refused(1, &["none.pcap", "No such file"]);
    inject(&["p0", "--packet", "dport=x"]).refused(2, &["--packet"]);
    for wrong in
        [&["p0"][..], &["p0", "two.pcap", "--packet", FAST], &["p0", "--packet", FAST, "--frame", "1"]]
    {
        assert_eq!(inject(wrong).code, Some(2), "{wrong:?}");
    }
    let oversize = format!("{FAST} payload={}", "00".repeat(4000));
    inject(&["p1", "--packet", &oversize]).refused(1, &["not sent", "oversize"]);
    let folder = end(daemon);
    let describe = |recipe| describe(&frame(recipe));
    assert_eq!(recorded(&folder.file("p1.pcap")), [FAST, FAST, PUNTED, FAST].map(describe));
    assert_eq!(recorded(&folder.file("p0.pcap")), [PUNTED].map(describe));
}

#[test]
fn requests_to_apps_are_answered() {
    let daemon = Daemon::start(SLOW);
    daemon.weir(&["app", "slow_path", "dance"]).refused(1, &["takes no requests"]);
    daemon.weir(&["app", "fast_path", "dance"]).refused(1, &["no app `fast_path`", "slow_path"]);
}

#[test]
fn explaining_names_the_app() {
    let daemon = Daemon::start(SLOW);
    let said = daemon.weir(&["explain", "--live", "--packet", PUNTED]).good();
    assert!(said.out.contains("verdict to app slow_path\n"), "{}", said.out);
    let json = daemon.weir(&["explain", "--live", "--packet", PUNTED, "--json"]).good().json();
    assert_eq!((&json["verdict"], &json["agrees"]), (&json!({ "app": "slow_path" }), &json!(true)));
    assert_eq!(counts(&daemon, &["punted"]), [0]);
}

#[test]
fn metrics_have_the_apps() {
    let address = free_address();
    let mut daemon = Daemon::start(&format!("metrics: {address}\n{SLOW}"));
    daemon.receive(&[PUNTED]);
    daemon.wait_for("the app", |daemon| counts(daemon, &["unheard"]) == [1]);
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    for (name, count) in [
        ("punted", 1),
        ("delivered", 0),
        ("missed", 0),
        ("unheard", 1),
        ("injected", 0),
        ("refused", 0),
        ("bad", 0),
    ] {
        let line = format!("weir_app_{name}_total{{app=\"slow_path\"}} {count}\n");
        assert!(metrics.contains(&line), "no {line} in\n{metrics}");
    }
}

#[test]
fn a_replay_records_what_apps_would_be_given_and_twice_the_same() {
    let folder = Folder::new();
    folder.write("weir.yaml", SLOW);
    record(&folder.file("in.pcap"), &[FAST, PUNTED, FAST, PUNTED, "arp=request"]);
    let run = |out: &str| {
        let app = format!("slow_path={out}.app.pcap");
        let out = format!("{out}.pcap");
        weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "-o", &out, "--app", &app, "--json"]).good()
    };
    let (one, other) = (run("one"), run("other"));
    assert_eq!(one.out, other.out);
    let bytes = |name: &str| std::fs::read(folder.file(name)).unwrap();
    assert_eq!((bytes("one.pcap"), bytes("one.app.pcap")), (bytes("other.pcap"), bytes("other.app.pcap")));
    let expected = [PUNTED, PUNTED, "arp=request"].map(|recipe| describe(&frame(recipe)));
    assert_eq!(recorded(&folder.file("one.app.pcap")), expected);
    let json = one.json();
    assert_eq!((&json["frames"]["to_app"], &json["balances"]), (&3.into(), &true.into()));
    assert_eq!((&json["apps"][0]["name"], &json["apps"][0]["punted"]), (&"slow_path".into(), &3.into()));
    let said = weir(folder.path(), &["replay", "weir.yaml", "in.pcap"]).good();
    assert!(
        said.out.starts_with("5 received, 2 transmitted, 0 to the kernel, 3 to apps, 0 dropped\n"),
        "{}",
        said.out
    );
    assert!(
        said.out.contains("app slow_path") && said.out.contains("3 frames, 0 injected, 3 unheard"),
        "{}",
        said.out
    );
    assert!(!folder.file("slow.sock").exists(), "a replay listens nowhere");
    let replay = |app: &str| weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "--app", app]);
    replay("slow_path").refused(2, &["--app slow_path", "NAME=OUT.pcap"]);
    replay("slwo=a.pcap").refused(2, &["no app `slwo`", "slow_path"]);
    replay("slow_path=no/such/folder.pcap").refused(1, &["no/such/folder.pcap", "cannot be written"]);
}

#[test]
fn mistakes_are_told_with_line_and_caret() {
    let folder = Folder::new();
    let broken = SLOW.replace("miss: slow_path", "miss: slow_paht").replace("name: slow_path", "name: p1");
    folder.write("broken.yaml", broken);
    let said = weir(folder.path(), &["check", "broken.yaml"]);
    assert_eq!(said.code, Some(2));
    for (place, caret) in [
        ("broken.yaml:9:11: error: there is no port, pipe, group or app", "slow_paht"),
        ("broken.yaml:12:23: error: `p1` is already the name of a port", "p1"),
    ] {
        let lines: Vec<&str> = said.err.lines().collect();
        let at =
            lines.iter().position(|line| line.starts_with(place)).unwrap_or_else(|| panic!("{}", said.err));
        assert_eq!(lines[at + 1].rfind(caret), lines[at + 2].find('^'), "{}", said.err);
    }
}

/// The client shown in the documentation, which sends back whatever it receives.
#[test]
fn the_documented_client_works() {
    let python =
        Command::new("python3").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !python.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "CI has python3");
        eprintln!("skipped: there is no python3");
        return;
    }
    let mut daemon = Daemon::start(SLOW);
    let script = format!("{}/../app/src/external/client.py", env!("CARGO_MANIFEST_DIR"));
    let mut client =
        Command::new("python3").arg(script).arg(daemon.folder.file("slow.sock")).spawn().unwrap();
    daemon.wait_for("the client", |daemon| counts(daemon, &["clients"]) == [1]);
    daemon.receive(&[PUNTED, PUNTED]);
    daemon.wait_for("its frames", |daemon| counts(daemon, &["injected"]) == [2]);
    let folder = end(daemon);
    assert_eq!(client.wait().unwrap().code(), Some(0), "it ends when weir stops");
    let mut back = frame(PUNTED);
    back[..12].rotate_left(6);
    assert_eq!(recorded(&folder.file("p0.pcap")), [describe(&back), describe(&back)]);
}

/// Asks 100 times in sequence and prints a latency in microseconds: that of the tenth fastest answer, because
/// others may wait for a processor. What waits for a turn of the clock waits from one turn to the next, every
/// time.
const ASKER: &str = "
import socket, time
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asker.settimeout(10)
times = []
for number in range(100):
    start = time.perf_counter()
    asker.sendto(b'ping %d' % number, ('10.0.0.1', 7777))
    assert asker.recv(100) == b'ping %d' % number
    times.append(time.perf_counter() - start)
print(int(sorted(times)[10] * 1e6))
";

/// A program outside weir answers frames that weir forwards to it, over a real interface.
#[test]
fn a_client_answers_over_af_xdp() {
    let Some(wire) = Wire::new("app", 1) else { return };
    let folder = Folder::new();
    folder.write(
        "weir.yaml",
        "ports: { p0: { xdp: w0, queues: [0], take: [{ dst: 10.0.0.1, protocol: udp, dport: 7777 }], root: \
            all } }
pipes: { all: { type: basic, match: { udp.dport: 7777 }, forward: slow_path, miss: drop, entries: [{}] } }
apps: [{ external: { name: slow_path, socket: slow.sock } }]
",
    );
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    let client = Client::of(&mut daemon);
    let answering = std::thread::spawn(move || {
        while let Some((1, port, mut frame)) = client.receive() {
            // Swaps MAC addresses, IP addresses and ports, which leaves every checksum valid.
            frame[0..12].rotate_left(6);
            frame[26..34].rotate_left(4);
            frame[34..38].rotate_left(2);
            client.say(2, &port, &frame);
        }
    });
    let asked =
        Command::new("ip").args(["netns", "exec", &wire.far, "python3", "-c", ASKER]).output().unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let latency_us: u64 = String::from_utf8_lossy(&asked.stdout).trim().parse().unwrap();
    println!("to the client and back: {latency_us} us");
    assert!(latency_us < 20_000, "{latency_us} us: nothing may wait for a turn of the clock");
    daemon.wait_for("all of them", |daemon| counts(daemon, &["injected"]) == [100]);
    assert_eq!(counts(&daemon, &["punted", "delivered", "missed", "refused", "bad"]), [100, 100, 0, 0, 0]);
    let ledger = daemon.show("ledger");
    assert_eq!(
        (&ledger["received"], &ledger["originated"], &ledger["to_app"]),
        (&100.into(), &100.into(), &100.into())
    );
    end(daemon);
    answering.join().unwrap();
}
