//! What a daemon passes to its successor about routes.

use serde_json::{Value, json};
use weir_app::route::Prefix;

/// The routes of a daemon that hands over. Times are on the clock that both daemons have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    /// The table and the protocol number of the routes.
    pub table: u32,
    pub protocol: u8,
    /// The announced VIPs, with their metrics, and since when they are announced.
    pub routes: Vec<(Prefix, u32, u64)>,
    /// Since when the node is draining, if it is.
    pub draining_ns: Option<u64>,
}

impl Handed {
    /// Returns the routes as JSON.
    pub fn json(&self) -> Value {
        let route = |(Prefix { address, length }, metric, since_ns): &(Prefix, u32, u64)| {
            json!([address.to_string(), length, metric, since_ns])
        };
        let routes: Vec<Value> = self.routes.iter().map(route).collect();
        json!({
            "table": self.table, "protocol": self.protocol, "routes": routes,
            "draining_ns": self.draining_ns,
        })
    }

    /// Reads the output of [`Handed::json`]. Routes that cannot be parsed are left out, and then added again.
    pub fn read(json: &Value) -> Handed {
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let route = |one: &Value| {
            let address = one[0].as_str()?.parse().ok()?;
            let length = u8::try_from(one[1].as_u64()?).ok()?;
            Some((Prefix { address, length }, number(&one[2])?, one[3].as_u64()?))
        };
        Handed {
            table: number(&json["table"]).unwrap_or_default(),
            protocol: number(&json["protocol"]).map_or(0, |number| number as u8),
            routes: json["routes"].as_array().into_iter().flatten().filter_map(route).collect(),
            draining_ns: json["draining_ns"].as_u64(),
        }
    }
}
