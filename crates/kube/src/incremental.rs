//! Computes the desired state incrementally: only for the objects that a change may affect.
//!
//! A service depends on its object, its EndpointSlices and the addresses that it has been given; a route on
//! its object, its gateways, its namespace, the grants of others, and the services that it refers to; a
//! gateway on its object, its class, its addresses, the routes that are attached to it, and what nodes have
//! confirmed; and the finalizer of a class on the gateways that name it. Addresses are assigned to all
//! objects together, whenever the request of one of them has changed.

use crate::classes::{Classes, classes};
use crate::config::Config;
use crate::desired::{Desired, Notice, StatusChange, VirtualService, ours, serve_service, service_want};
use crate::endpoints::Slices;
use crate::gateway::{self, Attached};
use crate::objects::{Age, Changed, Cluster, ObjectKey, Owner, Protocol, age};
use crate::pools::{Given, Want, give};
use gateway_api::gateways::{Gateway, GatewaySpec};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

type RouteKey = (Protocol, ObjectKey);

/// An object from which results are derived.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ResultSource {
    Classes,
    Owner(Owner),
    Route(RouteKey),
}

/// The results of an object.
#[derive(Debug, Default)]
struct Consequences {
    services: Vec<Arc<str>>,
    statuses: Vec<StatusChange>,
    events: Vec<Notice>,
}

/// A route, and what it depends on.
#[derive(Debug)]
struct AttachedRoute {
    age: Age,
    attached: Attached,
    parents: BTreeSet<ObjectKey>,
}

/// Remembers the results for a cluster.
#[derive(Debug, Default)]
pub struct Incremental {
    slices: Slices,
    classes: Classes,
    wants: BTreeMap<(Age, Owner), Want>,
    /// The keys of `wants`.
    ages: HashMap<Owner, Age>,
    given: HashMap<Owner, Given>,
    /// The specifications of the gateways, to recognise when only the status of a gateway has changed.
    gateways: BTreeMap<ObjectKey, GatewaySpec>,
    routes: BTreeMap<RouteKey, AttachedRoute>,
    /// The routes that refer to a service.
    referring: HashMap<ObjectKey, BTreeSet<RouteKey>>,
    /// The routes that name a gateway as their parent.
    children: HashMap<ObjectKey, BTreeSet<RouteKey>>,
    results: BTreeMap<ResultSource, Consequences>,
    services: BTreeMap<Arc<str>, Arc<VirtualService>>,
}

/// What is new after an update.
#[derive(Debug, Default, PartialEq)]
pub struct Update {
    /// The names of services that are new, removed or changed.
    pub services: BTreeSet<Arc<str>>,
    /// Statuses that have not been returned before.
    pub statuses: Vec<StatusChange>,
    /// Events that have not been returned before.
    pub events: Vec<Notice>,
}

/// The sources to recompute.
#[derive(Default)]
struct Dirty {
    owners: BTreeSet<Owner>,
    routes: BTreeSet<RouteKey>,
}

impl Incremental {
    /// Returns the services that nodes should have.
    #[must_use]
    pub fn services(&self) -> &BTreeMap<Arc<str>, Arc<VirtualService>> {
        &self.services
    }

    /// Returns everything that deserves an event at present.
    pub fn events(&self) -> impl Iterator<Item = &Notice> {
        self.results.values().flat_map(|one| &one.events)
    }

    /// Returns all results for the cluster.
    #[must_use]
    pub fn desired(&self) -> Desired {
        let services = self.services.iter().map(|(name, one)| (name.clone(), (**one).clone()));
        let results = self.results.values();
        Desired {
            services: services.collect(),
            statuses: results.clone().flat_map(|one| &one.statuses).cloned().collect(),
            events: results.flat_map(|one| &one.events).cloned().collect(),
        }
    }

    /// Updates the results after changes of a cluster.
    pub fn update(&mut self, config: &Config, cluster: &Cluster, changed: &Changed) -> Update {
        let mut update = Update::default();
        let mut dirty = Dirty::default();
        let may_differ = changed.classes || !changed.gateways.is_empty();
        let classes_differ = may_differ && self.read_classes(config, cluster, &mut update);
        self.mark_routes(cluster, changed, classes_differ, &mut dirty);
        self.read_slices(cluster, changed, &mut dirty);
        let mut wants_differ = false;
        for key in &changed.services {
            dirty.owners.insert(Owner::Service(key.clone()));
            dirty.routes.extend(self.referring.get(key).into_iter().flatten().cloned());
            wants_differ |= self.read_service_want(config, cluster, key);
        }
        let gateways: BTreeSet<ObjectKey> = if classes_differ {
            cluster.gateways.keys().chain(self.gateways.keys()).cloned().collect()
        } else {
            changed.gateways.clone()
        };
        for key in gateways {
            dirty.owners.insert(Owner::Gateway(key.clone()));
            if self.read_gateway(cluster, &key) {
                dirty.routes.extend(self.children.get(&key).into_iter().flatten().cloned());
            }
            wants_differ |= self.read_gateway_want(config, cluster, &key);
        }
        if wants_differ {
            self.give(config, &mut dirty);
        }
        for key in std::mem::take(&mut dirty.routes) {
            self.compute_route(config, cluster, &key, &mut dirty, &mut update);
        }
        for owner in dirty.owners {
            let desired = self.compute_owner(config, cluster, &owner);
            self.replace(ResultSource::Owner(owner), desired, &mut update);
        }
        update
    }

