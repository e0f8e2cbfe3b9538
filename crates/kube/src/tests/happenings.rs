//! The results computed for each change are the same as those computed from all objects.

use super::*;

/// Something that happens to a cluster.
#[derive(Clone, Debug)]
enum Happening {
    /// An object is created or replaced.
    Put(String),
    /// An object of a kind is deleted: the one at a position.
    Delete(&'static str, usize),
    /// The API server stores a status that was sent: the one at a position.
    Write(usize),
    /// The node confirms the services that it should have.
    Confirm,
}

/// The namespaces of objects.
const NAMESPACES: [&str; 2] = ["infra", "apps"];

fn pick(all: &'static [&'static str]) -> prop::sample::Select<&'static str> {
    prop::sample::select(all)
}

/// A Service, perhaps of this controller.
fn any_service() -> impl Strategy<Value = String> {
    let service = (
        pick(&NAMESPACES),
        pick(&["one", "two", "three", "four"]),
        pick(&[
            "",
            "weir-net.github.io/addresses: 192.0.2.1",
            "weir-net.github.io/pool: b",
            "weir-net.github.io/pool: x",
        ]),
        pick(&["type: LoadBalancer, loadBalancerClass: weir-net.github.io/lb, ", "type: ClusterIP, "]),
        (
            pick(&[
                "",
                "ipFamilies: [IPv4, IPv6], ",
                "ipFamilies: [IPv6], ipFamilyPolicy: PreferDualStack, ",
            ]),
            pick(&["5432", "53", "5432, protocol: UDP"]),
            1u8..4,
        ),
    );
    service.prop_map(|(namespace, name, annotation, kind, (families, port, day))| {
        format!(
            "{{ kind: Service, metadata: {{ namespace: {namespace}, name: {name},
                creationTimestamp: \"2026-02-0{day}T00:00:00Z\", annotations: {{ {annotation} }} }},
                spec: {{ {kind}{families}ports: [{{ name: p, port: {port} }}] }} }}"
        )
    })
}

/// An EndpointSlice.
fn any_slice() -> impl Strategy<Value = String> {
    let slice = (
        pick(&NAMESPACES),
        pick(&["a", "b", "c"]),
        pick(&["one", "two", "three"]),
        0u8..9,
        pick(&["", "UDP"]),
    );
    slice.prop_map(|(namespace, name, service, last, protocol)| {
        let protocol = if protocol.is_empty() { String::new() } else { format!(", protocol: {protocol}") };
        let endpoints: Vec<String> = (0..last % 3)
            .map(|more| {
                format!("{{ addresses: [10.0.{last}.{more}], conditions: {{ ready: {} }} }}", last > 4)
            })
            .collect();
        format!(
            "{{ kind: EndpointSlice, metadata: {{ namespace: {namespace}, name: {name},
                labels: {{ kubernetes.io/service-name: {service} }} }}, addressType: IPv4,
                ports: [{{ name: p, port: 80{protocol} }}], endpoints: [{}] }}",
            endpoints.join(", ")
        )
    })
}

/// A TCPRoute or UDPRoute.
fn any_route() -> impl Strategy<Value = String> {
    let some_route = (
        pick(&["TCPRoute", "UDPRoute"]),
        pick(&NAMESPACES),
        pick(&["r", "s"]),
        pick(&[
            "name: edge",
            "namespace: infra, name: edge, port: 5432",
            "namespace: infra, name: edge2",
            "name: other",
        ]),
        pick(&[
            "name: one, port: 5432",
            "namespace: infra, name: two, port: 5432, weight: 3",
            "name: none, port: 1",
        ]),
        1u8..4,
    );
    some_route.prop_map(|(kind, namespace, name, parent, to, day)| {
        format!(
            "{{ kind: {kind}, metadata: {{ namespace: {namespace}, name: {name},
                creationTimestamp: \"2026-01-0{day}T00:00:00Z\" }},
                spec: {{ parentRefs: [{{ {parent} }}],
                    rules: [{{ backendRefs: [{{ {to} }}, {{ name: one, port: 5432 }}] }}] }} }}"
        )
    })
}

