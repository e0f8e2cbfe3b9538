//! The pipes, groups and app names written by a path app at a port. README.md has a diagram.

use super::config::PathPort;
use crate::buckets::SIZE;
use crate::icmp::{IN_TRANSIT, TIME_EXCEEDED};
use crate::paths::PATHS_MAX;
use crate::scheme::Scheme;
use crate::wire;
use crate::yaml::PEERS_MAX;
use std::net::Ipv4Addr;
use weir_packet::{Field, PROTOCOL_UDP};
use weir_program::builder::ProgramBuilder;
use weir_program::{
    Entry, Fill, Forward, Group, GroupChoice, HashInput, Learn, Operation, Pipe, PipeId, Target, Value,
};

/// Separates the choice of a bucket from that of other groups and of the fabric.
pub(super) const SEED: u64 = 0x7061_7468_0000_0000;

/// The metadata that chooses a peer's group.
pub(super) const CHOSEN: GroupChoice = GroupChoice::ByMeta(PEER_WORD);

/// Holds the number of the peer's group.
const PEER: Field = Field::Meta0;
const PEER_WORD: u8 = 0;

/// Holds a number that hashes to the bucket of a flow with a bucket of its own choice.
const BUCKET: Field = Field::Meta1;

/// Group numbers from here on are available for peers.
const NUMBERS: u16 = 0x8000;

/// Names of the parts.
pub(super) struct Names<'a>(pub &'a str);

impl Names<'_> {
    fn part(&self, part: &str) -> String {
        format!("{}/{part}", self.0)
    }

    /// The pipe of flows, and the app that receives copies of their first packets.
    pub fn flows(&self) -> String {
        self.part("flows")
    }

    /// The pipe of received probes, and the app that gets those from peers.
    pub fn probes(&self) -> String {
        self.part("probes")
    }

    /// The pipe of routers' messages about probes, and the app that receives copies.
    pub fn expired(&self) -> String {
        self.part("expired")
    }

    /// The pipes that assign a frame the port of its path: by the hash of its flow, and by the number that
    /// its flow keeps.
    pub fn ways(&self) -> [String; 2] {
        [self.part("buckets"), self.part("pinned")]
    }

    /// The group of a peer's paths.
    pub fn group(&self, peer: Ipv4Addr) -> String {
        self.part(&peer.to_string())
    }
}

impl PathPort {
    /// Adds the parts to the program, and makes them the roots of its ports.
    pub fn write(&self, program: &mut ProgramBuilder) {
        let names = Names(&self.name);
        let out = match self.scheme {
            Scheme::Adaptive => self.by_bucket(program, &names),
            Scheme::DocaAr => self.by_port(program, &names),
            _ => program.pipe(self.pipe(self.name.clone()).entry(Entry::default()).forward(self.port)),
        };
        let onwards = match (&self.input, self.root) {
            (Some(input), _) => input.to,
            (None, Some(root)) => Forward::Pipe(root),
            (None, None) => Forward::Drop,
        };
        let inward = self.inward(program, &names, onwards);
        program.root(self.port, inward);
        if let Some(input) = &self.input {
            input.lead(program, out);
        }
    }

    /// Probes from peers go to the app; others are dropped.
    fn inward(&self, program: &mut ProgramBuilder, names: &Names<'_>, onwards: Forward) -> PipeId {
        let app = program.app(names.probes());
        let peers = self.pipe(names.part("peers")).per_entry(Field::Ipv4Src);
        let peers = program.pipe(peers.entries(self.peers.iter().map(|peer| peer.address)).forward(app));
        let onwards = self.expired(program, names, onwards);
        let probes = self.pipe(names.probes()).constant(Field::VxlanVni, wire::VNI);
        program.pipe(probes.entry(Entry::default()).forward(peers).miss(onwards))
    }

