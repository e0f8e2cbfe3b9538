#!/bin/bash
# Compares weir's DPDK port with dpdk-testpmd, alternating on one core: from net_pcap (a looped recording) to
# net_null.
#
#     bench/dpdk-forward.sh [ROUNDS] [FLOWS...]
#
# Needs root, dpdk-dev (dpdk-testpmd), python3, and a release build of the example:
#
#     cargo build -p weir-port --release --features dpdk --example dpdk_forward
#
# Prints million frames per second for every round, and the medians. Both get the same devices, huge pages,
# pool size, core and priority, so that a busy machine affects them alike. Huge pages are returned at the end.
set -euo pipefail

rounds=${1:-5}
flows=("${@:2}")
[ ${#flows[@]} -gt 0 ] || flows=(1000 100000)
seconds=3
core=1
frames=163456
target=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}
example=$target/release/examples/dpdk_forward
work=$(mktemp -d)
pages=$(cat /proc/sys/vm/nr_hugepages)
trap 'echo "$pages" > /proc/sys/vm/nr_hugepages; rm -rf "$work"' EXIT
[ "$pages" -ge 768 ] || echo 768 > /proc/sys/vm/nr_hugepages

# Writes a recording of FLOWS UDP flows with one frame of 60 bytes each.
record() { # FLOWS FILE
    python3 - "$1" "$2" <<'END'
import struct, sys
with open(sys.argv[2], "wb") as out:
    out.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
    for flow in range(int(sys.argv[1])):
        ip = struct.pack("!BBHHHBBHII", 0x45, 0, 46, 0, 0, 64, 17, 0, 0x0a000000 | flow, 0xc0000201)
        udp = struct.pack("!HHHH", 1024, 53, 26, 0)
        frame = bytes.fromhex("0200000000020200000000010800") + ip + udp + bytes(18)
        out.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
END
}

devices() { echo "net_pcap0,rx_pcap=$work/$1.pcap,infinite_rx=1 net_null0,no-rx=1"; }
median() {
    sort -n | awk '{ at[NR] = $1 } END { low = int((NR + 1) / 2); print (at[low] + at[NR + 1 - low]) / 2 }'
}

# Runs a command with priority. A separate session has its own CPU share (autogroup), which nice does not
# affect. Not a real-time class, with which DPDK hangs at its start in a sleep of one microsecond on some
# virtual machines.
ahead() { # COMMAND...
    timeout $((seconds + 20)) setsid sh -c 'echo -20 > /proc/self/autogroup; exec nice -n -20 "$@"' ahead "$@"
}

# testpmd prints its own rate once a second; the first second is incomplete.
testpmd() { # MODE FLOWS
    local vdevs=()
    for device in $(devices "$2"); do vdevs+=("--vdev=$device"); done
    { sleep $((seconds + 2)); echo; } | ahead dpdk-testpmd --in-memory -m 768 --no-pci --no-telemetry \
        --file-prefix="weir-peer-$$" -l 0,$core "${vdevs[@]}" -- --forward-mode="$1" --auto-start \
        --nb-cores=1 --total-num-mbufs=$frames --stats-period 1 > "$work/log" 2>&1 || true
    grep -a 'Rx-pps' "$work/log" | awk '$2 > 0 { print $2 / 1e6 }' | sed 1d | head -n $seconds | median
}

weir() { # MODE FLOWS
    # shellcheck disable=SC2046 # two words, two arguments
    ahead taskset -c $core "$example" $seconds 768 $(devices "$2") "$1" | awk '{ print $1 }'
}

for count in "${flows[@]}"; do
    record "$count" "$work/$count.pcap"
    for ((round = 1; round <= rounds; round++)); do
        for mode in io macswap; do
            for program in testpmd weir; do
                rate=$($program $mode "$count")
                echo "$rate" >> "$work/$program-$mode-$count"
                printf '%6d flows, round %d, %-7s %-7s %6.2f Mpps\n' \
                    "$count" "$round" "$mode" "$program" "$rate"
            done
        done
    done
done
for count in "${flows[@]}"; do
    for mode in io macswap; do
        ours=$(median < "$work/weir-$mode-$count")
        theirs=$(median < "$work/testpmd-$mode-$count")
        awk -v c="$count" -v m=$mode -v w="$ours" -v t="$theirs" 'BEGIN {
            printf "median: %6d flows %-7s testpmd %6.2f  weir %6.2f Mpps  %3.0f %%  (%+.1f ns per frame)\n",
                c, m, t, w, 100 * w / t, 1000 / w - 1000 / t }'
    done
done
