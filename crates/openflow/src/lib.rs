//! A second target of the compiler: flows and groups of OpenFlow 1.5 with Open vSwitch's extensions, as one
//! file for `ovs-ofctl -O OpenFlow15 bundle`.
//!
//! [`compile`] either expresses an entry exactly or refuses it and says why ([`RefusedPart`]). The page
//! docs/explanation/hardware.md lists the differences that remain: Open vSwitch picks targets by a hash of
//! its own, and it treats a few kinds of frames differently, above all malformed ones.
//!
//! Each pipe becomes a table, in the order in which pipes lead onward. An entry becomes one flow for each
//! combination of headers that it may match, because an OpenFlow match names its headers. A flow of the
//! lowest priority has the pipe's miss.

mod actions;
mod flow_match;
mod groups;
mod pipes;
mod switch_field;
mod why;

pub use why::{Part, RefusedPart, Why};

use crate::flow_match::FlowMatch;
use crate::switch_field::SwitchField;
use std::fmt::Write;
use weir_packet::Depth;
use weir_program::check::{Shape, Uses, next_pipes};
use weir_program::{Forward, Operation, Origin, Pipe, PipeId, PortId, Program};

/// The last table that flows may use; OpenFlow reserves number 255.
const TABLE_MAX: usize = 253;

/// What the switch adds to a program.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// The name of each of the program's ports at the switch.
    pub ports: &'a [String],
    /// Whether `forward: kernel` becomes Open vSwitch's own switching, `NORMAL`; otherwise it is refused.
    pub kernel_is_normal: bool,
}

/// A flow of OpenFlow: an entry of a table of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchFlow {
    /// The number of the table that holds the flow.
    pub table: u8,
    /// Its priority; the highest wins.
    pub priority: u16,
    /// Its match, in the notation of `ovs-ofctl`.
    pub matches: String,
    /// The actions, in the notation of `ovs-ofctl`.
    pub actions: String,
}

/// A group that picks a bucket by a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectGroup {
    /// The number of the group, by which actions refer to it.
    pub id: u32,
    /// The fields that are hashed, with their masks.
    pub fields: String,
    /// Weight and actions of each bucket.
    pub buckets: Vec<(u32, String)>,
}

/// The result of compiling one pipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipeTable {
    /// The pipe that was compiled.
    pub pipe: PipeId,
    /// The number of the table of the switch into which the pipe was compiled.
    pub table: u8,
    /// The number of its flows.
    pub flows: usize,
}

/// A compiled program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    /// The flows of all tables.
    pub flows: Vec<SwitchFlow>,
    /// The groups to which these flows refer.
    pub groups: Vec<SelectGroup>,
    /// The tables of the pipes that frames can reach.
    pub tables: Vec<PipeTable>,
    /// What cannot be expressed. If there is any, the flows are incomplete and must not be used.
    pub refusals: Vec<RefusedPart>,
}

/// Compiles a checked program.
///
/// # Panics
/// If `options` does not name every port.
#[must_use]
pub fn compile(program: &Program, options: &Options<'_>) -> Compiled {
    assert_eq!(options.ports.len(), program.ports.len(), "every port has a name at the switch");
    let mut compiler = Compiler::new(program, options);
    compiler.whole_program();
    compiler.entrance();
    for at in 0..compiler.order.len() {
        compiler.pipe(compiler.order[at]);
    }
    compiler.lists();
    compiler.compiled
}

impl Compiled {
    /// Returns the file for `ovs-ofctl -O OpenFlow15 bundle`, which replaces all flows and groups of a bridge
    /// in one step.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::from("flow delete\ngroup delete group_id=all\n");
        for SelectGroup { id, fields, buckets } in &self.groups {
            let _ =
                write!(text, "group add group_id={id},type=select,selection_method=hash,fields({fields})");
            for (at, (weight, actions)) in buckets.iter().enumerate() {
                let _ = write!(text, ",bucket=bucket_id:{at},weight:{weight},actions={actions}");
            }
            text.push('\n');
        }
        for SwitchFlow { table, priority, matches, actions } in &self.flows {
            let comma = if matches.is_empty() { "" } else { "," };
            let _ = writeln!(
                text,
                "flow add table={table},priority={priority}{comma}{matches},actions={actions}"
            );
        }
        text
    }
}

/// The state of a compilation.
struct Compiler<'a> {
    program: &'a Program,
    options: &'a Options<'a>,
    /// The pipes that frames can reach, in the order of their tables.
    order: Vec<PipeId>,
    /// The first table of a pipe.
    first_table: usize,
    /// The ports whose frames can get to each pipe.
    inputs: Vec<Vec<PortId>>,
    /// By how many, at least, tags pushed exceed tags popped before each pipe. If it is below 0, what
    /// looks like the first tag there is the second one that was received.
    tags: Vec<i32>,
    /// Actions of buckets that a bucket cannot have itself, for packets with these headers.
    lists: Vec<(FlowMatch, String)>,
    compiled: Compiled,
}

