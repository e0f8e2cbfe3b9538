//! Apps in a configuration: the pipes they become, and where their errors are shown.

use super::*;

#[test]
fn a_port_of_an_app_has_the_apps_root() {
    // Whether or not this machine has the interface.
    let plan = plan(&example("lb-dns").replace("xdp: eth0", "xdp: eth0, mac: 02:00:00:00:00:01"));
    assert_eq!(plan.program.ports[0].root, plan.program.pipe_named("lb"));
    let what = "rules for two services, the fragments and ICMP errors of both, and neighbour requests and \
        pings for their address";
    assert_eq!(plan.take(PortId(0)).unwrap().len(), 8, "{what}");
    assert_eq!(plan.program.counters[0], "lb/dns/b1");
}

#[test]
fn an_external_app_is_a_name_to_forward_to() {
    let text = with_pipe("type: basic, forward: slow, miss: { app: slow }")
        + "apps: [external: { name: slow, socket: s.sock }]\n";
    let plan = plan(&text);
    assert_eq!(
        (plan.program.apps.clone(), plan.program.pipes[0].forward),
        (vec!["slow".into()], Forward::App(AppId(0)))
    );
    assert_eq!(write_forward(plan.program.pipes[0].miss, &plan.program), "slow");
    let app = &plan.apps.running()[0];
    assert_eq!((app.name(), app.socket().and_then(|path| path.to_str())), ("slow", Some("s.sock")));
}

/// Each case: an app, the text that is underlined, and the message.
#[test]
fn each_error_of_an_app_has_its_place() {
    let long = format!("/{}", "a".repeat(107));
    for (app, culprit, expected) in [
        (
            "external: { name: slow }",
            "{ name",
            "`socket` is missing: the unix socket where its clients connect",
        ),
        ("external: { socket: s }", "{ socket", "`name` is missing"),
        ("external: { name: p0, socket: s }", "p0", "`p0` is already the name of a port"),
        ("external: { name: a, socket: s }", "a, socket", "`a` is already the name of a pipe"),
        ("external: { name: g, socket: s }", "g, socket", "`g` is already the name of a group"),
        (
            "external: { name: lb, socket: s }",
            "lb, socket",
            "`lb` is already the name of the load balancer's pipe",
        ),
        ("external: { name: drop, socket: s }", "drop", "`drop` is a reserved word, not a name"),
        (
            "external: { name: x, socket: s }, external: { name: y, socket: t }",
            "external: { name: y",
            "`external` appears twice",
        ),
        (
            "external: { name: x, socket: s } }, { external: { name: x, socket: t }",
            "x, socket: t",
            "`x` is already the name of another app",
        ),
        (
            "external: { name: x, socket: s } }, { external: { name: y, socket: s }",
            "s } }]",
            "app `x` already uses this socket",
        ),
        (
            "external: { name: x, socket: /run/weir/weir.sock }",
            "/run/weir",
            "the daemon already uses this socket",
        ),
        ("external: { name: x, socket: \"\" }", "\"\"", "the path names no file"),
        ("external: { name: x, socket: /run/ }", "/run/", "the path names no file"),
        (
            &format!("external: {{ name: x, socket: {long} }}"),
            "/aaa",
            "the path has 108 bytes, but a socket path has at most 107",
        ),
        ("external: { name: x, socket: s, clients: 9 }", "clients", "there is no key `clients` here"),
        ("extrenal: { name: x, socket: s }", "extrenal", "there is no app `extrenal`"),
    ] {
        let group = "groups: { g: { targets: { t: p0 } } }\n";
        let text = with_pipe("type: basic, forward: g, miss: p0") + group + &format!("apps: [{{ {app} }}]\n");
        let report = read("t", &text).report;
        let at = report.diagnostics().into_iter().find(|one| one.message.starts_with(expected));
        let span = at.unwrap_or_else(|| panic!("{app}\n{report}")).span;
        let line = text.lines().nth(span.line as usize - 1).unwrap();
        assert!(line[span.column as usize - 1..].starts_with(culprit), "{app}\n{report}");
    }
}

#[test]
fn a_misspelt_app_is_suggested() {
    let text = with_pipe("type: basic, forward: slwo, miss: drop")
        + "apps: [external: { name: slow, socket: s.sock }]\n";
    let report = read("t", &text).report.to_string();
    assert!(report.contains("t:3:37: error: there is no port, pipe, group or app `slwo`"), "{report}");
    assert!(report.contains("did you mean `slow`?"), "{report}");
}
