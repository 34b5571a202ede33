#!/usr/bin/env bash
# Flips one sign at a time in backward code and demands that a test turns red.
#
# Backward code: functions of ops/*.c, backends/ref, backends/cpu and backends/scalar whose head names bwd, backward, grad or a derivative
# (NAME_dsomething), or that take a parameter dsomething. One mutant = FILE:LINE:COLUMN:WHAT, with WHAT
#   + -   `+=` becomes `-=`, or the other way round (not in the head of a for)
#   p m   a plus or minus between the terms of what is accumulated or assigned (not of an index) is flipped
#   n     `x[i] = e;`, `float x = e;`, `return e;` of a formula and, in backends/scalar, `.dsomething = e;` become `-(e)`
#   s     a factor handed to a function, `1.0f` or `(float)x`, is negated
#   0 !   in ops/: `= 1` of a kernel's argument (accumulate, transpose, alpha) becomes 0; `!e` becomes `!!e`
#
# Usage: tools/mutate.sh [--list]      MUTANTS=n SEED=s: a sample of n; MUTATE=regex: only mutants whose name matches
#        MUTATE_SECONDS=s: no new mutant after s seconds
#        MUTATE_TESTS="pattern...": test programs to run, in this order. Works in build/mutants, a copy of the tracked files.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=build/mutants
jobs=${JOBS:-$(nproc)}
make="make -s -C $tree -j$jobs CFLAGS=-O1"

