//! Solutions in running measurements.
//!
//! A record has the packets of a flow since the record before it, because workers add them up themselves: the
//! solution and its aggregator get one update for each record.

use super::Counting;
use super::answers::Truth;
use serde_json::{Value, json};
use std::sync::Arc;
use weir_app::kind::{Configured, Scope};
use weir_config::raw::Node;
use weir_measure::{Seed, SolutionCounter, SolutionError, SolutionSettings, read_with};
use weir_packet::FlowKey;
use weir_sketch::Update;

/// Reads measurements from the configuration, with the solutions.
pub fn read_measurements(items: &[&Node], scope: &mut Scope<'_>) -> Arc<dyn Configured> {
    read_with(Some(create), items, scope)
}

fn create(settings: &SolutionSettings, seed: Seed) -> Result<Box<dyn SolutionCounter>, SolutionError> {
    Ok(Box::new(Counting::new(settings, seed)?))
}

impl SolutionCounter for Counting {
    fn add(&mut self, flow: &FlowKey, packets: u64, bytes: u64) {
        let key = self.settings.key.of(flow);
        Counting::add(self, Update { key, packets, bytes, note: () });
    }

    fn close(&mut self, start_ns: u64, end_ns: u64) -> Value {
        let interval = Counting::close(self, [start_ns, end_ns], true);
        let mut json = self.json("records");
        json["no_truth"] = json!(self.no_truth);
        if self.no_truth.take().is_some() {
            self.truth = Some(Truth::new(self.settings.exact_memory));
        }
        if let Some(Value::Object(interval)) = interval.map(|interval| interval.json()) {
            interval.into_iter().for_each(|(key, value)| json[key] = value);
        }
        json
    }
}
