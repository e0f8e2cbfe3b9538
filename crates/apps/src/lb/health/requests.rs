//! Requests of operators and programs: words, as from `weir lb drain SERVICE BACK_END`, or JSON, one request
//! or a list of them, which are carried out all or none.

use super::app::{LbApp, Wish};
use crate::app::Action;
use config::sets::WEIGHT_MAX;
use serde_json::{Value, json};

const USAGE: &str =
    "a request is `drain`, `maintenance`, `enable` or `weight`, a service, a back end, and the new weight";

/// The largest number of requests in a list.
const LIST_MAX: usize = 65_536;

/// The keys of a request in JSON.
const KEYS: [&str; 4] = ["do", "service", "back_end", "weight"];

/// A request that can be carried out.
#[derive(Clone, Copy)]
struct Order {
    /// The service, and the back end's place in it.
    at: (usize, usize),
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Wish(Wish),
    /// Multiplied by the service's scale.
    Weigh(u32),
}

impl LbApp {
    /// Does what is requested. Returns the answer, or why it cannot be done; then nothing has changed.
    pub(super) fn request(
        &mut self,
        request: &Value,
        now_ns: u64,
        actions: &mut Vec<Action>,
    ) -> Result<Value, String> {
        let orders = match request {
            Value::String(words) => {
                let order = self.order_of(&words.split_whitespace().collect::<Vec<_>>())?;
                self.carry_out(order, now_ns, actions);
                return Ok(Value::from(self.told(order)));
            }
            Value::Object(_) if request["do"] == "list" => return Ok(self.list()),
            Value::Array(all) if all.len() > LIST_MAX => {
                return Err(format!("a list has at most {LIST_MAX} requests"));
            }
            Value::Array(all) => {
                let one = |(at, one)| self.read(one).map_err(|why| format!("request {at}: {why}"));
                all.iter().enumerate().map(one).collect::<Result<Vec<Order>, String>>()?
            }
            one => vec![self.read(one)?],
        };
        orders.iter().for_each(|order| self.carry_out(*order, now_ns, actions));
        Ok(json!({ "done": orders.len() }))
    }

    /// Reads a request in JSON; an error names the field that is wrong.
    fn read(&self, request: &Value) -> Result<Order, String> {
        let fields =
            request.as_object().ok_or("a request is an object with `do`, `service` and `back_end`")?;
        if let Some(unknown) = fields.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(format!("there is no field `{unknown}`, but {}", KEYS.join(", ")));
        }
        let field =
            |key: &str| request[key].as_str().ok_or_else(|| format!("`{key}` is missing, or not a string"));
        let [what, service, back_end] = [field("do")?, field("service")?, field("back_end")?];
        let weight = &request["weight"];
        let words = [what, service, back_end].into_iter();
        match (what, weight) {
            ("weight", Value::Number(weight)) => {
                self.order_of(&words.chain([weight.to_string().as_str()]).collect::<Vec<_>>())
            }
            ("weight", _) => Err("`weight` is missing, or not a number".to_string()),
            ("drain" | "maintenance" | "enable", Value::Null) => self.order_of(&words.collect::<Vec<_>>()),
            ("drain" | "maintenance" | "enable", _) => Err(format!("`weight` is not for `{what}`")),
            _ => Err(format!("`do` is drain, maintenance, enable, weight or list, not `{what}`")),
        }
    }

    /// Reads a request in words.
    fn order_of(&self, words: &[&str]) -> Result<Order, String> {
        let [what, service, back_end, rest @ ..] = words else { return Err(USAGE.to_string()) };
        let at = self.place(service, back_end)?;
        let what = match (*what, rest) {
            ("drain", []) => What::Wish(Wish::Drain),
            ("maintenance", []) => What::Wish(Wish::Maintain),
            ("enable", []) => What::Wish(Wish::Work),
            ("weight", [weight]) => What::Weigh(self.weight(at.0, weight)?),
            _ => return Err(USAGE.to_string()),
        };
        Ok(Order { at, what })
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
            format!("there is no service `{service}`, but {all}")
        })?;
        let found = &self.services[at];
        if found.group.is_none() {
            return Err(format!("`{service}` has no weights that can be changed: it is by source bits"));
        }
        let place = found.rows.iter().position(|row| row.name == back_end).ok_or_else(|| {
            let all = names(found.rows.iter().take(16).map(|row| row.name.as_str()).collect());
            format!("service `{service}` has no back end `{back_end}`, but {all}")
        })?;
        Ok((at, place))
    }

    fn carry_out(&mut self, Order { at, what }: Order, now_ns: u64, actions: &mut Vec<Action>) {
        match what {
            What::Wish(wish) => self.wish(at, wish, now_ns, actions),
            What::Weigh(weight) => {
                self.services[at.0].rows[at.1].full = weight;
                self.evaluate(at.0, now_ns, actions);
            }
        }
    }

    /// Says what was done.
    fn told(&self, Order { at, what }: Order) -> String {
        let service = &self.services[at.0];
        let (name, of) = (&service.rows[at.1].name, &service.name);
        match what {
            What::Wish(Wish::Drain) => format!("{name} of {of} gets no new flows"),
            What::Wish(Wish::Maintain) => format!("{name} of {of} gets nothing and is not checked"),
            What::Wish(Wish::Work) => format!("{name} of {of} works again, as far as its checks say so"),
            What::Weigh(weight) => {
                format!("the weight of {name} of {of} is {} until the next reload", weight / service.scale)
            }
        }
    }

    /// Lists services and back ends.
    fn list(&self) -> Value {
        let services = self.services.iter().map(|service| {
            let back_end = |row: &super::app::Row| {
                let told = self.told_of(service, row);
                json!({ "name": row.name, "weight": row.full / service.scale,
                    "health": told.health, "reason": told.reason })
            };
            let back_ends: Vec<Value> = service.rows.iter().map(back_end).collect();
            json!({ "name": service.name, "back_ends": back_ends })
        });
        json!({ "services": services.collect::<Vec<_>>() })
    }
}
