//! VLAN tags of packets to back ends with a `vlan`, and of the answers that return through weir.
//!
//! The VLAN is known when a back end is chosen. Whether a tag must be changed or added is known only once the
//! packet has its final form, with a tunnel's headers. So the action of the back end writes the VLAN into
//! `meta.1` and the destination of the packet into `meta.2`, and the pipes here do the rest:
//!
//! ```text
//! lb/vlan -- tagged: set --> out          lb/vlan/answers -- meta.1 = 0 --> lb/vlan/pop -- tagged --> out
//!    | miss                                      | miss                         | miss
//! lb/vlan/push --> lb/vlan/set --> out        lb/vlan                      lb/vlan/none --> out
//! ```
//! Answers get the tag of the flow's first packet: `meta.1` is then its VLAN, or 0 without a tag.

use super::NAME;
use super::choosers::Translated;
use super::service::Service;
use weir_packet::{ETHER_VLAN, Field};
use weir_program::builder::ProgramBuilder;
use weir_program::{Entry, Forward, Operation, Pipe, PipeId, Value};

/// The metadata that carries the VLAN, and the destination of the packet.
pub(super) const VLAN: Field = Field::Meta1;
pub(super) const OUT: Field = Field::Meta2;

/// The pipes that change tags, and where they send packets.
pub(super) struct Tags {
    /// For packets to back ends.
    pub packets: PipeId,
    /// For answers.
    pub answers: PipeId,
    outs: Vec<Forward>,
}

/// Returns whether a service has back ends with a `vlan` that receive packets.
pub(super) fn is_used(service: &Service) -> bool {
    service.back_ends.iter().any(|back_end| back_end.vlan.is_some() && back_end.state.keeps_flows())
}

impl Tags {
    /// Adds the pipes, which send to any of `outs`, if services need them. They run after the pipes that
    /// choose back ends.
    pub fn write(services: &[Service], outs: &[Forward], program: &mut ProgramBuilder) -> Option<Tags> {
        if !services.iter().any(is_used) {
            return None;
        }
        let mut all: Vec<Forward> = Vec::new();
        for out in outs {
            if !all.contains(out) {
                all.push(*out);
            }
        }
        let to_outs = |pipe: Pipe| {
            let out = |(number, out): (u16, &Forward)| Entry::default().and(number).to(*out);
            pipe.per_entry(OUT).entries((0..).zip(&all).map(out)).forward(Forward::PerEntry)
        };
        let named = |part: &str| Pipe::basic(format!("{NAME}/vlan{part}"));
        // Matches any VLAN: untagged frames have none and miss.
        let tagged = |part: &str| named(part).constant_bits(Field::VlanVid, 0, 0);
        let set = || [Operation::Copy { from: VLAN, to: Field::VlanVid }];
        let none = Value::Const(0);
        let push = [Operation::PushVlan { tpid: ETHER_VLAN, vid: none, pcp: none }];

        let packets = program.pipe(named(""));
        let pushing = program.pipe(named("/push"));
        let setting = program.pipe(to_outs(named("/set")).act(set()));
        program.define(pushing, named("/push").entry(Entry::default()).act(push).forward(setting));
        program.define(packets, to_outs(tagged("")).act(set()).miss(pushing));
        let mut answers = packets;
        if services.iter().any(|service| is_used(service) && Translated::of(service).is_some()) {
            answers = program.pipe(named("/answers"));
            let popping = program.pipe(named("/pop"));
            let untagged = program.pipe(to_outs(named("/none")));
            program.define(popping, to_outs(tagged("/pop")).act([Operation::PopVlan]).miss(untagged));
            let without = named("/answers").constant(VLAN, 0).entry(Entry::default());
            program.define(answers, without.forward(popping).miss(packets));
        }
        Some(Tags { packets, answers, outs: all })
    }

    /// Returns the number that, in metadata, selects `out` as the destination.
    pub fn number(&self, out: Forward) -> u16 {
        self.outs.iter().position(|one| *one == out).unwrap_or_default() as u16
    }
}
