//! Other programs at the same hooks: caches of other daemons, which are not allowed, and third-party
//! programs, which are, and which are reported to operators.

use super::reporter::Reporter;
use super::rule;
use crate::Overlay;
use crate::bpf::TcOverlay;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;

/// The programs at each interface that were reported: those before ours, and those after.
#[derive(Default)]
pub struct Others {
    said: BTreeMap<u32, [Vec<u32>; 2]>,
    next: usize,
}

impl Others {
    /// Checks one interface, the next one on each call, and reports programs that are new there.
    pub fn look<'a>(
        &mut self,
        programs: &TcOverlay,
        reporter: &Reporter,
        interfaces: impl Iterator<Item = (u32, &'a str)> + Clone,
    ) {
        let Some((index, name)) = interfaces.clone().nth(self.next % interfaces.count().max(1)) else {
            return;
        };
        self.next = self.next.wrapping_add(1);
        let now = programs.strangers_at(index);
        let before = self.said.insert(index, now.clone()).unwrap_or_default();
        for (at, what) in [
            "before ours: our program does not see what it drops or takes",
            "behind ours: it does not see frames that take the fast path",
        ]
        .into_iter()
        .enumerate()
        {
            for id in now[at].iter().filter(|id| !before[at].contains(id)) {
                reporter.say(&format!("at `{name}`, a foreign program ({id}) runs {what}"));
            }
        }
    }
}

/// Refuses to run beside the cache of another daemon: both would mark frames. Its nftables table reveals it;
/// a table without an owner is a leftover, and conflicts only if it has our name.
pub fn no_other_overlay(overlay: &Overlay) -> Result<()> {
    let own = rule::name_of(&overlay.name);
    let tables = rule::tables().context("nftables does not list its tables")?;
    for table in tables {
        if table.has_owner {
            bail!(
                "the nftables table `inet {}` belongs to another overlay: `weir overlay cleanup` shows which",
                table.name
            );
        }
        if table.name == own {
            bail!("there already is an nftables table `inet {own}`: `weir overlay cleanup` removes it");
        }
    }
    Ok(())
}
