//! Every request of an operator is answered exactly once.

use super::frames::{tcp, udp};
use super::rig::{BondRig, SEC, bond};
use crate::{Bond, Mode};
use serde_json::{Value, json};
use weir_app::{App, SampleValue};

#[test]
fn show_tells_of_members_and_buckets() {
    let mut rig = BondRig::negotiated(3);
    for dport in 0..256 {
        rig.send(&tcp(dport, 100));
    }
    let shown = rig.ask("show").unwrap();
    assert_eq!((&shown["name"], &shown["mode"]), (&json!("bond0"), &json!("balance_tcp")));
    assert_eq!(shown["lacp"]["negotiation"], "negotiated");
    let sum = |key: &str| -> u64 {
        let members = shown["members"].as_array().unwrap();
        members.iter().map(|member| member[key].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("buckets"), sum("packets"), sum("bytes")), (256, 256, 25_600));
    let listed = rig.ask("buckets").unwrap();
    let listed = listed["buckets"].as_array().unwrap();
    assert_eq!(listed.len(), 256);
    for (bucket, (line, port)) in listed.iter().zip(rig.table()).enumerate() {
        assert_eq!(
            (&line["bucket"], &line["member"]),
            (&json!(bucket), &json!(format!("p{}", port.unwrap())))
        );
    }
    let packets: u64 = listed.iter().map(|line| line["packets"].as_u64().unwrap()).sum();
    assert_eq!(packets, 256);
    assert_eq!(rig.app_report(), rig.ask("show").unwrap(), "as the daemon asks it");
}

#[test]
fn metrics_tell_what_an_operator_has_disabled_from_what_has_failed() {
    let mut rig = BondRig::negotiated(3);
    rig.ask("disable p1").unwrap();
    rig.carrier(2, false);
    rig.run(3 * SEC);
    let samples = rig.app.samples();
    let of = |name: &str| -> Vec<f64> {
        let found = samples.iter().filter(|one| one.name == name);
        found
            .map(|one| match one.value {
                SampleValue::Gauge(value) => value,
                SampleValue::Count(_) => panic!("{name} rises and falls"),
            })
            .collect()
    };
    assert_eq!(of("bond_member_enabled"), [0.0, 0.0, 1.0]);
    assert_eq!(of("bond_member_withheld"), [1.0, 0.0, 0.0]);
    assert_eq!(of("bond_member_buckets"), [0.0, 0.0, 256.0]);
    assert_eq!(of("bond_lacp_negotiated"), [1.0]);
    assert_eq!(BondRig::new(bond(Mode::Static, 2)).app.samples().len(), 2 * 3, "without LACP");
}

#[test]
fn a_bucket_is_migrated() {
    let mut rig = BondRig::negotiated(2);
    let from = rig.table()[9].unwrap();
    let to = 3 - from;
    rig.ask(&format!("migrate 9 p{to}")).unwrap();
    rig.run(2 * SEC);
    assert_eq!(rig.table()[9], Some(to));
    let shown = rig.ask("show").unwrap();
    assert_eq!(shown["moves"][0]["why"], "the operator's word");
    assert_eq!(
        (&shown["moves"][0]["first"], &shown["moves"][0]["to"]),
        (&json!(9), &json!(format!("p{to}")))
    );
    // The choice survives a flap of both.
    for port in [from, to] {
        rig.carrier(port, false);
        rig.carrier(port, true);
        rig.run(5 * SEC);
    }
    assert_eq!(rig.table()[9], Some(to));
    rig.assert_sound();
}

#[test]
fn a_dry_run_changes_nothing_and_a_run_evens_out() {
    let mut rig = BondRig::new(Bond { rebalance_ms: 0, ..bond(Mode::Static, 2) });
    let heavy: Vec<u16> = (0..200).filter(|flow| rig.send(&udp(*flow)) == [1]).collect();
    let load = |rig: &mut BondRig| {
        for flow in &heavy {
            (0..40).for_each(|_| rig.frame(0, &udp(*flow)));
        }
    };
    load(&mut rig);
    let table = rig.table();
    let dry = rig.ask("rebalance dry-run").unwrap();
    assert!(!dry["moves"].as_array().unwrap().is_empty());
    assert_eq!(rig.ask("rebalance dry-run").unwrap(), dry);
    rig.run(2 * SEC);
    assert_eq!(rig.table(), table);
    let run = rig.ask("rebalance").unwrap();
    assert_eq!(run, dry);
    rig.run(2 * SEC);
    assert_ne!(rig.table(), table);
    let mark = rig.sent.len();
    load(&mut rig);
    let left = rig.data_since(mark);
    let by_first = left.iter().filter(|seen| seen.port == 1).count() * 100 / left.len();
    assert!((40..=60).contains(&by_first), "{by_first} %");
    rig.assert_sound();
}

