//! Creates the state of services and their back ends from the configuration, and finds them in a program.

use super::app::{Row, Service, Wish};
use super::doubt::{Doubt, settle_ns};
use super::passive::Watched;
use super::{Guarded, Watch, scale};
use crate::Place;
use std::collections::HashMap;
use weir_program::{Group, GroupId};

impl Row {
    fn new((name, weight, _): &(String, u32, Option<Watch>), scale: u32) -> Row {
        Row {
            name: name.clone(),
            full: weight * scale,
            configured: *weight,
            target: None,
            set: None,
            place: None,
            kept: true,
            hop: None,
            server: None,
            probe: None,
            wish: Wish::Work,
            wished_ns: 0,
            suspicion: None,
        }
    }
}

impl Service {
    pub(super) fn new(one: &Guarded) -> Service {
        Service {
            name: one.name.clone(),
            fail: one.fail,
            scale: scale(one),
            group: None,
            rows: one.back_ends.iter().map(|back_end| Row::new(back_end, scale(one))).collect(),
            due_ns: None,
            failing: false,
            doubt: Doubt::default(),
            settle_ns: settle_ns(one),
            former_servers: Vec::new(),
            wish: None,
            passive: one.passive,
            watched: Watched::default(),
        }
    }

    /// Finds the service's group and its back ends' places in a program.
    pub(super) fn bind(&mut self, (id, group): (GroupId, &Group), places: Option<&[Place]>) {
        self.group = Some(id);
        let targets = group.targets.iter().zip(0..);
        let numbers: HashMap<&str, (u16, u32)> =
            targets.map(|(target, at)| (target.name.as_str(), (at, target.weight))).collect();
        for row in &mut self.rows {
            let place = numbers.get(row.name.as_str());
            (row.target, row.set) = (place.map(|place| place.0), place.map(|place| place.1));
            let found = row.target.and_then(|target| places?.get(usize::from(target)).cloned());
            row.place = found.filter(|place| !place.entries.is_empty());
        }
    }
}
