//! Changes of services' back ends that are made in the running program in place, so that they cost nothing
//! for other services. This is only possible for services of sources, such as the API, and only if nothing
//! but their back ends differs. The groups of such services have vacant places ([`super::pipes`]), which new
//! back ends take; the others keep their places, and so their flows.
//!
//! A changed service is read, checked and written into a program like any other, but as if it were the only
//! one. Whatever this module cannot change is left to a reload, which also reports errors.

use super::choosers::{Chooser, Translated, can_grow};
use super::collisions::{Collision, collisions};
use super::edits::tree;
use super::health::{Guarded, Health, Watch, is_rate_possible};
use super::neighbours::{Neighbours, Reached};
use super::pipes::{Pipes, Writer, group_name, is_counted};
use super::problems::has_loops;
use super::service::{BackEnd, Service};
use super::state::Place;
use super::tables::{Finder, answers_name};
use super::{Lb, yaml};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use weir_app::edits::{AmendedGroup, RunningConfig};
use weir_app::kind::Scope;
use weir_config::{Report, Span};
use weir_program::builder::ProgramBuilder;
use weir_program::change::{Change, EntryKey};
use weir_program::check::{BUCKETS_MAX, Severity, check};
use weir_program::{
    CounterId, Entry, EntryMatch, Forward, GroupId, Origin, PipeId, PortDeclaration, Program, Target,
};

/// A service that has changed: its name, and its contents before and after.
pub(super) type Changed<'a> = (&'a str, &'a serde_json::Value, &'a serde_json::Value);

/// A load balancer with other back ends, and the changes of its program that follow from them.
pub(super) struct AmendedLb {
    pub lb: Lb,
    pub groups: Vec<AmendedGroup>,
    pub counters: Vec<(CounterId, String)>,
    /// Whether ports must now take a different set of frames from the kernel.
    pub takes: bool,
}

/// Returns the load balancer with these services changed, if that is possible in place.
pub(super) fn services(lb: &Lb, running: &RunningConfig<'_>, changed: &[Changed<'_>]) -> Option<AmendedLb> {
    let health = &lb.health;
    if changed.is_empty() || health.services.len() != lb.services.len() {
        return None;
    }
    let mut next = Amending {
        running,
        neighbours: health.neighbours.clone(),
        services: lb.services.clone(),
        guarded: health.services.clone(),
        places: Vec::clone(&health.places),
        groups: Vec::new(),
        spare: Vec::new(),
        counters: Vec::new(),
        checks: false,
        takes: false,
    };
    for (name, _, now) in changed {
        let at = lb.services.iter().position(|service| service.name == *name)?;
        let (service, guarded, program) = read(now, lb.flows, running)?;
        let (old, old_guarded) = (&lb.services[at], health.services.get(at)?);
        if !is_alike((old, &service), (old_guarded, &guarded)) {
            return None;
        }
        next.replace(at, (service, guarded), &program)?;
    }
    next.finish(lb, changed)
}

/// Reads a service, and writes a program for it alone.
fn read(
    value: &serde_json::Value,
    flows: u32,
    running: &RunningConfig<'_>,
) -> Option<(Service, Arc<Guarded>, Program)> {
    let mut text = String::new();
    let node = tree::node(value, Span { line: 1, column: 1, length: 1, file: 0 }, &mut text);
    let mut report = Report::new("", text);
    let mut program = ProgramBuilder::new();
    for port in &running.program.ports {
        program.port(PortDeclaration { root: None, ..port.clone() });
    }
    for pool in &running.program.nat_pools {
        program.nat_pool(pool.clone());
    }
    program.select_seed(running.program.select_seed);
    let mut attachments = running.attachments.clone();
    let mut scope = Scope {
        kinds: running.apps.kinds(),
        program: &mut program,
        attachments: &mut attachments,
        ports: running.ports,
        control: running.control,
        report: &mut report,
    };
    let (service, guarded) = yaml::alone(&node, flows, &mut scope)?;
    let health = Health { services: vec![guarded], ..Health::default() };
    let services = [service];
    let shared = (Forward::Drop, flows, &health);
    Writer::new(&services, running.attachments, &mut program, shared, &HashSet::new()).write();
    let program = program.build();
    let is_fine = check(&program).iter().all(|finding| finding.severity != Severity::Error);
    let [service] = services;
    let guarded = health.services.into_iter().next().filter(|_| is_fine)?;
    Some((service, guarded, program))
}

