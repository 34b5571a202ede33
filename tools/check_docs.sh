#!/usr/bin/env bash
# The pages against the tree: links lead to files and headings, C code in the worked examples stands in examples/ or tests/, tests that are named exist,
# docs/ops.md is up to date.
# Usage: tools/check_docs.sh        prints what is wrong, exit 1 if anything is
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
wrong() {
    echo "$1"
    failed=1
}

# The headings of a page as GitHub names them in links.
anchors() {
    awk '/^ *```/ { inside = !inside } !inside && /^#+ / { sub(/^#+ /, ""); print }' "$1" |
        sed -E 's/\]\([^)]*\)//g' | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}
for page in README.md docs/*.md docs/studies/*.md; do
    while read -r link; do
        case $link in *://*) continue ;; esac
        target=$page
        case $link in [!#]*) target=$(dirname "$page")/${link%%#*} ;; esac
        if [ ! -e "$target" ]; then
            wrong "$page: the link to $link leads nowhere"
        elif [[ $link == *.md#* || $link == '#'* ]]; then
            anchors "$target" | grep -xF -e "${link#*#}" >/dev/null || wrong "$page: $target has no heading for $link"
        fi
    done < <(grep -o '](\([^)]*\))' "$page" | sed 's/^](//; s/)$//')
done

# Every line of a C block, spaces at its ends apart; /* ... */ stands for lines that are left out.
for page in docs/adding-an-op.md docs/adding-a-quantizer.md; do
    while IFS= read -r line; do
        case $line in '' | '/* ... */') continue ;; esac
        grep -rqF -e "$line" examples tests || wrong "$page: not in examples/ or tests/: $line"
    done < <(awk '/^```/ { inside = $0 == "```c"; next } inside { sub(/^ +/, ""); print }' "$page")
done

# Tests that docs/cases.md names, "suite: test, test; suite: test" in the last column.
while read -r suite test; do
    [ "$test" = all ] || grep -qF "START_TEST($test)" "tests/test_$suite.c" 2>/dev/null || wrong "docs/cases.md: there is no test $suite: $test"
done < <(awk -F'|' '/^\|/ {
    n = split($(NF - 1), suites, ";")
    for (i = 1; i <= n; i++) {
        if (split(suites[i], part, ":") < 2) continue
        gsub(/ /, "", part[1])
        m = split(part[2], tests, ",")
        for (k = 1; k <= m; k++) { gsub(/ /, "", tests[k]); print part[1], tests[k] }
    }
}' docs/cases.md)

tools/ops_doc.sh | cmp - docs/ops.md || wrong "docs/ops.md is not what tools/ops_doc.sh makes"
exit "$failed"
