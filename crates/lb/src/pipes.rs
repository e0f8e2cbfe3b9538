//! Writes the pipes that choose back ends: one for each way of choosing, with an entry for each back end of
//! each service that uses it.

use super::actions::{self, Action};
use super::choosers::{Chooser, ErrorsBy, Translated, can_grow, number};
use super::health::Health;
use super::service::{BackEnd, By, Service};
use super::vlan::{self, Tags};
use super::{NAME, REJECT, TOO_LONG, answers, bits};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use weir_app::bits::spread;
use weir_config::attachment::{Attachments, Mac};
use weir_program::builder::ProgramBuilder;
use weir_program::{
    AppId, CounterId, Entry, EntryList, EntryMatch, Forward, Group, GroupId, Pipe, PipeId, SharedUse, Target,
};

/// The maximum number of pairs of service and back end that each get a counter; beyond it, each service has a
/// single counter. A program has room for 65 536 counters, and metrics scrapers are unlikely to want more.
pub(super) const COUNTED_MAX: usize = 32_768;

/// Returns the number of vacant places for further back ends of a service that has this many. A change that
/// needs more places is a reload, which makes room again.
fn room(back_ends: usize) -> usize {
    back_ends.clamp(8, 256)
}

/// The pipes that choose, and the groups that they choose from.
pub(super) struct Writer<'a> {
    services: &'a [Service],
    attachments: &'a Attachments,
    program: &'a mut ProgramBuilder,
    /// Where packets go if no back end is chosen.
    miss: Forward,
    /// Room for flows in each pipe that keeps flows.
    flows: u32,
    /// Whether each back end of each service has a counter.
    counted: bool,
    /// The app that answers packets that are too long, if the path to some back end is limited.
    too_long: Option<AppId>,
    /// Per service: its group, unless it needs none.
    groups: Vec<Option<GroupId>>,
    pipes: Pipes,
    /// The pipe that changes VLAN tags, if there is one.
    tags: Option<Tags>,
}

/// The pipes that choose back ends.
#[derive(Default)]
pub(super) struct Pipes {
    /// The pipes, by how they choose.
    pub choosers: Vec<(Chooser, PipeId)>,
    /// The pipes in front of these, for services whose back ends have server IDs.
    pub quic: Vec<(Chooser, PipeId)>,
    /// The pipe that changes VLAN tags, if there is one.
    pub tags: Option<Tags>,
}

