//! Names of addresses: from a file and over HTTP, in flow records, lists of flows and measurements.

use super::lb_control::{http, raw, with_token};
use super::running::Daemon;
use super::{TWO, weir};
use serde_json::{Value, json};
use std::net::UdpSocket;
use std::time::Duration;

const FLOW: &str = "src=192.0.2.2 dst=10.0.0.53 sport=4000 dport=53";

/// A pod and a service, as clients set them.
fn names() -> Value {
    json!({ "names": [
        { "address": "192.0.2.2", "name": "web-1", "namespace": "shop", "kind": "pod", "node": "n1" },
        { "address": "10.0.0.53", "name": "dns", "namespace": "kube-system", "kind": "service" },
    ] })
}

/// The row of `weir show names` of a source.
fn source(daemon: &Daemon, of: &str) -> Value {
    let rows = daemon.show("names").as_array().unwrap().clone();
    rows.into_iter().find(|row| row["source"] == of).unwrap_or_default()
}

#[test]
fn a_file_of_names_is_followed_and_garbage_changes_nothing() {
    let (folder, address) = with_token();
    let good = "names:\n- { address: 192.0.2.0/24, name: clients }\n- { address: 192.0.2.2, name: one }\n";
    folder.write("names.yaml", good);
    let control = format!("control: {{ listen: \"{address}\", token: token }}");
    let config = |names: &str| {
        let measure = "{ name: edge, port: p0, interval: 200ms, flows: 64 }";
        format!("{control}\n{names}{TWO}\napps:\n  - measure: {measure}\n")
    };
    folder.write("weir.yaml", config("names: { file: names.yaml }\n"));
    let mut daemon = Daemon::start_in(folder);
    let of_file = |daemon: &Daemon| source(daemon, "names.yaml");
    daemon.wait_for("the names", |daemon| of_file(daemon)["names"] == 2);
    daemon.receive(&[FLOW, &FLOW.replace("192.0.2.2", "192.0.2.3")]);
    let shown = |daemon: &Daemon| {
        let flows = daemon.weir(&["show", "flows", "--json"]).good().json()["flows"].clone();
        let named = |end: &'static str| move |row: &Value| row[end]["name"].as_str().map(str::to_string);
        let rows = flows.as_array().unwrap();
        let mut names: Vec<_> = rows.iter().map(named("source_name")).collect();
        names.extend(rows.iter().map(named("destination_name")).filter(Option::is_some));
        names.sort();
        names.into_iter().flatten().collect::<Vec<_>>()
    };
    daemon.wait_for("the flows", |daemon| shown(daemon) == ["clients", "one"]);
    // An error has its place, and the names stay.
    daemon.folder.write("names.yaml", format!("{good}- {{ address: 192.0.2.2, name: other }}\n"));
    daemon.wait_for("the failure", |daemon| of_file(daemon)["state"] == "failing");
    let reason = of_file(&daemon)["reason"].as_str().unwrap().to_string();
    assert!(reason.contains("names.yaml:4:14: error: 192.0.2.2 has a name already, `one`"), "{reason}");
    assert!(reason.contains("^^^^^^^^^ remove this one, or that of line 3"), "{reason}");
    assert_eq!(
        (shown(&daemon), of_file(&daemon)["names"].as_u64()),
        (vec!["clients".into(), "one".into()], Some(2))
    );
    daemon.folder.write("names.yaml", good.replace("one", "two"));
    daemon.wait_for("the change", |daemon| shown(daemon) == ["clients", "two"]);
    assert_eq!(of_file(&daemon)["state"], "ok");
    // The names of clients stay beside those of the file, and also after the configuration no longer has the
    // file.
    assert_eq!(http(address, "PUT", "/v1/names", &names().to_string()).0, 200);
    assert_eq!(shown(&daemon), ["clients", "dns", "dns", "two"]);
    daemon.folder.write("weir.yaml", config(""));
    daemon.weir(&["reload"]).good();
    assert_eq!(shown(&daemon), ["dns", "dns", "web-1"]);
    let text = daemon.weir(&["show", "flows"]).good().out;
    assert!(text.contains("name=web-1 namespace=shop kind=pod node=n1"), "{text}");
}

