#!/usr/bin/env bash
# Who may include whom. A folder includes only folders to its left; libraries outside the core each have one room.
#   backends/{*.h, scalar} < autograd < {ops, io} < quant < blocks < experiments < tests
# Usage: tools/check_layers.sh [ROOT]       prints file:line of every include that breaks a rule, exit 1 if any does
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

# shellcheck disable=SC2016 # the dollars are of awk
find . -path './build*' -prune -o -path './.git' -prune -o -type f \( -name '*.c' -o -name '*.h' -o -name '*.def' \) -print |
    sed 's|^\./||' | sort | xargs -r awk '
function room(path,   top, two) { # the layer that a file belongs to
    if (path ~ /^backends\/[^\/]*$/ || path ~ /^backends\/scalar\//) return "interface"
    if (path ~ /^backends\/[^\/]*\//) return "backend"
    top = path
    sub(/\/.*/, "", top)
    return path ~ /\// ? top : "root"
}
function bad(why) { printf "%s:%d: includes %s: %s\n", FILENAME, FNR, name, why; failed = 1 }
BEGIN {
    may["interface"] = " interface "
    may["autograd"] = " interface autograd "
    may["ops"] = " interface autograd ops "
    may["io"] = " interface autograd io "
    may["quant"] = " interface autograd ops io quant "
    may["blocks"] = " interface autograd ops io quant blocks "
    may["experiments"] = " interface autograd ops io quant blocks experiments root "
    may["root"] = " interface autograd ops io quant blocks "
    may["examples"] = may["root"]
    # A library outside the core, and the files that may include its headers; tests may include any.
    only["^(hdf5|hdf5_hl|H5[A-Za-z0-9]*)\\.h$"] = "^io/"
    only["^jansson\\.h$"] = "^io/"
    only["^pcre2\\.h$"] = "^io/"
    only["^utf8proc\\.h$"] = "^io/"
    only["^openssl/"] = "^io/"
    only["^yaml\\.h$"] = "^experiments/schema[^/]*\\.c$"
    only["^(cblas|lapack|lapacke|openblas_config|f77blas|omp)\\.h$"] = "^backends/cpu/"
    only["^(cuda|cublas|cuda_runtime|cuda_fp16)"] = "^backends/cuda/"
    only["^check\\.h$"] = "^$"
}
FNR == 1 { mine = room(FILENAME) }
/^[ \t]*#[ \t]*include[ \t]*[<"]/ {
    name = $0
    sub(/^[^<"]*[<"]/, "", name)
    sub(/[>"].*/, "", name)
    if (mine == "tests") next
    if ($0 ~ /include[ \t]*</) {
        for (lib in only) {
            if (name !~ lib) continue
            if (FILENAME !~ only[lib]) bad("this header belongs to " (only[lib] == "^$" ? "tests/" : only[lib]))
            private[FILENAME] = name
        }
        next
    }
    theirs = room(name)
    if (theirs != mine) used[FILENAME ":" FNR] = name
    if ((getline unused < name) < 0) bad("there is no such file under the root")
    close(name)
    if (mine == "backend") {
        own = FILENAME
        sub(/[^\/]*$/, "", own)
        if (own == "backends/guard/" && name ~ /^backends\/ref\//) next # guard is ref on memory that is out of reach
        if (theirs != "interface" && index(name, own) != 1 && name !~ /^autograd\/(error|backend)\.h$/)
            bad("a backend knows backends/*.h, backends/scalar, its own folder, autograd/error.h and autograd/backend.h")
    } else if (!(mine in may)) {
        bad("the folder " mine " has no place among the layers")
    } else if (index(may[mine], " " theirs " ") == 0) {
        bad(mine " may include only" may[mine])
    }
}
END { # a header that brings such a library along stays in its room
    for (place in used)
        if (used[place] in private) {
            printf "%s: includes %s: it is private to its folder, since it includes %s\n", place, used[place], private[used[place]]
            failed = 1
        }
    exit failed
}'
