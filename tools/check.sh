#!/usr/bin/env bash
# `make check`: what compiling and testing with one compiler do not see. One line a check, a closing line, exit 1 if one failed.
# Checks whose tool is not installed are named and skipped.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

make=${MAKE:-make}
passed=0
failed=0
skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
check() { # check NAME COMMAND...
    local name=$1
    shift
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name"
        tail -n 40 "$log"
    fi
}
check_with() { # check_with TOOL NAME COMMAND...
    local tool=$1
    shift
    if command -v "$tool" >/dev/null; then
        check "$@"
    else
        skipped=$((skipped + 1))
        echo "skip  $1: $tool is not installed"
    fi
}

check "layers of the includes" tools/check_layers.sh
check "the layer check can fail" tools/check_layers_fails.sh
check "texts" tools/check_text.sh
check "pages" tools/check_docs.sh
check_with shellcheck "scripts" shellcheck scripts/*.sh tools/*.sh .ci/run
check_with shellcheck "completion for bash" tools/check_texts_of.sh bash
check_with zsh "completion for zsh" tools/check_texts_of.sh zsh
check_with groff "manual page" tools/check_texts_of.sh man
check_with h5dump "HDF5 files in other tools" tools/check_hdf5.sh
check "an installed copy" tools/check_install.sh
# shellcheck disable=SC2086 # make is a command with options
check_with clang "a build by clang" $make -j"${JOBS:-2}" CC=clang all test-build
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
