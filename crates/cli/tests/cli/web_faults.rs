//! The web page in Chromium when something is odd: back ends that come and go while a question is open,
//! answers of other versions, a daemon that does not answer or is replaced by one of another version, users
//! without a mouse, and packets that are not frames.

use super::browser::Browser;
use super::lb_control::{TOKEN, with_token};
use super::running::Daemon;
use super::web::{CONFIG, VIEW, no_errors, node, other_version, url, view_token};
use rustix::process::Signal;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

const TAB: char = '\u{e004}';
const ESCAPE: char = '\u{e00c}';
const SPACE: char = '\u{e00d}';
const DOWN: char = '\u{e015}';

/// Reloads the configuration with one text replaced by another.
fn reload_with(daemon: &Daemon, old: &str, new: &str) {
    let text = std::fs::read_to_string(daemon.folder.file("weir.yaml")).unwrap();
    assert!(text.contains(old), "{old}");
    daemon.folder.write("weir.yaml", text.replace(old, new));
    daemon.weir(&["reload"]).good();
}

#[test]
fn a_confirmed_change_is_made_to_the_back_end_in_the_question() {
    let Some(browser) = Browser::start((1280, 800), false) else { return };
    let (daemon, address) = node(CONFIG, "");
    let b1 = "        - { name: b1, mac: 02:00:00:00:00:11 }\n";
    reload_with(&daemon, "00:12 }", "00:12, weight: 10 }");
    browser.open(&url(address, &format!("#token={TOKEN}")));
    browser.write("#filter", "name = b1");
    browser.wait_for("document.querySelectorAll('.table tbody tr').length === 1");
    browser.click(".table tbody tr");
    browser.wait_for("document.querySelector('.panel input').value === '1'");
    browser.press("Drain");
    browser.wait_for_text("weir lb drain web b1");
    // Another back end takes the place of the one in the question.
    reload_with(&daemon, b1, &format!("        - {{ name: a0, mac: 02:00:00:00:00:10 }}\n{b1}"));
    browser.wait_for("document.querySelector('.filter .note').textContent === '1 of 5'");
    browser.click("dialog button.main");
    browser.wait_for("document.querySelector('.panel').innerText.includes('draining')");
    let states: Vec<_> = daemon.show("backends").as_array().unwrap().iter().take(3).cloned().collect();
    let states: Vec<_> = states.iter().map(|one| [&one["name"], &one["health"]]).collect();
    assert_eq!(json!(states), json!([["a0", "unchecked"], ["b1", "draining"], ["b2", "unchecked"]]));

    // The panel of another back end has the weight of that one.
    browser.write(".panel input", "7");
    browser.write("#filter", "name = b2");
    browser.wait_for("document.querySelector('.table tbody tr b').textContent === 'b2'");
    browser.click(".table tbody tr");
    browser.wait_for("document.querySelector('.panel h2').textContent === 'b2'");
    browser.wait_for("document.querySelector('.panel input').value === '10'");
    browser.press("Set weight");
    browser.wait_for_text("weir lb weight web b2 10");

    // A question about a back end that is gone is gone as well.
    reload_with(&daemon, "        - { name: b2, mac: 02:00:00:00:00:12, weight: 10 }\n", "");
    browser.wait_for("!document.querySelector('dialog') && !document.querySelector('.panel')");
    no_errors(&browser);
}

#[test]
fn a_keyboard_opens_and_closes_a_back_end() {
    let Some(browser) = Browser::start((1280, 800), false) else { return };
    let (_daemon, address) = node(CONFIG, "");
    browser.open(&url(address, &format!("#token={TOKEN}")));
    browser.wait_for("document.querySelectorAll('.table tbody tr').length === 4");
    browser.click("#filter");
    // The table's head has fewer buttons than this, and of its rows only one is a stop.
    for _ in 0..30 {
        browser.key(TAB);
        if browser.run("return document.activeElement.tagName") == "TR" {
            break;
        }
    }
    let on = |name: &str| format!("document.activeElement.querySelector('td b')?.textContent === '{name}'");
    browser.wait_for(&on("b1"));
    assert_eq!(browser.run("return document.querySelectorAll('tr[tabindex=\"0\"]').length"), 1);
    browser.key(DOWN);
    browser.wait_for(&on("b2"));
    browser.key(SPACE);
    browser.wait_for(
        "document.activeElement.matches('.panel') && document.activeElement.innerText.includes('b2')",
    );
    // Escape closes the question first, and then the panel.
    browser.press("Drain");
    browser.wait_for("document.querySelector('dialog[open]')");
    browser.key(ESCAPE);
    browser.wait_for("!document.querySelector('dialog') && document.querySelector('.panel:focus-within')");
    browser.key(ESCAPE);
    browser.wait_for(&format!("!document.querySelector('.panel') && {}", on("b2")));
    no_errors(&browser);
}

