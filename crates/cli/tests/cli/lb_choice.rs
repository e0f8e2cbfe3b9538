//! How new flows are assigned to back ends, and QUIC packets to theirs, in the daemon; and configurations of
//! that which cannot work.

use super::folder::Folder;
use super::running::Daemon;
use super::weir;
use serde_json::Value;

const SERVICE: &str = "\
ports:
  p0: { pcap: {} }
apps:
  - lb:
      name: h3
      port: p0
      service: { vip: 10.0.0.80, protocol: both, port: 443 }
      scheduler: least_connections
      quic: { configs: [{ id: 2, server_id_length: 1, nonce_length: 4 }] }
      back_ends:
        - { name: b1, mac: 02:00:00:00:00:11, server_id: 01 }
        - { name: b2, mac: 02:00:00:00:00:12, server_id: 02, weight: 3 }
";
const SYN: &str = "eth.dst=02:00:00:00:00:fe src=192.0.2.1 dst=10.0.0.80 proto=tcp dport=443";
const QUIC: &str = "eth.dst=02:00:00:00:00:fe dst=10.0.0.80 proto=udp dport=443 payload=40450101020304aabb";

/// Returns a column of `weir show backends`, for each back end.
fn shown(daemon: &Daemon, column: &str) -> Vec<Value> {
    let rows = daemon.show("backends");
    rows.as_array().unwrap().iter().map(|row| row[column].clone()).collect()
}

#[test]
fn new_connections_go_to_who_has_the_fewest_and_all_of_it_is_shown() {
    let mut daemon = Daemon::start(SERVICE);
    let syns: Vec<String> = (0..64).map(|port| format!("{SYN} sport={}", 4000 + port)).collect();
    daemon.receive(&syns.iter().map(String::as_str).collect::<Vec<_>>());
    daemon.wait_for("64 flows", |daemon| shown(daemon, "flows_begun") == [16, 48]);
    assert_eq!(shown(&daemon, "flows"), [16, 48]);
    let metrics = daemon.metrics();
    let line = r#"weir_target_flows{group="lb/h3",target="b1"} 16"#;
    assert!(metrics.contains(line), "no {line} in {metrics}");
    // A client that moves from address to address, with a connection ID of the first back end.
    let moves: Vec<String> = (0..20).map(|host| format!("{QUIC} src=198.51.100.{host} sport=99")).collect();
    daemon.receive(&moves.iter().map(String::as_str).collect::<Vec<_>>());
    daemon.wait_for("20 packets", |daemon| shown(daemon, "packets") == [36, 48]);
    assert_eq!(shown(&daemon, "flows"), [16, 48], "they are no flows");
    let explained = |packet: &str| {
        let json = daemon.weir(&["explain", "--live", "--packet", packet, "--json"]).good().json();
        assert_eq!(json["agrees"], true, "{json}");
        json["text"].as_str().unwrap().to_string()
    };
    assert!(explained(&format!("{SYN} sport=9000")).contains("the fewest flows for its weight"));
    assert!(
        explained(&format!("{QUIC} src=203.0.113.1 sport=9")).contains("server ID 01 of group lb/h3 -> b1")
    );
    // A reload recounts the flows, and existing ones continue.
    daemon.weir(&["reload"]).good();
    daemon.wait_for("the flows", |daemon| shown(daemon, "flows") == [16, 48]);
    assert_eq!(shown(&daemon, "flows_begun"), [16, 48]);
    daemon.receive(&[&format!("{SYN} sport=5000")]);
    daemon.wait_for("one more", |daemon| {
        shown(daemon, "flows_begun").iter().filter_map(Value::as_u64).sum::<u64>() == 65
    });
}

