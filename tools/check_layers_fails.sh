#!/usr/bin/env bash
# Plants one forbidden include at a time in an empty tree and demands that check_layers.sh names it; allowed ones must pass.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for header in backends/kernels.h backends/scalar/act.h backends/ref/ref.h autograd/error.h autograd/tape.h ops/ops.h io/store.h quant/quantizer.h \
    blocks/config.h experiments/schema.h; do
    mkdir -p "$dir/$(dirname "$header")"
    : >"$dir/$header"
done
echo '#include <hdf5.h>' >"$dir/io/store_priv.h"
mkdir -p "$dir"/{backends/cpu,backends/guard,tests}

try() { # try VERDICT FILE INCLUDE
    local verdict=passes
    printf '\n#include %s\n' "$3" >"$dir/$2"
    "$here/check_layers.sh" "$dir" >"$dir/out" || verdict=fails
    rm "$dir/$2"
    if [ "$verdict" != "$1" ] || { [ "$1" = fails ] && ! grep -q "^$2:2: " "$dir/out"; }; then
        echo "$2 with #include $3: $verdict, wanted $1"
        cat "$dir/out"
        exit 1
    fi
}
try fails autograd/x.c '"ops/ops.h"'
try fails ops/x.c '"io/store.h"'
try fails io/x.c '"ops/ops.h"'
try fails quant/x.c '"blocks/config.h"'
try fails blocks/x.c '"experiments/schema.h"'
try fails blocks/x.c '"backends/ref/ref.h"'
try fails backends/x.h '"autograd/error.h"'
try fails backends/cpu/x.c '"autograd/tape.h"'
try fails backends/cpu/x.c '"backends/ref/ref.h"'
try fails ops/x.c '"ops/absent.h"'
try fails ops/x.c '<cblas.h>'
try fails backends/ref/x.c '<omp.h>'
try fails blocks/x.c '<hdf5.h>'
try fails blocks/x.c '"io/store_priv.h"'
try fails experiments/run.c '<jansson.h>'
try fails experiments/run.c '<yaml.h>'
try fails quant/x.c '<pcre2.h>'
try fails blocks/x.c '<openssl/evp.h>'
try fails elsewhere.c '"experiments/schema.h"'
try passes autograd/x.c '"backends/kernels.h"'
try passes ops/x.c '"autograd/tape.h"'
try passes backends/cpu/x.c '"autograd/error.h"'
try passes backends/guard/x.c '"backends/ref/ref.h"'
try passes backends/cpu/x.c '<cblas.h>'
try passes io/x.c '<hdf5.h>'
try passes io/x.c '"io/store_priv.h"'
try passes io/x.c '<openssl/evp.h>'
try passes experiments/schema_read.c '<yaml.h>'
try passes experiments/run.c '"blocks/config.h"'
try passes tests/x.c '<hdf5.h>'
