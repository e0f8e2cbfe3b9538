//! `weir overlay explain`: which path the next frame of a flow takes, and why. The order of reasons matches
//! that of the programs (`bpf/send.h`, `bpf/table.h`).

use super::board::{FlowRow, Translated};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};

/// The causes that invalidate an entry, in the order of its stamps: those of all entries, and its own.
const STAMPS: [&str; 2] =
    ["something that every flow depends on has changed", "the rules of nftables have changed"];

/// A flow as a pod of this node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    local: SocketAddr,
    remote: SocketAddr,
    protocol: u8,
}

impl Pair {
    /// Reads the local and the remote end, such as `10.244.1.5:40000`, and the protocol.
    pub(super) fn read([local, remote]: [&str; 2], protocol: &str) -> Result<Pair, String> {
        let end = |word: &str| {
            word.parse::<SocketAddr>().map_err(|_| {
                format!("`{word}` is not an address with a port, such as 10.244.1.5:80 or [fd00::5]:80")
            })
        };
        let (local, remote) = (end(local)?, end(remote)?);
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(format!("`{local}` and `{remote}` have different IP versions"));
        }
        let protocol = match protocol {
            "tcp" => 6,
            "udp" => 17,
            other => return Err(format!("`{other}` is not `tcp` or `udp`")),
        };
        Ok(Pair { local, remote, protocol })
    }

    /// Whether a row is that of this flow.
    #[must_use]
    pub fn has(&self, row: &FlowRow) -> bool {
        let ends = [self.local, self.remote];
        row.protocol == self.protocol
            && row.addresses == ends.map(|end| end.ip())
            && row.ports == ends.map(|end| end.port())
    }
}

/// Explains which path the frames of a flow take in each direction.
pub(super) fn explain(pair: &Pair, rows: &[FlowRow], refresh_ns: u64, obstacle: Option<&str>) -> Value {
    let row = rows.iter().find(|row| pair.has(row));
    let ways = [0, 1].map(|direction| way(row, direction, refresh_ns, obstacle));
    let [sent, received] = ways.map(|(is_short, why)| json!({ "short_way": is_short, "why": why }));
    let stamps = row.map(|row| json!({ "learnt": row.stamps, "now": row.stamps_now }));
    json!({
        "local": pair.local.to_string(), "remote": pair.remote.to_string(), "protocol": pair.protocol,
        "in_table": row.is_some(), "stamps": stamps, "sent": sent, "received": received,
    })
}

fn way(row: Option<&FlowRow>, at: usize, refresh_ns: u64, obstacle: Option<&str>) -> (bool, String) {
    let slow = |why: String| (false, why);
    if let Some(why) = obstacle {
        return slow(format!("the programs are not active: {why}"));
    }
    let Some(row) = row else {
        return slow(
            "the flow is not in the table; it is learnt from frames of an established connection".into(),
        );
    };
    if !row.known[at] {
        return slow("this direction is unknown; it is learnt from the next frame".into());
    }
    if !row.usable[at] {
        return slow("NAT rewrites this flow: look such frames up by their addresses before NAT".into());
    }
    if let Some(stamp) = (0..3).find(|stamp| row.stamps[at][*stamp] != row.stamps_now[at][*stamp]) {
        let own = ["the route to the remote node or pod has changed", "the route to the pod has changed"][at];
        return slow(format!("{} since it was learnt", STAMPS.get(stamp).unwrap_or(&own)));
    }
    if row.age_ns[at] > refresh_ns {
        let age = row.age_ns[at] / 1_000_000;
        return slow(format!(
            "it was learnt {age} ms ago, and the kernel must see a frame from time to time (`refresh`)"
        ));
    }
    if !row.known[1 - at] {
        return slow("the other direction is unknown, and connection tracking must see both".into());
    }
    (true, there(row, at))
}

fn there(row: &FlowRow, at: usize) -> String {
    let to = match (at, &row.peer) {
        (0, Some(peer)) => format!("delivered to the pod at `{peer}`"),
        (0, None) => format!("encapsulated for the remote node {}", row.node),
        (_, Some(_)) => "received from the other pod's interface".to_string(),
        (_, None) => {
            format!("decapsulated from the tunnel of {} and delivered to the pod at `{}`", row.node, row.pod)
        }
    };
    let nat = row.translated[at].map(|nat| format!(", as from {} to {}", end(nat, 0), end(nat, 1)));
    to + &nat.unwrap_or_default()
}

