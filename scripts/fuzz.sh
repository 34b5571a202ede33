#!/usr/bin/env bash
# Runs libFuzzer programs, as many at once as there are cores, FUZZ_SECONDS each, from seeds, and prints the line coverage of what reads files.
# Usage: scripts/fuzz.sh BUILD NAME...     BUILD/fuzz/NAME were built with SAN=fuzz; BUILD/corpus/NAME is kept and grows
set -euo pipefail
cd "$(dirname "$0")/.."

build=$1
shift
seconds=${FUZZ_SECONDS:-60}
if [ $# -eq 0 ]; then
    echo "fuzz: there is no tests/fuzz/fuzz_*.c" >&2
    exit 1
fi
jobs=${JOBS:-$(nproc)}

fuzz() { # one program; its exit status is left in a file
    local name=$1 status=0 corpus=$build/corpus/$1
    mkdir -p "$corpus"
    [ ! -x tests/fuzz/seeds.sh ] || tests/fuzz/seeds.sh "$name" "$corpus"
    LLVM_PROFILE_FILE=$build/fuzz/$name.profraw "$build/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$build/found/$name-" -print_final_stats=1 "$corpus" >"$build/fuzz/$name.log" 2>&1 </dev/null || status=$?
    echo "$status" >"$build/fuzz/$name.status"
}
mkdir -p "$build/found"
for name in "$@"; do
    while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do wait -n; done
    fuzz "$name" &
done
wait

passed=0
failed=0
objects=()
profiles=()
for name in "$@"; do
    status=$(cat "$build/fuzz/$name.status")
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/fuzz/$name.log")
        echo "$name: $runs runs in $seconds s, $(find "$build/corpus/$name" -type f | wc -l) inputs kept"
    else
        failed=$((failed + 1))
        echo "$name: FAILED (exit status $status); the input lies in $build/found/"
        tail -n 40 "$build/fuzz/$name.log"
    fi
    objects+=(-object "$build/fuzz/$name")
    [ ! -s "$build/fuzz/$name.profraw" ] || profiles+=("$build/fuzz/$name.profraw")
done

if [ ${#profiles[@]} -gt 0 ] && command -v llvm-cov >/dev/null; then
    llvm-profdata merge -sparse -o "$build/fuzz/all.profdata" "${profiles[@]}"
    echo "line coverage of what reads files:"
    shopt -s nullglob
    sources=(io/*.c blocks/config*.c experiments/schema*.c experiments/inspect*.c)
    llvm-cov report -instr-profile "$build/fuzz/all.profdata" "${objects[@]:1}" "${sources[@]}" 2>/dev/null |
        awk '/^Filename/ || NF < 10 { next } { printf "  %-36s %6d lines %8s\n", $1, $8, $10 }'
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
