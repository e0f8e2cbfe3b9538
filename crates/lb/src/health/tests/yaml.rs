//! `check`, `address` and `fail` as written in the configuration.

use crate::health::{CHECK, Fail, Health, read};
use crate::{Address, BackEnd, By, Mode, Service};
use std::net::IpAddr;
use std::sync::Arc;
use weir_app::check::{Ask, Request};
use weir_config::{Report, raw};

fn service(back_ends: &[&str]) -> Service {
    let one = |name: &&str| BackEnd::new(*name, [2, 0, 0, 0, 0, 1]);
    let vip = "10.0.0.80".parse().unwrap();
    let address = Address { vip, prefix: 32, protocol: 6, ports: (80, 80) };
    Service::new("web", address, back_ends.iter().map(one).collect())
}

/// Reads a service with two back ends.
fn health(common: &str, of_b1: &str) -> (Health, Report) {
    let b1 = format!("{{ name: b1, address: 10.0.0.1{of_b1} }}");
    let text = format!("{common}\nback_ends:\n  - {b1}\n  - {{ name: b2, address: 10.0.0.2 }}\n");
    let mut report = Report::new("weir.yaml", text.clone());
    let node = raw::parse(&text, &mut report).unwrap();
    let health = read(&[(&node, service(&["b1", "b2"]))], &[], &mut report);
    (health, report)
}

fn good(common: &str, of_b1: &str) -> Health {
    let (health, report) = health(common, of_b1);
    assert_eq!(report.errors(), 0, "{report}");
    health
}

#[test]
fn a_service_without_checks_has_none() {
    let health = good("fail: drop", "");
    assert_eq!(health.services[0].fail, Fail::Drop);
    assert!(health.services[0].back_ends.iter().all(|(.., watch)| watch.is_none()));
}

#[test]
fn defaults_are_those_of_the_table() {
    let health = good("check: { type: tcp }", "");
    let watch = health.services[0].back_ends[0].2.clone().unwrap();
    assert_eq!((watch.check.address, watch.check.port), ("10.0.0.1".parse::<IpAddr>().unwrap(), 80));
    assert_eq!((watch.check.timeout_ns, watch.times.interval_ns), (500_000_000, 1_000_000_000));
    assert_eq!((watch.times.rise, watch.times.fall, watch.times.jitter), (2, 3, 100));
    let default = |word| CHECK.iter().find(|key| key.word == word).unwrap().default;
    assert_eq!(
        (default("jitter"), default("status"), default("path")),
        (Some("10%"), Some("200-399"), Some("/"))
    );
}

#[test]
fn a_back_end_overrides_keys_of_its_service() {
    let common =
        "check: { type: http, path: /health, status: 200-299, body: fine, interval: 2s, port: 8080 }";
    let health = good(common, ", check: { port: 81, status: 204 }");
    let [one, two] = [0, 1].map(|at| health.services[0].back_ends[at].2.clone().unwrap());
    let request = |status| {
        let body = Some("fine".to_string());
        Ask::Http(Request { tls: false, path: "/health".to_string(), host: None, status, body })
    };
    assert_eq!((one.check.port, &one.check.ask), (81, &request([204, 204])));
    assert_eq!((two.check.port, &two.check.ask), (8080, &request([200, 299])));
    assert_eq!(one.times.interval_ns, 2_000_000_000);
    let health = good(common, ", check: { type: tcp }");
    assert_eq!(
        health.services[0].back_ends[0].2.clone().unwrap().check.ask,
        Ask::Tcp,
        "without keys of http"
    );
    let health = good(common, ", check: { type: none }");
    assert!(health.services[0].back_ends[0].2.is_none());
}

#[test]
fn the_port_to_which_packets_are_translated_is_checked() {
    let ports = |text: &str| {
        let mut service = service(&["b1", "b2", "b3"]);
        let ip = "10.0.0.1".parse().unwrap();
        let all: &mut [BackEnd] = Arc::make_mut(&mut service.back_ends);
        all[0].mode = Mode::Nat { ip, port: Some(8080) };
        all[1].mode = Mode::FullNat { ip, port: Some(8081) };
        all[2].mode = Mode::Nat { ip, port: None };
        let one = |at: usize| format!("  - {{ name: b{at}, ip: 10.0.0.1 }}\n");
        let text = format!("{text}\nback_ends:\n{}{}{}", one(1), one(2), one(3));
        let mut report = Report::new("weir.yaml", text.clone());
        let node = raw::parse(&text, &mut report).unwrap();
        let health = read(&[(&node, service)], &[], &mut report);
        assert_eq!(report.errors(), 0, "{report}");
        [0, 1, 2].map(|at| health.services[0].back_ends[at].2.as_ref().unwrap().check.port)
    };
    assert_eq!(ports("check: { type: tcp }"), [8080, 8081, 80]);
    assert_eq!(ports("check: { type: tcp, port: 9000 }"), [9000; 3]);
}

