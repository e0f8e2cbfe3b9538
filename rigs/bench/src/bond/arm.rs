//! An arm of the comparison: a program that forwards frames from a looped recording to two members, and the
//! sink behind them, in PVP with a machine beside it. All are suspended during the turns of other arms.

use super::machine::{Machine, all_passed};
use super::sink::Sink;
use super::turn::{Reading, Turn};
use crate::peers::Forwarder;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;
use weir_bed::{Run, Started};
use weir_lab::Interrupt;
use weir_lab::ovs::Ovs;
use weir_lab::weir::Weir;

/// How long an arm runs before it is measured, and how long it is measured.
const SETTLE: Duration = Duration::from_millis(80);
const TURN: Duration = Duration::from_millis(250);

/// Maximum factor by which a turn is extended if its counters could not be read precisely: on a busy machine
/// a reading takes longer, which matters less the longer the turn is.
const LONGER_MAX: u32 = 8;

/// How imprecise the time of a reading may be, and how many readings are tried.
const SHARP: Duration = Duration::from_millis(1);
const READS: u32 = 6;

/// How long the members may take to carry traffic again after a pause.
const PATIENCE: Duration = Duration::from_secs(20);

/// An arm.
pub struct BondArm {
    /// The process that forwards frames.
    process: Started,
    /// The kernel's accounting file of its forwarding thread.
    account: PathBuf,
    carrier: Carrier,
    sink: Sink,
    machine: Option<Machine>,
}

/// The program that forwards frames, and the means of reading its counters.
pub enum Carrier {
    /// Members are `p1` and `p2`; a machine is at `vm0`.
    Weir(Weir),
    /// Members are `p1` and `p2` of `bond0`, and a machine is at `vm0` and so on; with `lb_output`, or by
    /// hash and recirculation.
    Ovs { ovs: Ovs, lb_output: bool },
    /// Every port is a member or its source; with a machine, only port `member` is a member.
    Testpmd { testpmd: Forwarder, member: Option<u16> },
}

impl BondArm {
    /// Creates an arm from a running program, and the kernel's accounting file of its forwarding thread. The
    /// arm is suspended from now on.
    pub fn new(
        run: &mut Run,
        process: Started,
        account: PathBuf,
        carrier: Carrier,
        sink: Sink,
        machine: Option<Machine>,
    ) -> Result<BondArm> {
        let mut arm = BondArm { process, account, carrier, sink, machine };
        arm.hold(run);
        Ok(arm)
    }

    /// Makes Open vSwitch send by lb_output, or by hash and recirculation.
    pub fn send_by(&mut self, by_lb_output: bool) {
        if let Carrier::Ovs { lb_output, .. } = &mut self.carrier {
            *lb_output = by_lb_output;
        }
    }

    /// Takes a turn.
    pub fn turn(&mut self, run: &mut Run, interrupt: &Interrupt) -> Result<Turn> {
        run.go_on(self.sink.process());
        if let Some(machine) = &self.machine {
            run.go_on(machine.process());
        }
        run.go_on(self.process);
        self.begin(interrupt)?;
        interrupt.sleep(SETTLE)?;
        let passed = self.passed(run)?;
        let before = self.read(run)?;
        let (mut turn, mut after) = self.carry(run, &before, interrupt)?;
        for _ in 1..LONGER_MAX {
            if turn.doubt.is_none() {
                break;
            }
            (turn, after) = self.carry(run, &before, interrupt)?;
        }
        // The counts of the machine were read before and after those of the switch.
        if let (Some(before_it), Some(after_it)) = (passed, self.passed(run)?) {
            all_passed(after_it - before_it, after.transmitted - before.transmitted)?;
        }
        self.hold(run);
        Ok(turn)
    }

    /// Continues for the duration of a turn; returns what has happened since `before`, and the last reading.
    fn carry(&mut self, run: &mut Run, before: &Reading, interrupt: &Interrupt) -> Result<(Turn, Reading)> {
        interrupt.sleep(TURN)?;
        let after = self.read(run)?;
        Ok((Turn::between(before, &after), after))
    }

    /// Returns the number of frames that have passed the machine, if there is one.
    fn passed(&mut self, run: &Run) -> Result<Option<u64>> {
        self.machine.as_mut().map(|machine| machine.passed(run)).transpose()
    }

    fn hold(&mut self, run: &mut Run) {
        run.hold(self.process);
        if let Some(machine) = &self.machine {
            run.hold(machine.process());
        }
        run.hold(self.sink.process());
    }

    /// Waits until both members carry traffic, in the mode to be measured.
    fn begin(&mut self, interrupt: &Interrupt) -> Result<()> {
        let (ovs, lb_output) = match &self.carrier {
            Carrier::Weir(weir) => return both_enabled(weir, interrupt),
            Carrier::Ovs { ovs, lb_output } => (ovs, lb_output),
            Carrier::Testpmd { .. } => return Ok(()),
        };
        ovs.vsctl(&format!("set port bond0 other_config:lb-output-action={lb_output}"))?;
        let is_up = || Ok(ovs.members_enabled("bond0")? >= 2 && uses_lb_output(ovs)? == Some(*lb_output));
        if !interrupt.wait(PATIENCE, is_up)? {
            bail!("Open vSwitch's bond does not come up: {}", ovs.appctl("bond/show", &["bond0"])?);
        }
        Ok(())
    }

