//! Checks of servers on the loopback interface.

use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket as Server};
use std::thread;
use weir_app::check::Request;

/// How long a busy machine may take to answer a check.
const LONG_NS: u64 = 60_000_000_000;

fn made(check: Check) -> Outcome {
    runtime().unwrap().block_on(outcome(&"lb".into(), &Arc::new(check), None))
}

fn check(port: u16, ask: Ask) -> Outcome {
    let check = Check {
        address: Ipv4Addr::LOCALHOST.into(),
        port,
        ask,
        timeout_ns: LONG_NS,
        via: None,
        close: Close::Fin,
    };
    made(check)
}

/// A server that answers one request with these bytes. Returns its port.
fn answering(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read(&mut byte).unwrap_or(0) == 0 {
                return;
            }
            request.extend(byte);
        }
        assert!(request.starts_with(b"GET /health HTTP/1.1\r\n"), "{request:?}");
        let _ = stream.write_all(answer.as_bytes());
    });
    port
}

fn http(status: [u16; 2], body: Option<&str>) -> Ask {
    let body = body.map(str::to_string);
    Ask::Http(Request { tls: false, path: "/health".to_string(), host: None, status, body })
}

/// A server that answers datagrams with what a function returns for them. Returns its port.
fn echoing(answer: fn(&[u8]) -> Vec<Vec<u8>>) -> u16 {
    let socket = Server::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        let (length, from) = socket.recv_from(&mut buffer).unwrap();
        for one in answer(&buffer[..length]) {
            socket.send_to(&one, from).unwrap();
        }
    });
    port
}

/// A port without a listener.
fn closed() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_connection_is_accepted_or_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(check(listener.local_addr().unwrap().port(), Ask::Tcp), Ok(()));
    assert_eq!(check(closed(), Ask::Tcp), Err("connection refused".to_string()));
}

#[test]
fn a_silent_server_fails_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let check = Check {
        address: Ipv4Addr::LOCALHOST.into(),
        port,
        ask: http([200, 299], None),
        timeout_ns: 50_000_000,
        via: None,
        close: Close::Fin,
    };
    assert_eq!(made(check), Err("no answer in 50ms".to_string()));
}

#[test]
fn status_and_body_decide() {
    const GOOD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nall fine";
    assert_eq!(check(answering(GOOD), http([200, 399], None)), Ok(()));
    assert_eq!(check(answering(GOOD), http([200, 399], Some("fine"))), Ok(()));
    let wrong = Err("the body does not contain what is expected".to_string());
    assert_eq!(check(answering(GOOD), http([200, 399], Some("good"))), wrong);
    let bad = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(check(answering(bad), http([200, 399], None)), Err("status 503".to_string()));
    assert_eq!(check(answering(bad), http([503, 503], None)), Ok(()));
    let nonsense = check(answering("no http at all\r\n\r\n"), http([200, 399], None)).unwrap_err();
    assert!(nonsense.starts_with("no HTTP answer: "), "{nonsense}");
    let nothing = check(answering(""), http([200, 399], None)).unwrap_err();
    assert!(nothing.starts_with("no HTTP answer: "), "{nothing}");
}

#[test]
fn a_datagram_is_answered_as_expected() {
    let upper = || echoing(|asked| vec![asked.to_ascii_uppercase()]);
    assert_eq!(check(upper(), Ask::Udp(b"ping".to_vec(), Vec::new())), Ok(()));
    assert_eq!(check(upper(), Ask::Udp(b"ping".to_vec(), b"ING".to_vec())), Ok(()));
    let wrong = Err("the answer does not contain what is expected".to_string());
    assert_eq!(check(upper(), Ask::Udp(b"ping".to_vec(), b"ing".to_vec())), wrong);
    assert_eq!(
        check(closed(), Ask::Udp(b"ping".to_vec(), Vec::new())),
        Err("connection refused".to_string())
    );
}

#[test]
fn a_query_is_answered_by_its_own_answer() {
    let ask = |rcode| Ask::Dns("example.org".to_string(), rcode);
    let forged_first = || {
        echoing(|query| {
            let mut answer = query.to_vec();
            answer[2..4].copy_from_slice(&[0x80, 3]);
            let mut forged = answer.clone();
            forged[0] ^= 1;
            forged[3] = 0;
            vec![forged, vec![0; 5], answer]
        })
    };
    assert_eq!(check(forged_first(), ask(Some(0))), Err("the answer is nxdomain".to_string()));
    assert_eq!(check(forged_first(), ask(Some(3))), Ok(()));
    assert_eq!(check(forged_first(), ask(None)), Ok(()));
}