#[test]
fn a_daemon_that_does_not_answer_is_not_shown_as_live() {
    let Some(browser) = Browser::start((1280, 800), false) else { return };
    let (daemon, address) = node(CONFIG, "");
    browser.open(&url(address, &format!("#token={VIEW}")));
    let badge = |text: &str| format!("document.querySelector('#connection').textContent === '{text}'");
    browser.wait_for(&badge("live"));
    browser.wait_for_text("b2");
    // Its connections stay open, but nothing arrives.
    daemon.signal(Signal::STOP);
    browser.wait_for(&badge("stalled"));
    browser.wait_for_text("No new state since");
    browser.picture("stalled");
    browser.wait_for_text("No connection since");
    daemon.signal(Signal::CONT);
    browser.wait_for(&badge("live"));
    browser.wait_for("!document.querySelector('.failure')");
}

/// Answers at the address of a daemon that has ended, as one of another version would: it has another page,
/// and a state that lacks most sections and has one that is unknown.
fn another_version_at(address: SocketAddr) {
    let listener = TcpListener::bind(address).unwrap();
    let facts = json!({ "name": "node", "version": "9.9.9", "page": "\"another\"", "rights": ["view"],
        "nodes": [], "reasons": {} });
    let state = json!({ "at_ms": 1_000, "sections": { "generation": "a word", "unknown": [null] } });
    let answers = [
        ("application/json", facts.to_string()),
        ("text/event-stream", format!("event: state\ndata: {state}\n\n")),
    ];
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let answers = answers.clone();
            // A browser opens some connections before it has a request for them.
            std::thread::spawn(move || {
                let mut head = [0; 4096];
                let length = stream.read(&mut head).unwrap_or_default();
                let is_live = head[..length].starts_with(b"GET /v1/live");
                let (kind, body) = &answers[usize::from(is_live)];
                let length = body.len();
                let head = format!("Content-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close");
                let _ = write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}");
            });
        }
    });
}

#[test]
fn a_page_of_the_previous_version_says_so() {
    let Some(browser) = Browser::start((1280, 800), false) else { return };
    let (mut daemon, address) = node(CONFIG, "");
    browser.open(&url(address, &format!("#token={VIEW}")));
    browser.wait_for_text("b2");
    daemon.signal(Signal::TERM);
    daemon.end();
    another_version_at(address);
    browser.wait_for_text("This page belongs to the previous daemon");
    browser.wait_for_text("weir 9.9.9");
    browser.wait_for_text("generation a word");
    browser.picture("previous");
}

#[test]
fn an_odd_answer_of_a_node_leaves_the_others_visible_and_no_node_gets_the_control_token() {
    let Some(browser) = Browser::start((1280, 800), false) else { return };
    // The last one is not even an object.
    let odd = [
        json!({ "version": "9.9.9" }),
        json!({ "version": 9, "rings": { "services": [null, {}] } }),
        json!(null),
    ];
    let others = odd.map(other_version);
    let (folder, address) = with_token();
    view_token(&folder);
    let nodes: String = others.iter().map(|other| format!(", \"http://{other}\"")).collect();
    let nodes = format!("nodes: [\"http://{address}\"{nodes}]");
    let listen = format!("listen: \"{address}\", token: token, view_token: view");
    let control = format!("control: {{ {listen}, {nodes} }}\n");
    folder.write("weir.yaml", control + CONFIG);
    let _daemon = Daemon::start_in(folder);
    browser.open(&url(address, &format!("#token={TOKEN}")));
    browser.wait_for_text("b2");
    browser.open(&url(address, "#/fleet"));
    browser.wait_for_text("enter their read-only token");
    let cards = |count: usize, text: &str| {
        format!(
            "[...document.querySelectorAll('.nodes .card')].filter(card => card.innerText.includes('{text}'))\
             .length === {count}"
        )
    };
    browser.wait_for(&cards(1, "answers"));
    browser.wait_for(&cards(3, "has no token"));
    browser.write("input[type=password]", VIEW);
    browser.press("Use");
    browser.wait_for(&cards(4, "answers"));
    browser.wait_for_text("9.9.9");
    browser.wait_for_text("ring as configured");
    browser.picture("fleet-odd");
    no_errors(&browser);
    // Another user of the tab gets none of these tokens.
    browser.press("Leave");
    browser.wait_for_text("Token of this node");
    assert_eq!(browser.run("return sessionStorage.length"), 0);
}

#[test]
fn bytes_without_an_ethernet_header_are_recognised() {
    let Some(browser) = Browser::start((1280, 800), false) else { return };
    let (_daemon, address) = node(CONFIG, "");
    browser.open(&url(address, &format!("#token={VIEW}")));
    browser.wait_for_text("b2");
    browser.open(&url(address, "#/explain"));
    let packet = "4500 001c 0000 0000 4011 0000 c000 0201 0a00 0050 0fa0 0035 0008 0000";
    browser.write("#packet", &format!("0x0000:  {packet}"));
    browser.click("form.ask button.main");
    browser.wait_for_text("tcpdump -xx");
    // The same with its Ethernet header, as xxd prints it.
    browser
        .write("#packet", &format!("00000000: 0200 0000 00fe 0200 0000 0001 0800 {packet}  ........E......"));
    browser.click("form.ask button.main");
    browser.wait_for("document.querySelector('.walk')");
    no_errors(&browser);
    // Digits that do not end as they do in a dump take no time, and the daemon refuses them.
    browser.write("#packet", &format!("0x0000: {} z", "ab".repeat(60)));
    browser.click("form.ask button.main");
    browser.wait_for("document.querySelector('.failure')");
}
