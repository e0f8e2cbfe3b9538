use super::*;
use crate::config::{Nic, Nics};
use weir_packet::Field;
use weir_packet::random::Random;
use weir_program::operation::{Operation, Value};

const FILE: &str = r#"{"backends":[{"name":"fips2","mac_address":"A0:88:C2:B5:F4:5A"},
    {"name":"fips3","mac_address":"A0:88:C2:B5:F4:5B"}, {"name":"fips4","mac_address":"A0:88:C2:B5:F4:5C"}]}"#;

fn system(name: &str) -> &'static Foreign {
    foreign().find(|(_, one)| one.name == name).unwrap().1
}

/// Converts a file with the options of a command line.
fn convert(name: &str, text: &str, options: &[&str]) -> Result<(String, Report), Report> {
    let command = Command::new("import").args(system(name).settings.iter().map(argument));
    let matches = command.get_matches_from(["import"].iter().chain(options));
    (system(name).convert)(Path::new("x/other"), text, &settings(system(name).settings.iter(), &matches))
}

fn xenoflow(text: &str, options: &[&str]) -> Result<String, Report> {
    convert("xenoflow", text, options).map(|(yaml, _)| yaml)
}

#[test]
fn what_is_imported_can_be_run() {
    for by in ["5-tuple", "source", "src/0.0.1.5"] {
        for others in [&[][..], &["--out", "eth1", "--vip", "10.0.0.53", "--source-mac", "02:00:00:00:00:01"]]
        {
            let options = [&["--by", by], others].concat();
            let yaml = xenoflow(FILE, &options).unwrap();
            let loaded = config::read("imported", &yaml);
            // Without a VIP, all IPv4 packets are taken from the host, which causes a warning.
            assert_eq!(loaded.report.errors(), 0, "{yaml}{}", loaded.report);
            assert_eq!(loaded.report.warnings(), usize::from(others.is_empty()), "{}", loaded.report);
            let program = loaded.plan.unwrap().program;
            let entries = if by.starts_with("src/") { 8 } else { 3 };
            assert_eq!((program.pipes[0].entries.len(), program.counters.len()), (entries, 3));
        }
    }
}

/// A switch connected to both ports must not learn the address of one behind the other.
#[test]
fn packets_leave_with_the_address_of_the_port_they_leave_by() {
    let four = ["--by", "src/0.0.0.3"];
    let yaml = xenoflow(FILE, &[&four[..], &["--out", "out0"]].concat()).unwrap();
    let source = |nics: &Nics| {
        let plan = config::read_knowing("imported", &yaml, nics).plan.unwrap();
        plan.program.pipes[0].templates[0].operations[0]
    };
    let own = Operation::Set(Field::EthSrc, Value::Const(0x02_00_00_00_00_02));
    let nics = [("eth0", 1), ("out0", 2)].map(|(name, last)| Nic {
        name: name.to_string(),
        mac: [2, 0, 0, 0, 0, last],
        ..Nic::default()
    });
    assert_eq!(source(&nics.into_iter().collect()), own);
    let copied = Operation::Copy { from: Field::EthDst, to: Field::EthSrc };
    assert_eq!(source(&Nics::default()), copied, "this host has no such interface");
    let same = xenoflow(FILE, &four).unwrap();
    assert!(same.contains("copy: { from: eth.dst, to: eth.src }"), "{same}");
}

