#!/usr/bin/env bash
# Installs what a purpose needs and this machine lacks, through apt. Does nothing, and needs no network, when all is there.
# Usage: scripts/setup.sh [build] [test] [model] [check] [report] [browser]      (default: build)
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
need() { # need PACKAGE PROBE...: the package, if the probe fails
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
have() { command -v "$1"; }
pc() { pkg-config --exists "$1"; }
pip_is_there() { python3 -c 'import importlib.util as u; raise SystemExit(u.find_spec("pip") is None)'; }
has_h5py() { python3 -c 'import h5py' || /usr/bin/python3 -c 'import h5py'; }
clang_has_sanitizers() { echo 'int main(void) { return 0; }' | clang -fsanitize=thread -x c - -o /dev/null; }
clang_has_openmp() { echo '#include <omp.h>' | clang -fopenmp -fsyntax-only -x c -; }

for_build() {
    compiler=${CC:-gcc}
    case $compiler in
    *clang*) for_clang ;;
    *) need gcc have "${compiler%% *}" ;;
    esac
    need libc6-dev test -e /usr/include/stdio.h
    need pkg-config have pkg-config
    need libhdf5-dev pc hdf5
    need libopenblas-openmp-dev pc openblas
    need libjansson-dev pc jansson
    need libyaml-dev pc yaml-0.1
    need libpcre2-dev pc libpcre2-8
    need libutf8proc-dev pc libutf8proc
    need libssl-dev pc libcrypto
}
for_clang() {
    need clang have clang
    need libomp-dev clang_has_openmp
    need libclang-rt-dev clang_has_sanitizers
}
for_test() {
    need check pc check
    for_report
}
for_report() { need gnuplot-nox have gnuplot; }
for_browser() { need chromium have chromium; } # opens pages of `brick report` in CI
for_model() {
    [ ! -e models/SmolLM2-135M-Instruct.Q4_1.gguf ] || return 0
    need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
    need python3-pip pip_is_there
}
for_check() { # optional for `make check` and `make fuzz`; .ci/run wants them all
    for_clang
    need llvm have llvm-cov
    need hdf5-tools have h5dump
    need python3-h5py has_h5py
    need shellcheck have shellcheck
    need zsh have zsh
    need groff-base have groff
    need python3 have python3
}

for purpose in "${@:-build}"; do
    case $purpose in
    build | test | model | check | report | browser) "for_$purpose" ;;
    *)
        echo "setup: unknown purpose '$purpose'; known: build test model check report browser" >&2
        exit 2
        ;;
    esac
done
[ ${#missing[@]} -gt 0 ] || exit 0

give_up() {
    echo "setup: missing packages: ${missing[*]}" >&2
    echo "setup: $1" >&2
    echo "    apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
}
command -v apt-get >/dev/null ||
    give_up "this machine has no apt; install what these Debian packages hold with its own package manager. On Debian it would be"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || give_up "may not install (not root, no sudo without a password). Run as root:"
    as_root=(sudo -n)
fi

echo "setup: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" </dev/null >"$log" 2>&1; }
apt update || echo "setup: apt-get update failed, trying with the lists at hand" >&2
if ! apt install --no-install-recommends "${missing[@]}"; then
    tail -n 20 "$log" >&2
    give_up "apt-get could not install them (its last lines stand above). By hand:"
fi
echo "setup: done" >&2
