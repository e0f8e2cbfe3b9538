//! Faults planted in compiled programs: the packets that the search generates for the right program find
//! them. The interpreter runs the right program, the engine one with a fault.

mod flows;
mod groups;
mod lookups;
mod rewrites;
mod tunnels;

use std::collections::BTreeMap;
use weir_cover::compare::{buckets, compare};
use weir_cover::{Case, Limits, explore};
use weir_program::check::{Severity, check};
use weir_program::{Entry, Operation, Pipe, Program};

/// Faults that no generated packet finds, and why.
const UNSEEN: &[(&str, &str)] = &[
    ("basic: a mask loses a bit", "no packet differs from an entry in just the highest bit of an address"),
    ("timeout: longer", "packets arrive within a microsecond of each other, so that no flow expires"),
    ("timeout: idle entries", "entries of the configuration never expire"),
    ("group: a longer prefix of clients", "one client for each target, and each keeps its target by chance"),
    (
        "hash: the input loses a bit of a mask",
        "one packet for each target, and each keeps its target by chance",
    ),
    ("flow: the inner key", "the right program does not look into tunnels, so that no packet has one"),
    ("nat: fewer addresses", "the second address is used once the first has no ports left"),
    ("nat: the last port", "the last port is used once the others are taken"),
];

/// Plants a fault.
type FaultPlanter = Box<dyn Fn(&mut Program)>;

/// A right program, and faults that are planted in it.
struct Subject {
    program: Program,
    faults: Vec<(String, FaultPlanter)>,
}

impl Subject {
    fn new(program: Program) -> Subject {
        let errors = check(&program).into_iter().filter(|one| one.kind.severity() == Severity::Error);
        let errors: Vec<String> = errors.map(|one| one.kind.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
        Subject { program, faults: Vec::new() }
    }

    /// Adds a fault. What precedes the colon of its name is its kind.
    fn plant(&mut self, name: impl Into<String>, change: impl Fn(&mut Program) + 'static) {
        self.faults.push((name.into(), Box::new(change)));
    }

    /// Returns packets for the right program, about which the executors agree.
    fn cases(&self) -> Vec<Case> {
        let limits = Limits { packets: 4_000, ..Limits::default() };
        let cases = explore(&self.program, buckets(&self.program).expect("it compiles"), limits).record.cases;
        let compared = compare(&self.program, &self.program, &cases, false).expect("the program compiles");
        assert_eq!(compared.differences.first(), None);
        cases
    }
}

fn pipe<'a>(program: &'a mut Program, name: &str) -> &'a mut Pipe {
    let id = program.pipe_named(name).expect("the program has the pipe");
    &mut program.pipes[id.index()]
}

/// Returns the operations of an action.
fn operations<'a>(program: &'a mut Program, name: &str, action: &str) -> &'a mut Vec<Operation> {
    let template = pipe(program, name).templates.iter_mut().find(|one| one.name == action);
    &mut template.expect("the pipe has the action").operations
}

/// Changes an entry of a pipe.
fn entry(program: &mut Program, name: &str, at: usize, change: impl FnOnce(&mut Entry)) {
    pipe(program, name).entries.edit(|all| change(&mut all[at]));
}

#[test]
fn generated_packets_find_planted_faults() {
    let subjects = [
        rewrites::subject(),
        lookups::subject(),
        lookups::monitored(),
        groups::subject(),
        groups::foreign(),
        flows::subject(),
        flows::translated(),
    ];
    let (mut by_kind, mut wrong) = (BTreeMap::<String, [usize; 2]>::new(), Vec::new());
    let (mut packets, mut by_state) = (0, 0);
    for subject in subjects.into_iter().chain(tunnels::subjects()) {
        let cases = subject.cases();
        packets += cases.len();
        for (name, change) in &subject.faults {
            let mut faulty = subject.program.clone();
            change(&mut faulty);
            assert_ne!(faulty, subject.program, "{name}");
            let compared = compare(&subject.program, &faulty, &cases, false);
            let Ok(compared) = compared.map_err(|error| wrong.push(format!("{name}: {error}"))) else {
                continue;
            };
            let found = compared.differences.first();
            by_state += usize::from(found.is_some_and(|one| one.wanted.starts_with("the counts")));
            let [all, seen] = by_kind.entry(name.split(':').next().unwrap_or_default().into()).or_default();
            *all += 1;
            *seen += usize::from(found.is_some());
            let explained = UNSEEN.iter().any(|(unseen, _)| unseen == name);
            match (found, explained) {
                (Some(_), false) | (None, true) => {}
                (Some(_), true) => wrong.push(format!("{name}: it is found, but listed as unseen")),
                (None, false) => wrong.push(format!("{name}: not found")),
            }
        }
    }
    let [all, found] = by_kind.values().fold([0, 0], |[all, found], [more, seen]| [all + more, found + seen]);
    eprintln!(
        "{found} of {all} faults found by {packets} packets, {by_state} of them by counts and flows alone"
    );
    eprintln!("faults and those found, by kind: {by_kind:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(all >= 40 && found * 100 >= all * 95, "{found} of {all} faults found");
}