/// A server with several addresses may reply from the wrong one, which looks like no answer at all.
#[test]
fn a_reply_from_another_address_or_port_is_named() {
    let replying = |from: &'static str, answer: fn(&[u8]) -> Vec<u8>| {
        let socket = Server::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let other = Server::bind(from).unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 2048];
            let (length, client) = socket.recv_from(&mut buffer).unwrap();
            other.send_to(&answer(&buffer[..length]), client).unwrap();
        });
        port
    };
    let udp = || Ask::Udp(b"ping".to_vec(), Vec::new());
    let said = "the reply came from 127.0.0.2, not from 127.0.0.1";
    assert_eq!(check(replying("127.0.0.2:0", <[u8]>::to_vec), udp()), Err(said.to_string()));
    let port = check(replying("127.0.0.1:0", <[u8]>::to_vec), udp()).unwrap_err();
    assert!(port.starts_with("the reply came from port "), "{port}");
    let dns = || Ask::Dns("example.org".to_string(), None);
    let answer = |query: &[u8]| [&query[..2], &[0x80, 0], &query[4..]].concat();
    assert_eq!(check(replying("127.0.0.2:0", answer), dns()), Err(said.to_string()));
    // A datagram that does not answer the request does not count as a reply.
    let short = Check {
        address: Ipv4Addr::LOCALHOST.into(),
        port: replying("127.0.0.2:0", |_| vec![0; 12]),
        ask: dns(),
        timeout_ns: 100_000_000,
        via: None,
        close: Close::Fin,
    };
    assert_eq!(made(short), Err("no answer in 100ms".to_string()));
}

#[test]
fn echo_needs_root_and_gets_an_answer() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    if !status.lines().any(|line| line.starts_with("Uid:\t0\t")) {
        assert_eq!(check(0, Ask::Icmp).unwrap_err(), "Operation not permitted (os error 1)");
        return;
    }
    assert_eq!(check(0, Ask::Icmp), Ok(()));
}

#[test]
fn what_ends_is_told_once_and_rings() {
    let doorbell = Doorbell::new().unwrap();
    let mut checks = Checks::new(doorbell.clone());
    let to = |port| {
        Arc::new(Check {
            address: Ipv4Addr::LOCALHOST.into(),
            port,
            ask: Ask::Tcp,
            timeout_ns: LONG_NS,
            via: None,
            close: Close::Fin,
        })
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (good, bad) = (to(listener.local_addr().unwrap().port()), to(closed()));
    // So that the listener's queue does not fill.
    thread::spawn(move || listener.incoming().for_each(drop));
    for id in 0..500 {
        let check = if id % 2 == 0 { good.clone() } else { bad.clone() };
        checks.make("lb", CheckId(id), check).unwrap();
    }
    let mut outcomes = std::collections::BTreeMap::new();
    while outcomes.len() < 500 {
        if let Some(Checked { app, id, outcome }) = checks.take() {
            assert_eq!(&*app, "lb");
            assert_eq!(outcome.is_ok(), id.0 % 2 == 0, "{outcome:?}");
            assert!(outcomes.insert(id, outcome).is_none());
        } else {
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(checks.take().is_none());
}

#[test]
fn without_a_namespace_a_check_of_the_services_way_is_bad() {
    let mut checks = Checks::new(Doorbell::new().unwrap());
    let vip = Ipv4Addr::new(203, 0, 113, 80).into();
    let ways = vec![(Ipv4Addr::new(10, 0, 0, 9).into(), vip)];
    let via = weir_app::check::Via { service: "web".into(), back_end: "b1".into(), ways };
    let check = Check {
        address: vip,
        port: 80,
        ask: Ask::Tcp,
        timeout_ns: 1_000_000,
        via: Some(via),
        close: Close::Fin,
    };
    let why = checks.make("lb", CheckId(0), Arc::new(check)).unwrap_err();
    assert_eq!(why, "weir has no network namespace for `via: service` checks");
    assert!(checks.take_sent().is_none());
    checks.deliver(&[0; 20]);
}

/// Servers that record how connections end.
mod endings {
    use super::*;

    /// Returns what a server sees of a check, and how its connection ends. `talk` answers it.
    fn ending(
        ask: Ask,
        close: Close,
        talk: impl FnOnce(&mut std::net::TcpStream) + Send + 'static,
    ) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            talk(&mut stream);
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            match stream.read_to_end(&mut Vec::new()) {
                Ok(_) => "fin".to_string(),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => "reset".to_string(),
                Err(error) => error.to_string(),
            }
        });
        let address = Ipv4Addr::LOCALHOST.into();
        let check = Arc::new(Check { address, port, ask, timeout_ns: LONG_NS, via: None, close });
        let runtime = runtime().unwrap();
        _ = runtime.block_on(outcome(&"lb".into(), &check, None));
        while !server.is_finished() {
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
        }
        server.join().unwrap()
    }

    /// Returns how a connection ends while weir lingers, which is for a second. On a busy machine, the server
    /// may be too late for that, and another one is asked.
    fn in_time(ending: impl Fn() -> String) -> String {
        for _ in 1..5 {
            let began = std::time::Instant::now();
            let seen = ending();
            if seen == "fin" || began.elapsed() < Duration::from_secs(1) {
                return seen;
            }
        }
        ending()
    }

    /// Reads a request, and sends parts of the answer with a pause between them.
    fn respond(stream: &mut std::net::TcpStream, parts: &[&[u8]]) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.extend(byte);
        }
        for part in parts {
            let _ = stream.write_all(part);
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_connection_ends_with_a_fin() {
        assert_eq!(ending(Ask::Tcp, Close::Fin, |_| ()), "fin");
        let late = |stream: &mut std::net::TcpStream| {
            thread::sleep(Duration::from_millis(50));
            let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
            thread::sleep(Duration::from_millis(50));
        };
        let seen = in_time(|| ending(Ask::Tcp, Close::Fin, late));
        assert_eq!(seen, "fin", "a server that greets");
        assert_eq!(ending(Ask::Tcp, Close::Reset, |_| ()), "reset");
    }

    #[test]
    fn an_http_answer_is_read_to_its_end() {
        const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
        const BUSY: &[u8] = b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\n";
        const OPEN: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let whole: &[&[u8]] = &[b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"];
        let chunks: &[&[u8]] = &[OPEN, b"4\r\nfine\r\n", b"0\r\n\r\n"];
        for parts in [whole, &[HEAD, b"fi", b"ne"], &[BUSY, b"busy"], chunks] {
            for body in [None, Some("f")] {
                let asked = move || http([200, 399], body);
                let seen = in_time(move || ending(asked(), Close::Fin, move |stream| respond(stream, parts)));
                assert_eq!(seen, "fin", "{parts:?}");
            }
        }
        let seen = ending(http([200, 399], None), Close::Reset, |stream| respond(stream, whole));
        assert_eq!(seen, "reset");
    }

    /// Such a server is abandoned after a second, when the check has long been answered.
    #[test]
    fn a_body_without_end_is_left() {
        let began = std::time::Instant::now();
        let check = check_of_stream();
        assert_eq!(check, Ok(()));
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    fn check_of_stream() -> Outcome {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            respond(&mut stream, &[b"HTTP/1.1 200 OK\r\n\r\n"]);
            while stream.write_all(&[0; 65_536]).is_ok() {}
        });
        check(port, http([200, 200], None))
    }
}

