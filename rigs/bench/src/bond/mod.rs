//! `weir bench bond`: a bond of two members compared with Open vSwitch's, on the same DPDK devices.
//!
//! ```text
//!  net_pcap, a recording in a loop --[ arm ]-- net_memif p1 --+
//!                                        +---- net_memif p2 --+-- sink
//! ```
//!
//! In PVP (port, virtual machine, port), as in the talk on lb_output, frames pass the arm twice: from the
//! recording to a vhost-user port, and what comes back from there to the bond (`machine.rs`).
//!
//! Open vSwitch, whose pools are bounded, loops through more than 200 000 streams from several ports.
//!
//! Four arms take turns in one run, each with an identical sink of its own, while all others are suspended:
//! weir, Open vSwitch by lb_output and by hash and recirculation, and as the ceiling testpmd, which inspects
//! nothing. Only frames that the members accepted count. A turn that dropped many frames is void
//! ([`BondWay::dropped_max`]). `flat.rs` measures the bond alone.

mod arm;
mod ceiling;
mod flat;
mod machine;
mod ovs;
mod row;
mod sink;
mod turn;
mod weir;

pub use flat::run as flatness;
pub use machine::{BondWay, DESCRIPTION as MACHINE};

use super::dpdk::{record, record_parts};
use super::peers::{FRAMES, Setting, TESTPMD, TESTPMD_PACKAGE};
use anyhow::{Result, bail};
use arm::BondArm;
use row::{ARMS, BondRow, Round, Rounds};
use serde_json::Value;
use turn::Turn;
use weir_bed::Run;
use weir_bed::namespace;
use weir_lab::Interrupt;
use weir_lab::ovs::{PACKAGE_DPDK, SWITCH_DPDK};
use weir_lab::screen::Screen;
use weir_port::huge_pages::HugePages;

/// Flows of the recordings, one frame each.
pub const STREAMS: [u32; 6] = [1, 10, 1000, 10_000, 100_000, 500_000];

/// Upper bound on rounds; a disturbed turn is repeated.
const ROUNDS_MAX: usize = 30;

/// Maximum number of streams, limited by huge pages: about 7 GiB at this number.
const STREAMS_MAX: u32 = 500_000;

/// Frames in addition to those of the recordings, for rings and caches.
const SPARE_FRAMES: u32 = 63_456;

const SINKS_MIB: u32 = 3 * sink::MEBIBYTES;

/// The memory that weir and testpmd need to loop through recordings with `streams` frames.
#[derive(Clone, Copy)]
struct Memory {
    frames: u32,
    /// MiB of huge pages for testpmd: 2.4 KiB per frame, and 128 MiB for everything else.
    mebibytes: u32,
    /// MiB of huge pages for weir, which has a power of two of frames, at 3 KiB.
    weir: u32,
}

impl Memory {
    fn for_streams(streams: u32) -> Memory {
        let frames = FRAMES.max(streams + SPARE_FRAMES);
        // weir's ports and worker have at most 16 384 frames besides those of the recording.
        let weir = (streams + 16_384).next_power_of_two() * 3 / 1024 + 128;
        Memory { frames, mebibytes: frames * 12 / (5 << 10) + 128, weir }
    }
}

/// Measures the bond on DPDK devices, with frames that take this way; returns `None`, and prints the reason,
/// if that is impossible.
pub fn run(streams: &[u32], way: BondWay, screen: &mut Screen) -> Result<Option<Vec<Value>>> {
    if let Some(wrong) = streams.iter().find(|streams| !(1..=STREAMS_MAX).contains(*streams)) {
        bail!("{wrong} streams cannot be measured: give 1 to {STREAMS_MAX}");
    }
    if let Some(why) = obstacle() {
        screen.say(&format!("bond: not measured, {why}"));
        return Ok(None);
    }
    let with_ovs = std::fs::exists(SWITCH_DPDK).unwrap_or(false);
    if !with_ovs {
        screen.say(&format!(
            "bond: measured without Open vSwitch, which is not installed: apt-get install {PACKAGE_DPDK}"
        ));
    }
    let interrupt = Interrupt::on_signals()?;
    let most = streams.iter().copied().max().unwrap_or(0);
    let memory = Memory::for_streams(most);
    let mut mebibytes = memory.mebibytes
        + memory.weir
        + SINKS_MIB
        + if with_ovs { ovs::mebibytes(ovs::sources(most)) } else { 0 };
    if way.has_machine() {
        mebibytes += 3 * machine::MEBIBYTES;
        // This thread, which reads counters, shares a core with the thread that forwards frames.
        rustix::process::setpriority_process(None, -20)?;
    }
    let pages = HugePages::reserve(mebibytes as usize);
    if !pages.enough {
        screen.say(&format!("bond: not measured, because {mebibytes} MiB of huge pages are not available"));
        return Ok(None);
    }
    screen.say(&BondRow::heading(way));
    let mut rows = Vec::new();
    for &streams in streams {
        let row = measure(streams, memory, (way, with_ovs), &interrupt, screen)?;
        screen.say(&row.to_string());
        rows.push(row.json());
    }
    Ok(Some(rows))
}

