//! Kubernetes objects as services: `Service` and `EndpointSlice`, in the file format of Cilium's
//! `--lb-state-file`, `{ services: [...], endpoints: [...] }`, or as a `List` that kubectl prints, in JSON or
//! YAML. An object that cannot be read makes the whole file unusable, because to leave it out would remove
//! its services.

use super::{BACK_ENDS_MAX, SERVICES_MAX, ServiceSource};
use crate::edits::tree::json as to_json;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use weir_config::section::NAME_MAX;
use weir_config::{Report, raw};
use weir_control::kubernetes::{EndpointState, SERVICE_NAME, affinity_s};
use weir_control::names;

/// The label of services without a VIP.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Services, as they are written in the configuration.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Converted {
    pub services: Vec<Value>,
    pub back_ends: usize,
    /// What was left out.
    pub notes: Vec<String>,
}

/// Converts the contents of a file.
///
/// # Errors
/// The error says which object is wrong, and how.
pub(crate) fn convert(source: &ServiceSource, file: &str, text: &str) -> Result<Converted, String> {
    let parsed = parse(file, text)?;
    let objects = Objects::of(&parsed)?;
    let mut converted = Converted::default();
    let mut notes = BTreeMap::new();
    let mut names = BTreeSet::new();
    for object in &objects.services {
        let services = object.services(source, &objects, &mut notes)?;
        for service in services {
            let name = service["name"].as_str().unwrap_or_default().to_string();
            if !names.insert(name) {
                return Err(format!("{} occurs twice", object.shown()));
            }
            converted.back_ends += service["back_ends"].as_array().map_or(0, Vec::len);
            converted.services.push(service);
        }
        if converted.services.len() > SERVICES_MAX {
            return Err(format!("there are more than {SERVICES_MAX} ports of services, the limit"));
        }
    }
    let note =
        |(what, count): (&str, usize)| if count > 1 { format!("{what} ({count})") } else { what.into() };
    converted.notes = notes.into_iter().map(note).collect();
    Ok(converted)
}

/// Reads JSON or YAML.
fn parse(file: &str, text: &str) -> Result<Value, String> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| format!("this is not JSON: {error}"));
    }
    let mut report = Report::new(file, text);
    match raw::parse(text, &mut report) {
        Some(node) => Ok(to_json(&node)),
        None => Err(report.to_string().lines().next().unwrap_or_default().to_string()),
    }
}

/// What a file has.
struct Objects<'a> {
    services: Vec<ServiceObject<'a>>,
    /// EndpointSlices, by namespace and name of their service.
    slices: HashMap<(&'a str, &'a str), Vec<&'a Value>>,
}

struct ServiceObject<'a> {
    namespace: &'a str,
    name: &'a str,
    value: &'a Value,
}

impl<'a> Objects<'a> {
    fn of(file: &'a Value) -> Result<Objects<'a>, String> {
        let shape = "this is not a file of services: it has `services` and `endpoints`, or `items`";
        let Value::Object(map) = file else { return Err(shape.into()) };
        let mut objects = Objects { services: Vec::new(), slices: HashMap::new() };
        if !["services", "endpoints", "items"].iter().any(|key| map.contains_key(*key)) {
            return Err(shape.into());
        }
        for (key, kind) in
            [("services", Some("Service")), ("endpoints", Some("EndpointSlice")), ("items", None)]
        {
            let list = match map.get(key) {
                None | Some(Value::Null) => &[][..],
                Some(Value::Array(list)) => list,
                Some(_) => return Err(format!("`{key}` is not a list")),
            };
            for (at, one) in list.iter().enumerate() {
                let kind = kind.or_else(|| one["kind"].as_str());
                objects.add(one, kind).map_err(|why| format!("{key}[{at}]: {why}"))?;
            }
        }
        Ok(objects)
    }

    fn add(&mut self, one: &'a Value, kind: Option<&str>) -> Result<(), String> {
        if !one.is_object() {
            return Err("this is not an object".into());
        }
        let meta = &one["metadata"];
        let namespace = meta["namespace"].as_str().filter(|name| !name.is_empty()).unwrap_or("default");
        match kind {
            Some("Service") => {
                let name = meta["name"].as_str().filter(|name| !name.is_empty());
                let name = name.ok_or("`metadata.name` is missing")?;
                self.services.push(ServiceObject { namespace, name, value: one });
            }
            Some("EndpointSlice") => {
                let label = meta["labels"][SERVICE_NAME].as_str();
                let name = label.ok_or_else(|| format!("the label `{SERVICE_NAME}` is missing"))?;
                self.slices.entry((namespace, name)).or_default().push(one);
            }
            // A list of kubectl may have anything else.
            Some(_) => {}
            None => return Err("`kind` is missing".into()),
        }
        Ok(())
    }
}

/// Reads the state of an endpoint.
fn state(conditions: &Value) -> EndpointState {
    let of = |word: &str| boolean(&conditions[word]);
    EndpointState::of(of("ready"), of("serving"), of("terminating"))
}

/// What is left out, and how often.
type Notes = BTreeMap<&'static str, usize>;

impl ServiceObject<'_> {
    fn shown(&self) -> String {
        format!("service {}/{}", self.namespace, self.name)
    }

