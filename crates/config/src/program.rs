//! Reads the sections of a program: first all names, so that anything can refer to anything, then contents.
//! Between the two, apps, which are in other crates, write their pipes.

use crate::attachment::{Attachment, Attachments};
use crate::conflicts;
use crate::entry::Counters;
use crate::nat;
use crate::nic::Nics;
use crate::pipes;
use crate::ports::{self, PortConfig};
use crate::raw::Node;
use crate::section::{Section, list, name, pairs, text};
use crate::sets;
use crate::{Report, Span};
use std::collections::HashMap;
use std::ops::Range;
use weir_program::builder::ProgramBuilder;
use weir_program::check::{Finding, FindingKind, Severity};
use weir_program::{Fill, Group, GroupId, Origin, Pipe, PipeId, PortDeclaration, PortId};

/// A program that is being read.
pub struct ProgramReader<'a> {
    section: &'a Section<'a>,
    nics: &'a Nics,
    /// The program so far.
    pub program: ProgramBuilder,
    /// The configuration of the program's ports, in the program's order.
    pub ports: Vec<PortConfig>,
    /// What apps can be attached to.
    pub attachments: Attachments,
    /// Marks of pipes and groups that could not be read completely; the check's findings there are
    /// consequences of that.
    tainted: Vec<Range<u32>>,
}

