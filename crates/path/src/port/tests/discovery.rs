//! Which paths the app finds in simulated fabrics, and how it uses them.

use super::rig::*;
use crate::port::PathPort;
use crate::scheme::Scheme;
use crate::{Between, Claim, Exchange, Form, text};
use serde_json::Value;
use std::collections::BTreeSet;
use weir_app::{App, SampleValue};

/// The links of the paths shown, in the order of the paths.
fn links(rig: &mut TunnelRig) -> Vec<usize> {
    let shown = rig.show();
    let paths = shown["nodes"][0]["paths"].as_array().expect("paths").clone();
    let port = |path: &Value| path["port"].as_u64().expect("a port") as u16;
    for path in &paths {
        let (link, spare) = (rig.link_of(port(path)), path["spare"].as_u64());
        assert_eq!(path["hops"], serde_json::json!(["10.8.0.1", format!("10.9.{link}.2")]));
        assert!(spare.is_none_or(|spare| rig.link_of(spare as u16) == link), "{path}");
    }
    paths.iter().map(|path| rig.link_of(port(path))).collect()
}

#[test]
fn exactly_the_paths_of_a_fabric_are_found_and_used() {
    for spines in [2, 3, 4, 7, 8, 12, 16] {
        let mut rig = TunnelRig::spines(spines);
        let early: Vec<u16> = (0..64).map(|flow| rig.send(flow)).collect();
        assert!(early.iter().all(|port| *port >= 49_152), "traffic does not wait for discovery");
        rig.run_with(64, 3 * SEC);
        let mut found = links(&mut rig);
        found.sort_unstable();
        assert_eq!(found, (0..spines).collect::<Vec<_>>(), "{:?}", rig.said);
        assert!(rig.count("expired") > 0 && rig.refused.is_empty(), "{:?}", rig.refused);
        let now: Vec<u16> = (0..200).map(|flow| rig.send(flow)).collect();
        let now: BTreeSet<usize> = now.into_iter().map(|port| rig.link_of(port)).collect();
        assert_eq!(now.len(), spines, "all are used");
        assert_eq!(rig.states(), vec!["good"; spines]);
    }
}

#[test]
fn a_single_path_may_hide_links_so_flows_stay_spread_until_others_are_found() {
    let mut rig = TunnelRig::spines(1);
    for _ in 0..2 {
        rig.run_with(64, 8 * SEC);
        let state = rig.show()["nodes"][0]["state"].as_str().unwrap_or_default().to_string();
        assert!(state.starts_with("one path, so traffic uses ECMP"), "{state}");
        assert!(state.ends_with("; 16 of 16 ports answer"), "{state}");
        let used: BTreeSet<u16> = (0..200).map(|flow| rig.send(flow)).collect();
        assert_eq!(used.len(), 16);
        rig.links = vec![rig.links[0]; 4];
        rig.run_with(64, 8 * SEC);
        let mut found = links(&mut rig);
        found.sort_unstable();
        assert_eq!((found, rig.refused.len()), (vec![0, 1, 2, 3], 0), "{:?} {:?}", rig.said, rig.refused);
        rig.links.truncate(1);
    }
}

#[test]
fn a_fabric_that_changes_is_followed() {
    let mut rig = TunnelRig::spines(8);
    rig.run_with(64, 3 * SEC);
    let before = links(&mut rig);
    let ports: Vec<u16> = (0..64).map(|flow| rig.send(flow)).collect();
    rig.run_with(64, 6 * SEC);
    assert_eq!(links(&mut rig), before, "surveying the same fabric again changes no path");
    let same = (0..64).filter(|flow| rig.send(*flow) == ports[*flow as usize]).count();
    assert_eq!(same, 64, "and no flow");
    rig.links.truncate(4);
    rig.run_with(64, 8 * SEC);
    let mut found = links(&mut rig);
    found.sort_unstable();
    assert_eq!(found, [0, 1, 2, 3], "{:?}", rig.said);
    assert!(rig.refused.is_empty(), "{:?}", rig.refused);
    for flow in 0..64 {
        let port = rig.send(flow);
        assert!(rig.app.nodes[0].paths.all().iter().any(|path| path.ports().main == port));
    }
}