impl<'a> Compiler<'a> {
    fn new(program: &'a Program, options: &'a Options<'a>) -> Compiler<'a> {
        let mut inputs = vec![Vec::new(); program.pipes.len()];
        for (id, port) in (0..).map(PortId).zip(&program.ports) {
            let mut waiting: Vec<PipeId> = port.root.into_iter().collect();
            while let Some(pipe) = waiting.pop() {
                let of = &mut inputs[pipe.index()];
                if of.last() != Some(&id) {
                    of.push(id);
                    let leads = leads(&program.pipes[pipe.index()]);
                    waiting.extend(leads.iter().flat_map(|(forward, _)| next_pipes(program, *forward)));
                }
            }
        }
        let order = Shape::of(program).order;
        let order: Vec<PipeId> = order.into_iter().filter(|pipe| !inputs[pipe.index()].is_empty()).collect();
        let mut tags = vec![i32::MAX; program.pipes.len()];
        program.ports.iter().filter_map(|port| port.root).for_each(|root| tags[root.index()] = 0);
        for from in &order {
            for (forward, operations) in leads(&program.pipes[from.index()]) {
                let left = tags[from.index()] + actions::tags(operations);
                for to in next_pipes(program, forward) {
                    tags[to.index()] = tags[to.index()].min(left);
                }
            }
        }
        let first_table = if program.depth() >= Depth::L3 { 2 } else { 1 };
        let (lists, compiled) = (Vec::new(), Compiled::default());
        Compiler { program, options, order, first_table, inputs, tags, lists, compiled }
    }

    /// The table of a pipe that frames can reach.
    fn table(&self, pipe: PipeId) -> u8 {
        let at = self.order.iter().position(|one| *one == pipe).unwrap_or_default();
        (self.first_table + at).min(TABLE_MAX) as u8
    }

    fn refuse(&mut self, part: Part, origin: Origin, why: Why) {
        self.compiled.refusals.push(RefusedPart { part, origin, why });
    }

    fn flow(&mut self, table: u8, priority: u16, matches: &FlowMatch, actions: impl Into<String>) {
        let matches = matches.text(self.options.ports);
        self.compiled.flows.push(SwitchFlow { table, priority, matches, actions: actions.into() });
    }

    /// What concerns no single pipe.
    fn whole_program(&mut self) {
        if self.program.follows() {
            self.refuse(Part::Program, Origin::default(), Why::FollowFragments);
        }
        // The last one is for buckets.
        if self.first_table + self.order.len() > TABLE_MAX {
            self.refuse(Part::Program, Origin::default(), Why::Tables);
        }
    }

    /// The tables in front of the pipes: one drops what weir drops as malformed, as far as a match can say
    /// it, and one sends each port's frames to its root. Frames of other ports are dropped.
    fn entrance(&mut self) {
        let dispatch = self.first_table as u8 - 1;
        if dispatch > 0 {
            self.senders(dispatch);
        }
        for (id, port) in (0..).map(PortId).zip(&self.program.ports) {
            let mut from = FlowMatch::default();
            from.narrow(SwitchField::InPort, u128::from(id.0), SwitchField::InPort.all());
            let actions = match port.root {
                Some(root) => format!("goto_table:{}", self.table(root)),
                None => "drop".into(),
            };
            self.flow(dispatch, 1, &from, actions);
        }
        let rest = if self.options.kernel_is_normal { "NORMAL" } else { "drop" };
        self.flow(dispatch, 0, &FlowMatch::default(), rest);
    }

    /// The addresses that no sender has (docs/reference/pipes.md F6). A header that Open vSwitch finds
    /// malformed has no addresses there, which looks like the unspecified one.
    fn senders(&mut self, next: u8) {
        let onward = format!("goto_table:{next}");
        let unspecified = |ip: FlowMatch, source: SwitchField| ip.and(source, 0, source.all());
        let (v4, v6) = (FlowMatch::of_type(0x0800), FlowMatch::of_type(0x86dd));
        let (v4_none, v6_none) =
            (unspecified(v4.clone(), SwitchField::Ipv4Src), unspecified(v6.clone(), SwitchField::Ipv6Src));
        let many_v4 = [(0xe000_0000, 0xf000_0000), (0xffff_ffff, 0xffff_ffff)];
        let many_v6 = (0xff << 120, 0xff << 120);
        for (value, mask) in many_v4 {
            self.flow(0, 2, &v4_none.clone().and(SwitchField::Ipv4Dst, value, mask), onward.clone());
            self.flow(0, 1, &v4.clone().and(SwitchField::Ipv4Src, value, mask), "drop");
        }
        self.flow(0, 2, &v6_none.clone().and(SwitchField::Ipv6Dst, many_v6.0, many_v6.1), onward.clone());
        self.flow(0, 1, &v6.and(SwitchField::Ipv6Src, many_v6.0, many_v6.1), "drop");
        self.flow(0, 1, &v4_none, "drop");
        self.flow(0, 1, &v6_none, "drop");
        self.flow(0, 0, &FlowMatch::default(), onward);
    }
}

/// Where packets of a pipe go, and by which action.
fn leads(pipe: &Pipe) -> Vec<(Forward, &[Operation])> {
    let mut leads = vec![(pipe.miss, &[][..])];
    match pipe.forward {
        Forward::PerEntry => {
            let uses = Uses::of(&pipe.entries);
            leads.extend(uses.leads().map(|(forward, at)| {
                let operations = &pipe.templates[usize::from(at)].operations[..];
                (forward, operations)
            }));
        }
        every => leads.extend(pipe.templates.iter().map(|template| (every, &template.operations[..]))),
    }
    leads
}