/// A Gateway.
fn any_gateway() -> impl Strategy<Value = String> {
    let gateway = (
        pick(&["edge", "edge2"]),
        pick(&["weir", "other"]),
        pick(&["All", "Same", "Selector, selector: { matchLabels: { team: red } }"]),
        pick(&["TCP", "UDP", "HTTP"]),
        pick(&[
            "",
            "addresses: [{ value: 192.0.2.1 }], ",
            "addresses: [{ value: 192.0.2.1 }, { type: IPAddress }], ",
            "infrastructure: { annotations: { weir-net.github.io/pool: b } }, ",
        ]),
        1u8..4,
    );
    gateway.prop_map(|(name, class, from, protocol, addresses, day)| {
        format!(
            "{{ kind: Gateway, metadata: {{ namespace: infra, name: {name}, generation: {day},
                creationTimestamp: \"2026-02-0{day}T00:00:00Z\" }},
                spec: {{ gatewayClassName: {class}, {addresses}listeners: [
                    {{ name: db, protocol: {protocol}, port: 5432,
                        allowedRoutes: {{ namespaces: {{ from: {from} }} }} }},
                    {{ name: more, protocol: TCP, port: 53 }}] }} }}"
        )
    })
}

/// Another object.
fn any_other() -> impl Strategy<Value = &'static str> {
    pick(&[
        "{ kind: Namespace, metadata: { name: apps, labels: { team: red } } }",
        "{ kind: Namespace, metadata: { name: apps } }",
        "{ kind: GatewayClass, metadata: { name: weir },
            spec: { controllerName: weir-net.github.io/gateway } }",
        "{ kind: GatewayClass, metadata: { name: weir }, spec: { controllerName: example.com/other } }",
        "{ kind: GatewayClass, metadata: { name: weir }, spec: { controllerName: weir-net.github.io/gateway,
            parametersRef: { group: '', kind: ConfigMap, name: x } } }",
        "{ kind: ReferenceGrant, metadata: { namespace: infra, name: g }, spec: {
            from: [{ group: gateway.networking.k8s.io, kind: TCPRoute, namespace: apps }],
            to: [{ group: '', kind: Service }] } }",
        "{ kind: ReferenceGrant, metadata: { namespace: infra, name: g }, spec: { from: [], to: [] } }",
    ])
}

fn any_happening() -> impl Strategy<Value = Happening> {
    let kinds = pick(&[
        "Service",
        "EndpointSlice",
        "Namespace",
        "GatewayClass",
        "Gateway",
        "TCPRoute",
        "UDPRoute",
        "ReferenceGrant",
    ]);
    prop_oneof![
        6 => any_service().prop_map(Happening::Put),
        6 => any_slice().prop_map(Happening::Put),
        4 => any_route().prop_map(Happening::Put),
        3 => any_gateway().prop_map(Happening::Put),
        3 => any_other().prop_map(|text| Happening::Put(text.into())),
        3 => (kinds, 0usize..4).prop_map(|(kind, at)| Happening::Delete(kind, at)),
        6 => (0usize..8).prop_map(Happening::Write),
        2 => Just(Happening::Confirm),
    ]
}

/// Deletes the object at a position, and returns what has changed.
fn delete(all: &mut Cluster, kind: &str, at: usize) -> Changed {
    fn gone<K>(all: &mut Objects<K>, at: usize) -> Option<(ObjectKey, Arc<K>)> {
        let key = all.keys().nth(at)?.clone();
        all.remove_entry(&key)
    }
    let mut changed = Changed::default();
    match kind {
        "Service" => changed.services.extend(gone(&mut all.services, at).map(|one| one.0)),
        "EndpointSlice" => {
            gone(&mut all.slices, at).iter().for_each(|(key, old)| changed.slice(key, [Some(old), None]));
        }
        "Namespace" => changed.namespaces.extend(gone(&mut all.namespaces, at).map(|one| one.0.1)),
        "GatewayClass" => changed.classes = gone(&mut all.classes, at).is_some(),
        "Gateway" => changed.gateways.extend(gone(&mut all.gateways, at).map(|one| one.0)),
        "TCPRoute" => {
            changed.routes.extend(gone(&mut all.tcp_routes, at).map(|one| (Protocol::Tcp, one.0)));
        }
        "UDPRoute" => {
            changed.routes.extend(gone(&mut all.udp_routes, at).map(|one| (Protocol::Udp, one.0)));
        }
        "ReferenceGrant" => changed.grants.extend(gone(&mut all.grants, at).map(|one| one.0.0)),
        other => panic!("{other}"),
    }
    changed
}