/// Whether a service differs in nothing but its back ends, and in a way that can be changed in place.
fn is_alike((old, new): (&Service, &Service), (old_guarded, guarded): (&Guarded, &Guarded)) -> bool {
    let as_old =
        Service { back_ends: old.back_ends.clone(), size: old.size, origin: old.origin, ..new.clone() };
    let guarded_as_old = Guarded { back_ends: old_guarded.back_ends.clone(), ..guarded.clone() };
    let of_way = |(.., watch): &(String, u32, Option<super::health::Watch>)| {
        watch.as_ref().is_some_and(|watch| watch.check.via.is_some())
    };
    can_grow(old)
        && can_grow(new)
        && Translated::of(old) == Translated::of(new)
        && as_old == *old
        && guarded_as_old == *old_guarded
        && super::health::scale(guarded) == super::health::scale(old_guarded)
        && old.back_ports() == new.back_ports()
        && [false, true].into_iter().all(|ipv6| old.mss(ipv6) == new.mss(ipv6))
        && !guarded.back_ends.iter().chain(&old_guarded.back_ends).any(of_way)
}

/// Services while some of them are replaced.
struct Amending<'a> {
    running: &'a RunningConfig<'a>,
    services: Vec<Service>,
    guarded: Vec<Arc<Guarded>>,
    neighbours: Neighbours,
    places: Vec<Arc<[Place]>>,
    groups: Vec<AmendedGroup>,
    /// Counters that have no name yet; this list is empty until one of them is needed.
    spare: Vec<CounterId>,
    counters: Vec<(CounterId, String)>,
    /// Whether there are checks that there were not before.
    checks: bool,
    /// Whether ports must now take a different set of frames from the kernel.
    takes: bool,
}