#[test]
fn a_cut_link_of_a_discovered_fabric_is_left_within_50_ms() {
    let mut rig = TunnelRig::spines(4);
    rig.run_with(64, 3 * SEC);
    rig.links[2].is_cut = true;
    let cut_ns = rig.now_ns;
    rig.run_with(64, 200 * MS);
    let last = rig.sent.iter().rfind(|one| rig.link_of(one.port) == 2).expect("it was used");
    assert!(last.at_ns < cut_ns + 50 * MS, "{} ms", (last.at_ns - cut_ns) / MS);
}

#[test]
fn where_routers_are_silent_ports_are_taken_for_paths() {
    let mut rig = TunnelRig::spines(4);
    rig.is_silent = true;
    rig.run_with(64, 6 * SEC);
    let state = rig.show()["nodes"][0]["state"].as_str().unwrap_or_default().to_string();
    assert_eq!(
        state,
        "routers do not identify themselves: 16 ports are assumed to be paths; 16 of 16 paths \
        answer"
    );
    assert!(rig.refused.is_empty() && rig.count("expired") == 0);
}

#[test]
fn a_node_without_a_reflector_is_said_once_and_traffic_is_spread() {
    let mut rig = TunnelRig::spines(4);
    rig.answers = false;
    rig.run_with(64, 20 * SEC);
    let about = rig.said.iter().filter(|line| line.contains("no answer to probes")).count();
    assert_eq!(about, 1, "{:?}", rig.said);
    let used: BTreeSet<u16> = (0..200).map(|flow| rig.send(flow)).collect();
    assert_eq!(used.len(), 16);
}

#[test]
fn the_form_at_an_uplink_and_this_one_have_the_same_port_for_the_same_path() {
    let exchange = Exchange::default();
    let uplink = exchange.join(Form::Uplink);
    let between = Between { local: LOCAL.into(), peer: REMOTE.into(), tunnel_port: 4789 };
    let mut rig = TunnelRig::sharing(discovering(), &exchange);
    (rig.hashes, rig.links) = (true, vec![rig.links[0]; 8]);
    rig.run_with(64, 3 * SEC);
    let Claim::Other(Some(shared)) = uplink.claim(between) else { panic!("this node has discovered") };
    let ports =
        |rig: &TunnelRig| rig.app.nodes[0].paths.all().iter().map(|path| path.ports()).collect::<Vec<_>>();
    let found: Vec<_> = shared.known.all().iter().map(|found| found.ports).collect();
    assert_eq!((ports(&rig), found.len()), (found, 8));

    // In the other direction, the app at the uplink discovers the paths, and this one adopts them.
    let exchange = Exchange::default();
    let uplink = exchange.join(Form::Uplink);
    assert_eq!(uplink.claim(between), Claim::Own);
    let mut rig = TunnelRig::sharing(discovering(), &exchange);
    (rig.hashes, rig.links) = (true, vec![rig.links[0]; 8]);
    rig.run_with(64, SEC);
    assert_eq!(rig.count("expired"), 0, "it does not survey");
    uplink.publish(between, shared.clone());
    rig.run_with(64, 3 * SEC);
    let found: Vec<_> = shared.known.all().iter().map(|found| found.ports).collect();
    assert_eq!((ports(&rig), rig.count("expired")), (found.clone(), 0));
    // Both forms place frames by these; for the form at an uplink, a test of crate bpf shows it.
    let offers = rig.app.nodes[0].paths.offers();
    for flow in 0..64 {
        let port = rig.send(flow);
        assert!(offers.iter().any(|offer| offer.port == port && offer.weight > 0), "{port}");
    }
    drop(uplink);
    rig.run_with(64, 3 * SEC);
    assert!(rig.count("expired") > 0, "it discovers when no other node does");
    assert_eq!(ports(&rig), found, "and keeps what it had");
}

