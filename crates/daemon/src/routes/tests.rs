use super::*;
use std::sync::{Mutex, PoisonError};

/// What was asked of a table, and what it refuses.
#[derive(Default)]
struct Paper {
    routes: Vec<(Prefix, u32)>,
    refuses: bool,
    /// Whether it refuses to remove routes.
    keeps: bool,
    said: Vec<String>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Paper>>);

impl Fake {
    fn look(&self) -> std::sync::MutexGuard<'_, Paper> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what was asked since the last call.
    fn said(&self) -> String {
        std::mem::take(&mut self.look().said).join(", ")
    }
}

impl RouteTable for Fake {
    fn add(&mut self, prefix: Prefix, metric: u32, is_new: bool) -> Result<(), String> {
        let mut paper = self.look();
        if paper.refuses {
            return Err("no".into());
        }
        let is_there = paper.routes.contains(&(prefix, metric));
        assert!(!(is_new && is_there), "{prefix} is added twice");
        if !is_there {
            paper.routes.push((prefix, metric));
            paper.said.push(format!("+{prefix} {metric}"));
        }
        Ok(())
    }

    fn remove(&mut self, prefix: Prefix, metric: u32) -> Result<(), String> {
        let mut paper = self.look();
        if paper.keeps {
            return Err("no".into());
        }
        paper.routes.retain(|one| *one != (prefix, metric));
        paper.said.push(format!("-{prefix} {metric}"));
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn own(&self) -> Option<(u8, u32)> {
        None
    }
}

fn vip(last: u8) -> Prefix {
    Prefix { address: [192, 0, 2, last].into(), length: 32 }
}

fn up() -> RouteWish {
    RouteWish::Announce { degraded: false }
}

/// Routes in a table that has been examined.
fn routes() -> (Routes, Fake) {
    let (fake, doorbell) = (Fake::default(), Doorbell::new().unwrap());
    let routes = Routes::new(&RoutesConfig::default(), doorbell);
    (Routes { table: Box::new(fake.clone()), examined: Examined::Free, ..routes }, fake)
}

impl Routes {
    fn wishes(&mut self, service: &str, last: u8, wish: RouteWish) {
        self.wish("lb", service.to_string(), [vip(last)].into(), wish);
    }