#[test]
fn clients_set_names_as_a_whole_and_under_conditions() {
    let (folder, address) = with_token();
    folder.write("weir.yaml", format!("control: {{ listen: \"{address}\", token: token }}\n{TWO}"));
    let daemon = Daemon::start_in(folder);
    let put = |path: &str, body: &Value| http(address, "PUT", path, &body.to_string());
    let (status, first) = put("/v1/names", &names());
    assert_eq!((status, &first["names"], &first["changed"]), (200, &json!(2), &json!(true)));
    let etag = first["etag"].as_str().unwrap();
    assert_eq!(put("/v1/names", &names()).1["changed"], false);
    assert_eq!(
        source(&daemon, "api"),
        json!({ "source": "api", "state": "ok", "names": 2, "age_s": null,
        "etag": etag, "reason": "" })
    );
    let (status, all) = http(address, "GET", "/v1/names", "");
    assert_eq!(
        (status, all["names"][0]["name"].as_str(), all["names"][1]["node"].as_str()),
        (200, Some("dns"), Some("n1"))
    );
    let known = raw(address, &format!("GET /v1/names HTTP/1.1\r\nIf-None-Match: \"{etag}\"\r\n"));
    assert!(
        known.starts_with("HTTP/1.1 304 ") && known.to_lowercase().contains(&format!("etag: \"{etag}\""))
    );
    // Nothing changes without the current tag, in a dry run, or with a mistake.
    let empty = json!({ "names": [] }).to_string();
    let length = empty.len();
    for (condition, status) in
        [("If-Match: \"0\"", 412), ("If-None-Match: *", 412), ("If-None-Match: \"0\"", 400)]
    {
        let head = format!("PUT /v1/names HTTP/1.1\r\n{condition}\r\nContent-Length: {length}\r\n");
        let answer = with_body(address, &head, &empty);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{condition}: {answer}");
    }
    assert_eq!(put("/v1/names?dry_run=true", &json!({ "names": [] })).1["changed"], true);
    for (body, part) in [
        (
            json!({ "names": [{ "address": "10.0.0.1", "name": "a\u{7}" }] }),
            "/names/0/name: this name has a control",
        ),
        (
            json!({ "names": [{ "address": "10.0.0.1/8", "name": "a" }] }),
            "/names/0/address: `10.0.0.1/8` has bits",
        ),
        (json!([]), "the body is not an object"),
    ] {
        let (status, answer) = put("/v1/names", &body);
        assert!(status == 400 && answer["error"].as_str().unwrap().contains(part), "{answer}");
    }
    assert_eq!(http(address, "DELETE", "/v1/names", "").0, 405);
    assert_eq!(source(&daemon, "api")["etag"], etag);
    // The control socket serves the same path, and the description lists it.
    let description = http(address, "GET", "/openapi.json", "").1;
    assert!(description["paths"]["/v1/names"]["put"]["responses"]["412"].is_object(), "{description}");
    let head = format!("PUT /v1/names HTTP/1.1\r\nIf-Match: \"{etag}\"\r\nContent-Length: {length}\r\n");
    assert!(with_body(address, &head, &empty).starts_with("HTTP/1.1 200 "));
    assert_eq!(source(&daemon, "api")["names"], 0);
}