#[test]
fn a_file_that_is_not_utf_8_is_shown_with_the_first_byte_that_is_not() {
    let file = std::env::temp_dir().join(format!("weir-not-utf-8-{}", std::process::id()));
    std::fs::write(&file, b"ports: {}\nsocket: d\xe9mon\n").unwrap();
    let loaded = load(&file, &NodeOption::default(), &ImportOptions::default()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(loaded.plan.is_none());
    let said = loaded.report.to_string();
    assert!(said.contains(":2:10: error: this is not UTF-8: byte 0xe9"), "{said}");
}

#[test]
fn only_a_file_of_xenoflows_is_taken_for_one() {
    let is_xenoflow = system("xenoflow").recognise.unwrap();
    assert!(is_xenoflow(FILE));
    let yaml = "---\n# Two.\nbackends:\n  - { name: fips2, mac_address: A0:88:C2:B5:F4:5A }\n  \
        - { name: fips3, mac_address: \"A0:88:C2:B5:F4:5B\" }\n";
    assert!(is_xenoflow(yaml));
    let json = r#"{"backends":[{"name":"fips2","mac_address":"A0:88:C2:B5:F4:5A"},
        {"name":"fips3","mac_address":"A0:88:C2:B5:F4:5B"}]}"#;
    let [of_yaml, of_json] = [yaml, json].map(|text| xenoflow(text, &[]).unwrap());
    assert_eq!(of_yaml, of_json);
    assert!(!is_xenoflow("ports: { p0: { mem: } }"));
    assert!(!is_xenoflow(r#"{ "ports": {}, "pipes": {} }"#));
}

fn converted(system: &str, text: &str) -> (String, Report) {
    convert(system, text, &["--in", "eth1"]).unwrap_or_else(|report| panic!("{report}"))
}

/// Returns the report about a file that is refused.
fn refused(system: &str, text: &str) -> String {
    convert(system, text, &[]).unwrap_err().to_string()
}

/// Back ends for which the source address has too few values would silently get nothing.
#[test]
fn more_back_ends_than_values_of_the_bits_get_more_bits() {
    let file = |weights: &[u32]| {
        let one = |(at, weight): (usize, &u32)| {
            format!(r#"{{"name":"b{at}","mac_address":"02:00:00:00:01:{at:02x}","weight":{weight}}}"#)
        };
        let all: Vec<String> = weights.iter().enumerate().map(one).collect();
        format!(r#"{{"backends":[{}]}}"#, all.join(","))
    };
    for (weights, by, shares) in [
        (&[1, 1, 1][..], "src/0.0.0.3", &[2, 1, 1][..]),
        (&[3, 1], "src/0.0.0.3", &[3, 1]),
        (&[20, 20], "src/0.0.0.1", &[1, 1]),
        (&[1; 17], "src/0.0.0.31", &[2; 15]),
        (&[300, 1], "source", &[1, 1]),
    ] {
        let (yaml, report) = convert("xenoflow", &file(weights), &[]).unwrap();
        assert_eq!(report.warnings(), usize::from(by != "src/0.0.0.1"), "{report}");
        assert!(by == "src/0.0.0.1" || report.to_string().contains(&format!("`{by}` is used")), "{report}");
        let loaded = config::read("imported", &yaml);
        let plan = loaded.plan.unwrap_or_else(|| panic!("{yaml}{}", loaded.report));
        let entries = &plan.program.pipes[0].entries;
        for (at, share) in shares.iter().enumerate() {
            let its = entries.iter().filter(|one| one.counter.is_some_and(|one| one.index() == at)).count();
            assert_eq!(its, *share, "b{at}: {yaml}");
        }
        assert_eq!(yaml.contains("weight: 300"), by == "source", "{yaml}");
    }
    // A file that is run has the warning, too, at its own place.
    let path = std::env::temp_dir().join(format!("weir-widened-{}.json", std::process::id()));
    std::fs::write(&path, file(&[1, 1, 1])).unwrap();
    let loaded = load(&path, &NodeOption::default(), &ImportOptions::default()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(loaded.plan.is_some());
    let said = loaded.report.to_string();
    assert!(said.contains(".json:1:1: warning: the bits of `src/0.0.0.1` have 2 values, too few"), "{said}");
}

#[test]
fn ports_of_xenoflow_may_be_dpdk_devices() {
    let options = ["--in", "dpdk:net_tap0,iface=dtap0", "--out", "xdp:eth1", "--udp-only"];
    let yaml = xenoflow(FILE, &[&options[..], &["--by", "source"]].concat()).unwrap();
    let ports = "  in: { dpdk: \"net_tap0,iface=dtap0\", root: balance }\n  out: { xdp: eth1 }\n";
    assert!(yaml.contains(ports), "{yaml}");
    let service = xenoflow(FILE, &[&options[..], &["--service"]].concat()).unwrap();
    let ports = ports.replace(", root: balance", "");
    assert!(service.contains(&ports) && service.contains("vip: 0.0.0.0/0, protocol: udp"), "{service}");
    let check = system("xenoflow").settings[0].check;
    assert!(check("pcap:a").unwrap_err().contains("`pcap` is no kind of port"));
    assert!(check("dpdk:").is_err() && check("eth0").is_ok());
}

#[test]
fn services_of_ipvs_become_ours() {
    let text = "-A -t 192.0.2.1:80 -s wrr -p 300\n\
        -a -t 192.0.2.1:80 -r 10.0.0.1:80 -g -w 3\n\
        -a -t 192.0.2.1:80 -r 10.0.0.2:8080 -m -w 1 -x 100 -y 0\n\
        -A -u [2001:db8::1]:53 -s mh -b mh-port\n\
        -a -u [2001:db8::1]:53 -r [2001:db8::2]:53 -i -w 0 --tun-type gue --tun-port 6080\n\
        -A -f 7 -s rr\n";
    let (yaml, report) = converted("ipvs", text);
    let wanted = "\
# IPVS's other, as weir understands it; docs/reference/configuration.md describes the keys.
# line 6: weir does not support services by `-f`, so this one was omitted
ports:
  in: { xdp: eth1 }
apps:
  # line 1: scheduler `wrr` has no effect here: maglev, by hash and weight, replaces it
  # line 3: `-x 100` has no counterpart and was omitted
  - lb:
      name: tcp-192.0.2.1-80
      port: in
      service: { vip: 192.0.2.1, protocol: tcp, port: 80 }
      scheduler: maglev
      affinity: { timeout: 300s }
      back_ends:
        - { name: 10.0.0.1, ip: 10.0.0.1, mode: l2, weight: 3 }
        - { name: 10.0.0.2, ip: 10.0.0.2, mode: nat, port: 8080, weight: 1 }
  # line 4: `-b mh-port` has no counterpart and was omitted
  # line 4: scheduler `mh` uses a different table: flows move when weir takes over
  # line 5: `--tun-port 6080` has no counterpart and was omitted
  - lb:
      name: udp-2001-db8--1-53
      port: in
      service: { vip: \"2001:db8::1\", protocol: udp, port: 53 }
      scheduler: maglev
      back_ends:
        - { name: 2001-db8--2, ip: \"2001:db8::2\", mode: gue, weight: 0 }
";
    assert_eq!(yaml, wanted);
    assert_eq!((report.errors(), report.warnings()), (0, 6), "an omission is reported twice: {report}");
}

/// IPVS schedulers become ones that keep flows, unless clients persist.
#[test]
fn schedulers_of_ipvs_become_those_that_choose_alike() {
    for (chosen, options, scheduler, weight, notes) in [
        ("-s rr", "", "round_robin", 1, 1),
        ("-s wrr", "", "round_robin", 3, 0),
        ("-s lc", "", "least_connections", 1, 1),
        ("-s wlc", "", "least_connections", 3, 0),
        ("-s sed", "", "least_connections", 3, 0),
        ("-s nq", "", "least_connections", 3, 1),
        ("", "", "least_connections", 3, 0),
        ("-s mh", "", "maglev", 3, 1),
        ("-s sh", "", "maglev", 3, 1),
        ("-s sh", "-p 60", "maglev", 3, 1),
        ("-s lblc", "", "maglev", 3, 1),
        ("-s wlc", "-p 60", "maglev", 3, 1),
    ] {
        let servers =
            "-a -t 192.0.2.1:80 -r 10.0.0.1:80 -g -w 3\n-a -t 192.0.2.1:80 -r 10.0.0.2:80 -g -w 0\n";
        for service in [format!("{chosen} {options}"), format!("{options} {chosen}")] {
            let (yaml, report) = converted("ipvs", &format!("-A -t 192.0.2.1:80 {service}\n{servers}"));
            assert!(yaml.contains(&format!("scheduler: {scheduler}\n")), "{service}: {yaml}");
            assert!(yaml.contains(&format!("10.0.0.1, mode: l2, weight: {weight} ")), "{service}: {yaml}");
            assert!(yaml.contains("10.0.0.2, mode: l2, weight: 0 "), "{service}: {yaml}");
            let affinity = usize::from(service.contains("-p ") || service.contains("sh"));
            assert_eq!((report.warnings(), yaml.matches("affinity: ").count()), (notes, affinity), "{yaml}");
            assert_eq!(config::read("imported", &yaml).report.errors(), 0, "{yaml}");
        }
    }
}

/// Client persistence also works with NAT, by prefix if there is a netmask.
#[test]
fn persistence_of_ipvs_runs_with_nat() {
    for mode in ["-g", "-m"] {
        for (vip, real, options, wanted) in [
            ("10.0.0.1:80", "192.168.1.1", "-s wrr -p 300", "affinity: { timeout: 300s }"),
            ("10.0.0.1:80", "192.168.1.1", "-s sh", "affinity: source"),
            (
                "10.0.0.1:80",
                "192.168.1.1",
                "-s rr -p -M 255.255.255.0",
                "affinity: { ipv4: 24, timeout: 360s }",
            ),
            ("[2001:db8::1]:80", "[2001:db8::1", "-M 64 -p 60 -s lc", "affinity: { ipv6: 64, timeout: 60s }"),
        ] {
            let end = if real.starts_with('[') { "]" } else { "" };
            let server = |last: u8| format!("-a -t {vip} -r {real}{last}{end}:80 {mode} -w 1\n");
            let text = format!("-A -t {vip} {options}\n{}{}", server(1), server(2));
            let (yaml, _) = converted("ipvs", &text);
            assert!(yaml.contains(&format!("      {wanted}\n")), "{yaml}");
            assert!(!yaml.contains("by: source"), "{yaml}");
            let read = config::read("imported", &yaml);
            assert_eq!(read.report.errors(), 0, "{yaml}{}", read.report);
        }
    }
    let bad = "-A -t 10.0.0.1:80 -s rr -p -M 255.0.255.0\n";
    assert!(refused("ipvs", bad).contains("`255.0.255.0` is not a netmask for 10.0.0.1"));
}

#[test]
fn lines_that_ipvsadm_does_not_print_are_refused_with_their_place() {
    let said = refused("ipvs", "-A -t 192.0.2.1:http -s rr\n");
    assert!(
        said.contains("other:1:7: error: `http` is not a port") && said.contains("ipvsadm -S -n"),
        "{said}"
    );
    let said = refused("ipvs", "-a -t 192.0.2.1:80 -r 10.0.0.1:80\n");
    assert!(said.contains("other:1:7: error: there is no service `192.0.2.1:80` above"), "{said}");
    let said = refused("ipvs", "-A -t 192.0.2.1:80\n-a -t 192.0.2.1:80 -w heavy -r 10.0.0.1\n");
    assert!(said.contains("other:2:23: error: a weight is a number"), "{said}");
    for (text, message) in [
        ("-A", "the service is missing"),
        ("-A -t 1.2.3:80", "`1.2.3` is not an IP address"),
        ("-A -t 1.2.3.4:80\n-A -t 1.2.3.4:80", "appears twice"),
        ("-A -t 1.2.3.4:80\n-a -t 1.2.3.4:80 -g", "the real server is missing"),
        ("-A -t 1.2.3.4:80\n-a -t 1.2.3.4:80 -r", "`-r` needs a value"),
        ("hello", "`hello` is not understood"),
        ("", "there is no service here"),
    ] {
        let said = refused("ipvs", text);
        assert!(said.contains(message), "{text}: {said}");
    }
}

#[test]
fn commands_of_katrans_client_become_services() {
    let text = "$ ./katran_goclient -change_mac 00:00:DE:AD:BE:AF\n\
        ./katran_goclient -A -t 10.200.1.1:80\n\
        ./katran_goclient -a -t 10.200.1.1:80 -r 10.0.0.2 -w 10\n\
        ./katran_goclient -a -t 10.200.1.1:80 -r fc00::1\n\
        ./katran_goclient -a -t 10.200.1.1:80 -r 10.0.0.9\n\
        ./katran_goclient -e -t 10.200.1.1:80 -r=10.0.0.2 -w=5\n\
        ./katran_goclient -d -t 10.200.1.1:80 -r 10.0.0.9\n\
        ./katran_goclient -A -u 10.200.1.2:0 -f DPORT_HASH\n\
        ./katran_goclient -E -u 10.200.1.2:0 -f NO_LRU\n\
        ./katran_goclient -E -u 10.200.1.2:0 -f QUIC_VIP\n\
        ./katran_goclient -new_hc 10.0.0.2 -somark 1000\n\
        ./katran_goclient -l\n";
    let (yaml, report) = converted("katran", text);
    let wanted = "\
# Katran's other, as weir understands it; docs/reference/configuration.md describes the keys.
# line 11: `-new_hc 10.0.0.2` was omitted: it configures Katran's own health checks
ports:
  in: { xdp: eth1 }
apps:
  - lb:
      name: tcp-10.200.1.1-80
      port: in
      service: { vip: 10.200.1.1, protocol: tcp, port: 80 }
      scheduler: katran
      back_ends:
        - { name: 10.0.0.2, ip: 10.0.0.2, mode: ipip, weight: 5, mac: 00:00:DE:AD:BE:AF }
        - { name: fc00--1, ip: \"fc00::1\", mode: ipip, weight: 1, mac: 00:00:DE:AD:BE:AF }
  # line 10: flag `QUIC_VIP` was omitted: it needs UDP, real servers, and one `-quic_mapping` from 1 to \
16777214 for each of them
  - lb:
      name: udp-10.200.1.2-all
      port: in
      service: { vip: 10.200.1.2, protocol: udp, port: all }
      scheduler: katran
      katran: { any_port: true, dport_only: true }
      stateless: true
      back_ends: []
";
    assert_eq!(yaml, wanted);
    assert_eq!(report.warnings(), 2, "{report}");
    let said = refused("katran", "-A -t 10.200.1.1:80\n-a -t 10.200.1.1:80 -r ten\n");
    assert!(said.contains("other:2:24: error: `ten` is not an IP address"), "{said}");
    let said = refused("katran", "-A -t 10.200.1.1:80\n-d -t 10.200.1.1:80 -r 10.0.0.1\n");
    assert!(said.contains("there is no real server `10.0.0.1` to remove"), "{said}");
    assert!(refused("katran", "katran").contains("expected options of Katran's client"));
    assert!(refused("katran", "-A -t 10.0.0.1").contains("the VIP's port is missing"));
}

/// Flags of newer clients; and connection IDs of Katran's version 2, whose first two bits are 10, with the
/// server's number in the next three octets.
#[test]
fn katrans_flags_of_vips_and_reals_and_its_quic_mappings_become_keys() {
    let text = "-A -u 10.200.1.5:443 -vf QUIC_VIP -unset\n\
        -server 127.0.0.1:50051 -a -u 10.200.1.5:443 -r 10.0.0.2 -rf LOCAL_REAL\n\
        -a -u 10.200.1.5:443 -r fc00::1\n\
        -E -u 10.200.1.5:443 -vf NO_SPORT\n\
        -E -u 10.200.1.5:443 -vf NO_LRU\n\
        -E -u 10.200.1.5:443 -vf NO_LRU -unset\n\
        -quic_mapping 10.0.0.2=1022\n\
        -quic_mapping=fc00::1=70000\n\
        -A -t 10.200.1.6:80\n";
    let (yaml, report) = converted("katran", text);
    let wanted = "
  # line 2: flag `LOCAL_REAL` of `10.0.0.2` has no counterpart and was omitted
  # line 1: flag `QUIC_VIP`: weir understands version 2 of Katran's connection IDs; others only keep flows
  - lb:
      name: udp-10.200.1.5-443
      port: in
      service: { vip: 10.200.1.5, protocol: udp, port: 443 }
      scheduler: katran
      katran: { no_sport: true }
      quic: { configs: [{ id: 4, server_id_length: 3, nonce_length: 4 }, \
{ id: 5, server_id_length: 3, nonce_length: 4 }] }
      back_ends:
        - { name: 10.0.0.2, ip: 10.0.0.2, mode: ipip, weight: 1, server_id: \"0003fe\" }
        - { name: fc00--1, ip: \"fc00::1\", mode: ipip, weight: 1, server_id: \"011170\" }
  - lb:
      name: tcp-10.200.1.6-80
      port: in
      service: { vip: 10.200.1.6, protocol: tcp, port: 80 }
      scheduler: katran
      back_ends: []
";
    assert!(yaml.ends_with(&wanted[1..]), "{yaml}");
    assert_eq!(report.warnings(), 2, "{report}");
    let said = refused("katran", "-A -u 10.0.0.1:1\n-quic_mapping 10.0.0.2\n");
    assert!(said.contains("`10.0.0.2` is not ADDRESS=NUMBER"), "{said}");
    // Without a number for each server, and for TCP, it is left out with a reason.
    for text in [
        "-A -u 10.0.0.1:1 -vf QUIC_VIP\n-a -u 10.0.0.1:1 -r 10.0.0.2\n",
        "-A -u 10.0.0.1:1 -vf QUIC_VIP\n-a -u 10.0.0.1:1 -r 10.0.0.2\n-quic_mapping 10.0.0.2=16777215\n",
        "-A -u 10.0.0.1:1 -vf QUIC_VIP\n-a -u 10.0.0.1:1 -r 10.0.0.2\n-quic_mapping 10.0.0.2=0\n",
        "-A -u 10.0.0.1:1 -vf QUIC_VIP\n-a -u 10.0.0.1:1 -r 10.0.0.2\n-quic_mapping 10.0.0.2=7\n\
         -quic_mapping 10.0.0.2=8\n",
        "-A -u 10.0.0.1:1 -vf QUIC_VIP\n-a -u 10.0.0.1:1 -r 10.0.0.2\n-quic_mapping 10.0.0.2=7\n\
         -quic_mapping 10.0.0.3=7\n",
        "-A -t 10.0.0.1:1 -vf QUIC_VIP\n-a -t 10.0.0.1:1 -r 10.0.0.2\n-quic_mapping 10.0.0.2=7\n",
    ] {
        let (yaml, _) = converted("katran", text);
        assert!(yaml.contains("`QUIC_VIP` was omitted") && !yaml.contains("quic: {"), "{yaml}");
    }
}

/// A number belongs to one server, and only its own mapping removes it. Deleting all services deletes no
/// number, and adding a service again does not change it.
#[test]
fn numbers_of_katrans_real_servers_change_as_in_katran() {
    let text = "-quic_mapping 10.0.0.2=7\n-quic_mapping 10.0.0.2=7\n-quic_mapping 10.0.0.3=7 -del_qm\n\
        -quic_mapping 10.0.0.2=9\n-quic_mapping 10.0.0.2=9 -del_qm\n-A -t 10.0.0.1:1\n-C\n\
        -A -u 10.0.0.1:1 -vf QUIC_VIP\n-a -u 10.0.0.1:1 -r 10.0.0.2\n-A -u 10.0.0.1:1 -vf NO_LRU\n";
    let (yaml, report) = converted("katran", text);
    assert!(yaml.contains("server_id: \"000007\"") && !yaml.contains("stateless"), "{yaml}");
    assert!(yaml.contains("# line 3: `10.0.0.3=7` is not mapped"), "{yaml}");
    assert!(yaml.contains("# line 10: `10.0.0.1:1` already exists"), "{yaml}");
    assert_eq!((report.warnings(), yaml.matches("- lb:").count()), (3, 1), "{yaml}");
}

/// Words of all three formats, and others, in any order.
#[test]
fn no_text_panics() {
    let words = [
        "-A",
        "-a",
        "-t",
        "-u",
        "-r",
        "-w",
        "-s",
        "-p",
        "-f",
        "-e",
        "-d",
        "-D",
        "-C",
        "-x",
        "-M",
        "-i",
        "-=",
        "--tun-type",
        "10.0.0.1:80",
        "[::1]:80",
        "[",
        "]:1",
        ":",
        "-w=",
        "wrr",
        "7",
        "\u{e9}\u{3000}",
        "\n",
        "\n",
        "{",
        "}",
        "[",
        "]",
        "\"tables\":",
        "\"binds\":",
        "\"backends\":",
        "\"ip\":",
        "\"port\":",
        ",",
        "\"x\"",
    ];
    let mut random = Random::new(1);
    for _ in 0..4000 {
        let mut text = String::new();
        for _ in 0..24 {
            text += words[random.below(words.len() as u64) as usize];
            text += if random.below(8) == 0 { "" } else { " " };
        }
        for system in ["ipvs", "katran", "glb"] {
            let _ = convert(system, &text, &[]);
        }
    }
}

/// The example of the director's documentation, with a state and with keys unknown to weir.
#[test]
fn forwarding_tables_of_the_director_become_services() {
    let text = r#"{ "tables": [ {
        "name": "example1",
        "hash_key": "12345678901234561234567890123456",
        "seed": "34567890123456783456789012345678",
        "colour": "red",
        "binds": [
            { "ip": "10.10.10.10", "proto": "tcp", "port": 80 },
            { "ip": "fdb4:98ce:52d4::/48", "proto": "tcp", "port_start": 8000, "port_end": 8099 } ],
        "backends": [
            { "ip": "192.168.50.10", "state": "active", "healthchecks": {"http": 80, "gue": 19523} },
            { "ip": "192.168.50.11", "state": "draining", "healthy": true },
            { "ip": "192.168.50.12", "state": "inactive", "healthy": true } ] } ] }"#;
    let (yaml, report) = converted("glb", text);
    let wanted = "\
# The GLB director's other, as weir understands it; docs/reference/configuration.md describes the keys.
tunnels: { gue: { port: 19523 } }
ports:
  in: { xdp: eth1 }
apps:
  # line 5: `colour` has no counterpart and was omitted
  # line 10: the checks (http on port 80, gue on port 19523) were omitted: write `check`
  - lb:
      name: example1
      port: in
      service:
        - { vip: 10.10.10.10, protocol: tcp, port: 80 }
        - { vip: \"fdb4:98ce:52d4::/48\", protocol: tcp, port: 8000-8099 }
      scheduler: glb
      glb: { seed: \"34567890123456783456789012345678\", hash_key: \"12345678901234561234567890123456\" }
      back_ends:
        - { name: 192.168.50.10, ip: 192.168.50.10, mode: gue, weight: 1 }
        - { name: 192.168.50.11, ip: 192.168.50.11, mode: gue, weight: 1, state: draining }
        - { name: 192.168.50.12, ip: 192.168.50.12, mode: gue, weight: 0 }
";
    assert_eq!(yaml, wanted);
    assert_eq!((report.errors(), report.warnings()), (0, 2), "{report}");
    for (text, message) in [
        ("{}", "`tables` is missing"),
        (r#"{"tables":[{"seed":"12","hash_key":"x"}]}"#, "this is not 32 hexadecimal digits"),
        (
            r#"{"tables":[{"binds":[{"ip":"1.1.1.1/33","proto":"tcp","port":1}]}]}"#,
            "is not an IP address or prefix",
        ),
        (r#"{"tables":[{"binds":[{"ip":"1.1.1.1","proto":"icmp","port":1}]}]}"#, "`proto` cannot be"),
        (r#"{"tables":[{"backends":[{"state":"active"}]}]}"#, "a back end needs an `ip`"),
    ] {
        let said = refused("glb", text);
        assert!(said.contains(message), "{text}: {said}");
    }
}

#[test]
fn nobody_has_to_write_mac_addresses_into_what_was_imported() {
    let ipvs = "-A -t 192.0.2.1:80 -s mh\n-a -t 192.0.2.1:80 -r 10.0.0.1:80 -g -w 3\n";
    let katran = "-A -t 10.200.1.1:80\n-a -t 10.200.1.1:80 -r 10.0.0.2 -w 10\n";
    for (system, text, errors) in [("ipvs", ipvs, 0), ("katran", katran, 1)] {
        let report = crate::config::read("imported.yaml", &converted(system, text).0).report;
        assert_eq!(report.errors(), errors, "{report}");
        let said = report.to_string();
        assert!(!said.contains("MAC"), "{said}");
        assert_eq!(said.contains("needs a source address of IPv4 for its tunnel"), errors == 1, "{said}");
    }
}

/// A service without servers, one for all ports next to one for port 80, and one without problems.
#[test]
fn services_that_weir_refuses_are_comments_that_say_why() {
    let text = "-A -t 10.0.0.3:80 -s rr\n\
        -A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 192.168.1.12:80 -g -w 1\n\
        -A -t 10.0.0.2:80 -s rr\n-a -t 10.0.0.2:80 -r 192.168.1.13:80 -i -w 1\n";
    let kind = foreign().find(|(_, one)| one.name == "ipvs").unwrap().0;
    let imported = |options: &[&str]| checked(kind, convert("ipvs", text, options).unwrap().0).unwrap();
    let Checked { yaml, refused } = imported(&["--in", "eth1"]);
    let loaded = config::read("imported", &yaml);
    assert_eq!(loaded.report.errors(), 0, "{}", loaded.report);
    assert!(yaml.contains("\n  - lb:\n      name: tcp-10.0.0.1-80\n"), "{yaml}");
    assert!(yaml.contains("\n  #  - lb:\n  #      name: tcp-10.0.0.2-80\n"), "{yaml}");
    let tunnel = refused.iter().find(|one| one.contains("tcp-10.0.0.2-80")).expect("it needs a source");
    assert!(tunnel.contains("needs a source address"), "{tunnel}");
    assert_eq!(yaml.matches("# weir refuses this service: ").count(), refused.len(), "{yaml}");
    let Checked { yaml, refused } = imported(&["--in", "eth1", "--source", "10.0.0.254"]);
    assert!(yaml.contains("\n  - lb:\n      name: tcp-10.0.0.2-80\n"), "{yaml}");
    assert!(!refused.iter().any(|one| one.contains("tcp-10.0.0.2-80")), "{refused:?}");
    let all = checked(kind, yaml.replace("10.0.0.254", "fd00::1")).unwrap();
    assert_eq!(config::read("imported", &all.yaml).report.errors(), 0, "{}", all.yaml);
}
