#!/usr/bin/env bash
# What `brick completion` prints, by the tool that reads it: no error, no warning.
# Usage: tools/check_texts_of.sh bash|zsh|man       BRICK names the program
set -euo pipefail
cd "$(dirname "$0")/.."

text=$(mktemp)
trap 'rm -f "$text"' EXIT
"${BRICK:-build/brick}" completion "$1" >"$text"
case $1 in
bash) bash -n "$text" && shellcheck "$text" ;;
zsh) zsh -n "$text" ;;
man) [ -z "$(groff -man -Tutf8 -ww "$text" 2>&1 >/dev/null | tee /dev/stderr)" ] ;;
esac
