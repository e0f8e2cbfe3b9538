//! The web page in Chromium: every view with live data, the effects of clicks, bad tokens, a daemon that
//! stops, names with markup; and the paths that the page reads.

use super::browser::Browser;
use super::folder::Folder;
use super::lb_control::{TOKEN, http, http_as, raw, with_token};
use super::running::Daemon;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

pub const VIEW: &str = "view-view-view-view-view-view-view";

/// A load balancer, a bond, a measurement and an external app, on recordings.
pub const CONFIG: &str = "\
state: state
ports: { p0: { pcap: {} }, p1: { pcap: { out: p1.pcap } }, p2: { pcap: { out: p2.pcap } } }
apps:
  - bond: { name: bond0, mode: static, members: [p1, p2] }
  - lb:
      name: web
      port: p0
      out: bond0
      service: { vip: 10.0.0.80, protocol: tcp, port: 80 }
      size: 251
      back_ends:
        - { name: b1, mac: 02:00:00:00:00:11 }
        - { name: b2, mac: 02:00:00:00:00:12 }
  - lb:
      name: dns
      port: p0
      out: bond0
      service: { vip: 10.0.0.53, protocol: udp, port: 53 }
      size: 251
      back_ends: [{ name: d1, mac: 02:00:00:00:00:21 }]
  - lb:
      name: idle
      port: p0
      out: bond0
      service: { vip: 10.0.0.99, protocol: udp, port: 9 }
      size: 251
      back_ends: [{ name: i1, mac: 02:00:00:00:00:31, weight: 0 }]
  - measure: { name: edge, port: p0, interval: 500ms }
  - external: { name: probe, socket: probe.sock }
";

/// A node with a web page, and its address.
pub fn node(config: &str, more: &str) -> (Daemon, SocketAddr) {
    let (folder, address) = with_token();
    view_token(&folder);
    let control = format!("control: {{ listen: \"{address}\", token: token, view_token: view{more} }}\n");
    folder.write("weir.yaml", control + config);
    (Daemon::start_in(folder), address)
}

pub fn view_token(folder: &Folder) {
    folder.write("view", VIEW);
    std::fs::set_permissions(folder.file("view"), PermissionsExt::from_mode(0o600)).unwrap();
}

pub fn url(address: SocketAddr, view: &str) -> String {
    format!("http://{address}/{view}")
}

