//! Finds which worker a frame that has just arrived belongs to, where FLOW pipes have different requirements:
//! the pipes in front of them are run without counting, and the first FLOW pipe that a frame meets determines
//! what its worker is computed from. The check has made sure that these pipes behave the same when the frame
//! is processed, and that they write nothing but metadata, which is reset then.

use super::{Engine, Share};
use crate::pipes::flow::Flows;
use weir_packet::{Batch, Bits};
use weir_program::owner::{Owner, Side, Spread};
use weir_program::{PipeId, PortId};

impl Engine {
    /// Does the work of [`Engine::of_others`] by means of these pipes.
    pub(super) fn look_ahead(
        &mut self,
        pipes: &[(PipeId, Option<Owner>)],
        batch: &mut Batch,
        list: u64,
        input: PortId,
        Share { own, workers }: Share,
        mut found: impl FnMut(usize, usize),
    ) -> (u64, u64) {
        let Engine { walk, program, steering, pipes: compiled, .. } = self;
        let Some(root) = program.ports.get(input.index()).and_then(|port| port.root) else { return (0, 0) };
        let spread = Spread { steering, workers };
        walk.live = false;
        walk.start(walk.now_ns, input);
        let good = walk.packets.open(batch, list, &walk.reading);
        let untold = walk.packets.untold(good);
        walk.lists[root.index()] = good & !untold;
        let mut others = 0;
        for &(pipe, owner) in pipes {
            let list = std::mem::take(&mut walk.lists[pipe.index()]);
            if list == 0 {
                continue;
            }
            let pipe = &mut compiled[pipe.index()];
            let Some(owner) = owner else {
                pipe.run(walk, batch, list);
                continue;
            };
            let Some(flows) = pipe.table.flows() else { continue };
            for slot in Bits(list) {
                let frame = batch.frame(slot).bytes();
                let (headers, ports) = (&walk.packets.headers[slot], walk.packets.ports_of(slot));
                let side =
                    side(flows, walk.packets.meta[slot], |number| walk.numbers.group(number).is_some());
                let worker = owner.of(frame, headers, ports, side, &program.nat_pools, spread);
                if let Some(worker) = worker.filter(|&worker| worker != own) {
                    others |= 1 << slot;
                    found(slot, worker);
                }
            }
        }
        // Where the other pipes lead does not matter.
        walk.lists.fill(0);
        others |= walk.packets.untold_of_others(batch, untold, own, spread, found);
        walk.packets.forget_headers(others);
        (others, untold & !others)
    }
}

/// Returns where a packet comes from: for packets from the answering end, metadata chooses no group.
fn side(flows: &Flows, meta: [u32; 4], is_group: impl Fn(u32) -> bool) -> Side {
    match flows.chosen_by().is_none_or(|word| is_group(meta[usize::from(word) & 3])) {
        true => Side::Client,
        false => Side::Server,
    }
}
