//! Small programs in which hits leave by port 1 and misses are dropped.

use std::ops::{Deref, DerefMut};
use weir_kernel::{Executor, FrameOutcome};
use weir_oracle::trace::Known;
use weir_oracle::{Interpreter, Walk};
use weir_packet::{DropReason, Field};
use weir_program::Verdict;
use weir_program::builder::ProgramBuilder;
use weir_program::snapshot::Count;
use weir_program::{
    Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Learn, MeterConfig, MeterDeclaration,
    Operation, Pipe, PipeId, PipeKind, PortDeclaration, PortId, Program, Target,
};

pub use weir_packet::craft::frame;

pub const MS: u64 = 1_000_000;
pub const HIT: Verdict = Verdict::Transmit(PortId(1));
pub const MISS: Verdict = Verdict::Drop(DropReason::Miss);

pub fn dropped(reason: DropReason) -> Verdict {
    Verdict::Drop(reason)
}

/// Two ports, the first of which leads to the first pipe, and one app. Pipes other than the first are named
/// by position.
pub fn program(pipes: Vec<Pipe>) -> Program {
    let mut program = ProgramBuilder::new();
    let [input, _] = program.ports(["in", "out"].map(|name| PortDeclaration::new(name).kernel_path(true)));
    for (at, pipe) in pipes.into_iter().enumerate() {
        let name = if at == 0 { pipe.name } else { format!("{}{at}", pipe.name) };
        program.pipe(Pipe { name, ..pipe });
    }
    program.root(input, PipeId(0));
    program.app("app");
    program.counter("shared");
    program.select_seed(7);
    program.build()
}

/// A blank pipe whose hits are forwarded, with room for eight entries.
pub fn pipe(kind: PipeKind) -> Pipe {
    Pipe::new("pipe", kind).forward(PortId(1)).capacity(8)
}

/// An exact match on one whole field, with an entry for each value.
pub fn exact(field: Field, values: &[u128]) -> Pipe {
    pipe(PipeKind::Basic).per_entry(field).entries(values.iter().copied())
}

/// A match on one constant, with an entry that matches everything.
pub fn only(field: Field, value: u128, mask: u128) -> Pipe {
    all().constant_bits(field, value, mask)
}

/// A pipe that every packet hits.
pub fn all() -> Pipe {
    pipe(PipeKind::Basic).entry(Entry::default())
}

/// The same, with an action.
pub fn act(operations: Vec<Operation>) -> Pipe {
    all().act(operations)
}

/// A row for each of two targets, forwarding to the port with the target's number.
pub fn rows() -> [Entry; 2] {
    [0, 1].map(|target| Entry::on(EntryMatch::Target(target)).to(PortId(target)))
}

pub fn flow(learn: Learn, capacity: u32) -> Pipe {
    let pipe = Pipe::flow("pipe", learn).forward(PortId(1));
    let pipe = match learn {
        Learn::Nothing => pipe,
        Learn::Default => pipe.entry(EntryMatch::Default),
        Learn::Pin(_) | Learn::Follow(_) => pipe.entries(rows()).forward(Forward::PerEntry),
    };
    pipe.capacity(capacity)
}

pub fn hash(input: HashInput) -> Pipe {
    Pipe::hash("pipe", input, GroupId(0)).entries(rows()).forward(Forward::PerEntry).capacity(8)
}

/// Adds a group with `targets` targets, whose buckets the interpreter gets.
pub fn with_group(program: Program, targets: u16) -> Program {
    let targets = (0..targets).map(|at| Target::new(format!("target{at}"), PortId(at)));
    Program { groups: vec![Group::new("group", Fill::Wants, 4).targets(targets)], ..program }
}

pub fn with_meter(mut program: Program, config: MeterConfig) -> Program {
    program.meters.push(MeterDeclaration::new("meter", config));
    program
}

/// Starts the interpreter, and the kernel beside it, with every bucket naming target 0.
pub fn start(program: &Program) -> BesideKernel {
    let buckets: Vec<Vec<u16>> = program.groups.iter().map(|group| vec![0; group.size as usize]).collect();
    let kernel = Executor::load(program, &buckets);
    if let Err(error) = &kernel {
        let is_denied = Executor::load(&Program::default(), &[]).is_err();
        assert!(is_denied && std::env::var_os("CI").is_none(), "the kernel refuses the program: {error}");
    }
    BesideKernel { interpreter: Interpreter::new(program, buckets), kernel: kernel.ok() }
}

