//! The subcommands of `weir lb`.

use weir_app::kind::{Argument, Verb};
use weir_app::shown::as_text;
use weir_control::services::{BackEndState, Services};

pub(super) const VERBS: &[Verb] = &[
    whole("list", "List the current services and back ends", &[]),
    verb("drain", "Drain a back end: it gets no new flows", BACK_END),
    verb("maintenance", "Put a back end into maintenance: it gets no packets and is not checked", BACK_END),
    verb("enable", "Put a back end back into service", BACK_END),
    verb("weight", "Change the weight of a back end", WEIGHT),
    verb("add", "Add a back end to a service, or with `pool:NAME` to a pool", &[MAPPING]),
    verb("remove", "Remove a back end from a service, or with `pool:NAME` from a pool", BACK_END),
    whole("add-service", "Add a service", &[SERVICE]),
    verb("remove-service", "Remove a service", &[]),
    whole("reset", "Discard all changes made at run time and return to the file", &[]),
];

const BACK_END: &[Argument] = &[THE_BACK_END];
const WEIGHT: &[Argument] =
    &[THE_BACK_END, Argument { name: "WEIGHT", help: "Its new weight; 0 gets nothing", number: true }];
const THE_BACK_END: Argument = Argument { name: "BACK_END", help: "Its name", number: false };
const MAPPING: Argument = Argument {
    name: "BACK_END",
    help: "Its keys, as in the file: '{ name: b4, mac: 02:00:00:00:00:14 }'",
    number: false,
};
const SERVICE: Argument = Argument {
    name: "SERVICE",
    help: "Its keys, as in the file: '{ name: dns, port: p0, service: { ... }, back_ends: [ ... ] }'",
    number: false,
};

const fn verb(name: &'static str, about: &'static str, arguments: &'static [Argument]) -> Verb {
    // Every answer is a sentence, which is printed unchanged.
    Verb { name, about, arguments, flags: &[], whole: false, text: |_, _| String::new() }
}

const fn whole(name: &'static str, about: &'static str, arguments: &'static [Argument]) -> Verb {
    Verb { name, about, arguments, flags: &[], whole: true, text: |answer, _| as_text(answer, listed) }
}

/// The table of services and back ends.
fn listed(Services { services }: &Services) -> String {
    let mut rows = vec![["service", "back end", "weight", "health", "reason"].map(str::to_string)];
    for service in services {
        for BackEndState { name, weight, health, reason } in &service.back_ends {
            let weight = weight.to_string();
            rows.push([&service.name, name, &weight, health, reason].map(String::clone));
        }
    }
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..5).map(width).collect();
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