    fn why(&self, last: u8) -> Option<&str> {
        self.vips.get(&vip(last))?.why.as_deref()
    }
}

#[test]
fn routes_follow_wishes() {
    let (mut routes, table) = routes();
    routes.follow(0, true);
    assert_eq!((table.said().as_str(), routes.deadline()), ("", None));
    // What is not known yet begins nothing and ends nothing.
    routes.wishes("web", 1, RouteWish::Keep("unchecked".into()));
    routes.follow(1, true);
    assert_eq!((table.said().as_str(), routes.why(1)), ("", Some("service web: unchecked")));
    routes.wishes("web", 1, up());
    routes.follow(2, true);
    assert_eq!((table.said().as_str(), routes.why(1)), ("+192.0.2.1/32 100", None));
    routes.wishes("web", 1, RouteWish::Keep("unchecked".into()));
    routes.follow(3, true);
    assert_eq!(table.said(), "");
    // There is always a route while the metric changes.
    routes.wishes("web", 1, RouteWish::Announce { degraded: true });
    routes.follow(4, true);
    assert_eq!(table.said(), "+192.0.2.1/32 200, -192.0.2.1/32 100");
    // Routes that others have removed come back.
    table.look().routes.clear();
    routes.again = Some(Instant::now());
    routes.follow(5, true);
    assert_eq!(table.said(), "+192.0.2.1/32 200");
    routes.wishes("web", 1, RouteWish::Withhold("down".into()));
    routes.follow(6, true);
    assert_eq!((table.said().as_str(), routes.why(1)), ("-192.0.2.1/32 200", Some("service web: down")));
    assert_eq!(routes.vips[&vip(1)].since_ns, 6);
    // A refusal is repeated later.
    table.look().refuses = true;
    routes.wishes("web", 1, up());
    routes.follow(7, true);
    assert_eq!((routes.why(1), routes.deadline().is_some()), (Some("no"), true));
    table.look().refuses = false;
    routes.again = Some(Instant::now());
    routes.follow(8, true);
    assert_eq!((table.said().as_str(), routes.why(1)), ("+192.0.2.1/32 100", None));
    routes.end(9);
    routes.follow(10, true);
    assert_eq!((table.said().as_str(), routes.announced()), ("-192.0.2.1/32 100", 0));
}

#[test]
fn a_route_that_the_kernel_does_not_remove_is_removed_later_or_used_again() {
    let (mut routes, table) = routes();
    routes.wishes("web", 1, up());
    routes.wishes("mail", 2, up());
    routes.follow(0, true);
    table.look().keeps = true;
    routes.wishes("web", 1, RouteWish::Announce { degraded: true });
    routes.wishes("mail", 2, RouteWish::Withhold("down".into()));
    routes.follow(1, true);
    assert_eq!(table.look().routes.len(), 3, "both former routes are still there");
    assert!(routes.deadline().is_some_and(|when| when <= Instant::now() + AGAIN), "it is tried again");
    // A route that is still there is not one of another program.
    routes.wishes("mail", 2, up());
    routes.follow(2, true);
    assert_eq!((routes.announced(), routes.why(2)), (2, None));
    table.look().keeps = false;
    routes.again = Some(Instant::now());
    routes.follow(3, true);
    assert_eq!(table.look().routes, [(vip(2), 100), (vip(1), 200)]);
    assert!(routes.deadline().is_some_and(|when| when > Instant::now() + AGAIN));
}

#[test]
fn a_reload_removes_at_once_and_adds_when_workers_have_switched() {
    let (mut routes, table) = routes();
    routes.wishes("old", 1, up());
    routes.wishes("both", 2, up());
    routes.follow(0, true);
    table.said();
    routes.begin(&RoutesConfig::default());
    routes.wishes("both", 2, RouteWish::Keep("unchecked".into()));
    routes.wishes("new", 3, up());
    routes.begun();
    routes.follow(1, false);
    assert_eq!(table.said(), "-192.0.2.1/32 100");
    assert!(routes.why(3).is_some_and(|why| why.contains("switching")) && routes.why(1).is_none());
    assert!(routes.deadline().is_none_or(|when| when > Instant::now()), "the main thread would spin");
    routes.follow(2, false);
    routes.follow(3, true);
    assert_eq!(table.said(), "+192.0.2.3/32 100");
}

#[test]
fn a_node_that_is_drained_has_no_routes_until_that_ends() {
    let (mut routes, table) = routes();
    routes.wishes("web", 1, up());
    routes.follow(0, true);
    assert!(routes.drain(true, 1) && !routes.drain(true, 2));
    routes.wishes("more", 2, up());
    routes.follow(3, true);
    assert_eq!(
        (table.said().as_str(), routes.why(2)),
        ("+192.0.2.1/32 100, -192.0.2.1/32 100", Some(DRAINING))
    );
    let (handed, device) = routes.hand_over();
    assert!(handed.draining_ns == Some(1) && handed.routes.is_empty() && device.is_none());
    assert!(routes.drain(false, 4));
    routes.follow(5, true);
    assert_eq!(table.said(), "+192.0.2.1/32 100, +192.0.2.2/32 100");
    let (handed, _) = routes.hand_over();
    assert_eq!(Handed::read(&handed.json()), handed);
    assert_eq!(handed.routes.len(), 2);
}

#[test]
fn a_table_with_routes_of_others_gets_none() {
    let (mut routes, table) = routes();
    routes.examined = Examined::Taken("table 1850 has routes of other programs".into());
    routes.wishes("web", 1, up());
    routes.follow(0, true);
    assert_eq!((table.said().as_str(), routes.announced()), ("", 0));
    assert!(routes.why(1).is_some_and(|why| why.contains("of other programs")));
    assert!(matches!(routes.examined, Examined::Now(_)), "it is examined again");
}

#[test]
fn what_a_successor_cannot_parse_is_left_out() {
    for bad in ["null", "{}", r#"{"routes":[["x",32,1,1],[],7,["192.0.2.1",999,1,1]],"table":-1}"#] {
        let handed = Handed::read(&serde_json::from_str(bad).unwrap());
        assert_eq!(handed, Handed::default(), "{bad}");
    }
}

#[test]
fn what_others_do_later_is_said_and_changes_no_route() {
    let (mut routes, table) = routes();
    routes.wishes("web", 1, up());
    routes.follow(0, true);
    table.said();
    let observe = |routes: &mut Routes, foreign: Option<&str>, reader: Option<&str>| {
        let (answer, seen) = sync_channel(1);
        let [foreign, reader] = [foreign, reader].map(|sentence| sentence.map(str::to_string));
        answer.send(Ok(TableNews { foreign, reader })).unwrap();
        routes.observation = Some(seen);
        routes.follow(1, true);
        let row = routes.rows(1).remove(0);
        (row.announced, row.why)
    };
    assert_eq!(observe(&mut routes, Some("taken"), Some("none")), (true, Some("taken".into())));
    assert_eq!(observe(&mut routes, None, Some("none")), (true, Some("none".into())));
    assert_eq!(observe(&mut routes, None, None), (true, None));
    assert_eq!(table.said(), "");
}