    /// Returns a service for each port and IP version.
    fn services(
        &self,
        source: &ServiceSource,
        objects: &Objects<'_>,
        notes: &mut Notes,
    ) -> Result<Vec<Value>, String> {
        let wrong = |why: String| format!("{}: {why}", self.shown());
        let vips = self.vips().map_err(wrong)?;
        let ports = items(&self.value["spec"]["ports"]);
        let mut services = Vec::new();
        for port in ports {
            let protocol = match port["protocol"].as_str().unwrap_or("TCP") {
                "TCP" => "tcp",
                "UDP" => "udp",
                _ => {
                    *notes.entry("ports with a protocol other than TCP and UDP are left out").or_default() +=
                        1;
                    continue;
                }
            };
            let number =
                number(&port["port"]).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
            let number = number.ok_or_else(|| wrong("`port` is a number from 1 to 65535".into()))?;
            for six in [false, true] {
                let own: Vec<String> =
                    vips.iter().filter(|vip| vip.is_ipv6() == six).map(IpAddr::to_string).collect();
                if own.is_empty() {
                    continue;
                }
                let back_ends = self.back_ends(source, objects, (port, protocol, number), six, notes);
                let mut map = source.template.clone();
                let version = if six { "-v6" } else { "" };
                let name = names::service_port(self.namespace, self.name, number, protocol);
                map.insert("name".into(), names::shortened(name + version, NAME_MAX).into());
                let vip = if own.len() == 1 { Value::from(own[0].clone()) } else { own.into() };
                let service = json!({ "vip": vip, "protocol": protocol, "port": number.to_string() });
                map.insert("service".into(), service);
                map.insert("back_ends".into(), back_ends.map_err(wrong)?.into());
                self.affinity(&mut map);
                services.push(Value::Object(map));
            }
        }
        Ok(services)
    }

    /// Returns the addresses that clients connect to: those that were assigned to a LoadBalancer, the cluster
    /// addresses of any other service, and external ones.
    fn vips(&self) -> Result<Vec<IpAddr>, String> {
        let spec = &self.value["spec"];
        let kind = spec["type"].as_str().unwrap_or("ClusterIP");
        let is_headless = spec["clusterIP"].as_str().is_some_and(|ip| ip.eq_ignore_ascii_case("none"))
            || !self.value["metadata"]["labels"][HEADLESS].is_null();
        if kind == "ExternalName" || is_headless {
            return Ok(Vec::new());
        }
        let mut texts: Vec<&str> = Vec::new();
        if kind == "LoadBalancer" {
            for one in items(&self.value["status"]["loadBalancer"]["ingress"]) {
                let is_vip = one["ipMode"].as_str().is_none_or(|mode| mode == "VIP");
                texts.extend(one["ip"].as_str().filter(|ip| is_vip && !ip.is_empty()));
            }
        } else {
            let several: Vec<&str> = items(&spec["clusterIPs"]).iter().filter_map(Value::as_str).collect();
            let single = spec["clusterIP"].as_str().filter(|ip| !ip.is_empty() && several.is_empty());
            texts.extend(several.into_iter().chain(single));
        }
        texts.extend(items(&spec["externalIPs"]).iter().filter_map(Value::as_str));
        let address = |text: &str| text.parse().map_err(|_| format!("`{text}` is not an IP address"));
        let all: BTreeSet<IpAddr> = texts.into_iter().map(address).collect::<Result<_, String>>()?;
        Ok(all.into_iter().collect())
    }

