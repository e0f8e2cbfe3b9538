//! Requests of operators and programs. A request is a line of words, as in `weir lb drain SERVICE BACK_END`,
//! or JSON: a single request, or a list that is carried out atomically. Requests that add or remove services
//! or back ends change the configuration, which the app leaves to its driver ([`Action::Configure`]); the
//! rest of the list is carried out when that is done.

use super::app::{LbApp, Service, Wish};
use crate::edits::tree::json as to_json;
use crate::requests;
use crate::requests::is_edit;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use weir_app::{Action, RequestId};
use weir_config::Report;
use weir_config::sets::WEIGHT_MAX;
use weir_control::services::{BackEndState, Done, ServiceState, Services};

const USAGE: &str = "a request is `drain`, `maintenance`, `enable` or `weight`, followed by a service, a \
    back end and, for `weight`, the new weight; or `add`, `remove`, `add-service`, `remove-service`, `list` \
    or `reset`";

/// The largest number of requests in a list.
const LIST_MAX: usize = 65_536;

/// A request that can be carried out.
#[derive(Clone, Copy)]
struct AcceptedRequest {
    /// The service, and the back end's place in it.
    at: (usize, usize),
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Wish(Wish),
    /// Sets the weight, which is already multiplied by the service's scale.
    Weigh(u32),
}

/// A list of requests that waits for a new configuration.
pub(super) struct Pending {
    /// The requests that do not edit the configuration.
    rest: Vec<Value>,
    /// Whether all changes made at run time are discarded.
    resets: bool,
    /// Whether the requests must not change anything.
    is_dry: bool,
    /// The services that the requests name, and whether they name a pool, which several services may share.
    named: (HashSet<String>, bool),
    /// The answer once everything is done.
    said: Value,
}

impl LbApp {
    /// Carries out a request. Returns the answer, or why it cannot be carried out, in which case nothing has
    /// changed. `None` if the answer follows later.
    pub(super) fn request(
        &mut self,
        id: RequestId,
        request: &Value,
        now_ns: u64,
        actions: &mut Vec<Action>,
    ) -> Option<Result<Value, String>> {
        let words = match request {
            Value::String(words) => Some(words.trim()),
            _ => None,
        };
        let read = match words.map(edit_of) {
            Some(Ok(Some((edit, said)))) => Ok((vec![edit], Some(said))),
            Some(Err(why)) => Err(why),
            _ => match request {
                Value::Array(all) if all.len() > LIST_MAX => {
                    Err(format!("a list has at most {LIST_MAX} requests"))
                }
                Value::Array(all) => Ok((all.clone(), None)),
                one => Ok((vec![one.clone()], None)),
            },
        };
        let (orders, said) = match read {
            Ok(read) => read,
            Err(why) => return Some(Err(why)),
        };
        if !orders.iter().any(is_edit) {
            return Some(self.at_once(request, now_ns, actions));
        }
        let is_dry = orders.iter().any(|order| order["do"] == requests::DRY_RUN);
        let count = orders.iter().filter(|order| !requests::is_condition(order)).count();
        let said = said.map_or_else(|| done(if is_dry { 0 } else { count }), Value::from);
        let resets = orders.iter().any(|order| order["do"] == "reset");
        let rest = orders.iter().filter(|order| !is_edit(order)).cloned().collect();
        let name = |order: &Value| {
            order["service"].as_str().or(order["service"]["name"].as_str()).map(str::to_string)
        };
        let changes = || orders.iter().filter(|order| !requests::is_condition(order));
        let named = (changes().filter_map(name).collect(), changes().any(|one| name(one).is_none()));
        self.pending.insert(id, Pending { rest, resets, is_dry, named, said });
        actions.push(Action::Configure { id, orders: Arc::new(Value::Array(orders)) });
        None
    }

    /// Carries out requests that need no new configuration.
    fn at_once(&mut self, request: &Value, now_ns: u64, actions: &mut Vec<Action>) -> Result<Value, String> {
        let orders = match request {
            Value::String(words) if words.trim() == "list" => return Ok(json!(self.list())),
            Value::String(words) if words.trim() == "sources" => return Ok(self.sources_shown()),
            Value::Object(_) if request["do"] == "sources" => return Ok(self.sources_shown()),
            Value::String(words) => {
                let order = self.order_of(&words.split_whitespace().collect::<Vec<_>>())?;
                self.carry_out(order, now_ns, actions);
                return Ok(with_warning(Value::from(self.describe(order)), self.warning_of(&[order])));
            }
            Value::Object(_) if request["do"] == "list" => return Ok(json!(self.list())),
            Value::Array(all) => {
                let one = |(at, one)| self.read(one).map_err(|why| format!("request {at}: {why}"));
                all.iter().enumerate().map(one).collect::<Result<Vec<AcceptedRequest>, String>>()?
            }
            one => vec![self.read(one)?],
        };
        orders.iter().for_each(|order| self.carry_out(*order, now_ns, actions));
        Ok(with_warning(done(orders.len()), self.warning_of(&orders)))
    }