fn with_body(address: std::net::SocketAddr, head: &str, body: &str) -> String {
    use super::lb_control::TOKEN;
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let rest = format!("Host: w\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n{body}");
    stream.write_all(format!("{head}{rest}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The strings in the first IPFIX record with names, in the order of their elements.
fn exported(collector: &UdpSocket) -> Vec<String> {
    let mut bytes = [0; 2048];
    for _ in 0..100 {
        let length = collector.recv(&mut bytes).unwrap();
        let message = &bytes[..length];
        let mut at = 16;
        while at < length {
            let number = |at: usize| usize::from(u16::from_be_bytes([message[at], message[at + 1]]));
            let (set, end) = (number(at), at + number(at + 2));
            // The record of an IPv4 flow outside tunnels with names.
            if set == 261 {
                let mut strings = Vec::new();
                let mut place = at + 4 + 76;
                for _ in 0..7 {
                    let length = usize::from(message[place]);
                    let text = &message[place + 1..place + 1 + length];
                    strings.push(String::from_utf8(text.to_vec()).unwrap());
                    place += 1 + length;
                }
                return strings;
            }
            at = end;
        }
    }
    Vec::new()
}

#[test]
fn records_and_measurements_have_names_and_merged_ones_too() {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (folder, address) = with_token();
    let ipfix = format!("ipfix: {{ to: \"{}\", domain: 7 }}", collector.local_addr().unwrap());
    let measure = format!("{{ name: edge, port: p0, interval: 1s, seed: 7, {ipfix} }}");
    let control = format!("control: {{ listen: \"{address}\", token: token }}");
    folder.write("weir.yaml", format!("{control}\n{TWO}\napps:\n  - measure: {measure}\n"));
    let mut daemon = Daemon::start_in(folder);
    assert_eq!(http(address, "PUT", "/v1/names", &names().to_string()).0, 200);
    daemon.receive(&[FLOW]);
    let strings = exported(&collector);
    assert_eq!(strings, ["shop", "web-1", "", "", "n1", "", "kube-system/dns"]);
    let pod = json!({ "name": "web-1", "namespace": "shop", "kind": "pod", "node": "n1" });
    let top = |daemon: &Daemon| {
        let shown = daemon.weir(&["show", "measure", "edge", "--json"]).good().json();
        shown["measure"][0]["last"]["top"][0].clone()
    };
    daemon.wait_for("the flow", |daemon| top(daemon)["source_name"] == pod);
    let url = format!("http://{address}");
    let arguments = ["measure", "--json", "--patience", "20s", "--token", "token", "--from", &url];
    let merged = |daemon: &Daemon| weir(daemon.folder.path(), &arguments).good().json();
    // The interval with the flow may be over; if so, another packet begins another interval.
    daemon.wait_for("a merged interval with the flow", |daemon| {
        let found = merged(daemon)["top"][0].clone();
        if found.is_null() {
            daemon.receive(&[FLOW]);
            return false;
        }
        assert_eq!((&found["source_name"], &found["destination_name"]["name"]), (&pod, &json!("dns")));
        true
    });
    daemon.receive(&[FLOW]);
    daemon.wait_for("the text", |daemon| {
        let text = daemon.weir(&["show", "measure", "edge"]).good().out;
        text.contains("192.0.2.2:4000 > 10.0.0.53:53  shop/web-1 > kube-system/dns") || {
            daemon.receive(&[FLOW]);
            false
        }
    });
}

#[test]
fn a_recording_is_shown_with_the_names_of_a_file() {
    let folder = super::folder::Folder::new();
    super::record(&folder.file("a.pcap"), &[FLOW]);
    folder.write("names.json", names().to_string());
    let measure = |more: &[&str]| {
        weir(folder.path(), &[&["measure", "a.pcap", "--names", "names.json"], more].concat())
    };
    let top = measure(&["--json"]).good().json()["top"][0].clone();
    assert_eq!(
        (&top["source_name"]["name"], &top["destination_name"]["kind"]),
        (&json!("web-1"), &json!("service"))
    );
    assert!(measure(&[]).good().out.contains("  shop/web-1 > kube-system/dns\n"));
    folder.write("names.json", "{\"names\": [{\"address\": \"10.0.0.53\"}]}");
    let said = measure(&[]);
    assert!(
        said.code == Some(2) && said.err.contains("names.json:1:12: error: `name` is missing"),
        "{}",
        said.err
    );
}