/// `openssl s_server`, which is independent of rustls.
#[cfg(feature = "tls")]
mod tls {
    use super::*;
    use std::process::{Child, Command, Stdio};

    struct Openssl {
        child: Child,
        folder: std::path::PathBuf,
        port: u16,
    }

    impl Openssl {
        fn start(more: &[&str]) -> Option<Openssl> {
            let folder = std::env::temp_dir().join(format!("weir-tls-{}-{}", std::process::id(), more.len()));
            std::fs::create_dir_all(&folder).unwrap();
            let quiet = |arguments: &[&str]| {
                let mut command = Command::new("openssl");
                command.args(arguments).current_dir(&folder).stdin(Stdio::piped());
                command.stdout(Stdio::null()).stderr(Stdio::null());
                command
            };
            let request =
                ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"];
            let made = quiet(&[&request[..], &["-subj", "/CN=nobody", "-days", "1"]].concat()).status();
            if made.is_err() {
                assert!(std::env::var_os("CI").is_none(), "CI has openssl");
                eprintln!("skipped: openssl is not installed");
                return None;
            }
            let port = closed();
            let accept = format!("127.0.0.1:{port}");
            let serve = ["s_server", "-accept", &accept, "-key", "key.pem", "-cert", "cert.pem", "-www"];
            let child = quiet(&[&serve[..], more].concat()).spawn().unwrap();
            let server = Openssl { child, folder, port };
            while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
                thread::sleep(Duration::from_millis(10));
            }
            Some(server)
        }
    }

    impl Drop for Openssl {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    fn https(body: &str) -> Ask {
        let (path, body) = ("/".to_string(), Some(body.to_string()));
        Ask::Http(Request {
            tls: true,
            path,
            host: Some("web.example".to_string()),
            status: [200, 200],
            body,
        })
    }

    #[test]
    fn handshakes_and_requests_over_them() {
        for more in [&["-tls1_3"][..], &["-tls1_2", "-quiet"]] {
            let Some(server) = Openssl::start(more) else { return };
            assert_eq!(check(server.port, Ask::Tls(None)), Ok(()));
            assert_eq!(check(server.port, Ask::Tls(Some("web.example".to_string()))), Ok(()));
            assert_eq!(check(server.port, https("s_server")), Ok(()));
            let wrong = Err("the body does not contain what is expected".to_string());
            assert_eq!(check(server.port, https("something else")), wrong);
        }
    }

    #[test]
    fn what_is_no_tls_is_no_handshake() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || listener.accept().unwrap().0.write_all(b"220 mail.example ESMTP\r\n"));
        let why = check(port, Ask::Tls(None)).unwrap_err();
        assert!(why.starts_with("no TLS handshake: "), "{why}");
        assert_eq!(check(closed(), Ask::Tls(None)), Err("connection refused".to_string()));
    }
}
