//! What requests change about services.

use serde_json::Value;
use std::collections::HashMap;
use weir_control::services::Changes;

/// Adds an updated service, given both of its specifications.
pub fn update(changes: &mut Changes, name: &str, before: &Value, after: &Value) {
    changes.updated.push(name.to_string());
    let list = |service: &Value| -> HashMap<String, Value> {
        let list = service["back_ends"].as_array().into_iter().flatten();
        list.filter_map(|one| Some((one["name"].as_str()?.to_string(), one.clone()))).collect()
    };
    let (before, after) = (list(before), list(after));
    changes.back_ends_removed += before.keys().filter(|name| !after.contains_key(*name)).count();
    for (name, one) in &after {
        let Some(other) = before.get(name) else {
            changes.back_ends_added += 1;
            continue;
        };
        match (one == other, but_weight(one) == but_weight(other)) {
            (true, _) => {}
            (false, true) => changes.back_ends_reweighted += 1,
            (false, false) => changes.back_ends_changed += 1,
        }
    }
}

fn but_weight(back_end: &Value) -> Value {
    let mut back_end = back_end.clone();
    back_end.as_object_mut().map(|map| map.shift_remove("weight"));
    back_end
}
