#!/usr/bin/env bash
# Prints docs/ops.md from the list of ops, their tables and the comments of ops/ops.h. `make check` compares it with what is there.
# Usage: tools/ops_doc.sh > docs/ops.md
set -euo pipefail
cd "$(dirname "$0")/.."

cat <<'MD'
# The differentiable ops

Made by `tools/ops_doc.sh` from `ops/ops.def`, `ops/ops.h` and the tables in `ops/*.c`; do not edit. `build/brick list ops` prints names and formulas.
Tensors are contiguous, `[.., C]` means any leading dimensions, `NULL` an optional input that is left out. Builders are sticky: after the
first failure all return NULL and the context keeps the error (`autograd/tensor.h`). Formulas and derivatives stand at the head of each file.
MD
names=$(sed -n 's/^BK_OP(\([a-z_]*\)).*/\1/p' ops/ops.def)
for op in $names; do
    formula=$(sed -n 's/.*\.formula = "\([^"]*\)".*/\1/p' "ops/$op.c")
    [ -n "$formula" ] || {
        echo "ops/$op.c: no formula" >&2
        exit 1
    }
    # shellcheck disable=SC2016 # the backticks are Markdown
    printf '\n## %s\n\n`%s` ([`ops/%s.c`](../ops/%s.c))\n\n```c\n' "$op" "$formula" "$op" "$op"
    # The paragraph of ops.h that declares the builder.
    awk -v RS= -v builder="bk_tensor *bk_$op(" 'index($0, builder) { print; found = 1 } END { exit !found }' ops/ops.h
    printf '```\n'
done