impl Amending<'_> {
    /// Replaces a service. `alone` is the program that was written for the new one alone.
    fn replace(
        &mut self,
        at: usize,
        (service, guarded): (Service, Arc<Guarded>),
        alone: &Program,
    ) -> Option<()> {
        let running = self.running.program;
        let group = running.group_named(&group_name(&service))?;
        let [written] = &alone.groups[..] else { return None };
        let before = &running.groups[group.index()].targets;
        let mut targets = placed(before, &written.targets)?;
        let former_places = self.places.get(at).filter(|places| places.len() == targets.len())?.clone();
        let former = self.neighbours.reached(at);
        let reached = self.resolve(at, &service)?;
        let mut entries = self.entries(alone, group, &targets, (&former_places[..], &reached[..]))?;
        let (former, reached) = (by_name(&self.services[at], former), by_name(&service, reached));
        for target in &mut targets {
            if reached.get(target.name.as_str()).is_some_and(Reached::is_unknown) {
                target.weight = 0;
            }
        }
        let both = ((&former_places[..], &before[..]), (&mut entries[..], &targets[..]));
        let (adds, removes) = differences(both, (&former, &reached))?;
        let place = |(target, entries): (u16, Vec<(PipeId, Entry)>)| Place { group, target, entries };
        self.places[at] = (0..).zip(entries).map(place).collect();
        let size = written.size;
        self.groups.push(AmendedGroup { group, targets, size, before: adds, after: removes });
        self.note_checks(at, &guarded);
        let former = std::mem::replace(&mut self.services[at], service);
        self.guarded[at] = guarded;
        let (before, now) = (addresses(&former), addresses(&self.services[at]));
        if !now.is_subset(&before) && has_loops(&self.services, &self.services[at..=at]) {
            return None;
        }
        match Translated::of(&former) {
            Some(Translated::Destination(ipv6)) if before != now => self.find_answers(at, &former, ipv6),
            Some(Translated::Destination(_) | Translated::Both(..)) | None => Some(()),
        }
    }

    /// Returns the entries of a service's back ends, by their places in the group. `alone` is the program
    /// that was written for the service alone, `former` has the places as they were, and `reached` says how
    /// its back ends are reached.
    fn entries(
        &mut self,
        alone: &Program,
        group: GroupId,
        targets: &[Target],
        (former, reached): (&[Place], &[Reached]),
    ) -> Option<Vec<Vec<(PipeId, Entry)>>> {
        let running = self.running.program;
        let before = &running.groups[group.index()].targets;
        let [written] = &alone.groups[..] else { return None };
        let mut entries: Vec<Vec<(PipeId, Entry)>> = vec![Vec::new(); targets.len()];
        for pipe in &alone.pipes {
            let id = running.pipe_named(&pipe.name)?;
            let same = &running.pipes[id.index()];
            if same.templates != pipe.templates || pipe.too_long.is_some() && same.too_long.is_none() {
                return None;
            }
            let mut all = pipe.entries.cursor();
            while let Some(entry) = all.next() {
                // The entry for answers, which does not depend on back ends.
                if entry.matches[..] == [EntryMatch::Default] {
                    continue;
                }
                let [EntryMatch::Member { target, .. }] = entry.matches[..] else { return None };
                let name = &written.targets.get(usize::from(target))?.name;
                let place = targets.iter().position(|target| target.name == *name)?;
                let was = former.get(place).filter(|_| before[place].name == *name);
                let was = was.and_then(|was| was.entries.iter().find_map(|(_, entry)| entry.counter));
                let counter = match (was, entry.counter) {
                    (Some(was), Some(_)) => Some(was),
                    (None, Some(counter)) => Some(self.counter(alone.counters.get(counter.index())?)?),
                    (_, None) => None,
                };
                let matches = vec![EntryMatch::Member { group, target: place as u16 }];
                let mut entry = Entry { matches, counter, origin: Origin::default(), ..entry.clone() };
                reached.get(usize::from(target))?.lead(&mut entry);
                entries[place].push((id, entry));
            }
        }
        Some(entries)
    }

    /// Notes whether a service has checks that it did not have before.
    fn note_checks(&mut self, at: usize, guarded: &Guarded) {
        let before = &self.guarded[at].back_ends;
        let is_new = |watch: &Option<Watch>| watch.is_some() && !before.iter().any(|one| one.2 == *watch);
        self.checks |= guarded.back_ends.iter().any(|one| is_new(&one.2));
    }

    /// Changes the entries that find answers from the addresses of a service's back ends, which other
    /// services may also have. `former` is the service as it was.
    fn find_answers(&mut self, at: usize, former: &Service, ipv6: bool) -> Option<()> {
        self.takes = true;
        let running = self.running.program;
        let translated = Translated::Destination(ipv6);
        let chooser = Chooser::Translated(translated);
        let table = running.pipe_named(&answers_name(ipv6))?;
        let to = running.pipe_named(&chooser.name_in(&running.nat_pools))?;
        let pipes = Pipes { choosers: vec![(chooser, to)], ..Pipes::default() };
        let finder = Finder::new(&self.services, self.running.attachments, &pipes, &[]);
        let is_other = |(other, service): &(usize, &Service)| {
            *other != at && Translated::of(service) == Some(translated)
        };
        let others = self.services.iter().enumerate().filter(is_other).map(|(_, service)| service);
        let service = &self.services[at];
        // An entry of several services has the MSS of the first, which may be this one.
        if others.clone().chain([service]).any(|one| one.mss(ipv6).is_some()) {
            return None;
        }
        let (before, now) = (addresses(former), addresses(service));
        let differs: HashSet<IpAddr> = before.symmetric_difference(&now).copied().collect();
        let shares = |one: &&Service| one.back_ends.iter().any(|one| is_of(one, &differs));
        let sharing: Vec<&Service> = others.filter(shares).collect();
        // A reload warns of these.
        let collides =
            |one: &Collision<'_>| [one.first, one.second].iter().any(|one| one.name == service.name);
        if !sharing.is_empty() && collisions(&self.services).iter().any(collides) {
            return None;
        }
        let entries = |service: &Service| finder.answers_to(service, translated, to);
        let shared = sharing.into_iter().flat_map(entries).map(|entry| entry.matches);
        let shared: HashSet<Vec<EntryMatch>> = shared.collect();
        let matches = |entries: &[Entry]| -> HashSet<Vec<EntryMatch>> {
            entries.iter().map(|entry| entry.matches.clone()).collect()
        };
        let (old, new) = (entries(former), entries(service));
        let (was, is) = (matches(&old), matches(&new));
        let mut seen = HashSet::new();
        let group = self.groups.last_mut()?;
        for entry in
            new.into_iter().filter(|one| !was.contains(&one.matches) && !shared.contains(&one.matches))
        {
            if seen.insert(entry.matches.clone()) {
                let entry = Entry { origin: Origin::default(), ..entry };
                group.before.push(Change::Add { pipe: table, entry });
            }
        }
        for entry in
            old.into_iter().filter(|one| !is.contains(&one.matches) && !shared.contains(&one.matches))
        {
            if seen.insert(entry.matches.clone()) {
                group.after.push(Change::Remove { pipe: table, key: EntryKey::of(&entry) });
            }
        }
        Some(())
    }

    /// Resolves the MAC addresses of a service's new back ends, as far as the host knows them. Returns how
    /// each back end is reached.
    fn resolve(&mut self, at: usize, service: &Service) -> Option<Vec<Reached>> {
        let (neighbours, new) = self.neighbours.with(at, service, self.running.ports)?;
        if !new.is_empty() {
            neighbours.add((self.running.neighbours)(new));
        }
        self.neighbours = neighbours;
        Some(self.neighbours.reached(at))
    }

    /// Returns the counter with this name, or gives the name to one without.
    fn counter(&mut self, name: &str) -> Option<CounterId> {
        if let Some((id, _)) = self.counters.iter().find(|(_, known)| known == name) {
            return Some(*id);
        }
        let all = &self.running.program.counters;
        if let Some(at) = all.iter().position(|known| known == name) {
            return Some(CounterId(at as u16));
        }
        if self.spare.is_empty() && self.counters.is_empty() {
            let spare = all.iter().enumerate().filter(|(_, name)| name.is_empty());
            self.spare = spare.map(|(at, _)| CounterId(at as u16)).collect();
        }
        let id = self.spare.pop()?;
        self.counters.push((id, name.to_string()));
        Some(id)
    }

    fn finish(self, lb: &Lb, changed: &[Changed<'_>]) -> Option<AmendedLb> {
        let Amending { services, guarded, neighbours, places, groups, counters, running, .. } = self;
        let Amending { checks, takes, .. } = self;
        let sizes: HashMap<GroupId, u32> = groups.iter().map(|one| (one.group, one.size)).collect();
        let size = |(at, group): (u16, &weir_program::Group)| {
            u64::from(sizes.get(&GroupId(at)).copied().unwrap_or(group.size))
        };
        let buckets: u64 = (0..).zip(&running.program.groups).map(size).sum();
        let specs: Vec<_> = changed.iter().map(|(name, _, now)| (*name, *now)).collect();
        let is_possible = buckets <= BUCKETS_MAX
            && is_counted(&lb.services)
            && is_counted(&services)
            && (!checks || is_rate_possible(&guarded));
        let places = Arc::new(places);
        let (board, probes) = (lb.health.board.clone(), lb.health.probes.clone());
        let links = lb.health.links.clone();
        let health = Health { services: guarded, board, places, neighbours, probes, links };
        let lb = Lb {
            services,
            flows: lb.flows,
            nat_pools: lb.nat_pools.clone(),
            health,
            answered: lb.answered.clone(),
            persist: lb.persist,
            is_there: lb.is_there,
            specs: Arc::new(lb.specs.with(&specs)),
            sources: lb.sources.clone(),
        };
        is_possible.then_some(AmendedLb { lb, groups, counters, takes })
    }
}