    /// Reads the classes, and returns whether the gateways that this controller implements may have changed.
    fn read_classes(&mut self, config: &Config, cluster: &Cluster, update: &mut Update) -> bool {
        let mut desired = Desired::default();
        let classes = classes(config, cluster, &mut desired);
        self.replace(ResultSource::Classes, desired, update);
        let differ = classes != self.classes;
        self.classes = classes;
        differ
    }

    /// Marks the routes that changes may affect, except those of services and gateways.
    fn mark_routes(&self, cluster: &Cluster, changed: &Changed, all: bool, dirty: &mut Dirty) {
        dirty.routes.extend(changed.routes.iter().cloned());
        if all {
            let of = |protocol| cluster.routes(protocol).keys().map(move |key| (protocol, key.clone()));
            dirty.routes.extend(Protocol::ALL.into_iter().flat_map(of));
        }
        if changed.namespaces.is_empty() && changed.grants.is_empty() {
            return;
        }
        for (key, route) in &self.routes {
            let (_, (namespace, _)) = key;
            let is_granted = |service: &ObjectKey| changed.grants.contains(&service.0);
            if changed.namespaces.contains(namespace) || route.attached.services.iter().any(is_granted) {
                dirty.routes.insert(key.clone());
            }
        }
    }

    fn read_slices(&mut self, cluster: &Cluster, changed: &Changed, dirty: &mut Dirty) {
        for (key, services) in &changed.slices {
            let now = cluster.slices.get(key).and_then(|slice| slice.service.as_deref());
            for service in services.iter().map(AsRef::as_ref).chain(now) {
                let owner = (key.0.clone(), service.to_string());
                self.slices.set(&owner, &key.1, now == Some(service));
                dirty.routes.extend(self.referring.get(&owner).into_iter().flatten().cloned());
                dirty.owners.insert(Owner::Service(owner));
            }
        }
    }

    /// Notes what addresses an object asks for, and returns whether that has changed.
    fn set_want(&mut self, owner: &Owner, want: Option<(Age, Want)>) -> bool {
        let before = self.ages.get(owner).cloned();
        let before = before.and_then(|age| Some((age.clone(), self.wants.remove(&(age, owner.clone()))?)));
        let differs = before != want;
        match want {
            Some((age, want)) => {
                self.wants.insert((age.clone(), owner.clone()), want);
                self.ages.insert(owner.clone(), age);
            }
            None => {
                self.ages.remove(owner);
            }
        }
        differs
    }

    fn read_service_want(&mut self, config: &Config, cluster: &Cluster, key: &ObjectKey) -> bool {
        let service = cluster.services.get(key);
        let want = service.and_then(|service| {
            let want = service_want(config, cluster, (key, &**service, ours(config, service)?)).0;
            Some(((service.created, key.clone()), want))
        });
        self.set_want(&Owner::Service(key.clone()), want)
    }