    /// Returns the endpoints of a port, with addresses of one IP version.
    fn back_ends(
        &self,
        source: &ServiceSource,
        objects: &Objects<'_>,
        (port, protocol, number): (&Value, &str, u16),
        six: bool,
        notes: &mut Notes,
    ) -> Result<Vec<Value>, String> {
        let mut all: BTreeMap<String, (EndpointState, Value)> = BTreeMap::new();
        let name = port["name"].as_str().unwrap_or_default();
        let slices = objects.slices.get(&(self.namespace, self.name)).map(Vec::as_slice).unwrap_or_default();
        let family = if six { "IPv6" } else { "IPv4" };
        for slice in slices.iter().filter(|slice| slice["addressType"].as_str() == Some(family)) {
            let ports = items(&slice["ports"]).iter().filter(|one| {
                let protocol_of = one["protocol"].as_str().unwrap_or("TCP");
                one["name"].as_str().unwrap_or_default() == name && protocol_of.eq_ignore_ascii_case(protocol)
            });
            for one in ports {
                let target = match &one["port"] {
                    Value::Null => number,
                    other => number_of_port(other)?,
                };
                if target != number && !source.translates() {
                    let what = "target ports count only with `mode: nat` or `full_nat`";
                    *notes.entry(what).or_default() += 1;
                }
                for endpoint in items(&slice["endpoints"]) {
                    self.endpoint(source, endpoint, (target, six), &mut all)?;
                }
            }
        }
        if all.len() > BACK_ENDS_MAX {
            return Err(format!("it has more than {BACK_ENDS_MAX} endpoints, the limit"));
        }
        let chosen = EndpointState::chosen(all.values().map(|(state, _)| *state));
        let back_end = |(state, mut back_end): (EndpointState, Value)| {
            if Some(state) != chosen {
                back_end["state"] = "draining".into();
            }
            back_end
        };
        Ok(all.into_values().map(back_end).collect())
    }

    fn endpoint(
        &self,
        source: &ServiceSource,
        endpoint: &Value,
        (port, six): (u16, bool),
        all: &mut BTreeMap<String, (EndpointState, Value)>,
    ) -> Result<(), String> {
        let state = state(&endpoint["conditions"]);
        for address in items(&endpoint["addresses"]) {
            let text = address.as_str().unwrap_or_default();
            let parsed: Option<IpAddr> = text.parse().ok();
            let address = parsed.filter(|address| address.is_ipv6() == six);
            let address = address.ok_or_else(|| format!("`{text}` is not an address of an endpoint"))?;
            let (name, back_end) = source.back_end(address, Some(port), &[]);
            // An endpoint may be in two slices for a while; if it is ready in one of them, it is ready.
            if all.get(&name).is_none_or(|(before, _)| *before < state) {
                all.insert(name, (state, back_end));
            }
        }
        Ok(())
    }