impl<'a> Writer<'a> {
    /// Adds the services' groups and counters to a program. Services whose names are in `growing` get room
    /// for further back ends, if there are still counters for all back ends then.
    pub fn new(
        services: &'a [Service],
        attachments: &'a Attachments,
        program: &'a mut ProgramBuilder,
        (miss, flows, health): (Forward, u32, &Health),
        growing: &HashSet<&str>,
    ) -> Writer<'a> {
        let counted = is_counted(services);
        let room = |service: &Service| {
            let grows = growing.contains(service.name.as_str()) && can_grow(service);
            if grows { room(service.back_ends.len()) } else { 0 }
        };
        let others: usize = program.groups.iter().map(|group| group.targets.len()).sum();
        let places = services.iter().map(|service| service.back_ends.len() + room(service));
        let has_room = counted && others + places.sum::<usize>() <= COUNTED_MAX;
        let room = |service: &Service| if has_room { room(service) } else { 0 };
        program.spare_counters(services.iter().map(room).sum());
        let mut lists = HashMap::new();
        let (scales, rejecting) = (health.scales(), health.rejecting());
        let rejects = services.iter().any(|service| rejecting.contains(service.name.as_str()));
        let reject = rejects.then(|| program.app(REJECT));
        let idle = services.iter().any(|one| one.resets_idle).then(|| program.app(answers::IDLE));
        let groups = services.iter().enumerate();
        let groups = groups
            .map(|(at, service)| {
                let app = reject.filter(|_| rejecting.contains(service.name.as_str()));
                let idle = idle.filter(|_| service.resets_idle);
                let about = (scales.of(&service.name), [app, idle], room(service));
                group((at, service), about, &mut lists, program)
            })
            .collect();
        let is_tunnel = |back_end: &BackEnd| back_end.mode.is_tunnel();
        let measures = |service: &Service| service.limited || service.back_ends.iter().any(is_tunnel);
        let too_long = services.iter().any(measures).then(|| program.app(TOO_LONG));
        let (pipes, tags) = (Pipes::default(), None);
        Writer { services, attachments, program, miss, flows, counted, too_long, groups, pipes, tags }
    }

    /// Adds the pipes, and returns them.
    pub fn write(mut self) -> Pipes {
        for service in self.services {
            for ipv6 in [false, true].into_iter().filter(|ipv6| service.has(*ipv6)) {
                let known = |list: &[(Chooser, PipeId)], chooser| list.iter().any(|(one, _)| *one == chooser);
                for chooser in Chooser::all_of(service, ipv6) {
                    if !known(&self.pipes.choosers, chooser) {
                        let blank = chooser.blank(self.program, self.flows, service.timeouts);
                        let pipe = self.program.pipe(blank);
                        self.pipes.choosers.push((chooser, pipe));
                    }
                }
                let chooser = Chooser::of(service, ipv6);
                if service.quic.is_some() && !known(&self.pipes.quic, chooser) {
                    let blank = chooser.quic(self.program);
                    let pipe = self.program.pipe(blank);
                    self.pipes.quic.push((chooser, pipe));
                }
            }
        }
        let outs = |service: &Service| {
            let ways = service.ways().into_iter().map(|way| way.map_or(Forward::InputPort, |way| way.to));
            ways.chain([self.client_at(service)]).collect::<Vec<Forward>>()
        };
        let outs: Vec<Forward> = self.services.iter().flat_map(outs).collect();
        self.tags = Tags::write(self.services, &outs, self.program);
        for (chooser, id) in self.pipes.choosers.clone() {
            let pipe = self.pipe(chooser, id);
            self.program.define(id, pipe);
        }
        for (chooser, id) in self.pipes.quic.clone() {
            let pipe = self.quic_pipe(chooser, id);
            self.program.define(id, pipe);
        }
        Pipes { tags: self.tags, ..self.pipes }
    }

    /// Returns the pipe that finds back ends by server IDs, in front of the choosing pipe.
    fn quic_pipe(&mut self, chooser: Chooser, id: PipeId) -> Pipe {
        let all = self.services.iter().enumerate().filter(|(_, service)| service.quic.is_some());
        let own: Vec<(usize, &Service)> = all.filter(|(_, one)| is_chosen_by(one, chooser)).collect();
        // A server ID names a back end directly, without a row.
        let actions = self.only_used(Action::direct(false), &own, chooser);
        let mut entries = EntryList::default();
        own.iter().for_each(|one| self.entries(*one, chooser, &actions, &mut entries));
        let blank = self.program.pipes[id.index()].clone();
        let templates: Vec<_> = actions.into_iter().map(Action::template).collect();
        let others = self.pipes.choosers.iter().find(|(one, _)| *one == chooser);
        let miss = others.map_or(self.miss, |(_, pipe)| Forward::Pipe(*pipe));
        let pipe = blank.actions(templates).forward(Forward::PerEntry).miss(miss);
        let pipe = Pipe { too_long: self.too_long, ..pipe };
        let room = pipe.capacity.max(entries.len() as u32);
        with_entries(pipe.counter(SharedUse::PerEntry).capacity(room), entries)
    }

    fn pipe(&mut self, chooser: Chooser, id: PipeId) -> Pipe {
        let all = self.services.iter().enumerate();
        let takes = |service: &Service| {
            let all_of = |ipv6: &bool| Chooser::all_of(service, *ipv6).contains(&chooser);
            [false, true].iter().filter(|ipv6| service.has(**ipv6)).any(all_of)
        };
        let own: Vec<(usize, &Service)> = all.filter(|(_, service)| takes(service)).collect();
        let mut actions = chooser.actions();
        let keeps_flows = matches!(chooser, Chooser::Flows(_) | Chooser::Translated(_));
        if !keeps_flows {
            actions = self.only_used(actions, &own, chooser);
        }
        let mut entries = EntryList::default();
        // Reserves room for back ends without an entry, which may get one at run time.
        let mut room = 1;
        for (at, service) in own {
            self.entries((at, service), chooser, &actions, &mut entries);
            room += service.back_ends.len() as u32;
        }
        if let Chooser::Translated(translated) = chooser {
            entries.extend(self.answers(translated, &actions));
        }
        let blank = self.program.pipes[id.index()].clone();
        let templates: Vec<_> = actions.into_iter().map(Action::template).collect();
        let pipe = blank.actions(templates).forward(Forward::PerEntry).miss(self.miss);
        let pipe = Pipe { too_long: self.too_long, ..pipe };
        // In a pipe that keeps flows, the capacity is that of the flow table.
        let room = if keeps_flows { 0 } else { room.max(entries.len() as u32) };
        let room = pipe.capacity.max(room);
        with_entries(pipe.counter(SharedUse::PerEntry).capacity(room), entries)
    }

    /// Removes the actions that no entry uses. This is only possible in pipes without flows, which lose
    /// nothing when a reload changes their actions.
    fn only_used(
        &self,
        mut actions: Vec<Action>,
        own: &[(usize, &Service)],
        chooser: Chooser,
    ) -> Vec<Action> {
        let mut used: Vec<Action> = Vec::new();
        for (at, service) in own {
            let of_port = self.own_mac(service);
            for (back_end, ..) in self.members((*at, service), chooser) {
                let action = actions::action((service, &service.back_ends[back_end]), of_port, &actions);
                if !used.contains(&action) {
                    used.push(action);
                }
            }
        }
        // A pipe without entries still has actions.
        actions.retain(|action| used.is_empty() || used.contains(action));
        actions
    }

    /// Returns the back ends of a service that have entries in a pipe, with what each entry matches.
    fn members(
        &self,
        (at, service): (usize, &Service),
        chooser: Chooser,
    ) -> Vec<(usize, EntryMatch, Option<EntryMatch>)> {
        match (chooser, self.groups[at]) {
            (Chooser::SourceBits(mask) | Chooser::Errors(ErrorsBy::SourceBits(mask)), _) => {
                let value = |value: u32| EntryMatch::Value(spread(value, mask).into());
                let number = EntryMatch::Value(number(at).into());
                let deal = |(bits, back_end): (u32, usize)| (back_end, number, Some(value(bits)));
                (0..).zip(bits::deal(&service.back_ends, mask)).map(deal).collect()
            }
            (_, Some(group)) => {
                // Without an entry, a back end has no flows.
                let kept = service.back_ends.iter().enumerate().filter(|(_, one)| one.state.keeps_flows());
                kept.map(|(at, _)| (at, EntryMatch::Member { group, target: at as u16 }, None)).collect()
            }
            (_, None) => Vec::new(),
        }
    }

    /// Returns the MAC address of a service's first port, if it is known.
    fn own_mac(&self, service: &Service) -> Option<Mac> {
        let of_port = service.ports.first().and_then(|port| self.attachments.at(port.index()));
        of_port.and_then(|port| port.mac)
    }

    /// Appends the entries of a service's back ends in packed form, because there may be a million.
    fn entries(
        &mut self,
        (at, service): (usize, &Service),
        chooser: Chooser,
        actions: &[Action],
        entries: &mut EntryList,
    ) {
        let of_port = self.own_mac(service);
        let counters = self.counters(service);
        for (back_end, given, more) in self.members((at, service), chooser) {
            let pair = (service, &service.back_ends[back_end]);
            let is_known = pair.1.resolve.is_none();
            let way = service.way_out(pair.1);
            let tags = self.tags.as_ref();
            let out = tags.map_or(0, |tags| tags.number(way));
            let to = tags.filter(|_| pair.1.vlan.is_some()).map_or(way, |tags| Forward::Pipe(tags.packets));
            let to = match (pair.1.mode.is_forwarded(), is_known) {
                (false, _) => Forward::App(self.program.app(REJECT)),
                (true, true) => to,
                (true, false) => Forward::Drop,
            };
            let entry = actions::entry(pair, (of_port, out), actions, given);
            let mut entry = entry.to(to).counter(counters[back_end]);
            entry.matches.extend(more);
            entries.push(&entry);
        }
    }

    /// Returns the counter of each back end of a service.
    fn counters(&mut self, service: &Service) -> Vec<CounterId> {
        let mut counter = |back_end| self.program.counter(counter_name(service, back_end, self.counted));
        if self.counted {
            service.back_ends.iter().map(counter).collect()
        } else {
            service
                .back_ends
                .first()
                .map(|first| vec![counter(first); service.back_ends.len()])
                .unwrap_or_default()
        }
    }

    /// Returns where answers from the back ends of a service go: to where the flows came from.
    fn client_at(&self, service: &Service) -> Forward {
        let port = service.ports.first().and_then(|port| self.attachments.with(*port));
        let elsewhere = service.ways().iter().any(Option::is_some);
        port.filter(|_| elsewhere).map_or(Forward::InputPort, |port| port.to)
    }

    /// Returns the entry of the answers to translated flows.
    fn answers(&mut self, translated: Translated, actions: &[Action]) -> Option<Entry> {
        let all = self.services;
        let mut own = all.iter().filter(|service| Translated::of(service) == Some(translated));
        let service = own.clone().next()?;
        let (ipv6, full) = (translated.is_ipv6(), matches!(translated, Translated::Both(..)));
        let tags = self.tags.as_ref().filter(|_| own.any(vlan::is_used));
        let action = Action::answers(ipv6, full, tags.is_some());
        let action = actions.iter().position(|one| *one == action)?;
        let to = self.client_at(service);
        let entry = Entry::on(EntryMatch::Default).template(action as u16).origin(service.origin);
        let entry = match tags {
            Some(tags) => entry.value(tags.number(to)).to(tags.answers),
            None => entry.to(to),
        };
        Some(entry.counter(self.program.counter(format!("{NAME}/answers"))))
    }
}