    fn sources_shown(&self) -> Value {
        json!({ "sources": self.sources.rows() })
    }

    /// Returns a warning about services whose weights these requests have changed.
    fn warning_of(&self, orders: &[AcceptedRequest]) -> Option<String> {
        let weighed = orders.iter().filter(|order| matches!(order.what, What::Weigh(_)));
        let names: HashSet<&str> = weighed.map(|order| self.services[order.at.0].name.as_str()).collect();
        self.warning(|name| names.contains(name))
    }

    /// Continues once the configuration has been replaced, or the change was rejected.
    pub(super) fn configured(
        &mut self,
        id: RequestId,
        outcome: &Result<Value, String>,
        now_ns: u64,
        actions: &mut Vec<Action>,
    ) {
        let Some(Pending { rest, resets, is_dry, named, said }) = self.pending.remove(&id) else { return };
        if outcome.is_ok() && !is_dry {
            if resets {
                self.forget_wishes(now_ns, actions);
            }
            // Requests for a back end that a later request of the list has removed are skipped.
            let orders: Vec<AcceptedRequest> = rest.iter().filter_map(|one| self.read(one).ok()).collect();
            orders.into_iter().for_each(|order| self.carry_out(order, now_ns, actions));
        }
        let warning = self.warning(|name| named.1 || named.0.contains(name));
        let answer = outcome.clone().map(|changes| with_warning(with_changes(said, changes), warning));
        actions.push(Action::Answer { id, answer });
    }

    /// Returns an error that names the first request of a list that cannot be carried out with this app's
    /// configuration.
    pub(crate) fn refuses(&self, orders: &Value) -> Result<(), String> {
        for (at, order) in
            orders.as_array().into_iter().flatten().enumerate().filter(|(_, one)| !is_edit(one))
        {
            let name = |key: &str| order[key].as_str().unwrap_or_default().to_string();
            let [service, back_end] = [name("service"), name("back_end")];
            let is_there = self
                .services
                .iter()
                .any(|one| one.name == service && one.rows.iter().any(|row| row.name == back_end));
            if is_there {
                self.read(order).map_err(|why| format!("request {at}: {why}"))?;
            }
        }
        Ok(())
    }

    /// Returns a warning if none of the back ends of a service that `meant` selects gets new flows.
    fn warning(&self, meant: impl Fn(&str) -> bool) -> Option<String> {
        let idle = |service: &&Service| service.rows.iter().all(|row| row.full == 0);
        let mut idle =
            self.services.iter().filter(|one| one.group.is_some() && meant(&one.name)).filter(idle);
        let (first, others) = (idle.next()?, idle.count());
        let others = if others > 0 { format!(" and {others} others") } else { String::new() };
        Some(format!("no back end of {}{others} has a weight: it gets no new flows", first.name))
    }

    /// Reads a request in JSON; an error names the field that is wrong.
    fn read(&self, request: &Value) -> Result<AcceptedRequest, String> {
        let what = requests::verb(request)?;
        if what == "list" {
            return Err("`do: list` cannot be part of a list of requests".to_string());
        }
        let field =
            |key: &str| request[key].as_str().ok_or_else(|| format!("`{key}` is missing, or not a string"));
        let [service, back_end] = [field("service")?, field("back_end")?];
        match (what, &request["weight"]) {
            ("weight", Value::Number(weight)) => {
                self.order_of(&[what, service, back_end, &weight.to_string()])
            }
            ("weight", _) => Err("`weight` is missing, or not a number".to_string()),
            _ => self.order_of(&[what, service, back_end]),
        }
    }

    /// Reads a request in words.
    fn order_of(&self, words: &[&str]) -> Result<AcceptedRequest, String> {
        let [what, service, back_end, rest @ ..] = words else { return Err(USAGE.to_string()) };
        let at = self.place(service, back_end)?;
        let what = match (*what, rest) {
            ("drain", []) => What::Wish(Wish::Drain),
            ("maintenance", []) => What::Wish(Wish::Maintain),
            ("enable", []) => What::Wish(Wish::Work),
            ("weight", [weight]) => What::Weigh(self.weight(at.0, weight)?),
            _ => return Err(USAGE.to_string()),
        };
        Ok(AcceptedRequest { at, what })
    }

    /// Reads a weight of a service's back end.
    fn weight(&self, service: usize, text: &str) -> Result<u32, String> {
        let scale = self.services[service].scale;
        let most = WEIGHT_MAX as u32 / scale;
        let weight = text.parse::<u32>().ok().filter(|weight| *weight <= most);
        let weight = weight.ok_or_else(|| format!("a weight is a number from 0 to {most}, not `{text}`"))?;
        Ok(weight * scale)
    }

