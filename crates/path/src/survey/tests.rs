use super::*;
use crate::icmp;
use std::net::Ipv4Addr;

/// The minimum that a router quotes, and the length of a full quote.
const LEAST: usize = 20 + 8;
const ALL: usize = 576 - 28;

/// A router's message about a probe, of which it quotes `quotes` bytes.
fn said(wish: &Wish, router: [u8; 4], quotes: usize) -> Expired {
    said_of(PathTunnel::VXLAN, wish, router, quotes)
}

fn said_of(tunnel: PathTunnel, wish: &Wish, router: [u8; 4], quotes: usize) -> Expired {
    let outer = Outer::between(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), wish.port, tunnel);
    let probe = wish.probe(outer, ProbeId { session: 1, number: 1 }, 0, 0).datagram(Secret::default());
    icmp::expired(&icmp::message(router.into(), &probe, quotes)).unwrap()
}

/// The first of four paths has a queue that comes and goes.
fn delay(port: u16, now: u64) -> i64 {
    if port.is_multiple_of(4) { Random::new(now / 1_000_000).below(1_000_000) as i64 } else { 0 }
}

/// Runs a survey on a two-tier fabric with `spines` spines in between; `answers` says which routers answer.
fn surveyed(spines: u16, answers: impl Fn(u8, u16) -> bool) -> (Surveyed, u64) {
    let mut random = Random::new(7);
    let mut survey = Survey::new(0, 3, &[50_000], [49_152, 65_535], &mut random);
    let mut now = 0;
    loop {
        while let Some(wish) = survey.wish(now) {
            let Wish { port, ttl, .. } = wish;
            let spine = Random::new(port.into()).below(spines.into()) as u8;
            match ttl {
                1 if answers(1, port) => survey.expired(&said(&wish, [10, 0, 0, 1], LEAST)),
                2 if answers(2, port) => survey.expired(&said(&wish, [10, 9, spine, 2], ALL)),
                TTL_WHOLE => survey.arrived(port, 62, now, (1000 + u64::from(port), delay(port, now))),
                _ => {}
            }
        }
        if let Some(found) = survey.turn(now) {
            return (found, now);
        }
        now += 1_000_000;
        assert!(now < 10_000_000_000, "it ends");
    }
}

#[test]
fn the_paths_of_a_fabric_are_found() {
    for spines in 1..=16 {
        let (found, took_ns) = surveyed(spines, |_, _| true);
        let paths = distinct(&found.seen);
        assert_eq!(paths.len(), usize::from(spines), "{spines} spines");
        assert!(took_ns < 1_500_000_000, "{took_ns}");
        assert!(found.round_trip_ns.is_some_and(|time| time >= 1000 + 49_152));
    }
}

#[test]
fn a_short_quote_must_be_of_a_probe_of_this_tunnel() {
    for (_, of) in TunnelType::WORDS {
        for (_, other) in TunnelType::WORDS {
            let mut random = Random::new(7);
            let mut survey = Survey::new(0, 3, &[50_000], [49_152, 65_535], &mut random).through(of);
            // The node answers, so routers are asked next.
            let mut now = 0;
            let wish = loop {
                match survey.wish(now) {
                    Some(wish) if wish.cookie.is_some() => break wish,
                    Some(wish) => survey.arrived(wish.port, 62, now, (1000, 0)),
                    None => {
                        assert!(survey.turn(now).is_none());
                        now += 1_000_000;
                    }
                }
            };
            survey.expired(&said_of(PathTunnel { of: other, port: 4789 }, &wish, [10, 0, 0, 1], LEAST));
            assert_eq!(survey.wrong == 0, of == other, "{of} {other}");
        }
    }
}

/// An attacker that knows addresses, ports and TTLs, but has not seen any probe.
struct Liar(Random);

