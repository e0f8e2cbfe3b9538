//! The output of `ipvsadm -S -n`: the services of IPVS, usually configured by keepalived.

use super::services::{BackEnd, Imported, Service, Word, endpoint, name_of_ip, words};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use weir_config::Span;

/// Reads the lines; `file` is the name used in the report.
pub fn read(file: &str, text: &str) -> Imported {
    let mut all = Imported::new(file, text);
    let mut known = HashMap::new();
    for (line, number) in text.lines().zip(1..) {
        let words = words(line, number);
        let words = words.split(|(word, _)| word.ends_with("ipvsadm")).next_back().unwrap_or_default();
        match words {
            [] => {}
            [(word, _), ..] if word.starts_with('#') => {}
            [("-A" | "--add-service", span), rest @ ..] => add_service(&mut all, &mut known, *span, rest),
            [("-a" | "--add-server", span), rest @ ..] => add_server(&mut all, &known, *span, rest),
            [("-C" | "--clear", _)] => {}
            [(word, span), ..] => {
                let message =
                    format!("`{word}` is not understood: lines begin with -A or -a, as `ipvsadm -S` prints");
                all.report.error(*span, message);
            }
        }
    }
    all
}

/// The services by their address as written, which is how the lines of servers refer to them.
type ServiceIndex = HashMap<(&'static str, String), IpvsService>;

/// A service that was read.
#[derive(Clone, Copy)]
struct IpvsService {
    place: usize,
    /// Whether its scheduler ignores weights other than 0.
    unweighted: bool,
}

/// Finds the service that a line is about. IPVS also has services by firewall mark and for SCTP.
fn service_of<'a>(all: &mut Imported, at: Span, rest: &[Word<'a>]) -> Option<(&'static str, Word<'a>)> {
    let protocol = |word: &str| match word {
        "-t" | "--tcp-service" => Some("tcp"),
        "-u" | "--udp-service" => Some("udp"),
        "-f" | "--fwmark-service" | "--sctp-service" => Some(""),
        _ => None,
    };
    match rest {
        [(word, span), value, ..] => match protocol(word) {
            Some("") => {
                let message = format!("weir does not support services by `{word}`, so this one was omitted");
                all.note(None, *span, message);
                None
            }
            Some(protocol) => Some((protocol, *value)),
            None => {
                all.report.error(*span, format!("expected -t or -u, found `{word}`"));
                None
            }
        },
        _ => {
            all.report.error(at, "the service is missing: -t ADDRESS:PORT or -u ADDRESS:PORT");
            None
        }
    }
}

