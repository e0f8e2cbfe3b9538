//! When the addresses of a service should be announced.

use super::app::{HealthRig, MS, health};
use crate::health::{Fail, Health, Routed, Serving, Standing, wish};
use std::sync::Arc;
use weir_app::route::{Prefix, RouteWish};
use weir_app::{Action, App, Event};
use weir_program::PortId;

fn routed(min_up: u32, degraded_below: u32) -> Routed {
    let prefixes = [Prefix { address: [192, 0, 2, 80].into(), length: 32 }].into();
    Routed { prefixes, ports: vec![PortId(0), PortId(1)], min_up, degraded_below }
}

#[test]
fn only_back_ends_that_get_packets_because_they_work_serve() {
    use Standing::*;
    let serving = |all: &[(Standing, u32)]| {
        let Serving { up, unknown, of } = Serving::of(all.iter().copied());
        (up, unknown, of)
    };
    let rest = [Down, Withdrawn, NoNeighbour, Draining, Maintenance].map(|standing| (standing, 1));
    assert_eq!(serving(&rest), (0, 0, 5));
    assert_eq!(serving(&[(Up, 1), (Unchecked, 1), (Up, 0), (Unknown, 1), (Suspect, 1)]), (2, 1, 5));
    // Suspects get packets if no other back end does.
    assert_eq!(serving(&[(Suspect, 1), (Suspect, 1), (Down, 1)]), (2, 0, 3));
    assert_eq!(serving(&[(Suspect, 1), (Unknown, 1)]), (0, 1, 2));
}

#[test]
fn a_service_is_announced_if_enough_serve_and_all_are_known() {
    let wish = |min_up, below, up, unknown, attached| match wish(
        &routed(min_up, below),
        Serving { up, unknown, of: 4 },
        attached,
    ) {
        RouteWish::Announce { degraded: false } => "full",
        RouteWish::Announce { degraded: true } => "degraded",
        RouteWish::Keep(_) => "keep",
        RouteWish::Withhold(_) => "withhold",
    };
    for (min_up, below, up, unknown, attached, wanted) in [
        (1, 0, 1, 0, true, "full"),
        (1, 0, 4, 0, false, "withhold"),
        (0, 0, 4, 0, false, "withhold"),
        (1, 0, 0, 0, true, "withhold"),
        (0, 0, 0, 0, true, "full"),
        (0, 0, 0, 4, true, "full"),
        (2, 0, 1, 0, true, "withhold"),
        (2, 0, 1, 1, true, "keep"),
        (2, 0, 3, 1, true, "keep"),
        (3, 0, 1, 1, true, "withhold"),
        (1, 3, 2, 0, true, "degraded"),
        (1, 3, 3, 0, true, "full"),
        (0, 1, 0, 0, true, "degraded"),
    ] {
        let case = (min_up, below, up, unknown, attached);
        assert_eq!(wish(min_up, below, up, unknown, attached), wanted, "{case:?}");
    }
}

/// Returns what the actions wish for last.
fn wished(actions: &[Action]) -> Option<&RouteWish> {
    let mut wishes = actions.iter().filter_map(|action| match action {
        Action::Announce { service, wish, .. } if service == "web" => Some(wish),
        _ => None,
    });
    wishes.next_back()
}

#[test]
fn the_app_wishes_when_ports_and_checks_say_so() {
    let mut health: Health = health(&[("web", &[1, 2]), ("plain", &[1])], Fail::All);
    Arc::make_mut(&mut health.services[0]).routed = Some(Arc::new(routed(1, 2)));
    let mut rig = HealthRig::new(health);
    assert_eq!(rig.app.watches(), [PortId(0), PortId(1)]);
    let link =
        |rig: &mut HealthRig, port, up| rig.step(Event::Link { port: PortId(port), up, speed_bps: None });
    let unchecked = link(&mut rig, 1, true);
    assert!(matches!(wished(&unchecked), Some(RouteWish::Keep(_))), "{unchecked:?}");
    assert_eq!(rig.app.unready().len(), 2);
    let tick = |rig: &mut HealthRig, ms: u64| {
        let until = rig.now_ns + ms * MS;
        let mut all = Vec::new();
        while rig.now_ns < until {
            rig.now_ns += 10 * MS;
            all.extend(rig.step(Event::Tick));
        }
        all
    };
    let checked = tick(&mut rig, 1500);
    assert_eq!(wished(&checked), Some(&RouteWish::Announce { degraded: false }), "{checked:?}");
    assert_eq!(rig.app.unready(), Vec::<String>::new());
    assert!(wished(&tick(&mut rig, 1500)).is_none(), "nothing has changed");
    rig.broken = vec![1];
    assert_eq!(wished(&tick(&mut rig, 5000)), Some(&RouteWish::Announce { degraded: true }));
    assert_eq!(rig.app.unready(), ["service plain: none of its 1 back ends serves"]);
    rig.broken = vec![1, 2];
    assert!(matches!(wished(&tick(&mut rig, 5000)), Some(RouteWish::Withhold(_))));
    rig.broken.clear();
    assert_eq!(wished(&tick(&mut rig, 5000)), Some(&RouteWish::Announce { degraded: false }));
    // One port is enough.
    assert!(wished(&link(&mut rig, 0, true)).is_none() && wished(&link(&mut rig, 1, false)).is_none());
    assert!(matches!(wished(&link(&mut rig, 0, false)), Some(RouteWish::Withhold(_))));
}
