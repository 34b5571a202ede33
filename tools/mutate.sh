#!/usr/bin/env bash
# Flips one sign at a time in backward code and demands that a test turns red.
#
# Backward code: functions of ops/*.c, backends/ref, backends/cpu and backends/scalar whose head names bwd, backward or grad.
# Mutants: `+=` becomes `-=` and the other way round (not in the head of a for); `x[i] = e;` and `return e;` of a formula become
# `-(e)`, where e is more than a name or a constant. One mutant = FILE:LINE:COLUMN:WHAT.
#
# Usage: tools/mutate.sh [--list]      MUTANTS=n SEED=s: a sample of n; MUTATE=regex: only mutants whose name matches
#        MUTATE_SECONDS=s: no new mutant after s seconds
#        MUTATE_TESTS="pattern...": test programs to run, in this order. Works in build/mutants, a copy of the tracked files.
set -euo pipefail
cd "$(dirname "$0")/.."

patterns=${MUTATE_TESTS:-test_grad* test_op* test_kernel* test_ref* test_cpu* test_*quant* test_block*}
tree=build/mutants
jobs=${JOBS:-$(nproc)}
make="make -s -C $tree -j$jobs CFLAGS=-O1"

list() { # every mutant, a line each: FILE:LINE:COLUMN:WHAT
    local files
    mapfile -t files < <(git ls-files 'ops/*.c' 'backends/ref/*.[ch]' 'backends/cpu/*.[ch]' 'backends/scalar/*.h')
    [ ${#files[@]} -eq 0 ] || awk '
    function emit(column, what) { printf "%s:%d:%d:%s\n", FILENAME, FNR, column, what }
    FNR == 1 { inside = 0; head = "" }
    !inside && /^[A-Za-z_]/ { head = "" }                                  # a declaration begins at the margin
    !inside { head = head $0; if (/;[ \t]*$/ && !/{/) head = "" }
    !inside && /{[ \t]*(\/\*.*)?$/ {
        inside = 1
        backward = head ~ /\(/ && head ~ /(bwd|backward|grad)/ && head !~ /^(typedef|struct|enum|static const struct)/
        next
    }
    /^}/ { inside = 0; head = ""; next }
    inside && backward && !/^[ \t]*(\/\*|\*|\/\/|#)/ {
        line = $0
        sub(/\/\*.*/, "", line)
        if (line ~ /^[ \t]*for[ \t]*\(/) { # blank out the head of the loop
            depth = 0
            for (i = index(line, "("); i <= length(line); i++) {
                c = substr(line, i, 1)
                depth += (c == "(") - (c == ")")
                if (depth == 0) break
            }
            line = sprintf("%" i "s", "") substr(line, i + 1)
        }
        rest = line
        offset = 0
        while (match(rest, /[+-]=/)) {
            emit(offset + RSTART, substr(rest, RSTART, 1))
            offset += RSTART + 1
            rest = substr(rest, RSTART + 2)
        }
        if (match(line, /\][ \t]=[ \t]/) || match(line, /^[ \t]*return[ \t]/)) {
            start = RSTART + RLENGTH
            value = substr(line, start)
            if (value ~ /[-+*\/]/ && value ~ /;[ \t]*$/ && value !~ /(bk_fail|BK_|status|\?|&&|\|\|)/) emit(start, "n")
        }
    }' "${files[@]}"
}

apply() { # apply FILE LINE COLUMN WHAT: to the copy
    awk -v at="$2" -v column="$3" -v what="$4" '
    NR != at { print; next }
    what == "n" { value = substr($0, column); sub(/;[^;]*$/, "", value); print substr($0, 1, column - 1) "-(" value ");"; next }
    { print substr($0, 1, column - 1) (what == "+" ? "-" : "+") substr($0, column + 1) }' "$1" >"$tree/$1"
}

restore() { # a new time stamp, so that make builds it again
    [ -z "${mutated:-}" ] || cp "$mutated" "$tree/$mutated"
    mutated=
}

test_programs() { # the programs of the patterns, in their order, each once
    local pattern source
    for pattern in $patterns; do
        for source in tests/$pattern.c; do
            [ ! -e "$source" ] || echo "build/${source%.c}"
        done
    done | awk '!seen[$0]++'
}

red() { # builds and runs one program after the other; true at the first that fails, which is left in $killer
    for killer in "${programs[@]}"; do
        if ! $make "$killer" >/dev/null 2>&1; then
            killer=compiler
            return 0
        fi
        (cd "$tree" && OMP_NUM_THREADS=2 CK_VERBOSITY=silent timeout -k 5 120 "$killer") >/dev/null 2>&1 </dev/null || return 0
    done
    killer=
    return 1
}

mapfile -t mutants < <(list | { grep -E "${MUTATE:-}" || true; })
if [ -n "${MUTANTS:-}" ] && [ ${#mutants[@]} -gt 0 ]; then
    mapfile -t mutants < <(printf '%s\n' "${mutants[@]}" | shuf -n "$MUTANTS" --random-source=<(yes "${SEED:-1}"))
fi
if [ "${1:-}" = --list ]; then
    printf '%s\n' "${mutants[@]}"
    exit 0
fi
mapfile -t programs < <(test_programs)
if [ ${#mutants[@]} -eq 0 ] || [ ${#programs[@]} -eq 0 ]; then
    echo "mutate: ${#mutants[@]} mutants and ${#programs[@]} test programs: nothing was tried" >&2
    exit 1
fi

mkdir -p "$tree"
while IFS= read -r file; do
    cmp -s "$file" "$tree/$file" || { mkdir -p "$tree/$(dirname "$file")" && cp "$file" "$tree/$file"; }
done < <(git ls-files -- ':!data' ':!docs')
trap restore EXIT
$make "${programs[@]}"
if red; then
    echo "mutate: $killer is red without any mutant" >&2
    exit 1
fi

passed=0
failed=0
unbuilt=0
for mutant in "${mutants[@]}"; do
    if [ "$SECONDS" -ge "${MUTATE_SECONDS:-86400}" ]; then
        echo "stopped after $SECONDS s: $((passed + failed + unbuilt)) of ${#mutants[@]} mutants were tried"
        break
    fi
    IFS=: read -r file line column what <<<"$mutant"
    mutated=$file
    apply "$file" "$line" "$column" "$what"
    red || true
    if [ "$killer" = compiler ]; then
        unbuilt=$((unbuilt + 1))
        echo "unbuilt   $mutant"
    elif [ -n "$killer" ]; then
        passed=$((passed + 1))
        echo "red       $mutant  ($(basename "$killer"))"
    else
        failed=$((failed + 1))
        echo "SURVIVES  $mutant  $(sed -n "${line}s/^ *//p" "$file")"
    fi
    restore
done
[ "$unbuilt" -eq 0 ] || echo "$unbuilt mutants did not compile and count for nothing"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