#[test]
fn flows_and_series_are_shown() {
    let mut rig = TunnelRig::spines(4);
    rig.run_with(40, 3 * SEC);
    let answer = rig.ask("conntrack");
    assert_eq!(answer["count"], 40);
    for flow in answer["flows"].as_array().expect("flows") {
        let (path, port) = (flow["path"].as_u64().unwrap(), flow["port"].as_u64().unwrap());
        assert_eq!(u64::from(rig.app.nodes[0].paths.all()[path as usize].ports().main), port);
        assert_eq!((&flow["peer"], &flow["vni"]), (&"10.0.0.2".into(), &42.into()));
        assert!(flow["packets"].as_u64() > Some(2000), "{flow}");
    }
    let text = (crate::KIND.verbs[0].text)(&answer, &[]);
    assert!(text.contains(":53 protocol 17 by 10.0.0.2) => path") && text.ends_with("40 flows\n"), "{text}");
    let number = rig.send(3);
    let shown = answer["flows"].as_array().unwrap().iter().filter(|flow| flow["port"] == number);
    assert!(shown.count() > 0);

    let samples = rig.app.samples();
    assert_eq!(samples.len(), 4 * 9);
    let bytes = samples.iter().filter(|one| one.name == "path_bytes").map(|one| match one.value {
        SampleValue::Count(bytes) => bytes,
        SampleValue::Gauge(_) => panic!("a counter"),
    });
    assert!(bytes.sum::<u64>() > 40 * 2000 * 100);
    let text = text::show(&rig.show());
    assert!(text.contains("4 paths; 4 of 4 paths answer") && text.contains("10.8.0.1 10.9."), "{text}");
}

#[test]
fn more_flows_than_a_page_has_are_listed_page_by_page() {
    const FLOWS: u32 = 5000;
    let mut rig = TunnelRig::spines(4);
    rig.run_with(1, SEC);
    (0..FLOWS).for_each(|flow| _ = rig.send(flow));
    let (mut listed, mut pages, mut request) = (Vec::new(), 0, "conntrack".to_string());
    loop {
        let answer = rig.ask(&request);
        let rows = answer["flows"].as_array().expect("flows");
        assert!(rows.len() <= 2048 && answer["count"] == rows.len(), "{}", answer["count"]);
        listed.extend(rows.iter().map(|flow| format!("{} {}", flow["destination"], flow["sport"])));
        pages += 1;
        let Some(next) = answer["next"].as_u64() else { break };
        request = format!("conntrack from {next}");
    }
    assert!(pages > 2, "{pages} pages");
    assert_eq!(listed.len(), FLOWS as usize);
    assert_eq!(listed.iter().collect::<BTreeSet<_>>().len(), listed.len(), "each is listed once");
}

#[test]
fn a_reload_keeps_what_was_discovered() {
    let mut rig = TunnelRig::spines(4);
    rig.run_with(64, 3 * SEC);
    let (before, found) = ((0..64).map(|flow| rig.send(flow)).collect::<Vec<_>>(), links(&mut rig));
    let mut new = discovering();
    let other = new.peers[0];
    new.peers.insert(0, crate::port::Peer { address: [10, 0, 0, 9].into(), ..other });
    rig.reload(new);
    let after: Vec<u16> = (0..64).map(|flow| rig.send(flow)).collect();
    assert_eq!((before, rig.refused.len()), (after, 0), "{:?}", rig.refused);
    let flows = rig.ask("conntrack");
    let peers = flows["flows"].as_array().unwrap().iter().map(|flow| flow["peer"].as_str().unwrap());
    assert!(peers.eq(std::iter::repeat_n("10.0.0.2", 64)), "{flows}");
    // With other settings, what was known about paths no longer applies, and their entries already exist.
    rig.reload(PathPort { settings: crate::settings::Settings::of_rate(1_000_000), ..discovering() });
    assert_eq!(rig.refused.len(), 0, "{:?}", rig.refused);
    rig.run_with(64, 3 * SEC);
    let mut again = links(&mut rig);
    again.sort_unstable();
    assert_eq!((again, found.len()), (vec![0, 1, 2, 3], 4));
    rig.reload(PathPort { discovery: None, ports: PORTS.to_vec(), ..discovering() });
    rig.reload(config(Scheme::Ecmp));
    rig.reload(discovering());
    rig.run_with(64, 3 * SEC);
    assert_eq!(rig.states(), ["good"; 4]);
}
