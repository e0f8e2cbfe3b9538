#!/bin/sh
# The same flows over the same paths in `weir sim` and in ns-3 (Debian: libns3-dev 3.37, g++): how long they
# take. Once with buffers that hold everything, so that only windows and queues matter, and once with those of
# a switch, where loss and its repair do.
#
# Use: bench/ns3/compare.sh [FLOWS [LOAD...]]     WEIR=target/release/weir TIMEOUT=1000 (the least, in us)
set -eu

weir=${WEIR:-target/release/weir}
flows=${1:-300}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- 40 70
leaves=2 spines=2 hosts=4 gbps=10 delay=5000 timeout=${TIMEOUT:-1000}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

g++ -O2 -std=c++17 -o "$folder/leaf-spine" "$(dirname "$0")/leaf-spine.cc" \
    $(pkg-config --cflags ns3-internet ns3-point-to-point) \
    -lns3-internet -lns3-point-to-point -lns3-network -lns3-core
for buffer in 20000000 500000; do
    for load in "$@"; do
        echo "load $load %, buffers of $buffer bytes"
        "$weir" sim path ecmp --reno --leaves $leaves --spines $spines --hosts $hosts --rate $gbps \
            --host-rate $gbps --delay $delay --timeout $timeout --buffer $buffer --load "$load" \
            --flows "$flows" --seeds 1 --trace "$folder/flows.csv" >/dev/null
        "$folder/leaf-spine" "$folder/flows.csv" $leaves $spines $hosts $gbps $delay $buffer $timeout
    done
done
