//! The fast parser of plain entries gives the same results as the tree-based one.

use super::*;

const PIPES: &str = "\
ports: { p0: { mem: }, p1: { mem: } }
root: exact
groups: { web: { number: 7, targets: { a: p0 } } }
pipes:
  exact:
    type: basic
    match: { ipv4.src: per_entry, l4.dport: 53, ip.protocol: per_entry/0x7f }
    action: [{ set: { eth.dst: per_entry, meta.0: per_entry } }, { set: { vlan.vid: 7 } }]
    forward: filter
    miss: drop
  filter:
    type: acl
    match: { ipv6.src: masked, udp.dport: range, eth.type: masked }
    actions: { one: [{ set: { meta.1: per_entry } }], two: [pop_vlan], three: [] }
    forward: route
    miss: route
  route: { type: lpm, match: { ipv4.dst: prefix }, forward: by, miss: drop }
  by: { type: basic, match: { port: per_entry }, forward: per_entry, miss: pick }
  pick: { type: hash, group: web, hash: 5-tuple, forward: p0, miss: drop }
";

/// Parts of lines, valid ones and invalid ones.
const WORDS: &[&str] = &[
    "ipv4.src: 10.0.0.1",
    "ipv4.src: 300.0.0.1",
    "ip.protocol: udp",
    "ip.protocol: 0xff",
    "l4.dport: 53",
    "ipv6.src: any",
    "ipv6.src: \"2001:db8::/32\"",
    "ipv6.src: 2001:db8:0:0:0:0:0:1",
    "udp.dport: 1-9",
    "udp.dport: 9-1",
    "eth.type: ipv6",
    "eth.type: any",
    "ipv4.dst: 10.0.0.0/8",
    "ipv4.dst: 10.0.0.1/8",
    "port: p0",
    "target: a",
    "eth.dst: 02:00:00:00:00:01",
    "meta.0: group(web)",
    "meta.0: group(nobody)",
    "meta.0: 70000",
    "meta.1: 1_0",
    "vlan.vid: 7",
];
const TOPS: &[&str] = &[
    "priority: 7",
    "priority: x",
    "action: one",
    "action: two",
    "action: four",
    "forward: p0",
    "set: {}",
    "set: [{ meta.1: 3 }]",
    "set: { meta.1: 3 }",
    "set: { eth.dst: 02:00:00:00:00:01, meta.0: 5 }",
    "set: { eth.dst: 02:00:00:00:00:01, meta.0: group(web) }",
    "match: default",
    "match: {}",
    "counter: c",
];

fn line() -> impl Strategy<Value = String> {
    let verb = prop::sample::select(vec!["add", "update", "remove"]);
    let pipe = prop::sample::select(vec!["exact", "filter", "route", "by", "pick", "none"]);
    let words = prop::sample::subsequence(WORDS.to_vec(), 0..4).prop_shuffle();
    let tops = prop::sample::subsequence(TOPS.to_vec(), 0..3).prop_shuffle();
    (verb, pipe, words, tops, 0_u8..8).prop_map(|(verb, pipe, words, tops, way)| {
        let matches = format!("match: {{ {} }}", words.join(", "));
        let mut parts = vec![matches];
        parts.extend(tops.iter().map(|top| top.to_string()));
        match way {
            0 => parts.reverse(),
            1 => parts.push(parts[0].clone()),
            _ => {}
        }
        format!("{verb} {pipe} {{ {} }}", parts.join(", "))
    })
}

fn both(plan: &Plan, line: &str) -> [Option<Result<String, String>>; 2] {
    let (program, attachments) = (&plan.program, &plan.attachments);
    [RunTime::new(program, attachments), RunTime::by_trees(program, attachments)].map(|mut reader| {
        let read = reader.line(line);
        read.map(|read| read.map(|change| format!("{change:?}")).map_err(|report| report.to_string()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn a_plain_line_is_read_as_by_its_tree(line in line()) {
        let plan = plan(PIPES);
        let [fast, slow] = both(&plan, &line);
        prop_assert_eq!(fast, slow, "{}", line);
    }
}

#[test]
fn lines_of_each_kind_are_read_alike_and_without_error() {
    let plan = plan(PIPES);
    let mac = "eth.dst: 02:00:00:00:00:01";
    for line in [
        &format!(
            "add exact {{ match: {{ ipv4.src: 10.0.0.1, ip.protocol: udp }}, set: {{ {mac}, meta.0: 3 }} }}"
        ),
        &format!(
            "add exact {{set: {{{mac}, meta.0: group(web)}}, match: {{ip.protocol: 6, ipv4.src: 0x1}}}} # a"
        ),
        "remove exact { match: { ipv4.src: 10.0.0.1, ip.protocol: udp } }",
        "update filter { match: { udp.dport: 1-9 }, priority: 3, action: one, set: { meta.1: 9 } }",
        "add filter { match: { ipv6.src: \"::/0\", eth.type: 0x86dd }, action: two }",
        "remove filter { match: {}, priority: 0 }",
        "add filter { action: three }",
        "add route { match: { ipv4.dst: 10.0.0.0/8 } }",
        "add by { match: { port: p1 }, forward: p0 }",
    ] {
        let [fast, slow] = both(&plan, line);
        assert_eq!(fast, slow, "{line}");
        assert!(matches!(fast, Some(Ok(_))), "{line}: {fast:?}");
    }
}