/// Places of a group and its targets, as they were.
type Before<'a> = (&'a [Place], &'a [Target]);
/// The entries in these places, and the targets, as they will be.
type After<'a> = (&'a mut [Vec<(PipeId, Entry)>], &'a [Target]);
/// How back ends are reached, by name.
type ByName<'a, 'b> = &'b HashMap<&'a str, Reached>;

/// Returns the changes of entries that precede and that follow the change of targets; `None` if a back end
/// would lose its entries because its new MAC address is not known.
fn differences(
    ((old, before), (entries, targets)): (Before<'_>, After<'_>),
    (former, reached): (ByName<'_, '_>, ByName<'_, '_>),
) -> Option<(Vec<Change>, Vec<Change>)> {
    let (mut adds, mut removes) = (Vec::new(), Vec::new());
    for (place, (new, target)) in entries.iter_mut().zip(targets).enumerate() {
        let same = before[place].name == target.name;
        let old = &old[place].entries;
        let is_unknown = reached.get(target.name.as_str()).is_some_and(Reached::is_unknown);
        for (pipe, entry) in new {
            let was = old.iter().find(|(of, _)| of == pipe).filter(|_| same);
            match was {
                Some((_, was)) => {
                    entry.origin = was.origin;
                    let (mut was, former) = (was.clone(), former.get(target.name.as_str())?);
                    former.lead(&mut was);
                    if *entry != was {
                        if is_unknown && !former.is_unknown() {
                            return None;
                        }
                        adds.push(Change::Update { pipe: *pipe, entry: entry.clone() });
                    }
                }
                // The app adds it once the MAC address is known.
                None if is_unknown => {}
                None => adds.push(Change::Add { pipe: *pipe, entry: entry.clone() }),
            }
        }
    }
    for (place, old) in old.iter().enumerate() {
        let stays = |pipe: &PipeId| entries[place].iter().any(|(of, _)| of == pipe);
        for (pipe, entry) in old.entries.iter().filter(|(pipe, _)| !stays(pipe)) {
            removes.push(Change::Remove { pipe: *pipe, key: EntryKey::of(entry) });
        }
    }
    Some((adds, removes))
}

