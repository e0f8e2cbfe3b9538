//! What a run has exercised.

use crate::pair::Changed;
use std::collections::{BTreeMap, BTreeSet};
use weir_oracle::Walk;
use weir_oracle::arbitrary::Coverage;
use weir_program::{Fill, HashInput, Operation, PipeKind, Program};

/// Features that the kernel must handle in 20 programs: types of pipes, criteria, fills, operations and
/// tunnels.
const USUAL: &str = "
    pipe:basic:hit pipe:basic:miss pipe:lpm:hit pipe:lpm:miss pipe:acl:hit pipe:acl:miss pipe:hash:hit
    pipe:hash:miss pipe:hash:no_target
    match:const:hit match:const:miss match:per_entry match:masked match:range match:prefix match:prefix:0
    match:any match:any:absent hash:fields hash:select fill:maglev fill:wants fill:katran fill:glb
    picked:foreign do:set do:add do:decrement_ttl do:pop_vlan do:push_vlan do:limit_length
    do:clamp_mss do:encap_vxlan do:encap_geneve do:encap_gre do:encap_ipip do:encap_gue
    do:decap_vxlan do:decap_geneve do:decap_gre do:decap_ipip do:decap_gue
    encap:src_bits:4 encap:src_bits:6 mended:inner_ipv4 mended:ipv4 mended:l4
    drop:not_applicable drop:ttl_expired drop:ecn_ce_not_ect counter:pipe counter:per_entry
    forward:pipe:hit forward:pipe:miss forward:group:miss verdict:kernel verdict:transmit";

/// Features that the generator makes more rarely: the kernel must handle them in three programs, or in 20 of
/// a long run.
const RARE: &str = "
    do:copy drop:not_fragmented drop:too_long hash:rss:absent picked:source lowered:mss by_meta:hash:chosen
    select:Inner seed:hash seed:group affinity:hash affinity:group forward:pipe:entry forward:group:entry
    encap:vxlan:over:4 encap:vxlan:over:6 encap:geneve:over:4 encap:geneve:over:6 encap:gre:over:4
    encap:gre:over:6 encap:ipip:over:4 encap:ipip:over:6 encap:gue:over:4 encap:gue:over:6";

/// What a run has seen.
#[derive(Default, Debug)]
pub struct SeenByAll {
    /// Packets that the kernel handled.
    pub decided: u64,
    /// Packets left to the engine, by reason.
    pub left: BTreeMap<String, u64>,
    /// The longest program, in instructions.
    pub instructions: usize,
    /// Changes, by what they led to.
    pub changes: BTreeMap<String, u64>,
    /// In how many programs each feature was part of a walk that the kernel handled.
    pub programs: BTreeMap<String, u64>,
}

impl SeenByAll {
    /// Adds what another thread has seen.
    pub fn add(&mut self, other: SeenByAll) {
        self.decided += other.decided;
        self.instructions = self.instructions.max(other.instructions);
        for (sums, more) in [
            (&mut self.left, other.left),
            (&mut self.changes, other.changes),
            (&mut self.programs, other.programs),
        ] {
            more.into_iter().for_each(|(name, count)| *sums.entry(name).or_default() += count);
        }
    }

    /// Counts a change.
    pub fn changed(&mut self, changed: Changed) {
        *self.changes.entry(format!("{changed:?}")).or_default() += 1;
    }

    /// Asserts that a run of some programs has exercised every feature; in a short run, the kernel only has
    /// to handle packets.
    pub fn is_enough(&self, programs: u64, usual: u64) {
        assert!(self.decided > 0, "{self:#?}");
        if programs < usual {
            return;
        }
        assert!(self.decided > 1_000 * usual / 2, "{self:#?}");
        let done = self.changes.get("Done").copied().unwrap_or(0);
        assert!(done > 10 * usual, "{self:#?}");
        let rare = if programs < 5 * usual { 3 } else { 20 };
        for (names, least) in [(USUAL, 20), (RARE, rare)] {
            let few: Vec<&str> = names.split_whitespace().filter(|one| self.of(one) < least).collect();
            assert!(few.is_empty(), "decided in fewer than {least} programs: {few:?} {self:#?}");
        }
    }

    /// Returns in how many programs the kernel handled a feature.
    fn of(&self, name: &str) -> u64 {
        self.programs.get(name).copied().unwrap_or(0)
    }
}

/// The features that the packets of one program, as far as the kernel handled them, have met.
#[derive(Default)]
pub struct MetByOne {
    coverage: Coverage,
    more: BTreeSet<String>,
}

impl MetByOne {
    /// Notes a decided packet.
    pub fn walk(&mut self, program: &Program, walk: &Walk) {
        self.coverage.walk(program, walk);
        for step in &walk.trace {
            let pipe = &program.pipes[step.pipe.index()];
            let picks = step.pick.iter().chain(step.forward.iter().filter_map(|one| one.pick.as_ref()));
            for pick in picks {
                self.more.insert(format!("fill:{}", fill(program.groups[pick.group.index()].fill)));
                self.more.extend(pick.foreign.then(|| "picked:foreign".to_string()));
                self.more.extend(pick.source.map(|_| "picked:source".to_string()));
            }
            if let PipeKind::Hash { input: HashInput::Select(source), .. } = pipe.kind {
                self.more.insert(format!("select:{source:?}"));
            }
            for done in &step.operations {
                if let Operation::Encap(encap) = done.operation {
                    let version = if encap.ipv6 { 6 } else { 4 };
                    self.more.insert(format!("encap:{}:over:{version}", encap.kind));
                    self.more.extend(encap.src_bits.map(|_| format!("encap:src_bits:{version}")));
                }
            }
        }
    }

    /// Adds one to each feature that this program's packets have met.
    pub fn add_to(self, seen: &mut SeenByAll) {
        for name in self.coverage.met().keys().chain(&self.more) {
            *seen.programs.entry(name.clone()).or_default() += 1;
        }
    }
}

fn fill(fill: Fill) -> &'static str {
    match fill {
        Fill::Maglev => "maglev",
        Fill::Wants => "wants",
        Fill::Given => "given",
        Fill::Katran(..) => "katran",
        Fill::Glb(..) => "glb",
    }
}