    /// Routers' messages about packets whose TTL has expired continue, and a copy goes to the app: they may
    /// concern another program's packets, such as traceroute's.
    fn expired(&self, program: &mut ProgramBuilder, names: &Names<'_>, onwards: Forward) -> Forward {
        if self.discovery.is_none() {
            return onwards;
        }
        let app = program.app(names.expired());
        let next = program.pipe(self.pipe(names.part("on")).entry(Entry::default()).forward(onwards));
        let expired = self.pipe(names.expired()).constant(Field::Ipv4Dst, self.local);
        let expired = expired.constant(Field::IcmpType, TIME_EXCEEDED).constant(Field::IcmpCode, IN_TRANSIT);
        let expired = expired.entry(Entry::default()).forward(Forward::Tee { app, next }).miss(onwards);
        Forward::Pipe(program.pipe(expired))
    }

    /// Frames to peers are assigned a bucket of their peer: that of their flow, or of its hash. The app first
    /// adds entries for paths, then gives the buckets targets, and finally adds entries for the peers, so no
    /// frame meets an empty bucket.
    fn by_bucket(&self, program: &mut ProgramBuilder, names: &Names<'_>) -> PipeId {
        let taken: Vec<u16> = program.groups.iter().filter_map(|group| group.number).collect();
        let mut free = (NUMBERS..=u16::MAX).filter(|number| !taken.contains(number));
        for peer in &self.peers {
            let target = |at: usize| Target::new(at.to_string(), self.port);
            let number = free.next().unwrap_or(NUMBERS);
            let group = Group::new(names.group(peer.address), Fill::Given, SIZE as u32);
            let group = group.number(number).seed(SEED).targets((0..PATHS_MAX).map(target));
            program.group(group.origin(self.origin));
        }
        let ways = (self.peers.len() * PATHS_MAX) as u32;
        let hash = |name: &String, input| {
            Pipe::hash(name.clone(), input, CHOSEN)
                .origin(self.origin)
                .act([Operation::Set(Field::UdpSport, Value::PerEntry)])
                .capacity(ways)
                .forward(self.port)
                .miss(self.port)
        };
        let [buckets, pinned] = &names.ways();
        let buckets = program.pipe(hash(buckets, HashInput::Select(self.keyed().source)));
        let pinned = program.pipe(hash(pinned, HashInput::Fields(vec![(BUCKET, BUCKET.max())])));
        let app = program.app(names.flows());
        let flows = self.flows(names, BUCKET).forward(pinned).miss(Forward::Tee { app, next: buckets });
        let flows = program.pipe(flows);
        let out = self.to_peers().act([Operation::Set(PEER, Value::PerEntry)]);
        program.pipe(out.capacity(2 * PEERS_MAX as u32).forward(flows))
    }

    /// Frames to peers leave from the port that their flow keeps.
    fn by_port(&self, program: &mut ProgramBuilder, names: &Names<'_>) -> PipeId {
        let app = program.app(names.flows());
        let next = self.pipe(names.part("new")).entry(Entry::default()).forward(self.port);
        let next = program.pipe(next);
        let flows = self.flows(names, Field::UdpSport).forward(self.port);
        let flows = program.pipe(flows.miss(Forward::Tee { app, next }));
        let peers = self.peers.iter().map(|peer| peer.address);
        program.pipe(self.to_peers().entries(peers).forward(flows))
    }

    fn to_peers(&self) -> Pipe {
        let pipe = self.pipe(self.name.clone()).constant(Field::IpProtocol, PROTOCOL_UDP);
        let pipe = pipe.constant(Field::UdpDport, self.vxlan_port).per_entry(Field::Ipv4Dst);
        pipe.rehash(self.keyed().rehash).miss(self.port)
    }

    fn flows(&self, names: &Names<'_>, kept: Field) -> Pipe {
        Pipe::flow(names.flows(), Learn::Nothing)
            .key(self.keyed().source)
            .origin(self.origin)
            .capacity(self.flows)
            .idle_timeout_ns(self.idle_timeout_ns)
            .act([Operation::Set(kept, Value::PerEntry)])
    }

    fn pipe(&self, name: String) -> Pipe {
        Pipe::basic(name).origin(self.origin)
    }
}