    /// Finds a back end whose weight can be changed.
    fn place(&self, service: &str, back_end: &str) -> Result<(usize, usize), String> {
        let names = |names: Vec<&str>| names.join(", ");
        let at = self.services.iter().position(|one| one.name == service).ok_or_else(|| {
            let all = names(self.services.iter().take(16).map(|one| one.name.as_str()).collect());
            format!("there is no service `{service}`; the services are {all}")
        })?;
        let found = &self.services[at];
        if found.group.is_none() {
            return Err(format!("`{service}` has no weights that can be changed: it assigns by source bits"));
        }
        let place = found.rows.iter().position(|row| row.name == back_end).ok_or_else(|| {
            let all = names(found.rows.iter().take(16).map(|row| row.name.as_str()).collect());
            format!("service `{service}` has no back end `{back_end}`; its back ends are {all}")
        })?;
        Ok((at, place))
    }

    fn carry_out(
        &mut self,
        AcceptedRequest { at, what }: AcceptedRequest,
        now_ns: u64,
        actions: &mut Vec<Action>,
    ) {
        match what {
            What::Wish(wish) => self.wish(at, wish, now_ns, actions),
            What::Weigh(weight) => {
                self.services[at.0].rows[at.1].full = weight;
                self.evaluate(at.0, now_ns, actions);
            }
        }
    }

    /// Describes what was done.
    fn describe(&self, AcceptedRequest { at, what }: AcceptedRequest) -> String {
        let service = &self.services[at.0];
        let (name, of) = (&service.rows[at.1].name, &service.name);
        match what {
            What::Wish(Wish::Drain) => format!("{name} of {of} gets no new flows"),
            What::Wish(Wish::Maintain) => format!("{name} of {of} gets no packets and is not checked"),
            What::Wish(Wish::Work) => format!("{name} of {of} is back in service if its checks pass"),
            What::Weigh(weight) => {
                format!("the weight of {name} of {of} is {}", weight / service.scale)
            }
        }
    }

    /// Lists services and back ends.
    fn list(&self) -> Services {
        let service = |service: &Service| {
            let back_end = |row: &super::app::Row| {
                let report = self.report_of(service, row);
                BackEndState {
                    name: row.name.clone(),
                    weight: row.full / service.scale,
                    health: report.health.to_string(),
                    reason: report.reason,
                }
            };
            let back_ends = service.rows.iter().map(back_end).collect();
            ServiceState { name: service.name.clone(), back_ends }
        };
        Services { services: self.services.iter().map(service).collect() }
    }
}

fn done(count: usize) -> Value {
    json!(Done { done: count, warning: None, changes: None })
}

/// Adds what has changed to an answer.
fn with_changes(mut said: Value, changes: Value) -> Value {
    if said.is_object() && changes.is_object() {
        said["changes"] = changes;
    }
    said
}

/// Adds a warning to an answer: as another sentence, or in a mapping under its own key.
fn with_warning(said: Value, warning: Option<String>) -> Value {
    match (said, warning) {
        (said, None) => said,
        (Value::String(said), Some(warning)) => Value::from(format!("{said}; {warning}")),
        (mut said, Some(warning)) => {
            said["warning"] = Value::from(warning);
            said
        }
    }
}

/// Reads words that edit the configuration. Returns the equivalent request in JSON, and the answer for when
/// it is done. `None` for other words.
fn edit_of(words: &str) -> Result<Option<(Value, String)>, String> {
    let (word, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
    let rest = rest.trim();
    let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let of = name.strip_prefix("pool:").unwrap_or(name);
    Ok(Some(match (word, name, value.trim()) {
        ("reset", "", "") => (json!({ "do": "reset" }), "all run-time changes are discarded".to_string()),
        ("add-service", mapping, _) if !mapping.is_empty() => {
            let service = mapping_of(rest)?;
            let said = format!("service {} was added", service["name"].as_str().unwrap_or_default());
            (json!({ "do": "add", "service": service }), said)
        }
        ("add", name, mapping) if !mapping.is_empty() => {
            let back_end = mapping_of(mapping)?;
            let said = format!("{} was added to {of}", back_end["name"].as_str().unwrap_or_default());
            (json!({ "do": "add", "service": name, "back_end": back_end }), said)
        }
        ("remove-service", name, "") if !name.is_empty() => {
            (json!({ "do": "remove", "service": name }), format!("service {name} was removed"))
        }
        ("remove", name, back_end) if !back_end.is_empty() && !back_end.contains(char::is_whitespace) => (
            json!({ "do": "remove", "service": name, "back_end": back_end }),
            format!("{back_end} was removed from {of}"),
        ),
        ("add" | "add-service" | "remove" | "remove-service" | "reset", ..) => return Err(USAGE.to_string()),
        _ => return Ok(None),
    }))
}

/// Reads a mapping as it would appear in the file.
fn mapping_of(text: &str) -> Result<Value, String> {
    let mut report = Report::new("the mapping", text);
    let node = weir_config::raw::parse(text, &mut report);
    let value = node.map(|node| to_json(&node)).filter(Value::is_object);
    value.ok_or_else(|| match report.diagnostics().first() {
        Some(wrong) => wrong.message.clone(),
        None => "expected a mapping, such as '{ name: b1, mac: 02:00:00:00:00:11 }'".to_string(),
    })
}
