//! The tables that find a packet's service. Each address family has one for exact addresses and ports, one
//! for prefixes and ranges, where the most specific wins, the same for ICMP errors about the service's
//! packets, and one for answers. An entry writes the number of the service's group and leads to the pipe that
//! chooses its back end.

use super::NAME;
use super::announce::{Answered, ECHO_V4, ECHO_V6, Pinged, solicited_node};
use super::choosers::{Chooser, Translated, number};
use super::pipes::{COUNTED_MAX, Pipes};
use super::service::{Address, Mode, Service};
use std::collections::HashSet;
use std::net::IpAddr;
use weir_config::attachment::{Attachments, Mac};
use weir_packet::{Field, PROTOCOL_TCP, PROTOCOL_UDP};
use weir_program::builder::{Number, ProgramBuilder};
use weir_program::{
    Criterion, Entry, EntryMatch, Forward, NatPool, Operation, Origin, Pipe, PipeId, PipeKind, PortId,
    Template, Value,
};

/// Capacity for services added at run time.
const CAPACITY: u32 = 1024;
/// The action that clamps the MSS of a connection.
const CLAMPED: u16 = 1;
/// The operation of an ARP request (RFC 826), and the type of a neighbour solicitation (RFC 4861 §4.3).
const ARP_REQUEST: u16 = 1;
const SOLICITATION: u8 = 135;
/// The bit of a destination MAC address that marks broadcast and multicast.
const GROUP_BIT: u128 = 1 << 40;

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServiceTable {
    ipv6: bool,
    of: Of,
}

/// The content of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// Packets to an address and a port.
    Exact,
    /// Packets to a prefix, or a range of ports.
    Wide,
    /// ICMP errors about packets from an address and a port.
    Errors,
    /// ICMP errors about packets from a prefix, or a range of ports.
    WideErrors,
    /// Answers to translated flows.
    Answers,
    /// Requests for the MAC addresses of VIPs: ARP, or neighbour discovery.
    Asked,
    /// Echo requests to an address.
    Echo,
    /// Echo requests to a prefix.
    WideEcho,
}

/// The destinations of frames that weir answers itself.
pub(super) struct Replies {
    /// Requests for MAC addresses, by ARP and by neighbour discovery.
    pub asked: [Forward; 2],
    /// Pings.
    pub echo: Forward,
}

/// The input from which tables are written.
pub(super) struct Finder<'a> {
    services: &'a [Service],
    pipes: &'a Pipes,
    pools: &'a [NatPool],
    /// The destination addresses to accept at each port, if the ports' own addresses are known.
    macs: Option<Vec<(PortId, Vec<Mac>)>>,
    /// The frames that weir answers itself, and their destinations.
    answered: Option<(&'a Answered, Replies)>,
    /// The tables of clients, for IPv4 and IPv6, if some service does not serve all.
    clients: [Option<PipeId>; 2],
}