#[test]
fn passive_checks_need_flows_of_tcp() {
    let passive = good("passive: {}", "").services[0].passive.unwrap();
    assert_eq!((passive.unanswered, passive.share), (5, 500));
    assert_eq!((passive.within_ns, passive.for_ns), (2_000_000_000, 10_000_000_000));
    assert_eq!(good("fail: drop", "").services[0].passive, None);
    let refused = |service: Service| {
        let text = "passive: {}\nback_ends: [{ name: b1 }]\n";
        let mut report = Report::new("weir.yaml", text);
        let node = raw::parse(text, &mut report).unwrap();
        let _ = read(&[(&node, service)], &[], &mut report);
        assert_eq!(report.errors(), 1, "{report}");
        report.to_string()
    };
    let wanted = "a service that keeps no flows cannot know which SYNs stay unanswered";
    assert!(refused(Service { stateless: true, ..service(&["b1"]) }).contains(wanted));
    assert!(refused(Service { by: By::Source, ..service(&["b1"]) }).contains(wanted));
    let mut udp = service(&["b1"]);
    udp.addresses[0].protocol = 17;
    assert!(refused(udp).contains("`passive` counts TCP SYNs, but this service has no TCP"));
}

#[test]
fn every_type_is_read() {
    let ask = |check: &str| {
        good(&format!("check: {{ {check} }}"), "").services[0].back_ends[0]
            .2
            .clone()
            .unwrap()
            .check
            .ask
            .clone()
    };
    assert_eq!(ask("type: icmp"), Ask::Icmp);
    assert_eq!(ask("type: dns, name: example.org."), Ask::Dns("example.org".to_string(), Some(0)));
    assert_eq!(ask("type: dns, name: ., rcode: any"), Ask::Dns(String::new(), None));
    assert_eq!(ask("type: udp, payload: 0x00ff, expect: pong"), Ask::Udp(vec![0, 255], b"pong".to_vec()));
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let refused = |common: &str, of_b1: &str| {
        let (_, report) = health(common, of_b1);
        assert_eq!(report.errors(), 1, "{common}: {report}");
        report.to_string()
    };
    for (common, part) in [
        ("check: { port: 80 }", "`type` is missing"),
        ("check: { type: tpc }", "did you mean `tcp`"),
        ("check: { type: tcp, path: / }", "`path` is for checks of type http and https, not tcp"),
        ("check: { type: http, path: x }", "a path begins with `/`"),
        ("check: { type: http, status: 99 }", "a status is from 100 to 599"),
        ("check: { type: http, status: 300-200 }", "a status is from 100 to 599"),
        ("check: { type: http, host: 'a b' }", "a host is a name"),
        ("check: { type: dns }", "`name` is missing"),
        ("check: { type: dns, name: a..b }", "is not a domain name"),
        ("check: { type: udp }", "`payload` is missing"),
        ("check: { type: udp, payload: 0x1 }", "pairs of hexadecimal digits"),
        ("check: { type: tcp, interval: 1ms }", "`interval` is from 10ms to 1h"),
        ("check: { type: tcp, timeout: never }", "`timeout` is from 1ms to 60s"),
        ("check: { type: tcp, rise: 0 }", "`rise` must be a whole number from 1 to 100"),
        ("check: { type: tcp, jitter: 60% }", "between 0 and 50%"),
        ("check: { type: tcp, speed: 3 }", "there is no key `speed`"),
        ("fail: open", "`fail` cannot be `open`"),
        ("passive: { unanswered: 1 }", "`unanswered` must be a whole number from 2 to"),
        ("passive: { share: 0 }", "`share` is between 1% and 100%"),
        ("passive: { within: 1ms }", "`within` is from 100ms to 60s"),
        ("passive: { for: never }", "`for` is from 1s to 1h"),
        ("passive: { resets: 3 }", "there is no key `resets`"),
    ] {
        let said = refused(common, "");
        assert!(said.contains(part), "{common}: {said}");
    }
    assert!(refused("check: { type: tcp }", ", check: { path: / }").contains("`path` is for checks"));
    assert!(refused("", ", check: { port: 5 }").contains("`type` is missing"));
}