    /// Reads the counters, repeatedly if another program interferes; the most precise reading counts.
    fn read(&mut self, run: &mut Run) -> Result<Reading> {
        let mut best = self.read_once(run)?;
        for _ in 1..READS {
            if best.doubt <= SHARP {
                break;
            }
            let again = self.read_once(run)?;
            best = if again.doubt < best.doubt { again } else { best };
        }
        Ok(best)
    }

    fn read_once(&mut self, run: &mut Run) -> Result<Reading> {
        let earlier = busy(&self.account)?;
        let (transmitted, dropped) = match &mut self.carrier {
            Carrier::Weir(weir) => weir_counts(&weir.show("all")?)?,
            Carrier::Ovs { ovs, .. } => ovs_counts(&ovs.appctl("dpctl/show", &["-s"])?)?,
            Carrier::Testpmd { testpmd, member } => testpmd.forwarded(run, *member)?,
        };
        // The counters were read at some moment between the two readings of the busy time.
        let doubt = (busy(&self.account)? - earlier) / 2;
        Ok(Reading { transmitted, dropped, arrived: self.sink.arrived(run)?, busy: earlier + doubt, doubt })
    }
}

/// Waits until weir's bond uses both members.
fn both_enabled(weir: &Weir, interrupt: &Interrupt) -> Result<()> {
    let mut bond = Value::Null;
    let is_up = || {
        bond = weir.app("bond0", "show")?;
        let members = bond["members"].as_array().context("no members")?;
        Ok(members.iter().all(|member| member["enabled"] == true))
    };
    if !interrupt.wait(PATIENCE, is_up)? {
        bail!("weir's bond does not come up: {bond}");
    }
    Ok(())
}

/// Returns true if frames go out by lb_output; `None` while there are no such flows yet.
fn uses_lb_output(ovs: &Ovs) -> Result<Option<bool>> {
    let flows = ovs.appctl("dpctl/dump-flows", &[])?;
    if flows.contains("lb_output") {
        // Flows of the other kind still have to be revalidated.
        return Ok((!flows.contains("recirc(")).then_some(true));
    }
    Ok(flows.contains("recirc(").then_some(false))
}

/// Returns the frames that members accepted, and those that were dropped.
fn weir_counts(all: &Value) -> Result<(u64, u64)> {
    let ports = all["ports"].as_array().context("no ports")?;
    let members = ports.iter().filter(|port| port["name"] == "p1" || port["name"] == "p2");
    let transmitted = members.filter_map(|port| port["transmitted"].as_u64()).sum();
    let dropped = all["ledger"]["dropped"].as_object().context("no ledger")?;
    Ok((transmitted, dropped.values().filter_map(Value::as_u64).sum()))
}

/// Returns the same counts from `dpctl/show -s`: a line with the port's name, then one that starts with TX.
/// Frames that a machine does not take are dropped as well.
fn ovs_counts(text: &str) -> Result<(u64, u64)> {
    let mut counts = (0, 0);
    let (mut member, mut machine) = (false, false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("port ") {
            member = line.contains(": p1 ") || line.contains(": p2 ");
            machine = line.contains(": vm");
        } else if (member || machine) && line.starts_with("TX packets:") {
            let count = |name: &str| line.split_once(name)?.1.split(' ').next()?.parse::<u64>().ok();
            if member {
                counts.0 += count("packets:").context("TX packets")?;
            }
            counts.1 += count("dropped:").unwrap_or(0);
        }
    }
    Ok(counts)
}

/// Returns the kernel's accounting file of the thread of a process whose name starts with `name`.
pub fn account(run: &mut Run, process: Started, name: &str) -> Result<PathBuf> {
    let process = run.child(process).id();
    let threads = std::fs::read_dir(format!("/proc/{process}/task"))?;
    let named =
        |path: &PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.starts_with(name));
    let found = threads.flatten().map(|thread| thread.path()).find(named);
    Ok(found.with_context(|| format!("process {process} has no thread `{name}`"))?.join("schedstat"))
}

/// Returns the processor time of a thread.
fn busy(account: &std::path::Path) -> Result<Duration> {
    let text = std::fs::read_to_string(account).context("the thread that carries frames has ended")?;
    let first = text.split_whitespace().next().and_then(|number| number.parse().ok());
    Ok(Duration::from_nanos(first.context("/proc/PID/schedstat")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn members_are_told_from_other_ports() {
        let text = "netdev@ovs-netdev:\n  lookups: hit:1\n  port 0: ovs-netdev (tap)\n    TX packets:9 \
            errors:0 dropped:9\n  \
                    port 2: p1 (dpdk: configured_rx_queues=2)\n    RX packets:7 errors:0 dropped:5\n    \
                    TX packets:10 errors:0 dropped:2 aborted:? carrier:?\n  port 3: p2 (dpdk: x)\n    \
                    TX packets:20 errors:0 dropped:? aborted:?\n  port 4: p0 (dpdk)\n    TX packets:1 \
                    dropped:1\n  port 5: vm0 (dpdkvhostuserclient: x)\n    TX packets:40 \
                    errors:? dropped:3\n";
        assert_eq!(
            ovs_counts(text).unwrap(),
            (30, 5),
            "what the machine drops counts, what it takes does not"
        );
        let ports = json!([{"name": "p0", "transmitted": 1}, {"name": "p1", "transmitted": 2}, {"name": "p2",
            "transmitted": 3}]);
        let all = json!({"ports": ports, "ledger": {"dropped": {"transmit_full": 4, "policy": 1}}});
        assert_eq!(weir_counts(&all).unwrap(), (5, 5));
    }
}
