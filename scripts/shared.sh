#!/usr/bin/env bash
# Optional checks with data of your own (large texts, models): SHARED=folder, default ../shared. Without such a folder there is nothing to do.
# Runs tests/shared/*.sh (SHARED and BRICK set) and, if the folder has it, its checks/contracts.sh. SHARED_SECONDS: limit of each (300).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

SHARED=$(cd "${SHARED:-../shared}" 2>/dev/null && pwd) || {
    echo "no folder ${SHARED:-../shared}: nothing to check with it"
    exit 0
}
export SHARED BRICK=build/brick
passed=0
failed=0
run() { # run COMMAND...: adds up the closing lines "N passed, N failed"
    local status=0 p f
    echo "-- $*"
    timeout -k 10 "${SHARED_SECONDS:-300}" "$@" >"$log" 2>&1 </dev/null || status=$?
    cat "$log"
    read -r p f < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$log" | tail -n 1)
    p=${p:-0} f=${f:-0}
    if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then
        echo "exit status $status"
        f=1
    elif [ "$p" -eq 0 ] && [ "$f" -eq 0 ]; then
        p=1
    fi
    passed=$((passed + p))
    failed=$((failed + f))
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for script in tests/shared/*.sh; do
    [ ! -x "$script" ] || run "$script"
done
[ ! -x "$SHARED/checks/contracts.sh" ] || run "$SHARED/checks/contracts.sh" "$BRICK"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
