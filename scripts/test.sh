#!/usr/bin/env bash
# Runs test programs one after the other: a line for each, what failed in full and what was left out, and a closing line. Exit 1 if any test failed.
# Left out are tests that need what the machine lacks ("SKIPPED N: why" of the program); with CI set, a program fails where that could be installed.
# Usage: scripts/test.sh PROGRAM...       BK_TEST_SECONDS: limit for one program (300)
#        CK_RUN_SUITE, CK_RUN_CASE, CK_TIMEOUT_MULTIPLIER ... are Check's own.
set -euo pipefail

export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} # threads that spin are slow where other programs run
limit=${BK_TEST_SECONDS:-300}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0
failed=0
skipped=0
if [ $# -eq 0 ]; then
    echo "no test program is called *${BK_TEST:-}*" >&2
    exit 1
fi
for program in "$@"; do
    start=$EPOCHREALTIME
    status=0
    timeout -k 5 "$limit" "$program" >"$log" 2>&1 </dev/null || status=$?
    seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    # Check's summary: "97%: Checks: 40, Failures: 1, Errors: 0"
    read -r checks bad < <(sed -n 's/^[0-9]*%: Checks: \([0-9]*\), Failures: \([0-9]*\), Errors: \([0-9]*\)$/\1 \2 \3/p' "$log" |
        awk '{ n += $1; f += $2 + $3 } END { print n + 0, f + 0 }')
    note=
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then note="  (stopped after $limit s)"; fi
    if [ "$bad" -eq 0 ] && [ "$status" -ne 0 ]; then # died outside a test, or a sanitizer spoke at exit
        bad=1
        checks=$((checks > 0 ? checks : 1))
        note=${note:-"  (exit status $status)"}
    fi
    if [ "$checks" -eq 0 ] && [ -z "${CK_RUN_CASE:-}${CK_RUN_SUITE:-}" ]; then
        bad=1
        checks=1
        note="  (ran no test)"
    fi
    passed=$((passed + checks - bad))
    failed=$((failed + bad))
    printf '%-28s %4d passed %3d failed %7s s%s\n' "$(basename "$program")" $((checks - bad)) "$bad" "$seconds" "$note"
    grep '^SKIPPED ' "$log" | sed 's/^/    /' || true
    skipped=$((skipped + $(sed -n 's/^SKIPPED \([0-9]*\): .*/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')))
    [ "$bad" -eq 0 ] || grep -v ':P:' "$log" | tail -n 60
done
printf '%d passed, %d failed%s\n' "$passed" "$failed" "$([ "$skipped" -eq 0 ] || echo ", $skipped skipped")"
[ "$failed" -eq 0 ]
