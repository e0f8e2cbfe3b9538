//! Changes of services' back ends that are made in the running program in place, so that they cost nothing
//! for other services. This is only possible for services of sources, such as the API, and only if nothing
//! but their back ends differs. The groups of such services have vacant places ([`super::pipes`]), which new
//! back ends take; the others keep their places, and so their flows.
//!
//! A changed service is read, checked and written into a program like any other, but as if it were the only
//! one. Whatever this module cannot change is left to a reload, which also reports errors.

use super::choosers::can_grow;
use super::edits::tree;
use super::health::{Guarded, Health, is_rate_possible};
use super::pipes::{Writer, group_name, is_counted};
use super::problems::has_loops;
use super::service::Service;
use super::state::Place;
use super::{Lb, yaml};
use std::collections::{HashMap, HashSet};
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
}

/// Returns the load balancer with these services changed, if that is possible in place.
pub(super) fn services(lb: &Lb, running: &RunningConfig<'_>, changed: &[Changed<'_>]) -> Option<AmendedLb> {
    let health = &lb.health;
    let has_ways = !health.probes.is_empty() || !health.neighbours.hops.is_empty();
    if changed.is_empty() || has_ways || health.services.len() != lb.services.len() {
        return None;
    }
    let mut next = Amending {
        running,
        services: lb.services.clone(),
        guarded: health.services.clone(),
        places: Vec::clone(&health.places),
        groups: Vec::new(),
        spare: Vec::new(),
        counters: Vec::new(),
    };
    for (name, _, now) in changed {
        let at = lb.services.iter().position(|service| service.name == *name)?;
        let (service, guarded, program) = read(now, running)?;
        let (old, old_guarded) = (&lb.services[at], health.services.get(at)?);
        if !is_alike((old, &service), (old_guarded, &guarded)) {
            return None;
        }
        next.replace(at, (service, guarded), &program)?;
    }
    next.finish(lb, changed)
}

/// Reads a service, and writes a program for it alone.
fn read(value: &serde_json::Value, running: &RunningConfig<'_>) -> Option<(Service, Guarded, Program)> {
    let mut text = String::new();
    let node = tree::node(value, Span { line: 1, column: 1, length: 1, file: 0 }, &mut text);
    let mut report = Report::new("", text);
    let mut program = ProgramBuilder::new();
    for port in &running.program.ports {
        program.port(PortDeclaration { root: None, ..port.clone() });
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
    let (service, guarded) = yaml::alone(&node, &mut scope)?;
    let health = Health { services: vec![guarded], ..Health::default() };
    let services = [service];
    let shared = (Forward::Drop, super::FLOWS, &health);
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
        && as_old == *old
        && guarded_as_old == *old_guarded
        && super::health::scale(guarded) == super::health::scale(old_guarded)
        && old.back_ports() == new.back_ports()
        && [false, true].into_iter().all(|ipv6| old.mss(ipv6) == new.mss(ipv6))
        && !guarded.back_ends.iter().any(of_way)
}

/// Services while some of them are replaced.
struct Amending<'a> {
    running: &'a RunningConfig<'a>,
    services: Vec<Service>,
    guarded: Vec<Guarded>,
    places: Vec<Arc<[Place]>>,
    groups: Vec<AmendedGroup>,
    /// Counters that have no name yet; this list is empty until one of them is needed.
    spare: Vec<CounterId>,
    counters: Vec<(CounterId, String)>,
}

impl Amending<'_> {
    /// Replaces a service. `alone` is the program that was written for the new one alone.
    fn replace(&mut self, at: usize, (service, guarded): (Service, Guarded), alone: &Program) -> Option<()> {
        let running = self.running.program;
        let group = running.group_named(&group_name(&service))?;
        let [written] = &alone.groups[..] else { return None };
        let before = &running.groups[group.index()].targets;
        let targets = placed(before, &written.targets)?;
        let mut entries: Vec<Vec<(PipeId, Entry)>> = vec![Vec::new(); targets.len()];
        for pipe in &alone.pipes {
            let id = running.pipe_named(&pipe.name)?;
            let same = &running.pipes[id.index()];
            if same.templates != pipe.templates || pipe.too_long.is_some() && same.too_long.is_none() {
                return None;
            }
            let mut all = pipe.entries.cursor();
            while let Some(entry) = all.next() {
                let [EntryMatch::Member { target, .. }] = entry.matches[..] else { return None };
                let name = &written.targets.get(usize::from(target))?.name;
                let place = targets.iter().position(|target| target.name == *name)?;
                let counter = match entry.counter {
                    Some(counter) => Some(self.counter(alone.counters.get(counter.index())?)?),
                    None => None,
                };
                let matches = vec![EntryMatch::Member { group, target: place as u16 }];
                let entry = Entry { matches, counter, origin: Origin::default(), ..entry.clone() };
                entries[place].push((id, entry));
            }
        }
        let old = self.places.get(at).filter(|places| places.len() == targets.len())?;
        let (mut adds, mut removes) = (Vec::new(), Vec::new());
        for (place, (new, target)) in entries.iter_mut().zip(&targets).enumerate() {
            let same = before[place].name == target.name;
            let old = &old[place].entries;
            for (pipe, entry) in new {
                let was = old.iter().find(|(of, _)| of == pipe).filter(|_| same);
                match was {
                    Some((_, was)) => {
                        entry.origin = was.origin;
                        if entry != was {
                            adds.push(Change::Update { pipe: *pipe, entry: entry.clone() });
                        }
                    }
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
        let place = |(target, entries): (u16, Vec<(PipeId, Entry)>)| Place { group, target, entries };
        self.places[at] = (0..).zip(entries).map(place).collect();
        let size = written.size;
        self.groups.push(AmendedGroup { group, targets, size, before: adds, after: removes });
        (self.services[at], self.guarded[at]) = (service, guarded);
        (!has_loops(&self.services, &self.services[at..=at])).then_some(())
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
        let Amending { services, guarded, places, groups, counters, running, .. } = self;
        let sizes: HashMap<GroupId, u32> = groups.iter().map(|one| (one.group, one.size)).collect();
        let size = |(at, group): (u16, &weir_program::Group)| {
            u64::from(sizes.get(&GroupId(at)).copied().unwrap_or(group.size))
        };
        let buckets: u64 = (0..).zip(&running.program.groups).map(size).sum();
        let specs: Vec<_> = changed.iter().map(|(name, _, now)| (*name, *now)).collect();
        let is_checked = guarded.iter().flat_map(|one| &one.back_ends).any(|(.., watch)| watch.is_some());
        let is_possible = buckets <= BUCKETS_MAX
            && is_counted(&lb.services)
            && is_counted(&services)
            && (!is_checked || is_rate_possible(&guarded));
        let health = Health { services: guarded, places: Arc::new(places), ..lb.health.clone() };
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
        is_possible.then_some(AmendedLb { lb, groups, counters })
    }
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