/// Returns a form that can be compared: without order and times.
fn comparable(mut desired: Desired) -> (Vec<String>, Vec<String>, Desired) {
    desired.statuses.iter_mut().for_each(|change| forget_times(&mut change.status));
    let sorted = |all: Vec<String>| {
        let mut all = all;
        all.sort();
        all
    };
    let statuses = sorted(desired.statuses.drain(..).map(|one| format!("{one:?}")).collect());
    let events = sorted(desired.events.drain(..).map(|one| format!("{one:?}")).collect());
    (statuses, events, desired)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// For any sequence of changes, in batches of any size, the results computed for each change are the same
    /// as those computed from all objects, and the updates that are returned add up to them.
    #[test]
    fn changes_lead_to_the_same_as_everything(
        happenings in prop::collection::vec((any_happening(), any::<bool>()), 1..40),
    ) {
        let config = config();
        let mut all = Cluster { now: "2026-11-01T10:00:00Z".parse().unwrap(), ..Cluster::default() };
        add(&mut all, &yaml(
            "{ kind: GatewayClass, metadata: { name: weir },
               spec: { controllerName: weir-net.github.io/gateway } }",
        ));
        let mut changed = Changed::all(&all);
        let mut known = Incremental::default();
        // What nodes have been sent, as they read it.
        let mut sent: BTreeMap<Arc<str>, Value> = BTreeMap::new();
        for (happening, is_taken_in) in happenings {
            all.now = all.now.checked_add(Span::new().seconds(1)).unwrap();
            let more = match happening {
                Happening::Put(text) => {
                    let mut value = yaml(&text);
                    value["metadata"]["resourceVersion"] = all.now.to_string().into();
                    add(&mut all, &value)
                }
                Happening::Delete(kind, at) => delete(&mut all, kind, at),
                Happening::Write(at) => {
                    let statuses = known.desired().statuses;
                    let current = statuses.get(at).filter(|one| is_current(&all, one));
                    current.map(|change| write(&mut all, change)).unwrap_or_default()
                }
                Happening::Confirm => confirm(&mut all, &known.desired()),
            };
            merge(&mut changed, more);
            if !is_taken_in {
                continue;
            }
            let update = known.update(&config, &all, &std::mem::take(&mut changed));
            for name in &update.services {
                match known.services().get(name) {
                    Some(one) => sent.insert(name.clone(), one.of_node(name, &config, &config.nodes[0])),
                    None => sent.remove(name),
                };
            }
            let whole = desired(&config, &all);
            let of_node = |(name, one): (&Arc<str>, &VirtualService)| {
                (name.clone(), one.of_node(name, &config, &config.nodes[0]))
            };
            prop_assert_eq!(&sent, &whole.services.iter().map(of_node).collect::<BTreeMap<_, _>>());
            prop_assert_eq!(comparable(known.desired()), comparable(whole));
            // Statuses are on their way from here on.
            for change in &update.statuses {
                note_sent(&mut all, &mut changed, change);
            }
        }
    }
}

/// Whether a status is for the current version of the object.
fn is_current(all: &Cluster, change: &StatusChange) -> bool {
    let at =
        (change.object.namespace.clone().unwrap_or_default(), change.object.name.clone().unwrap_or_default());
    let of =
        |meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| meta.resource_version.clone();
    let version = match change.object.kind.as_deref().unwrap() {
        "Service" => all.services.get(&at).map(|one| one.version.as_deref().map(Into::into)),
        "GatewayClass" => all.classes.get(&at).map(|one| of(&one.metadata)),
        "Gateway" => all.gateways.get(&at).map(|one| of(&one.metadata)),
        "TCPRoute" => all.tcp_routes.get(&at).map(|one| of(&one.metadata)),
        "UDPRoute" => all.udp_routes.get(&at).map(|one| of(&one.metadata)),
        other => panic!("{other}"),
    };
    version.is_some_and(|version| version == change.version)
}

fn merge(all: &mut Changed, more: Changed) {
    let Changed { services, slices, namespaces, classes, gateways, routes, grants } = more;
    all.services.extend(services);
    for (key, names) in slices {
        all.slices.entry(key).or_default().extend(names);
    }
    all.namespaces.extend(namespaces);
    all.classes |= classes;
    all.gateways.extend(gateways);
    all.routes.extend(routes);
    all.grants.extend(grants);
}