fn end(translated: Translated, at: usize) -> SocketAddr {
    let (addresses, ports): ([IpAddr; 2], [u16; 2]) = translated;
    SocketAddr::new(addresses[at], ports[at])
}

/// The explanation as text.
pub(super) fn text(answer: &Value, _flags: &[&str]) -> String {
    let line = |direction: &str| {
        let one = &answer[direction];
        let way = if one["short_way"] == true { "the fast path" } else { "the slow path" };
        format!("{direction}: {way}: {}\n", one["why"].as_str().unwrap_or_default())
    };
    let stamps = &answer["stamps"];
    let stamps = if stamps.is_null() {
        String::new()
    } else {
        format!(
            "stamps (all, policy, own) sent and received: {} when learnt, {} now\n",
            stamps["learnt"], stamps["now"]
        )
    };
    line("sent") + &line("received") + &stamps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> FlowRow {
        FlowRow {
            addresses: [[10, 244, 1, 5], [10, 244, 2, 7]].map(IpAddr::from),
            ports: [40_000, 80],
            protocol: 6,
            node: [10, 0, 1, 2].into(),
            pod: "vp1".into(),
            peer: None,
            known: [true; 2],
            usable: [true; 2],
            stamps: [[1, 2, 3], [1, 2, 4]],
            stamps_now: [[1, 2, 3], [1, 2, 4]],
            age_ns: [5, 5],
            translated: [None; 2],
            packets: [1, 1],
            bytes: [9, 9],
            idle_ns: 0,
        }
    }

    #[test]
    fn each_reason_is_told_from_the_others() {
        let pair = Pair::read(["10.244.1.5:40000", "10.244.2.7:80"], "tcp").unwrap();
        let said = |row: &FlowRow, direction: &str| {
            let all = explain(&pair, std::slice::from_ref(row), 10, None);
            (all[direction]["short_way"] == true, all[direction]["why"].as_str().unwrap().to_string())
        };
        let good = row();
        assert_eq!(said(&good, "sent"), (true, "encapsulated for the remote node 10.0.1.2".into()));
        assert!(said(&good, "received").1.contains("`vp1`"));
        let near = FlowRow { peer: Some("vp2".into()), ..row() };
        assert!(said(&near, "sent").1.contains("the pod at `vp2`"));
        let nat = ([[10, 244, 1, 5], [10, 244, 2, 9]].map(IpAddr::from), [40_000, 5001]);
        let nat = FlowRow { translated: [Some(nat), None], ..row() };
        assert!(said(&nat, "sent").1.ends_with("to 10.244.2.9:5001"));
        for (bad, word) in [
            (FlowRow { known: [false, true], ..row() }, "is unknown; it is"),
            (FlowRow { known: [true, false], ..row() }, "the other direction"),
            (FlowRow { usable: [false, true], ..row() }, "NAT"),
            (FlowRow { stamps_now: [[2, 2, 3], [0; 3]], ..row() }, "every flow"),
            (FlowRow { stamps_now: [[1, 3, 3], [0; 3]], ..row() }, "nftables"),
            (FlowRow { stamps_now: [[1, 2, 4], [0; 3]], ..row() }, "remote node"),
            (FlowRow { age_ns: [11, 0], ..row() }, "`refresh`"),
            (FlowRow { protocol: 17, ..row() }, "not in the table"),
        ] {
            let (is_short, why) = said(&bad, "sent");
            assert!(!is_short && why.contains(word), "{word}: {why}");
        }
        let six = Pair::read(["[fd00::5]:40000", "[fd00::7]:80"], "tcp").unwrap();
        let addresses = ["fd00::5", "fd00::7"].map(|address| address.parse().unwrap());
        let said = explain(&six, &[FlowRow { addresses, ..row() }], 10, None);
        assert_eq!((&said["in_table"], &said["local"]), (&json!(true), &json!("[fd00::5]:40000")));
        let stuck = explain(&pair, &[row()], 10, Some("no VXLAN device"));
        assert!(text(&stuck, &[]).starts_with("sent: the slow path: the programs are not active: no VXLAN"));
        for (ends, protocol) in [
            (["1.2.3.4:5", "[fd00::7]:80"], "tcp"),
            (["fd00::5:80", "fd00::7:80"], "tcp"),
            (["1.2.3.4:5", ""], "tcp"),
            (["1.2.3.4", "5.6.7.8:9"], "tcp"),
            (["1.2.3.4:5", "5.6.7.8:9"], "sctp"),
        ] {
            assert!(Pair::read(ends, protocol).is_err(), "{ends:?} {protocol}");
        }
    }
}