impl<'a> Finder<'a> {
    /// Returns the source for the tables of services. The pipes are those that choose back ends.
    pub fn new(
        services: &'a [Service],
        attachments: &'a Attachments,
        pipes: &'a Pipes,
        pools: &'a [NatPool],
    ) -> Finder<'a> {
        let macs = |port: PortId| Some((port, attachments.macs(port)?));
        let macs = ports(services).into_iter().map(macs).collect();
        Finder { services, pipes, pools, macs, answered: None, clients: [None; 2] }
    }

    /// Adds the tables of clients, which drop the packets that no entry matches.
    pub fn with_clients(mut self, program: &mut ProgramBuilder) -> Finder<'a> {
        for ipv6 in [false, true] {
            let limits = |service: &Service| service.has(ipv6) && !service.clients.is_empty();
            if self.services.iter().any(limits) {
                let family = if ipv6 { "v6" } else { "v4" };
                let blank = Pipe::acl(format!("{NAME}/clients/{family}"));
                let field = if ipv6 { Field::Ipv6Src } else { Field::Ipv4Src };
                let pipe = blank
                    .matching(Field::Meta0, Criterion::Masked)
                    .matching(field, Criterion::Masked)
                    .capacity(CAPACITY)
                    .entries(self.entries_of_clients(ipv6))
                    .forward(Forward::PerEntry)
                    .miss(Forward::Drop);
                self.clients[usize::from(ipv6)] = Some(program.pipe(pipe));
            }
        }
        self
    }

    /// Returns the entries for the clients of services. They lead to where packets go if a service serves all
    /// clients.
    fn entries_of_clients(&self, ipv6: bool) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (at, service) in self.services.iter().enumerate() {
            let chooser = Chooser::of(service, ipv6);
            let choosers = &self.pipes.choosers;
            let Some((_, to)) = choosers.iter().find(|(one, _)| *one == chooser) else { continue };
            let number = EntryMatch::Masked { value: number(at).into(), mask: Field::Meta0.max() };
            let own = service.clients.iter().filter(|(address, _)| address.is_ipv6() == ipv6);
            for (address, prefix) in own {
                let entry = Entry::on(number).and(masked(*address, *prefix));
                entries.push(entry.to(*to).origin(service.origin));
            }
        }
        entries
    }

    /// Adds what weir answers itself.
    pub fn answering(self, answered: &'a Answered, replies: Replies) -> Finder<'a> {
        Finder { answered: Some((answered, replies)), ..self }
    }

    /// Returns the tables that are needed, in the order in which packets meet them.
    pub fn tables(&self) -> Vec<ServiceTable> {
        let services = [Of::Exact, Of::Wide, Of::Errors, Of::WideErrors, Of::Answers];
        let all = services.into_iter().chain([Of::Asked, Of::Echo, Of::WideEcho]);
        let tables = all.flat_map(|of| [false, true].map(|ipv6| ServiceTable { ipv6, of }));
        tables.filter(|table| self.is_needed(*table)).collect()
    }

    fn is_needed(&self, table: ServiceTable) -> bool {
        let mut addresses = self.services.iter().flat_map(|service| &service.addresses);
        addresses.any(|address| table.has(address))
            || table.of == Of::Answers && self.translated().any(|(_, ipv6, _)| ipv6 == table.ipv6)
            || self.answered.as_ref().is_some_and(|(answered, _)| table.answers(answered))
    }

    /// Returns the tables of translated flows, each with its IP version and its pipe.
    fn translated(&self) -> impl Iterator<Item = (Translated, bool, PipeId)> + '_ {
        self.pipes.choosers.iter().filter_map(|(chooser, pipe)| match chooser {
            Chooser::Translated(translated) => Some((*translated, translated.is_ipv6(), *pipe)),
            _ => None,
        })
    }

    /// Returns a table as a pipe.
    pub fn pipe(&self, table: ServiceTable, blank: Pipe) -> Pipe {
        let entries = match table.of {
            Of::Asked => return self.asked(table.ipv6, blank),
            Of::Answers => self.answers(table.ipv6),
            Of::Echo | Of::WideEcho => self.pings(table),
            _ => self.entries(table),
        };
        let mut pipe = self.matching(table, blank).forward(Forward::PerEntry);
        let number = if table.of == Of::Answers { Value::Const(0) } else { Value::PerEntry };
        let number = Operation::Set(Field::Meta0, number);
        pipe = if self.clamps(table) {
            // `CLAMPED` depends on this order.
            let clamp = Operation::ClampMss { mss: Value::PerEntry };
            pipe.actions([Template::new("plain", [number]), Template::new("clamped", [number, clamp])])
        } else {
            pipe.act([number])
        };
        // Answers are found by the addresses of back ends, which come and go without a reload.
        let room = if table.of == Of::Answers { entries.len() + entries.len().min(COUNTED_MAX) } else { 0 };
        pipe.capacity(CAPACITY.max(room as u32)).entries(entries)
    }

    /// Whether connections found in a table have their MSS clamped.
    fn clamps(&self, table: ServiceTable) -> bool {
        let limits = |service: &&Service| service.mss(table.ipv6).is_some();
        let mut services = self.services.iter().filter(limits);
        let finds = |address: &Address| table.has(address) && address.protocol == PROTOCOL_TCP;
        match table.of {
            Of::Exact | Of::Wide => services.any(|service| service.addresses.iter().any(finds)),
            Of::Answers => services.any(|service| Translated::of(service).is_some()),
            _ => false,
        }
    }

    fn matching(&self, table: ServiceTable, blank: Pipe) -> Pipe {
        let blank = if table.is_wide() { Pipe { kind: PipeKind::Acl, ..blank } } else { blank };
        let given = |pipe: Pipe, field: Field| match table.is_wide() {
            true => pipe.matching(field, Criterion::Masked),
            false => pipe.per_entry(field),
        };
        // Broadcasts and frames for other hosts must not be forwarded: with two ports on one switch they
        // would loop.
        let pipe = match self.macs {
            Some(_) => given(blank, Field::EthDst),
            None => blank.constant_bits(Field::EthDst, 0, GROUP_BIT),
        };
        let [src, dst] =
            if table.ipv6 { [Field::Ipv6Src, Field::Ipv6Dst] } else { [Field::Ipv4Src, Field::Ipv4Dst] };
        let pipe = given(pipe, Field::InputPort);
        if table.has_errors() {
            let [from, protocol] = match table.ipv6 {
                true => [Field::ErrorV6Src, Field::ErrorV6Protocol],
                false => [Field::ErrorV4Src, Field::ErrorV4Protocol],
            };
            let pipe = given(given(pipe, from), protocol);
            return match table.of {
                Of::WideErrors => pipe.matching(Field::ErrorSport, Criterion::Range),
                _ => given(pipe, Field::ErrorSport),
            };
        }
        let pipe = given(pipe, dst);
        match table.of {
            Of::Answers => given(pipe, src),
            Of::Exact => given(given(pipe, Field::IpProtocol), Field::L4Dport),
            Of::Wide => given(pipe, Field::IpProtocol).matching(Field::L4Dport, Criterion::Range),
            Of::Echo | Of::WideEcho if table.ipv6 => pipe.constant(Field::Icmpv6Type, ECHO_V6),
            Of::Echo | Of::WideEcho => pipe.constant(Field::IcmpType, ECHO_V4),
            // These are handled differently.
            Of::Asked | Of::Errors | Of::WideErrors => pipe,
        }
    }

    /// Returns the table of requests for VIPs. They may be sent to any station. Solicitations are sent to the
    /// VIP's group, or to the VIP itself by hosts that verify that it is still reachable.
    fn asked(&self, ipv6: bool, blank: Pipe) -> Pipe {
        let Some((answered, replies)) = &self.answered else { return blank };
        let pipe = if ipv6 {
            blank
                .constant(Field::Icmpv6Type, SOLICITATION)
                .per_entry(Field::InputPort)
                .per_entry(Field::Ipv6Dst)
        } else {
            let requests = blank.constant(Field::ArpOperation, ARP_REQUEST);
            requests.per_entry(Field::InputPort).per_entry(Field::ArpTargetIp)
        };
        let mut entries = Vec::new();
        for one in answered.vips.iter().filter(|one| one.vip.is_ipv6() == ipv6) {
            let mut add = |address: IpAddr| {
                let port = EntryMatch::Value(one.port.number());
                entries.push(Entry::on(port).and(address).origin(one.origin));
            };
            add(one.vip);
            if let IpAddr::V6(vip) = one.vip {
                add(solicited_node(vip).into());
            }
        }
        let mut seen = HashSet::new();
        entries.retain(|entry| seen.insert(entry.matches.clone()));
        pipe.capacity(CAPACITY).entries(entries).forward(replies.asked[usize::from(ipv6)])
    }

    /// Returns the entries for pings: to the app, or to the back ends of a service.
    fn pings(&self, table: ServiceTable) -> Vec<Entry> {
        let Some((answered, replies)) = &self.answered else { return Vec::new() };
        let mut entries = Vec::new();
        for ping in answered.pings.iter().filter(|ping| table.has_ping(ping)) {
            let service = ping.service.and_then(|at| Some((at, self.services.get(at)?)));
            let (number, to) = match service {
                None => (0, replies.echo),
                Some((at, service)) => {
                    let chooser = Chooser::of(service, table.ipv6);
                    let Some((_, to)) = self.pipes.choosers.iter().find(|(one, _)| *one == chooser) else {
                        continue;
                    };
                    (number(at), Forward::Pipe(*to))
                }
            };
            for head in self.heads(ping.port, table.is_wide(), ping.origin) {
                let (dst, rank) = match table.is_wide() {
                    true => (masked(ping.vip, ping.prefix), u32::from(128 - ping.prefix)),
                    false => (ping.vip.into(), 0),
                };
                entries.push(head.and(dst).value(number).to(to).priority(rank));
            }
        }
        entries
    }

    /// Returns the initial parts of entries for frames that arrive on a port: the addresses that they may
    /// have.
    fn heads(&self, port: PortId, wide: bool, origin: Origin) -> Vec<Entry> {
        let any = Entry::default().origin(origin);
        let heads = match &self.macs {
            None => vec![any],
            Some(macs) => {
                let own = macs.iter().filter(|(one, _)| *one == port).flat_map(|(_, macs)| macs);
                own.map(|mac| any.clone().and(given(mac.number(), Field::EthDst.max(), wide))).collect()
            }
        };
        let port = given(port.number(), Field::InputPort.max(), wide);
        heads.into_iter().map(|head| head.and(port)).collect()
    }

    fn entries(&self, table: ServiceTable) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (at, service) in self.services.iter().enumerate() {
            let chooser = match table.has_errors() {
                true => Chooser::of_errors(service, table.ipv6),
                false => Chooser::of(service, table.ipv6),
            };
            let find =
                |pipes: &[(Chooser, PipeId)]| pipes.iter().find(|(one, _)| *one == chooser).map(|one| one.1);
            let Some(chooses) = find(&self.pipes.choosers) else { continue };
            let quic = service.quic.as_ref().filter(|_| !table.has_errors());
            let quic = quic.and_then(|_| find(&self.pipes.quic));
            let mss = service.mss(table.ipv6).filter(|_| self.clamps(table));
            for address in service.addresses.iter().filter(|address| table.has(address)) {
                let to = quic.filter(|_| address.protocol == PROTOCOL_UDP).unwrap_or(chooses);
                let is_limited = !service.clients.is_empty() && !table.has_errors();
                let to = self.clients[usize::from(table.ipv6)].filter(|_| is_limited).unwrap_or(to);
                for port in &service.ports {
                    for head in self.heads(*port, table.is_wide(), service.origin) {
                        let mut entry = table.entry(head, address).value(number(at)).to(to);
                        if let Some(mss) = mss.filter(|_| address.protocol == PROTOCOL_TCP) {
                            entry = entry.template(CLAMPED).value(mss);
                        }
                        entries.push(entry);
                    }
                }
            }
        }
        entries
    }

    /// Returns the entries for answers to translated flows: from back ends, or to the addresses of a pool.
    fn answers(&self, ipv6: bool) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (translated, _, to) in self.translated().filter(|(_, of, _)| *of == ipv6) {
            let mut seen = HashSet::new();
            let own = self.services.iter().filter(|service| Translated::of(service) == Some(translated));
            for service in own {
                let own = self.answers_to(service, translated, to).into_iter();
                entries.extend(own.filter(|entry| seen.insert(entry.matches.clone())));
            }
        }
        entries
    }

    /// Returns the entries for answers to the translated flows of a service.
    pub fn answers_to(&self, service: &Service, translated: Translated, to: PipeId) -> Vec<Entry> {
        let mut entries = Vec::new();
        // The pool's addresses are more specific than a back end's, which may serve several services.
        let priority = u32::from(matches!(translated, Translated::Destination(_)));
        for port in back_ports(service) {
            for head in self.heads(port, true, service.origin) {
                let entry = |(dst, src): (EntryMatch, EntryMatch)| {
                    let entry = head.clone().and(dst).and(src).to(to).priority(priority);
                    match service.mss(translated.is_ipv6()) {
                        Some(mss) => entry.template(CLAMPED).value(mss),
                        None => entry,
                    }
                };
                entries.extend(ends(service, translated, self.pools).into_iter().map(entry));
            }
        }
        entries
    }
}

