//! Apps in a configuration: the pipes they become, and where their errors are shown.

use super::*;

#[test]
fn a_port_of_an_app_has_the_apps_root() {
    // Whether or not this machine has the interface.
    let plan = plan(&example("lb-dns").replace("xdp: eth0", "xdp: eth0, mac: 02:00:00:00:00:01"));
    assert_eq!(plan.program.ports[0].root, plan.program.pipe_named("lb"));
    let what = "two services, fragments and ICMP errors of both, questions and pings for their address";
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
        ("external: { name: p0, socket: s }", "p0", "`p0` is the name of a port already"),
        ("external: { name: a, socket: s }", "a, socket", "`a` is the name of a pipe already"),
        ("external: { name: g, socket: s }", "g, socket", "`g` is the name of a group already"),
        (
            "external: { name: lb, socket: s }",
            "lb, socket",
            "`lb` is the name of the load balancer's pipe already",
        ),
        ("external: { name: drop, socket: s }", "drop", "`drop` is a word of the language, not a name"),
        (
            "external: { name: x, socket: s }, external: { name: y, socket: t }",
            "external: { name: y",
            "`external` is here twice",
        ),
        (
            "external: { name: x, socket: s } }, { external: { name: x, socket: t }",
            "x, socket: t",
            "`x` is the name of another app already",
        ),
        (
            "external: { name: x, socket: s } }, { external: { name: y, socket: s }",
            "s } }]",
            "this is the socket of app `x` already",
        ),
        (
            "external: { name: x, socket: /run/weir/weir.sock }",
            "/run/weir",
            "this is the socket of the daemon already",
        ),
        ("external: { name: x, socket: \"\" }", "\"\"", "the path names no file"),
        ("external: { name: x, socket: /run/ }", "/run/", "the path names no file"),
        (
            &format!("external: {{ name: x, socket: {long} }}"),
            "/aaa",
            "the path has 108 bytes and a socket's path 107 at most",
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