fn add_service(all: &mut Imported, known: &mut ServiceIndex, at: Span, rest: &[Word<'_>]) {
    let Some((protocol, address)) = service_of(all, at, rest) else { return };
    let Some((vip, port)) = endpoint(address, &mut all.report) else { return };
    let place = all.services.len();
    let key = (protocol, address.0.to_string());
    if known.contains_key(&key) {
        all.report.error(address.1, format!("service `{}` appears twice", address.0));
        return;
    }
    let port = port.filter(|&port| port != 0).map_or_else(|| "all".to_string(), |port| port.to_string());
    let name = format!("{protocol}-{}-{port}", name_of_ip(&vip.to_string()));
    let addresses = vec![(vip.to_string(), protocol, port)];
    all.services.push(Service { name, addresses, ..Service::default() });
    // The default of ipvsadm.
    let mut chosen = ("wlc", address.1);
    let (mut persists, mut netmask) = (None, None);
    let mut options = rest[2..].iter();
    while let Some(&(word, span)) = options.next() {
        match word {
            "-s" | "--scheduler" => match options.next() {
                Some(&scheduler) => chosen = scheduler,
                None => all.report.error(span, "the scheduler is missing"),
            },
            "-p" | "--persistent" => {
                let timeout = options.clone().next().filter(|(next, _)| !next.starts_with('-'));
                timeout.is_some().then(|| options.next());
                let seconds = timeout.map_or("360", |(seconds, _)| seconds);
                persists = Some(persistence(all, place, (seconds, span)));
            }
            "-M" | "--netmask" => {
                let value = options.next().copied().unwrap_or(("", span));
                match prefix(value.0, vip) {
                    Some(bits) => netmask = Some(bits),
                    None => all.report.error(value.1, format!("`{}` is not a netmask for {vip}", value.0)),
                }
            }
            "-b" | "--sched-flags" | "--pe" => {
                let value = options.next().map_or("", |(value, _)| value);
                all.note(Some(place), span, format!("`{word} {value}` has no counterpart and was omitted"));
            }
            _ => all.note(Some(place), span, format!("`{word}` has no counterpart and was omitted")),
        }
    }
    if let Some(seconds) = persists {
        let family = if vip.is_ipv6() { "ipv6" } else { "ipv4" };
        let bits = netmask.map(|bits| format!("{family}: {bits}, ")).unwrap_or_default();
        all.services[place].keys.push(format!("affinity: {{ {bits}timeout: {seconds}s }}"));
    } else if chosen.0 == "sh" {
        all.services[place].keys.push("affinity: source".to_string());
    }
    let unweighted = scheduler(all, place, chosen);
    known.insert(key, IpvsService { place, unweighted });
}

/// Returns how long clients of a service are remembered, in seconds.
fn persistence(all: &mut Imported, place: usize, (seconds, span): Word<'_>) -> u64 {
    let asked = seconds.parse().ok().filter(|&seconds: &u64| seconds > 0);
    if asked.is_none() {
        all.report.error(span, format!("`-p {seconds}` is not a number of seconds"));
    }
    let kept = asked.unwrap_or(360).min(PERSISTENCE_MAX);
    if asked.is_some_and(|asked| asked > kept) {
        all.note(
            Some(place),
            span,
            format!(
                "clients are remembered for {kept} s after their last \
            connection"
            ),
        );
    }
    kept
}

/// The maximum of that time, in seconds: ten days.
const PERSISTENCE_MAX: u64 = 864_000;

/// Parses the netmask of persistent clients: an address for IPv4, and a length for IPv6.
fn prefix(mask: &str, vip: IpAddr) -> Option<u32> {
    match vip {
        IpAddr::V4(_) => {
            let mask = mask.parse::<Ipv4Addr>().ok()?.to_bits();
            (mask.leading_ones() == mask.count_ones()).then_some(mask.leading_ones())
        }
        IpAddr::V6(_) => mask.parse().ok().filter(|bits| *bits <= 128),
    }
}

/// Converts the scheduler, or chooses the closest one. Returns whether weights are ignored.
fn scheduler(all: &mut Imported, place: usize, (word, span): Word<'_>) -> bool {
    let (scheduler, note) = match word {
        "rr" | "wrr" => ("round_robin", None),
        // `sed`, too, selects the minimum of (connections + 1) / weight.
        "lc" | "wlc" | "sed" => ("least_connections", None),
        "nq" => ("least_connections", Some("never leaves a back end idle, which weir does not guarantee")),
        "mh" => ("maglev", Some("uses a different table: flows move when weir takes over")),
        "sh" => ("maglev", Some("hashes the source address differently: clients move when weir takes over")),
        _ => ("maglev", Some("does not exist in weir: maglev, by hash and weight, replaces it")),
    };
    let service = &mut all.services[place];
    let persists = service.keys.iter().any(|key| key.starts_with("affinity:"));
    let kept = scheduler == "maglev" || !persists;
    service.scheduler = if kept { scheduler } else { "maglev" };
    let note = if kept { note } else { Some("has no effect here: maglev, by hash and weight, replaces it") };
    if let Some(note) = note {
        all.note(Some(place), span, format!("scheduler `{word}` {note}"));
    }
    matches!(word, "rr" | "lc")
}

fn add_server(all: &mut Imported, known: &ServiceIndex, at: Span, rest: &[Word<'_>]) {
    let Some((protocol, address)) = service_of(all, at, rest) else { return };
    let Some(&IpvsService { place, unweighted }) = known.get(&(protocol, address.0.to_string())) else {
        all.report.error(address.1, format!("there is no service `{}` above", address.0));
        return;
    };
    let (mut server, mut mode, mut weight, mut tunnel) = (None, "l2", 1, "ipip");
    let mut options = rest[2..].iter();
    while let Some(&(word, span)) = options.next() {
        match word {
            "-g" | "--gatewaying" => mode = "l2",
            "-i" | "--ipip" => mode = "ipip",
            "-m" | "--masquerading" => mode = "nat",
            "-r" | "--real-server" | "-w" | "--weight" | "--tun-type" => {
                let Some(&value) = options.next() else {
                    return all.report.error(span, format!("`{word}` needs a value"));
                };
                match word {
                    "-w" | "--weight" => match value.0.parse::<u64>().ok().filter(|&weight| weight <= 65_535)
                    {
                        Some(number) => weight = number,
                        None => all.report.error(value.1, "a weight is a number from 0 to 65535"),
                    },
                    "--tun-type" if ["gue", "gre", "ipip"].contains(&value.0) => {
                        tunnel =
                            ["gue", "gre", "ipip"].into_iter().find(|one| *one == value.0).unwrap_or("ipip");
                    }
                    "--tun-type" => {
                        all.note(Some(place), value.1, format!("weir has no tunnel `{}`", value.0))
                    }
                    _ => server = endpoint(value, &mut all.report).map(|found| (found, value.1)),
                }
            }
            "-x" | "-y" | "--u-threshold" | "--l-threshold" | "--tun-port" => {
                let value = options.next().map_or("", |(value, _)| value);
                if !(word.len() == 2 && value == "0") {
                    let message = format!("`{word} {value}` has no counterpart and was omitted");
                    all.note(Some(place), span, message);
                }
            }
            _ => all.note(Some(place), span, format!("`{word}` has no counterpart and was omitted")),
        }
    }
    let Some(((ip, port), _)) = server else {
        if all.report.errors() == 0 {
            all.report.error(at, "the real server is missing: -r ADDRESS:PORT");
        }
        return;
    };
    if unweighted && weight > 1 {
        let message = format!("this scheduler ignores weight {weight}, so it became 1");
        all.note(Some(place), at, message);
        weight = 1;
    }
    let mode = if mode == "ipip" { tunnel } else { mode };
    let service = &mut all.services[place];
    let same = port.is_none_or(|port| port == 0 || service.addresses[0].2 == port.to_string());
    let port = port.filter(|_| !same && mode == "nat");
    service.back_ends.push(BackEnd { ip, port, mode, weight, keys: Vec::new() });
}
