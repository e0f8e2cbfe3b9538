//! Commands of Katran's example client (`example_grpc/goclient`): the state after the last command.

use super::services::{BackEnd, Imported, Service, Word, endpoint, name_of_ip, words};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use weir_config::Span;

/// Reads the commands, one per line; `file` is the name used in the report.
pub fn read(file: &str, text: &str) -> Imported {
    let mut all = Imported::new(file, text);
    let mut said = GeneralSettings::default();
    for (line, number) in text.lines().zip(1..) {
        let words = words(line, number);
        // Words before the first option are the name of the program, and perhaps a shell prompt.
        let from = words.iter().position(|(word, _)| word.starts_with('-')).unwrap_or(words.len());
        match words.first() {
            None => {}
            Some((word, _)) if word.starts_with('#') => {}
            Some((_, span)) if from == words.len() => {
                all.report.error(
                    *span,
                    "expected options of Katran's client: -A -t VIP:PORT, -a -t VIP:PORT -r REAL",
                );
            }
            Some(_) => command(&mut all, &words[from..], &mut said),
        }
    }
    quic(&mut all, &said);
    if let Some(mac) = said.router {
        let back_ends = all.services.iter_mut().flat_map(|service| &mut service.back_ends);
        back_ends.for_each(|back_end| back_end.keys.push(format!("mac: {mac}")));
    }
    all
}

/// Settings that belong to no service.
#[derive(Default)]
struct GeneralSettings {
    /// The MAC address of the default router.
    router: Option<String>,
    /// The real servers by their numbers in QUIC connection IDs.
    numbers: HashMap<u32, IpAddr>,
    /// The services that find real servers by these numbers, each with the position where this is set.
    quic: Vec<(String, Span)>,
}

/// Options that take a value. The flags of a VIP are `-f` of older clients, and `-vf`.
const VALUES: [&str; 12] =
    ["t", "u", "r", "w", "f", "vf", "rf", "new_hc", "somark", "change_mac", "quic_mapping", "server"];
/// Options of commands that only show something.
const SHOWS: [&str; 8] = ["s", "sum", "lru", "l", "list_hc", "list_mac", "list_qm", "icmp"];

