use super::*;

/// The columns of each table that the tests set; those of Open vSwitch have more.
const HEADINGS: [&str; 3] = [
    r#"["_uuid","name","other_config","ports","stp_enable"]"#,
    r#"["_uuid","name","bond_mode","lacp","bond_updelay","interfaces","other_config","tag"]"#,
    r#"["_uuid","name","type","options","other_config"]"#,
];

/// A database with one bond of `eth1` and `eth2`, whose columns `bond_mode` to `bond_updelay` and
/// `other_config` are given, and one other port of a type.
fn database(columns: &str, other: &[(&str, &str)], kind: &str) -> String {
    let map = |pairs: &[(&str, &str)]| {
        let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!(r#"["{key}","{value}"]"#)).collect();
        format!(r#"["map",[{}]]"#, pairs.join(","))
    };
    let (none, empty) = (r#"["set",[]]"#, r#"["map",[]]"#);
    let bridge = format!(
        r#"[["uuid","b"],"br0",{},["set",[["uuid","p1"],["uuid","p2"]]],false]"#,
        map(&[("forward-bpdu", "true")])
    );
    let ports = format!(
        r#"[["uuid","p1"],"bond0",{columns},["set",[["uuid","i1"],["uuid","i2"]]],{},5],
           [["uuid","p2"],"vif1",{none},{none},0,["uuid","i3"],{empty},{none}]"#,
        map(other)
    );
    let interfaces = format!(
        r#"[["uuid","i1"],"eth1","",{empty},{}],[["uuid","i2"],"eth2","dpdk",{},{empty}],
           [["uuid","i3"],"vif1","{kind}",{empty},{empty}]"#,
        map(&[("lacp-port-priority", "7")]),
        map(&[("dpdk-devargs", "0000:01:00.0")])
    );
    let table = |(headings, data): (&str, String)| format!("{{\"data\":[{data}],\"headings\":{headings}}}\n");
    HEADINGS.into_iter().zip([bridge, ports, interfaces]).map(table).collect()
}

fn converted(text: &str, settings: &[(&'static str, &str)]) -> Result<(String, String), String> {
    let settings = settings.iter().map(|(name, value)| (*name, (*value).to_string())).collect();
    let result = convert(Path::new("x/ovs.json"), text, &SettingValues::new(settings));
    result.map(|(yaml, report)| (yaml, report.to_string())).map_err(|report| report.to_string())
}

#[test]
fn each_setting_has_its_counterpart_or_is_named() {
    let other = [
        ("all-members-active", "true"),
        ("bond-primary", "eth2"),
        ("bond-rebalance-interval", "500"),
        ("lacp-fallback-ab", "true"),
        ("lacp-time", "fast"),
        ("lb-output-action", "true"),
    ];
    let text = database(r#""balance-tcp","active",250"#, &other, "");
    let (yaml, said) = converted(&text, &[]).unwrap();
    let expected = "ports:
  eth1: { xdp: eth1 }
  eth2: { dpdk: \"0000:01:00.0\" }
  vif1: { xdp: vif1 }
apps:
  # other_config:all-members-active=true of bond0 was omitted: it has no counterpart
  # `tag` of bond0 was omitted: a bond passes all VLANs, and pipes filter them
  - bond:
      name: bond0
      mode: balance_tcp
      members: [{ port: eth1, lacp_priority: 7 }, eth2]
      forward_reserved: true
      inside: vif1
      lacp: { mode: active, fallback: true, rate: fast }
      updelay: 250ms
      primary: eth2
      rebalance: { interval: 1000ms }
";
    assert_eq!(yaml.split_once('\n').unwrap().1, expected);
    assert!(said.contains("all-members-active") && said.contains(":2:1: warning: `tag` of bond0"), "{said}");
}

#[test]
fn open_vswitchs_defaults_need_no_keys() {
    let other = [("bond-rebalance-interval", "10000"), ("bond-hash-basis", "0")];
    let (yaml, _) = converted(&database(r#"["set",[]],["set",[]],0"#, &other, ""), &[]).unwrap();
    let bond = yaml.split_once("- bond:").unwrap().1;
    assert!(bond.contains("mode: active_backup") && !bond.contains("rebalance") && !bond.contains("hash"));
    assert!(!bond.contains("lacp:") && !bond.contains("updelay"), "{bond}");
}

#[test]
fn what_a_bond_extends_is_given_if_it_is_not_the_only_other_port() {
    let text = database(r#""balance-slb",["set",[]],0"#, &[], "internal");
    let (yaml, said) = converted(&text, &[]).unwrap();
    assert!(!yaml.contains("inside:") && said.contains("use `--inside INTERFACE`"), "{yaml}{said}");
    let (yaml, _) = converted(&text, &[("inside", "veth0")]).unwrap();
    assert!(yaml.contains("inside: veth0") && yaml.contains("veth0: { xdp: veth0 }"), "{yaml}");
}

#[test]
fn a_file_that_is_no_output_of_ovs_vsctl_is_an_error_with_its_line() {
    let good = database(r#""balance-tcp","active",0"#, &[], "");
    let bridge = good.lines().next().unwrap();
    for (text, error) in [
        ("", "there is no bond here"),
        (bridge, "there is no bond here"),
        ("Bridge br0\n    Port bond0\n", ":1:1: error: this is no table of ovs-vsctl"),
        (&format!("{bridge}\n{{\"headings\": 3}}"), ":2:1: error: this is no table of ovs-vsctl"),
        (good.rsplit_once("{\"data\"").unwrap().0, "print the table `interface`, too"),
        (&good[..good.len() - 9], "this is no table of ovs-vsctl"),
    ] {
        let said = converted(text, &[]).unwrap_err();
        assert!(said.contains(error), "{text}: {said}");
    }
    let said = converted(&good, &[("bond", "bond1")]).unwrap_err();
    assert!(said.contains("there is no bond `bond1` here; the bonds are bond0"), "{said}");
}