#[test]
fn what_cannot_be_chosen_by_has_a_line_and_a_caret() {
    let folder = Folder::new();
    let all = |text: &str| SERVICE.replacen("      scheduler: least_connections\n", text, 1);
    let quic = "{ id: 2, server_id_length: 1, nonce_length: 4 }";
    let with = |text: &str| SERVICE.replacen(quic, text, 1);
    for (config, under, why) in [
        (
            all("      scheduler: round_robin\n      stateless: true\n"),
            "round_robin",
            "with `stateless` none are kept",
        ),
        (all("      scheduler: round_robin\n      by: source\n"), "round_robin", "with `by` none are kept"),
        (all("      scheduler: least\n"), "least", "`scheduler` cannot be `least`"),
        (with("{ id: 7, server_id_length: 1, nonce_length: 4 }"), "7", "0"),
        (with("{ id: 1, server_id_length: 1, nonce_length: 3 }"), "3", "4"),
        (with("{ id: 1, server_id_length: 15, nonce_length: 5 }"), "{ id: 1", "at most 19"),
        (with("{ id: 1, server_id_length: 1 }"), "{ id: 1", "`nonce_length` is missing"),
        (with("{ id: 1, server_id_length: 1, nonce_length: 4, key: 00 }"), "00 }", "32 hexadecimal digits"),
        (with(&format!("{quic}, {quic}")), "{ id: 2, server_id_length: 1, nonce_length: 4 }]", "number 2"),
        (with("{ id: 2, server_id_length: 2, nonce_length: 4 }"), "b1", "1 octets, but configuration 2"),
        (SERVICE.replacen("server_id: 02", "server_id: 01", 1), "b2", "the same `server_id`"),
        (SERVICE.replacen("server_id: 02", "server_id: 0x2", 1), "0x2", "hexadecimal digits"),
        (SERVICE.replacen(", server_id: 02", "", 1), "b2", "needs a `server_id`"),
        (SERVICE.replacen("protocol: both", "protocol: tcp", 1), "h3", "`quic` is for UDP"),
    ] {
        folder.write("lb.yaml", &config);
        let said = weir(folder.path(), &["check", "lb.yaml"]);
        assert_eq!(said.code, Some(2), "{why}: {}", said.err);
        let lines: Vec<&str> = said.err.lines().collect();
        let at = lines.iter().position(|line| line.contains("error: ") && line.contains(why));
        let at = at.unwrap_or_else(|| panic!("no `{why}` in {}", said.err));
        let (text, caret) = (lines[at + 1], lines[at + 2]);
        assert_eq!(caret.find('^'), text.find(under), "{why}: {}", said.err);
    }
}

const TUNNELS: &str = "\
ports:
  p0: { pcap: {}, mac: 02:00:00:00:00:01 }
apps:
  - lb:
      name: web
      port: p0
      service: { vip: 10.0.0.80, protocol: tcp, port: 443 }
      source: 198.51.100.1
      mtu: 1500
      mss: auto
      announce: arp
      icmp_echo: answer
      back_ends:
        - name: b1
          mac: 02:00:00:00:00:11
          mode: vxlan
          ip: 198.51.100.11
          vni: 7
          inner_mac: 02:00:00:00:01:11
        - { name: b2, mac: 02:00:00:00:00:12, vlan: 12 }
";

/// Limits of packets, who answers for VIPs, and where back ends are.
#[test]
fn values_that_cannot_be_have_a_line_and_a_caret() {
    let folder = Folder::new();
    folder.write("lb.yaml", TUNNELS);
    weir(folder.path(), &["check", "lb.yaml"]).good();
    for (from, to, under, why) in [
        ("mtu: 1500", "mtu: 575", "575", "576"),
        ("mtu: 1500", "mtu: 65536", "65536", "65535"),
        ("mtu: 1500", "mtu: auto", "auto", "`mtu` must be a whole number from 576 to 65535"),
        ("mtu: 1500", "mtu: [1500]", "[1500]", "expected `mtu`, found a list"),
        ("mss: auto", "mss: 535", "535", "536"),
        ("mss: auto", "mss: 65536", "65536", "65535"),
        ("mss: auto", "mss: max", "max", "`mss`, if it is not `auto`"),
        ("announce: arp", "announce: ndp", "ndp", "`announce` cannot be `ndp`"),
        ("icmp_echo: answer", "icmp_echo: drop", "drop", "`icmp_echo` cannot be `drop`"),
        ("vlan: 12", "vlan: 4095", "4095", "4094"),
        ("vni: 7", "vni: 16777216", "16777216", "16777215"),
        ("inner_mac: 02:00:00:00:01:11", "inner_mac: 2:0", "2:0", "MAC address"),
        ("source: 198.51.100.1", "source: 198.51.100", "198.51.100", "write an IPv4 address"),
        ("source: 198.51.100.1", "source: 198.51.100.1/24", "198.51.100.1/24", "bits outside the mask /24"),
        (
            "announce: arp",
            "announce: arp\n      announce_vlans: [7, 4095]",
            "4095",
            "a VLAN must be a whole number from 0 to 4094",
        ),
        ("announce: arp", "announce: none\n      announce_vlans: 77", "77", "announces nothing"),
        ("source: 198.51.100.1", "source: 0.0.0.0/0", "0.0.0.0/0", "write a prefix from /8 to /30"),
        ("mac: 02:00:00:00:00:12, vlan: 12", "ip: 10.0.0.12, gateway: p0", "p0", "IP address"),
        (
            "mac: 02:00:00:00:00:12, vlan: 12",
            "ip: 10.0.0.12, vlan: 12",
            "b2",
            "has a `vlan`, so it needs \
            `mac`",
        ),
    ] {
        assert!(TUNNELS.contains(from), "{from}");
        folder.write("lb.yaml", TUNNELS.replacen(from, to, 1));
        let said = weir(folder.path(), &["check", "lb.yaml"]);
        assert_eq!(said.code, Some(2), "{to}: {}", said.err);
        let lines: Vec<&str> = said.err.lines().collect();
        let at = lines.iter().position(|line| line.contains("error: ") && line.contains(why));
        let at = at.unwrap_or_else(|| panic!("no `{why}` in {}", said.err));
        let (text, caret) = (lines[at + 1], lines[at + 2]);
        assert_eq!(caret.find('^'), text.find(under), "{to}: {}", said.err);
    }
}

