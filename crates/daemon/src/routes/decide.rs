//! Whether a VIP is announced, from the wishes of its services: a plain function.

use crate::config::{Needs, RoutesConfig};
use weir_app::route::RouteWish;

/// Whether and how a VIP is announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The VIP is announced with this metric; if that is the higher one, this is the reason.
    Announce(u32, Option<String>),
    /// The VIP's announcement stays as it is. If it is not announced, this is the reason.
    Keep(String),
    /// The VIP is not announced, for this reason.
    Withhold(String),
}

/// Decides about a VIP with these services, by name; there is at least one. With [`Needs::Any`], a service
/// that does not work makes the VIP degraded, so that a node where all of them work is preferred, and the VIP
/// stays reachable if there is none.
pub fn decide<'a>(config: &RoutesConfig, wishes: impl Iterator<Item = (&'a str, &'a RouteWish)>) -> Decision {
    let (mut full, mut degraded, mut kept, mut withheld) = (false, None, None, None);
    for (service, wish) in wishes {
        match wish {
            RouteWish::Announce { degraded: false } => full = true,
            RouteWish::Announce { degraded: true } => {
                degraded = degraded.or_else(|| Some(format!("service {service} is degraded")));
            }
            RouteWish::Keep(why) => kept = kept.or_else(|| Some(format!("service {service}: {why}"))),
            RouteWish::Withhold(why) => {
                withheld = withheld.or_else(|| Some(format!("service {service}: {why}")));
            }
        }
    }
    let works = full || degraded.is_some();
    match (config.needs, withheld, kept) {
        (Needs::All, Some(why), _) => Decision::Withhold(why),
        (Needs::Any, Some(why), None) if !works => Decision::Withhold(why),
        // Its metric, too, depends on what is not known yet.
        (_, _, Some(why)) => Decision::Keep(why),
        (_, withheld, None) => match degraded.or(withheld) {
            None => Decision::Announce(config.metric, None),
            why => Decision::Announce(config.degraded_metric, why),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vip_follows_its_services() {
        let up = RouteWish::Announce { degraded: false };
        let poor = RouteWish::Announce { degraded: true };
        let (unknown, down) = (RouteWish::Keep("unchecked".into()), RouteWish::Withhold("down".into()));
        let any = RoutesConfig::default();
        let all = RoutesConfig { needs: Needs::All, ..any.clone() };
        let decide = |config: &RoutesConfig, wishes: &[&RouteWish]| {
            decide(config, ["a", "b", "c"].into_iter().zip(wishes.iter().copied()))
        };
        let degraded = |why: &str| Decision::Announce(200, Some(why.into()));
        for (wishes, with_any, with_all) in [
            (vec![&up], Decision::Announce(100, None), Decision::Announce(100, None)),
            (vec![&up, &poor], degraded("service b is degraded"), degraded("service b is degraded")),
            (vec![&up, &down], degraded("service b: down"), Decision::Withhold("service b: down".into())),
            (
                vec![&up, &unknown],
                Decision::Keep("service b: unchecked".into()),
                Decision::Keep("service b: unchecked".into()),
            ),
            (
                vec![&down, &unknown],
                Decision::Keep("service b: unchecked".into()),
                Decision::Withhold("service a: down".into()),
            ),
            (
                vec![&down, &down],
                Decision::Withhold("service a: down".into()),
                Decision::Withhold("service a: down".into()),
            ),
        ] {
            assert_eq!(decide(&any, &wishes), with_any, "{wishes:?}");
            assert_eq!(decide(&all, &wishes), with_all, "{wishes:?}");
        }
    }
}