/// Returns how each back end of a service is reached, by name.
fn by_name(service: &Service, reached: Vec<Reached>) -> HashMap<&str, Reached> {
    service.back_ends.iter().map(|one| one.name.as_str()).zip(reached).collect()
}

/// Returns the addresses that packets are sent to.
fn addresses(service: &Service) -> HashSet<IpAddr> {
    service.back_ends.iter().filter_map(|one| one.mode.ip()).collect()
}

/// Whether a back end has one of these addresses.
fn is_of(back_end: &BackEnd, all: &HashSet<IpAddr>) -> bool {
    back_end.mode.ip().is_some_and(|ip| all.contains(&ip))
}

/// Puts targets into the places of a group: those that stay keep their places, and the others take vacant
/// ones. A place that this change vacates can only be taken by the next change, because packets are sent
/// there until this one is complete.
fn placed(before: &[Target], wanted: &[Target]) -> Option<Vec<Target>> {
    let mut places: Vec<Target> = vec![Target::vacant(); before.len()];
    let known = before.iter().enumerate().filter(|(_, target)| !target.is_vacant());
    let known: HashMap<&str, usize> = known.map(|(at, target)| (target.name.as_str(), at)).collect();
    let mut free = before.iter().enumerate().filter(|(_, target)| target.is_vacant());
    for target in wanted {
        let at = known.get(target.name.as_str()).copied().or_else(|| free.next().map(|(at, _)| at))?;
        places[at] = Target { origin: Origin::default(), ..target.clone() };
    }
    Some(places)
}