impl<'a> ProgramReader<'a> {
    /// Begins to read the top level of a file.
    #[must_use]
    pub fn new(section: &'a Section<'a>, program: ProgramBuilder, nics: &'a Nics) -> ProgramReader<'a> {
        let (ports, attachments, tainted) = (Vec::new(), Attachments::default(), Vec::new());
        ProgramReader { section, nics, program, ports, attachments, tainted }
    }

    /// Collects all names first, so that anything can refer to anything.
    pub fn names(&mut self, report: &mut Report) {
        for (called, span, node) in self.named("ports", report) {
            self.port(called, span, node, report);
        }
        // Apps may have work that needs no frames.
        if self.ports.is_empty() && self.section.get("apps").is_none() {
            report.error(self.section.span, "there is no port: write `ports: { p0: { xdp: eth0 } }`");
        }
        let spans: Vec<Span> = self.program.ports.iter().map(|port| report.span_of(port.origin)).collect();
        conflicts::report(&self.ports, &spans, report);
        for (called, span, _) in self.named("groups", report) {
            let group = Group::new(called, Fill::Maglev, sets::MAGLEV_SIZE);
            self.program.group(group.origin(report.origin(span)));
        }
        for (called, span, _) in self.named("pipes", report) {
            self.program.pipe(Pipe::basic(called).origin(report.origin(span)));
        }
        for (called, span, node) in self.named("meters", report) {
            sets::meter(called, span, node, report).map(|meter| self.program.meter(meter));
        }
        for (called, span, node) in self.named("nat_pools", report) {
            nat::pool(called, span, node, report).map(|pool| self.program.nat_pool(pool));
        }
        for node in self.section.get("counters").map(|node| list(node, "names", report)).unwrap_or_default() {
            let called = text(node, "a name", report).and_then(|called| name(called, node.span, report));
            let Some(called) = called else { continue };
            let before = self.program.counters.len();
            if self.program.counter(called).index() < before {
                report.error(node.span, format!("two counters are called `{called}`"));
            }
        }
    }

    /// The mappings under `key` with their names, leaving out invalid names.
    fn named(&self, key: &str, report: &mut Report) -> Vec<(&'a str, Span, &'a Node)> {
        let Some(node) = self.section.get(key) else { return Vec::new() };
        let pairs = pairs(node, report);
        pairs.into_iter().filter(|(called, span, _)| name(called, *span, report).is_some()).collect()
    }

    fn port(&mut self, called: &str, span: Span, node: &Node, report: &mut Report) {
        let id = PortId(self.ports.len() as u16);
        let port = ports::read((called, span), id, node, self.nics, report);
        let declaration = PortDeclaration::new(&port.name).kernel_path(port.kernel_path()).mac(port.mac);
        let origin = report.origin(span);
        self.program.port(declaration.origin(origin));
        self.attachments.add(Attachment::port(id, &port, origin));
        self.ports.push(port);
    }

    /// Reads pipes and groups, whose names are known.
    pub fn contents(&mut self, report: &mut Report) {
        let groups: HashMap<String, GroupId> =
            self.program.groups.iter().map(|group| group.name.clone()).zip((0..).map(GroupId)).collect();
        for (called, _, node) in self.named("groups", &mut Report::default()) {
            let Some(&id) = groups.get(called) else { continue };
            let before = (report.errors(), report.next_origin());
            let group = sets::group(id, node, &self.program, report);
            self.taint(before, group.origin, report);
            *self.program.group_mut(id) = group;
        }
        let listed = self.section.get("counters").is_some();
        let mut counters = Counters::new(self.program.counters.clone(), !listed);
        for (called, _, node) in self.named("pipes", &mut Report::default()) {
            let Some(id) = self.program.pipe_named(called) else { continue };
            let before = (report.errors(), report.next_origin());
            let named = (&*self.program, &self.attachments);
            let pipe = pipes::read(id, node, named, &mut counters, report);
            self.taint(before, pipe.origin, report);
            self.program.define(id, pipe);
        }
        counters.names.into_iter().for_each(|name| _ = self.program.counter(name));
    }

    /// If there are errors since `before`, marks the item that was read since then, and its part `own`, as
    /// incomplete.
    pub fn taint(&mut self, before: (usize, Origin), own: Origin, report: &Report) {
        if report.errors() > before.0 {
            self.tainted.push(before.1.0..report.next_origin().0);
            self.tainted.push(own.0..own.0 + 1);
        }
    }

    /// Gives each port its root: its own, else that of the app that receives from the port, else the common
    /// one. Returns which ports have their own.
    pub fn roots(&mut self, report: &mut Report) -> Vec<bool> {
        let common = self.section.get("root").and_then(|node| self.root(node, report));
        let ports = self.named("ports", &mut Report::default());
        let mut own_root = Vec::new();
        for (at, (_, _, node)) in ports.into_iter().enumerate() {
            // Its other keys were checked when the port was read.
            let section = Section::of(node, &["root"], &mut Report::default());
            let own = section.get("root").and_then(|node| self.root(node, report));
            if let Some(root) = own.or(self.program.ports[at].root).or(common) {
                self.program.root(PortId(at as u16), root);
            }
            own_root.push(section.get("root").is_some());
        }
        own_root
    }

    fn root(&self, node: &Node, report: &mut Report) -> Option<PipeId> {
        let names = self.program.pipes.iter().map(|pipe| pipe.name.as_str());
        crate::section::named("pipe", node, names, report).map(|at| PipeId(at as u16))
    }

    /// Reports findings of the program's check. If the text has errors, findings that follow from them are
    /// left out.
    pub fn report(&self, findings: Vec<Finding>, is_broken: bool, report: &mut Report) {
        for finding in findings {
            if !(is_broken && self.follows(&finding)) {
                let span = self.span(&finding, report);
                match finding.severity {
                    Severity::Error => report.error(span, finding.kind.to_string()),
                    Severity::Warning => report.warning(span, finding.kind.to_string()),
                }
            }
        }
    }

    fn follows(&self, finding: &Finding) -> bool {
        match finding.kind {
            // A forward that could not be read leads nowhere, so it cannot close a loop.
            FindingKind::Loop { .. } | FindingKind::KernelUnavailable { .. } => false,
            FindingKind::MetadataUnwritten { .. } => true,
            _ => {
                let tainted = self.tainted.iter().any(|range| range.contains(&finding.origin.0));
                tainted || finding.severity == Severity::Warning
            }
        }
    }

    /// Where the subject of a finding was written; for a counter, which has no mark, where the counter is
    /// listed.
    fn span(&self, finding: &Finding, report: &Report) -> Span {
        let listed = self.section.get("counters");
        match &finding.kind {
            FindingKind::Unused { what: "counter", name } => {
                let nodes =
                    listed.map(|node| list(node, "names", &mut Report::default())).unwrap_or_default();
                let is = |node: &&Node| matches!(&node.kind, crate::raw::Kind::Scalar(text) if text == name);
                nodes.iter().find(is).map(|node| node.span).unwrap_or_default()
            }
            _ => report.span_of(finding.origin),
        }
    }
}
