//! `weir compile --to openflow` and `weir check --openflow`: what they print, and that Open vSwitch takes it.

use super::folder::Folder;
use super::switch::Switch;
use super::{CommandOutput, weir};
use weir_packet::craft::{Recipe, describe};

/// Paths of the examples, seen from a folder of the test's own.
fn example(name: &str) -> String {
    format!("{}/../../configs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// What is printed for an example, without the comments at its top.
fn compiled(name: &str) -> String {
    let folder = Folder::new();
    let CommandOutput { out: said, err, code } =
        weir(folder.path(), &["compile", "--to", "openflow", &example(name)]);
    // The warnings are about `take: all`.
    assert_eq!((code, err.contains("error")), (Some(0), false), "{err}");
    let (comments, flows): (Vec<&str>, Vec<&str>) = said.lines().partition(|line| line.starts_with('#'));
    assert_eq!(comments.len(), 3, "{said}");
    flows.iter().map(|line| format!("{line}\n")).collect()
}

fn expected(pipes: &str) -> String {
    format!("{ENTRANCE}{}", pipes.replace(",\n", ","))
}

fn frame(recipe: &str) -> Vec<u8> {
    recipe.parse::<Recipe>().unwrap_or_else(|error| panic!("{error}")).build()
}

/// What leaves for a frame: names of ports, and recipes.
fn sent(switch: &mut Switch, ports: &[&str], at: usize, recipe: &str) -> Vec<(String, String)> {
    let output = switch.frames(at, &[frame(recipe)]).remove(0);
    output.into_iter().map(|(port, bytes)| (ports[port].to_string(), describe(&bytes))).collect()
}

#[test]
fn the_receiver_of_doca_ar_reflects_probes() {
    let text = compiled("doca-ar-receiver.yaml");
    assert_eq!(text, expected(RECEIVER));
    let ports = ["p0", "pf0hpf"];
    let Some(mut switch) = Switch::start(&ports, None) else { return };
    switch.load(&text).unwrap();
    let probe = "eth.src=02:00:00:00:00:0a eth.dst=02:00:00:00:00:01 src=10.0.0.1 dst=10.0.0.2 dscp=8 \
                 proto=udp sport=50000 dport=4789 payload=00000000000000010000000000000002";
    let answer = describe(&frame(
        &probe
            .replace(
                "eth.src=02:00:00:00:00:0a eth.dst=02:00:00:00:00:01",
                "eth.src=02:00:00:00:00:01 eth.dst=02:00:00:00:00:0a",
            )
            .replace("dport=4789", "dport=4788"),
    ));
    assert_eq!(sent(&mut switch, &ports, 0, probe), [("p0".to_string(), answer)]);
    let data = probe.replace("dscp=8", "dscp=0");
    let same = describe(&frame(&data));
    assert_eq!(sent(&mut switch, &ports, 0, &data), [("pf0hpf".to_string(), same.clone())]);
    assert_eq!(sent(&mut switch, &ports, 1, &data), [("p0".to_string(), same)]);
}

#[test]
fn the_program_of_xenoflow_balances() {
    let text = compiled("xenoflow-openflow.yaml");
    assert_eq!(text, expected(XENOFLOW));
    let ports = ["p0", "pf0hpf"];
    let Some(mut switch) = Switch::start(&ports, None) else { return };
    switch.load(&text).unwrap();
    for (client, back_end) in [("192.0.2.2", "a0:88:c2:b5:f4:5a"), ("192.0.2.3", "a0:88:c2:b5:f4:5b")] {
        let query = format!("src={client} dst=10.0.0.53 proto=udp sport=4000 dport=53");
        let wanted = describe(&frame(&format!("eth.src=a0:88:c2:b5:f4:01 eth.dst={back_end} {query}")));
        assert_eq!(sent(&mut switch, &ports, 0, &query), [("pf0hpf".to_string(), wanted)]);
    }
    // Answers, queries for other addresses, and broadcasts pass between the ports as they are.
    let plain = "eth.src=02:00:00:00:00:0a eth.dst=02:00:00:00:00:01";
    let loud = "eth.src=02:00:00:00:00:0a eth.dst=ff:ff:ff:ff:ff:ff";
    let query = "src=192.0.2.2 dst=10.0.0.53 proto=udp sport=4000 dport=53";
    let answer = format!("{plain} src=10.0.0.53 dst=192.0.2.2 proto=udp sport=53 dport=4000");
    let other = format!("{plain} {}", query.replace("10.0.0.53", "10.0.0.54"));
    let broadcast = format!("{loud} {query}");
    for (from, to, recipe) in [(1, "p0", answer), (0, "pf0hpf", other), (0, "pf0hpf", broadcast)] {
        let same = describe(&frame(&recipe));
        assert_eq!(sent(&mut switch, &ports, from, &recipe), [(to.to_string(), same)], "{recipe}");
    }
}

/// Its third entry, its fourth one and its miss have no equivalent.
const MIXED: &str = "\
ports:
  a: { pcap: {}, root: filter }
  b: { pcap: {} }
pipes:
  filter:
    type: acl
    match: { ipv4.dst: masked, ipv4.ttl: masked }
    actions:
      plain: [{ set: { eth.dst: 02:00:00:00:00:02 } }]
      clamped: [{ clamp_mss: { mss: 1400 } }]
    forward: b
    miss: kernel
    entries:
      - { priority: 1, match: { ipv4.dst: 10.3.0.0/16, ipv4.ttl: 1 }, action: plain }
      - { priority: 2, match: { ipv4.dst: 10.0.0.0/16 }, action: plain }
      - { priority: 3, match: { ipv4.dst: 10.1.0.0/16, ipv4.ttl: 0x80/0x80 }, action: plain }
      - { priority: 4, match: { ipv4.dst: 10.2.0.0/16 }, action: clamped }
";

#[test]
fn what_open_vswitch_lacks_is_named_with_its_place() {
    let folder = Folder::new();
    folder.write("weir.yaml", MIXED);
    let said = weir(folder.path(), &["compile", "--to", "openflow", "weir.yaml"]);
    assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{}", said.err);
    let whys = [
        ("weir.yaml:5", "the miss of pipe filter", "`--kernel-as normal`"),
        ("weir.yaml:16", "filter, entry 3", "`ipv4.ttl` as a whole or not at all"),
        ("weir.yaml:17", "filter, entry 4", "no action for `clamp_mss`"),
    ];
    let errors: Vec<&str> = said.err.lines().filter(|line| line.starts_with("weir.yaml:")).collect();
    assert_eq!(errors.len(), whys.len(), "{}", said.err);
    for ((place, part, why), error) in whys.iter().zip(errors) {
        assert!(error.starts_with(place) && error.contains(part) && error.contains(why), "{error}");
    }
    let said = weir(folder.path(), &["check", "--openflow", "weir.yaml", "--json"]);
    for line in ["openflow: pipe filter (acl): table 2, 2 flows\n", "openflow: does not compile\n"] {
        assert!(said.out.contains(line), "{}", said.out);
    }
    let json = &said.json()["openflow"];
    assert_eq!((&json["compiles"], json["refused"].as_array().map(Vec::len)), (&false.into(), Some(3)));
    assert!(json["refused"][1]["why"].as_str().unwrap().contains("clamp_mss"), "{json}");
    let normal =
        weir(folder.path(), &["check", "--openflow", "--kernel-as", "normal", "weir.yaml", "--json"]);
    assert_eq!(normal.json()["openflow"]["refused"].as_array().map(Vec::len), Some(2), "{}", normal.out);
}

const TWO_PIPES: &str = "\
ports:
  a: { pcap: {}, root: outer }
pipes:
  outer: { type: basic, match: {}, action: [ACTION], forward: inner, miss: drop, entries: [{}] }
  inner: { type: basic, match: { vlan.vid: 5 }, forward: a, miss: drop, entries: [{}] }
";

/// What looks like the first tag behind a pop is the second one, unless a tag was pushed again.
#[test]
fn a_tag_behind_a_popped_one_is_refused() {
    let pipes = |action: &str| TWO_PIPES.replace("ACTION", action);
    let folder = Folder::new();
    folder.write("pops.yaml", pipes("pop_vlan"));
    let said = weir(folder.path(), &["compile", "--to", "openflow", "pops.yaml"]);
    assert_eq!(said.code, Some(2), "{}", said.err);
    let error = said.err.lines().find(|line| line.contains("pipe inner")).unwrap_or(&said.err);
    assert!(error.starts_with("pops.yaml:5") && error.contains("second tag"), "{error}");
    folder.write("pushes.yaml", pipes("pop_vlan, push_vlan: { vid: 5 }"));
    let said = weir(folder.path(), &["compile", "--to", "openflow", "pushes.yaml"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
}

/// Some frames go to the kernel by an entry, and some by the miss.
const SHARED: &str = "\
ports:
  a: { pcap: {}, root: service }
  b: { pcap: {} }
pipes:
  service:
    type: basic
    match: { ipv4.dst: per_entry }
    forward: per_entry
    miss: kernel
    entries:
      - { match: { ipv4.dst: 10.0.0.53 }, forward: b }
      - { match: { ipv4.dst: 10.0.0.54 }, forward: drop }
      - { match: { ipv4.dst: 10.0.0.55 }, forward: kernel }
";

#[test]
fn frames_for_the_kernel_leave_where_the_switch_has_learned_their_destination() {
    let folder = Folder::new();
    folder.write("weir.yaml", SHARED);
    let said = weir(folder.path(), &["compile", "--to", "openflow", "--kernel-as", "normal", "weir.yaml"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    // The program knows only the first two.
    let ports = ["a", "b", "c", "d"];
    let Some(mut switch) = Switch::start(&ports, None) else { return };
    switch.load(&said.out).unwrap();
    let mut leaves_by = |at: usize, from: &str, to: &str, dst: &str| -> Vec<String> {
        let macs = format!("eth.src=02:00:00:00:00:{from} eth.dst=02:00:00:00:00:{to}");
        let recipe = format!("{macs} src=10.0.0.1 dst={dst}");
        let same = describe(&frame(&recipe));
        let sent = sent(&mut switch, &ports, at, &recipe);
        let port = |(port, bytes): (String, String)| {
            assert_eq!(bytes, same, "the frame that left at {port}");
            port
        };
        sent.into_iter().map(port).collect()
    };
    assert_eq!(leaves_by(0, "0a", "0d", "10.0.0.9"), ["b", "c", "d"], "0d has not sent anything");
    assert_eq!(leaves_by(3, "0d", "0a", "10.0.0.2"), ["a"], "0a was learned from the frame above");
    // Another sender, because the switch may keep using the flow that it has cached for the first frame.
    assert_eq!(leaves_by(0, "0b", "0d", "10.0.0.9"), ["d"], "the miss");
    assert_eq!(leaves_by(0, "0b", "0d", "10.0.0.55"), ["d"], "an entry");
    // The program still decides about all others.
    assert_eq!(leaves_by(0, "0b", "0d", "10.0.0.53"), ["b"]);
    assert!(leaves_by(0, "0b", "0d", "10.0.0.54").is_empty());
}

/// The flows in front of the pipes of both examples.
const ENTRANCE: &str = r#"flow delete
group delete group_id=all
flow add table=0,priority=2,eth_type=0x800,ip_src=0.0.0.0,ip_dst=224.0.0.0/240.0.0.0,actions=goto_table:1
flow add table=0,priority=1,eth_type=0x800,ip_src=224.0.0.0/240.0.0.0,actions=drop
flow add table=0,priority=2,eth_type=0x800,ip_src=0.0.0.0,ip_dst=255.255.255.255,actions=goto_table:1
flow add table=0,priority=1,eth_type=0x800,ip_src=255.255.255.255,actions=drop
flow add table=0,priority=2,eth_type=0x86dd,ipv6_src=::,ipv6_dst=ff00::/8,actions=goto_table:1
flow add table=0,priority=1,eth_type=0x86dd,ipv6_src=ff00::/8,actions=drop
flow add table=0,priority=1,eth_type=0x800,ip_src=0.0.0.0,actions=drop
flow add table=0,priority=1,eth_type=0x86dd,ipv6_src=::,actions=drop
flow add table=0,priority=0,actions=goto_table:1
flow add table=1,priority=1,in_port="p0",actions=goto_table:2
flow add table=1,priority=1,in_port="pf0hpf",actions=goto_table:3
flow add table=1,priority=0,actions=drop
"#;

/// The flows of the pipes. Lines that are continued here end in a comma.
const RECEIVER: &str = r#"flow add table=2,priority=2,eth_type=0x800,nw_proto=17,ip_frag=no,
eth_dst=02:00:00:00:00:01,ip_dscp=8,udp_dst=0x12b5,
actions=move:eth_src[0..47]->eth_dst[0..47],set_field:02:00:00:00:00:01->eth_src,
set_field:0x12b4->udp_dst,IN_PORT
flow add table=2,priority=0,actions=output:"pf0hpf"
flow add table=3,priority=2,actions=output:"p0"
flow add table=3,priority=0,actions=drop
"#;
const XENOFLOW: &str = r#"flow add table=2,priority=2,eth_type=0x800,
eth_dst=00:00:00:00:00:00/01:00:00:00:00:00,ip_src=0.0.0.0/0.0.0.1,ip_dst=10.0.0.53,
actions=set_field:a0:88:c2:b5:f4:01->eth_src,set_field:a0:88:c2:b5:f4:5a->eth_dst,output:"pf0hpf"
flow add table=2,priority=2,eth_type=0x800,
eth_dst=00:00:00:00:00:00/01:00:00:00:00:00,ip_src=0.0.0.1/0.0.0.1,ip_dst=10.0.0.53,
actions=set_field:a0:88:c2:b5:f4:01->eth_src,set_field:a0:88:c2:b5:f4:5b->eth_dst,output:"pf0hpf"
flow add table=2,priority=0,actions=output:"pf0hpf"
flow add table=3,priority=2,actions=output:"p0"
flow add table=3,priority=0,actions=drop
"#;