/// What `ovs-appctl bond/show` prints of the configuration, too.
#[test]
fn settings_are_shown() {
    let settings = Bond { basis: 7, updelay_ms: 20, downdelay_ms: 30, ..bond(Mode::ActiveBackup, 2) };
    let name = settings.members[1].name.clone();
    let mut rig = BondRig::new(Bond { primary: Some(name.clone()), ..settings });
    let shown = rig.ask("show").unwrap();
    assert_eq!(shown["primary"], name);
    assert_eq!((&shown["basis"], &shown["headers"]), (&7.into(), &"outer".into()));
    assert_eq!((&shown["updelay_ms"], &shown["downdelay_ms"]), (&20.into(), &30.into()));
}

#[test]
fn rebalances_come_by_themselves() {
    let mut rig = BondRig::new(Bond { rebalance_ms: 10_000, ..bond(Mode::BalanceSlb, 2) });
    assert_eq!(rig.ask("show").unwrap()["next_rebalance_ms"], 10_000);
    let heavy: Vec<u16> =
        (0..60).filter(|station| rig.send(&super::frames::from(*station, None, 1)) == [1]).collect();
    for station in &heavy {
        (0..200).for_each(|_| rig.frame(0, &super::frames::from(*station, None, 1)));
    }
    rig.run(9 * SEC);
    assert_eq!(rig.shares()[&1], 128);
    rig.run(3 * SEC);
    assert!(rig.shares()[&1] < 128);
    assert!(rig.said.iter().any(|line| line.starts_with("rebalanced")));
    rig.assert_sound();
}

#[test]
fn what_cannot_be_done_is_said_in_a_sentence() {
    let mut rig = BondRig::negotiated(2);
    let table = rig.table();
    let cases = [
        ("", "there is no request ``: show, buckets, rebalance, migrate, disable, enable, set-active"),
        ("shout", "there is no request `shout`: show"),
        ("show me", "request `show`: unknown field `me`"),
        ("rebalance now", "request `rebalance`: unknown field `now`"),
        ("disable", "request `disable`: missing field `member`"),
        ("migrate 1", "request `migrate`: missing field `member`"),
        ("migrate one p1", "request `migrate`, field `bucket`: invalid type"),
        ("migrate -1 p1", "request `migrate`, field `bucket`: invalid type"),
        ("migrate 256 p1", "there is no bucket 256: buckets are numbered 0 to 255"),
        ("migrate 4294967296 p1", "field `bucket`: invalid value"),
        ("migrate 1 p9", "bond `bond0` has no member `p9`; its members are p1, p2"),
        ("disable p9", "has no member `p9`"),
        ("enable p0", "has no member `p0`"),
        ("set-active p1", "has no active member"),
    ];
    for (words, part) in cases {
        let why = rig.ask(words).unwrap_err();
        assert!(why.contains(part), "{words}: {why}");
    }
    for request in [json!(null), json!(7), json!(["show"]), json!({ "show": true }), json!({ "do": 1 })] {
        rig.ask_json(&request).unwrap_err();
    }
    assert_eq!(rig.table(), table);
    rig.carrier(2, false);
    let why = rig.ask("migrate 1 p2").unwrap_err();
    assert!(why.contains("p2 is not enabled"), "{why}");
    let mut single = BondRig::new(bond(Mode::ActiveBackup, 2));
    assert!(single.ask("migrate 0 p2").unwrap_err().contains("active_backup"));
    single.carrier(2, false);
    assert_eq!(single.ask("set-active p2").unwrap_err(), "p2 is not enabled");
    let plan = single.ask("rebalance").unwrap();
    assert!(plan["why_not"].as_str().unwrap().contains("active_backup"));
    rig.assert_sound();
}

#[test]
fn taking_out_and_letting_in_may_be_said_twice() {
    for mode in [Mode::ActiveBackup, Mode::BalanceSlb, Mode::BalanceTcp, Mode::RoundRobin] {
        let mut rig = BondRig::new(bond(mode, 2));
        rig.add_partner();
        rig.run(5 * SEC);
        for words in ["disable p1", "disable p1", "disable p2", "enable p1", "enable p1", "enable p2"] {
            assert!(rig.ask(words).is_ok());
            rig.assert_sound();
            rig.run(6 * SEC);
            rig.assert_sound();
            if words == "disable p2" {
                assert_eq!((rig.enabled(), rig.send(&udp(1))), (vec![], vec![]), "{mode:?}");
                let shown: Value = rig.ask("show").unwrap();
                assert_eq!(shown["members"][0]["against"], "by the operator");
            }
        }
        assert_eq!(rig.enabled(), [1, 2], "{mode:?}");
        assert_eq!(rig.send(&udp(1)).len(), 1);
    }
}