list() { # every mutant, a line each: FILE:LINE:COLUMN:WHAT
    local files
    mapfile -t files < <(git ls-files 'ops/*.c' 'backends/ref/*.[ch]' 'backends/cpu/*.[ch]' 'backends/scalar/*.h')
    [ ${#files[@]} -eq 0 ] || awk '
    function emit(column, what) { printf "%s:%d:%d:%s\n", FILENAME, FNR, column, what }
    function blank(n) { return sprintf("%" n "s", "") }
    function closing(text, i, open, close_,   depth, c) { # the index of the bracket that closes the one at i
        for (depth = 0; i <= length(text); i++) {
            c = substr(text, i, 1)
            depth += (c == open) - (c == close_)
            if (depth == 0) return i
        }
        return length(text)
    }
    function is_backward(head) { # by its name, or by a parameter called dsomething
        gsub(/[ *](data|dim|dims|dst|dest|depth|div|dtype)[,)]/, " ", head)
        return head ~ /(bwd|backward|grad|_d[a-z]+\()/ || head ~ /[ *]d[a-z]+[,)]/
    }
    function each(text, pattern, what,   offset) { # one mutant for each match
        for (offset = 0; match(text, pattern); text = substr(text, RSTART + RLENGTH)) {
            emit(offset + RSTART, what)
            offset += RSTART + RLENGTH - 1
        }
    }
    FNR == 1 { inside = 0; head = "" }
    !inside && /^[A-Za-z_]/ { head = "" } # a declaration begins at the margin
    !inside { head = head $0 }
    !inside && /{[ \t]*(\/\*.*)?$/ {
        inside = 1
        backward = head ~ /\(/ && head !~ /^(typedef|struct|enum|static const struct|const)/ && is_backward(head)
        next
    }
    /^}/ { inside = 0; head = ""; next }
    !inside || /^[ \t]*(\/\*|\*|\/\/|#)/ { next }
    {
        line = $0
        sub(/\/\*.*/, "", line)
        if (match(line, /for[ \t]*\(/)) { # blank out the head of a loop
            open_at = RSTART + RLENGTH - 1
            close_at = closing(line, open_at, "(", ")")
            line = substr(line, 1, open_at) blank(close_at - open_at) substr(line, close_at + 1)
        }
    }
    FILENAME ~ /scalar/ && match(line, /\.d(max|min|gamma|beta|[a-z]) = /) && line ~ /;[ \t]*$/ { emit(RSTART + RLENGTH, "n"); next }
    !backward { next }
    FILENAME ~ /^ops\// {
        each(line, " = 1[,});]", "0")
        if (line !~ /^[ \t]*if /) each(line, "[ (]![a-z(]", "!")
    }
    {
        each(line, "[+]=", "+")
        each(line, "-=", "-")
        each(line, ", (1[.]0f|[(]float[)][a-z])", "s")
        assigned = match(line, /[+-]=|\] = |^[ \t]*(float|double|REAL) [a-z]+ = |^[ \t]*return /)
        if (!assigned) next
        from = RSTART + RLENGTH
        operator = substr(line, RSTART, RLENGTH)
        value = substr(line, from)
        terms = blank(from - 1) value # the signs between terms, not those of indices
        while (match(terms, /\[/)) {
            open_at = RSTART
            close_at = closing(terms, open_at, "[", "]")
            terms = substr(terms, 1, open_at - 1) blank(close_at - open_at + 1) substr(terms, close_at + 1)
        }
        if (operator !~ /return/) {
            each(terms, " [+] ", "p")
            each(terms, " - ", "m")
        }
        if (operator !~ /[+-]=/ && value ~ /[-+*\/]/ && value ~ /;[ \t]*$/ && value !~ /(bk_k_|BK_|status|&&|\|\||,)/) emit(from, "n")
    }' "${files[@]}"
}

apply() { # apply FILE LINE COLUMN WHAT: to the copy
    awk -v at="$2" -v column="$3" -v what="$4" '
    NR != at { print; next }
    { before = substr($0, 1, column - 1); here = substr($0, column) }
    what == "+" { sub(/^\+=/, "-=", here) }
    what == "-" { sub(/^-=/, "+=", here) }
    what == "p" { sub(/^ \+ /, " - ", here) }
    what == "m" { sub(/^ - /, " + ", here) }
    what == "s" { sub(/^, /, ", -", here) }
    what == "0" { sub(/^ = 1/, " = 0", here) }
    what == "!" { sub(/!/, "!!", here) }
    what == "n" { sub(/;[^;]*$/, "", here); here = "-(" here ");" }
    { print before here }' "$1" >"$tree/$1"
}

restore() { # a new time stamp, so that make builds it again
    [ -z "${mutated:-}" ] || cp "$mutated" "$tree/$mutated"
    mutated=
}

tests_of() { # the test programs that are to notice a mutant of this file, the quickest first
    local pattern patterns source
    case $1 in
    backends/cpu/* | backends/scalar/*) patterns='test_cpu_* test_ops_backend*' ;;
    *) patterns='test_ops_grad* test_kernels* test_ops_backend*' ;;
    esac
    for pattern in ${MUTATE_TESTS:-$patterns}; do
        for source in tests/$pattern.c; do
            [ ! -e "$source" ] || echo "build/${source%.c}"
        done
    done
}

red() { # builds and runs one program after the other; true at the first that fails, which is left in $killer. In one
    # process, which is quicker: the mutant that kills it is noticed all the same
    for killer in "${programs[@]}"; do
        if ! $make "$killer" >/dev/null 2>&1; then
            killer=compiler
            return 0
        fi
        { (cd "$tree" && OMP_NUM_THREADS=2 CK_FORK=no CK_VERBOSITY=silent timeout -k 5 120 "$killer") >/dev/null </dev/null; } 2>/dev/null || return 0
    done
    killer=
    return 1
}

mapfile -t mutants < <(list | { grep -E "${MUTATE:-}" || true; })
if [ -n "${MUTANTS:-}" ] && [ ${#mutants[@]} -gt 0 ]; then
    mapfile -t mutants < <(printf '%s\n' "${mutants[@]}" |
        awk -v seed="${SEED:-1}" 'BEGIN { srand(seed) } { print rand() "\t" $0 }' | sort -n | head -n "$MUTANTS" | cut -f 2)
fi
if [ "${1:-}" = --list ]; then
    printf '%s\n' "${mutants[@]}"
    exit 0
fi
mapfile -t programs < <(for mutant in "${mutants[@]}"; do tests_of "${mutant%%:*}"; done | sort -u)
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
    mapfile -t programs < <(tests_of "$file")
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
