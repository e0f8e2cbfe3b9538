//! What requests change about services.

use serde_json::Value;
use std::collections::HashMap;
use weir_app::answers;

answers! {
    /// What a request has changed.
    Changes {
        /// Services that are new, by name.
        created: Vec<String>,
        /// Services that are different.
        updated: Vec<String>,
        /// Services that are gone.
        removed: Vec<String>,
        /// The number of services that stay as they are.
        unchanged: usize,
        /// Back ends that were added to services which stay.
        back_ends_added: usize,
        /// Back ends that were removed from services which stay.
        back_ends_removed: usize,
        /// Back ends of which only the weight has changed.
        back_ends_reweighted: usize,
        /// Back ends of which other values have changed.
        back_ends_changed: usize,
        /// The `ETag` that the service or the set then has.
        #[serde(skip_serializing_if = "Option::is_none")]
        etag: Option<String>,
    }
}

impl Changes {
    /// Adds an updated service, given both of its specifications.
    pub fn update(&mut self, name: &str, before: &Value, after: &Value) {
        self.updated.push(name.to_string());
        let list = |service: &Value| -> HashMap<String, Value> {
            let list = service["back_ends"].as_array().into_iter().flatten();
            list.filter_map(|one| Some((one["name"].as_str()?.to_string(), one.clone()))).collect()
        };
        let (before, after) = (list(before), list(after));
        self.back_ends_removed += before.keys().filter(|name| !after.contains_key(*name)).count();
        for (name, one) in &after {
            let Some(other) = before.get(name) else {
                self.back_ends_added += 1;
                continue;
            };
            match (one == other, but_weight(one) == but_weight(other)) {
                (true, _) => {}
                (false, true) => self.back_ends_reweighted += 1,
                (false, false) => self.back_ends_changed += 1,
            }
        }
    }
}

fn but_weight(back_end: &Value) -> Value {
    let mut back_end = back_end.clone();
    back_end.as_object_mut().map(|map| map.shift_remove("weight"));
    back_end
}
