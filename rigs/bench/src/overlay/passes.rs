//! How many interfaces a packet traverses in the pods and nodes. Counts the kernel's tracepoints for frames
//! that are queued at an interface (`net:net_dev_queue`) and received by one (`net:netif_receive_skb`), for
//! frames of a length that nothing else on the machine uses. Being a count, the result is not affected by
//! noise.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use weir_bed::Run;

use super::bed::Asker;

/// Number of requests and answers, or of one-way packets.
const PACKETS: u32 = 100;
/// Bytes of the packets' payload, a size that nothing else is likely to use.
const PAYLOAD: u32 = 1111;
/// Bytes of the headers of IP and UDP, of Ethernet, and of the tunnel.
const INNER: u32 = 28;
const ETHERNET: u32 = 14;
const TUNNEL: u32 = 50;
/// The switch between the nodes is not counted.
const SWITCH: [&str; 4] = ["f1", "f2", "f3", "br0"];

/// Traces in its own mount namespace and trace instance, until a line arrives.
const SCRIPT: &str = r#"
set -e
[ -d /sys/kernel/tracing/instances ] || mount -t tracefs nodev /sys/kernel/tracing
instance=/sys/kernel/tracing/instances/$1
mkdir "$instance"
trap 'echo 0 >"$instance/events/enable"; rmdir "$instance"' EXIT
trap 'exit 1' INT TERM HUP
for event in net_dev_queue netif_receive_skb; do
    echo "$2" >"$instance/events/net/$event/filter"
    echo 1 >"$instance/events/net/$event/enable"
done
echo ready
read -r line
echo 0 >"$instance/events/enable"
cat "$instance/trace"
"#;

/// Counts the passes per packet: of a learnt flow, or of a flow that is never answered, so that its packets
/// miss.
pub fn count(run: &mut Run, asker: &mut Asker, one_way: bool) -> Result<f64> {
    let filter = [INNER, INNER + ETHERNET, INNER + TUNNEL, INNER + ETHERNET + TUNNEL]
        .map(|more| format!("len == {}", PAYLOAD + more))
        .join(" || ");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", SCRIPT, "sh", &format!("weir-{}", std::process::id()), &filter]);
    let started = run.start("passes", command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let child = run.child(started);
    let mut input = child.stdin.take().context("no input")?;
    let mut output = BufReader::new(child.stdout.take().context("no output")?);
    let mut said = String::new();
    output.read_line(&mut said)?;
    if said.trim() != "ready" {
        bail!("the kernel's tracepoints cannot be used: {}", run.last_words("passes"));
    }
    let (order, packets) = if one_way { ("some_one_way", PACKETS) } else { ("some", 2 * PACKETS) };
    let came = asker.order(run, &format!("{order} {PACKETS} {PAYLOAD}"))?;
    writeln!(input)?;
    let mut trace = String::new();
    output.read_to_string(&mut trace)?;
    run.child(started).wait()?;
    if came["count"] != PACKETS {
        bail!("of {PACKETS} packets {} arrived: passes cannot be counted", came["count"]);
    }
    Ok(passes(&trace) as f64 / f64::from(packets))
}

/// Counts the passes in a trace.
fn passes(trace: &str) -> usize {
    let interface = |line: &str| Some(line.split_once(": dev=")?.1.split_whitespace().next()?.to_owned());
    let events = trace.lines().filter(|line| !line.starts_with('#')).filter_map(interface);
    events.filter(|name| !SWITCH.contains(&name.as_str())).count()
}

#[cfg(test)]
mod tests {
    use super::passes;

    #[test]
    fn passes_are_counted_without_the_switch() {
        let trace = "# tracer: nop\n#\n \
            weir-1 [000] b..1. 1.0: net_dev_queue: dev=eth0 skbaddr=00000000 len=1153\n \
            weir-1 [000] ..s1. 1.1: netif_receive_skb: dev=vp1 skbaddr=00000000 len=1139\n \
            weir-1 [000] ..s1. 1.2: netif_receive_skb: dev=f1 skbaddr=00000000 len=1189\n";
        assert_eq!(passes(trace), 2);
    }
}
