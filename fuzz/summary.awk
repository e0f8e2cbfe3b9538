# Reads libFuzzer's log: executions, edges covered, and the execution that found the last new edge.
match($0, /^#[0-9]+/) {
    at = substr($0, 2, RLENGTH - 1) + 0
    if (match($0, /cov: [0-9]+/)) {
        edges_now = substr($0, RSTART + 5, RLENGTH - 5) + 0
        if (edges_now > edges) { edges = edges_now; last = at }
    }
}
/^stat::number_of_executed_units:/ { executions = $2 }
END { printf "%-12s %11d executions  %6d edges  last new edge after %d\n", name, executions, edges, last }
