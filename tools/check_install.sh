#!/usr/bin/env bash
# Installs into a scratch folder and builds a program against that copy alone: headers, both libraries, brick.pc.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=$PWD
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
${MAKE:-make} -s install PREFIX="$dir/usr" >/dev/null
cat >"$dir/user.c" <<'C'
#include <brick.h>
#include <stdio.h>
int main(void) {
    bk_error err = {0};
    bk_status status = bk_fail(&err, BK_EINVAL, "block %d", 3);
    return puts(err.msg) < 0 || status != BK_EINVAL;
}
C
export PKG_CONFIG_PATH=$dir/usr/lib/pkgconfig
cd "$dir"
# shellcheck disable=SC2046 # the flags are words
${CC:-gcc} -std=c11 -Wall -Werror user.c -o dynamic $(pkg-config --cflags --libs brick) "-Wl,-rpath,$dir/usr/lib"
# shellcheck disable=SC2046
${CC:-gcc} -std=c11 -Wall -Werror user.c -o static $(pkg-config --cflags brick) usr/lib/libbrick.a $(pkg-config --libs-only-other --static brick) \
    $(pkg-config --libs hdf5 openblas jansson yaml-0.1 libpcre2-8 libutf8proc libcrypto) -lm -lpthread
for program in ./dynamic ./static; do [ "$("$program")" = "block 3" ]; done
# shellcheck disable=SC2046 # the flags are words
${CC:-gcc} -shared -fPIC -O2 -ffp-contract=off $(pkg-config --cflags brick) "$tree/examples/quantizer_odd.c" -o odd.so
usr/bin/brick list quantizers --plugin odd.so | grep '^odd ' >list.txt
for text in man/man1/brick.1 bash-completion/completions/brick zsh/site-functions/_brick; do [ -s "usr/share/$text" ]; done
for verb in '' run eval; do
    # shellcheck disable=SC2086 # no verb, no word
    usr/bin/brick $verb -h >/dev/null
done
