//! The configuration as loaded, how its file differs now, and what a reload would do to flows.

use crate::config::{self, Plan};
use crate::interfaces::nics_of;
use crate::observer::Snapshot;
use serde_json::{Value, json};
use weir_app::moves::Moves;
use weir_config::{hidden, infile};
use weir_page::describe::{ConfigurationFacts, MovedFlows};

/// Answers GET of the configuration.
pub fn answer(now: &Snapshot) -> Value {
    let loaded = &now.plan.source.text;
    let read = infile::read(&now.file).map_err(|why| format!("{}: {why}", now.file.display()));
    let text = read.and_then(|bytes| {
        String::from_utf8(bytes).map_err(|_| format!("{}: it is not UTF-8", now.file.display()))
    });
    let mut facts = ConfigurationFacts {
        file: now.file.display().to_string(),
        generation: now.generation,
        loaded: without_secrets(loaded),
        edited: now.plan.edits.count() > 0,
        ..ConfigurationFacts::default()
    };
    match text {
        Ok(text) => {
            facts.same = text == **loaded;
            if !facts.same {
                match (now.load)(&*now.plan.edits, &nics_of(&now.plan)) {
                    Ok(plan) => facts.plan = planned(&now.plan, &plan),
                    Err(why) => facts.refused = Some(format!("{why:#}")),
                }
            }
            facts.file_text = Some(without_secrets(&text));
        }
        Err(why) => facts.file_error = Some(why),
    }
    json!(facts)
}

/// Returns the flows that another plan would move.
fn planned(old: &Plan, new: &Plan) -> Vec<MovedFlows> {
    let moved = config::moves(old, new, &nics_of(old)).into_iter();
    let facts =
        |Moves { name, moved, least, why, flows_end }| MovedFlows { name, moved, least, why, flows_end };
    moved.filter(|one| one.moved > 0.0 || one.flows_end).map(facts).collect()
}

fn without_secrets(text: &str) -> String {
    text.split('\n').map(hidden).collect::<Vec<_>>().join("\n")
}
