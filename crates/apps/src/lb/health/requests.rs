//! Requests of operators: `weir lb drain|maintenance|enable|weight SERVICE BACK_END`.

use super::app::{LbApp, Wish};
use crate::app::Action;
use config::sets::WEIGHT_MAX;
use serde_json::Value;

const USAGE: &str =
    "a request is `drain`, `maintenance`, `enable` or `weight`, a service, a back end, and the new weight";

impl LbApp {
    /// Does what is requested. Returns a sentence that says so, or why it cannot be done.
    pub(super) fn request(
        &mut self,
        request: &Value,
        now_ns: u64,
        actions: &mut Vec<Action>,
    ) -> Result<Value, String> {
        let words: Vec<&str> = request.as_str().ok_or(USAGE)?.split_whitespace().collect();
        let [what, service, back_end, rest @ ..] = words.as_slice() else { return Err(USAGE.to_string()) };
        let at = self.place(service, back_end)?;
        let wish = match (*what, rest) {
            ("drain", []) => Wish::Drain,
            ("maintenance", []) => Wish::Maintain,
            ("enable", []) => Wish::Work,
            ("weight", [weight]) => return self.weigh(at, weight, now_ns, actions),
            _ => return Err(USAGE.to_string()),
        };
        self.wish(at, wish, now_ns, actions);
        Ok(Value::from(match wish {
            Wish::Drain => format!("{back_end} of {service} gets no new flows"),
            Wish::Maintain => format!("{back_end} of {service} gets nothing and is not checked"),
            Wish::Work => format!("{back_end} of {service} works again, as far as its checks say so"),
        }))
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

    fn weigh(
        &mut self,
        (at, place): (usize, usize),
        weight: &str,
        now_ns: u64,
        actions: &mut Vec<Action>,
    ) -> Result<Value, String> {
        let service = &mut self.services[at];
        let most = WEIGHT_MAX as u32 / service.scale;
        let new = weight.parse::<u32>().ok().filter(|weight| *weight <= most);
        let new = new.ok_or_else(|| format!("a weight is a number from 0 to {most}, not `{weight}`"))?;
        let row = &mut service.rows[place];
        row.full = new * service.scale;
        let said = format!("the weight of {} of {} is {new} until the next reload", row.name, service.name);
        self.evaluate(at, now_ns, actions);
        Ok(Value::from(said))
    }
}