fn command(all: &mut Imported, line: &[Word<'_>], said: &mut GeneralSettings) {
    let mut options: HashMap<&str, Word<'_>> = HashMap::new();
    let mut rest = line.iter();
    while let Some(&(word, span)) = rest.next() {
        let (option, value) = word.trim_start_matches('-').split_once('=').map_or_else(
            || (word.trim_start_matches('-'), None),
            |(option, value)| (option, Some((value, span))),
        );
        if !word.starts_with('-') {
            return all.report.error(span, format!("expected an option, found `{word}`"));
        }
        let value = match value {
            None if VALUES.contains(&option) => match rest.next() {
                Some(&value) => value,
                None => return all.report.error(span, format!("`{word}` needs a value")),
            },
            None => ("", span),
            Some(value) => value,
        };
        options.insert(option, value);
    }
    let at = line[0].1;
    let has = |option: &str| options.contains_key(option);
    if has("C") {
        // This command only removes services: Katran keeps the router and the numbers of real servers.
        all.services.clear();
        said.quic.clear();
    } else if let Some((mac, span)) = options.get("change_mac") {
        match weir_packet::read_mac(mac) {
            Some(_) => said.router = Some((*mac).to_string()),
            None => all.report.error(*span, format!("`{mac}` is not a MAC address")),
        }
    } else if let Some(action) = ["A", "E", "D", "a", "e", "d"].into_iter().find(|action| has(action)) {
        change(all, at, action, (&options, said));
    } else if let Some(&mapping) = options.get("quic_mapping") {
        map(all, mapping, !has("del_qm"), &mut said.numbers);
    } else if let Some((option, (value, span))) =
        options.iter().find(|(option, _)| ["new_hc", "del_hc", "del_qm"].contains(option))
    {
        let message = format!("`-{option} {value}` was omitted: it configures Katran's own health checks");
        all.note(None, *span, message);
    } else if !options.keys().any(|option| SHOWS.contains(option)) {
        let message = format!("`{}` is not understood and was omitted", line[0].0);
        all.note(None, at, message);
    }
}

/// Changes the services as the client would.
fn change(
    all: &mut Imported,
    at: Span,
    action: &str,
    (options, said): (&HashMap<&str, Word<'_>>, &mut GeneralSettings),
) {
    let (tcp, udp) = (options.get("t"), options.get("u"));
    let Some((protocol, &address)) = tcp.map(|one| ("tcp", one)).or(udp.map(|one| ("udp", one))) else {
        return all.report.error(at, "the VIP is missing: -t VIP:PORT or -u VIP:PORT");
    };
    let Some((vip, port)) = endpoint(address, &mut all.report) else { return };
    let Some(port) = port else { return all.report.error(address.1, "the VIP's port is missing") };
    let text = if port == 0 { "all".to_string() } else { port.to_string() };
    let name = format!("{protocol}-{}-{text}", name_of_ip(&vip.to_string()));
    let place = all.services.iter().position(|service| service.name == name);
    let place = match (action, place) {
        ("A", None) => {
            let addresses = vec![(vip.to_string(), protocol, text)];
            let scheduler = "katran";
            all.services.push(Service { name, addresses, scheduler, ..Service::default() });
            if port == 0 {
                all.services.last_mut().into_iter().for_each(|one| set_hash(one, "any_port", true));
            }
            all.services.len() - 1
        }
        ("A", Some(_)) => {
            let message = format!("`{}` already exists: this line changes nothing in Katran", address.0);
            return all.note(None, at, message);
        }
        (_, Some(place)) => place,
        (_, None) => {
            return all.report.error(address.1, format!("there is no service `{}` above", address.0));
        }
    };
    match action {
        "D" => _ = all.services.remove(place),
        "A" | "E" => ["f", "vf"].into_iter().filter_map(|one| options.get(one)).for_each(|&flag| {
            let set = action == "A" || !options.contains_key("unset");
            self::flag(all, place, flag, (set, &mut *said));
        }),
        _ => real(all, place, at, action, options),
    }
}

/// Sets or clears a flag of a VIP.
fn flag(all: &mut Imported, place: usize, (flag, span): Word<'_>, (set, said): (bool, &mut GeneralSettings)) {
    let service = &mut all.services[place];
    match flag {
        "NO_SPORT" => set_hash(service, "no_sport", set),
        "DPORT_HASH" => set_hash(service, "dport_only", set),
        "NO_LRU" => {
            service.keys.retain(|key| key != "stateless: true");
            service.keys.extend(set.then(|| "stateless: true".to_string()));
        }
        "QUIC_VIP" => {
            said.quic.retain(|(name, _)| *name != service.name);
            said.quic.extend(set.then(|| (service.name.clone(), span)));
        }
        _ => all.note(Some(place), span, format!("flag `{flag}` has no counterpart and was omitted")),
    }
}

/// The numbers of real servers that fit connection IDs of Katran's version 2. In Katran, 0 means no number.
const NUMBERS: RangeInclusive<u32> = 1..=0xff_fffe;

/// Maps or unmaps the number of a real server: `ADDRESS=NUMBER`.
fn map(all: &mut Imported, (mapping, span): Word<'_>, add: bool, numbers: &mut HashMap<u32, IpAddr>) {
    let read = mapping.rsplit_once('=');
    let read = read.and_then(|(ip, number)| Some((ip.parse::<IpAddr>().ok()?, number.parse().ok()?)));
    match read {
        Some((ip, number)) if add => _ = numbers.insert(number, ip),
        Some((ip, number)) if numbers.get(&number) == Some(&ip) => _ = numbers.remove(&number),
        Some(_) => all.note(None, span, format!("`{mapping}` is not mapped, so Katran removes nothing")),
        None => all.report.error(span, format!("`{mapping}` is not ADDRESS=NUMBER")),
    }
}

/// Writes `quic` for the services that find real servers by connection IDs, as far as `quic` can express
/// them. The first two bits of a connection ID are a version. In version 2, which is binary 10, octets 1 to 3
/// are the server's number. Weir reads the first three bits as the number of a configuration, so version 2 is
/// configurations 4 and 5. In version 1 the number begins within an octet, and half the IDs of version 3
/// begin with binary 111, which means no configuration.
fn quic(all: &mut Imported, said: &GeneralSettings) {
    for (name, span) in &said.quic {
        let Some(place) = all.services.iter().position(|service| service.name == *name) else { continue };
        let number = |back_end: &BackEnd| {
            let mut own =
                said.numbers.iter().filter(|(_, ip)| **ip == back_end.ip).map(|(number, _)| *number);
            let first = own.next().filter(|number| NUMBERS.contains(number));
            first.filter(|_| own.next().is_none())
        };
        let service = &mut all.services[place];
        let is_udp = service.addresses.iter().all(|(_, protocol, _)| *protocol == "udp");
        let is_known =
            !service.back_ends.is_empty() && service.back_ends.iter().all(|one| number(one).is_some());
        if !(is_udp && is_known) {
            let message = "flag `QUIC_VIP` was omitted: it needs UDP, real servers, and one \
                           `-quic_mapping` from 1 to 16777214 for each of them";
            all.note(Some(place), *span, message.to_string());
            continue;
        }
        let lengths = "server_id_length: 3, nonce_length: 4";
        service.keys.push(format!("quic: {{ configs: [{{ id: 4, {lengths} }}, {{ id: 5, {lengths} }}] }}"));
        for back_end in &mut service.back_ends {
            let id = number(back_end).map(|number| format!("server_id: \"{number:06x}\""));
            back_end.keys.extend(id);
        }
        let message = "flag `QUIC_VIP`: weir understands version 2 of Katran's connection IDs; others only \
            keep flows";
        all.note(Some(place), *span, message.to_string());
    }
}

/// Sets or clears one of the keys in `katran: { .. }` of a service.
fn set_hash(service: &mut Service, word: &str, set: bool) {
    let at = service.keys.iter().position(|key| key.starts_with("katran: "));
    let old = at.map(|at| service.keys.remove(at)).unwrap_or_default();
    let words = ["any_port", "no_sport", "dport_only"];
    let kept = words.into_iter().filter(|one| if *one == word { set } else { old.contains(one) });
    let kept: Vec<String> = kept.map(|one| format!("{one}: true")).collect();
    if !kept.is_empty() {
        service.keys.push(format!("katran: {{ {} }}", kept.join(", ")));
    }
}

/// Adds, changes or removes a real server.
fn real(all: &mut Imported, place: usize, at: Span, action: &str, options: &HashMap<&str, Word<'_>>) {
    let Some(&(address, span)) = options.get("r") else {
        return all.report.error(at, "the real server is missing: -r ADDRESS");
    };
    let Ok(ip) = address.parse() else {
        return all.report.error(span, format!("`{address}` is not an IP address"));
    };
    let &(weight, span) = options.get("w").unwrap_or(&("1", at));
    let Some(weight) = weight.parse::<u64>().ok().filter(|&weight| weight <= 65_535) else {
        return all.report.error(span, "a weight is a number from 0 to 65535");
    };
    if let Some(&(flag, span)) = options.get("rf") {
        let message = format!("flag `{flag}` of `{address}` has no counterpart and was omitted");
        all.note(Some(place), span, message);
    }
    let back_ends = &mut all.services[place].back_ends;
    let found = back_ends.iter().position(|back_end| back_end.ip == ip);
    match (action, found) {
        ("d", Some(found)) => _ = back_ends.remove(found),
        ("d", None) => all.report.error(at, format!("there is no real server `{address}` to remove")),
        (_, Some(found)) => back_ends[found].weight = weight,
        (_, None) => {
            back_ends.push(BackEnd { ip, port: None, mode: "ipip", weight, keys: Vec::new() });
        }
    }
}