fn obstacle() -> Option<String> {
    if cfg!(not(feature = "dpdk")) {
        Some("this weir was built without DPDK: build it with `--features dpdk`".into())
    } else if !namespace::missing(&[TESTPMD]).is_empty() {
        Some(format!("{TESTPMD} is not installed: apt-get install {TESTPMD_PACKAGE}"))
    } else if !rustix::process::geteuid().is_root() {
        Some("DPDK needs root".into())
    } else {
        (Setting::new(0, true).core == Setting::new(0, true).other).then(|| "it needs two cores".into())
    }
}

fn measure(
    streams: u32,
    memory: Memory,
    (way, with_ovs): (BondWay, bool),
    interrupt: &Interrupt,
    screen: &mut Screen,
) -> Result<BondRow> {
    let mut run = Run::begin(false)?;
    let mut arms = Arms::start(&mut run, streams, memory, (way, with_ovs), interrupt)?;
    let mut rounds = Rounds::new(way);
    // The first round warms up.
    arms.round(&mut run, interrupt)?;
    for number in 1..=ROUNDS_MAX {
        let round = arms.round(&mut run, interrupt)?;
        rounds.add(round);
        screen.live(&[progress(streams, number, &round)]);
        if rounds.suffice() {
            break;
        }
    }
    Ok(BondRow::new(streams, &rounds))
}

/// Formats a round as progress: rates, and in brackets the share that was dropped.
fn progress(streams: u32, number: usize, round: &Round) -> String {
    let turn =
        |(name, turn): (&str, &Option<Turn>)| turn.map(|turn| format!("  {name} {turn}")).unwrap_or_default();
    let turns: String = ARMS.into_iter().zip(round).map(turn).collect();
    format!("{streams:>7}  round {number}:{turns}")
}

/// The arms of a comparison, all of them started and suspended.
struct Arms {
    weir: BondArm,
    ovs: Option<BondArm>,
    ceiling: BondArm,
}

impl Arms {
    fn start(
        run: &mut Run,
        streams: u32,
        memory: Memory,
        (way, with_ovs): (BondWay, bool),
        interrupt: &Interrupt,
    ) -> Result<Arms> {
        let setting = Setting { frames: memory.frames, ..Setting::new(memory.mebibytes, true) };
        let recording = record(run.folder(), streams)?;
        let weir = weir::start(run, &setting, (&recording, streams), way, interrupt)?;
        let ovs = if with_ovs {
            let namespace = run.namespace("ovs")?;
            let recordings = record_parts(run.folder(), streams, ovs::sources(streams))?;
            Some(ovs::start(run, &setting, &recordings, way, &namespace, interrupt)?)
        } else {
            None
        };
        let ceiling = match way {
            BondWay::Pvp => ceiling::start_with_machine(run, &setting, &recording)?,
            BondWay::Direct => {
                // There are two pairs with half of the streams each.
                let half = if streams > 1 { record(run.folder(), streams / 2)? } else { recording };
                ceiling::start(run, &setting, [&half, &half])?
            }
        };
        Ok(Arms { weir, ovs, ceiling })
    }

    /// Runs a turn of each arm.
    fn round(&mut self, run: &mut Run, interrupt: &Interrupt) -> Result<Round> {
        let weir = self.weir.turn(run, interrupt)?;
        let mut ovs = |lb_output| {
            let Some(ovs) = &mut self.ovs else { return Ok(None) };
            ovs.send_by(lb_output);
            ovs.turn(run, interrupt).map(Some)
        };
        let (lb, recirculation): (Option<Turn>, Option<Turn>) = (ovs(true)?, ovs(false)?);
        Ok([Some(weir), lb, recirculation, Some(self.ceiling.turn(run, interrupt)?)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_room_for_every_stream_and_the_rings() {
        for streams in STREAMS.into_iter().chain([STREAMS_MAX]) {
            let Memory { frames, mebibytes, weir } = Memory::for_streams(streams);
            assert!(u64::from(weir) << 10 >= u64::from(streams) * 3);
            assert!(frames >= streams + SPARE_FRAMES);
            assert!(u64::from(mebibytes) << 20 >= u64::from(frames) * 2400);
        }
    }

    #[test]
    fn a_number_of_streams_that_no_arm_has_memory_for_is_refused() {
        for wrong in [0, STREAMS_MAX + 1] {
            let error = run(&[1, wrong], BondWay::Direct, &mut Screen::new(true))
                .expect_err("it is out of range")
                .to_string();
            assert!(error.contains(&format!("{wrong} streams")) && error.contains("1 to 500000"), "{error}");
        }
    }
}