impl Liar {
    /// A guess of the probe from a port with a TTL: of the whole cookie, or of the part that must be quoted.
    fn guess(&mut self, port: u16, ttl: u8, is_whole: bool) -> Expired {
        let [router, from, to] = [[10, 66, 6, 6], [10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let guess = self.0.bits();
        let id = ((guess >> 52) as u16) << 4 | u16::from(ttl);
        let cookie = is_whole.then(|| self.0.bits());
        Expired { router, from, to, port, dport: 4789, id, check: guess as u16, cookie }
    }
}

#[test]
fn a_million_forged_answers_of_routers_hide_no_path() {
    for (spines, quotes) in [(2, ALL), (4, ALL), (8, ALL), (4, LEAST)] {
        let mut survey = Survey::new(0, 3, &[50_000], [49_152, 65_535], &mut Random::new(7));
        let (mut now, mut liar, mut lies) = (0, Liar(Random::new(11)), 0);
        // Where less than the cookie is quoted, the survey survives enough lies for the attack to be noticed.
        let lies_max = if quotes == ALL { 1 << 20 } else { WRONG_MAX - 1 };
        let found = loop {
            while let Some(wish) = survey.wish(now) {
                let spine = Random::new(wish.port.into()).below(spines) as u8;
                match wish.ttl {
                    1 => survey.expired(&said(&wish, [10, 0, 0, 1], quotes)),
                    2 => survey.expired(&said(&wish, [10, 9, spine, 2], quotes)),
                    TTL_WHOLE => survey.arrived(wish.port, 62, now, (1000, 500)),
                    _ => {}
                }
                for lie in 0..20_000_u32 {
                    if lies < lies_max {
                        lies += 1;
                        survey.expired(&liar.guess(wish.port, 1 + (lie % 2) as u8, lie % 4 < 2));
                    }
                }
            }
            if let Some(found) = survey.turn(now) {
                break found;
            }
            now += 1_000_000;
        };
        assert_eq!(distinct(&found.seen).len() as u64, spines);
        assert!(found.seen.iter().all(|one| one.hops.iter().all(|hop| *hop != Some([10, 66, 6, 6].into()))));
        assert_eq!((found.wrong, found.forgeries().is_some()), (lies_max, quotes == ALL));
        assert!(lies == lies_max, "{lies}");
    }
}

/// Even if a guess were right by chance.
#[test]
fn after_some_wrong_guesses_a_part_of_a_cookie_is_not_enough() {
    let mut survey = Survey::new(0, 3, &[50_000], [49_152, 65_535], &mut Random::new(7));
    let wishes = |survey: &mut Survey, now: &mut u64| {
        let mut all = Vec::new();
        while survey.turn(*now).is_none() && all.is_empty() {
            while let Some(wish) = survey.wish(*now) {
                match wish.ttl {
                    TTL_WHOLE => survey.arrived(wish.port, 62, *now, (1000, 500)),
                    _ => all.push(wish),
                }
            }
            *now += 1_000_000;
        }
        all
    };
    let mut now = 0;
    let wish = wishes(&mut survey, &mut now)[0];
    let hop =
        |survey: &Survey| survey.result().seen.iter().find(|one| one.port == wish.port).unwrap().hops[0];
    let mut liar = Liar(Random::new(11));
    (1..WRONG_MAX).for_each(|_| survey.expired(&liar.guess(wish.port, wish.ttl, false)));
    survey.expired(&said(&wish, [10, 0, 0, 1], LEAST));
    assert_eq!(hop(&survey), Some([10, 0, 0, 1].into()), "a correct quote counts");
    for wrong in
        [Expired { check: 0, ..said(&wish, [10, 0, 0, 2], LEAST) }, said(&wish, [10, 0, 0, 3], LEAST)]
    {
        survey.expired(&wrong);
        assert_eq!(hop(&survey), Some([10, 0, 0, 1].into()));
    }
    survey.expired(&said(&wish, [10, 0, 0, 4], ALL));
    assert_eq!(hop(&survey), Some([10, 0, 0, 4].into()), "a whole cookie counts");
    assert!(survey.result().forgeries().is_some());
}

#[test]
fn a_port_whose_answer_is_lost_is_tried_again() {
    let mut survey = Survey::new(0, 1, &[], [49_152, 65_535], &mut Random::new(1));
    let (mut now, mut lost) = (0, 0);
    let found = loop {
        while let Some(Wish { port, ttl, .. }) = survey.wish(now) {
            lost += 1;
            if ttl == TTL_WHOLE && lost % 4 == 0 {
                survey.arrived(port, 62, now, (1000, 500));
            }
        }
        if let Some(found) = survey.turn(now) {
            break found;
        }
        now += 1_000_000;
    };
    assert!(found.seen.len() > PORTS_TRIED / 2, "{}", found.seen.len());
}

#[test]
fn routers_that_answer_seldom_are_asked_again_and_silent_ones_are_not_for_ever() {
    let asked = std::cell::Cell::new(0);
    let seldom = |_, _| {
        asked.set(asked.get() + 1);
        asked.get() % 3 == 0
    };
    let (found, _) = surveyed(4, seldom);
    assert_eq!(distinct(&found.seen).len(), 4);
    let (found, _) = surveyed(4, |_, _| false);
    assert!(found.seen.iter().all(|one| one.hops == [None, None]) && found.seen.len() == 32);
}

#[test]
fn where_routers_are_silent_delays_tell_ports_of_one_path() {
    for answers in [|_, _| false, |ttl, _| ttl == 1] {
        let (found, took_ns) = surveyed(4, answers);
        assert!(took_ns < 6_000_000_000, "{took_ns}");
        let groups = crate::covariation::groups(&found.delays, 1000);
        let busy = |group: &Vec<usize>| found.seen[group[0]].port.is_multiple_of(4);
        let on_busy = found.seen[..PATHS_MAX].iter().filter(|one| one.port.is_multiple_of(4)).count();
        assert!(
            groups.iter().all(|group| group.len() == if busy(group) { on_busy } else { 1 }),
            "{groups:?}"
        );
    }
    assert!(surveyed(4, |_, _| true).0.delays.is_empty(), "hops suffice");
}

#[test]
fn a_node_that_does_not_answer_is_left_soon() {
    let mut survey = Survey::new(0, 1, &[], [49_152, 65_535], &mut Random::new(1));
    let mut now = 0;
    let mut sent = 0;
    let found = loop {
        sent += std::iter::from_fn(|| survey.wish(now)).count();
        if let Some(found) = survey.turn(now) {
            break found;
        }
        now += 2_000_000;
    };
    assert_eq!((found.seen.len(), found.round_trip_ns, sent), (0, None, PORTS_TRIED));
}

/// A router that sends one message a second, after six at once, as Linux's do.
#[derive(Default)]
struct Limiter {
    tokens_ns: u64,
    last_ns: u64,
}

impl Limiter {
    const SECOND: u64 = 1_000_000_000;

    fn may(&mut self, now: u64) -> bool {
        // Before the first message, there are tokens for all.
        let more = if self.last_ns == 0 { 6 * Self::SECOND } else { now - self.last_ns };
        self.tokens_ns = (self.tokens_ns + more).min(6 * Self::SECOND);
        self.last_ns = now;
        let may = self.tokens_ns >= Self::SECOND;
        self.tokens_ns -= u64::from(may) * Self::SECOND;
        may
    }
}

/// Runs a survey of a node that answers nothing, behind a router, `spines` links or routers, and another
/// router if `is_deep`; `limits` says whether routers limit their messages.
fn one_sided(spines: u64, is_deep: bool, limits: bool, seed: u64) -> (Surveyed, u64) {
    let mut random = Random::new(seed);
    let mut survey = Survey::new(0, 3, &[], [49_152, 65_535], &mut random).one_sided();
    let (mut now, mut routers) = (1_000_000_000, [(); 4].map(|()| Limiter::default()));
    loop {
        while let Some(wish) = survey.wish(now) {
            let spine = Random::new(wish.port.into()).below(spines) as u8;
            let router = match wish.ttl {
                1 => [10, 0, 0, 1],
                2 => [10, 9, spine, 2],
                3 if is_deep => [10, 8, spine, 2],
                _ => continue,
            };
            if !limits || routers[usize::from(wish.ttl)].may(now) {
                survey.expired(&said(&wish, router, LEAST));
            }
        }
        if let Some(found) = survey.turn(now) {
            return (found, now);
        }
        now += 1_000_000;
        assert!(now < 90_000_000_000, "it ends");
    }
}

#[test]
fn the_paths_to_a_node_that_does_not_help_are_found_whatever_routers_allow() {
    for (spines, is_deep, limits) in
        [(1, false, true), (4, false, false), (4, false, true), (2, true, true), (4, true, false)]
    {
        let mut missed = 0;
        for seed in 1..20 {
            let (found, took_ns) = one_sided(spines, is_deep, limits, seed);
            let ports = found.seen.iter().map(|one| Random::new(one.port.into()).below(spines));
            let reached: std::collections::BTreeSet<u64> = ports.collect();
            let paths = distinct(&found.seen);
            assert!(paths.len() <= reached.len(), "{spines} {is_deep} {limits} {seed}: {found:?}");
            missed += usize::from(paths.len() < reached.len());
            let hops = 2 + usize::from(is_deep);
            assert!(
                paths.iter().all(|path| path.hops.len() == hops && path.hops.iter().all(Option::is_some))
            );
            assert!(took_ns < if limits { 40_000_000_000 } else { 6_000_000_000 }, "{took_ns}");
        }
        // Of two routers, the ports that are asked first may all meet one.
        assert!(missed <= usize::from(spines == 2), "{spines} {is_deep} {limits}: {missed} missed");
    }
}

#[test]
fn without_a_router_that_answers_ports_are_taken_for_paths() {
    let mut random = Random::new(1);
    let mut survey = Survey::new(0, 3, &[], [49_152, 65_535], &mut random).one_sided();
    let found = (0..20_000).find_map(|ms| {
        while survey.wish(ms * 1_000_000).is_some() {}
        survey.turn(ms * 1_000_000)
    });
    let mut known = crate::known::Known::default();
    known.learn(&found.expect("it ends"), &crate::settings::Settings::of_rate(1_000_000_000));
    assert_eq!(known.all().len(), PATHS_MAX);
    assert!(known.sentence().contains("assumed to be paths"), "{}", known.sentence());
}
