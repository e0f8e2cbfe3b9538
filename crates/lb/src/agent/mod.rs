//! The agent of services. It warns of announced addresses that the host has ([`owned`]), and follows sources
//! of services ([`crate::sources`]), with one thread for each file and one for all DNS queries. No packet
//! waits for these threads: if one is stuck, the services stay as they are.

mod dns;
mod file;

use crate::owned::Owned;
use crate::sources::{SourceKind, SourceTask};
use crate::{Lb, NAME};
use anyhow::Result;
use dns::DnsThread;
use file::SourceThread;
use weir_app::agent::{Agent, Host};
use weir_app::doctor::{Examined, Finding, Level};
use weir_app::file_watch;
use weir_app::kind::Apps;

/// Returns the agent.
pub(crate) fn create() -> Box<dyn Agent> {
    Box::<LbAgent>::default()
}

#[derive(Default)]
struct LbAgent {
    owned: Owned,
    files: Vec<SourceThread>,
    dns: Option<DnsThread>,
}

impl Agent for LbAgent {
    fn follow(&mut self, apps: &Apps, _: &Host<'_>) -> Result<()> {
        self.owned.follow(apps);
        let all = apps.of::<Lb>().map(|lb| lb.sources.all()).unwrap_or_default();
        let (files, names): (Vec<SourceTask>, Vec<SourceTask>) =
            all.into_iter().partition(|(source, _)| matches!(source.kind, SourceKind::File(_)));
        self.files.retain(|thread| files.iter().any(|(source, _)| *source == thread.source));
        for followed in files {
            if !self.files.iter().any(|thread| thread.source == followed.0) {
                self.files.push(SourceThread::start(followed)?);
            }
        }
        if names.is_empty() {
            self.dns = None;
            return Ok(());
        }
        let thread = match self.dns.take() {
            Some(thread) => thread,
            None => DnsThread::start()?,
        };
        self.dns.insert(thread).follow(names)
    }

    fn findings(&self, examined: &Examined<'_>) -> Vec<Finding> {
        let mut found = self.owned.findings(examined);
        found.extend(sources(examined));
        found
    }
}

/// Examines the sources: as the running daemon sees them or, if none runs, the files.
fn sources(examined: &Examined<'_>) -> Vec<Finding> {
    let all = examined.apps.and_then(|apps| apps.of::<Lb>()).map(|lb| lb.sources.all()).unwrap_or_default();
    if all.is_empty() {
        return Vec::new();
    }
    let running = (examined.ask)(NAME, "sources").ok();
    let rows = running.as_ref().and_then(|answer| answer["sources"].as_array());
    let one = |(source, _): &SourceTask| {
        let row = rows.and_then(|rows| rows.iter().find(|row| row["name"] == source.name));
        if let Some(row) = row {
            let state = row["state"].as_str().unwrap_or_default();
            let reason = row["reason"].as_str().unwrap_or_default();
            let says =
                format!("{} is {state}{}{reason}", source.of(), if reason.is_empty() { "" } else { ": " });
            let level = if state == "ok" { Level::Ok } else { Level::Warning };
            return Finding::new("source", &source.name, level, says);
        }
        let SourceKind::File(path) = &source.kind else {
            let says = format!("weir does not run, so {} is not looked up", source.of());
            return Finding::new("source", &source.name, Level::Ok, says);
        };
        match file_watch::read(path).and_then(|text| crate::sources::convert(source, &source.of(), &text)) {
            Ok(converted) => {
                let count = converted.services.len();
                let says = format!("{}: {count} services, {} back ends", source.of(), converted.back_ends);
                Finding::new("source", &source.name, Level::Ok, says)
            }
            Err(why) => Finding::new("source", &source.name, Level::Fault, format!("{}: {why}", source.of())),
        }
    };
    all.iter().map(one).collect()
}