/// Through VXLAN over IPv4, which adds 50 bytes.
#[test]
fn a_way_too_narrow_for_ipv6_is_warned_of() {
    let folder = Folder::new();
    let check = |vip: &str, mtu: &str| {
        folder.write("lb.yaml", TUNNELS.replacen("10.0.0.80", vip, 1).replacen("mtu: 1500", mtu, 1));
        let said = weir(folder.path(), &["check", "lb.yaml"]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        said.err
    };
    let said = check("\"2001:db8::80\"", "mtu: 1329");
    let lines: Vec<&str> = said.lines().collect();
    let at = lines.iter().position(|line| line.contains("warning: IPv6 packets to back end `b1`"));
    let at = at.unwrap_or_else(|| panic!("{said}"));
    assert!(lines[at].contains("1279 bytes") && lines[at].contains("an MTU of 1330"), "{said}");
    assert_eq!(lines[at + 2].find('^'), lines[at + 1].find("1329"), "{said}");
    for (vip, mtu) in [("\"2001:db8::80\"", "mtu: 1330"), ("10.0.0.80", "mtu: 576")] {
        assert!(!check(vip, mtu).contains("IPv6 packets"), "{vip} {mtu}");
    }
}

/// The address that clients use, the mode of the back end, and its port.
type Translated<'a> = (&'a str, &'a str, &'a str);