    /// Sets what `sessionAffinity` says, unless the template says it.
    fn affinity(&self, map: &mut Map<String, Value>) {
        let spec = &self.value["spec"];
        if spec["sessionAffinity"].as_str() != Some("ClientIP") || map.contains_key("affinity") {
            return;
        }
        let configured = number(&spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"]);
        let timeout = affinity_s(configured);
        // The client's address selects the back end instead.
        map.shift_remove("scheduler");
        map.insert("affinity".into(), json!({ "timeout": format!("{timeout}s") }));
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Reads a number, which is a string if the file is YAML.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn number_of_port(value: &Value) -> Result<u16, String> {
    let port = number(value).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    port.ok_or_else(|| format!("{value} is not a port of an endpoint"))
}

fn boolean(value: &Value) -> Option<bool> {
    value.as_bool().or_else(|| value.as_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::SourceKind;

    fn source(mode: &str) -> ServiceSource {
        let map = |value: Value| value.as_object().unwrap().clone();
        ServiceSource {
            name: "s".into(),
            kind: SourceKind::File("f".into()),
            template: map(json!({ "port": "p0", "scheduler": "katran", "fail": "reject" })),
            each: map(json!({ "mode": mode })),
        }
    }

    /// A shop with two ports and both IP versions, name servers with a slice in two parts, and a database
    /// without a VIP.
    const FILE: &str = r#"
services:
- metadata: { namespace: shop, name: web }
  spec:
    type: LoadBalancer
    clusterIP: 10.96.0.10
    ports:
    - { name: http, port: 80, targetPort: 8080, protocol: TCP, nodePort: 30080 }
    - { name: https, port: 443, targetPort: tls }
    sessionAffinity: ClientIP
    sessionAffinityConfig: { clientIP: { timeoutSeconds: 600 } }
  status:
    loadBalancer:
      ingress:
      - { ip: 192.0.2.10 }
      - { ip: "2001:db8::10" }
      - { ip: 192.0.2.99, ipMode: Proxy }
      - { hostname: lb.example.com }
- metadata: { name: dns }
  spec:
    clusterIP: 10.96.0.53
    clusterIPs: [10.96.0.53]
    externalIPs: [192.0.2.53]
    ports:
    - { port: 53, protocol: UDP }
    - { port: 53, name: sctp, protocol: SCTP }
- metadata: { name: database }
  spec: { clusterIP: None, ports: [{ port: 5432 }] }
- metadata: { name: elsewhere }
  spec: { type: ExternalName, externalName: example.com }
endpoints:
- metadata: { namespace: shop, name: web-1, labels: { kubernetes.io/service-name: web } }
  addressType: IPv4
  ports: [{ name: http, port: 8080 }, { name: https, port: 8443, protocol: TCP }]
  endpoints:
  - { addresses: [10.1.0.1], conditions: { ready: true } }
  - { addresses: [10.1.0.2], conditions: { ready: false, serving: true, terminating: true } }
- metadata: { namespace: shop, name: web-6, labels: { kubernetes.io/service-name: web } }
  addressType: IPv6
  ports: [{ name: http, port: 8080 }]
  endpoints: [{ addresses: ["2001:db8:1::1"] }]
- metadata: { namespace: other, name: web-1, labels: { kubernetes.io/service-name: web } }
  addressType: IPv4
  ports: [{ name: http, port: 8080 }]
  endpoints: [{ addresses: [10.9.9.9] }]
- metadata: { name: dns-1, labels: { kubernetes.io/service-name: dns } }
  addressType: IPv4
  ports: [{ port: 53, protocol: UDP }]
  endpoints: [{ addresses: [10.1.0.53], conditions: { ready: false } }, { addresses: [10.1.0.54] }]
- metadata: { name: dns-2, labels: { kubernetes.io/service-name: dns } }
  addressType: IPv4
  ports: [{ port: 53, protocol: UDP }]
  endpoints: [{ addresses: [10.1.0.53], conditions: {} }]
"#;

    #[test]
    fn services_ports_versions_and_conditions_become_services_and_back_ends() {
        let converted = convert(&source("nat"), "f", FILE).unwrap();
        let names: Vec<&str> = converted.services.iter().map(|one| one["name"].as_str().unwrap()).collect();
        let expected = ["shop.web.80-tcp", "shop.web.80-tcp-v6", "shop.web.443-tcp", "shop.web.443-tcp-v6"];
        assert_eq!(names, [&expected[..], &["default.dns.53-udp"]].concat());
        let web = json!({
            "port": "p0", "fail": "reject", "name": "shop.web.80-tcp",
            "service": { "vip": "192.0.2.10", "protocol": "tcp", "port": "80" },
            "back_ends": [
                { "mode": "nat", "name": "10.1.0.1_8080", "ip": "10.1.0.1", "port": "8080" },
                { "mode": "nat", "name": "10.1.0.2_8080", "ip": "10.1.0.2", "port": "8080",
                    "state": "draining" },
            ],
            "affinity": { "timeout": "600s" },
        });
        assert_eq!(converted.services[0], web);
        assert_eq!(converted.services[1]["back_ends"][0]["name"], "2001-db8-1--1_8080");
        assert_eq!(converted.services[3]["back_ends"], json!([]), "no endpoints are normal");
        let dns = &converted.services[4];
        assert_eq!(dns["service"]["vip"], json!(["10.96.0.53", "192.0.2.53"]));
        assert_eq!(dns["scheduler"], "katran");
        let ready = |one: &Value| one.get("state").is_none();
        assert!(dns["back_ends"].as_array().unwrap().iter().all(ready), "ready in one of two slices: {dns}");
        assert_eq!(converted.back_ends, 2 + 1 + 2 + 2);
        assert_eq!(converted.notes, ["ports with a protocol other than TCP and UDP are left out"]);
        // Without NAT, packets keep their port.
        let direct = convert(&source("ipip"), "f", FILE).unwrap();
        assert_eq!(direct.services[0]["back_ends"][0].get("port"), None);
        assert!(direct.notes.iter().any(|note| note.starts_with("target ports count only")), "{direct:?}");
    }

    #[test]
    fn json_yaml_and_a_list_of_kubectl_are_equal() {
        let mut report = Report::new("f", FILE);
        let value = to_json(&raw::parse(FILE, &mut report).unwrap());
        let yaml = convert(&source("nat"), "f", FILE).unwrap();
        assert_eq!(convert(&source("nat"), "f", &value.to_string()).unwrap(), yaml);
        let mut all = Vec::new();
        for (key, kind) in [("services", "Service"), ("endpoints", "EndpointSlice")] {
            for one in value[key].as_array().unwrap() {
                let mut one = one.clone();
                one["kind"] = kind.into();
                all.push(one);
            }
        }
        all.push(json!({ "kind": "ConfigMap", "metadata": { "name": "x" } }));
        let list = json!({ "kind": "List", "items": all });
        assert_eq!(convert(&source("nat"), "f", &list.to_string()).unwrap(), yaml);
    }

    /// Each line: the conditions of endpoints, and the states of the back ends.
    #[test]
    fn endpoints_that_serve_while_they_terminate_are_used_if_none_is_ready() {
        let [ready, not, ends] = [
            json!({ "ready": true, "serving": true, "terminating": false }),
            json!({ "ready": false }),
            json!({ "ready": false, "serving": true, "terminating": true }),
        ];
        let done = json!({ "ready": false, "serving": false, "terminating": true });
        // Services with publishNotReadyAddresses are ready whatever happens.
        let always = json!({ "ready": true, "serving": false, "terminating": true });
        let (up, out) = (json!(null), json!("draining"));
        for (conditions, states) in [
            ([&ready, &not, &ends, &done], [&up, &out, &out, &out]),
            ([&not, &ends, &done, &ends], [&out, &up, &out, &up]),
            ([&not, &done, &not, &done], [&out; 4]),
            ([&always, &ends, &json!(null), &not], [&up, &out, &up, &out]),
            (
                [&json!({ "ready": null }), &json!({ "terminating": true }), &ends, &not],
                [&up, &up, &out, &out],
            ),
        ] {
            let endpoint =
                |at: usize| json!({ "addresses": [format!("10.0.1.{at}")], "conditions": conditions[at] });
            let file = json!({
                "services": [{ "metadata": { "name": "a" },
                    "spec": { "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] } }],
                "endpoints": [{ "metadata": { "labels": { "kubernetes.io/service-name": "a" } },
                    "addressType": "IPv4", "ports": [{ "port": 80 }],
                    "endpoints": (0..4).map(endpoint).collect::<Vec<_>>() }],
            });
            let converted = convert(&source("nat"), "f", &file.to_string()).unwrap();
            let back_ends = converted.services[0]["back_ends"].as_array().unwrap();
            let found: Vec<&Value> = back_ends.iter().map(|one| &one["state"]).collect();
            assert_eq!(found, states, "{conditions:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_and_nothing_of_the_file_is_used() {
        let service = |spec: &str| format!(r#"{{"services":[{{"metadata":{{"name":"a"}},"spec":{spec}}}]}}"#);
        let long = "n".repeat(80);
        for (text, said) in [
            (String::new(), "this is not a file of services"),
            ("[]".into(), "this is not a file of services"),
            ("{\"services\": [".into(), "this is not JSON: EOF"),
            ("a: b: c\n".into(), "this is not YAML"),
            (r#"{"services": {}}"#.into(), "`services` is not a list"),
            (r#"{"services": [7]}"#.into(), "services[0]: this is not an object"),
            (r#"{"services": [{}]}"#.into(), "services[0]: `metadata.name` is missing"),
            (
                r#"{"endpoints": [{"metadata": {}}]}"#.into(),
                "endpoints[0]: the label `kubernetes.io/service-name`",
            ),
            (r#"{"items": [{}]}"#.into(), "items[0]: `kind` is missing"),
            (
                service(r#"{"clusterIP":"10.0.0.300","ports":[]}"#),
                "default/a: `10.0.0.300` is not an IP address",
            ),
            (
                service(r#"{"clusterIP":"10.0.0.3","ports":[{"port":0}]}"#),
                "`port` is a number from 1 to 65535",
            ),
            (
                service(r#"{"clusterIP":"10.0.0.3","ports":[{"port":5},{"port":5}]}"#),
                "default/a occurs twice",
            ),
        ] {
            let why = convert(&source("nat"), "f", &text).unwrap_err();
            assert!(why.contains(said), "{text}: {why}");
        }
        let text = service(r#"{"clusterIP":"10.0.0.3","ports":[{"port":5}]}"#)
            .replace("\"a\"", &format!("{long:?}"));
        let name = convert(&source("nat"), "f", &text).unwrap().services[0]["name"].clone();
        assert_eq!(name.as_str().unwrap().len(), NAME_MAX);
    }
}