/// Packets to both services, and some that are dropped.
fn send(daemon: &Daemon) {
    let mac = "eth.dst=02:00:00:00:00:fe";
    let web =
        (0..24).map(|at| format!("{mac} src=192.0.2.1 dst=10.0.0.80 proto=tcp sport={} dport=80", 4000 + at));
    let dns = (0..8).map(|at| {
        format!("{mac} src=192.0.2.{} dst=10.0.0.53 proto=udp sport=4000 dport=53 payload=00000000", at + 1)
    });
    let lost =
        (0..3).map(|_| format!("{mac} src=192.0.2.9 dst=10.0.0.99 proto=udp sport=4 dport=9 payload=00"));
    let all: Vec<String> = web.chain(dns).chain(lost).collect();
    daemon.receive(&all.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Asserts that nothing went wrong in the browser.
pub fn no_errors(browser: &Browser) {
    let log = browser.log();
    assert!(log.is_empty(), "{log:?}");
}

/// The configuration's view compares the file with what runs.
fn differs_from_the_file(browser: &Browser, daemon: &Daemon, address: SocketAddr) {
    let path = daemon.folder.file("weir.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    // The comparison is right even if the file is written again at once, with the same length.
    for weight in ["weight: 2", "weight: 4"] {
        daemon.folder.write("weir.yaml", text.replace("name: b2,", &format!("name: b2, {weight},")));
        let answer = http(address, "GET", "/v1/configuration", "").1;
        assert!(
            answer["same"] == false && answer["file_text"].as_str().unwrap().contains(weight),
            "{answer}"
        );
        assert_eq!(answer["plan"][0]["name"], "lb/web", "{answer}");
    }
    daemon.folder.write("weir.yaml", text.replace("name: b2,", "name: b2, weight: 3,"));
    browser.open(&url(address, "#/configuration"));
    browser.press("Compare again");
    browser.wait_for("document.querySelector('.diff .added').textContent.includes('weight: 3')");
    browser.wait_for_text("lb/web");
    browser.picture("difference");
}

#[test]
fn every_view_shows_live_data_and_clicks_do_what_they_say() {
    let Some(browser) = Browser::start((1280, 800), false) else { return };
    let (daemon, address) = node(CONFIG, "");
    send(&daemon);
    let start = Instant::now();
    browser.open(&url(address, &format!("#token={TOKEN}")));
    browser.wait_for_text("b2");
    eprintln!("first view after {:?}", start.elapsed());
    browser.wait_for("document.querySelector('#connection').textContent === 'live'");
    assert_eq!(browser.run("return location.href"), url(address, ""), "the token is not in the address");
    send(&daemon);
    browser.wait_for("[...document.querySelectorAll('.table tbody tr')].length === 4");
    browser.picture("services");

    browser.write("#filter", "service = web and not name = b1");
    browser.wait_for("document.querySelectorAll('.table tbody tr').length === 1");
    browser.write("#filter", "service = web and (");
    browser.wait_for_text("a word or a comparison is missing here");
    browser.write("#filter", "name = b1");
    browser.click(".table tbody tr");
    browser.press("Drain");
    browser.wait_for_text("weir lb drain web b1");
    browser.picture("drain");
    browser.click("dialog button.main");
    browser.wait_for("document.querySelector('.panel').innerText.includes('draining')");
    let back_ends = daemon.show("backends");
    assert_eq!((&back_ends[0]["name"], &back_ends[0]["health"]), (&json!("b1"), &json!("draining")));
    browser.write(".panel input", "7");
    browser.press("Set weight");
    browser.wait_for_text("weir lb weight web b1 7");
    browser.click("dialog button.main");
    browser.wait_for("!document.querySelector('dialog')");
    assert_eq!(daemon.show("backends")[0]["weight"], 7);

    browser.open(&url(address, "#/drops"));
    browser.wait_for_text("What to do:");
    browser.wait_for_text("udp 192.0.2.9:4 > 10.0.0.99:9");
    browser.picture("drops");
    browser.press("explain");
    browser.wait_for("location.hash.startsWith('#/explain?packet=')");
    browser.wait_for_text("drop: ");
    browser.picture("explain");
    for (view, texts) in [
        ("ports", &["p0", "Workers", "Pipes"][..]),
        ("bond", &["members of bond0", "buckets of bond0"]),
        ("measure", &["edge", "intervals of 0.5 s"]),
        ("external", &["probe", "probe.sock"]),
        ("configuration", &["the file is as loaded", "vip: 10.0.0.80"]),
        ("fleet", &["ring as configured", "answers"]),
    ] {
        browser.open(&url(address, &format!("#/{view}")));
        texts.iter().for_each(|text| browser.wait_for_text(text));
        browser.picture(view);
    }
    differs_from_the_file(&browser, &daemon, address);
    no_errors(&browser);
}

#[test]
fn explain_on_the_page_says_what_the_command_says() {
    let Some(browser) = Browser::start((1280, 800), false) else { return };
    let (daemon, address) = node(CONFIG, "");
    browser.open(&url(address, &format!("#token={VIEW}")));
    browser.wait_for_text("b2");
    for (typed, packet) in [
        ("tcp 192.0.2.1:4000 > 10.0.0.80:80", "src=192.0.2.1 dst=10.0.0.80 proto=tcp sport=4000 dport=80"),
        (
            "src=192.0.2.1 dst=10.0.0.99 proto=udp sport=1 dport=2",
            "src=192.0.2.1 dst=10.0.0.99 proto=udp \
            sport=1 dport=2",
        ),
    ] {
        browser.open(&url(address, "#/explain"));
        browser.write("#packet", typed);
        browser.click("form.ask button.main");
        browser.wait_for("document.querySelector('.walk')");
        // The address contains the typed packet, so that the view can be shared.
        browser.wait_for(&format!(
            "new URLSearchParams(location.hash.split('?')[1]).get('packet') === {}",
            json!(packet)
        ));
        browser.press("text");
        let shown = browser.run("return document.querySelector('#walk-text').textContent");
        let said = daemon.weir(&["explain", "--live", "--packet", packet]).good().out;
        assert_eq!(shown.as_str().unwrap().trim_end(), said.trim_end());
    }
    browser.open(&url(address, "#/explain"));
    browser.write("#packet", "src=nonsense");
    browser.click("form.ask button.main");
    browser.wait_for("document.querySelector('.failure')");
    // The refused packet is the only error in the browser's log.
    let log = browser.log();
    assert!(log.iter().all(|line| line.contains("400")), "{log:?}");
}

#[test]
fn bad_tokens_and_a_daemon_that_stops_are_explained() {
    let Some(browser) = Browser::start((390, 800), true) else { return };
    let (mut daemon, address) = node(CONFIG, "");
    browser.open(&url(address, ""));
    browser.wait_for_text("Token of this node");
    browser.write("#token", "wrong-wrong-wrong-wrong-wrong-wrong");
    browser.press("Open");
    browser.wait_for_text("refuses this token");
    browser.picture("token");
    browser.write("#token", VIEW);
    browser.press("Open");
    browser.wait_for_text("read-only");
    browser.wait_for_text("b2");
    send(&daemon);
    browser.picture("phone");
    browser.click(".table tbody tr");
    browser.wait_for_text("This token is read-only");
    let buttons = browser.run("return [...document.querySelectorAll('.panel button')].length");
    assert_eq!(buttons, 1, "only the one that closes it");
    let log = browser.log();
    assert!(log.iter().all(|line| line.contains("401")), "{log:?}");
    // At phone width, nothing is wider than the window.
    assert_eq!(browser.run("return document.documentElement.scrollWidth <= innerWidth"), true);

    // Addresses with other tokens can be entered in the open tab.
    browser.open(&url(address, "#token=wrong-wrong-wrong-wrong-wrong-wrong"));
    browser.wait_for_text("refuses this token");
    browser.open(&url(address, &format!("#token={TOKEN}")));
    browser.wait_for("document.querySelector('header.top .badge').textContent === 'control'");
    browser.wait_for_text("b2");
    assert_eq!(browser.run("return location.href"), url(address, ""), "the token is not in the address");

    daemon.signal(Signal::TERM);
    daemon.end();
    browser.wait_for_text("No connection since");
    let folder = daemon.into_folder();
    let _daemon = Daemon::start_in(folder);
    browser.wait_for("document.querySelector('#connection').textContent === 'live'");
    browser.wait_for("!document.body.innerText.includes('No connection since')");
    browser.picture("reconnected");
}

#[test]
fn a_token_to_read_changes_nothing() {
    let (daemon, address) = node(CONFIG, "");
    let as_viewer = |method: &str, path: &str, body: &str| {
        http_as(&format!("Bearer {VIEW}"), address, (method, path), body)
    };
    let back_end = "/v1/services/web/back_ends/b1";
    for (method, body) in [("PATCH", r#"{"state": "draining"}"#), ("DELETE", ""), ("PUT", "{}")] {
        let (status, answer) = as_viewer(method, back_end, body);
        assert_eq!(status, 403, "{method}: {answer}");
    }
    assert_eq!(daemon.show("backends")[0]["health"], "unchecked");
    assert_eq!(as_viewer("GET", "/v1/page", "").1["rights"], json!(["view"]));
    assert_eq!(http(address, "GET", "/v1/page", "").1["rights"], json!(["view", "control"]));
    assert_eq!(as_viewer("GET", "/v1/services", "").0, 200);
    for (path, status) in [
        ("/v1/show?what=ports,ledger", 200),
        ("/v1/show?what=nonsense", 400),
        ("/v1/show?wat=ports", 400),
        ("/v1/show?limit=x", 400),
        ("/v1/explain?packet=src%3D192.0.2.1+dst%3D10.0.0.80+proto%3Dtcp", 200),
        ("/v1/explain?hex=0", 400),
        ("/v1/explain", 400),
        ("/v1/explain?packet=%zz", 400),
        ("/v1/history?series=port/", 200),
        ("/v1/live?apps=maybe", 400),
        ("/v1/configuration", 200),
    ] {
        assert_eq!(as_viewer("GET", path, "").0, status, "{path}");
        assert_eq!(http_as("Bearer x", address, ("GET", path), "").0, 401, "{path}");
        std::thread::sleep(Duration::from_millis(120));
    }
    let shown = as_viewer("GET", "/v1/show?what=ports", "").1;
    assert_eq!(shown["ports"][0]["name"], daemon.show("ports")[0]["name"]);
    let control = daemon.weir(&["ui"]).good().out;
    assert_eq!(control, format!("http://{address}/\n"));
    let with_token = daemon.weir(&["ui", "--token", "--json"]).good().json();
    assert_eq!(with_token["url"], format!("http://{address}/#token={VIEW}"));
}

#[test]
fn files_of_the_page_need_no_token_and_confine_what_it_does() {
    let (_daemon, address) = node(CONFIG, ", nodes: [\"https://lb2:9106\"]");
    let page = raw(address, "HEAD / HTTP/1.1\r\n");
    let policy = page.lines().find(|line| line.starts_with("content-security-policy: ")).unwrap();
    assert!(policy.contains("script-src 'self';") && policy.ends_with("connect-src 'self' https://lb2:9106"));
    let tag = page.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let known = raw(address, &format!("GET /app.js HTTP/1.1\r\nIf-None-Match: {tag}\r\n"));
    assert!(known.starts_with("HTTP/1.1 304 "), "{known}");
    // Pages of listed nodes may query this node, others may not.
    for (origin, shared) in [("https://lb2:9106", true), ("https://evil:9106", false)] {
        let ask = format!("OPTIONS /v1/node HTTP/1.1\r\nOrigin: {origin}\r\n");
        let asked = raw(address, &ask);
        assert_eq!(asked.starts_with("HTTP/1.1 204 "), shared, "{asked}");
        let answer = raw(address, &format!("GET /v1/node HTTP/1.1\r\nOrigin: {origin}\r\n"));
        assert_eq!(answer.contains(&format!("access-control-allow-origin: {origin}")), shared, "{answer}");
    }
    // Without JavaScript.
    let basic = raw(address, "GET /static HTTP/1.1\r\n");
    assert!(basic.starts_with("HTTP/1.1 401 ") && basic.contains("www-authenticate: Basic"), "{basic}");
}

#[test]
fn names_with_markup_are_text_and_a_table_needs_no_script() {
    let Some(browser) = Browser::start((800, 600), false) else { return };
    let markup = "<img src=x onerror=alert(1)>";
    let config = CONFIG.replace("state: state\n", &format!("# {markup}\nstate: state\n"));
    let (daemon, address) = node(&config, "");
    send(&daemon);
    browser.open(&url(address, &format!("#token={TOKEN}")));
    browser.wait_for_text("b2");
    browser.open(&url(address, &format!("#/configuration?x={}", "%3Cb%3E")));
    browser.wait_for_text(markup);
    browser.open(&url(address, "#/explain?packet=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"));
    browser.wait_for("document.querySelector('.failure')");
    browser.open(&url(address, "#/services?filter=%3Cimg%20src%3Dx%3E"));
    browser.wait_for("document.querySelector('.filter input').value.startsWith('<img')");
    assert_eq!(browser.run("return document.querySelectorAll('img:not([src=\"/icon.svg\"])').length"), 0);
    browser.disable_scripts();
    browser.open(&url(address, ""));
    browser.wait_for_text("This page needs JavaScript");
    browser.open(&format!("http://viewer:{VIEW}@{address}/static"));
    browser.wait_for_text("Back ends");
    browser.wait_for_text("b2");
    assert_eq!(browser.run("return document.querySelectorAll('tbody tr').length > 3"), true);
    browser.picture("static");
}

/// Reads a stream of states until it contains a text.
fn stream_until(address: SocketAddr, query: &str, text: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = format!("GET /v1/live{query} HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer {VIEW}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let (mut all, mut piece) = (String::new(), [0; 1 << 16]);
    while !all.contains(text) {
        let length = stream.read(&mut piece).unwrap_or_else(|why| panic!("no `{text}`: {why}: {all}"));
        assert!(length > 0, "the stream has ended: {all}");
        all += &String::from_utf8_lossy(&piece[..length]);
    }
    all
}

#[test]
fn only_clients_that_want_the_pages_of_apps_get_them() {
    let (_daemon, address) = node(CONFIG, "");
    let with = stream_until(address, "?apps=true", "members of bond0");
    let [pages, state] = ["event: apps\n", "event: state\n"].map(|event| with.find(event));
    assert!(pages.is_some() && pages < state, "{with}");
    // The other client gets the same states, some of which came with pages for the first client.
    let without = stream_until(address, "", "event: change\n");
    assert!(without.contains("event: state\n") && !without.contains("members of bond0"), "{without}");
    assert!(!without.contains("event: apps") && !without.contains("\"pages\""), "{without}");
}

/// The processor time of a daemon so far.
fn processor_time(daemon: &Daemon) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid().as_raw_nonzero())).unwrap();
    // These fields follow the name of the program, which may contain spaces. Times are in hundredths of a
    // second.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    Duration::from_millis(10 * (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()))
}

/// How long the daemon's processor time is measured.
const MEASURED: Duration = Duration::from_secs(30);

/// The number of back ends during the measurement.
const ROWS: usize = 10_000;

/// Prints what the page costs with ten thousand back ends. The target, less than a hundredth of a core, is
/// for a release build on an idle machine: `cargo test --release --package weir --test cli -- --ignored
/// --nocapture what_the_page_costs`.
#[test]
#[ignore = "a measurement"]
fn what_the_page_costs_with_ten_thousand_rows() {
    let mut config = "ports: { p0: { pcap: {} } }\napps:\n".to_string();
    for service in 0..10 {
        config += &format!(
            "  - lb:\n      name: s{service}\n      port: p0\n      size: 65537\n      service: {{ vip: \
             10.0.0.{service}, protocol: udp, port: 53 }}\n      back_ends:\n"
        );
        for at in 0..ROWS / 10 {
            let mac = format!("02:00:00:0{service}:{:02x}:{:02x}", at >> 8, at & 0xff);
            config += &format!("        - {{ name: b{at}, mac: \"{mac}\" }}\n");
        }
    }
    let (daemon, address) = node(&config, "");
    let measured = |watched: &mut dyn FnMut() -> bool| {
        let (start, before) = (Instant::now(), processor_time(&daemon));
        while start.elapsed() < MEASURED {
            // Packets of a few flows, so that some rows differ.
            let at = start.elapsed().as_millis() % 50_000;
            let flow = format!("src=192.0.2.1 dst=10.0.0.{} proto=udp sport={} dport=53", at % 10, at + 1);
            daemon.receive(&[&format!("eth.dst=02:00:00:00:00:fe {flow} payload=00")]);
            while watched() {}
        }
        100.0 * (processor_time(&daemon) - before).as_secs_f64() / start.elapsed().as_secs_f64()
    };
    let without = measured(&mut || {
        std::thread::sleep(Duration::from_millis(20));
        false
    });
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("GET /v1/live HTTP/1.1\r\nHost: weir\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (mut piece, mut text, mut bytes) = (vec![0; 1 << 20], String::new(), 0);
    let (mut states, mut with_rows) = (0, 0);
    let with = measured(&mut || {
        let Ok(length) = stream.read(&mut piece) else { return false };
        assert!(length > 0, "the stream has ended");
        bytes += length;
        text += &String::from_utf8_lossy(&piece[..length]);
        while let Some((event, rest)) = text.split_once("\n\n") {
            states += u32::from(event.contains("event: "));
            with_rows += u32::from(event.contains("\"rows\":[") || event.contains("\"changed\":["));
            text = rest.to_string();
        }
        true
    });
    println!(
        "{ROWS} rows, one client: {:.2} % of a core ({with:.2} % with it, {without:.2} % without); in {} s, \
         {states} states, {with_rows} of them with rows, {bytes} bytes",
        with - without,
        MEASURED.as_secs()
    );
    assert!(states >= 20 && with_rows >= 1, "{states} states, {with_rows} with rows");
}

/// Packets of a golden walk: the port that each arrives on, and its recipe. Of a range, only the first.
fn walk_packets(text: &str) -> Vec<(&str, String)> {
    let (mut port, mut packets) = ("", Vec::new());
    for line in text.lines() {
        if let Some(header) = line.strip_prefix("-- ").and_then(|rest| rest.strip_suffix(" --")) {
            port = header.strip_prefix("in ").unwrap_or_default();
        } else if let Some((_, recipe)) = line.split_once(' ').filter(|_| line.starts_with('@'))
            && !port.is_empty()
        {
            let of_range = |(first, rest): (&str, &str)| {
                format!("{first}{}", rest.trim_start_matches(|one: char| one.is_ascii_digit()))
            };
            packets.push((port, recipe.split_once("..").map_or_else(|| recipe.to_string(), of_range)));
        }
    }
    packets
}

/// Percent-encodes a value of a query.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// The maximum number of packets of a walk that are explained in both ways.
const PACKETS_MAX: usize = 3;

#[test]
fn the_page_gets_the_walks_of_the_command_line() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut walks: Vec<_> = std::fs::read_dir(golden).unwrap().map(|one| one.unwrap().path()).collect();
    walks.retain(|path| path.extension().is_some_and(|end| end == "walk"));
    walks.sort();
    let (mut explained, mut programs) = (0, 0);
    for path in walks {
        let text = std::fs::read_to_string(&path).unwrap();
        let config = text.split_once("-- config --\n").unwrap().1.split("\n-- ").next().unwrap();
        let packets = walk_packets(&text);
        // Other systems' configurations have no place for a listener, and a daemon would need the recording.
        if config.trim_start().starts_with('{') || config.contains("in: in.pcap") {
            continue;
        }
        let (daemon, address) = node(&format!("{config}\n"), "");
        programs += 1;
        for (port, recipe) in packets.into_iter().take(PACKETS_MAX) {
            let query = format!("/v1/explain?packet={}&port={}", encoded(&recipe), encoded(port));
            let (status, page) = http(address, "GET", &query, "");
            let command = daemon.weir(&["explain", "--live", "--packet", &recipe, "--port", port, "--json"]);
            let place = format!("{}: {recipe}", path.display());
            assert_eq!((status == 200, command.code), (command.code == Some(0), command.code), "{place}");
            if status == 200 {
                let mut said = command.json();
                // The command also prints the port on which a frame was recorded.
                said.as_object_mut().unwrap().remove("recorded_of");
                assert_eq!(page, said, "{place}");
                explained += 1;
            }
        }
    }
    assert!(programs >= 80 && explained >= 80, "{explained} packets in {programs} programs");
}

/// Answers like another node, of another version, until the test ends.
pub fn other_version(node: Value) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            let length = stream.read(&mut head).unwrap_or_default();
            let head = String::from_utf8_lossy(&head[..length]).to_string();
            let origin = head.lines().find_map(|line| line.strip_prefix("Origin: ")).unwrap_or_default();
            let body = node.to_string();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: {origin}\r\nAccess-Control-Allow-Headers: \
                 authorization\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: \
                 close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    address
}

/// Makes a certificate that has expired, cert.pem, and its key. Returns false without openssl.
fn expired(folder: &Folder) -> bool {
    folder.write("index.txt", "");
    folder.write("serial", "01\n");
    let extensions = "[e]\nsubjectAltName=IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n";
    let authority = "[d]\ndatabase=index.txt\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n";
    folder.write(
        "ca.cnf",
        format!("[ca]\ndefault_ca=d\n{authority}x509_extensions=e\n[p]\ncommonName=supplied\n{extensions}"),
    );
    let request = "req -new -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=weir";
    let sign = "ca -batch -selfsign -keyfile key.pem -in request.pem -out cert.pem -notext -config ca.cnf \
                -startdate 20200101000000Z -enddate 20200102000000Z";
    for arguments in [request, sign] {
        let mut command = std::process::Command::new("openssl");
        let arguments = arguments.split_whitespace();
        let Ok(made) = command.args(arguments).current_dir(folder.path()).output() else {
            assert!(std::env::var_os("CI").is_none(), "CI has openssl");
            eprintln!("skipped: openssl is not installed");
            return false;
        };
        assert!(made.status.success(), "{made:?}");
    }
    true
}

#[test]
fn a_fleet_shows_what_differs_and_which_node_cannot_be_reached() {
    let Some(browser) = Browser::start((1280, 800), false) else { return };
    let (folder, first) = with_token();
    let (other, second) = with_token();
    let (strange, third) = with_token();
    if !expired(&strange) {
        return;
    }
    // Its names are not those of this version either.
    let services =
        json!([{ "name": "<img src=x>", "back_ends": [{ "name": "<b>b</b>", "health": "down" }] }]);
    let version = json!({ "version": "9.9.9", "configuration": "c", "flows": [], "nat_pools": [],
        "rings": { "configured": "another ring", "effective": "another ring", "services": services } });
    let fourth = other_version(version);
    let nodes =
        format!("nodes: [\"http://{first}\", \"http://{second}\", \"https://{third}\", \"http://{fourth}\"]");
    for (folder, address, tls) in [
        (&folder, first, ""),
        (&other, second, ""),
        (&strange, third, ", tls: { certificate: cert.pem, key: key.pem }"),
    ] {
        view_token(folder);
        // The nodes have the same configuration, except for their addresses.
        folder.write("node.yaml", format!("listen: {address}\n"));
        let listen = "listen: ${NODE.listen}, token: token, view_token: view";
        let control = format!("control: {{ {listen}, {nodes}{tls} }}\n");
        folder.write("weir.yaml", control + CONFIG);
    }
    let _daemons = [folder, other, strange].map(Daemon::start_in);
    browser.open(&url(first, &format!("#token={VIEW}")));
    browser.wait_for_text("b2");
    browser.open(&url(first, "#/fleet"));
    browser.wait_for_text("its certificate has expired");
    browser.wait_for_text("9.9.9");
    let card = |address: SocketAddr, kind: &str| {
        format!(
            "[...document.querySelectorAll('.nodes .card')].find(card => \
             card.innerText.includes('{address}'))?.querySelectorAll('dd .badge.{kind}').length"
        )
    };
    // Version, configuration and both rings of the fourth node differ from those of the first two, and a back
    // end is down.
    browser.wait_for(&format!("{} === 5", card(fourth, "bad")));
    browser.wait_for_text("<img src=x>/<b>b</b>");
    assert_eq!(browser.run("return document.querySelectorAll('.nodes img, .nodes b').length"), 0);
    browser.wait_for(&format!("{} === 0 && {} >= 3", card(first, "bad"), card(second, "good")));
    browser.picture("fleet-differs");
}
