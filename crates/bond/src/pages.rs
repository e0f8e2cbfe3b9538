//! The page of bonds in `weir top`: members and buckets together.
//!
//! The traffic of a member is taken from the counts of its port. The counts of buckets move with the buckets,
//! so their growth would be meaningless whenever a bucket moves.

use super::answer::{BondState, BucketList, BucketRow, LoggedMove, MemberState};
use serde_json::{Value, json};
use weir_app::page::{Column, Holds, Map, Page, Part, Table, column, items};
use weir_app::shown::{read, seconds};

/// The pages of bonds.
pub(super) const PAGES: &[Page] =
    &[Page { title: "bond", sections: &["ports"], requests: &["show", "buckets"], parts }];

const MEMBERS: &[Column] = &[
    column("member", "name", Holds::Name),
    column("out/s", "transmitted", Holds::Rate),
    column("out bit/s", "transmitted_bytes", Holds::BitRate).plotted("Members, bit/s out"),
    column("share", "transmitted_bytes", Holds::Share),
    column("in/s", "received", Holds::Rate),
    column("buckets", "buckets", Holds::Number),
    column("state", "state", Holds::Text),
    column("LACP", "lacp", Holds::Text),
];

const MOVES: &[Column] = &[
    column("ago", "ago", Holds::Text),
    column("what", "what", Holds::Text),
    column("to", "to", Holds::Text),
    column("why", "why", Holds::Text),
];

/// The latest moves that are shown.
const MOVES_MAX: usize = 3;

fn parts(answer: &Value) -> Vec<Part> {
    let part = |answers: &Value| one(&read(&answers[0]), &read(&answers[1]), items(&answer["ports"]));
    items(&answer["answers"]).iter().flat_map(part).collect()
}

/// Returns the parts of one bond, of its state and its buckets.
fn one(bond: &BondState, list: &BucketList, ports: &[Value]) -> [Part; 4] {
    let name = &bond.name;
    let with_port = |member: &MemberState| {
        let port = ports.iter().find(|port| port["name"] == member.name).unwrap_or(&Value::Null);
        json!({
            "name": member.name, "buckets": member.buckets, "state": member.state(),
            "lacp": member.lacp_state(), "received": port["received"], "transmitted": port["transmitted"],
            "transmitted_bytes": port["transmitted_bytes"],
        })
    };
    let members = bond.members.iter().map(with_port).collect();
    let owners: Vec<String> = bond.members.iter().map(|member| member.name.clone()).collect();
    let slot = |row: &BucketRow| {
        (owners.iter().position(|owner| *owner == row.member), row.packets.unwrap_or_default())
    };
    let slots = list.buckets.iter().map(slot).collect();
    let moves = bond.moves.iter().take(MOVES_MAX).map(moved).collect();
    [
        Part::Facts(facts(bond)),
        Part::Table(Table { title: format!("members of {name}"), columns: MEMBERS, rows: members }),
        Part::Map(Map { title: format!("buckets of {name}"), owners, slots }),
        Part::Table(Table { title: format!("latest moves of {name}"), columns: MOVES, rows: moves }),
    ]
}

fn facts(bond: &BondState) -> Vec<(&'static str, String)> {
    let mut facts = vec![("bond", format!("{}, mode {}", bond.name, bond.mode))];
    let lacp = bond.lacp.as_ref();
    facts.extend(lacp.map(|lacp| ("LACP", format!("{}, {} links", lacp.negotiation, lacp.links))));
    facts.extend([("next rebalance", bond.next_rebalance()), ("moved", bond.moved())]);
    facts
}

/// Returns a row of the latest moves.
fn moved(moved: &LoggedMove) -> Value {
    json!({ "ago": seconds(moved.ago_ms), "what": moved.what(), "to": moved.to, "why": moved.why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bond_that_answers_nothing_is_shown_as_empty() {
        assert_eq!(parts(&json!({})), []);
        let parts = parts(&json!({ "answers": [[{}, {}]] }));
        assert!(matches!(&parts[2], Part::Map(map) if map.slots.is_empty()), "{parts:?}");
    }

    #[test]
    fn members_have_the_counts_of_their_ports_and_buckets_their_members() {
        let bond = json!({ "name": "b", "members": [
            { "name": "p1", "enabled": true, "buckets": 1 }, { "name": "p2", "enabled": false, "buckets": 1 },
        ], "moves": [{ "ago_ms": 5, "buckets": 1, "first": 7, "to": "p2", "why": "even" }] });
        let buckets = json!({ "buckets": [{ "bucket": 0, "member": "p2", "packets": 3 },
            { "bucket": 1, "member": "-", "packets": null }] });
        let ports = json!([{ "name": "p2", "transmitted": 9 }, { "name": "p1", "transmitted": 4 }]);
        let [_, Part::Table(members), Part::Map(map), Part::Table(moves)] =
            one(&read(&bond), &read(&buckets), items(&ports))
        else {
            panic!("the parts are in a different order")
        };
        let cell = |row: usize, name: &str| {
            let column = MEMBERS.iter().find(|column| column.name == name).unwrap();
            column.of(&members.rows[row]).clone()
        };
        assert_eq!((cell(0, "out/s"), cell(1, "out/s")), (json!(4), json!(9)));
        assert_eq!((cell(0, "state"), cell(1, "state")), (json!("enabled"), json!("disabled")));
        assert_eq!(map.slots, [(Some(1), 3), (None, 0)]);
        assert_eq!(moves.rows, [json!({ "ago": "5 ms", "what": "bucket 7", "to": "p2", "why": "even" })]);
    }
}