/// Services with back ends that get translated packets.
fn translated(services: &[Translated<'_>]) -> String {
    let one = |(at, (to, mode, port)): (usize, &Translated<'_>)| {
        let pool = if *mode == "full_nat" { "      nat_pool: pool\n" } else { "" };
        format!(
            "  - lb:\n      name: s{at}\n      port: p0\n{pool}      service: {to}\n      \
             back_ends: [{{ name: b1, mac: 02:00:00:00:00:11, mode: {mode}, ip: 198.51.100.1{port} }}]\n"
        )
    };
    let services: String = services.iter().enumerate().map(one).collect();
    format!(
        "ports: {{ p0: {{ mem: ~, mac: 02:00:00:00:00:01 }} }}\n\
         nat_pools: {{ pool: {{ addresses: 203.0.113.0/24 }} }}\napps:\n{services}"
    )
}

#[test]
fn services_that_share_an_address_and_port_of_a_back_end_are_warned_of() {
    let folder = Folder::new();
    let web = |port: &str| format!("{{ vip: 10.0.0.80, protocol: tcp, port: {port} }}");
    let (web80, web81) = (web("80"), web("81"));
    let other = "{ vip: 10.0.0.81, protocol: tcp, port: 80 }";
    let udp = "{ vip: 10.0.0.81, protocol: udp, port: 80 }";
    let range = "{ vip: 10.0.0.81, protocol: tcp, port: 79-81 }";
    let both = "[{ vip: 10.0.0.80, protocol: tcp, port: 80 }, { vip: 10.0.0.80, protocol: tcp, port: 81 }]";
    let to8080 = ", port: 8080";
    // Services, and the warning.
    let cases: [(&[Translated<'_>], Option<&str>); 8] = [
        (
            &[(&web80, "nat", ""), (other, "nat", "")],
            Some("`s0` and `s1` both lead to 198.51.100.1 port 80:"),
        ),
        (
            &[(&web80, "nat", to8080), (&web81, "nat", to8080)],
            Some("`s0` and `s1` both lead to 198.51.100.1 port 8080:"),
        ),
        (
            &[(&web80, "nat", ""), (range, "nat", "")],
            Some("`s0` and `s1` both lead to 198.51.100.1 port 80:"),
        ),
        (&[(both, "nat", to8080)], Some("two addresses of `s0` lead to 198.51.100.1 port 8080:")),
        (&[(both, "nat", "")], None),
        (&[(&web80, "nat", ""), (udp, "nat", "")], None),
        (&[(&web80, "nat", ""), (other, "nat", ", port: 81")], None),
        (&[(&web80, "full_nat", ""), (other, "full_nat", "")], None),
    ];
    for (services, wanted) in cases {
        folder.write("lb.yaml", translated(services));
        let said = weir(folder.path(), &["check", "lb.yaml"]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        match wanted {
            Some(wanted) => assert!(said.err.contains(wanted), "{wanted}: {}", said.err),
            None => assert!(!said.err.contains("answers_taken"), "{services:?}: {}", said.err),
        }
    }
}

#[test]
fn what_is_repeated_and_what_is_refused_is_counted() {
    let mut daemon = Daemon::start(SERVICE);
    let sum = |daemon: &Daemon, column: &str| {
        shown(daemon, column).iter().map(|count| count.as_u64().unwrap_or(0)).sum::<u64>()
    };
    let one = format!("{SYN} sport=4000");
    let established = format!("{SYN} sport=4001");
    daemon.receive(&[&one, &one, &one, &established, &format!("{established} flags=A"), &established]);
    daemon.wait_for("two repetitions", |daemon| sum(daemon, "syns_repeated") == 2);
    assert_eq!((sum(&daemon, "flows_begun"), shown(&daemon, "refused")), (2, vec![0.into(), 0.into()]));
    // No back end is left; every attempt of a client counts, and it is the service that refuses.
    for back_end in ["b1", "b2"] {
        daemon.weir(&["lb", "maintenance", "h3", back_end]).good();
    }
    daemon.receive(&[&one, &format!("{SYN} sport=4002")]);
    daemon.wait_for("two refused", |daemon| shown(daemon, "refused") == [2, 2]);
    daemon.weir(&["reload"]).good();
    daemon.receive(&[&one]);
    daemon.wait_for("one more", |daemon| shown(daemon, "refused") == [3, 3]);
    assert_eq!(sum(&daemon, "syns_repeated"), 2, "it continues after a reload");
    let metrics = daemon.metrics();
    assert!(metrics.contains("weir_group_refused_total{group=\"lb/h3\"} 3"), "{metrics}");
    assert!(metrics.contains("weir_target_syns_repeated_total{group=\"lb/h3\",target=\"b1\"}"), "{metrics}");
}

/// Connections alternate between the back ends; those of one are retransmitted, as if it were gone.
#[test]
fn a_back_end_that_leaves_syns_unanswered_gets_no_new_flows() {
    let config = SERVICE.replace("least_connections", "round_robin").replace(", weight: 3", "");
    let passive = "      passive: { unanswered: 5, within: 2s, for: 1h }\n      back_ends:";
    let mut daemon = Daemon::start(&config.replace("      back_ends:", passive));
    let syns: Vec<String> = (0..20).map(|port| format!("{SYN} sport={}", 4000 + port)).collect();
    let all: Vec<&str> = syns.iter().map(String::as_str).collect();
    daemon.receive(&all);
    daemon.wait_for("20 flows", |daemon| shown(daemon, "flows_begun") == [10, 10]);
    let silent: Vec<&str> = all.iter().step_by(2).copied().collect();
    daemon.receive(&silent);
    let states = |daemon: &Daemon| shown(daemon, "health").iter().filter(|one| **one == "suspect").count();
    daemon.wait_for("a suspect", |daemon| states(daemon) == 1);
    let place = shown(&daemon, "health").iter().position(|one| one == "suspect").unwrap();
    assert_eq!(shown(&daemon, "syns_repeated")[place], 10, "it is the one without answers");
    let reason = shown(&daemon, "reason")[place].to_string();
    assert!(reason.contains("10 of 10 new flows within 2000 ms got no answer"), "{reason}");
    daemon.wait_for_log(" of h3 gets no new flows: 10 of 10");
    let more: Vec<String> = (0..10).map(|port| format!("{SYN} sport={}", 5000 + port)).collect();
    daemon.receive(&more.iter().map(String::as_str).collect::<Vec<_>>());
    let mut wanted = vec![Value::from(20); 2];
    wanted[place] = 10.into();
    daemon.wait_for("10 more flows of the other", |daemon| shown(daemon, "flows_begun") == wanted);
}