#[test]
fn a_check_needs_an_address() {
    let text = "check: { type: tcp }\nback_ends: [{ name: b1 }]\n";
    let mut report = Report::new("weir.yaml", text);
    let node = raw::parse(text, &mut report).unwrap();
    let _ = read(&[(&node, service(&["b1"]))], &[], &mut report);
    assert!(report.to_string().contains("a back end that is checked needs an `address`"), "{report}");
    let text = "check: { type: tcp }\nback_ends: [{ name: b1, address: 0.0.0.0 }]\n";
    let mut report = Report::new("weir.yaml", text);
    let node = raw::parse(text, &mut report).unwrap();
    let _ = read(&[(&node, service(&["b1"]))], &[], &mut report);
    assert!(report.to_string().contains("0.0.0.0 is not a server address"), "{report}");
}

#[test]
fn weights_leave_room_to_rise() {
    let mut report = Report::default();
    let text = "check: { type: tcp, slow_start: 10s }\nback_ends: [{ name: b1, address: 10.0.0.1 }]\n";
    let node = raw::parse(text, &mut report).unwrap();
    let mut heavy = service(&["b1"]);
    Arc::make_mut(&mut heavy.back_ends)[0].weight = 6554;
    let _ = read(&[(&node, heavy)], &[], &mut report);
    assert_eq!(report.errors(), 1, "{report}");
    let bits = Service { by: By::SourceBits(1), ..service(&["b1"]) };
    let mut report = Report::default();
    let _ = read(&[(&node, bits)], &[], &mut report);
    assert!(report.to_string().contains("no weights that checks could change"), "{report}");
}

#[test]
fn a_check_can_go_the_services_own_way() {
    let health = good("check: { type: tcp, via: service, from: [10.0.0.9, \"2001:db8::9\"] }", "");
    let check = health.services[0].back_ends[0].2.clone().unwrap().check;
    let vip: IpAddr = "10.0.0.80".parse().unwrap();
    let via = check.via.clone().unwrap();
    assert_eq!((check.address, check.port), (vip, 80), "not the back end's address");
    assert_eq!((&*via.service, &*via.back_end), ("web", "b1"));
    assert_eq!(via.ways, [("10.0.0.9".parse().unwrap(), vip)], "the service has no VIP of IPv6");
    let other = health.services[0].back_ends[1].2.clone().unwrap().check;
    assert_ne!(check, other, "back ends are checked apart, though the VIP is the same");
    // A back end's own setting takes precedence.
    let health = good("check: { type: tcp, via: service, from: 10.0.0.9 }", ", check: { via: address }");
    let check = health.services[0].back_ends[0].2.clone().unwrap().check;
    assert_eq!((check.address, &check.via), ("10.0.0.1".parse::<IpAddr>().unwrap(), &None));
}

#[test]
fn what_is_wrong_with_the_way_is_said() {
    let wrong = |check: &str| {
        let (_, report) = health(&format!("check: {{ type: tcp, {check} }}"), "");
        assert_ne!(report.errors(), 0, "{check}");
        report.to_string()
    };
    for (check, why) in [
        ("via: service", "`via: service` needs an address that answers are sent to"),
        ("from: 10.0.0.9", "`from` is for checks that take the service's own path"),
        ("via: service, from: 224.0.0.9", "224.0.0.9 is not a host address"),
        ("via: service, from: [10.0.0.9, 10.0.0.8]", "write at most one source address per IP version"),
        ("via: service, from: \"2001:db8::9\"", "service `web` has no VIP of the same IP version as `from`"),
        ("via: tunnel", "`via`"),
    ] {
        let said = wrong(check);
        assert!(said.contains(why), "{check}: {said}");
    }
}

#[test]
fn translated_packets_have_the_back_ends_address_already() {
    let ip = "10.0.0.1".parse().unwrap();
    let plain = service(&["b1"]);
    let back_ends = plain.back_ends.iter().cloned();
    let back_ends = back_ends.map(|one| BackEnd { mode: Mode::Nat { ip, port: None }, ..one }).collect();
    let text =
        "check: { type: tcp, via: service, from: 10.0.0.9 }\nback_ends: [{ name: b1, ip: 10.0.0.1 }]\n";
    let mut report = Report::new("weir.yaml", text.to_string());
    let node = raw::parse(text, &mut report).unwrap();
    let health = read(&[(&node, Service { back_ends, ..plain.clone() })], &[], &mut report);
    assert_eq!(report.errors(), 0, "{report}");
    let check = health.services[0].back_ends[0].2.clone().unwrap().check;
    assert_eq!((check.address, &check.via), (ip, &None));
}