/// Returns the name of the table of answers.
pub(super) fn answers_name(ipv6: bool) -> String {
    ServiceTable { ipv6, of: Of::Answers }.name()
}

/// Returns the sources and destinations of answers to a service's flows.
fn ends(service: &Service, translated: Translated, pools: &[NatPool]) -> Vec<(EntryMatch, EntryMatch)> {
    match translated {
        Translated::Both(pool, _) => {
            let pool = pools.get(pool.index()).into_iter().flat_map(|pool| &pool.prefixes);
            pool.map(|prefix| (masked(prefix.first, prefix.length), EntryMatch::Any)).collect()
        }
        Translated::Destination(_) => {
            let nat = service.back_ends.iter().filter(|one| matches!(one.mode, Mode::Nat { .. }));
            let ips = nat.filter_map(|back_end| back_end.mode.ip());
            ips.map(|ip| (EntryMatch::Any, masked(ip, if ip.is_ipv6() { 128 } else { 32 }))).collect()
        }
    }
}

/// Returns the ports on which answers to a service's flows arrive.
pub(super) fn back_ports(service: &Service) -> Vec<PortId> {
    if Translated::of(service).is_none() {
        return Vec::new();
    }
    service.back_ports()
}

/// Returns the ports on which packets and answers of services arrive, without duplicates.
pub(super) fn ports(services: &[Service]) -> Vec<PortId> {
    let all = services.iter().flat_map(|service| service.ports.iter().copied().chain(back_ports(service)));
    let mut ports: Vec<PortId> = all.collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

impl ServiceTable {
    /// Returns the name of the table, which is empty for the first one.
    pub fn name(self) -> String {
        let family = if self.ipv6 { "v6" } else { "v4" };
        let part = match self.of {
            Of::Exact => "",
            Of::Wide => "/ranges",
            Of::Errors => "/errors",
            Of::WideErrors => "/errors/ranges",
            Of::Answers => "/answers",
            Of::Asked if self.ipv6 => return format!("{NAME}/nd"),
            Of::Asked => return format!("{NAME}/arp"),
            Of::Echo => "/echo",
            Of::WideEcho => "/echo/ranges",
        };
        format!("{NAME}{part}/{family}")
    }

    fn is_wide(self) -> bool {
        matches!(self.of, Of::Wide | Of::WideErrors | Of::Answers | Of::WideEcho)
    }

    fn has_errors(self) -> bool {
        matches!(self.of, Of::Errors | Of::WideErrors)
    }

    /// Whether this table looks up packets to an address.
    fn has(self, address: &Address) -> bool {
        let here = match self.of {
            Of::Exact | Of::Errors => address.is_exact(),
            Of::Wide | Of::WideErrors => !address.is_exact(),
            Of::Answers | Of::Asked | Of::Echo | Of::WideEcho => false,
        };
        here && address.is_ipv6() == self.ipv6
    }

    /// Whether this table looks up frames that weir answers.
    fn answers(self, answered: &Answered) -> bool {
        match self.of {
            Of::Asked => answered.vips.iter().any(|one| one.vip.is_ipv6() == self.ipv6),
            _ => answered.pings.iter().any(|ping| self.has_ping(ping)),
        }
    }

    /// Whether this table looks up pings to an address.
    fn has_ping(self, ping: &Pinged) -> bool {
        let of = if ping.is_host() { Of::Echo } else { Of::WideEcho };
        self.of == of && ping.vip.is_ipv6() == self.ipv6
    }

    /// Returns the entry of an address.
    fn entry(self, head: Entry, address: &Address) -> Entry {
        let wide = self.is_wide();
        let entry = if wide { head.and(masked(address.vip, address.prefix)) } else { head.and(address.vip) };
        let entry = entry.and(given(address.protocol.into(), Field::IpProtocol.max(), wide));
        // Among several that match a packet, the most specific one wins.
        let entry = if wide { entry.priority(address.rank()) } else { entry };
        match (self.of, address.ports) {
            (Of::Exact | Of::Errors, (port, _)) => entry.and(port),
            // Packets without ports must miss, so even all ports are treated as a range.
            (Of::Wide | Of::WideErrors, (first, last)) => entry.and(EntryMatch::Range { first, last }),
            _ => entry,
        }
    }
}

/// Returns a value in the form that an exact table, or one with masks, compares.
fn given(value: u128, mask: u128, wide: bool) -> EntryMatch {
    if wide { EntryMatch::Masked { value, mask } } else { EntryMatch::Value(value) }
}

fn masked(address: IpAddr, prefix: u8) -> EntryMatch {
    let field = if address.is_ipv6() { Field::Ipv6Dst } else { Field::Ipv4Dst };
    let mask = weir_config::value::prefix_mask(field, prefix);
    EntryMatch::Masked { value: address.number() & mask, mask }
}