/// An interpreter, and the same program in the kernel, which has to do the same with each packet that it
/// decides. Programs load there only with root's privileges.
pub struct BesideKernel {
    interpreter: Interpreter,
    kernel: Option<Executor>,
}

impl BesideKernel {
    /// Runs a packet in both and returns the interpreter's walk.
    pub fn walk(&mut self, input: PortId, bytes: &[u8], headroom: usize, now_ns: u64) -> Walk {
        let walk = self.interpreter.walk(input, bytes, headroom, now_ns);
        // What drivers leave in front of frames, and what a test run of an XDP program takes.
        let runs = headroom >= 128 && (14..=3_500).contains(&bytes.len());
        if let Some(kernel) = self.kernel.as_ref().filter(|_| runs) {
            let (outcome, after) = kernel.run(input, bytes).expect("a test run");
            match outcome {
                FrameOutcome::Left(_) => assert_eq!(after, bytes, "left to the engine, but changed"),
                FrameOutcome::Decided(verdict) => {
                    assert_eq!(verdict, walk.verdict, "in the kernel: {:?}", walk.trace);
                    let is_dropped = matches!(verdict, Verdict::Drop(_));
                    assert!(
                        is_dropped || after == walk.bytes,
                        "in the kernel: {after:?}, not {:?}",
                        walk.bytes
                    );
                }
            }
        }
        walk
    }
}

impl Deref for BesideKernel {
    type Target = Interpreter;

    fn deref(&self) -> &Interpreter {
        &self.interpreter
    }
}

impl DerefMut for BesideKernel {
    /// The kernel does not see other changes, so packets are no longer compared.
    fn deref_mut(&mut self) -> &mut Interpreter {
        self.kernel = None;
        &mut self.interpreter
    }
}

pub fn walk(program: &Program, bytes: &[u8]) -> Walk {
    start(program).walk(PortId(0), bytes, 128, 0)
}

/// The verdict on a frame that meets one pipe.
pub fn meets(pipe: Pipe, bytes: &[u8]) -> Verdict {
    walk(&program(vec![pipe]), bytes).verdict
}

/// The bytes that leave a pipe with this action.
pub fn acted(operations: Vec<Operation>, bytes: &[u8]) -> Vec<u8> {
    let walk = walk(&program(vec![act(operations)]), bytes);
    assert_eq!(walk.verdict, HIT, "{:?}", walk.trace);
    walk.bytes
}

pub fn fails(operations: Vec<Operation>, bytes: &[u8]) -> Verdict {
    meets(act(operations), bytes)
}

pub fn hits(interpreter: &Interpreter, pipe: usize, entry: usize) -> Count {
    interpreter.snapshot().pipes[pipe].entries[entry].hits
}

pub fn known(walk: &Walk) -> Known {
    walk.trace.last().and_then(|step| step.flow).expect("the last pipe is a FLOW pipe").known
}

/// Whether all checksums of a frame are correct according to etherparse. A UDP checksum of 0 means there is
/// none.
pub fn checksums_are_right(bytes: &[u8]) -> bool {
    use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
    let headers = PacketHeaders::from_ethernet_slice(bytes).expect("a frame that etherparse parses");
    let payload = headers.payload.slice();
    let mut wanted = headers.transport.clone();
    let net_is_right = match headers.net.as_ref().expect("IP") {
        NetHeaders::Ipv4(ip, _) => {
            if let Some(transport) = &mut wanted {
                transport.update_checksum_ipv4(ip, payload).expect("a length that fits");
            }
            ip.header_checksum == ip.calc_header_checksum()
        }
        NetHeaders::Ipv6(ip, _) => {
            if let Some(transport) = &mut wanted {
                transport.update_checksum_ipv6(ip, payload).expect("a length that fits");
            }
            true
        }
        NetHeaders::Arp(_) => true,
    };
    let none = matches!(&headers.transport, Some(TransportHeader::Udp(udp)) if udp.checksum == 0);
    net_is_right && (none || wanted == headers.transport)
}

/// The 16-bit number at an offset.
pub fn number(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