    /// Returns a gateway, if this controller implements it.
    fn accepted<'a>(&self, cluster: &'a Cluster, key: &ObjectKey) -> Option<&'a Arc<Gateway>> {
        let gateway = cluster.gateways.get(key);
        gateway.filter(|gateway| self.classes.have(gateway))
    }

    /// Notes a gateway, and returns whether its change matters to routes.
    fn read_gateway(&mut self, cluster: &Cluster, key: &ObjectKey) -> bool {
        let spec = self.accepted(cluster, key).map(|gateway| &gateway.spec);
        if self.gateways.get(key) == spec {
            return false;
        }
        match spec {
            Some(spec) => self.gateways.insert(key.clone(), spec.clone()),
            None => self.gateways.remove(key),
        };
        true
    }

    fn read_gateway_want(&mut self, config: &Config, cluster: &Cluster, key: &ObjectKey) -> bool {
        let gateway = self.accepted(cluster, key);
        let want =
            gateway.map(|gateway| (age(&gateway.metadata), gateway::wanted(config, cluster, gateway).want));
        self.set_want(&Owner::Gateway(key.clone()), want)
    }

    /// Assigns addresses, and marks the objects whose addresses have changed.
    fn give(&mut self, config: &Config, dirty: &mut Dirty) {
        let given = give(&config.pools, &self.wants.values().collect::<Vec<_>>());
        let owners = self.wants.keys().map(|(_, owner)| owner);
        for (owner, given) in owners.zip(given) {
            if self.given.get(owner) != Some(&given) {
                dirty.owners.insert(owner.clone());
                self.given.insert(owner.clone(), given);
            }
        }
        self.given.retain(|owner, _| self.ages.contains_key(owner));
    }

    fn compute_route(
        &mut self,
        config: &Config,
        cluster: &Cluster,
        key: &RouteKey,
        dirty: &mut Dirty,
        update: &mut Update,
    ) {
        let (protocol, name) = key;
        let before = self.routes.remove(key);
        for service in before.iter().flat_map(|route| &route.attached.services) {
            unlink(&mut self.referring, service, key);
        }
        for gateway in before.iter().flat_map(|route| &route.parents) {
            unlink(&mut self.children, gateway, key);
        }
        let mut desired = Desired::default();
        let mut now = None;
        if let Some(route) = cluster.routes(*protocol).get(name) {
            let is_ours = |gateway: &ObjectKey| self.gateways.contains_key(gateway);
            let (attached, own) =
                gateway::attach(config, cluster, &self.slices, (&**route, *protocol), &is_ours);
            desired = own;
            let references = route.spec.parent_refs.iter();
            let parents = references.map(|reference| gateway::parent(reference, &name.0)).collect();
            now = Some(AttachedRoute { age: age(&route.metadata), attached, parents });
        }
        let same = |one: &AttachedRoute, other: &AttachedRoute| {
            one.age == other.age && one.attached == other.attached
        };
        let is_same = matches!((&before, &now), (Some(before), Some(now)) if same(before, now));
        if !is_same {
            let listeners = before.iter().chain(&now).flat_map(|route| &route.attached.listeners);
            dirty.owners.extend(listeners.map(|(gateway, _)| Owner::Gateway(gateway.clone())));
        }
        if let Some(route) = now {
            for service in &route.attached.services {
                self.referring.entry(service.clone()).or_default().insert(key.clone());
            }
            for gateway in &route.parents {
                self.children.entry(gateway.clone()).or_default().insert(key.clone());
            }
            self.routes.insert(key.clone(), route);
        }
        self.replace(ResultSource::Route(key.clone()), desired, update);
    }

    fn compute_owner(&self, config: &Config, cluster: &Cluster, owner: &Owner) -> Desired {
        let Some(given) = self.given.get(owner) else { return Desired::default() };
        match owner {
            Owner::Service(key) => match cluster.services.get(key) {
                Some(service) => serve_service(config, cluster, &self.slices, key, service, given),
                None => Desired::default(),
            },
            Owner::Gateway(key) => {
                let Some(gateway) = cluster.gateways.get(key) else { return Desired::default() };
                let children = self.children.get(key).into_iter().flatten();
                let routes = children.filter_map(|key| self.routes.get(key));
                let mut routes: Vec<&AttachedRoute> = routes.collect();
                routes.sort_by(|one, other| one.age.cmp(&other.age));
                let routes = routes.into_iter().map(|route| &route.attached);
                gateway::serve(config, cluster, (key, &**gateway), given, routes)
            }
        }
    }

    /// Replaces the results of an object, and notes what is new.
    fn replace(&mut self, source: ResultSource, desired: Desired, update: &mut Update) {
        let before = self.results.remove(&source).unwrap_or_default();
        for name in before.services.iter().filter(|name| !desired.services.contains_key(*name)) {
            self.services.remove(name);
            update.services.insert(name.clone());
        }
        let mut result =
            Consequences { services: Vec::new(), statuses: desired.statuses, events: desired.events };
        for (name, service) in desired.services {
            if self.services.get(&name).is_none_or(|before| **before != service) {
                self.services.insert(name.clone(), Arc::new(service));
                update.services.insert(name.clone());
            }
            result.services.push(name);
        }
        let is_new = |one: &&StatusChange| !before.statuses.iter().any(|other| is_same(one, other));
        update.statuses.extend(result.statuses.iter().filter(is_new).cloned());
        let is_new = |one: &&Notice| !before.events.contains(one);
        update.events.extend(result.events.iter().filter(is_new).cloned());
        if !(result.services.is_empty() && result.statuses.is_empty() && result.events.is_empty()) {
            self.results.insert(source, result);
        }
    }
}

fn unlink(all: &mut HashMap<ObjectKey, BTreeSet<RouteKey>>, at: &ObjectKey, route: &RouteKey) {
    if let Some(routes) = all.get_mut(at) {
        routes.remove(route);
        if routes.is_empty() {
            all.remove(at);
        }
    }
}

/// Whether two statuses differ only in the times of their conditions.
fn is_same(one: &StatusChange, other: &StatusChange) -> bool {
    let timeless = |change: &StatusChange| {
        let mut change = change.clone();
        forget_times(&mut change.status);
        change
    };
    timeless(one) == timeless(other)
}

/// Sets all times of conditions to the same value.
pub(crate) fn forget_times(status: &mut Value) {
    match status {
        Value::Array(all) => all.iter_mut().for_each(forget_times),
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                if key == "lastTransitionTime" {
                    *value = Timestamp::default().to_string().into();
                } else {
                    forget_times(value);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
