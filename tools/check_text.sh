#!/usr/bin/env bash
# What must not stand in tracked files: paths of one machine, hosts of package registries, unfinished business, tabs in C.
# Usage: tools/check_text.sh [ROOT]       prints file:line of every find, exit 1 if there is one
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

failed=0
forbid() { # forbid WHY PATTERN PATHSPEC...
    local why=$1 pattern=$2 found
    shift 2
    found=$(git grep -nIE -e "$pattern" -- "$@" ':!data/*.txt' ':!LICENSE' ':!tools/check_text.sh' | cut -c1-160) || return 0
    printf '%s: in\n%s\n' "$why" "$found"
    failed=1
}
forbid 'a path of one machine' '(^|[^[:alnum:]_.])/(work|root|home/[a-z]+|Users/[A-Za-z]+)/' .
forbid 'a path of one machine' '/tmp/[A-Za-z0-9_]+/' '*.c' '*.h' '*.sh' '*.md' '*.yaml' Makefile
forbid 'the host of a package registry' '(pkg\.dev|pythonhosted\.org|pypi\.org|deb\.debian\.org|snapshot\.debian|archive\.ubuntu)' .
forbid 'an address of one network' '(^|[^0-9.])(10|192\.168|172\.(1[6-9]|2[0-9]|3[01]))\.[0-9]+\.[0-9]+(\.[0-9]+)?([^0-9.]|$)' '*.sh' '*.md' .ci Makefile
forbid 'unfinished' '(^|[^[:alnum:]_])(TODO|FIXME|XXX|HACK)([^[:alnum:]_]|$)' .
forbid 'a tab' $'\t' '*.c' '*.h' '*.def' '*.sh' '*.yaml' '*.md'
forbid 'space at the end of the line' '[ ]+$' '*.c' '*.h' '*.def' '*.sh' '*.yaml' Makefile
exit "$failed"
