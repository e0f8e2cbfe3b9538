//! A run through all modes, to check that every client gets every answer, over TCP and UDP, from every back
//! end.

use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use super::clients::{Tally, ask};
use super::configuration::LabMode;
use super::network::FAMILIES;
use super::phases::{PhaseResult, Stage};
use crate::nsd::write_queries;

/// Curl requests per client. The probability that no request goes to one of the four back ends is less than
/// one in ten million.
const REQUESTS: u32 = 32;
/// Queries of each client, over TCP and over UDP.
const QUERIES: u32 = 64;

/// Changes to a mode, and sends requests from the clients over each IP version. Returns the phases with their
/// names.
pub fn perform(stage: &mut Stage<'_>, mode: LabMode) -> Result<Vec<(String, PhaseResult)>> {
    stage.bed.change_mode(mode, stage.interrupt)?;
    let queries = write_queries(stage.run.folder(), QUERIES)?;
    let queries = &*queries.to_string_lossy();
    let (network, slowdown) = (&stage.bed.network, stage.interrupt.slowdown());
    let names = network.back_ends.each_ref().map(|host| host.name);
    // All clients and both IP versions at once.
    let results = thread::scope(|scope| {
        let start = |family, client| scope.spawn(move || ask(client, (family, slowdown), REQUESTS, queries));
        let of = |family| network.clients.each_ref().map(|client| start(family, client));
        [0, 1].map(of).map(|clients| clients.map(thread::ScopedJoinHandle::join))
    });
    let mut phases = Vec::new();
    for (results, version) in results.into_iter().zip(FAMILIES) {
        let (mut tally, mut faults) = (Tally::default(), Vec::new());
        for one in results {
            match one {
                Ok(Ok(one)) => tally.join(one),
                Ok(Err(error)) => faults.push(error.to_string()),
                Err(_) => bail!("a thread that ran clients panicked"),
            }
        }
        let mut phase = PhaseResult::of_clients(tally, &names);
        faults.into_iter().for_each(|fault| phase.must(false, fault));
        phases.push((format!("{}_{version}", mode.word()), phase));
    }
    stage.interrupt.sleep(Duration::ZERO)?;
    Ok(phases)
}
