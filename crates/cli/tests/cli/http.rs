//! The HTTP server: what is served where, and that slow clients do not affect others.

use super::running::{Daemon, free_address};
use super::{TWO, weir};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Much longer than any answer takes on a busy machine, much shorter than a server takes that waits for its
/// slow clients.
const PROMPT: Duration = Duration::from_secs(5);
/// How often that is tried: the machine may stall for so long, but hardly each time.
const TRIES: usize = 3;

fn with_metrics() -> (SocketAddr, Daemon) {
    let address = free_address();
    (address, Daemon::start(&format!("metrics: {address}\n{TWO}")))
}

/// Sends a raw request and returns the whole response.
fn exchange(mut stream: impl Read + Write, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap_or_else(|error| panic!("{error}: {text}"));
    text
}

#[test]
fn metrics_and_health_are_served_as_http_demands() {
    let (address, daemon) = with_metrics();
    let over_tcp = |request: &str| exchange(TcpStream::connect(address).unwrap(), request.as_bytes());
    let socket = || UnixStream::connect(daemon.folder.file("weir.sock")).unwrap();
    let over_socket = |request: &str| exchange(socket(), request.as_bytes());
    for (request, status, body) in [
        ("GET /metrics HTTP/1.1\r\nHost: w\r\n\r\n", 200, "weir_ledger_balanced 1\n"),
        ("GET /metrics?a=b&c HTTP/1.1\r\nHost: w\r\n\r\n", 200, "# EOF\n"),
        ("GET /metrics HTTP/1.0\r\n\r\n", 200, "# EOF\n"),
        ("GET /healthz HTTP/1.1\r\nHost: w\r\n\r\n", 200, "ok\n"),
        ("GET / HTTP/1.1\r\nHost: w\r\n\r\n", 404, "/metrics"),
        ("POST /metrics HTTP/1.1\r\nHost: w\r\nContent-Length: 0\r\n\r\n", 405, "method"),
    ] {
        for answer in [over_tcp(request), over_socket(request)] {
            let head = format!("HTTP/1.{} {status} ", if request.contains("1.0") { 0 } else { 1 });
            assert!(answer.starts_with(&head) && answer.contains(body), "{request}: {answer}");
        }
    }
    let head = over_tcp("HEAD /metrics HTTP/1.1\r\nHost: w\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    // Commands are for the owner of the socket.
    let body = r#"{"command": "show"}"#;
    let show = format!("POST /command HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert!(over_tcp(&show).starts_with("HTTP/1.1 404 "));
    assert!(over_socket(&show).starts_with("HTTP/1.1 200 "));
    let refused = over_socket(&show.replace("show", "dnce"));
    assert!(refused.starts_with("HTTP/1.1 400 ") && refused.contains("no command `dnce`"), "{refused}");
    let large = over_socket("POST /command HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n");
    assert!(large.starts_with("HTTP/1.1 413 "), "{large}");
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20_000));
    assert!(over_tcp(&long).starts_with("HTTP/1.1 4"), "the head has a limit");
}

/// Opens a thousand connections; every tenth has begun a request.
fn crowd<S: Write>(connect: impl Fn() -> S) -> Vec<S> {
    let begin = |at: usize| {
        let mut stream = connect();
        if at.is_multiple_of(10) {
            stream.write_all(b"GET /metr").unwrap();
        }
        stream
    };
    (0..1000).map(begin).collect()
}

/// Returns whether all others are answered promptly beside a thousand slow clients of each kind.
fn others_are_prompt_beside_a_thousand_slow_clients() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let (address, daemon) = with_metrics();
    let path = daemon.folder.file("weir.sock");
    let mut scrapers = crowd(|| TcpStream::connect(address).unwrap());
    let mut clients = crowd(|| UnixStream::connect(&path).unwrap());
    let ended = AtomicBool::new(false);
    let (mut scrapes, mut shows) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        // A tenth of them send a byte now and then; the daemon may close them.
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                scrapers.iter_mut().step_by(10).for_each(|slow| drop(slow.write_all(b"x")));
                clients.iter_mut().step_by(10).for_each(|slow| drop(slow.write_all(b"x")));
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        for _ in 0..20 {
            let start = Instant::now();
            let metrics = exchange(TcpStream::connect(address).unwrap(), b"GET /metrics HTTP/1.0\r\n\r\n");
            scrapes.push(start.elapsed());
            assert!(metrics.ends_with("# EOF\n"), "{metrics}");
            let start = Instant::now();
            assert!(daemon.ask(&json!({ "command": "show" }))["ledger"].is_object());
            shows.push(start.elapsed());
        }
        ended.store(true, Ordering::Relaxed);
    });
    let mut is_prompt = true;
    for (what, mut took) in [("a scrape", scrapes), ("a show", shows)] {
        took.sort_unstable();
        println!("{what}: median {:?}, longest {:?}", took[took.len() / 2], took.last().unwrap());
        is_prompt &= took.iter().all(|took| *took < PROMPT);
    }
    is_prompt
}

/// Each try has slow clients of its own, because those of an earlier try have been disconnected by then.
#[test]
fn a_thousand_slow_clients_of_metrics_and_of_the_socket_delay_nobody() {
    assert!((0..TRIES).any(|_| others_are_prompt_beside_a_thousand_slow_clients()));
}

/// New clients are served even beyond the daemon's limit of connections, and the slowest are closed.
#[test]
fn the_slowest_of_too_many_clients_are_closed() {
    assert!((0..TRIES).any(|_| is_served_beside_too_many_clients()));
}

/// Returns whether a client is answered promptly beside too many slow ones.
fn is_served_beside_too_many_clients() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let (address, _daemon) = with_metrics();
    let mut slow: Vec<TcpStream> = (0..1500).map(|_| TcpStream::connect(address).unwrap()).collect();
    let start = Instant::now();
    let metrics = exchange(TcpStream::connect(address).unwrap(), b"GET /metrics HTTP/1.0\r\n\r\n");
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    let is_prompt = start.elapsed() < PROMPT;
    // The first was closed for a later one.
    slow[0].set_read_timeout(Some(PROMPT)).unwrap();
    assert_eq!(slow[0].read(&mut [0; 1]).unwrap_or(0), 0);
    is_prompt
}

/// A killed daemon may take a second to exit, and its socket accepts connections meanwhile.
#[test]
fn a_dying_daemons_socket_is_taken_over() {
    let folder = super::folder::Folder::new();
    folder.write("weir.yaml", TWO);
    let dying = UnixListener::bind(folder.file("weir.sock")).unwrap();
    let gone = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        drop(dying);
    });
    let daemon = Daemon::start_in(folder);
    gone.join().unwrap();
    daemon.weir(&["show", "ledger"]).good();
}

#[test]
fn who_may_not_use_the_socket_is_told_so() {
    if !weir_bed::is_root() {
        return;
    }
    let daemon = Daemon::start(TWO);
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["show", "--socket", "weir.sock"]).current_dir(daemon.folder.path()).uid(65_534);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.contains("permission denied for weir.sock") && err.contains("sudo"), "{err}");
    let absent = weir(daemon.folder.path(), &["show", "--socket", "none.sock"]);
    absent.refused(1, &["no weir daemon is listening on none.sock"]);
}