/// Whether each back end of each service has a counter.
pub(super) fn is_counted(services: &[Service]) -> bool {
    services.iter().map(|service| service.back_ends.len()).sum::<usize>() <= COUNTED_MAX
}

/// Returns the name of the counter for a back end's traffic of a service.
pub(super) fn counter_name(service: &Service, back_end: &BackEnd, counted: bool) -> String {
    let service = &service.name;
    if counted { format!("{NAME}/{service}/{}", back_end.name) } else { format!("{NAME}/{service}") }
}

/// Returns the name of a service's group.
pub(super) fn group_name(service: &Service) -> String {
    format!("{NAME}/{}", service.name)
}

/// Lists of targets, by the list of back ends and by location: services that share back ends share these as
/// well, because there may be a million pairs of both.
type Lists = HashMap<(*const BackEnd, Forward, u32, usize), Arc<[Target]>>;

/// Adds the group of a service, whose weights are multiplied by `scale`. Packets without a back end go to the
/// first app, and connections that have been idle for too long are reported to the second, if these are
/// given. The group gets `room` vacant places. Services that choose by bits of the source address have no
/// group.
fn group(
    (at, service): (usize, &Service),
    (scale, [no_target, idle], room): (u32, [Option<AppId>; 2], usize),
    lists: &mut Lists,
    program: &mut ProgramBuilder,
) -> Option<GroupId> {
    if let By::SourceBits(_) = service.by {
        return None;
    }
    let forward = service.out.as_ref().map_or(Forward::InputPort, |out| out.to);
    let target = |back_end: &BackEnd| {
        let weight = back_end.effective_weight() * scale;
        let target =
            Target::new(&back_end.name, service.way_out(back_end)).weight(weight).origin(back_end.origin);
        let target = target.inactive(back_end.weight == 0);
        let target = back_end.known_as().map_or(target.clone(), |address| target.address(address));
        back_end.server_id.map_or(target.clone(), |id| target.server_id(id))
    };
    let list = lists.entry((service.back_ends.as_ptr(), forward, scale, room));
    let vacant = || std::iter::repeat_with(Target::vacant).take(room);
    let all = || service.back_ends.iter().map(target).chain(vacant()).collect();
    let targets = Arc::clone(list.or_insert_with(all));
    let group =
        Group::new(group_name(service), service.fill, service.size).number(number(at)).origin(service.origin);
    let group = group.new_flows(service.new_flows).affinity(service.affinity).no_target(no_target).idle(idle);
    Some(program.group(Group { targets, quic: service.quic.clone(), ..group }))
}

/// Whether a service's packets of an IP version are assigned in this way.
fn is_chosen_by(service: &Service, chooser: Chooser) -> bool {
    [false, true].iter().any(|ipv6| service.has(*ipv6) && Chooser::of(service, *ipv6) == chooser)
}

/// Adds these entries to a pipe that has none.
fn with_entries(pipe: Pipe, mut entries: EntryList) -> Pipe {
    entries.shrink();
    Pipe { entries, ..pipe }
}
